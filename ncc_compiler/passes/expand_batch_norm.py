"""Spells batch normalisation out in sums and elementwise operations, which other passes know.

With the mean over all dimensions but the features', and a float type that holds every operand:

    training    mean(x), mean((x - mean)^2), and what inference gives with these
    inference   (x - mean) * scale * rsqrt(variance + epsilon) + offset
    grad        with d = x - mean and r = rsqrt(variance + epsilon)
                scale * r * (g - mean(g) - d * r^2 * mean(g * d)), sum(g * d) * r, sum(g)

The variance is the mean of squared distances, as in StableHLO; XLA subtracts the squared mean from
the mean of squares, which cancels where the mean is large.
"""

import math
from typing import ClassVar

import attrs

from ncc_compiler.ir.graph import Callee, Computation, Module, Node, NodeId
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, array_types, rewrite_module, sum_region
from ncc_runtime.neff.shared.dtypes import DType

_OPS = frozenset({"batch-norm-training", "batch-norm-inference", "batch-norm-grad"})


@attrs.frozen
class ExpandBatchNorm(Pass):
    """Afterwards there is no batch normalisation."""

    name: ClassVar[str] = "expand-batch-norm"

    def run(self, module: Module) -> Module:
        sums: dict[DType, Computation] = {}

        def expand(rebuild: Rebuild, node: Node) -> NodeId:
            if node.op not in _OPS:
                return rebuild.add(node)
            kinds = [rebuild.type_of(operand) for operand in node.operands]
            carrier = DType.F32
            if DType.F64 in {kind.dtype for kind in (*kinds, *array_types(node.type))}:
                carrier = DType.F64
            if carrier not in sums:
                sums[carrier] = sum_region(carrier, module)
            return _Expansion(rebuild, node, carrier, sums[carrier]).result()

        expanded = rewrite_module(module, expand, lambda node: node.op in _OPS)
        regions = {region.name: region for region in sums.values()}
        return attrs.evolve(expanded, computations={**regions, **expanded.computations})


class _Expansion:
    """The nodes that replace one normalisation, in a float type that holds all of its operands."""

    def __init__(self, rebuild: Rebuild, node: Node, carrier: DType, add: Computation) -> None:
        self._rebuild, self._node, self._carrier, self._add = rebuild, node, carrier, add
        self._feature = node.integer("feature_index")
        self._full = ArrayType(carrier, rebuild.type_of(node.operands[0]).shape)
        self._features = ArrayType(carrier, (self._full.shape[self._feature],))
        self._reduced = tuple(d for d in range(self._full.rank) if d != self._feature)
        self._count = math.prod(self._full.shape[d] for d in self._reduced)

    def result(self) -> NodeId:
        """The value that the node was, a tuple where it was one."""
        operands = [self._converted(operand, self._carrier) for operand in self._node.operands]
        match self._node.op:
            case "batch-norm-training":
                results = self._training(*operands)
            case "batch-norm-inference":
                results = (self._inference(*operands),)
            case _:
                results = self._grad(*operands)
        results = tuple(
            self._converted(result, kind.dtype)
            for result, kind in zip(results, array_types(self._node.type), strict=True)
        )
        if isinstance(self._node.type, TupleType):
            return self._rebuild.derived(self._node, "tuple", self._node.type, results)
        return results[0]

    def _training(self, x: NodeId, scale: NodeId, offset: NodeId) -> tuple[NodeId, ...]:
        mean = self._mean(x)
        distance = self._op("subtract", x, self._broadcast(mean))
        variance = self._mean(self._op("multiply", distance, distance))
        return self._inference(x, scale, offset, mean, variance), mean, variance

    def _inference(
        self, x: NodeId, scale: NodeId, offset: NodeId, mean: NodeId, variance: NodeId
    ) -> NodeId:
        slope = self._op("multiply", scale, self._inverse_deviation(variance))
        distance = self._op("subtract", x, self._broadcast(mean))
        scaled = self._op("multiply", distance, self._broadcast(slope))
        return self._op("add", scaled, self._broadcast(offset))

    def _grad(
        self, x: NodeId, scale: NodeId, mean: NodeId, variance: NodeId, g: NodeId
    ) -> tuple[NodeId, ...]:
        """The derivatives by x, scale and offset, as the formulas of the file have them."""
        d = self._op("subtract", x, self._broadcast(mean))
        r = self._inverse_deviation(variance)
        g_d = self._op("multiply", g, d)
        scale_grad = self._op("multiply", self._total(g_d), r)
        r_squared = self._op("multiply", r, r)
        variance_part = self._op("multiply", r_squared, self._mean(g_d))
        variance_part = self._op("multiply", d, self._broadcast(variance_part))
        centred = self._op("subtract", g, self._broadcast(self._mean(g)))
        scale_r = self._op("multiply", scale, r)
        difference = self._op("subtract", centred, variance_part)
        x_grad = self._op("multiply", difference, self._broadcast(scale_r))
        return x_grad, scale_grad, self._total(g)

    def _op(self, op: str, *operands: NodeId) -> NodeId:
        """An elementwise operation."""
        kind = self._rebuild.type_of(operands[0])
        return self._rebuild.derived(self._node, op, kind, operands)

    def _converted(self, operand: NodeId, dtype: DType) -> NodeId:
        kind = self._rebuild.type_of(operand)
        if kind.dtype is dtype:
            return operand
        converted = ArrayType(dtype, kind.shape)
        return self._rebuild.derived(self._node, "convert", converted, [operand])

    def _broadcast(self, features: NodeId) -> NodeId:
        """A number for each feature, over the full shape."""
        dimensions = (self._feature,)
        return self._rebuild.derived(
            self._node, "broadcast", self._full, [features], dimensions=dimensions
        )

    def _scalar(self, value: float) -> NodeId:
        return self._rebuild.constant(self._node, ArrayType(self._carrier), value)

    def _for_each_feature(self, value: float) -> NodeId:
        return self._rebuild.derived(
            self._node, "broadcast", self._features, [self._scalar(value)], dimensions=()
        )

    def _total(self, array: NodeId) -> NodeId:
        """The sum over all dimensions but the features'."""
        return self._rebuild.derived(
            self._node,
            "reduce",
            self._features,
            [array, self._scalar(0)],
            dimensions=self._reduced,
            to_apply=Callee(self._add.name),
        )

    def _mean(self, array: NodeId) -> NodeId:
        return self._op("divide", self._total(array), self._for_each_feature(self._count))

    def _inverse_deviation(self, variance: NodeId) -> NodeId:
        epsilon = self._for_each_feature(self._node.number("epsilon"))
        return self._op("rsqrt", self._op("add", variance, epsilon))
