"""Expands `rng` to random bits, whose state is a constant and a counter of loop iterations.

XLA leaves the numbers of `rng` open; here they follow from the seed, the place of the operation
in the program, the rank and the iteration of the loops around it. The bits are Philox's: the key is
the seed and the operation's number mixed, the counter starts at rank and iteration in its upper
word. The iteration is one more element of the state of every loop, and operand of every branch,
that holds an `rng`: each execution of the computation adds 1.

    rng_uniform of floats    low + u * (high - low), low where that is rounded to high, with u the
                             upper 24 bits (of 64: 53) as a fraction
    rng_uniform of integers  low + bits mod (high - low)
    rng_normal               mean + deviation * sqrt(-2 log(1 - u)) cos(2 pi v), of two fractions
"""

import itertools
import math
from collections.abc import Iterator
from typing import ClassVar

import attrs

from ncc_compiler.ir.graph import Attribute, Computation, Module, Node, NodeId
from ncc_compiler.ir.order import branch_names
from ncc_compiler.ir.types import ArrayType, TupleType, Type
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, with_computations
from ncc_runtime.neff.shared.dtypes import DType

_ITERATION = ArrayType(DType.U64)
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: multiples of it are spread evenly
_ITERATION_BITS = 40  # low bits of the upper counter word; the rank is above them


@attrs.frozen
class ExpandRng(Pass):
    """Afterwards there is no `rng`; calls are inlined by now."""

    name: ClassVar[str] = "expand-rng"

    seed: int = 0

    def run(self, module: Module) -> Module:
        drawing: set[str] = set()  # computations that draw, or run one that does
        for name, computation in module.computations.items():
            runs = (callee for node in computation.nodes for callee in _blocks(node))
            if any(node.op == "rng" for node in computation.nodes) or not drawing.isdisjoint(runs):
                drawing.add(name)
        if module.entry not in drawing:
            return module
        # Computations that carry the iteration: of a loop or conditional that draws, all.
        counting = {
            callee
            for computation in module.computations.values()
            for node in computation.nodes
            if not drawing.isdisjoint(_blocks(node))
            for callee in _blocks(node)
        }
        conditions = {
            node.callee("condition")
            for computation in module.computations.values()
            for node in computation.nodes
            if node.op == "while"
        }
        numbers = itertools.count(1)
        computations = {}
        for name, computation in module.computations.items():
            if name in counting or name == module.entry:
                rebuilder = _IterationCounting(computation, module, counting, self.seed, numbers)
                computation = rebuilder.rebuilt(name == module.entry, name in conditions)
            computations[name] = computation
        return with_computations(module, computations)


def _blocks(node: Node) -> tuple[str, ...]:
    """The computations that a loop or a conditional runs."""
    if node.op == "while":
        return node.callee("condition"), node.callee("body")
    return branch_names(node) if node.op == "conditional" else ()


