"""Read a listing back: one reader for each section, one row for each line.

`ListingRow` takes the words of a line from left to right, with errors that name the line. The
readers of enumerations, attributes and placeholders use it, and readers of sections use those.
"""

import enum
import json
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

import attrs

from ncc_runtime.errors import NeffError
from ncc_runtime.neff.isa import ENGINES, Engine
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import (
    ArrayInfo,
    AttributeValue,
    Block,
    BlockKind,
    Buffer,
    BufferId,
    BufferKind,
    FusedInstr,
    Fusion,
    Origin,
    Program,
    Region,
    RegionInstr,
    Semaphore,
    Sharding,
    Tensor,
    TensorId,
    ValueType,
)
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.groups import Groups, parse_groups
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.neff.structure import CONTROL, names_block
from ncc_runtime.neff.table import NONE, Instr, InstrTable

_WORD = re.compile(r'((?:"(?:[^"\\]|\\.)*"|[^\s";])+)|;.*|(")')
_INTEGER = re.compile(r"-?\d{1,20}", re.ASCII)


class ListingRow:
    """The words of a line and how far they are read."""

    def __init__(self, number: int, line: str) -> None:
        self.number = number
        matches = list(_WORD.finditer(line))
        self._words = [match[1] for match in matches if match[1]]
        self._at = 0
        if any(match[2] for match in matches):
            raise self.wrong("a quote is not closed")

    def wrong(self, message: str) -> NeffError:
        """The complaint about this line, to be raised."""
        return NeffError(f"line {self.number}: {message}")

    def is_done(self) -> bool:
        """Whether every word is read."""
        return self._at == len(self._words)

    def peek(self) -> str:
        """The next word, empty at the end."""
        return "" if self.is_done() else self._words[self._at]

    def end(self) -> None:
        """Complain of words that are left."""
        if not self.is_done():
            raise self.wrong(f"{self.peek()!r} is one word too many")

    def word(self, what: str) -> str:
        """The next word, whatever it is; `what` was expected if there is none."""
        if self.is_done():
            raise self.wrong(f"{what} expected at the end")
        self._at += 1
        return self._words[self._at - 1]

    def keyword(self, expected: str) -> None:
        """The next word, which must be this one."""
        word = self.word(repr(expected))
        if word != expected:
            raise self.wrong(f"{expected!r} expected, found {word!r}")

    def accept(self, expected: str) -> bool:
        """Read the next word if it is this one."""
        is_next = self.peek() == expected
        self._at += is_next
        return is_next

    def match(self, pattern: re.Pattern[str], what: str) -> re.Match[str]:
        """The next word, which must have this form."""
        word = self.word(what)
        match = pattern.fullmatch(word)
        if match is None:
            raise self.wrong(f"{what} expected, found {word!r}")
        return match

    def integer(self, what: str) -> int:
        return int(self.match(_INTEGER, what)[0])

    def name(self, what: str) -> str:
        """A word, or any text in quotes."""
        return self.unquoted(self.word(what))

    def unquoted(self, word: str) -> str:
        """The text that a word stands for."""
        if not word.startswith('"'):
            return word
        try:
            return str(json.loads(word))
        except ValueError as error:
            raise self.wrong(f"{word} is no text in quotes: {error}") from error

    def ids(self, prefix: str) -> tuple[int, ...]:
        """A list such as `t3, t4`, possibly empty."""
        ids: list[int] = []
        more = True
        while more and re.fullmatch(rf"{prefix}\d{{1,20}},?", self.peek(), re.ASCII):
            word = self.word("an id")
            more = word.endswith(",")
            ids.append(int(word[len(prefix) :].rstrip(",")))
        return tuple(ids)

    def numbered(self, prefix: str, number: int) -> None:
        """The id at the start of a row, which counts the rows of its section."""
        self.keyword(f"{prefix}{number}")


_GROUP = r"\{\d{1,19}(?:,\d{1,19})*\}"
_MEMBERS = re.compile(rf"\{{(?:{_GROUP}(?:,{_GROUP})*)?\}}", re.ASCII)
_ATTRIBUTE = re.compile(
    r'(?P<name>[\w-]+)=(?:(?P<plain>-?\d{1,20}|true|false|".*")|\[(?P<list>[\d,-]*)\])', re.ASCII
)

