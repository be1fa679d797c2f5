"""Whole new executables that differ from a given one in a cell, a row or a route."""

import copy
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    EngineQueue,
    Executable,
    Post,
    Queue,
)

Cell = tuple[int, int]
"""Row of a queue, rank."""


def edited(column: np.ndarray, cells: Mapping[Cell, int], ranks: int) -> np.ndarray:
    """A copy of a [row, rank] column with other values in some cells."""
    found = np.broadcast_to(column, (len(column), ranks)).astype(np.int64)
    for cell, value in cells.items():
        found[cell] = value
    return found.astype(np.int64 if column.dtype == np.int64 else np.int32)


def with_queue(executable: Executable, number: int, queue: Queue) -> Executable:
    queues = list(executable.queues)
    queues[number] = queue
    return attrs.evolve(executable, queues=tuple(queues))


def with_wait(executable: Executable, number: int, cell: Cell, sem: int, value: int) -> Executable:
    """One rank waits for something else at a row."""
    queue, ranks = executable.queues[number], executable.ranks
    sync = attrs.evolve(
        queue.sync,
        wait_sem=edited(queue.sync.wait_sem, {cell: sem}, ranks),
        wait_value=edited(queue.sync.wait_value, {cell: value}, ranks),
    )
    return with_queue(executable, number, attrs.evolve(queue, sync=sync))


def with_post(
    executable: Executable, number: int, which: int, cell: Cell, post: tuple[int, int]
) -> Executable:
    """One rank increments something else, (rank, semaphore), by a post of a row."""
    queue, ranks = executable.queues[number], executable.ranks
    posts = list(queue.sync.posts)
    posts[which] = Post(
        edited(posts[which].rank, {cell: post[0]}, ranks),
        edited(posts[which].sem, {cell: post[1]}, ranks),
    )
    sync = attrs.evolve(queue.sync, posts=tuple(posts))
    return with_queue(executable, number, attrs.evolve(queue, sync=sync))


def with_more_posts(
    executable: Executable, number: int, cell: Cell, post: tuple[int, int]
) -> Executable:
    """One rank makes one more increment at a row."""
    queue = executable.queues[number]
    empty: np.ndarray = np.full((len(queue.sync.wait_sem), executable.ranks), IDLE, np.int32)
    more = Post(*(edited(empty, {cell: value}, executable.ranks) for value in post))
    sync = attrs.evolve(queue.sync, posts=(*queue.sync.posts, more))
    return with_queue(executable, number, attrs.evolve(queue, sync=sync))


def with_cells(
    executable: Executable, number: int, cell: Cell, values: Mapping[str, int]
) -> Executable:
    """Other values in columns of a ring, by name."""
    queue, ranks = executable.queues[number], executable.ranks
    columns = {name: edited(getattr(queue, name), {cell: v}, ranks) for name, v in values.items()}
    return with_queue(executable, number, attrs.evolve(queue, **columns))


def with_source(executable: Executable, number: int, cell: Cell, which: int, address: int):
    """One rank reads a source of a row elsewhere."""
    queue = executable.queues[number]
    assert isinstance(queue, DmaQueue)
    sources = np.array(queue.sources)
    sources[(*cell, which)] = address
    return with_queue(executable, number, attrs.evolve(queue, sources=sources))


RING_COLUMNS = (
    "peer",
    "target",
    "size_bytes",
    "second_peer",
    "second_target",
    "sources",
    "source_rank",
)


def with_ring_rows_moved(
    executable: Executable, number: int, rank: int, order: Mapping[int, int], signals: bool
) -> Executable:
    """A rank's cells of a ring as rows of others; with what they signal, or without."""
    queue = executable.queues[number]
    assert isinstance(queue, DmaQueue)

    def moved(column: np.ndarray | None) -> np.ndarray | None:
        if column is None:
            return None
        found = np.array(column)
        for to, source in order.items():
            found[to, rank] = column[source, rank]
        return found

    columns = {name: moved(getattr(queue, name)) for name in RING_COLUMNS}
    if signals:
        posts = [Post(moved(post.rank), moved(post.sem)) for post in queue.sync.posts]
        columns["sync"] = attrs.evolve(queue.sync, posts=tuple(posts))
    return with_queue(executable, number, attrs.evolve(queue, **columns))


