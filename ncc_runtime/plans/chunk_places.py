"""A plan in chunks, laid over buffers of any size.

`ChunkCounts` says what an operator means in chunks: how many a buffer has, and what each has to
hold in the end. `loops` says where they lie. A tensor is cut into equal chunks, and one loop runs
all steps on those, in place where that can be. The remainder, fewer elements than chunks, is a
second loop with chunks of one element, whose buffers all lie in scratch, padded; the padding is not
copied back.
"""

from collections.abc import Iterator, Mapping

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
    part_chunks: int
    operand_parts: int
    result_parts: int
    in_place: bool

    @classmethod
    def of(cls, algo: Algo, op: CollectiveOp) -> "ChunkCounts":
        """The shape of a file that is taken for this operator."""
        gpus = algo.gpus
        operand_parts = gpus if op in _OPERAND_PARTS else 1
        result_parts = gpus if op in _RESULT_PARTS else 1
        part_chunks, rest = divmod(algo.chunks, max(operand_parts, result_parts))
        if rest:
            raise algo.at.error(
                f"nchunksperloop is {algo.chunks}; {op.value} has a multiple of the {gpus} gpus"
            )
        return cls(op, gpus, part_chunks, operand_parts, result_parts, algo.in_place)

    def chunks(self, buffer: int) -> int:
        """Chunks of an operand or a result."""
        return self.part_chunks * (self.operand_parts if buffer == INPUT else self.result_parts)

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
            index = np.where(is_part, gpu * self.part_chunks + index, index)
        return np.where(is_part, larger, buffer), index

    def given(self, gpu: int, buffer: int, index: int) -> int | None:
        """Which chunk of the gpu's operand a chunk is before all steps, None if it is none.

        The chunk is named as by `canonical`.
        """
        first = 0
        if self.in_place:
            if buffer == SCRATCH:
                return None
            first = gpu * self.part_chunks if self.result_parts > self.operand_parts else 0
        elif buffer != INPUT:
            return None
        chunk = index - first
        return chunk if 0 <= chunk < self.chunks(INPUT) else None

    def contents(self, placeholder: Placeholder, gpu: int, chunk: int) -> ChunkContents:
        """What a chunk of the result of a gpu has to hold."""
        everybody, own_part = (1 << self.gpus) - 1, gpu * self.part_chunks
        part, inside = divmod(chunk, self.part_chunks)
        root = placeholder.root or 0
        match self.op:
            case CollectiveOp.ALL_REDUCE:
                return ChunkContents(everybody, chunk)
            case CollectiveOp.REDUCE_SCATTER:
                return ChunkContents(everybody, own_part + chunk)
            case CollectiveOp.ALL_GATHER:
                return ChunkContents(1 << part, inside)
            case CollectiveOp.ALL_TO_ALL:
                return ChunkContents(1 << part, own_part + inside)
            case CollectiveOp.BROADCAST:
                return ChunkContents(1 << root, chunk)
            case CollectiveOp.REDUCE:
                return ChunkContents(everybody if gpu == root else 0, chunk)
            case CollectiveOp.GATHER:
                return ChunkContents(1 << part if gpu == root else 0, inside)
            case CollectiveOp.SCATTER:
                return ChunkContents(1 << root, own_part + chunk)
        sources = sum(1 << source for source, target in placeholder.pairs if target == gpu)
        return ChunkContents(sources, chunk)

    def is_cleared(self, placeholder: Placeholder, gpu: int) -> bool:
        """Whether a gpu's result is zeros, which no step writes."""
        return not self.contents(placeholder, gpu, 0).sources


@attrs.frozen
class BufferOffset:
    """A place in one tensor, or in scratch, the same on every gpu."""

    space: Space
    tensor: int
    offset: int


