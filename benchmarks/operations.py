"""What single operations take beside JAX: one rank on one thread, and JAX told to use one.

Each operation is a function of JAX on the shapes that it has in a real model. Ours is compiled by
`from_jax`, placed and proved, and runs without the clock; JAX's is what `jit` makes of it. Both run
again and again in one process, in turn, on arrays that are there. Prints the medians of processor
time in milliseconds, and ours over JAX's. Outputs must agree.

Run: python benchmarks/operations.py [NAME ...] [--repeat 5] [--level 1]     # needs the extra jax
     python benchmarks/operations.py --list
A NAME is a part of an operation's name, such as conv or bf16.
"""

import argparse
import functools
import os
import platform
import re
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

os.environ["JAX_PLATFORMS"] = "cpu"
os.environ.setdefault(
    "XLA_FLAGS", "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
)

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

import ncc_compiler  # noqa: E402
import ncc_runtime  # noqa: E402
from ncc_compiler.options import CompileOptions  # noqa: E402
from ncc_runtime.neff.shared.dtypes import DType  # noqa: E402


@attrs.frozen
class Operation:
    """A function of JAX, and its arguments: types as HLO writes them, `<n` bounds whole numbers."""

    function: Callable[..., Any]
    arguments: tuple[str, ...]

    def arrays(self) -> list[np.ndarray]:
        """The arguments, drawn."""
        generator = np.random.default_rng(0)
        found = []
        for text in self.arguments:
            kind, sizes, bound = re.fullmatch(r"(\w+)\[([\d,]*)\](?:<(\d+))?", text).groups()  # type: ignore[union-attr]
            shape, dtype = [int(size) for size in sizes.split(",") if size], DType(kind).numpy
            if bound:
                found.append(generator.integers(0, int(bound), shape).astype(dtype))
            else:
                found.append(generator.standard_normal(shape, np.float32).astype(dtype))
        return found


def op(function: Callable[..., Any], *arguments: str) -> Operation:
    return Operation(function, arguments)


# ---- elementwise chains


def gelu(x: Any) -> Any:
    return jax.nn.gelu(x)


def swiglu(x: Any, y: Any) -> Any:
    return jax.nn.silu(x) * y


def residual(x: Any, y: Any, z: Any) -> Any:
    return x + y * z


def rmsnorm(x: Any, scale: Any) -> Any:
    wide = x.astype(jnp.float32)
    mean = jnp.mean(wide * wide, -1, keepdims=True)
    return (wide * lax.rsqrt(mean + 1e-5)).astype(x.dtype) * scale


def layernorm(x: Any, scale: Any, bias: Any) -> Any:
    mean = jnp.mean(x, -1, keepdims=True)
    variance = jnp.mean((x - mean) ** 2, -1, keepdims=True)
    return (x - mean) * lax.rsqrt(variance + 1e-5) * scale + bias


def softmax(x: Any) -> Any:
    return jax.nn.softmax(x, -1)


def quantised(x: Any, kind: Any = jnp.float8_e4m3fn) -> Any:
    """To an 8-bit float by the largest element of each row, and back."""
    scale = jnp.max(jnp.abs(x), -1, keepdims=True) / 240
    return (x / scale).astype(kind), scale


def dequantised(x: Any, scale: Any) -> Any:
    return x.astype(jnp.float32) * scale


def adamw(w: Any, g: Any, m: Any, v: Any) -> Any:
    m = 0.9 * m + 0.1 * g
    v = 0.999 * jnp.abs(v) + 0.001 * g * g
    return w - 1e-3 * (m / (jnp.sqrt(v) + 1e-8) + 0.01 * w), m, v


# ---- products


def product(x: Any, y: Any) -> Any:
    return lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=x.dtype)


def product_to_f32(x: Any, y: Any) -> Any:
    return lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def attention(q: Any, k: Any, v: Any) -> Any:
    scores = jnp.einsum("bhqd,bhkd->bhqk", q, k)
    return jnp.einsum("bhqk,bhkd->bhqd", jax.nn.softmax(scores, -1), v)


# ---- convolutions


