"""Attention: sharded over batch and heads, with a mask, and as a ring over the sequence."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P

from tests.oracle.declare import Floats, Job, mesh, normal, program


def causal(q, k, v, floats: Floats):
    """[batch, length, heads, size]; the softmax is taken in the wide type."""
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k, preferred_element_type=floats.wide)
    length = q.shape[1]
    mask = jnp.tril(jnp.ones((length, length), bool))
    scores = jnp.where(mask, scores / q.shape[-1] ** 0.5, -jnp.inf)
    weights = jax.nn.softmax(scores, axis=-1).astype(floats.narrow)
    return jnp.einsum("bhqk,bkhd->bqhd", weights, v)


def _attention(floats: Floats) -> Job:
    def function(q, k, v):
        return causal(*(x.astype(floats.narrow) for x in (q, k, v)), floats)

    arguments = tuple(normal(k, 4, 12, 4, 8) for k in range(3))
    spec = P("dp", None, "tp")
    return Job(function, arguments, (spec,) * 3, mesh(dp=4, tp=2))


@program("f32")
def attention_f32(floats: Floats) -> Job:
    return _attention(floats)


@program("bf16")
def attention_bf16(floats: Floats) -> Job:
    return _attention(floats)


@program("bf16")
def attention_gradient_bf16(floats: Floats) -> Job:
    job = _attention(floats)

    def function(q, k, v):
        return jax.grad(lambda *x: (job.function(*x).astype(floats.wide) ** 2).sum(), (0, 1, 2))(
            q, k, v
        )

    return Job(function, job.arguments, job.specs, job.mesh)


@program("f32")
def ring_attention(floats: Floats) -> Job:
    world = mesh(sp=8)
    pairs = [(k, (k + 1) % 8) for k in range(8)]

    @partial(shard_map, mesh=world, in_specs=P("sp"), out_specs=P("sp"))
    def function(q, k, v):
        def step(_, state):
            k, v, top, total, out = state
            scores = q @ k.T / 4
            new_top = jnp.maximum(top, scores.max(-1))
            scale, weights = jnp.exp(top - new_top), jnp.exp(scores - new_top[:, None])
            total = total * scale + weights.sum(-1)
            out = out * scale[:, None] + weights @ v
            return lax.ppermute(k, "sp", pairs), lax.ppermute(v, "sp", pairs), new_top, total, out

        start = q[:, 0] * 0
        state = (k, v, start - jnp.inf, start, v * 0)
        *_, total, out = lax.fori_loop(0, 8, step, state)
        return out / total[:, None]

    return Job(function, tuple(normal(k, 24, 16) for k in range(3)), (P("sp"),) * 3, world)
