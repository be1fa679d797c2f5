"""What every transfer of a plan waits for where it reads only what was written once: just that.

Otherwise a member waits for all that was sent to it in the rounds before, also for what it does not
need yet. Operands are there from the start, so only what is read of results and of scratch counts.
"""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.plan import IDLE, After, Piece, Round, Space, Transfer

SPACES = {Space.RESULT: 0, Space.SCRATCH: 1}


def awaited(rounds: Sequence[Round]) -> tuple[Round, ...]:
    """The same rounds; every transfer waits for those alone that wrote what it reads.

    Every place is written at most once, and read as it was written, whole.
    """
    written = _Written.of([move for one_round in rounds for move in one_round.transfers])
    return tuple(Round(tuple(map(written.waiting, one.transfers))) for one in rounds)


@attrs.frozen(eq=False)
class _Written:
    """Places that have been written, ascending."""

    place: np.ndarray  # (n, 3) int64 as one structured key: member, space and tensor, offset
    number: np.ndarray  # (n,) int64, of the transfer
    writer: np.ndarray  # (n,) int64, the member that made it

    @classmethod
    def of(cls, moves: Sequence[Transfer]) -> "_Written":
        """What the transfers of a plan write."""
        places, numbers, writers = [], [], []
        for number, move in enumerate(moves):
            for peer, target in _ends(move):
                who = np.flatnonzero((peer != IDLE) & (move.size_bytes > 0))
                places.append(_place(peer[who], target, target.offset[who]))
                numbers.append(np.full(len(who), number))
                writers.append(who)
        place = np.concatenate(places)
        order = np.argsort(place, order=("piece", "member"))
        return cls(place[order], np.concatenate(numbers)[order], np.concatenate(writers)[order])

    def waiting(self, move: Transfer) -> Transfer:
        """The transfer with what it waits for."""
        who = np.flatnonzero((move.peer != IDLE) & (move.size_bytes > 0))
        arrived, sent = [], []
        for source in move.sources:
            if source.space not in SPACES:
                continue
            place = _place(who, source, source.offset[who])
            at = np.searchsorted(self.place, place)
            is_own = self.writer[at] == who
            for is_there, columns in ((~is_own, arrived), (is_own, sent)):
                column: np.ndarray = np.full(len(move.peer), IDLE, np.int32)
                column[who[is_there]] = self.number[at[is_there]]
                if is_there.any():
                    columns.append(column)
        return attrs.evolve(move, after=After(tuple(arrived), tuple(sent)))


def _ends(move: Transfer) -> Iterator[tuple[np.ndarray, Piece]]:
    """Who is written to, and where."""
    yield move.peer, move.target
    if move.also is not None:
        yield move.also.peer, move.also.target


def _place(member: np.ndarray, piece: Piece, offset: np.ndarray) -> np.ndarray:
    found = np.empty(len(member), [("piece", np.int64), ("member", np.int64)])
    found["piece"] = offset * 2 + SPACES[piece.space]
    found["member"] = member + (np.int64(piece.tensor) << 32)
    return found
