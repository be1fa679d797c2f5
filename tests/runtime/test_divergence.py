"""Predicates that guard collectives: ranks that meet inside agree, or the run says who does not."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.errors import ControlError

SUM = """HloModule m, num_partitions=8
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}
"""
GROUPS = "channel_id=1, replica_groups=[4,2]<=[8], use_global_device_ids=true"
REDUCED = f"all-reduce({{}}), {GROUPS}, to_apply=sum"
BRANCHES = (
    SUM
    + f"""yes {{
  x = f32[2] parameter(0)
  ROOT y = f32[2] {REDUCED.format("x")}
}}
no {{
  x = f32[2] parameter(0)
  ROOT y = f32[2] negate(x)
}}
ENTRY main {{
  p = pred[] parameter(0)
  x = f32[2] parameter(1)
  ROOT choice = f32[2] conditional(p, x, x), true_computation=yes, false_computation=no
}}
"""
)
PERMUTES = BRANCHES.replace(
    REDUCED.format("x"),
    "collective-permute(x), channel_id=1, source_target_pairs={{0,1},{2,3},{4,5},{6,7}}",
)
STATE = "(s32[], s32[], f32[2])"
ROUNDS = (
    SUM
    + f"""below {{
  p = {STATE} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  ROOT c = pred[] compare(i, n), direction=LT
}}
step {{
  p = {STATE} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  x = f32[2] get-tuple-element(p), index=2
  y = f32[2] {REDUCED.format("x")}
  k = s32[] constant(1)
  j = s32[] add(i, k)
  ROOT t = {STATE} tuple(j, n, y)
}}
ENTRY main {{
  z = s32[] constant(0)
  n = s32[] parameter(0)
  x = f32[2] parameter(1)
  t = {STATE} tuple(z, n, x)
  rounds = {STATE} while(t), condition=below, body=step
  ROOT r = f32[2] get-tuple-element(rounds), index=2
}}
"""
)
VALUES = np.arange(16, dtype=np.float32).reshape(8, 2)
PLACES = pytest.mark.parametrize(
    "place",
    [
        {"topology": "trn2.48xlarge"},
        {"topology": "trn1.32xlarge"},
        {"topology": "trn1.32xlarge", "nodes": 2},
    ],
    ids=lambda place: "-".join(map(str, place.values())),
)
LEVELS = pytest.mark.parametrize("level", [0, 2])


def ran(text: str, level: int, place: dict, predicate: np.ndarray) -> np.ndarray:
    neff = ncc_compiler.compile_text(text, CompileOptions(level=level))
    (found,) = ncc_runtime.load(neff, **place).run([predicate, VALUES]).outputs
    return found


@PLACES
@LEVELS
def test_groups_may_take_different_branches(level: int, place: dict) -> None:
    chosen = np.repeat([True, False], 4)
    found = ran(BRANCHES, level, place, chosen)
    sums = VALUES.reshape(4, 2, 2).sum(1).repeat(2, 0)
    np.testing.assert_array_equal(found, np.where(chosen[:, None], sums, -VALUES))


@PLACES
@LEVELS
@pytest.mark.parametrize("text", [BRANCHES, PERMUTES], ids=["all-reduce", "permute"])
def test_members_of_a_group_that_part_at_a_branch_are_named(
    text: str, level: int, place: dict
) -> None:
    chosen = np.array([1, 1, 0, 0, 1, 0, 0, 0], bool)
    with pytest.raises(ControlError, match=r"choice, .* 1 on rank 4 and 0 on rank 5 "):
        ran(text, level, place, chosen)


@PLACES
@LEVELS
def test_groups_may_go_round_as_often_as_they_like(level: int, place: dict) -> None:
    found = ran(ROUNDS, level, place, np.repeat([0, 1, 2, 3], 2).astype(np.int32))
    assert found[:, 0].tolist() == [0, 2, 10, 10, 36, 36, 104, 104]


@PLACES
@LEVELS
def test_members_of_a_group_that_leave_a_loop_apart_are_named(level: int, place: dict) -> None:
    trips = np.array([0, 0, 1, 1, 2, 3, 3, 3], np.int32)
    with pytest.raises(ControlError, match=r"rounds, .* 0 on rank 4 and 1 on rank 5 "):
        ran(ROUNDS, level, place, trips)
