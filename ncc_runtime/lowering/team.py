"""Lowers one plan: the rows of one team within one placeholder.

The CC-core tells those who will write into this rank's memory, or read from it, that it is ready;
goes through the rounds; and at the end waits for everything sent to and by it, and for those who
read its operand to be done with it.

Waits for single transfers of a plan, by number: that one has arrived, or is complete.

The rows of all waits are handed out before it is known what stands in them, and are filled together
when the last transfer is there: plans from files have tens of thousands, each of few members.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.plan import Dependencies, Location, Space, Transfer
from ncc_runtime.collectives.symmetry import UnfoldedError
from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.channels import Channels
from ncc_runtime.lowering.executable import IDLE, Load
from ncc_runtime.lowering.links import Link, Links
from ncc_runtime.lowering.moves import Move, Moves, Rounds, Team
from ncc_runtime.lowering.queues import (
    CELLS_AT_ONCE,
    NO_WAIT,
    CcRows,
    Condition,
    DmaRows,
    Extents,
    Increment,
    MemberRows,
    Place,
    Row,
    Run,
    distinct,
    spread,
    spread_any,
    write_rows,
)
from ncc_runtime.machine_model.instances import is_repeated


@attrs.frozen(eq=False)
class Completed:
    """What says that the transfers of one lane are complete."""

    sem: int  # at who makes them
    transfers: np.ndarray  # their numbers, in the order of the lane
    runs: np.ndarray  # (transfers, ranks or 1): what it has come to when each is complete


class Events:
    """The transfers of one team within one placeholder, in the order of the plan."""

    def __init__(self, team: Team, ranks: int) -> None:
        self._team = team
        afters = [
            move.after
            for one_round in team.plan.rounds
            for move in one_round.transfers
            if move.after is not None
        ]
        self.are_awaited: bool = bool(afters)
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
            ranks = self._team.ranks[:, members[cells]]
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
        wanted, index = np.unique(numbers, return_inverse=True)
        wanted_conditions = [conditions[number] for number in wanted.tolist()]
        table: np.ndarray = np.empty((2, len(wanted_conditions), self._sems.shape[1]), np.int32)
        write_rows([one.sem for one in wanted_conditions], table[0])
        write_rows([one.value for one in wanted_conditions], table[1])
        ranks = self._team.ranks[:, members]
        sem, value = table[:, index, ranks]
        is_there = sem != IDLE
        cells = np.broadcast_to(rows, ranks.shape)[is_there], ranks[is_there]
        self._sems[cells], self._values[cells] = sem[is_there], value[is_there]


@attrs.frozen(eq=False)
class Addresses:
    """Where the spaces of a plan lie in every rank's memory; (ranks,) where not alike in all."""

    operands: tuple[int | np.ndarray, ...]
    results: tuple[int | np.ndarray, ...]
    scratch: int
    ranks: np.ndarray | None = None  # who takes part; None: everybody
    tables: tuple[Load, ...] = ()  # of counts

    def base(self, piece: Location) -> int | np.ndarray:
        """The address that the piece's offsets count from."""
        if piece.space is Space.SCRATCH:
            return self.scratch
        base = self.operands if piece.space is Space.OPERAND else self.results
        return base[piece.tensor]


@attrs.frozen(eq=False)
class StreamRows:
    """What the placeholders of one stream append to."""

    everybody: np.ndarray  # (ranks,) int32
    channels: Channels
    links: Links
    rings: dict[int, DmaRows]  # by lane
    cc: CcRows
    moves: dict[Team, Rounds] = attrs.field(factory=dict)  # of the teams met so far

    def moves_of(self, team: Team) -> Rounds:
        """The moves of a team; its channels are open."""
        if team not in self.moves:
            self.moves[team] = Moves(team, self.everybody, self.links).rounds()
        return self.moves[team]


