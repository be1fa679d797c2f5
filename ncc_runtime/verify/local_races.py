"""No two chains of a rank touch the same bytes without order, whatever way control flow takes.

What the counters' proof says is taken for granted: increments of a semaphore come in one order, no
wait reaches over its owner's next control row, jumps shift by what they repeat or skip.
"""

import time
from collections.abc import Iterator, Sequence

import numpy as np

from ncc_runtime.lowering.executable import IDLE, Executable
from ncc_runtime.verify.counter_flow import flow_of
from ncc_runtime.verify.local_accesses import accesses_of
from ncc_runtime.verify.local_chains import (
    Items,
    Waits,
    chains_of,
    classes_of,
    strangers,
    waits_of,
)
from ncc_runtime.verify.local_clocks import Chains, Tables, counts_of
from ncc_runtime.verify.local_search import Search
from ncc_runtime.verify.local_stretches import Stretches, misplaced, stretches_of, ways_of
from ncc_runtime.verify.local_witness import Teller, rank_text
from ncc_runtime.verify.proof import Proof

MOST_WITNESSES = 16
"""Races that are told one by one."""


def prove_local(executable: Executable) -> Proof:
    """Races among the engines and streams of one rank, for every rank."""
    started = time.perf_counter()
    chains = chains_of(executable)
    classes = classes_of(executable, chains)
    breaches, size = _look(executable, chains, classes)
    names = tuple(rank_text(ranks) for ranks in classes)
    return Proof("races of engines", size, time.perf_counter() - started, breaches, names)


def _look(
    executable: Executable, chains: Sequence[Items], classes: Sequence[np.ndarray]
) -> tuple[tuple[str, ...], str]:
    """The breaches, and what was looked at."""
    rows = f"{sum(len(items) for items in chains)} rows"
    flow, faults = flow_of(executable)
    ways = ways_of(executable)
    if flow is None or ways is None:
        return faults, rows
    stretches = stretches_of(executable, chains, ways)
    faults = (*strangers(executable, chains), *misplaced(executable, chains, stretches, flow))
    if faults:
        return faults, rows
    accesses = accesses_of(executable, chains, ways)
    found: list[str] = []
    for ranks in classes:
        one = _chains_on(executable, chains, stretches, int(ranks[0]))
        teller = Teller(executable, one, accesses, ways, int(ranks[0]))
        found += _breaches(Search(ways, Tables(one, counts_of(one)), accesses), teller)
    parts = f" in {ways.stretches} stretches" if ways.blocks else ""
    return tuple(found), f"{len(accesses.item)} accesses of {rows}{parts}"


def _chains_on(
    executable: Executable, items: Sequence[Items], stretches: Stretches, rank: int
) -> Chains:
    """The chains of a rank; semaphores are numbered anew, as far as these chains use them."""
    waits = [waits_of(executable, one, rank) for one in items]
    columns = [column for one in waits for column in (one.sem, *one.posts)]
    used = np.unique(np.concatenate([np.array([IDLE]), *columns]))
    number = np.arange(-1, len(used) - 1)
    names = executable.semaphore_names(rank)

    def dense(column: np.ndarray) -> np.ndarray:
        return number[np.searchsorted(used, column)]

    return Chains(
        items=tuple(items),
        waits=tuple(
            Waits(dense(one.sem), one.value, tuple(map(dense, one.posts))) for one in waits
        ),
        stretch=stretches.stretch,
        controls=stretches.controls,
        names=tuple(names.get(sem, f"semaphore {sem}") for sem in used[1:].tolist()),
    )


def _breaches(search: Search, teller: Teller) -> Iterator[str]:
    races = list(search.races().values())
    for chain, item in dict.fromkeys(search.stuck):
        yield f"{teller.place(chain, item)}: waits for what no queue of its rank increments"
    yield from (teller.race(one) for one in races[:MOST_WITNESSES])
    if len(races) > MOST_WITNESSES:
        yield f"… and {len(races) - MOST_WITNESSES} more pairs of rows in no order"
