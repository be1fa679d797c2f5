"""`nccrt stale` and `nccc compile --partial-all-reduce`: tables, pictures, refusals."""

import json
from pathlib import Path

import numpy as np
import pytest

import ncc_compiler.cli
import ncc_runtime
import ncc_runtime.cli

ROOT = Path(__file__).parents[2]
MODEL = str(ROOT / "ir_examples/backup_workers.ir")
LATE = "rank * late by exponential(20us)"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("stale")
    for late in ("drop", "next"):
        words = ["compile", MODEL, "--partial-all-reduce", late, "-o", f"{made}/{late}.neff"]
        assert ncc_compiler.cli.main(words) == 0
    assert ncc_compiler.cli.main(["compile", MODEL, "-o", f"{made}/plain.neff"]) == 0
    mlp = str(ROOT / "tests/data/hlo/mlp_train_dp2_tp4.hlo")
    words = ["compile", mlp, "--partial-all-reduce", "drop", "-o", f"{made}/mlp.neff", "-q"]
    assert ncc_compiler.cli.main(words) == 0
    return made


def nccrt(folder: Path, program: str, *words: str) -> int:
    return ncc_runtime.cli.main(["stale", str(folder / f"{program}.neff"), *words])


def test_the_object_says_what_the_table_says(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--first", "14,8", "--steps", "4", "--draw", "arg2", "--fault", LATE]
    capsys.readouterr()
    assert nccrt(folder, "next", *words, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["first"] for row in found["trainings"]] == [16, 14, 8]
    whole, most, half = found["trainings"]
    assert len(whole["losses"]) == len(whole["times_us"]) == 4
    assert whole["counted"] == 1.0
    assert most["counted"] == pytest.approx(14 / 16)
    assert half["counted"] == pytest.approx(0.5)
    assert whole["median_us"] > most["median_us"] > half["median_us"] > found["undisturbed_us"]
    forms = [row["closed_form_us"] for row in found["trainings"]]
    assert forms[0] == pytest.approx(
        found["undisturbed_us"] + 20 * sum(1 / k for k in range(1, 17)), rel=1e-9
    )
    assert whole["distance"] == 0.0 < most["distance"] < half["distance"] < 0.1
    assert found["target_loss"] == whole["losses"][-1]
    assert nccrt(folder, "next", *words) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1] == "16 workers of 1 rank; late gradients are added in the next step"
    assert lines[2] == f"4 steps, seeds 0 and up: {LATE}"
    table = {row.split()[0]: row.split() for row in lines[4:7]}
    for row in found["trainings"]:
        assert float(table[str(row["first"])][1]) == pytest.approx(row["median_us"], abs=1e-3)


def test_faults_come_from_a_file_as_well(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "late.toml").write_text(f'[[fault]]\nwhat = "{LATE}"\n')
    words = ["--first", "14", "--steps", "2", "--no-values", "--json"]
    found = []
    for given in (["--fault", LATE], ["--faults", f"{folder}/late.toml"]):
        assert nccrt(folder, "next", *words, *given) == 0
        found.append(json.loads(capsys.readouterr().out)["trainings"])
    assert found[0] == found[1]


def test_the_same_words_give_the_same_picture(folder: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ["--first", "12", "--steps", "3", "--draw", "arg2", "--fault", LATE]
    for name in ("a", "b"):
        assert nccrt(folder, "drop", *words, "--plot", f"{folder}/{name}.svg") == 0
    assert (folder / "a.svg").read_bytes() == (folder / "b.svg").read_bytes()
    assert nccrt(folder, "drop", *words, "--no-values", "--plot", f"{folder}/c.png") == 2
    times = ["--first", "12", "--steps", "3", "--no-values"]
    assert nccrt(folder, "drop", *times, "--plot", f"{folder}/c.png") == 0
    assert (folder / "c.png").read_bytes().startswith(b"\x89PNG")


def test_inputs_and_batches_come_from_files(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draw = np.random.default_rng(0)
    start = {
        "arg0": draw.normal(size=(32, 128)).astype(np.float32),
        "arg1": draw.normal(size=(128, 8)).astype(np.float32),
    }
    np.savez(folder / "start.npz", **start)
    np.savez(folder / "x.npz", arg2=draw.normal(size=(2, 16, 64, 32)).astype(np.float32))
    words = ["--inputs", f"{folder}/start.npz", "--batches", f"{folder}/x.npz"]
    words += ["--first", "15", "--steps", "3", "--loss", "out0", "--target", "5", "--json"]
    capsys.readouterr()
    assert nccrt(folder, "drop", *words) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["target_loss"] == 5.0
    assert found["trainings"][0]["losses"] == found["trainings"][1]["losses"]  # nobody is late


@pytest.mark.parametrize(
    ("program", "words", "code", "message"),
    [
        ("plain", "--first 3", 1, "has no partial all-reduces: compile it with nccc compile"),
        ("drop", "--first 17 --no-values", 1, "the first 17 of 16 workers are none to take"),
        ("drop", "--first 15 --no-values --bound 1", 1, "a bound is for gradients that"),
        ("mlp", "--first 1 --steps 1", 1, "nothing says which outputs the next step takes"),
        ("drop", "--first 15 --loss accuracy", 1, "'accuracy' is no output with one float"),
        ("drop", "--first 0", 2, "'0' are no numbers such as 64,62,60"),
        ("drop", "--first 3,3", 2, "has a number twice"),
        ("drop", "--first 3 --draw arg2 --no-values", 2, "leaves nothing to do for --draw"),
        ("drop", "--first 3 --plot a.pdf", 2, "does not end in .svg or .png"),
    ],
)
def test_what_does_not_fit_is_refused(
    folder: Path,
    program: str,
    words: str,
    code: int,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert nccrt(folder, program, *words.split()) == code
    assert message in capsys.readouterr().err


def test_faults_that_are_none_are_wrong_usage(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nccrt(folder, "drop", "--first", "3", "--fault", "rank * sad by 3") == 2
    said = capsys.readouterr().err
    assert "--fault" in said
    assert "sad" in said


def test_collectives_that_still_wait_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mlp = str(ROOT / "tests/data/hlo/mlp_train_dp2_tp4.hlo")
    words = ["compile", mlp, "--partial-all-reduce", "drop", "-o", str(tmp_path / "mlp.neff")]
    assert ncc_compiler.cli.main(words) == 0
    said = capsys.readouterr().err
    assert "1 collective waits for late ranks of their groups, the first is all-reduce" in said
    assert "only 3 are partial" in said


def test_a_loss_that_is_no_number_is_null(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = ncc_runtime.load(folder / "drop.neff", "trn2").executable.program
    shape = program.tensors[program.inputs[0]].shape
    np.savez(tmp_path / "in.npz", arg0=np.full(shape, np.nan, np.float32))
    words = [
        "--first",
        "12",
        "--steps",
        "2",
        "--draw",
        "arg2",
        "--inputs",
        str(tmp_path / "in.npz"),
    ]
    capsys.readouterr()
    assert nccrt(folder, "drop", *words, "--json") == 0
    said = capsys.readouterr().out
    assert "NaN" not in said
    found = json.loads(said)
    assert found["target_loss"] is None
    assert found["trainings"][1]["losses"] == [None, None]
    assert nccrt(folder, "drop", *words, "--target", "nan") == 2
    assert "nan is no loss" in capsys.readouterr().err
