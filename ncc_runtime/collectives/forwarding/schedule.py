"""The members of a group by chip: who of each chip sends and receives for it, in planes.

A plane has one member of every chip, its agents; there are as many planes as the chip with fewest
members has members. Units belong to places of chips; where a chip has more places than there are
planes, an agent serves several places, one after another: its turns.

Sends between the chips of a group in order of time, which agents carry out (`courses.py`).

Colours of edges such that two of one source, or of one target, differ: what can go at once.

What agents do along sends between chips, before it is known where anything lies.

    all-gather       a slot's sends are a round: an agent passes on a unit that came before, and
                     copies what came to the other members of its chip, as far as it can with what
                     it sends (one read, two writes)
    reduce-scatter   the sends of an all-gather backwards: an agent joins what has come of a unit
                     and the operands of its chip, and writes it to the chip it would get it from

The sends of a unit form a tree, so every chip joins all it has of a unit at once, by as few reads
and writes as there can be. Columns of buffers are units by place: unit * places + place.

Where what is sent in a reduce-scatter waits: numbered places in the scratch of every chip.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property, lru_cache

import attrs
import numpy as np

from ncc_runtime.collectives.layout import GroupLayout, Members, UnsuitedError
from ncc_runtime.collectives.plan import IDLE
from ncc_runtime.collectives.stages import MOST_SOURCES


@attrs.frozen(cache_hash=True, slots=False)
class ProxyRanks:
    """Members of every chip, chips in the order of the group's wires."""

    clusters: tuple[Members, ...]

    @classmethod
    def of(cls, layout: GroupLayout) -> "ProxyRanks":
        """The crew of a group, the members of a chip in the order of their cores."""
        return cls(
            tuple(
                tuple(sorted(cluster, key=lambda member: layout.seats[member].core))
                for cluster in layout.by_chip()
            )
        )

    def reordered(self, order: np.ndarray) -> "ProxyRanks":
        """The same with chip order[k] as chip k."""
        return ProxyRanks(tuple(self.clusters[chip] for chip in order))

    @cached_property
    def chips(self) -> int:
        return len(self.clusters)

    @cached_property
    def members(self) -> int:
        return sum(map(len, self.clusters))

    @cached_property
    def planes(self) -> int:
        """Members of the chip that has fewest."""
        return min(map(len, self.clusters))

    @cached_property
    def places(self) -> int:
        """Members of the chip that has most."""
        return max(map(len, self.clusters))

    @cached_property
    def turns(self) -> int:
        """How many places an agent serves at most."""
        return -(-self.places // self.planes)

    @cached_property
    def sizes(self) -> np.ndarray:
        """(chips,) int64, members of each."""
        return np.array([len(cluster) for cluster in self.clusters], np.int64)

    @cached_property
    def table(self) -> np.ndarray:
        """(chips, places) int32, the members, counted round where a chip has fewer."""
        rows = [[one[k % len(one)] for k in range(self.places)] for one in self.clusters]
        return np.array(rows, np.int32)

    def neighbours(self, step: int, turn: int = 0) -> np.ndarray:
        """(chips, planes) int32, who sits `step` places on from the agents, or from their turn."""
        place = np.arange(self.planes) + turn * self.planes
        return np.take_along_axis(self.table, (place + step) % self.sizes[:, None], axis=1)

    def column(self, where: np.ndarray, what: np.ndarray, idle: int = IDLE) -> np.ndarray:
        """(members,) int64, `what` at the members `where`, elsewhere `idle`."""
        found = np.full(self.members, idle, np.int64)
        found[where.ravel()] = what.ravel()
        return found


@attrs.frozen(eq=False, slots=False)
class ChipSchedule:
    """Every unit goes from its owner to every chip; or, backwards in time, the other way."""

    owners: np.ndarray  # (units,) int64, the chip where a unit begins, or ends
    slot: np.ndarray  # (sends,) int64, ascending
    source: np.ndarray  # (sends,) int64
    target: np.ndarray  # (sends,) int64
    unit: np.ndarray  # (sends,) int64
    way: np.ndarray  # (sends,) int64: of a slot and way, no two have one source or one target

    @property
    def count(self) -> int:
        """The number of slots."""
        return int(self.slot.max(initial=-1)) + 1

    @property
    def most_targets(self) -> int:
        """To how many chips a chip sends at most."""
        ends = np.unique(np.stack((self.source, self.target)), axis=1)
        return int(np.bincount(ends[0], minlength=1).max())

    @cached_property
    def turn(self) -> np.ndarray:
        """(sends,) int64, how often its source has sent the unit before."""
        return running_counts(self.source * len(self.owners) + self.unit)

    @cached_property
    def times(self) -> np.ndarray:
        """(chips, units) int64, how often a chip sends a unit in all."""
        chips = 1 + max(
            int(ends.max(initial=0)) for ends in (self.source, self.target, self.owners)
        )
        key = self.source * len(self.owners) + self.unit
        return np.bincount(key, minlength=chips * len(self.owners)).reshape(chips, -1)


def running_counts(column: np.ndarray) -> np.ndarray:
    """(n,) int64, how often the value of a row stands in earlier rows."""
    order = np.argsort(column, kind="stable")
    counts = np.unique(column, return_counts=True)[1]
    found: np.ndarray = np.empty(len(column), np.int64)
    found[order] = np.arange(len(column)) - np.repeat(np.cumsum(counts) - counts, counts)
    return found


FREE = -1


def edge_colouring(ends: Sequence[tuple[int, int]], nodes: int) -> list[int]:
    """A colour for every edge, by as few colours as the busiest node has edges out or in.

    Source: König's theorem by alternating paths (Gabow, "Using Euler partitions to edge color
    bipartite multigraphs", 1976, describes this baseline).
    """
    degree = [0] * (2 * nodes)
    for source, target in ends:
        degree[source] += 1
        degree[nodes + target] += 1
    most = max(degree, default=0)
    at = [[FREE] * most for _ in range(2 * nodes)]  # by node (sources, then targets) and colour
    for edge, (source, target) in enumerate(ends):
        one, other = at[source].index(FREE), at[nodes + target].index(FREE)
        if one != other:
            _swap(at, ends, nodes + target, (one, other))
        at[source][one] = at[nodes + target][one] = edge
    found = [FREE] * len(ends)
    for row in at[:nodes]:
        for colour, edge in enumerate(row):
            if edge != FREE:
                found[edge] = colour
    return found


def _swap(
    at: list[list[int]], ends: Sequence[tuple[int, int]], node: int, colours: tuple[int, int]
) -> None:
    """Exchange two colours along the path from a node, so that the first is free there."""
    nodes = len(at) // 2
    first, second = colours
    path, wanted = [], first
    while at[node][wanted] != FREE:
        edge = at[node][wanted]
        path.append((edge, wanted))
        source, target = ends[edge][0], nodes + ends[edge][1]
        node = source if node == target else target
        wanted = second if wanted == first else first
    for edge, colour in path:
        for end in (ends[edge][0], nodes + ends[edge][1]):
            at[end][colour] = FREE
    for edge, colour in path:
        for end in (ends[edge][0], nodes + ends[edge][1]):
            at[end][second if colour == first else first] = edge


@attrs.frozen(eq=False)
class PartialSums:
    """What has come to chips before they send on, or complete a unit."""

    place: np.ndarray  # (sends,) int64, where it arrives
    before: np.ndarray  # (sends,) int64, how much of the unit has come to the sender
    kids: np.ndarray  # (sends, k) int64, the places of that, IDLE beyond the last
    home_kids: np.ndarray  # (units, k) int64, the same of the owner in the end
    home_slot: np.ndarray  # (units,) int64, the slot after the last arrival
    places: int  # of the chip that gets most

    @property
    def most(self) -> int:
        """The most that comes of one unit to one chip."""
        return self.kids.shape[1]

    @classmethod
    def of(cls, sends: ChipSchedule, chips: int) -> "PartialSums":
        """Every arrival has a place of its own, so that nothing is ever overwritten."""
        held: list[list[list[int]]] = [[[] for _ in sends.owners] for _ in range(chips)]
        count = [0] * chips
        place, kids = [], []
        ends = zip(sends.source.tolist(), sends.target.tolist(), sends.unit.tolist(), strict=True)
        for source, target, unit in ends:
            kids.append(held[source][unit].copy())
            held[target][unit].append(count[target])
            place.append(count[target])
            count[target] += 1
        home = [held[owner][unit] for unit, owner in enumerate(sends.owners.tolist())]
        most = max((len(one) for one in (*kids, *home)), default=0)
        home_slot = np.zeros(len(sends.owners), np.int64)
        is_home = sends.target == sends.owners[sends.unit]
        np.maximum.at(home_slot, sends.unit[is_home], sends.slot[is_home] + 1)
        return cls(
            place=np.array(place, np.int64),
            before=np.array([len(one) for one in kids], np.int64),
            kids=_table(kids, most),
            home_kids=_table(home, most),
            home_slot=home_slot,
            places=max(count, default=0),
        )

    def complete(self, sends: ChipSchedule, sizes: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """By slot, units that are complete at different owners and alike in number of sources."""
        has = (self.home_kids != IDLE).sum(axis=1)
        for some in equal_rows(self.home_slot, has, sizes[sends.owners]):
            turn = running_counts(sends.owners[some])
            for one in range(int(turn.max()) + 1):
                yield int(self.home_slot[some[0]]), some[turn == one]


def equal_rows(*columns: np.ndarray) -> Iterator[np.ndarray]:
    """Numbers of rows that are equal in all columns, in the order of these."""
    if not len(columns[0]):
        return
    _, group = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    group = group.ravel()
    order = np.argsort(group, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(group[order])) + 1)


def _table(rows: Sequence[Sequence[int]], width: int) -> np.ndarray:
    found = np.full((len(rows), width), IDLE, np.int64)
    for number, row in enumerate(rows):
        found[number, : len(row)] = row
    return found


@attrs.frozen(eq=False)
class ForwardingStep:
    """One transfer of every agent, for buffers anywhere."""

    peer: np.ndarray  # (members,) int32, IDLE for none
    column: np.ndarray  # (members,) int64
    way: int
    owners: tuple[np.ndarray, ...] = ()  # (members,) int32: whose operands are read
    places: tuple[np.ndarray, ...] = ()  # (members,) int64: what is read of scratch
    goal: np.ndarray | None = None  # (members,) int64, a place of scratch; None: the target
    also: np.ndarray | None = None  # (members,) int32: the second member that it is written to
    is_beside: bool = False  # on the chip, beside what is sent


@attrs.frozen(eq=False)
class ForwardingSchedule:
    """Rounds of hops, and the places of scratch that they take."""

    rounds: tuple[tuple[ForwardingStep, ...], ...]
    places: int = 0


@lru_cache(maxsize=64)
def forwarded_all_gather(
    crew: ProxyRanks, sends: ChipSchedule, is_by_member: bool
) -> ForwardingSchedule:
    """Everybody gets all units; by member, they begin in operands, else in results of agents."""
    agents = _Agents(crew, sends, is_by_member)
    rounds: list[tuple[ForwardingStep, ...]] = []
    came = (sends.owners, np.arange(len(sends.owners)))
    for slot in range(sends.count + 1):
        at = np.flatnonzero(sends.slot == slot)
        hops: list[ForwardingStep] = []
        for some in equal_rows(sends.way[at]):
            hops += agents.passed_on(at[some], is_first=is_by_member and not slot)
        if is_by_member and not slot:
            hops += agents.kept()
            first, units = came
            came = np.append(first, sends.target[at]), np.append(units, sends.unit[at])
        else:
            hops += agents.copied(*came)
            came = sends.target[at], sends.unit[at]
        rounds.append(tuple(hops))
    return ForwardingSchedule(tuple(hops for hops in rounds if hops))


@lru_cache(maxsize=64)
def forwarded_reduce_scatter(
    crew: ProxyRanks, sends: ChipSchedule, is_by_member: bool
) -> ForwardingSchedule:
    """All units, joined over everybody, at the members they belong to, or at agents."""
    agents = _Agents(crew, sends, is_by_member)
    came = PartialSums.of(sends, crew.chips)
    if came.most + crew.places > MOST_SOURCES:
        raise UnsuitedError(
            f"a chip joins {came.most + crew.places} pieces, a descriptor {MOST_SOURCES} at most"
        )
    rounds: list[list[ForwardingStep]] = [[] for _ in range(sends.count + 1)]
    alike = equal_rows(sends.slot, sends.way, came.before, crew.sizes[sends.source])
    for some in alike:
        rounds[int(sends.slot[some[0]])] += agents.joined(some, came)
    for number, (slot, units) in enumerate(came.complete(sends, crew.sizes)):
        rounds[slot] += agents.finished(units, came, number)
    places = came.places * agents.turns
    return ForwardingSchedule(tuple(tuple(hops) for hops in rounds if hops), places)


@attrs.frozen(eq=False)
class _Agents:
    """Whose turn it is, as columns over members."""

    crew: ProxyRanks
    sends: ChipSchedule
    is_by_member: bool  # units belong to members; else to agents, which have one turn

    @property
    def turns(self) -> int:
        """How many places an agent serves at most."""
        return self.crew.turns if self.is_by_member else 1

    @property
    def width(self) -> int:
        """Places of a unit."""
        return self.crew.places if self.is_by_member else self.crew.planes

    def passed_on(self, some: np.ndarray, is_first: bool) -> Iterator[ForwardingStep]:
        """Sends of one way and slot; the k-th of a unit also goes to the agent's k-th neighbour."""
        sends = self.sends
        for turn in range(self.turns):
            peer, column = self._sent(some, turn)
            if (peer == IDLE).all():
                continue
            source = sends.source[some]
            second = np.where(
                peer == IDLE, np.int32(IDLE), self._beside(source, sends.turn[some] + 1)
            )
            yield ForwardingStep(
                peer,
                column,
                int(sends.way[some[0]]),
                owners=(self._seats(source, turn),) if is_first else (),
                also=second if (second != IDLE).any() else None,
            )

    def kept(self) -> Iterator[ForwardingStep]:
        """What agents are to pass on, from operands on their chip into their results."""
        turn_of = running_counts(self.sends.owners)
        for number in range(int(turn_of.max(initial=-1)) + 1):
            units = np.flatnonzero(turn_of == number)
            chips = self.sends.owners[units]
            for turn in range(self.turns):
                column, is_there = self._served(units, turn)
                agents = self.crew.neighbours(0)[chips]
                peer = self._column(agents, np.where(is_there, agents, IDLE))
                if (peer != IDLE).any():
                    owner = self._seats(chips, turn)
                    columns = self.crew.column(agents, column, 0)
                    yield ForwardingStep(
                        peer, columns, number + turn, owners=(owner,), is_beside=True
                    )

    def copied(self, chip: np.ndarray, unit: np.ndarray) -> Iterator[ForwardingStep]:
        """Units that agents have got, to the members that their sends leave out, two at a time."""
        sent = self.sends.times[chip, unit]
        way = 0
        for begin in range(self.crew.places - 1):
            some = np.flatnonzero(sent == begin)
            turn_of = running_counts(chip[some])
            for number in range(int(turn_of.max(initial=-1)) + 1):
                few = some[turn_of == number]
                for hop in self._to_neighbours(chip[few], unit[few], begin + 1):
                    way += 1
                    yield attrs.evolve(hop, way=way)

    def _to_neighbours(
        self, chips: np.ndarray, units: np.ndarray, begin: int
    ) -> Iterator[ForwardingStep]:
        agents = self.crew.neighbours(0)[chips]
        for turn in range(self.turns):
            column, is_there = self._served(units, turn)
            active = self.crew.column(agents, is_there, 0) > 0
            columns = self.crew.column(agents, column, 0)
            for step in range(begin, self.crew.places, 2):
                first, second = (self._beside(chips, step + k) for k in range(2))
                first, second = (np.where(active, one, np.int32(IDLE)) for one in (first, second))
                if (first != IDLE).any():
                    also = second if (second != IDLE).any() else None
                    yield ForwardingStep(first, columns, 0, also=also, is_beside=True)

    def joined(self, some: np.ndarray, came: PartialSums) -> Iterator[ForwardingStep]:
        """Sends of one way, slot and number of sources."""
        source = self.sends.source[some]
        agents = self.crew.neighbours(0)[source]
        for turn in range(self.turns):
            peer, column = self._sent(some, turn)
            if (peer != IDLE).any():
                goal = self._places(agents, came.place[some], turn * came.places)
                yield ForwardingStep(
                    peer,
                    column,
                    int(self.sends.way[some[0]]),
                    owners=self._everybody(source),
                    places=self._kids(agents, came.kids[some], turn * came.places),
                    goal=goal,
                )

    def finished(self, units: np.ndarray, came: PartialSums, way: int) -> Iterator[ForwardingStep]:
        """Units of which everything has come, joined into what they are for."""
        chips = self.sends.owners[units]
        agents = self.crew.neighbours(0)[chips]
        for turn in range(self.turns):
            column, is_there = self._served(units, turn)
            seats = self.crew.neighbours(0, turn)[chips]
            peer = self._column(agents, np.where(is_there, seats, IDLE))
            if (peer != IDLE).any():
                yield ForwardingStep(
                    peer,
                    self.crew.column(agents, column, 0),
                    way,
                    owners=self._everybody(chips),
                    places=self._kids(agents, came.home_kids[units], turn * came.places),
                )

    def _sent(self, some: np.ndarray, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """By member, whom it sends to, and which column."""
        agents = self.crew.neighbours(0)
        column, is_there = self._served(self.sends.unit[some], turn)
        senders = agents[self.sends.source[some]]
        peer = np.where(is_there, agents[self.sends.target[some]], IDLE)
        return self._column(senders, peer), self.crew.column(senders, column, 0)

    def _served(self, unit: np.ndarray, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """(n, planes): the columns of units that agents serve in a turn, and whether they exist."""
        place = np.arange(self.crew.planes) + turn * self.crew.planes
        column = unit[:, None] * self.width + np.minimum(place, self.width - 1)
        is_there = np.broadcast_to(place < self.width, column.shape)
        if self.is_by_member:
            is_there = place < self.crew.sizes[self.sends.owners[unit]][:, None]
        return column, is_there

    def _seats(self, chips: np.ndarray, turn: int) -> np.ndarray:
        """(members,) int32, at agents whose turn it is."""
        return self._column(self.crew.neighbours(0)[chips], self.crew.neighbours(0, turn)[chips])

    def _beside(self, chips: np.ndarray, step: np.ndarray | int) -> np.ndarray:
        """(members,) int32, who sits so many places on from the agents of chips, or IDLE."""
        steps = np.broadcast_to(step, chips.shape)[:, None]
        size = self.crew.sizes[chips][:, None]
        place = (np.arange(self.crew.planes) + steps) % size
        other = np.take_along_axis(self.crew.table[chips], place, axis=1)
        return self._column(self.crew.neighbours(0)[chips], np.where(steps < size, other, IDLE))

    def _everybody(self, chips: np.ndarray) -> tuple[np.ndarray, ...]:
        """The members of the agents' chips, from the agents on; all chips have as many."""
        agents = self.crew.neighbours(0)[chips]
        size = int(self.crew.sizes[chips[0]])
        return tuple(
            self._column(agents, self.crew.neighbours(step)[chips]) for step in range(size)
        )

    def _kids(self, agents: np.ndarray, kids: np.ndarray, first: int) -> tuple[np.ndarray, ...]:
        """Places of scratch; all rows have as many."""
        count = int((kids[0] != IDLE).sum())
        return tuple(self._places(agents, kids[:, number], first) for number in range(count))

    def _places(self, agents: np.ndarray, place: np.ndarray, first: int) -> np.ndarray:
        where = np.broadcast_to(place[:, None] + first, agents.shape)
        return self.crew.column(agents, where, 0)

    def _column(self, where: np.ndarray, what: np.ndarray) -> np.ndarray:
        return self.crew.column(where, what).astype(np.int32)
