"""Where the chunks of a plan lie: loops over the buffers, whatever their sizes.

Of each tensor the chunks that are whole are a loop of their own, in place where that can be. What
is left, elements less than chunks, is a second one, with chunks of one element, whose buffers all
lie in scratch: what is not there is padded, and nothing of it comes back.
"""

from collections.abc import Iterator, Sequence

import attrs

from ncc_runtime.collectives.extents import Scratch
from ncc_runtime.collectives.plan import Job, Space
from ncc_runtime.plans.msccl import BUFFERS, INPUT, OUTPUT, SCRATCH
from ncc_runtime.plans.shapes import Shape


@attrs.frozen
class Stretch:
    """Bytes of one tensor, or of scratch, on every gpu alike."""

    space: Space
    tensor: int
    offset: int


@attrs.frozen
class Lying:
    """Where the chunks of a buffer lie: parts of equally many chunks, so far apart."""

    at: Stretch
    factor: int  # chunks of a part
    stride: int  # bytes from part to part
    width: int  # bytes of a chunk

    def place(self, index: int) -> Stretch:
        """Where a chunk begins."""
        part, inside = divmod(index, self.factor)
        offset = self.at.offset + part * self.stride + inside * self.width
        return Stretch(self.at.space, self.at.tensor, offset)

    def run(self, index: int, count: int) -> int:
        """How many of so many chunks lie behind one another."""
        if self.stride == self.factor * self.width:
            return count
        return min(count, self.factor - index % self.factor)


@attrs.frozen
class Fetch:
    """A copy at home before or after all steps: of part of a gpu's operand, to its result."""

    source: Stretch
    target: Stretch
    size_bytes: int
    own_stride: int = 0  # the target is so many bytes further for each gpu
    own_source_stride: int = 0
    is_behind: bool = False  # it reads what the one before it has written


FROM_OPERAND = "from operand"
"""The start of a loop in place whose operands lie elsewhere: they are read where they are."""


@attrs.frozen(eq=False)
class Loop:
    """One run of all steps."""

    width: int  # bytes of a chunk
    lying: dict[int, Lying]  # by buffer
    before: tuple[Fetch, ...] = ()
    after: tuple[Fetch, ...] = ()
    fetched: int | None = None  # what `before` writes
    operand: Lying | None = None  # where output chunks are read that no step has written yet
    own_operand: int = 0  # how many chunks further its chunks are those of the next gpu

    @property
    def start(self) -> str:
        """How operands come to where steps read them."""
        if self.operand is not None:
            return FROM_OPERAND
        return "" if self.fetched is None else BUFFERS[self.fetched].value

    def place(self, buffer: int, index: int) -> Stretch:
        """Where a chunk lies."""
        return self.lying[buffer].place(index)

    def given(self, gpu: int, index: int) -> Stretch | None:
        """Where a chunk of the output lies that is still a gpu's operand; None if it is none."""
        if self.operand is None:
            return None
        own = index - gpu * self.own_operand
        is_there = not self.own_operand or own in range(self.own_operand)
        return self.operand.place(own) if is_there else None


@attrs.frozen(eq=False)
class Making:
    """What loops are made of."""

    job: Job
    shape: Shape
    scratch: Scratch
    scratch_chunks: int  # that the steps ask for, of the gpu that has most
    writes_input: bool


def loops(making: Making) -> Iterator[Loop]:
    """The loops over all tensors."""
    buffers, shape = making.job.buffers, making.shape
    sides = zip(buffers.operand_elements, buffers.result_elements, strict=True)
    for tensor, (operand, result) in enumerate(sides):
        part = operand // shape.operand_parts
        assert part == result // shape.result_parts, "parts of both sides are of one size"
        whole, rest = divmod(part, shape.factor)
        if whole:
            yield _whole(making, tensor, (part, whole))
        if rest:
            yield _rest(making, tensor, (part, rest))


