"""Columns of rows by ranks, stored compactly: rows that are alike once, and ranks that are."""

from collections.abc import Iterator

import attrs
import numpy as np


@attrs.frozen(eq=False)
class Alike:
    """The different rows of a column, and which of them each row is."""

    rows: np.ndarray  # (different, ranks or 1)
    index: np.ndarray  # (n,) int64


def alike(column: np.ndarray) -> Alike:
    """The different rows of a column (n, ranks or 1), in the order they first appear."""
    if column.strides[0] == 0 or len(column) < 2:
        return Alike(column[:1], np.zeros(len(column), np.int64))
    if column.shape[1] == 1 or column.strides[1] == 0:
        return Alike(column[:, :1], np.arange(len(column)))
    first: dict[bytes, int] = {}
    index = [first.setdefault(row.tobytes(), len(first)) for row in column]
    found = np.array(index, np.int64)
    _, where = np.unique(found, return_index=True)
    return Alike(column[where], found)


@attrs.frozen(eq=False)
class Placed:
    """Where the cells of a column's rows are, and how far those of two ranks are apart."""

    at: np.ndarray  # (n,) int64
    step: int  # 0: ranks are alike


class Cells:
    """The cells of all columns, one after another."""

    def __init__(self) -> None:
        self._found: list[np.ndarray] = [np.zeros(0, np.int64)]
        self._count = 0

    def add(self, rows: Alike) -> Placed:
        """Place a column."""
        width = rows.rows.shape[1]
        at = self.append(rows.rows) + rows.index * width
        return Placed(at, int(width > 1))

    def append(self, values: np.ndarray) -> int:
        """Place values; where the first is."""
        first = self._count
        self._found.append(np.asarray(values, np.int64).ravel())
        self._count += values.size
        return first

    def take(self) -> np.ndarray:
        """All of them."""
        return np.concatenate(self._found)


def pairs(one: Alike, other: Alike, block: int = 1 << 20) -> Iterator[tuple[np.ndarray, ...]]:
    """Which rows of two columns stand together, and how often; about `block` cells at a time."""
    both, times = np.unique(one.index * len(other.rows) + other.index, return_counts=True)
    found = np.stack(np.divmod(both, len(other.rows)))
    step = max(1, block // one.rows.shape[1])
    for first in range(0, len(times), step):
        own = slice(first, first + step)
        yield found[0, own], found[1, own], times[own]


def shared_cell(value: int, rows: int) -> Alike:
    """So many rows whose every cell is the same."""
    return Alike(np.array([[value]]), np.zeros(rows, np.int64))
