"""Functions of JAX through `from_jax`: `python -m tests.oracle.jax_cases`, with any devices.

Prints an object: of every case the error, or nothing. Where the process has too few devices for a
mesh it is an AbstractMesh. What JAX computes on one device is the expected value.
"""

import collections
import itertools
import json
import sys
import traceback
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.sharding import AbstractMesh, AxisType, NamedSharding
from jax.sharding import PartitionSpec as P

import ncc_runtime
from ncc_compiler import CompileError, CompileOptions, from_jax
from ncc_runtime.errors import InputError
from ncc_runtime.neff.listing import parse_program, print_program

NOISE = np.random.default_rng(0)
HAS_DEVICES = jax.device_count() >= 8
CASES: dict[str, Callable[[], None]] = {}


def case(function):
    CASES[function.__name__] = function
    return function


def mesh(kind=AxisType.Auto, **axes):
    kinds = (kind,) * len(axes)
    make = jax.make_mesh if HAS_DEVICES else AbstractMesh
    return make(tuple(axes.values()), tuple(axes), axis_types=kinds)


def array(*shape, dtype=np.float32):
    return NOISE.standard_normal(shape).astype(dtype)


def struct(value, sharding=None):
    return jax.ShapeDtypeStruct(value.shape, value.dtype, sharding=sharding)


def plain(value):
    """What numpy compares of an array of any dtype."""
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    return np.asarray(value).astype(np.float64 if value.dtype != jax.dtypes.float0 else bool)


def check(neff, expected, *args, ranks=8, rtol=1e-4, atol=1e-5, **kwargs):
    """The program of so many ranks gives the tree of expected arrays, and also from its file."""
    assert neff.program.ranks == ranks
    actual = ncc_runtime.load(neff).run(*args, **kwargs).result
    assert jax.tree.structure(actual) == jax.tree.structure(expected)
    for one, other in zip(jax.tree.leaves(actual), jax.tree.leaves(expected), strict=True):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        np.testing.assert_allclose(plain(one), plain(other), rtol=rtol, atol=atol)
    by_name = ncc_runtime.load(neff.data).run(neff.signature.flatten(args, kwargs)).result
    leaves = [value for value in jax.tree.leaves(expected) if value.dtype != jax.dtypes.float0]
    if len(leaves) == len(jax.tree.leaves(expected)):
        for one, other in zip(by_name.values(), leaves, strict=True):
            np.testing.assert_allclose(plain(one), plain(other), rtol=rtol, atol=atol)
    return neff


def names(neff):
    return [parameter.name for parameter in neff.program.parameters]


@case
def data_and_tensor_parallel_training():
    def step(weights, inputs, targets):
        def loss(weights):
            hidden = jax.nn.gelu(inputs @ weights["up"])
            return jnp.mean((hidden @ weights["down"] - targets) ** 2)

        value, gradients = jax.value_and_grad(loss)(weights)
        return value, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    weights = {"up": array(16, 32), "down": array(32, 16)}
    batch = array(8, 16), array(8, 16)
    shardings = ({"up": P(None, "model"), "down": P("model")}, P("data"), P("data"))
    for axes in ({"data": 2, "model": 4}, mesh(data=2, model=4)):
        neff = from_jax(step, weights, *batch, mesh=axes, in_shardings=shardings)
        check(neff, jax.jit(step)(weights, *batch), weights, *batch)
        assert names(neff) == ["weights['down']", "weights['up']", "inputs", "targets"]
        results = [result.name for result in neff.program.results]
        assert results == ["result[0]", "result[1]['down']", "result[1]['up']"]


def plain_attention(q, k, v):
    q, k, v = (jnp.swapaxes(each, 1, 2) for each in (q, k, v))
    return jax.nn.softmax(0.3 * q @ jnp.swapaxes(k, -1, -2)) @ v


def additive_attention(q, k, v, mask):
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(8) + mask
    return jnp.einsum("bhqk,bkhd->bqhd", jax.nn.softmax(scores, -1), v)


