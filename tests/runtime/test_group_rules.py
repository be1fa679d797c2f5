"""Neuron's rules for groups: one case that is allowed and one that is refused for every rule."""

import re
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_runtime.errors import PlacementError, TopologyError
from ncc_runtime.group_rules.judge import verdicts
from ncc_runtime.group_rules.limits import LimitUse, limit_verdicts
from ncc_runtime.group_rules.rules import LIMITS, RULES, rules_of
from ncc_runtime.group_rules.variable_size import COUNTED_RULES
from ncc_runtime.group_rules.verdict import Ranks, Verdict, refusals, warnings
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.placement import parse_on, place, place_on
from ncc_runtime.topology.graph import build
from tests import documents
from tests.counted_programs import Shape, text_of
from tests.draws_topology import build_drawn
from tests.programs import collective_program

Groups = tuple[Ranks, ...]


def every(step: int, end: int, first: int = 0) -> Ranks:
    return tuple(range(first, end, step))


def judged(on: str, ranks: int, groups: Groups, **words) -> tuple[Verdict, ...]:
    op = words.pop("op", CollectiveOp.ALL_REDUCE)
    rest = set(range(ranks)) - {rank for group in groups for rank in group}
    whole = (*groups, *((rank,) for rank in sorted(rest)))
    program = collective_program(op, ranks, [ranks], groups=whole, **words)
    return verdicts(program, place_on(parse_on(on), ranks))


def shifted(on: str, ranks: int, pairs: tuple[tuple[int, int], ...]) -> tuple[Verdict, ...]:
    program = collective_program(CollectiveOp.PERMUTE, ranks, [4], pairs=pairs)
    return verdicts(program, place_on(parse_on(on), ranks))


def ring(*ranks: int) -> tuple[tuple[int, int], ...]:
    return tuple(zip(ranks, ranks[1:] + ranks[:1], strict=True))


CASES = [
    # rule, place, ranks, allowed, refused, nearest allowed to the refused
    ("trn1-G1", "trn1", 32, (2, 3), (1, 2), "cores 0-1"),
    ("trn1-G2", "trn1", 32, (4, 5, 6, 7), (2, 3, 4, 5), "cores 0-3"),
    ("trn1-G3", "trn1", 32, every(1, 16, 8), every(1, 12, 4), "cores 0-7"),
    ("trn1-G4", "trn1", 32, every(1, 32, 16), every(2, 32), "cores 0-15"),
    ("trn1-G6", "trn1n.32xlarge", 32, (3, 11, 19, 27), (3, 11, 19, 26), "cores 3,11,19,27"),
    ("trn1-G8", "trn1.2xlarge", 2, (0, 1), None, ""),
    ("inf2-G1", "inf2", 24, every(1, 18, 4), (*every(1, 7), 23), "cores 0-7"),
    ("inf2-G2", "inf2.24xlarge", 12, every(1, 12), (0, 2), "cores 0-1"),
    ("inf2-G3", "inf2.8xlarge", 2, (0, 1), None, ""),
    ("trn2-G1", "trn2", 64, (4, 5, 6, 7), (4, 5, 6, 8), "cores 4-7"),
    ("trn2-G2", "trn2", 64, (0, 1, 2, 3, 12, 13, 14, 15), every(1, 8), "cores 0-3,12-15"),
    ("trn2-G3", "trn2", 64, every(1, 32, 16), every(1, 24, 8), "cores 0-15"),
    ("trn2-G4", "trn2", 64, every(1, 48, 16), every(1, 32), "cores 0-15,48-63"),
    ("trn2-G6", "trn2", 64, (5, 21, 37, 53), (5, 20, 37, 53), "cores 5,21,37,53"),
    ("trn2-G7", "trn2", 64, every(4, 64, 1), (*every(4, 60), 61), "cores 0,4,8"),
    ("trn2-G9", "trn2,lnc=1", 128, (4, 5, 6, 7), (2, 3, 4, 5), "cores 0-3"),
    ("trn2-G10", "trn2,lnc=1", 128, every(1, 16, 8), every(1, 12, 4), "cores 0-7"),
    ("trn2-G11", "trn2,lnc=1", 128, every(1, 64, 32), every(1, 48, 16), "cores 0-31"),
    ("trn2-G12", "trn2,lnc=1", 128, every(1, 96, 32), every(1, 64), "cores 0-31,96-127"),
    ("trn2-G14", "trn2,lnc=1", 128, (9, 41, 73, 105), (9, 41, 73, 104), "cores 9,41,73,105"),
    ("trn2-G15", "trn2,lnc=1", 128, every(8, 128, 3), every(1, 16), "cores 0,8,16"),
    ("trn2-G17", "trn2.3xlarge", 4, (0, 1, 2, 3), (0, 1), "cores 0-3"),
    ("trn2-G18", "trn2.3xlarge,lnc=1", 8, (4, 5, 6, 7), (0, 2, 4, 6, 7), "cores 4-7"),
]

