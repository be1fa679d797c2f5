"""StableHLO and protocol buffers, through jaxlib, give the graph that HLO text gives."""

import numpy as np
import pytest

import ncc_runtime
from ncc_compiler.cli import main
from ncc_compiler.driver import compile_file
from tests.oracle.children import run_module

PARTITIONED = ("one.hlo", "one.mlir", "one.mlirbc", "one.portable.mlir", "one.pb", "dump.hlo.pb")
ANNOTATED = (
    "shardy.mlir",
    "shardy.mlirbc",
    "shardy.pb",
    "gspmd.mlir",
    "gspmd.mlirbc",
    "gspmd.pb",
    "manual.mlir",
    "before.hlo.pb",
)


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


@pytest.mark.parametrize("name", ANNOTATED)
def test_a_program_that_was_never_partitioned_is_refused(written, name, capsys):
    assert main(["check", str(written / name)]) == 1
    told = capsys.readouterr().err
    assert "partition" in told
    assert "XLA_FLAGS=" in told


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
