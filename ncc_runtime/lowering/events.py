"""Waits for single transfers of a plan, by number: that one has arrived, or is complete."""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.plan import After
from ncc_runtime.lowering.columns import Row
from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.lowering.moves import Team
from ncc_runtime.lowering.rows import Condition


@attrs.frozen(eq=False)
class _Event:
    """What says that a transfer is done."""

    came: Sequence[Condition]  # at who was written to, first and second
    sent: Condition  # at who made it


class Events:
    """The transfers of one team within one placeholder, in the order of the plan."""

    def __init__(self, team: Team, ranks: int) -> None:
        self._team = team
        self._ranks = ranks
        self._events: list[_Event] = []
        self._idle: np.ndarray = np.full(ranks, IDLE, np.int32)
        self.are_awaited: bool = any(
            move.after is not None for one_round in team.plan.rounds for move in one_round.transfers
        )

    def add(self, came: Sequence[Condition], sent: Condition) -> None:
        """The next transfer."""
        self._events.append(_Event(came, sent))

    def waits(self, after: After) -> list[Condition]:
        """The conditions of all columns."""
        found = [self._gathered(column, is_own=False) for column in after.arrived]
        return found + [self._gathered(column, is_own=True) for column in after.sent]

    def _gathered(self, column: np.ndarray, *, is_own: bool) -> Condition:
        """The wait of every member for the transfer that the column names."""
        sem: np.ndarray = self._idle.copy()
        value = sem.astype(np.int64)
        for number in sorted(set(column.tolist()) - {IDLE}):
            event = self._events[number]
            who = self._team.ranks[:, column == number].ravel()
            first, *others = (event.sent,) if is_own else event.came
            sem[who], value[who] = _at(first.sem, who), _at(first.value, who)
            for one in others:
                fresh = sem[who] == IDLE
                sem[who] = np.where(fresh, _at(one.sem, who), sem[who])
                value[who] = np.where(fresh, _at(one.value, who), value[who])
        value[sem == IDLE] = IDLE
        return Condition(sem, value)


def _at(row: Row, ranks: np.ndarray) -> Row:
    """What some ranks have in a row, which may be one for all."""
    return row if row.size == 1 else row[ranks]
