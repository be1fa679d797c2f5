"""Choice: the placeholders of a program share the semaphores of the ranks."""

import attrs
import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.collectives import semaphores
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.collectives.semaphores import by_rank, semaphores_of
from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering import choices
from ncc_runtime.lowering.choices import ProgramChooser
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.placement import PlaceOptions, place_on
from ncc_runtime.report.explain import explained
from tests.programs import collective_program

A2A = CollectiveOp.ALL_TO_ALL


def regrouped(count: int, stay: int = 0) -> Program:
    """All-to-alls over 128 ranks, each over other pairs of groups of 64; some as the first."""
    draw = np.random.default_rng(5)
    program = collective_program(A2A, 128, [128], repeat=count)
    orders = [draw.permutation(128).reshape(2, 64).tolist() for _ in range(count - stay)]
    orders += [orders[0]] * stay
    placeholders = [
        attrs.evolve(one, groups=tuple(map(tuple, groups)))
        for one, groups in zip(program.placeholders, orders, strict=True)
    ]
    return attrs.evolve(program, placeholders=tuple(placeholders))


def test_a_group_too_large_for_the_cheapest_takes_what_fits() -> None:
    executable = ncc_runtime.load(
        collective_program(A2A, 512, [512]), "trn2", nodes=8, placement="linear"
    ).executable
    assert [one.name for one in executable.lowered] == ["bruck"]


def test_collectives_leave_those_behind_them_what_they_cannot_do_without() -> None:
    program = regrouped(12)
    executable = ncc_runtime.load(program, "trn2", lnc=1).executable
    names = [one.name for one in executable.lowered]
    assert names[0] == "direct"
    assert names[-1] == "bruck"
    assert executable.semaphore_count <= choices.semaphore_limit(program, executable.topology)


def test_collectives_that_share_channels_take_their_semaphores_once() -> None:
    executable = ncc_runtime.load(regrouped(12, stay=10), "trn2", lnc=1).executable
    assert {one.name for one in executable.lowered} == {"direct"}


def test_what_is_forced_without_room_is_refused_with_a_remedy() -> None:
    remedy = "use smaller groups, or another --algorithm all-to-all="
    with pytest.raises(LoweringError, match=rf": all-to-all by direct: rank \d+ .*: {remedy}"):
        ncc_runtime.load(regrouped(12), "trn2", lnc=1, algorithms={"all-to-all": "direct"})


def test_what_nothing_has_room_for_is_refused_with_every_reason(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(choices, "SEMAPHORES_PER_CC_CORE", 1)
    with pytest.raises(LoweringError, match=r"direct: .* would need .*; bruck: .* would need"):
        ncc_runtime.load(collective_program(A2A, 16, [16]), "trn2")


def test_explanations_tell_apart_alike_collectives_by_the_room_they_found() -> None:
    program = regrouped(6)
    executable = ncc_runtime.load(program, "trn2", lnc=1).executable
    names = {}
    for row in explained(executable, {}).rows:
        names.update(dict.fromkeys(row.ids, row.choice.chosen.name))
        for one in row.choice.candidates:
            if one.name != "torus":  # left to --algorithm on this instance
                assert (one.price is None) == ("semaphores, it has 513" in one.reason)
    assert names == {number: one.name for number, one in enumerate(executable.lowered)}
    assert set(names.values()) == {"direct", "bruck"}


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("op", list(CollectiveOp))
def test_every_algorithm_takes_the_semaphores_it_is_counted_with(
    op: CollectiveOp, nodes: int
) -> None:
    pairs = ((0, 3), (1, 1), (2, 9)) if op is CollectiveOp.PERMUTE else ()
    groups = (tuple(range(8)),) if op is CollectiveOp.BROADCAST else ()  # others are outside
    sizes = [] if op is CollectiveOp.BARRIER else [1 << 16]
    program = collective_program(op, 16, sizes, pairs=pairs, groups=groups)
    placement = place_on(PlaceOptions("trn2", nodes=nodes), 16)
    for name in ALGORITHMS[op]:
        try:
            (one,) = ProgramChooser(program, placement, {op.value: name}).choose()
        except LoweringError:
            continue  # unsuited to this placement
        teams = [(team.plan, team.ranks) for team in one.replica_groups]
        counted = by_rank(semaphores_of(program.placeholders[0].stream, 16, teams), 16)
        executable = ncc_runtime.load(
            program, "trn2", nodes=nodes, algorithms={op.value: name}
        ).executable
        assert counted.max() + len(program.semaphores) == executable.semaphore_count, name


@pytest.mark.parametrize("name", ["ring", "hier.ring.ring"])
def test_semaphores_are_the_same_however_many_pairs_are_counted_together(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 16, [64])
    placement = place_on(PlaceOptions(nodes=2), program.ranks)
    (chosen,) = ProgramChooser(program, placement, {"all-reduce": name}).choose()
    teams = [(team.plan, team.ranks) for team in chosen.replica_groups]
    expected = semaphores_of(0, 16, teams)
    monkeypatch.setattr(semaphores, "_BATCH", 1)
    np.testing.assert_array_equal(semaphores_of(0, 16, teams), expected)
    assert len(expected) > 16
