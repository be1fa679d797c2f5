"""Neuron's rules for groups of collectives of variable size, and the nearest groups they allow.

These are rules of operators, where those that list groups (`rules.py`) are of instances: a
group of such an operator is judged by these alone.
"""

import attrs
import numpy as np

from ncc_runtime.group_rules.rules import GroupRule
from ncc_runtime.group_rules.verdict import Places, Ranks
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.placement import Placement
from ncc_runtime.topology.format.spec import LevelKind
from ncc_runtime.topology.graph import Topology

_LNC = 2
_NKI = "AWS Neuron SDK, nki.collectives"

ONE_CHIP = GroupRule(
    "all-gather-v-G1",
    "all_gather_v takes the 4 ranks of a chip at lnc 2",
    f"{_NKI}, all_gather_v",
)
CONSECUTIVE_CHIPS = GroupRule(
    "all-to-all-v-G1",
    "on a switched fabric all_to_all_v takes all 4 ranks of two or more consecutive chips at lnc 2",
    f"{_NKI}, all_to_all_v",
)
SAME_INDEX = GroupRule(
    "all-to-all-v-G2",
    "without a switched fabric all_to_all_v takes the same rank of several machines",
    f"{_NKI}, all_to_all_v; assumed: also of the machines of an UltraServer",
)
FREE_OFFSETS = GroupRule(
    "all-to-all-v-G3",
    "rows land where their receiver says on a switched fabric only",
    f"{_NKI}, has_rdispls; assumed: ragged-all-to-all is such an all_to_all_v",
)

COUNTED_RULES = (ONE_CHIP, CONSECUTIVE_CHIPS, SAME_INDEX, FREE_OFFSETS)


@attrs.frozen
class Judged:
    """Whether a rule allows a group, and the nearest allowed group if not."""

    rule: GroupRule
    allowed: bool
    nearest: Places = ()


def judged(placement: Placement, group: Ranks, op: CollectiveOp) -> Judged | None:
    """The result of the operator's rules for a group; None for an operator without any."""
    match op:
        case CollectiveOp.ALL_GATHER_V:
            return _all_gather(placement, group)
        case CollectiveOp.ALL_TO_ALL_V:
            return _all_to_all(placement, group)
        case CollectiveOp.RAGGED_ALL_TO_ALL:
            result = _all_to_all(placement, group)
            return result if result.rule is CONSECUTIVE_CHIPS else Judged(FREE_OFFSETS, False)
    return None


def _all_gather(placement: Placement, group: Ranks) -> Judged:
    topology = placement.topology
    chip, members = np.unique(placement.chip[list(group)], return_counts=True)
    size = topology.ranks_per_chip
    if topology.lnc != _LNC:
        return Judged(ONE_CHIP, False)
    nearest = int(chip[members.argmax()])
    is_allowed = len(chip) == 1 and len(group) == size
    return Judged(ONE_CHIP, is_allowed, () if is_allowed else _chips(topology, nearest, 1))


def _chips(topology: Topology, first: int, chips: int) -> Places:
    """All cores of consecutive chips of one instance."""
    node, chip = divmod(first, topology.chips_per_node)
    size = topology.ranks_per_chip
    return tuple((node, core) for core in range(chip * size, (chip + chips) * size))


def _all_to_all(placement: Placement, group: Ranks) -> Judged:
    is_inside = len(np.unique(placement.node[list(group)])) == 1
    if is_inside and any(level.kind is LevelKind.SWITCH for level in placement.topology.levels):
        return _switched(placement, group)
    return _same_index(placement, group)


def _switched(placement: Placement, group: Ranks) -> Judged:
    """All ranks of consecutive chips; the nearest such group by a search over spans of chips.

    It has the size of the group, if that is of several whole chips.
    """
    topology, members = placement.topology, list(group)
    if topology.lnc != _LNC:
        return Judged(CONSECUTIVE_CHIPS, False)
    size, chips = topology.ranks_per_chip, topology.chips_per_node
    count = np.bincount(placement.chip_in_node[members], minlength=chips)
    used = np.flatnonzero(count)
    is_run = len(used) > 1 and used[-1] - used[0] == len(used) - 1
    if is_run and (count[used] == size).all():
        return Judged(CONSECUTIVE_CHIPS, True)
    # A chip with c of the members, all of whose ranks are taken, changes the symmetric difference
    # to the group by size - 2c. So prefix sums give that of every span [first, end) of chips; of
    # the best spans, the one nearest in size is taken.
    gain = np.concatenate(([0], np.cumsum(2 * count - size)))
    length = np.arange(chips + 1) - np.arange(chips + 1)[:, None]
    has_size = length * size == len(group)
    is_taken = (length > 1) & (has_size if has_size[length > 1].any() else True)
    gains = np.where(is_taken, gain - gain[:, None], np.iinfo(np.int64).min)
    size_difference = np.where(
        gains == gains.max(), abs(length * size - len(group)), np.iinfo(np.int64).max
    )
    first, end = np.unravel_index(int(size_difference.argmin()), size_difference.shape)
    node = int(placement.node[group[0]])
    start = node * chips + int(first)
    return Judged(CONSECUTIVE_CHIPS, False, _chips(topology, start, int(end - first)))


def _same_index(placement: Placement, group: Ranks) -> Judged:
    """One rank of each machine, at the same index."""
    topology, members = placement.topology, list(group)
    size = topology.ranks_per_node // topology.hosts_per_node
    host, core = np.divmod(placement.logical_core[members], size)
    machines = np.unique(placement.node[members] * topology.hosts_per_node + host)
    index = np.bincount(core).argmax()
    if len(machines) > 1 and len(machines) == len(group) and (core == index).all():
        return Judged(SAME_INDEX, True)
    if len(machines) == 1:
        return Judged(SAME_INDEX, False)
    nodes, hosts = np.divmod(machines, topology.hosts_per_node)
    cores = hosts * size + index
    return Judged(SAME_INDEX, False, tuple(zip(nodes.tolist(), cores.tolist(), strict=True)))
