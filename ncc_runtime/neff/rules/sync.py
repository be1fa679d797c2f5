"""Semaphores: who owns them, who may increment them, and which values can be reached."""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np

from ncc_runtime.neff.isa import ENGINES, PTC2, WAIT
from ncc_runtime.neff.program import MAX_SEMAPHORES, MAX_STREAMS, Program
from ncc_runtime.neff.rules.rule import rule
from ncc_runtime.neff.structure import Structure, stream_counts, structure_of
from ncc_runtime.neff.table import NONE, InstrTable

_STREAMS = {f"stream {stream}": stream for stream in range(MAX_STREAMS)}
_OWNERS = frozenset(engine.value for engine in ENGINES) | _STREAMS.keys()


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
        if semaphore.owner not in _OWNERS:
            yield f"semaphore s{number}: owner {semaphore.owner!r}, known: {sorted(_OWNERS)}"
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
        return  # what is counted where is not known; rules of control flow are broken
    reach = _reached(program, structure)
    for engine in ENGINES:
        table = program.queues[engine]
        stretches = structure.stretches(engine, np.arange(len(table)))
        waits = table.wait_sem != NONE
        final = np.where(waits, reach[table.wait_sem, stretches], 0)
        for pc in np.flatnonzero(waits & (table.wait_value > final)).tolist():
            name = program.semaphores[int(table.wait_sem[pc])].name
            by_then = "ends at" if stretches[pc] == len(structure.rows) else "is by then"
            yield (
                f"queue {engine.value}, pc {pc}: waits for {name} >= {table.wait_value[pc]}, "
                f"which {by_then} {final[pc]}"
            )


def _reached(program: Program, structure: Structure) -> np.ndarray:
    """What each semaphore holds at the end of each stretch, (semaphores + 1, stretches).

    Every block counts once. The last row is for NONE to index.
    """
    reach = np.zeros((len(program.semaphores) + 1, len(structure.rows) + 1), np.int64)
    for engine, table in program.queues.items():
        pcs = np.flatnonzero(table.post_sem != NONE)
        np.add.at(reach, (table.post_sem[pcs], structure.stretches(engine, pcs)), 1)
    reach = np.cumsum(reach, axis=1)
    made = stream_counts(program, structure)
    for number, stream in streams_by_semaphore(program).items():
        reach[number] = made.get(stream, 0)
    return reach


def _waits_for_itself(program: Program, engine: str, table: InstrTable) -> Iterator[str]:
    """A queue that waits for a post of its own must have made it before."""
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
