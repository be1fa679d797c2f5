"""MSCCL's algorithms as data, read from the XML that the msccl-tools compiler prints.

    <algo name= ngpus= nchannels= nchunksperloop= coll= inplace= proto=>
      <gpu id= i_chunks= o_chunks= s_chunks=>
        <copy i_off= o_off=>
        <tb id= send= recv= chan=>
          <step s= type= srcbuf= srcoff= dstbuf= dstoff= cnt= depid= deps= hasdep=/>

A thread block (tb) sends to one gpu, receives from one, and does its steps one after the other. A
copy brings a chunk of the input to the output before all thread blocks: the synthesisers of
msccl-tools, TACCL and TE-CCL print them (msccl/ncclize.py).
Source: github.com/microsoft/msccl-tools (msccl/language/ir.py) and github.com/Azure/msccl-executor-
nccl (src/misc/msccl/msccl_parser.cc), which agree on the attributes.

The XML is parsed into elements that know their line and column. A document type, and so every
entity, is refused before it is read; so are files beyond a size, and elements beyond a number or a
depth. Nothing outside of the file is ever opened.
"""

import enum
import functools
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from xml.parsers import expat

import attrs
import numpy as np

from ncc_runtime.errors import PlanError

MOST_BYTES = 64 << 20
MOST_ELEMENTS = 1 << 18
MOST_DEPTH = 8


@attrs.frozen
class At:
    """A place in a text file, counted from 1."""

    line: int
    column: int

    def error(self, what: str) -> PlanError:
        """The error that names this place."""
        return PlanError(f"line {self.line}, column {self.column}: {what}")


@attrs.define(eq=False)
class Element:
    """A tag, its attributes and the elements inside."""

    name: str
    attributes: Mapping[str, str]
    line: int
    column: int
    children: "list[Element]" = attrs.field(factory=list)

    @property
    def at(self) -> At:
        """Where it begins."""
        return At(self.line, self.column)


def parse(data: bytes) -> Element:
    """The root element; PlanError with line and column where it is not well formed, or refused."""
    if len(data) > MOST_BYTES:
        raise PlanError(f"{len(data)} bytes, a plan has at most {MOST_BYTES}")
    reader = _Reader()
    try:
        reader.parser.Parse(data, True)
    except expat.ExpatError as error:
        what = expat.errors.messages.get(error.code, str(error))
        raise At(error.lineno, error.offset + 1).error(f"not XML: {what}") from None
    except (LookupError, ValueError) as error:  # an encoding that there is not
        raise reader.at.error(f"not XML: {error}") from None
    assert reader.root is not None, "expat refuses a document without elements"
    return reader.root


class _Reader:
    """Builds the tree."""

    def __init__(self) -> None:
        self.root: Element | None = None
        self._open: list[Element] = []
        self._count = 0
        self.parser = expat.ParserCreate()
        self.parser.StartDoctypeDeclHandler = self._doctype
        self.parser.EntityDeclHandler = self._doctype
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._text

    @property
    def at(self) -> At:
        """Where the parser is."""
        parser = self.parser
        return At(parser.CurrentLineNumber, parser.CurrentColumnNumber + 1)

    def _doctype(self, *_: object) -> None:
        raise self.at.error("a document type or an entity, which a plan has not: leave it out")

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        parser = self.parser
        element = Element(
            name, attributes, parser.CurrentLineNumber, parser.CurrentColumnNumber + 1
        )
        self._count += 1
        if self._count > MOST_ELEMENTS:
            raise element.at.error(f"more than {MOST_ELEMENTS} elements")
        if len(self._open) >= MOST_DEPTH:
            raise element.at.error(f"elements more than {MOST_DEPTH} deep")
        if self._open:
            self._open[-1].children.append(element)
        else:
            self.root = element
        self._open.append(element)

    def _end(self, _: str) -> None:
        self._open.pop()

    def _text(self, text: str) -> None:
        if text.strip():
            raise self.at.error(f"text {text.strip()[:20]!r} between elements, where none belongs")


NOBODY = -1
MOST_GPUS = 4096
MOST_CHUNKS = 1 << 20
MOST_DIGITS = 20
MOST_LETTERS = 200

_NUMBER = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)


