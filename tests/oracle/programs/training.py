"""Sharded optimisers, pipelines, experts: what collectives do in training."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax, shard_map
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from tests.oracle.declare import Floats, Job, integers, mesh, normal, program


@program("f32")
def adam_with_zero(floats: Floats) -> Job:
    """Data parallel; moments and the update sharded over the same devices."""
    world = mesh(dp=8)
    sharded, whole = NamedSharding(world, P("dp")), NamedSharding(world, P())

    def function(w, m, v, count, x, y):
        grad = jax.grad(lambda w: ((jnp.tanh(x @ w) - y) ** 2).mean())(w)
        grad = lax.with_sharding_constraint(grad, sharded)
        count = count + 1
        m, v = 0.9 * m + 0.1 * grad, 0.999 * v + 0.001 * grad**2
        step = (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)
        new = lax.with_sharding_constraint(w - 0.01 * step, whole)
        return new, m, v, count

    arguments = (
        normal(0, 24, 16, scale=0.3),
        normal(1, 24, 16, scale=0.1),
        normal(2, 24, 16, scale=0.1) ** 2,
        integers(3, 5),
        normal(4, 32, 24),
        normal(5, 32, 16),
    )
    return Job(function, arguments, (P(), P("dp"), P("dp"), P(), P("dp"), P("dp")), world)


@program("f32")
def data_parallel_mlp(floats: Floats) -> Job:
    """Three layers, momentum, everything but the batch replicated."""
    world = mesh(dp=8)

    def loss(weights, x, y):
        h = x
        for w in weights[:-1]:
            h = jnp.tanh(h @ w)
        return ((h @ weights[-1] - y) ** 2).mean()

    def function(w0, w1, w2, m0, m1, m2, x, y):
        weights, moments = [w0, w1, w2], [m0, m1, m2]
        grads = jax.grad(loss)(weights, x, y)
        moments = [0.9 * m + g for m, g in zip(moments, grads, strict=True)]
        return [w - 0.1 * m for w, m in zip(weights, moments, strict=True)], moments

    shapes = ((12, 16), (16, 16), (16, 4))
    weights = [normal(k, *shape, scale=0.3) for k, shape in enumerate(shapes)]
    moments = [normal(k + 3, *shape, scale=0.1) for k, shape in enumerate(shapes)]
    arguments = (*weights, *moments, normal(6, 32, 12), normal(7, 32, 4))
    return Job(function, arguments, (*[P()] * 6, P("dp"), P("dp")), world)


@program("f32")
def fully_sharded_step(floats: Floats) -> Job:
    world = mesh(dp=8)

    @partial(shard_map, mesh=world, in_specs=P("dp"), out_specs=P("dp"))
    def function(w1, w2, x, y):
        def loss(w1, w2):
            full = [lax.all_gather(w, "dp", tiled=True) for w in (w1, w2)]
            return ((jax.nn.relu(x @ full[0]) @ full[1] - y) ** 2).mean()

        grads = jax.grad(loss, (0, 1))(w1, w2)  # the gather's transpose is psum_scatter
        return w1 - 0.1 * grads[0], w2 - 0.1 * grads[1], loss(w1, w2)[None]

    shapes = ((16, 24), (24, 8), (32, 16), (32, 8))
    arguments = tuple(normal(k, *shape, scale=0.4) for k, shape in enumerate(shapes))
    return Job(function, arguments, (P("dp"),) * 4, world)


@program("f32")
def pipeline(floats: Floats) -> Job:
    """Eight stages, twelve microbatches, one hop a step; idle steps compute on rubbish."""
    world = mesh(pp=8)

    @partial(shard_map, mesh=world, in_specs=(P("pp"), P()), out_specs=P("pp"))
    def function(w, batches):
        stage, count = lax.axis_index("pp"), batches.shape[0]

        def tick(state, t):
            held, out = state
            held = jnp.where(stage == 0, batches[jnp.minimum(t, count - 1)], held)
            done = jnp.tanh(held @ w[0])
            at = jnp.clip(t - 7, 0, count - 1)
            kept = jnp.where((stage == 7) & (t >= 7), done, out[at])
            out = lax.dynamic_update_index_in_dim(out, kept, at, 0)
            return (lax.ppermute(done, "pp", [(k, k + 1) for k in range(7)]), out), None

        start = lax.pcast((batches[0] * 0, batches * 0), "pp", to="varying")
        (_, out), _ = lax.scan(tick, start, jnp.arange(count + 7))
        return out[None]

    return Job(function, (normal(0, 8, 6, 6), normal(1, 12, 4, 6)), (P("pp"), P()), world)


@program("f32")
def experts(floats: Floats) -> Job:
    """One expert on each rank, tokens sent by all-to-all under a capacity, and the gradient."""
    world = mesh(ep=8)
    capacity = 3

    @partial(shard_map, mesh=world, in_specs=(P("ep"), P(), P("ep")), out_specs=P("ep"))
    def forward(w, gate, x):
        probabilities = jax.nn.softmax(x @ gate)
        expert = jnp.argmax(probabilities, -1)
        chosen = jax.nn.one_hot(expert, 8, dtype=jnp.int32)
        place = ((jnp.cumsum(chosen, 0) - 1) * chosen).sum(-1)
        slot = jax.nn.one_hot(expert, 8, dtype=x.dtype)[:, :, None]
        slot = slot * jax.nn.one_hot(place, capacity, dtype=x.dtype)[:, None, :]
        sent = lax.all_to_all(jnp.einsum("tec,td->ecd", slot, x), "ep", 0, 0, tiled=True)
        done = lax.all_to_all(jax.nn.relu(sent @ w[0]), "ep", 0, 0, tiled=True)
        weight = jnp.take_along_axis(probabilities, expert[:, None], -1)
        return jnp.einsum("tec,ecd->td", slot, done) * weight

    def function(w, gate, x):
        return jax.value_and_grad(lambda *a: (forward(*a) ** 2).sum(), (0, 1, 2))(w, gate, x)

    arguments = (normal(0, 8, 10, 10, scale=0.3), normal(1, 10, 8), normal(2, 64, 10))
    return Job(function, arguments, (P("ep"), P(), P("ep")), world)


@program("f32")
def collectives_of_shard_map(floats: Floats) -> Job:
    world = mesh(a=2, b=4)

    @partial(shard_map, mesh=world, in_specs=P(("a", "b")), out_specs=P(("a", "b")))
    def function(x, n):
        return (
            lax.psum_scatter(x, "b", scatter_dimension=1, tiled=True),
            lax.all_gather(x, "a", axis=1, tiled=True),
            lax.all_to_all(x, ("a", "b"), 1, 0, tiled=True).reshape(1, -1),
            x - lax.pmean(x, "b"),
            lax.pmax(n, "a") * lax.pmin(n, ("a", "b")),
            lax.psum(n, "b") + lax.axis_index("a"),
            lax.ppermute(x, "b", [(0, 2), (2, 1), (1, 3)]),
        )

    return Job(function, (normal(0, 16, 24), integers(1, 99, 16, 2)), (P(("a", "b")),) * 2, world)


@program("f32")
def zero_2(floats: Floats) -> Job:
    """Gradients reduce-scattered into shards, Adam on the shards, new weights all-gathered."""
    world = mesh(dp=8)
    specs = (P(), P(), P("dp"), P("dp"), P("dp"), P("dp"), P(), P("dp"), P("dp"))

    @partial(
        shard_map,
        mesh=world,
        in_specs=specs,
        out_specs=(P(), P(), *(P("dp"),) * 4),
        check_vma=False,
    )
    def function(w1, w2, m1, v1, m2, v2, count, x, y):
        def loss(w1, w2):
            return ((jnp.tanh(x @ w1) @ w2 - y) ** 2).mean()

        count = count + 1
        results = []
        gradients = jax.grad(loss, (0, 1))(w1, w2)
        for w, m, v, grad in zip((w1, w2), (m1, m2), (v1, v2), gradients, strict=True):
            own = lax.psum_scatter(grad, "dp", scatter_dimension=0, tiled=True) / 8
            m, v = 0.9 * m + 0.1 * own, 0.999 * v + 0.001 * own**2
            step = (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)
            rows = own.shape[0]
            part = lax.dynamic_slice_in_dim(w, lax.axis_index("dp") * rows, rows) - 0.01 * step
            results.append((lax.all_gather(part, "dp", tiled=True), m, v))
        (w1, m1, v1), (w2, m2, v2) = results
        return w1, w2, m1, v1, m2, v2

    arguments = (
        normal(0, 16, 24, scale=0.3),
        normal(1, 24, 8, scale=0.3),
        normal(2, 16, 24, scale=0.1),
        normal(3, 16, 24, scale=0.1) ** 2,
        normal(4, 24, 8, scale=0.1),
        normal(5, 24, 8, scale=0.1) ** 2,
        integers(6, 5),
        normal(7, 32, 16),
        normal(8, 32, 8),
    )
    return Job(function, arguments, specs, world)


@program("f32")
def experts_with_a_capacity_factor(floats: Floats) -> Job:
    """The two best experts of each token, those beyond the capacity dropped and counted."""
    world = mesh(ep=8)
    tokens, best, factor = 12, 2, 1.25
    capacity = int(-(-best * tokens * factor // 8))

    @partial(shard_map, mesh=world, in_specs=(P("ep"), P(), P("ep")), out_specs=(P("ep"), P(), P()))
    def function(w, gate, x):
        probabilities = jax.nn.softmax(x @ gate)
        weight, expert = lax.top_k(probabilities, best)
        chosen = jax.nn.one_hot(expert.reshape(-1), 8, dtype=jnp.int32)
        place = ((jnp.cumsum(chosen, 0) - 1) * chosen).sum(-1).reshape(tokens, best)
        slot = jnp.where(place < capacity, expert * capacity + place, 8 * capacity)
        room = jnp.zeros((8 * capacity, x.shape[1]), x.dtype)
        room = lax.pcast(room, "ep", to="varying")
        sent = room.at[slot].set(jnp.repeat(x[:, None], best, 1), mode="drop")
        done = lax.all_to_all(sent, "ep", 0, 0, tiled=True)
        done = lax.all_to_all(jax.nn.relu(done @ w[0]), "ep", 0, 0, tiled=True)
        back = done.at[slot].get(mode="fill", fill_value=0)
        dropped = lax.psum((slot == 8 * capacity).sum(), "ep")
        load = lax.pmean(chosen.mean(0) * probabilities.mean(0), "ep").sum() * 8
        return (back * weight[..., None]).sum(1), dropped, load

    arguments = (normal(0, 8, 10, 10, scale=0.3), normal(1, 10, 8), normal(2, 96, 10))
    return Job(function, arguments, (P("ep"), P(), P("ep")), world)
