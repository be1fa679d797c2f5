"""HBM of a rank beside what XLA's CPU backend takes of a device for the same program."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from tests.oracle import runs
from tests.oracle.children import run_module
from tests.oracle.xla_memory import taken

MOST, BESIDES = 1.1, 4096
"""At most so much of what XLA takes, and so many bytes: ours are rounded up to 64 each."""


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("memory")


@cache
def _of_xla(file: str, base: Path) -> Mapping[str, int]:
    flags = runs.FLAGS.format(dump=base / file)
    sizes: dict[str, int] = json.loads(run_module("tests.oracle.xla_memory", file, flags=flags))
    return sizes


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(("file", "name"), runs.names())
def test_a_program_takes_about_what_xla_takes(
    file: str, name: str, level: int, folder: Path
) -> None:
    theirs = _of_xla(file, folder)[name]
    (text,) = (folder / file).glob(f"*.jit_{name}.*after_spmd-partitioning*.txt")
    neff = ncc_compiler.compile_text(text.read_text(), CompileOptions(level=level), name)
    assert neff.program.hbm_bytes <= MOST * theirs + BESIDES


# ---- recomputation

LAYERS, WIDTH, ROWS = 8, 16, 512


def _layer(weights, x):
    hidden = jax.nn.softmax(jnp.tanh(x @ weights["in"]) @ weights["mix"], -1)
    return x + hidden @ weights["out"]


def _weights():
    draw = np.random.default_rng(0)
    names = ("in", "mix", "out")
    return {
        name: draw.standard_normal((LAYERS, WIDTH, WIDTH)).astype(np.float32) * 0.1
        for name in names
    }


def _gradient(is_scan: bool, is_checkpointed: bool):
    layer = jax.checkpoint(_layer) if is_checkpointed else _layer

    def loss(weights, x):
        if is_scan:
            x, _ = jax.lax.scan(lambda x, one: (layer(one, x), None), x, weights)
        else:
            for k in range(LAYERS):
                x = layer(jax.tree.map(lambda all_of, k=k: all_of[k], weights), x)
        return jnp.sum(x**2)

    return jax.value_and_grad(loss)


@pytest.mark.parametrize("level", [1, 2])
def test_a_checkpointed_scan_takes_clearly_less(level: int) -> None:
    x = np.random.default_rng(1).standard_normal((ROWS, WIDTH)).astype(np.float32)
    sizes = {}
    for is_checkpointed in (False, True):
        function = _gradient(True, is_checkpointed)
        neff = ncc_compiler.from_jax(function, _weights(), x, options=CompileOptions(level=level))
        theirs = taken(jax.jit(function).lower(_weights(), x).compile())
        sizes[is_checkpointed] = neff.program.hbm_bytes
        assert neff.program.hbm_bytes <= MOST * theirs + BESIDES
        result = ncc_runtime.load(neff).run(_weights(), x, clock=False).result
        for one, other in zip(
            jax.tree.leaves(result), jax.tree.leaves(function(_weights(), x)), strict=True
        ):
            np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-4)
    assert sizes[True] < 0.7 * sizes[False]


# ---- donation


@pytest.mark.parametrize("level", [0, 1, 2])
def test_donated_weights_and_a_donated_cache_are_in_memory_once(level: int) -> None:
    def step(weights, cache, x, at):
        gradient = jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w) ** 2))(weights)
        cache = jax.lax.dynamic_update_slice(cache, x, (at, 0))
        return weights - 0.1 * gradient, cache, cache.sum()

    draw = np.random.default_rng(0)
    weights, cache, x = (
        draw.standard_normal(shape).astype(np.float32) for shape in ((64, 64), (256, 64), (4, 64))
    )
    arguments = weights, cache, x, np.int32(7)
    neff = ncc_compiler.from_jax(
        step, *arguments, donate_argnums=(0, 1), options=CompileOptions(level=level)
    )
    found = ncc_runtime.load(neff).run(*arguments, checked=True).result
    for one, other in zip(found, step(*arguments), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-4)
    # the state, what else is given, and unfused a gradient, a step of it and its factors
    state = weights.nbytes + cache.nbytes
    assert neff.program.hbm_bytes < state + x.nbytes + 3 * weights.nbytes * (level == 0) + BESIDES
    assert {pair[1] for pair in neff.program.aliases} == {0, 1}
    assert {*neff.program.donated().values()} == {0, 1}
