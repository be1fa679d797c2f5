"""Syntax tree to graph: names resolved, attributes read, instructions in an order that respects uses.

An instruction that is wrong leaves a hole: a node of its declared type whose op is HOLE, so that
its users can be checked all the same. A module with holes never leaves `load`.
"""

from collections.abc import Mapping

import attrs

from ncc_compiler.diagnostics import CompileError, Diagnostic, Note
from ncc_compiler.ir.frames import read_frames
from ncc_compiler.ir.graph import Attribute, Callee, Computation, Module, Node, NodeId
from ncc_compiler.ir.ops import OPS, OpDef
from ncc_compiler.ir.order import call_order, use_order
from ncc_compiler.ir.places import InstructionSpan
from ncc_compiler.ir.ranks import with_ranks
from ncc_compiler.ir.reading import Reading, suggestion
from ncc_compiler.ir.types import TokenType, Type
from ncc_compiler.syntax import tree

HOLE = "?"
"""The op of a node that stands for an instruction with an error."""

ENTRY_NAME = "main"
"""The entry computation of a text that has no braces around its instructions."""

_KNOWN_KEYS = frozenset(row.name for op in OPS.values() for row in op.attributes)


def build_module(file: tree.File, ranks: int | None = None) -> Module:
    """The graph of a file; raises CompileError with every diagnostic of this stage."""
    module, found = build_what_is_right(file, ranks)
    if found:
        raise CompileError(found)
    assert module is not None
    return module


def build_what_is_right(
    file: tree.File, ranks: int | None
) -> tuple[Module | None, tuple[Diagnostic, ...]]:
    """The graph with holes, if there is any computation, and the diagnostics."""
    reading = Reading(file.source)
    written = _named(file, reading)
    computations = {
        name: _Body(reading, file, computation, written).build(name)
        for name, computation in written.items()
    }
    entry = _entry(file, written, computations, reading)
    if entry is None:
        return None, tuple(reading.found)
    order = call_order(computations)
    for cycle, node in order.cycles:
        assert isinstance(node.span, InstructionSpan)
        at = _attribute_place(node.span.instruction, "to_apply")
        loop = " -> ".join(f"%{name}" for name in cycle)
        reading.complain("computation-C3", f"computation calls itself: {loop}", at)
    module = Module(
        name=file.name.removeprefix("%") if file.name else ENTRY_NAME,
        computations={name: computations[name] for name in order.names},
        entry=entry,
        frames=read_frames(file.tables, reading),
    )
    module = with_ranks(module, file.header, ranks, reading)
    return module, tuple(reading.found)


def _named(file: tree.File, reading: Reading) -> Mapping[str, tree.Computation]:
    """The computations by name; of two with one name the first counts."""
    named: dict[str, tree.Computation] = {}
    for computation in file.computations:
        name = computation.name.text if computation.name else ENTRY_NAME
        first = named.setdefault(name, computation)
        if first is not computation:
            _complain_twice(reading, f"computation %{name}", computation.name, first.name)
    return named


def _complain_twice(
    reading: Reading, what: str, second: tree.Word | None, first: tree.Word | None
) -> None:
    place, earlier = second or first, first if second else None
    assert place, what
    note = [Note("the first definition", earlier.span(reading.source))] if earlier else []
    reading.complain("name-C2", f"{what} is defined twice", (place.start, place.end), "", *note)


def _entry(
    file: tree.File,
    written: Mapping[str, tree.Computation],
    computations: Mapping[str, Computation],
    reading: Reading,
) -> str | None:
    """The computation marked ENTRY, else the only one that nobody calls."""
    start = (0, 1)
    marked = [name for name, computation in written.items() if computation.is_entry]
    if len(marked) > 1:
        second, first = written[marked[1]].name, written[marked[0]].name
        place = second or first
        assert place
        reading.complain(
            "computation-C1",
            f"{' and '.join(f'%{name}' for name in marked)} are both the entry",
            (place.start, place.end),
            "instructions outside of braces are the entry too" if not second else "",
        )
    if marked:
        return marked[0]
    if not computations:
        if file.is_whole:
            reading.complain("computation-C1", "the text holds no computation", start)
        return None
    called = {callee.name for body in computations.values() for callee in callees_of(body)}
    free = [name for name in computations if name not in called]
    if len(free) != 1 and file.is_whole:
        which = ", ".join(f"%{name}" for name in free) or "every one is called by another"
        reading.complain(
            "computation-C1",
            f"no computation is marked ENTRY, and {which} could be it",
            start,
            "write ENTRY before the computation that runs",
        )
    return free[0] if free else next(iter(computations))


