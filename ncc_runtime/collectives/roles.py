"""Who plays which part: members of equal teams, in an order, as columns."""

from collections.abc import Sequence
from functools import cached_property

import numpy as np

from ncc_runtime.collectives.plan import IDLE, Fold, home


class Roles:
    """Equal teams that cover all members; `orders[t][r]` is the member of role r in team t.

    Columns of members say something of everybody. Where the first members stand for all, `role`
    is of them alone, and so is what follows from it.
    """

    def __init__(self, orders: Sequence[Sequence[int]] | np.ndarray, fold: Fold | None) -> None:
        self.orders: np.ndarray = np.array(orders, np.int32)
        self.chunks = self.orders  # whose a chunk is, whoever comes first
        if fold is not None and fold.turn:
            self.orders = (self.orders - np.int32(fold.turn * fold.seen)) % self.orders.size
        teams, self.count = self.orders.shape
        self.members = self.orders.size
        self.fold = fold
        self.roles: np.ndarray = np.empty(self.members, np.int64)  # of all members
        self.team: np.ndarray = np.empty(self.members, np.int64)
        self.roles[self.orders] = np.arange(self.count)
        self.team[self.orders] = np.arange(teams)[:, None]
        self.role = self.roles[: self.seen]
        self._shifted: dict[int, np.ndarray] = {}  # by step; a ring asks for two, every round
        self._named: dict[bytes, np.ndarray] = {}  # by roles that are named

    @property
    def seen(self) -> int:
        """How many members `role` has, the first ones."""
        return self.members if self.fold is None else self.fold.seen

    @cached_property
    def home(self) -> np.ndarray:
        """Everybody at itself, (members,) int32."""
        return _sealed(home(self.members))

    def member(self, role: np.ndarray) -> np.ndarray:
        """By member, who plays the given role in its team, (members,) int32."""
        return np.asarray(self.orders[self.team, role % self.count])

    def shifted(self, step: int) -> np.ndarray:
        """By member, who stands `step` places on in its team, (members,) int32."""
        if step not in self._shifted:
            self._shifted[step] = _sealed(self.member(self.roles + step))
        return self._shifted[step]

    def members_of(self, roles: np.ndarray) -> np.ndarray:
        """By member, who plays the role that a column by role names, IDLE for none; int32."""
        key = roles.tobytes()
        if key not in self._named:
            named = roles[self.roles]
            found = self.orders[self.team, np.where(named == IDLE, 0, named)]
            members = np.where(named == IDLE, np.int32(IDLE), found).astype(np.int32)
            self._named[key] = _sealed(members)
        return self._named[key]

    def everywhere(self, offset: int) -> np.ndarray:
        """The same offset at every member that is seen."""
        return np.full(self.seen, offset, np.int64)


def _sealed(column: np.ndarray) -> np.ndarray:
    column.setflags(write=False)
    return column
