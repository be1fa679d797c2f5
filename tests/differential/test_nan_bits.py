"""Which NaN it is: what only moves elements, or touches their sign, keeps the bits of each."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from tests.reference_runs import run_text

BITS = np.array(
    [[0x7FC00000, 0xFFC00000, 0x7FC00001, 0xFFC12345, 0x7F800001, 0xFF800001, 0x3F800000, 1 << 31]],
    np.uint32,
)

REGIONS = """later {
  a = f32[] parameter(0)
  ROOT b = f32[] parameter(1)
}

same {
  ROOT a = f32[] parameter(0)
}

either {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  first = pred[] compare(a, b), direction=LT, type=TOTALORDER
  ROOT c = f32[] select(first, b, a)
}

negated {
  a = f32[] parameter(0)
  ROOT b = f32[] negate(a)
}

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

yes {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = pred[] constant(true)
}

more {
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  three = s32[] constant(3)
  ROOT p = pred[] compare(i, three), direction=LT
}

step {
  s = (s32[], f32[8]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  v = f32[8] get-tuple-element(s), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  w = f32[8] reverse(v), dimensions={0}
  ROOT t = (s32[], f32[8]) tuple(j, w)
}

stay {
  ROOT v = f32[8] parameter(0)
}

turn {
  v = f32[8] parameter(0)
  ROOT w = f32[8] reverse(v), dimensions={0}
}
"""
SCATTER = (
    "update_window_dims={}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
    "index_vector_dim=1"
)
MOVES = {
    "scatter": f"f32[8] scatter(f, at, u), {SCATTER}, to_apply=later",
    "scatter of a sum": f"f32[8] scatter(f, at, ones), {SCATTER}, to_apply=sum",
    "scatter of the larger": f"f32[8] scatter(f, at, u), {SCATTER}, to_apply=either",
    "map": "f32[8] map(f), dimensions={0}, to_apply=same",
    "map of a sign": "f32[8] map(f), dimensions={0}, to_apply=negated",
    "reduce": "f32[2] reduce(g, zero), dimensions={1}, to_apply=either",
    "reduce of nothing": "f32[8] reduce(none, nan), dimensions={1}, to_apply=sum",
    "reduce-window": "f32[7] reduce-window(f, zero), window={size=2}, to_apply=either",
    "select-and-scatter": "f32[8] select-and-scatter(f, two, nan), window={size=2 stride=4 "
    "pad=0_-2}, select=yes, scatter=later",
    "while": "(s32[], f32[8]) while(start), condition=more, body=step",
    "conditional": "f32[8] conditional(yes, f, f), true_computation=turn, false_computation=stay",
    "select": "f32[8] select(odd, f, turned)",
    "pad": "f32[10] pad(f, nan), padding=1_1",
    "sort": "f32[8] sort(f), dimensions={0}, is_stable=true, to_apply=first",
    "topk": "(f32[4], s32[4]) topk(f), k=4, largest=true",
    "all-to-all": "f32[8] all-to-all(f), replica_groups={{0}}, dimensions={0}",
}


def program(call: str) -> str:
    """One call on what the bits x are as floats, and its result's bits."""
    kind = call.partition(" ")[0]
    floats, get = (kind, "r") if kind[0] != "(" else (call.partition("f32")[2], "part")
    if kind[0] == "(":
        floats = "f32" + floats.partition("]")[0] + "]"
    index = 1 if "while(" in call else 0
    part = f"  part = {floats} get-tuple-element(r), index={index}\n" if kind[0] == "(" else ""
    order = REGIONS + (
        "\nfirst {\n  a = f32[] parameter(0)\n  b = f32[] parameter(1)\n"
        "  ROOT c = pred[] compare(a, b), direction=LT, type=TOTALORDER\n}\n"
    )
    used = [one for one in order.split("\n\n") if f"={one.split()[0]}" in call]
    return (
        "\n\n".join(used)
        + f"""

ENTRY main {{
  x = u32[8] parameter(0)
  f = f32[8] bitcast-convert(x)
  g = f32[2,4] reshape(f)
  u = f32[2] slice(f), slice={{[1:4:2]}}
  two = f32[2] slice(f), slice={{[2:4]}}
  turned = f32[8] reverse(f), dimensions={{0}}
  none = f32[8,0] broadcast(f), dimensions={{0}}
  odd = pred[8] constant({{true, false, true, false, true, false, true, false}})
  at = s32[2,1] constant({{{{4}}, {{6}}}})
  ones = f32[2] constant({{1, 1}})
  zero = f32[] constant(0)
  nan = f32[] constant(-nan(0x400077))
  yes = pred[] constant(true)
  i = s32[] constant(0)
  start = (s32[], f32[8]) tuple(i, f)
  r = {call}
{part}  ROOT bits = {floats.replace("f32", "u32")} bitcast-convert({get})
}}
"""
    )


def ours(text: str, level: int, *inputs: np.ndarray) -> np.ndarray:
    neff = ncc_compiler.compile_text(text, CompileOptions(level=level))
    return ncc_runtime.load(neff).run(list(inputs)).outputs[0]


@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize("name", MOVES)
def test_what_moves_elements_keeps_the_bits_of_every_nan(name: str, level: int) -> None:
    text = program(MOVES[name])
    (wanted,) = run_text(text, BITS)
    if name == "scatter of a sum":  # of the elements that are joined, arithmetic names the NaN
        wanted[0, 4] = 0x7FC00000
    np.testing.assert_array_equal(ours(text, level, BITS), wanted)


def test_a_scatter_leaves_what_it_does_not_touch() -> None:
    wanted = BITS.copy()
    wanted[0, [4, 6]] = BITS[0, [1, 3]]
    np.testing.assert_array_equal(ours(program(MOVES["scatter"]), 1, BITS), wanted)


@pytest.mark.parametrize("op", ["negate", "abs"])
@pytest.mark.parametrize("kind", ["f16", "f32", "f64"])
def test_a_sign_is_one_bit_of_a_nan_too(op: str, kind: str) -> None:
    width = int(kind[1:])
    sign, quiet = 1 << (width - 1), {16: 0x7E00, 32: 0x7FC00000, 64: 0x7FF8 << 48}[width]
    given = [quiet, quiet | sign, quiet | 3, quiet | sign | 3]
    wanted = [one ^ sign if op == "negate" else one & ~sign for one in given]
    text = f"""ENTRY main {{
  x = u{width}[4] parameter(0)
  f = {kind}[4] bitcast-convert(x)
  s = {kind}[4] {op}(f)
  ROOT r = u{width}[4] bitcast-convert(s)
}}
"""
    bits = np.array([given], f"u{width // 8}")
    assert ours(text, 1, bits).tolist() == run_text(text, bits)[0].tolist() == [wanted]


WIDENED = [
    ("bf16", "f32", 0xFF81, 0xFF810000),
    ("bf16", "f64", 0x7FC1, 0x7FF8200000000000),
    ("f16", "f32", 0x7C01, 0x7FC02000),
    ("f16", "f64", 0xFFFF, 0xFFFFFC0000000000),
    ("f32", "f64", 0xFF800001, 0xFFF8000020000000),
    ("f64", "f32", 0xFFF0000000000001, 0xFFC00000),
    ("f64", "f16", 0xFFFFFFFFFFFFFFFF, 0xFE00),
    ("f32", "f16", 0xFF800001, 0xFE00),
    ("f32", "bf16", 0xFFFFFFFF, 0xFFC0),
]


@pytest.mark.parametrize(("source", "target", "given", "wanted"), WIDENED)
def test_a_conversion_keeps_a_nan_as_xla_does(
    source: str, target: str, given: int, wanted: int
) -> None:
    old, new = (int(kind.strip("bf")) for kind in (source, target))
    text = f"""ENTRY main {{
  x = u{old}[] parameter(0)
  f = {source}[] bitcast-convert(x)
  c = {target}[] convert(f)
  ROOT r = u{new}[] bitcast-convert(c)
}}
"""
    bits = np.array([given], f"u{old // 8}")
    assert ours(text, 1, bits).tolist() == run_text(text, bits)[0].tolist() == [wanted]


@pytest.mark.parametrize(
    "call", ["negate(n)", "abs(n)", "add(n, n)", "multiply(n, n)", "divide(n, n)"]
)
def test_a_folded_constant_is_the_nan_that_the_device_gives(call: str) -> None:
    text = f"""ENTRY main {{
  n = f32[2] constant({{-nan, -nan(0x1234)}})
  r = f32[2] {call}
  ROOT b = u32[2] bitcast-convert(r)
}}
"""
    assert ours(text, 0).tolist() == ours(text, 1).tolist()


@pytest.mark.parametrize(("kind", "word"), [("f32", 0xFFC12345), ("f64", 0xFFF8000000012345)])
def test_a_sign_that_changes_in_blocks_keeps_the_bits_of_a_nan(kind: str, word: int):
    text = f"""HloModule m
ENTRY main {{
  a = {kind}[40000] parameter(0)
  ROOT b = {kind}[40000] negate(a)
}}"""
    bits = np.array(word, f"u{int(kind[1:]) // 8}")
    array = np.full((1, 40000), bits).view(f"f{bits.itemsize}")
    model = ncc_runtime.load(ncc_compiler.compile_text(text))
    for checked in (True, False):
        (found,) = model.run([array], clock=False, checked=checked).outputs
        np.testing.assert_array_equal(found.view(bits.dtype), bits ^ (1 << (8 * bits.itemsize - 1)))
