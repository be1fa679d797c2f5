"""StableHLO that JAX writes computes what jax computes, and its constants come to us as written."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.driver import compile_file, load_text, read_text
from tests.oracle import arrays
from tests.oracle.children import run_module
from tests.oracle.closeness import is_exact

SUBJECTS = ("elementwise", "constants", "products", "folds", "moves", "control")
FORMATS = (".mlir", ".tpu.mlirbc")


@pytest.fixture(scope="session")
def written(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("stablehlo")
    run_module("tests.oracle.write_stablehlo", str(folder))
    return folder


def differs(ours: np.ndarray, theirs: np.ndarray) -> bool:
    """Integers are equal, floats within some units of the last place of the largest."""
    if (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return True
    if is_exact(theirs):
        return not np.array_equal(ours, theirs)
    wide = np.complex128 if theirs.dtype.kind == "c" else np.float64
    a, b = ours.astype(wide), theirs.astype(wide)
    units = 32 * float(ml_dtypes.finfo(theirs.dtype).eps)
    scale = np.abs(b).max(initial=0, where=np.isfinite(b)) if b.size else 0
    return not np.allclose(a, b, rtol=units, atol=units * scale, equal_nan=True)


@pytest.mark.parametrize("suffix", FORMATS)
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_program_of_many_functions_computes_what_jax_computes(subject, suffix, written):
    found = arrays.load(written / f"{subject}.npz")
    model = ncc_runtime.load(compile_file(written / f"{subject}{suffix}"))
    outputs = model.run([x[None] for x in arrays.values(found, "in")]).outputs
    wanted = arrays.values(found, "out")
    assert len(outputs) == len(wanted)
    pairs = enumerate(zip(outputs, wanted, strict=True))
    assert [k for k, (ours, right) in pairs if differs(ours[0], right)] == []


def test_chlo_keeps_ragged_dots_and_high_products_for_us(written):
    for subject, op in (("products", " ragged-dot("), ("elementwise", " mulhi(")):
        assert op in read_text(written / f"{subject}.tpu.mlirbc").text


def test_no_constant_is_folded_by_the_converter(written):
    text = read_text(written / "constants.mlir").text
    assert " convert(%constant" in text
    assert "opt-barrier" not in text


def test_barriers_of_the_program_stay(written):
    assert " opt-barrier(" in read_text(written / "control.mlir").text


NAMES = {
    "f8E3M4": ml_dtypes.float8_e3m4,
    "f8E4M3": ml_dtypes.float8_e4m3,
    "f8E4M3FN": ml_dtypes.float8_e4m3fn,
    "f8E4M3B11FNUZ": ml_dtypes.float8_e4m3b11fnuz,
    "f8E4M3FNUZ": ml_dtypes.float8_e4m3fnuz,
    "f8E5M2": ml_dtypes.float8_e5m2,
    "f8E5M2FNUZ": ml_dtypes.float8_e5m2fnuz,
    "f8E8M0FNU": ml_dtypes.float8_e8m0fnu,
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
}


def one_function(path: Path, kind: str, body: str) -> Path:
    path.write_text(f"func.func @main() -> {kind} {{\n{body}\nreturn %r : {kind}\n}}\n")
    return path


@pytest.mark.parametrize("name", NAMES)
def test_every_value_of_a_narrow_float_comes_through_bit_by_bit(name, tmp_path):
    size = np.dtype(NAMES[name]).itemsize
    raw = np.arange(2 ** (8 * size), dtype=f"u{size}")
    spelt = ",".join(f"0x{number:0{2 * size}X}" for number in raw.tolist())
    kind = f"tensor<{raw.size}x{name}>"
    body = f"%r = stablehlo.constant dense<[{spelt}]> : {kind}"
    text = read_text(one_function(tmp_path / "m.mlir", kind, body)).text
    module = load_text(text)
    root = module.entry_computation.nodes[module.entry_computation.root]
    np.testing.assert_array_equal(root.literal().array.view(raw.dtype), raw)
    (found,) = ncc_runtime.load(ncc_compiler.compile_text(text)).run([]).outputs
    np.testing.assert_array_equal(found[0].view(raw.dtype), raw)


@pytest.mark.parametrize(("name", "width"), [("f32", 32), ("f64", 64)])
def test_wide_floats_come_through_bit_by_bit(name, width, tmp_path):
    draw = np.random.default_rng(width)
    raw = draw.integers(0, 2**width - 1, 4096, np.uint64, endpoint=True)
    raw = raw.astype(f"u{width // 8}")
    raw[:2] = 1, 1 << (width - 1)  # the least subnormal, -0
    exponent = 0xFF << 23 if width == 32 else 0x7FF << 52
    raw[2:4] = exponent | 0x1234, exponent | 1 << (width - 1) | 0x4321  # NaNs that signal
    spelt = ",".join(f"0x{number:0{width // 4}X}" for number in raw.tolist())
    body = f"%r = stablehlo.constant dense<[{spelt}]> : tensor<4096x{name}>"
    path = one_function(tmp_path / "m.mlir", f"tensor<4096x{name}>", body)
    (found,) = ncc_runtime.load(compile_file(path)).run([]).outputs
    np.testing.assert_array_equal(found[0].view(raw.dtype), raw)


ALL_TO_ALL = """module attributes {mhlo.num_partitions = 4 : i32} {
func.func @main(%a: tensor<4x6xf32>, %b: tensor<2x4xbf16>) -> (tensor<8x3xf32>, tensor<4x2xbf16>) {
  %r:2 = "stablehlo.all_to_all"(%a, %b) {
    split_dimension = 1 : i64, concat_dimension = 0 : i64, split_count = 2 : i64,
    channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>,
    replica_groups = dense<[[0, 1], [3, 2]]> : tensor<2x2xi64>
  } : (tensor<4x6xf32>, tensor<2x4xbf16>) -> (tensor<8x3xf32>, tensor<4x2xbf16>)
  return %r#0, %r#1 : tensor<8x3xf32>, tensor<4x2xbf16>
}
}
"""


def test_an_all_to_all_of_several_operands_exchanges_parts_of_each(tmp_path):
    (tmp_path / "m.mlir").write_text(ALL_TO_ALL)
    draw = np.random.default_rng(0)
    a = draw.normal(size=(4, 4, 6)).astype(np.float32)
    b = draw.normal(size=(4, 2, 4)).astype(ml_dtypes.bfloat16)
    model = ncc_runtime.load(compile_file(tmp_path / "m.mlir"), topology="trn2")
    outputs = model.run([a, b]).outputs
    for found, x in zip(outputs, (a, b), strict=True):
        half = x.shape[2] // 2
        for group in ((0, 1), (3, 2)):
            for place, rank in enumerate(group):
                cut = slice(place * half, (place + 1) * half)
                wanted = np.concatenate([x[member][:, cut] for member in group])
                np.testing.assert_array_equal(found[rank], wanted)


SEVERAL = """module attributes {mhlo.num_partitions = 4 : i32} {
func.func @main(%a: tensor<4x6xf32>, %b: tensor<2x4xf32>) -> (TYPES) {
  %r:2 = "stablehlo.all_OP"(%a, %b) REGION {
    channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids,
    MORE replica_groups = dense<[[0, 1], [3, 2]]> : tensor<2x2xi64>
  } : (tensor<4x6xf32>, tensor<2x4xf32>) -> (TYPES)
  return %r#0, %r#1 : TYPES
}
}
"""
SUM = """({
  ^bb0(%x: tensor<f32>, %y: tensor<f32>):
    %s = stablehlo.add %x, %y : tensor<f32>
    stablehlo.return %s : tensor<f32>
  })"""


@pytest.mark.parametrize(
    ("op", "types", "region", "more"),
    [
        ("gather", "tensor<8x6xf32>, tensor<4x4xf32>", "", "all_gather_dim = 0 : i64,"),
        ("reduce", "tensor<4x6xf32>, tensor<2x4xf32>", SUM, ""),
    ],
)
def test_other_collectives_take_several_operands(op, types, region, more, tmp_path):
    text = SEVERAL.replace("OP", op).replace("TYPES", types)
    (tmp_path / "m.mlir").write_text(text.replace("REGION", region).replace("MORE", more))
    draw = np.random.default_rng(0)
    inputs = [draw.normal(size=shape).astype(np.float32) for shape in ((4, 4, 6), (4, 2, 4))]
    outputs = ncc_runtime.load(compile_file(tmp_path / "m.mlir")).run(inputs).outputs
    for found, x in zip(outputs, inputs, strict=True):
        for group in ((0, 1), (3, 2)):
            parts = [x[member] for member in group]
            wanted = np.concatenate(parts) if op == "gather" else parts[0] + parts[1]
            for rank in group:
                np.testing.assert_array_equal(found[rank], wanted)


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        (
            "%s = stablehlo.constant dense<[1]> : tensor<1xi32>\n"
            "%t = stablehlo.constant dense<[3]> : tensor<1xi32>\n"
            "%u = stablehlo.add %s, %s : tensor<1xi32>\n"
            "%v = stablehlo.concatenate %u, %t, dim = 0 : "
            "(tensor<1xi32>, tensor<1xi32>) -> tensor<2xi32>\n"
            "%x = stablehlo.iota dim = 0 : tensor<6xf32>\n"
            "%r = stablehlo.dynamic_reshape %x, %v : "
            "(tensor<6xf32>, tensor<2xi32>) -> tensor<2x3xf32>",
            [[0, 1, 2], [3, 4, 5]],
        ),
        (
            "%s = stablehlo.constant dense<[2, 3]> : tensor<2xi64>\n"
            "%x = stablehlo.constant dense<[1.0, 2.0]> : tensor<2xf32>\n"
            "%r = stablehlo.dynamic_broadcast_in_dim %x, %s, dims = [0] : "
            "(tensor<2xf32>, tensor<2xi64>) -> tensor<2x3xf32>",
            [[1, 1, 1], [2, 2, 2]],
        ),
        (
            "%s = stablehlo.constant dense<[2, 3]> : tensor<2xi32>\n"
            "%r = stablehlo.dynamic_iota %s, dim = 1 : (tensor<2xi32>) -> tensor<2x3xf32>",
            [[0, 1, 2], [0, 1, 2]],
        ),
    ],
)
def test_a_dynamic_op_whose_shape_is_constant_is_a_static_one(body, wanted, tmp_path):
    path = one_function(tmp_path / "m.mlir", "tensor<2x3xf32>", body)
    (found,) = ncc_runtime.load(compile_file(path)).run([]).outputs
    assert found[0].tolist() == wanted


@pytest.mark.parametrize(
    ("op", "kind", "left", "right", "wanted"),
    [
        ("add", "i1", "[true, true, false]", "[true, false, false]", [True, True, False]),
        ("multiply", "i1", "[true, true, false]", "[true, false, false]", [True, False, False]),
        ("divide", "i8", "[7, -128, -7]", "[0, -1, 2]", [-1, -128, -3]),
        ("remainder", "i8", "[7, -128, -7]", "[0, -1, 2]", [7, 0, -1]),
        ("divide", "ui8", "[7, 200, 7]", "[0, 3, 2]", [255, 66, 3]),
        ("add", "f32", "[-0.0, 1.0, 0.0]", "[0.0, 0.0, -0.0]", [0.0, 1.0, 0.0]),
    ],
)
def test_ops_on_constants_mean_what_they_mean_on_data(op, kind, left, right, wanted, tmp_path):
    """jaxlib adds i1 by xor, drops a zero that is added, and ends when it divides by one."""
    body = (
        f"%a = stablehlo.constant dense<{left}> : tensor<3x{kind}>\n"
        f"%b = stablehlo.constant dense<{right}> : tensor<3x{kind}>\n"
        f"%r = stablehlo.{op} %a, %b : tensor<3x{kind}>"
    )
    path = one_function(tmp_path / "m.mlir", f"tensor<3x{kind}>", body)
    (found,) = ncc_runtime.load(compile_file(path)).run([]).outputs
    np.testing.assert_array_equal(found[0], wanted)
    if kind == "f32":
        np.testing.assert_array_equal(np.signbit(found[0]), np.signbit(wanted))


def test_what_cannot_be_negative_is_nan_of_a_negative_number(tmp_path):
    body = (
        "%a = stablehlo.constant dense<[-1.5, 3.0]> : tensor<2xf32>\n"
        "%r = stablehlo.convert %a : (tensor<2xf32>) -> tensor<2xf8E8M0FNU>"
    )
    path = one_function(tmp_path / "m.mlir", "tensor<2xf8E8M0FNU>", body)
    (found,) = ncc_runtime.load(compile_file(path)).run([]).outputs
    np.testing.assert_array_equal(found[0].astype(np.float32), [np.nan, 4.0])


def test_chlo_scans_are_loops(tmp_path):
    (tmp_path / "m.mlir").write_text(
        """func.func @main(
  %x: tensor<4x3xf32>, %i: tensor<3xf32>
) -> (tensor<4x3xf32>, tensor<3xf32>) {
  %r:2 = "chlo.scan"(%x, %i) <{
    dimension = 0 : i64, is_reverse = true, is_associative = true,
    operandSegmentSizes = array<i32: 1, 1>, resultSegmentSizes = array<i32: 1, 1>
  }> ({
  ^bb0(%a: tensor<3xf32>, %b: tensor<3xf32>):
    %s = stablehlo.add %a, %b : tensor<3xf32>
    stablehlo.return %s, %s : tensor<3xf32>, tensor<3xf32>
  }) : (tensor<4x3xf32>, tensor<3xf32>) -> (tensor<4x3xf32>, tensor<3xf32>)
  return %r#0, %r#1 : tensor<4x3xf32>, tensor<3xf32>
}
"""
    )
    x = np.arange(12, dtype=np.float32).reshape(1, 4, 3)
    first = np.array([[10, 20, 30]], np.float32)
    outputs = ncc_runtime.load(compile_file(tmp_path / "m.mlir")).run([x, first]).outputs
    sums = x[:, ::-1].cumsum(1)[:, ::-1] + first[:, None]
    np.testing.assert_array_equal(outputs[0], sums)
    np.testing.assert_array_equal(outputs[1], sums[:, 0])
