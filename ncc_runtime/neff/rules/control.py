"""Rules of control flow: rows of blocks, their nesting, predicates, and when these may be read.

The last rule is a data-flow analysis: of each queue, a lower bound of Sync's semaphore, in values
that count every block once (docs/isa.md). Where a queue jumps, the bound shifts by Sync's posts in
the rows passed over or repeated.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.neff.isa import CASE, ENGINES, LOOP, TEST, Engine
from ncc_runtime.neff.program import READ_ONLY, Block, BlockKind, Program
from ncc_runtime.neff.rules.memory import Interval, forbidden_overlaps
from ncc_runtime.neff.rules.rule import rule
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.structure import (
    BLOCK_ROWS,
    CONTROL,
    Structure,
    control_rows,
    nesting_breaches,
    structure_of,
)
from ncc_runtime.neff.table import InstrTable

_MOST_BRANCHES = 2**31 - 1
_MOST_TRIPS = 2**63 - 1


@rule("neff-C1")
def _blocks_have_their_rows(program: Program) -> Iterator[str]:
    for engine in ENGINES:
        rows = control_rows(program, program.queues[engine])
        for row in rows:
            if not 0 <= row.block < len(program.blocks):
                count = len(program.blocks)
                place = f"queue {engine.value}, pc {row.pc}"
                yield f"{place}: {row.opcode} of block {row.block}, there are {count}"
        counts = Counter((row.block, row.opcode) for row in rows)
        for number, block in enumerate(program.blocks):
            for opcode in CONTROL:
                count, expected = counts[number, opcode], int(opcode in BLOCK_ROWS[block.kind])
                if count != expected:
                    yield (
                        f"queue {engine.value}: {block.kind.value} k{number} has {count} rows "
                        f"{opcode!r}, must have {expected}"
                    )


@rule("neff-C2")
def _blocks_are_nested(program: Program) -> Iterator[str]:
    for engine in ENGINES:
        rows = control_rows(program, program.queues[engine])
        for row, breach in nesting_breaches(rows):
            yield f"queue {engine.value}, pc {row.pc}: {breach}"


@rule("neff-C3")
def _queues_agree(program: Program) -> Iterator[str]:
    first, *others = ENGINES
    expected = [str(row) for row in control_rows(program, program.queues[first])]
    for engine in others:
        rows = [str(row) for row in control_rows(program, program.queues[engine])]
        if rows != expected:
            pairs = enumerate(itertools.zip_longest(rows, expected, fillvalue="none"))
            at, row, other = next((at, *pair) for at, pair in pairs if pair[0] != pair[1])
            yield (
                f"queue {engine.value}: control row {at} is {row}, "
                f"that of queue {first.value} is {other}"
            )


@rule("neff-C4")
def _predicates_are_scalars_apart(program: Program) -> Iterator[str]:
    """A predicate's bytes belong to it alone, so that no write to another tensor changes them."""
    for number, block in enumerate(program.blocks):
        view = program.tensors[block.predicate]
        dtypes = (DType.PRED,) if block.kind is BlockKind.LOOP else (DType.PRED, DType.S32)
        if view.shape or view.dtype not in dtypes:
            allowed = " or ".join(f"{dtype.value}[]" for dtype in dtypes)
            predicate = f"predicate t{block.predicate} is {view.type_text}"
            yield f"block k{number}: {predicate}, must be {allowed}"
    buffers = {program.tensors[block.predicate].buffer for block in program.blocks}
    intervals = (
        Interval(
            buffer.address,
            buffer.end,
            number in buffers,
            f"{'predicate' if number in buffers else buffer.kind.value} b{number} ({buffer.name})",
        )
        for number, buffer in enumerate(program.buffers)
    )
    for lower, other in forbidden_overlaps(intervals):
        yield f"{other.name} overlaps {lower.name} at {other.start:#x}"
    yield from _shared_predicates(program)


def _shared_predicates(program: Program) -> Iterator[str]:
    """Tensors of a predicate's buffer that are no other view of the predicate's own bytes."""
    predicates = {program.tensors[block.predicate].buffer: block for block in program.blocks}
    for number, tensor in enumerate(program.tensors):
        block = predicates.get(tensor.buffer)
        if block is not None:
            view = program.tensors[block.predicate]
            if (tensor.offset, tensor.size_bytes) != (view.offset, view.size_bytes):
                yield f"tensor t{number}: shares b{tensor.buffer} with predicate t{block.predicate}"


@rule("neff-C5")
def _branches_and_trips_make_sense(program: Program) -> Iterator[str]:
    for number, block in enumerate(program.blocks):
        yield from (f"block k{number}: {breach}" for breach in _number_breaches(program, block))


def _number_breaches(program: Program, block: Block) -> Iterator[str]:
    is_loop = block.kind is BlockKind.LOOP
    most = 1 if is_loop else _MOST_BRANCHES
    if not 0 <= block.index < block.of <= most:
        yield f"{block.kind.value} is branch {block.index} of {block.of}, at most {most}"
    if not is_loop and program.tensors[block.predicate].dtype is DType.PRED and block.of != 2:
        yield f"branch of {block.of} by a pred, must be 2"
    if block.trip_count is not None and not (is_loop and 0 <= block.trip_count <= _MOST_TRIPS):
        yield f"{block.kind.value} with trip count {block.trip_count}"