def grouped_attention(q, k, v):
    """Queries in groups that share keys and values, masked by positions, softmax in float32."""
    batch, length, heads, width = q.shape
    q = q.reshape(batch, length, k.shape[2], -1, width)
    scores = jnp.einsum("bnkgd,bskd->bkgns", q, k, preferred_element_type=jnp.float32)
    seen = jnp.arange(k.shape[1])[None, :] <= jnp.arange(length)[:, None]
    weights = jax.nn.softmax(jnp.where(seen, scores / np.sqrt(width), -1e9), -1)
    out = jnp.einsum("bkgns,bskd->bnkgd", weights.astype(q.dtype), v)
    return out.reshape(batch, length, heads * width)


def causal_attention(q, k, v):
    return jax.nn.dot_product_attention(q, k, v, is_causal=True)


ATTENTIONS = {
    "plain": (plain_attention, 4, ()),
    "additive": (additive_attention, 4, ((2, 1, 1, 16),)),
    "causal": (causal_attention, 4, ()),
    "grouped": (grouped_attention, 2, ()),
    "grouped and causal": (causal_attention, 2, ()),
}


@case
def attention_is_one_instruction_and_so_is_its_gradient():
    for (function, heads, more), dtype in itertools.product(
        ATTENTIONS.values(), (np.float32, jnp.bfloat16)
    ):
        shapes = ((2, 16, 4, 8), (2, 16, heads, 8), (2, 16, heads, 8), *more)
        arrays = [array(*shape).astype(dtype) for shape in shapes]
        gradient = jax.value_and_grad(
            lambda *a, f=function: jnp.sum(f(*a).astype(jnp.float32) ** 2), (0, 1, 2)
        )
        for program, products in ((function, [2]), (gradient, [2, 5])):
            apart, fused = (from_jax(program, *arrays, options=options) for options in LEVELS)
            assert [n for n in map(products_in, fused.program.fusions) if n > 1] == products, (
                function
            )
            pair = [jax.tree.leaves(run(neff, *arrays)) for neff in (apart, fused)]
            for mine, theirs in zip(*pair, strict=True):
                if function is grouped_attention:
                    # The fusion reads an operand in another orientation, for which OpenBLAS has
                    # kernels that add in another order on some processors (Haswell's).
                    largest = np.abs(np.asarray(mine, np.float32)).max()
                    np.testing.assert_allclose(
                        np.asarray(mine, np.float32),
                        np.asarray(theirs, np.float32),
                        rtol=0,
                        atol=float(4 * jnp.finfo(dtype).eps * largest),
                    )
                else:
                    assert np.asarray(mine).tobytes() == np.asarray(theirs).tobytes()
            expected = jax.tree.leaves(program(*arrays))
            for mine, theirs in zip(pair[1], expected, strict=True):
                close(mine, theirs, 0.1 if dtype is not np.float32 else 1e-4)


LEVELS = (CompileOptions(level=0), CompileOptions(level=2))


def products_in(fusion):
    return sum(row.opcode == "dot" for row in fusion.body)


def run(neff, *arrays):
    return ncc_runtime.load(neff).run(*arrays).result


def close(mine, theirs, tolerance):
    mine, theirs = (np.asarray(each).astype(np.float32) for each in (mine, theirs))
    assert np.abs(mine - theirs).max() <= tolerance * max(1, np.abs(theirs).max())


@case
def shard_map_with_collectives():
    def function(x):
        return lax.psum(x, "i"), x * lax.axis_index("i")

    x = array(16, 4)
    factors = np.repeat(np.arange(8), 2)[:, None].astype(np.float32)
    expected = (x.reshape(8, 2, 4).sum(0), x * factors)
    mapped = jax.shard_map(function, mesh=mesh(i=8), in_specs=P("i"), out_specs=(P(), P("i")))
    check(from_jax(mapped, x), expected, x)
    check(from_jax(jax.jit(mapped), x), expected, x)


@case
def stages():
    devices = mesh(a=2, b=4)
    shardings = NamedSharding(devices, P("a")), NamedSharding(devices, P(None, "b"))
    x, y = array(8, 6), array(6, 8)
    jitted = jax.jit(lambda x, y: x @ y, in_shardings=shardings)
    traced = jitted.trace(struct(x), struct(y))
    check(from_jax(jitted, x, y), x @ y, x, y)
    check(from_jax(traced), x @ y, x, y)
    check(from_jax(traced.lower(lowering_platforms=("cpu",))), x @ y, x, y)


