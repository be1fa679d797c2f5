"""Lowers one plan: its transfers become rows of the CC-core and runs of DMA descriptors.

`PlanLowering` appends the rows of all groups that share a plan, within one placeholder. On every
rank the CC-core

    signals   ready to those who will write into this rank's memory, or read from it
    advances  the DMA rings, transfer by transfer and round by round, each behind its waits: peers
              are ready, what the transfer reads has arrived, the slots that it writes are free
    waits     in the end, for all that was sent to this rank and by it, and for those who read here

Plans repeat themselves: most transfers go to the same peers as others did. What follows from a
column of peers alone is a `PeerLink`, what follows from all columns of a transfer but its addresses
a `TransferTemplate`. Both are made once for a stream, and channels are opened on the way.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.plan import Dependencies, Location, Plan, Space, Transfer
from ncc_runtime.collectives.symmetry import (
    Ends,
    RankSymmetry,
    equal_sizes,
    of_representatives,
)
from ncc_runtime.lowering.cc_isa import CcOpcode, DmaOpcode
from ncc_runtime.lowering.channels import Channels, named_once
from ncc_runtime.lowering.executable import IDLE, RegisterLoad
from ncc_runtime.lowering.queues import (
    CELLS_AT_ONCE,
    NO_POST,
    NO_WAIT,
    CcProgram,
    Condition,
    DescriptorCells,
    DescriptorRun,
    DmaRing,
    Increment,
    MemberRows,
    PlanStep,
    Row,
    distinct,
    spread,
    spread_any,
    write_rows,
)


@attrs.frozen(eq=False)
class ReplicaGroups:
    """All groups with one plan: what is done is the same for each, the ranks differ."""

    plan: Plan
    ranks: np.ndarray  # (groups, members) int32


@attrs.frozen(eq=False)
class Addresses:
    """Where the spaces of a plan lie in every rank's memory; (ranks,) where not alike in all."""

    operands: tuple[int | np.ndarray, ...]
    results: tuple[int | np.ndarray, ...]
    scratch: int
    ranks: np.ndarray | None = None  # who takes part; None: everybody
    tables: tuple[RegisterLoad, ...] = ()  # of counts

    def base(self, piece: Location) -> int | np.ndarray:
        """The address that the piece's offsets count from."""
        if piece.space is Space.SCRATCH:
            return self.scratch
        base = self.operands if piece.space is Space.OPERAND else self.results
        return base[piece.tensor]


@attrs.frozen(eq=False)
class PeerLink:
    """Who sends to whom in one lane: every rank to at most one peer, and from at most one."""

    number: int
    ends: Ends
    channels: np.ndarray  # (s,) int32
    remote: np.ndarray  # (s,) bool: not to itself
    arrival: Increment  # of `data`, by the sender
    arrived: Row  # the same semaphore, at the receiver
    advance: Increment  # of the sender's tail
    sent: Increment  # of the sender's completions
    index: slice | np.ndarray  # the channels once more, as what tables of counts are indexed by


@attrs.frozen(eq=False)
class TransferTemplate:
    """What all transfers with the same peers, owners and slots have in common."""

    lane: int
    strand: int | None
    run: DescriptorRun
    destinations: tuple[PeerLink, ...]  # whom it writes to
    owners: tuple[PeerLink, ...]  # whose operands it reads
    freed: np.ndarray | None  # channels whose slots it hands back


