"""Numbers at random for tables of counts that nobody gave, which fit each other and the buffers.

Counts are drawn first, one for each class of equal cells, at most what a buffer has room for; then
offsets inside what is left. Where offsets are free, every receiver deals its result out to the
updates that come, in an order of its own; where the program computes them, an even share is taken
to fit. A count whose offsets cannot fit, for one word stands in two places, is 0: that always fits.
"""

from collections.abc import Mapping

import attrs
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ncc_runtime.drawn_counts.cells import Asked, Cells, Given, cells_of
from ncc_runtime.drawn_counts.sources import UNKNOWN
from ncc_runtime.inputs import Words
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program

_NO_BOUND = np.iinfo(np.int64).max


def drawn_counts(program: Program, given: Given, seed: int) -> Mapping[int, Words]:
    """By input, the words of tables of counts that are not given; the same for the same seed."""
    cells = cells_of(program, given)
    if not cells.asked:
        return {}
    value, free = _Draw(cells, seed).values(), cells.is_free
    return {
        number: Words(cells.rank[own], cells.word[own], value[own])
        for number in np.unique(cells.input[free]).tolist()
        for own in [np.flatnonzero(free & (cells.input == number))]
    }


@attrs.frozen(eq=False)
class _Range:
    """From where to where cells may be; (n,) int64, the last included."""

    least: np.ndarray
    most: np.ndarray


@attrs.frozen(eq=False)
class _Room:
    """Rows of a receiver that are kept for each update; (groups, senders, members, updates)."""

    start: np.ndarray
    rows: np.ndarray


