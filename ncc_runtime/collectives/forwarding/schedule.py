"""Forwarding schedules: which proxy rank sends, copies or reduces which chunk in which step.

A `ChipSchedule` says which chip sends which chunk to which chip in which time slot, as schedules of
TACCL or TE-CCL do. Rules make one (`algorithms/torus.py`), or a search over the link graph
(`algorithms/synthesised.py`). Here it becomes a `ForwardingSchedule`: steps of ranks, before it is
known where any buffer lies. `planner.py` makes transfers of these.

    all-gather       the sends of a slot are one step: a proxy rank passes on a chunk that it got
                     in an earlier slot. It copies what it gets to the other ranks of its chip, as
                     far as it can with what it sends anyway (a descriptor reads once, writes twice)
    reduce-scatter   the sends of an all-gather backwards in time: a proxy reduces the partial sums
                     that it got of a chunk and the operands of its chip, and writes the sum to the
                     chip that it would have got the chunk from

The sends of one chunk form a tree over the chips, rooted at the chunk's owner. So backwards each
chip reduces all it gets of a chunk at once, with as few reads and writes as there can be.

A plane has one member of every chip: its proxy ranks. There are as many planes as the chip with
fewest members has members. A chunk of a schedule has a column of buffers for every place on a chip,
number `chunk * places + place`; a proxy moves the column of its own place. Where a chip has more
places than there are planes, a proxy serves several of them, one after another: its turns.

Source: Shah et al., "TACCL: guiding collective algorithm synthesis using communication sketches",
NSDI 2023; Liu et al., "Rethinking machine learning collective communication as a multi-commodity
flow problem" (TE-CCL), SIGCOMM 2024.
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
    """The members of every chip, the first of which send and receive for it.

    Chips are in the order of the group's link graph. Place k of a chip is its k-th member.
    """

    clusters: tuple[Members, ...]

    @classmethod
    def of(cls, layout: GroupLayout) -> "ProxyRanks":
        """Of a group, the members of a chip in the order of their cores."""
        return cls(
            tuple(
                tuple(sorted(cluster, key=lambda member: layout.seats[member].core))
                for cluster in layout.by_chip()
            )
        )

    def reordered(self, order: np.ndarray) -> "ProxyRanks":
        """The proxies with chip order[k] as chip k."""
        return ProxyRanks(tuple(self.clusters[chip] for chip in order))

    @cached_property
    def chips(self) -> int:
        return len(self.clusters)

    @cached_property
    def members(self) -> int:
        return sum(map(len, self.clusters))

    @cached_property
    def planes(self) -> int:
        """Proxies of each chip: members of the chip that has fewest."""
        return min(map(len, self.clusters))

    @cached_property
    def places(self) -> int:
        """Members of the chip that has most."""
        return max(map(len, self.clusters))

    @cached_property
    def places_per_proxy(self) -> int:
        """Places that a proxy serves at most, one in each of its turns."""
        return -(-self.places // self.planes)

    @cached_property
    def sizes(self) -> np.ndarray:
        """(chips,) int64, members of each."""
        return np.array([len(cluster) for cluster in self.clusters], np.int64)

    @cached_property
    def table(self) -> np.ndarray:
        """(chips, places) int32, the members; a chip with fewer repeats its own."""
        rows = [
            [cluster[place % len(cluster)] for place in range(self.places)]
            for cluster in self.clusters
        ]
        return np.array(rows, np.int32)

    def neighbours(self, step: int, turn: int = 0) -> np.ndarray:
        """(chips, planes) int32, the member `step` places after the one served in a turn.

        Step and turn 0 give the proxies themselves.
        """
        place = np.arange(self.planes) + turn * self.planes
        return np.take_along_axis(self.table, (place + step) % self.sizes[:, None], axis=1)

    def column(self, members: np.ndarray, values: np.ndarray, idle: int = IDLE) -> np.ndarray:
        """(members,) int64, the values at these members, `idle` elsewhere."""
        column = np.full(self.members, idle, np.int64)
        column[members.ravel()] = values.ravel()
        return column


@attrs.frozen(eq=False, slots=False)
class ChipSchedule:
    """Sends between chips: each chunk goes from its owner to every chip, or backwards in time.

    Sends of one slot and colour have different sources and different targets, so that they can be
    one transfer of a plan.
    """

    owners: np.ndarray  # (chunks,) int64, the chip where a chunk begins, or ends
    slot: np.ndarray  # (sends,) int64, ascending
    source: np.ndarray  # (sends,) int64, chips
    target: np.ndarray  # (sends,) int64, chips
    chunk: np.ndarray  # (sends,) int64
    colour: np.ndarray  # (sends,) int64

    @property
    def slots(self) -> int:
        """The number of time slots."""
        return int(self.slot.max(initial=-1)) + 1

    @property
    def most_targets(self) -> int:
        """To how many chips a chip sends at most."""
        ends = np.unique(np.stack((self.source, self.target)), axis=1)
        return int(np.bincount(ends[0], minlength=1).max())

    @cached_property
    def nth_send(self) -> np.ndarray:
        """(sends,) int64, how often its source has sent the chunk before."""
        return running_counts(self.source * len(self.owners) + self.chunk)

    @cached_property
    def send_counts(self) -> np.ndarray:
        """(chips, chunks) int64, how often a chip sends a chunk in all."""
        chips = 1 + max(
            int(ends.max(initial=0)) for ends in (self.source, self.target, self.owners)
        )
        key = self.source * len(self.owners) + self.chunk
        return np.bincount(key, minlength=chips * len(self.owners)).reshape(chips, -1)


def running_counts(column: np.ndarray) -> np.ndarray:
    """(n,) int64, how often the value of a row stands in earlier rows."""
    order = np.argsort(column, kind="stable")
    counts = np.unique(column, return_counts=True)[1]
    running: np.ndarray = np.empty(len(column), np.int64)
    running[order] = np.arange(len(column)) - np.repeat(np.cumsum(counts) - counts, counts)
    return running


def equal_rows(*columns: np.ndarray) -> Iterator[np.ndarray]:
    """Numbers of rows that are equal in all columns, in ascending order of their values."""
    if not len(columns[0]):
        return
    _, group = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    group = group.ravel()
    order = np.argsort(group, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(group[order])) + 1)


FREE = -1


def edge_colouring(ends: Sequence[tuple[int, int]], nodes: int) -> list[int]:
    """A colour for every edge: edges with one source or one target differ.

    It takes as many colours as the busiest node has edges out or in, which is the minimum.

    Source: König's theorem by alternating paths (Gabow, "Using Euler partitions to edge color
    bipartite multigraphs", 1976, describes this baseline).
    """
    degree = [0] * (2 * nodes)
    for source, target in ends:
        degree[source] += 1
        degree[nodes + target] += 1
    # by node (sources, then targets) and colour, the edge of that colour
    edge_at = [[FREE] * max(degree, default=0) for _ in range(2 * nodes)]
    for edge, (source, target) in enumerate(ends):
        # One colour is free at the source, one at the target. Where they differ, exchange them
        # along the alternating path from the target. It does not reach the source: it comes to
        # sources by edges of the first colour, which the source has none of.
        first, second = edge_at[source].index(FREE), edge_at[nodes + target].index(FREE)
        if first != second:
            _exchange(edge_at, ends, nodes + target, first, second)
        edge_at[source][first] = edge_at[nodes + target][first] = edge
    colours = [FREE] * len(ends)
    for row in edge_at[:nodes]:
        for colour, edge in enumerate(row):
            if edge != FREE:
                colours[edge] = colour
    return colours


def _exchange(
    edge_at: list[list[int]], ends: Sequence[tuple[int, int]], node: int, first: int, second: int
) -> None:
    """Exchange two colours along the path from a node, so that the first is free there."""
    nodes = len(edge_at) // 2
    path, colour = [], first
    while edge_at[node][colour] != FREE:
        edge = edge_at[node][colour]
        path.append((edge, colour))
        source, target = ends[edge][0], nodes + ends[edge][1]
        node = source if node == target else target
        colour = second if colour == first else first
    # two passes: an edge must not clear what its neighbour on the path has just set
    for edge, colour in path:
        for end in (ends[edge][0], nodes + ends[edge][1]):
            edge_at[end][colour] = FREE
    for edge, colour in path:
        for end in (ends[edge][0], nodes + ends[edge][1]):
            edge_at[end][second if colour == first else first] = edge


@attrs.frozen(eq=False)
class ForwardingStep:
    """One transfer of every proxy that takes part, for buffers anywhere."""

    peer: np.ndarray  # (members,) int32, IDLE for none
    column: np.ndarray  # (members,) int64, of the buffers
    lane_index: int  # DMA ring of the strand; wraps round
    operand_owners: tuple[np.ndarray, ...] = ()  # (members,) int32: whose operands are read
    partials: tuple[np.ndarray, ...] = ()  # (members,) int64: buffers of partial sums read
    partial_target: np.ndarray | None = None  # (members,) int64, such a buffer; None: the target
    second_peer: np.ndarray | None = None  # (members,) int32: written to as well
    is_local: bool = False  # on the chip, beside what goes between chips


@attrs.frozen(eq=False)
class ForwardingSchedule:
    """Steps by round, and how many buffers of partial sums every member needs."""

    rounds: tuple[tuple[ForwardingStep, ...], ...]
    partial_buffers: int = 0


@lru_cache(maxsize=64)
def forwarded_all_gather(
    proxies: ProxyRanks, sends: ChipSchedule, is_by_member: bool
) -> ForwardingSchedule:
    """All chunks at everybody.

    By member they begin in the operands of all members, else in the results of the proxies.
    """
    builder = _StepBuilder(proxies, sends, is_by_member)
    rounds: list[tuple[ForwardingStep, ...]] = []
    # chunks that chips have received and must still copy to their other members
    chips, chunks = sends.owners, np.arange(len(sends.owners))
    for slot in range(sends.slots + 1):
        in_slot = np.flatnonzero(sends.slot == slot)
        is_first = is_by_member and not slot
        steps: list[ForwardingStep] = []
        for rows in equal_rows(sends.colour[in_slot]):
            steps += builder.forwarded(in_slot[rows], is_first)
        if is_first:
            # results of proxies are only being written: their copies go with the next slot
            steps += builder.copied_operands()
            chips = np.append(chips, sends.target[in_slot])
            chunks = np.append(chunks, sends.chunk[in_slot])
        else:
            steps += builder.copied_on_chips(chips, chunks)
            chips, chunks = sends.target[in_slot], sends.chunk[in_slot]
        rounds.append(tuple(steps))
    return ForwardingSchedule(tuple(steps for steps in rounds if steps))


@lru_cache(maxsize=64)
def forwarded_reduce_scatter(
    proxies: ProxyRanks, sends: ChipSchedule, is_by_member: bool
) -> ForwardingSchedule:
    """All chunks, reduced over everybody, at the members they belong to, or at proxies."""
    builder = _StepBuilder(proxies, sends, is_by_member)
    sums = PartialSums.of(sends, proxies.chips)
    pieces = sums.most_received + proxies.places
    if pieces > MOST_SOURCES:
        raise UnsuitedError(f"a chip joins {pieces} pieces, a descriptor {MOST_SOURCES} at most")
    rounds: list[list[ForwardingStep]] = [[] for _ in range(sends.slots + 1)]
    # the transfers of a step have equally many sources, so sends with others are another step
    for rows in equal_rows(sends.slot, sends.colour, sums.received, proxies.sizes[sends.source]):
        rounds[int(sends.slot[rows[0]])] += builder.reduced_and_sent(rows, sums)
    for number, (slot, chunks) in enumerate(sums.completed(sends, proxies.sizes)):
        rounds[slot] += builder.completed(chunks, sums, number)
    buffers = sums.buffers * len(builder.turns)
    return ForwardingSchedule(tuple(tuple(steps) for steps in rounds if steps), buffers)


@attrs.frozen(eq=False)
class PartialSums:
    """Where the partial sums of a reduce-scatter wait at the chips that they are sent to.

    Every send has a buffer of its own at its target, so that nothing is ever overwritten.
    """

    buffer: np.ndarray  # (sends,) int64, the number of its buffer at the target
    received: np.ndarray  # (sends,) int64, sums of the chunk that the source received before
    children: np.ndarray  # (sends, k) int64, the buffers of these, IDLE beyond the last
    owner_children: np.ndarray  # (chunks, k) int64, the same of the owner in the end
    owner_slot: np.ndarray  # (chunks,) int64, the slot after the owner has got its last
    buffers: int  # of the chip that gets most

    @property
    def most_received(self) -> int:
        """The most partial sums of one chunk that one chip receives."""
        return self.children.shape[1]

    @classmethod
    def of(cls, sends: ChipSchedule, chips: int) -> "PartialSums":
        """The partial sums of a reduce-scatter."""
        # by chip and chunk, the buffers with sums that are there
        held: list[list[list[int]]] = [[[] for _ in sends.owners] for _ in range(chips)]
        count = [0] * chips  # of buffers by chip
        buffer, children = [], []
        ends = zip(sends.source.tolist(), sends.target.tolist(), sends.chunk.tolist(), strict=True)
        for source, target, chunk in ends:
            children.append(held[source][chunk].copy())
            held[target][chunk].append(count[target])
            buffer.append(count[target])
            count[target] += 1
        at_owners = [held[owner][chunk] for chunk, owner in enumerate(sends.owners.tolist())]
        most_received = max((len(row) for row in (*children, *at_owners)), default=0)
        owner_slot = np.zeros(len(sends.owners), np.int64)
        to_owner = sends.target == sends.owners[sends.chunk]
        np.maximum.at(owner_slot, sends.chunk[to_owner], sends.slot[to_owner] + 1)
        return cls(
            buffer=np.array(buffer, np.int64),
            received=np.array([len(row) for row in children], np.int64),
            children=_table(children, most_received),
            owner_children=_table(at_owners, most_received),
            owner_slot=owner_slot,
            buffers=max(count, default=0),
        )

    def completed(self, sends: ChipSchedule, sizes: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
        """By slot, chunks complete at different owners, with equally many sources each."""
        count = (self.owner_children != IDLE).sum(axis=1)
        for chunks in equal_rows(self.owner_slot, count, sizes[sends.owners]):
            nth = running_counts(sends.owners[chunks])
            for number in range(int(nth.max()) + 1):
                yield int(self.owner_slot[chunks[0]]), chunks[nth == number]


def _table(rows: Sequence[Sequence[int]], columns: int) -> np.ndarray:
    """Rows of different lengths as (rows, columns) int64, IDLE beyond their ends."""
    table = np.full((len(rows), columns), IDLE, np.int64)
    for number, row in enumerate(rows):
        table[number, : len(row)] = row
    return table


@attrs.frozen(eq=False)
class _StepBuilder:
    """Turns sends of chips into steps of their proxies: columns over members."""

    proxies: ProxyRanks
    sends: ChipSchedule
    is_by_member: bool  # columns belong to members; else to proxies, which have one turn each

    @property
    def turns(self) -> range:
        """The turns of a proxy, one for each place that it serves."""
        return range(self.proxies.places_per_proxy if self.is_by_member else 1)

    @property
    def chunk_columns(self) -> int:
        """Columns of a chunk."""
        return self.proxies.places if self.is_by_member else self.proxies.planes

    def forwarded(self, rows: np.ndarray, is_first: bool) -> Iterator[ForwardingStep]:
        """Sends of one colour and slot of an all-gather.

        The k-th send of a chunk also writes it to the proxy's k-th neighbour on its own chip.
        """
        sends = self.sends
        for turn in self.turns:
            peer, column = self._sent(rows, turn)
            if (peer == IDLE).all():
                continue
            source = sends.source[rows]
            neighbour = self._neighbour(source, sends.nth_send[rows] + 1)
            second = np.where(peer == IDLE, np.int32(IDLE), neighbour)
            yield ForwardingStep(
                peer,
                column,
                int(sends.colour[rows[0]]),
                operand_owners=(self._served_members(source, turn),) if is_first else (),
                second_peer=second if (second != IDLE).any() else None,
            )

    def copied_operands(self) -> Iterator[ForwardingStep]:
        """What proxies will forward: from operands on their chip into their results."""
        nth = running_counts(self.sends.owners)
        for number in range(int(nth.max(initial=-1)) + 1):
            chunks = np.flatnonzero(nth == number)
            chips = self.sends.owners[chunks]
            for turn in self.turns:
                column, exists = self._served(chunks, turn)
                proxies = self.proxies.neighbours(0)[chips]
                peer = self._ranks(proxies, np.where(exists, proxies, IDLE))
                if (peer != IDLE).any():
                    yield ForwardingStep(
                        peer,
                        self.proxies.column(proxies, column, 0),
                        number + turn,
                        operand_owners=(self._served_members(chips, turn),),
                        is_local=True,
                    )

    def copied_on_chips(self, chips: np.ndarray, chunks: np.ndarray) -> Iterator[ForwardingStep]:
        """Chunks that chips received, to those members to which no send writes its second copy.

        A transfer writes to two of them. A step has one chunk of a chip.
        """
        sent = self.sends.send_counts[chips, chunks]
        lane_index = 0
        for count in range(self.proxies.places - 1):
            rows = np.flatnonzero(sent == count)
            nth = running_counts(chips[rows])
            for number in range(int(nth.max(initial=-1)) + 1):
                one_a_chip = rows[nth == number]
                for step in self._to_neighbours(chips[one_a_chip], chunks[one_a_chip], count + 1):
                    lane_index += 1
                    yield attrs.evolve(step, lane_index=lane_index)

    def _to_neighbours(
        self, chips: np.ndarray, chunks: np.ndarray, first_step: int
    ) -> Iterator[ForwardingStep]:
        """A chunk of each chip from its proxies to their neighbours from `first_step` places on."""
        proxies = self.proxies.neighbours(0)[chips]
        for turn in self.turns:
            column, exists = self._served(chunks, turn)
            active = self.proxies.column(proxies, exists, 0) > 0
            columns = self.proxies.column(proxies, column, 0)
            for step in range(first_step, self.proxies.places, 2):
                first, second = (
                    np.where(active, self._neighbour(chips, step + k), np.int32(IDLE))
                    for k in range(2)
                )
                if (first != IDLE).any():
                    second_peer = second if (second != IDLE).any() else None
                    yield ForwardingStep(first, columns, 0, second_peer=second_peer, is_local=True)

    def reduced_and_sent(self, rows: np.ndarray, sums: PartialSums) -> Iterator[ForwardingStep]:
        """Sends of one colour, slot and number of sources of a reduce-scatter."""
        source = self.sends.source[rows]
        proxies = self.proxies.neighbours(0)[source]
        for turn in self.turns:
            peer, column = self._sent(rows, turn)
            if (peer != IDLE).any():
                first = turn * sums.buffers
                yield ForwardingStep(
                    peer,
                    column,
                    int(self.sends.colour[rows[0]]),
                    operand_owners=self._chip_members(source),
                    partials=self._partials(proxies, sums.children[rows], first),
                    partial_target=self._buffers(proxies, sums.buffer[rows], first),
                )

    def completed(
        self, chunks: np.ndarray, sums: PartialSums, lane_index: int
    ) -> Iterator[ForwardingStep]:
        """Chunks whose owners have all partial sums, reduced into their final place."""
        chips = self.sends.owners[chunks]
        proxies = self.proxies.neighbours(0)[chips]
        for turn in self.turns:
            column, exists = self._served(chunks, turn)
            served = self.proxies.neighbours(0, turn)[chips]
            peer = self._ranks(proxies, np.where(exists, served, IDLE))
            if (peer != IDLE).any():
                yield ForwardingStep(
                    peer,
                    self.proxies.column(proxies, column, 0),
                    lane_index,
                    operand_owners=self._chip_members(chips),
                    partials=self._partials(
                        proxies, sums.owner_children[chunks], turn * sums.buffers
                    ),
                )

    def _sent(self, rows: np.ndarray, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """By member, the peer of sends and their column."""
        proxies = self.proxies.neighbours(0)
        column, exists = self._served(self.sends.chunk[rows], turn)
        senders = proxies[self.sends.source[rows]]
        peer = np.where(exists, proxies[self.sends.target[rows]], IDLE)
        return self._ranks(senders, peer), self.proxies.column(senders, column, 0)

    def _served(self, chunks: np.ndarray, turn: int) -> tuple[np.ndarray, np.ndarray]:
        """(n, planes): the columns of chunks that proxies serve in a turn, and if they exist."""
        place = np.arange(self.proxies.planes) + turn * self.proxies.planes
        column = chunks[:, None] * self.chunk_columns + np.minimum(place, self.chunk_columns - 1)
        exists = np.broadcast_to(place < self.chunk_columns, column.shape)
        if self.is_by_member:
            exists = place < self.proxies.sizes[self.sends.owners[chunks]][:, None]
        return column, exists

    def _served_members(self, chips: np.ndarray, turn: int) -> np.ndarray:
        """(members,) int32, at proxies the member that they serve in a turn."""
        return self._ranks(
            self.proxies.neighbours(0)[chips], self.proxies.neighbours(0, turn)[chips]
        )

    def _neighbour(self, chips: np.ndarray, step: np.ndarray | int) -> np.ndarray:
        """(members,) int32, at proxies the member `step` places on; IDLE from a full round on."""
        steps = np.broadcast_to(step, chips.shape)[:, None]
        size = self.proxies.sizes[chips][:, None]
        place = (np.arange(self.proxies.planes) + steps) % size
        other = np.take_along_axis(self.proxies.table[chips], place, axis=1)
        return self._ranks(self.proxies.neighbours(0)[chips], np.where(steps < size, other, IDLE))

    def _chip_members(self, chips: np.ndarray) -> tuple[np.ndarray, ...]:
        """At proxies all members of their chip, themselves first; all chips have as many."""
        proxies = self.proxies.neighbours(0)[chips]
        size = int(self.proxies.sizes[chips[0]])
        return tuple(
            self._ranks(proxies, self.proxies.neighbours(step)[chips]) for step in range(size)
        )

    def _partials(
        self, proxies: np.ndarray, children: np.ndarray, first: int
    ) -> tuple[np.ndarray, ...]:
        """At proxies the buffers of children, from buffer `first` on; all rows have as many."""
        count = int((children[0] != IDLE).sum())
        return tuple(self._buffers(proxies, children[:, k], first) for k in range(count))

    def _buffers(self, proxies: np.ndarray, buffer: np.ndarray, first: int) -> np.ndarray:
        numbers = np.broadcast_to(buffer[:, None] + first, proxies.shape)
        return self.proxies.column(proxies, numbers, 0)

    def _ranks(self, members: np.ndarray, values: np.ndarray) -> np.ndarray:
        return self.proxies.column(members, values).astype(np.int32)
