"""Functions that take their mesh, stages of pipelines, the best layout, as docs/jax.md has them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.sweep import models
from ncc_runtime.sweep.layouts import layouts
from ncc_runtime.sweep.models import Compilation, compilation_of, compiled, samples_of
from tests import documents

PAGE = documents.ROOT / "docs/jax.md"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("layouts")
    for step in documents.steps(PAGE.read_text()):
        if step.name in ("layers.py", "pipeline.py"):
            (made / step.name).write_text(step.text)
    return made


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    given = [str(Path(sys.executable).with_name(command[0])), *command[1:]]
    environment = {**os.environ, "XLA_FLAGS": ""}
    return subprocess.run(
        given, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def neff(folder: Path, model: str, mesh: str, *options: str) -> Path:
    name = f"{model.replace(':', '-')}-{mesh}{''.join(options)}.neff"
    done = run(folder, "nccc", "compile", model, "--mesh", mesh, "-o", name, *options)
    assert done.returncode == 0, done.stderr
    return folder / name


def test_stages_compute_what_the_whole_model_computes(folder: Path) -> None:
    draw = np.random.default_rng(3)
    shapes = {"down": (1024, 256), "up": (256, 1024)}
    layers = [
        {name: draw.normal(0, 0.05, shape).astype(np.float32) for name, shape in shapes.items()}
        for _ in range(2)
    ]
    x = draw.normal(0, 1, (64, 256)).astype(np.float32)
    whole = ncc_runtime.load(neff(folder, "layers.py:step", "data=1,model=1"))
    arrays = [layers[0]["down"], layers[0]["up"], layers[1]["down"], layers[1]["up"], x]
    loss, *expected = (array[0] for array in whole.run(arrays).outputs)
    parts = [
        (neff(folder, "pipeline.py:step", "pipe=2,data=2,model=1", "--stage", str(stage)), ranks)
        for stage, ranks in ((0, (0, 1)), (1, (2, 3)))
    ]
    model = ncc_runtime.load(parts)
    assert model.verify().proved

    def both(array: np.ndarray) -> np.ndarray:
        return np.stack([array, array])

    given = [both(layers[0]["down"]), both(layers[0]["up"]), x.reshape(2, 32, 256)]
    given += [both(layers[1]["down"]), both(layers[1]["up"])]
    found = model.run(given).outputs
    by_shape = {(k, array.shape[1:]): array for k, array in enumerate(found)}
    updated = [array for (_, shape), array in by_shape.items() if shape in shapes.values()]
    assert len(updated) == len(expected) == 4
    for ours, one in zip(updated, expected, strict=True):
        np.testing.assert_allclose(ours, both(one), rtol=2e-5, atol=1e-6)
    losses = [array for array in found if array.shape == (2,)]
    assert any(np.allclose(each, loss, rtol=1e-5) for each in losses)


def test_a_function_that_takes_its_mesh_is_what_from_jax_makes_of_it(folder: Path) -> None:
    said = run(folder, "nccc", "compile", "layers.py:step", "--mesh", "data=2,model=4", "--json")
    facts = json.loads(said.stdout)
    assert facts["ranks"] == 8
    assert facts["stages"] is None
    assert facts["sources"] == [str(folder / "layers.py")]
    said = run(folder, "nccc", "compile", "pipeline.py:step", "--mesh", "pipe=2", "--json")
    facts = json.loads(said.stdout)
    assert facts["errors"] != []  # an axis that its specs name is not there


def test_without_a_stage_the_first_is_compiled_with_a_warning(folder: Path) -> None:
    mesh = ("--mesh", "pipe=2,data=1,model=1")
    said = run(folder, "nccc", "compile", "pipeline.py:step", *mesh, "--json")
    facts = json.loads(said.stdout)
    assert facts["stages"] == 2
    assert [warning["code"] for warning in facts["warnings"]] == ["stages"]
    assert sorted(facts["sources"]) == [str(folder / "layers.py"), str(folder / "pipeline.py")]
    compile_stages = ("nccc", "compile", "pipeline.py:step", *mesh)
    named = run(folder, *compile_stages, "--stage", "0", "-o", "s.neff")
    assert named.stderr == ""
    assert (folder / "s.neff").read_bytes() == (folder / "step.neff").read_bytes()
    beyond = run(folder, *compile_stages, "--stage", "2")
    assert "gives 2 stages, from 0; there is no stage 2" in beyond.stderr
    whole = ("nccc", "compile", "layers.py:step", "--mesh", "data=1,model=1", "--stage", "0")
    assert "gives no list of stages" in run(folder, *whole).stderr


def swept(folder: Path, *arguments: str) -> Any:
    done = run(folder, "nccrt", "sweep", *arguments, "--json", "-q", "-j", "2")
    assert done.returncode == 0, done.stdout
    return json.loads(done.stdout)


def test_every_layout_has_a_row_whose_time_is_that_of_its_program(folder: Path) -> None:
    given = ["--best", "pipeline.py:step", "--ranks", "4", "--axes", "pipe,data,model"]
    found = swept(folder, *given, "--on", "trn1", "--on", "trn2,nodes=2", "--samples", "16*data")
    assert (found["points"], found["done"], found["refused"]) == (12, 10, 2)
    for row in found["rows"]:
        mesh = row["point"]["mesh"]
        if mesh.startswith("pipe=4"):
            assert "2 layers do not divide over 4 stages" in row["reason"]
            continue
        program, place = row["program"].split(), row["point"]["on"]
        assert len(program) == int(mesh[5])
        done = run(folder, "nccrt", "run", *program, "--on", place, "--no-values", "--json")
        assert json.loads(done.stdout)["time_us"] == row["time_us"]
        assert row["samples"] == 16 * int(mesh.split("data=")[1][0])
    again = swept(folder, *given, "--on", "trn1", "--on", "trn2,nodes=2", "--samples", "16*data")
    assert again == found


def test_a_model_is_compiled_again_if_a_source_has_changed(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("layers.py", "pipeline.py"):
        (tmp_path / name).write_text((folder / name).read_text())
    calls = []
    called = models._nccc

    def counted(model: Compilation, out: Path, stage: int) -> dict[str, Any]:
        calls.append((model.mesh, stage))
        return called(model, out, stage)

    monkeypatch.setattr(models, "_nccc", counted)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XLA_FLAGS", "")
    (point,) = layouts("pipeline.py:step", [2], ["pipe", "data", "model"], [], {})[:1]
    model = compilation_of(point.words)
    first = compiled([model], Path("programs"), 1)
    assert calls == [("pipe=2,data=1,model=1", 0), ("pipe=2,data=1,model=1", 1)]
    assert [word.partition("@")[2] for word in first[model].program] == ["0-0", "1-1"]
    assert compiled([model], Path("programs"), 1) == first
    assert len(calls) == 2
    text = (tmp_path / "layers.py").read_text()
    (tmp_path / "layers.py").write_text(text.replace("0.1 * g", "0.2 * g"))
    assert compiled([model], Path("programs"), 1) == first
    assert len(calls) == 4
    Path(first[model].program[1].partition("@")[0]).unlink()
    compiled([model], Path("programs"), 1)
    assert len(calls) == 6


def test_a_layout_that_does_not_fit_into_memory_is_refused(folder: Path, tmp_path: Path) -> None:
    text = (folder / "layers.py").read_text()
    large = text.replace("WIDTH, BATCH = 2, 256, 64", "WIDTH, BATCH = 8, 12288, 64")
    (tmp_path / "large.py").write_text(large)
    found = swept(tmp_path, "--best", "large.py:step", "--ranks", "8", "--on", "trn1")
    reasons = {row["point"]["mesh"]: row["reason"] for row in found["rows"]}
    assert reasons["data=8,model=1"].startswith("HBM of 16 GiB a rank: parameters 36.0 GiB")
    assert reasons["data=1,model=8"] is None
    assert found["rows"][0]["memory_share"] < 1


def test_samples_are_a_product_of_numbers_and_axes() -> None:
    words = {"mesh": "data=4,model=2"}
    assert samples_of(words) is None
    assert samples_of({**words, "samples": "8*data*model"}) == 64
    assert samples_of({**words, "samples": 512}) == 512