@case
def an_exported_function():
    devices = mesh(a=2, b=4)
    tree = {"x": NamedSharding(devices, P("a")), "y": NamedSharding(devices, P(None, "b"))}
    jitted = jax.jit(lambda pair, _: pair["x"] @ pair["y"], in_shardings=(tree, None))
    pair, unused = {"x": array(8, 6), "y": array(6, 8)}, array(3)
    exported = jax.export.export(jitted, platforms=["cpu"])(
        jax.tree.map(struct, pair), struct(unused)
    )
    neff = check(from_jax(exported), pair["x"] @ pair["y"], pair, unused)
    assert names(neff) == ["args[0]['x']", "args[0]['y']"]


@case
def an_exported_function_of_any_size():
    sizes = jax.export.symbolic_shape("b, 4")
    exported = jax.export.export(jax.jit(lambda x: jnp.sin(x).sum()), platforms=["cpu", "tpu"])(
        jax.ShapeDtypeStruct(sizes, jnp.float32)
    )
    x = array(8, 4)
    check(from_jax(exported, x), np.sin(x).sum(), x, ranks=1)


@case
def keys_typed_and_raw():
    def noisy(key, x):
        first, second = jax.random.split(key)
        return first, x + jax.random.normal(second, x.shape)

    x = array(16, 4)
    for key in (jax.random.key(7), jax.random.PRNGKey(3)):
        neff = from_jax(noisy, key, x, mesh={"d": 8}, in_shardings=(None, P("d")))
        check(neff, jax.jit(noisy)(key, x), key, x)
    keys, x = jax.random.split(jax.random.key(1), 8), array(8)
    each = jax.vmap(lambda key, x: x + jax.random.uniform(key))
    neff = from_jax(each, keys, x, mesh=mesh(d=8), in_shardings=P("d"))
    check(neff, each(keys, x), keys, x)


@case
def donated_and_unused_arguments():
    function = jax.jit(
        lambda state, _, x: ({"a": state["a"] + x, "b": state["b"] * 2}, x.sum()), donate_argnums=0
    )
    state, x, unused = {"a": array(8, 4), "b": array(8, 4)}, array(8, 4), array(5)
    expected = {"a": state["a"] + x, "b": state["b"] * 2}, x.sum()
    shardings = (P("d"), None, P("d"))
    neff = from_jax(function, state, unused, x, mesh=mesh(d=8), in_shardings=shardings)
    check(neff, expected, state, unused, x)
    assert len(neff.program.inputs) == 3


@case
def results_that_are_arguments_or_constants():
    def function(x, y):
        return x, x, y * 2, jnp.float32(3), jnp.arange(4)

    x, y = array(8, 2), array(8, 2)
    neff = from_jax(function, x, y, mesh=mesh(d=8), in_shardings=P("d"))
    check(neff, jax.jit(function)(x, y), x, y)
    for options in ({"mesh": mesh(d=8), "in_shardings": P("d")}, {"mesh": {"d": 8}}):
        check(from_jax(lambda x: x, x, **options), x, x)
    check(from_jax(lambda x: x, x), x, x, ranks=1)


@case
def numbers_and_keywords():
    def function(x, n, *, scale, deep):
        return {"r": x * n * scale + deep["z"][0]}

    x, keywords = array(8), {"scale": 2.5, "deep": {"z": (1.0,)}}
    neff = from_jax(function, x, 3, mesh={"d": 8}, **keywords)
    check(neff, jax.jit(function)(x, 3, **keywords), x, 3, **keywords)
    assert names(neff) == ["x", "n", "deep['z'][0]", "scale"]


@case
def static_arguments():
    def function(x, n):
        return x.reshape(n, -1).sum(0)

    x = array(8)
    expected = x.reshape(4, -1).sum(0)
    check(from_jax(jax.jit(function, static_argnums=1), x, 4, mesh={"d": 8}), expected, x)
    check(from_jax(function, x, 4, mesh={"d": 8}, static_argnums=1), expected, x)
    check(from_jax(function, x, n=4, static_argnames="n"), expected, x, ranks=1)


