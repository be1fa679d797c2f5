"""Arrays that callers get, and that are used again when nobody holds them any more.

The system takes longer to find new pages than a collective takes to fill them.
"""

import collections
import functools
import sys
from collections.abc import Callable

import numpy as np

from ncc_runtime.ranked_array import RankedArray
from ncc_runtime.threads import Threads

KEPT = 2
"""Arrays of one output that are kept: of the last run, which the caller may still have, and one."""

DIVIDED_BYTES = 1 << 20
"""Copies of so many bytes are worth threads."""

_UNSHARED = 3
"""References to an array that is only kept: of what keeps it, a loop's, and that of the count."""


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
        for array in made:
            if sys.getrefcount(array) == _UNSHARED:
                return array
        array = np.empty(shape, dtype)
        made.append(array)
        return array

    def whole(self, output: int, given: RankedArray) -> np.ndarray:
        """[ranks, *shape], which the caller may write into."""
        if given.is_each:
            return given.array
        array = self.array(output, given.shape, given.dtype)
        copies: list[Callable[[], object]] = [
            functools.partial(np.copyto, array[rank : rank + 1], given.array[row : row + 1])
            for rank, row in enumerate(given.row_of.tolist())
        ]
        if array.nbytes < DIVIDED_BYTES:
            for copy in copies:
                copy()
        else:
            self._threads.perform(copies)
        return array
