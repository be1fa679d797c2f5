"""nccc compile FILE.py:FUNCTION, from a program of JAX to its values."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import ncc_runtime

PROGRAM = """
import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P

print("devices", jax.device_count())


def loss(weights, inputs):
    return jnp.mean(jnp.tanh(inputs @ weights["up"]) ** 2)


args = {"up": jnp.ones((8, 4))}, jnp.ones((16, 8))


def step():
    mesh = jax.make_mesh((8,), ("data",))
    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    return jax.jit(jax.value_and_grad(loss), in_shardings=(whole, rows)), args


def by_keywords():
    return loss, args, {"mesh": {"data": 4}, "in_shardings": (None, P("data"))}


def everywhere():
    mesh = jax.make_mesh((jax.device_count(),), ("data",))
    inputs = jax.ShapeDtypeStruct((128, 8), jnp.float32, sharding=NamedSharding(mesh, P("data")))
    return loss, (args[0], inputs)


lowered = jax.jit(loss).lower(*args)
"""


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("python_files")
    (folder / "train.py").write_text(PROGRAM)
    return folder


def nccc(folder: Path, *arguments: str, flags: str = "") -> subprocess.CompletedProcess[str]:
    command = [str(Path(sys.executable).with_name("nccc")), *arguments]
    environment = {**os.environ, "XLA_FLAGS": flags}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize(
    ("model", "extra", "ranks"),
    [
        ("train.py:step", (), 8),
        ("train.py:by_keywords", (), 4),
        ("train.py:everywhere", (), 64),
        ("train.py:everywhere", ("--ranks", "16"), 16),
        ("train.py:lowered", (), 1),
        ("train.py:lowered", ("--ranks", "2"), 2),
    ],
)
def test_a_function_says_what_is_compiled(folder, model, extra, ranks):
    done = nccc(folder, "compile", model, "--json", *extra)
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("devices ")
    facts = json.loads(done.stdout)
    name = model.removeprefix("train.py:")
    assert (facts["model"], facts["neff"], facts["ranks"]) == (model, f"{name}.neff", ranks)
    batch = 128 if name == "everywhere" else 16
    weights = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)
    inputs = np.random.default_rng(1).standard_normal((batch, 8)).astype(np.float32)
    run = ncc_runtime.load(folder / facts["neff"]).run({"weights['up']": weights, "inputs": inputs})
    value = next(iter(run.result.values()))
    np.testing.assert_allclose(value, np.mean(np.tanh(inputs @ weights) ** 2), rtol=1e-5)


def test_the_flags_of_the_user_say_how_many_devices(folder):
    flags = "--xla_force_host_platform_device_count=32"
    done = nccc(folder, "check", "train.py:everywhere", flags=flags)
    assert done.stdout.endswith(" for 32 ranks\n"), done.stderr


def test_too_few_devices_are_told_with_what_gives_more(folder):
    (folder / "large.py").write_text("import jax\nm = jax.make_mesh((128,), ('data',))\n")
    done = nccc(folder, "check", "large.py:m")
    assert done.returncode == 1
    assert "--ranks N gives the file N virtual devices" in done.stderr


def test_the_model_is_not_overwritten(folder):
    done = nccc(folder, "compile", "train.py:lowered", "-o", "train.py")
    assert done.returncode == 2
    assert "would overwrite train.py" in done.stderr
