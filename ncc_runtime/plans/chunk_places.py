"""A plan in chunks, laid over buffers of any size.

`ChunkCounts` says what an operator means in chunks: how many a buffer has, and what each has to
hold in the end. `loops` says where they lie. Of each tensor the chunks that are whole are a loop of
their own, in place where that can be. What is left, elements less than chunks, is a second loop
with chunks of one element, whose buffers all lie in scratch: what is not there is padded, and
nothing of it is copied back.
"""

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.chunks import Scratch
from ncc_runtime.collectives.plan import Job, Space
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.plans.msccl_file import BUFFERS, INPUT, OUTPUT, SCRATCH, Algo

WORDS: Mapping[str, CollectiveOp] = {
    "allreduce": CollectiveOp.ALL_REDUCE,
    "allgather": CollectiveOp.ALL_GATHER,
    "reducescatter": CollectiveOp.REDUCE_SCATTER,
    "alltoall": CollectiveOp.ALL_TO_ALL,
    "broadcast": CollectiveOp.BROADCAST,
    "reduce": CollectiveOp.REDUCE,
    "gather": CollectiveOp.GATHER,
    "scatter": CollectiveOp.SCATTER,
}
"""By the word of a file, written small and without underscores."""

_OPERAND_PARTS = (CollectiveOp.REDUCE_SCATTER, CollectiveOp.ALL_TO_ALL, CollectiveOp.SCATTER)
_RESULT_PARTS = (CollectiveOp.ALL_GATHER, CollectiveOp.ALL_TO_ALL, CollectiveOp.GATHER)

TAKEN = (*WORDS.values(), CollectiveOp.PERMUTE)
"""Operators that a plan in chunks can be for."""


def op_of(algo: Algo) -> CollectiveOp | None:
    """The operator that a file names; None if it leaves it open."""
    return WORDS.get(algo.collective.lower().replace("_", "").replace("-", ""))


@attrs.frozen
class ChunkContents:
    """What a chunk of a result is made of: one chunk of the operands of some gpus; none: zeros."""

    sources: int  # a bit for each gpu
    chunk: int


