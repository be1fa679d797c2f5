"""Which algorithm fills which placeholder: the registry, and the choice."""

from collections.abc import Callable, Mapping

from ncc_runtime.collectives import direct, ring
from ncc_runtime.collectives.plan import Job, Plan
from ncc_runtime.errors import LoweringError
from ncc_runtime.neff.placeholder import CollectiveOp

Algorithm = Callable[[Job, int], Plan]

ALGORITHMS: Mapping[CollectiveOp, Mapping[str, Algorithm]] = {
    CollectiveOp.ALL_REDUCE: {"ring": ring.all_reduce},
    CollectiveOp.REDUCE_SCATTER: {"ring": ring.reduce_scatter},
    CollectiveOp.ALL_GATHER: {"ring": ring.all_gather},
    CollectiveOp.ALL_TO_ALL: {"direct": direct.all_to_all},
    CollectiveOp.PERMUTE: {"direct": direct.permute},
}
"""Every algorithm of every operator; the first of each is the default."""


def check_forced(forced: Mapping[str, str]) -> None:
    """Refuse `OP=NAME` that names no operator or no algorithm of it."""
    for op_name, name in forced.items():
        known = {op.value: list(algorithms) for op, algorithms in ALGORITHMS.items()}
        if op_name not in known:
            raise LoweringError(f"no collective {op_name!r}; there are {', '.join(known)}")
        if name not in known[op_name]:
            there = ", ".join(known[op_name])
            raise LoweringError(f"{op_name} has no algorithm {name!r}; it has {there}")


def choose(job: Job, forced: Mapping[str, str]) -> Algorithm:
    """The algorithm for a placeholder: the one asked for, else the operator's default."""
    algorithms = ALGORITHMS[job.placeholder.op]
    name = forced.get(job.placeholder.op.value, next(iter(algorithms)))
    return algorithms[name]
