"""Syntax tree to graph: one computation after the other, then the module around them.

`build_module` at the end runs the stages: shorthand is expanded (desugar.py), each computation is
built (`ComputationBuilder`), the entry is chosen, header and ranks are read, missing types are
inferred. A wrong instruction becomes a hole: a node of its declared type whose op is HOLE, so that
its users can still be checked and all faults are reported at once. `load` refuses a module with
holes.

`read_frames` and `source_frame` read the tables of source locations in front of the computations,
and the `metadata` of instructions that refers to them.
"""

import itertools
import re
from collections.abc import Mapping, Sequence

from ncc_compiler.diagnostics import Diagnostic, Note
from ncc_compiler.ir.attributes import read_attribute
from ncc_compiler.ir.graph import (
    Attribute,
    Callees,
    Computation,
    Module,
    Node,
    NodeId,
    Raw,
    SourceFrame,
    names_in,
)
from ncc_compiler.ir.op_tables.op_row import AttrKind, OpDef
from ncc_compiler.ir.ops import OPS, REFUSED_OPS
from ncc_compiler.ir.order import call_order, use_order
from ncc_compiler.ir.rules import InstructionSpan
from ncc_compiler.ir.text.backend_config import as_collective
from ncc_compiler.ir.text.bitcasts import expand_bitcasts
from ncc_compiler.ir.text.desugar import (
    HOLE,
    NOT_INFERRED,
    UNTYPED,
    check_operand_types,
    expand_async_sugar,
    expand_tuple_constants,
    hoist_inline,
    infer_missing_types,
    missing_type,
)
from ncc_compiler.ir.text.header import check_header, read_header
from ncc_compiler.ir.text.ranks import with_ranks
from ncc_compiler.ir.text.reading import (
    KEYS_OF_COMPUTATIONS,
    KEYS_OF_HEADERS,
    TextReader,
    fault_of,
    is_misplaced,
    is_of_other_ops,
    is_row_major,
    layout_of,
)
from ncc_compiler.ir.types import TokenType, Type
from ncc_compiler.syntax import tree

_PREDECESSORS = "control-predecessors"


def _complain_of_duplicate(
    reading: TextReader, subject: str, second: tree.Word | None, first: tree.Word | None
) -> None:
    """Complains at the second name, or at the first where the second has none (see ENTRY_NAME)."""
    place, earlier = second or first, first if second else None
    assert place, subject
    note = [Note("the first definition", earlier.span(reading.source))] if earlier else []
    reading.complain("name-C2", f"{subject} is defined twice", (place.start, place.end), "", *note)


