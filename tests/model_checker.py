"""All interleavings of an executable, one by one: deadlocks, races and wrong values.

A state is how far every chain of every rank has come; rows are atomic. A row is enabled if its
semaphore holds enough, its ring was pushed and has room. A race is a reachable state in which two
conflicting rows of different chains are enabled together. The contract counts: what a placeholder
owns is accessed by its trigger and its completion.

To keep graphs small a row that conflicts with nothing that is still to come is taken at once:
counters only grow, so it disables nothing, and it is part of no race that is still ahead.
`reduced=False` goes without that.
"""

from collections.abc import Iterator, Sequence

import attrs

from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.placeholder import CollectiveOp
from tests.model_checker_counts import overflows
from tests.model_checker_routes import broken_routes
from tests.model_checker_rows import Way, chains_of
from tests.model_checker_steps import EVERYBODY, Access, Row, Stage, Visit
from tests.model_checker_values import Memory, strays, unit_of
from tests.model_checker_ways import ways_by_rank

NEVER = 1 << 30

State = tuple[int, ...]


class TooManyStatesError(Exception):
    """The graph is larger than the checker was told to explore."""


@attrs.frozen
class Verdict:
    """What some interleaving can do wrong."""

    deadlocks: tuple[str, ...] = ()
    races: tuple[str, ...] = ()
    wrong: tuple[str, ...] = ()  # values
    routes: tuple[str, ...] = ()
    counts: tuple[str, ...] = ()
    states: int = 0

    @property
    def kinds(self) -> frozenset[str]:
        """What is wrong; empty if nothing is."""
        found = {
            "deadlock": self.deadlocks,
            "races": self.races,
            "values": self.wrong,
            "routes": self.routes,
            "counts": self.counts,
        }
        return frozenset(name for name, what in found.items() if what)

    def __or__(self, other: "Verdict") -> "Verdict":
        return Verdict(
            self.deadlocks + other.deadlocks,
            self.races + other.races,
            self.wrong + other.wrong,
            self.routes + other.routes,
            self.counts + other.counts,
            self.states + other.states,
        )


def check(
    executable: Executable,
    *,
    reduced: bool = True,
    most_states: int = 200_000,
) -> Verdict:
    """Everything that any interleaving, on any way through the blocks, can do wrong."""
    found = Verdict(routes=tuple(broken_routes(executable)), counts=tuple(overflows(executable)))
    for way in ways_by_rank(executable.program):
        found |= check_way(executable, way, reduced, most_states)
    return found


def check_way(
    executable: Executable, way: Sequence[Way], reduced: bool, most_states: int
) -> Verdict:
    """The same on one way."""
    graph = Graph(executable, chains_of(executable, way))
    return graph.explore(reduced, most_states)


