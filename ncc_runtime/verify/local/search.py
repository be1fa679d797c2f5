"""The search for races among one rank's chains: stretch by stretch, then what follows.

First every stretch by itself, behind each control row that leads to it. Where all chains know all
of it at the control row at its end, nothing that follows can race with it. Else a walk (`paths`)
looks at what follows, as far as that touches what not everybody knows of.
"""

from collections.abc import Callable, Sequence
from functools import partial

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.verify.local.accesses import Accesses
from ncc_runtime.verify.local.clocks import Burst, Clock, Run, Tables
from ncc_runtime.verify.local.conflicts import Frontier, Performed, performed, unordered
from ncc_runtime.verify.local.paths import START, Begin, Trail, Walk, Ways

ENOUGH = 100
"""Races after which no more are looked for behind a stretch."""


@attrs.frozen
class Cure:
    """A wait that would make the later access know of the earlier one."""

    sem: int
    value: int
    item: int  # of the earlier chain, which increments it


@attrs.frozen
class Access:
    """An access as a race has it."""

    chain: int
    item: int
    access: int  # of Accesses


@attrs.frozen
class Race:
    """Two accesses that nothing orders, on some way; in this order if it runs as listed."""

    begin: Begin
    trail: Trail
    earlier: Access
    later: Access
    known: int  # the last item of the earlier chain that the later access knows of, -1 for none
    cure: Cure | None

    @property
    def key(self) -> tuple[int, int, int, int]:
        """Which items meet."""
        return self.earlier.chain, self.earlier.item, self.later.chain, self.later.item


class Search:
    """All ways of one rank's chains that matter."""

    def __init__(self, ways: Ways, tables: Tables, accesses: Accesses) -> None:
        self.stuck: list[tuple[int, int]] = []  # chains and items that never may begin
        self.ways = ways
        self.tables = tables
        self.accesses = accesses
        self._watchers = _watchers(tables)
        self._touched = [_last_touched(starts) for starts in accesses.starts]
        self._others = ways.others()

    def races(self) -> dict[tuple[int, int, int, int], Race]:
        """One race for each two items that meet without order."""
        begins = list(self.ways.begins())
        unsettled: list[Begin] = []
        found: dict[tuple[int, int, int, int], Race] = {}
        done = self._alone(begins, unsettled)
        for one, other in unordered(self.accesses, done):
            begin = begins[int(done.unit[one])]
            run = Run(self.tables)
            run.begin(begin)
            race = _race(self.accesses, run, (begin, ()), (done, one), (done, other))
            found.setdefault(race.key, race)
        for begin in unsettled:
            if len(found) >= ENOUGH:
                break
            for race in _Explorer(self, begin).races():
                found.setdefault(race.key, race)
        return found

    def _alone(self, begins: Sequence[Begin], unsettled: list[Begin]) -> Performed:
        """Perform each stretch by itself; notes those of which not everybody knows all."""
        bursts: list[Burst] = []
        epochs: list[tuple[int, Clock]] = []
        units: list[int] = []
        time = 0
        for unit, begin in enumerate(begins):
            run = Run(self.tables, time)
            went = run.begin(begin)
            time = run.time
            bursts += run.bursts
            epochs += run.epochs
            units += [unit] * len(run.bursts)
            self.stuck += [run.stuck] if run.stuck else []
            ends = begin.stretch == self.ways.stretches - 1
            if went and not ends and not self.is_known(run, self.limits(run, begin)):
                unsettled.append(begin)
        return performed(self.accesses, bursts, epochs, units)

    def limits(self, run: Run, begin: Begin) -> Clock:
        """How many items of each chain have accesses before the control row at the end."""
        limits = []
        for chain, (first, behind, *_) in enumerate(self.tables.spans[begin.stretch]):
            ends = self.tables.chains.controls[chain][begin.stretch] >= 0
            touched = int(self._touched[chain][behind - ends])
            here = run.counts[chain] - behind + touched if touched > first else 0
            limits.append(here or int(self._leads(chain, begin.row)))
        return limits

    def _leads(self, chain: int, row: int) -> bool:
        """Whether a chain's item at a control row reads a predicate."""
        item = -1 if row == START else int(self.tables.chains.controls[chain][row])
        starts = self.accesses.starts[chain]
        return item >= 0 and bool(starts[item + 1] > starts[item])

    def least_known(self, run: Run) -> Clock:
        """How many items of each chain are known to all others that do not learn of them."""
        return [
            min((run.known[one][chain] for one in self._watchers if one != chain), default=2**62)
            for chain in range(len(run.counts))
        ]

    def is_known(self, run: Run, limits: Clock) -> bool:
        """Whether everybody knows of so many items of each chain."""
        known = self.least_known(run)
        return all(have >= limit for have, limit in zip(known, limits, strict=True))

    def wanted(self, frontier: Frontier) -> np.ndarray:
        """How many accesses up to each stretch conflict with a frontier, (stretches + 1,)."""
        access = np.flatnonzero(frontier.conflicts())
        chain, item = self.accesses.chain[access], self.accesses.item[access]
        found = np.zeros(self.ways.stretches + 1, np.int64)
        for number, stretch in enumerate(self.tables.chains.stretch):
            np.add.at(found, stretch[item[chain == number]] + 1, 1)
        return np.cumsum(found)

    def barred(self, begin: Begin) -> frozenset[int]:
        """Branches that are not taken on the occasion of a stretch: others were."""
        spans = self.ways.structure.block_rows
        taken = {
            block
            for block in self._others
            if spans[block].decides < begin.stretch <= spans[block].ends
            or begin.row == spans[block].ends
        }
        return frozenset[int]().union(
            *(self._others[block] for block in taken if self._is_settled(block))
        )

    def _is_settled(self, block: int) -> bool:
        """Whether nobody writes the predicate between the first and the last of its branches."""
        accesses, stretch = self.accesses, self.tables.chains.stretch
        reads = np.flatnonzero(accesses.tensor == self.ways.blocks[block].predicate)[:1]
        meets = accesses.first < accesses.behind[reads]
        meets &= accesses.first[reads] < accesses.behind
        writes = np.flatnonzero(meets & accesses.is_write)
        pairs = zip(accesses.chain[writes].tolist(), accesses.item[writes].tolist(), strict=True)
        between = [int(stretch[chain][item]) for chain, item in pairs]
        spans = self.ways.structure.block_rows
        places = [spans[one].decides for one in (*self._others[block], block)]
        return not any(min(places) < at <= max(places) for at in between)