class ComputationBuilder:
    """Builds the graph of one computation, and complains of what is wrong in it."""

    def __init__(
        self,
        reading: TextReader,
        file: tree.File,
        written: tree.ComputationText,
        computations: Mapping[str, tree.ComputationText],
    ) -> None:
        self._reading = reading
        self._broken = file.broken
        self._is_whole = file.is_whole
        self._written = written
        self._computations = computations
        self._positions: dict[str, int] = {}  # in the text, by name
        self.untyped: frozenset[NodeId] = frozenset()

    def build(self, name: str) -> Computation:
        """The computation, its nodes ordered, with holes where instructions are wrong."""
        instructions = self._instructions()
        operands = [
            [self._position(operand) for operand in instruction.operands]
            for instruction in instructions
        ]
        order, cycles = use_order(operands)
        for cycle, user, use in cycles:
            self._complain_of_cycle(cycle, instructions)
            operands[user][use] = None
        ids = {position: NodeId(k) for k, position in enumerate(order)}
        kinds = [self._type_of(instruction) for instruction in instructions]
        self.untyped = frozenset(ids[k] for k, kind in enumerate(kinds) if kind is UNTYPED)
        nodes = tuple(
            self._node(
                instructions[position],
                kinds[position],
                tuple(
                    None if use is None or kinds[use] is None else ids[use]
                    for use in operands[position]
                ),
            )
            for position in order
        )
        self._check_layouts(instructions)
        self._check_attributes()
        root = self._root(instructions)
        return Computation(name, nodes, ids[root] if nodes else NodeId(0))

    def _type_of(self, written: tree.Instruction) -> Type | None:
        """The type, UNTYPED where it is left out; None after a complaint."""
        if written.type is not None:
            return self._reading.type_of(written.type)
        if written.op.text not in NOT_INFERRED:
            return UNTYPED
        complaint = missing_type(written.op.text)
        place = (written.op.start, written.op.end)
        self._reading.complain(complaint.rule, complaint.message, place, complaint.help)
        return None

    def _complain_of_cycle(
        self, cycle: tuple[int, ...], instructions: list[tree.Instruction]
    ) -> None:
        """Blame the first use, in the text, of a value that is defined later."""
        user, used = min(pair for pair in itertools.pairwise(cycle) if pair[0] <= pair[1])
        # the cycle rotated so that it starts and ends with the user
        start = cycle.index(user)
        names = [instructions[k].name.text for k in (*cycle[start:-1], *cycle[:start], user)]
        place = next(
            operand
            for operand in instructions[user].operands
            if self._positions.get(operand.text) == used
        )
        loop = " -> ".join(f"%{name}" for name in names)
        definition = instructions[used].name.span(self._reading.source)
        note = [Note(f"%{names[1]} is defined here", definition)] if used != user else []
        fact = f"%{names[0]} is computed from itself: {loop}"
        self._reading.complain("name-C3", fact, (place.start, place.end), "", *note)

    def _instructions(self) -> list[tree.Instruction]:
        """The instructions with distinct names; of two with one name the first counts."""
        kept: list[tree.Instruction] = []
        for instruction in self._written.instructions:
            name = instruction.name.text
            if name in self._positions:
                first = kept[self._positions[name]].name
                _complain_of_duplicate(self._reading, f"%{name}", instruction.name, first)
            else:
                self._positions[name] = len(kept)
                kept.append(instruction)
        return kept

    def _position(self, operand: tree.Word) -> int | None:
        """The position of the instruction that defines an operand; None after a complaint."""
        position = self._positions.get(operand.text)
        if position is None and operand.text not in self._broken:
            self._reading.complain(
                "name-C1",
                f"%{operand.text} is not defined in this computation",
                (operand.start, operand.end),
                self._reading.suggestion(operand.text, self._positions),
            )
        return position

    def _check_layouts(self, instructions: list[tree.Instruction]) -> None:
        """Refuses bitcasts that bitcasts.py could not expand: they move elements of tiles."""
        for written in instructions:
            if written.op.text != "bitcast":
                continue
            known = [operand for operand in written.operands if operand.text in self._positions]
            kinds = [
                (operand, instructions[self._positions[operand.text]].type) for operand in known
            ]
            places = [(written.type or written.op, written.type), *kinds]
            if any(kind is not None and layout_of(kind) is None for _, kind in places):
                continue  # refused for what it is
            for place, kind in places:
                if kind is not None and not is_row_major(kind):
                    fact = "a bitcast of an array in tiles that is not laid out row by row"
                    hint = "give the module as it is before XLA assigns layouts"
                    self._reading.complain("bitcast-C2", fact, (place.start, place.end), hint)

    def _check_attributes(self) -> None:
        """Attributes behind the `}` change nothing here, and must be well formed all the same."""
        for attribute in self._written.attributes:
            key = attribute.key
            if is_misplaced(key, KEYS_OF_COMPUTATIONS):
                fact = f"a computation has no attribute {key}"
                place = (attribute.start, attribute.start + len(key))
                hint = "attributes of an instruction stand in its own line"
                self._reading.complain("attribute-C3", fact, place, hint)
            elif fault := fault_of(key, attribute.value):
                place = (attribute.value_start, attribute.end)
                self._reading.complain("attribute-C1", fault, place)

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
        at = (written.op.start, written.op.end)
        plain = as_collective(written, self._reading)
        span = InstructionSpan(self._reading.source, *at, plain or written)
        row = self._row(plain) if plain else None
        attributes = self._attributes(plain, row, kind) if plain and row and kind else None
        known = tuple(operand for operand in operands if operand is not None)
        if row is None or attributes is None or len(known) != len(operands):
            return Node(written.name.text, HOLE, kind or TokenType(), (), {}, span)
        assert kind is not None
        return Node(written.name.text, row.name, kind, known, attributes, span)

    def _row(self, written: tree.Instruction) -> OpDef | None:
        row = OPS.get(written.op.text)
        if row is None:
            name, place = written.op.text, (written.op.start, written.op.end)
            fact = f"{name} is not supported" if name in REFUSED_OPS else f"unknown op {name}"
            hint = REFUSED_OPS.get(name) or self._reading.suggestion(name, OPS)
            self._reading.complain("op-C1", fact, place, hint)
        return row

    def _attributes(
        self, written: tree.Instruction, row: OpDef, kind: Type
    ) -> Mapping[str, Attribute] | None:
        """Every attribute by its key, or None after a complaint."""
        before = len(self._reading.diagnostics)
        values: dict[str, Attribute] = {}
        if row.payload and (value := self._reading.payload(written, row, kind)) is not None:
            values[row.payload.name] = value
        for attribute in written.attributes:
            self._add(attribute, row, values)
        channel = values.get("channel_id")
        if isinstance(channel, int) and channel <= 0:
            del values["channel_id"]  # XLA and StableHLO take an id below 1 for none
        for missing in row.attributes:
            if missing.name in values:
                continue
            if missing.default is not None:
                values[missing.name] = missing.default
            elif missing.required and len(self._reading.diagnostics) == before:
                self._reading.complain(
                    "op-C3",
                    f"{row.name} needs the attribute {missing.name}",
                    (written.op.start, written.op.end),
                    f"for example {missing.name}={missing.kind.value}",
                )
        return values if len(self._reading.diagnostics) == before else None

    def _add(self, attribute: tree.Attribute, row: OpDef, values: dict[str, Attribute]) -> None:
        """Read one attribute into `values`, or complain."""
        key, reading = attribute.key, self._reading
        place = (attribute.start, attribute.start + len(key))
        definition = row.attribute(key)
        if key in values:
            reading.complain("attribute-C2", f"attribute {key} is given twice", place)
        elif definition is None:
            others = is_of_other_ops(row.name, key)
            elsewhere = "write it behind HloModule" if key in KEYS_OF_HEADERS else "leave it out"
            hint = reading.misspelt(key, row) or (elsewhere if others else "")
            if hint:
                reading.complain("attribute-C3", f"{row.name} has no attribute {key}", place, hint)
            elif fault := fault_of(key, attribute.value):
                at = (attribute.value_start, attribute.end)
                reading.complain("attribute-C1", fault, at)
            elif key == _PREDECESSORS:
                self._check_predecessors(attribute)
            if key != _PREDECESSORS:  # passes rename and remove what it names
                values[key] = reading.raw(attribute.value)
        elif fault := fault_of(key, attribute.value):
            reading.complain("attribute-C1", fault, (attribute.value_start, attribute.end))
        else:
            value = reading.attribute(attribute, definition)
            if value is not None:
                values[key] = value
            for callee in names_in(value) if value is not None else ():
                if callee not in self._computations:
                    self._complain_of_callee(callee, attribute)

    def _check_predecessors(self, attribute: tree.Attribute) -> None:
        """Control predecessors order nothing here, and must be instructions all the same."""
        try:
            names = read_attribute(AttrKind.CALLEES, attribute.value)
        except ValueError as error:
            at = (attribute.value_start, attribute.end)
            self._reading.complain("attribute-C1", f"{_PREDECESSORS}: {error}", at)
            return
        assert isinstance(names, Callees), attribute
        offset = 0
        for name in names.names:
            offset = attribute.value.index(name, offset) + len(name)
            end = attribute.value_start + offset
            self._position(tree.Word(name, end - len(name), end))

    def _complain_of_callee(self, name: str, attribute: tree.Attribute) -> None:
        if name not in self._broken:
            self._reading.complain(
                "computation-C2",
                f"computation %{name} is not defined",
                (attribute.value_start, attribute.end),
                self._reading.suggestion(name, self._computations),
            )

    def check_signature(self, computation: Computation) -> None:
        """Complains if the types behind the computation's name are not those of its nodes."""
        signature = self._written.signature
        nodes = computation.nodes
        if signature is None or not self._is_whole or not nodes:
            return
        if any(node.op == HOLE for node in nodes):
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
            declared = reading.type_of(text)
            if declared is not None and declared != kind:
                fact = f"the signature says {declared}, the instructions say {kind}"
                reading.complain("computation-C5", fact, (text.start, text.end))


