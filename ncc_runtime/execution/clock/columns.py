"""Columns of rows by ranks, dictionary encoded: equal rows are stored once, and equal ranks are.

Most columns of a queue have few different rows, for thousands of rows times thousands of ranks.
"""

import itertools
from collections import defaultdict
from collections.abc import Iterator

import attrs
import numpy as np

_BYTES_AT_ONCE = 1 << 20


@attrs.frozen(eq=False)
class DistinctRows:
    """The different rows of a column, and the number of each row among them."""

    rows: np.ndarray  # (different, ranks or 1)
    index: np.ndarray  # (n,) int64


def distinct_rows(column: np.ndarray) -> DistinctRows:
    """The different rows of a column (n, ranks or 1), in the order they first appear."""
    if column.strides[0] == 0 or len(column) < 2 or not column.size:
        return DistinctRows(column[:1], np.zeros(len(column), np.int64))
    if column.shape[1] == 1 or column.strides[1] == 0:
        return DistinctRows(column[:, :1], np.arange(len(column)))
    numbers: defaultdict[bytes, int] = defaultdict(itertools.count().__next__)
    row_bytes = column.shape[1] * column.itemsize
    index = np.empty(len(column), np.int64)
    step = max(1, _BYTES_AT_ONCE // row_bytes)
    for at in range(0, len(column), step):
        some = np.ascontiguousarray(column[at : at + step])
        rows: list[bytes] = some.view(f"V{row_bytes}").ravel().tolist()
        index[at : at + step] = [numbers[row] for row in rows]
    _, first = np.unique(index, return_index=True)
    return DistinctRows(column[first], index)


@attrs.frozen(eq=False)
class PooledColumn:
    """A column in the pool: the cell of row i and rank r is at offset[i] + stride * r."""

    offset: np.ndarray  # (n,) int64
    stride: int  # 0: all ranks have the same, else 1


class ColumnPool:
    """The cells of all columns in one array, one column after another."""

    def __init__(self) -> None:
        self._columns: list[np.ndarray] = [np.zeros(0, np.int64)]
        self._count = 0

    def add(self, column: DistinctRows) -> PooledColumn:
        """Put a column into the pool."""
        ranks = column.rows.shape[1]
        offset = self.append(column.rows) + column.index * ranks
        return PooledColumn(offset, int(ranks > 1))

    def append(self, values: np.ndarray) -> int:
        """Put values into the pool; the offset of the first."""
        first = self._count
        self._columns.append(np.asarray(values, np.int64).ravel())
        self._count += values.size
        return first

    def cells(self) -> np.ndarray:
        """The whole pool, int64."""
        return np.concatenate(self._columns)


def paired_rows(
    left: DistinctRows, right: DistinctRows, block: int = 1 << 20
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """The different rows of two columns that occur together, and how often.

    (row of the left, row of the right, times), about `block` cells at a time.
    """
    pairs, times = np.unique(left.index * len(right.rows) + right.index, return_counts=True)
    left_row, right_row = np.divmod(pairs, len(right.rows))
    step = max(1, block // left.rows.shape[1])
    for first in range(0, len(times), step):
        some = slice(first, first + step)
        yield left_row[some], right_row[some], times[some]


def constant_column(value: int, rows: int) -> DistinctRows:
    """A column of `rows` rows that hold one value."""
    return DistinctRows(np.array([[value]]), np.zeros(rows, np.int64))
