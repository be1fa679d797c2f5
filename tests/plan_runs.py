"""Runs plans on numpy memory in any order that they allow: what algorithms are tested on alone.

Members run as far ahead of each other as a plan lets them, so a plan that lacks a wait or a credit
gives wrong bytes for some seed. Nothing of lowering or execution is used.
"""

import random
from collections.abc import Iterator, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from ncc_runtime.collectives.plan import IDLE, Dependencies, Location, Plan, Space, Transfer

MOST_AT_ONCE = 40

_Wait: TypeAlias = tuple[int, set[tuple[int, int]]]
"""Of a transfer, by number: the transfers that it waits for, each with who makes it."""


@attrs.define(eq=False)
class _Memory:
    """All spaces of one member, as bytes; in place, results are the operands."""

    operands: list[np.ndarray]
    results: list[np.ndarray]
    scratch: np.ndarray
    written: np.ndarray  # bytes of scratch that have been written to

    def at(self, piece: Location, place: int, size: int) -> np.ndarray:
        buffers = self.operands if piece.space is Space.OPERAND else self.results
        memory = self.scratch if piece.space is Space.SCRATCH else buffers[piece.tensor]
        offset = int(piece.offset[place])
        assert offset in range(len(memory) - size + 1), f"{piece.space} {offset}+{size}"
        return memory[offset : offset + size]


@attrs.frozen
class Given:
    """What a plan is run on."""

    operands: Sequence[Sequence[np.ndarray]]  # [member][tensor]
    result_elements: Sequence[int]
    in_place: bool = False
    join: np.ufunc = np.add


