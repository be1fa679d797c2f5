"""Mutants of an executable: one fault each, by kind, made only when asked for.

A site is a place where a kind of fault fits. Which of them are faults, and which change nothing
that any run can do, is for the model checker to say.
"""

import itertools
import random
from collections.abc import Collection, Iterator

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    EngineQueue,
    Executable,
    Queue,
    descriptors,
)
from ncc_runtime.neff.program import BlockKind
from tests import mutant_edits as edit
from tests.model_checker_counts import growth, most_trips
from tests.mutants_of_transfers import Cells, Site, ring_sites, route_sites


@attrs.frozen(eq=False)
class Mutant:
    """An executable with one fault."""

    kind: str
    about: str
    executable: Executable


def sites(executable: Executable, seed: int, most_cells: int | None = None) -> Iterator[Site]:
    """Every place for every kind of fault; in large queues, at a number of random cells each."""
    cells = Cells(random.Random(seed), most_cells)
    yield from route_sites(executable, cells)
    yield from _ring_size_sites(executable)
    yield from _trip_sites(executable)
    names = [executable.semaphore_names(rank) for rank in range(executable.ranks)]
    for number, queue in enumerate(executable.queues):
        if isinstance(queue, DmaQueue):
            yield from ring_sites(executable, number, queue, cells)
        else:
            yield from _wait_sites(executable, number, cells, names)
            yield from _jump_sites(executable, number, queue)
        if isinstance(queue, CcQueue):
            yield from _cc_sites(executable, number, queue, cells)
        yield from _post_sites(executable, number, cells)


def sample(
    executable: Executable,
    seed: int,
    of_each_kind: int | None,
    *,
    kinds: Collection[str] | None = None,
    most_cells: int | None = None,
) -> list[Mutant]:
    """Some mutants of each kind, all of them if no number is given."""
    by_kind: dict[str, list[Site]] = {}
    for site in sites(executable, seed, most_cells):
        if kinds is None or site[0] in kinds:
            by_kind.setdefault(site[0], []).append(site)
    generator = random.Random(seed)
    found = []
    for kind in sorted(by_kind):
        there = by_kind[kind]
        if of_each_kind is not None and len(there) > of_each_kind:
            there = generator.sample(there, of_each_kind)
        found += [Mutant(kind, about, make()) for _, about, make in there]
    return found


def _role(queue: Queue, name: str) -> str:
    """What a semaphore tells: an engine's own, or the kind of it in a stream."""
    if isinstance(queue, EngineQueue):
        return "engine"
    kind = next((one for one in ("data", "ready", "free") if f".{one}." in name), "")
    return kind or ("sent" if ".sent" in name else "trigger" if "trigger" in name else "other")


def _waiting(
    executable: Executable, queue: Queue, cells: Cells
) -> Iterator[tuple[int, int, int, int]]:
    """(row, rank, semaphore, value) of every wait."""
    shape = (len(queue.sync.wait_sem), executable.ranks)
    sem = np.broadcast_to(queue.sync.wait_sem, shape)
    value = np.broadcast_to(queue.sync.wait_value, shape)
    for row, rank in cells.some(np.argwhere(sem != IDLE)):
        yield row, rank, int(sem[row, rank]), int(value[row, rank])


def _wait_sites(
    executable: Executable, number: int, cells: Cells, names: list[dict[int, str]]
) -> Iterator[Site]:
    queue = executable.queues[number]
    for row, rank, sem, value in _waiting(executable, queue, cells):
        where = f"rank {rank}, {queue.name} {row}: {sem}>={value}"
        others = [one for one in sorted(names[rank]) if one != sem]
        other = others[(row + sem) % len(others)] if others else sem
        for kind, new_sem, new_value in (
            ("wait dropped", IDLE, 0),
            ("wait value + 1", sem, value + 1),
            ("wait value - 1", sem, value - 1),
            ("wait for another semaphore", other, value),
        ):

            def make(new_sem=new_sem, new_value=new_value, cell=(row, rank)) -> Executable:
                return edit.with_wait(executable, number, cell, new_sem, new_value)

            yield f"{kind}: {_role(queue, names[rank][sem])}", where, make


