"""What operators mean in chunks: how many a buffer has, and what each has to hold in the end."""

from collections.abc import Mapping

import attrs
import numpy as np

from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.plans.msccl import INPUT, OUTPUT, SCRATCH, Algo

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

    def own(
        self, gpu: np.ndarray, buffer: np.ndarray, index: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Chunks by their one name: in place, input and output share memory."""
        if not self.in_place:
            return buffer, index
        larger = INPUT if self.operand_parts > self.result_parts else OUTPUT
        is_part = (buffer != SCRATCH) & (buffer != larger)
        if self.operand_parts != self.result_parts:
            index = np.where(is_part, gpu * self.factor + index, index)
        return np.where(is_part, larger, buffer), index

    def given(self, gpu: int, buffer: int, index: int) -> int | None:
        """Which chunk of the gpu's operand a chunk is before all steps, None if it is none.

        The chunk is named as `own` does.
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