class StreamQueues:
    """What the plans of one stream append to, and what they share."""

    def __init__(
        self,
        symmetry: RankSymmetry,
        channels: Channels,
        ring_sems: Mapping[int, tuple[int, int]],  # lane → (tail semaphore, completion semaphore)
    ) -> None:
        self.symmetry = symmetry
        self.everybody: np.ndarray = np.arange(symmetry.representatives, dtype=np.int32)
        self.channels = channels
        self.ring_sems = ring_sems
        self.rings = {lane: DmaRing(self.everybody) for lane in ring_sems}
        self.cc = CcProgram(symmetry.representatives)
        self._templates: dict[ReplicaGroups, list[list[TransferTemplate]]] = {}
        self._links: dict[tuple[int, bytes], PeerLink] = {}

    def templates(self, groups: ReplicaGroups) -> list[list[TransferTemplate]]:
        """The template of every transfer, round by round; its channels are open."""
        if groups not in self._templates:
            known: dict[Hashable, TransferTemplate] = {}
            number = ColumnNumbers().of
            rounds = []
            for one_round in groups.plan.rounds:
                templates = []
                for transfer in one_round.transfers:
                    key = (
                        transfer.lane,
                        transfer.strand,
                        transfer.divisor,
                        number(transfer.peer),
                        number(transfer.consumed),
                        None if transfer.also is None else number(transfer.also.peer),
                        *[number(one.owner) for one in transfer.sources],
                    )
                    if key not in known:
                        known[key] = self._template(groups.ranks, transfer)
                    templates.append(known[key])
                rounds.append(templates)
            self._templates[groups] = rounds
        return self._templates[groups]

    def _template(self, ranks: np.ndarray, transfer: Transfer) -> TransferTemplate:
        """The template of a transfer between members of groups, whose ranks are these."""
        count, lane = len(self.everybody), transfer.lane

        def over_ranks(members: np.ndarray) -> np.ndarray:
            """A column of members as a column of ranks, also of those without columns; int32."""
            column: np.ndarray = np.full(self.symmetry.ranks, IDLE, np.int32)
            column[ranks] = np.where(members == IDLE, IDLE, ranks[:, members])
            return column

        # to whom it writes
        assert transfer.target.owner is None, "a transfer writes at its peer"
        first = self.link(lane, over_ranks(transfer.peer))
        destinations: tuple[PeerLink, ...] = (first,)
        if transfer.also is not None:
            peer, also = transfer.peer, transfer.also.peer
            assert (peer[also != IDLE] != IDLE).all(), "a copy without a transfer"
            assert (peer[also != IDLE] != also[also != IDLE]).all(), "both copies at one member"
            destinations = (first, self.link(lane, over_ranks(also)))

        # whose operands it reads; several may read from one owner, which is several links
        owners: list[Row | None] = []
        read: dict[int, PeerLink] = {}
        for piece in transfer.sources:
            if piece.owner is None:
                owners.append(None)
                continue
            assert piece.space is Space.OPERAND, "only operands are read in another's memory"
            is_own = piece.owner == np.arange(len(piece.owner))
            other = np.where(is_own | (transfer.peer == IDLE), np.int32(IDLE), piece.owner)
            column = over_ranks(other)
            owners.append(column[:count])
            for layer in layers(column):
                link = self.link(lane, layer)
                read[link.number] = link

        # whose slots it hands back: a channel leads from the writer to the reader, so turn it round
        free, freed = NO_POST, None
        if transfer.consumed is not None:
            writers = over_ranks(transfer.consumed)
            back = self.symmetry.ends(writers)
            freed = self.channels.open(
                lane, back.places, back.sources, back.senders, back.receivers
            )
            sems = self.channels.free_sems(freed, back.places)
            free = Increment(writers[:count], spread(sems, back.senders, count))

        opcode = DmaOpcode.REDUCE
        if not transfer.sources:
            opcode = DmaOpcode.FILL
        elif len(transfer.sources) == 1 and transfer.divisor == 1:
            opcode = DmaOpcode.COPY
        return TransferTemplate(
            lane=lane,
            strand=transfer.strand,
            run=DescriptorRun(
                opcode=opcode,
                tail=first.advance.sem,
                arrival=first.arrival,
                sent=first.sent,
                also=destinations[1].arrival if len(destinations) > 1 else NO_POST,
                free=free,
                reads=tuple(link.arrival for link in read.values()),
                owners=tuple(owners) if any(one is not None for one in owners) else (),
                divisor=transfer.divisor,
            ),
            destinations=destinations,
            owners=tuple(read.values()),
            freed=freed,
        )

    def link(self, lane: int, peer: np.ndarray) -> PeerLink:
        """The link of a column of peers, (ranks,); no rank may be the peer of two."""
        key = lane, peer.tobytes()
        if key not in self._links:
            count = len(self.everybody)
            ends = self.symmetry.ends(peer)
            channels = self.channels.open(
                lane, ends.senders, ends.receivers, ends.places, ends.sources
            )
            # numpy would convert narrow indices each time, and channels mostly follow each other
            index: slice | np.ndarray = channels.astype(np.intp)
            if len(channels) and (np.diff(channels) == 1).all():
                index = slice(int(channels[0]), int(channels[-1]) + 1)
            data = self.channels.counters.data_sem[channels]
            tail, completed = self.ring_sems[lane]
            self._links[key] = PeerLink(
                number=len(self._links),
                ends=ends,
                channels=channels,
                remote=ends.senders != ends.receivers,
                arrival=Increment(peer[:count], spread(data, ends.senders, count)),
                arrived=spread(data, ends.places, count),
                advance=self._at_home(ends.senders, tail),
                sent=self._at_home(ends.senders, completed),
                index=index,
            )
        return self._links[key]

    def _at_home(self, ranks: np.ndarray, sem: int) -> Increment:
        """An increment of one of their own semaphores on some ranks."""
        count = len(self.everybody)
        sems = spread(np.full(len(ranks), sem, np.int32), ranks, count)
        everybody = self.everybody if len(ranks) == count else spread(ranks, ranks, count)
        return Increment(everybody, sems)

    def posted(self, link: PeerLink) -> Condition:
        """Count one more transfer on every channel of a link; the wait for it, at the receivers."""
        counts = self.channels.counters.data_count
        values = counts[link.index] + 1
        counts[link.index] = values
        return Condition(link.arrived, spread_any(values, link.ends.places, len(self.everybody)))