@attrs.frozen
class ChunkLayout:
    """Where the chunks of a buffer lie: parts of `part_chunks`, `stride` bytes apart."""

    at: BufferOffset
    part_chunks: int
    stride: int  # bytes from part to part
    chunk_bytes: int

    def place(self, index: int) -> BufferOffset:
        """Where a chunk begins."""
        part, inside = divmod(index, self.part_chunks)
        offset = self.at.offset + part * self.stride + inside * self.chunk_bytes
        return BufferOffset(self.at.space, self.at.tensor, offset)

    def run(self, index: int, count: int) -> int:
        """How many of `count` chunks from `index` on are contiguous."""
        if self.stride == self.part_chunks * self.chunk_bytes:
            return count
        return min(count, self.part_chunks - index % self.part_chunks)


@attrs.frozen
class LocalCopy:
    """A copy within a gpu: before all steps of its operand, after them to its result."""

    source: BufferOffset
    target: BufferOffset
    size_bytes: int
    target_gpu_stride: int = 0  # bytes that the target lies further for each gpu
    source_gpu_stride: int = 0
    is_behind: bool = False  # it reads what the one before it has written


FROM_OPERAND = "from operand"
"""`Loop.start` of a loop in place whose operands lie elsewhere and are read there."""


@attrs.frozen(eq=False)
class Loop:
    """One run of all steps."""

    chunk_bytes: int
    layout: dict[int, ChunkLayout]  # by buffer
    before: tuple[LocalCopy, ...] = ()
    after: tuple[LocalCopy, ...] = ()
    fetched: int | None = None  # what `before` writes
    operand: ChunkLayout | None = None  # where output chunks are read that no step has written yet
    operand_gpu_chunks: int = 0  # chunks of the output from one gpu's operand to the next one's

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
        chunk = index - gpu * self.operand_gpu_chunks
        is_there = not self.operand_gpu_chunks or chunk in range(self.operand_gpu_chunks)
        return self.operand.place(chunk) if is_there else None


@attrs.frozen(eq=False)
class LoopInputs:
    """A placeholder, the chunks of its plan, and the scratch that loops take memory of."""

    job: Job
    shape: ChunkCounts
    scratch: Scratch
    scratch_chunks: int  # that the steps use, at most of all gpus
    writes_input: bool


def loops(inputs: LoopInputs) -> Iterator[Loop]:
    """The loops over all tensors."""
    buffers, shape = inputs.job.buffers, inputs.shape
    sides = zip(buffers.operand_elements, buffers.result_elements, strict=True)
    for tensor, (operand, result) in enumerate(sides):
        part = operand // shape.operand_parts
        assert part == result // shape.result_parts, "parts of both sides are of one size"
        chunk, remainder = divmod(part, shape.part_chunks)
        if chunk:
            yield _main_loop(inputs, tensor, part, chunk)
        if remainder:
            yield _remainder_loop(inputs, tensor, part, remainder)


def _main_loop(inputs: LoopInputs, tensor: int, part_elements: int, chunk_elements: int) -> Loop:
    """Equal chunks, where the buffers are."""
    part, chunk = (
        count * inputs.job.buffers.element_bytes for count in (part_elements, chunk_elements)
    )
    shape, body = inputs.shape, chunk * inputs.shape.part_chunks
    operand, result = BufferOffset(Space.OPERAND, tensor, 0), BufferOffset(Space.RESULT, tensor, 0)
    layout = {
        INPUT: ChunkLayout(operand, shape.part_chunks, part, chunk),
        OUTPUT: ChunkLayout(result, shape.part_chunks, part, chunk),
        SCRATCH: _scratch(inputs, chunk),
    }
    before: list[LocalCopy] = []
    after: list[LocalCopy] = []
    fetched = None
    is_scattered = shape.operand_parts > shape.result_parts
    if shape.in_place and not is_scattered:
        # one buffer, the result; an operand that lies elsewhere is read there
        if inputs.job.buffers.in_place and shape.operand_parts == shape.result_parts:
            return Loop(chunk, layout)
        gpu_chunks = shape.part_chunks if shape.result_parts > shape.operand_parts else 0
        return Loop(chunk, layout, operand=layout[INPUT], operand_gpu_chunks=gpu_chunks)
    if inputs.writes_input or shape.in_place or inputs.job.buffers.in_place:
        # operands are not ours to write, and are gone where results lie over them
        copy = inputs.scratch.take(body * shape.operand_parts)
        moved = ChunkLayout(BufferOffset(Space.SCRATCH, 0, copy), shape.part_chunks, body, chunk)
        for part in range(shape.operand_parts):
            first = part * shape.part_chunks
            before.append(LocalCopy(layout[INPUT].place(first), moved.place(first), body))
        fetched, layout[INPUT] = INPUT, moved
        if shape.in_place:
            after = [LocalCopy(moved.place(0), result, body, source_gpu_stride=body)]
    return Loop(chunk, layout, tuple(before), tuple(after), fetched)


