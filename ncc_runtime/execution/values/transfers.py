"""What DMA descriptors do to memory: copies, reductions and fills between ranks.

Small transfers of many ranks are one gather and one scatter over the arena's windows; large ones
go rank by rank at the speed of memory, which needs no index arrays and no temporaries.
"""

from collections.abc import Callable

import numpy as np

from ncc_runtime.execution.values.conversion import widened
from ncc_runtime.execution.values.elementwise import FUNCTIONS
from ncc_runtime.execution.values.memory import Arena
from ncc_runtime.execution.values.nans import canonical_nans
from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.reductions import Reduction

SMALL_BYTES = 16 * 1024
"""Up to this size one indexed call over all ranks beats a call per rank (docs/decisions.md)."""


def transfer(
    executable: Executable, arena: Arena, queue: DmaQueue, row: int, ranks: np.ndarray
) -> None:
    """Perform one row of a DMA ring for the ranks that have a transfer there."""
    placeholder = executable.program.placeholders[int(queue.placeholder[row])]
    ranks = ranks[queue.peer[row, ranks] != IDLE]
    sizes = queue.size_bytes[row, ranks]
    opcode = DmaOpcode(int(queue.opcode[row]))
    for size in np.unique(sizes[sizes > 0]).tolist():
        _Move(queue, row, ranks[sizes == size], size).perform(arena, opcode, placeholder)


class _Move:
    """Transfers of one size in one row: from whose memory and where, to whom and where."""

    def __init__(self, queue: DmaQueue, row: int, ranks: np.ndarray, size: int) -> None:
        self._size, self._divisor = size, int(queue.divisor[row])
        self._sources = queue.sources[row, ranks]
        self._owners = np.broadcast_to(ranks[:, None], self._sources.shape)
        if queue.source_rank is not None:
            self._owners = queue.source_rank[row, ranks]
        self._peers, self._targets = queue.peer[row, ranks], queue.target[row, ranks]
        self._twice: np.ndarray = np.zeros(0, np.int64)  # positions of who writes a second time
        self._second = self._peers[:0], self._targets[:0]
        if queue.also_peer is not None and queue.also_target is not None:
            self._twice = np.flatnonzero(queue.also_peer[row, ranks] != IDLE)
            copying = ranks[self._twice]
            self._second = queue.also_peer[row, copying], queue.also_target[row, copying]

    def perform(self, arena: Arena, opcode: DmaOpcode, placeholder: Placeholder) -> None:
        if self._size <= SMALL_BYTES and len(self._peers) > 1:
            self._perform_together(arena, opcode, placeholder)
        else:
            self._perform_one_by_one(arena, opcode, placeholder)

    def _perform_together(self, arena: Arena, opcode: DmaOpcode, placeholder: Placeholder) -> None:
        dtype = placeholder.dtype.numpy
        windows = arena.windows(dtype, self._size // dtype.itemsize)
        places = self._sources // dtype.itemsize
        parts = [
            windows[owner, place]
            for owner, place in zip(self._owners.T, places.T, strict=True)
            if place[0] >= 0
        ]
        found = np.zeros((len(self._peers), 1), dtype) if opcode is DmaOpcode.FILL else parts[0]
        if opcode is DmaOpcode.REDUCE:
            found = reduce_parts(parts, placeholder.reduction, self._divisor)
        windows[self._peers, self._targets // dtype.itemsize] = found
        if len(self._twice):
            peers, targets = self._second
            windows[peers, targets // dtype.itemsize] = found[self._twice]

    def _perform_one_by_one(
        self, arena: Arena, opcode: DmaOpcode, placeholder: Placeholder
    ) -> None:
        dtype = placeholder.dtype.numpy
        for index, peer in enumerate(self._peers.tolist()):
            target = arena.row(peer, int(self._targets[index]), self._size)
            parts = [
                arena.row(int(owner), int(source), self._size)
                for owner, source in zip(self._owners[index], self._sources[index], strict=True)
                if source >= 0
            ]
            if opcode is DmaOpcode.FILL:
                target[:] = 0
            elif opcode is DmaOpcode.COPY:
                target[:] = parts[0]
            else:
                typed = [part.view(dtype) for part in parts]
                target.view(dtype)[:] = reduce_parts(typed, placeholder.reduction, self._divisor)
        for index, peer, address in zip(self._twice, *self._second, strict=True):
            first = arena.row(int(self._peers[index]), int(self._targets[index]), self._size)
            arena.row(int(peer), int(address), self._size)[:] = first


def reduce_parts(
    parts: list[np.ndarray], reduction: Reduction | None, divisor: int = 1
) -> np.ndarray:
    """Join the sources of a descriptor left to right, in float32, divide, and round once.

    Only what completes an average divides. Integers wrap; float64 and complex stay in their own
    precision.
    """
    assert reduction is not None, "a reducing descriptor has a reduction"
    dtype, joined = parts[0].dtype, widened(parts[0])
    with np.errstate(all="ignore"):
        for part in parts[1:]:
            joined = _JOIN[reduction](joined, widened(part))
        if divisor != 1:
            joined = joined / joined.dtype.type(divisor)
        return canonical_nans(joined.astype(dtype, copy=False))


_JOIN: dict[Reduction, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    **{one: FUNCTIONS[one.value] for one in Reduction if one is not Reduction.AVERAGE},
    Reduction.AVERAGE: FUNCTIONS["add"],
}