_TENSOR = re.compile(r"t(\d{1,20})", re.ASCII)
_TYPE = re.compile(r"(\w+)\[((?:\d{1,19}(?:,\d{1,19})*)?)\]", re.ASCII)
_REFERENCE = re.compile(r"[#pks@](\d{1,10})", re.ASCII)

_Member = TypeVar("_Member", bound=enum.Enum)


def choice(row: ListingRow, kind: type[_Member], what: str) -> _Member:
    """The next word as a member of an enumeration."""
    word = row.word(what)
    try:
        return kind(word)
    except ValueError as error:
        known = ", ".join(str(member.value) for member in kind)
        raise row.wrong(f"{word!r} is no {what}, known: {known}") from error


def attributes(row: ListingRow) -> Mapping[str, AttributeValue]:
    """The rest of the row as `name=value` words."""
    values: dict[str, AttributeValue] = {}
    while not row.is_done():
        match = row.match(_ATTRIBUTE, "attribute=value")
        if match["name"] in values:
            raise row.wrong(f"attribute {match['name']} is given twice")
        values[match["name"]] = (
            json.loads(match["plain"])
            if match["list"] is None
            else tuple(int(number) for number in match["list"].split(",") if number)
        )
    return values


def region_instr(row: ListingRow) -> RegionInstr:
    """One operation of a region, behind its value number."""
    opcode, dtype = row.word("opcode"), choice(row, DType, "dtype")
    operands = row.ids("v")
    constant = row.name("value") if row.peek().startswith('"') else None
    return RegionInstr(opcode, operands, dtype, attributes(row), constant)


def numbers(text: str) -> tuple[int, ...]:
    """Whole numbers with commas between them."""
    return tuple(int(number) for number in text.split(",") if number)


def reference(row: ListingRow, prefix: str) -> int:
    """The id behind `#`, `p`, `k`, `s` or `@` if the next word is one, else NONE."""
    word = row.peek()
    is_reference = word.startswith(prefix) and _REFERENCE.fullmatch(word) is not None
    return int(row.match(_REFERENCE, "id")[1]) if is_reference else NONE


@attrs.define
class _FusionDraft:
    """A fusion whose rows are read one after the other."""

    name: str
    values: list[ValueType]  # of the parameters, then of the rows so far
    results: tuple[int, ...]
    parameters: int = attrs.field(init=False)
    body: list[FusedInstr] = attrs.field(factory=list)

    @parameters.default
    def _all_so_far(self) -> int:
        return len(self.values)

    @classmethod
    def read(cls, row: ListingRow) -> "_FusionDraft":
        """The head of a fusion, behind its id."""
        name, kinds = row.name("name"), value_types(row)
        row.keyword("gives")
        return cls(name, kinds, row.ids("v"))

    def append(self, row: ListingRow) -> None:
        """One operation."""
        results, opcode, kinds = row.ids("v"), row.word("opcode"), value_types(row)
        operands = row.ids("v")
        constant = row.name("value") if row.peek().startswith('"') else None
        origin = reference(row, "@")
        self.values += kinds
        self.body.append(FusedInstr(opcode, results, operands, attributes(row), origin, constant))

    def fusion(self) -> Fusion:
        return Fusion(
            self.name, tuple(self.values), self.parameters, tuple(self.body), self.results
        )


def value_types(row: ListingRow) -> list[ValueType]:
    """A list such as `f32[2], s32[]`, possibly empty."""
    kinds: list[ValueType] = []
    more = True
    while more and (match := _TYPE.fullmatch(row.peek().rstrip(","))):
        more = row.word("type").endswith(",")
        kinds.append(ValueType(DType(match[1]), numbers(match[2])))
    return kinds


def block(row: ListingRow) -> Block:
    """A loop or a branch, behind its id."""
    kind, name = choice(row, BlockKind, "kind of block"), row.name("name")
    row.keyword("predicate")
    predicate = TensorId(int(row.match(_TENSOR, "tensor")[1]))
    index, of = 0, 1
    if row.accept("branch"):
        index = row.integer("branch")
        row.keyword("of")
        of = row.integer("number of branches")
    trip_count = row.integer("trip count") if row.accept("trips") else None
    return Block(kind, name, predicate, index, of, trip_count)


