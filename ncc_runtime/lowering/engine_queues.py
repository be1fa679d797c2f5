"""Engine queues, and the control flow of a program as lowering needs it.

Placeholders in engine queues become writes that trigger the CC-core of their stream
(`patched_queues`). CC-cores get placeholders and control rows in an order in which they can be
lowered (`stream_items`).

Waited values count as if every block ran exactly once. A queue that jumps over rows, or back to
repeat them, corrects the values that it waits for by the increments that belong to those rows.
`shifts` counts them for the semaphores of engines and streams; `stream.py` adds those of channels.
"""

import itertools
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, Decision, EngineQueue, Jump, Post, Sync
from ncc_runtime.lowering.queues import Row
from ncc_runtime.neff.isa import CASE, END, ENGINES, LOOP, TEST, Engine
from ncc_runtime.neff.program import BlockKind, Program
from ncc_runtime.neff.stages import Stage, stages_of
from ncc_runtime.neff.table import NONE, InstrTable

MARKERS = (LOOP, TEST, CASE, END)


@attrs.frozen
class Marker:
    """A control row that every queue holds."""

    opcode: str
    block: int


def markers(program: Program, table: InstrTable) -> dict[int, Marker]:
    """The control rows of a queue, by row."""
    codes = [code for code, name in enumerate(table.opcode_names) if name in MARKERS]
    rows = np.flatnonzero(np.isin(table.opcode, codes)) if codes else ()
    by_row = {}
    for row in map(int, rows):
        instr = table[row]
        block = program.attributes[instr.attribute]["block"]
        assert isinstance(block, int), f"row {row}: {instr.opcode} names no block"
        by_row[row] = Marker(instr.opcode, block)
    return by_row


def walk(program: Program) -> Iterator[int | Marker]:
    """Placeholders (by number) and control rows in program order.

    Between two control rows the placeholders of all queues come in the order of their numbers,
    which is the order every stream completes them in.
    """
    tables = [program.queues[engine] for engine in ENGINES if engine in program.queues]
    segments = [_segments(program, table) for table in tables]
    for parts in zip(*segments, strict=True):
        yield from sorted(number for numbers, _ in parts for number in numbers)
        if parts[0][1] is not None:
            yield parts[0][1]


def _segments(program: Program, table: InstrTable) -> list[tuple[list[int], Marker | None]]:
    """Regions without control flow: the placeholders triggered, and the row that ends them."""
    control_rows = markers(program, table)
    boundaries = [-1, *control_rows, len(table)]
    numbers = [
        [n for n in table.placeholder[first + 1 : last].tolist() if n != NONE]
        for first, last in itertools.pairwise(boundaries)
    ]
    return list(zip(numbers, [*control_rows.values(), None], strict=True))


@attrs.frozen(eq=False)
class StreamItem:
    """A placeholder, or a control row of one stage, in the program of a stream's CC-core."""

    stream: int
    item: int | Marker
    ranks: np.ndarray | None = None  # that have the control row; None: all


def stream_items(program: Program) -> Iterator[StreamItem]:
    """What the CC-cores get, each stream in its order of execution."""
    stages = stages_of(program)
    if len(stages) == 1:
        yield from _items_of(stages[0])
        return
    by_stage = [list(_items_of(stage)) for stage in stages]
    for stream in sorted({placeholder.stream for placeholder in program.placeholders}):
        yield from _merged(
            [deque(item for item in items if item.stream == stream) for items in by_stage]
        )


def _items_of(stage: Stage) -> Iterator[StreamItem]:
    following = followed_by(stage.program)
    ranks = None if len(stage.ranks) == stage.program.ranks else stage.ranks
    for item in walk(stage.program):
        if isinstance(item, int):
            yield StreamItem(stage.program.placeholders[item].stream, item)
        else:
            for stream in sorted(following[item.block]):
                yield StreamItem(stream, item, ranks)


def _merged(by_stage: Sequence[deque[StreamItem]]) -> Iterator[StreamItem]:
    """One stream of all stages; a shared placeholder is yielded when it is next in each of them.

    Every stage has its placeholders in the order of their numbers, so the lowest number left is
    next in every stage that has it: the merge cannot get stuck.
    """
    while any(by_stage):
        for items in by_stage:
            while items and isinstance(items[0].item, Marker):
                yield items.popleft()
        numbers = [items[0].item for items in by_stage if items]
        if numbers:
            lowest = min(number for number in numbers if isinstance(number, int))
            shared = [items.popleft() for items in by_stage if items and items[0].item == lowest]
            yield shared[0]


