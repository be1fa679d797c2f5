"""Columns [row, rank] that grow while queues are built and are written out once, at the end.

A million-cell column is never held twice: until the end a row is a reference, to one value where
all ranks are alike, to a column that many rows share, or to the plan's own offsets.
"""

from collections.abc import Sequence

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
    bases: Sequence[int | np.ndarray]  # per row; (groups, members) where ranks differ
    ranks: np.ndarray  # (groups, members) int32: who the members are
    idle: int  # for ranks of no group

    def __len__(self) -> int:
        return len(self.offsets)

    def write(self, out: np.ndarray) -> None:
        """Fill (rows, ranks), so many cells at a time that they stay in cache."""
        whole = len(self.ranks) == 1 and is_everybody(self.ranks[0], out.shape[1])
        if not whole:
            out[:] = self.idle
        step = max(1, CELLS_AT_ONCE // self.ranks.shape[1])
        for at in range(0, len(self.offsets), step):
            rows = slice(at, at + step)
            block = np.concatenate(self.offsets[rows]).reshape(-1, self.ranks.shape[1])
            bases = [base if isinstance(base, int) else 0 for base in self.bases[rows]]
            block += np.array(bases, np.int64)[:, None]
            if whole:
                out[rows] = block
            else:
                out[rows, self.ranks] = block[:, None, :]
        for row, base in enumerate(self.bases):
            if not isinstance(base, int):
                out[row, self.ranks] += base


class Column:
    """One growing column; rows that are the same object, or alike on all ranks, take no room."""

    def __init__(self, ranks: int, dtype: type[np.integer]) -> None:
        self._ranks, self._dtype = ranks, dtype
        self._parts: list[Row | MemberRows] = []
        self._more = 0  # rows beyond one a part

    def __len__(self) -> int:
        return len(self._parts) + self._more

    def append(self, row: Row) -> None:
        """One row, kept by reference."""
        self._parts.append(row)

    def extend(self, rows: MemberRows) -> None:
        """Rows of a plan, kept by reference."""
        self._parts.append(rows)
        self._more += len(rows) - 1

    def pad(self, rows: int) -> None:
        """Idle rows, until there are `rows`."""
        self._parts.extend([NOTHING] * (rows - len(self)))

    def put(self, at: int, row: Row) -> None:
        """Row `at`, with idle rows before it."""
        self.pad(at)
        self.append(row)

    def padded(self, rows: int) -> np.ndarray:
        """`take` with idle rows at the end, until there are `rows`."""
        self.pad(rows)
        return self.take()

    def write(self, out: np.ndarray) -> None:
        """Fill (rows, ranks) and forget the rows."""
        at = 0
        rows: list[Row] = []  # one after the other, up to the plan's next
        for part in self._parts:
            if not isinstance(part, MemberRows):
                rows.append(part)
                continue
            write_rows(rows, out[at:])
            at += len(rows)
            rows.clear()
            part.write(out[at : at + len(part)])
            at += len(part)
        write_rows(rows, out[at:])
        self._parts.clear()
        self._more = 0

    def take(self) -> np.ndarray:
        """The whole column, (rows, ranks), read-only; the rows are forgotten."""
        shape = (len(self), self._ranks)
        rows = [part for part in self._parts if not isinstance(part, MemberRows)]
        whole = len(rows) == len(self._parts) > 0
        if whole and len(set(map(id, rows))) == 1:
            column = np.broadcast_to(rows[0].astype(self._dtype), shape)
        elif whole and set(map(len, rows)) == {1}:
            alike = np.concatenate(rows).astype(self._dtype)
            column = np.broadcast_to(alike[:, None], shape)
        else:
            column = np.empty(shape, self._dtype)
            self.write(column)
            column.setflags(write=False)
        self._parts.clear()
        self._more = 0
        return column


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
