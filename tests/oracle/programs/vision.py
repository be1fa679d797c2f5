"""Convolutions: a training step of a small network, and unusual windows."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec as P

from tests.oracle.declare import Floats, Job, integers, mesh, normal, program


def _cnn(floats: Floats) -> Job:
    def net(k1, k2, w, x):
        x = jax.nn.relu(lax.conv_general_dilated(x, k1, (1, 1), "SAME", **NHWC))
        x = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        x = jax.nn.relu(lax.conv_general_dilated(x, k2, (2, 2), "SAME", **NHWC))
        return x.mean((1, 2)) @ w

    def loss(k1, k2, w, x, labels):
        cast = (y.astype(floats.narrow) for y in (k1, k2, w, x))
        out = jax.nn.log_softmax(net(*cast).astype(floats.wide))
        return -(out * jax.nn.one_hot(labels, 10, dtype=out.dtype)).sum(-1).mean()

    def function(k1, k2, w, x, labels):
        value, grads = jax.value_and_grad(loss, (0, 1, 2))(k1, k2, w, x, labels)
        return value, *(p - 0.1 * g for p, g in zip((k1, k2, w), grads, strict=True))

    arguments = (
        normal(0, 3, 3, 3, 8, scale=0.3),
        normal(1, 3, 3, 8, 16, scale=0.2),
        normal(2, 16, 10),
        normal(3, 16, 10, 10, 3),
        integers(4, 10, 16),
    )
    specs = (P(), P(None, None, None, "tp"), P("tp"), P("dp"), P("dp"))
    return Job(function, arguments, specs, mesh(dp=4, tp=2))


NHWC = {"dimension_numbers": ("NHWC", "HWIO", "NHWC")}


@program("f32")
def cnn_step_f32(floats: Floats) -> Job:
    return _cnn(floats)


@program("bf16")
def cnn_step_bf16(floats: Floats) -> Job:
    return _cnn(floats)


@program("f32")
def unusual_convolutions(floats: Floats) -> Job:
    def function(x, kernel, wide):
        depthwise = lax.conv_general_dilated(
            x, kernel, (1, 2), [(2, 1), (0, 3)], rhs_dilation=(2, 1), feature_group_count=4
        )
        transposed = lax.conv_transpose(x, wide, (2, 3), "SAME", dimension_numbers=DIMS)
        dilated = lax.conv_general_dilated(x, wide, (1, 1), [(-1, 2), (3, 0)], lhs_dilation=(2, 2))
        return depthwise, transposed, dilated

    arguments = (normal(0, 8, 4, 7, 9), normal(1, 8, 1, 3, 2), normal(2, 4, 4, 3, 3))
    return Job(function, arguments, (P("dp"), P(), P()), mesh(dp=8))


DIMS = ("NCHW", "OIHW", "NCHW")


@program("f32")
def pooling_and_its_gradient(floats: Floats) -> Job:
    def pooled(x):
        largest = lax.reduce_window(x, -jnp.inf, lax.max, (1, 3, 2), (1, 2, 2), "SAME")
        mean = lax.reduce_window(x, 0.0, lax.add, (1, 2, 3), (1, 1, 2), ((0, 0), (1, 0), (2, 1)))
        return (largest**2).sum() + (mean**3).sum(), (largest, mean)

    def function(x):
        return jax.grad(pooled, has_aux=True)(x)

    return Job(function, (normal(0, 8, 9, 7),), (P("dp"),), mesh(dp=8))
