"""The command nccrt: what it prints, what it refuses, and with which exit code."""

import json
from pathlib import Path

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.cli import main
from ncc_runtime.neff import container
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.report import summary
from tests.programs import collective_program


@pytest.fixture
def neff(tmp_path: Path) -> str:
    path = tmp_path / "model.neff"
    program = collective_program(CollectiveOp.ALL_REDUCE, 8, [16], dtype=DType.F32)
    container.save(container.pack(program), path)
    return str(path)


def refused(capsys: pytest.CaptureFixture, *arguments: str, code: int = 1) -> str:
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


def test_run_writes_what_numpy_gives(neff: str, tmp_path: Path, capsys):
    values = np.random.default_rng(0).standard_normal((8, 16)).astype(np.float32)
    np.savez(tmp_path / "in.npz", arg0=values)
    out = str(tmp_path / "out.npz")
    assert main(["run", neff, "--inputs", str(tmp_path / "in.npz"), "--outputs", out]) == 0
    assert "mesh       1 of 8" in capsys.readouterr().out
    with np.load(out) as file:
        np.testing.assert_allclose(file["out0"], np.tile(values.sum(0), (8, 1)), rtol=1e-5)


def test_json_is_one_object_with_the_promised_keys(neff: str, capsys):
    assert (
        main(["run", neff, "--on", "trn2,nodes=2", "--algorithm", "all-reduce=ring", "--json"]) == 0
    )
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == 1
    assert (report["topology"], report["nodes"], report["ranks"]) == ("trn2.48xlarge", 2, 8)
    (row,) = report["collectives"]
    assert set(row["bytes_by_transport"]) == {"intra_chip", "neuronlink", "efa"}
    assert sum(row["bytes_by_transport"].values()) == 2 * 7 * 64
    assert row["bytes_by_transport"]["efa"] == 2 * 14 * 8
    described = {"shape": [16], "dtype": "f32", "name": "", "whole_shape": None}
    assert report["outputs"] == {"out0": described}
    model = ncc_runtime.load(neff, "trn2", nodes=2, algorithms={"all-reduce": "ring"})
    again = model.run(values=False)
    assert report["time_us"] == again.time_us
    assert row["time_us"] == again.collectives[0].time_us
    assert report["time_us"] == pytest.approx(row["start_us"] + row["time_us"])  # nothing follows


def test_groups_outside_the_hardwares_rules_run_with_a_warning(neff: str, capsys):
    assert main(["run", neff, "--no-values"]) == 0
    captured = capsys.readouterr()
    assert captured.err.startswith("warning: all-reduce over cores 0-7: 8 ranks take chips 0 and 3")
    assert captured.err.endswith(
        "nearest allowed group: cores 0-3,12-15 [trn2-G2, docs/topology.md#groups]\n"
    )
    assert "mesh       1 of 8" in captured.out


def test_groups_outside_the_hardwares_rules_are_refused_by_strict(neff: str, capsys):
    for command in (["run", neff], ["list", neff], ["diff", neff, "--on", "trn1", "--on", "trn2"]):
        message = refused(capsys, *command, "--strict")
        assert message.startswith("error: refused as by the hardware: all-reduce over cores 0-7: ")
        assert "(trn2-G2: neuronx-distributed-inference, attention_process_groups.py)" in message
        assert message.endswith("nearest allowed group: cores 0-3,12-15\n")
    assert main(["run", neff, "--topology", "trn1", "--strict", "--no-values"]) == 0


def test_json_has_the_verdicts(neff: str, capsys):
    for place, allowed, rule in (("trn2", False, "trn2-G2"), ("trn1", True, "trn1-G3")):
        assert main(["run", neff, "--topology", place, "--no-values", "--json"]) == 0
        (verdict,) = json.loads(capsys.readouterr().out)["verdicts"]
        assert (verdict["id"], verdict["rule"], verdict["allowed"]) == (0, rule, allowed)
        assert verdict["ranks"] == list(range(8))
        nearest = [[0, core] for core in (*range(4), *range(12, 16))]
        assert verdict["nearest"] == ([] if allowed else nearest)


def test_one_input_row_serves_every_rank_and_wider_floats_are_rounded(neff, tmp_path, capsys):
    np.savez(tmp_path / "in.npz", arg0=np.full(16, 0.1, np.float64))
    out = tmp_path / "out.safetensors"
    assert main(["run", neff, "--inputs", str(tmp_path / "in.npz"), "--outputs", str(out)]) == 0
    safetensors = pytest.importorskip("safetensors.numpy")
    assert safetensors.load_file(out)["out0"].shape == (8, 16)


def test_the_seed_decides_missing_inputs(neff: str, tmp_path: Path):
    outputs = []
    for number, seed in enumerate(("1", "1", "2")):
        out = str(tmp_path / f"{number}.npz")
        assert main(["run", neff, "--seed", seed, "--outputs", out]) == 0
        with np.load(out) as file:
            outputs.append(file["out0"].tobytes())
    assert outputs[0] == outputs[1] != outputs[2]


