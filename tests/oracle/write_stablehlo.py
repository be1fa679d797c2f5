"""Small JAX functions as StableHLO: `python -m tests.oracle.write_stablehlo FOLDER`.

Writes NAME.mlir as JAX lowers for CPUs, NAME.tpu.mlirbc as it does for TPUs (which keep the ops of
CHLO), and NAME.npz with the inputs and what jax computes.
"""

import io
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from tests.oracle import arrays

Functions = Iterator[tuple[Callable, tuple]]
DRAW = np.random.default_rng(3)
FLOATS = ("float32", "bfloat16", "float16", "float64")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
NARROW = ("float8_e4m3fn", "float8_e5m2", "float8_e4m3b11fnuz", "float8_e3m4", "float8_e4m3")


def drawn(shape, dtype, low=-3, high=3):
    dtype = jnp.dtype(dtype)
    if dtype.kind == "b":
        return DRAW.random(shape) < 0.5
    if dtype.kind == "c":
        return (drawn(shape, "float64") + 1j * drawn(shape, "float64")).astype(dtype)
    if dtype.kind in "iu":
        info = np.iinfo(dtype)
        most = min(high, info.max, np.iinfo(np.int64).max)
        values = DRAW.integers(max(low, info.min), most, shape, endpoint=True)
        return values.astype(dtype)
    return DRAW.uniform(low, high, shape).astype(dtype)


def elementwise() -> Functions:
    unary = "abs ceil cbrt cos cosh erf exp exp2 expm1 floor log1p logistic neg round sign sin sinh"
    for name in [*unary.split(), "asinh", "atan", "is_finite", "square", "tan", "tanh", "erfc"]:
        for dtype in FLOATS:
            yield getattr(lax, name), (drawn((3, 4), dtype, -0.9, 2),)
    for name in ["acos", "asin", "atanh", "erf_inv"]:
        for dtype in FLOATS:
            yield getattr(lax, name), (drawn((3, 4), dtype, -0.9, 0.9),)
    for name in ["digamma", "lgamma", "log", "rsqrt", "sqrt"]:
        for dtype in FLOATS:
            yield getattr(lax, name), (drawn((3, 4), dtype, 0.2, 4),)
    for name in ["add", "div", "max", "min", "mul", "rem", "sub"]:
        for dtype in (*FLOATS, *INTEGERS, *NARROW):
            yield getattr(lax, name), (drawn((3, 4), dtype, -7, 7), drawn((3, 4), dtype, 1, 5))
    for name in ["atan2", "nextafter", "pow"]:
        for dtype in ("float32", "float64"):
            yield getattr(lax, name), (drawn((9,), dtype, 0.5, 3), drawn((9,), dtype))
    for dtype in INTEGERS:
        most = int(np.iinfo(dtype).max)
        pair = drawn((9,), dtype, -most, most), drawn((9,), dtype, -most, most)
        yield lax.mulhi, pair
        for name in ["bitwise_and", "bitwise_or", "bitwise_xor"]:
            yield getattr(lax, name), pair
        for name in ["shift_left", "shift_right_arithmetic", "shift_right_logical"]:
            yield getattr(lax, name), (pair[0], drawn((9,), dtype, 0, 9))
        for name in ["bitwise_not", "clz", "population_count"]:
            yield getattr(lax, name), pair[:1]


def constants() -> Functions:
    """What jaxlib would fold, in part wrongly."""
    edges = np.array([-0.0, 0.0, 1.5, np.inf, np.nan], np.float32)
    yield lambda x: (x + 0.0, 0.0 + x, x - 0.0, x * 1.0, x / 1.0), (edges,)
    numbers = [1.5, -1.25, 300.0, 0.0078125, 448.0, 57344.0]
    for dtype in (*FLOATS, *NARROW):
        yield lambda dtype=dtype: lax.convert_element_type(jnp.array(numbers, "float64"), dtype), ()
        yield lambda x: x + jnp.arange(6).astype(x.dtype), (drawn((6,), dtype),)
    wide = [1e10, -1e10, 300.0, -1.5, np.inf]
    for dtype in INTEGERS:
        yield lambda dtype=dtype: lax.convert_element_type(jnp.array(wide), dtype), ()