def followed_by(program: Program) -> Mapping[int, frozenset[int]]:
    """For each block, the streams whose placeholders it contains, at any depth."""
    return {
        block: frozenset(program.placeholders[number].stream for number in numbers)
        for block, numbers in contained(program).items()
    }


def contained(program: Program) -> Mapping[int, tuple[int, ...]]:
    """For each block, the placeholders in it, at any depth."""
    inside: dict[int, list[int]] = {block: [] for block in range(len(program.blocks))}
    open_blocks: list[int] = []
    for item in walk(program):
        if isinstance(item, int):
            for block in open_blocks:
                inside[block].append(item)
        elif item.opcode in (LOOP, CASE):
            open_blocks.append(item.block)
        elif item.opcode == END:
            open_blocks.remove(item.block)
    return {block: tuple(numbers) for block, numbers in inside.items()}


@attrs.frozen(eq=False)
class BlockShifts:
    """Increments that the rows of a block make, per semaphore of the program."""

    repeated: np.ndarray  # (semaphores,) int64, by all rows of a loop, which going back repeats
    skipped: np.ndarray  # (semaphores,) int64, by the rows behind `test` or `case`


def shifts(
    program: Program, trigger_sems: Mapping[int, int], semaphore_count: int
) -> Mapping[int, BlockShifts]:
    """Shifts of every block, counting increments by engines and streams; channels come later."""
    if not program.blocks:
        return {}
    counters = _counters(program, trigger_sems)
    by_block = {}
    for block, description in enumerate(program.blocks):
        if Marker(END, block) not in counters[0].row_of:
            continue  # another stage's
        is_loop = description.kind is BlockKind.LOOP
        counts = []
        for start in (LOOP if is_loop else CASE, TEST if is_loop else CASE):
            count = np.zeros(semaphore_count, np.int64)
            for counter in counters:
                counter.add(count, Marker(start, block), Marker(END, block))
            counts.append(count)
        by_block[block] = BlockShifts(*counts)
    return by_block


@attrs.frozen(eq=False)
class _Counter:
    """The increments of one queue, in the order of its rows."""

    row_of: Mapping[Marker, int]
    row: np.ndarray  # (increments,) of the queue, ascending
    semaphore: np.ndarray  # (increments,)

    def add(self, count: np.ndarray, start: Marker, end: Marker) -> None:
        """Count the increments after one control row, up to and including another."""
        rows = (self.row_of[start], self.row_of[end])
        first, last = np.searchsorted(self.row, rows, side="right")
        np.add.at(count, self.semaphore[first:last], 1)


def _counters(program: Program, trigger_sems: Mapping[int, int]) -> list[_Counter]:
    """A counter for each queue.

    All queues hold the same control rows. There streams are triggered and acknowledge; the first
    queue stands for all in counting that.
    """
    done = {semaphore.owner: index for index, semaphore in enumerate(program.semaphores)}
    following = followed_by(program)
    counters: list[_Counter] = []
    for table in program.queues.values():
        control_rows = markers(program, table)
        posting = np.flatnonzero(table.post_sem != NONE).tolist()
        increments = [(row, int(table.post_sem[row])) for row in posting]
        notified = [
            (row, program.placeholders[int(table.placeholder[row])].stream)
            for row in np.flatnonzero(table.placeholder != NONE).tolist()
        ]
        if not counters:
            notified += [
                (row, stream)
                for row, marker in control_rows.items()
                if marker.opcode in (TEST, CASE)
                for stream in following[marker.block]
            ]
        for row, stream in notified:
            increments.append((row, trigger_sems[stream]))
            if f"stream {stream}" in done:
                increments.append((row, done[f"stream {stream}"]))
        columns = np.array(sorted(increments), np.int64).reshape(-1, 2)
        row_of = {marker: row for row, marker in control_rows.items()}
        counters.append(_Counter(row_of, columns[:, 0], columns[:, 1]))
    return counters


def notified_streams(program: Program, engine: Engine) -> Mapping[int, tuple[int, ...]]:
    """By control row of a queue, the streams that it triggers there to read the predicate.

    The queue that triggers a stream's placeholders does it, and only for blocks that the stream
    follows: it could not know how often other blocks have run.
    """
    table = program.queues[engine]
    triggered = {program.placeholders[n].stream for n in table.placeholder.tolist() if n != NONE}
    if not triggered or not program.blocks:
        return {}
    following = followed_by(program)
    return {
        row: tuple(sorted(following[marker.block] & triggered))
        for row, marker in markers(program, table).items()
        if marker.opcode in (TEST, CASE)
    }


