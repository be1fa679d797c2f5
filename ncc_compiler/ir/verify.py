"""Every broken rule of a module, in program order; never stops early, never changes the graph."""

from collections.abc import Iterator, Sequence

from ncc_compiler.diagnostics import Diagnostic, Note
from ncc_compiler.ir.graph import Callee, Callees, Computation, Literal, Module, Node
from ncc_compiler.ir.infer import RULES
from ncc_compiler.ir.op_tables.op_row import OpDef
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.rules import Complaint, NodePart, place_of
from ncc_compiler.ir.transfers import unmatched_transfers
from ncc_compiler.ir.type_rules.context import Inference, InferenceContext
from ncc_compiler.ir.types import ArrayType, Type


def verify(module: Module) -> tuple[Diagnostic, ...]:
    """The broken rules of a module; if any concern its structure, only those."""
    diagnostics = [*_check_calls(module)]
    for computation in module.computations.values():
        diagnostics += _check_structure(computation)
    if not diagnostics:
        for computation in module.computations.values():
            diagnostics += _check_parameters(computation)
        diagnostics += verify_nodes(module)
    return in_program_order(diagnostics)


def verify_nodes(module: Module) -> tuple[Diagnostic, ...]:
    """The broken rules of nodes, and of transfers if all nodes hold; unknown ops are skipped."""
    verified: set[object] = set()
    broken = [
        (computation, node, complaint)
        for computation in module.computations.values()
        for node, complaint in _complaints(module, computation, verified)
    ]
    if not broken and all(
        node.op in OPS for computation in module.computations.values() for node in computation.nodes
    ):
        broken += unmatched_transfers(module)
    return in_program_order(
        diagnostic_of(computation.nodes, node, complaint) for computation, node, complaint in broken
    )


def diagnostic_of(nodes: Sequence[Node], node: Node, complaint: Complaint) -> Diagnostic:
    """The diagnostic of a complaint about a node.

    If it is about an operand, a note shows where that is defined.
    """
    notes: tuple[Note, ...] = ()
    if isinstance(complaint.at, int) and complaint.at < len(node.operands):
        operand = nodes[node.operands[complaint.at]]
        definition = place_of(operand, NodePart.TYPE)
        if definition:
            notes = (Note(f"%{operand.name} is {operand.type} here", definition),)
    return Diagnostic(
        complaint.rule,
        complaint.message,
        place_of(node, complaint.at),
        notes,
        complaint.help,
    )


def _complaints(
    module: Module, computation: Computation, verified: set[object]
) -> Iterator[tuple[Node, Complaint]]:
    """The complaints about nodes. `verified` holds inputs of rules that led to no complaint."""
    for node in computation.nodes:
        if node.op not in OPS:
            continue
        operands = tuple([computation.nodes[operand].type for operand in node.operands])
        inputs = _rule_inputs(node, operands)
        if inputs in verified:
            continue
        is_valid = True
        for complaint in _check_node(module, node, operands):
            is_valid = False
            yield node, complaint
        if is_valid and inputs is not None:
            verified.add(inputs)


def _rule_inputs(node: Node, operands: tuple[Type, ...]) -> object:
    """A key of all that rules read of a node; None if they also read a computation or literal.

    Large programs repeat the same few ops with the same types, so most nodes are a lookup.
    """
    attributes = [item for item in node.attributes.items() if item[0] != "metadata"]
    if any(isinstance(value, Callee | Callees | Literal) for _, value in attributes):
        return None
    return (node.op, node.type, operands, *attributes)


def in_program_order(
    diagnostics: "Iterator[Diagnostic] | list[Diagnostic]",
) -> tuple[Diagnostic, ...]:
    """Diagnostics sorted by place; those without a place come first, in their order."""
    return tuple(
        sorted(diagnostics, key=lambda diagnostic: diagnostic.span.start if diagnostic.span else -1)
    )


def inferred(module: Module, node: Node, operands: tuple[Type, ...]) -> Inference:
    """Yields the complaints about a node and returns its inferred type, or None."""
    is_valid = True
    for complaint in _check_generic(OPS[node.op], node, operands):
        is_valid = False
        yield complaint
    if not is_valid:
        return None
    return (yield from RULES[node.op](InferenceContext(module, node, operands)))


