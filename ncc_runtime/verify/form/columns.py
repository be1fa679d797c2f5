"""Columns [row, rank] as a whole: without what repeats, in stretches that stay in cache."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import numpy as np

BLOCK_CELLS = 1 << 17
"""Cells that are looked at together."""


def essence(column: np.ndarray) -> np.ndarray:
    """The same with size 1 along dimensions that only repeat; it broadcasts back."""
    if 0 not in column.strides:
        return column
    return column[tuple(slice(0, 1) if one == 0 else slice(None) for one in column.strides)]


def part(column: np.ndarray, rows: slice) -> np.ndarray:
    """Some rows of a column that may have one for all."""
    return column if len(column) == 1 else column[rows]


def at(column: np.ndarray, row: int, rank: int) -> int:
    """One cell of a column that may have size 1 along a dimension."""
    return int(column[row if len(column) > 1 else 0, rank if column.shape[1] > 1 else 0])


def blocks(shape: Sequence[int]) -> Iterator[slice]:
    """Rows in stretches of about BLOCK_CELLS cells."""
    step = max(1, BLOCK_CELLS // max(1, math.prod(shape[1:])))
    for first in range(0, shape[0], step):
        yield slice(first, first + step)


NOTHING: np.ndarray = np.zeros((1, 1), bool)
"""No cell."""
NOTHING.setflags(write=False)

Wrong = np.ndarray | Literal[False]
"""Which cells of some rows are wrong; False: none."""


def search(test: Callable[..., Wrong], *columns: np.ndarray) -> np.ndarray:
    """Which cells are wrong, (n, ranks or 1); `test` sees the columns block by block."""
    columns = tuple(map(essence, columns))
    shape = np.broadcast_shapes(*(column.shape for column in columns))
    wrong = NOTHING
    for rows in blocks(shape):
        found = test(*(part(column, rows) for column in columns))
        if found is not False and found.any():
            wrong = np.zeros(shape, bool) if wrong is NOTHING else wrong
            wrong[rows] = found
    return wrong


def distinct_rows(column: np.ndarray) -> np.ndarray:
    """The rows of a column that differ from the one before."""
    column = essence(column)
    is_new: np.ndarray = np.ones(len(column), bool)
    is_new[1:] = (column[1:] != column[:-1]).any(axis=1)
    return column[is_new]