def layers(column: np.ndarray) -> Iterator[np.ndarray]:
    """A column of ranks, (ranks,), as few columns that name none twice."""
    left = column
    while (left != IDLE).any():
        who = np.flatnonzero(left != IDLE)
        if named_once(left[who]):
            yield left
            return
        _, first = np.unique(left[who], return_index=True)
        layer = np.full_like(left, IDLE)
        layer[who[first]] = left[who[first]]
        yield layer
        left = np.where(layer == IDLE, left, IDLE)


class ColumnNumbers:
    """Numbers for columns, one for those that are equal; each object is looked at once."""

    def __init__(self) -> None:
        self._by_content: dict[bytes, int] = {}
        self._by_object: dict[int, tuple[int, np.ndarray]] = {}  # which keeps the column alive

    def of(self, column: np.ndarray | None) -> int | None:
        """The number of a column that is not going to change."""
        if column is None:
            return None
        known = self._by_object.get(id(column))
        if known is None:
            number = self._by_content.setdefault(column.tobytes(), len(self._by_content))
            known = self._by_object[id(column)] = number, column
        return known[0]


@attrs.frozen(eq=False)
class _RingRows:
    """The transfers that a plan puts into one DMA ring, in the order of the plan."""

    numbers: list[int] = attrs.field(factory=list)  # counted through the plan
    rounds: list[int] = attrs.field(factory=list)
    runs: list[DescriptorRun] = attrs.field(factory=list)
    transfers: list[Transfer] = attrs.field(factory=list)


