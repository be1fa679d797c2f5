"""Numbers at random for tables of counts that nobody gave, which fit each other and the buffers.

Counts are drawn first, one for each class of equal cells, at most what a buffer has room for; then
offsets inside what is left. Where offsets are free, every receiver deals its result out to the
updates that come, in an order of its own; where the program computes them, an even share is taken
to fit. A count whose offsets cannot fit, for one word stands in two places, is 0: that always fits.

Which words of parameters tables of counts are made of, and which parameters reach them.

A table is followed back through what only moves words, on a rank or between ranks: its words are
traced by performing the same moves on the numbers of the words. What computes ends the way, and
what is written several times, as the state of a loop is.

The words of all ranks that counts come from, and what must be equal or fit among them.

A cell is one word of a parameter on one rank, or a constant. What two tables say of one transfer is
one count: its cells form a class. Cells that nobody gave are free, all others are fixed.

Which parameters that a seed filled are behind counts that do not fit.
"""

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs
import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from ncc_runtime.execution.values.kernels.compute import KERNELS
from ncc_runtime.execution.values.kernels.work import KernelCall
from ncc_runtime.execution.variable_sizes import CountsTable
from ncc_runtime.inputs import Words
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import Program, Tensor
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.stages import Stage, stages_of
from ncc_runtime.neff.table import NONE, Instr

UNKNOWN = -1
"""The source of a word that is computed, or comes from elsewhere."""

MOST_WORDS = 1 << 24
"""Of all ranks, of a tensor that is followed; larger ones are no tables, nor made into them."""

_SAME = ("copy", "convert")
_MOVED = ("broadcast", "concatenate", "reshape", "reverse", "slice", "transpose")

_Writer: TypeAlias = tuple[Instr | Placeholder, int]
"""What writes a tensor, and the tensor."""


class Sources:
    """The way back from tensors of one stage to its inputs and constants, as numbered words.

    `first` is the number of the first word of each input, whose words on all ranks are numbered
    through, rank after rank; `constant` numbers the words of a constant, alike on all ranks.
    """

    def __init__(
        self, stage: Stage, first: Sequence[int], constant: Callable[[np.ndarray], int]
    ) -> None:
        self._program, self._ranks = stage.program, stage.ranks
        self._first, self._constant_words = first, constant
        inputs = enumerate(self._program.inputs)
        self._inputs = {self._program.tensors[one].buffer: k for k, one in inputs}
        self._writers: dict[int, list[_Writer]] = {}  # by buffer
        self._feeding: dict[int, set[int]] = {}  # buffers from which one is computed
        for row in self._rows():
            self._note(row, row.results, row.operands)
        for one in self._program.placeholders:
            self._note(one, one.results, (*one.operands, *one.counts))

    def _rows(self) -> Iterator[Instr]:
        for table in self._program.queues.values():
            yield from (row for row in table if row.results)

    def _note(
        self, writer: Instr | Placeholder, results: Sequence[int], operands: Sequence[int]
    ) -> None:
        read = {int(self._program.tensors[one].buffer) for one in operands}
        for result in results:
            buffer = self._program.tensors[result].buffer
            self._writers.setdefault(buffer, []).append((writer, result))
            self._feeding.setdefault(buffer, set()).update(read)

    def of(self, number: int) -> np.ndarray:
        """Where each word of a tensor comes from, (ranks, elements) int64: a number, or UNKNOWN."""
        tensor = self._program.tensors[number]
        unknown = self._unknown(tensor)
        writers = self._writers.get(tensor.buffer, [])
        if unknown.size > MOST_WORDS:
            return unknown
        if tensor.buffer in self._inputs:
            given = self._inputs[tensor.buffer]
            return self._part(self._given(given), self._program.inputs[given], tensor)
        if tensor.buffer in self._program.constants:
            return self._constant(tensor)
        if len(writers) != 1:
            return unknown
        writer, result = writers[0]
        moved = self._moved(writer) if isinstance(writer, Instr) else self._sent(writer, result)
        return unknown if moved is None else self._part(moved, result, tensor)

    def _unknown(self, tensor: Tensor) -> np.ndarray:
        shape = len(self._ranks), tensor.elements
        return np.broadcast_to(np.int64(UNKNOWN), shape)

    def _given(self, number: int) -> np.ndarray:
        words = self._program.tensors[self._program.inputs[number]].elements
        size = len(self._ranks) * words
        return self._first[number] + np.arange(size, dtype=np.int64).reshape(-1, words)

    def _constant(self, tensor: Tensor) -> np.ndarray:
        data = self._program.constants[tensor.buffer]
        values = np.frombuffer(data, tensor.dtype.numpy, tensor.elements, tensor.offset)
        first = self._constant_words(values.astype(np.int64))
        words = first + np.arange(tensor.elements, dtype=np.int64)
        return np.broadcast_to(words, (len(self._ranks), tensor.elements))

    def _part(self, whole: np.ndarray, of: int, view: Tensor) -> np.ndarray:
        """What a tensor holds of another one of the same buffer, UNKNOWN where they do not fit."""
        other, width = self._program.tensors[of], view.dtype.size_bytes
        start, rest = divmod(view.offset - other.offset, width)
        end = start + view.elements
        if rest or start < 0 or end > whole.shape[1] or other.dtype != view.dtype:
            return self._unknown(view)
        return whole[:, start:end]

    def _moved(self, row: Instr) -> np.ndarray | None:
        """What an instruction that moves words writes; None for other instructions."""
        if row.opcode not in (*_SAME, *_MOVED):
            return None
        sources = [self.of(operand) for operand in row.operands]
        if row.opcode in _SAME:
            return sources[0]
        tensors, ranks = self._program.tensors, len(self._ranks)
        shaped = [
            source.reshape(ranks, *tensors[operand].shape)
            for source, operand in zip(sources, row.operands, strict=True)
        ]
        attributes = {} if row.attribute == NONE else self._program.attributes[row.attribute]
        results = tuple(tensors[result] for result in row.results)
        work = KernelCall(self._program, row.opcode, attributes, results, self._ranks)
        return np.asarray(KERNELS[row.opcode](work, shaped)[0]).reshape(ranks, -1)

    def _sent(self, placeholder: Placeholder, result: int) -> np.ndarray | None:
        """What a collective that moves words writes; None for others, and between stages."""
        ranks = sorted(rank for group in placeholder.groups for rank in group)
        if ranks != self._ranks.tolist() or len({len(group) for group in placeholder.groups}) != 1:
            return None
        if placeholder.op not in (CollectiveOp.ALL_TO_ALL, CollectiveOp.ALL_GATHER):
            return None
        source = self.of(placeholder.operands[placeholder.results.index(result)])
        groups = np.searchsorted(self._ranks, np.array(placeholder.groups))
        by_member = source[groups]  # (groups, members, words)
        if placeholder.op is CollectiveOp.ALL_GATHER:
            found = np.repeat(by_member.reshape(len(groups), 1, -1), groups.shape[1], axis=1)
        else:
            cut = by_member.reshape(*groups.shape, groups.shape[1], -1)
            found = cut.swapaxes(1, 2).reshape(by_member.shape)
        whole: np.ndarray = np.empty((len(self._ranks), found.shape[2]), np.int64)
        whole[groups] = found
        return whole

    def reaching(self, number: int) -> tuple[int, ...]:
        """The inputs, by number, from which a tensor follows in any way."""
        seen: set[int] = set()
        left = {int(self._program.tensors[number].buffer)}
        while left:
            buffer = left.pop()
            seen.add(buffer)
            left |= self._feeding.get(buffer, set()) - seen
        return tuple(sorted(given for buffer, given in self._inputs.items() if buffer in seen))