def _check_node(module: Module, node: Node, operands: tuple[Type, ...]) -> Iterator[Complaint]:
    kind = yield from inferred(module, node, operands)
    if kind is not None and kind != node.type:
        fact = f"{node.op} gives {kind}, the text says {node.type}"
        yield Complaint("op-C5", fact, NodePart.TYPE)


def _check_generic(row: OpDef, node: Node, operands: tuple[Type, ...]) -> Iterator[Complaint]:
    """The rules of every op: number of operands, required attributes, arrays or tuples."""
    count, low, high = len(operands), row.min_operands, row.max_operands
    too_many = high is not None and count > high
    if count < low or too_many:
        expected = f"{low}" if low == high else f"at least {low}"
        fact = f"{row.name} takes {expected} operand{'s' if low != 1 else ''}, not {count}"
        at = high if high is not None and too_many else NodePart.OP
        yield Complaint("op-C2", fact, at)
    for attribute in (*row.attributes, *((row.payload,) if row.payload else ())):
        if attribute.required and attribute.name not in node.attributes:
            fact = f"{row.name} needs the attribute {attribute.name}"
            yield Complaint("op-C3", fact, help=f"{attribute.name}={attribute.kind.value}")
    if row.takes_tuples or row.tuples_with in node.attributes:
        return
    for position, kind in enumerate(operands):
        if not isinstance(kind, ArrayType):
            fact = f"operand {position} of {row.name} is {kind}, not an array"
            yield Complaint("op-C4", fact, position, "take one element by get-tuple-element")


def _check_structure(computation: Computation) -> Iterator[Diagnostic]:
    """Order, root and names: guaranteed for texts, but a pass could break them."""
    nodes = computation.nodes
    if not nodes:
        yield Diagnostic("computation-C7", f"computation %{computation.name} has no instruction")
        return
    if not 0 <= computation.root < len(nodes):
        yield Diagnostic("graph-C1", f"the root of %{computation.name} is no node of it")
    names: set[str] = set()
    for position, node in enumerate(nodes):
        if node.name in names:
            fact = f"%{node.name} is defined twice"
            yield Diagnostic("name-C2", fact, place_of(node, NodePart.NAME))
        names.add(node.name)
        if node.operands and not 0 <= min(node.operands) <= max(node.operands) < position:
            fact = f"an operand of %{node.name} does not come before it"
            yield Diagnostic("graph-C1", fact, node.span)
        if node.op not in OPS:
            yield Diagnostic("op-C1", f"unknown op {node.op}", node.span)


def _check_calls(module: Module) -> Iterator[Diagnostic]:
    """The call graph: callees are defined, and come before their callers."""
    if module.entry not in module.computations:
        yield Diagnostic("computation-C1", f"the entry %{module.entry} is not defined")
    seen: set[str] = set()
    for name, computation in module.computations.items():
        for node in computation.nodes:
            for key, callee in node.callees():
                if callee in seen:
                    continue
                if callee in module.computations:
                    rule = "graph-C2"
                    fact = f"computation %{callee} does not come before its caller"
                else:
                    rule, fact = "computation-C2", f"computation %{callee} is not defined"
                yield Diagnostic(rule, fact, place_of(node, key))
        seen.add(name)


def _check_parameters(computation: Computation) -> Iterator[Diagnostic]:
    """Parameters are numbered 0 to n - 1, each once."""
    count = len(computation.parameters())
    seen: dict[int, Node] = {}
    for node in computation.nodes:
        if node.op != "parameter":
            continue
        number = node.integer("parameter_number")
        place = place_of(node, "parameter_number")
        if number in seen:
            first = place_of(seen[number], "parameter_number")
            notes = (Note("the first one", first),) if first else ()
            fact = f"parameter {number} is defined twice"
            yield Diagnostic("computation-C6", fact, place, notes)
        elif not 0 <= number < count:
            fact = f"parameter {number} of %{computation.name}, which has {count} parameters"
            yield Diagnostic("computation-C6", fact, place, (), f"number them 0 to {count - 1}")
        seen.setdefault(number, node)