def _remainder_loop(
    inputs: LoopInputs, tensor: int, part_elements: int, remainder_elements: int
) -> Loop:
    """Chunks of one element, all in scratch; results are copied back in the end."""
    shape, chunk = inputs.shape, inputs.job.buffers.element_bytes
    part, remainder = part_elements * chunk, remainder_elements * chunk
    body, padded = part - remainder, shape.part_chunks * chunk
    layout = {SCRATCH: _scratch(inputs, chunk)}
    for buffer, parts in (
        (INPUT, shape.operand_parts),
        (OUTPUT, shape.result_parts),
    ):
        taken = inputs.scratch.take(padded * parts)
        layout[buffer] = ChunkLayout(
            BufferOffset(Space.SCRATCH, 0, taken), shape.part_chunks, padded, chunk
        )
    operand = ChunkLayout(BufferOffset(Space.OPERAND, tensor, body), shape.part_chunks, part, chunk)
    result = ChunkLayout(BufferOffset(Space.RESULT, tensor, body), shape.part_chunks, part, chunk)
    given, computed = layout[INPUT], layout[OUTPUT]
    given_gpu_stride = computed_gpu_stride = 0
    fetched = INPUT
    if shape.in_place:
        # the smaller side is a part of the larger one: that of the gpu itself
        if shape.operand_parts > shape.result_parts:
            computed, computed_gpu_stride = given, padded
        else:
            fetched, given = OUTPUT, computed
            if shape.result_parts > shape.operand_parts:
                given_gpu_stride = padded
    before: list[LocalCopy] = []
    for first in range(0, shape.chunks(INPUT), shape.part_chunks):
        source, target = operand.place(first), given.place(first)
        before += _padded(source, target, remainder, padded, given_gpu_stride)
    after = [
        LocalCopy(
            computed.place(first),
            result.place(first),
            remainder,
            source_gpu_stride=computed_gpu_stride,
        )
        for first in range(0, shape.chunks(OUTPUT), shape.part_chunks)
    ]
    return Loop(chunk, layout, tuple(before), tuple(after), fetched)


def _padded(
    operand: BufferOffset, given: BufferOffset, size: int, padded: int, gpu_stride: int
) -> Iterator[LocalCopy]:
    """The remainder of a part, `size` bytes, repeated in scratch until it fills `padded` bytes.

    Nothing else of the operand is read: in place, the other loop writes it meanwhile.
    """
    yield LocalCopy(operand, given, size, gpu_stride)
    while size < padded:
        more = min(size, padded - size)
        target = attrs.evolve(given, offset=given.offset + size)
        yield LocalCopy(given, target, more, gpu_stride, gpu_stride, is_behind=True)
        size += more


def _scratch(inputs: LoopInputs, chunk_bytes: int) -> ChunkLayout:
    """The scratch of the file, one part."""
    chunks = inputs.scratch_chunks
    size = chunks * chunk_bytes
    taken = BufferOffset(Space.SCRATCH, 0, inputs.scratch.take(size))
    return ChunkLayout(taken, chunks, size, chunk_bytes)