@case
def donated_arguments_feed_the_next_step():
    def step(weights, momentum, x):
        gradient = jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w["w"]) ** 2))(weights)
        momentum = jax.tree.map(lambda m, g: 0.9 * m + g, momentum, gradient)
        weights = jax.tree.map(lambda w, m: w - 0.1 * m, weights, momentum)
        return jnp.sum(weights["w"]), weights, momentum

    weights, momentum = {"w": array(8, 16)}, {"w": np.zeros((8, 16), np.float32)}
    rows = array(3, 32, 8)
    cut = {"w": P("d")}
    for of_state in (P(), cut):
        donated = {"donate_argnums": (0, 1), "mesh": {"d": 8}}
        shardings = {
            "in_shardings": (of_state, of_state, P("d")),
            "out_shardings": (P(), of_state, of_state),
        }
        neff = from_jax(step, weights, momentum, rows[0], **donated, **shardings)
        assert neff.program.aliases == ((1, 0), (2, 1))
        model = ncc_runtime.load(neff)
        runs = model.run_steps(4, weights, momentum, rows[0], batches={"x": rows})
        state = weights, momentum
        for number, run in enumerate(runs):
            expected, *state = jax.jit(step)(*state, rows[number % 3])
            np.testing.assert_allclose(run.result[0], expected, rtol=1e-4, atol=1e-5)
    assert not from_jax(step, weights, momentum, rows[0], mesh={"d": 8}).program.aliases


@case
def narrow_types():
    for dtype in (jnp.bfloat16, jnp.float8_e4m3fn, jnp.int4, jnp.bool_, jnp.int8):
        x = NOISE.integers(-4, 4, (8, 4)).astype(dtype)

        def function(x):
            return x, x.astype(jnp.float32) * 2, jnp.flip(x, 0)

        neff = from_jax(function, x, mesh=mesh(d=4, e=2), in_shardings=P("d", "e"))
        check(neff, jax.jit(function)(x), x)


@case
def partially_replicated_shardings():
    def function(x, y):
        return lax.with_sharding_constraint(x + y, P("c", "a")), x * 2, x @ y.T

    x, y, devices = array(8, 4), array(8, 4), mesh(a=2, b=2, c=2)
    outputs = (P(("c", "b", "a")), P(None, "a"), None)
    for out_shardings in (None, outputs):
        neff = from_jax(
            function,
            *(x, y),
            mesh=devices,
            in_shardings=(P("b"), P(("a", "c"), "b")),
            out_shardings=out_shardings,
        )
        check(neff, (x + y, x * 2, x @ y.T), x, y)


@case
def arrays_that_do_not_divide():
    def function(x):
        longer = lax.with_sharding_constraint(jnp.concatenate([x, x[:3]]), P("a"))
        shorter = lax.with_sharding_constraint(x[:5], P("a"))
        return longer.sum(0), jnp.cumsum(shorter, 0), shorter

    x = array(8, 4)
    neff = from_jax(function, x, mesh=mesh(a=8), in_shardings=P("a"))
    check(
        neff,
        jax.jit(lambda x: (jnp.concatenate([x, x[:3]]).sum(0), jnp.cumsum(x[:5], 0), x[:5]))(x),
        x,
    )


@case
def shardings_that_arguments_have():
    x, sharding = array(8, 4), NamedSharding(mesh(a=2, b=4), P("a", "b"))
    arguments = [struct(x, sharding)]
    if HAS_DEVICES:
        arguments.append(jax.device_put(x, sharding))
    for argument in arguments:
        neff = from_jax(lambda x: jnp.tanh(x) @ x.T, argument)
        check(neff, np.tanh(x) @ x.T, x)
        assert neff.program.parameters[0].sharding is not None
    if HAS_DEVICES:
        check(neff, np.tanh(x) @ x.T, arguments[1])


@case
def explicit_axes():
    devices = mesh(AxisType.Explicit, a=2, b=4)
    x, y = array(8, 4), array(4, 8)
    arguments = (
        struct(x, NamedSharding(devices, P("a"))),
        struct(y, NamedSharding(devices, P(None, "b"))),
    )
    neff = from_jax(lambda x, y: jnp.dot(x, y, out_sharding=P("a", "b")), *arguments, mesh=devices)
    check(neff, x @ y, x, y)