@pytest.mark.parametrize(
    ("place", "where"),
    [
        (["--topology", "trn2"], "intra_chip c0"),
        (["--topology", "trn2", "--placement", "spread"], "neuronlink c0:W>E, c0.E>c1, c1:W>N"),
        (["--topology", "trn2", "--nodes", "8"], "efa n0.efa0>n1.efa0"),
    ],
)
def test_list_shows_where_the_bytes_of_rank_0_go(neff: str, place, where, capsys):
    assert main(["list", neff, *place, "--queue", "cc0.dma0"]) == 0
    assert where in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (["--topology", "inf2", "--nodes", "2"], "no EFA"),
        (["--topology", "trn1.2xlarge", "--nodes", "2"], "no EFA"),
        (["--topology", "trn9"], "trn9"),
        (["--topology", "trn2", "--nodes", "3"], "do not divide equally"),
        (["--inputs", "absent.npz"], "absent.npz"),
        (["--memory", "1KB"], "--no-values"),
    ],
)
def test_what_cannot_be_done_is_one_line_and_exit_code_1(neff: str, arguments, reason, capsys):
    message = refused(capsys, "run", neff, *arguments)
    assert message.startswith("error: ")
    assert message.count("\n") == 1
    assert reason in message


@pytest.mark.parametrize(
    ("arrays", "reason"),
    [
        ({"arg0": np.zeros((8, 17), np.float32)}, "arg0 has shape [8, 17]"),
        ({"arg0": np.zeros((8, 16), np.int32)}, "arg0 is int32"),
        ({"arg0": np.zeros((8, 16), np.float16)}, "arg0 is float16"),
        ({"arg1": np.zeros((8, 16), np.float32)}, "program's 1 parameters"),
        (
            {"x": np.zeros((8, 16), np.float32)},
            "no parameter takes 'x' float32[8, 16]; the program's 1 parameters are arg0 f32[16]",
        ),
    ],
)
def test_wrong_inputs_are_named(neff: str, tmp_path: Path, arrays, reason, capsys):
    np.savez(tmp_path / "in.npz", **arrays)
    assert reason in refused(capsys, "run", neff, "--inputs", str(tmp_path / "in.npz"))


def test_a_file_that_is_no_npz_is_named(neff: str, tmp_path: Path, capsys):
    for content in (b"", b"nonsense", b"PK\x03\x04 broken"):
        (tmp_path / "in.npz").write_bytes(content)
        assert "in.npz" in refused(capsys, "run", neff, "--inputs", str(tmp_path / "in.npz"))


def test_a_message_about_a_wrong_file_names_no_way_of_loading_it_unsafely(neff, tmp_path, capsys):
    np.savez(tmp_path / "objects.npz", arg0=np.array([{}], object))
    np.save(tmp_path / "one.npz.npy", np.zeros(3))
    (tmp_path / "text.npz").write_text("HloModule m")
    for name in ("objects.npz", "one.npz.npy", "text.npz"):
        message = refused(capsys, "run", neff, "--inputs", str(tmp_path / name))
        assert "numpy.savez" in message
        assert "pickle" not in message
        assert message.count("\n") == 1


@pytest.mark.parametrize("name", ["o.txt", "o", "o.npy", "o.NPZ", "-"])
def test_outputs_of_an_unknown_kind_are_refused_before_the_run(
    neff, tmp_path, monkeypatch, capsys, name
):
    def run(*_, **__):
        raise AssertionError("it ran")

    monkeypatch.setattr("ncc_runtime.runtime.Model.run", run)
    monkeypatch.chdir(tmp_path)
    message = refused(capsys, "run", neff, "--outputs", name)
    assert message.startswith(f"error: {name}: name a file that ends in .npz, .safetensors\n")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.neff"]


def test_given_inputs_are_all_of_them_unless_a_seed_says_otherwise(neff, tmp_path, capsys):
    np.savez(tmp_path / "in.npz")
    given = ["run", neff, "--inputs", str(tmp_path / "in.npz")]
    assert "missing inputs: arg0 f32[16]; give them, or a seed" in refused(capsys, *given)
    assert main([*given, "--seed", "0"]) == 0


def test_usage_errors_are_exit_code_2(neff: str, capsys):
    for arguments in (
        ["run", neff, "--threads", "0"],
        ["run", neff, "--memory", "much"],
        ["run", neff, "--on", "trn2", "--nodes", "2"],
        ["run", neff, "--no-values", "--outputs", "o.npz"],
        ["list", neff, "--rank", "8"],
        ["list", neff, "--queue", "cc9"],
        ["walk", neff],
    ):
        assert main(arguments) == 2
        assert capsys.readouterr().err


def test_errors_are_json_when_json_is_asked_for(neff: str, capsys):
    assert main(["run", neff, "--topology", "trn9", "--json"]) == 1
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert "trn9" in error["message"]


def test_outputs_that_cannot_be_written_leave_nothing_behind(neff: str, tmp_path: Path, capsys):
    assert main(["run", neff, "--outputs", str(tmp_path / "absent" / "o.npz")]) == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.neff"]


def test_topology_list_and_show(capsys):
    assert main(["topology", "list"]) == 0
    assert "trn2.48xlarge, trn2" in capsys.readouterr().out
    assert main(["topology", "show", "trn2", "--ranks", "16", "--placement", "spread"]) == 0
    assert "4x4 torus" in capsys.readouterr().out


def test_the_table_of_outputs_ends_and_says_how_many_more_there_are(tmp_path: Path, capsys):
    count = summary.MOST_OUTPUTS + 5
    kinds, names = ", ".join(["f32[1]"] * count), ", ".join(["p"] * count)
    text = f"ENTRY e {{\n p = f32[1] parameter(0)\n ROOT t = ({kinds}) tuple({names})\n}}"
    path = tmp_path / "many.neff"
    ncc_compiler.compile_text(text, CompileOptions(ranks=2)).save(path)
    assert main(["run", str(path), "--no-clock"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("out") for line in lines) == summary.MOST_OUTPUTS + 1  # the title
    assert "… and 5 more outputs" in lines
