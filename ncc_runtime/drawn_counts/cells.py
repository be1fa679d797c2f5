"""The words of all ranks that counts come from, and what must be equal or fit among them.

A cell is one word of a parameter on one rank, or a constant. What two tables say of one transfer is
one count: its cells form a class. Cells that nobody gave are free, all others are fixed.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from ncc_runtime.drawn_counts.sources import UNKNOWN, Sources
from ncc_runtime.execution.count_rules import Table
from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.stages import Stage, stages_of

Given: TypeAlias = Mapping[int, np.ndarray]
"""Inputs that somebody gave, each [ranks, *shape]."""


@attrs.frozen(eq=False)
class Asked:
    """The tables of one collective as cells, (groups, senders, members, updates) each."""

    table: Table
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
    table = Table.of(stage.program, own)
    groups = np.array(placeholder.groups)
    members = groups.shape[1]
    shapes = [stage.program.tensors[tensor].shape for tensor in own.counts]
    stacked = [
        tables[number, place].reshape(program.ranks, *shape) for place, shape in enumerate(shapes)
    ]
    said = table.said(stacked, members)
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
