"""The transfers of a plan over the ranks of a team: links, increments, owners, but no addresses.

They are worked out once for all placeholders that share a plan; channels are opened on the way.
"""

from collections.abc import Hashable

import attrs
import numpy as np

from ncc_runtime.collectives.plan import Plan, Space, Transfer
from ncc_runtime.collectives.symmetry import seen_members
from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.channels import Ends
from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.lowering.links import Link, Links, ends_of, layers
from ncc_runtime.lowering.queues import NO_POST, Increment, Row, Run, spread


@attrs.frozen(eq=False)
class Team:
    """All groups with one plan: what is done is the same for each, the ranks differ."""

    plan: Plan
    ranks: np.ndarray  # (groups, members) int32

    def seen(self, ranks: int) -> np.ndarray:
        """The members among the first ranks, (groups of these, members whose columns are used)."""
        return seen_members(self.ranks, ranks)


@attrs.frozen(eq=False)
class Move:
    """What all transfers with the same peers, owners and slots have in common."""

    lane: int
    strand: int | None
    run: Run
    destinations: tuple[Link, ...]  # whom it writes to
    owners: tuple[Link, ...]  # whose operands it reads
    freed: np.ndarray | None  # channels whose slots it hands back


Rounds = tuple[tuple[Move, ...], ...]


class Moves:
    """Makes the moves of one team."""

    def __init__(self, team: Team, everybody: np.ndarray, links: Links) -> None:
        self._team = team
        self._everybody = everybody
        self._links = links
        self._known: dict[Hashable, Move] = {}
        self._columns = ColumnNumbers()

    def rounds(self) -> Rounds:
        """The move of every transfer, round by round."""
        plan = self._team.plan
        return tuple(tuple(map(self._move, one_round.transfers)) for one_round in plan.rounds)

    def _move(self, transfer: Transfer) -> Move:
        number = self._columns.of
        key = (
            transfer.lane,
            transfer.strand,
            transfer.divisor,
            number(transfer.peer),
            number(transfer.consumed),
            None if transfer.also is None else number(transfer.also.peer),
            *[number(one.owner) for one in transfer.sources],
        )
        if key not in self._known:
            self._known[key] = self._made(transfer)
        return self._known[key]

    def _made(self, transfer: Transfer) -> Move:
        first = self._link(transfer.lane, transfer.peer)
        also = self._also(transfer)
        owners, reads = self._owners(transfer)
        free, freed = self._free(transfer)
        return Move(
            lane=transfer.lane,
            strand=transfer.strand,
            run=Run(
                opcode=_opcode(transfer),
                tail=first.advance.sem,
                arrival=first.arrival,
                sent=first.sent,
                also=NO_POST if also is None else also.arrival,
                free=free,
                reads=tuple(link.arrival for link in reads),
                owners=owners,
                divisor=transfer.divisor,
            ),
            destinations=(first,) if also is None else (first, also),
            owners=reads,
            freed=freed,
        )

    def _link(self, lane: int, members: np.ndarray) -> Link:
        return self._links.get(lane, self._over_ranks(members))

    def _over_ranks(self, members: np.ndarray) -> np.ndarray:
        """A column of member numbers as a column of ranks, also of those not seen; int32."""
        ranks = self._team.ranks
        column: np.ndarray = np.full(self._links.ranks, IDLE, np.int32)
        column[ranks] = np.where(members == IDLE, IDLE, ranks[:, members])
        return column

    def _also(self, transfer: Transfer) -> Link | None:
        assert transfer.target.owner is None, "a transfer writes at its peer"
        if transfer.also is None:
            return None
        peer, first = transfer.also.peer, transfer.peer
        assert (first[peer != IDLE] != IDLE).all(), "a copy without a transfer"
        assert (first[peer != IDLE] != peer[peer != IDLE]).all(), "both copies at one member"
        return self._link(transfer.lane, peer)

    def _owners(self, transfer: Transfer) -> tuple[tuple[Row | None, ...], tuple[Link, ...]]:
        """Per source whose memory it lies in, and the links from readers to those owners."""
        if all(piece.owner is None for piece in transfer.sources):
            return (), ()
        owners: list[Row | None] = []
        links: dict[int, Link] = {}
        for piece in transfer.sources:
            if piece.owner is None:
                owners.append(None)
                continue
            assert piece.space is Space.OPERAND, "only operands are read in another's memory"
            is_own = piece.owner == np.arange(len(piece.owner))
            other = np.where(is_own | (transfer.peer == IDLE), np.int32(IDLE), piece.owner)
            ranks = self._over_ranks(other)
            owners.append(ranks[: len(self._everybody)])
            for layer in layers(ranks):
                link = self._links.get(transfer.lane, layer)
                links[link.number] = link
        return tuple(owners), tuple(links.values())

    def _free(self, transfer: Transfer) -> tuple[Increment, np.ndarray | None]:
        """The increment that hands a consumed slot back to who wrote it, and its channels."""
        if transfer.consumed is None:
            return NO_POST, None
        column, seen = self._over_ranks(transfer.consumed), len(self._everybody)
        back = ends_of(column, seen)  # from readers to writers
        readers, channels = back.senders, self._links.channels
        opened = channels.open(
            transfer.lane, Ends(back.places, back.sources, readers, back.receivers)
        )
        sems = channels.free_sems(opened, back.places)
        return Increment(column[:seen], spread(sems, readers, seen)), opened


class ColumnNumbers:
    """Numbers for columns, one for those that are equal; each object is looked at once."""

    def __init__(self) -> None:
        self._by_content: dict[bytes, int] = {}
        self._by_object: dict[int, tuple[int, np.ndarray]] = {}  # which keeps the column alive

    def of(self, column: np.ndarray | None) -> int | None:
        """The number of a column that is not going to change."""
        if column is None:
            return None
        found = self._by_object.get(id(column))
        if found is None:
            number = self._by_content.setdefault(column.tobytes(), len(self._by_content))
            found = self._by_object[id(column)] = number, column
        return found[0]


def _opcode(transfer: Transfer) -> DmaOpcode:
    if not transfer.sources:
        return DmaOpcode.FILL
    plain = len(transfer.sources) == 1 and transfer.divisor == 1
    return DmaOpcode.COPY if plain else DmaOpcode.REDUCE
