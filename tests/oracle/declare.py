"""What a JAX program of the oracle is: a function of a file in `programs/`, marked with `program`.

This module and the programs are imported by the child process only, which has jax.
"""

from collections.abc import Callable

import attrs
import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

DEVICES = 8


@attrs.frozen(eq=False)
class Floats:
    """The float types of a program: narrow ones for storage and products, wide ones for sums."""

    narrow: type
    wide: type


@attrs.frozen(eq=False)
class Job:
    """A function, its arguments as whole arrays, and how they lie on a mesh."""

    function: Callable
    arguments: tuple[np.ndarray, ...]
    specs: tuple[PartitionSpec, ...]
    mesh: Mesh


PRECISIONS = {
    "f32": Floats(jnp.float32, jnp.float32),
    "f16": Floats(jnp.float16, jnp.float32),
    "bf16": Floats(jnp.bfloat16, jnp.float32),
    "exact": Floats(jnp.float64, jnp.float64),
}


def program(precision: str) -> Callable[[Callable[[Floats], Job]], Callable[[Floats], Job]]:
    """Marks a function from float types to a job; `precision` is what the program runs in."""

    def mark(make: Callable[[Floats], Job]) -> Callable[[Floats], Job]:
        make.precision = precision
        return make

    return mark


def mesh(**axes: int) -> Mesh:
    """The first devices, in order."""
    devices = np.array(jax.devices()[: int(np.prod(list(axes.values())))])
    return Mesh(devices.reshape(tuple(axes.values())), tuple(axes))


def normal(seed: int, *shape: int, scale: float = 1.0) -> np.ndarray:
    """Reproducible float32 noise, rounded so that bf16 holds it too."""
    noise = np.random.default_rng(seed).standard_normal(shape) * scale
    return noise.astype(jnp.bfloat16).astype(np.float32)


def integers(seed: int, below: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, below, shape).astype(np.int32)
