"""What the picture of a machine may show besides: traffic, groups of ranks, faults of a run."""

from collections.abc import Mapping, Sequence, Set

import attrs
import numpy as np


@attrs.frozen
class Load:
    """What passed a link, or an adapter one way, in the time of a run."""

    bytes: int
    share: float  # of what it could have passed


@attrs.frozen(eq=False)
class RankGroups:
    """One division of ranks into groups, and the collectives that have it."""

    ids: tuple[int, ...]  # placeholders, ascending
    name: str  # `p3 all-reduce and 17 more: 8 groups of 8`
    group: np.ndarray  # (ranks,) int64: the number of the rank's group, -1 of none
    texts: tuple[str, ...]  # the ranks of each, `0-7`


@attrs.frozen
class FaultMark:
    """What goes wrong during a run, and what of the machine it is."""

    name: str
    links: Set[int] = frozenset()
    adapters: Set[tuple[int, int]] = frozenset()  # instance, adapter of it
    ranks: Set[int] = frozenset()


@attrs.frozen(eq=False)
class Overlay:
    """All of it; `loads` is None where no traffic is shown."""

    loads: Mapping[str, Load] | None = None  # by name: `c0.E`, `n0.efa3 out`
    groups: RankGroups | None = None
    faults: Sequence[FaultMark] = ()


NOTHING = Overlay()