def convolved(
    x: Any,
    w: Any,
    stride: int = 1,
    padding: Any = "SAME",
    groups: int = 1,
    dilation: int = 1,
    layout: tuple[str, str, str] = ("NHWC", "HWIO", "NHWC"),
) -> Any:
    spatial = len(x.shape) - 2
    return lax.conv_general_dilated(
        x,
        w,
        (stride,) * spatial,
        padding,
        rhs_dilation=(dilation,) * spatial,
        dimension_numbers=layout,
        feature_group_count=groups,
    )


def backward(index: int, **how: Any) -> Callable[..., Any]:
    """The gradient of a convolution by its input (0) or its kernel (1)."""

    def gradient(x: Any, w: Any, dy: Any) -> Any:
        _, pull = jax.vjp(functools.partial(convolved, **how), x, w)
        return pull(dy)[index]

    return gradient


CHANNELS_FIRST = ("NCHW", "OIHW", "NCHW")
SEQUENCE = ("NHC", "HIO", "NHC")


# ---- indices, order, windows


def embedded(table: Any, tokens: Any) -> Any:
    return jnp.take(table, tokens, axis=0, mode="clip")


def embedding_gradient(dy: Any, tokens: Any) -> Any:
    return jnp.zeros((32_000, dy.shape[-1]), dy.dtype).at[tokens].add(dy)


def picked(logits: Any, labels: Any) -> Any:
    return jnp.take_along_axis(logits, labels[:, None], axis=-1)


def written(cache: Any, row: Any, place: Any) -> Any:
    return lax.dynamic_update_slice(cache, row, (0, place, 0))


def cut_out(x: Any, place: Any) -> Any:
    return lax.dynamic_slice(x, (0, place, 0), (x.shape[0], 512, x.shape[2]))


def pooled(x: Any, how: str) -> Any:
    window, stride = (1, 3, 3, 1), (1, 2, 2, 1)
    if how == "max":
        return lax.reduce_window(x, -jnp.inf, lax.max, window, stride, "SAME")
    return lax.reduce_window(x, 0.0, lax.add, window, stride, "SAME") / 9


def pooling_gradient(x: Any, dy: Any) -> Any:
    return jax.vjp(functools.partial(pooled, how="max"), x)[1](dy)[0]


def best(x: Any) -> Any:
    return lax.top_k(x, 50)


def routed(x: Any, scores: Any) -> Any:
    """Tokens put in order of their expert, as a mixture of experts does."""
    expert = jnp.argmax(scores, -1)
    return x[jnp.argsort(expert, stable=True)]


