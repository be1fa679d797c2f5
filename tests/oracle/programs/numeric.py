"""Numbers: random ones, integers and bits, transforms, decompositions, odd shapes, dtypes."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.oracle.declare import Floats, Job, integers, mesh, normal, program


@program("f32")
def dropout_by_threefry(floats: Floats) -> Job:
    def loss(x, seed):
        keep = jax.random.bernoulli(jax.random.key(seed), 0.8, x.shape)
        return (jnp.where(keep, x / 0.8, 0) ** 2).sum()

    return Job(
        jax.value_and_grad(loss), (normal(0, 16, 9), integers(1, 99)), (P("dp"), P()), mesh(dp=8)
    )


@program("f32")
def random_numbers(floats: Floats) -> Job:
    def function(seed):
        keys = jax.random.split(jax.random.key(seed), 4)
        rbg = jax.random.key(seed, impl="rbg")
        return (
            jax.random.uniform(keys[0], (16, 5), jnp.float32),
            jax.random.normal(keys[1], (8, 6), jnp.float32),
            jax.random.permutation(keys[2], jnp.arange(24, dtype=jnp.int32)),
            jax.random.randint(keys[3], (16,), -5, 1000, jnp.int32),
            jax.random.bits(keys[0], (24, 3), jnp.uint8),
            jax.random.bits(rbg, (8, 5), jnp.uint32),
        )

    return Job(function, (integers(3, 999),), (P(),), mesh(dp=8))


@program("f32")
def integers_and_bits(floats: Floats) -> Job:
    def function(a, b, u):
        small = a.astype(jnp.int8)
        return (
            a // b,
            lax.rem(a, b),
            a % b,
            (a ^ b) & ~a | (b << 3),
            lax.shift_right_logical(a, b & 35) + lax.shift_right_arithmetic(a, b & 31),
            lax.population_count(u) + lax.clz(u),
            small * small + jnp.int8(100),
            u * u - u // 7,
            jnp.abs(a) * jnp.sign(b),
            lax.bitcast_convert_type(a, jnp.float32).view(jnp.uint16),
            (a > b) ^ (a == 3),
            jnp.clip(a, -7, b),
            lax.integer_pow(a, 5),
            a.astype(jnp.uint8).sum(1),
        )

    a = integers(0, 2**31 - 1, 16, 6) - 2**30
    b, u = integers(1, 9, 16, 6) - 4, integers(2, 2**30, 16, 6).astype(jnp.uint32) * 5
    return Job(function, (a, b, u), (P("dp"),) * 3, mesh(dp=8))


@program("f32")
def elementary_functions(floats: Floats) -> Job:
    functions = (
        jnp.exp, jnp.expm1, jnp.sin, jnp.cos, jnp.tan, jnp.tanh, jnp.arctan, jnp.sinh,
        jnp.cbrt, jax.nn.sigmoid, lax.erf, jnp.round, jnp.floor, jnp.sign, jax.nn.gelu,
        jnp.arcsinh, lax.is_finite,
    )  # fmt: skip
    of_positive = (jnp.log, jnp.log1p, jnp.sqrt, lax.rsqrt, lax.lgamma, lax.digamma, jnp.log2)

    def function(x, y):
        positive = jnp.abs(x) + 0.1
        return (
            *(f(x) for f in functions),
            *(f(positive) for f in of_positive),
            jnp.arctan2(x, y),
            positive**y,
            jnp.fmod(x, y),
            x // y,
            jnp.maximum(x, y) - jnp.hypot(x, y),
            lax.erf_inv(jnp.tanh(x)),
            jnp.nextafter(x, y),
            lax.reduce_precision(x, 5, 7),
        )

    return Job(function, (normal(0, 16, 7), normal(1, 16, 7)), (P("dp"),) * 2, mesh(dp=8))


@program("f32")
def einsums_with_odd_sizes(floats: Floats) -> Job:
    def function(a, b, c):
        return (
            jnp.einsum("bij,bjk->bik", a, b),
            jnp.einsum("bij,bjk,kl->bl", a, b, c),
            jnp.einsum("bij,bij->b", a, a),
            jnp.einsum("bij,cjk->cbki", a, b),
            jnp.einsum("kk->k", c),
            jnp.einsum("bij->ji", a),
        )

    arguments = (normal(0, 5, 3, 7), normal(1, 5, 7, 11), normal(2, 11, 11))
    return Job(function, arguments, (P(), P(), P()), mesh(dp=8))


@program("f32")
def sizes_that_do_not_divide(floats: Floats) -> Job:
    """The partitioner pads; constraints make it cut 13 rows over 8 devices."""
    world = mesh(dp=8)

    def function(x, w):
        cut = lax.with_sharding_constraint(x @ w, jax.sharding.NamedSharding(world, P("dp")))
        mean = cut.mean(0)
        return ((cut - mean) ** 2).sum(), cut.max(0), jnp.argmin(cut, 0)

    return Job(function, (normal(0, 13, 6), normal(1, 6, 5)), (P(), P()), world)


@program("f32")
def fourier(floats: Floats) -> Job:
    def function(x):
        spectrum = jnp.fft.fft(x)
        low = spectrum * (jnp.arange(12) < 4)
        return low, jnp.fft.ifft(low).real, jnp.fft.rfft(x), jnp.fft.irfft(jnp.fft.rfft(x), n=12)

    return Job(function, (normal(0, 16, 12),), (P("dp"),), mesh(dp=8))


@program("f32")
def complex_numbers(floats: Floats) -> Job:
    def function(x, y):
        z = lax.complex(x, y)
        w = z * z.conj() + jnp.exp(z) / (z + 2)
        return w, jnp.abs(w), jnp.angle(w), jnp.sqrt(w), w @ z.T, jnp.log(z + 3), z == z.conj()

    return Job(function, (normal(0, 16, 4), normal(1, 16, 4)), (P("dp"),) * 2, mesh(dp=8))


@program("f16")
def narrow_types(floats: Floats) -> Job:
    def function(x):
        # XLA fuses this multiplication and addition where the host can: then it rounds once
        half = x.astype(floats.narrow)
        return (
            (x * 100).astype(jnp.float8_e4m3fn).astype(jnp.float32),
            (x * 1000).astype(jnp.float8_e5m2).astype(jnp.float32),
            (half * half + half).astype(jnp.float32),
            (x * 1e3).astype(jnp.int8),
            (x * 1e20).astype(jnp.int32),
            (x * 3).astype(jnp.int4).astype(jnp.int32),
            jnp.isnan(x / (x - x)),
            x.astype(jnp.bfloat16).sum(0),
            lax.dot(half, half.T, preferred_element_type=jnp.float32),
        )

    return Job(function, (normal(0, 16, 4),), (P("dp"),), mesh(dp=8))


@program("f32")
def moved_and_padded(floats: Floats) -> Job:
    def function(x):
        return (
            lax.pad(x, jnp.asarray(-1, x.dtype), ((1, 2, 1), (-1, 3, 2))),
            jnp.roll(x, 3, axis=0),
            jnp.flip(x, (0, 1)),
            jnp.tile(x, (2, 3)),
            x.reshape(8, 2, 5).swapaxes(0, 1).reshape(10, 8),
            jnp.diff(x, axis=0),
            jnp.triu(x @ x.T, 1),
            jnp.argmax(x, axis=1),
            jnp.pad(x, 2, mode="reflect"),
            x.at[3, 2].set(9.0),
            x[::-2, 1:4:2],
            jnp.var(x, axis=0),
            jnp.logical_and(x > 0, x < 1).any(1),
            jnp.kron(x[:2], x[:3]),
        )

    return Job(function, (normal(0, 16, 5),), (P("dp"),), mesh(dp=8))
