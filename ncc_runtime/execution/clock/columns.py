"""Columns of rows by ranks, dictionary encoded: equal rows are stored once, and equal ranks are.

Most columns of a queue have few different rows, for thousands of rows times thousands of ranks.
"""

from collections.abc import Iterator

import attrs
import numpy as np


@attrs.frozen(eq=False)
class DistinctRows:
    """The different rows of a column, and which of them each row is."""

    rows: np.ndarray  # (different, ranks or 1)
    index: np.ndarray  # (n,) int64


def distinct_rows(column: np.ndarray) -> DistinctRows:
    """The different rows of a column (n, ranks or 1), in the order they first appear."""
    if column.strides[0] == 0 or len(column) < 2:
        return DistinctRows(column[:1], np.zeros(len(column), np.int64))
    if column.shape[1] == 1 or column.strides[1] == 0:
        return DistinctRows(column[:, :1], np.arange(len(column)))
    numbers: dict[bytes, int] = {}
    index = np.array([numbers.setdefault(row.tobytes(), len(numbers)) for row in column], np.int64)
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
        width = column.rows.shape[1]
        offset = self.append(column.rows) + column.index * width
        return PooledColumn(offset, int(width > 1))

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
    one: DistinctRows, other: DistinctRows, block: int = 1 << 20
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Which rows of two columns occur together, and how often; about `block` cells at a time."""
    both, times = np.unique(one.index * len(other.rows) + other.index, return_counts=True)
    first, second = np.divmod(both, len(other.rows))
    step = max(1, block // one.rows.shape[1])
    for at in range(0, len(times), step):
        some = slice(at, at + step)
        yield first[some], second[some], times[some]


def constant_column(value: int, rows: int) -> DistinctRows:
    """A column of so many rows that holds one value."""
    return DistinctRows(np.array([[value]]), np.zeros(rows, np.int64))
