"""What an all-to-all takes of links at least, since bytes pass more links than one on their way.

Give every link any length. A piece of data goes from member to member, each time the way that is
routed between their chips, so it passes links of no less than the shortest such way together, even
if others take it further. So all pieces together pass at least bytes times shortest ways, and in a
second no more can pass than the sum of rate times length over all links:

    time >= sum over pairs of bytes * shortest way / sum over links of rate * length

This holds for any lengths. Those that are tried are powers of how busy links are if everything
goes its direct way: where some links are busier than others, high powers leave these alone. Of a
group on several instances nothing is said: its bytes may go round over the network.

Source: duality of linear programs, for multicommodity flow as in Shahrokhi and Matula, "The maximum
concurrent flow problem", JACM 1990; lengths are those of routes that the hardware fixes.
"""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.layout import Members
from ncc_runtime.collectives.plan import Job
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.parts import Kind, Parts
from ncc_runtime.timing import PS_PER_S

POWERS = (0, 1, 2, 4, 16, 64, 256)
MOST_CHIPS = 512
"""Chips of a group beyond which shortest ways are not looked for."""

ROUNDING = 1e-12
"""More than what sums of float64 lose of such a bound, as a part of it."""


@attrs.frozen(eq=False)
class _Pairs:
    """All pairs of chips of a group on one instance, (chips, chips) row-major."""

    chips: int
    bytes: np.ndarray  # (pairs,) int64
    start: np.ndarray  # (pairs + 1,) of each pair's links
    links: np.ndarray  # int32

    def shortest(self, length: np.ndarray) -> np.ndarray:
        """(pairs,) float64, lengths of ways through any chips of the group."""
        along = np.concatenate(([0.0], np.cumsum(length[self.links])))
        way = (along[self.start[1:]] - along[self.start[:-1]]).reshape(self.chips, self.chips)
        for chip in range(self.chips):
            way = np.minimum(way, way[:, chip, None] + way[None, chip])
        return way.ravel()


def detours_ps(parts: Parts, job: Job, groups: Sequence[Members], size_bytes: int) -> int:
    """The time of an all-to-all on the links of the instance where most ranks take part."""
    if job.placeholder.op is not CollectiveOp.ALL_TO_ALL:
        return 0
    routes = parts.routes
    chip, per_node = routes.placement.chip.astype(np.int64), routes.topology.chips_per_node
    there = np.bincount(chip[np.concatenate(groups)] // per_node)
    node = int(there.argmax())
    found = [_pairs(parts, group, node, size_bytes) for group in groups]
    pairs = [one for one in found if one is not None]
    rates = parts.rates[parts.span(Kind.LINK)].astype(np.float64)
    loads = np.zeros(len(rates))
    for one in pairs:
        each = np.repeat(one.bytes, np.diff(one.start))
        loads += np.bincount(one.links, each, len(rates))
    busy = loads / rates
    if not busy.any():
        return 0
    seconds = 0.0
    for power in POWERS:
        length = np.where(busy > 0, (busy / busy.max()) ** power, 0.0)
        passed = sum(float(one.bytes @ one.shortest(length)) for one in pairs)
        seconds = max(seconds, passed / float(rates @ length))
    return int(seconds * PS_PER_S * (1 - ROUNDING))


def _pairs(parts: Parts, group: Members, node: int, size_bytes: int) -> _Pairs | None:
    """None if the group is elsewhere too, has fewer than two chips there, or too many."""
    routes = parts.routes
    ranks = np.array(group, np.int64)
    chip = routes.placement.chip[ranks].astype(np.int64)
    here = ranks[chip // routes.topology.chips_per_node == node]
    if len(here) < len(ranks):
        return None
    _, first, held = np.unique(routes.placement.chip[here], return_index=True, return_counts=True)
    if not 1 < len(held) <= MOST_CHIPS:
        return None
    ends = here[first]
    source, target = np.repeat(ends, len(ends)), np.tile(ends, len(ends))
    start, links = routes.link_runs(source, target)
    amounts = np.outer(held, held) * (size_bytes // len(group))
    return _Pairs(len(held), amounts.ravel(), start, links)
