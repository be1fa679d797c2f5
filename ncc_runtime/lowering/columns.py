"""Columns [row, rank] that grow while queues are built and are written out once, at the end.

A million-cell column is never held twice: until the end a row is a reference, to one value where
all ranks are alike, to a column that many rows share, or to the plan's own offsets.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TypeVar

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE

Row = np.ndarray
"""(ranks,) integers, or (1,) where all ranks are alike."""

CELLS_AT_ONCE = 1 << 15
"""Cells of a plan's columns that are written out together."""

NOTHING: Row = np.full(1, IDLE, np.int32)
NOTHING.setflags(write=False)


@attrs.frozen(eq=False)
class MemberRows:
    """Rows that a plan gives by member: offsets in a space, and where the space begins."""

    offsets: Sequence[np.ndarray]  # per row (members,) int64
    bases: np.ndarray  # per row, int64
    ranks: np.ndarray  # (groups, members) int32: who the members are
    idle: int  # for ranks of no group
    more: Mapping[int, np.ndarray] = MappingProxyType({})  # to a row's base, (groups, members)

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def is_alike(self) -> bool:
        """Whether all ranks have the same, which nobody looks for."""
        return False

    def write(self, out: np.ndarray) -> None:
        """Fill (rows, ranks), so many cells at a time that they stay in cache."""
        whole = len(self.ranks) == 1 and is_everybody(self.ranks[0], out.shape[1])
        if not whole:
            out[:] = self.idle
        step = max(1, CELLS_AT_ONCE // self.ranks.shape[1])
        for at in range(0, len(self.offsets), step):
            rows = slice(at, at + step)
            block = np.concatenate(self.offsets[rows]).reshape(-1, self.ranks.shape[1])
            block += self.bases[rows, None]
            if whole:
                out[rows] = block
            else:
                out[rows, self.ranks] = block[:, None, :]
        for row, base in self.more.items():
            out[row, self.ranks] += base


@attrs.frozen(eq=False)
class PickedRows:
    """Rows of which many are the same: the distinct ones, and which of them each is."""

    rows: Sequence[Row]
    index: np.ndarray | None = None  # (n,); None: all of them, one after the other

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "PickedRows":
        """Rows, the same object for many of them or not."""
        found, index = distinct(rows)
        return cls(rows) if 2 * len(found) > len(rows) else cls(found, index)

    def __len__(self) -> int:
        return len(self.rows) if self.index is None else len(self.index)

    @property
    def is_alike(self) -> bool:
        """Whether all ranks have the same."""
        return all(len(row) == 1 for row in self.rows)

    def write(self, out: np.ndarray) -> None:
        """Fill (rows, ranks)."""
        if self.index is None:
            write_rows(self.rows, out)
            return
        table: np.ndarray = np.empty((len(self.rows), out.shape[1]), out.dtype)
        write_rows(self.rows, table)
        np.take(table, self.index, axis=0, out=out, mode="clip")  # "raise" would copy it first


@attrs.frozen(eq=False)
class TableRows:
    """Rows that are a table already."""

    table: np.ndarray  # (n, ranks or 1)

    def __len__(self) -> int:
        return len(self.table)

    @property
    def is_alike(self) -> bool:
        """Whether all ranks have the same."""
        return self.table.shape[1] == 1

    def write(self, out: np.ndarray) -> None:
        """Fill (rows, ranks)."""
        out[:] = self.table


Rows = MemberRows | PickedRows | TableRows


class Column:
    """One growing column; rows that are the same object, or alike on all ranks, take no room."""

    def __init__(self, ranks: int, dtype: type[np.integer]) -> None:
        self._ranks, self._dtype = ranks, dtype
        self._parts: list[Rows] = []
        self._rows = 0

    def __len__(self) -> int:
        return self._rows

    def extend(self, rows: Rows) -> None:
        """More rows, kept by reference."""
        if len(rows):
            self._parts.append(rows)
            self._rows += len(rows)

    def pad(self, rows: int) -> None:
        """Idle rows, until there are `rows`."""
        self.extend(PickedRows([NOTHING], np.zeros(max(0, rows - len(self)), np.int64)))

    def padded(self, rows: int) -> np.ndarray:
        """`take` with idle rows at the end, until there are `rows`."""
        self.pad(rows)
        return self.take()

    def write(self, out: np.ndarray) -> None:
        """Fill (rows, ranks) and forget the rows."""
        at = 0
        for part in self._parts:
            part.write(out[at : at + len(part)])
            at += len(part)
        self._parts.clear()
        self._rows = 0

    def take(self) -> np.ndarray:
        """The whole column, (rows, ranks), read-only; the rows are forgotten."""
        shape = (len(self), self._ranks)
        picked = [part for part in self._parts if isinstance(part, PickedRows)]
        only, _ = distinct([row for part in picked for row in part.rows])
        if len(picked) == len(self._parts) and len(only) == 1:
            self._parts.clear()
            self._rows = 0
            return np.broadcast_to(only[0].astype(self._dtype), shape)
        is_alike = all(part.is_alike for part in self._parts)
        column: np.ndarray = np.empty((shape[0], 1 if is_alike else shape[1]), self._dtype)
        self.write(column)
        column.setflags(write=False)
        return np.broadcast_to(column, shape) if is_alike else column


T = TypeVar("T")


def distinct(objects: Sequence[T]) -> tuple[list[T], np.ndarray]:
    """The objects, each once, and which of them stands where."""
    ids = np.fromiter(map(id, objects), np.int64, len(objects))
    _, first, index = np.unique(ids, return_index=True, return_inverse=True)
    return [objects[at] for at in first.tolist()], index


def write_rows(rows: Sequence[Row], out: np.ndarray) -> None:
    """Fill the first rows of (rows, ranks), so many cells at a time that they stay in cache."""
    step = max(1, CELLS_AT_ONCE // out.shape[1])
    for first in range(0, len(rows), step):
        some = rows[first : first + step]
        widths = np.array([len(row) for row in some])
        for width in np.unique(widths).tolist():
            where = np.flatnonzero(widths == width)
            alike = np.concatenate([some[at] for at in where.tolist()])
            out[first + where] = alike.reshape(len(where), width)


def narrowed(column: np.ndarray) -> np.ndarray:
    """The same non-negative cells in as little memory: int32 where they fit, rows alike once."""
    if column.size == 0:
        return column
    dtype = np.int32 if int(column.max()) <= np.iinfo(np.int32).max else np.int64
    if (column == column[:, :1]).all():
        return np.broadcast_to(column[:, :1].astype(dtype), column.shape)
    narrow = column.astype(dtype, copy=False)
    narrow.setflags(write=False)
    return narrow


def is_everybody(ranks: np.ndarray, count: int) -> bool:
    """Whether these are all ranks, in order."""
    return len(ranks) == count and bool((ranks == np.arange(count)).all())


def spread(values: np.ndarray, at: np.ndarray, ranks: int) -> Row:
    """Values of some ranks as a row, IDLE elsewhere."""
    if len(at) == ranks and _is_one(values):
        return values[:1].copy()
    row: np.ndarray = np.empty(ranks, values.dtype)
    row.fill(IDLE)
    row[at] = values
    return row


def spread_any(values: np.ndarray, at: np.ndarray, ranks: int) -> Row:
    """The same where nobody looks elsewhere: one value if these ranks have one."""
    if len(values) == 1:
        return values
    if len(values) and _is_one(values):
        return values[:1].copy()
    return spread(values, at, ranks)


def _is_one(values: np.ndarray) -> bool:
    """Whether all values are the same; asked so often that `all` would be felt."""
    return np.count_nonzero(values == values[0]) == len(values)