class PlanLowering:
    """The rows of all groups with one plan within one placeholder."""

    def __init__(
        self, queues: StreamQueues, groups: ReplicaGroups, number: int, addresses: Addresses
    ) -> None:
        self._queues = queues
        self._counters = queues.channels.counters
        self._ranks = len(queues.everybody)
        self._groups = groups
        self._number = number
        self._addresses = addresses
        self._templates = queues.templates(groups)
        # (groups, members whose columns are used): who gets rows
        self._members = queues.symmetry.members(groups.ranks)
        # all links by number, in the order they are first used
        links = {
            link.number: link
            for templates in self._templates
            for template in templates
            for link in (*template.destinations, *template.owners)
        }
        written = {
            link.number
            for templates in self._templates
            for template in templates
            for link in template.destinations
        }
        self._links = links
        self._only_read = links.keys() - written
        self._without_handshake = dict(links)  # whose peers this placeholder has not waited for
        self._is_ready: np.ndarray = np.zeros(len(self._counters.sender), bool)  # by channel
        self._arriving: dict[tuple[int | None, int], Condition] = {}  # not waited for yet
        self._read: set[int] = set()  # links by which others read the own operand
        self._last: dict[int, Condition] = {}  # by link: everything that has been sent
        self._free_base: dict[int, Row] = {}
        self._free_sems: dict[int, Row] = {}
        self._awaited = AwaitedTransfers(groups, self._ranks)
        self._freed = FreedSlots(self._links_with_credit(), len(self._is_ready))

    def append(self) -> None:
        """Append everything."""
        queues, rings = self._queues, self._queues.rings
        lanes: dict[int, _RingRows] = {}
        ring_rows = {lane: len(ring) for lane, ring in rings.items()}
        number = 0
        self._signal_ready()
        rounds = zip(self._templates, self._groups.plan.rounds, strict=True)
        for index, (templates, one_round) in enumerate(rounds):
            step = PlanStep(self._number, index)
            before, self._arriving = self._arriving, {}
            for template, transfer in zip(templates, one_round.transfers, strict=True):
                lane = template.lane
                if transfer.after is None:
                    # All that its strand received in earlier rounds. Later transfers need not wait
                    # for it once more: a CC-core performs its rows in order.
                    needed = [key for key in before if template.strand in (None, key[0])]
                    waits = [before.pop(key) for key in needed]
                else:
                    waits = self._awaited.waits(transfer.after)
                self._advance(template, transfer.credit, step, waits, ring_rows[lane])
                rows = lanes.setdefault(lane, _RingRows())
                rows.numbers.append(number)
                rows.rounds.append(index)
                rows.runs.append(template.run)
                rows.transfers.append(transfer)
                ring_rows[lane] += 1
                number += 1
            self._arriving = before | self._arriving
        self._count_freed_slots()
        completed = []
        for lane, rows in lanes.items():
            cells = self._cells(rows.transfers)
            runs = rings[lane].extend(rows.runs, self._number, rows.rounds, cells)
            _, sem = queues.ring_sems[lane]
            completed.append(Completed(sem, np.array(rows.numbers), runs))
        self._awaited.fill(completed)
        self._finish(sorted(lanes))

    def _signal_ready(self) -> None:
        """Tell everybody who will write here or read here, once, that this rank has come here."""
        counters = self._counters
        notified = np.zeros_like(self._is_ready)
        for link in self._links.values():
            counts = counters.free_count[link.channels]
            self._free_base[link.number] = spread_any(counts, link.ends.senders, self._ranks)
            fresh = link.remote & ~notified[self._ready_channels(link)]
            if not fresh.any():
                continue
            channels, places = link.channels[fresh], link.ends.places[fresh]
            notified[channels] = notified[counters.pair[channels]] = True
            counters.ready_count[channels] += 1
            to = spread(link.ends.sources[fresh], places, self._ranks)
            sem = spread(counters.ready_sem[channels], places, self._ranks)
            self._queues.cc.add(CcOpcode.SIGNAL, PlanStep(self._number), [], Increment(to, sem))

    def _advance(
        self,
        template: TransferTemplate,
        credit: int,
        step: PlanStep,
        waits: list[Condition],
        ring_row: int,
    ) -> None:
        """Push one run of descriptors, after what it waits for."""
        queues = self._queues
        if self._without_handshake:
            for link in (*template.destinations, *template.owners):
                if self._without_handshake.pop(link.number, None):
                    waits += self._handshake(link)
        if credit:
            for link in template.destinations:
                waits += self._credit(link, template.strand, credit)
        push = (template.lane, ring_row)
        queues.cc.add(CcOpcode.ADVANCE, step, waits, template.destinations[0].advance, push)
        arrivals = [queues.posted(link) for link in template.destinations]
        for link, arrival in zip(template.destinations, arrivals, strict=True):
            self._last[link.number] = self._arriving[template.strand, link.number] = arrival
        if self._awaited.are_some:
            self._awaited.add(arrivals)
        for link in template.owners:
            self._last[link.number] = queues.posted(link)
            self._read.add(link.number)
        self._freed.add(template)

    def _handshake(self, link: PeerLink) -> list[Condition]:
        """The wait for peers and owners to have come here, where it is the first."""
        counters = self._counters
        fresh = link.remote & ~self._is_ready[self._ready_channels(link)]
        if not fresh.any():
            return []
        channels, senders = link.channels[fresh], link.ends.senders[fresh]
        self._is_ready[channels] = self._is_ready[counters.pair[channels]] = True
        sem = spread(counters.ready_sem[channels], senders, self._ranks)
        return [Condition(sem, spread_any(counters.ready_count[channels], senders, self._ranks))]

    def _ready_channels(self, link: PeerLink) -> np.ndarray:
        """The channels by which readiness is known: readers ask each owner once for all lanes."""
        if link.number not in self._only_read:
            return link.channels
        return np.take(self._counters.pair, link.channels)

    def _links_with_credit(self) -> Iterator[PeerLink]:
        """The links with transfers that wait for slots."""
        for templates, one_round in zip(self._templates, self._groups.plan.rounds, strict=True):
            for template, transfer in zip(templates, one_round.transfers, strict=True):
                if transfer.credit:
                    yield from template.destinations

    def _credit(self, link: PeerLink, strand: int | None, credit: int) -> list[Condition]:
        """The wait for slots of peers that are used again: all up to the one that is needed."""
        if not link.remote.any():
            return []
        freed = self._freed.count(link, strand, credit)
        if link.number not in self._free_sems:
            senders = link.ends.senders[link.remote]
            sems = self._queues.channels.free_sems(link.channels[link.remote], senders)
            self._free_sems[link.number] = spread(sems, senders, self._ranks)
        return [Condition(self._free_sems[link.number], self._free_base[link.number] + freed)]

    def _count_freed_slots(self) -> None:
        """Count the slots that all transfers hand back."""
        free_count = self._counters.free_count
        templates, index = distinct([one for templates in self._templates for one in templates])
        for template, times in zip(templates, np.bincount(index).tolist(), strict=True):
            if template.freed is not None:
                free_count[template.freed] += times

    def _finish(self, lanes: list[int]) -> None:
        """Wait for what is still on its way here, for readers and for the own transfers.

        What a rank has sent to itself has come when its own transfers are complete.
        """
        numbers = dict.fromkeys([*(link for _, link in self._arriving), *sorted(self._read)])
        waits = [self._last[link] for link in numbers if self._links[link].remote.any()]
        members = self._members.ravel()
        for lane in lanes:
            _, completed = self._queues.ring_sems[lane]
            filled = self._queues.rings[lane].filled
            busy = members[np.broadcast_to(filled, (self._ranks,))[members] > 0]
            sem = spread(np.full(len(busy), completed, np.int32), busy, self._ranks)
            waits.append(Condition(sem, filled))
        self._queues.cc.add(CcOpcode.WAIT, PlanStep(self._number), waits)

    def _cells(self, transfers: list[Transfer]) -> DescriptorCells:
        """Addresses and sizes of the transfers of one lane."""
        members = self._members
        widest = max(len(one.sources) for one in transfers)
        also = [one.also for one in transfers]
        sizes = [equal_sizes(one.size_bytes, members.shape[1]) for one in transfers]
        sources = [
            [one.sources[number] if number < len(one.sources) else None for one in transfers]
            for number in range(widest)
        ]
        return DescriptorCells(
            sources=[
                self._addressed(pieces, [None if one is None else one.owner for one in pieces])
                for pieces in sources
            ],
            target=self._addressed(
                [one.target for one in transfers], [one.peer for one in transfers]
            ),
            size=MemberRows(sizes, np.zeros(len(sizes), np.int64), members, idle=0),
            also=self._addressed(
                [None if one is None else one.target for one in also],
                [None if one is None else one.peer for one in also],
            )
            if any(also)
            else None,
            registers=self._registers(transfers),
        )

    def _addressed(
        self, pieces: Sequence[Location | None], owners: Sequence[np.ndarray | None]
    ) -> MemberRows:
        """Addresses of pieces, IDLE for none, in the memory of their owners; None: the own."""
        count, ranks = self._members.shape[1], self._groups.ranks
        nowhere: np.ndarray = np.full(count, IDLE, np.int64)
        bases = [0 if one is None else self._addresses.base(one) for one in pieces]
        more: dict[int, np.ndarray] = {}  # where a base is not the same on all ranks
        for row, base in enumerate(bases):
            if not isinstance(base, int):
                owner = owners[row]
                bases[row] = 0
                more[row] = np.asarray(base[ranks if owner is None else ranks[:, owner]])
        return MemberRows(
            offsets=[
                nowhere if one is None else of_representatives(one.offset, count) for one in pieces
            ],
            bases=np.array(bases, np.int64),
            ranks=self._members,
            idle=IDLE,
            more=more,
        )

    def _registers(self, transfers: list[Transfer]) -> list[MemberRows]:
        """The length registers of transfers, as their plan counts entries of tables."""
        counts = [one.count for one in transfers]
        if not any(counts):
            return []
        width = self._members.shape[1]
        none: np.ndarray = np.full(width, IDLE, np.int64)
        columns = zip(
            *((none,) * 3 if one is None else (one.rows, one.source, one.target) for one in counts),
            strict=True,
        )
        zeros = np.zeros(len(counts), np.int64)
        rows = (
            [none if one is None else of_representatives(one, width) for one in column]
            for column in columns
        )
        return [MemberRows(offsets, zeros, self._members, IDLE) for offsets in rows]


