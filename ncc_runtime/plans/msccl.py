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
"""

import enum
import functools
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

import attrs

from ncc_runtime.plans.xml_tree import At, Element, parse

NOBODY = -1
MOST_GPUS = 4096
MOST_CHUNKS = 1 << 20
MOST_DIGITS = 20
MOST_LETTERS = 200

_NUMBER = re.compile(r"[+-]?[0-9]{1,9}", re.ASCII)


class Kind(enum.Enum):
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


KINDS: Mapping[str, Kind] = {one.value: one for one in Kind}


class Buffer(enum.Enum):
    """Whose chunks a step counts; the value is the name in the file."""

    INPUT = "i"
    OUTPUT = "o"
    SCRATCH = "s"

    __hash__ = object.__hash__  # a key at every step; enum's own is far slower


BUFFERS: Mapping[str, Buffer] = {one.value: one for one in Buffer}


@attrs.frozen
class Ref:
    """The first of some chunks."""

    buffer: Buffer
    index: int

    def __str__(self) -> str:
        return f"{self.buffer.value}[{self.index}]"


@attrs.frozen
class Step:
    """One step of a thread block."""

    kind: Kind
    source: Ref
    target: Ref
    count: int
    awaited: tuple[int, int] | None  # thread block and step that it depends on
    tells: bool  # whether others may depend on it, as a nop never does: it moves nothing
    at: At


@attrs.frozen
class Block:
    """A thread block."""

    number: int  # NOBODY for the copies of a gpu
    to: int  # gpu, NOBODY for none
    of: int  # gpu that it receives from, NOBODY for none
    channel: int
    steps: tuple[Step, ...]
    at: At


@attrs.frozen
class Gpu:
    """One member."""

    number: int
    scratch_chunks: int
    blocks: tuple[Block, ...]


@attrs.frozen
class Algo:
    """An algorithm as the file has it."""

    name: str
    collective: str  # the file's own word, "" for none
    protocol: str
    in_place: bool  # input and output are one buffer
    is_either: bool  # or two, as the caller has them
    chunks: int  # of the larger side
    gpus: tuple[Gpu, ...]
    at: At


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
    """An element that means nothing."""

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
        found = _path(child, inner)
        if found is not None:
            number = child.attributes.get(
                _IDS.get(child.name, ""), f"at place {places[child.name]}"
            )
            return [*([f"{child.name} {number[:20]}"] if child.name in _IDS else []), *found]
        places[child.name] += 1
    return None


def _algo(root: Element) -> Algo:
    if root.name != "algo":
        raise _Malformed(root, f"<{root.name[:20]}>, an MSCCL plan begins with <algo>")
    count = _number(root, "ngpus", 1, MOST_GPUS)
    channels = _number(root, "nchannels", 1, MOST_GPUS, default=MOST_GPUS)
    gpus = tuple(_gpu(one, count, channels) for one in _inside(root, "gpu"))
    known: set[int] = set()
    for gpu, element in zip(gpus, root.children, strict=True):
        if gpu.number in known:
            raise _Malformed(element, "the second gpu of this id")
        known.add(gpu.number)
    if len(gpus) != count:
        raise _Malformed(root, f"{len(gpus)} gpus, ngpus is {count}")
    is_in_place = _number(root, "inplace", 0, 1, default=0) == 1
    is_apart = _number(root, "outofplace", 0, 1, default=0) == 1
    return Algo(
        name=" ".join(_text(root, "name").split()),
        collective=_text(root, "coll", ""),
        protocol=_text(root, "proto", "Simple"),
        in_place=is_in_place and not is_apart,
        is_either=is_in_place and is_apart,
        chunks=_number(root, "nchunksperloop", 1, MOST_CHUNKS),
        gpus=tuple(sorted(gpus, key=lambda gpu: gpu.number)),
        at=root.at,
    )


def adding_to_targets(algo: Algo) -> Algo:
    """The same, where what a step receives is joined to its target, if the file can mean that.

    Of such steps msccl-tools prints as source where the bytes came from, on the sender.
    """
    sent: dict[tuple[int, int, int], list[Ref]] = defaultdict(list)
    for gpu in algo.gpus:
        for block in gpu.blocks:
            sent[gpu.number, block.to, block.channel] += [
                step.source if step.kind is Kind.SEND else step.target
                for step in block.steps
                if step.kind.sends
            ]

    def steps(gpu: Gpu, block: Block) -> Iterator[Step]:
        came = iter(sent[block.of, gpu.number, block.channel])
        for step in block.steps:
            is_meant = step.kind.receives and next(came, None) == step.source and step.kind.joins
            yield attrs.evolve(step, source=step.target) if is_meant else step

    def gpu_of(gpu: Gpu) -> Gpu:
        blocks = (attrs.evolve(block, steps=tuple(steps(gpu, block))) for block in gpu.blocks)
        return attrs.evolve(gpu, blocks=tuple(blocks))

    return attrs.evolve(algo, gpus=tuple(map(gpu_of, algo.gpus)))


def _gpu(element: Element, count: int, channels: int) -> Gpu:
    number = _number(element, "id", 0, count - 1)
    blocks: list[Block] = []
    copies: list[Step] = []
    for one in _inside(element, "tb", "copy"):
        if one.name == "tb":
            blocks.append(_block(one, number, count, channels))
        else:
            copies.append(_copy(one))
    _check_alone(element, blocks)
    if copies:
        blocks.append(Block(NOBODY, NOBODY, NOBODY, 0, tuple(copies), copies[0].at))
    scratch = _number(element, "s_chunks", 0, MOST_CHUNKS, default=0)
    return Gpu(number, scratch, tuple(blocks))


def _copy(element: Element) -> Step:
    """A copy from input to output that is outside of all thread blocks."""
    _check_empty(element)
    source = Ref(Buffer.INPUT, _number(element, "i_off", 0, MOST_CHUNKS))
    target = Ref(Buffer.OUTPUT, _number(element, "o_off", 0, MOST_CHUNKS))
    count = _number(element, "cnt", 1, MOST_CHUNKS, default=1)
    return Step(Kind.COPY, source, target, count, None, tells=False, at=element.at)


def _block(element: Element, own: int, count: int, channels: int) -> Block:
    ends = [_number(element, name, NOBODY, count - 1) for name in ("send", "recv")]
    for name, end in zip(("send", "recv"), ends, strict=True):
        if end == own:
            raise _Malformed(element, f"{name} is {end}, the gpu itself")
    block = Block(
        number=_number(element, "id", 0, MOST_CHUNKS),
        to=ends[0],
        of=ends[1],
        channel=_number(element, "chan", NOBODY, channels - 1),
        steps=tuple(_step(one, at) for at, one in enumerate(_inside(element, "step"))),
        at=element.at,
    )
    for step, one in zip(block.steps, element.children, strict=True):
        if step.kind.sends and block.to == NOBODY:
            raise _Malformed(one, f"a step {step.kind.value} in a tb whose send is -1")
        if step.kind.receives and block.of == NOBODY:
            raise _Malformed(one, f"a step {step.kind.value} in a tb whose recv is -1")
    return block


def _check_alone(gpu: Element, blocks: Sequence[Block]) -> None:
    """A connection has one end at each side: gpu, gpu and channel name one thread block."""
    known: dict[tuple[str, int, int], Block] = {}
    numbers: set[int] = set()
    elements = (one for one in gpu.children if one.name == "tb")
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


def _step(element: Element, place: int) -> Step:
    number = _number(element, "s", 0, MOST_CHUNKS)
    if number != place:
        raise _Malformed(
            element, f"s is {number}, must be {place}: the steps of a tb are numbered through"
        )
    word = _word(element, "type")
    kind = KINDS.get(word)
    if kind is None:
        raise _Malformed(element, f"no type of step {word[:20]!r}; there are {', '.join(KINDS)}")
    _check_empty(element)
    depends = _number(element, "depid", NOBODY, MOST_CHUNKS, default=NOBODY)
    awaited = None
    if depends != NOBODY:
        awaited = depends, _number(element, "deps", 0, MOST_CHUNKS)
    tells = _number(element, "hasdep", 0, 1, default=0) == 1
    return Step(
        kind=kind,
        source=_ref(element, "srcbuf", "srcoff", is_used=kind.reads),
        target=_ref(element, "dstbuf", "dstoff", is_used=kind.writes or kind.joins),
        count=1 if kind is Kind.NOP else _number(element, "cnt", 1, MOST_CHUNKS),
        awaited=awaited,
        tells=tells and kind is not Kind.NOP,
        at=element.at,
    )


_UNUSED = Ref(Buffer.INPUT, 0)


def _ref(element: Element, buffer_name: str, index_name: str, *, is_used: bool) -> Ref:
    if not is_used:
        return _UNUSED  # nobody looks at it, and a nop has -1 there
    word = _word(element, buffer_name)
    buffer = BUFFERS.get(word)
    if buffer is None:
        raise _Malformed(element, f"{buffer_name} is {word[:20]!r}, must be i, o or s")
    return _chunk(buffer, _number(element, index_name, 0, MOST_CHUNKS))


_chunk = functools.lru_cache(1 << 12)(Ref)  # steps of many gpus name the same


def _check_empty(element: Element) -> None:
    if element.children:
        inner = element.children[0]
        raise _Malformed(inner, f"<{inner.name[:20]}> in <{element.name}>, where nothing belongs")


def _inside(element: Element, *names: str) -> Iterator[Element]:
    for child in element.children:
        if child.name not in names:
            wanted = " or ".join(f"<{name}>" for name in names)
            raise _Malformed(
                child, f"<{child.name[:20]}> in <{element.name}>, where {wanted} belongs"
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
    if default is not None and name not in element.attributes:
        return default
    word = _word(element, name)
    number = _whole(word) if len(word) <= MOST_DIGITS else None
    if number is None:
        raise _Malformed(element, f"{name} is {word[:20]!r}, which is no whole number")
    if not least <= number <= most:
        raise _Malformed(element, f"{name} is {number}, must be {least} to {most}")
    return number


@functools.lru_cache(1 << 12)
def _whole(word: str) -> int | None:
    return int(word) if _NUMBER.fullmatch(word.strip()) else None