_QUOTED = re.compile(r'(\d+)\s+"(.*)"')
_FIELDS = re.compile(r"(\d+)\s+\{(\s*(?:\w+=\d+\s*)*)\}")
_FIELD = re.compile(r"(\w+)=(\d+)")
_ESCAPE = re.compile(r"\\(.)")
_FRAME_ID = re.compile(r"\bstack_frame_id=(\d{1,9})")
_FILE = re.compile(r'\bsource_file="((?:[^"\\]|\\.)*)"')
_LINE = re.compile(r"\bsource_line=(\d{1,9})")

Row = Mapping[str, int]


def read_frames(
    tables: Sequence[tree.SourceTable], reading: TextReader
) -> Mapping[int, SourceFrame]:
    """Frames by id. XLA prints the parent's id plus one, so that 1 means the outermost."""
    files = _texts(tables, "FileNames")
    functions = _texts(tables, "FunctionNames")
    locations = {number: row for number, row, _ in _rows(tables, "FileLocations", reading)}
    frames: dict[int, SourceFrame] = {}
    for number, row, written in _rows(tables, "StackFrames", reading):
        location = locations.get(row.get("file_location_id", 0))
        if location is None or location.get("file_name_id", 0) not in files:
            fact = f"stack frame {number} has no location with a file"
            reading.complain("frames-C1", fact, (written.start, written.end))
            continue
        frames[number] = SourceFrame(
            file=files[location["file_name_id"]],
            function=functions.get(location.get("function_name_id", 0), ""),
            line=location.get("line", 0),
            column=location.get("column", 0),
            parent=max(0, row.get("parent_frame_id", 0) - 1),
        )
    return frames


