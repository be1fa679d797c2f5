"""Arrays that callers get, and that are used again when nobody holds them any more.

The system takes longer to find new pages than a collective takes to fill them.
"""

import collections
import functools
import itertools
import sys
from collections.abc import Iterable

import numpy as np

from ncc_runtime.ranked_array import RankedArray
from ncc_runtime.threads import Threads

KEPT = 2
"""Arrays of one output that are kept: of the last run, which the caller may still have, and one."""

DIVIDED_BYTES = 1 << 20
"""Copies of so many bytes are worth threads."""

BLOCK_BYTES = 1 << 17
"""What is copied to several ranks stays in a core's cache meanwhile."""


def _reference_counts(arrays: Iterable[np.ndarray]) -> list[int]:
    """How many there are to each; some are of this function, and Pythons differ in those."""
    return [sys.getrefcount(array) for array in arrays]


(_UNSHARED,) = _reference_counts(collections.deque([np.empty(0)]))
"""References to an array that is kept, and that nobody else has."""


class OutputArrays:
    """Arrays by the output that they are for."""

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._made: dict[object, collections.deque[np.ndarray]] = collections.defaultdict(
            lambda: collections.deque(maxlen=KEPT)
        )

    def array(self, output: object, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """An array of any content: one of before if its owner has dropped it."""
        made = self._made[output, shape]
        for number, count in enumerate(_reference_counts(made)):
            if count == _UNSHARED:
                return made[number]
        array = np.empty(shape, dtype)
        made.append(array)
        return array

    def whole(self, output: int, given: RankedArray) -> np.ndarray:
        """[ranks, *shape], which the caller may write into."""
        if given.is_each:
            return given.array
        array = self.array(output, given.shape, given.dtype)
        if array.nbytes < DIVIDED_BYTES:
            np.take(given.array, given.row_of, axis=0, out=array, mode="clip")
            return array
        flat, source = (one.reshape(len(one), -1) for one in (array, given.array))
        step = max(1, BLOCK_BYTES // array.itemsize)
        ranks_of = [np.flatnonzero(given.row_of == row).tolist() for row in range(len(source))]

        def copy(start: int, end: int) -> None:
            """Blocks of every row, each to all ranks that have it while it is in the cache."""
            for row, ranks in enumerate(ranks_of):
                for begin in range(start, end, step):
                    part = slice(begin, min(begin + step, end))
                    for rank in ranks:
                        flat[rank, part] = source[row, part]

        cuts = np.linspace(0, flat.shape[1], self._threads.count + 1).astype(int).tolist()
        self._threads.perform([functools.partial(copy, *cut) for cut in itertools.pairwise(cuts)])
        return array
