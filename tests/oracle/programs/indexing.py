"""Gather, scatter, sort, top-k and cumulative sums."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.oracle.declare import Floats, Job, integers, mesh, normal, program


@program("f32")
def embedding_and_its_gradient(floats: Floats) -> Job:
    def loss(table, tokens, weights):
        return ((table[tokens] * weights) ** 2).sum(), table[tokens]

    def function(table, tokens, weights):
        return jax.grad(loss, has_aux=True)(table, tokens, weights)

    arguments = (normal(0, 48, 16), integers(1, 48, 8, 6), normal(2, 8, 6, 16))
    specs = (P("tp"), P("dp"), P("dp", None, None))
    return Job(function, arguments, specs, mesh(dp=2, tp=4))


@program("f32")
def top_k_and_sorts(floats: Floats) -> Job:
    def function(x, keys, labels):
        values, where = lax.top_k(x, 5)
        by_two = lax.sort((keys, x, labels), dimension=1, num_keys=2)
        order = jnp.argsort(-x, axis=0, stable=True)
        return values, where, by_two, order, jnp.sort(x, axis=1, descending=True)

    arguments = (normal(0, 16, 33), integers(1, 4, 16, 33), integers(2, 99, 16, 33))
    return Job(function, arguments, (P("dp"), P("dp"), P("dp")), mesh(dp=8))


@program("f32")
def cumulative(floats: Floats) -> Job:
    def function(x, n):
        return (
            jnp.cumsum(x, axis=1),
            jnp.cumsum(n, axis=0),
            lax.cummax(x, axis=0, reverse=True),
            lax.cumlogsumexp(x, axis=1),
            jnp.cumprod(x, axis=1),
        )

    return Job(function, (normal(0, 8, 19), integers(1, 9, 24, 3)), (P("dp"),) * 2, mesh(dp=8))


@program("f32")
def slices_that_depend_on_data(floats: Floats) -> Job:
    def function(x, starts, updates):
        taken = jax.vmap(lambda row, at: lax.dynamic_slice(row, (at - 5,), (4,)))(x, starts)
        put = jax.vmap(lambda row, at, new: lax.dynamic_update_slice(row, new, (at,)))(
            x, starts, updates
        )
        added = x.at[starts % 16, :4].add(updates, mode="drop")
        largest = x.at[:, starts % 11].max(1.5)
        clipped = jnp.take(x, starts * 3, axis=1, mode="clip")
        filled = jnp.take(x, starts * 3 - 9, axis=1, mode="fill", fill_value=7)
        return taken, put, added, largest, clipped, filled

    arguments = (normal(0, 16, 21), integers(1, 24, 16), normal(2, 16, 4))
    return Job(function, arguments, (P("dp"),) * 3, mesh(dp=8))


@program("f32")
def segments_and_histograms(floats: Floats) -> Job:
    def function(x, ids):
        sums = jax.ops.segment_sum(x, ids, 7)
        largest = jax.ops.segment_max(x, ids, 7)
        counts = jnp.bincount(ids, length=9)
        where = jnp.searchsorted(jnp.sort(x[:, 0]), x[:, 1])
        return sums, largest, counts, where, jnp.unique(ids, size=8, fill_value=-1)

    return Job(function, (normal(0, 40, 5), integers(1, 7, 40)), (P("dp"),) * 2, mesh(dp=8))
