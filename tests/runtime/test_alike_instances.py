"""Candidates planned for one of alike instances: the choice, price and plan are those of all."""

from collections.abc import Iterator

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_runtime.collectives import choose
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.errors import LoweringError
from ncc_runtime.execution.clock.clock import collective_ps
from ncc_runtime.lowering import choices
from ncc_runtime.lowering.choices import chooser_of, groups_of, job_of
from ncc_runtime.lowering.executable import DmaQueue, Executable
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


@pytest.fixture(autouse=True, scope="module")
def few_are_many() -> Iterator[None]:
    """Few ranks are planned as many are."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choices, "PLANNED_AS_ONE", 1)
        yield


CORES = st.builds(
    SlowedCore,
    chip=st.integers(0, 3),
    core=st.integers(0, 7),
    source=st.just("drawn"),
    node=st.integers(0, 3),
    engines_percent=st.integers(1, 100),
    dma_percent=st.integers(1, 100),
)


def placed(ranks: int, nodes: int, slowed: list[SlowedCore]) -> Placement:
    """On instances of trn2 with slowed cores."""
    placement = place_on(PlaceOptions("trn2", nodes), ranks)
    spec = attrs.evolve(
        placement.topology.spec, slowed=tuple(one for one in slowed if one.node < nodes)
    )
    topology = build_spec(spec, nodes, placement.topology.lnc)
    return attrs.evolve(placement, topology=topology)


def assert_equal(one: Executable, other: Executable) -> None:
    """The same columns in every queue of every rank."""
    assert one.representatives == other.representatives == one.ranks
    assert one.lowered == other.lowered
    assert one.hbm_bytes == other.hbm_bytes
    for queue, its_like in zip(one.queues, other.queues, strict=True):
        assert queue.name == its_like.name
        for mine, theirs in (
            (queue.sync.wait_sem, its_like.sync.wait_sem),
            (queue.sync.wait_value, its_like.sync.wait_value),
        ):
            np.testing.assert_array_equal(mine, theirs)
        if isinstance(queue, DmaQueue):
            for name in ("peer", "size_bytes", "sources", "target"):
                np.testing.assert_array_equal(getattr(queue, name), getattr(its_like, name))


def of_all_plans(
    program: Program, placement: Placement, forced: dict[str, str], **how: object
) -> Executable:
    """Lowered with candidates that are planned for all ranks from the start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choices, "alike_instances", lambda *_: None)
        return lower(program, placement, forced, **how)


@settings(max_examples=15)
@given(
    st.sampled_from(OPS),
    st.sampled_from((64, 4097, 64 << 8, 64 << 14)),
    st.lists(CORES, max_size=3),
    st.sampled_from(((2, 8), (4, 4), (3, 5))),
)
def test_a_program_is_what_it_is_when_all_ranks_are_planned(op, elements, slowed, where):
    nodes, ranks = where[0], where[0] * where[1]
    program = collective_program(op, ranks, [elements * ranks], repeat=2)
    placement = placed(ranks, nodes, slowed)
    for how in ({}, {"times_only": True}, {"clock": collective_ps}, {"policy": Policy.BEST}):
        found = lower(program, placement, {}, **how)
        expected = of_all_plans(program, placement, {}, **how)
        if found.representatives == found.ranks:
            assert_equal(found, expected)
        assert timed(found).time_ps == timed(expected).time_ps


@settings(max_examples=15)
@given(
    st.sampled_from(OPS[:3]), st.sampled_from((64, 64 << 8, 64 << 16)), st.lists(CORES, min_size=1)
)
def test_the_slowest_of_alike_parts_gives_the_price_of_all(op, elements, slowed):
    program, placement = collective_program(op, 32, [elements]), placed(32, 4, slowed)
    job, groups = (make(program, program.placeholders[0]) for make in (job_of, groups_of))
    whole, reduced = (
        chooser_of(program, placement, {}, seen, policy=Policy.BEST) for seen in (None, 8)
    )
    prices = {
        one.name: one.price.time_ps
        for one in whole.candidates(job, groups, price_all=True)
        if not one.reason
    }
    found = reduced.candidates(job, groups, price_all=True)
    assert {one.name: one.price.time_ps for one in found if not one.reason} == prices
    assert any(one.assumed is not None for one in found), "some stand for all"


@pytest.mark.parametrize("op", OPS)
def test_every_algorithm_gets_the_columns_of_all_ranks(op):
    program = collective_program(op, 16, [4096 * 16], repeat=2)
    slowed = [SlowedCore(0, 0, "drawn", 1, dma_percent=50)]
    for cores in ([], slowed):
        placement = placed(16, 2, cores)
        for name in ALGORITHMS[op]:
            try:
                expected = of_all_plans(program, placement, {op.value: name})
            except LoweringError:  # it does not run there
                continue
            assert_equal(lower(program, placement, {op.value: name}), expected)


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
