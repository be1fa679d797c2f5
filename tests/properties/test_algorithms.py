"""Algorithms give what numpy gives: as plans, in every order that these allow, and executed."""

import functools

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_runtime.collectives.algorithms import hierarchical, tree
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
from ncc_runtime.collectives.plan import Plan, Round
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.options import LoadOptions
from ncc_runtime.placement import PlaceOptions, place_on
from ncc_runtime.runtime import Model, load_on, program_of
from tests.draws_collectives import Case as Drawn
from tests.draws_collectives import cases as programs
from tests.draws_placed_groups import OPERATORS, Case, cases, layout_of, suited
from tests.example_count import examples
from tests.plan_runs import Given, PlanRun
from tests.properties.test_collectives import expected, inputs_of

PAIRS = [pair.name for pair in hierarchical.PAIRS]
FLAT = ("mesh", "single-step-mesh", "rdh")
ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = OPERATORS


def operands_of(case: Case, seed: int, dtype: type = np.int32) -> list[np.ndarray]:
    generator = np.random.default_rng(seed)
    shapes = [(case.layout.members, size) for size in case.sizes]
    if dtype is np.float32:
        return [generator.standard_normal(shape).astype(dtype) for shape in shapes]
    return [generator.integers(-(2**31), 2**31, shape).astype(dtype) for shape in shapes]


def outcome(case: Case, plan: Plan, operands: list[np.ndarray], seed: int) -> list[np.ndarray]:
    """Results by tensor, (members, elements)."""
    by_member = [list(row) for row in zip(*operands, strict=True)]
    given = Given(by_member, case.results, case.in_place)
    rows = PlanRun(plan, given, seed).results()
    return [np.array(column) for column in zip(*rows, strict=True)]


@settings(max_examples=examples(150))
@given(case=cases(), seed=st.integers(0, 999))
def test_every_algorithm_is_right_in_any_order_that_its_plan_allows(case: Case, seed: int) -> None:
    operands = operands_of(case, seed)
    results = outcome(case, case.plan(), operands, seed)
    for operand, result in zip(operands, results, strict=True):
        for member, row in enumerate(result):
            np.testing.assert_array_equal(row, case.wanted(operand, member))


@pytest.mark.parametrize("members", [2, 3, 4])
def test_ranks_of_a_chip_join_shares_of_a_large_buffer_in_four_lanes(members: int) -> None:
    layout = layout_of(("trn2", 1, 2), 4, list(range(members)))
    case = Case(ALL_REDUCE, "direct", layout, (10000, 7))
    plan, operands = case.plan(), operands_of(case, 0)
    assert plan.lanes == {0, 1, 2, 3}
    for operand, result in zip(operands, outcome(case, plan, operands, 0), strict=True):
        for member, row in enumerate(result):
            np.testing.assert_array_equal(row, case.wanted(operand, member))


@settings(max_examples=examples(60))
@given(case=cases(), seed=st.integers(0, 999))
def test_floats_have_the_same_bits_on_all_members_in_any_order(case: Case, seed: int) -> None:
    operands, plan = operands_of(case, seed, np.float32), case.plan()
    first, second = (outcome(case, plan, operands, seed + k) for k in range(2))
    for one, other in zip(first, second, strict=True):
        assert one.tobytes() == other.tobytes()
        if case.op is not REDUCE_SCATTER:
            assert (one.view(np.uint32) == one.view(np.uint32)[0]).all()


@settings(max_examples=examples(40))
@given(drawn=programs(OPERATORS), data=st.data(), seed=st.integers(0, 99))
def test_every_algorithm_gives_what_numpy_gives_when_it_is_executed(
    drawn: Drawn, data: st.DataObject, seed: int
) -> None:
    topology, nodes, placement, lnc = drawn.place
    on, op = PlaceOptions(topology, nodes, placement, lnc), drawn.op

    def loaded(algorithms: dict[str, str]) -> Model:
        return load_on(drawn.program, on, LoadOptions(algorithms=algorithms))

    placed = loaded({}).executable.placement
    names = set.intersection(
        *(set(suited(op, GroupLayout.of(placed, one))) for one in drawn.groups)
    )
    model = loaded({op.value: data.draw(st.sampled_from(sorted(names)))})
    inputs = inputs_of(drawn, seed)
    for run in (model.run(inputs, checked=True), model.run(inputs, shuffle_seed=seed)):
        for operand, result in zip(inputs, run.outputs, strict=True):
            for rank, wanted in enumerate(expected(drawn, operand)):
                np.testing.assert_array_equal(result[rank], wanted)


