"""Lowers one plan: its transfers become rows of the CC-core and runs of DMA descriptors.

`PlanLowering` appends the rows of all groups that share a plan, within one placeholder. On every
rank the CC-core

    signals   ready to those who will write into this rank's memory, or read from it
    advances  the DMA rings, transfer by transfer and round by round, each behind its waits: peers
              are ready, what the transfer reads has arrived, the slots that it writes are free
    waits     in the end, for all that was sent to this rank and by it, and for its readers

Plans repeat themselves: most transfers go to the same peers as others did. What follows from a
column of peers alone is a `PeerLink`, what follows from all columns of a transfer but its addresses
a `TransferTemplate`. Both are made once for a stream, and channels are opened on the way.
"""

import itertools
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
from ncc_runtime.lowering.channels import Channels, are_distinct
from ncc_runtime.lowering.executable import IDLE, RegisterLoad
from ncc_runtime.lowering.queues import (
    CELLS_AT_ONCE,
    NO_POST,
    NO_WAIT,
    NOTHING,
    CcProgram,
    Condition,
    DescriptorCells,
    DescriptorRun,
    DmaRing,
    Increment,
    MemberRows,
    PickedRows,
    PlanStep,
    Row,
    Rows,
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
    ranks: np.ndarray | None = None  # that take part; None: all
    tables: tuple[RegisterLoad, ...] = ()  # of counts

    def base(self, piece: Location) -> int | np.ndarray:
        """The address that the piece's offsets count from."""
        if piece.space is Space.SCRATCH:
            return self.scratch
        base = self.operands if piece.space is Space.OPERAND else self.results
        return base[piece.tensor]


@attrs.frozen(eq=False)
class PeerLink:
    """Senders and receivers in one lane: a rank sends to at most one, and receives from one."""

    number: int
    ends: Ends
    channels: np.ndarray  # (s,) int32
    remote: np.ndarray  # (s,) bool: not to itself
    arrival: Increment  # of `data`, by the sender
    arrived: Row  # the same semaphore, at the receiver
    advance: Increment  # of the sender's tail
    sent: Increment  # of the sender's completions
    index: slice | np.ndarray  # the same channels, as a quick index into tables of counts


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
        *,
        has_addresses: bool,
    ) -> None:
        self.symmetry = symmetry
        self.has_addresses = has_addresses
        self.everybody: np.ndarray = np.arange(symmetry.representatives, dtype=np.int32)
        self.channels = channels
        self.ring_sems = ring_sems
        self.rings = {
            lane: DmaRing(self.everybody, has_addresses=has_addresses) for lane in ring_sems
        }
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
                        None
                        if transfer.second_target is None
                        else number(transfer.second_target.peer),
                        *[number(source.owner) for source in transfer.sources],
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
        if transfer.second_target is not None:
            peer, second = transfer.peer, transfer.second_target.peer
            has_second = second != IDLE
            assert (peer[has_second] != IDLE).all(), "a copy without a transfer"
            assert (peer[has_second] != second[has_second]).all(), "both copies at one member"
            destinations = (first, self.link(lane, over_ranks(second)))

        # whose operands it reads; several may read from one owner, which is several links
        owners: list[Row | None] = []
        read: dict[int, PeerLink] = {}
        for piece in transfer.sources:
            if piece.owner is None:
                owners.append(None)
                continue
            assert piece.space is Space.OPERAND, "only operands are read in another's memory"
            is_self = piece.owner == np.arange(len(piece.owner))
            column = over_ranks(
                np.where(is_self | (transfer.peer == IDLE), np.int32(IDLE), piece.owner)
            )
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
                second_arrival=destinations[1].arrival if len(destinations) > 1 else NO_POST,
                free=free,
                reads=tuple(link.arrival for link in read.values()),
                owners=tuple(owners) if any(owner is not None for owner in owners) else (),
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
                advance=self._own_increment(ends.senders, tail),
                sent=self._own_increment(ends.senders, completed),
                index=index,
            )
        return self._links[key]

    def _own_increment(self, ranks: np.ndarray, sem: int) -> Increment:
        """Some ranks increment this semaphore of their own."""
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
    """A column of ranks, (ranks,), as few columns in each of which ranks are distinct."""
    left = column
    while (left != IDLE).any():
        rows = np.flatnonzero(left != IDLE)
        if are_distinct(left[rows]):
            yield left
            return
        _, first = np.unique(left[rows], return_index=True)
        layer = np.full_like(left, IDLE)
        layer[rows[first]] = left[rows[first]]
        yield layer
        left = np.where(layer == IDLE, left, IDLE)


