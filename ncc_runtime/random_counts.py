"""Random values for missing tables of counts that fit each other and the buffers.

A variable-size collective reads its counts and offsets from tensors. A table of them is followed
back (`Sources`) to parameters and constants through instructions and collectives that only move
words, by performing the same moves on the numbers of the words. It ends at what computes, and at
what is written several times, as the state of a loop is.

A cell is one word of a constant, or of a parameter on one rank, or on ranks that have one array of
it. What two tables state about one transfer is one count: such cells are in one class of an
equivalence relation. Cells of missing inputs are free, all others are fixed.

Counts are drawn first, one for each class, at most what a buffer has room for; then offsets inside
what is left. Where offsets are free, every receiver divides its result among the updates that
arrive, in a random order; where the program computes them, an even share is assumed to fit. A count
whose offsets cannot fit, because one word stands in two tables, is 0: that always fits.
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
from ncc_runtime.inputs import WordValues, rows_of
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import AttributeValue, Fusion, Program, Tensor, TensorId, Typed
from ncc_runtime.neff.shared.dtypes import DType, scalar
from ncc_runtime.neff.stages import Stage, stages_of
from ncc_runtime.neff.table import NONE, Instr

UNKNOWN = -1
"""The source of a word that is computed, or not followed."""

MOST_WORDS = 1 << 24
"""Words, on all ranks, of a tensor that is followed; larger ones are no tables of counts."""

_UNCHANGED = ("copy", "convert")
_REARRANGING = ("broadcast", "concatenate", "reshape", "reverse", "slice", "transpose")
_MOVING = (*_UNCHANGED, *_REARRANGING)

_Writer: TypeAlias = tuple[Instr | Placeholder, int]
"""An instruction or collective that writes a tensor, and the tensor."""


class Sources:
    """From which words of its inputs and constants the tensors of one stage are copied.

    `first` has for each input the number of its first word on each rank, (ranks,); the words of a
    rank are numbered through, and ranks with one array share them. `constant` numbers the words of
    a constant, alike on all ranks.
    """

    def __init__(
        self, stage: Stage, first: Sequence[np.ndarray], constant: Callable[[np.ndarray], int]
    ) -> None:
        self._program, self._ranks = stage.program, stage.ranks
        self._first, self._constant_words = first, constant
        tensors, inputs = self._program.tensors, enumerate(self._program.inputs)
        self._inputs = {tensors[tensor].buffer: number for number, tensor in inputs}
        self._writers: dict[int, list[_Writer]] = {}  # by buffer
        self._feeding: dict[int, set[int]] = {}  # buffers that its writers read
        writers: list[Instr | Placeholder] = [
            row for table in self._program.queues.values() for row in table if row.results
        ]
        for writer in (*writers, *self._program.placeholders):
            counts = writer.counts if isinstance(writer, Placeholder) else ()
            read = {int(tensors[tensor].buffer) for tensor in (*writer.operands, *counts)}
            for result in writer.results:
                buffer = tensors[result].buffer
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
            number = self._inputs[tensor.buffer]
            source = self._program.inputs[number]
            words = np.arange(self._program.tensors[source].elements, dtype=np.int64)
            return self._view(self._first[number][:, None] + words, source, tensor)
        if tensor.buffer in self._program.constants:
            return self._constant(tensor)
        if len(writers) != 1:
            return unknown
        writer, result = writers[0]
        if isinstance(writer, Instr):
            written = self._through_instruction(writer, result)
        else:
            written = self._through_collective(writer, result)
        return unknown if written is None else self._view(written, result, tensor)

    def _unknown(self, tensor: Tensor) -> np.ndarray:
        shape = len(self._ranks), tensor.elements
        return np.broadcast_to(np.int64(UNKNOWN), shape)

    def _constant(self, tensor: Tensor) -> np.ndarray:
        data = self._program.constants[tensor.buffer]
        values = np.frombuffer(data, tensor.dtype.numpy, tensor.elements, tensor.offset)
        first = self._constant_words(values.astype(np.int64))
        words = first + np.arange(tensor.elements, dtype=np.int64)
        return np.broadcast_to(words, (len(self._ranks), tensor.elements))

    def _view(self, words: np.ndarray, of: int, view: Tensor) -> np.ndarray:
        """The words of a tensor in those of another of its buffer; UNKNOWN if they do not fit."""
        other = self._program.tensors[of]
        start, rest = divmod(view.offset - other.offset, view.dtype.size_bytes)
        end = start + view.elements
        if rest or start < 0 or end > words.shape[1] or other.dtype != view.dtype:
            return self._unknown(view)
        return words[:, start:end]

    def _through_instruction(self, row: Instr, result: int) -> np.ndarray | None:
        """The sources of a result of an instruction that only moves words; None for others."""
        if fusion := self._program.fusion_of(row):
            return self._through_fusion(fusion, row, fusion.results[row.results.index(result)])
        if row.opcode not in _MOVING:
            return None
        tensors = self._program.tensors
        attributes = {} if row.attribute == NONE else self._program.attributes[row.attribute]
        operands = [(tensors[operand], self.of(operand)) for operand in row.operands]
        return self._moved(row.opcode, attributes, tensors[result], operands)

    def _through_fusion(self, fusion: Fusion, row: Instr, result: int) -> np.ndarray | None:
        """The sources of a value of a fusion, if rows that only move words have made it."""
        needed, steps = {result}, []
        for step in reversed(fusion.body):
            if needed.intersection(step.results):
                steps.append(step)
                needed.update(step.operands)
        ranks, words = len(self._ranks), dict[int, np.ndarray]()
        for value in needed.intersection(range(fusion.parameters)):
            words[value] = self.of(row.operands[value])
        for step in reversed(steps):
            value, kind = step.results[0], fusion.values[step.results[0]]
            if kind.elements * ranks > MOST_WORDS:
                return None
            if step.constant is not None:
                number = scalar(step.constant, kind.dtype).astype(np.int64)
                words[value] = np.full((ranks, 1), self._constant_words(number.reshape(1)))
            elif step.opcode in _MOVING:
                operands = [(fusion.values[one], words[one]) for one in step.operands]
                words[value] = self._moved(step.opcode, step.attributes, kind, operands)
            else:
                return None
        return words[result]

    def _moved(
        self,
        opcode: str,
        attributes: Mapping[str, AttributeValue],
        result: Typed,
        operands: Sequence[tuple[Typed, np.ndarray]],
    ) -> np.ndarray:
        """The sources of what an operation that only moves words makes of its operands."""
        ranks = len(self._ranks)
        if opcode in _UNCHANGED:
            return operands[0][1]
        shaped = [words.reshape(ranks, *kind.shape) for kind, words in operands]
        call = KernelCall(self._program, opcode, attributes, (result,), self._ranks)
        return np.asarray(KERNELS[opcode](call, shaped)[0]).reshape(ranks, -1)

    def _through_collective(self, placeholder: Placeholder, result: int) -> np.ndarray | None:
        """The sources of the result of a collective that only moves words; None between stages."""
        ranks = sorted(rank for group in placeholder.groups for rank in group)
        if ranks != self._ranks.tolist() or len({len(group) for group in placeholder.groups}) != 1:
            return None
        if placeholder.op not in (CollectiveOp.ALL_TO_ALL, CollectiveOp.ALL_GATHER):
            return None
        source = self.of(placeholder.operands[placeholder.results.index(result)])
        groups = np.searchsorted(self._ranks, np.array(placeholder.groups))
        by_member = source[groups]  # (groups, members, words)
        if placeholder.op is CollectiveOp.ALL_GATHER:
            received = np.repeat(by_member.reshape(len(groups), 1, -1), groups.shape[1], axis=1)
        else:
            chunks = by_member.reshape(*groups.shape, groups.shape[1], -1)
            received = chunks.swapaxes(1, 2).reshape(by_member.shape)
        by_rank: np.ndarray = np.empty((len(self._ranks), received.shape[2]), np.int64)
        by_rank[groups] = received
        return by_rank

    def reaching(self, number: int) -> tuple[int, ...]:
        """The inputs, by number, on which a tensor depends, computed from or copied."""
        visited: set[int] = set()
        pending = {int(self._program.tensors[number].buffer)}
        while pending:
            buffer = pending.pop()
            visited.add(buffer)
            pending |= self._feeding.get(buffer, set()) - visited
        return tuple(sorted(number for buffer, number in self._inputs.items() if buffer in visited))


Given: TypeAlias = Mapping[int, np.ndarray]
"""The inputs that are given, each [ranks, *shape]."""


@attrs.frozen(eq=False)
class TableCells:
    """The tables of one collective as cells, (groups, senders, members, updates) each."""

    table: CountsTable
    rows: np.ndarray
    source: np.ndarray
    received: np.ndarray
    target: np.ndarray | None  # None: to a slot


@attrs.frozen(eq=False)
class CountCells:
    """Every cell that a table names: cell c is word[c] of array row[c] of input[c]."""

    input: np.ndarray  # (n,) int64, UNKNOWN for a constant
    row: np.ndarray  # (n,) int64, as `rows_of` numbers the arrays that ranks have
    word: np.ndarray  # (n,) int64
    fixed: np.ndarray  # (n,) int64, its value, UNKNOWN where it is free
    most: np.ndarray  # (n,) int64, the largest number that its type holds
    tables: tuple[TableCells, ...]  # by collective

    @property
    def is_free(self) -> np.ndarray:
        """(n,) bool: whether it is still to be drawn."""
        return np.asarray(self.fixed == UNKNOWN)


@attrs.frozen(eq=False)
class _NumberedWords:
    """The words of an input or constant, whether or not a table names them."""

    first: int  # the number of the first one
    words: int  # of one array
    input: int  # UNKNOWN for constants
    values: np.ndarray | None  # (arrays, words), if they are known
    most: int  # the largest number that the type holds


@attrs.define(eq=False)
class _Numbering:
    """Every word of inputs and constants numbered through, and the tables in these numbers.

    Most words are in no table of counts, so that cells are numbered anew afterwards (`_compact`).
    """

    end: int = 0
    parts: list[_NumberedWords] = attrs.field(factory=list)
    tables: dict[tuple[int, int], np.ndarray] = attrs.field(factory=dict)
    """(ranks, words), by placeholder and place among its tables of counts."""
    inputs: int = 0  # of the stages so far

    def add(self, program: Program, stage: Stage, given: Given) -> None:
        """The words and tables of one stage of a program."""
        first = [self._input(program, stage, tensor, given) for tensor in stage.program.inputs]
        sources = Sources(stage, first, self._constant)
        for number, placeholder in enumerate(stage.program.placeholders):
            counts = placeholder.counts if placeholder.op.is_counted else ()
            for place, tensor in enumerate(counts):
                words = sources.of(tensor)
                none: np.ndarray = np.full((program.ranks, words.shape[1]), UNKNOWN, np.int64)
                self.tables.setdefault((number, place), none)[stage.ranks] = words

    def _constant(self, values: np.ndarray) -> int:
        return self._number(1, len(values), UNKNOWN, values[None], np.iinfo(np.int64).max)

    def _input(self, program: Program, stage: Stage, tensor: TensorId, given: Given) -> np.ndarray:
        """The number of the first word on each rank; ranks that are drawn one array share it."""
        kind, number, ranks = stage.program.tensors[tensor], self.inputs, len(stage.ranks)
        self.inputs += 1
        is_given = number in given
        values = given[number].reshape(ranks, -1) if is_given else None
        rows = np.arange(ranks) if is_given else rows_of(program, number)
        arrays = int(rows.max(initial=-1)) + 1
        first = self._number(arrays, kind.elements, number, values, largest(kind.dtype))
        return first + rows * kind.elements

    def _number(
        self, arrays: int, words: int, number: int, values: np.ndarray | None, most: int
    ) -> int:
        first = self.end
        self.parts.append(_NumberedWords(first, words, number, values, most))
        self.end += arrays * words
        return first


def cells_of(program: Program, given: Given) -> CountCells:
    """The cells of all tables of counts of a program, or of several that are joined."""
    numbering, stages = _Numbering(), stages_of(program)
    for stage in stages:
        numbering.add(program, stage, given)
    counted = sorted({placeholder for placeholder, _ in numbering.tables})
    tables = tuple(_cells_of_table(program, stages, number, numbering.tables) for number in counted)
    return _compact(numbering.parts, tables)


def _cells_of_table(
    program: Program,
    stages: Sequence[Stage],
    number: int,
    words: Mapping[tuple[int, int], np.ndarray],
) -> TableCells:
    placeholder = program.placeholders[number]
    stage = next(stage for stage in stages if stage.groups_with_own_ranks(placeholder))
    in_stage = stage.program.placeholders[number]
    table = CountsTable.of(stage.program, in_stage)
    groups = np.array(placeholder.groups)
    shapes = [stage.program.tensors[tensor].shape for tensor in in_stage.counts]
    stacked = [
        words[number, place].reshape(program.ranks, *shape) for place, shape in enumerate(shapes)
    ]
    read = table.counts_of(stacked, groups.shape[1])
    return TableCells(
        table=table,
        rows=read.rows[groups],
        source=read.source[groups],
        received=read.received[groups].swapaxes(1, 2),
        target=None if read.target is None else read.target[groups],
    )


def columns_of(cells: TableCells) -> Iterator[np.ndarray]:
    """All cells that a collective names."""
    yield from (cells.rows, cells.source, cells.received)
    if cells.target is not None:
        yield cells.target


def _compact(parts: Sequence[_NumberedWords], tables: tuple[TableCells, ...]) -> CountCells:
    """The words that tables name become cells, numbered from 0; no table names the others."""
    named = [column.ravel() for table in tables for column in columns_of(table)]
    words = np.unique(np.concatenate([np.zeros(0, np.int64), *named]))
    words = words[words != UNKNOWN]
    first, per_rank, inputs, most = (
        np.array([getattr(part, name) for part in parts], np.int64)
        for name in ("first", "words", "input", "most")
    )
    part_of = np.searchsorted(first, words, side="right") - 1
    row, word = np.divmod(words - first[part_of], np.maximum(per_rank[part_of], 1))
    fixed: np.ndarray = np.full(len(words), UNKNOWN, np.int64)
    for number, part in enumerate(parts):
        if part.values is not None:
            of_part = part_of == number
            values = part.values[row[of_part], word[of_part]]
            fixed[of_part] = np.maximum(values.astype(np.int64), 0)

    def renumbered(column: np.ndarray) -> np.ndarray:
        return np.where(column == UNKNOWN, UNKNOWN, np.searchsorted(words, column))

    compact = tuple(
        attrs.evolve(
            table,
            rows=renumbered(table.rows),
            source=renumbered(table.source),
            received=renumbered(table.received),
            target=None if table.target is None else renumbered(table.target),
        )
        for table in tables
    )
    return CountCells(inputs[part_of], row, word, fixed, most[part_of], compact)


def largest(dtype: DType) -> int:
    """The largest number up to which an element type holds every whole number."""
    if dtype is DType.PRED or dtype.is_complex:
        return 1
    if dtype.is_integer:
        return int(2 ** min(dtype.bits - 1, 62) - 1)
    mantissa = {DType.F64: 53, DType.F32: 24, DType.F16: 11, DType.BF16: 8}
    return int(2 ** mantissa.get(dtype, 1))


_NO_BOUND = np.iinfo(np.int64).max


def drawn_counts(program: Program, given: Given, seed: int) -> Mapping[int, WordValues]:
    """By input, the words of tables of counts that are not given; the same for the same seed."""
    cells = cells_of(program, given)
    if not cells.tables:
        return {}
    value, free = _Draw(cells, seed).values(), cells.is_free
    return {
        number: WordValues(cells.row[drawn], cells.word[drawn], value[drawn])
        for number in np.unique(cells.input[free]).tolist()
        for drawn in [np.flatnonzero(free & (cells.input == number))]
    }


@attrs.frozen(eq=False)
class _Range:
    """Bounds of cells, (n,) int64 each, inclusive."""

    least: np.ndarray
    most: np.ndarray


@attrs.frozen(eq=False)
class _UpdateSlots:
    """Rows of a receiver that are kept for each update; (groups, senders, members, updates)."""

    start: np.ndarray
    rows: np.ndarray


class _Draw:
    """One draw of all cells."""

    def __init__(self, cells: CountCells, seed: int) -> None:
        self._cells, self._seed = cells, seed
        self._class = self._classes()
        fixed = self._over_class(np.arange(len(cells.fixed)), cells.fixed, np.maximum, UNKNOWN)
        self._is_bound = fixed != UNKNOWN
        self._value = np.where(cells.is_free, fixed, cells.fixed)
        self._slots = [
            self._slots_of(table, result_rows)
            for table, result_rows in zip(cells.tables, self._result_rows(), strict=True)
        ]

    def values(self) -> np.ndarray:
        """(cells,) int64, fixed ones as they are."""
        generator = np.random.default_rng(self._seed)
        self._draw(self._counts(), generator)
        offsets = self._offsets()
        while (misfits := self._misfits(offsets)).any():
            self._value[misfits] = 0
            offsets = self._offsets()
        self._draw(offsets, generator)
        return np.where(self._value == UNKNOWN, 0, self._value)

    def _classes(self) -> np.ndarray:
        """(cells,) the class of each: cells of one class are equal."""
        pairs = []
        for table in self._cells.tables:
            rows, source = table.rows, table.source
            pairs.append((rows, table.received))
            if table.table.op is CollectiveOp.ALL_GATHER_V:  # a sender sends all the same rows
                pairs += [(rows, rows[:, :, :1]), (source, source[:, :, :1])]
            if table.table.op is CollectiveOp.REDUCE_SCATTER_V:  # all send a receiver as many
                pairs.append((rows, rows[:, :1]))
        ends = [np.broadcast_arrays(*pair) for pair in pairs]
        first, second = (np.concatenate([end[k].ravel() for end in ends]) for k in (0, 1))
        known = (first != UNKNOWN) & (second != UNKNOWN)
        size = len(self._cells.fixed)
        edges = np.ones(int(known.sum()), bool), (first[known], second[known])
        graph = coo_array(edges, shape=(size, size))
        return np.asarray(connected_components(graph, directed=False)[1], np.int64)

    def _over_class(
        self, cells: np.ndarray, values: np.ndarray, combine: np.ufunc, start: int
    ) -> np.ndarray:
        """(cells,) the values of each cell's whole class combined, `start` if there are none."""
        known = cells != UNKNOWN
        by_class: np.ndarray = np.full(len(self._cells.fixed), start, np.int64)
        values = np.broadcast_to(values, cells.shape)
        combine.at(by_class, self._class[cells[known]], values[known])
        return np.asarray(by_class[self._class])

    def _value_of(self, cells: np.ndarray, unknown: np.ndarray) -> np.ndarray:
        """Values of cells; `unknown` where there is no cell, or no value yet."""
        if not len(self._value):
            return np.broadcast_to(unknown, cells.shape)
        value = self._value[np.maximum(cells, 0)]
        return np.where((cells == UNKNOWN) | (value == UNKNOWN), unknown, value)

    def _result_rows(self) -> list[int]:
        """Rows of each result to divide: tables that share targets divide equally many."""
        tables = self._cells.tables
        least: np.ndarray = np.full(len(self._value) + 1, _NO_BOUND)
        for table in tables:
            if table.target is not None:
                np.minimum.at(least, table.target, table.table.result_rows)
        least[UNKNOWN] = _NO_BOUND
        return [
            table.table.result_rows
            if table.target is None
            else min(table.table.result_rows, int(least[table.target].min(initial=_NO_BOUND)))
            for table in tables
        ]

    def _slots_of(self, cells: TableCells, result_rows: int) -> _UpdateSlots:
        """The rows that each update may fill, bounded by its sender's rows and its receiver's."""
        operand_rows, shape = cells.table.operand_rows, cells.rows.shape
        entries = shape[2] * shape[3]
        start: np.ndarray = np.zeros(shape, np.int64)
        rows: np.ndarray = np.full(shape, cells.table.most)
        if cells.target is not None:
            start, rows = self._divide(cells, cells.target, result_rows)
        after_source = operand_rows - self._value_of(cells.source, np.zeros(1, np.int64))
        sent = np.where(cells.source == UNKNOWN, operand_rows // entries, after_source)
        return _UpdateSlots(start, np.maximum(np.minimum(rows, sent), 0))

    def _divide(
        self, cells: TableCells, target: np.ndarray, result_rows: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """First rows and numbers of rows of a receiver's updates, which fill all of its result."""
        none: np.ndarray = np.full(1, UNKNOWN)
        shape = target.swapaxes(1, 2).shape  # (groups, members, senders, updates)
        counts = self._value_of(cells.rows, self._value_of(cells.received, none))
        # a receiver's updates, of all senders, along one axis
        offsets, counts = (
            column.swapaxes(1, 2).reshape(*shape[:2], -1) for column in (target, counts)
        )
        generator = np.random.default_rng([self._seed, offsets.shape[2]])
        order = generator.random(offsets.shape).argsort(axis=2)
        rows = _shares(np.take_along_axis(counts, order, 2), result_rows)
        start = rows.cumsum(axis=2) - rows
        back = order.argsort(axis=2)  # the inverse permutation
        start, rows = (np.take_along_axis(column, back, 2) for column in (start, rows))
        is_computed = (offsets == UNKNOWN).any(axis=2, keepdims=True)
        rows = np.where(is_computed, result_rows // offsets.shape[2], rows)
        given = self._value_of(offsets, none)
        is_given = (given != UNKNOWN).all(axis=2, keepdims=True)
        start = np.where(is_given, given, start)
        rows = np.where(is_given, _gaps(given, result_rows), rows)
        return start.reshape(shape).swapaxes(1, 2), rows.reshape(shape).swapaxes(1, 2)

    def _counts(self) -> _Range:
        """Between 0 and what there is room for; cells that are no counts have an empty range."""
        most = np.minimum(self._most_of_type(), _NO_BOUND - 1)
        is_count: np.ndarray = np.zeros(len(self._value), bool)
        for table, slots in zip(self._cells.tables, self._slots, strict=True):
            for cells in (table.rows, table.received):
                most = np.minimum(most, self._over_class(cells, slots.rows, np.minimum, _NO_BOUND))
                is_count |= self._over_class(cells, np.ones(1, np.int64), np.maximum, 0) > 0
        return _Range(np.zeros(len(self._value), np.int64), np.where(is_count, most, UNKNOWN))

    def _most_of_type(self) -> np.ndarray:
        every = np.arange(len(self._value))
        return self._over_class(every, self._cells.most, np.minimum, _NO_BOUND)

    def _offsets(self) -> _Range:
        """Where counted rows lie inside their slots; other cells have the bounds of their type."""
        least: np.ndarray = np.zeros(len(self._value), np.int64)
        most = self._most_of_type()
        for table, slots in zip(self._cells.tables, self._slots, strict=True):
            # counts that the program computes are assumed to fill their slots
            rows = self._value_of(table.rows, self._value_of(table.received, slots.rows))
            last = table.table.operand_rows - rows
            most = np.minimum(most, self._over_class(table.source, last, np.minimum, _NO_BOUND))
            if table.target is None:
                continue
            start = np.where(rows > 0, slots.start, 0)
            last = np.where(rows > 0, slots.start + slots.rows - rows, table.table.result_rows)
            least = np.maximum(least, self._over_class(table.target, start, np.maximum, 0))
            most = np.minimum(most, self._over_class(table.target, last, np.minimum, _NO_BOUND))
        return _Range(least, most)

    def _misfits(self, offsets: _Range) -> np.ndarray:
        """(cells,) bool: counts whose rows fit nowhere, and that may be set to 0."""
        value = self._value
        offset = np.where(value == UNKNOWN, offsets.least, value)
        is_outside = (offset < offsets.least) | (offset > offsets.most)
        is_outside = np.append(is_outside, False)  # UNKNOWN, -1 as an index, finds the last
        misfits: np.ndarray = np.zeros(len(value), bool)
        for table in self._cells.tables:
            bad = is_outside[table.source]
            if table.target is not None:
                bad = bad | is_outside[table.target]
            for counts in (table.rows, table.received):
                misfits |= self._over_class(counts, bad.astype(np.int64), np.maximum, 0) > 0
        return np.asarray(misfits & ~self._is_bound & (value > 0))

    def _draw(self, bounds: _Range, generator: np.random.Generator) -> None:
        """Draw a number for every class that has none yet and has a range."""
        classes, first = np.unique(self._class, return_index=True)
        least, most = bounds.least[first], bounds.most[first]
        drawn: np.ndarray = np.full(len(classes), UNKNOWN, np.int64)
        fits = most >= least
        drawn[fits] = generator.integers(least[fits], most[fits], endpoint=True)
        is_open = self._value == UNKNOWN
        self._value[is_open] = drawn[self._class][is_open]


def _shares(counts: np.ndarray, rows: int) -> np.ndarray:
    """Rows of every update along the last axis: its count if known, or a share of the rest."""
    is_open = counts == UNKNOWN
    left = np.maximum(rows - counts.sum(axis=-1, where=~is_open, keepdims=True), 0)
    share, rest = np.divmod(left, np.maximum(is_open.sum(axis=-1, keepdims=True), 1))
    place = is_open.cumsum(axis=-1) - 1
    return np.where(is_open, share + (place < rest), counts)


def _gaps(starts: np.ndarray, end: int) -> np.ndarray:
    """Rows from each start to the next larger one, along the last axis."""
    order = starts.argsort(axis=-1, kind="stable")
    ascending = np.take_along_axis(starts, order, axis=-1)
    after = np.concatenate([ascending[..., 1:], np.full_like(ascending[..., :1], end)], axis=-1)
    gaps = np.empty_like(starts)
    np.put_along_axis(gaps, order, np.minimum(after, end) - ascending, axis=-1)
    return np.maximum(gaps, 0)


NAMED = 4
"""Parameters that a message names."""


def random_parameters(program: Program, fault: str, given: Container[int]) -> str:
    """The parameters not given on which the tables of a collective depend, for a message.

    `fault` begins with the name of the collective.
    """
    names: dict[int, str] = {}
    first = 0  # number of the stage's first parameter
    for stage in stages_of(program):
        sources = Sources(stage, (), len)
        tables = [
            tensor
            for placeholder in stage.program.placeholders
            if placeholder.op.is_counted
            and fault.startswith(f"{CountsTable.of(stage.program, placeholder).name}: ")
            for tensor in placeholder.counts
        ]
        for number in sorted({number for tensor in tables for number in sources.reaching(tensor)}):
            tensor = stage.program.inputs[number]
            if first + number not in given:
                text = stage.program.tensors[tensor].type_text
                names[first + number] = f"arg{first + number} {text}"
        first += len(stage.program.inputs)
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(list(names.values())[:NAMED])}{more}"
