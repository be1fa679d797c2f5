"""Waits for single transfers of a plan, by number: that one has arrived, or is complete.

The rows of all waits are handed out before it is known what stands in them, and are filled together
when the last transfer is there: plans from files have tens of thousands, each of few members.
"""

from collections.abc import Sequence

import numpy as np

from ncc_runtime.collectives.plan import After
from ncc_runtime.lowering.columns import CELLS_AT_ONCE, write_rows
from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.lowering.moves import Team
from ncc_runtime.lowering.rows import NO_WAIT, Condition


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
        self._handed_out = 0
        self._arrived: list[Condition] = []  # by transfer, at whom it writes to
        self._also_arrived: list[Condition] = []  # the same, at whom it writes to as well
        self._sent: list[Condition] = []  # by transfer, at who makes it

    def add(self, arrived: Sequence[Condition], sent: Condition) -> None:
        """The next transfer."""
        self._arrived.append(arrived[0])
        self._also_arrived.append(arrived[1] if len(arrived) > 1 else NO_WAIT)
        self._sent.append(sent)

    def waits(self, after: After) -> list[Condition]:
        """The conditions of the next transfer's columns; `fill` says what they are."""
        first = self._handed_out
        self._handed_out += len(after.arrived) + len(after.sent)
        return [
            Condition(self._sems[row], self._values[row]) for row in range(first, self._handed_out)
        ]

    def fill(self) -> None:
        """Write the conditions that were handed out; all transfers are there."""
        assert self._handed_out == len(self._columns), "every transfer has asked for its waits"
        if not self._columns:
            return
        columns = np.stack(self._columns)
        rows, members = np.nonzero(columns != IDLE)
        numbers = columns[rows, members]
        order = np.argsort(numbers, kind="stable")
        is_own = np.array(self._is_own)[rows[order]]
        for where, conditions in (
            (order[~is_own], self._also_arrived),
            (order[~is_own], self._arrived),
            (order[is_own], self._sent),
        ):
            step = max(1, CELLS_AT_ONCE // self._sems.shape[1])
            for first in range(0, len(where), step):
                cells = where[first : first + step]
                self._write(rows[cells], members[cells], numbers[cells], conditions)

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