def patched_queues(
    stage: Stage,
    trigger_sems: Mapping[int, int],
    shifts: Mapping[int, BlockShifts],
    representatives: int,
) -> list[EngineQueue]:
    """The engine queues in hardware order, for the first ranks; `trigger_sems` is by stream."""
    program = stage.program
    ranks = None if len(stage.ranks) == program.ranks else stage.ranks
    return [
        EngineQueue(
            engine.value,
            engine,
            program.queues[engine],
            _sync(stage, engine, trigger_sems, representatives),
            _jumps(program, program.queues[engine], shifts),
            ranks,
        )
        for engine in ENGINES
        if engine in program.queues
    ]


def _jumps(
    program: Program, table: InstrTable, shifts: Mapping[int, BlockShifts]
) -> dict[int, Jump]:
    """The jumps of a queue by row: back to a loop's start, out of a loop, past a branch.

    A jump back adds to waited values what a round of the loop increments; one out or past takes
    away what the rows that it skips would have incremented.
    """
    jumps = {}
    opened: dict[int, int] = {}  # by block, the row of its `loop` or `case`
    decided: dict[int, int] = {}  # by block, the row of its `test` or `case`
    for row, marker in markers(program, table).items():
        block = marker.block
        if marker.opcode in (LOOP, CASE):
            opened[block] = row
        if marker.opcode in (TEST, CASE):
            decided[block] = row
        if marker.opcode != END:
            continue
        is_loop = program.blocks[block].kind is BlockKind.LOOP
        if is_loop:
            back = shifts[block].repeated[None, :]
            jumps[row] = Jump(opened[block] + 1, block, Decision.ALWAYS, back)
        out = -shifts[block].skipped[None, :]
        decision = Decision.TEST if is_loop else Decision.CASE
        jumps[decided[block]] = Jump(row + 1, block, decision, out)
    return jumps


def _sync(
    stage: Stage, engine: Engine, trigger_sems: Mapping[int, int], representatives: int
) -> Sync:
    """Waits and increments of a queue: the program's own, then the triggers of each stream."""
    program = stage.program
    table = program.queues[engine]
    # engines increment semaphores of their own rank alone; ranks of other stages are idle
    own_rank: np.ndarray = np.full(program.ranks, IDLE, np.int32)
    own_rank[stage.ranks] = stage.ranks
    own_rank = own_rank[:representatives]
    is_all = len(stage.ranks) == program.ranks
    posts = []
    for sem in (table.post_sem.astype(np.int32), *_triggers(program, engine, trigger_sems)):
        if (sem != NONE).any():
            rank = np.where(sem[:, None] != NONE, own_rank[None, :], IDLE)
            sems = np.broadcast_to(sem[:, None], rank.shape)
            posts.append(Post(rank, sems if is_all else np.where(rank == IDLE, IDLE, sems)))
    return Sync(
        wait_sem=table.wait_sem.astype(np.int32)[:, None],
        wait_value=table.wait_value.astype(np.int64)[:, None],
        posts=tuple(posts),
    )


def _triggers(
    program: Program, engine: Engine, trigger_sems: Mapping[int, int]
) -> Iterator[np.ndarray]:
    """Per stream, its trigger semaphore where a placeholder or a predicate is ready for it."""
    table, streams_of = program.queues[engine], notified_streams(program, engine)
    streams = np.array([placeholder.stream for placeholder in program.placeholders], np.int32)
    is_trigger = table.placeholder != NONE
    triggered = np.full(len(table), IDLE, np.int32)
    triggered[is_trigger] = streams[table.placeholder[is_trigger]]
    for stream, sem in trigger_sems.items():
        rows = triggered == stream
        rows[[row for row, notified in streams_of.items() if stream in notified]] = True
        yield np.where(rows, np.int32(sem), np.int32(IDLE))


def stream_semaphores(program: Program) -> dict[int, Row]:
    """The semaphore by which the engines learn that a stream's placeholders are complete."""
    stages = stages_of(program)
    streams = sorted({placeholder.stream for placeholder in program.placeholders})
    done_sems: dict[int, Row] = {stream: np.full(1, IDLE, np.int32) for stream in streams}
    for stage in stages:
        semaphores = enumerate(stage.program.semaphores)
        owners = {semaphore.owner: index for index, semaphore in semaphores}
        for stream in streams:
            sem = owners.get(f"stream {stream}", IDLE)
            if len(stages) == 1:
                done_sems[stream][0] = sem
                continue
            done_sems[stream] = np.broadcast_to(done_sems[stream], program.ranks).copy()
            done_sems[stream][stage.ranks] = sem
    return done_sems
