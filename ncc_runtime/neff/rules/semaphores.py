"""Rules of semaphores: owners, increments by owners alone, reachable values; and of triggers.

A stream completes its placeholders in the order of their triggers, and its semaphore counts them.
So each placeholder is triggered once, and every rank triggers those of a stream in the same order
on every run: by the queue's own order, or, where several queues trigger, because each trigger is
known to be done before the next one starts. With control flow what is known depends on the path
that a run takes; there, one queue triggers a stream.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.neff.isa import ENGINES, PTC2, WAIT
from ncc_runtime.neff.program import MAX_SEMAPHORES, MAX_STREAMS, Program
from ncc_runtime.neff.rank_queues import OWNERS, rank_queues
from ncc_runtime.neff.rules.rule import rule
from ncc_runtime.neff.structure import Structure, stream_counts, structure_of
from ncc_runtime.neff.table import NONE, InstrTable
from ncc_runtime.order import Chosen, EdgesOfOneRank, Obligations, OrderedQueues, unmet

_STREAMS = {f"stream {stream}": stream for stream in range(MAX_STREAMS)}


def streams_by_semaphore(program: Program) -> Mapping[int, int]:
    """The semaphores that streams increment, and by which stream."""
    return {
        number: _STREAMS[semaphore.owner]
        for number, semaphore in enumerate(program.semaphores)
        if semaphore.owner in _STREAMS
    }


@rule("neff-S1")
def _semaphores_can_be_told_apart(program: Program) -> Iterator[str]:
    if len(program.semaphores) > MAX_SEMAPHORES:
        yield f"{len(program.semaphores)} semaphores, a core has {MAX_SEMAPHORES}"
    uses = Counter(semaphore.name for semaphore in program.semaphores)
    for name, count in uses.items():
        if count > 1:
            yield f"{count} semaphores are called {name!r}"


@rule("neff-S2")
def _owners_exist(program: Program) -> Iterator[str]:
    for number, semaphore in enumerate(program.semaphores):
        if semaphore.owner not in OWNERS:
            yield f"semaphore s{number}: owner {semaphore.owner!r}, known: {sorted(OWNERS)}"
    uses = Counter(streams_by_semaphore(program).values())
    for stream, count in sorted(uses.items()):
        if count > 1:
            yield f"stream {stream} owns {count} semaphores, at most 1"


@rule("neff-S3")
def _only_owners_post(program: Program) -> Iterator[str]:
    for engine in ENGINES:
        posts = program.queues[engine].post_sem
        for pc in np.flatnonzero(posts != NONE).tolist():
            semaphore = program.semaphores[int(posts[pc])]
            if semaphore.owner != engine.value:
                yield (
                    f"queue {engine.value}, pc {pc}: posts {semaphore.name}, "
                    f"which belongs to {semaphore.owner}"
                )


@rule("neff-S4")
def _awaited_values_are_reached(program: Program) -> Iterator[str]:
    for engine in ENGINES:
        yield from _waits_for_itself(program, engine.value, program.queues[engine])
    structure = structure_of(program)
    if structure is None:
        return  # rules of control flow are broken: what is counted where is not known
    reach = _reached(program, structure)
    for engine in ENGINES:
        table = program.queues[engine]
        phases = structure.phases(engine, np.arange(len(table)))
        waits = table.wait_sem != NONE
        final = np.where(waits, reach[table.wait_sem, phases], 0)
        for pc in np.flatnonzero(waits & (table.wait_value > final)).tolist():
            name = program.semaphores[int(table.wait_sem[pc])].name
            by_then = "ends at" if phases[pc] == len(structure.rows) else "is by then"
            yield (
                f"queue {engine.value}, pc {pc}: waits for {name} >= {table.wait_value[pc]}, "
                f"which {by_then} {final[pc]}"
            )


def _reached(program: Program, structure: Structure) -> np.ndarray:
    """What each semaphore holds at the end of each phase, (semaphores + 1, phases).

    Every block counts once. The last row is for NONE to index.
    """
    reach = np.zeros((len(program.semaphores) + 1, len(structure.rows) + 1), np.int64)
    for engine, table in program.queues.items():
        pcs = np.flatnonzero(table.post_sem != NONE)
        np.add.at(reach, (table.post_sem[pcs], structure.phases(engine, pcs)), 1)
    reach = np.cumsum(reach, axis=1)
    completed = stream_counts(program, structure)
    for number, stream in streams_by_semaphore(program).items():
        reach[number] = completed.get(stream, 0)
    return reach


def _waits_for_itself(program: Program, engine: str, table: InstrTable) -> Iterator[str]:
    """Waits of a queue for an increment that it makes itself, but later."""
    for number, semaphore in enumerate(program.semaphores):
        if semaphore.owner != engine:
            continue
        before = np.cumsum(table.post_sem == number) - (table.post_sem == number)
        early = (table.wait_sem == number) & (table.wait_value > before)
        for pc in np.flatnonzero(early).tolist():
            yield (
                f"queue {engine}, pc {pc}: waits for its own {semaphore.name} >= "
                f"{table.wait_value[pc]}, after {before[pc]} posts"
            )


@rule("neff-S5")
def _control_has_its_subject(program: Program) -> Iterator[str]:
    """`wait` waits or posts, `ptc2` names a placeholder, nothing else does."""
    for engine in ENGINES:
        table = program.queues[engine]
        names = np.array(table.names(), dtype=object)
        triggers, named = names == PTC2, table.placeholder != NONE
        idle = (table.wait_sem == NONE) & (table.post_sem == NONE)
        for pc in np.flatnonzero((names == WAIT) & idle).tolist():
            yield f"queue {engine.value}, pc {pc}: wait without a semaphore"
        for pc in np.flatnonzero(triggers & ~named).tolist():
            yield f"queue {engine.value}, pc {pc}: ptc2 without a placeholder"
        for pc in np.flatnonzero(~triggers & named).tolist():
            yield f"queue {engine.value}, pc {pc}: {names[pc]} with a placeholder"


RULES = (
    _semaphores_can_be_told_apart,
    _owners_exist,
    _only_owners_post,
    _awaited_values_are_reached,
    _control_has_its_subject,
)


@attrs.frozen
class _TriggerSite:
    """Where a placeholder is triggered."""

    queue: int
    pc: int

    def __str__(self) -> str:
        return f"queue {ENGINES[self.queue].value}, pc {self.pc}"


def _triggers(program: Program) -> Iterator[tuple[int, _TriggerSite]]:
    for queue, engine in enumerate(ENGINES):
        column = program.queues[engine].placeholder
        for pc in np.flatnonzero(column != NONE).tolist():
            yield int(column[pc]), _TriggerSite(queue, pc)


@rule("neff-P7")
def _each_is_triggered_once(program: Program) -> Iterator[str]:
    counts = Counter(number for number, _ in _triggers(program))
    for number in range(len(program.placeholders)):
        if counts[number] != 1:
            yield f"placeholder p{number}: triggered {counts[number]} times, must be once"


@rule("neff-P8")
def _streams_have_one_order(program: Program) -> Iterator[str]:
    triggers = dict(_triggers(program))
    pairs: list[tuple[int, int]] = []  # placeholders that follow one another on a stream
    latest: dict[int, int] = {}  # by stream
    for number, placeholder in enumerate(program.placeholders):
        if not 0 <= placeholder.stream < MAX_STREAMS:
            yield f"placeholder p{number}: stream {placeholder.stream}, there are {MAX_STREAMS}"
        elif number in triggers:
            if placeholder.stream in latest:
                pairs.append((latest[placeholder.stream], number))
            latest[placeholder.stream] = number
    unordered = set()
    across = []  # pairs that two queues trigger
    for pair in pairs:
        first, second = triggers[pair[0]], triggers[pair[1]]
        if first.queue != second.queue:
            across.append(pair)
        elif first.pc >= second.pc:
            unordered.add(pair)
    missed = "without waiting for"
    if program.blocks:
        unordered.update(across)
        missed = "with control flow, not in the queue of"
    elif across:
        unordered |= _unordered(program, triggers, across)
    for a, b in pairs:
        if (a, b) in unordered:
            yield f"placeholder p{b}: triggered at {triggers[b]} {missed} p{a}"


def _unordered(
    program: Program, triggers: Mapping[int, _TriggerSite], pairs: Sequence[tuple[int, int]]
) -> set[tuple[int, int]]:
    """Pairs of which the second is triggered without knowing that the first is, by vector clocks.

    The program has no blocks. Triggers that no run reaches are for the proof of deadlock to report.
    """
    structure = structure_of(program)
    if structure is None:
        return set()  # rules of control flow are broken: there are control rows of no block
    edges = EdgesOfOneRank(rank_queues(program, structure).targets)
    done = edges.run()
    pairs = [(a, b) for a, b in pairs if triggers[b].pc < done.reached[triggers[b].queue][0]]
    queue, pc, of_queue, of_pc = (
        np.array(
            [
                (triggers[b].queue, triggers[b].pc, triggers[a].queue, triggers[a].pc)
                for a, b in pairs
            ],
            np.int64,
        )
        .reshape(-1, 4)
        .T
    )
    due = Obligations.of(0, queue, pc, 0, of_queue, of_pc)
    longest = max(map(len, edges.rows))
    queues = OrderedQueues(len(edges.rows), 1, longest, edges, done.batches)
    lost = unmet(queues, Chosen(1, np.zeros(1, np.int64)), due)
    return {pair for pair, is_lost in zip(pairs, lost.tolist(), strict=True) if is_lost}


ORDER_RULES = (_each_is_triggered_once, _streams_have_one_order)
