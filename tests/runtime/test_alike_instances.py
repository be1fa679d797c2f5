"""Candidates planned for one of alike instances: the choice, price and plan are those of all."""

import math
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_runtime.collectives import choose
from ncc_runtime.collectives.choose import ALGORITHMS, Candidate
from ncc_runtime.collectives.plan import Job
from ncc_runtime.collectives.symmetry import AsymmetryError, check_groups
from ncc_runtime.errors import LoweringError
from ncc_runtime.execution.clock.clock import collective_ps
from ncc_runtime.lowering import choices
from ncc_runtime.lowering.choices import chooser_of, groups_of, job_of
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.lowering.lower import lower
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.options import Policy
from ncc_runtime.placement import Placement, PlaceOptions, place_on
from ncc_runtime.topology.format.spec import SlowedCore
from ncc_runtime.topology.graph import build_spec
from tests.clock_runs import timed
from tests.programs import collective_program

OPS = (
    CollectiveOp.ALL_REDUCE,
    CollectiveOp.REDUCE_SCATTER,
    CollectiveOp.ALL_GATHER,
    CollectiveOp.ALL_TO_ALL,
)


Groups = tuple[tuple[int, ...], ...]


@pytest.fixture(autouse=True, scope="module")
def few_are_many() -> Iterator[None]:
    """Few ranks are planned as many are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choices, "PLANNED_AS_ONE", 1)
        yield


def slowed_cores(nodes: int, per_node: int) -> st.SearchStrategy[list[SlowedCore]]:
    """Up to three cores that have ranks, where two physical cores are a rank's."""
    core = st.builds(
        lambda rank, **how: SlowedCore(chip=rank // 4, core=2 * (rank % 4), source="drawn", **how),
        rank=st.integers(0, per_node - 1),
        node=st.integers(0, nodes - 1),
        engines_percent=st.integers(1, 100),
        dma_percent=st.integers(1, 100),
    )
    return st.lists(core, max_size=3)


PLACES = ((2, 16), (3, 24), (4, 8), (2, 5))
"""Instances, and ranks of each: some on several chips."""


@st.composite
def groups_of_ranks(draw: st.DrawFn, nodes: int, per_node: int) -> Groups:
    """All ranks, groups inside instances or across, the same places in all or not."""
    ranks = np.arange(nodes * per_node).reshape(nodes, per_node)
    if draw(st.booleans(), "shuffled"):
        order = np.array(draw(st.permutations(range(per_node))))
        ranks = ranks[:, order] if draw(st.booleans(), "alike") else ranks
        if not draw(st.booleans(), "alike"):
            ranks = np.concatenate((ranks[:-1], ranks[-1:, order]))
    size = draw(st.sampled_from([each for each in range(1, per_node + 1) if not per_node % each]))
    kind = draw(st.sampled_from(("all", "inside", "across", "unlike inside")))
    if kind == "all":
        return (tuple(ranks.ravel().tolist()),)
    if kind == "inside":
        return tuple(map(tuple, ranks.reshape(-1, size).tolist()))
    if kind == "across":
        across = ranks.reshape(nodes, -1, size).transpose(1, 0, 2).reshape(per_node // size, -1)
        return tuple(map(tuple, across.tolist()))
    first = tuple(map(tuple, ranks[0].reshape(-1, size).tolist()))
    return (*first, tuple(ranks[1:].ravel().tolist()))


@attrs.frozen
class Case:
    """A program on instances, and how it is lowered."""

    program: Program
    placement: Placement
    how: dict[str, Any]


@st.composite
def cases(draw: st.DrawFn) -> Case:
    nodes, per_node = draw(st.sampled_from(PLACES))
    groups = draw(groups_of_ranks(nodes, per_node))
    largest = max(map(len, groups))
    whole = draw(st.sampled_from((1, 64, 4096, 1 << 16)))
    op = draw(st.sampled_from(OPS))
    if op is CollectiveOp.ALL_REDUCE:
        whole += draw(st.sampled_from((0, 0, 1)))  # of an odd size, too
    elif len(set(map(len, groups))) > 1:
        whole *= math.lcm(*map(len, groups))
    else:
        whole *= largest
    hows: list[dict[str, Any]] = [{}, {"clock": collective_ps}, {"policy": Policy.BEST}]
    return Case(
        collective_program(op, nodes * per_node, [whole], groups=groups, repeat=2),
        placed(nodes * per_node, nodes, draw(slowed_cores(nodes, per_node))),
        draw(st.sampled_from((*hows, {"times_only": True}))),
    )


def placed(ranks: int, nodes: int, slowed: list[SlowedCore]) -> Placement:
    """On instances of trn2 with slowed cores."""
    placement = place_on(PlaceOptions("trn2", nodes), ranks)
    spec = attrs.evolve(placement.topology.spec, slowed=tuple(slowed))
    topology = build_spec(spec, nodes, placement.topology.lnc)
    return attrs.evolve(placement, topology=topology)


def assert_equal(one: Executable, other: Executable) -> None:
    """The same columns in every queue of every rank."""
    assert one.representatives == other.representatives == one.ranks
    assert one.lowered == other.lowered
    assert one.hbm_bytes == other.hbm_bytes
    for queue, its_like in zip(one.queues, other.queues, strict=True):
        assert type(queue) is type(its_like)
        for mine, theirs in ((queue, its_like), (queue.sync, its_like.sync)):
            for field in attrs.fields(type(mine)):
                column = getattr(mine, field.name)
                if isinstance(column, np.ndarray):
                    np.testing.assert_array_equal(column, getattr(theirs, field.name))
        for post, its_post in zip(queue.sync.posts, its_like.sync.posts, strict=True):
            np.testing.assert_array_equal(post.rank, its_post.rank)
            np.testing.assert_array_equal(post.sem, its_post.sem)


def of_all_plans(program: Program, placement: Placement, **how: Any) -> Executable:
    """Lowered with candidates that are planned for all ranks from the start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choices, "alike_instances", lambda *_: None)
        return lower(program, placement, **how)


@settings(max_examples=40)
@given(cases())
def test_a_program_is_what_it_is_when_all_ranks_are_planned(case: Case) -> None:
    how = {"forced": {}, **case.how}
    found = lower(case.program, case.placement, **how)
    expected = of_all_plans(case.program, case.placement, **how)
    assert found.lowered == expected.lowered
    if found.representatives == found.ranks:
        assert_equal(found, expected)
    assert timed(found).time_ps == timed(expected).time_ps


UNLIKE_GROUPS = {
    "other sizes": (*((2 * pair, 2 * pair + 1) for pair in range(8)), tuple(range(16, 32))),
    "other places": (
        *(tuple(range(first, first + 4)) for first in range(0, 16, 4)),
        *(tuple(range(first, 32, 4)) for first in range(16, 20)),
    ),
    "one instance alone": (tuple(range(16)), *((rank,) for rank in range(16, 32))),
    "another order": (tuple(range(16)), tuple(range(31, 15, -1))),
}


@pytest.mark.parametrize("groups", UNLIKE_GROUPS.values(), ids=UNLIKE_GROUPS)
@pytest.mark.parametrize("op", OPS)
def test_groups_of_the_first_instance_do_not_speak_for_others(op, groups):
    with pytest.raises(AsymmetryError, match="same places of every instance"):
        check_groups(groups, 16, 32)
    program = collective_program(op, 32, [16 * 4096 * 8], groups=groups, repeat=2)
    for how in ({}, {"times_only": True}):
        found, expected = (
            make(program, placed(32, 2, []), forced={}, **how) for make in (lower, of_all_plans)
        )
        assert_equal(found, expected)


@settings(max_examples=15)
@given(
    st.sampled_from(OPS[:3]),
    st.sampled_from((64, 64 << 8, 64 << 16)),
    slowed_cores(2, 16).filter(bool),
)
def test_the_slowest_of_alike_parts_gives_the_price_of_all(op, elements, slowed):
    program, placement = collective_program(op, 32, [elements]), placed(32, 2, slowed)
    job, groups = (make(program, program.placeholders[0]) for make in (job_of, groups_of))
    whole, reduced = (
        chooser_of(program, placement, {}, seen, policy=Policy.BEST) for seen in (None, 16)
    )
    prices = {
        one.name: one.price.time_ps
        for one in whole.candidates(job, groups, price_all=True)
        if not one.reason
    }
    found = reduced.candidates(job, groups, price_all=True)
    assert {one.name: one.price.time_ps for one in found if not one.reason} == prices
    assert any(one.reduction is not None for one in found), "some stand for all"


SLOWED = [SlowedCore(0, 0, "drawn", 1, dma_percent=50)]


@pytest.mark.parametrize("op", OPS)
def test_every_algorithm_gets_the_columns_of_all_ranks(op):
    program = collective_program(op, 16, [4096 * 16], repeat=2)
    for cores in ([], SLOWED):
        placement = placed(16, 2, cores)
        for name in ALGORITHMS[op]:
            try:
                expected = of_all_plans(program, placement, forced={op.value: name})
            except LoweringError:  # it does not run there
                continue
            assert_equal(lower(program, placement, {op.value: name}), expected)


@pytest.mark.parametrize("cores", [[], SLOWED])
def test_few_plans_are_made_for_all_and_one_instance_is_timed_where_all_are_as_fast(
    cores: list[SlowedCore], monkeypatch: pytest.MonkeyPatch
) -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 32, [1 << 20])
    of_all, columns = [], []
    make = choose.CandidateBuilder.of_all_members

    def counted(self: choose.CandidateBuilder, job: Job, candidate: Candidate) -> Candidate:
        of_all.append(candidate.name)
        return make(self, job, candidate)

    def clock(executable: Executable) -> int:
        columns.append(executable.representatives)
        return collective_ps(executable)

    monkeypatch.setattr(choose.CandidateBuilder, "of_all_members", counted)
    executable = lower(program, placed(32, 2, cores), {}, clock=clock)
    assert executable.representatives == 32
    assert len(columns) > 1, "candidates are near enough to be timed"
    assert set(columns) == {32 if cores else 16}
    assert len(of_all) == 1 + (len(columns) if cores else 0), "what is chosen, and what is timed"


@pytest.mark.parametrize("most", [100, 1_000, 2_000, 4_000, 10_000])
def test_as_many_candidates_are_timed_as_if_all_ranks_were_planned(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choices, "MOST_TIMED", dict.fromkeys(Policy, most))
    program = collective_program(CollectiveOp.ALL_REDUCE, 32, [1 << 20])
    timed_by: list[list[Executable]] = []
    for make in (lower, of_all_plans):
        seen: list[Executable] = []

        def clock(executable: Executable, seen: list[Executable] = seen) -> int:
            seen.append(executable)
            return collective_ps(executable)

        make(program, placed(32, 2, []), forced={}, clock=clock)
        timed_by.append(seen)
    assert len(timed_by[0]) == len(timed_by[1])


def test_what_the_policy_leaves_out_does_not_run_because_one_instance_is_unlike_the_rest():
    """A candidate that the clock finds so is no refusal, after which other policies are tried."""
    groups = tuple(tuple(range(first, 36, 3)) for first in range(3))
    program = collective_program(CollectiveOp.ALL_REDUCE, 36, [1], groups=groups)
    how: dict[str, Any] = {"forced": {}, "clock": collective_ps, "deterministic": True}
    found = lower(program, placed(36, 3, []), **how, times_only=True)
    assert found.lowered == of_all_plans(program, placed(36, 3, []), **how).lowered


@pytest.mark.parametrize("most", [70, 100, 150, 250])
def test_semaphores_of_one_instance_are_as_many_as_those_of_all(
    most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So the choice leaves out what takes too many."""
    monkeypatch.setattr(choices, "SEMAPHORES_PER_CC_CORE", most // 4)
    program = collective_program(CollectiveOp.ALL_REDUCE, 32, [1 << 16])
    found, expected = (
        make(program, placed(32, 2, []), forced={}) for make in (lower, of_all_plans)
    )
    assert found.lowered == expected.lowered


def test_one_instance_stands_for_all_only_where_cores_are_equally_fast():
    program = collective_program(CollectiveOp.ALL_REDUCE, 16, [4096])
    for slowed, columns in (
        ([], 8),
        ([SlowedCore(0, 0, "drawn", 1, dma_percent=99)], 16),
        ([SlowedCore(0, 0, "drawn", 1, engines_percent=99)], 16),
        ([SlowedCore(0, 0, "drawn", node, engines_percent=99) for node in (0, 1)], 8),
    ):
        executable = lower(program, placed(16, 2, slowed), {}, times_only=True)
        assert executable.representatives == columns


def test_what_the_host_cannot_hold_is_refused_before_it_is_planned_for_all(monkeypatch):
    program = collective_program(CollectiveOp.ALL_REDUCE, 16, [4096])
    placement = placed(16, 2, [])
    lower(program, placement, {}, times_only=True)

    def refuse(*_: object) -> None:
        raise LoweringError("no room")

    monkeypatch.setattr(choose, "check_room", refuse)
    lower(program, placement, {}, times_only=True)
    with pytest.raises(LoweringError, match="no room"):
        lower(program, placement, {})