class _Draw:
    """One draw of all cells."""

    def __init__(self, cells: Cells, seed: int) -> None:
        self._cells, self._seed = cells, seed
        self._class = self._classes()
        fixed = self._joined(np.arange(len(cells.fixed)), cells.fixed, np.maximum, UNKNOWN)
        self._is_bound = fixed != UNKNOWN
        self._value = np.where(cells.is_free, fixed, cells.fixed)
        self._rooms = [
            self._room(one, most)
            for one, most in zip(cells.asked, self._result_rows(), strict=True)
        ]

    def values(self) -> np.ndarray:
        """(cells,) int64, fixed ones as they are."""
        generator = np.random.default_rng(self._seed)
        self._take(self._counts(), generator)
        offsets = self._offsets()
        while (bad := self._misfits(offsets)).any():
            self._value[bad] = 0
            offsets = self._offsets()
        self._take(offsets, generator)
        return np.where(self._value == UNKNOWN, 0, self._value)

    def _classes(self) -> np.ndarray:
        """(cells,) the class of each: cells of one class are equal."""
        pairs = []
        for one in self._cells.asked:
            pairs.append((one.rows, one.received))
            if one.table.op is CollectiveOp.ALL_GATHER_V:
                pairs += [(one.rows, one.rows[:, :, :1]), (one.source, one.source[:, :, :1])]
            if one.table.op is CollectiveOp.REDUCE_SCATTER_V:
                pairs.append((one.rows, one.rows[:, :1]))
        ends = [np.broadcast_arrays(*pair) for pair in pairs]
        first, second = (np.concatenate([end[k].ravel() for end in ends]) for k in (0, 1))
        known = (first != UNKNOWN) & (second != UNKNOWN)
        size = len(self._cells.fixed)
        edges = np.ones(int(known.sum()), bool), (first[known], second[known])
        graph = coo_array(edges, shape=(size, size))
        return np.asarray(connected_components(graph, directed=False)[1], np.int64)

    def _joined(
        self, cells: np.ndarray, values: np.ndarray, join: np.ufunc, start: int
    ) -> np.ndarray:
        """(cells,) what is joined of values over the class of each; `start` where there is none."""
        known = cells != UNKNOWN
        whole: np.ndarray = np.full(len(self._cells.fixed), start, np.int64)
        join.at(whole, self._class[cells[known]], np.broadcast_to(values, cells.shape)[known])
        return np.asarray(whole[self._class])

    def _held(self, cells: np.ndarray, unknown: np.ndarray) -> np.ndarray:
        """What cells hold; something else where there is no cell, or nothing yet."""
        if not len(self._value):
            return np.broadcast_to(unknown, cells.shape)
        value = self._value[np.maximum(cells, 0)]
        return np.where((cells == UNKNOWN) | (value == UNKNOWN), unknown, value)

    def _result_rows(self) -> list[int]:
        """How many rows of each result are dealt out: who shares targets deals out as many."""
        least: np.ndarray = np.full(len(self._value) + 1, _NO_BOUND)
        for one in self._cells.asked:
            if one.target is not None:
                np.minimum.at(least, one.target, one.table.result_rows)
        least[UNKNOWN] = _NO_BOUND
        return [
            one.table.result_rows
            if one.target is None
            else min(one.table.result_rows, int(least[one.target].min(initial=_NO_BOUND)))
            for one in self._cells.asked
        ]

    def _room(self, asked: Asked, result_rows: int) -> _Room:
        """What each update may fill, of its sender's rows and of its receiver's."""
        operand, shape = asked.table.operand_rows, asked.rows.shape
        entries = shape[2] * shape[3]
        start: np.ndarray = np.zeros(shape, np.int64)
        rows: np.ndarray = np.full(shape, asked.table.most)
        if asked.target is not None:
            start, rows = self._dealt(asked, result_rows)
        from_where = self._held(asked.source, np.zeros(1, np.int64))
        sent = np.where(asked.source == UNKNOWN, operand // entries, operand - from_where)
        return _Room(start, np.maximum(np.minimum(rows, sent), 0))

    def _dealt(self, asked: Asked, result_rows: int) -> tuple[np.ndarray, np.ndarray]:
        """First rows and numbers of rows of a receiver's updates, all of its result in all."""
        assert asked.target is not None
        none: np.ndarray = np.full(1, UNKNOWN)
        shape = asked.target.swapaxes(1, 2).shape
        cells, known = (
            one.swapaxes(1, 2).reshape(*shape[:2], -1)
            for one in (asked.target, self._held(asked.rows, self._held(asked.received, none)))
        )
        generator = np.random.default_rng([self._seed, cells.shape[2]])
        order = generator.random(cells.shape).argsort(axis=2)
        rows = _shares(np.take_along_axis(known, order, 2), result_rows)
        start = rows.cumsum(axis=2) - rows
        back = order.argsort(axis=2)
        start, rows = (np.take_along_axis(one, back, 2) for one in (start, rows))
        is_computed = (cells == UNKNOWN).any(axis=2, keepdims=True)
        rows = np.where(is_computed, result_rows // cells.shape[2], rows)
        held = self._held(cells, none)
        is_held = (held != UNKNOWN).all(axis=2, keepdims=True)
        start = np.where(is_held, held, start)
        rows = np.where(is_held, _gaps(held, result_rows), rows)
        return start.reshape(shape).swapaxes(1, 2), rows.reshape(shape).swapaxes(1, 2)

    def _counts(self) -> _Range:
        """Between 0 and what there is room for; cells that count nothing are in no range."""
        most = np.minimum(self._most_of_type(), _NO_BOUND - 1)
        count: np.ndarray = np.zeros(len(self._value), bool)
        for one, room in zip(self._cells.asked, self._rooms, strict=True):
            for cells in (one.rows, one.received):
                most = np.minimum(most, self._joined(cells, room.rows, np.minimum, _NO_BOUND))
                count |= self._joined(cells, np.ones(1, np.int64), np.maximum, 0) > 0
        return _Range(np.zeros(len(self._value), np.int64), np.where(count, most, UNKNOWN))

    def _most_of_type(self) -> np.ndarray:
        every = np.arange(len(self._value))
        return self._joined(every, self._cells.most, np.minimum, _NO_BOUND)

    def _offsets(self) -> _Range:
        """Where the rows that are counted lie inside their room; other cells are not bound."""
        least: np.ndarray = np.zeros(len(self._value), np.int64)
        most = self._most_of_type()
        for one, room in zip(self._cells.asked, self._rooms, strict=True):
            rows = self._moved(one, room)
            ends = one.table.operand_rows - rows
            most = np.minimum(most, self._joined(one.source, ends, np.minimum, _NO_BOUND))
            if one.target is None:
                continue
            start = np.where(rows > 0, room.start, 0)
            ends = np.where(rows > 0, room.start + room.rows - rows, one.table.result_rows)
            least = np.maximum(least, self._joined(one.target, start, np.maximum, 0))
            most = np.minimum(most, self._joined(one.target, ends, np.minimum, _NO_BOUND))
        return _Range(least, most)

    def _moved(self, asked: Asked, room: _Room) -> np.ndarray:
        """How many rows each update has, as many as there is room for where that is computed."""
        return self._held(asked.rows, self._held(asked.received, room.rows))

    def _misfits(self, offsets: _Range) -> np.ndarray:
        """(cells,) bool: counts of rows that can lie nowhere, and that can be 0."""
        value = self._value
        here = np.where(value == UNKNOWN, offsets.least, value)
        wrong = (here < offsets.least) | (here > offsets.most)
        found: np.ndarray = np.zeros(len(value), bool)
        for one in self._cells.asked:
            offsets_of = [one.source] if one.target is None else [one.source, one.target]
            bad = np.logical_or.reduce([_named(wrong, cells) for cells in offsets_of])
            for counts in (one.rows, one.received):
                found |= self._joined(counts, bad.astype(np.int64), np.maximum, 0) > 0
        return np.asarray(found & ~self._is_bound & (value > 0))

    def _take(self, bounds: _Range, generator: np.random.Generator) -> None:
        """Draw a number for every class that has none yet and has a range."""
        classes, first = np.unique(self._class, return_index=True)
        least, most = bounds.least[first], bounds.most[first]
        drawn: np.ndarray = np.full(len(classes), UNKNOWN, np.int64)
        fits = most >= least
        drawn[fits] = generator.integers(least[fits], most[fits], endpoint=True)
        is_open = self._value == UNKNOWN
        self._value[is_open] = drawn[self._class][is_open]


def _named(which: np.ndarray, cells: np.ndarray) -> np.ndarray:
    """Where cells are some of those that are chosen, bool."""
    return np.asarray(np.append(which, False)[cells])  # UNKNOWN is the last


def _shares(known: np.ndarray, rows: int) -> np.ndarray:
    """How many rows everybody gets along the last axis: what is known, or a share of the rest."""
    is_open = known == UNKNOWN
    left = np.maximum(rows - known.sum(axis=-1, where=~is_open, keepdims=True), 0)
    share, rest = np.divmod(left, np.maximum(is_open.sum(axis=-1, keepdims=True), 1))
    place = is_open.cumsum(axis=-1) - 1
    return np.where(is_open, share + (place < rest), known)


def _gaps(starts: np.ndarray, end: int) -> np.ndarray:
    """From each start, along the last axis, how many rows there are until the next one."""
    order = starts.argsort(axis=-1, kind="stable")
    inorder = np.take_along_axis(starts, order, axis=-1)
    after = np.concatenate([inorder[..., 1:], np.full_like(inorder[..., :1], end)], axis=-1)
    found = np.empty_like(starts)
    np.put_along_axis(found, order, np.minimum(after, end) - inorder, axis=-1)
    return np.maximum(found, 0)