class StepKind(enum.Enum):
    """What a step does; the value is its name in the file."""

    SEND = "s"
    RECV = "r"
    RECV_COPY_SEND = "rcs"
    RECV_REDUCE_COPY = "rrc"
    RECV_REDUCE_SEND = "rrs"
    RECV_REDUCE_COPY_SEND = "rrcs"
    COPY = "cpy"
    REDUCE = "re"
    NOP = "nop"

    def __init__(self, word: str) -> None:
        self.is_local: bool = word in ("cpy", "re", "nop")
        self.receives: bool = word.startswith("r") and not self.is_local
        self.sends: bool = word.endswith("s")
        self.joins: bool = word == "re" or word.startswith("rr")  # reduces what it has or receives
        self.reads: bool = self.joins or word in ("s", "cpy")
        self.writes: bool = word not in ("s", "rrs", "nop")


KINDS: tuple[StepKind, ...] = tuple(StepKind)
"""By number, as tables of steps have them."""

_KIND_NUMBERS: Mapping[str, int] = {one.value: number for number, one in enumerate(KINDS)}


class ChunkBuffer(enum.Enum):
    """Whose chunks a step counts; the value is the name in the file."""

    INPUT = "i"
    OUTPUT = "o"
    SCRATCH = "s"


BUFFERS: tuple[ChunkBuffer, ...] = tuple(ChunkBuffer)
"""By number, as tables of steps have them."""

INPUT, OUTPUT, SCRATCH = range(len(BUFFERS))

_BUFFER_NUMBERS: Mapping[str, int] = {one.value: number for number, one in enumerate(BUFFERS)}


@attrs.frozen
class Ref:
    """The first of some chunks."""

    buffer: ChunkBuffer
    index: int

    def __str__(self) -> str:
        return f"{self.buffer.value}[{self.index}]"


@attrs.frozen
class ThreadBlock:
    """A thread block."""

    gpu: int
    number: int  # NOBODY for the copies of a gpu
    to: int  # gpu, NOBODY for none
    of: int  # gpu that it receives from, NOBODY for none
    channel: int


_FLAGS: Mapping[str, np.ndarray] = {
    flag: np.array([getattr(kind, flag) for kind in KINDS])
    for flag in ("receives", "sends", "joins", "reads", "writes")
}


@attrs.frozen(eq=False)
class StepTable:
    """The steps of all thread blocks, block after block: columns, (steps,) int64."""

    block: np.ndarray  # among those of all gpus
    place: np.ndarray  # in its block
    kind: np.ndarray  # number among KINDS
    source_buffer: np.ndarray  # number among BUFFERS
    source_index: np.ndarray  # of the first chunk
    target_buffer: np.ndarray
    target_index: np.ndarray
    count: np.ndarray  # chunks
    awaited_block: np.ndarray  # tb of the gpu that it depends on, NOBODY for none
    awaited_step: np.ndarray  # and the step there
    tells: np.ndarray  # whether others may depend on it, as a nop never does: it moves nothing
    line: np.ndarray
    column: np.ndarray

    def __len__(self) -> int:
        return len(self.kind)

    def which(self, flag: str) -> np.ndarray:
        """(steps,) bool: which of them `receives`, `sends`, `joins`, `reads` or `writes`."""
        return _FLAGS[flag][self.kind]

    def are(self, kind: StepKind) -> np.ndarray:
        """(steps,) bool: which are of a kind."""
        return self.kind == KINDS.index(kind)

    def source(self, step: int) -> Ref:
        """The first chunk that a step reads, as the file has it."""
        return Ref(BUFFERS[self.source_buffer[step]], int(self.source_index[step]))

    def target(self, step: int) -> Ref:
        """The first chunk that a step writes, as the file has it."""
        return Ref(BUFFERS[self.target_buffer[step]], int(self.target_index[step]))

    def at(self, step: int) -> At:
        """Where a step stands in the file."""
        return At(int(self.line[step]), int(self.column[step]))