def placeholder(row: ListingRow) -> Placeholder:
    """A placeholder, behind its id."""
    op = choice(row, CollectiveOp, "collective")
    reduces = any(row.peek() == reduction.value for reduction in Reduction)
    reduction = choice(row, Reduction, "reduction") if reduces else None
    dtype = choice(row, DType, "dtype")
    results = row.ids("t")
    row.keyword("=")
    operands = row.ids("t")
    groups = _members(row) if row.accept("groups") else ()
    pairs = _members(row) if row.accept("pairs") else ()
    root = row.integer("root") if row.accept("root") else None
    counts = row.ids("t") if row.accept("counts") else ()
    row.keyword("stream")
    return Placeholder(
        op=op,
        dtype=dtype,
        operands=operands,
        results=results,
        reduction=reduction,
        groups=groups,
        pairs=tuple((source, target) for source, target in pairs),
        root=root,
        stream=row.integer("stream"),
        in_place=row.accept("in-place"),
        channel_id=row.integer("channel") if row.accept("channel") else None,
        name=row.name("name"),
        counts=counts,
    )


def _members(row: ListingRow) -> Groups:
    return parse_groups(row.match(_MEMBERS, "{{0,1},{2,3}}")[0]).expand()


_HEX = re.compile(r"0x[0-9a-f]{1,16}")
_PLACE = re.compile(r"b(\d{1,19})\+(\d{1,19})", re.ASCII)
_BYTES = re.compile(r"(?:[0-9a-f]{2})+")
_AWAITED = re.compile(r"(?P<name>.+)>=(?P<value>\d{1,10})")
_LIST = re.compile(r"\[((?:\d{1,19}(?:,\d{1,19})*)?)\]", re.ASCII)
_OUTPUT = re.compile(r"out(\d{1,10})", re.ASCII)
_INPUT = re.compile(r"arg(\d{1,10})", re.ASCII)
_COSTS = {"flops": "flops", "elements": "elements", "read": "bytes_in", "written": "bytes_out"}


def parse_program(text: str) -> Program:
    """The program of a listing; NeffError with the line that is not one. Does not `check` it."""
    draft, head = _ProgramDraft(), ListingRow(1, "")
    for number, line in enumerate(text.split("\n"), start=1):
        row = ListingRow(number, line)
        if row.is_done():
            continue
        try:
            draft.read(row, indented=line.startswith(" "))
            row.end()
        except (ValueError, OverflowError) as error:  # of validators and numbers
            raise row.wrong(" ".join(str(error).splitlines())) from error
    try:
        return draft.program()
    except ValueError as error:  # of a field of the program itself, which its first line has
        raise head.wrong(" ".join(str(error).splitlines())) from error