def _rows(
    tables: Sequence[tree.SourceTable], name: str, reading: TextReader
) -> list[tuple[int, Row, tree.Word]]:
    """Number, fields and place of each row of a table."""
    rows: list[tuple[int, Row, tree.Word]] = []
    for table in tables:
        for row in table.rows if table.name.text == name else ():
            match = _FIELDS.fullmatch(row.text)
            if match is None:
                fact = f"{row.text[:40]!r} is no row of {name}, such as 1 {{line=3 column=5}}"
                reading.complain("frames-C2", fact, (row.start, row.end))
            else:
                fields = {key: int(value[:18]) for key, value in _FIELD.findall(match[2])}
                rows.append((int(match[1][:18]), fields, row))
    return rows


def _texts(tables: Sequence[tree.SourceTable], name: str) -> dict[int, str]:
    return {
        int(match[1][:18]): _ESCAPE.sub(r"\1", match[2])
        for table in tables
        if table.name.text == name
        for row in table.rows
        if (match := _QUOTED.fullmatch(row.text))
    }


def source_frame(module: Module, node: Node) -> SourceFrame | None:
    """The line of the user's code that a node comes from: by frame id, or by file and line."""
    metadata = node.attributes.get("metadata")
    if not isinstance(metadata, Raw):
        return None
    if (match := _FRAME_ID.search(metadata.text)) and int(match[1]) in module.frames:
        return module.frames[int(match[1])]
    file = _FILE.search(metadata.text)
    if file is None:
        return None
    line = _LINE.search(metadata.text)
    return SourceFrame(_ESCAPE.sub(r"\1", file[1]), "", int(line[1]) if line else 0, 0)