REFUSING = [case for case in CASES if case[4] is not None]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case[0])
def test_a_group_is_allowed_by_the_rule_that_lists_it(case: tuple) -> None:
    rule, on, ranks, allowed, _, _ = case
    (verdict,) = judged(on, ranks, (allowed,))
    assert (verdict.rule, verdict.allowed, verdict.ranks) == (rule, True, allowed)
    assert verdict.nearest == ()


@pytest.mark.parametrize("case", REFUSING, ids=lambda case: case[0])
def test_a_group_that_breaks_a_rule_is_refused_with_the_nearest_allowed(case: tuple) -> None:
    rule, on, ranks, _, refused, nearest = case
    (verdict,) = judged(on, ranks, (refused,))
    assert (verdict.rule, verdict.allowed) == (rule, False)
    assert_is_nearest(verdict, nearest)
    cores = tuple(core for _, core in verdict.nearest)
    (again,) = judged(on, ranks, (cores,))
    assert again.allowed


def assert_is_nearest(verdict: Verdict, cores: str) -> None:
    """The advice is a group on these cores, and says so if it is of another size."""
    size = "" if len(verdict.nearest) == len(verdict.ranks) else ", of another size"
    assert verdict.advice.startswith(f"nearest allowed group{size}: {cores}")


@pytest.mark.parametrize(
    ("rule", "on", "group"),
    [
        ("trn1-G5", "trn1", every(1, 32)),
        ("trn2-G5", "trn2", every(1, 64)),
        ("trn2-G13", "trn2,lnc=1", every(1, 128)),
    ],
)
def test_all_cores_of_an_instance_are_a_group(rule: str, on: str, group: Ranks) -> None:
    (verdict,) = judged(on, len(group), (group,))
    assert (verdict.rule, verdict.allowed) == (rule, True)


@pytest.mark.parametrize(
    ("rule", "on", "group"),
    [
        ("trn1-G7", "trn1", every(1, 12)),
        ("trn2-G8", "trn2", every(1, 6)),
        ("trn2-G16", "trn2,lnc=1", every(1, 2)),
    ],
)
def test_a_size_that_no_rule_has_is_refused_by_the_sizes(rule: str, on: str, group: Ranks) -> None:
    (verdict,) = judged(on, len(group), (group,))
    assert (verdict.rule, verdict.allowed) == (rule, False)
    assert verdict.advice.startswith("nearest allowed group, of another size: cores 0-")


@pytest.mark.parametrize("group", [(0, 1, 22, 23), (*every(1, 10), *every(1, 24, 14))])
def test_consecutive_chips_of_inf2_go_on_round_the_ring(group: Ranks) -> None:
    (verdict,) = judged("inf2", 24, (group,))
    assert (verdict.rule, verdict.allowed) == ("inf2-G1", True)
    (refused,) = judged("inf2", 24, ((0, 1, *group[3:], 12),))
    assert not refused.allowed
    (line,) = judged("inf2.24xlarge", 12, ((0, 1, 10, 11),))
    assert (line.rule, line.allowed) == ("inf2-G2", False)