@attrs.frozen
class ChunkCounts:
    """The buffers of a file in chunks."""

    op: CollectiveOp
    gpus: int
    factor: int  # chunks of a part
    operand_parts: int
    result_parts: int
    in_place: bool

    @classmethod
    def of(cls, algo: Algo, op: CollectiveOp) -> "ChunkCounts":
        """The shape of a file that is taken for this operator."""
        gpus = algo.gpus
        operand_parts = gpus if op in _OPERAND_PARTS else 1
        result_parts = gpus if op in _RESULT_PARTS else 1
        factor, rest = divmod(algo.chunks, max(operand_parts, result_parts))
        if rest:
            raise algo.at.error(
                f"nchunksperloop is {algo.chunks}; {op.value} has a multiple of the {gpus} gpus"
            )
        return cls(op, gpus, factor, operand_parts, result_parts, algo.in_place)

    def chunks(self, buffer: int) -> int:
        """Chunks of an operand or a result."""
        return self.factor * (self.operand_parts if buffer == INPUT else self.result_parts)

    def canonical(
        self, gpu: np.ndarray, buffer: np.ndarray, index: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Buffer and index by which a chunk is known, if it has two.

        In place the input and the output share memory: the smaller of both is a part of the larger
        one, which names the chunk.
        """
        if not self.in_place:
            return buffer, index
        larger = INPUT if self.operand_parts > self.result_parts else OUTPUT
        is_part = (buffer != SCRATCH) & (buffer != larger)
        if self.operand_parts != self.result_parts:
            index = np.where(is_part, gpu * self.factor + index, index)
        return np.where(is_part, larger, buffer), index

    def given(self, gpu: int, buffer: int, index: int) -> int | None:
        """Which chunk of the gpu's operand a chunk is before all steps, None if it is none.

        The chunk is named as by `canonical`.
        """
        first = 0
        if self.in_place:
            if buffer == SCRATCH:
                return None
            first = gpu * self.factor if self.result_parts > self.operand_parts else 0
        elif buffer != INPUT:
            return None
        own = index - first
        return own if 0 <= own < self.chunks(INPUT) else None

    def contents(self, placeholder: Placeholder, gpu: int, chunk: int) -> ChunkContents:
        """What a chunk of the result of a gpu has to hold."""
        everybody, own = (1 << self.gpus) - 1, gpu * self.factor
        part, inside = divmod(chunk, self.factor)
        root = placeholder.root or 0
        match self.op:
            case CollectiveOp.ALL_REDUCE:
                return ChunkContents(everybody, chunk)
            case CollectiveOp.REDUCE_SCATTER:
                return ChunkContents(everybody, own + chunk)
            case CollectiveOp.ALL_GATHER:
                return ChunkContents(1 << part, inside)
            case CollectiveOp.ALL_TO_ALL:
                return ChunkContents(1 << part, own + inside)
            case CollectiveOp.BROADCAST:
                return ChunkContents(1 << root, chunk)
            case CollectiveOp.REDUCE:
                return ChunkContents(everybody if gpu == root else 0, chunk)
            case CollectiveOp.GATHER:
                return ChunkContents(1 << part if gpu == root else 0, inside)
            case CollectiveOp.SCATTER:
                return ChunkContents(1 << root, own + chunk)
        sources = sum(1 << source for source, target in placeholder.pairs if target == gpu)
        return ChunkContents(sources, chunk)

    def is_cleared(self, placeholder: Placeholder, gpu: int) -> bool:
        """Whether a gpu's result is zeros, which no step writes."""
        return not self.contents(placeholder, gpu, 0).sources


@attrs.frozen
class BufferOffset:
    """Bytes of one tensor, or of scratch, on every gpu alike."""

    space: Space
    tensor: int
    offset: int


@attrs.frozen
class ChunkLayout:
    """Where the chunks of a buffer lie: parts of equally many chunks, so far apart."""

    at: BufferOffset
    factor: int  # chunks of a part
    stride: int  # bytes from part to part
    width: int  # bytes of a chunk

    def place(self, index: int) -> BufferOffset:
        """Where a chunk begins."""
        part, inside = divmod(index, self.factor)
        offset = self.at.offset + part * self.stride + inside * self.width
        return BufferOffset(self.at.space, self.at.tensor, offset)

    def run(self, index: int, count: int) -> int:
        """How many of so many chunks lie behind one another."""
        if self.stride == self.factor * self.width:
            return count
        return min(count, self.factor - index % self.factor)


@attrs.frozen
class LocalCopy:
    """A copy within a gpu before or after all steps: of part of a gpu's operand, to its result."""

    source: BufferOffset
    target: BufferOffset
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
    layout: dict[int, ChunkLayout]  # by buffer
    before: tuple[LocalCopy, ...] = ()
    after: tuple[LocalCopy, ...] = ()
    fetched: int | None = None  # what `before` writes
    operand: ChunkLayout | None = None  # where output chunks are read that no step has written yet
    own_operand: int = 0  # how many chunks further its chunks are those of the next gpu

    @property
    def start(self) -> str:
        """How operands come to where steps read them."""
        if self.operand is not None:
            return FROM_OPERAND
        return "" if self.fetched is None else BUFFERS[self.fetched].value

    def place(self, buffer: int, index: int) -> BufferOffset:
        """Where a chunk lies."""
        return self.layout[buffer].place(index)

    def given(self, gpu: int, index: int) -> BufferOffset | None:
        """Where a chunk of the output lies that is still a gpu's operand; None if it is none."""
        if self.operand is None:
            return None
        own = index - gpu * self.own_operand
        is_there = not self.own_operand or own in range(self.own_operand)
        return self.operand.place(own) if is_there else None


@attrs.frozen(eq=False)
class LoopInputs:
    """What loops are made of."""

    job: Job
    shape: ChunkCounts
    scratch: Scratch
    scratch_chunks: int  # that the steps ask for, of the gpu that has most
    writes_input: bool


def loops(inputs: LoopInputs) -> Iterator[Loop]:
    """The loops over all tensors."""
    buffers, shape = inputs.job.buffers, inputs.shape
    sides = zip(buffers.operand_elements, buffers.result_elements, strict=True)
    for tensor, (operand, result) in enumerate(sides):
        part = operand // shape.operand_parts
        assert part == result // shape.result_parts, "parts of both sides are of one size"
        whole, rest = divmod(part, shape.factor)
        if whole:
            yield _whole(inputs, tensor, (part, whole))
        if rest:
            yield _rest(inputs, tensor, (part, rest))


def _whole(inputs: LoopInputs, tensor: int, sizes: tuple[int, int]) -> Loop:
    """Chunks of equal sizes, where they are."""
    part, whole = (count * inputs.job.buffers.element_bytes for count in sizes)
    shape, body = inputs.shape, whole * inputs.shape.factor
    operand, result = BufferOffset(Space.OPERAND, tensor, 0), BufferOffset(Space.RESULT, tensor, 0)
    there = {
        INPUT: ChunkLayout(operand, shape.factor, part, whole),
        OUTPUT: ChunkLayout(result, shape.factor, part, whole),
    }
    before: list[LocalCopy] = []
    after: list[LocalCopy] = []
    fetched = None
    is_scattered = shape.operand_parts > shape.result_parts
    there[SCRATCH] = _scratch(inputs, whole)
    if shape.in_place and not is_scattered:
        # one buffer, the result; an operand that lies elsewhere is read there
        if inputs.job.buffers.in_place and shape.operand_parts == shape.result_parts:
            return Loop(whole, there)
        own = shape.factor if shape.result_parts > shape.operand_parts else 0
        return Loop(whole, there, operand=there[INPUT], own_operand=own)
    if inputs.writes_input or shape.in_place or inputs.job.buffers.in_place:
        # operands are not ours to write, and are gone where results lie over them
        copy = inputs.scratch.take(body * shape.operand_parts)
        moved = ChunkLayout(BufferOffset(Space.SCRATCH, 0, copy), shape.factor, body, whole)
        before = [
            LocalCopy(one.place(0), two.place(0), body)
            for one, two in _parts(shape.operand_parts, there[INPUT], moved)
        ]
        fetched, there[INPUT] = INPUT, moved
        if shape.in_place:
            after = [LocalCopy(moved.place(0), result, body, own_source_stride=body)]
    return Loop(whole, there, tuple(before), tuple(after), fetched)


def _rest(inputs: LoopInputs, tensor: int, sizes: tuple[int, int]) -> Loop:
    """Chunks of one element, all in scratch; results are copied back in the end."""
    shape, width = inputs.shape, inputs.job.buffers.element_bytes
    part, rest = (count * width for count in sizes)
    body, padded = part - rest, shape.factor * width
    there = {SCRATCH: _scratch(inputs, width)}
    for buffer, parts in (
        (INPUT, shape.operand_parts),
        (OUTPUT, shape.result_parts),
    ):
        taken = inputs.scratch.take(padded * parts)
        there[buffer] = ChunkLayout(
            BufferOffset(Space.SCRATCH, 0, taken), shape.factor, padded, width
        )
    operand = ChunkLayout(BufferOffset(Space.OPERAND, tensor, body), shape.factor, part, width)
    result = ChunkLayout(BufferOffset(Space.RESULT, tensor, body), shape.factor, part, width)
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
        LocalCopy(one.place(0), two.place(0), rest, own_source_stride=own_got)
        for one, two in _parts(shape.result_parts, got, result)
    ]
    return Loop(width, there, tuple(before), tuple(after), fetched)


def _padded(
    operand: BufferOffset, given: BufferOffset, sizes: tuple[int, int], own: int
) -> Iterator[LocalCopy]:
    """The rest of a part, then over and over what stands there, until there is enough.

    Nothing else of the operand is read: in place, the other loop writes it meanwhile.
    """
    there, padded = sizes
    yield LocalCopy(operand, given, there, own)
    while there < padded:
        more = min(there, padded - there)
        target = attrs.evolve(given, offset=given.offset + there)
        yield LocalCopy(given, target, more, own, own, is_behind=True)
        there += more


def _parts(count: int, *both: ChunkLayout) -> Iterator[Sequence[ChunkLayout]]:
    """Both, part by part."""
    for part in range(count):
        yield [
            attrs.evolve(one, at=attrs.evolve(one.at, offset=one.at.offset + part * one.stride))
            for one in both
        ]


def _scratch(inputs: LoopInputs, width: int) -> ChunkLayout:
    chunks = inputs.scratch_chunks
    taken = inputs.scratch.take(chunks * width)
    return ChunkLayout(BufferOffset(Space.SCRATCH, 0, taken), chunks, chunks * width, width)
