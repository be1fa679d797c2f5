"""What each rank has of one array, such as a parameter: what is equal on ranks is there once."""

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np


@attrs.frozen(eq=False)
class RankedArray:
    """An array of every rank; ranks that share a row of `array` have equal ones.

    Ranks that have different rows may have equal ones, too: nobody has compared them. As an
    argument of numpy's functions it is [ranks, *shape].
    """

    array: np.ndarray  # [rows, *shape]
    row_of: np.ndarray  # (ranks,) int64, the row that each rank has

    @classmethod
    def of_each(cls, array: np.ndarray) -> "RankedArray":
        """[ranks, *shape]; one row if it is one array for all ranks, which numpy has broadcast."""
        ranks = len(array)
        if ranks > 1 and array.strides[0] == 0:
            return cls.same(array[0], ranks)
        return cls(array, np.arange(ranks))

    @classmethod
    def same(cls, array: np.ndarray, ranks: int) -> "RankedArray":
        """One array, [*shape], for so many ranks."""
        return cls(array[None], np.zeros(ranks, np.int64))

    @property
    def shape(self) -> tuple[int, ...]:
        """[ranks, *shape]"""
        return (len(self.row_of), *self.array.shape[1:])

    @property
    def dtype(self) -> np.dtype:
        """Of its elements."""
        return self.array.dtype

    def of(self, position: int) -> np.ndarray:
        """That of one rank, counted among those that have it."""
        array: np.ndarray = self.array[self.row_of[position]]
        return array

    def __iter__(self) -> Iterator[np.ndarray]:
        """That of each rank."""
        return map(self.of, range(len(self.row_of)))

    @property
    def is_each(self) -> bool:
        """Whether each rank has the row of its number: then `array` is [ranks, *shape]."""
        ranks = len(self.row_of)
        return len(self.array) == ranks and bool((self.row_of == np.arange(ranks)).all())

    def whole(self) -> np.ndarray:
        """[ranks, *shape]; a view if each rank has its own row, or all have one."""
        if len(self.array) == 1:
            return np.broadcast_to(self.array, self.shape)
        return self.array if self.is_each else self.array[self.row_of]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        array = self.whole() if dtype is None else self.whole().astype(dtype, copy=False)
        return array.copy() if copy else array

    def memory(self) -> np.ndarray | None:
        """Its rows as they lie in memory, [rows, bytes], a view; None where one has gaps."""
        return memory_of(self.array)


def memory_of(array: np.ndarray) -> np.ndarray | None:
    """[rows, …] as [rows, bytes], a view; None where a row has gaps."""
    try:
        return array.reshape(len(array), -1, copy=False).view(np.uint8)
    except ValueError:
        return None