@attrs.define(eq=False)
class Graph:
    """Chains, who waits for whom, and what conflicts."""

    executable: Executable
    chains: Sequence[Sequence[Row]]
    _needs: list[list[list[tuple[int, int]]]] = attrs.field(init=False)
    _sums: dict[tuple[int, int], tuple[int, list[tuple[int, list[int]]]]] = attrs.field(init=False)
    followers: list[set[int]] = attrs.field(init=False)
    """By chain, the chains with a row that waits for one of its rows."""
    _rivals: list[list[dict[int, list[int]]]] = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        self._sums = {}
        self._needs = [[list(row.after) for row in chain] for chain in self.chains]
        self._add_waits()
        self.followers = [set() for _ in self.chains]
        for number, rows in enumerate(self._needs):
            for other, _ in (need for needs in rows for need in needs):
                self.followers[other].add(number)
        for (number, _), (_, posters) in self._sums.items():
            for other, _ in posters:
                self.followers[other].add(number)
        self._rivals = [[{} for _ in chain] for chain in self.chains]
        self._add_rivals()

    def _add_waits(self) -> None:
        posts: dict[tuple[int, int], dict[int, list[int]]] = {}
        for number, chain in enumerate(self.chains):
            for position, row in enumerate(chain):
                for post in row.posts:
                    posts.setdefault(post, {}).setdefault(number, []).append(position)
        for number, chain in enumerate(self.chains):
            for position, row in enumerate(chain):
                if row.wait is None:
                    continue
                rank, sem, value = row.wait
                posters = posts.get((rank, sem), {})
                if len(posters) > 1:
                    self._sums[number, position] = value, list(posters.items())
                    continue
                other, made = next(iter(posters.items()), (0, []))
                done = made[value - 1] + 1 if value <= len(made) else NEVER
                self._needs[number][position].append((other, done))

    def _add_rivals(self) -> None:
        by_rank: dict[int, list[tuple[Access, int, int]]] = {}
        for number, chain in enumerate(self.chains):
            for position, row in enumerate(chain):
                for access in (*row.accesses, *self._barrier(row)):
                    by_rank.setdefault(access.rank, []).append((access, number, position))
        for accesses in by_rank.values():
            accesses.sort(key=lambda one: one[0].start)
            for index, first in enumerate(accesses):
                for second in accesses[index + 1 :]:
                    if second[0].start >= first[0].end:
                        break
                    if first[1] != second[1] and first[0].conflicts(second[0]):
                        self._rival(first[1:], second[1:])
                        self._rival(second[1:], first[1:])
        for places in (found for rows in self._rivals for row in rows for found in row.values()):
            places.sort()

    def _rival(self, one: tuple[int, int], other: tuple[int, int]) -> None:
        found = self._rivals[one[0]][one[1]].setdefault(other[0], [])
        if other[1] not in found:
            found.append(other[1])

    def _barrier(self, row: Row) -> Iterator[Access]:
        """Coming to a barrier writes a byte of its own for everybody, leaving reads them."""
        visit = row.effect
        if not isinstance(visit, Visit) or visit.stage is Stage.BEGUN:
            return
        placeholder = self.executable.program.placeholders[visit.placeholder]
        if placeholder.op is not CollectiveOp.BARRIER:
            return
        at = (visit.placeholder * 64 + visit.occasion) * self.executable.ranks
        group = next(one for one in placeholder.groups if visit.rank in one)
        comes = visit.stage is Stage.ASKED
        for rank in (visit.rank,) if comes else group:
            yield Access(EVERYBODY, at + rank, at + rank + 1, comes)

    def is_enabled(self, state: Sequence[int], chain: int) -> bool:
        """Whether the next row of a chain may be performed."""
        position = state[chain]
        if position >= len(self.chains[chain]):
            return False
        for other, done in self._needs[chain][position]:
            if state[other] < done:
                return False
        if (chain, position) not in self._sums:
            return True
        value, posters = self._sums[chain, position]
        return value <= sum(sum(at < state[other] for at in made) for other, made in posters)

    def _ready_after(self, state: State, ready: Sequence[int], chain: int) -> Sequence[int]:
        """Which chains are enabled once a row of one is performed: counters only grow."""
        found = {*ready}
        if not self.is_enabled(state, chain):
            found.discard(chain)
        found.update(
            one
            for one in self.followers[chain]
            if one != chain and one not in found and self.is_enabled(state, one)
        )
        return sorted(found)

    def _is_quiet(self, state: State, chain: int) -> bool:
        for other, rows in self._rivals[chain][state[chain]].items():
            if state[other] <= rows[-1]:
                return False
        return True

    def explore(self, reduced: bool, most_states: int) -> Verdict:
        """Visit every reachable state."""
        start = (0,) * len(self.chains)
        at_start = [chain for chain in range(len(start)) if self.is_enabled(start, chain)]
        seen, stack = {start}, [(start, at_start)]
        deadlocks: dict[str, None] = {}
        races: dict[str, None] = {}
        wrong: dict[str, None] = dict.fromkeys(self.strays())
        while stack:
            state, ready = stack.pop()
            if not ready:
                deadlocks.update(dict.fromkeys(self.stuck(state)))
            for pair in self._racing(state, ready):
                (wrong if self.is_barrier(state, pair) else races)[self.about(state, pair)] = None
            quiet = next(([one] for one in ready if reduced and self._is_quiet(state, one)), None)
            for chain in quiet or ready:
                after = (*state[:chain], state[chain] + 1, *state[chain + 1 :])
                if after not in seen:
                    seen.add(after)
                    stack.append((after, self._ready_after(after, ready, chain)))
            if len(seen) > most_states:
                raise TooManyStatesError(f"more than {most_states} states")
        if not races and not deadlocks:
            wrong.update(dict.fromkeys(self.values()))
        found = (tuple(sorted(one)) for one in (deadlocks, races, wrong))
        return Verdict(*found, states=len(seen))

    def rivalries(self) -> Iterator[tuple[tuple[int, int], tuple[int, int]]]:
        """Every pair of conflicting rows of different chains, as (chain, row), once."""
        for chain, rows in enumerate(self._rivals):
            for row, rivals in enumerate(rows):
                for other, places in rivals.items():
                    if chain < other:
                        yield from (((chain, row), (other, place)) for place in places)

    def _racing(self, state: State, ready: Sequence[int]) -> Iterator[tuple[int, int]]:
        for one in ready:
            for other, places in self._rivals[one][state[one]].items():
                if one < other and state[other] in places and other in ready:
                    yield one, other

    def about(self, state: State, pair: tuple[int, int]) -> str:
        return " | ".join(self.chains[chain][state[chain]].place for chain in pair)

    def is_barrier(self, state: State, pair: tuple[int, int]) -> bool:
        first, second = (self.chains[chain][state[chain]] for chain in pair)
        return not any(a.conflicts(b) for a in first.accesses for b in second.accesses)

    def stuck(self, state: State) -> Iterator[str]:
        for chain, position in zip(self.chains, state, strict=True):
            if position < len(chain):
                yield f"{chain[position].place} waits for {chain[position].wait}"

    def strays(self) -> Iterator[str]:
        """Descriptors that touch what is not theirs, in whatever order."""
        for chain in self.chains:
            for row in chain:
                yield from strays(self.executable, row)

    def values(self) -> Iterator[str]:
        """What is wrong in the end; without a race one order stands for all."""
        memory = Memory(self.executable, unit_of(self.executable, self.chains))
        state = (0,) * len(self.chains)
        while ready := [chain for chain in range(len(state)) if self.is_enabled(state, chain)]:
            chain = ready[0]
            memory.perform(self.chains[chain][state[chain]])
            state = (*state[:chain], state[chain] + 1, *state[chain + 1 :])
        return memory.wrong()

    def endings(self, most_states: int) -> set[tuple[object, bool]]:
        """Contents of memory at the end of all interleavings, and whether something is wrong."""
        start = (0,) * len(self.chains)
        memory = Memory(self.executable, unit_of(self.executable, self.chains))
        seen = {(start, memory.key())}
        stack = [(start, memory)]
        found = set()
        while stack:
            state, memory = stack.pop()
            ready = [chain for chain in range(len(state)) if self.is_enabled(state, chain)]
            if not ready:
                found.add((memory.key(), any(True for _ in memory.wrong())))
            for chain in ready:
                after = (*state[:chain], state[chain] + 1, *state[chain + 1 :])
                mine = memory.fork()
                mine.perform(self.chains[chain][state[chain]])
                if (after, mine.key()) not in seen:
                    seen.add((after, mine.key()))
                    stack.append((after, mine))
            if len(seen) > most_states:
                raise TooManyStatesError(f"more than {most_states} states")
        return found
