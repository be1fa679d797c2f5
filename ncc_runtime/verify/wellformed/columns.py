"""Columns have their cells, and numbers in them stand for something (exe-W1 to exe-W4).

All other rules and proofs index by what stands in the columns: a placeholder, a semaphore, a rank,
the row that a jump leads to. With numpy a number below 0 would count from the end, one too large
would end the proof instead of the program. So these rules come first, and those that index by one
column wait until its own rule holds.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode, DmaOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    Decision,
    DmaQueue,
    EngineQueue,
    Executable,
    Jump,
    Post,
    Queue,
    Sync,
    is_run_by,
)
from ncc_runtime.neff.isa import CASE, END, TEST
from ncc_runtime.neff.program import BlockKind
from ncc_runtime.neff.stages import Stage, participants
from ncc_runtime.verify.counters import narrowed
from ncc_runtime.verify.places import queue_text, runners_text
from ncc_runtime.verify.proof import Breach, Cell
from ncc_runtime.verify.wellformed.rule import Mask, Subject, at, rule, search

LARGEST_VALUE = 2**31 - 1
"""What a semaphore can hold. Source: neuron-driver, v2 and v3 headers (signed, 32 bits)."""

_CC_DECISIONS: Mapping[int, Decision] = MappingProxyType(
    {CcOpcode.TEST: Decision.TEST, CcOpcode.CASE: Decision.CASE, CcOpcode.END: Decision.ALWAYS}
)
_ENGINE_DECISIONS: Mapping[str, Decision] = MappingProxyType(
    {TEST: Decision.TEST, CASE: Decision.CASE, END: Decision.ALWAYS}
)


# ---- exe-W1: who runs which queue, and the shapes of columns


@rule("exe-W1", is_of_all=True)
def columns_have_their_cells(subject: Subject) -> Iterator[Breach | str]:
    """One queue of an engine, a stream, a lane on a rank; columns are (rows, ranks)."""
    executable = subject.executable
    names = Counter(_identity(queue) for queue in executable.queues)
    yield from (f"{count} queues of {name}" for name, count in names.items() if count > 1)
    yield from _uneven_stages(executable)
    for stage in executable.stages:
        first = int(stage.ranks[0])
        there = {queue.engine for _, queue in subject.engines if is_run_by(queue, first)}
        for engine in stage.program.queues:
            if engine not in there:
                yield f"no queue of engine {engine.value} on rank {first}"
    streams = sorted(facts.stream for facts in executable.streams)
    followed = sorted({queue.stream for _, queue in subject.programs})
    if streams != followed:
        yield f"streams {followed} have a CC-core program, streams {streams} should have"
    for facts in executable.streams:
        lanes = {ring.queue.lane for ring in subject.rings if ring.queue.stream == facts.stream}
        if lanes != set(facts.rings):
            known = sorted(facts.rings)
            yield f"stream {facts.stream} has rings of lanes {sorted(lanes)}, should have {known}"
    for number, queue in enumerate(executable.queues):
        faults = list(_misshapen(queue, executable.ranks))
        yield from faults
        own = _stage_of(executable.stages, queue)
        if own is None:
            yield f"{queue_text(queue)}: no program is run by just these ranks"
        elif not faults:
            yield from _of_other_programs(number, queue, own)


def _identity(queue: Queue) -> str:
    if isinstance(queue, EngineQueue):
        return f"engine {queue.engine.value}{runners_text(queue)}"
    if isinstance(queue, CcQueue):
        return f"the CC-core of stream {queue.stream}{runners_text(queue)}"
    return f"lane {queue.lane} of stream {queue.stream}{runners_text(queue)}"


def _uneven_stages(executable: Executable) -> Iterator[str]:
    """Every rank runs one program, and takes part in a collective as all who run it do."""
    if len(executable.stages) == 1:
        return
    runs = Counter(rank for stage in executable.stages for rank in stage.ranks.tolist())
    for rank in range(executable.ranks):
        if runs[rank] != 1:
            yield f"rank {rank} runs {runs[rank]} programs, must be 1"
    for number, placeholder in enumerate(executable.program.placeholders):
        there = participants(placeholder) or range(executable.ranks)
        for stage in executable.stages:
            own = np.isin(stage.ranks, there)
            if own.any() and not own.all():
                yield f"p{number}: only some of the ranks of {stage.label} take part"


def _stage_of(stages: Sequence[Stage], queue: Queue) -> Stage | None:
    """Whose queue it is; a program alone need not say that all ranks run it."""
    if queue.ranks is None:
        return stages[0] if len(stages) == 1 else None
    return next((one for one in stages if np.array_equal(one.ranks, queue.ranks)), None)


def _of_other_programs(number: int, queue: Queue, stage: Stage) -> Iterator[Breach | str]:
    """Instructions of another program, and cells of ranks that run another one."""
    if isinstance(queue, EngineQueue):
        table = stage.program.queues.get(queue.engine)
        if queue.table is not table and queue.table != table:
            yield f"queue {queue.name}: its instructions are not those of the program"
    if len(stage.ranks) == stage.program.ranks:
        return
    idle: list[tuple[np.ndarray, int]] = []  # columns, and what stands in a cell for nothing
    for post in queue.sync.posts:
        idle += [(post.rank, IDLE), (post.sem, IDLE)]
    if not isinstance(queue, EngineQueue):
        idle.append((queue.sync.wait_sem, IDLE))
    if isinstance(queue, DmaQueue):
        idle += [
            (column, IDLE) for column in (queue.peer, queue.target, *_sources_and_seconds(queue))
        ]
        idle.append((queue.size_bytes, 0))
    others = ~np.isin(np.arange(stage.program.ranks), stage.ranks)
    for column, nothing in idle:
        held = (np.broadcast_to(column, (len(column), len(others))) != nothing) & others
        for row, rank in np.argwhere(held)[:1].tolist():
            yield Breach(
                "",
                f"{queue_text(queue)}, pc {row}: holds {at(column, row, rank)} for rank {rank}",
                (Cell(number, row, rank),),
            )


def _misshapen(queue: Queue, ranks: int) -> Iterator[str]:
    """Columns of another shape than the queue's rows, and the ranks, give them."""
    rows = len(queue.sync.wait_sem)
    for wait in (queue.sync.wait_sem, queue.sync.wait_value):
        if wait.shape not in ((rows, 1), (rows, ranks)):
            yield f"queue {queue.name}: a column of waits is {wait.shape}, not {(rows, ranks)}"
    of_cells = [column for post in queue.sync.posts for column in (post.rank, post.sem)]
    of_rows: list[np.ndarray] = []
    if isinstance(queue, EngineQueue):
        of_rows = [queue.table.opcode]
    elif isinstance(queue, CcQueue):
        of_rows = [queue.opcode, queue.placeholder, queue.round, queue.ring, queue.ring_row]
    else:
        of_rows = [queue.opcode, queue.placeholder, queue.round, queue.divisor]
        of_cells += [queue.peer, queue.target, queue.size_bytes, *_sources_and_seconds(queue)]
        of_cells += [] if queue.registers is None else queue.registers.columns
    for columns, shape in ((of_rows, (rows,)), (of_cells, (rows, ranks))):
        for column in columns:
            if column.shape != shape:
                yield f"queue {queue.name}: a column is {column.shape}, not {shape}"
    if isinstance(queue, DmaQueue):
        owners, sources = queue.source_rank, queue.sources
        if owners is not None and owners.shape != sources.shape:
            yield f"queue {queue.name}: owners of sources are {owners.shape}, not {sources.shape}"
        if (queue.second_peer is None) != (queue.second_target is None):
            yield f"queue {queue.name}: second peers and second targets, one without the other"


