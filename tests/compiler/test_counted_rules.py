"""Rules of collectives whose tables say how many rows they move."""

import pytest

from tests.compiler.reading import complaints, load, messages

HEADER = """HloModule m, replica_count=4
x = f32[12,3] parameter(0)
out = f32[20,3] parameter(1)
odd = f32[18,3] parameter(2)
wide = f32[20,2] parameter(3)
s = f32[] parameter(4)
n = s32[8] parameter(5)
few = s32[6] parameter(6)
long = s64[8] parameter(7)
real = f32[8] parameter(8)
table = u32[3,4] parameter(9)
four = u32[4,4] parameter(10)
whole = s32[20,3] parameter(11)
five = u32[5,4] parameter(12)
"""
LINE = HEADER.count("\n") + 1


def ragged(operands: str, kind: str = "f32[20,3]") -> str:
    return f"{kind} ragged-all-to-all({operands}), replica_groups={{{{0,1,2,3}}}}"


def call(target: str, operands: str, kind: str = "f32[20,3]", config: str = "") -> str:
    more = f", backend_config={{{config}}}" if config else ""
    return f'{kind} custom-call({operands}), custom_call_target="ncc.{target}"{more}'


RIGHT = [
    ragged("x, out, n, n, n, n"),
    ragged("x, out, long, n, n, long"),
    call("all_to_all_v", "x, out, table"),
    call("all_to_all_v", "x, out, four"),
    call("all_to_all_v", "x, odd, four", "f32[18,3]"),
    call("all_gather_v", "x, out, table"),
    call("reduce_scatter_v", "x, odd, table", "f32[18,3]", '"reduction":"average"'),
]
WRONG = [
    (ragged("s, out, n, n, n, n"), "ragged-all-to-all-C7", "s, out"),
    (ragged("x, wide, n, n, n, n", "f32[20,2]"), "ragged-all-to-all-C7", "wide"),
    (ragged("x, whole, n, n, n, n", "s32[20,3]"), "ragged-all-to-all-C7", "whole"),
    (ragged("x, out, n, real, n, n"), "ragged-all-to-all-C8", "real"),
    (ragged("x, out, n, few, n, n"), "ragged-all-to-all-C8", "few"),
    (ragged("x, out, few, few, few, few"), "ragged-all-to-all-C9", "few"),
    (call("all_gather_v", "x, out, four"), "ncc.all_gather_v-C8", "four"),
    (call("all_to_all_v", "x, out, five"), "ncc.all_to_all_v-C8", "five"),
    (call("all_to_all_v", "x, odd, table", "f32[18,3]"), "ncc.all_to_all_v-C9", "odd"),
    (call("all_gather_v", "x, wide, table", "f32[20,2]"), "ncc.all_gather_v-C7", "wide"),
    (call("all_gather_v", "x, odd, table", "f32[18,3]"), "ncc.all_gather_v-C9", "odd"),
    (
        call("reduce_scatter_v", "x, out, table", config='"reduction":"and"'),
        "ncc.reduce_scatter_v-C9",
        '"reduction"',
    ),
]
TWO_KINDS_OF_IDS = "ncc.all_to_all_v-C10"


@pytest.mark.parametrize(("line", "rule", "place"), WRONG)
def test_a_broken_rule_is_found_at_its_place(line: str, rule: str, place: str) -> None:
    column = f"ROOT r = {line}".index(place) + 1
    assert complaints(f"{HEADER}ROOT r = {line}\n") == [f"{LINE}:{column} {rule}"]


@pytest.mark.parametrize("line", RIGHT)
def test_what_fits_is_taken(line: str) -> None:
    module = load(f"{HEADER}ROOT r = {line}\n")
    root = module.entry_computation.nodes[-1]
    assert root.type == module.entry_computation.nodes[root.operands[1]].type


def test_receive_offsets_elsewhere_are_refused_with_advice() -> None:
    line = call("all_gather_v", "x, out, four")
    said = messages(f"{HEADER}ROOT r = {line}\n")
    assert "receive offsets are for ncc.all_to_all_v: here rows land at a slot" in said


def test_receive_offsets_go_with_one_kind_of_ids() -> None:
    header = HEADER.replace("replica_count=4", "replica_count=2, num_partitions=2")
    config = '"replica_groups":[[0,1,2,3]],"channel_id":1,"use_global_device_ids":true'
    line = call("all_to_all_v", "x, out, four", config=config)
    place = f"{LINE}:{f'ROOT r = {line}'.index('four') + 1}"
    assert complaints(f"{header}ROOT r = {line}\n") == [f"{place} {TWO_KINDS_OF_IDS}"]