Given: TypeAlias = Mapping[int, np.ndarray]
"""Inputs that somebody gave, each [ranks, *shape]."""


@attrs.frozen(eq=False)
class Asked:
    """The tables of one collective as cells, (groups, senders, members, updates) each."""

    table: CountsTable
    rows: np.ndarray
    source: np.ndarray
    received: np.ndarray
    target: np.ndarray | None  # None: to a slot


@attrs.frozen(eq=False)
class Cells:
    """Every cell that a table names: cell c is word[c] of input[c] on row rank[c] of it."""

    input: np.ndarray  # (n,) int64, UNKNOWN for a constant
    rank: np.ndarray  # (n,) int64, counted among the ranks that have the input
    word: np.ndarray  # (n,) int64
    fixed: np.ndarray  # (n,) int64, what it is, UNKNOWN where it is free
    most: np.ndarray  # (n,) int64, the largest number that its type holds
    asked: tuple[Asked, ...]

    @property
    def is_free(self) -> np.ndarray:
        """(n,) bool: whether it is still to be drawn."""
        return np.asarray(self.fixed == UNKNOWN)


@attrs.frozen(eq=False)
class _Part:
    """The words of an input or of constants on all ranks, before it is known who names them."""

    first: int  # the number of the first one
    words: int  # of a rank
    input: int  # UNKNOWN for constants
    values: np.ndarray | None  # (ranks, words) what they hold, if that is known
    most: int  # the largest number that the type holds


