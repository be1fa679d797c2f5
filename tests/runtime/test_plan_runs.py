"""The interpreter of plans waits for what a transfer names, and refuses names that mean nothing."""

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_runtime.collectives.plan import (
    IDLE,
    Dependencies,
    Location,
    Plan,
    Round,
    Space,
    Transfer,
    self_peers,
)
from ncc_runtime.lowering.choices import job_of
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.plans.msccl_file import read
from ncc_runtime.plans.msccl_plan import MscclPlan
from tests import msccl_files
from tests.plan_runs import Given, PlanRun
from tests.programs import collective_program


def column(*members: int) -> np.ndarray:
    return np.array(members, np.int32)


def passed_on(after: Dependencies | None) -> Plan:
    """Member 0 sends a word to member 1, who passes it on to member 2 by another lane."""
    at, size = np.zeros(3, np.int64), np.full(3, 4, np.int64)
    result = Location(Space.RESULT, at)
    first = Transfer(column(1, IDLE, IDLE), (Location(Space.OPERAND, at),), result, size)
    second = Transfer(column(IDLE, 2, IDLE), (result,), result, size, lane=1, after=after)
    return Plan("passed-on", 3, (Round((first,)), Round((second,))))


def last_of(plan: Plan, seed: int) -> int:
    """What member 2 has in the end, of a 7 at member 0."""
    operands = [[np.array([7 * (member == 0)], np.int32)] for member in range(3)]
    return int(PlanRun(plan, Given(operands, [1]), seed).results()[2][0][0])


ARRIVED = Dependencies(arrived=(column(IDLE, 0, IDLE),))


def test_a_transfer_waits_for_what_it_names() -> None:
    assert {last_of(passed_on(ARRIVED), seed) for seed in range(20)} == {7}


def test_a_transfer_that_names_nothing_waits_for_nothing() -> None:
    found = {last_of(passed_on(Dependencies()), seed) for seed in range(20)}
    assert 7 in found
    assert len(found) == 2


def test_what_a_member_has_waited_for_it_need_not_name_again() -> None:
    plan = passed_on(ARRIVED)
    (again,) = plan.rounds[1].transfers
    other = Location(Space.RESULT, np.full(3, 4, np.int64))
    third = attrs.evolve(again, lane=2, target=other, after=Dependencies())
    longer = attrs.evolve(plan, rounds=(*plan.rounds, Round((third,))))
    for seed in range(20):
        operands = [[np.array([7, 8], np.int32)] for _ in range(3)]
        results = PlanRun(longer, Given(operands, [2]), seed).results()
        assert results[2][0].tolist() == [7, 7]


@pytest.mark.parametrize(
    ("after", "said"),
    [
        (Dependencies(arrived=(column(IDLE, 1, IDLE),)), "of no earlier round"),
        (Dependencies(sent=(column(IDLE, 0, IDLE),)), "what member 1 does not make"),
        (Dependencies(arrived=(column(IDLE, 9, IDLE),)), "of no earlier round"),
    ],
)
def test_a_name_that_means_nothing_is_refused(after: Dependencies, said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        last_of(passed_on(after), 0)


def test_what_nobody_writes_cannot_be_awaited() -> None:
    plan = passed_on(ARRIVED)
    (second,) = plan.rounds[1].transfers
    own = Transfer(self_peers(3), second.sources, second.target, second.size_bytes, lane=2)
    first = attrs.evolve(plan.rounds[0], transfers=(own,))
    with pytest.raises(AssertionError, match="awaited by member 1, nobody writes to it"):
        last_of(attrs.evolve(plan, rounds=(first, plan.rounds[1])), 0)


FILES = [
    (CollectiveOp.ALL_REDUCE, msccl_files.ring_all_reduce, (4, 2)),
    (CollectiveOp.ALL_REDUCE, msccl_files.halving_doubling_all_reduce, (8,)),
    (CollectiveOp.ALL_REDUCE, msccl_files.hierarchical_all_reduce, (2, 4)),
    (CollectiveOp.ALL_REDUCE, msccl_files.all_pairs_all_reduce, (4,)),
]


@pytest.mark.parametrize(("op", "make", "sizes"), FILES)
@settings(max_examples=4)
@given(elements=st.integers(1, 70), seed=st.integers(0, 999))
def test_a_file_of_msccl_is_right_in_any_order_that_it_allows(
    op: CollectiveOp, make, sizes: tuple[int, ...], elements: int, seed: int
) -> None:
    file = make(*sizes)
    program = collective_program(op, file.gpus, [elements], dtype=DType.S32)
    plan = MscclPlan(read(file.xml().encode()), op).build(job_of(program, program.placeholders[0]))
    assert any(move.after is not None for one in plan.rounds for move in one.transfers)
    values = np.random.default_rng(seed).integers(-99, 99, (file.gpus, elements), np.int32)
    rows = PlanRun(plan, Given([[row] for row in values], [elements]), seed).results()
    for row in rows:
        np.testing.assert_array_equal(row[0], values.sum(0))