@case
def loops_and_branches():
    def function(x, w):
        def body(carry, _):
            return jnp.tanh(carry @ w), carry.sum()

        last, sums = lax.scan(body, x, None, length=5)
        doubled = lax.cond(sums[-1] > 0, lambda c: c * 2, lambda c: c - 1, last)
        grown = lax.while_loop(lambda t: t[0] < 3, lambda t: (t[0] + 1, t[1] * 1.5), (0, last))[1]
        return doubled, grown

    x, w = array(8, 16), array(16, 16) / 10
    neff = from_jax(function, x, w, mesh=mesh(d=2, m=4), in_shardings=(P("d"), P(None, "m")))
    check(neff, jax.jit(function)(x, w), x, w)


@case
def linear_algebra_along_a_sharded_batch():
    def function(x):
        positive = x @ x.mT + 4 * jnp.eye(4)
        return jnp.linalg.qr(x)[1], jnp.linalg.cholesky(positive), jnp.sort(x, -1)

    x = array(8, 4, 4)
    neff = from_jax(function, x, mesh=mesh(d=8), in_shardings=P("d"))
    check(neff, jax.jit(function)(x), x, atol=1e-3)


@case
def gradients_of_integers():
    def function(x, n):
        return jax.grad(lambda x, n: (x * n).sum(), argnums=(0, 1), allow_int=True)(x, n)

    x, n = array(8), np.arange(8, dtype=np.int32)
    neff = from_jax(function, x, n, mesh={"d": 8}, in_shardings=P("d"))
    check(neff, function(x, n), x, n)


@case
def devices_in_another_order():
    if not HAS_DEVICES:
        return
    order = np.array(jax.devices())[[3, 1, 0, 2, 7, 5, 6, 4]].reshape(2, 4)
    x = array(8, 4)
    neff = from_jax(
        lambda x: jnp.cumsum(x, 0),
        x,
        mesh=jax.sharding.Mesh(order, ("a", "b")),
        in_shardings=P("a", "b"),
        out_shardings=P("b"),
    )
    check(neff, np.cumsum(x, 0), x)


@case
def sixty_four_ranks_without_a_device():
    devices = AbstractMesh((16, 4), ("d", "t"))
    shardings = NamedSharding(devices, P("d")), NamedSharding(devices, P(None, "t"))
    x, w = array(64, 32), array(32, 64)
    jitted = jax.jit(lambda x, w: (x @ w, (x @ w).sum()), in_shardings=shardings)
    check(from_jax(jitted, x, w), (x @ w, (x @ w).sum()), x, w, ranks=64, rtol=1e-3, atol=1e-3)


@case
def arrays_of_every_rank():
    x = array(8, 4)
    neff = from_jax(lambda x: x.sum(0), x, mesh={"d": 8}, in_shardings=P("d"))
    model = ncc_runtime.load(neff)
    for given in ((x,), (x[:, None],), ([x],), ([x[:, None]],), ({"x": x},), ({"arg0": x},)):
        np.testing.assert_allclose(model.run(*given).result, x.sum(0), rtol=1e-5)
    run = model.run(x)
    assert [output.shape for output in run.outputs] == [(8, 4)]
    assert model.run(values=False).result is None


@case
def a_program_for_one_device_on_several_ranks():
    x = array(8)
    check(from_jax(lambda x: x * 2, x, options=CompileOptions(ranks=4)), x * 2, x, ranks=4)


@case
def empty_arrays_and_no_arrays():
    x, y = array(0, 4), array(8, 0)

    def function(x, y):
        return x * 2, y.sum(1), None, ()

    neff = from_jax(function, x, y, mesh={"d": 8}, in_shardings=(None, P("d")))
    check(neff, (x * 2, y.sum(1), None, ()), x, y)
    twice = 2 * np.arange(16, dtype=np.float32)
    for options, ranks in (({"mesh": {"d": 8}, "out_shardings": P("d")}, 8), ({}, 1)):
        check(from_jax(lambda: jnp.arange(16.0) * 2, **options), twice, ranks=ranks)
    assert ncc_runtime.load(from_jax(lambda _: None, x)).run(x).result is None


@case
def keys_of_a_bit_generator():
    key = jax.random.key(0, impl="rbg")  # annotated for a mesh without axes
    for options, ranks in (({"mesh": {"d": 8}}, 8), ({}, 1)):
        neff = from_jax(lambda key: jax.random.bits(key, (8, 4)), key, **options)
        check(neff, jax.random.bits(key, (8, 4)), key, ranks=ranks)