@attrs.define(eq=False)
class _Numbering:
    """Cells by large numbers, and tables that name them: (ranks, words), by placeholder."""

    end: int = 0
    parts: list[_Part] = attrs.field(factory=list)
    tables: dict[tuple[int, int], np.ndarray] = attrs.field(factory=dict)
    inputs: int = 0  # of the stages so far

    def add(self, stage: Stage, ranks: int, given: Given) -> None:
        """The cells and tables of one program, `ranks` in the world."""
        first = [self._input(stage, tensor, given) for tensor in stage.program.inputs]
        sources = Sources(stage, first, self._constant)
        for number, one in enumerate(stage.program.placeholders):
            for place, tensor in enumerate(one.counts if one.op.is_counted else ()):
                words = sources.of(tensor)
                none: np.ndarray = np.full((ranks, words.shape[1]), UNKNOWN, np.int64)
                self.tables.setdefault((number, place), none)[stage.ranks] = words

    def _constant(self, values: np.ndarray) -> int:
        return self._part((1, len(values)), UNKNOWN, values[None], np.iinfo(np.int64).max)

    def _input(self, stage: Stage, tensor: int, given: Given) -> int:
        what, number = stage.program.tensors[tensor], self.inputs
        self.inputs += 1
        values = given[number].reshape(len(stage.ranks), -1) if number in given else None
        shape = len(stage.ranks), what.elements
        return self._part(shape, number, values, largest(what.dtype))

    def _part(
        self, shape: tuple[int, int], number: int, values: np.ndarray | None, most: int
    ) -> int:
        first = self.end
        self.parts.append(_Part(first, shape[1], number, values, most))
        self.end += shape[0] * shape[1]
        return first


def cells_of(program: Program, given: Given) -> Cells:
    """The cells of all tables of counts of a program, or of several that are joined."""
    numbering = _Numbering()
    for stage in stages_of(program):
        numbering.add(stage, program.ranks, given)
    tables = numbering.tables
    asked = tuple(_asked(program, number, tables) for number in sorted({key[0] for key in tables}))
    return _compact(numbering.parts, asked)


def _asked(program: Program, number: int, tables: Mapping[tuple[int, int], np.ndarray]) -> Asked:
    placeholder = program.placeholders[number]
    stage = next(one for one in stages_of(program) if one.groups_with_own_ranks(placeholder))
    own = stage.program.placeholders[number]
    table = CountsTable.of(stage.program, own)
    groups = np.array(placeholder.groups)
    members = groups.shape[1]
    shapes = [stage.program.tensors[tensor].shape for tensor in own.counts]
    stacked = [
        tables[number, place].reshape(program.ranks, *shape) for place, shape in enumerate(shapes)
    ]
    said = table.counts_of(stacked, members)
    target = None if said.target is None else said.target[groups]
    received = said.received[groups].swapaxes(1, 2)
    return Asked(table, said.rows[groups], said.source[groups], received, target)


def columns_of(asked: Asked) -> Iterator[np.ndarray]:
    """All cells that a collective names."""
    yield from (asked.rows, asked.source, asked.received)
    if asked.target is not None:
        yield asked.target


def _compact(parts: Sequence[_Part], asked: tuple[Asked, ...]) -> Cells:
    """Cells that are named, numbered from 0."""
    named = [column.ravel() for one in asked for column in columns_of(one)]
    every = np.unique(np.concatenate([np.zeros(0, np.int64), *named]))
    every = every[every != UNKNOWN]
    first, words, inputs, most = (
        np.array([getattr(one, name) for one in parts], np.int64)
        for name in ("first", "words", "input", "most")
    )
    part = np.searchsorted(first, every, side="right") - 1
    rank, word = np.divmod(every - first[part], np.maximum(words[part], 1))
    fixed: np.ndarray = np.full(len(every), UNKNOWN, np.int64)
    for number, one in enumerate(parts):
        if one.values is not None:
            own = part == number
            fixed[own] = np.maximum(one.values[rank[own], word[own]].astype(np.int64), 0)
    renamed = tuple(_renamed(one, every) for one in asked)
    return Cells(inputs[part], rank, word, fixed, most[part], renamed)


def _renamed(asked: Asked, every: np.ndarray) -> Asked:
    def new(column: np.ndarray) -> np.ndarray:
        return np.where(column == UNKNOWN, UNKNOWN, np.searchsorted(every, column))

    target = None if asked.target is None else new(asked.target)
    rows, source, received = (new(one) for one in (asked.rows, asked.source, asked.received))
    return Asked(asked.table, rows, source, received, target)


def largest(dtype: DType) -> int:
    """The largest number up to which an element type holds every whole number."""
    if dtype is DType.PRED or dtype.is_complex:
        return 1
    if dtype.is_integer:
        return int(2 ** min(dtype.bits - 1, 62) - 1)
    mantissa = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}
    return int(2 ** mantissa.get(dtype, 1))


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


NAMED = 4
"""Parameters that a message names."""


def random_parameters(program: Program, fault: str, given: Container[int]) -> str:
    """Those not given from which the tables follow that a fault is about, as a message says it.

    A fault begins with the name of its collective.
    """
    found: dict[int, str] = {}
    known = 0
    for stage in stages_of(program):
        sources = Sources(stage, (), len)
        tables = [
            tensor
            for one in stage.program.placeholders
            if one.op.is_counted
            and fault.startswith(f"{CountsTable.of(stage.program, one).name}: ")
            for tensor in one.counts
        ]
        reached = {one for tensor in tables for one in sources.reaching(tensor)}
        for number in sorted(known + one for one in reached):
            tensor = stage.program.inputs[number - known]
            if number not in given:
                found[number] = f"arg{number} {stage.program.tensors[tensor].type_text}"
        known += len(stage.program.inputs)
    names = list(found.values())
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more}"
