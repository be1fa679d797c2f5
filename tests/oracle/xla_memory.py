"""What XLA takes: `python -m tests.oracle.xla_memory FILE` compiles a file of programs for the CPU.

Prints an object: of every program the bytes of a device, as `compiled.memory_analysis()` has them,
arguments and results and temporaries without what is aliased. XLA's dump comes from XLA_FLAGS.
"""

import importlib
import json
import sys
from typing import Any

import jax
from jax.sharding import NamedSharding

from tests.oracle import declare


def taken(compiled: Any) -> int:
    """Bytes of one device."""
    found = compiled.memory_analysis()
    return int(
        found.argument_size_in_bytes
        + found.output_size_in_bytes
        + found.temp_size_in_bytes
        - found.alias_size_in_bytes
    )


def main() -> None:
    programs = vars(importlib.import_module(f"tests.oracle.programs.{sys.argv[1]}"))
    sizes = {}
    for name, make in programs.items():
        precision = getattr(make, "precision", None)
        if precision is None:
            continue
        job = make(declare.PRECISIONS[precision])
        job.function.__name__ = name
        arguments = [
            jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=NamedSharding(job.mesh, spec))
            for array, spec in zip(job.arguments, job.specs, strict=True)
        ]
        sizes[name] = taken(jax.jit(job.function, keep_unused=True).lower(*arguments).compile())
    print(json.dumps(sizes))


if __name__ == "__main__":
    main()