CC_COLUMNS = ("opcode", "placeholder", "round", "ring", "ring_row")


def with_cc_rows(executable: Executable, number: int, rows: Sequence[int]) -> Executable:
    """A CC-core's program as these rows of the old one, on all ranks."""
    queue = executable.queues[number]
    assert isinstance(queue, CcQueue)
    picked = np.array(rows)
    columns = {name: getattr(queue, name)[picked] for name in CC_COLUMNS}
    sync = attrs.evolve(
        queue.sync,
        wait_sem=queue.sync.wait_sem[picked],
        wait_value=queue.sync.wait_value[picked],
        posts=tuple(Post(post.rank[picked], post.sem[picked]) for post in queue.sync.posts),
    )
    assert not queue.jumps or list(rows) == sorted(rows), "jumps would lead elsewhere"
    return with_queue(executable, number, attrs.evolve(queue, sync=sync, **columns))


def with_pushes_swapped(executable: Executable, number: int, rows: tuple[int, int]) -> Executable:
    """Two rows of a CC-core push each what the other should, on all ranks."""
    queue = executable.queues[number]
    assert isinstance(queue, CcQueue)
    ring_row = np.array(queue.ring_row)
    ring_row[list(rows)] = ring_row[list(reversed(rows))]
    return with_queue(executable, number, attrs.evolve(queue, ring_row=ring_row))


def with_shift(executable: Executable, number: int, row: int, cell: Cell, by: int) -> Executable:
    """A jump adds something else to what a rank waits for, at (rank, semaphore)."""
    queue = executable.queues[number]
    assert isinstance(queue, CcQueue | EngineQueue)
    width = queue.jumps[row].shift.shape[1]
    shift = np.broadcast_to(queue.jumps[row].shift, (executable.ranks, width)).copy()
    shift[cell] += by
    jumps = {**queue.jumps, row: attrs.evolve(queue.jumps[row], shift=shift)}
    return with_queue(executable, number, attrs.evolve(queue, jumps=jumps))


def with_jump(executable: Executable, number: int, row: int, **values: int) -> Executable:
    """A jump that leads elsewhere, or is decided by another block."""
    queue = executable.queues[number]
    assert isinstance(queue, CcQueue | EngineQueue)
    jumps = {**queue.jumps, row: attrs.evolve(queue.jumps[row], **values)}
    return with_queue(executable, number, attrs.evolve(queue, jumps=jumps))


def with_posts_crossed(
    executable: Executable, number: int, rows: Sequence[int], ranks: tuple[int, int]
) -> Executable:
    """Two ranks increment each what the other should, in some rows."""
    queue = executable.queues[number]
    crossed = dict(zip(ranks, reversed(ranks), strict=True))
    found = executable
    for which, post in enumerate(queue.sync.posts):
        for row in rows:
            for rank, other in crossed.items():
                to = int(post.rank[row, other]), int(post.sem[row, other])
                found = with_post(found, number, which, (row, rank), to)
    return found


def with_trips(executable: Executable, block: int, trips: int) -> Executable:
    """A loop that is known to run so often."""
    blocks = list(executable.program.blocks)
    blocks[block] = attrs.evolve(blocks[block], trip_count=trips)
    program = attrs.evolve(executable.program, blocks=tuple(blocks))
    return attrs.evolve(executable, program=program)


def with_route(executable: Executable, pair: int, links: Sequence[int]) -> Executable:
    """Another way between two chips, by the row of the table of routes."""
    table = executable.routes.table
    first, last = int(table.start[pair]), int(table.start[pair + 1])
    start = np.array(table.start)
    start[pair + 1 :] += len(links) - (last - first)
    hops = np.array(table.hops)
    hops[pair] = len(links)
    flat = np.concatenate((table.links[:first], np.array(links, np.int32), table.links[last:]))
    routes = copy.copy(executable.routes)
    changed = attrs.evolve(table, links=flat, start=start, hops=hops)
    object.__setattr__(routes, "table", changed)
    return attrs.evolve(executable, routes=routes)


def with_ring_size(executable: Executable, descriptors: int) -> Executable:
    """Every ring of every DMA engine holds so many descriptors."""
    topology = executable.topology
    dma = attrs.evolve(topology.dma, ring_descriptors=descriptors)
    return attrs.evolve(executable, topology=attrs.evolve(topology, dma=dma))
