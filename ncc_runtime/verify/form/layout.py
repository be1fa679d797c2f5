"""Queues can be told apart, and their columns have a cell for every row and rank."""

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    EngineQueue,
    Executable,
    Queue,
    is_run_by,
)
from ncc_runtime.neff.stages import Stage, participants
from ncc_runtime.verify.form.columns import at
from ncc_runtime.verify.form.rule import rule
from ncc_runtime.verify.form.subject import Subject
from ncc_runtime.verify.places import queue_text, runners_text


@rule("exe-W1", is_of_all=True)
def columns_have_their_cells(subject: Subject) -> Iterator[str]:
    """One queue of an engine, a stream, a lane on a rank; columns are (rows, ranks)."""
    executable = subject.executable
    names = Counter(_identity(queue) for queue in executable.queues)
    yield from (f"{count} queues of {name}" for name, count in names.items() if count > 1)
    yield from _uneven_stages(executable)
    yield from _missing(executable)
    streams = sorted(facts.stream for facts in executable.streams)
    followed = sorted({queue.stream for _, queue in subject.programs})
    if streams != followed:
        yield f"streams {followed} have a CC-core program, streams {streams} should have"
    for facts in executable.streams:
        lanes = {ring.queue.lane for ring in subject.rings if ring.queue.stream == facts.stream}
        if lanes != set(facts.rings):
            known = sorted(facts.rings)
            yield f"stream {facts.stream} has rings of lanes {sorted(lanes)}, should have {known}"
    for queue in executable.queues:
        faults = list(_misshapen(queue, executable.ranks))
        yield from faults
        stage = _stage_of(executable.stages, queue)
        if stage is None:
            yield f"{queue_text(queue)}: no program is run by just these ranks"
        elif not faults:
            yield from _strange(queue, stage)


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


def _missing(executable: Executable) -> Iterator[str]:
    """Engines that have instructions in a program and no queue."""
    for stage in executable.stages:
        first = int(stage.ranks[0])
        queues = (one for one in executable.queues if isinstance(one, EngineQueue))
        there = {queue.engine for queue in queues if is_run_by(queue, first)}
        for engine in stage.program.queues:
            if engine not in there:
                yield f"no queue of engine {engine.value} on rank {first}"


def _stage_of(stages: Sequence[Stage], queue: Queue) -> Stage | None:
    """Whose queue it is; a program alone need not say that all ranks run it."""
    if queue.ranks is None:
        return stages[0] if len(stages) == 1 else None
    return next((one for one in stages if np.array_equal(one.ranks, queue.ranks)), None)


def _strange(queue: Queue, stage: Stage) -> Iterator[str]:
    """What is not of the program that runs it: instructions, and cells of others that hold any."""
    if isinstance(queue, EngineQueue):
        table = stage.program.queues.get(queue.engine)
        if queue.table is not table and queue.table != table:
            yield f"queue {queue.name}: its instructions are not those of the program"
    if len(stage.ranks) == stage.program.ranks:
        return
    others = ~np.isin(np.arange(stage.program.ranks), stage.ranks)
    for column, idle in _idle_columns(queue):
        found = (np.broadcast_to(column, (len(column), len(others))) != idle) & others
        for row, rank in np.argwhere(found)[:1].tolist():
            held = at(column, row, rank)
            yield f"{queue_text(queue)}, pc {row}: holds {held} for rank {rank}"


def _idle_columns(queue: Queue) -> Iterator[tuple[np.ndarray, int]]:
    """The columns in which those who do not run a queue have nothing, and what stands for that."""
    for post in queue.sync.posts:
        yield post.rank, IDLE
        yield post.sem, IDLE
    if not isinstance(queue, EngineQueue):
        yield queue.sync.wait_sem, IDLE
    if isinstance(queue, DmaQueue):
        yield from ((column, IDLE) for column in (queue.peer, queue.target, *_layers(queue)))
        yield queue.size_bytes, 0


def _misshapen(queue: Queue, ranks: int) -> Iterator[str]:
    """Columns of another shape than the queue's rows, and the ranks, give them."""
    rows = len(queue.sync.wait_sem)
    for wait in (queue.sync.wait_sem, queue.sync.wait_value):
        if wait.shape not in ((rows, 1), (rows, ranks)):
            yield f"queue {queue.name}: a column of waits is {wait.shape}, not {(rows, ranks)}"
    cells = [column for post in queue.sync.posts for column in (post.rank, post.sem)]
    plain: list[np.ndarray] = []
    if isinstance(queue, EngineQueue):
        plain = [queue.table.opcode]
    elif isinstance(queue, CcQueue):
        plain = [queue.opcode, queue.placeholder, queue.round, queue.ring, queue.ring_row]
    else:
        plain = [queue.opcode, queue.placeholder, queue.round, queue.divisor]
        cells += [queue.peer, queue.target, queue.size_bytes, *_layers(queue)]
        cells += [] if queue.registers is None else queue.registers.columns
    for column, shape in [(one, (rows,)) for one in plain] + [
        (one, (rows, ranks)) for one in cells
    ]:
        if column.shape != shape:
            yield f"queue {queue.name}: a column is {column.shape}, not {shape}"
    if isinstance(queue, DmaQueue):
        yield from _unpaired(queue)


def _unpaired(queue: DmaQueue) -> Iterator[str]:
    """Columns that a ring may lack, without the column that they go with."""
    owners, sources = queue.source_rank, queue.sources
    if owners is not None and owners.shape != sources.shape:
        yield f"queue {queue.name}: owners of sources are {owners.shape}, not {sources.shape}"
    if (queue.second_peer is None) != (queue.second_target is None):
        yield f"queue {queue.name}: second peers and second targets, one without the other"


def _layers(queue: DmaQueue) -> Iterator[np.ndarray]:
    """The columns of sources one by one, and those that a ring may lack."""
    for column in (queue.sources, queue.source_rank):
        if column is not None:
            yield from np.moveaxis(column, -1, 0)
    for column in (queue.second_peer, queue.second_target):
        if column is not None:
            yield column


RULES = (columns_have_their_cells,)