class ColumnNumbers:
    """Numbers columns, equal ones alike; the bytes of each object are read once."""

    def __init__(self) -> None:
        self._by_content: dict[bytes, int] = {}
        self._by_object: dict[int, tuple[int, np.ndarray]] = {}  # which keeps the column alive

    def of(self, column: np.ndarray | None) -> int | None:
        """The number of a column, which must not change afterwards."""
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
        # (groups, members): the ranks that get rows
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
        self._read: set[int] = set()  # links by which others read this rank's operand
        self._last: dict[int, Condition] = {}  # by link: the wait for all that has been sent on it
        self._free_base: dict[int, Row] = {}
        self._free_sems: dict[int, Row] = {}
        self._awaited = AwaitedTransfers(groups, self._ranks)
        rounds = zip(self._templates, groups.plan.rounds, strict=True)
        links_with_credit = (
            link
            for templates, one_round in rounds
            for template, transfer in zip(templates, one_round.transfers, strict=True)
            if transfer.credit
            for link in template.destinations
        )
        self._freed = FreedSlots(links_with_credit, len(self._is_ready))

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
                    awaited = [key for key in before if template.strand in (None, key[0])]
                    waits = [before.pop(key) for key in awaited]
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
        """Signal `ready`, once, to all ranks that will write or read this rank's memory."""
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
        if self._awaited.are_used:
            self._awaited.add(arrivals)
        for link in template.owners:
            self._last[link.number] = queues.posted(link)
            self._read.add(link.number)
        self._freed.add(template)

    def _handshake(self, link: PeerLink) -> list[Condition]:
        """The wait for `ready` of peers and owners, at ranks that have not waited for it yet."""
        counters = self._counters
        fresh = link.remote & ~self._is_ready[self._ready_channels(link)]
        if not fresh.any():
            return []
        channels, senders = link.channels[fresh], link.ends.senders[fresh]
        self._is_ready[channels] = self._is_ready[counters.pair[channels]] = True
        sem = spread(counters.ready_sem[channels], senders, self._ranks)
        return [Condition(sem, spread_any(counters.ready_count[channels], senders, self._ranks))]

    def _ready_channels(self, link: PeerLink) -> np.ndarray:
        """The channels that count `ready`: a reader waits for each owner once for all lanes."""
        if link.number not in self._only_read:
            return link.channels
        return np.take(self._counters.pair, link.channels)

    def _credit(self, link: PeerLink, strand: int | None, credit: int) -> list[Condition]:
        """The wait for slots of peers that are used again: for all up to the one written next."""
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
        templates, index = distinct(list(itertools.chain(*self._templates)))
        for template, times in zip(templates, np.bincount(index).tolist(), strict=True):
            if template.freed is not None:
                free_count[template.freed] += times

    def _finish(self, lanes: list[int]) -> None:
        """Wait for what has not arrived yet, for readers, and for this rank's transfers.

        What a rank has sent to itself has arrived when its transfers are complete.
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
        most_sources = max(len(move.sources) for move in transfers)
        seconds = [move.second_target for move in transfers]
        sources = [  # the first source of every transfer, the second ones, …
            [move.sources[number] if number < len(move.sources) else None for move in transfers]
            for number in range(most_sources)
        ]
        return DescriptorCells(
            sources=[
                self._addressed(
                    pieces, [None if piece is None else piece.owner for piece in pieces]
                )
                for pieces in sources
            ],
            target=self._addressed(
                [move.target for move in transfers], [move.peer for move in transfers]
            ),
            size=self._sizes(transfers),
            second_target=self._addressed(
                [None if second is None else second.target for second in seconds],
                [None if second is None else second.peer for second in seconds],
            )
            if any(seconds)
            else None,
            registers=self._registers(transfers),
        )

    def _sizes(self, transfers: list[Transfer]) -> Rows:
        """What transfers move, 0 at ranks of no group."""
        members = self._members
        sizes = [equal_sizes(move.size_bytes, members.shape[1]) for move in transfers]
        if members.size == self._ranks and all(size.strides == (0,) for size in sizes):
            different, index = distinct(sizes)
            return PickedRows([size[:1] for size in different], index)  # all ranks move as much
        return MemberRows(sizes, np.zeros(len(sizes), np.int64), members, idle=0)

    def _addressed(
        self, pieces: Sequence[Location | None], owners: Sequence[np.ndarray | None]
    ) -> Rows:
        """Addresses of pieces, IDLE for none, in the memory of their owners (None: the rank).

        For times only, all are 0.
        """
        count, ranks = self._members.shape[1], self._groups.ranks
        if not self._queues.has_addresses:
            members = self._members.ravel()
            zero = spread(np.zeros(len(members), np.int32), members, self._ranks)
            return PickedRows(
                [NOTHING, zero], np.array([piece is not None for piece in pieces], int)
            )
        nowhere: np.ndarray = np.full(count, IDLE, np.int64)
        bases = [0 if piece is None else self._addresses.base(piece) for piece in pieces]
        rank_bases: dict[int, np.ndarray] = {}  # by row, where ranks have different bases
        for row, base in enumerate(bases):
            if not isinstance(base, int):
                owner = owners[row]
                bases[row] = 0
                rank_bases[row] = np.asarray(base[ranks if owner is None else ranks[:, owner]])
        return MemberRows(
            offsets=[
                nowhere if piece is None else of_representatives(piece.offset, count)
                for piece in pieces
            ],
            bases=np.array(bases, np.int64),
            ranks=self._members,
            idle=IDLE,
            rank_bases=rank_bases,
        )

    def _registers(self, transfers: list[Transfer]) -> list[MemberRows]:
        """The length registers of transfers: rows, source and target; [] if none uses any.

        A plan names entries of tables of counts. They are loaded in order, so entry and register
        have one number.
        """
        counts = [move.count for move in transfers]
        if not any(counts):
            return []
        members = self._members.shape[1]
        none: np.ndarray = np.full(members, IDLE, np.int64)
        entries = [
            (None, None, None) if count is None else (count.rows, count.source, count.target)
            for count in counts
        ]
        zeros = np.zeros(len(counts), np.int64)
        return [
            MemberRows(
                [
                    none if column is None else of_representatives(column, members)
                    for column in kind
                ],
                zeros,
                self._members,
                IDLE,
            )
            for kind in zip(*entries, strict=True)
        ]


class FreedSlots:
    """In which order peers hand slots back, where several strands share a channel.

    `free` counts the slots of all strands of a channel together, and credits count those of one. So
    the value to wait for is the total at which the strand's slot number `credit` is handed back.
    The members of a link are alike: what is counted on one of its channels holds for all.
    """

    def __init__(self, links: Iterable[PeerLink], channels: int) -> None:
        self._watched = {
            link.number: int(link.channels[link.remote][0]) for link in links if link.remote.any()
        }
        self._is_watched: np.ndarray = np.zeros(channels, bool)
        self._is_watched[list(self._watched.values())] = True
        self._total: Counter[int] = Counter()  # by channel
        # by channel and strand, the channel's total at each slot of the strand
        self._totals: dict[tuple[int, int | None], list[int]] = {}
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
            self._totals.setdefault((channel, template.strand), []).append(self._total[channel])

    def count(self, link: PeerLink, strand: int | None, credit: int) -> int:
        """The value of `free` at which a strand has had `credit` of its slots back on a link.

        `free` counts slots of all strands. If the transfers so far hand back fewer of this one, the
        value is beyond what they make: the wait is for later ones.
        """
        channel = self._watched[link.number]
        of_strand = self._totals.get((channel, strand), [])
        if credit <= len(of_strand):
            return of_strand[credit - 1]
        return self._total[channel] + credit - len(of_strand)


@attrs.frozen(eq=False)
class Completed:
    """The semaphore by which senders see that their transfers in one lane are complete."""

    sem: int
    transfers: np.ndarray  # their numbers, in the order of the lane
    runs: np.ndarray  # (transfers, ranks or 1): its value when each is complete


class AwaitedTransfers:
    """Waits for single transfers of a plan, by number: until one has arrived, or is complete.

    Rows of waits are handed out empty and filled together after the last transfer: plans from files
    have tens of thousands of them, each of few members, and filling them one by one would be slow.
    """

    def __init__(self, groups: ReplicaGroups, ranks: int) -> None:
        self._ranks = groups.ranks
        afters = [
            move.after
            for one_round in groups.plan.rounds
            for move in one_round.transfers
            if move.after is not None
        ]
        self.are_used: bool = bool(afters)
        self._columns = [column for after in afters for column in (*after.arrived, *after.sent)]
        self._is_sent = [
            is_sent
            for after in afters
            for is_sent in [False] * len(after.arrived) + [True] * len(after.sent)
        ]
        self._sems: np.ndarray = np.full((len(self._columns), ranks), IDLE, np.int32)
        self._values: np.ndarray = self._sems.copy()
        self._waits = list(map(Condition, self._sems, self._values))
        self._handed_out = 0
        self._arrived: list[Condition] = []  # by transfer, at the peers
        self._second_arrived: list[Condition] = []  # by transfer, at the second peers

    def add(self, arrived: Sequence[Condition]) -> None:
        """The next transfer."""
        self._arrived.append(arrived[0])
        self._second_arrived.append(arrived[1] if len(arrived) > 1 else NO_WAIT)

    def waits(self, after: Dependencies) -> list[Condition]:
        """The conditions of the next transfer's columns, which `fill` writes later."""
        first = self._handed_out
        self._handed_out += len(after.arrived) + len(after.sent)
        return self._waits[first : self._handed_out]

    def fill(self, sent: Sequence[Completed]) -> None:
        """Write the conditions that were handed out, when all transfers have been added."""
        assert self._handed_out == len(self._columns), "every transfer has taken its waits"
        if not self._columns:
            return
        columns = np.stack(self._columns)
        rows, members = np.nonzero(columns != IDLE)
        numbers = columns[rows, members]
        order = np.argsort(numbers, kind="stable")
        is_sent = np.array(self._is_sent)[rows[order]]

        # arrivals: at a member by the first or by the second target of the transfer
        arriving, step = order[~is_sent], max(1, CELLS_AT_ONCE // self._sems.shape[1])
        for conditions in (self._second_arrived, self._arrived):
            for first in range(0, len(arriving), step):
                cells = arriving[first : first + step]
                self._write(rows[cells], members[cells], numbers[cells], conditions)

        # completions: by transfer, its lane and its place there
        lane: np.ndarray = np.full(len(self._arrived), IDLE, np.int64)
        place = lane.copy()
        for number, completed in enumerate(sent):
            lane[completed.transfers] = number
            place[completed.transfers] = np.arange(len(completed.transfers))
        sending = order[is_sent]
        for number, completed in enumerate(sent):
            cells = sending[lane[numbers[sending]] == number]
            ranks = self._ranks[:, members[cells]]
            at = np.broadcast_to(rows[cells], ranks.shape), ranks
            column = ranks if completed.runs.shape[1] > 1 else 0
            self._sems[at] = completed.sem
            self._values[at] = completed.runs[place[numbers[cells]], column]

    def _write(
        self,
        rows: np.ndarray,
        members: np.ndarray,
        numbers: np.ndarray,
        conditions: Sequence[Condition],
    ) -> None:
        """Write the waits of members for transfers, where the conditions have a cell for them."""
        transfers, index = np.unique(numbers, return_inverse=True)
        awaited = [conditions[number] for number in transfers.tolist()]
        table: np.ndarray = np.empty((2, len(awaited), self._sems.shape[1]), np.int32)
        write_rows([condition.sem for condition in awaited], table[0])
        write_rows([condition.value for condition in awaited], table[1])
        ranks = self._ranks[:, members]
        sem, value = table[:, index, ranks]
        is_there = sem != IDLE
        cells = np.broadcast_to(rows, ranks.shape)[is_there], ranks[is_there]
        self._sems[cells], self._values[cells] = sem[is_there], value[is_there]
