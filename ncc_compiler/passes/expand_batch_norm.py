"""Spells batch normalisation out in sums and elementwise operations, which other passes know.

With the mean over all dimensions but the features', and a float type that holds every operand:

    training    mean(x), mean((x - mean)^2), and what inference gives with these
    inference   (x - mean) * scale * rsqrt(variance + epsilon) + offset
    grad        with d = x - mean and r = rsqrt(variance + epsilon)
                scale * r * (g - mean(g) - d * r^2 * mean(g * d)), sum(g * d) * r, sum(g)

The variance is the mean of squared distances, as in StableHLO; XLA subtracts the squared mean from
the mean of squares, which cancels where the mean is large.
"""

import itertools
import math
from typing import ClassVar

import attrs

from ncc_compiler.ir.graph import Callee, Computation, Module, Node, NodeId
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, rewrite_module
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
            if DType.F64 in {kind.dtype for kind in (*kinds, *_result_types(node))}:
                carrier = DType.F64
            if carrier not in sums:
                sums[carrier] = _sum(carrier, module)
            return _Expansion(rebuild, node, carrier, sums[carrier]).result()

        expanded = rewrite_module(module, expand, lambda node: node.op in _OPS)
        regions = {region.name: region for region in sums.values()}
        return attrs.evolve(expanded, computations={**regions, **expanded.computations})


def _result_types(node: Node) -> list[ArrayType]:
    kinds = node.type.elements if isinstance(node.type, TupleType) else (node.type,)
    return [kind for kind in kinds if isinstance(kind, ArrayType)]


def _sum(dtype: DType, module: Module) -> Computation:
    """A region that adds, under a name that the module does not have."""
    stem = f"sum_{dtype.value}"
    names = itertools.chain([stem], (f"{stem}.{number}" for number in itertools.count(1)))
    kind = ArrayType(dtype)
    parameters = (
        Node(name, "parameter", kind, (), {"parameter_number": number})
        for number, name in enumerate(("a", "b"))
    )
    total = Node("sum", "add", kind, (NodeId(0), NodeId(1)))
    name = next(name for name in names if name not in module.computations)
    return Computation(name, (*parameters, total), NodeId(2))


class _Expansion:
    """The nodes that take the place of one, in a float type that holds all of its operands."""

    def __init__(self, rebuild: Rebuild, node: Node, carrier: DType, add: Computation) -> None:
        self._rebuild, self._node, self._carrier, self._add = rebuild, node, carrier, add
        self._feature = node.integer("feature_index")
        self._whole = ArrayType(carrier, rebuild.type_of(node.operands[0]).shape)
        self._features = ArrayType(carrier, (self._whole.shape[self._feature],))
        self._folded = tuple(d for d in range(self._whole.rank) if d != self._feature)
        self._count = math.prod(self._whole.shape[d] for d in self._folded)

    def result(self) -> NodeId:
        """The value that the node was, a tuple where it was one."""
        operands = [self._converted(one, self._carrier) for one in self._node.operands]
        match self._node.op:
            case "batch-norm-training":
                results = self._training(*operands)
            case "batch-norm-inference":
                results = (self._inference(*operands),)
            case _:
                results = self._grad(*operands)
        kinds = _result_types(self._node)
        narrow = [
            self._converted(*one) for one in zip(results, (k.dtype for k in kinds), strict=True)
        ]
        if isinstance(self._node.type, TupleType):
            return self._rebuild.derived(self._node, "tuple", self._node.type, narrow)
        return narrow[0]

    def _training(self, x: NodeId, scale: NodeId, offset: NodeId) -> tuple[NodeId, ...]:
        mean = self._mean(x)
        distance = self._op("subtract", x, self._spread(mean))
        variance = self._mean(self._op("multiply", distance, distance))
        return self._inference(x, scale, offset, mean, variance), mean, variance

    def _inference(
        self, x: NodeId, scale: NodeId, offset: NodeId, mean: NodeId, variance: NodeId
    ) -> NodeId:
        factor = self._op("multiply", scale, self._inverse_deviation(variance))
        distance = self._op("subtract", x, self._spread(mean))
        scaled = self._op("multiply", distance, self._spread(factor))
        return self._op("add", scaled, self._spread(offset))

    def _grad(
        self, x: NodeId, scale: NodeId, mean: NodeId, variance: NodeId, g: NodeId
    ) -> tuple[NodeId, ...]:
        distance = self._op("subtract", x, self._spread(mean))
        inverse = self._inverse_deviation(variance)
        products = self._op("multiply", g, distance)
        of_scale = self._op("multiply", self._total(products), inverse)
        square = self._op("multiply", inverse, inverse)
        slope = self._op("multiply", square, self._mean(products))
        along = self._op("multiply", distance, self._spread(slope))
        centred = self._op("subtract", g, self._spread(self._mean(g)))
        factor = self._op("multiply", scale, inverse)
        rest = self._op("subtract", centred, along)
        return self._op("multiply", rest, self._spread(factor)), of_scale, self._total(g)

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

    def _spread(self, features: NodeId) -> NodeId:
        """One number of each feature over the whole shape."""
        dimensions = (self._feature,)
        return self._rebuild.derived(
            self._node, "broadcast", self._whole, [features], dimensions=dimensions
        )

    def _scalar(self, value: float) -> NodeId:
        return self._rebuild.constant(self._node, ArrayType(self._carrier), value)

    def _number(self, value: float) -> NodeId:
        """A number for each feature."""
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
            dimensions=self._folded,
            to_apply=Callee(self._add.name),
        )

    def _mean(self, array: NodeId) -> NodeId:
        return self._op("divide", self._total(array), self._number(self._count))

    def _inverse_deviation(self, variance: NodeId) -> NodeId:
        epsilon = self._number(self._node.number("epsilon"))
        return self._op("rsqrt", self._op("add", variance, epsilon))
