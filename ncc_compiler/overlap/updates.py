"""Whose turn it is among updates, which read collectives and lead to none.

How long a collective takes is not known, but those that started earlier are there earlier. So no
update is given to a queue before all that wait for less are: there it would hold them up.
"""

from collections import Counter
from collections.abc import Collection, Sequence


class Turns:
    """The order of updates once all collectives are on their way."""

    def __init__(
        self, after: Sequence[Sequence[int]], started: Sequence[int], updates: Collection[int]
    ) -> None:
        """By tasks in program order: what each waits for, collectives, updates that are left."""
        own = {number: turn for turn, number in enumerate(started, 1)}
        self._turn: list[int] = []  # of a task: the last collective that it is or reads
        for number, others in enumerate(after):
            reads = max((self._turn[other] for other in others), default=0)
            self._turn.append(max(reads, own.get(number, 0)))
        self._left = Counter(self._turn[number] for number in updates)
        self._updates = frozenset(updates)
        self._now = min(self._left, default=0)

    def has_come(self, number: int) -> bool:
        """Whether this update may be taken."""
        return self._turn[number] <= self._now

    def take(self, number: int) -> bool:
        """Note that a task is taken; whether the turn passes on by it."""
        if number not in self._updates:
            return False
        turn = self._turn[number]
        self._left[turn] -= 1
        if self._left[turn]:
            return False
        del self._left[turn]
        before, self._now = self._now, min(self._left, default=len(self._turn))
        return self._now > before
