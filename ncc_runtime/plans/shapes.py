"""What operators mean in chunks: how many a buffer has, and what each has to hold in the end."""

from collections.abc import Mapping

import attrs

from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.plans.msccl import Algo, Buffer, Ref

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
class Wanted:
    """What a chunk of a result is made of: the same chunk of each giver's operand; none: zeros."""

    givers: int  # a bit for each gpu
    chunk: int


@attrs.frozen
class Shape:
    """The buffers of a file in chunks."""

    op: CollectiveOp
    gpus: int
    factor: int  # chunks of a part
    operand_parts: int
    result_parts: int
    in_place: bool

    @classmethod
    def of(cls, algo: Algo, op: CollectiveOp) -> "Shape":
        """The shape of a file that is taken for this operator."""
        gpus = len(algo.gpus)
        operand_parts = gpus if op in _OPERAND_PARTS else 1
        result_parts = gpus if op in _RESULT_PARTS else 1
        factor, rest = divmod(algo.chunks, max(operand_parts, result_parts))
        if rest:
            raise algo.at.error(
                f"nchunksperloop is {algo.chunks}; {op.value} has a multiple of the {gpus} gpus"
            )
        return cls(op, gpus, factor, operand_parts, result_parts, algo.in_place)

    def chunks(self, buffer: Buffer) -> int:
        """Chunks of an operand or a result."""
        return self.factor * (self.operand_parts if buffer is Buffer.INPUT else self.result_parts)

    def own(self, gpu: int, ref: Ref) -> Ref:
        """The same chunk by its one name: in place, input and output share memory."""
        if not self.in_place or ref.buffer is Buffer.SCRATCH:
            return ref
        if self.operand_parts == self.result_parts:
            return Ref(Buffer.OUTPUT, ref.index)
        larger = Buffer.INPUT if self.operand_parts > self.result_parts else Buffer.OUTPUT
        return ref if ref.buffer is larger else Ref(larger, gpu * self.factor + ref.index)

    def given(self, gpu: int, own: Ref) -> int | None:
        """Which chunk of the gpu's operand a chunk is before all steps, None if it is none."""
        if self.in_place:
            if own.buffer is Buffer.SCRATCH:
                return None
            first = gpu * self.factor if self.result_parts > self.operand_parts else 0
        elif own.buffer is Buffer.INPUT:
            first = 0
        else:
            return None
        index = own.index - first
        return index if 0 <= index < self.chunks(Buffer.INPUT) else None

    def wanted(self, placeholder: Placeholder, gpu: int, chunk: int) -> Wanted:
        """What chunk of the result of a gpu has to hold."""
        everybody, own = (1 << self.gpus) - 1, gpu * self.factor
        part, inside = divmod(chunk, self.factor)
        root = placeholder.root or 0
        match self.op:
            case CollectiveOp.ALL_REDUCE:
                return Wanted(everybody, chunk)
            case CollectiveOp.REDUCE_SCATTER:
                return Wanted(everybody, own + chunk)
            case CollectiveOp.ALL_GATHER:
                return Wanted(1 << part, inside)
            case CollectiveOp.ALL_TO_ALL:
                return Wanted(1 << part, own + inside)
            case CollectiveOp.BROADCAST:
                return Wanted(1 << root, chunk)
            case CollectiveOp.REDUCE:
                return Wanted(everybody if gpu == root else 0, chunk)
            case CollectiveOp.GATHER:
                return Wanted(1 << part if gpu == root else 0, inside)
            case CollectiveOp.SCATTER:
                return Wanted(1 << root, own + chunk)
        givers = sum(1 << source for source, target in placeholder.pairs if target == gpu)
        return Wanted(givers, chunk)

    def is_cleared(self, placeholder: Placeholder, gpu: int) -> bool:
        """Whether a gpu's result is zeros, which no step writes."""
        return not self.wanted(placeholder, gpu, 0).givers