class FreedSlots:
    """In which order peers hand slots back, where several strands share a channel.

    The members of a link are alike: what is counted on one of its channels holds for all.
    """

    def __init__(self, links: Iterable[PeerLink], channels: int) -> None:
        self._watched = {
            link.number: int(link.channels[link.remote][0]) for link in links if link.remote.any()
        }
        self._is_watched: np.ndarray = np.zeros(channels, bool)
        self._is_watched[list(self._watched.values())] = True
        self._total: Counter[int] = Counter()  # by channel
        self._at: dict[tuple[int, int | None], list[int]] = {}  # by channel and strand, in order
        self._freed_by: dict[int, list[int]] = {}  # by template, which outlives us: channels

    def add(self, template: TransferTemplate) -> None:
        """One more slot of every channel that a transfer hands back."""
        if template.freed is None:
            return
        if id(template) not in self._freed_by:
            watched = template.freed[self._is_watched[template.freed]]
            self._freed_by[id(template)] = watched.tolist()
        for channel in self._freed_by[id(template)]:
            self._total[channel] += 1
            self._at.setdefault((channel, template.strand), []).append(self._total[channel])

    def count(self, link: PeerLink, strand: int | None, credit: int) -> int:
        """How many slots are free on a link once `credit` of a strand are; too many if none is."""
        channel = self._watched[link.number]
        at = self._at.get((channel, strand), [])
        lacking = credit - len(at)
        return at[credit - 1] if lacking <= 0 else self._total[channel] + lacking