class PlanRun:
    """One run of a plan, in an order that follows from the seed."""

    def __init__(self, plan: Plan, given: Given, seed: int) -> None:
        self._plan, self._given = plan, given
        self._random = random.Random(seed)
        self._dtype = given.operands[0][0].dtype
        self._memory = [self._fresh(row) for row in given.operands]
        moves = [
            (number, move)
            for number, one_round in enumerate(plan.rounds)
            for move in one_round.transfers
        ]
        self._strands = {
            strand: k for k, strand in enumerate(sorted({move.strand or 0 for _, move in moves}))
        }
        shape = (plan.members, len(self._strands), len(plan.rounds) + 1)
        self._coming: np.ndarray = np.zeros(shape, np.int64)  # not yet there
        self._consumed: dict[tuple[int, int, int], int] = {}  # by sender, reader and lane
        self._queues: dict[tuple[int, int], list[tuple[int, Transfer]]] = {}
        self._numbers = {id(move): number for number, (_, move) in enumerate(moves)}
        self._done: set[tuple[int, int]] = set()  # transfers, by number and who made them
        self._waits: dict[int, list[_Wait]] = {}  # by member, in the order of the plan
        first_of: list[int] = []  # the first transfer of each round
        for count, (number, move) in enumerate(moves):
            first_of += [count] * (number + 1 - len(first_of))
            if move.after is not None:
                self._await(count, move, [one for _, one in moves[: first_of[number]]])
            self._queue(number, move)

    def _await(self, number: int, move: Transfer, earlier: Sequence[Transfer]) -> None:
        """Whose transfers each member waits for; what waits alone waits for earlier rounds."""
        assert move.after is not None
        for member in np.flatnonzero(move.peer != IDLE).tolist():
            named = list(_named(move.after, member))
            unknown = [one for one, _ in named if one >= len(earlier)]
            assert not unknown, f"transfer {number} waits for {unknown}, of no earlier round"
            whose = [member if own else _sender(earlier[one], one, member) for one, own in named]
            awaited = {(one, maker) for (one, _), maker in zip(named, whose, strict=True)}
            self._waits.setdefault(member, []).append((number, awaited))
            made = [earlier[one].peer[member] != IDLE for one, is_own in named if is_own]
            assert all(made), f"transfer {number} waits for what member {member} does not make"

    def _queue(self, number: int, move: Transfer) -> None:
        active = move.peer[move.peer != IDLE]
        assert len(set(active.tolist())) == len(active), "two send to one member in a transfer"
        for member in np.flatnonzero(move.peer != IDLE).tolist():
            self._queues.setdefault((member, move.lane), []).append((number, move))
            for peer, _ in _targets(move, member):
                self._coming[peer, self._strands[move.strand or 0], number] += 1

    def _fresh(self, row: Sequence[np.ndarray]) -> _Memory:
        operands = [np.array(tensor).view(np.uint8) for tensor in row]
        width = self._dtype.itemsize
        results = operands
        if not self._given.in_place:
            results = [np.full(n * width, 0xA5, np.uint8) for n in self._given.result_elements]
        scratch = np.full(self._plan.scratch_bytes, 0x5A, np.uint8)
        return _Memory(operands, results, scratch, np.zeros(len(scratch), bool))

    def results(self) -> list[list[np.ndarray]]:
        """Run everything; [member][tensor]."""
        queues = list(self._queues)
        while queues:
            progress = False
            self._random.shuffle(queues)
            for key in queues:
                for _ in range(self._random.randint(1, MOST_AT_ONCE)):
                    if not self._queues[key] or not self._may_run(key):
                        break
                    self._perform(key[0], self._queues[key].pop(0)[1])
                    progress = True
            queues = [key for key in queues if self._queues[key]]
            assert progress or not queues, "the plan waits for itself"
        return [[result.view(self._dtype) for result in one.results] for one in self._memory]

    def _may_run(self, key: tuple[int, int]) -> bool:
        member, lane = key
        number, move = self._queues[key][0]
        if move.after is not None:
            if not self._has_waited(member, self._numbers[id(move)]):
                return False
        elif self._coming[member, self._strands_of(move), :number].any():
            return False
        peer = int(move.peer[member])
        return peer == member or self._consumed.get((member, peer, lane), 0) >= move.credit

    def _has_waited(self, member: int, number: int) -> bool:
        """Whether a member has waited for a transfer, and before that for those before it."""
        waits = self._waits[member]
        while waits and waits[0][0] <= number:
            if not self._done.issuperset(waits[0][1]):
                return False
            waits.pop(0)
        return True

    def _strands_of(self, move: Transfer) -> slice | int:
        return slice(None) if move.strand is None else self._strands[move.strand]

    def _perform(self, member: int, move: Transfer) -> None:
        size = int(move.size_bytes[member])
        sources = [
            self._memory[member if piece.owner is None else int(piece.owner[member])].at(
                piece, member, size
            )
            for piece in move.sources
        ]
        value = self._joined(sources, move.divisor, size)
        number = self._round_of(move)
        for peer, piece in _targets(move, member):
            memory = self._memory[peer]
            memory.at(piece, member, size)[:] = value
            if piece.space is Space.SCRATCH:
                begin = int(piece.offset[member])
                used = memory.written[begin : begin + size]
                is_ordered = move.credit or move.after is not None
                assert is_ordered or not used.any(), "a slot is written twice without a credit"
                used[:] = True
            self._coming[peer, self._strands[move.strand or 0], number] -= 1
        self._done.add((self._numbers[id(move)], member))
        if move.consumed is not None and move.consumed[member] != IDLE:
            channel = (int(move.consumed[member]), member, move.lane)
            self._consumed[channel] = self._consumed.get(channel, 0) + 1

    def _round_of(self, move: Transfer) -> int:
        return next(
            number
            for number, one_round in enumerate(self._plan.rounds)
            if any(one is move for one in one_round.transfers)
        )

    def _joined(self, sources: list[np.ndarray], divisor: int, size: int) -> np.ndarray:
        if not sources:
            return np.zeros(size, np.uint8)
        values = [source.view(self._dtype) for source in sources]
        total = values[0].copy()
        for value in values[1:]:
            total = self._given.join(total, value)
        return (total // divisor if divisor > 1 else total).astype(self._dtype).view(np.uint8)


def _named(after: Dependencies, member: int) -> Iterator[tuple[int, bool]]:
    """The numbers that a member's columns name, and whether it made these transfers itself."""
    for columns, is_own in ((after.arrived, False), (after.sent, True)):
        yield from ((int(one[member]), is_own) for one in columns if one[member] != IDLE)


def _sender(move: Transfer, number: int, member: int) -> int:
    """Who writes to a member in a transfer."""
    for sender in np.flatnonzero(move.peer != IDLE).tolist():
        if sender != member and any(peer == member for peer, _ in _targets(move, sender)):
            return sender
    raise AssertionError(f"transfer {number} is awaited by member {member}, nobody writes to it")


def _targets(move: Transfer, member: int) -> Iterator[tuple[int, Location]]:
    yield int(move.peer[member]), move.target
    if move.second_target is not None and move.second_target.peer[member] != IDLE:
        yield int(move.second_target.peer[member]), move.second_target.target


def sent_bytes(plan: Plan) -> np.ndarray:
    """(members, members) int64: bytes that one writes into the memory of another, or its own."""
    found: np.ndarray = np.zeros((plan.members, plan.members), np.int64)
    for one_round in plan.rounds:
        for move in one_round.transfers:
            for member in np.flatnonzero(move.peer != IDLE).tolist():
                for peer, _ in _targets(move, member):
                    found[member, peer] += move.size_bytes[member]
    return found


def neighbour_reads(plan: Plan) -> np.ndarray:
    """(members,) int64: bytes that a member reads in the operands of others."""
    found: np.ndarray = np.zeros(plan.members, np.int64)
    for one_round in plan.rounds:
        for move in one_round.transfers:
            for piece in move.sources:
                if piece.owner is not None:
                    others = (move.peer != IDLE) & (piece.owner != np.arange(plan.members))
                    found += np.where(others, move.size_bytes, 0)
    return found