@rule("neff-C6")
def _predicates_are_known_to_be_written(program: Program) -> Iterator[str]:
    """A queue at `test` or `case` has waited for all that Sync posted before its own such row."""
    structure = structure_of(program)
    if structure is None or not structure.rows:
        return
    semaphores = [
        number
        for number, semaphore in enumerate(program.semaphores)
        if semaphore.owner == Engine.SYNC.value
    ]
    if len(semaphores) > 1:
        yield f"Sync owns {len(semaphores)} semaphores, with control flow at most 1"
        return
    posts = _SyncPosts.of(program, structure)
    # predicates that are computed, but before whose first use Sync has posted nothing
    for number, (block, rows) in enumerate(zip(program.blocks, structure.block_rows, strict=True)):
        buffer = program.buffers[program.tensors[block.predicate].buffer]
        if buffer.kind not in READ_ONLY and not posts.before[rows.decides]:
            predicate = f"predicate t{block.predicate}"
            yield f"block k{number}: Sync posts nothing before {predicate} is read"
    for engine in ENGINES:
        if engine is not Engine.SYNC:
            events = _events(program.queues[engine], semaphores, structure.pcs[engine])
            yield from _KnownPosts(engine, structure, posts).breaches(events)


@attrs.frozen
class _SyncPosts:
    """Sync's posts around each control row, with every block run once."""

    before: tuple[int, ...]
    after: tuple[int, ...]  # with the row's own

    @classmethod
    def of(cls, program: Program, structure: Structure) -> "_SyncPosts":
        posted = program.queues[Engine.SYNC].post_sem >= 0
        after = np.cumsum(posted)[structure.pcs[Engine.SYNC]]
        before = after - posted[structure.pcs[Engine.SYNC]]
        return cls(tuple(before.tolist()), tuple(after.tolist()))


_Event = tuple[int, int]
"""What a queue does: wait for a value of Sync's (_NOWHERE, value), pass a control row (row, 0)."""
_NOWHERE = -1


def _events(table: InstrTable, semaphores: Sequence[int], pcs: np.ndarray) -> Sequence[_Event]:
    """The waits for Sync and the control rows of a queue; a row's own wait comes first."""
    waits = np.flatnonzero(np.isin(table.wait_sem, semaphores)) if semaphores else np.zeros(0, int)
    rows = [(int(pc), 0, (_NOWHERE, int(table.wait_value[pc]))) for pc in waits]
    rows += [(pc, 1, (place, 0)) for place, pc in enumerate(pcs.tolist())]
    return [event for *_, event in sorted(rows)]


_NOTHING = -(2**62)


class _KnownPosts:
    """A lower bound of Sync's semaphore in one queue, row by row."""

    def __init__(self, engine: Engine, structure: Structure, posts: _SyncPosts) -> None:
        self._engine = engine
        self._structure = structure
        self._posts = posts
        self._passed_over = [
            posts.after[rows.ends] - posts.after[rows.decides] for rows in structure.block_rows
        ]
        self._repeated = [
            posts.after[rows.ends] - posts.after[rows.opens] for rows in structure.block_rows
        ]

    def breaches(self, events: Sequence[_Event]) -> Iterator[str]:
        # First run: the bound that an iteration establishes by its own waits, starting from none.
        # Second run: with that as the bound of every later iteration.
        ends = dict(self._run(events, None))
        for place, known in self._run(events, ends):
            opcode, block = self._structure.rows[place]
            posted = self._posts.before[place]
            if opcode in (TEST, CASE) and known < posted:
                yield (
                    f"queue {self._engine.value}, pc {self._structure.pcs[self._engine][place]}: "
                    f"{opcode} k{block} without waiting for Sync's {posted} posts before its own"
                )

    def _run(
        self, events: Sequence[_Event], ends: Mapping[int, int] | None
    ) -> Iterator[tuple[int, int]]:
        """(control row, bound there); `ends` has the bound at each `end`, None: none is known."""
        known = 0
        jumping: dict[int, int] = {}  # by block, what is known on a jump behind it
        for place, value in events:
            if place == _NOWHERE:
                known = max(known, value)
                continue
            yield place, known
            opcode, block = self._structure.rows[place]
            if opcode == LOOP:
                # the bound of every iteration: of the first, and of those that come from `end`;
                # where Sync posts nothing in the loop, what is known stays so
                if self._repeated[block] and ends is None:
                    known = _NOTHING
                elif self._repeated[block] and ends is not None:
                    at_end = ends[self._structure.block_rows[block].ends]
                    known = min(known, at_end - self._repeated[block])
            elif opcode in (TEST, CASE):
                jumping[block] = known + self._passed_over[block]
            else:
                is_loop = self._structure.rows[self._structure.block_rows[block].opens][0] == LOOP
                known = jumping[block] if is_loop else min(known, jumping[block])


RULES = (
    _blocks_have_their_rows,
    _blocks_are_nested,
    _queues_agree,
    _predicates_are_scalars_apart,
    _branches_and_trips_make_sense,
    _predicates_are_known_to_be_written,
)