@attrs.frozen(eq=False)
class Algo:
    """An algorithm as the file has it."""

    name: str
    collective: str  # the file's own word, "" for none
    protocol: str
    in_place: bool  # input and output are one buffer
    is_either: bool  # made for one buffer and for two
    chunks: int  # of the larger side
    scratch_chunks: tuple[int, ...]  # by gpu
    blocks: tuple[ThreadBlock, ...]  # gpu after gpu
    steps: StepTable
    at: At

    @property
    def gpus(self) -> int:
        """How many there are."""
        return len(self.scratch_chunks)

    def of_block(self, name: str) -> np.ndarray:
        """A field of each step's block, (steps,) int64."""
        return np.array([getattr(block, name) for block in self.blocks], np.int64)[self.steps.block]

    def connections(self) -> tuple[np.ndarray, np.ndarray]:
        """Numbers of connections, by which steps send, and by which they receive; NOBODY for none.

        A connection is a sender, a receiver and a channel.
        """
        gpu, to, of, channel = map(self.of_block, ("gpu", "to", "of", "channel"))
        many = MOST_GPUS + 1  # channels, and none
        sends, receives = self.steps.which("sends"), self.steps.which("receives")
        return (
            np.where(sends, (gpu * self.gpus + to) * many + channel + 1, NOBODY),
            np.where(receives, (of * self.gpus + gpu) * many + channel + 1, NOBODY),
        )

    def received(self) -> np.ndarray:
        """The receive that takes each send: the n-th of a connection the n-th; NOBODY for none."""
        count = len(self.steps)
        (sends, sent), (receives, received) = (
            _nth_of_connection(connection, count) for connection in self.connections()
        )
        _, nth_send, nth_receive = np.intersect1d(sent, received, return_indices=True)
        receive_of: np.ndarray = np.full(count, NOBODY, np.int64)
        receive_of[sends[nth_send]] = receives[nth_receive]
        return receive_of


