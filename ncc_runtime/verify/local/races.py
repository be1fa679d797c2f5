"""No two chains of a rank touch the same bytes without order, whatever way control flow takes.

What the counters' proof says is taken for granted: increments of a semaphore come in one order, no
wait reaches over its owner's next control row, jumps shift by what they repeat or skip.
"""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, Executable
from ncc_runtime.verify.flow import flow_of
from ncc_runtime.verify.local.accesses import accesses_of
from ncc_runtime.verify.local.chains import (
    Items,
    Waits,
    chains_of,
    classes_of,
    strangers,
    waits_of,
)
from ncc_runtime.verify.local.clocks import Chains, Tables, counts_of
from ncc_runtime.verify.local.search import Search
from ncc_runtime.verify.local.stretches import Stretches, misplaced, stretches_of, ways_of
from ncc_runtime.verify.local.witness import Teller, rank_text
from ncc_runtime.verify.proof import Proof
from ncc_runtime.verify.stage_parts import StagePart, parts_of

MOST_WITNESSES = 16
"""Races that are told one by one."""


def prove_local(executable: Executable) -> Proof:
    """Races among the engines and streams of one rank, for every rank."""
    looks = [_look(part) for part in parts_of(executable)]
    return Proof(
        name="races of engines",
        size=_size(looks),
        breaches=tuple(breach for look in looks for breach in look.breaches),
        classes=tuple(name for look in looks for name in look.classes),
    )


@attrs.frozen
class _Look:
    """What was looked at of one program, and what was found."""

    rows: int
    classes: tuple[str, ...]
    breaches: tuple[str, ...]
    accesses: int | None = None  # None: the program cannot be followed
    stretches: int = 0  # 0: it has no control flow


def _size(looks: Sequence[_Look]) -> str:
    """How much was looked at, in all programs together."""
    rows = f"{sum(look.rows for look in looks)} rows"
    followed = [look.accesses for look in looks if look.accesses is not None]
    stretches = sum(look.stretches for look in looks)
    parts = f" in {stretches} stretches" if stretches else ""
    text = f"{sum(followed)} accesses of {rows}{parts}" if followed else rows
    return f"{text} of {len(looks)} programs" if len(looks) > 1 else text


def _look(part: StagePart) -> _Look:
    """Races in one program."""
    executable = part.executable
    chains = chains_of(executable)
    classes = classes_of(executable, chains, part.ranks)
    rows = sum(len(items) for items in chains)
    names = tuple(f"{part.title}{rank_text(ranks)}" for ranks in classes)
    flow, faults = flow_of(executable)
    ways = ways_of(part)
    if flow is not None and ways is not None:
        stretches = stretches_of(executable, chains, ways)
        faults = (*strangers(executable, chains), *misplaced(executable, chains, stretches, flow))
    if flow is None or ways is None or faults:
        return _Look(rows, names, tuple(part.title + fault for fault in faults))
    accesses = accesses_of(executable, chains, ways)
    found: list[str] = []
    for ranks in classes:
        one = _chains_on(executable, chains, stretches, int(ranks[0]))
        teller = Teller(executable, one, accesses, ways, int(ranks[0]))
        found += _breaches(Search(ways, Tables(one, counts_of(one)), accesses), teller)
    parts = ways.stretches if ways.blocks else 0
    breaches = tuple(part.title + breach for breach in found)
    return _Look(rows, names, breaches, len(accesses.item), parts)


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
        yield f"{teller.place(chain, item)}: waits for what no queue of its rank increments in time"
    yield from (teller.race(one) for one in races[:MOST_WITNESSES])
    if len(races) > MOST_WITNESSES:
        yield f"… and {len(races) - MOST_WITNESSES} more pairs of rows in no order"
