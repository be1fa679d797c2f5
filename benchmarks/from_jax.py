"""How long `from_jax` takes: tracing, partitioning by XLA, compiling; and XLA's whole compilation.

    python benchmarks/from_jax.py

A training step of a decoder, with gradients and Adam, data- and tensor-parallel: GPT-2 small on 8
ranks, and a LLaMA of 7 billion parameters on 64, without a device of theirs in this process. The
last column is what a compilation by XLA to machine code takes, as `lowered.compile()` does it, on
the same virtual devices; it is left out with --ours.
"""

import argparse
import subprocess
import sys
import time

import attrs
import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ncc_compiler.driver import compile_model
from ncc_compiler.frontends.foreign import to_hlo_text
from ncc_compiler.frontends.jax_program import jax_program


@attrs.frozen
class Decoder:
    """Sizes of a model, its batch in sequences, and its mesh, data by model."""

    name: str
    layers: int
    width: int
    heads: int
    hidden: int
    words: int
    batch: int
    length: int
    mesh: tuple[int, int]
    is_unrolled: bool  # a layer after the other in the program, or a loop over stacked weights


DECODERS = (
    Decoder("gpt2-small", 12, 768, 12, 3072, 50304, 8, 512, (2, 4), is_unrolled=True),
    Decoder("llama-7b, a loop over layers", 32, 4096, 32, 11008, 32000, 64, 2048, (8, 8), False),
    Decoder("llama-7b, unrolled", 32, 4096, 32, 11008, 32000, 64, 2048, (8, 8), True),
)


def weights_of(decoder):
    width, hidden = decoder.width, decoder.hidden
    layer = {
        "attention": ((width, 3 * width), P(None, "model")),
        "output": ((width, width), P("model")),
        "gate": ((width, hidden), P(None, "model")),
        "up": ((width, hidden), P(None, "model")),
        "down": ((hidden, width), P("model")),
        "norms": ((2, width), P()),
    }
    leaf = {"is_leaf": lambda item: isinstance(item, tuple)}
    if decoder.is_unrolled:
        layers = [layer] * decoder.layers
    else:
        layers = jax.tree.map(
            lambda item: ((decoder.layers, *item[0]), P(None, *item[1])), layer, **leaf
        )
    tree = {
        "embedding": ((decoder.words, width), P("model")),
        "layers": layers,
        "norm": ((width,), P()),
    }
    shapes = jax.tree.map(lambda item: jax.ShapeDtypeStruct(item[0], jnp.float32), tree, **leaf)
    return shapes, jax.tree.map(lambda item: item[1], tree, **leaf)


def norm(x, scale):
    return x * lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-5) * scale


def block(decoder, x, w):
    w = jax.tree.map(lambda one: one.astype(jnp.bfloat16), w)
    batch, length, width = x.shape
    heads = (batch, length, decoder.heads, width // decoder.heads)
    q, k, v = jnp.split(norm(x, w["norms"][0]) @ w["attention"], 3, -1)
    scores = jnp.einsum("blhd,bmhd->bhlm", q.reshape(heads), k.reshape(heads))
    mask = jnp.tril(jnp.ones((length, length), bool))
    shares = jax.nn.softmax(jnp.where(mask, scores / heads[-1] ** 0.5, -1e9), -1)
    mixed = jnp.einsum("bhlm,bmhd->blhd", shares, v.reshape(heads)).reshape(x.shape)
    x = x + mixed @ w["output"]
    y = norm(x, w["norms"][1])
    return x + (jax.nn.silu(y @ w["gate"]) * (y @ w["up"])) @ w["down"]


def loss(decoder, weights, tokens):
    x = weights["embedding"].astype(jnp.bfloat16)[tokens]
    if decoder.is_unrolled:
        for layer in weights["layers"]:
            x = block(decoder, x, layer)
    else:
        body = jax.checkpoint(lambda x, layer: (block(decoder, x, layer), None))
        x, _ = lax.scan(body, x, weights["layers"])
    logits = (norm(x, weights["norm"]) @ weights["embedding"].astype(jnp.bfloat16).T)[:, :-1]
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[:, 1:, None], -1)
    return -jnp.mean(chosen.astype(jnp.float32))


def step(decoder, weights, means, squares, tokens):
    value, gradients = jax.value_and_grad(lambda weights: loss(decoder, weights, tokens))(weights)
    means = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, means, gradients)
    squares = jax.tree.map(lambda s, g: 0.99 * s + 0.01 * g * g, squares, gradients)
    weights = jax.tree.map(
        lambda w, m, s: w - 1e-3 * m / (jnp.sqrt(s) + 1e-8), weights, means, squares
    )
    return value, weights, means, squares


def arguments(decoder):
    shapes, specs = weights_of(decoder)
    mesh = AbstractMesh(decoder.mesh, ("data", "model"))
    shardings = jax.tree.map(lambda spec: NamedSharding(mesh, spec), specs)
    tokens = jax.ShapeDtypeStruct((decoder.batch, decoder.length), jnp.int32)
    rows = NamedSharding(mesh, P("data"))
    return (shapes, shapes, shapes, tokens), (shardings, shardings, shardings, rows), mesh


def measure(decoder):
    args, shardings, mesh = arguments(decoder)
    start = time.perf_counter()
    function = lambda *args: step(decoder, *args)  # noqa: E731
    program = jax_program(function, args, {}, mesh, in_shardings=shardings)
    traced = time.perf_counter()
    model = to_hlo_text(program.stablehlo, "StableHLO")
    partitioned = time.perf_counter()
    neff = compile_model(model)
    compiled = time.perf_counter()
    rows = sum(len(table) for table in neff.program.queues.values())
    print(
        f"{decoder.name}, {neff.program.ranks} ranks: trace {traced - start:.2f} s, partition "
        f"{partitioned - traced:.2f} s, compile {compiled - partitioned:.2f} s; {rows} "
        f"instructions, {len(neff.program.placeholders)} collectives, "
        f"{len(model.text) / 1e6:.1f} MB of text",
        flush=True,
    )


def whole_compilation(number):
    """What XLA takes to make machine code, in a process that has the devices."""
    decoder = DECODERS[number]
    args, shardings, abstract = arguments(decoder)
    mesh = jax.make_mesh(decoder.mesh, abstract.axis_names, axis_types=abstract.axis_types)
    concrete = jax.tree.map(lambda one: NamedSharding(mesh, one.spec), shardings)
    function = lambda *args: step(decoder, *args)  # noqa: E731
    lowered = jax.jit(function, in_shardings=concrete).lower(*args)
    start = time.perf_counter()
    lowered.compile()
    print(f"  XLA to machine code: {time.perf_counter() - start:.2f} s", flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ours", action="store_true", help="leave out XLA's compilation")
    parser.add_argument("--xla", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.xla is not None:
        whole_compilation(given.xla)
        return
    for number, decoder in enumerate(DECODERS):
        measure(decoder)
        if not given.ours:
            count = decoder.mesh[0] * decoder.mesh[1]
            flags = f"--xla_force_host_platform_device_count={count}"
            environment = {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
            subprocess.run(
                [
                    "env",
                    *(f"{key}={value}" for key, value in environment.items()),
                    sys.executable,
                    __file__,
                    "--xla",
                    str(number),
                ],
                check=True,
            )


if __name__ == "__main__":
    main()