def _post_sites(executable: Executable, number: int, cells: Cells) -> Iterator[Site]:
    queue = executable.queues[number]
    for which, post in enumerate(queue.sync.posts):
        for row, rank in cells.some(np.argwhere(post.rank != IDLE)):
            kind = _posted(queue, which, row)
            if kind == "arrival" and post.rank[row, rank] == rank:
                kind = "arrival at home"  # nobody waits for it
            if kind:  # else a push
                cell, to = (row, rank), (int(post.rank[row, rank]), int(post.sem[row, rank]))
                yield from _posts_of(executable, number, which, cell, to, kind)


def _posted(queue: Queue, which: int, row: int) -> str:
    """What a post tells; nothing of an ADVANCE, whose post is the push."""
    if isinstance(queue, EngineQueue):
        return "engine"
    if isinstance(queue, DmaQueue):
        return ("arrival", "sent")[which] if which < 2 else "other"
    opcode = CcOpcode(int(queue.opcode[row]))
    return "" if opcode is CcOpcode.ADVANCE else opcode.name.lower()


def _posts_of(
    executable: Executable,
    number: int,
    which: int,
    cell: edit.Cell,
    to: tuple[int, int],
    kind: str,
) -> Iterator[Site]:
    rank, sem = to
    where = f"rank {cell[1]}, {executable.queues[number].name} {cell[0]}: {sem} on {rank}"
    changes = [("post dropped", (IDLE, IDLE))]
    if executable.semaphore_count > 1:
        other = (rank, (sem + 1) % executable.semaphore_count)
        changes.append(("post of another semaphore", other))
    if executable.ranks > 1:
        changes.append(("post on another rank", ((rank + 1) % executable.ranks, sem)))
    for name, post in changes:

        def make(post=post) -> Executable:
            return edit.with_post(executable, number, which, cell, post)

        yield f"{name}: {kind}", where, make
    yield f"post twice: {kind}", where, lambda: edit.with_more_posts(executable, number, cell, to)


def _cc_sites(executable: Executable, number: int, queue: CcQueue, cells: Cells) -> Iterator[Site]:
    rows = list(range(len(queue.opcode)))
    pushing = np.flatnonzero(queue.opcode == CcOpcode.ADVANCE)
    for row in [] if queue.jumps else cells.some_rows(rows[:-1]):
        order = [*rows[:row], row + 1, row, *rows[row + 2 :]]

        def swap(order=order) -> Executable:
            return edit.with_cc_rows(executable, number, order)

        yield "steps of a CC-core swapped", f"{queue.name} {row} and {row + 1}", swap
    for row in [] if queue.jumps else cells.some_rows(pushing.tolist()):
        order = [*rows[: row + 1], *rows[row:]]

        def again(order=order) -> Executable:
            return edit.with_cc_rows(executable, number, order)

        yield "descriptor pushed twice", f"{queue.name} {row}", again
    yield from _swapped_pushes(executable, number, queue, cells)
    yield from _crossed_signals(executable, number, queue, cells)
    active = queue.sync.posts[0].rank[pushing] != IDLE
    for at, rank in cells.some(np.argwhere(active)):

        def drop(cell=(int(pushing[at]), rank)) -> Executable:
            return edit.with_post(executable, number, 0, cell, (IDLE, IDLE))

        yield "descriptor not pushed", f"rank {rank}, {queue.name} {pushing[at]}", drop


def _swapped_pushes(
    executable: Executable, number: int, queue: CcQueue, cells: Cells
) -> Iterator[Site]:
    for lane in np.unique(queue.ring[queue.ring != IDLE]).tolist():
        pushing = np.flatnonzero((queue.ring == lane) & (queue.opcode == CcOpcode.ADVANCE))
        for at in cells.some_rows(list(range(len(pushing) - 1))):
            rows = int(pushing[at]), int(pushing[at + 1])

            def swap(rows=rows) -> Executable:
                return edit.with_pushes_swapped(executable, number, rows)

            yield "descriptors pushed in another order", f"{queue.name} {rows}", swap


