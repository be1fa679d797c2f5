"""The pass that brings collectives to chunks that are byte ranges."""

import pytest

from ncc_compiler.ir.verify import verify
from ncc_compiler.passes.expand_collectives import ExpandCollectives
from tests.compiler.small_modules import SUM, entry_node, entry_ops, load

COLLECTIVES_ON_A_DIMENSION = {
    "all-gather": "%r = f32[2,12] all-gather(%x), dimensions={1}, channel_id=1, "
    "replica_groups={{0,1,2,3}}, use_global_device_ids=true",
    "reduce-scatter": "%r = f32[2,1] reduce-scatter(%w), dimensions={1}, to_apply=%sum, "
    "replica_groups={{0,1,2,3}}, channel_id=1, use_global_device_ids=true",
    "all-to-all": "%r = f32[2,4] all-to-all(%w), dimensions={1}, channel_id=1, "
    "replica_groups={{0,1,2,3}}",
}


@pytest.mark.parametrize(
    ("op", "transposes"), [("all-gather", 1), ("reduce-scatter", 1), ("all-to-all", 2)]
)
def test_an_inner_dimension_is_brought_to_the_front(op, transposes):
    module = load(
        "%x = f32[2,3] parameter(0)",
        "%w = f32[2,4] parameter(1)",
        COLLECTIVES_ON_A_DIMENSION[op],
        before=SUM,
    )
    expanded = ExpandCollectives().run(module)
    assert entry_node(expanded, op).attributes["dimensions"] == (0,)
    assert entry_ops(expanded).count("transpose") == transposes
    assert verify(expanded) == ()


def test_a_leading_dimension_of_ones_needs_no_move():
    module = load(
        "%x = f32[1,3,2] parameter(0)",
        "%r = f32[1,12,2] all-gather(%x), dimensions={1}, channel_id=1, "
        "replica_groups={{0,1,2,3}}, use_global_device_ids=true",
    )
    assert ExpandCollectives().run(module) == module


def test_an_all_to_all_of_a_tuple_becomes_one_of_an_array():
    module = load(
        "%x = f32[3] parameter(0)",
        "%y = f32[3] parameter(1)",
        "%r = (f32[3], f32[3]) all-to-all(%x, %y), replica_groups={{0,1},{2,3}}, channel_id=1",
    )
    expanded = ExpandCollectives().run(module)
    assert entry_node(expanded, "all-to-all").attributes["dimensions"] == (0,)
    assert str(entry_node(expanded, "all-to-all").type) == "f32[2,3]"
    assert verify(expanded) == ()


def test_operands_of_two_element_types_become_two_collectives():
    module = load(
        "%x = f32[2,3] parameter(0)",
        "%y = s32[2,3] parameter(1)",
        "%z = f32[2] parameter(2)",
        "%r = (f32[2,3], s32[2,3], f32[2]) collective-permute(%x, %y, %z), channel_id=1, "
        "source_target_pairs={{0,1},{1,0}}",
    )
    expanded = ExpandCollectives().run(module)
    permutes = [node for node in expanded.entry_computation.nodes if "permute" in node.op]
    assert [str(node.type) for node in permutes[:2]] == ["(f32[2,3], f32[2])", "s32[2,3]"]
    assert verify(expanded) == ()
