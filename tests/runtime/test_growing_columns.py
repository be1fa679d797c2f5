"""Columns of queues hold each row once until they are written: what is written is all rows."""

import numpy as np
import pytest

from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.lowering.queues import GrowingColumn, MemberRows, PickedRows, TableRows

RANKS = 4


def drawn(seed: int) -> tuple[GrowingColumn, np.ndarray]:
    """A column of parts of every kind, and the same rows one by one."""
    draw = np.random.default_rng(seed)
    column, rows = GrowingColumn(RANKS, np.int32), []
    for kind in draw.integers(0, 4, 6).tolist():
        count = int(draw.integers(1, 5))
        table = draw.integers(0, 9, (count, RANKS))
        if kind == 0:
            column.extend(TableRows(table))
            rows += list(table)
        elif kind == 1:
            few = [table[0], table[-1][:1]]  # the second is alike on all ranks
            index = draw.integers(0, 2, count + 3)
            column.extend(PickedRows(few, index))
            rows += [np.broadcast_to(few[which], RANKS) for which in index.tolist()]
        elif kind == 2:
            members = np.array([[2, 0], [3, 1]])
            offsets, bases = list(draw.integers(0, 9, (count, 2))), draw.integers(0, 9, count)
            more = {0: draw.integers(0, 9, (2, 2))}
            column.extend(MemberRows(offsets, bases, members, IDLE, more))
            for number, (offset, base) in enumerate(zip(offsets, bases, strict=True)):
                row = np.full(RANKS, IDLE)
                row[members] = offset + base + more.get(number, 0)
                rows.append(row)
        else:
            column.pad(len(column) + count)
            rows += [np.full(RANKS, IDLE)] * count
    return column, np.stack(rows)


@pytest.mark.parametrize("seed", range(20))
def test_a_column_is_its_rows(seed: int):
    column, rows = drawn(seed)
    assert len(column) == len(rows)
    np.testing.assert_array_equal(column.padded(len(rows) + 2)[:-2], rows)
    assert len(column) == 0


def test_rows_that_are_the_same_object_are_held_once():
    one, other = np.arange(4), np.arange(4)
    picked = PickedRows.of([one, other, one, one, other])
    assert len(picked.rows) == 2
    assert len(picked) == 5


@pytest.mark.parametrize(
    ("rows", "room"),
    [
        ([np.arange(RANKS)] * 50, RANKS),  # one row
        ([np.array([k]) for k in range(50)], 50),  # one cell a row
    ],
)
def test_what_is_alike_takes_no_room(rows: list[np.ndarray], room: int):
    column = GrowingColumn(RANKS, np.int32)
    column.extend(PickedRows.of(rows))
    taken = column.take()
    np.testing.assert_array_equal(taken, [np.broadcast_to(row, RANKS) for row in rows])
    assert np.prod([n for n, step in zip(taken.shape, taken.strides, strict=True) if step]) == room