ENTRY_NAME = "main"
"""The entry computation of a text that has no braces around its instructions."""


def build_module(
    file: tree.File, ranks: int | None
) -> tuple[Module | None, tuple[Diagnostic, ...]]:
    """The graph with holes, and the diagnostics; None without an entry or a number of ranks."""
    reading = TextReader(file.source)
    file = expand_tuple_constants(expand_async_sugar(hoist_inline(file, reading), reading))
    file = expand_bitcasts(file)
    written = _named(file, reading)
    bodies = {
        name: ComputationBuilder(reading, file, computation, written)
        for name, computation in written.items()
    }
    computations = {name: body.build(name) for name, body in bodies.items()}
    entry = _entry(file, written, computations, reading)
    if entry is None:
        return None, tuple(reading.diagnostics)
    order = call_order(computations)
    for cycle, node in order.cycles:
        assert isinstance(node.span, InstructionSpan)
        key = next(key for key, name in node.callees() if name == cycle[-1])
        instruction = node.span.instruction
        places = ((a.value_start, a.end) for a in instruction.attributes if a.key == key)
        at = next(places, (instruction.op.start, instruction.op.end))
        loop = " -> ".join(f"%{name}" for name in cycle)
        reading.complain("computation-C3", f"computation calls itself: {loop}", at)
    module = Module(
        name=file.name.removeprefix("%") if file.name else ENTRY_NAME,
        computations={name: computations[name] for name in order.names},
        entry=entry,
        frames=read_frames(file.tables, reading),
    )
    module = read_header(module, file.header, reading)
    counted = with_ranks(module, file.header, ranks, reading)
    if counted is not None:
        counted = infer_missing_types(
            counted, {n: body.untyped for n, body in bodies.items()}, reading
        )
        for name, computation in counted.computations.items():
            bodies[name].check_signature(computation)
            check_operand_types(computation, reading)
        nodes = counted.entry_computation.nodes
        if file.is_whole and nodes and all(node.op != HOLE for node in nodes):
            check_header(counted, file.header, reading)
    return counted, tuple(reading.diagnostics)


def _named(file: tree.File, reading: TextReader) -> Mapping[str, tree.ComputationText]:
    """The computations by name; of two with one name the first counts."""
    named: dict[str, tree.ComputationText] = {}
    for computation in file.computations:
        name = computation.name.text if computation.name else ENTRY_NAME
        first = named.setdefault(name, computation)
        if first is not computation:
            _complain_of_duplicate(reading, f"computation %{name}", computation.name, first.name)
    return named


def _entry(
    file: tree.File,
    written: Mapping[str, tree.ComputationText],
    computations: Mapping[str, Computation],
    reading: TextReader,
) -> str | None:
    """The computation marked ENTRY, else the only one that nobody calls, or as in XLA the last."""
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
    nodes = (node for body in computations.values() for node in body.nodes)
    called = {callee for node in nodes for _, callee in node.callees()}
    free = [name for name in computations if name not in called]
    last = list(written)[-1]
    if last in free:
        return last
    if len(free) > 1 and file.is_whole:
        which = " or ".join(f"%{name}" for name in free)
        reading.complain(
            "computation-C1",
            f"no computation is marked ENTRY, and {which} could be it",
            start,
            "write ENTRY before the computation that runs",
        )
    return free[0] if free else next(iter(computations))
