"""A Llama block with grouped queries, forwards and backwards; layers as a scan; a loss."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.oracle.declare import Floats, Job, integers, mesh, normal, program
from tests.oracle.programs.attention import causal

HEADS, GROUPS, SIZE, WIDTH, HIDDEN = 8, 4, 8, 64, 96


def rms_norm(x, gain, floats: Floats):
    wide = x.astype(floats.wide)
    scale = lax.rsqrt(jnp.mean(wide * wide, -1, keepdims=True) + 1e-6)
    return (wide * scale).astype(floats.narrow) * gain


def rotary(x, floats: Floats):
    half = x.shape[-1] // 2
    angles = jnp.arange(x.shape[1])[:, None] * 100.0 ** (-jnp.arange(half) / half)
    cos, sin = (f(angles)[:, None, :].astype(floats.wide) for f in (jnp.cos, jnp.sin))
    left, right = jnp.split(x.astype(floats.wide), 2, -1)
    turned = jnp.concatenate([left * cos - right * sin, left * sin + right * cos], -1)
    return turned.astype(floats.narrow)


def block(x, gain, wq, wkv, wo, w_gate, w_up, w_down, floats: Floats):
    batch, length, _ = x.shape
    normed = rms_norm(x, gain, floats)
    q = (normed @ wq).reshape(batch, length, HEADS, SIZE)
    k, v = jnp.split((normed @ wkv).reshape(batch, length, GROUPS, 2 * SIZE), 2, -1)
    k, v = (jnp.repeat(y, HEADS // GROUPS, axis=2) for y in (rotary(k, floats), v))
    x = x + causal(rotary(q, floats), k, v, floats).reshape(batch, length, -1) @ wo
    normed = rms_norm(x, gain, floats)
    return x + (jax.nn.silu(normed @ w_gate) * (normed @ w_up)) @ w_down


SHAPES = (
    (WIDTH, HEADS * SIZE),
    (WIDTH, GROUPS * 2 * SIZE),
    (HEADS * SIZE, WIDTH),
    (WIDTH, HIDDEN),
    (WIDTH, HIDDEN),
    (HIDDEN, WIDTH),
)
SPECS = (P("dp"), P(), P(None, "tp"), P(None, "tp"), P("tp"), P(None, "tp"), P(None, "tp"), P("tp"))


def _arguments(*layers: int):
    weights = [normal(k, *layers, *shape, scale=0.1) for k, shape in enumerate(SHAPES)]
    return (normal(20, 4, 6, WIDTH), 1 + normal(21, *layers, WIDTH, scale=0.1), *weights)


def _step(floats: Floats) -> Job:
    def loss(*arguments):
        out = block(*(x.astype(floats.narrow) for x in arguments), floats).astype(floats.wide)
        return (out * out).mean()

    def function(*arguments):
        return jax.value_and_grad(loss, tuple(range(8)))(*arguments)

    return Job(function, _arguments(), SPECS, mesh(dp=2, tp=4))


@program("f32")
def llama_block_step_f32(floats: Floats) -> Job:
    return _step(floats)


@program("bf16")
def llama_block_step_bf16(floats: Floats) -> Job:
    return _step(floats)


@program("f32")
def llama_scan_over_layers(floats: Floats) -> Job:
    def loss(x, *layers):
        out, _ = lax.scan(lambda x, layer: (block(x, *layer, floats), None), x, layers)
        return (out * out).mean()

    def function(*arguments):
        return jax.value_and_grad(loss, (0, 2, 7))(*arguments)

    x, *rest = SPECS
    stacked = (x, *(P(None, *spec) for spec in rest))
    return Job(function, _arguments(3), stacked, mesh(dp=2, tp=4))


@program("f32")
def softmax_cross_entropy(floats: Floats) -> Job:
    def loss(table, x, labels):
        logits = x @ table
        shifted = logits - lax.stop_gradient(logits.max(-1, keepdims=True))
        normal_ = shifted - jnp.log(jnp.exp(shifted).sum(-1, keepdims=True))
        return -jnp.take_along_axis(normal_, labels[:, None], axis=-1).mean()

    arguments = (normal(0, 16, 40, scale=0.3), normal(1, 24, 16), integers(2, 40, 24))
    specs = (P(None, "tp"), P("dp"), P("dp"))
    return Job(jax.value_and_grad(loss, (0, 1)), arguments, specs, mesh(dp=2, tp=4))


@program("bf16")
def mixed_precision_step(floats: Floats) -> Job:
    """Master weights wide, products narrow, the loss scaled, the update wide."""

    def loss(w1, w2, x, y):
        h = jax.nn.gelu(x.astype(floats.narrow) @ w1.astype(floats.narrow))
        out = (h @ w2.astype(floats.narrow)).astype(floats.wide)
        return 128.0 * ((out - y) ** 2).mean()

    def function(w1, w2, x, y):
        value, grads = jax.value_and_grad(loss, (0, 1))(w1, w2, x, y)
        return value, *(w - 1e-2 / 128 * g for w, g in zip((w1, w2), grads, strict=True))

    shapes = ((24, 32), (32, 8), (16, 24), (16, 8))
    arguments = tuple(normal(k, *shape, scale=0.5) for k, shape in enumerate(shapes))
    specs = (P(None, "tp"), P("tp"), P("dp"), P("dp"))
    return Job(function, arguments, specs, mesh(dp=4, tp=2))