@case
def manual_and_automatic_axes():
    devices, x, w = mesh(d=2, m=4), array(8, 16), array(16, 16)
    partly = jax.shard_map(
        lambda x, w: lax.psum(x @ w, "d"),
        mesh=devices,
        in_specs=(P("d"), P()),
        out_specs=P(),
        axis_names={"d"},
    )
    neff = from_jax(jax.jit(partly), x, w, mesh=devices, in_shardings=(P("d"), P(None, "m")))
    check(neff, (x @ w).reshape(2, 4, 16).sum(0), x, w, atol=1e-3)
    wholly = jax.shard_map(
        lambda x, w: x @ w, mesh=devices, in_specs=(P("d"), P(None, "m")), out_specs=P("d", "m")
    )

    def function(x, w):
        return lax.with_sharding_constraint(jnp.tanh(wholly(x, w)), P("m")) @ w

    check(from_jax(function, x, w, mesh=devices), np.tanh(x @ w) @ w, x, w, atol=1e-3)


@case
def names_of_any_letters():
    pair = collections.namedtuple("pair", "a b")
    x, odd = array(4), 'x"y\\é\n'

    def function(first, *rest):
        return pair(first.b, {odd: first.a + rest[0]})

    neff = from_jax(function, pair(x, x), x, mesh={"d": 2})
    check(neff, pair(x, {odd: x + x}), pair(x, x), x, ranks=2)
    assert names(neff) == ["first.a", "first.b", "rest[0]"]
    assert parse_program(print_program(neff.program)) == neff.program


def refusal(function, *args, **options) -> str:
    with pytest.raises(CompileError) as error:
        from_jax(function, *args, **options)
    return str(error.value)


@case
def refusals():
    x = array(8, 2)
    jitted = jax.jit(lambda x: x)
    exported = jax.export.export(jitted)(
        jax.ShapeDtypeStruct(jax.export.symbolic_shape("b"), jnp.float32)
    )
    for_two = jitted.trace(x).lower(lowering_platforms=("cpu", "tpu"))
    for told, function, args, options in (
        ("from_jax(jax.jit(f).lower(*args))", jitted.lower(x).compile(), (), {}),
        ("an int is no function", 3, (), {}),
        ("arguments come too late", jitted.lower(x), (x,), {}),
        ("in_shardings come too late", jitted.lower(x), (), {"in_shardings": P()}),
        ("got (2,) and (8,). (", lambda x: x @ x, (x,), {}),
        ("give the function with its arguments", jitted, (), {}),
        ("partitioned 3 times", jitted, (x,), {"mesh": {"d": 3}, "in_shardings": P("d")}),
        ("is not found in mesh", jitted, (x,), {"mesh": {"d": 8}, "in_shardings": P("e")}),
        ('write {"data": 2, "model": 4}', jitted, (x,), {"mesh": {}}),
        ('write {"data": 2, "model": 4}', jitted, (x,), {"mesh": {"d": "8"}}),
        ('write {"data": 2, "model": 4}', jitted, (x,), {"mesh": 8}),
        ("jax.new_ref", lambda ref: ref[...] + 1, (jax.new_ref(x),), {}),
        ("give arguments with it", exported, (), {}),
        ("lowered for several platforms", for_two, (), {}),
        ("take the jax.pure_callback", lambda x: jax.debug.print("{}", x), (x,), {}),
    ):
        answer = refusal(function, *args, **options)
        assert told in answer, answer


@case
def arguments_of_a_run_that_do_not_fit():
    x = array(4)
    model = ncc_runtime.load(from_jax(lambda x, y: x + y, x, x))
    for told, args, kwargs in (
        ("the function takes (float32[4], float32[4])", (x,), {}),
        ("the function takes (float32[4], float32[4])", (x, x, x), {}),
        ("the function takes (float32[4], float32[4])", ({"a": x}, x), {}),
        ("the function takes (float32[4], float32[4])", (x, x), {"z": x}),
        ("arg1 y has shape [5]", (x, array(5)), {}),
    ):
        with pytest.raises(InputError) as error:
            model.run(*args, **kwargs)
        assert told in str(error.value)


def main() -> None:
    answers = {}
    for name in sys.argv[1:] or CASES:
        try:
            CASES[name]()
            answers[name] = ""
        except Exception:  # noqa: BLE001 - told where the test of this name is
            answers[name] = traceback.format_exc()
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