def callees_of(computation: Computation) -> list[Callee]:
    """The computations that nodes of this one name."""
    return [
        value
        for node in computation.nodes
        for value in node.attributes.values()
        if isinstance(value, Callee)
    ]


def _attribute_place(written: tree.Instruction, key: str) -> tuple[int, int]:
    for attribute in written.attributes:
        if attribute.key == key:
            return attribute.value_start, attribute.end
    return written.op.start, written.op.end


class _Body:
    """One computation on its way to a graph."""

    def __init__(
        self,
        reading: Reading,
        file: tree.File,
        written: tree.Computation,
        computations: Mapping[str, tree.Computation],
    ) -> None:
        self._reading = reading
        self._broken = file.broken
        self._is_whole = file.is_whole
        self._written = written
        self._computations = computations
        self._positions: dict[str, int] = {}  # in the text, by name

    def build(self, name: str) -> Computation:
        """The computation, its nodes ordered, with holes where instructions are wrong."""
        instructions = self._instructions()
        operands = [self._operands(instruction) for instruction in instructions]
        order, cycles = use_order(operands)
        for cycle, user, use in cycles:
            names = [instructions[position].name.text for position in cycle]
            place = instructions[user].operands[use]
            loop = " -> ".join(f"%{one}" for one in names)
            fact = f"%{names[0]} is computed from itself: {loop}"
            self._reading.complain("name-C3", fact, (place.start, place.end))
            operands[user][use] = None
        rank = {position: NodeId(k) for k, position in enumerate(order)}
        kinds = [self._reading.type_of(instruction.type) for instruction in instructions]
        nodes = tuple(
            self._node(
                instructions[position],
                kinds[position],
                tuple(
                    None if use is None or kinds[use] is None else rank[use]
                    for use in operands[position]
                ),
            )
            for position in order
        )
        root = self._root(instructions)
        computation = Computation(name, nodes, rank[root] if nodes else NodeId(0))
        if nodes:
            self._check_signature(computation)
        return computation

    def _instructions(self) -> list[tree.Instruction]:
        """The instructions with distinct names; of two with one name the first counts."""
        kept: list[tree.Instruction] = []
        for instruction in self._written.instructions:
            name = instruction.name.text
            if name in self._positions:
                first = kept[self._positions[name]].name
                _complain_twice(self._reading, f"%{name}", instruction.name, first)
            else:
                self._positions[name] = len(kept)
                kept.append(instruction)
        return kept

    def _operands(self, instruction: tree.Instruction) -> list[int | None]:
        """Where each operand is defined; None after a complaint."""
        return [self._position(operand) for operand in instruction.operands]

    def _position(self, operand: tree.Word) -> int | None:
        position = self._positions.get(operand.text)
        if position is None and operand.text not in self._broken:
            self._reading.complain(
                "name-C1",
                f"%{operand.text} is not defined in this computation",
                (operand.start, operand.end),
                suggestion(operand.text, self._positions),
            )
        return position

    def _root(self, instructions: list[tree.Instruction]) -> int:
        """The position of the ROOT, or of the last instruction."""
        roots = [k for k, instruction in enumerate(instructions) if instruction.is_root]
        for extra in roots[1:]:
            name, first = instructions[extra].name, instructions[roots[0]].name
            note = Note("the first root", first.span(self._reading.source))
            fact = f"%{name.text} is a second root"
            self._reading.complain("computation-C4", fact, (name.start, name.end), "", note)
        if not instructions and self._is_whole:
            place = self._written.name
            assert place
            fact = f"computation %{place.text} has no instruction"
            self._reading.complain("computation-C7", fact, (place.start, place.end))
        return roots[0] if roots else len(instructions) - 1

    def _node(
        self, written: tree.Instruction, kind: Type | None, operands: tuple[NodeId | None, ...]
    ) -> Node:
        span = InstructionSpan(self._reading.source, written.op.start, written.op.end, written)
        row = self._row(written)
        attributes = self._attributes(written, row, kind) if row and kind else None
        known = tuple(operand for operand in operands if operand is not None)
        if row is None or attributes is None or len(known) != len(operands):
            return Node(written.name.text, HOLE, kind or TokenType(), (), {}, span)
        assert kind is not None
        return Node(written.name.text, row.name, kind, known, attributes, span)

    def _row(self, written: tree.Instruction) -> OpDef | None:
        row = OPS.get(written.op.text)
        if row is None:
            self._reading.complain(
                "op-C1",
                f"unknown op {written.op.text}",
                (written.op.start, written.op.end),
                suggestion(written.op.text, OPS),
            )
        return row

    def _attributes(
        self, written: tree.Instruction, row: OpDef, kind: Type
    ) -> Mapping[str, Attribute] | None:
        """Every attribute by its key, or None after a complaint."""
        found = len(self._reading.found)
        values: dict[str, Attribute] = {}
        if row.payload and (value := self._reading.payload(written, row, kind)) is not None:
            values[row.payload.name] = value
        for attribute in written.attributes:
            self._add(attribute, row, values)
        for missing in row.attributes:
            if missing.name in values:
                continue
            if missing.default is not None:
                values[missing.name] = missing.default
            elif missing.required and len(self._reading.found) == found:
                self._reading.complain(
                    "op-C3",
                    f"{row.name} needs the attribute {missing.name}",
                    (written.op.start, written.op.end),
                    f"for example {missing.name}={missing.kind.value}",
                )
        return values if len(self._reading.found) == found else None

    def _add(self, attribute: tree.Attribute, row: OpDef, values: dict[str, Attribute]) -> None:
        """Read one attribute into `values`, or complain."""
        key, reading = attribute.key, self._reading
        place = (attribute.start, attribute.start + len(key))
        definition = row.attribute(key)
        if key in values:
            reading.complain("attribute-C2", f"attribute {key} is given twice", place)
        elif definition is None:
            hint = suggestion(key, (known.name for known in row.attributes))
            if hint and key not in _KNOWN_KEYS:
                reading.complain("attribute-C3", f"{row.name} has no attribute {key}", place, hint)
            values[key] = reading.raw(attribute.value)
        else:
            value = reading.attribute(attribute, definition)
            if value is not None:
                values[key] = value
            if isinstance(value, Callee) and value.name not in self._computations:
                self._complain_of_callee(value.name, attribute)

    def _complain_of_callee(self, name: str, attribute: tree.Attribute) -> None:
        if name not in self._broken:
            self._reading.complain(
                "computation-C2",
                f"computation %{name} is not defined",
                (attribute.value_start, attribute.end),
                suggestion(name, self._computations),
            )

    def _check_signature(self, computation: Computation) -> None:
        """What stands behind the name must be what the instructions say."""
        signature = self._written.signature
        nodes = computation.nodes
        if signature is None or not self._is_whole or any(node.op == HOLE for node in nodes):
            return
        reading = self._reading
        parameters = [nodes[position].type for position in computation.parameters()]
        texts = (*signature.parameters, signature.result)
        if len(signature.parameters) != len(parameters):
            fact = f"the signature has {len(signature.parameters)} parameters, "
            place = self._written.name
            assert place
            reading.complain(
                "computation-C5",
                f"{fact}the computation {len(parameters)}",
                (place.start, place.end),
            )
            return
        for text, kind in zip(texts, (*parameters, nodes[computation.root].type), strict=True):
            said = reading.type_of(text)
            if said is not None and said != kind:
                fact = f"the signature says {said}, the instructions say {kind}"
                reading.complain("computation-C5", fact, (text.start, text.end))
