"""Columns of numbers come back from a page as they went in."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ncc_runtime.report.page.columns import (
    SHARED,
    ColumnStore,
    StoredColumn,
    decoded,
    encoded,
    unpacked,
)

numbers = st.lists(st.integers(-(2**62), 2**62), max_size=40)
small = st.lists(st.integers(-300, 300), max_size=40)


@given(values=st.one_of(numbers, small), is_delta=st.booleans())
def test_numbers_come_back(values: list[int], is_delta: bool) -> None:
    data, planes = encoded(np.array(values, np.int64), is_delta=is_delta)
    column = StoredColumn("x", 3, len(values), planes, is_delta)
    assert decoded(b"abc" + data, column).tolist() == values


def test_small_numbers_take_a_byte_each() -> None:
    assert encoded(np.arange(-64, 64), is_delta=False)[1] == 1
    assert encoded(np.arange(1000) * 10**6, is_delta=True)[1] == 3


def test_equal_columns_are_stored_once_and_shared_by_those_that_need_them() -> None:
    store = ColumnStore()
    alike = [store.add(chunk, np.arange(100)) for chunk in ("a0", "a1")]
    other = store.add("a1", np.arange(100), is_delta=True)
    columns, chunks = store.packed()
    assert alike[0] == alike[1] != other
    assert [columns[alike[0]].chunk, columns[other].chunk] == [SHARED, "a1"]
    assert sorted(chunks) == ["a1", SHARED]
    for number in (alike[0], other):
        column = columns[number]
        assert decoded(unpacked(chunks[column.chunk]), column).tolist() == list(range(100))


@given(columns=st.lists(small, max_size=6))
def test_many_columns_lie_beside_each_other(columns: list[list[int]]) -> None:
    store = ColumnStore()
    placed = [store.add(f"c{at % 2}", np.array(each, np.int64)) for at, each in enumerate(columns)]
    stored, chunks = store.packed()
    for number, values in zip(placed, columns, strict=True):
        column = stored[number]
        assert decoded(unpacked(chunks[column.chunk]), column).tolist() == values