def test_inf2_takes_every_run_of_chips_of_its_ring_and_nothing_else() -> None:
    (rule,) = (rule for rule in RULES if rule.id == "inf2-G1")
    runs = {
        tuple(sorted(2 * ((first + k) % 12) + core for k in range(chips) for core in range(2)))
        for first in range(12)
        for chips in range(1, 13)
    }
    assert sorted(rule.groups) == sorted(runs)


@pytest.mark.parametrize("on", ["trn1", "trn1n.32xlarge", "inf2", "inf2.24xlarge", "trn2"])
def test_the_chips_of_every_group_are_reached_over_links_between_them(on: str) -> None:
    """As the sources' groups have it: full rings, or neighbours; the wrap of a ring is a link."""
    for lnc in {1, build(on).lnc}:
        topology = build(on, lnc=lnc)
        links = set(zip(topology.links.src.tolist(), topology.links.dst.tolist(), strict=True))
        for cores in {cores for rule in rules_of(topology) for cores in rule.groups}:
            chips = {core // topology.ranks_per_chip for core in cores}
            reached = {min(chips)}
            for _ in chips:
                reached |= {end for start, end in links if start in reached and end in chips}
            assert reached == chips


def test_groups_across_instances_have_the_same_cores_of_each() -> None:
    same = (*every(1, 16), *every(1, 80, 64))
    (allowed,) = judged("trn2", 128, (same,))
    assert (allowed.rule, allowed.allowed) == ("trn2-G3", True)
    (refused,) = judged("trn2", 128, ((*every(1, 16), *every(1, 76, 64)),))
    assert (refused.rule, refused.allowed) == ("efa-G1", False)
    assert refused.advice == ("nearest allowed group, of another size: cores 0-15 of instances 0-1")


def test_a_group_may_have_one_rank_of_each_instance() -> None:
    (allowed,) = judged("trn2", 256, (every(64, 256, 7),))
    assert (allowed.rule, allowed.allowed) == ("efa-G2", True)
    (refused,) = judged("trn2", 256, ((7, 71, 135, 200),))
    assert (refused.rule, refused.allowed) == ("efa-G1", False)
    assert refused.nearest == ((0, 7), (1, 7), (2, 7), (3, 7))


def test_instances_without_efa_are_not_joined_at_all() -> None:
    with pytest.raises(TopologyError, match=r"trn1\.2xlarge cannot be joined.*trn1-arch\.rst"):
        build("trn1.2xlarge", nodes=2)


def test_pairs_form_a_ring() -> None:
    (allowed,) = shifted("trn1", 8, ring(*range(8)))
    assert (allowed.rule, allowed.allowed) == ("permute-G1", True)
    (refused,) = shifted("trn1", 8, ring(*range(8))[:-1])
    assert (refused.rule, refused.allowed) == ("permute-G1", False)
    assert refused.advice == "nearest allowed group: a ring through cores 0-7"


def test_pairs_are_on_neighbouring_chips() -> None:
    (refused,) = shifted("trn1", 12, ring(0, 2, 4))
    assert (refused.rule, refused.allowed) == ("permute-G2", False)
    assert refused.fact.startswith("collective-permute over cores 0,4: ")
    assert refused.advice == "nearest allowed group, of another size: a ring through cores 0-1"


def test_neighbours_are_joined_by_a_link_that_is_up(tmp_path: Path) -> None:
    file = tmp_path / "worn.toml"
    file.write_text(
        'name = "worn"\nbase = "trn1.32xlarge"\n'
        '[[fault]]\nbetween = [0, 1]\ndown = true\nsource = "assumed"\n'
    )
    (verdict,) = shifted(str(file), 4, ring(0, 2))
    assert (verdict.rule, verdict.allowed) == ("permute-G2", False)


def test_every_chain_of_pairs_is_judged_and_a_rank_that_sends_to_itself_is_none() -> None:
    found = shifted("trn1", 16, (*ring(0, 1), *ring(2, 3), (4, 4), (8, 9)))
    assert [(one.rule, one.allowed, one.ranks) for one in found] == [
        ("permute-G1", False, (8, 9)),
        ("permute-G1", True, (0, 1)),
    ]


def test_an_all_to_all_stays_inside_an_instance() -> None:
    (allowed,) = judged("trn2", 128, (every(1, 64), every(1, 128, 64)), op=CollectiveOp.ALL_TO_ALL)
    assert (allowed.rule, allowed.allowed) == ("trn2-G5", True)
    (refused,) = judged("trn2", 128, (every(1, 128),), op=CollectiveOp.ALL_TO_ALL)
    assert (refused.rule, refused.allowed) == ("all-to-all-G1", False)
    assert refused.advice == "nearest allowed group, of another size: cores 0-63 of instance 0"


GATHER, EXCHANGE = CollectiveOp.ALL_GATHER_V, CollectiveOp.ALL_TO_ALL_V
COUNTED = [
    # rule, operator, place, ranks, allowed, refused, nearest allowed to the refused
    ("all-gather-v-G1", GATHER, "trn2", 64, every(1, 8, 4), every(1, 6, 1), "cores 0-3"),
    ("all-gather-v-G1", GATHER, "trn3-gen2-ultraserver", 64, every(1, 4), (0, 1), "cores 0-3"),
    (
        *("all-to-all-v-G1", EXCHANGE, "trn3-gen2-ultraserver", 64),
        *(every(1, 24, 8), (*every(1, 7), *every(1, 16, 12)), "cores 0-7"),
    ),
    ("all-to-all-v-G1", EXCHANGE, "trn3-gen1-ultraserver", 64, every(1, 64), every(1, 4), ""),
    (
        *("all-to-all-v-G2", EXCHANGE, "trn2", 192, (5, 69, 133), (5, 69, 134)),
        "core 5 of instances 0-2",
    ),
    ("all-to-all-v-G2", EXCHANGE, "trn2-ultraserver", 256, (5, 69, 197), (5, 6, 69), "cores 5,69"),
]


@pytest.mark.parametrize("case", COUNTED, ids=lambda case: f"{case[0]}-{case[2]}")
def test_collectives_of_variable_size_have_rules_of_their_own(case: tuple) -> None:
    rule, op, on, ranks, allowed, refused, nearest = case
    (verdict,) = judged(on, ranks, (allowed,), op=op)
    assert (verdict.rule, verdict.allowed, verdict.nearest) == (rule, True, ())
    (verdict,) = judged(on, ranks, (refused,), op=op)
    assert (verdict.rule, verdict.allowed) == (rule, False)
    if nearest:
        assert_is_nearest(verdict, nearest)
    size = place_on(parse_on(on), ranks).topology.ranks_per_node
    again = tuple(node * size + core for node, core in verdict.nearest)
    assert all(one.allowed for one in judged(on, ranks, (again,), op=op))


@pytest.mark.parametrize("on", ["trn1", "trn2,lnc=1"])
def test_a_gather_of_variable_size_takes_logical_cores_of_two(on: str) -> None:
    (verdict,) = judged(on, 8, (every(1, 4),), op=GATHER)
    assert (verdict.rule, verdict.allowed, verdict.advice) == ("all-gather-v-G1", False, "")


def test_an_all_to_all_of_variable_size_inside_a_torus_has_no_allowed_group() -> None:
    (verdict,) = judged("trn2", 64, (every(1, 64),), op=EXCHANGE)
    assert (verdict.rule, verdict.allowed, verdict.advice) == ("all-to-all-v-G2", False, "")


def test_free_offsets_at_the_receiver_are_for_switched_fabrics() -> None:
    def verdict_of(on: str) -> Verdict:
        text = text_of("ragged-all-to-all", Shape(groups=(every(1, 8),)))
        (verdict,) = ncc_runtime.load(ncc_compiler.compile_text(text), on).verdicts
        return verdict

    allowed, refused = verdict_of("trn3-gen2-ultraserver"), verdict_of("trn2")
    assert (allowed.rule, allowed.allowed) == ("all-to-all-v-G1", True)
    assert (refused.rule, refused.allowed) == ("all-to-all-v-G3", False)
    assert refused.fact.startswith("ragged-all-to-all over cores 0-7: rows land where")


def test_a_reduction_is_a_sum_a_minimum_or_a_maximum() -> None:
    for reduction in (Reduction.ADD, Reduction.MINIMUM, Reduction.MAXIMUM):
        assert not refusals(judged("trn2", 4, (every(1, 4),), reduction=reduction))
    verdict, _ = judged("trn2", 4, (every(1, 4),), reduction=Reduction.MULTIPLY)
    assert (verdict.rule, verdict.allowed) == ("reduce-G1", False)
    assert verdict.fact.startswith("all-reduce by multiply: ")


def with_groups(count: int) -> Program:
    """A program on 32 ranks of which rank 0 meets another one in every collective."""
    program = collective_program(CollectiveOp.ALL_REDUCE, 32, [4])
    (one,) = program.placeholders
    rest = [tuple((rank,) for rank in range(1, 32) if rank != other) for other in range(32)]
    more = [attrs.evolve(one, groups=((0, k), *rest[k])) for k in range(1, count + 1)]
    return attrs.evolve(program, placeholders=tuple(more))


def test_a_rank_is_in_16_replica_groups_at_most() -> None:
    placement = place(build("trn1"), 32)
    assert "limit-G1" not in {one.rule for one in verdicts(with_groups(16), placement)}
    refused = verdicts(with_groups(18), placement)[-1]
    assert (refused.rule, refused.placeholder, refused.ranks) == ("limit-G1", 16, (0, 17))
    assert refused.advice == "nearest group in use: cores 0-1"


@pytest.mark.parametrize(
    ("rule", "allowed", "refused"),
    [
        ("limit-G2", LimitUse(0, "ring", every(1, 8), 32), LimitUse(0, "ring", every(1, 8), 33)),
        (
            "limit-G3",
            LimitUse(0, "kangaring", every(1, 256), 1),
            LimitUse(0, "kangaring", every(1, 512), 1),
        ),
        ("limit-G4", LimitUse(0, "mesh", every(1, 512), 1), LimitUse(0, "mesh", every(1, 516), 1)),
    ],
)
def test_an_algorithm_has_its_limit(rule: str, allowed: LimitUse, refused: LimitUse) -> None:
    placement = place(build("trn2", nodes=16), 1024)
    assert limit_verdicts(placement, [allowed]) == ()
    (verdict,) = limit_verdicts(placement, [refused])
    assert (verdict.rule, verdict.allowed) == (rule, False)


def test_every_rule_and_limit_has_a_case_of_its_own() -> None:
    text = Path(__file__).read_text()
    assert [one.id for one in (*RULES, *COUNTED_RULES, *LIMITS) if f'"{one.id}"' not in text] == []


def test_the_document_has_a_row_for_every_rule_with_its_fact_and_source() -> None:
    text = (Path(__file__).parents[2] / "docs" / "topology.md").read_text()
    rows = {row[0]: row[2:] for row in documents.cells(text) if len(row) == 4}
    found = {rule: row for rule, row in rows.items() if re.fullmatch(r"[a-z0-9-]+-G\d+", rule)}
    assert found == {one.id: [one.fact, one.source] for one in (*RULES, *COUNTED_RULES, *LIMITS)}


def test_every_rule_cites_a_publication_or_is_called_assumed() -> None:
    words = ("AWS Neuron SDK", "neuronx-distributed", "third party", "assumed")
    ids = [one.id for one in (*RULES, *COUNTED_RULES, *LIMITS)]
    assert len(set(ids)) == len(ids)
    assert all(
        any(word in one.source for word in words) for one in (*RULES, *COUNTED_RULES, *LIMITS)
    )


@pytest.mark.parametrize("name", ["trn1", "trn2", "inf2", "inf2.24xlarge", "trn2.3xlarge"])
def test_every_group_of_a_rule_is_of_distinct_cores_that_the_instance_has(name: str) -> None:
    for lnc in {1, build(name).lnc}:
        topology = build(name, lnc=lnc)
        for cores in (cores for rule in rules_of(topology) for cores in rule.groups):
            assert list(cores) == sorted(set(cores))
            assert cores[-1] < topology.ranks_per_node


def test_a_wiring_of_ones_own_has_no_rules_for_its_groups() -> None:
    topology = build_drawn("chips.count = 8\nfabric.dims = [2, 4]\nefa.adapters = 8")
    program = collective_program(CollectiveOp.ALL_REDUCE, 6, [6], groups=(every(1, 6),))
    assert verdicts(program, place(topology, 6)) == ()


def test_spread_ranks_are_judged_by_the_cores_they_are_on() -> None:
    (verdict,) = judged("trn2,placement=spread", 16, (every(1, 16),))
    assert (verdict.rule, verdict.allowed) == ("trn2-G7", True)
    assert verdict.fact.startswith("all-reduce over cores 0,4,8,12,16,20,24,28,… (16 in all): ")


@given(group=st.sets(st.integers(0, 63), min_size=2))
def test_no_allowed_group_is_nearer_than_the_nearest(group: set[int]) -> None:
    ranks = tuple(sorted(group))
    (verdict,) = judged("trn2", 64, (ranks,))
    listed = [set(cores) for rule in rules_of(build("trn2")) for cores in rule.groups]
    if verdict.allowed:
        assert group in listed
        return
    nearest = {core for _, core in verdict.nearest}
    assert nearest in listed
    same_size = [other for other in listed if len(other) == len(group)]
    assert len(nearest ^ group) == min(len(other ^ group) for other in same_size or listed)
    assert ("of another size" in verdict.advice) is not bool(same_size)


@given(parts=st.tuples(*[st.sets(st.integers(0, 31), min_size=1)] * 2))
def test_the_nearest_group_across_instances_is_nearest_of_all_kinds(parts) -> None:
    ranks = tuple(sorted(parts[0])) + tuple(sorted(rank + 32 for rank in parts[1]))
    (verdict,) = judged("trn1", 64, (ranks,))
    listed = [set(cores) for rule in rules_of(build("trn1")) for cores in rule.groups]
    both = [{(node, core) for node in (0, 1) for core in cores} for cores in listed]
    both += [{(0, core), (1, core)} for core in range(32)]
    alone = [{(node, core) for core in cores} for node in (0, 1) for cores in listed]
    here = {(node, core) for node in (0, 1) for core in parts[node]}
    if verdict.allowed:
        assert here in both
    else:
        every_one = (*both, *alone)
        same_size = [other for other in every_one if len(other) == len(here)]
        least = min(len(other ^ here) for other in same_size or every_one)
        assert len(set(verdict.nearest) ^ here) == least


def test_a_warning_counts_the_collectives_that_break_its_rule() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 8, [8], repeat=3)
    (notice,) = warnings(verdicts(program, place(build("trn2"), 8)))
    assert notice.code == "trn2-G2"
    assert notice.message == (
        "all-reduce over cores 0-7: 8 ranks take chips 0 and 3, or 1 and 2, of a row; nearest "
        "allowed group: cores 0-3,12-15; 3 collectives in all"
    )


def test_strict_refuses_what_runs_with_a_warning_otherwise() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 8, [8])
    model = ncc_runtime.load(program)
    assert [verdict.rule for verdict in model.verdicts if not verdict.allowed] == ["trn2-G2"]
    values = np.ones((8, 8), np.float32)
    assert (model.run([values]).outputs[0] == 8).all()
    with pytest.raises(PlacementError, match=r"trn2-G2: .*nearest allowed group: cores 0-3,12-15"):
        ncc_runtime.load(program, strict=True)


def test_strict_takes_what_the_hardware_takes() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [8])
    assert all(one.allowed for one in ncc_runtime.load(program, strict=True).verdicts)


def test_cores_of_ranks_are_numbered_once() -> None:
    """Else a permute of many pairs would number those of every rank for each of them."""
    placement = place(build("trn2.48xlarge", nodes=2), 128)
    assert placement.logical_core is placement.logical_core
    assert placement.chip_in_node is placement.chip_in_node
    assert not placement.logical_core.flags.writeable
    assert placement.logical_core.tolist() == [*range(64)] * 2
