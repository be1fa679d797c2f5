"""In which rows of arrays the bytes of each rank lie while a tape is played.

What is equal on several ranks is computed and stored once (`equal_ranks.py`), and a buffer may lie
in an array of its own (`device_memory.py`). What is prepared for these rows is kept with them.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence, Set

import attrs
import numpy as np

from ncc_runtime.execution.tape import BlockTape, Nodes, Tape, TapeRound
from ncc_runtime.execution.values.equal_ranks import EqualRanks, Places, RowPlaces
from ncc_runtime.execution.values.kernels.blockwise import BlockPlan
from ncc_runtime.execution.values.kernels.work import KernelCall
from ncc_runtime.execution.values.memory import run_of
from ncc_runtime.execution.values.normal_form import Evaluation, NormalForm
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.table import Instr

Rows = slice | np.ndarray | tuple[int, int]
"""Rows of an array: evenly spaced ones, any, or one row as often as there are ranks."""


@attrs.frozen(eq=False)
class PreparedInstruction:
    """An instruction of an engine on some ranks."""

    call: KernelCall
    operands: tuple[tuple[int, Rows], ...]  # tensors, and the rows of these ranks
    results: tuple[tuple[int, Rows], ...]
    updates: tuple[int, ...] | None  # buffers of what a slice is written into where it lies
    plan: BlockPlan | None  # of what is computed block by block
    overlaps: bool  # results lie where operands may still be read
    is_apart: bool  # the only result may be written while operands are read
    copied: tuple[tuple[int, np.ndarray, np.ndarray], ...]
    """Results that other ranks have in rows of their own, these rows, and those with the same."""

    def may_be_divided(self, parts: int) -> bool:
        """Whether its blocks may be divided among threads."""
        is_whole = self.overlaps or self.copied
        return self.plan is not None and not is_whole and self.plan.blocks >= parts


@attrs.define(eq=False)
class PreparedRounds:
    """Rounds that follow one another."""

    rounds: tuple[TapeRound, ...]
    runs: int = 0  # without calls
    calls: list[Callable[[], object]] | None = None


@attrs.frozen(eq=False)
class PreparedBlock:
    """A block, of rounds that are prepared."""

    block: BlockTape
    before: "Sequence[PreparedNode]"
    body: "Sequence[PreparedNode]"


PreparedNode = PreparedRounds | PreparedBlock


def prepared_nodes(nodes: Nodes) -> list[PreparedNode]:
    """Nodes of a tape; rounds between blocks are prepared together."""
    prepared: list[PreparedNode] = []
    for is_block, some in itertools.groupby(nodes, lambda node: isinstance(node, BlockTape)):
        if is_block:
            blocks = (node for node in some if isinstance(node, BlockTape))
            prepared += [
                PreparedBlock(node, prepared_nodes(node.before), prepared_nodes(node.body))
                for node in blocks
            ]
        else:
            rounds = tuple(node for node in some if isinstance(node, TapeRound))
            prepared.append(PreparedRounds(rounds))
    return prepared


@attrs.define(eq=False)
class RowLayout:
    """What a tape performs, and in which rows of arrays the bytes of each rank lie."""

    equal: EqualRanks
    tape: Tape | None  # None: rows are performed as they come
    borrowed: Set[int]  # inputs, by tensor, that are read where the caller has them
    lent: Mapping[int, int]  # outputs, by tensor, that get an array of their own, and its rows
    buffer_of: Sequence[int]  # by tensor
    moved: Mapping[int, np.ndarray]
    """By buffer in an array of its own, (ranks,): the row of that in place of a rank's memory."""
    of_any_nan: Mapping[object, Set[int]]
    """By queue and row, the results, by position, whose NaNs may be any."""
    first: int  # rank, whose memory is row 0
    input_rows: list[tuple[Rows, Rows]] = attrs.field(factory=list)
    """The rows in which each input lies, and those of what is given that are written there."""
    output_rows: list[tuple[Rows, np.ndarray]] = attrs.field(factory=list)
    """The rows in which each output lies, and for each rank which of them it has."""
    has_constants: bool = False  # all of them lie where its tape reads them
    nodes: "list[PreparedNode]" = attrs.field(factory=list)
    instructions: dict[object, "Sequence[PreparedInstruction]"] = attrs.field(factory=dict)
    evaluations: dict[object, Evaluation] = attrs.field(factory=dict)
    forms: dict[object, NormalForm] = attrs.field(factory=dict)
    """Of collectives whose ranks lie in several processes; their rows are ranks."""

    def rows(self, tensor: int, places: Places) -> np.ndarray:
        """The rows of a tensor's array for these places."""
        row = self.moved.get(self.buffer_of[tensor]) if self.moved else None
        if row is not None:
            return row[places]
        return places - self.first if self.first else places

    def of_row(self, key: object, row: Instr | Placeholder) -> RowPlaces:
        """Who performs a row, and the rows of arrays that each rank reads and writes."""
        places = self.equal.of_row(key, len(row.operands), len(row.results))
        if not self.moved and not self.first:
            return places
        read = (self.rows(*pair) for pair in zip(row.operands, places.read, strict=True))
        written = (self.rows(*pair) for pair in zip(row.results, places.written, strict=True))
        return RowPlaces(places.performed, tuple(read), tuple(written))


def view_of(rows: np.ndarray) -> Rows:
    """The same, or one row for all."""
    is_one = len(rows) > 1 and (rows == rows[0]).all()
    return (int(rows[0]), len(rows)) if is_one else run_of(rows)


def even_runs(columns: Sequence[np.ndarray]) -> Iterator[slice]:
    """Cuts columns of one length so that each is evenly spaced, or constant, in every part."""
    steps = np.diff(np.stack(columns), axis=1)
    begin, count = 0, steps.shape[1] + 1
    while begin < count:
        own = steps[:, begin:]
        is_other = (own != own[:, :1]).any(axis=0) | (own < 0).any(axis=0)
        end = begin + 1 + (int(is_other.argmax()) if is_other.any() else own.shape[1])
        yield slice(begin, end)
        begin = end


def rows_of(array: np.ndarray, rows: Rows) -> np.ndarray:
    """A view where they are evenly spaced or one, else a copy."""
    if isinstance(rows, tuple):
        row, count = rows
        # a view, also of scalars
        return np.broadcast_to(array[row : row + 1], (count, *array.shape[1:]))
    return array[rows]
