"""Waits for single transfers of a plan, by number: that one has arrived, or is complete.

The rows of all waits are handed out before it is known what stands in them, and are filled together
when the last transfer is there: plans from files have tens of thousands, each of few members.
"""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.plan import After
from ncc_runtime.lowering.columns import CELLS_AT_ONCE, write_rows
from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.lowering.moves import Team
from ncc_runtime.lowering.rows import NO_WAIT, Condition


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

    def waits(self, after: After) -> list[Condition]:
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