OPERATIONS: Mapping[str, Operation] = {
    "gelu f32": op(gelu, "f32[1024,4096]"),
    "gelu bf16": op(gelu, "bf16[1024,4096]"),
    "gelu f16": op(gelu, "f16[1024,4096]"),
    "swiglu bf16": op(swiglu, "bf16[1024,4096]", "bf16[1024,4096]"),
    "residual f32": op(residual, *["f32[1024,4096]"] * 3),
    "residual bf16": op(residual, *["bf16[1024,4096]"] * 3),
    "residual f16": op(residual, *["f16[1024,4096]"] * 3),
    "residual f8e5m2": op(residual, *["f8e5m2[1024,4096]"] * 3),
    "rmsnorm f32": op(rmsnorm, "f32[2048,2048]", "f32[2048]"),
    "rmsnorm bf16": op(rmsnorm, "bf16[2048,2048]", "bf16[2048]"),
    "layernorm f32": op(layernorm, "f32[2048,2048]", "f32[2048]", "f32[2048]"),
    "softmax f32": op(softmax, "f32[2048,2048]"),
    "softmax bf16": op(softmax, "bf16[2048,2048]"),
    "quantise to f8e4m3fn": op(quantised, "f32[2048,2048]"),
    "quantise bf16 to f8e5m2": op(
        functools.partial(quantised, kind=jnp.float8_e5m2), "bf16[2048,2048]"
    ),
    "dequantise f8e4m3fn": op(dequantised, "f8e4m3fn[2048,2048]", "f32[2048,1]"),
    "adamw f32": op(adamw, *["f32[2048,1024]"] * 4),
    "dot f32": op(product, "f32[1024,1024]", "f32[1024,4096]"),
    "dot bf16": op(product, "bf16[1024,1024]", "bf16[1024,4096]"),
    "dot f16": op(product, "f16[1024,1024]", "f16[1024,4096]"),
    "dot f8e4m3fn to f32": op(product_to_f32, "f8e4m3fn[1024,1024]", "f8e4m3fn[1024,4096]"),
    "dot bf16 to f32": op(product_to_f32, "bf16[1024,1024]", "bf16[1024,4096]"),
    "dot s8 to s32": op(
        lambda x, y: lax.dot(x, y, preferred_element_type=jnp.int32),
        *("s8[512,512]<100", "s8[512,1024]<100"),
    ),
    "decoding dot bf16": op(product, "bf16[8,4096]", "bf16[4096,4096]"),
    "attention f32": op(attention, *["f32[2,16,512,64]"] * 3),
    "attention bf16": op(attention, *["bf16[2,16,512,64]"] * 3),
    "conv resnet stem 7x7/2": op(
        functools.partial(convolved, stride=2), "f32[8,224,224,3]", "f32[7,7,3,64]"
    ),
    "conv resnet 1x1 64-256": op(convolved, "f32[8,56,56,64]", "f32[1,1,64,256]"),
    "conv resnet 3x3 64": op(convolved, "f32[8,56,56,64]", "f32[3,3,64,64]"),
    "conv resnet 3x3 64 NCHW": op(
        functools.partial(convolved, layout=CHANNELS_FIRST), "f32[8,64,56,56]", "f32[64,64,3,3]"
    ),
    "conv resnet 3x3/2 128": op(
        functools.partial(convolved, stride=2), "f32[8,56,56,128]", "f32[3,3,128,128]"
    ),
    "conv resnet 3x3 256": op(convolved, "f32[8,14,14,256]", "f32[3,3,256,256]"),
    "conv resnet 3x3 512": op(convolved, "f32[8,7,7,512]", "f32[3,3,512,512]"),
    "conv resnet 3x3 64 bf16": op(convolved, "bf16[8,56,56,64]", "bf16[3,3,64,64]"),
    "conv dx 3x3 64": op(backward(0), "f32[8,56,56,64]", "f32[3,3,64,64]", "f32[8,56,56,64]"),
    "conv dw 3x3 64": op(backward(1), "f32[8,56,56,64]", "f32[3,3,64,64]", "f32[8,56,56,64]"),
    "conv dx 3x3/2 128": op(
        backward(0, stride=2), "f32[8,56,56,128]", "f32[3,3,128,128]", "f32[8,28,28,128]"
    ),
    "conv dw 3x3/2 128": op(
        backward(1, stride=2), "f32[8,56,56,128]", "f32[3,3,128,128]", "f32[8,28,28,128]"
    ),
    "conv depthwise 3x3 96": op(
        functools.partial(convolved, groups=96), "f32[8,56,56,96]", "f32[3,3,1,96]"
    ),
    "conv depthwise 3x3/2 144": op(
        functools.partial(convolved, groups=144, stride=2), "f32[8,56,56,144]", "f32[3,3,1,144]"
    ),
    "conv depthwise dw 3x3 96": op(
        backward(1, groups=96), "f32[8,56,56,96]", "f32[3,3,1,96]", "f32[8,56,56,96]"
    ),
    "conv grouped 32 of 128": op(
        functools.partial(convolved, groups=32), "f32[8,56,56,128]", "f32[3,3,4,128]"
    ),
    "conv dilated 3x3 64": op(
        functools.partial(convolved, dilation=2), "f32[8,56,56,64]", "f32[3,3,64,64]"
    ),
    "conv whisper 1": op(
        functools.partial(convolved, layout=SEQUENCE), "f32[1,3000,80]", "f32[3,80,512]"
    ),
    "conv whisper 2": op(
        functools.partial(convolved, layout=SEQUENCE, stride=2), "f32[1,3000,512]", "f32[3,512,512]"
    ),
    "conv mamba depthwise 1d": op(
        functools.partial(convolved, layout=SEQUENCE, groups=1536, padding=((3, 0),)),
        *("f32[1,2048,1536]", "f32[4,1,1536]"),
    ),
    "embedding f32": op(embedded, "f32[32000,1024]", "s32[4096]<32000"),
    "embedding bf16": op(embedded, "bf16[32000,1024]", "s32[4096]<32000"),
    "embedding gradient f32": op(embedding_gradient, "f32[4096,1024]", "s32[4096]<32000"),
    "embedding gradient bf16": op(embedding_gradient, "bf16[4096,1024]", "s32[4096]<32000"),
    "embedding gradient, 100 words": op(embedding_gradient, "f32[4096,1024]", "s32[4096]<100"),
    "take along axis": op(picked, "f32[4096,8192]", "s32[4096]<8192"),
    "scatter of elements": op(
        lambda i, x: jnp.zeros(1 << 20).at[i].add(x), "s32[1048576]<1048576", "f32[1048576]"
    ),
    "gather of elements": op(lambda x, i: x[i], "f32[1048576]", "s32[1048576]<1048576"),
    "dynamic slice": op(cut_out, "f32[16,2048,128]", "s32[]<1000"),
    "dynamic update slice": op(written, "f32[16,2048,128]", "f32[16,1,128]", "s32[]<1000"),
    "sort f32": op(lambda x: jnp.sort(x, -1), "f32[64,16384]"),
    "sort s32 of one row": op(jnp.sort, "s32[1048576]<1000000000"),
    "argsort f32": op(lambda x: jnp.argsort(x, -1), "f32[64,16384]"),
    "top-k 50 of 32000": op(best, "f32[64,32000]"),
    "top-k bf16": op(best, "bf16[64,32000]"),
    "mixture of experts' order": op(routed, "f32[4096,1024]", "f32[4096,16]"),
    "cumulative sum, last axis": op(lambda x: jnp.cumsum(x, -1), "f32[1024,2048]"),
    "cumulative sum, first axis": op(lambda x: jnp.cumsum(x, 0), "f32[2048,1024]"),
    "cumulative max": op(lambda x: lax.cummax(x, 1), "f32[1024,2048]"),
    "max pool 3x3/2": op(functools.partial(pooled, how="max"), "f32[8,112,112,64]"),
    "mean pool 3x3/2": op(functools.partial(pooled, how="mean"), "f32[8,112,112,64]"),
    "max pool 3x3/2 bf16": op(functools.partial(pooled, how="max"), "bf16[8,112,112,64]"),
    "max pool gradient": op(pooling_gradient, "f32[8,112,112,64]", "f32[8,56,56,64]"),
    "sum, last axis": op(lambda x: x.sum(-1), "f32[2048,4096]"),
    "sum, first axis": op(lambda x: x.sum(0), "f32[2048,4096]"),
    "sum, middle axis": op(lambda x: x.sum(1), "f32[64,128,1024]"),
    "sum of all": op(jnp.sum, "f32[2048,4096]"),
    "sum, last axis bf16": op(lambda x: x.sum(-1), "bf16[2048,4096]"),
    "sum, first axis bf16": op(lambda x: x.sum(0), "bf16[2048,4096]"),
    "max, last axis": op(lambda x: x.max(-1), "f32[2048,4096]"),
    "max, first axis": op(lambda x: x.max(0), "f32[2048,4096]"),
    "max, last axis bf16": op(lambda x: x.max(-1), "bf16[2048,4096]"),
    "argmax, last axis": op(lambda x: jnp.argmax(x, -1), "f32[2048,4096]"),
    "argmax, first axis": op(lambda x: jnp.argmax(x, 0), "f32[2048,4096]"),
    "any, last axis": op(lambda x: (x > 4).any(-1), "f32[2048,4096]"),
    "sum of s32": op(lambda x: x.sum(-1), "s32[2048,4096]<1000"),
    "logsumexp": op(lambda x: jax.nn.logsumexp(x, -1), "f32[2048,4096]"),
    "transpose 2d": op(lambda x: x.T, "f32[2048,2048]"),
    "transpose heads": op(lambda x: x.transpose(0, 2, 1, 3), "f32[8,512,16,64]"),
    "transpose bf16": op(lambda x: x.T, "bf16[2048,2048]"),
    "pad": op(lambda x: jnp.pad(x, ((8, 8), (8, 8))), "f32[2048,2048]"),
    "concatenate, last axis": op(lambda x, y: jnp.concatenate((x, y), -1), *["f32[2048,1024]"] * 2),
    "reverse": op(lambda x: x[:, ::-1], "f32[2048,2048]"),
    "convert f32 to bf16": op(lambda x: x.astype(jnp.bfloat16), "f32[2048,4096]"),
    "convert bf16 to f32": op(lambda x: x.astype(jnp.float32), "bf16[2048,4096]"),
    "convert f32 to f16": op(lambda x: x.astype(jnp.float16), "f32[2048,4096]"),
    "convert f32 to s32": op(lambda x: x.astype(jnp.int32), "f32[2048,4096]"),
    "random bits": op(
        lambda key: jax.random.bits(jax.random.wrap_key_data(key), (1 << 20,)), "u32[2]<1000"
    ),
    "dropout bf16": op(
        lambda key, x: jnp.where(
            jax.random.bernoulli(jax.random.wrap_key_data(key), 0.9, x.shape), x, 0
        ),
        *("u32[2]<1000", "bf16[1024,1024]"),
    ),
}


