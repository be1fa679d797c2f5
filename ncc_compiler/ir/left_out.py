"""Types that a text leaves out: of a result, where it follows; and those that it says twice.

XLA's parser takes `y = negate(x)` and gives it the type that operands and attributes make; so do
these rules, for every op of which that can be said.
"""

from collections.abc import Mapping, Sequence

import attrs

from ncc_compiler.ir.graph import Computation, Module, Node, NodeId
from ncc_compiler.ir.places import InstructionSpan
from ncc_compiler.ir.reading import Reading, limits_fault
from ncc_compiler.ir.rules import Complaint, Part
from ncc_compiler.ir.types import TokenType, Type
from ncc_compiler.ir.verify import diagnostic_of, inferred

HOLE = "?"
"""The op of a node that stands for an instruction with an error."""

UNTYPED = TokenType()
"""The type of a node until the one that its text leaves out is known."""

NOT_INFERRED = frozenset(
    {
        "bitcast",
        "bitcast-convert",
        "broadcast",
        "constant",
        "convert",
        "custom-call",
        "iota",
        "parameter",
        "recv",
        "reshape",
        "rng-bit-generator",
        "stochastic-convert",
    }
)
"""Ops whose result type says more than their operands and attributes do."""


def type_left_out(op: str) -> Complaint:
    fact = f"the result type of a {op} does not follow from its operands"
    return Complaint("op-C8", fact, Part.OP, f"write it before the op: f32[2,3] {op}(…)")


def with_types(
    module: Module, left_out: Mapping[str, frozenset[NodeId]], reading: Reading
) -> Module:
    """The module with those types; a node whose type cannot be told becomes a hole."""
    computations = dict(module.computations)  # callees come first
    for name, computation in module.computations.items():
        if not left_out.get(name):
            continue
        nodes = list(computation.nodes)
        unknown: set[NodeId] = set()
        for position, node in enumerate(computation.nodes):
            is_open = position in left_out[name]
            if node.op == HOLE or not unknown.isdisjoint(node.operands):
                nodes[position] = attrs.evolve(node, op=HOLE, operands=(), attributes={})
                unknown |= {NodeId(position)} if is_open else set()
            elif is_open:
                current = attrs.evolve(module, computations=computations)
                kinds = tuple(nodes[operand].type for operand in node.operands)
                kind = _type_of(current, node, kinds, nodes, reading)
                if kind is None:
                    unknown.add(NodeId(position))
                    nodes[position] = attrs.evolve(node, op=HOLE, operands=(), attributes={})
                else:
                    nodes[position] = attrs.evolve(node, type=kind)
        computations[name] = attrs.evolve(computation, nodes=tuple(nodes))
    return attrs.evolve(module, computations=computations)


def _type_of(
    module: Module,
    node: Node,
    operands: tuple[Type, ...],
    nodes: Sequence[Node],
    reading: Reading,
) -> Type | None:
    """The type that follows, or None after a complaint."""
    following = inferred(module, node, operands)
    found: list[Complaint] = []
    kind = None
    try:
        while True:
            found.append(next(following))
    except StopIteration as end:
        kind = end.value
    if kind is UNTYPED:
        found = [type_left_out(node.op)]
    if not found and (fault := limits_fault(kind)):
        found = [Complaint(fault[0], f"the result of {node.op} is {kind}: {fault[1]}")]
    reading.found += [diagnostic_of(nodes, node, complaint) for complaint in found]
    return None if found else kind


def check_types_said_twice(computation: Computation, reading: Reading) -> None:
    """A type before an operand must be that of its definition."""
    for node in computation.nodes:
        if node.op == HOLE or not isinstance(node.span, InstructionSpan):
            continue
        pairs = zip(node.operands, node.span.instruction.operands, strict=True)
        for position, (operand, written) in enumerate(pairs):
            if written.type is None:
                continue
            said, defined = reading.type_of(written.type), computation.nodes[operand]
            if said is not None and defined.op != HOLE and said != defined.type:
                fact = f"%{written.text} is {defined.type}, the type before it says {said}"
                complaint = Complaint("op-C7", fact, position)
                one = diagnostic_of(computation.nodes, node, complaint)
                place = reading.span(written.type.start, written.type.end)
                hint = "correct the type before the operand, or leave it out"
                reading.found.append(attrs.evolve(one, span=place, help=hint))
