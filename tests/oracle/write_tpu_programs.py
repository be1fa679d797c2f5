"""Linear algebra as jax lowers it for TPUs: `python -m tests.oracle.write_tpu_programs FOLDER`.

For each function NAME.hlo, in.npz, and NAME.npz with what the function gives on the CPU. Every
result is one that no choice of vectors changes.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.oracle import arrays


def svd(x: jax.Array) -> tuple[jax.Array, ...]:
    left, values, right = jnp.linalg.svd(x, full_matrices=False)
    return (left * values[..., None, :]) @ right, values


def eigh(x: jax.Array) -> tuple[jax.Array, ...]:
    square = x[..., :4, :]
    values, vectors = jnp.linalg.eigh(square + jnp.conj(square.swapaxes(-1, -2)))
    return (vectors * values[..., None, :]) @ jnp.conj(vectors.swapaxes(-1, -2)), values


def qr(x: jax.Array) -> tuple[jax.Array, ...]:
    return *jnp.linalg.qr(x), *jnp.linalg.qr(x, mode="complete")


def solve(x: jax.Array) -> tuple[jax.Array, ...]:
    square = x[..., :4, :]
    lu = lax.linalg.lu(x)
    return jnp.linalg.solve(square, square[..., :1]), jnp.linalg.det(square), *lu


def least_squares(x: jax.Array) -> tuple[jax.Array, ...]:
    return jnp.linalg.pinv(x), jnp.linalg.matrix_rank(x), jnp.linalg.cond(x)


FUNCTIONS: tuple[Callable[[jax.Array], tuple[jax.Array, ...]], ...] = (
    *(svd, eigh, qr, solve, least_squares),
)


def main() -> None:
    folder = Path(sys.argv[1])
    draw = np.random.default_rng(0)
    real = draw.standard_normal((2, 6, 4)).astype(np.float32)
    wide = (real + 1j * draw.standard_normal(real.shape)).astype(np.complex64)
    for kind, given in (("real", real), ("complex", wide)):
        arrays.save(folder / f"{kind}.npz", arrays.numbered("in", [given]))
        for function in FUNCTIONS:
            traced = jax.jit(function).trace(given).lower(lowering_platforms=("tpu",))
            text = traced.compiler_ir("hlo").as_hlo_text(True)
            name = f"{kind}-{function.__name__}"
            (folder / f"{name}.hlo").write_text(text)
            results = [np.asarray(one) for one in jax.tree.leaves(jax.jit(function)(given))]
            arrays.save(folder / f"{name}-out.npz", arrays.numbered("out", results))


if __name__ == "__main__":
    main()