class _IterationCounting:
    """A computation in the making that counts its own executions."""

    def __init__(
        self,
        old: Computation,
        module: Module,
        counting: set[str],
        seed: int,
        numbers: Iterator[int],
    ) -> None:
        self._old, self._module, self._counting = old, module, counting
        self._seed, self._numbers = seed, numbers
        self._rebuild = Rebuild(old)
        self._iteration = NodeId(0)

    def rebuilt(self, is_entry: bool, is_condition: bool) -> Computation:
        """Parameter and result are pairs with the iteration; a condition still gives a pred[]."""
        rebuild, nodes = self._rebuild, self._old.nodes
        first = nodes[0]
        parameter = None if is_entry else self._parameter()
        if is_entry:
            self._iteration = self._constant(first, 0, _ITERATION)
        for node in nodes:
            if node.op == "parameter" and parameter is not None:
                rebuild.new_ids.append(parameter)
            else:
                rebuild.new_ids.append(self._replaced(rebuild.rewired(node)))
        result = rebuild.finish()
        if is_entry or is_condition:
            return result
        root = nodes[self._old.root]
        one = self._constant(root, 1, _ITERATION)
        following = self._op(root, "add", _ITERATION, self._iteration, one)
        pair = self._pair(root, rebuild.new_ids[self._old.root], following)
        return attrs.evolve(result, nodes=tuple(rebuild.nodes), root=pair)

    def _parameter(self) -> NodeId:
        """The old parameter, taken from its pair with the iteration."""
        (position,) = self._old.parameters()
        old = self._old.nodes[position]
        kind = TupleType((old.type, _ITERATION))
        name = self._rebuild.fresh(f"{old.name}.turning")
        pair = self._rebuild.add(attrs.evolve(old, name=name, type=kind))
        value, self._iteration = self._elements(old, pair, old.type)
        return value

    def _replaced(self, node: Node) -> NodeId:
        if node.op == "rng":
            return self._random(node)
        if self._counting.isdisjoint(_blocks(node)):
            return self._rebuild.add(node)
        inputs = node.operands if node.op == "while" else node.operands[1:]
        pairs = tuple(self._pair(node, operand, self._iteration) for operand in inputs)
        if node.op == "conditional":
            pairs = (node.operands[0], *pairs)
        kind = TupleType((node.type, _ITERATION))
        run = self._rebuild.add(attrs.evolve(node, type=kind, operands=pairs))
        value, self._iteration = self._elements(node, run, node.type)
        return value

    def _pair(self, source: Node, value: NodeId, iteration: NodeId) -> NodeId:
        kind = TupleType((self._rebuild.nodes[value].type, _ITERATION))
        return self._rebuild.derived(source, "tuple", kind, [value, iteration])

    def _elements(self, source: Node, pair: NodeId, kind: Type) -> tuple[NodeId, NodeId]:
        element = "get-tuple-element"
        value = self._rebuild.derived(source, element, kind, [pair], index=0)
        return value, self._rebuild.derived(source, element, _ITERATION, [pair], index=1)

    def _random(self, node: Node) -> NodeId:
        """The numbers, computed in float32 or float64, or in integers of 32 or 64 bits."""
        kind = node.array
        if kind.dtype.is_integer:
            return self._integers(node)
        carrier = ArrayType(DType.F64 if kind.dtype is DType.F64 else DType.F32, kind.shape)
        # mean and deviation, or low and high
        first, second = (self._broadcast(node, operand, carrier) for operand in node.operands)
        if node.attributes["distribution"] == "rng_normal":
            drawn = self._op(node, "multiply", carrier, self._normal(node, carrier), second)
            return self._converted(node, self._op(node, "add", carrier, first, drawn), kind)
        span = self._op(node, "subtract", carrier, second, first)
        fraction = self._fraction(node, carrier)
        beyond_low = self._op(node, "multiply", carrier, fraction, span)
        drawn = self._converted(node, self._op(node, "add", carrier, first, beyond_low), kind)
        # Rounding may give `high`, which is outside of the half-open range.
        low, high = (self._broadcast(node, operand, kind) for operand in node.operands)
        is_inside = self._op(
            node, "compare", ArrayType(DType.PRED, kind.shape), drawn, high, direction="LT"
        )
        return self._op(node, "select", kind, is_inside, drawn, low)

    def _integers(self, node: Node) -> NodeId:
        kind = node.array
        bits = 64 if kind.dtype.bits == 64 else 32
        unsigned = ArrayType(DType(f"u{bits}"), kind.shape)
        low, high = (self._broadcast(node, operand, unsigned) for operand in node.operands)
        span = self._op(node, "subtract", unsigned, high, low)
        rest = self._op(node, "remainder", unsigned, self._bits(node, unsigned), span)
        return self._converted(node, self._op(node, "add", unsigned, low, rest), kind)

    def _normal(self, node: Node, kind: ArrayType) -> NodeId:
        """A normal number by the Box-Muller transform, of two fractions."""
        u, v = self._fraction(node, kind), self._fraction(node, kind)
        complement = self._op(node, "log-plus-one", kind, self._op(node, "negate", kind, u))
        minus_two = self._constant(node, -2, kind)
        square = self._op(node, "multiply", kind, minus_two, complement)
        angle = self._op(node, "multiply", kind, self._constant(node, 2 * math.pi, kind), v)
        cosine = self._op(node, "cosine", kind, angle)
        return self._op(node, "multiply", kind, self._op(node, "sqrt", kind, square), cosine)

    def _fraction(self, node: Node, kind: ArrayType) -> NodeId:
        """Multiples of 2^-24 or 2^-53 from 0 to less than 1."""
        bits, significand = (64, 53) if kind.dtype is DType.F64 else (32, 24)
        unsigned = ArrayType(DType(f"u{bits}"), kind.shape)
        shift = self._constant(node, bits - significand, unsigned)
        upper = self._op(node, "shift-right-logical", unsigned, self._bits(node, unsigned), shift)
        scale = self._constant(node, 2.0**-significand, kind)
        return self._op(node, "multiply", kind, self._converted(node, upper, kind), scale)

    def _bits(self, node: Node, kind: ArrayType) -> NodeId:
        """Random integers, of a Philox state that no other place, rank or iteration has."""
        key = (self._seed + next(self._numbers) * _GOLDEN) % 2**64
        rank = self._op(node, "convert", _ITERATION, self._rebuild.rank(node, self._module))
        shift = self._constant(node, _ITERATION_BITS, _ITERATION)
        upper = self._op(node, "shift-left", _ITERATION, rank, shift)
        upper = self._op(node, "add", _ITERATION, upper, self._iteration)
        word = ArrayType(DType.U64, (1,))
        start = [self._constant(node, key, word), self._constant(node, 0, word)]
        words = [*start, self._op(node, "reshape", word, upper)]
        state_kind = ArrayType(DType.U64, (3,))
        state = self._op(node, "concatenate", state_kind, *words, dimensions=(0,))
        result = TupleType((state_kind, kind))
        drawn = self._rebuild.derived(
            node, "rng-bit-generator", result, [state], algorithm="rng_philox"
        )
        return self._rebuild.derived(node, "get-tuple-element", kind, [drawn], index=1)

    def _op(
        self, source: Node, op: str, kind: ArrayType, *operands: NodeId, **attributes: Attribute
    ) -> NodeId:
        return self._rebuild.derived(source, op, kind, operands, **attributes)

    def _converted(self, source: Node, value: NodeId, kind: ArrayType) -> NodeId:
        if self._rebuild.type_of(value) == kind:
            return value
        return self._op(source, "convert", kind, value)

    def _broadcast(self, source: Node, scalar: NodeId, kind: ArrayType) -> NodeId:
        """A scalar operand, converted, in every element."""
        converted = self._converted(source, scalar, ArrayType(kind.dtype))
        return self._op(source, "broadcast", kind, converted, dimensions=())

    def _constant(self, source: Node, value: float, kind: ArrayType) -> NodeId:
        scalar = self._rebuild.constant(source, ArrayType(kind.dtype), value)
        if not kind.shape:
            return scalar
        return self._op(source, "broadcast", kind, scalar, dimensions=())
