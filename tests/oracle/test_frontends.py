"""StableHLO and protocol buffers, through jaxlib, give the graph that HLO text gives."""

import numpy as np
import pytest

import ncc_runtime
from ncc_compiler.cli import main
from ncc_compiler.driver import compile_file
from tests.oracle.children import run_module

PARTITIONED = ("one.hlo", "one.mlir", "one.mlirbc", "one.portable.mlir", "one.pb", "dump.hlo.pb")
SHARDED = (
    "shardy.mlir",
    "shardy.mlirbc",
    "shardy.pb",
    "shardy.hlo",
    "gspmd.mlir",
    "gspmd.mlirbc",
)
MANUAL = ("manual.mlir", "before.hlo.pb")


@pytest.fixture(scope="session")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("frontends")
    flags = (
        "--xla_force_host_platform_device_count=8 --xla_dump_hlo_as_proto "
        f"--xla_dump_to={folder / 'dump'} --xla_dump_hlo_pass_re=spmd-partitioning"
    )
    run_module("tests.oracle.write_formats", str(folder), flags=flags)
    return folder


@pytest.mark.parametrize("name", PARTITIONED)
def test_every_format_computes_the_same(written, name):
    x = np.random.default_rng(0).standard_normal((8, 4, 6)).astype(np.float32)
    model = ncc_runtime.load(compile_file(written / name), topology="trn2.48xlarge")
    outputs = model.run([x]).outputs
    total = np.tanh(x.sum(0) + np.arange(24, dtype=np.float32).reshape(4, 6))
    np.testing.assert_allclose(outputs[0], np.broadcast_to(total, x.shape), atol=1e-5)
    np.testing.assert_array_equal(outputs[1].ravel(), np.arange(8))


MESHES = """module @two attributes {mhlo.num_partitions = 8 : i32} {
  sdy.mesh @second = <["x"=4, "y"=2]>
  sdy.mesh @first = <["x"=2, "y"=4]>
  func.func public @main(%arg0: tensor<1xf32>) -> tensor<1xf32> {
    %0 = "stablehlo.all_reduce"(%arg0) <{
      channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, use_global_device_ids,
      replica_groups = #stablehlo.replica_group_mesh_axes<mesh = MESH, axes = [AXES]>
    }> ({
    ^bb0(%a: tensor<f32>, %b: tensor<f32>):
      %s = stablehlo.add %a, %b : tensor<f32>
      stablehlo.return %s : tensor<f32>
    }) : (tensor<1xf32>) -> tensor<1xf32>
    return %0 : tensor<1xf32>
  }
}
"""
X, Y = '#stablehlo.axis_ref<name = "x">', '#stablehlo.axis_ref<name = "y">'
MAJOR_Y = '#stablehlo.axis_ref<name = "y", sub_axis_info = (1)2>'
MINOR_Y = '#stablehlo.axis_ref<name = "y", sub_axis_info = (2)2>'
INLINE = (
    '#stablehlo.mesh<axes = [<name = "x", size = 4>, <name = "y", size = 2>], '
    "device_ids = dense<[0, 2, 4, 6, 1, 3, 5, 7]> : tensor<8xi64>>"
)
GROUPS = [
    ("@first", X, [[0, 4], [1, 5], [2, 6], [3, 7]]),
    ("@second", X, [[0, 2, 4, 6], [1, 3, 5, 7]]),
    ("@second", Y, [[0, 1], [2, 3], [4, 5], [6, 7]]),
    ("@first", MAJOR_Y, [[0, 2], [1, 3], [4, 6], [5, 7]]),
    ("@first", f"{X}, {MINOR_Y}", [[0, 1, 4, 5], [2, 3, 6, 7]]),
    (INLINE, Y, [[0, 2], [4, 6], [1, 3], [5, 7]]),
]


@pytest.mark.parametrize(("mesh", "axes", "groups"), GROUPS)
def test_groups_are_of_the_mesh_that_they_name(mesh, axes, groups, tmp_path):
    path = tmp_path / "m.mlir"
    path.write_text(MESHES.replace("MESH", mesh).replace("AXES", axes))
    x = np.arange(8, dtype=np.float32)
    (got,) = ncc_runtime.load(compile_file(path)).run([x[:, None]]).outputs
    sums = {rank: sum(group) for group in groups for rank in group}
    assert got.ravel().tolist() == [sums[rank] for rank in range(8)]


def test_meshes_beside_ops_that_only_the_converter_reads_are_refused(tmp_path, capsys):
    text = MESHES.replace("MESH", "@first").replace("AXES", X)
    text = text.replace("return %0", "%1 = mhlo.copy %0 : tensor<1xf32>\n    return %1", 1)
    text = text.replace("return %1 : tensor<1xf32>", "return %1 : tensor<1xf32>")
    (tmp_path / "m.mlir").write_text(text)
    assert main(["check", str(tmp_path / "m.mlir")]) == 1
    told = capsys.readouterr().err
    assert "m.mlir:3:3: error[input-C2]: a second mesh" in told
    assert "give the .pb or the HLO text" in told


@pytest.mark.parametrize("name", SHARDED)
def test_a_program_with_shardings_is_partitioned(written, name):
    noise = np.random.default_rng(0)
    x, w = (noise.standard_normal(shape).astype(np.float32) for shape in ((8, 8), (8, 4)))
    neff = compile_file(written / name)
    assert neff.program.ranks == 8
    assert [result.shape for result in neff.program.results] == [()]
    run = ncc_runtime.load(neff).run([x, w])
    (total,) = run.result.values()
    np.testing.assert_allclose(total, (x @ w).sum(), rtol=1e-4)
    assert run.collectives


