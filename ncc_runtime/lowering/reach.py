"""Checks that DMA rings read other ranks' memory on their own chip only."""

from collections.abc import Sequence

import numpy as np

from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Queue
from ncc_runtime.placement import Placement


def check_reach(placement: Placement, queues: Sequence[Queue]) -> None:
    """Refuse a source in the memory of another chip: between chips bytes are only written."""
    for queue in queues:
        if isinstance(queue, DmaQueue) and queue.source_rank is not None:
            _check_ring(placement, queue, queue.source_rank)


def _check_ring(placement: Placement, queue: DmaQueue, owner: np.ndarray) -> None:
    chip = placement.chip
    own = chip[: owner.shape[1]]
    away = (owner != IDLE) & (chip[owner] != own[None, :, None])
    rows, ranks, numbers = np.nonzero(away)
    if not rows.size:
        return
    reader, other = int(ranks[0]), int(owner[rows[0], ranks[0], numbers[0]])
    raise LoweringError(
        f"collective {int(queue.placeholder[rows[0]])}, round {int(queue.round[rows[0]])}: rank "
        f"{reader} on chip {chip[reader]} would read the operand of rank {other} on chip "
        f"{chip[other]}; a DMA reads memory of its own chip only, others must write"
    )
