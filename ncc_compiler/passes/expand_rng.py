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
from ncc_compiler.passes.rebuild import Rebuild
from ncc_runtime.neff.shared.dtypes import DType

_TURN = ArrayType(DType.U64)
_GOLDEN = 0x9E3779B97F4A7C15  # 2^64 over the golden ratio: multiples of it are spread evenly
_TURNS = 40  # bits of the upper counter word that count turns; ranks are above them


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
        turning = {  # computations that take the turn: all of a loop or branch of which one draws
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
            if name in turning or name == module.entry:
                turning_computation = _Turning(computation, module, turning, self.seed, numbers)
                computation = turning_computation.rebuilt(name == module.entry, name in conditions)
            computations[name] = computation
        return attrs.evolve(module, computations=computations)


def _blocks(node: Node) -> tuple[str, ...]:
    """The computations that a loop or a conditional runs."""
    if node.op == "while":
        return node.callee("condition"), node.callee("body")
    return branch_names(node) if node.op == "conditional" else ()


class _Turning:
    """A computation in the making that knows its turn."""

    def __init__(
        self,
        old: Computation,
        module: Module,
        turning: set[str],
        seed: int,
        numbers: Iterator[int],
    ) -> None:
        self._old, self._module, self._turning = old, module, turning
        self._seed, self._numbers = seed, numbers
        self._rebuild = Rebuild(old)
        self._turn = NodeId(0)

    def rebuilt(self, is_entry: bool, is_condition: bool) -> Computation:
        """With the turn as another half of its parameter and, but for conditions, of its result."""
        rebuild, nodes = self._rebuild, self._old.nodes
        first = nodes[0]
        parameter = None if is_entry else self._parameter()
        if is_entry:
            self._turn = self._constant(first, 0, _TURN)
        for node in nodes:
            if node.op == "parameter" and parameter is not None:
                rebuild.new_ids.append(parameter)
            else:
                rebuild.new_ids.append(self._rewritten(rebuild.rewired(node)))
        result = rebuild.finish()
        if is_entry or is_condition:
            return result
        root = nodes[self._old.root]
        one = self._constant(root, 1, _TURN)
        turn = self._op(root, "add", _TURN, self._turn, one)
        both = self._pair(root, rebuild.new_ids[self._old.root], turn)
        return attrs.evolve(result, nodes=tuple(rebuild.nodes), root=both)

    def _parameter(self) -> NodeId:
        """The old parameter, out of a pair with the turn."""
        (position,) = self._old.parameters()
        old = self._old.nodes[position]
        kind = TupleType((old.type, _TURN))
        name = self._rebuild.fresh(f"{old.name}.turning")
        pair = self._rebuild.add(attrs.evolve(old, name=name, type=kind))
        value, self._turn = self._halves(old, pair, old.type)
        return value

    def _rewritten(self, node: Node) -> NodeId:
        if node.op == "rng":
            return self._drawn(node)
        if self._turning.isdisjoint(_blocks(node)):
            return self._rebuild.add(node)
        inputs = node.operands if node.op == "while" else node.operands[1:]
        pairs = tuple(self._pair(node, operand, self._turn) for operand in inputs)
        if node.op == "conditional":
            pairs = (node.operands[0], *pairs)
        kind = TupleType((node.type, _TURN))
        run = self._rebuild.add(attrs.evolve(node, type=kind, operands=pairs))
        value, self._turn = self._halves(node, run, node.type)
        return value

    def _pair(self, source: Node, value: NodeId, turn: NodeId) -> NodeId:
        kind = TupleType((self._rebuild.nodes[value].type, _TURN))
        return self._rebuild.derived(source, "tuple", kind, [value, turn])

    def _halves(self, source: Node, pair: NodeId, kind: Type) -> tuple[NodeId, NodeId]:
        element = "get-tuple-element"
        value = self._rebuild.derived(source, element, kind, [pair], index=0)
        return value, self._rebuild.derived(source, element, _TURN, [pair], index=1)

    def _drawn(self, node: Node) -> NodeId:
        """The numbers, computed in float32 or float64, or in integers of 32 or 64 bits."""
        own = node.array
        if own.dtype.is_integer:
            return self._integers(node)
        carrier = ArrayType(DType.F64 if own.dtype is DType.F64 else DType.F32, own.shape)
        first, second = (self._spread(node, operand, carrier) for operand in node.operands)
        if node.attributes["distribution"] == "rng_normal":
            drawn = self._op(node, "multiply", carrier, self._normal(node, carrier), second)
            return self._converted(node, self._op(node, "add", carrier, first, drawn), own)
        width = self._op(node, "subtract", carrier, second, first)
        fraction = self._fraction(node, carrier)
        beyond_low = self._op(node, "multiply", carrier, fraction, width)
        drawn = self._converted(node, self._op(node, "add", carrier, first, beyond_low), own)
        low, high = (self._spread(node, operand, own) for operand in node.operands)
        is_inside = self._op(
            node, "compare", ArrayType(DType.PRED, own.shape), drawn, high, direction="LT"
        )
        return self._op(node, "select", own, is_inside, drawn, low)

    def _integers(self, node: Node) -> NodeId:
        own = node.array
        bits = 64 if own.dtype.bits == 64 else 32
        unsigned = ArrayType(DType(f"u{bits}"), own.shape)
        low, high = (self._spread(node, operand, unsigned) for operand in node.operands)
        span = self._op(node, "subtract", unsigned, high, low)
        rest = self._op(node, "remainder", unsigned, self._bits(node, unsigned), span)
        return self._converted(node, self._op(node, "add", unsigned, low, rest), own)

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
        width, kept = (64, 53) if kind.dtype is DType.F64 else (32, 24)
        unsigned = ArrayType(DType(f"u{width}"), kind.shape)
        cut = self._constant(node, width - kept, unsigned)
        whole = self._op(node, "shift-right-logical", unsigned, self._bits(node, unsigned), cut)
        scale = self._constant(node, 2.0**-kept, kind)
        return self._op(node, "multiply", kind, self._converted(node, whole, kind), scale)

    def _bits(self, node: Node, kind: ArrayType) -> NodeId:
        """Random integers of the type, of a state that no other place, rank or turn has."""
        key = (self._seed + next(self._numbers) * _GOLDEN) % 2**64
        above = self._op(node, "convert", _TURN, self._rebuild.rank(node, self._module))
        above = self._op(node, "shift-left", _TURN, above, self._constant(node, _TURNS, _TURN))
        above = self._op(node, "add", _TURN, above, self._turn)
        word = ArrayType(DType.U64, (1,))
        start = [self._constant(node, key, word), self._constant(node, 0, word)]
        words = [*start, self._op(node, "reshape", word, above)]
        state_kind = ArrayType(DType.U64, (3,))
        state = self._op(node, "concatenate", state_kind, *words, dimensions=(0,))
        both = TupleType((state_kind, kind))
        drawn = self._rebuild.derived(
            node, "rng-bit-generator", both, [state], algorithm="rng_philox"
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

    def _spread(self, source: Node, scalar: NodeId, kind: ArrayType) -> NodeId:
        """A scalar operand, converted, in every element."""
        converted = self._converted(source, scalar, ArrayType(kind.dtype))
        return self._op(source, "broadcast", kind, converted, dimensions=())

    def _constant(self, source: Node, value: float, kind: ArrayType) -> NodeId:
        scalar = self._rebuild.constant(source, ArrayType(kind.dtype), value)
        if not kind.shape:
            return scalar
        return self._op(source, "broadcast", kind, scalar, dimensions=())
