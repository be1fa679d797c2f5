"""Read a listing back: one reader per section, one row per line."""

import re
from collections.abc import Callable, Mapping

import attrs

from ncc_runtime.errors import NeffError
from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.isa import ENGINES, Engine
from ncc_runtime.neff.listing_row import Row
from ncc_runtime.neff.listing_values import attributes, block, choice, placeholder, region_instr
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import (
    AttributeValue,
    Block,
    Buffer,
    BufferId,
    BufferKind,
    Origin,
    Parameter,
    Program,
    Region,
    Semaphore,
    Sharding,
    Tensor,
    TensorId,
)
from ncc_runtime.neff.structure import CONTROL, names_block
from ncc_runtime.neff.table import NONE, Instr, InstrTable

_HEX = re.compile(r"0x[0-9a-f]{1,16}")
_TYPE = re.compile(r"(\w+)\[((?:\d{1,19}(?:,\d{1,19})*)?)\]", re.ASCII)
_HOME = re.compile(r"b(\d{1,19})\+(\d{1,19})", re.ASCII)
_BYTES = re.compile(r"(?:[0-9a-f]{2})+")
_AWAITED = re.compile(r"(?P<name>.+)>=(?P<value>\d{1,10})")
_LIST = re.compile(r"\[((?:\d{1,19}(?:,\d{1,19})*)?)\]", re.ASCII)
_REFERENCE = re.compile(r"[#pks@](\d{1,10})", re.ASCII)
_COSTS = {"flops": "flops", "elements": "elements", "read": "bytes_in", "written": "bytes_out"}


def parse_program(text: str) -> Program:
    """The program of a listing; NeffError with the line that is not one. Does not `check` it."""
    draft, head = _Draft(), Row(1, "")
    for number, line in enumerate(text.split("\n"), start=1):
        row = Row(number, line)
        if row.is_done():
            continue
        try:
            draft.read(row, indented=line.startswith(" "))
            row.end()
        except (ValueError, OverflowError) as error:  # of validators and numbers
            raise row.wrong(" ".join(str(error).splitlines())) from error
    try:
        return draft.program()
    except ValueError as error:  # what the program as a whole validates stands in its first line
        raise head.wrong(" ".join(str(error).splitlines())) from error