@attrs.frozen(eq=False)
class Completed:
    """What says that the transfers of one lane are complete."""

    sem: int  # at who makes them
    transfers: np.ndarray  # their numbers, in the order of the lane
    runs: np.ndarray  # (transfers, ranks or 1): what it has come to when each is complete


class AwaitedTransfers:
    """Waits for single transfers of a plan, by number: that one has arrived, or is complete.

    The rows of all waits are handed out before it is known what stands in them, and are filled
    together when the last transfer is there: plans from files have tens of thousands, each of few
    members.
    """

    def __init__(self, groups: ReplicaGroups, ranks: int) -> None:
        self._ranks = groups.ranks
        afters = [
            move.after
            for one_round in groups.plan.rounds
            for move in one_round.transfers
            if move.after is not None
        ]
        self.are_some: bool = bool(afters)
        self._columns = [column for one in afters for column in (*one.arrived, *one.sent)]
        self._is_own = [
            is_own
            for one in afters
            for is_own in [False] * len(one.arrived) + [True] * len(one.sent)
        ]
        self._sems: np.ndarray = np.full((len(self._columns), ranks), IDLE, np.int32)
        self._values: np.ndarray = self._sems.copy()
        self._waits = list(map(Condition, self._sems, self._values))
        self._handed_out = 0
        self._arrived: list[Condition] = []  # by transfer, at whom it writes to
        self._also_arrived: list[Condition] = []  # the same, at whom it writes to as well

    def add(self, arrived: Sequence[Condition]) -> None:
        """The next transfer."""
        self._arrived.append(arrived[0])
        self._also_arrived.append(arrived[1] if len(arrived) > 1 else NO_WAIT)

    def waits(self, after: Dependencies) -> list[Condition]:
        """The conditions of the next transfer's columns; `fill` says what they are."""
        first = self._handed_out
        self._handed_out += len(after.arrived) + len(after.sent)
        return self._waits[first : self._handed_out]

    def fill(self, sent: Sequence[Completed]) -> None:
        """Write the conditions that were handed out, as all transfers are there.

        What says that transfers are complete, at who makes them, is `sent`.
        """
        assert self._handed_out == len(self._columns), "every transfer has asked for its waits"
        if not self._columns:
            return
        columns = np.stack(self._columns)
        rows, members = np.nonzero(columns != IDLE)
        numbers = columns[rows, members]
        order = np.argsort(numbers, kind="stable")
        is_own = np.array(self._is_own)[rows[order]]
        for conditions in (self._also_arrived, self._arrived):
            where, step = order[~is_own], max(1, CELLS_AT_ONCE // self._sems.shape[1])
            for first in range(0, len(where), step):
                cells = where[first : first + step]
                self._write(rows[cells], members[cells], numbers[cells], conditions)
        of: np.ndarray = np.full((2, len(self._arrived)), IDLE, np.int64)
        for which, one in enumerate(sent):
            of[:, one.transfers] = np.full(len(one.transfers), which), np.arange(len(one.transfers))
        own = order[is_own]
        for which, one in enumerate(sent):
            cells = own[of[0, numbers[own]] == which]
            ranks = self._ranks[:, members[cells]]
            at = np.broadcast_to(rows[cells], ranks.shape), ranks
            runs = of[1, numbers[cells]]
            self._sems[at] = one.sem
            self._values[at] = one.runs[runs, ranks if one.runs.shape[1] > 1 else 0]

    def _write(
        self,
        rows: np.ndarray,
        members: np.ndarray,
        numbers: np.ndarray,
        conditions: Sequence[Condition],
    ) -> None:
        """The waits of members for transfers, where these have a condition for them."""
        transfers, index = np.unique(numbers, return_inverse=True)
        awaited = [conditions[number] for number in transfers.tolist()]
        table: np.ndarray = np.empty((2, len(awaited), self._sems.shape[1]), np.int32)
        write_rows([one.sem for one in awaited], table[0])
        write_rows([one.value for one in awaited], table[1])
        ranks = self._ranks[:, members]
        sem, value = table[:, index, ranks]
        is_there = sem != IDLE
        cells = np.broadcast_to(rows, ranks.shape)[is_there], ranks[is_there]
        self._sems[cells], self._values[cells] = sem[is_there], value[is_there]