class _Explorer:
    """Walks on behind a stretch, and looks at what conflicts with it."""

    def __init__(self, search: Search, begin: Begin) -> None:
        self._search = search
        self._begin = begin
        self._run = Run(search.tables)
        self._run.begin(begin)
        self._limits = search.limits(self._run, begin)
        self._done = self._since((0, 0))
        least = search.least_known(self._run)
        self._frontier = Frontier(search.accesses, self._done, self._limits, least)
        self._wanted = search.wanted(self._frontier)
        self._found: list[Race] = []

    def races(self) -> list[Race]:
        """Everything that meets the stretch without order, on the weakest ways."""
        Walk(self._search.ways, self._begin, self).go(self._search.barred(self._begin))
        return self._found

    def wants(self, first: int, last: int) -> bool:
        """Whether stretches first to last have accesses that conflict."""
        return bool(self._wanted[last + 1] > self._wanted[first]) if first <= last else False

    def enter(self, stretch: int, trail: Trail) -> bool:
        """Perform a stretch; false where nothing behind it matters any more."""
        since = self._here()
        went = self._run.step(stretch)
        if self.wants(stretch, stretch):
            done, way = self._since(since), (self._begin, trail)
            for one, other in self._frontier.unknown_to(done):
                pair = (self._done, one), (done, other)
                self._found.append(_race(self._search.accesses, self._run, way, *pair))
        return went and not self._search.is_known(self._run, self._limits)

    def mark(self) -> Callable[[], None]:
        """What brings the run back to here."""
        return partial(self._run.back, self._run.mark())

    def _here(self) -> tuple[int, int]:
        return len(self._run.bursts), len(self._run.epochs)

    def _since(self, place: tuple[int, int]) -> Performed:
        bursts, epochs = self._run.bursts[place[0] :], self._run.epochs[place[1] :]
        return performed(self._search.accesses, bursts, epochs, [0] * len(bursts))


_Way = tuple[Begin, Trail]
_One = tuple[Performed, int]


def _race(accesses: Accesses, run: Run, way: _Way, earlier: _One, later: _One) -> Race:
    """A race and what would mend it; the run stands where the later access was performed."""
    chain = int(earlier[0].chain[earlier[1]])
    clock = later[0].clocks[later[0].clock[later[1]]]
    return Race(
        *way,
        earlier=_access(accesses, earlier),
        later=_access(accesses, later),
        known=run.item(chain, int(clock[chain])),
        cure=_cure(run, chain, int(earlier[0].count[earlier[1]])),
    )


def _access(accesses: Accesses, one: _One) -> Access:
    done, number = one
    access = int(done.access[number])
    return Access(int(done.chain[number]), int(accesses.item[access]), access)


def _cure(run: Run, chain: int, count: int) -> Cure | None:
    """The first increment of a chain, from an item on, by which others could learn of it."""
    for sem, number, made in run.increments_of(chain):
        if made >= count:
            return Cure(sem, number, run.item(chain, made))
    return None


def _watchers(tables: Tables) -> list[int]:
    """The chains that must know of a stretch themselves.

    A stream need not where each of its items waits for an increment of its own stretch: whoever
    makes that knows.
    """
    found = []
    entry = np.array(tables.entry)
    chains = tables.chains
    for number, (items, waits) in enumerate(zip(chains.items, chains.waits, strict=True)):
        told = waits.value > entry[chains.stretch[number], waits.sem]
        is_led = (waits.sem != IDLE) & told
        if items.engine is not None or not is_led.all():
            found.append(number)
    return found


def _last_touched(starts: np.ndarray) -> np.ndarray:
    """For every item of a chain, how many items up to the last before it that has accesses."""
    numbers: np.ndarray = np.arange(1, len(starts))
    has = np.where(starts[1:] > starts[:-1], numbers, 0)
    return np.append(0, np.maximum.accumulate(has))