def products() -> Functions:
    sizes = np.array([3, 0, 4], np.int32)
    dims = lax.RaggedDotDimensionNumbers
    modes = (
        (dims((([1], [1]), ([], [])), [0], [0]), (8, 4), (3, 4, 5)),
        (dims((([1], [0]), ([], [])), [0], [1]), (8, 4), (4, 3, 5)),
        (dims((([2], [2]), ([0], [0])), [1], [1]), (2, 8, 4), (2, 3, 4, 5)),
        (dims((([1], [0]), ([], [])), [1], []), (4, 8), (8, 5)),
        (dims((([1, 2], [2, 0]), ([0], [1])), [2], []), (2, 3, 8, 5), (8, 2, 3, 6)),
        (dims((([2], [1]), ([0], [0])), [0], []), (8, 3, 4), (8, 4, 5)),
    )
    for numbers, left, right in modes:
        for dtype in ("float32", "bfloat16", "int32"):
            yield (
                lambda x, y, s, numbers=numbers: lax.ragged_dot_general(x, y, s, numbers),
                (drawn(left, dtype), drawn(right, dtype), sizes),
            )

    def lost(x, y):
        return (lax.ragged_dot(x, y, sizes) ** 2).sum()

    yield jax.grad(lost, (0, 1)), (drawn((8, 4), "float32"), drawn((3, 4, 5), "float32"))
    yield jnp.matmul, (drawn((2, 3, 4), "complex64"), drawn((2, 4, 5), "complex64"))
    yield lambda x: jnp.einsum("bij,bkj->bik", x, x), (drawn((2, 3, 4), "int8"),)


def folds() -> Functions:
    for dtype in (*FLOATS, *INTEGERS):
        x = drawn((5, 4), dtype, -2, 2)
        yield lambda x: (lax.cumsum(x, 1), lax.cumprod(x, 0, reverse=True)), (x,)
        yield lambda x: (lax.cummax(x), lax.cummin(x, 1, reverse=True)), (x,)
        yield lambda x: lax.associative_scan(jnp.multiply, x, axis=1, reverse=True), (x,)
        yield lambda x: lax.scan(lambda carry, a: (carry + a, carry * a), x[0], x), (x,)
        yield lambda x: (x.sum(0), x.max(1), x.min(), jnp.argmax(x), jnp.sort(x, 0)), (x,)
    yield lambda x: lax.cumlogsumexp(x, 1), (drawn((3, 4), "float32"),)


def moves() -> Functions:
    where = np.array([3, 0, 1])
    for dtype in ("bool", "complex64", *FLOATS, *INTEGERS, *NARROW):
        x = drawn((4, 5), dtype)
        yield lambda x, i: (x[i], jnp.take_along_axis(x, i[:, None], 0)), (x, where)
        yield lambda x, i: x.at[i].set(x[0]), (x, where)
        yield lambda x, i: lax.dynamic_slice(x, (i, i), (2, 3)), (x, where[2])
        yield lambda x, i: lax.dynamic_update_slice(x, x[:2, :2], (i, i)), (x, where[2])
        yield lambda x: (x.T[::-1], jnp.roll(x, 1, 0), jnp.tile(x, (2, 1))), (x,)
        yield lambda x: lax.pad(x, jnp.array(0, x.dtype), [(1, 2, 1), (-1, 1, 0)]), (x,)


def control() -> Functions:
    x = drawn((3,), "float32")
    yield lambda x: lax.switch(1, [jnp.exp, jnp.negative, jnp.sign], x), (x,)
    yield lambda p: lax.cond(p, lambda: jnp.ones(3), lambda: jnp.zeros(3)), (np.array(True),)
    yield lambda x: lax.fori_loop(0, 4, lambda i, s: s + i * x, x), (x,)
    yield lambda x: lax.optimization_barrier((x, jnp.ones(3)))[0] + 1, (x,)
    yield lambda k: jax.random.normal(k, (4,)), (np.array([1, 2], np.uint32),)


PROGRAMS = (elementwise, constants, products, folds, moves, control)


def write(folder: Path, name: str, functions: Functions) -> None:
    """All functions of a subject as one program, so that there is one file to read."""
    parts = list(functions)

    def all_of_them(arguments):
        return [function(*given) for (function, _), given in zip(parts, arguments, strict=True)]

    arguments = [given for _, given in parts]
    results = jax.tree.leaves([jax.jit(function)(*given) for function, given in parts])
    traced = jax.jit(all_of_them, keep_unused=True).trace(arguments)
    (folder / f"{name}.mlir").write_text(traced.lower().as_text())
    out = io.BytesIO()
    lowered = traced.lower(lowering_platforms=("tpu",))
    lowered.compiler_ir("stablehlo").operation.write_bytecode(out)
    (folder / f"{name}.tpu.mlirbc").write_bytes(out.getvalue())
    inputs = [np.asarray(x) for x in jax.tree.leaves(arguments)]
    found = arrays.numbered("in", inputs) | arrays.numbered("out", map(np.asarray, results))
    arrays.save(folder / f"{name}.npz", found)


def main() -> None:
    jax.config.update("jax_enable_x64", True)
    for program in PROGRAMS:
        write(Path(sys.argv[1]), program.__name__, program())


if __name__ == "__main__":
    main()
