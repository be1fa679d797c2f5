"""The memory that collectives beside compute may cost: measured, by placing all buffers.

What is alive at once in the order of the graph says too little: queues that know less of each other
reuse memory later, and buckets hold what waits for the last of them.
"""

from collections.abc import Callable, Iterable, Mapping

from ncc_compiler.codegen.generate import fits_into, hbm_bytes_of
from ncc_compiler.ir.graph import Computation, Module

FREE_BYTES = 64 * 1024
"""So little decides of no program whether it fits."""


def first_within(module: Module, others: Iterable[Callable[[], Module]], percent: int) -> Module:
    """The first of other forms of a module that takes no more than so much of its memory.

    `FREE_BYTES` more are taken in any case. The module itself if all take too much.
    """
    most = None
    too_large: list[Mapping[str, Computation]] = []
    for other in others:
        changed = other()
        if changed.computations in too_large:
            continue
        if all(body is module.computations[name] for name, body in changed.computations.items()):
            return module
        if most is None:
            taken = hbm_bytes_of(module)
            most = max(taken * percent // 100, taken + FREE_BYTES)
        if fits_into(changed, most):
            return changed
        too_large.append(changed.computations)
    return module
