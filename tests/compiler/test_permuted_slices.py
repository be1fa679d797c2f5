"""Permutes that move slices of their input into their output, against a simulation in numpy."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.ir.text.printer import print_module
from ncc_compiler.options import CompileOptions
from tests.compiler.reading import complaints, load, messages
from tests.reference_runs import run_text

HEADER = "HloModule m, num_partitions=4\n"
CHAIN, RING = ((0, 1), (1, 2), (3, 0)), ((0, 1), (1, 2), (2, 3), (3, 0))
X = np.arange(4 * 3 * 4, dtype=np.float32).reshape(4, 3, 4) + 1
Y = -np.arange(4 * 5 * 6, dtype=np.float32).reshape(4, 5, 6) - 1
AT = np.array([[0, 1, 2, 3], [2, 0, 1, 1], [1, 2, 0, 4], [-3, 9, 9, -1]], np.int32)
"""Row and column of the slice in the input, and in the output, on each rank."""


def permuted(pairs: tuple[tuple[int, int], ...], *windows: tuple[int, int]) -> np.ndarray:
    """Windows of these sizes, at the starts `AT`, one below the other in reverse."""
    result = Y.copy()
    for source, target in pairs:
        for down, (rows, columns) in enumerate(windows):
            from_row, from_column = AT[source, :2] + [down, 0]
            to_row, to_column = AT[target, 2:] - [down, 0]
            from_row, from_column = np.clip([from_row, from_column], 0, [3 - rows, 4 - columns])
            to_row, to_column = np.clip([to_row, to_column], 0, [5 - rows, 6 - columns])
            part = X[source, from_row : from_row + rows, from_column : from_column + columns]
            result[target, to_row : to_row + rows, to_column : to_column + columns] = part
    return result


STARTS = """
  x = f32[3,4] parameter(0)
  y = f32[5,6] parameter(1)
  at = s32[4] parameter(2)
  one = s32[] constant(1)
  a0 = s32[1] slice(at), slice={[0:1]}
  a1 = s32[1] slice(at), slice={[1:2]}
  a2 = s32[1] slice(at), slice={[2:3]}
  a3 = s32[1] slice(at), slice={[3:4]}
  b0 = s32[] reshape(a0)
  b1 = s32[] reshape(a1)
  b2 = s32[] reshape(a2)
  b3 = s32[] reshape(a3)
  c0 = s32[] add(b0, one)
  c2 = s32[] subtract(b2, one)
  i = (s32[], s32[]) tuple(b0, b1)
  o = (s32[], s32[]) tuple(b2, b3)
  i2 = (s32[], s32[]) tuple(c0, b1)
  o2 = (s32[], s32[]) tuple(c2, b3)