class _Draft:
    """A program under construction; `read` takes one row after the other."""

    def __init__(self) -> None:
        self._head: tuple[str, int, int, int] | None = None
        self._engine = Engine.TENSOR
        self._section: Callable[[Row], None] = self._program
        self._buffers: list[Buffer] = []
        self._tensors: list[Tensor] = []
        self._inputs: tuple[int, ...] = ()
        self._shardings: list[Sharding] = []
        self._parameters: list[Parameter] = []
        self._outputs: tuple[int, ...] = ()
        self._constants: dict[int, bytearray] = {}
        self._semaphores: list[Semaphore] = []
        self._semaphore_ids: dict[str, int] = {}
        self._attributes: list[Mapping[str, AttributeValue]] = []
        self._naming_rows: dict[int, int] = {}  # block → row of attributes
        self._regions: list[Region] = []
        self._placeholders: list[Placeholder] = []
        self._origins: list[Origin] = []
        self._blocks: list[Block] = []
        self._rows: dict[Engine, list[Instr]] = {engine: [] for engine in ENGINES}
        self._sections: dict[str, Callable[[Row], None]] = {
            "buffers": self._buffer,
            "tensors": self._tensor,
            "inputs": self._input,
            "shardings": self._sharding,
            "parameters": self._parameter,
            "outputs": self._output,
            "constants": self._constant,
            "semaphores": self._semaphore,
            "attributes": self._attribute,
            "regions": self._region,
            "placeholders": self._placeholder,
            "origins": self._origin,
            "blocks": self._block,
            "queue": self._instr,
        }

    def read(self, row: Row, indented: bool) -> None:
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
        """What was read."""
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
            shardings=tuple(self._shardings),
        )

    def _program(self, row: Row) -> None:
        row.keyword("program")
        name = row.name("name")
        sizes = []
        for word in ("replicas", "partitions", "memory"):
            row.keyword(word)
            sizes.append(row.integer(word))
        self._head = (name, sizes[0], sizes[1], sizes[2])

    def _buffer(self, row: Row) -> None:
        row.numbered("b", len(self._buffers))
        kind = choice(row, BufferKind, "buffer kind")
        address = int(row.match(_HEX, "address")[0], 16)
        size_bytes = row.integer("size")
        self._buffers.append(Buffer(row.name("name"), kind, size_bytes, address))

    def _tensor(self, row: Row) -> None:
        row.numbered("t", len(self._tensors))
        dtype, dimensions = row.match(_TYPE, "type").groups()
        buffer, offset = map(int, row.match(_HOME, "place such as b0+0").groups())
        name = row.name("name")
        self._tensors.append(
            Tensor(name, BufferId(buffer), DType(dtype), _numbers(dimensions), offset)
        )

    def _input(self, row: Row) -> None:
        self._inputs += row.ids("t")

    def _sharding(self, row: Row) -> None:
        row.numbered("s", len(self._shardings))
        tiles = row.match(_LIST, "tiles such as [2,1]")[1]
        row.keyword("parts")
        parts = row.match(_LIST, "parts such as [0,1]")[1]
        self._shardings.append(Sharding(_numbers(tiles), _numbers(parts)))

    def _parameter(self, row: Row) -> None:
        row.keyword(str(len(self._parameters)))
        name, sharding = row.name("name"), _reference(row, "s")
        self._parameters.append(Parameter(name, None if sharding == NONE else sharding))

    def _output(self, row: Row) -> None:
        self._outputs += row.ids("t")

    def _constant(self, row: Row) -> None:
        buffer, offset = map(int, row.match(_HOME, "place such as b0+0").groups())
        data = self._constants.setdefault(buffer, bytearray())
        if offset != len(data):
            raise row.wrong(f"b{buffer}+{offset} after {len(data)} bytes")
        if not row.is_done():
            data += bytes.fromhex(row.match(_BYTES, "bytes in hex")[0])

    def _semaphore(self, row: Row) -> None:
        name = row.name("name")
        if name in self._semaphore_ids:
            raise row.wrong(f"two semaphores are called {name!r}")
        self._semaphore_ids[name] = len(self._semaphores)
        self._semaphores.append(Semaphore(name, row.name("owner")))

    def _attribute(self, row: Row) -> None:
        row.numbered("#", len(self._attributes))
        found = attributes(row)
        if names_block(found) != NONE:
            self._naming_rows.setdefault(names_block(found), len(self._attributes))
        self._attributes.append(found)

    def _region(self, row: Row) -> None:
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

    def _placeholder(self, row: Row) -> None:
        row.numbered("p", len(self._placeholders))
        self._placeholders.append(placeholder(row))

    def _origin(self, row: Row) -> None:
        row.numbered("@", len(self._origins))
        self._origins.append(Origin(row.name("node"), row.name("place")))

    def _block(self, row: Row) -> None:
        row.numbered("k", len(self._blocks))
        self._blocks.append(block(row))

    def _instr(self, row: Row) -> None:
        row.keyword(str(len(self._rows[self._engine])))
        opcode = row.word("opcode")
        results = row.ids("t")
        operands = row.ids("t") if row.accept("=") else ()
        named = _reference(row, "k") if opcode in CONTROL else NONE
        attribute = _reference(row, "#") if named == NONE else self._naming(row, named)
        placeholder = _reference(row, "p")
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
                origin=_reference(row, "@"),
                **{
                    cost: row.integer(word) if row.accept(word) else 0
                    for word, cost in _COSTS.items()
                },
            )
        )

    def _naming(self, row: Row, block: int) -> int:
        """The first row of attributes that names this block and nothing else."""
        if block not in self._naming_rows:
            raise row.wrong(f"no row of attributes is block={block}")
        return self._naming_rows[block]

    def _awaited(self, row: Row) -> tuple[int, int]:
        match = row.match(_AWAITED, "semaphore>=value")
        return self._named(row, match["name"]), int(match["value"])

    def _named(self, row: Row, word: str) -> int:
        name = row.unquoted(word)
        if name not in self._semaphore_ids:
            raise row.wrong(f"no semaphore is called {name!r}")
        return self._semaphore_ids[name]


def _table(engine: Engine, rows: list[Instr]) -> InstrTable:
    try:
        return InstrTable.from_rows(rows)
    except OverflowError as error:
        raise NeffError(f"queue {engine.value}: {error}") from error


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def _reference(row: Row, prefix: str) -> int:
    """The id behind `#`, `p`, `k`, `s` or `@` if the next word is one, else NONE."""
    return int(row.match(_REFERENCE, "id")[1]) if _is_reference(row.peek(), prefix) else NONE


def _is_reference(word: str, prefix: str) -> bool:
    return word.startswith(prefix) and _REFERENCE.fullmatch(word) is not None
