"""Control flow: loops whose trips depend on data, branches, scans, and their gradients."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, shard_map
from jax.sharding import PartitionSpec as P

from tests.oracle.declare import Floats, Job, integers, mesh, normal, program


@program("f32")
def while_until_converged(floats: Floats) -> Job:
    """The number of trips hangs on a sum over all devices."""

    def function(a, b):
        def more(state):
            x, k = state
            return (jnp.abs(a @ x - b).sum() > 1e-2) & (k < 200)

        def refine(state):
            x, k = state
            return x + 0.1 * (b - a @ x), k + 1

        return lax.while_loop(more, refine, (jnp.zeros_like(b), jnp.int32(0)))

    a = normal(0, 16, 16, scale=0.05)
    a = a + 2 * np.eye(16, dtype=np.float32)
    return Job(function, (a, normal(1, 16)), (P("dp"), P()), mesh(dp=8))


@program("f32")
def trips_that_differ_between_ranks(floats: Floats) -> Job:
    world = mesh(dp=8)

    @partial(shard_map, mesh=world, in_specs=P("dp"), out_specs=P("dp"))
    def function(n, x):
        def collatz(state):
            n, steps, x = state
            return jnp.where(n % 2 == 0, n // 2, 3 * n + 1), steps + 1, jnp.sin(x) + x

        n, steps, x = lax.while_loop(lambda s: s[0] != 1, collatz, (n[0], n[0] * 0, x))
        return steps[None], x, lax.psum(x, "dp")[None]

    numbers = np.array([1, 2, 27, 6, 7, 19, 97, 3], np.int32)
    return Job(function, (numbers, normal(0, 16)), (P("dp"),) * 2, world)


@program("f32")
def switch_of_data_and_rank(floats: Floats) -> Job:
    world = mesh(dp=8)

    @partial(shard_map, mesh=world, in_specs=(P(), P("dp")), out_specs=P("dp"))
    def function(choice, x):
        branches = [lambda y: y * 2, jnp.tanh, lambda y: y - y.max(), lambda y: y @ y.T @ y]
        by_rank = lax.switch(lax.axis_index("dp") % 5 - 1, branches, x)
        summed = lax.cond(
            choice > 3, lambda y: lax.pcast(lax.psum(y, "dp"), "dp", to="varying"), jnp.exp, x
        )
        return by_rank, summed, lax.switch(choice, branches, x)

    return Job(function, (integers(4, 9), normal(0, 16, 3)), (P(), P("dp")), world)


@program("f32")
def scan_and_its_gradient(floats: Floats) -> Job:
    def loss(w, u, xs):
        def cell(h, x):
            h = jnp.tanh(x @ w + h @ u)
            return h, h.sum(-1)

        last, sums = lax.scan(cell, jnp.zeros((16, 12), xs.dtype), xs)
        return (last**2).sum() + (sums**2).mean()

    arguments = (normal(0, 5, 12, scale=0.3), normal(1, 12, 12, scale=0.3), normal(2, 7, 16, 5))
    specs = (P(None, "tp"), P(None, "tp"), P(None, "dp"))
    return Job(jax.value_and_grad(loss, (0, 1)), arguments, specs, mesh(dp=4, tp=2))


@program("f32")
def nested_loops(floats: Floats) -> Job:
    """A while in a scan in a fori_loop, with a collective in the innermost body."""

    def function(x, limits):
        def inner(x, limit):
            def body(state):
                x, k = state
                return x / (1 + jnp.abs(x).max()), k + 1

            x, k = lax.while_loop(lambda s: s[1] < limit, body, (x, limit * 0))
            return x * 1.5, k

        def outer(_, state):
            x, total = state
            x, trips = lax.scan(inner, x, limits)
            return x, total + trips.sum(dtype=total.dtype)

        return lax.fori_loop(0, 3, outer, (x, limits[0] * 0))

    return Job(function, (normal(0, 16, 4), integers(1, 4, 5)), (P("dp"), P()), mesh(dp=8))


@program("f32")
def branches_that_collect(floats: Floats) -> Job:
    """Other collectives in each branch; ranks of a group agree on it, groups do not."""
    world = mesh(dp=4, tp=2)

    @partial(shard_map, mesh=world, in_specs=P("dp", "tp"), out_specs=P("dp", "tp"))
    def function(x):
        def varying(y, axis):
            return lax.pcast(y, axis, to="varying")

        branches = [
            lambda y: varying(lax.psum(y, "tp"), "tp"),
            lambda y: lax.all_to_all(y, "tp", 0, 0, tiled=True),
            lambda y: (
                varying(lax.all_gather(y, "tp", axis=1, tiled=True).max(1, keepdims=True), ())
                * jnp.ones_like(y)
            ),
            lambda y: y - 1,
        ]
        one = lax.switch(lax.axis_index("dp"), branches, x)
        return lax.cond(one.sum() * 0 == 0, lambda y: y * 2, lambda y: y, one)

    return Job(function, (normal(0, 8, 6),), (P("dp", "tp"),), world)


@program("f32")
def collectives_in_nested_while_loops(floats: Floats) -> Job:
    """The inner loop ends by what all ranks have, the outer by a count; a ring in the middle."""
    world = mesh(dp=8)
    ring = [(k, (k + 1) % 8) for k in range(8)]

    @partial(shard_map, mesh=world, in_specs=P("dp"), out_specs=(P("dp"), P("dp")))
    def function(x):
        def shrink(state):
            y, k = state
            return y / 2 + lax.ppermute(y, "dp", ring) / 4, k + 1

        def outer(state):
            y, k, rounds = state
            y, trips = lax.while_loop(
                lambda s: (lax.psum(jnp.abs(s[0]).sum(), "dp") > 4.0) & (s[1] < 9), shrink, (y, 0)
            )
            return y * 8, k + 1, rounds + trips

        y, _, rounds = lax.while_loop(lambda s: s[1] < 3, outer, (x, 0, 0))
        return y, lax.pcast(rounds, "dp", to="varying")[None]

    return Job(function, (normal(0, 16, 3),), (P("dp"),), world)


@program("f32")
def loops_that_never_run(floats: Floats) -> Job:
    """No trip at all: on all ranks, on some of them, and with a collective inside."""
    world = mesh(dp=8)

    @partial(shard_map, mesh=world, in_specs=(P("dp"), P()), out_specs=P("dp"))
    def function(x, limit):
        def collect(state):
            y, k = state
            return y + lax.pmean(y, "dp"), k + 1

        never, _ = lax.while_loop(lambda s: s[1] < limit[0], collect, (x, limit[0]))
        start = lax.axis_index("dp")
        some, _ = lax.while_loop(lambda s: s[1] < 3, lambda s: (s[0] * 3, s[1] + 1), (x, start))
        return never, some, lax.fori_loop(0, limit[1], lambda _, y: y * 2, x)

    return Job(function, (normal(0, 16), np.array([2, 0], np.int32)), (P("dp"), P()), world)


@program("f32")
def caches_updated_in_a_scan(floats: Floats) -> Job:
    """Decoding: two stacked caches are carried, read and written one row at a time."""

    def function(keys, values, queries):
        def step(state, query):
            keys, values, place = state
            keys = lax.dynamic_update_slice(keys, (query * 0.5)[None], (place, 0, 0))
            scores = jnp.einsum("bd,sbd->sb", query, keys)
            mixed = jnp.einsum("sb,sbd->bd", jax.nn.softmax(scores, 0), values)
            values = lax.dynamic_update_slice(values, jnp.tanh(mixed)[None], (place, 0, 0))
            return (keys, values, place + 1), mixed

        (keys, values, _), outputs = lax.scan(step, (keys, values, 2), queries)
        return keys, values, outputs

    arguments = (normal(0, 9, 8, 16), normal(1, 9, 8, 16), normal(2, 5, 8, 16))
    return Job(function, arguments, (P(None, "dp", "tp"),) * 3, mesh(dp=4, tp=2))


@program("f32")
def branches_in_loops_of_branches(floats: Floats) -> Job:
    """A switch by a carried count in a loop, in a branch; sums in the innermost branches."""

    def function(x, n):
        def one(y):
            def body(k, y):
                return lax.switch(
                    k % 4,
                    [lambda y: y + y.sum(0), jnp.sin, lambda y: y[::-1], lambda y: y - y.mean()],
                    y,
                )

            return lax.fori_loop(0, n, body, y)

        return lax.cond(x.sum() > -1e9, one, lambda y: y * 0, x), lax.cond(n > 99, one, jnp.cos, x)

    return Job(function, (normal(0, 16, 4), np.int32(7)), (P("dp"), P()), mesh(dp=8))
