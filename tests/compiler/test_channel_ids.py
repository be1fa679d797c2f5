"""Channel ids: one below 1 is none, for every collective; others only say that there is one."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.ir.text.printer import print_module
from tests.compiler.reading import complaints, load, messages
from tests.reference_runs import run_text

SUM = "sum { a = f32[] parameter(0)\n  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n"
INPUTS = np.arange(16, dtype=np.float32).reshape(4, 4)
RANKS = np.arange(4).reshape(2, 2)  # [replica, partition]

OPS = {
    "collective-permute": "f32[4] collective-permute(x), source_target_pairs={{{{0,1}}}}{}",
    "collective-broadcast": "f32[4] collective-broadcast(x), replica_groups={{{{1,0}}}}{}",
    "all-to-all": "f32[4] all-to-all(x), replica_groups={{{{1,0}}}}, dimensions={{0}}{}",
    "all-reduce": "f32[4] all-reduce(x), replica_groups={{{{1,0}}}}{}, to_apply=sum",
    "all-gather": "f32[8] all-gather(x), replica_groups={{{{1,0}}}}, dimensions={{0}}{}",
}


def program(
    op: str, channel: str, header: str = "HloModule m, replica_count=2, num_partitions=2\n"
) -> str:
    body = OPS[op].format(channel)
    return f"{header}{SUM}ENTRY main {{\n  x = f32[4] parameter(0)\n  ROOT r = {body}\n}}\n"


def simulated(op: str, team: np.ndarray) -> dict[int, np.ndarray]:
    """What the members of a group [1, 0], or of a pair 0 to 1, of these two ranks get."""
    first, second = (INPUTS[rank] for rank in team)
    found = {
        "collective-permute": (np.zeros(4), first),
        "collective-broadcast": (second, second),
        "all-to-all": ([*second[2:], *first[2:]], [*second[:2], *first[:2]]),
        "all-reduce": (first + second,) * 2,
        "all-gather": ([*second, *first],) * 2,
    }[op]
    return dict(zip(team.tolist(), map(np.asarray, found), strict=True))


@pytest.mark.parametrize("channel", ["", ", channel_id=0", ", channel_id=-9223372036854775808"])
@pytest.mark.parametrize("op", OPS)
def test_a_channel_below_one_is_none(op: str, channel: str) -> None:
    of_rank: dict[int, np.ndarray] = {}
    for replicas in RANKS.T:  # of one partition
        of_rank |= simulated(op, replicas)
    expected = np.stack([of_rank[rank] for rank in range(4)])
    text = program(op, channel)
    (found,) = run_text(text, INPUTS)
    np.testing.assert_array_equal(found, expected)
    model = ncc_runtime.load(ncc_compiler.compile_text(text))
    np.testing.assert_array_equal(model.run([INPUTS], checked=True).outputs[0], expected)


@pytest.mark.parametrize("channel", ["1", "9223372036854775807"])
@pytest.mark.parametrize("op", ["collective-permute", "collective-broadcast", "all-to-all"])
def test_any_other_channel_means_partitions(op: str, channel: str) -> None:
    of_rank: dict[int, np.ndarray] = {}
    for partitions in RANKS:
        of_rank |= simulated(op, partitions)
    expected = np.stack([of_rank[rank] for rank in range(4)])
    text = program(op, f", channel_id={channel}")
    (found,) = run_text(text, INPUTS)
    np.testing.assert_array_equal(found, expected)
    model = ncc_runtime.load(ncc_compiler.compile_text(text))
    np.testing.assert_array_equal(model.run([INPUTS], checked=True).outputs[0], expected)


def test_the_graph_holds_no_channel_below_one() -> None:
    module = load(program("all-reduce", ", channel_id=0"))
    assert "channel_id" not in print_module(module)
    assert load(print_module(module)) == module


@pytest.mark.parametrize("channel", ["", ", channel_id=0", ", channel_id=-1"])
def test_global_ids_need_a_channel_above_zero(channel: str) -> None:
    text = program("all-reduce", f"{channel}, use_global_device_ids=true")
    (told,) = complaints(text)
    assert told.endswith("all-reduce-C5")
    assert "use_global_device_ids=true needs a channel_id of 1 or more" in messages(text)


def test_a_channel_of_more_than_64_bits_is_refused() -> None:
    text = program("all-reduce", ", channel_id=9223372036854775808")
    (told,) = complaints(text)
    assert told.endswith("attribute-C1")
    assert "9223372036854775808 does not fit 64 bits" in messages(text)


def test_without_a_header_a_channel_below_one_does_not_speak_of_partitions() -> None:
    module = load(program("collective-permute", ", channel_id=0", ""))
    assert (module.replica_count, module.num_partitions) == (2, 1)


def test_without_a_header_the_largest_channel_leaves_room_for_others() -> None:
    module = load(f"""{SUM}ENTRY main {{
  x = f32[4] parameter(0)
  y = f32[4] collective-permute(x), channel_id=9223372036854775807, source_target_pairs={{{{0,1}}}}
  ROOT z = f32[4] all-reduce(y), to_apply=sum
}}
""")
    assert module.num_partitions == 2
    channels = [node.attributes["channel_id"] for node in module.entry_computation.nodes[1:]]
    assert channels == [9223372036854775807, 1]


def test_ids_out_of_range_are_told_what_they_name() -> None:
    text = program("collective-permute", ", channel_id=0").replace("{0,1}", "{0,3}")
    assert "without a channel_id of 1 or more the ids are replica numbers" in messages(text)
