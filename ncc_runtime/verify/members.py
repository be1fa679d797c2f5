"""Who takes part in a collective.

Proofs of a collective number those who take part from 0; for messages the ranks are found again.
"""

from functools import cached_property

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.stages import JointPlaceholder, participants


@attrs.frozen(eq=False)
class Members:
    """The ranks that take part, ascending, by numbers from 0; all other ranks come behind them."""

    count: int
    order: np.ndarray | None = None  # (ranks,) by number; None: everybody takes part

    @classmethod
    def of(cls, placeholder: Placeholder, ranks: int) -> "Members":
        """Those of a collective among so many ranks."""
        own = participants(placeholder)
        if own is None or len(own) == ranks:
            return cls(ranks)
        others = np.setdiff1d(np.arange(ranks), own)
        return cls(len(own), np.concatenate((np.array(own, np.int64), others)))

    @property
    def index(self) -> slice | np.ndarray:
        """Their ranks: consecutive ones as a slice, which makes views."""
        if self.order is None:
            return slice(None)
        first, last = int(self.order[0]), int(self.order[self.count - 1])
        is_run = last - first + 1 == self.count
        return slice(first, last + 1) if is_run else self.order[: self.count]

    @cached_property
    def _number(self) -> np.ndarray:
        """By rank the number; IDLE is the last."""
        assert self.order is not None, "who all are has no numbers of its own"
        found = np.full(len(self.order) + 1, IDLE)
        found[self.order] = np.arange(len(self.order))
        return found

    def numbered(self, ranks: np.ndarray) -> np.ndarray:
        """Ranks by their numbers; IDLE stays."""
        return ranks if self.order is None else np.asarray(self._number[ranks])

    def inside(self, ranks: np.ndarray) -> np.ndarray:
        """Ranks by their numbers, IDLE for those who do not take part."""
        if self.order is None:
            return ranks
        number = self.numbered(ranks)
        return np.where(number < self.count, number, IDLE)

    def rank(self, number: int) -> int:
        """The rank of a number."""
        if self.order is None or not 0 <= number < len(self.order):
            return number
        return int(self.order[number])

    def placeholder(self, placeholder: Placeholder) -> Placeholder:
        """A collective with the numbers of its members for their ranks."""
        if isinstance(placeholder, JointPlaceholder):
            placeholder = attrs.evolve(placeholder, ranks=())
        if self.order is None:
            return placeholder
        number = self._number.tolist()
        groups = tuple(tuple(number[rank] for rank in group) for group in placeholder.groups)
        pairs = tuple((number[source], number[target]) for source, target in placeholder.pairs)
        return attrs.evolve(placeholder, groups=groups, pairs=pairs)
