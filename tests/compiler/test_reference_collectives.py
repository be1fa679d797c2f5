"""Collectives of the reference: who meets whom, in which order, and what everybody gets."""

import numpy as np
import pytest

from tests.reference_runs import run_text

SUM = """
sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT r = f32[] add(a, b)
}
"""
BOTH = "HloModule m, replica_count=2, num_partitions=2\n"


def program(line: str, operand: str = "f32[]", header: str = "") -> str:
    return f"{header}{SUM}ENTRY main {{\n  x = {operand} parameter(0)\n  ROOT r = {line}\n}}\n"


def column(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ("replica_groups={}", [101, 1010, 101, 1010]),
        ("replica_groups={{0},{1}}", [1, 10, 100, 1000]),
        ("channel_id=1, replica_groups={}", [1111] * 4),
        ("channel_id=1, replica_groups={{0},{1}}", [11, 11, 1100, 1100]),
        (
            "channel_id=1, replica_groups={{0,3},{1,2}}, use_global_device_ids=true",
            [1001, 110, 110, 1001],
        ),
        (
            "channel_id=1, replica_groups=[2,2]<=[2,2]T(1,0), use_global_device_ids=true",
            [101, 1010, 101, 1010],
        ),
        (
            "channel_id=1, replica_groups=mesh['a'=2,'b'=2] {'b'}, use_global_device_ids=true",
            [11, 11, 1100, 1100],
        ),
    ],
)
def test_the_group_mode_says_whom_an_all_reduce_adds(attributes, expected):
    text = program(f"f32[] all-reduce(x), {attributes}, to_apply=sum", header=BOTH)
    [total] = run_text(text, column(1, 10, 100, 1000))
    assert total.tolist() == expected


def test_an_all_gather_follows_the_order_of_the_group():
    text = program("f32[3] all-gather(x), replica_groups={{2,0,1}}, dimensions={0}", "f32[1]")
    [gathered] = run_text(text, column(0, 1, 2)[:, None])
    assert gathered.tolist() == [[2, 0, 1]] * 3


def test_an_all_gather_joins_an_inner_dimension():
    text = program("f32[2,2] all-gather(x), replica_groups={{0,1}}, dimensions={1}", "f32[2,1]")
    [gathered] = run_text(text, np.array([[[1], [2]], [[3], [4]]], np.float32))
    assert gathered[0].tolist() == [[1, 3], [2, 4]]


def test_a_reduce_scatter_leaves_part_k_at_member_k_of_the_group():
    text = program(
        "f32[1] reduce-scatter(x), replica_groups={{1,0}}, dimensions={0}, to_apply=sum", "f32[2]"
    )
    [part] = run_text(text, np.array([[1, 2], [10, 20]], np.float32))
    assert part.tolist() == [[22], [11]]


def test_an_all_to_all_of_an_array_cuts_and_joins_the_same_dimension():
    text = program("f32[1,2] all-to-all(x), replica_groups={{0,1}}, dimensions={1}", "f32[1,2]")
    [mixed] = run_text(text, np.array([[[1, 2]], [[3, 4]]], np.float32))
    assert mixed.tolist() == [[[1, 3]], [[2, 4]]]


def test_an_all_to_all_of_a_tuple_sends_operand_k_to_member_k():
    text = """
ENTRY main {
  x = f32[] parameter(0)
  y = f32[] parameter(1)
  ROOT r = (f32[], f32[]) all-to-all(x, y), replica_groups={{1,0}}
}
"""
    first, second = run_text(text, column(1, 2), column(10, 20))
    assert first.tolist() == [20, 2]
    assert second.tolist() == [10, 1]


def test_a_coalesced_all_reduce_reduces_each_operand_alone():
    text = f"""{SUM}
ENTRY main {{
  x = f32[] parameter(0)
  y = f32[2] parameter(1)
  ROOT r = (f32[], f32[2]) all-reduce(x, y), replica_groups={{{{0,1}}}}, to_apply=sum
}}
"""
    x, y = run_text(text, column(1, 2), np.array([[1, 2], [3, 4]], np.float32))
    assert x.tolist() == [3, 3]
    assert y.tolist() == [[4, 6]] * 2


def test_who_is_no_target_of_a_permute_gets_zero():
    text = program("f32[] collective-permute(x), source_target_pairs={{0,1},{1,2}}")
    [moved] = run_text(text, column(7, 8, 9))
    assert moved.tolist() == [0, 7, 8]


def test_a_permute_with_a_channel_names_partitions_and_without_one_replicas():
    line = "f32[] collective-permute(x), {}source_target_pairs={{{{0,1}}}}"
    x = column(1, 2, 3, 4)
    [across_replicas] = run_text(program(line.format(""), header=BOTH), x)
    [across_partitions] = run_text(program(line.format("channel_id=1, "), header=BOTH), x)
    assert across_replicas.tolist() == [0, 0, 1, 2]
    assert across_partitions.tolist() == [0, 1, 0, 3]


def test_partition_and_replica_ids_are_the_two_digits_of_the_rank():
    text = f"""{BOTH}
ENTRY main {{
  p = u32[] partition-id()
  r = u32[] replica-id()
  ROOT t = (u32[], u32[]) tuple(p, r)
}}
"""
    partition, replica = run_text(text)
    assert partition.tolist() == [0, 1, 0, 1]
    assert replica.tolist() == [0, 0, 1, 1]


def test_a_bfloat16_sum_is_rounded_after_every_member():
    text = program(
        "bf16[] all-reduce(x), replica_groups={{0,1,2}}, to_apply=sum", "bf16[]"
    ).replace("f32", "bf16")
    import ml_dtypes

    [total] = run_text(text, column(256, 1, 1).astype(ml_dtypes.bfloat16))
    assert total.astype(np.float32).tolist() == [256] * 3
