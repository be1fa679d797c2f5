"""Neuron's own rules for replica groups, as rows: which cores of an instance may form a group.

A row lists its groups of logical cores, as Neuron numbers them inside an instance. A group that no
row of the instance lists is one the hardware is not documented to take. Rows with no groups hold
for every instance, or say which sizes there are. What a source leaves open is called assumed.
"""

import attrs

from ncc_runtime.topology.graph import Topology

Cores = tuple[int, ...]
"""Logical cores of one instance, sorted."""


@attrs.frozen
class GroupRule:
    """One documented fact about groups, and the groups it allows."""

    id: str
    fact: str
    source: str
    instances: tuple[str, ...] = ()  # none: every instance
    lnc: int = 1
    groups: tuple[Cores, ...] = attrs.field(default=(), repr=False)
    is_size_rule: bool = False  # named where no row of the instance has groups of that size


@attrs.frozen
class Limit:
    """A maximum that the runtime accepts."""

    id: str
    most: int
    fact: str
    source: str


def _runs(size: int, of: int) -> tuple[Cores, ...]:
    """Consecutive cores, aligned to their number."""
    return tuple(tuple(range(first, first + size)) for first in range(0, of, size))


def _consecutive_chips(chips: int, *, is_ring: bool = False) -> tuple[Cores, ...]:
    """Both cores of every one of some consecutive chips; on a ring the first follows the last."""
    on_line = ((a, b) for a in range(chips) for b in range(a + 1, chips + 1))
    groups = [tuple(range(2 * a, 2 * b)) for a, b in on_line]
    if is_ring:
        round_the_ring = ((a, b) for a in range(2, chips) for b in range(1, a))
        groups += [(*range(2 * b), *range(2 * a, 2 * chips)) for a, b in round_the_ring]
    return tuple(groups)


def _row_pairs(row: int) -> tuple[Cores, ...]:
    """Rows 0 and 3, and rows 1 and 2, of four rows of `row` cores each."""
    return (*range(row), *range(3 * row, 4 * row)), tuple(range(row, 3 * row))


def _columns(stride: int) -> tuple[Cores, ...]:
    """Cores that differ by a row of four: the same core of the chips of a column."""
    return tuple(tuple(range(first, 4 * stride, stride)) for first in range(stride))


def _one_a_chip(chip: int) -> tuple[Cores, ...]:
    """The same core of all 16 chips, each of `chip` cores."""
    return tuple(tuple(range(core, 16 * chip, chip)) for core in range(chip))


def _chip_pairs(chip: int) -> tuple[Cores, ...]:
    """Chips 0 and 3, and chips 1 and 2, of every row of four chips with `chip` cores each."""
    rows = range(0, 16 * chip, 4 * chip)
    return tuple(tuple(row + core for core in pair) for row in rows for pair in _row_pairs(chip))


_V21 = "AWS Neuron SDK 2.21 docs, collective-communication.rst"
_NXD = "neuronx-distributed, parallel_state.py"
_COLUMN = "AWS Neuron SDK, nec.h, 4_DEVS_IN_COLUMN; assumed for one rank a chip"
_ONE_A_CHIP = (
    "AWS Neuron SDK docs, intranode-collective-comm.rst, one-rank-per-chip groups; "
    "assumed: the same core of every chip"
)
_TRN1 = ("trn1.32xlarge", "trn1n.32xlarge")
_TRN2 = ("trn2.48xlarge", "trn2u.48xlarge")