@pytest.mark.parametrize(
    ("op", "name", "layout", "reason"),
    [
        (ALL_REDUCE, "rdh", layout_of(("inf2", 1, 1), 24), "12 chips, which is no power of two"),
        (ALL_REDUCE, "rdh", layout_of(("trn2", 1, 2), 8, [0, 1, 4]), "different numbers of memb"),
        (ALL_GATHER, "hier.ring.ring", layout_of(("trn2", 1, 2), 8), "all its members are on one"),
        (
            ALL_GATHER,
            "hier.ring.ring",
            layout_of(("trn2", 2, 2), 8, [0, 1, 4]),
            "its instances hold different numbers of members",
        ),
        (
            REDUCE_SCATTER,
            "hier.mesh.ring",
            layout_of(("trn2", 2, 2), 16, [0, 1, 4, 5, 8, 9, 10, 12]),
            "its members are not placed alike on every instance",
        ),
        (ALL_REDUCE, "mesh", layout_of(("trn2", 16, 2), 1024), "256 chips, a mesh has 128"),
        (ALL_REDUCE, "single-step-mesh", layout_of(("trn2", 16, 2), 256), "more than 128 members"),
    ],
)
def test_a_group_that_does_not_suit_is_refused_with_the_reason(
    op: CollectiveOp, name: str, layout: GroupLayout, reason: str
) -> None:
    with pytest.raises(UnsuitedError, match=reason):
        Case(op, name, layout, (layout.members,)).plan()


LOOPED = """
sum { a = s32[] parameter(0)  b = s32[] parameter(1)  ROOT c = s32[] add(a, b) }
more {
  p = (s32[], s32[24]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  trips = s32[] constant(3)
  ROOT less = pred[] compare(i, trips), direction=LT
}
body {
  p = (s32[], s32[24]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = s32[24] get-tuple-element(p), index=1
  one = s32[] constant(1)
  next = s32[] add(i, one)
  total = s32[24] all-reduce(x), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=sum
  part = s32[3] reduce-scatter(total), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=sum,
    dimensions={0}
  all = s32[24] all-gather(part), replica_groups={{0,1,2,3,4,5,6,7}}, dimensions={0}
  changed = s32[24] add(all, x)
  ROOT r = (s32[], s32[24]) tuple(next, changed)
}
ENTRY main {
  x = s32[24] parameter(0)
  zero = s32[] constant(0)
  start = (s32[], s32[24]) tuple(zero, x)
  end = (s32[], s32[24]) while(start), condition=more, body=body
  ROOT out = s32[24] get-tuple-element(end), index=1
}
"""


@functools.cache
def looped() -> Program:
    return program_of(ncc_compiler.compile_text(LOOPED))


@pytest.mark.parametrize("name", [*FLAT, "tree", "double-tree", *PAIRS])
def test_in_a_loop_every_trip_finds_its_buffers_free(name: str) -> None:
    names = {op.value: name if name in ALGORITHMS[op] else "mesh" for op in OPERATORS}
    model = ncc_runtime.load(looped(), "trn2", nodes=2, algorithms=names)
    start = np.random.default_rng(3).integers(-99, 99, (8, 24)).astype(np.int32)
    wanted = start
    for _ in range(3):
        wanted = wanted + 8 * wanted.sum(axis=0, dtype=np.int32)
    for order in ({"checked": True}, {"shuffle_seed": 5}):
        run = model.run([start], clock=False, **order)
        np.testing.assert_array_equal(run.outputs[0], wanted)


def test_a_ring_without_credits_is_caught() -> None:
    case = Case(ALL_REDUCE, "ring", layout_of(("trn2", 1, 2), 8), (64,))
    plan = case.plan()
    rounds = [
        Round(tuple(attrs.evolve(move, credit=0) for move in one.transfers)) for one in plan.rounds
    ]
    with pytest.raises(AssertionError, match="without a credit"):
        outcome(case, attrs.evolve(plan, rounds=tuple(rounds)), operands_of(case, 1), 1)


@pytest.mark.parametrize("name", FLAT)
def test_a_plan_that_waits_too_little_gives_something_else(name: str) -> None:
    case = Case(ALL_REDUCE, name, layout_of(("trn2", 1, 2), 16), (64,))
    plan, operands = case.plan(), operands_of(case, 1)
    at_once = Round(tuple(move for one in plan.rounds for move in one.transfers))
    hurried = attrs.evolve(plan, rounds=(at_once,))
    results = [outcome(case, hurried, operands, seed)[0] for seed in range(5)]
    wanted = case.wanted(operands[0], 0)
    assert any((result != wanted).any() for result in results)


def test_a_tree_keeps_the_members_of_a_chip_together() -> None:
    placement = place_on(PlaceOptions("trn1.32xlarge", placement="spread"), 32)
    layout = GroupLayout.of(placement, range(32))
    chips = [layout.seats[member].chip for member in tree.arrange(layout)]
    assert chips == sorted(chips)
