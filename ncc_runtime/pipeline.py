"""Programs of pipeline stages for one run: checked against each other, then joined to one."""

import operator
from collections.abc import Sequence

import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.stages import Stage, joined, ranks_text
from ncc_runtime.verify.agreement import agreement


def stage_of(program: Program, ranks: Sequence[int], label: str) -> Stage:
    """A program and the ranks that run it; InputError where there are no such ranks."""
    numbers = sorted({operator.index(rank) for rank in ranks})
    if not numbers:
        raise InputError(f"{label} has no ranks; give those that run it, as in 0-3,8")
    outside = [rank for rank in numbers if not 0 <= rank < program.ranks]
    if outside:
        raise InputError(
            f"{label} is compiled for {program.ranks} ranks, which are numbered from 0; there is "
            f"no rank {outside[0]}"
        )
    return Stage(program, np.array(numbers, np.int32), label)


def joint_program(stages: Sequence[Stage]) -> Program:
    """The stages as one program; every rank runs one of them.

    InputError where a rank runs none or two; MismatchError says where stages disagree.
    """
    owner: dict[int, Stage] = {}
    for stage in stages:
        for rank in stage.ranks.tolist():
            if rank in owner:
                raise InputError(
                    f"rank {rank} is given to {owner[rank].label} and to {stage.label}; "
                    "a rank runs one program"
                )
            owner[rank] = stage
    missing = [rank for rank in range(stages[0].program.ranks) if rank not in owner]
    if missing:
        raise InputError(
            f"no program is given for ranks {ranks_text(missing)} of {stages[0].program.ranks}"
        )
    if len(stages) == 1:
        return stages[0].program
    agreed = agreement(stages)
    return joined(stages, agreed.collectives, agreed.matched_blocks)