_TRN1_RULES = (
    GroupRule("trn1-G1", "2 ranks take the two cores of a chip", _V21, _TRN1, 1, _runs(2, of=32)),
    GroupRule(
        "trn1-G2",
        "4 ranks take adjacent cores, from a multiple of 4",
        "AWS Neuron SDK 2.21 release notes, runtime 2.23.110; assumed: aligned",
        _TRN1,
        1,
        _runs(4, of=32),
    ),
    GroupRule("trn1-G3", "8 ranks take the cores of a row", _V21, _TRN1, 1, _runs(8, of=32)),
    GroupRule(
        "trn1-G4",
        "16 ranks take cores 0-15 or 16-31",
        "AWS Neuron SDK release notes, runtime 2.15.11",
        _TRN1,
        1,
        _runs(16, of=32),
    ),
    GroupRule("trn1-G5", "32 ranks take all cores", _V21, _TRN1, 1, _runs(32, of=32)),
    GroupRule(
        "trn1-G6",
        "4 ranks take the same core of the chips of a column",
        _COLUMN,
        _TRN1,
        1,
        _columns(8),
    ),
    GroupRule(
        "trn1-G7",
        "a group has 2, 4, 8, 16 or 32 ranks of an instance",
        f"{_V21}; release notes 2.15.11 and 2.23.110; runtime message in optimum-neuron#619",
        _TRN1,
        is_size_rule=True,
    ),
    GroupRule(
        "trn1-G8",
        "a group has both cores of the chip",
        _V21,
        ("trn1.2xlarge",),
        1,
        _runs(2, of=2),
        is_size_rule=True,
    ),
)

_CONSECUTIVE = "an even number of ranks takes all cores of consecutive chips"
_RING_OF_12 = "images/inf248xl-topology.png, a ring; assumed: chip 0 is the one after chip 11"
_INF2_RULES = (
    GroupRule(
        "inf2-G1",
        f"{_CONSECUTIVE}, also of chips 11 and 0",
        f"{_V21}; {_RING_OF_12}",
        ("inf2.48xlarge",),
        1,
        _consecutive_chips(12, is_ring=True),
        is_size_rule=True,
    ),
    GroupRule(
        "inf2-G2",
        _CONSECUTIVE,
        _V21,
        ("inf2.24xlarge",),
        1,
        _consecutive_chips(6),
        is_size_rule=True,
    ),
    GroupRule(
        "inf2-G3",
        "a group has both cores of the chip",
        _V21,
        ("inf2.xlarge", "inf2.8xlarge"),
        1,
        _consecutive_chips(1),
        is_size_rule=True,
    ),
)

_TRN2_RULES = (
    GroupRule("trn2-G1", "4 ranks take the cores of a chip", _NXD, _TRN2, 2, _runs(4, of=64)),
    GroupRule(
        "trn2-G2",
        "8 ranks take chips 0 and 3, or 1 and 2, of a row",
        "neuronx-distributed-inference, attention_process_groups.py",
        _TRN2,
        2,
        _chip_pairs(4),
    ),
    GroupRule("trn2-G3", "16 ranks take the cores of a row", _NXD, _TRN2, 2, _runs(16, of=64)),
    GroupRule("trn2-G4", "32 ranks take rows 0 and 3, or 1 and 2", _NXD, _TRN2, 2, _row_pairs(16)),
    GroupRule("trn2-G5", "64 ranks take all cores", _NXD, _TRN2, 2, _runs(64, of=64)),
    GroupRule(
        "trn2-G6",
        "4 ranks take the same core of the chips of a column",
        _NXD,
        _TRN2,
        2,
        _columns(16),
    ),
    GroupRule(
        "trn2-G7",
        "16 ranks take the same core of every chip",
        _ONE_A_CHIP,
        _TRN2,
        2,
        _one_a_chip(4),
    ),
    GroupRule(
        "trn2-G8",
        "a group has 4, 8, 16, 32 or 64 ranks of an instance at lnc 2",
        f"{_NXD}; neuronx-distributed-inference, attention_process_groups.py",
        _TRN2,
        2,
        is_size_rule=True,
    ),
)

_TRN2_LNC1_RULES = (
    GroupRule(
        "trn2-G9", "4 ranks take cores 0-3 or 4-7 of a chip", _NXD, _TRN2, 1, _runs(4, of=128)
    ),
    GroupRule("trn2-G10", "8 ranks take the cores of a chip", _NXD, _TRN2, 1, _runs(8, of=128)),
    GroupRule("trn2-G11", "32 ranks take the cores of a row", _NXD, _TRN2, 1, _runs(32, of=128)),
    GroupRule("trn2-G12", "64 ranks take rows 0 and 3, or 1 and 2", _NXD, _TRN2, 1, _row_pairs(32)),
    GroupRule("trn2-G13", "128 ranks take all cores", _NXD, _TRN2, 1, _runs(128, of=128)),
    GroupRule(
        "trn2-G14",
        "4 ranks take the same core of the chips of a column",
        _COLUMN,
        _TRN2,
        1,
        _columns(32),
    ),
    GroupRule(
        "trn2-G15",
        "16 ranks take the same core of every chip, not consecutive cores",
        f"{_ONE_A_CHIP}; {_NXD}: 16 consecutive cores do not work",
        _TRN2,
        1,
        _one_a_chip(8),
    ),
    GroupRule(
        "trn2-G16",
        "a group has 4, 8, 16, 32, 64 or 128 ranks of an instance at lnc 1",
        _NXD,
        _TRN2,
        1,
        is_size_rule=True,
    ),
)

