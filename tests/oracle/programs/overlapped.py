"""Training steps whose collectives can run beside compute: many gradients, shards, two axes."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.oracle.declare import Floats, Job, mesh, normal, program


@program("f32")
def deep_data_parallel_step(floats: Floats) -> Job:
    """Twelve layers with weights, biases and scales: 36 gradients, each an all-reduce."""
    world, depth = mesh(dp=8), 12

    def loss(weights, biases, scales, x, y):
        h = x
        for w, b, s in zip(weights, biases, scales, strict=True):
            h = h + jnp.tanh(h @ w + b) * s
        return ((h - y) ** 2).mean()

    def function(*arguments):
        *flat, x, y = arguments
        given = flat[:depth], flat[depth : 2 * depth], flat[2 * depth :]
        value, grads = jax.value_and_grad(loss, (0, 1, 2))(*given, x, y)
        norm = jnp.sqrt(sum((g**2).sum() for g in jax.tree.leaves(grads)))
        scale = 0.1 * jnp.minimum(1.0, 1.0 / norm)
        return jax.tree.map(lambda w, g: w - scale * g, given, grads), value

    weights = [normal(k, 16, 16, scale=0.2) for k in range(depth)]
    vectors = [normal(20 + k, 16, scale=0.5) for k in range(2 * depth)]
    arguments = (*weights, *vectors, normal(60, 32, 16), normal(61, 32, 16))
    return Job(function, arguments, (*[P()] * (3 * depth), P("dp"), P("dp")), world)


@program("f32")
def sharded_layers(floats: Floats) -> Job:
    """Weights and moments sharded, gathered for each of six layers, gradients scattered."""
    world, depth = mesh(dp=8), 6
    sharded, whole = NamedSharding(world, P("dp")), NamedSharding(world, P())

    def loss(weights, x, y):
        h = x
        for up, down in weights:
            up, down = (lax.with_sharding_constraint(w, whole) for w in (up, down))
            h = h + jax.nn.relu(h @ up) @ down
        return ((h - y) ** 2).mean()

    def function(*arguments):
        *flat, x, y = arguments
        flat, moments = flat[: 2 * depth], flat[2 * depth :]
        pairs = list(zip(flat[::2], flat[1::2], strict=True))
        grads = jax.tree.leaves(jax.grad(loss)(pairs, x, y))
        grads = [lax.with_sharding_constraint(g, sharded) for g in grads]
        moments = [0.9 * m + g for m, g in zip(moments, grads, strict=True)]
        return [w - 0.1 * m for w, m in zip(flat, moments, strict=True)], moments

    shapes = [(16, 24), (24, 16)] * depth
    weights = [normal(k, *shape, scale=0.2) for k, shape in enumerate(shapes)]
    moments = [normal(30 + k, *shape, scale=0.1) for k, shape in enumerate(shapes)]
    arguments = (*weights, *moments, normal(60, 32, 16), normal(61, 32, 16))
    return Job(function, arguments, (P("dp"),) * len(arguments), world)


@program("f32")
def two_axes_step(floats: Floats) -> Job:
    """Attention and an MLP split over four ranks, the batch over two; momentum."""
    world = mesh(dp=2, tp=4)

    def block(h, qkv, out, up, down):
        q, k, v = jnp.moveaxis(jnp.einsum("bsd,dnhc->bsnhc", h, qkv), 2, 0)
        scores = jax.nn.softmax(jnp.einsum("bshc,bthc->bhst", q, k) / 2.0)
        h = h + jnp.einsum("bhst,bthc,hcd->bsd", scores, v, out)
        return h + jax.nn.gelu(h @ up) @ down

    def loss(weights, x, y):
        h = x
        for first in range(0, len(weights), 4):
            h = block(h, *weights[first : first + 4])
        return ((h - y) ** 2).mean()

    def function(*arguments):
        *flat, x, y = arguments
        weights, moments = flat[:8], flat[8:]
        value, grads = jax.value_and_grad(loss)(weights, x, y)
        moments = [0.9 * m + g for m, g in zip(moments, grads, strict=True)]
        return [w - 0.1 * m for w, m in zip(weights, moments, strict=True)], moments, value

    shapes = [(16, 3, 4, 4), (4, 4, 16), (16, 32), (32, 16)] * 2
    specs = [P(None, None, "tp"), P("tp"), P(None, "tp"), P("tp")] * 2
    weights = [normal(k, *shape, scale=0.2) for k, shape in enumerate(shapes)]
    moments = [normal(20 + k, *shape, scale=0.1) for k, shape in enumerate(shapes)]
    arguments = (*weights, *moments, normal(60, 4, 8, 16), normal(61, 4, 8, 16))
    return Job(function, arguments, (*specs, *specs, P("dp"), P("dp")), world)