def compared(name: str, level: int, repeat: int) -> tuple[float, float]:
    """Milliseconds of ours and of JAX's."""
    operation = OPERATIONS[name]
    arrays = operation.arrays()
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
    neff = ncc_compiler.from_jax(operation.function, *shapes, options=CompileOptions(level=level))
    model = ncc_runtime.load(neff, "trn2")
    function = jax.jit(operation.function).lower(*shapes).compile()
    on_device = [jax.device_put(array) for array in arrays]
    sides: dict[str, Callable[[], Any]] = {
        "ours": lambda: model.run(*arrays, clock=False, threads=1),
        "JAX": lambda: jax.block_until_ready(function(*on_device)),
    }
    wanted = [np.asarray(leaf) for leaf in jax.tree.leaves(sides["JAX"]())]
    result = [np.asarray(leaf) for leaf in jax.tree.leaves(sides["ours"]().result)]
    for ours, theirs in zip(result, wanted, strict=True):
        assert ours.shape == theirs.shape, (ours.shape, theirs.shape)
        if theirs.dtype.kind in "biu":
            assert (ours != theirs).mean() < 1e-3, name
            continue
        narrow = theirs.dtype.itemsize < np.dtype(np.float32).itemsize
        first, second = (array.astype(np.float32) for array in (ours, theirs))
        tolerance = (0.3 if theirs.dtype.itemsize == 1 else 3e-2) if narrow else 2e-3
        np.testing.assert_allclose(
            first, second, rtol=tolerance, atol=tolerance * float(np.abs(second).max())
        )
    del result
    taken: dict[str, list[float]] = {side: [] for side in sides}
    started = time.perf_counter()
    while len(taken["JAX"]) < repeat or time.perf_counter() < started + 0.3:
        for side, run in sides.items():
            start = time.process_time()
            run()
            taken[side].append(time.process_time() - start)
        if time.perf_counter() > started + 20:
            break
    ours_s, theirs_s = (statistics.median(taken[side]) for side in sides)
    return ours_s * 1e3, theirs_s * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--level", type=int, default=1, help="of optimisation")
    parser.add_argument("--list", action="store_true")
    arguments = parser.parse_args()
    chosen = [
        name
        for name in OPERATIONS
        if not arguments.names or any(part in name for part in arguments.names)
    ]
    if arguments.list:
        print("\n".join(chosen))
        return
    print(f"{time.strftime('%Y-%m-%d')} {platform.machine()}, numpy {np.__version__}, ", end="")
    print(f"JAX {jax.__version__}")
    print(f"{'':34}{'ours ms':>10}{'JAX ms':>10}{'ratio':>8}")
    for name in chosen:
        ours, theirs = compared(name, arguments.level, arguments.repeat)
        print(f"{name:<34}{ours:10.2f}{theirs:10.2f}{ours / theirs:8.2f}", flush=True)


if __name__ == "__main__":
    main()
