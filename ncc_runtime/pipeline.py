"""Several programs for one run: checked against each other, then joined."""

from collections.abc import Mapping, Sequence

import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.neff.join import Place, joined
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.stages import Stage, ranks_text
from ncc_runtime.verify.agreement.meetings import Meeting
from ncc_runtime.verify.agreement.mismatch import matched


def stage_of(program: Program, ranks: Sequence[int], label: str) -> Stage:
    """A program and who runs it; InputError where those are no ranks of its world."""
    if not ranks:
        raise InputError(f"{label} has no ranks; give those that run it, as in 0-3,8")
    found = np.unique(np.array(ranks, np.int64))
    outside = found[(found < 0) | (found >= program.ranks)]
    if len(outside):
        raise InputError(
            f"{label} is compiled for {program.ranks} ranks, which are numbered from 0; there is "
            f"no rank {outside[0]}"
        )
    return Stage(program, found.astype(np.int32), label)


def joint_program(stages: Sequence[Stage]) -> Program:
    """The stages as one program; a MismatchError tells where they disagree."""
    _check_ranks(stages)
    if len(stages) == 1:
        return stages[0].program
    meetings = matched(stages)
    shared = [{stage: call.number for stage, call in one.items()} for one in meetings]
    return joined(stages, shared, _twins(meetings))


def _check_ranks(stages: Sequence[Stage]) -> None:
    """Every rank runs one program."""
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


def _twins(meetings: Sequence[Meeting]) -> dict[Place, Place]:
    """Blocks around shared collectives, by stage and number; each with that of the first stage."""
    found: dict[Place, Place] = {}  # each with one of a stage before
    for meeting in meetings:
        first, *others = (call for _, call in sorted(meeting.items()))
        pairs = (
            (call, *blocks) for call in others for blocks in zip(first.nest, call.nest, strict=True)
        )
        for call, mine, theirs in pairs:
            sides = (first.stage, mine.block), (call.stage, theirs.block)
            one, other = sorted(_first(found, side) for side in sides)
            if one != other:
                found[other] = one
    return {place: _first(found, place) for place in found}


def _first(twins: Mapping[Place, Place], place: Place) -> Place:
    while place in twins:
        place = twins[place]
    return place