def _sources_and_seconds(queue: DmaQueue) -> Iterator[np.ndarray]:
    """Each source and owner of one, second peers and targets: what there is, each (n, ranks)."""
    for column in (queue.sources, queue.source_rank):
        if column is not None:
            yield from np.moveaxis(column, -1, 0)
    for column in (queue.second_peer, queue.second_target):
        if column is not None:
            yield column


# ---- exe-W2: opcodes, placeholders, pushes


@rule("exe-W2")
def rows_name_what_exists(subject: Subject) -> Iterator[Breach | str]:
    """Opcodes, placeholders, and the runs of descriptors that are pushed."""
    for number, queue in subject.programs:
        yield from _names(subject, number, queue, len(CcOpcode))
        yield from _pushes(subject, number, queue)
    for ring in subject.rings:
        yield from _names(subject, ring.number, ring.queue, len(DmaOpcode))


def _names(
    subject: Subject, number: int, queue: CcQueue | DmaQueue, opcodes: int
) -> Iterator[Breach]:
    """Opcodes and placeholders; control rows of a CC-core have none."""
    known = len(subject.executable.program.placeholders)
    yield from subject.at_rows(
        number,
        (queue.opcode < 0) | (queue.opcode >= opcodes),
        lambda row: f"opcode {queue.opcode[row]} is unknown",
    )
    is_control = np.zeros(len(queue.opcode), bool)
    if isinstance(queue, CcQueue):
        is_control = np.isin(queue.opcode, list(_CC_DECISIONS))
    here = queue.placeholder
    wrong = np.where(is_control, here != IDLE, (here < 0) | (here >= known))
    yield from subject.at_rows(
        number, wrong, lambda row: f"names placeholder {here[row]}, there are {known}"
    )


def _pushes(subject: Subject, number: int, queue: CcQueue) -> Iterator[Breach]:
    """An ADVANCE, and no other row, names a ring of the stream and a row of it."""
    rows: np.ndarray = np.zeros(len(queue.opcode), np.int64)
    for ring in subject.rings_of(queue.stream):
        rows[queue.ring == ring.queue.lane] = len(ring.queue.opcode)
    lane, row = queue.ring, queue.ring_row
    advances = queue.opcode == CcOpcode.ADVANCE
    yield from subject.at_rows(
        number,
        np.where(advances, (row < 0) | (row >= rows), (lane != IDLE) | (row != IDLE)),
        lambda pc: f"pushes row {row[pc]} of dma{lane[pc]}, there are {rows[pc]}",
    )


# ---- exe-W3: jumps


