"""Runs a file of programs under jax: `python -m tests.oracle.run_programs FILE PRECISION OUT`.

Writes OUT/<program>.npz with inputs and outputs of every rank. XLA's dump comes from XLA_FLAGS,
which the parent sets before jax is imported.
"""

import importlib
import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import NamedSharding

from tests.oracle import arrays, declare


def run(name: str, make, precision: str, out: Path) -> None:
    job = make(declare.PRECISIONS[precision])
    function = job.function
    function.__name__ = name
    arguments = [
        jax.device_put(widened(array, precision), NamedSharding(job.mesh, spec))
        for array, spec in zip(job.arguments, job.specs, strict=True)
    ]
    results = jax.tree.leaves(jax.jit(function, keep_unused=True)(*arguments))
    found = arrays.numbered("in", [per_rank(array, job.mesh) for array in arguments])
    found |= arrays.numbered("out", [per_rank(array, job.mesh) for array in results])
    arrays.save(out / f"{name}.npz", found)


def widened(array, precision: str):
    """An argument, as float64 in the exact run."""
    exact = precision == "exact" and array.dtype.kind == "f"
    return array.astype(np.float64) if exact else array


def per_rank(array, mesh) -> np.ndarray:
    """[ranks, *shape of a part]"""
    ranks = {device: rank for rank, device in enumerate(mesh.devices.flat)}
    parts = sorted(array.addressable_shards, key=lambda shard: ranks[shard.device])
    return np.stack([np.asarray(shard.data) for shard in parts])


def main() -> None:
    file, precision, out = sys.argv[1:]
    exact = precision == "exact"
    jax.config.update("jax_enable_x64", exact)
    programs = vars(importlib.import_module(f"tests.oracle.programs.{file}"))
    for name, make in programs.items():
        own = getattr(make, "precision", None)
        if own is not None:
            run(name, make, "exact" if exact else own, Path(out))


if __name__ == "__main__":
    main()