def _nth_of_connection(connection: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Steps that have a connection, and a key of each: connection and place in it as one number."""
    steps = np.flatnonzero(connection != NOBODY)
    steps = steps[np.argsort(connection[steps], kind="stable")]
    key = connection[steps]
    return steps, key * count + np.arange(len(key)) - np.searchsorted(key, key)


def read(data: bytes) -> Algo:
    """The algorithm of a file's bytes; PlanError with line and column, gpu, tb and step."""
    root = parse(data)
    try:
        return _algo(root)
    except _Malformed as fault:
        path = "".join(f"{name}, " for name in _path(root, fault.element) or ())
        where = f"{path[:-2]}: " if path else ""
        raise fault.element.at.error(f"{where}{fault.what}") from None


class _Malformed(Exception):  # noqa: N818 - becomes a PlanError where its place is known
    """An element that is not as the format has it."""

    def __init__(self, element: Element, what: str) -> None:
        super().__init__(what)
        self.element, self.what = element, what


_IDS = {"gpu": "id", "tb": "id", "step": "s"}
"""The attribute that says which of its kind an element is."""


def _path(element: Element, inner: Element) -> list[str] | None:
    """What an element inside of another is called, from outside; None if it is not inside."""
    if element is inner:
        return []
    places: Counter[str] = Counter()
    for child in element.children:
        path = _path(child, inner)
        if path is not None:
            number = child.attributes.get(
                _IDS.get(child.name, ""), f"at place {places[child.name]}"
            )
            return [*([f"{child.name} {number[:20]}"] if child.name in _IDS else []), *path]
        places[child.name] += 1
    return None


def _algo(root: Element) -> Algo:
    if root.name != "algo":
        raise _Malformed(root, f"<{root.name[:20]}>, an MSCCL plan begins with <algo>")
    count = _number(root, "ngpus", 1, MOST_GPUS)
    channels = _number(root, "nchannels", 1, MOST_GPUS, default=MOST_GPUS)
    gpus = [_gpu(child, count, channels) for child in _inside(root, "gpu")]
    known: set[int] = set()
    for gpu, element in zip(gpus, root.children, strict=True):
        if gpu.number in known:
            raise _Malformed(element, "the second gpu of this id")
        known.add(gpu.number)
    if len(gpus) != count:
        raise _Malformed(root, f"{len(gpus)} gpus, ngpus is {count}")
    is_in_place = _number(root, "inplace", 0, 1, default=0) == 1
    is_apart = _number(root, "outofplace", 0, 1, default=0) == 1
    gpus.sort(key=lambda gpu: gpu.number)
    blocks = [block for gpu in gpus for block in gpu.blocks]
    rows = [row for _, of_block in blocks for row in of_block]
    lengths = [len(of_block) for _, of_block in blocks]
    columns = np.array(rows, np.int64).reshape(-1, len(attrs.fields(StepTable)) - 2).T.copy()
    block = np.repeat(np.arange(len(lengths)), lengths)
    return Algo(
        name=" ".join(_text(root, "name").split()),
        collective=_text(root, "coll", ""),
        protocol=_text(root, "proto", "Simple"),
        in_place=is_in_place and not is_apart,
        is_either=is_in_place and is_apart,
        chunks=_number(root, "nchunksperloop", 1, MOST_CHUNKS),
        scratch_chunks=tuple(gpu.scratch_chunks for gpu in gpus),
        blocks=tuple(thread_block for thread_block, _ in blocks),
        steps=StepTable(block, np.arange(len(rows)) - np.searchsorted(block, block), *columns),
        at=root.at,
    )


def adding_to_targets(algo: Algo) -> Algo:
    """The file read as msccl-tools means it: received bytes are reduced into the step's target.

    For rrc, rrs and rrcs msccl-tools prints as source the chunk on the sender, so a step is changed
    where its source is what its send reads or writes. The same object if no step is.
    """
    steps, received = algo.steps, algo.received()
    sends = np.flatnonzero(received != NOBODY)
    receives = received[sends]
    is_plain = steps.are(StepKind.SEND)[sends]
    buffer = np.where(is_plain, steps.source_buffer[sends], steps.target_buffer[sends])
    index = np.where(is_plain, steps.source_index[sends], steps.target_index[sends])
    is_meant = steps.which("joins")[receives]
    is_meant &= (steps.source_buffer[receives] == buffer) & (steps.source_index[receives] == index)
    meant = receives[is_meant]
    buffers, indices = steps.source_buffer.copy(), steps.source_index.copy()
    buffers[meant], indices[meant] = steps.target_buffer[meant], steps.target_index[meant]
    if (buffers == steps.source_buffer).all() and (indices == steps.source_index).all():
        return algo
    return attrs.evolve(
        algo, steps=attrs.evolve(steps, source_buffer=buffers, source_index=indices)
    )


_Row = tuple[int, int, int, int, int, int, int, int, bool, int, int]
"""A step as StepTable has it, from its kind on."""


@attrs.frozen
class _Gpu:
    """One member: its thread blocks, and their steps."""

    number: int
    scratch_chunks: int
    blocks: list[tuple[ThreadBlock, list[_Row]]]


def _gpu(element: Element, count: int, channels: int) -> _Gpu:
    number = _number(element, "id", 0, count - 1)
    blocks: list[tuple[ThreadBlock, list[_Row]]] = []
    copies: list[_Row] = []
    for child in _inside(element, "tb", "copy"):
        if child.name == "tb":
            blocks.append(_block(child, number, count, channels))
        else:
            copies.append(_copy(child))
    _check_alone(element, [block for block, _ in blocks])
    if copies:
        blocks.append((ThreadBlock(number, NOBODY, NOBODY, NOBODY, 0), copies))
    scratch = _number(element, "s_chunks", 0, MOST_CHUNKS, default=0)
    return _Gpu(number, scratch, blocks)


def _copy(element: Element) -> _Row:
    """A copy from input to output that is outside of all thread blocks."""
    _check_empty(element)
    source = INPUT, _number(element, "i_off", 0, MOST_CHUNKS)
    target = OUTPUT, _number(element, "o_off", 0, MOST_CHUNKS)
    count = _number(element, "cnt", 1, MOST_CHUNKS, default=1)
    kind, awaited = KINDS.index(StepKind.COPY), (NOBODY, NOBODY)
    return kind, *source, *target, count, *awaited, False, element.line, element.column


def _block(element: Element, gpu: int, count: int, channels: int) -> tuple[ThreadBlock, list[_Row]]:
    ends = [_number(element, name, NOBODY, count - 1) for name in ("send", "recv")]
    for name, end in zip(("send", "recv"), ends, strict=True):
        if end == gpu:
            raise _Malformed(element, f"{name} is {end}, the gpu itself")
    block = ThreadBlock(
        gpu=gpu,
        number=_number(element, "id", 0, MOST_CHUNKS),
        to=ends[0],
        of=ends[1],
        channel=_number(element, "chan", NOBODY, channels - 1),
    )
    rows = [_step(child, at) for at, child in enumerate(_inside(element, "step"))]
    for row, child in zip(rows, element.children, strict=True):
        kind = KINDS[row[0]]
        if kind.sends and block.to == NOBODY:
            raise _Malformed(child, f"a step {kind.value} in a tb whose send is -1")
        if kind.receives and block.of == NOBODY:
            raise _Malformed(child, f"a step {kind.value} in a tb whose recv is -1")
    return block, rows


def _check_alone(gpu: Element, blocks: Sequence[ThreadBlock]) -> None:
    """A connection has one end at each side: gpu, gpu and channel name one thread block."""
    known: dict[tuple[str, int, int], ThreadBlock] = {}
    numbers: set[int] = set()
    elements = (child for child in gpu.children if child.name == "tb")
    for block, element in zip(blocks, elements, strict=True):
        if block.number in numbers:
            raise _Malformed(element, "the second tb of this id")
        numbers.add(block.number)
        for does, verb, end in (("s", "send to", block.to), ("r", "receive from", block.of)):
            if end == NOBODY:
                continue
            other = known.setdefault((does, end, block.channel), block)
            if other is not block:
                raise _Malformed(
                    element,
                    f"tb {other.number} and tb {block.number} {verb} gpu {end} on channel "
                    f"{block.channel}; a connection has one tb",
                )


def _step(element: Element, place: int) -> _Row:
    number = _number(element, "s", 0, MOST_CHUNKS)
    if number != place:
        raise _Malformed(
            element, f"s is {number}, must be {place}: the steps of a tb are numbered through"
        )
    word = _word(element, "type")
    if word not in _KIND_NUMBERS:
        there = ", ".join(_KIND_NUMBERS)
        raise _Malformed(element, f"no type of step {word[:20]!r}; there are {there}")
    kind_number = _KIND_NUMBERS[word]
    kind = KINDS[kind_number]
    _check_empty(element)
    depends = _number(element, "depid", NOBODY, MOST_CHUNKS, default=NOBODY)
    awaited = NOBODY if depends == NOBODY else _number(element, "deps", 0, MOST_CHUNKS)
    tells = _number(element, "hasdep", 0, 1, default=0) == 1
    source = target = _UNUSED
    if kind.reads:
        source = _chunk(element, "srcbuf", "srcoff")
    if kind.writes or kind.joins:
        target = _chunk(element, "dstbuf", "dstoff")
    count = 1 if kind is StepKind.NOP else _number(element, "cnt", 1, MOST_CHUNKS)
    tells = tells and kind is not StepKind.NOP
    at = element.line, element.column
    return kind_number, *source, *target, count, depends, awaited, tells, *at


_UNUSED = INPUT, 0
"""The unused side of a step; a nop has -1 there."""


def _chunk(element: Element, buffer_name: str, index_name: str) -> tuple[int, int]:
    word = _word(element, buffer_name)
    if word not in _BUFFER_NUMBERS:
        raise _Malformed(element, f"{buffer_name} is {word[:20]!r}, must be i, o or s")
    return _BUFFER_NUMBERS[word], _number(element, index_name, 0, MOST_CHUNKS)


def _check_empty(element: Element) -> None:
    if element.children:
        inner = element.children[0]
        raise _Malformed(inner, f"<{inner.name[:20]}> in <{element.name}>, where nothing belongs")


def _inside(element: Element, *names: str) -> Iterator[Element]:
    for child in element.children:
        if child.name not in names:
            allowed = " or ".join(f"<{name}>" for name in names)
            raise _Malformed(
                child, f"<{child.name[:20]}> in <{element.name}>, where {allowed} belongs"
            )
        yield child


def _word(element: Element, name: str) -> str:
    if name not in element.attributes:
        raise _Malformed(element, f"<{element.name}> has no {name}")
    return element.attributes[name]


def _text(element: Element, name: str, default: str | None = None) -> str:
    if default is not None and name not in element.attributes:
        return default
    word = _word(element, name)
    if len(word) > MOST_LETTERS:
        raise _Malformed(element, f"{name} has {len(word)} letters, at most {MOST_LETTERS}")
    return word


def _number(element: Element, name: str, least: int, most: int, default: int | None = None) -> int:
    word = element.attributes.get(name)
    if word is None:
        if default is not None:
            return default
        word = _word(element, name)
    number = _integer(word) if len(word) <= MOST_DIGITS else None
    if number is None:
        raise _Malformed(element, f"{name} is {word[:20]!r}, which is no whole number")
    if not least <= number <= most:
        raise _Malformed(element, f"{name} is {number}, must be {least} to {most}")
    return number


@functools.lru_cache(1 << 12)
def _integer(word: str) -> int | None:
    return int(word) if _NUMBER.fullmatch(word.strip()) else None
