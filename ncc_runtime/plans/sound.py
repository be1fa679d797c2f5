"""Whether a plan that somebody wrote names what there is: members, bytes, lanes, transfers.

Lowering presumes this of every plan. Whether a plan also does what is asked of it, whether it
deadlocks or races, is proved of what becomes of it.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.collectives.plan import IDLE, LANES, Job, Piece, Plan, Space, Transfer, divisor
from ncc_runtime.errors import PlanError

MOST_SOURCES = 16
"""Of a descriptor. Source: AWS Neuron SDK docs, work-with-neff-files.rst (`from_arr`)."""

MOST_CREDIT = 1 << 30
MOST_SCRATCH = 1 << 46


def check_sound(plan: Plan, job: Job) -> None:
    """PlanError with the round and the transfer that name what is not there."""
    checking = _Checking(plan, job)
    number = 0
    if plan.scratch_bytes > MOST_SCRATCH:
        raise PlanError(f"scratch_bytes is {plan.scratch_bytes}, must be at most {MOST_SCRATCH}")
    for place, one_round in enumerate(plan.rounds):
        first = number
        for index, move in enumerate(one_round.transfers):
            for fault in checking.faults(move, first):
                raise PlanError(f"round {place}, transfer {index}: {fault}")
            checking.moves.append(move)
            number += 1


def check_reads(plan: Plan, groups: np.ndarray, chips: np.ndarray) -> None:
    """PlanError where a member would read the operand of one that is placed on another chip.

    `groups` are (groups, members) ranks, `chips` has the chip of each rank.
    """
    for place, one_round in enumerate(plan.rounds):
        for index, move in enumerate(one_round.transfers):
            for reader, other in _across(move, groups, chips):
                raise PlanError(
                    f"{plan.algorithm}: round {place}, transfer {index}: rank {reader} on chip "
                    f"{chips[reader]} would read the operand of rank {other} on chip "
                    f"{chips[other]}; a DMA reads memory of its own chip only: place these "
                    "ranks on one chip, or let the other write"
                )


def _across(move: Transfer, groups: np.ndarray, chips: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranks that would read an operand on another chip, and whose it is."""
    owners = [piece.owner for piece in move.sources if piece.owner is not None]
    if not owners:
        return
    active = move.peer != IDLE
    for owner in owners:
        readers, others = groups[:, active].ravel(), groups[:, owner[active]].ravel()
        for which in np.flatnonzero(chips[readers] != chips[others]).tolist():
            yield int(readers[which]), int(others[which])