class FreedSlots:
    """In which order peers hand slots back, where several strands share a channel.

    The members of a link are alike: what is counted on one of its channels holds for all.
    """

    def __init__(self, links: Iterable[Link], channels: int) -> None:
        self._watched = {
            link.number: int(link.channels[link.remote][0]) for link in links if link.remote.any()
        }
        self._is_watched: np.ndarray = np.zeros(channels, bool)
        self._is_watched[list(self._watched.values())] = True
        self._total: Counter[int] = Counter()  # by channel
        self._at: dict[tuple[int, int | None], list[int]] = {}  # by channel and strand, in order
        self._freed_by: dict[int, list[int]] = {}  # by move, which outlives us: watched channels

    def add(self, move: Move) -> None:
        """One more slot of every channel that a move hands back."""
        if move.freed is None:
            return
        if id(move) not in self._freed_by:
            self._freed_by[id(move)] = move.freed[self._is_watched[move.freed]].tolist()
        for channel in self._freed_by[id(move)]:
            self._total[channel] += 1
            self._at.setdefault((channel, move.strand), []).append(self._total[channel])

    def count(self, link: Link, strand: int | None, credit: int) -> int:
        """How many slots are free on a link once `credit` of a strand are; too many if none is."""
        channel = self._watched[link.number]
        at = self._at.get((channel, strand), [])
        lacking = credit - len(at)
        return at[credit - 1] if lacking <= 0 else self._total[channel] + lacking


@attrs.frozen(eq=False)
class _LaneRows:
    """The rows that a team appends to one DMA ring."""

    numbers: list[int] = attrs.field(factory=list)  # of its transfers, in the order of the plan
    rounds: list[int] = attrs.field(factory=list)
    runs: list[Run] = attrs.field(factory=list)
    transfers: list[Transfer] = attrs.field(factory=list)

    def add(self, number: int, round_number: int, run: Run, transfer: Transfer) -> None:
        self.numbers.append(number)
        self.rounds.append(round_number)
        self.runs.append(run)
        self.transfers.append(transfer)


