"""Pieces that cross processes: what a round of them takes of a process."""

import tracemalloc
from collections.abc import Mapping

import attrs
import numpy as np
import pytest

from ncc_runtime.execution.values.exchanges import PIECES_BYTES, RankMemory, of_transfers, perform
from ncc_runtime.processes import WINDOW_BYTES, Processes

RANKS = 700


class _Zeros(Processes):
    """The first of two processes, that gets zeros from the other."""

    count = 2

    def exchange(
        self, sent: Mapping[int, np.ndarray], received: Mapping[int, int]
    ) -> Mapping[int, np.ndarray]:
        assert sum(len(data) for data in sent.values()) <= WINDOW_BYTES
        return {process: np.zeros(size, np.uint8) for process, size in received.items()}


@attrs.frozen
class _AllToAll:
    """One element from each rank to each, as `SizedTransfers` has them."""

    size: int
    itemsize: int

    def places(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        source, target = (one.reshape(-1, 1) for one in np.indices((RANKS, RANKS)))
        return source, self.size * target, target, self.size * source

    def compute(self, sources: np.ndarray) -> np.ndarray:
        first: np.ndarray = sources[0]
        return first


@pytest.mark.parametrize("itemsize", [1, 4])
def test_many_small_pieces_take_no_more_than_large_ones(itemsize):
    processes, each = _Zeros(), np.arange(RANKS)
    shares = processes.shares(RANKS)
    memory = RankMemory(np.zeros((RANKS // 2, RANKS * itemsize), np.uint8), each)
    one = _AllToAll(itemsize, itemsize)
    held = sum(array.nbytes for array in one.places())
    tracemalloc.start()
    perform(of_transfers(one, memory, shares), shares, processes)
    most = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert most - held <= PIECES_BYTES