def _whole(making: Making, tensor: int, sizes: tuple[int, int]) -> Loop:
    """Chunks of equal sizes, where they are."""
    part, whole = (count * making.job.buffers.element_bytes for count in sizes)
    shape, body = making.shape, whole * making.shape.factor
    operand, result = Stretch(Space.OPERAND, tensor, 0), Stretch(Space.RESULT, tensor, 0)
    there = {
        INPUT: Lying(operand, shape.factor, part, whole),
        OUTPUT: Lying(result, shape.factor, part, whole),
    }
    before: list[Fetch] = []
    after: list[Fetch] = []
    fetched = None
    is_scattered = shape.operand_parts > shape.result_parts
    there[SCRATCH] = _scratch(making, whole)
    if shape.in_place and not is_scattered:
        # one buffer, the result; an operand that lies elsewhere is read there
        if making.job.buffers.in_place and shape.operand_parts == shape.result_parts:
            return Loop(whole, there)
        own = shape.factor if shape.result_parts > shape.operand_parts else 0
        return Loop(whole, there, operand=there[INPUT], own_operand=own)
    if making.writes_input or shape.in_place or making.job.buffers.in_place:
        # operands are not ours to write, and are gone where results lie over them
        copy = making.scratch.take(body * shape.operand_parts)
        moved = Lying(Stretch(Space.SCRATCH, 0, copy), shape.factor, body, whole)
        before = [
            Fetch(one.place(0), two.place(0), body)
            for one, two in _parts(shape.operand_parts, there[INPUT], moved)
        ]
        fetched, there[INPUT] = INPUT, moved
        if shape.in_place:
            after = [Fetch(moved.place(0), result, body, own_source_stride=body)]
    return Loop(whole, there, tuple(before), tuple(after), fetched)


def _rest(making: Making, tensor: int, sizes: tuple[int, int]) -> Loop:
    """Chunks of one element, all in scratch; results are copied back in the end."""
    shape, width = making.shape, making.job.buffers.element_bytes
    part, rest = (count * width for count in sizes)
    body, padded = part - rest, shape.factor * width
    there = {SCRATCH: _scratch(making, width)}
    for buffer, parts in (
        (INPUT, shape.operand_parts),
        (OUTPUT, shape.result_parts),
    ):
        taken = making.scratch.take(padded * parts)
        there[buffer] = Lying(Stretch(Space.SCRATCH, 0, taken), shape.factor, padded, width)
    operand = Lying(Stretch(Space.OPERAND, tensor, body), shape.factor, part, width)
    result = Lying(Stretch(Space.RESULT, tensor, body), shape.factor, part, width)
    given, got = there[INPUT], there[OUTPUT]
    own_given = own_got = 0
    fetched = INPUT
    if shape.in_place:
        if shape.operand_parts > shape.result_parts:
            got, own_got = given, padded
        else:
            fetched, own_given = OUTPUT, 0
            if shape.result_parts > shape.operand_parts:
                own_given = padded
            given = got
    before = [
        fetch
        for one, two in _parts(shape.operand_parts, operand, given)
        for fetch in _padded(one.place(0), two.place(0), (rest, padded), own_given)
    ]
    after = [
        Fetch(one.place(0), two.place(0), rest, own_source_stride=own_got)
        for one, two in _parts(shape.result_parts, got, result)
    ]
    return Loop(width, there, tuple(before), tuple(after), fetched)


def _padded(operand: Stretch, given: Stretch, sizes: tuple[int, int], own: int) -> Iterator[Fetch]:
    """The rest of a part, then over and over what stands there, until there is enough.

    Nothing else of the operand is read: in place, the other loop writes it meanwhile.
    """
    there, padded = sizes
    yield Fetch(operand, given, there, own)
    while there < padded:
        more = min(there, padded - there)
        target = attrs.evolve(given, offset=given.offset + there)
        yield Fetch(given, target, more, own, own, is_behind=True)
        there += more


def _parts(count: int, *both: Lying) -> Iterator[Sequence[Lying]]:
    """Both, part by part."""
    for part in range(count):
        yield [
            attrs.evolve(one, at=attrs.evolve(one.at, offset=one.at.offset + part * one.stride))
            for one in both
        ]


def _scratch(making: Making, width: int) -> Lying:
    chunks = making.scratch_chunks
    taken = making.scratch.take(chunks * width)
    return Lying(Stretch(Space.SCRATCH, 0, taken), chunks, chunks * width, width)