_AS_ONE_CHIP = "assumed: as one chip of trn2.48xlarge"
_TRN2_CHIP_RULES = (
    GroupRule(
        "trn2-G17",
        "a group has all 4 cores of the chip at lnc 2",
        _AS_ONE_CHIP,
        ("trn2.3xlarge",),
        2,
        _runs(4, of=4),
        is_size_rule=True,
    ),
    GroupRule(
        "trn2-G18",
        "a group has cores 0-3, 4-7 or all of the chip at lnc 1",
        _AS_ONE_CHIP,
        ("trn2.3xlarge",),
        1,
        _runs(4, of=8) + _runs(8, of=8),
        is_size_rule=True,
    ),
)

SYMMETRIC = GroupRule(
    "efa-G1",
    "a group has the same cores of every instance that it reaches",
    "AWS Neuron SDK docs, internode-collective-comm.rst",
)
ONE_AN_INSTANCE = GroupRule(
    "efa-G2",
    "a group may have one rank of each instance",
    "AWS Neuron SDK docs, internode-collective-comm.rst, one rank per node",
)
RING_OF_PAIRS = GroupRule(
    "permute-G1",
    "source-target pairs form rings: every rank that sends also receives",
    "AWS Neuron SDK docs, neuron-runtime/about/collectives.rst",
)
ADJACENT_PAIRS = GroupRule(
    "permute-G2",
    "source and target are on one chip, on chips that a link joins, or joined by EFA",
    "AWS Neuron SDK docs, neuron-runtime/about/collectives.rst; assumed: EFA joins any two",
)
ALL_TO_ALL_INSIDE = GroupRule(
    "all-to-all-G1",
    "an all-to-all stays inside an instance",
    "runtime assertion node_n == 1 in enc.cc, 2026-07 (third party: jimburtoft/cookbook)",
)
REDUCTIONS = GroupRule(
    "reduce-G1",
    "a reduction is add, minimum or maximum",
    "AWS Neuron SDK, nki.collectives; NRT_OP of nrt.h",
)

RULES: tuple[GroupRule, ...] = (
    *_TRN1_RULES,
    *_INF2_RULES,
    *_TRN2_RULES,
    *_TRN2_LNC1_RULES,
    *_TRN2_CHIP_RULES,
    SYMMETRIC,
    ONE_AN_INSTANCE,
    RING_OF_PAIRS,
    ADJACENT_PAIRS,
    ALL_TO_ALL_INSIDE,
    REDUCTIONS,
)
"""Every rule; those without instances hold everywhere."""

_NEC = "AWS Neuron SDK, nec.h"
GROUPS_OF_A_PROGRAM = Limit(
    "limit-G1",
    16,
    "a rank is in 16 different replica groups of a program at most",
    "AWS Neuron SDK release notes, collectives 2.34.10; nec.h says 12; assumed: counted by rank",
)
CHANNELS = Limit(
    "limit-G2", 32, "a collective has 32 channels at most", f"{_NEC}, NEC_MAX_CHANNELS"
)
KANGARING_RANKS = Limit("limit-G3", 256, "KangaRing takes groups of 256 ranks at most", _NEC)
MESH_CHIPS = Limit("limit-G4", 128, "mesh takes groups on 128 chips at most", _NEC)

LIMITS: tuple[Limit, ...] = (GROUPS_OF_A_PROGRAM, CHANNELS, KANGARING_RANKS, MESH_CHIPS)


def rules_of(topology: Topology) -> tuple[GroupRule, ...]:
    """The rules of the topology's instance; none for a wiring of the user's."""
    return tuple(
        rule for rule in RULES if topology.instance in rule.instances and rule.lnc == topology.lnc
    )
