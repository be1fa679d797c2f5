"""Queues can be told apart, and their columns have a cell for every row and rank."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from ncc_runtime.lowering.executable import CcQueue, DmaQueue, EngineQueue, Queue
from ncc_runtime.verify.form.rule import rule
from ncc_runtime.verify.form.subject import Subject


@rule("exe-W1")
def columns_have_their_cells(subject: Subject) -> Iterator[str]:
    """One queue of an engine, a stream, a lane; columns are (rows, ranks)."""
    executable = subject.executable
    names = Counter(_identity(queue) for queue in executable.queues)
    yield from (f"{count} queues of {name}" for name, count in names.items() if count > 1)
    streams = sorted(facts.stream for facts in executable.streams)
    followed = sorted(queue.stream for _, queue in subject.programs)
    if streams != followed:
        yield f"streams {followed} have a CC-core program, streams {streams} should have"
    for facts in executable.streams:
        lanes = {ring.queue.lane for ring in subject.rings if ring.queue.stream == facts.stream}
        if lanes != set(facts.rings):
            known = sorted(facts.rings)
            yield f"stream {facts.stream} has rings of lanes {sorted(lanes)}, should have {known}"
    for _, engine in subject.engines:
        table = executable.program.queues.get(engine.engine)
        if engine.table is not table and engine.table != table:
            yield f"queue {engine.name}: its instructions are not those of the program"
    for queue in executable.queues:
        yield from _misshapen(queue, executable.ranks)


def _identity(queue: Queue) -> str:
    if isinstance(queue, EngineQueue):
        return f"engine {queue.engine.value}"
    if isinstance(queue, CcQueue):
        return f"the CC-core of stream {queue.stream}"
    return f"lane {queue.lane} of stream {queue.stream}"


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
    for column, shape in [(one, (rows,)) for one in plain] + [
        (one, (rows, ranks)) for one in cells
    ]:
        if column.shape != shape:
            yield f"queue {queue.name}: a column is {column.shape}, not {shape}"


def _layers(queue: DmaQueue) -> Iterator[np.ndarray]:
    """The columns of sources one by one, and those that a ring may lack."""
    for column in (queue.sources, queue.source_rank):
        if column is not None:
            yield from np.moveaxis(column, -1, 0)
    for column in (queue.also_peer, queue.also_target):
        if column is not None:
            yield column


RULES = (columns_have_their_cells,)