"""


def program(lines: str, header: str = HEADER) -> str:
    return f"{header}ENTRY main {{{STARTS}{lines}\n}}\n"


def along(pairs: tuple[tuple[int, int], ...], sizes: str) -> str:
    inner = ",".join(f"{{{source},{target}}}" for source, target in pairs)
    return f"channel_id=1, source_target_pairs={{{inner}}}, slice_sizes={sizes}"


def agrees(text: str, *expected: np.ndarray) -> None:
    """The reference and every level of the compiler give what the simulation says."""
    found = [run_text(text, X, Y, AT)]
    for level in (0, 1, 2):
        neff = ncc_compiler.compile_text(text, CompileOptions(level=level))
        model = ncc_runtime.load(neff, "trn2", nodes=2, placement="spread" if level else "linear")
        found.append(list(model.run([X, Y, AT], checked=True).outputs))
    for outputs in found:
        for one, wanted in zip(outputs, expected, strict=True):
            np.testing.assert_array_equal(one, wanted)


@pytest.mark.parametrize("pairs", [CHAIN, RING, ()])
def test_a_slice_goes_from_the_input_into_the_output(pairs: tuple[tuple[int, int], ...]) -> None:
    """Starts beside an array are moved inside; who is no target keeps its output."""
    line = f"  ROOT z = f32[5,6] collective-permute(x, y, i, o), {along(pairs, '{{2,3}}')}"
    agrees(program(line), permuted(pairs, (2, 3)))


def test_several_slices_of_one_array_go_at_once() -> None:
    lines = f"""  is = ((s32[], s32[]), (s32[], s32[])) tuple(i, i2)
  os = ((s32[], s32[]), (s32[], s32[])) tuple(o, o2)
  ROOT z = f32[5,6] collective-permute(x, y, is, os), {along(CHAIN, "{{1,3},{2,2}}")}"""
    text = program(lines)
    agrees(text, permuted(CHAIN, (1, 3), (2, 2)))
    (placeholder,) = ncc_compiler.compile_text(text).program.placeholders
    assert len(placeholder.operands) == 2


def test_tuples_of_arrays_have_slices_of_each() -> None:
    """The first array has one slice, the second two."""
    kind = "((s32[], s32[]), ((s32[], s32[]), (s32[], s32[])))"
    lines = f"""  xs = (f32[3,4], f32[3,4]) tuple(x, x)
  ys = (f32[5,6], f32[5,6]) tuple(y, y)
  i3 = ((s32[], s32[]), (s32[], s32[])) tuple(i, i2)
  o3 = ((s32[], s32[]), (s32[], s32[])) tuple(o, o2)
  is = {kind} tuple(i, i3)
  os = {kind} tuple(o, o3)
  z = (f32[5,6], f32[5,6]) collective-permute(xs, ys, is, os), {along(CHAIN, "{{2,3},{1,3},{2,2}}")}
  ROOT w = (f32[5,6], f32[5,6]) opt-barrier(z)"""
    agrees(program(lines), permuted(CHAIN, (2, 3)), permuted(CHAIN, (1, 3), (2, 2)))


def test_a_start_gives_the_input_and_the_output() -> None:
    attributes = along(CHAIN, "{{2,3}}")
    kind = "(f32[3,4], f32[5,6], u32[], u32[])"
    lines = f"""  s = {kind} collective-permute-start(x, y, i, o), {attributes}
  z = f32[5,6] collective-permute-done(s)
  w = f32[3,4] get-tuple-element(s), index=0
  ROOT q = (f32[5,6], f32[3,4]) tuple(z, w)"""
    agrees(program(lines), permuted(CHAIN, (2, 3)), X)


def test_a_start_of_tuples_gives_both() -> None:
    two, other = "(f32[3,4], f32[3,4])", "(f32[5,6], f32[5,6])"
    kind = "((s32[], s32[]), (s32[], s32[]))"
    attributes = along(CHAIN, "{{2,3},{1,1}}")
    lines = f"""  xs = {two} tuple(x, x)
  ys = {other} tuple(y, y)
  is = {kind} tuple(i, i2)
  os = {kind} tuple(o, o)
  s = ({two}, {other}, u32[]) collective-permute-start(xs, ys, is, os), {attributes}
  d = {other} collective-permute-done(s)
  ROOT z = f32[5,6] get-tuple-element(d), index=0"""
    agrees(program(lines), permuted(CHAIN, (2, 3)))


def test_without_a_channel_replicas_are_targets() -> None:
    header = "HloModule m, replica_count=2, num_partitions=2\n"
    attributes = "source_target_pairs={{1,0}}, slice_sizes={{2,3}}"
    line = f"  ROOT z = f32[5,6] collective-permute(x, y, i, o), {attributes}"
    agrees(program(line, header), permuted(((2, 0), (3, 1)), (2, 3)))


def test_the_text_is_printed_as_it_is_read() -> None:
    line = f"  ROOT z = f32[5,6] collective-permute(x, y, i, o), {along(CHAIN, '{ {2, 3} }')}"
    module = load(program(line))
    assert "slice_sizes={{2,3}}" in print_module(module)
    assert load(print_module(module)) == module


GOOD = f"  ROOT z = f32[5,6] collective-permute(x, y, i, o), {along(CHAIN, '{{2,3}}')}"
WRONG = [  # what is replaced, by what, the rule and a part of what is told
    ("(x, y, i, o)", "(x, y, i)", "C4", "3 operands with slice_sizes"),
    ("(x, y, i, o)", "(x, at, i, o)", "C4", "the input is f32[3,4], the output s32[4]"),
    ("(x, y, i, o)", "(i, o, i, o)", "C5", "starts are s32[]"),
    ("(x, y, i, o)", "(x, o, i, o)", "C4", "the output (s32[], s32[])"),
    ("(x, y, i, o)", "(x, y, b0, o)", "C5", "starts are s32[]"),
    ("(x, y, i, o)", "(x, y, at, at)", "C5", "starts are s32[4]"),
    ("{{2,3}}", "{{2,3},{1,1}}", "C6", "2 slice sizes for 1 slices"),
    ("{{2,3}}", "{{2}}", "C6", "a slice of {2} does not fit in f32[3,4]"),
    ("{{2,3}}", "{{4,4}}", "C6", "a slice of {4,4} does not fit in f32[3,4]"),
    (", slice_sizes={{2,3}}", "", None, "operand 2 of collective-permute is (s32[], s32[])"),
]


@pytest.mark.parametrize(("part", "other", "rule", "told"), WRONG)
def test_a_broken_rule_is_told(part: str, other: str, rule: str | None, told: str) -> None:
    assert part in GOOD
    text = program(GOOD.replace(part, other))
    codes = {line.split()[1] for line in complaints(text)}
    assert codes == {f"collective-permute-{rule}" if rule else "op-C4"}
    assert told in messages(text)


def test_starts_are_as_many_as_dimensions() -> None:
    lines = f"  i9 = (s32[]) tuple(b0)\n{GOOD.replace('(x, y, i, o)', '(x, y, i9, i9)')}"
    assert "collective-permute-C5" in messages(program(lines))


@pytest.mark.parametrize("sizes", ["{2,3}", "{{2,a}}", "{{2,,3}}", "{{-1,2}}"])
def test_sizes_that_are_none_are_told(sizes: str) -> None:
    (told,) = complaints(program(GOOD.replace("{{2,3}}", sizes)))
    assert told.endswith("attribute-C1")