def _crossed_signals(
    executable: Executable, number: int, queue: CcQueue, cells: Cells
) -> Iterator[Site]:
    """Ranks of two groups of a collective signal each for the other, in all its rows."""
    for at, placeholder in enumerate(executable.program.placeholders):
        mine = (queue.placeholder == at) & (queue.opcode == CcOpcode.SIGNAL)
        to = queue.sync.posts[0].rank
        for one, other in itertools.combinations(placeholder.groups, 2):
            for ranks in zip(one, other, strict=False):
                rows = np.flatnonzero(mine & (to[:, ranks] != IDLE).all(axis=1)).tolist()

                def cross(rows=rows, ranks=ranks) -> Executable:
                    return edit.with_posts_crossed(executable, number, rows, ranks)

                if rows:
                    yield "signals of two groups crossed", f"p{at}, ranks {ranks}", cross


def _trip_sites(executable: Executable) -> Iterator[Site]:
    """Loops that run just as often as counters can count, and once more."""
    for block, description in enumerate(executable.program.blocks):
        if description.kind is BlockKind.LOOP and growth(executable, block)[1]:
            most = most_trips(executable, block)
            for kind, trips in (("loop of most trips", most), ("loop of too many trips", most + 1)):

                def make(block=block, trips=trips) -> Executable:
                    return edit.with_trips(executable, block, trips)

                yield kind, f"k{block}: {trips} trips", make


def _jump_sites(
    executable: Executable, number: int, queue: CcQueue | EngineQueue
) -> Iterator[Site]:
    waits = _waiting(executable, queue, Cells(random.Random(0), None))
    awaited = sorted({(rank, sem) for _, rank, sem, _ in waits})
    name = "engine" if isinstance(queue, EngineQueue) else "CC-core"
    for row in queue.jumps:
        for cell in awaited:
            for by in (-1, 1):

                def make(row=row, cell=cell, by=by) -> Executable:
                    return edit.with_shift(executable, number, row, cell, by)

                where = f"rank {cell[0]}, {queue.name} {row}: semaphore {cell[1]} by {by}"
                yield f"jump shifts wrongly: {name}", where, make
    for row, jump in queue.jumps.items():
        for target in sorted({jump.target - 1, jump.target + 1, row + 1} - {jump.target}):
            if not 0 <= target <= len(queue.sync.wait_sem):
                continue

            def lead(row=row, target=target) -> Executable:
                return edit.with_jump(executable, number, row, target=target)

            kind = "jump that skips nothing" if target == row + 1 else "jump to another row"
            yield f"{kind}: {name}", f"{queue.name} {row}: {jump.target} to {target}", lead
        blocks = executable.program.blocks
        for block, other in enumerate(blocks):
            mine = blocks[jump.block]
            if other.kind is mine.kind and other.predicate != mine.predicate:

                def decide(row=row, block=block) -> Executable:
                    return edit.with_jump(executable, number, row, block=block)

                where = f"{queue.name} {row}: k{jump.block} to k{block}"
                yield f"jump decided by another block: {name}", where, decide


def _ring_size_sites(executable: Executable) -> Iterator[Site]:
    """Rings that hold just the largest run of descriptors, and rings that do not."""
    rings = [one for one in executable.queues if isinstance(one, DmaQueue) and one.opcode.size]
    if not rings:
        return
    largest = max(int(descriptors(ring.size_bytes).max()) for ring in rings)
    enough = -(-largest // executable.topology.rank_dma_engines)
    for kind, size in (("ring just large enough", enough), ("ring too small", enough - 1)):

        def make(size=size) -> Executable:
            return edit.with_ring_size(executable, size)

        yield kind, f"{size} descriptors an engine", make
