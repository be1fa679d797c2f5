"""MSCCL's algorithms as data, read from the XML that the msccl-tools compiler prints.

    <algo name= ngpus= nchannels= nchunksperloop= coll= inplace= proto=>
      <gpu id= i_chunks= o_chunks= s_chunks=>
        <tb id= send= recv= chan=>
          <step s= type= srcbuf= srcoff= dstbuf= dstoff= cnt= depid= deps= hasdep=/>

A thread block (tb) sends to one gpu, receives from one, and does its steps one after the other.
Source: github.com/microsoft/msccl-tools (msccl/language/ir.py) and github.com/Azure/msccl-executor-
nccl (src/misc/msccl/msccl_parser.cc), which agree on the attributes.
"""

import enum
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

import attrs

from ncc_runtime.plans.xml_tree import At, Element, parse

NOBODY = -1
MOST_GPUS = 4096
MOST_CHUNKS = 1 << 20

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
    tells: bool  # whether others may depend on it
    at: At


@attrs.frozen
class Block:
    """A thread block."""

    number: int
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
    collective: str  # the file's own word
    protocol: str
    in_place: bool  # input and output are one buffer
    is_either: bool  # or two, as the caller has them
    chunks: int  # of the larger side
    gpus: tuple[Gpu, ...]
    at: At


def read(data: bytes) -> Algo:
    """The algorithm of a file's bytes; PlanError with line and column."""
    root = parse(data)
    if root.name != "algo":
        raise root.at.error(f"<{root.name}>, an MSCCL plan begins with <algo>")
    count = _number(root, "ngpus", 1, MOST_GPUS)
    channels = _number(root, "nchannels", 1, MOST_GPUS)
    gpus = tuple(_gpu(one, count, channels) for one in _inside(root, "gpu"))
    at = {gpu.number: element for gpu, element in zip(gpus, root.children, strict=True)}
    if len(gpus) != count or len(at) != count:
        twice = [one for one in at if [gpu.number for gpu in gpus].count(one) > 1]
        fact = f"gpu {twice[0]} stands there twice" if twice else f"{len(gpus)} gpus"
        raise root.at.error(f"{fact}, ngpus is {count}")
    is_in_place = _number(root, "inplace", 0, 1, default=0) == 1
    is_apart = _number(root, "outofplace", 0, 1, default=0) == 1
    return Algo(
        name=" ".join(_word(root, "name").split()),
        collective=_word(root, "coll"),
        protocol=root.attributes.get("proto", "Simple"),
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
    blocks = tuple(_block(one, (number, count, channels)) for one in _inside(element, "tb"))
    _check_alone(number, blocks)
    scratch = _number(element, "s_chunks", 0, MOST_CHUNKS, default=0)
    return Gpu(number, scratch, blocks)


def _block(element: Element, around: tuple[int, int, int]) -> Block:
    own, count, channels = around
    ends = [_number(element, name, NOBODY, count - 1) for name in ("send", "recv")]
    for name, end in zip(("send", "recv"), ends, strict=True):
        if end == own:
            raise element.at.error(f"{name} is {end}, the gpu itself")
    block = Block(
        number=_number(element, "id", 0, MOST_CHUNKS),
        to=ends[0],
        of=ends[1],
        channel=_number(element, "chan", NOBODY, channels - 1),
        steps=tuple(_step(one, at) for at, one in enumerate(_inside(element, "step"))),
        at=element.at,
    )
    for step in block.steps:
        for name, does, end in (
            ("send", step.kind.sends, block.to),
            ("recv", step.kind.receives, block.of),
        ):
            if does and end == NOBODY:
                raise step.at.error(f"a step {step.kind.value} in a tb whose {name} is -1")
    return block


def _check_alone(gpu: int, blocks: Sequence[Block]) -> None:
    """A connection has one end at each side: gpu, gpu and channel name one thread block."""
    known: dict[tuple[str, int, int], Block] = {}
    numbers: set[int] = set()
    for block in blocks:
        if block.number in numbers:
            raise block.at.error(f"gpu {gpu} has two tb {block.number}")
        numbers.add(block.number)
        for does, verb, end in (("s", "send to", block.to), ("r", "receive from", block.of)):
            if end == NOBODY:
                continue
            other = known.setdefault((does, end, block.channel), block)
            if other is not block:
                raise block.at.error(
                    f"gpu {gpu} has two tb that {verb} gpu {end} on channel {block.channel}: "
                    f"tb {other.number} and tb {block.number}; a connection has one"
                )


def _step(element: Element, place: int) -> Step:
    number = _number(element, "s", 0, MOST_CHUNKS)
    if number != place:
        raise element.at.error(f"step {number}, where step {place} of the tb belongs")
    word = _word(element, "type")
    kind = KINDS.get(word)
    if kind is None:
        raise element.at.error(f"no type of step {word!r}; there are {', '.join(KINDS)}")
    if element.children:
        raise element.children[0].at.error("elements inside of a step, where none belong")
    depends = _number(element, "depid", NOBODY, MOST_CHUNKS, default=NOBODY)
    awaited = None
    if depends != NOBODY:
        awaited = depends, _number(element, "deps", 0, MOST_CHUNKS)
    return Step(
        kind=kind,
        source=_ref(element, "src", must_be=kind.reads),
        target=_ref(element, "dst", must_be=kind.writes),
        count=1 if kind is Kind.NOP else _number(element, "cnt", 1, MOST_CHUNKS),
        awaited=awaited,
        tells=_number(element, "hasdep", 0, 1, default=0) == 1,
        at=element.at,
    )


def _ref(element: Element, side: str, *, must_be: bool) -> Ref:
    if not must_be and element.attributes.get("type") != Kind.RECV_REDUCE_SEND.value:
        return Ref(Buffer.INPUT, 0)  # nobody looks at it
    word = _word(element, f"{side}buf")
    buffer = BUFFERS.get(word)
    if buffer is None:
        raise element.at.error(f"{side}buf is {word!r}, must be i, o or s")
    return Ref(buffer, _number(element, f"{side}off", 0, MOST_CHUNKS))


def _inside(element: Element, name: str) -> Iterator[Element]:
    for child in element.children:
        if child.name != name:
            raise child.at.error(f"<{child.name}> in <{element.name}>, where <{name}> belongs")
        yield child


def _word(element: Element, name: str) -> str:
    if name not in element.attributes:
        raise element.at.error(f"<{element.name}> has no {name}")
    return element.attributes[name]


def _number(element: Element, name: str, least: int, most: int, default: int | None = None) -> int:
    if default is not None and name not in element.attributes:
        return default
    word = _word(element, name).strip()
    if not _NUMBER.fullmatch(word):
        raise element.at.error(f"{name} is {word[:20]!r}, which is no whole number")
    if not least <= int(word) <= most:
        raise element.at.error(f"{name} is {word}, must be {least} to {most}")
    return int(word)