@rule("exe-W3")
def control_rows_jump(subject: Subject) -> Iterator[Breach]:
    """`test`, `case` and the `end` of a loop, and no other row, jump, to rows that exist."""
    for number, engine in subject.engines:
        decisions = {
            code: _ENGINE_DECISIONS[word]
            for code, word in enumerate(engine.table.opcode_names)
            if word in _ENGINE_DECISIONS
        }
        yield from _jumps(subject, number, engine.jumps, engine.table.opcode, decisions)
    for number, program in subject.programs:
        yield from _jumps(subject, number, program.jumps, program.opcode, _CC_DECISIONS)


def _jumps(
    subject: Subject,
    number: int,
    jumps: Mapping[int, Jump],
    opcode: np.ndarray,
    decisions: Mapping[int, Decision],
) -> Iterator[Breach]:
    """The jumps of a queue by row, against what its opcodes decide."""
    control = np.flatnonzero(np.isin(opcode, list(decisions))).tolist()
    for row in sorted({*control, *jumps}):
        decision = decisions.get(int(opcode[row])) if 0 <= row < len(opcode) else None
        jump = jumps.get(row)
        if jump is None and decision is Decision.ALWAYS:
            continue  # the `end` of a branch
        fault = _fault(subject, jump, decision, len(opcode))
        if fault:
            yield subject.at_cell(number, row, subject.first_rank, fault)


def _fault(subject: Subject, jump: Jump | None, decision: Decision | None, rows: int) -> str:
    """What is wrong with the jump of a row; "" if nothing is."""
    blocks_of, ranks = subject.executable.program.blocks, subject.executable.ranks
    if jump is None:
        return "a control row without a jump"
    if decision is not jump.decision:
        return f"jumps as by {jump.decision.value}, which it is not"
    if not 0 <= jump.target <= rows:
        return f"jumps to pc {jump.target}, there are {rows}"
    if not 0 <= jump.block < len(blocks_of):
        return f"names block {jump.block}, there are {len(blocks_of)}"
    if (blocks_of[jump.block].kind is BlockKind.CASE) != (decision is Decision.CASE):
        return f"jumps as by {jump.decision.value} in a {blocks_of[jump.block].kind.value}"
    semaphores = subject.executable.semaphore_count
    if jump.shift.shape not in ((1, semaphores), (ranks, semaphores)):
        return f"shifts {jump.shift.shape} values, must be {(ranks, semaphores)}"
    return ""


# ---- exe-W4: semaphores and ranks


@rule("exe-W4")
def semaphores_and_ranks_exist(subject: Subject) -> Iterator[Breach]:
    """Of waits, posts and transfers; awaited values fit what a semaphore holds."""
    for number, queue in enumerate(subject.executable.queues):
        yield from _waits(subject, number, queue.sync)
        for post in queue.sync.posts:
            yield from _posts(subject, number, post)
    for ring in subject.rings:
        for column in (ring.queue.peer, ring.queue.second_peer, *ring.owners):
            if column is not None:
                yield from _ranks(subject, ring.number, column)


def _waits(subject: Subject, number: int, sync: Sync) -> Iterator[Breach]:
    count = subject.executable.semaphore_count
    sem, value = narrowed(sync.wait_sem), narrowed(sync.wait_value)
    yield from subject.at_cells(
        number,
        (sem < IDLE) | (sem >= count),
        lambda row, rank: f"waits for semaphore {at(sem, row, rank)}, there are {count}",
    )
    yield from subject.at_cells(
        number,
        (sem != IDLE) & ((value < 0) | (value > LARGEST_VALUE)),
        lambda row, rank: f"waits for {at(value, row, rank)}, must be from 0 to {LARGEST_VALUE}",
    )


def _posts(subject: Subject, number: int, post: Post) -> Iterator[Breach]:
    """A post names a rank and a semaphore of it, or neither."""
    count, ranks = subject.executable.semaphore_count, subject.executable.ranks

    def wrong(sem: np.ndarray, to: np.ndarray) -> Mask:
        if sem.min() >= 0 and sem.max() < count and to.min() >= 0 and to.max() < ranks:
            return False  # mostly, and without temporary arrays
        beyond = (sem < IDLE) | (sem >= count) | (to < IDLE) | (to >= ranks)
        return beyond | ((sem == IDLE) != (to == IDLE))

    yield from subject.at_cells(
        number,
        search(wrong, post.sem, post.rank),
        lambda row, rank: (
            f"posts semaphore {at(post.sem, row, rank)} of rank {at(post.rank, row, rank)}, "
            f"there are {count} on {ranks} ranks"
        ),
    )


def _ranks(subject: Subject, number: int, column: np.ndarray) -> Iterator[Breach]:
    """Peers, second peers, and whose memory sources lie in."""
    ranks = subject.executable.ranks

    def wrong(named: np.ndarray) -> Mask:
        if named.min() >= IDLE and named.max() < ranks:
            return False
        return (named < IDLE) | (named >= ranks)

    yield from subject.at_cells(
        number,
        search(wrong, column),
        lambda row, rank: f"names rank {at(column, row, rank)}, there are {ranks}",
    )
