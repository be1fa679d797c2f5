"""Binds placeholders to ranks: sizes for the algorithms, teams of ranks for the plans."""

import numpy as np

from ncc_runtime.collectives.choose import Algorithm
from ncc_runtime.collectives.plan import Buffers, Job
from ncc_runtime.lowering.stream import Addresses, Team
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import Program


def job_of(program: Program, placeholder: Placeholder) -> Job:
    """The placeholder with the sizes of its buffers."""
    tensors = program.tensors
    return Job(
        placeholder,
        Buffers(
            element_bytes=placeholder.dtype.size_bytes,
            operand_elements=tuple(tensors[tensor].elements for tensor in placeholder.operands),
            result_elements=tuple(tensors[tensor].elements for tensor in placeholder.results),
            in_place=placeholder.in_place,
        ),
    )


def teams_of(program: Program, job: Job, algorithm: Algorithm) -> list[Team]:
    """One team per group size, in the order the sizes first appear.

    A permute has no groups: all ranks are members of one team, numbered as they are.
    """
    if job.placeholder.op is CollectiveOp.PERMUTE:
        everybody = np.arange(program.ranks, dtype=np.int32).reshape(1, -1)
        return [Team(algorithm(job, program.ranks), everybody)]
    by_size: dict[int, list[tuple[int, ...]]] = {}
    for group in job.placeholder.groups:
        by_size.setdefault(len(group), []).append(group)
    return [
        Team(algorithm(job, size), np.array(groups, np.int32)) for size, groups in by_size.items()
    ]


def addresses_of(program: Program, placeholder: Placeholder, scratch: int) -> Addresses:
    """Where the operands, the results and the stream's channel buffer lie."""
    return Addresses(
        operands=tuple(program.address(tensor) for tensor in placeholder.operands),
        results=tuple(program.address(tensor) for tensor in placeholder.results),
        scratch=scratch,
    )
