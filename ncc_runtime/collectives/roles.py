"""Who plays which part: members of equal teams, in an order, as columns."""

from collections.abc import Sequence

import numpy as np

from ncc_runtime.collectives.plan import IDLE


class Roles:
    """Equal teams that cover all members; `orders[t][r]` is the member of role r in team t."""

    def __init__(self, orders: Sequence[Sequence[int]] | np.ndarray) -> None:
        self.orders: np.ndarray = np.array(orders, np.int32)
        teams, self.count = self.orders.shape
        self.members = self.orders.size
        self.role: np.ndarray = np.empty(self.members, np.int64)
        self.team: np.ndarray = np.empty(self.members, np.int64)
        self.role[self.orders] = np.arange(self.count)
        self.team[self.orders] = np.arange(teams)[:, None]
        self._shifted: dict[int, np.ndarray] = {}  # by step; a ring asks for two, every round

    def member(self, role: np.ndarray) -> np.ndarray:
        """By member, who plays the given role in its team, (members,) int32."""
        return np.asarray(self.orders[self.team, role % self.count])

    def shifted(self, step: int) -> np.ndarray:
        """By member, who stands `step` places on in its team, (members,) int32."""
        if step not in self._shifted:
            self._shifted[step] = self.member(self.role + step)
            self._shifted[step].setflags(write=False)
        return self._shifted[step]

    def members_of(self, roles: np.ndarray) -> np.ndarray:
        """By member, who plays the role that a column by role names, IDLE for none; int32."""
        named = roles[self.role]
        found = self.orders[self.team, np.where(named == IDLE, 0, named)]
        return np.where(named == IDLE, np.int32(IDLE), found).astype(np.int32)
