"""A training step of JAX whose late gradients are dropped or added next, against JAX's gradients.

XLA partitions the step; here the same training is written out as the papers describe it, with the
gradient of every replica's own samples by `jax.grad`, and queues of what is late.
"""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.execution.disturbance import Disturbance
from ncc_runtime.faults.stale import StepClock
from ncc_runtime.jobs.stale import trained

REPLICAS, STEPS, RATE = 8, 24, 0.3


def loss_of(weights, inputs, targets):
    import jax.numpy as jnp

    hidden = jnp.tanh(inputs @ weights["up"])
    return jnp.mean((hidden @ weights["down"] - targets) ** 2)


def step(weights, inputs, targets):
    import jax

    value, gradients = jax.value_and_grad(loss_of)(weights, inputs, targets)
    return value, jax.tree.map(lambda w, g: w - RATE * g, weights, gradients)


@pytest.fixture(scope="module")
def data():
    draw = np.random.default_rng(0)
    up, down = draw.normal(size=(16, 32)) / 4, draw.normal(size=(32, 4)) / 6
    inputs = draw.normal(size=(REPLICAS * 12, 16))
    targets = np.tanh(inputs @ (up + 0.3)) @ (down - 0.2)
    return [array.astype(np.float32) for array in (down, up, inputs, targets)]


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("late", ["drop", "next"])
def test_a_step_of_jax_trains_on_the_first_gradients(late, level, data):
    import jax
    from jax.sharding import AbstractMesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    down, up, inputs, targets = data
    mesh = AbstractMesh((REPLICAS,), ("data",))
    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))
    weights = {"down": down, "up": up}
    jitted = jax.jit(
        step, in_shardings=(whole, rows, rows), out_shardings=whole, donate_argnums=(0,)
    )
    options = CompileOptions(level=level, partial_all_reduce=late)
    neff = ncc_compiler.from_jax(jitted, weights, inputs, targets, options=options)
    model = ncc_runtime.load(neff, "trn2")
    assert all(".partial" in each.name for each in neff.program.placeholders)

    draw, clock = np.random.default_rng(1), StepClock(model.executable)
    late_ps = draw.exponential(100e6, (STEPS, REPLICAS)).astype(np.int64).tolist()
    run = trained(
        model,
        clock,
        [Disturbance(late_start_ps=dict(enumerate(each))) for each in late_ps],
        [7, 5],
        inputs=[down, up, inputs, targets],
    )
    assert run.synchronous.losses[-1] < 0.4 * run.synchronous.losses[0]
    for training in (run.synchronous, *run.partial):
        losses, state = reference(late, training.steps, weights, inputs, targets)
        np.testing.assert_allclose(training.losses, losses, rtol=2e-4)
        whole_state = reference(late, run.synchronous.steps, weights, inputs, targets)[1]
        distance = np.linalg.norm(state - whole_state) / np.linalg.norm(whole_state)
        assert training.distance == pytest.approx(distance, rel=1e-2, abs=1e-5)
        assert training.losses[-1] < 0.6 * training.losses[0]


@pytest.mark.parametrize("late", ["drop", "next"])
def test_state_that_a_step_donates_is_fed_back_and_a_loss_is_not_carried(late):
    """Gradients and loss come out of one shard_map; XLA's text has donors and pairs none."""
    import jax
    import jax.numpy as jnp
    from jax.sharding import AbstractMesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = AbstractMesh((REPLICAS,), ("data",))
    whole, rows = NamedSharding(mesh, P()), NamedSharding(mesh, P("data"))

    def averages(weights, inputs, targets):
        value, gradient = jax.value_and_grad(loss_of)(weights, inputs, targets)
        return jax.lax.pmean((value, gradient), "data")

    def donating(weights, inputs, targets):
        specs = (P(), P("data"), P("data"))
        mapped = jax.shard_map(averages, mesh=mesh, in_specs=specs, out_specs=P(), check_vma=False)
        value, gradient = mapped(weights, inputs, targets)
        return jax.tree.map(lambda w, g: w - RATE * g, weights, gradient), value

    jitted = jax.jit(donating, in_shardings=(whole, rows, rows), donate_argnums=(0,))
    weights = {"down": jnp.ones((32, 4)), "up": jnp.ones((16, 32))}
    arrays = weights, jnp.ones((64, 16)), jnp.ones((64, 4))
    options = CompileOptions(partial_all_reduce=late)
    program = ncc_compiler.from_jax(jitted, *arrays, options=options).program
    assert program.aliases[:2] == ((0, 0), (1, 1))
    carried = [program.parameter(number) for _, number in program.aliases[2:]]
    shapes = [program.tensors[program.inputs[number]].shape for _, number in program.aliases[2:]]
    assert all(each.name.startswith("carried.") for each in carried)
    assert sorted(shapes) == ([] if late == "drop" else [(16, 32), (32, 4)])


def reference(late, steps, weights, inputs, targets):
    """Losses, and the last weights as one vector."""
    import jax

    parts = list(zip(np.split(inputs, REPLICAS), np.split(targets, REPLICAS), strict=True))
    waiting, losses = [[] for _ in range(REPLICAS)], []
    for step_ in steps:
        own = [jax.value_and_grad(loss_of)(weights, *part) for part in parts]
        on_time = np.flatnonzero(step_.takes_part)
        losses.append(float(np.mean([own[rank][0] for rank in on_time])))
        counted = [own[rank][1] for rank in on_time]
        if late == "next":
            for rank in np.flatnonzero(step_.begins):
                counted += waiting[rank]
                waiting[rank] = [] if step_.takes_part[rank] else [own[rank][1]]
        divisor = len(on_time) if late == "drop" else REPLICAS
        weights = jax.tree.map(lambda w, *g: w - RATE * sum(g) / divisor, weights, *counted)  # noqa: B023
    return losses, np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(weights)])