@attrs.define(eq=False)
class _Checking:
    """One plan on its way through the transfers."""

    plan: Plan
    job: Job
    moves: list[Transfer] = attrs.field(factory=list)

    def faults(self, move: Transfer, first: int) -> Iterator[str]:
        """What is wrong with a transfer; `first` is the number of the first of its round."""
        yield from self._numbers(move)
        yield from self._peers(move)
        yield from self._bytes(move)
        yield from self._waits(move, first)
        yield from self._counts(move)

    def _numbers(self, move: Transfer) -> Iterator[str]:
        if move.lane >= LANES:
            yield f"lane {move.lane}, there are {LANES}"
        if len(move.sources) > MOST_SOURCES:
            yield f"{len(move.sources)} sources, a descriptor has at most {MOST_SOURCES}"
        if move.credit > MOST_CREDIT:
            yield f"credit {move.credit}, must be at most {MOST_CREDIT}"
        allowed = {1, divisor(self.job, self.plan.members)}
        if move.divisor not in allowed:
            yield f"divisor {move.divisor}, must be {' or '.join(map(str, sorted(allowed)))}"
        if move.divisor > 1 and not move.sources:
            yield "a divisor without sources"

    def _peers(self, move: Transfer) -> Iterator[str]:
        columns = [("peer", move.peer)]
        columns += [] if move.also is None else [("also.peer", move.also.peer)]
        for name, column in columns:
            yield from self._members(name, column)
            named = column[column != IDLE]
            if len(np.unique(named)) < len(named):
                twice = int(np.bincount(named).argmax())
                yield f"{name} names member {twice} twice: two senders of one transfer"
        if move.consumed is not None:
            yield from self._members("consumed", move.consumed)
            if ((move.consumed != IDLE) & (move.peer == IDLE)).any():
                yield "consumed where there is no peer"
        if move.also is not None:
            both = move.also.peer != IDLE
            if (move.peer[both] == IDLE).any() or (move.peer[both] == move.also.peer[both]).any():
                yield "also.peer without a peer, or the same one"
        if move.target.owner is not None or (move.also and move.also.target.owner is not None):
            yield "a target with an owner: a transfer writes at its peer"

    def _members(self, name: str, column: np.ndarray) -> Iterator[str]:
        most = int(column.max(initial=IDLE))
        if most >= self.plan.members:
            yield f"{name} {most}, there are {self.plan.members} members"

    def _bytes(self, move: Transfer) -> Iterator[str]:
        active = move.peer != IDLE
        width = self.job.buffers.element_bytes
        sizes = move.size_bytes[active]
        if (sizes < 0).any() or (sizes % max(1, width)).any():
            yield f"bytes that are no whole elements of {width}"
        pieces = [("source", piece, active) for piece in move.sources]
        pieces.append(("target", move.target, active))
        if move.also is not None:
            pieces.append(("also.target", move.also.target, move.also.peer != IDLE))
        for name, piece, where in pieces:
            yield from self._piece(name, piece, (where, move.size_bytes))

    def _piece(
        self, name: str, piece: Piece, extent: tuple[np.ndarray, np.ndarray]
    ) -> Iterator[str]:
        where, size = extent
        room = self._room(piece)
        if room is None:
            yield f"{name} in tensor {piece.tensor} of {piece.space.value}, which there is not"
            return
        if piece.owner is not None:
            yield from self._members(f"owner of a {name}", piece.owner)
            if piece.space is not Space.OPERAND or (piece.owner[where] == IDLE).any():
                yield f"{name} with an owner, which is for operands, of every member"
        if name != "source" and piece.space is Space.OPERAND:
            yield f"{name} in an operand, which nobody may write"
        start, size = piece.offset[where], size[where]
        outside = (start < 0) | (size > room) | (start > room - size)
        for member in np.flatnonzero(outside)[:1].tolist():
            first, count = int(start[member]), int(size[member])
            yield (
                f"{name} of {count} bytes at {first} of {piece.space.value}, which has {room} bytes"
            )
        if (start % max(1, self.job.buffers.element_bytes)).any():
            yield f"{name} begins inside of an element"

    def _room(self, piece: Piece) -> int | None:
        buffers = self.job.buffers
        if piece.space is Space.SCRATCH:
            return self.plan.scratch_bytes
        is_operand = piece.space is Space.OPERAND
        elements = buffers.operand_elements if is_operand else buffers.result_elements
        if piece.tensor >= len(elements):
            return None
        return elements[piece.tensor] * buffers.element_bytes

    def _waits(self, move: Transfer, first: int) -> Iterator[str]:
        if move.after is None:
            return
        active = move.peer != IDLE
        for name, columns in (("arrived", move.after.arrived), ("sent", move.after.sent)):
            for column in columns:
                if int(column.max(initial=IDLE)) >= first:
                    yield f"after.{name} {int(column.max())} is no transfer of an earlier round"
                    return
                lacking = (
                    member
                    for member in np.flatnonzero(column != IDLE).tolist()
                    if not active[member] or not self._has(name, int(column[member]), member)
                )
                if (member := next(lacking, None)) is not None:
                    yield f"after.{name} {column[member]}, which member {member} has not"
                    return

    def _counts(self, move: Transfer) -> Iterator[str]:
        tables = len(self.job.placeholder.counts[:3])
        if move.count is None:
            return
        if not tables:
            yield "a count, which this operator has not"
            return
        most = self.job.buffers.entries * tables
        for name in ("rows", "source", "target"):
            column = getattr(move.count, name)
            if column is not None and (column.min() < IDLE or column.max() >= most):
                yield f"count.{name} {column.max()}, there are {most} entries"

    def _has(self, name: str, number: int, member: int) -> bool:
        """Whether a transfer arrives at a member, or is made by it."""
        move = self.moves[number]
        if name == "sent":
            return bool(move.peer[member] != IDLE)
        comes = (move.peer == member).any()
        return bool(comes or (move.also is not None and (move.also.peer == member).any()))
