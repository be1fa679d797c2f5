"""The chains of one rank: five engine queues, and what each stream does as the engines see it.

An item of an engine's chain is a row of its queue. An item of a stream's chain is a placeholder,
from its trigger to DONE, or a `test` or `case` that its CC-core follows: each starts when its wait
is satisfied and increments when it is complete, just as an instruction does. What the CC-core does
within a placeholder is another proof's.
"""

import enum
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    EngineQueue,
    Executable,
    Post,
    Sync,
)
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.structure import CONTROL
from ncc_runtime.verify.places import place_of

_DECIDING = (CcOpcode.TEST, CcOpcode.CASE)


class Kind(enum.IntEnum):
    """What an item is."""

    INSTRUCTION = 0
    CONTROL = 1  # loop, test, case or end of an engine; test or case of a stream
    PLACEHOLDER = 2


@attrs.frozen(eq=False)
class Items:
    """The items of one chain, alike on all ranks; what they wait for may differ."""

    name: str  # of the queue
    queue: int  # position in Executable.queues
    engine: Engine | None  # None: a stream
    kind: np.ndarray  # (n,) Kind
    first: np.ndarray  # (n,) row of the queue that waits
    last: np.ndarray  # (n,) row of the queue that increments
    subject: np.ndarray  # (n,) placeholder, or block of a stream's control row; else IDLE

    def __len__(self) -> int:
        return len(self.first)


@attrs.frozen(eq=False)
class Waits:
    """What the items of a chain wait for and increment on one rank."""

    sem: np.ndarray  # (n,) IDLE for none
    value: np.ndarray  # (n,)
    posts: tuple[np.ndarray, ...]  # (n,) each: a semaphore of the own rank, IDLE for none


def chains_of(executable: Executable) -> tuple[Items, ...]:
    """Engines in the order of their queues, then streams."""
    engines = [
        _engine_items(number, queue)
        for number, queue in enumerate(executable.queues)
        if isinstance(queue, EngineQueue)
    ]
    streams = [
        _stream_items(number, queue)
        for number, queue in enumerate(executable.queues)
        if isinstance(queue, CcQueue)
    ]
    return (*engines, *streams)


def _engine_items(number: int, queue: EngineQueue) -> Items:
    rows: np.ndarray = np.arange(len(queue.table))
    kind = np.zeros(len(rows), np.int8)
    kind[_control_pcs(queue)] = Kind.CONTROL
    subject = queue.table.placeholder.astype(np.int64)
    return Items(queue.name, number, queue.engine, kind, rows, rows, subject)


def _control_pcs(queue: EngineQueue) -> np.ndarray:
    """The rows of an engine's queue that open, decide or close a block."""
    names = queue.table.opcode_names
    codes = [code for code, name in enumerate(names) if name in CONTROL]
    return np.flatnonzero(np.isin(queue.table.opcode, codes))


def _stream_items(number: int, queue: CcQueue) -> Items:
    """Rows of one placeholder that stand together are one item; `end` decides nothing."""
    is_decision = np.isin(queue.opcode, [int(code) for code in _DECIDING])
    starts = np.ones(len(queue.opcode), bool)
    starts[1:] = (queue.placeholder[1:] != queue.placeholder[:-1]) | is_decision[1:]
    starts[1:] |= is_decision[:-1]
    first = np.flatnonzero(starts)
    last = np.append(first[1:] - 1, len(starts) - 1)[: len(first)]
    kept = is_decision[first] | (queue.placeholder[first] != IDLE)
    first, last = first[kept], last[kept]
    kind = np.where(is_decision[first], Kind.CONTROL, Kind.PLACEHOLDER).astype(np.int8)
    blocks = [
        queue.jumps[row].block if decides and row in queue.jumps else IDLE
        for row, decides in zip(first.tolist(), is_decision[first].tolist(), strict=True)
    ]
    subject = np.where(kind == Kind.CONTROL, np.array(blocks, np.int64), queue.placeholder[first])
    return Items(queue.name, number, None, kind, first, last, subject)


def waits_of(executable: Executable, items: Items, rank: int) -> Waits:
    """What a chain waits for and increments on a rank."""
    sync = executable.queues[items.queue].sync
    return Waits(
        sem=_on_rank(sync.wait_sem, rank)[items.first].astype(np.int64),
        value=_on_rank(sync.wait_value, rank)[items.first].astype(np.int64),
        posts=tuple(_own(post, rank)[items.last] for post in sync.posts),
    )


def _on_rank(column: np.ndarray, rank: int) -> np.ndarray:
    return column[:, rank if column.shape[1] > 1 else 0]


def _own(post: Post, rank: int) -> np.ndarray:
    """A post's semaphores where they are the rank's own."""
    is_own = _on_rank(post.rank, rank) == rank
    return np.where(is_own, _on_rank(post.sem, rank), IDLE).astype(np.int64)


def classes_of(
    executable: Executable, chains: Sequence[Items], ranks: np.ndarray
) -> list[np.ndarray]:
    """Those of some ranks whose chains wait for the same and increment the same, class by class."""
    differing = [
        column
        for items in chains
        for column in _differing(executable.queues[items.queue].sync, items, ranks)
    ]
    if not differing:
        return [ranks]
    _, number = np.unique(np.concatenate(differing), axis=1, return_inverse=True)
    number = number.reshape(-1)
    return [ranks[number == one] for one in dict.fromkeys(number.tolist())]


def _differing(sync: Sync, items: Items, ranks: np.ndarray) -> Iterator[np.ndarray]:
    """The rows of a chain's columns that are not alike on all ranks."""
    columns = [_of(sync.wait_sem, ranks)[items.first], _of(sync.wait_value, ranks)[items.first]]
    for post in sync.posts:
        here, sem = (_of(column, ranks)[items.last] for column in (post.rank, post.sem))
        columns.append(np.where(here == ranks, sem, IDLE))
    for column in columns:
        rows = (column != column[:, :1]).any(axis=1)
        if rows.any():
            yield np.broadcast_to(column[rows], (int(rows.sum()), len(ranks)))


def _of(column: np.ndarray, ranks: np.ndarray) -> np.ndarray:
    """Some ranks of a column that may have one for all; a view where those are everybody."""
    return column if column.shape[1] in (1, len(ranks)) else column[:, ranks]


def strangers(executable: Executable, chains: Sequence[Items]) -> Iterator[str]:
    """Items that increment a semaphore of another rank, which no chain of a rank may."""
    ranks: np.ndarray = np.arange(executable.ranks)
    for items in chains:
        for post in executable.queues[items.queue].sync.posts:
            to = post.rank[items.last]
            for item, rank in np.argwhere((to != IDLE) & (to != ranks))[:1].tolist():
                place = place_of(executable, items.queue, int(items.last[item]), rank)
                other = to[item, rank]
                yield f"{place}: increments a semaphore of rank {other}, must be its own"