def test_the_ranks_that_somebody_says_must_be_those_of_the_shardings(written, capsys):
    assert main(["check", str(written / "shardy.mlir"), "--ranks", "8"]) == 0
    assert main(["check", str(written / "shardy.mlir"), "--ranks", "4"]) == 1
    assert "the header says 8 ranks, 4 are asked for" in capsys.readouterr().err


@pytest.mark.parametrize("name", MANUAL)
def test_a_function_of_shard_map_is_partitioned(written, name):
    x = np.random.default_rng(0).standard_normal((32, 6)).astype(np.float32)
    run = ncc_runtime.load(compile_file(written / name)).run([x])
    tanh, numbers = run.result.values()
    total = np.tanh(x.reshape(8, 4, 6).sum(0) + np.arange(24, dtype=np.float32).reshape(4, 6))
    np.testing.assert_allclose(tanh, np.tile(total, (8, 1)), atol=1e-5)
    np.testing.assert_array_equal(numbers, np.arange(8))


PYTHON = """module {
  func.func @main(%x: tensor<8xf32> {mhlo.sharding = "{devices=[8]<=[8]}"}) -> tensor<8xf32> {
    %0 = stablehlo.custom_call @CustomSPMDPartitioning(%x) : (tensor<8xf32>) -> tensor<8xf32>
    return %0 : tensor<8xf32>
  }
}
"""


def test_partitioning_by_a_function_of_python_is_refused(tmp_path, capsys):
    (tmp_path / "m.mlir").write_text(PYTHON)
    assert main(["check", str(tmp_path / "m.mlir")]) == 1
    assert "custom_partitioning partitions by a Python function" in capsys.readouterr().err


def test_a_program_that_may_have_been_partitioned_is_refused(written, capsys):
    assert main(["check", str(written / "gspmd.pb")]) == 1
    told = capsys.readouterr().err
    assert "nothing shows that it was partitioned" in told
    assert "XLA_FLAGS=" in told


def test_what_xla_has_optimised_is_taken(written):
    x, w = (np.random.default_rng(0).standard_normal((8, n)).astype(np.float32) for n in (8, 4))
    run = ncc_runtime.load(compile_file(written / "optimised.hlo")).run([x, w])
    np.testing.assert_allclose(run.outputs[0], np.full(8, (x @ w).sum()), rtol=1e-4)


@pytest.mark.parametrize("name", ["one.mlir", "one.mlirbc", "one.pb", "dump.hlo.pb"])
@pytest.mark.parametrize("seed", range(6))
def test_a_damaged_file_is_read_or_refused(written, name, seed, tmp_path, capsys):
    noise = np.random.default_rng(seed)
    data = np.frombuffer((written / name).read_bytes(), np.uint8).copy()
    data[noise.integers(0, len(data), 4)] = noise.integers(0, 256, 4)
    path = tmp_path / name
    path.write_bytes(data[: len(data) // (1 + seed % 3)].tobytes())
    assert main(["check", str(path)]) in (0, 1)
    assert "fault of ours" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("m.pb", b"HloModule m", "failed to deserialize HloModuleProto"),
        ("m.mlir", b"HloModule m", "m.mlir:1:1: error[input-C2]"),
        ("m.mlir", b"module {}", "`main` function"),
        ("m.mlir", b"module {\n  %0 = foo.bar\n}", "m.mlir:2:8: error[input-C2]"),
        ("m.mlirbc", b"ML\xefRgarbage", "error[input-C2]"),
        (
            "m.mlir",
            b"func.func @main(%x: tensor<?xf32>) -> tensor<?xf32> { return %x : tensor<?xf32> }",
            "dynamic dimensions are not supported",
        ),
    ],
)
def test_a_file_of_another_kind_is_refused(name, data, told, tmp_path, capsys):
    (tmp_path / name).write_bytes(data)
    assert main(["check", str(tmp_path / name)]) == 1
    assert told in capsys.readouterr().err


BITS = """func.func @main(%a: tensor<2x{0}>, %b: tensor<2x{1}xi1>)
    -> (tensor<2x{1}xi1>, tensor<2x{0}>) {{
  %0 = stablehlo.bitcast_convert %a : (tensor<2x{0}>) -> tensor<2x{1}xi1>
  %1 = stablehlo.bitcast_convert %b : (tensor<2x{1}xi1>) -> tensor<2x{0}>
  return %0, %1 : tensor<2x{1}xi1>, tensor<2x{0}>
}}
"""


@pytest.mark.parametrize(
    ("kind", "dtype"), [("i64", np.int64), ("ui8", np.uint8), ("f32", np.float32)]
)
def test_an_i1_of_stablehlo_is_one_bit(tmp_path, kind, dtype):
    width = 8 * np.dtype(dtype).itemsize
    (tmp_path / "bits.mlir").write_text(BITS.format(kind, width))
    numbers = np.array([37, -1.5 if dtype is np.float32 else 200]).astype(dtype)
    octets = numbers.view(np.uint8).reshape(2, -1)
    bits = np.unpackbits(octets, axis=1, bitorder="little").astype(bool)
    found = ncc_runtime.load(compile_file(tmp_path / "bits.mlir")).run([numbers, bits]).outputs
    np.testing.assert_array_equal(found[0][0], bits)
    np.testing.assert_array_equal(found[1][0], numbers)
