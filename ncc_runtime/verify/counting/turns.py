"""Counters of several queues: whether their increments come in one order, whatever the run.

Queues of one rank may take turns at a counter: if each increment is known to be made before the
next can be, "value n" still names one of them. What is known comes from a run of the rank's own
queues and CC-cores, on what they tell one another; waits for DMA rings and other ranks, which
could only teach more, are passed. The rank's program has no control flow.
"""

import itertools
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable, is_run_by
from ncc_runtime.verify.counting.increments import NO_CHAIN, Increments, Owners
from ncc_runtime.verify.places import place_of

_Clock = tuple[int, ...]
"""By chain, how many of its rows are known to be complete."""


@attrs.frozen
class _Event:
    """A row that waits for or increments what the queues of one rank tell one another."""

    row: int
    wait_sem: int
    wait_value: int
    posts: tuple[int, ...]  # semaphores


_Queues = tuple[tuple[_Event, ...], ...]


@attrs.frozen
class _Made:
    """One increment."""

    chain: int
    row: int
    known: _Clock  # when it could be made
    after: _Clock  # known to who sees it


def out_of_turn(
    executable: Executable,
    increments: Sequence[Increments],
    owners: Owners,
    counters: Sequence[int],
) -> Iterator[str]:
    """Pairs of increments of these counters that may come in either order."""
    by_rank: dict[int, list[int]] = {}
    for counter in counters:
        sem, rank = divmod(counter, executable.ranks)
        if owners.foreign[counter]:
            yield _several(executable, increments, counter)
        else:
            by_rank.setdefault(rank, []).append(sem)
    seen: set[tuple[_Queues, tuple[int, ...]]] = set()
    for rank, sems in by_rank.items():
        queues = _queues(executable, increments, owners, rank)
        if (queues, tuple(sems)) in seen:
            continue  # alike as an earlier rank
        seen.add((queues, tuple(sems)))
        made = _run(queues)
        for sem in sems:
            yield from _unordered(executable, (rank, sem), made.get(sem, []))


def _several(executable: Executable, increments: Sequence[Increments], counter: int) -> str:
    """Who increments a counter that should have one owner."""
    sem, rank = divmod(counter, executable.ranks)
    found: list[str] = []
    for number, one in enumerate(increments):
        for cells in one.stretches(np.arange(len(one.first))):
            here = cells.counter == counter
            for source in np.unique(cells.source[here]).tolist():
                kinds = cells.kind[here & (cells.source == source)]
                found.append(place_of(executable, number, int(one.first[kinds].min()), source))
    name = executable.semaphore_names(rank).get(sem, f"s{sem}")
    head = f"rank {rank}: {len(found)} queues increment {name}, in no order that is known"
    return "\n".join([head, *(f"  {place}" for place in found[:4])])


def _queues(
    executable: Executable, increments: Sequence[Increments], owners: Owners, rank: int
) -> _Queues:
    """The events of each queue of a rank; none of DMA rings."""
    mine = slice(rank, None, executable.ranks)
    is_local = (owners.chain[mine] != NO_CHAIN) & ~owners.foreign[mine]
    found: list[tuple[_Event, ...]] = []
    for queue, one in zip(executable.queues, increments, strict=True):
        if isinstance(queue, DmaQueue) or not is_run_by(queue, rank):
            found.append(())
            continue
        wait_sem = _of_rank(queue.sync.wait_sem, rank)
        wait_value = _of_rank(queue.sync.wait_value, rank)
        listens = (wait_sem != IDLE) & is_local[wait_sem]
        posts = _posts(one, rank, is_local)
        tells = np.isin(one.kind, list(posts))
        events = (
            _Event(
                row,
                int(wait_sem[row]) if listens[row] else IDLE,
                int(wait_value[row]),
                posts.get(int(one.kind[row]), ()),
            )
            for row in np.flatnonzero(listens | tells).tolist()
        )
        found.append(tuple(events))
    return tuple(found)


def _of_rank(column: np.ndarray, rank: int) -> np.ndarray:
    return column[:, min(rank, column.shape[1] - 1)]


def _posts(one: Increments, rank: int, is_local: np.ndarray) -> dict[int, tuple[int, ...]]:
    """By kind of row, the semaphores of its own rank that it increments."""
    found: dict[int, tuple[int, ...]] = {}
    for cells in one.stretches(np.arange(len(one.first))):
        own = (cells.source == rank) & (cells.counter % one.ranks == rank)
        pairs = zip(cells.kind[own].tolist(), cells.counter[own].tolist(), strict=True)
        for kind, counter in pairs:
            sem = counter // one.ranks
            if is_local[sem]:
                found[kind] = (*found.get(kind, ()), sem)
    return found


def _run(queues: _Queues) -> dict[int, list[_Made]]:
    """What is incremented, by semaphore, in the order of one run of these queues."""
    made: dict[int, list[_Made]] = {}
    clocks: list[_Clock] = [(0,) * len(queues) for _ in queues]
    left = [list(reversed(events)) for events in queues]
    moved = 1
    while moved:
        moved = sum(_advance(chain, events, clocks, made) for chain, events in enumerate(left))
    return made


def _advance(
    chain: int, events: list[_Event], clocks: list[_Clock], made: dict[int, list[_Made]]
) -> bool:
    """Run a queue, whose next event is the last, as far as it goes; whether it moved."""
    before = len(events)
    while events:
        event = events[-1]
        known = _known(event, clocks[chain], made)
        if known is None:
            break
        clocks[chain] = (*known[:chain], event.row + 1, *known[chain + 1 :])
        for sem in event.posts:
            made.setdefault(sem, []).append(_Made(chain, event.row, known, clocks[chain]))
        events.pop()
    return len(events) < before


def _known(event: _Event, clock: _Clock, made: dict[int, list[_Made]]) -> _Clock | None:
    """What a queue knows behind the wait of its next row; None while that is not satisfied."""
    if event.wait_sem == IDLE or event.wait_value <= 0:
        return clock
    seen = made.get(event.wait_sem, [])
    if len(seen) < event.wait_value:
        return None
    return tuple(map(max, clock, seen[event.wait_value - 1].after))


def _unordered(
    executable: Executable, counter: tuple[int, int], made: Sequence[_Made]
) -> Iterator[str]:
    """Increments by another queue than the last one's, that do not wait for it."""
    rank, sem = counter
    for place, (one, other) in enumerate(itertools.pairwise(made)):
        if one.chain != other.chain and other.known[one.chain] <= one.row:
            name = executable.semaphore_names(rank).get(sem, f"s{sem}")
            yield (
                f"{place_of(executable, other.chain, other.row, rank)}: increments {name} without "
                f"waiting for increment {place + 1} of it\n  "
                f"{place_of(executable, one.chain, one.row, rank)} makes that"
            )
