"""Plans made by hand and at random, and what they say: an interpreter that shares no code."""

import attrs
import numpy as np
from hypothesis import strategies as st

from ncc_runtime.collectives.plan import (
    IDLE,
    Location,
    Plan,
    Round,
    SecondTarget,
    Space,
    Transfer,
    self_peers,
)
from ncc_runtime.lowering.lower import lower_plans
from ncc_runtime.lowering.lower_plan import ReplicaGroups
from ncc_runtime.neff.program import Program
from ncc_runtime.placement import PlaceOptions, place_on
from ncc_runtime.runtime import Model

WORD = 4
"""Bytes of an element: these plans move 32-bit integers."""


def with_plan(
    program: Program, plan: Plan, ranks: np.ndarray, on: PlaceOptions | None = None
) -> Model:
    """The program, every placeholder filled with one plan for groups of ranks [group, member]."""
    placement = place_on(on or PlaceOptions(), program.ranks)
    teams = [[ReplicaGroups(plan, ranks)] for _ in program.placeholders]
    return Model(lower_plans(program, placement, teams))


def meaning(plan: Plan, operand: np.ndarray) -> np.ndarray:
    """The results [members, words] of a plan whose pieces are words, on operands alike."""
    memory = {
        Space.OPERAND: operand.copy(),
        Space.RESULT: np.zeros_like(operand),
        Space.SCRATCH: np.zeros((plan.members, plan.scratch_bytes // WORD), operand.dtype),
    }
    for one_round in plan.rounds:
        writes = [
            write
            for transfer in one_round.transfers
            for member in np.flatnonzero(transfer.peer != IDLE).tolist()
            for write in _writes(memory, transfer, member)
        ]
        for space, member, at, data in writes:
            memory[space][member, at : at + len(data)] = data
    return memory[Space.RESULT]


def _writes(memory, transfer: Transfer, member: int):
    """(space, member, word, data) of what one member's transfer writes."""
    words = int(transfer.size_bytes[member]) // WORD
    total = np.zeros(words, memory[Space.OPERAND].dtype)
    for piece in transfer.sources:
        owner = member if piece.owner is None else int(piece.owner[member])
        at = int(piece.offset[member]) // WORD
        total = total + memory[piece.space][member if owner == IDLE else owner, at : at + words]
    places = [(transfer.peer, transfer.target)]
    if transfer.second_target is not None:
        places.append((transfer.second_target.peer, transfer.second_target.target))
    for peer, target in places:
        if peer[member] != IDLE:
            yield target.space, int(peer[member]), int(target.offset[member]) // WORD, total


def four_on_a_chip(words: int) -> Plan:
    """All-reduce of four members: each reads a quarter of everybody, writes it twice, then passes.

    Round 0: member m joins quarter m of all operands and writes it into its own result and into
    that of m+1. Round 1: from there to m+2 and m+3, one read and two writes again.
    """
    mine = self_peers(4)
    at = mine.astype(np.int64) * (words // 4) * WORD
    size = np.full(4, words // 4 * WORD, np.int64)

    def other(step: int) -> np.ndarray:
        return ((mine + step) % 4).astype(np.int32)

    quarters = [
        Location(Space.OPERAND, at, owner=other(step) if step else None) for step in range(4)
    ]
    result = Location(Space.RESULT, at)
    first = Transfer(
        mine, tuple(quarters), result, size, second_target=SecondTarget(other(1), result)
    )
    second = Transfer(
        other(2), (result,), result, size, second_target=SecondTarget(other(3), result)
    )
    return Plan("quarters", 4, (Round((first,)), Round((second,))))


@attrs.define
class _Written:
    """What a random plan has written: fresh words only, so that no two transfers race."""

    words: int  # of a result and of scratch
    used: dict[Space, int] = attrs.field(factory=lambda: {Space.RESULT: 0, Space.SCRATCH: 0})
    ready: list[tuple[Location, int]] = attrs.field(factory=list)  # by earlier rounds, everywhere

    def fresh(self, space: Space, size: int, members: int) -> Location | None:
        start = self.used[space]
        if start + size > self.words:
            return None
        self.used[space] = start + size
        return Location(space, np.full(members, start * WORD, np.int64))


@st.composite
def plans(draw: st.DrawFn, members: int, words: int) -> Plan:
    """Any reads of operands, own or on the chip, and of what has come; one or two writes each."""
    written = _Written(words)
    rounds = []
    for _ in range(draw(st.integers(1, 4))):
        moves = [_transfer(draw, members, written) for _ in range(draw(st.integers(1, 2)))]
        done = [move for move in moves if move is not None]
        if done:
            rounds.append(Round(tuple(done)))
        for move in done:
            places = [(move.peer, move.target)]
            if move.second_target is not None:
                places.append((move.second_target.peer, move.second_target.target))
            size = int(move.size_bytes[0]) // WORD
            written.ready += [(target, size) for peer, target in places if (peer != IDLE).all()]
    return Plan("random", members, tuple(rounds), scratch_bytes=words * WORD)


def _transfer(draw: st.DrawFn, members: int, written: _Written) -> Transfer | None:
    size = draw(st.integers(0, 3))
    spaces = st.sampled_from((Space.RESULT, Space.SCRATCH))
    target = written.fresh(draw(spaces), size, members)
    if target is None:
        return None
    peer = _peers(draw, members)
    also = None
    second = written.fresh(draw(spaces), size, members) if draw(st.booleans()) else None
    if second is not None:
        others = _peers(draw, members)
        also = SecondTarget(
            np.where((peer == IDLE) | (others == peer), np.int32(IDLE), others), second
        )
    sources = tuple(_source(draw, members, written, size) for _ in range(draw(st.integers(1, 3))))
    size_bytes = np.full(members, size * WORD, np.int64)
    return Transfer(
        peer, sources, target, size_bytes, second_target=also, lane=draw(st.integers(0, 1))
    )


def _peers(draw: st.DrawFn, members: int) -> np.ndarray:
    """A permutation, some of which does nothing."""
    peer = np.array(draw(st.permutations(range(members))), np.int32)
    if draw(st.booleans()):
        return peer
    silent = draw(st.lists(st.booleans(), min_size=members, max_size=members))
    return np.where(silent, np.int32(IDLE), peer)


def _source(draw: st.DrawFn, members: int, written: _Written, size: int) -> Location:
    ready = [piece for piece, length in written.ready if length >= size]
    if ready and draw(st.booleans()):
        return draw(st.sampled_from(ready))
    start = draw(st.integers(0, written.words - size)) * WORD
    offset = np.full(members, start, np.int64)
    if draw(st.booleans()):
        return Location(Space.OPERAND, offset)
    owners = draw(st.lists(st.integers(IDLE, members - 1), min_size=members, max_size=members))
    return Location(Space.OPERAND, offset, owner=np.array(owners, np.int32))