class _ProgramDraft:
    """A program under construction; `read` takes one row after the other."""

    def __init__(self) -> None:
        self._head: tuple[str, int, int, int] | None = None
        self._engine = Engine.TENSOR
        self._section: Callable[[ListingRow], None] = self._program
        self._buffers: list[Buffer] = []
        self._tensors: list[Tensor] = []
        self._inputs: tuple[int, ...] = ()
        self._shardings: list[Sharding] = []
        self._parameters: list[ArrayInfo] = []
        self._results: list[ArrayInfo] = []
        self._outputs: tuple[int, ...] = ()
        self._aliases: list[tuple[int, int]] = []
        self._constants: dict[int, bytearray] = {}
        self._semaphores: list[Semaphore] = []
        self._semaphore_ids: dict[str, int] = {}
        self._attributes: list[Mapping[str, AttributeValue]] = []
        self._naming_rows: dict[int, int] = {}  # block → row of attributes
        self._regions: list[Region] = []
        self._fusions: list[_FusionDraft] = []
        self._placeholders: list[Placeholder] = []
        self._origins: list[Origin] = []
        self._blocks: list[Block] = []
        self._rows: dict[Engine, list[Instr]] = {engine: [] for engine in ENGINES}
        self._sections: dict[str, Callable[[ListingRow], None]] = {
            "buffers": self._buffer,
            "tensors": self._tensor,
            "inputs": self._input,
            "shardings": self._sharding,
            "parameters": lambda row: self._array_info(row, self._parameters),
            "results": lambda row: self._array_info(row, self._results),
            "outputs": self._output,
            "aliases": self._alias,
            "constants": self._constant,
            "semaphores": self._semaphore,
            "attributes": self._attribute,
            "regions": self._region,
            "fusions": self._fusion,
            "placeholders": self._placeholder,
            "origins": self._origin,
            "blocks": self._block,
            "queue": self._instr,
        }

    def read(self, row: ListingRow, indented: bool) -> None:
        """A title, which starts at the margin, or a row of the section it opened."""
        if indented or self._head is None:
            self._section(row)
            return
        title = row.word("a section")
        if title not in self._sections:
            raise row.wrong(f"section {title!r}, known: {', '.join(self._sections)}")
        self._section = self._sections[title]
        if title == "queue":
            self._engine = choice(row, Engine, "engine")

    def program(self) -> Program:
        """The program, once all rows are read."""
        if self._head is None:
            raise NeffError("line 1: a listing starts with 'program'")
        name, replicas, partitions, memory = self._head
        return Program(
            name=name,
            replica_count=replicas,
            num_partitions=partitions,
            hbm_bytes=memory,
            buffers=tuple(self._buffers),
            tensors=tuple(self._tensors),
            inputs=tuple(map(TensorId, self._inputs)),
            outputs=tuple(map(TensorId, self._outputs)),
            constants={BufferId(b): bytes(data) for b, data in self._constants.items()},
            regions=tuple(self._regions),
            attributes=tuple(self._attributes),
            semaphores=tuple(self._semaphores),
            placeholders=tuple(self._placeholders),
            queues={engine: _table(engine, rows) for engine, rows in self._rows.items()},
            origins=tuple(self._origins),
            blocks=tuple(self._blocks),
            parameters=tuple(self._parameters),
            results=tuple(self._results),
            shardings=tuple(self._shardings),
            aliases=tuple(self._aliases),
            fusions=tuple(draft.fusion() for draft in self._fusions),
        )

    def _program(self, row: ListingRow) -> None:
        row.keyword("program")
        name = row.name("name")
        sizes = []
        for word in ("replicas", "partitions", "memory"):
            row.keyword(word)
            sizes.append(row.integer(word))
        self._head = (name, sizes[0], sizes[1], sizes[2])

    def _buffer(self, row: ListingRow) -> None:
        row.numbered("b", len(self._buffers))
        kind = choice(row, BufferKind, "buffer kind")
        address = int(row.match(_HEX, "address")[0], 16)
        size_bytes = row.integer("size")
        self._buffers.append(Buffer(row.name("name"), kind, size_bytes, address))

    def _tensor(self, row: ListingRow) -> None:
        row.numbered("t", len(self._tensors))
        dtype, dimensions = row.match(_TYPE, "type").groups()
        buffer, offset = map(int, row.match(_PLACE, "place such as b0+0").groups())
        name = row.name("name")
        self._tensors.append(
            Tensor(name, BufferId(buffer), DType(dtype), numbers(dimensions), offset)
        )

    def _input(self, row: ListingRow) -> None:
        self._inputs += row.ids("t")

    def _sharding(self, row: ListingRow) -> None:
        row.numbered("s", len(self._shardings))
        tiles = row.match(_LIST, "tiles such as [2,1]")[1]
        row.keyword("parts")
        parts = row.match(_LIST, "parts such as [0,1]")[1]
        self._shardings.append(Sharding(numbers(tiles), numbers(parts)))

    def _array_info(self, row: ListingRow, infos: list[ArrayInfo]) -> None:
        row.keyword(str(len(infos)))
        name, sharding = row.name("name"), reference(row, "s")
        sizes = row.match(_LIST, "sizes such as [2,1]")[1] if row.accept("of") else None
        shape = None if sizes is None else numbers(sizes)
        infos.append(ArrayInfo(name, None if sharding == NONE else sharding, shape))

    def _output(self, row: ListingRow) -> None:
        self._outputs += row.ids("t")

    def _alias(self, row: ListingRow) -> None:
        output = row.match(_OUTPUT, "output such as out0")[1]
        self._aliases.append((int(output), int(row.match(_INPUT, "input such as arg0")[1])))

    def _constant(self, row: ListingRow) -> None:
        buffer, offset = map(int, row.match(_PLACE, "place such as b0+0").groups())
        data = self._constants.setdefault(buffer, bytearray())
        if offset != len(data):
            raise row.wrong(f"b{buffer}+{offset} after {len(data)} bytes")
        if not row.is_done():
            data += bytes.fromhex(row.match(_BYTES, "bytes in hex")[0])

    def _semaphore(self, row: ListingRow) -> None:
        name = row.name("name")
        if name in self._semaphore_ids:
            raise row.wrong(f"two semaphores are called {name!r}")
        self._semaphore_ids[name] = len(self._semaphores)
        self._semaphores.append(Semaphore(name, row.name("owner")))

    def _attribute(self, row: ListingRow) -> None:
        row.numbered("#", len(self._attributes))
        values = attributes(row)
        if names_block(values) != NONE:
            self._naming_rows.setdefault(names_block(values), len(self._attributes))
        self._attributes.append(values)

    def _region(self, row: ListingRow) -> None:
        if row.peek().startswith("v") and self._regions:
            last = self._regions[-1]
            row.numbered("v", len(last.value_dtypes()))
            self._regions[-1] = attrs.evolve(last, body=(*last.body, region_instr(row)))
            return
        row.numbered("r", len(self._regions))
        name = row.name("name")
        parameters = []
        while row.peek() not in ("gives", ""):
            parameters.append(DType(row.word("dtype").rstrip(",")))
        row.keyword("gives")
        self._regions.append(Region(name, tuple(parameters), (), row.ids("v")))

    def _fusion(self, row: ListingRow) -> None:
        if row.peek().startswith("v") and self._fusions:
            self._fusions[-1].append(row)
            return
        row.numbered("f", len(self._fusions))
        self._fusions.append(_FusionDraft.read(row))

    def _placeholder(self, row: ListingRow) -> None:
        row.numbered("p", len(self._placeholders))
        self._placeholders.append(placeholder(row))

    def _origin(self, row: ListingRow) -> None:
        row.numbered("@", len(self._origins))
        node, place = row.name("node"), row.name("place")
        self._origins.append(Origin(node, place, "" if row.is_done() else row.name("op_name")))

    def _block(self, row: ListingRow) -> None:
        row.numbered("k", len(self._blocks))
        self._blocks.append(block(row))

    def _instr(self, row: ListingRow) -> None:
        row.keyword(str(len(self._rows[self._engine])))
        opcode = row.word("opcode")
        results = row.ids("t")
        operands = row.ids("t") if row.accept("=") else ()
        named = reference(row, "k") if opcode in CONTROL else NONE
        attribute = reference(row, "#") if named == NONE else self._naming(row, named)
        placeholder = reference(row, "p")
        wait_sem, wait_value = self._awaited(row) if row.accept("wait") else (NONE, 0)
        post_sem = self._named(row, row.word("semaphore")) if row.accept("post") else NONE
        self._rows[self._engine].append(
            Instr(
                opcode=opcode,
                results=results,
                operands=operands,
                attribute=attribute,
                placeholder=placeholder,
                wait_sem=wait_sem,
                wait_value=wait_value,
                post_sem=post_sem,
                origin=reference(row, "@"),
                **{
                    cost: row.integer(word) if row.accept(word) else 0
                    for word, cost in _COSTS.items()
                },
            )
        )

    def _naming(self, row: ListingRow, block: int) -> int:
        """The first row of attributes that names this block and nothing else."""
        if block not in self._naming_rows:
            raise row.wrong(f"no row of attributes is block={block}")
        return self._naming_rows[block]

    def _awaited(self, row: ListingRow) -> tuple[int, int]:
        match = row.match(_AWAITED, "semaphore>=value")
        return self._named(row, match["name"]), int(match["value"])

    def _named(self, row: ListingRow, word: str) -> int:
        name = row.unquoted(word)
        if name not in self._semaphore_ids:
            raise row.wrong(f"no semaphore is called {name!r}")
        return self._semaphore_ids[name]


def _table(engine: Engine, rows: list[Instr]) -> InstrTable:
    try:
        return InstrTable.from_rows(rows)
    except OverflowError as error:
        raise NeffError(f"queue {engine.value}: {error}") from error