class TeamRows:
    """The rows of one team within one placeholder."""

    def __init__(self, rows: StreamRows, team: Team, number: int, addresses: Addresses) -> None:
        self._rows = rows
        self._ranks = len(rows.everybody)
        self._team = team
        self._seen = team.seen(self._ranks)
        self._number = number
        self._addresses = addresses
        self._rounds = rows.moves_of(team)
        self._unmet = self._links()  # links whose peers this placeholder has not waited for
        self._met: np.ndarray = np.zeros(len(rows.channels.counters.sender), bool)  # by channel
        self._arriving: dict[tuple[int | None, int], Condition] = {}  # not waited for yet
        self._home = {link.number for link in self._unmet.values() if not link.remote.any()}
        written = {
            link.number for moves in self._rounds for move in moves for link in move.destinations
        }
        self._only_read = self._unmet.keys() - written
        self._read: set[int] = set()  # links by which others read the own operand
        self._last: dict[int, Condition] = {}  # by link: everything that has been sent
        self._free_base: dict[int, Row] = {}
        self._free_sems: dict[int, Row] = {}
        self._events = Events(team, self._ranks)
        self._freed = FreedSlots(self._waiting(), len(self._met))

    def emit(self) -> None:
        """Append everything."""
        lanes: dict[int, _LaneRows] = {}
        ring_rows = {lane: len(ring) for lane, ring in self._rows.rings.items()}
        number = 0
        self._signal_ready()
        for index, moves in enumerate(self._rounds):
            place = Place(self._number, index)
            before, self._arriving = self._arriving, {}
            its_transfers = self._team.plan.rounds[index].transfers
            for move, transfer in zip(moves, its_transfers, strict=True):
                if transfer.after is None:
                    needed = [key for key in before if move.strand in (None, key[0])]
                    waits = [before.pop(key) for key in needed]
                else:
                    waits = self._events.waits(transfer.after)
                lane = move.lane
                self._emit(move, transfer.credit, place, waits, ring_rows[lane])
                if lane not in lanes:
                    lanes[lane] = _LaneRows()
                lanes[lane].add(number, index, move.run, transfer)
                ring_rows[lane] += 1
                number += 1
            self._arriving = before | self._arriving
        self._hand_back()
        completed = []
        for lane, its in lanes.items():
            runs = self._rows.rings[lane].extend(
                its.runs, self._number, its.rounds, self._extents(its.transfers)
            )
            _, sem = self._rows.links.ring_sems[lane]
            completed.append(Completed(sem, np.array(its.numbers), runs))
        self._events.fill(completed)
        self._finish(sorted(lanes))

    def _hand_back(self) -> None:
        """Count the slots that all transfers hand back."""
        free_count = self._rows.channels.counters.free_count
        moves, index = distinct([move for moves in self._rounds for move in moves])
        for move, times in zip(moves, np.bincount(index).tolist(), strict=True):
            if move.freed is not None:
                free_count[move.freed] += times

    def _links(self) -> dict[int, Link]:
        """All links by number, in the order they are first used."""
        return {
            link.number: link
            for moves in self._rounds
            for move in moves
            for link in (*move.destinations, *move.owners)
        }

    def _signal_ready(self) -> None:
        """Tell everybody who will write here or read here, once, that this rank has come here."""
        counters = self._rows.channels.counters
        told = np.zeros_like(self._met)
        for link in self._unmet.values():
            counts = counters.free_count[link.channels]
            self._free_base[link.number] = spread_any(counts, link.ends.senders, self._ranks)
            fresh = link.remote & ~told[self._known_by(link)]
            if not fresh.any():
                continue
            channels, places = link.channels[fresh], link.ends.places[fresh]
            told[channels] = told[counters.pair[channels]] = True
            counters.ready_count[channels] += 1
            to = spread(link.ends.sources[fresh], places, self._ranks)
            sem = spread(counters.ready_sem[channels], places, self._ranks)
            self._rows.cc.add(CcOpcode.SIGNAL, Place(self._number), [], Increment(to, sem))

    def _emit(
        self, move: Move, credit: int, place: Place, waits: list[Condition], ring_row: int
    ) -> None:
        """Push one run of descriptors, after what it waits for."""
        if self._unmet:
            for link in (*move.destinations, *move.owners):
                if self._unmet.pop(link.number, None):
                    waits += self._handshake(link)
        if credit:
            for link in move.destinations:
                waits += self._credit(link, move.strand, credit)
        push = (move.lane, ring_row)
        self._rows.cc.add(CcOpcode.ADVANCE, place, waits, move.destinations[0].advance, push)
        came = [self._rows.links.posted(link) for link in move.destinations]
        for link, one in zip(move.destinations, came, strict=True):
            self._last[link.number] = self._arriving[move.strand, link.number] = one
        if self._events.are_awaited:
            self._events.add(came)
        for link in move.owners:
            self._last[link.number] = self._rows.links.posted(link)
            self._read.add(link.number)
        self._freed.add(move)

    def _handshake(self, link: Link) -> list[Condition]:
        """The wait for peers and owners to have come here, where it is the first."""
        counters = self._rows.channels.counters
        fresh = link.remote & ~self._met[self._known_by(link)]
        if not fresh.any():
            return []
        channels, senders = link.channels[fresh], link.ends.senders[fresh]
        self._met[channels] = self._met[counters.pair[channels]] = True
        sem = spread(counters.ready_sem[channels], senders, self._ranks)
        return [Condition(sem, spread_any(counters.ready_count[channels], senders, self._ranks))]

    def _known_by(self, link: Link) -> np.ndarray:
        """The channels by which readiness is known: readers ask each owner once for all lanes."""
        if link.number not in self._only_read:
            return link.channels
        return np.take(self._rows.channels.counters.pair, link.channels)

    def _waiting(self) -> Iterator[Link]:
        """The links with transfers that wait for slots."""
        for moves, one_round in zip(self._rounds, self._team.plan.rounds, strict=True):
            for move, transfer in zip(moves, one_round.transfers, strict=True):
                if transfer.credit:
                    yield from move.destinations

    def _credit(self, link: Link, strand: int | None, credit: int) -> list[Condition]:
        """The wait for slots of peers that are used again: all up to the one that is wanted."""
        if not link.remote.any():
            return []
        freed = self._freed.count(link, strand, credit)
        if link.number not in self._free_sems:
            senders = link.ends.senders[link.remote]
            sems = self._rows.channels.free_sems(link.channels[link.remote], senders)
            self._free_sems[link.number] = spread(sems, senders, self._ranks)
        return [Condition(self._free_sems[link.number], self._free_base[link.number] + freed)]

    def _finish(self, lanes: list[int]) -> None:
        """Wait for what is still on its way here, for readers and for the own transfers.

        What a rank has sent to itself has come when its own transfers are complete.
        """
        links = dict.fromkeys([*(link for _, link in self._arriving), *sorted(self._read)])
        waits = [self._last[link] for link in links if link not in self._home]
        mine = self._seen.ravel()
        for lane in lanes:
            _, completed = self._rows.links.ring_sems[lane]
            filled = self._rows.rings[lane].filled
            busy = mine[np.broadcast_to(filled, (self._ranks,))[mine] > 0]
            sem = spread(np.full(len(busy), completed, np.int32), busy, self._ranks)
            waits.append(Condition(sem, filled))
        self._rows.cc.add(CcOpcode.WAIT, Place(self._number), waits)

    def _extents(self, transfers: list[Transfer]) -> Extents:
        """Addresses and sizes of the transfers of one lane."""
        widest = max(len(one.sources) for one in transfers)
        also = [one.also for one in transfers]
        sizes = [self._sizes(one.size_bytes) for one in transfers]
        sources = [
            [one.sources[number] if number < len(one.sources) else None for one in transfers]
            for number in range(widest)
        ]
        return Extents(
            sources=[
                self._addressed(its, [None if one is None else one.owner for one in its])
                for its in sources
            ],
            target=self._addressed(
                [one.target for one in transfers], [one.peer for one in transfers]
            ),
            size=MemberRows(sizes, np.zeros(len(sizes), np.int64), self._seen, idle=0),
            also=self._addressed(
                [None if one is None else one.target for one in also],
                [None if one is None else one.peer for one in also],
            )
            if any(also)
            else None,
            registers=self._registers(transfers),
        )

    def _registers(self, transfers: list[Transfer]) -> list[MemberRows]:
        """The length registers of transfers, as their plan counts entries of tables."""
        counts = [one.count for one in transfers]
        if not any(counts):
            return []
        none: np.ndarray = np.full(self._seen.shape[1], IDLE, np.int64)
        columns = zip(
            *((none,) * 3 if one is None else (one.rows, one.source, one.target) for one in counts),
            strict=True,
        )
        zeros = np.zeros(len(counts), np.int64)
        seen = (
            [none if one is None else self._of_seen(one) for one in column] for column in columns
        )
        return [MemberRows(rows, zeros, self._seen, IDLE) for rows in seen]

    def _addressed(
        self, pieces: Sequence[Location | None], owners: Sequence[np.ndarray | None]
    ) -> MemberRows:
        """Addresses of pieces, IDLE for none, in the memory of their owners; None: the own."""
        nowhere: np.ndarray = np.full(self._seen.shape[1], IDLE, np.int64)
        base_of, ranks = self._addresses.base, self._team.ranks
        bases = [0 if one is None else base_of(one) for one in pieces]
        more: dict[int, np.ndarray] = {}
        for row, base in enumerate(bases):
            if not isinstance(base, int):
                owner = owners[row]
                bases[row] = 0
                more[row] = np.asarray(base[ranks if owner is None else ranks[:, owner]])
        return MemberRows(
            offsets=[nowhere if one is None else self._of_seen(one.offset) for one in pieces],
            bases=np.array(bases, np.int64),
            ranks=self._seen,
            idle=IDLE,
            more=more,
        )

    def _sizes(self, column: np.ndarray) -> np.ndarray:
        """Sizes of the members that are seen; UnfoldedError if they are not those of all."""
        of_seen = self._of_seen(column)
        if not is_repeated(column, len(column) // len(of_seen)):
            raise UnfoldedError("members of different instances move different amounts")
        return of_seen

    def _of_seen(self, column: np.ndarray) -> np.ndarray:
        """Of a plan that has columns of all members, those of the members that are seen."""
        members = self._seen.shape[1]
        return column if len(column) == members else column[:members]
