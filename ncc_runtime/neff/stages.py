"""Several programs of one world, each on its own ranks: pipeline stages.

A stage is a program and the ranks that run it. Stages that have been joined share one numbering of
buffers, tensors, placeholders and all else; a collective that takes in ranks of several stages is
one placeholder. A program alone is one stage of all ranks.
"""

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.neff.groups import Groups
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import Program


@attrs.frozen(eq=False)
class Stage:
    """A program and who runs it."""

    program: Program
    ranks: np.ndarray  # (r,) int32, ascending
    label: str = ""  # what messages call it

    @property
    def rows(self) -> slice | np.ndarray:
        """Its ranks as an index: consecutive ones as a slice, which makes views."""
        first, last = int(self.ranks[0]), int(self.ranks[-1])
        return slice(first, last + 1) if last - first + 1 == len(self.ranks) else self.ranks

    def groups_with_own_ranks(self, placeholder: Placeholder) -> Groups:
        """The groups of a collective that name a rank of the stage, of a permute the pairs."""
        own = set(self.ranks.tolist())
        found = placeholder.pairs if is_permute(placeholder) else placeholder.groups
        return tuple(group for group in found if own.intersection(group))


def is_permute(placeholder: Placeholder) -> bool:
    """Whether it has pairs instead of groups."""
    return placeholder.op is CollectiveOp.PERMUTE


@attrs.frozen
class JointPlaceholder(Placeholder):
    """A collective of joined stages: groups and pairs are those of the ranks that take part."""

    ranks: tuple[int, ...] = ()  # ascending


def participants(placeholder: Placeholder) -> tuple[int, ...] | None:
    """The ranks that take part in a collective; None: all ranks."""
    return placeholder.ranks if isinstance(placeholder, JointPlaceholder) else None


@attrs.frozen
class JointProgram(Program):
    """Joined stages as one program; its queues and semaphores are those of the stages.

    The program of each stage numbers everything as this one does, but for semaphores, which are a
    rank's own; its placeholders say where operands and results lie on its ranks. `inputs` and
    `outputs` are those of all stages, one stage after the other.
    """

    stages: tuple[Stage, ...] = ()
    twins: Mapping[int, int] = attrs.field(factory=dict)  # block → the same one of a stage before


def stages_of(program: Program) -> tuple[Stage, ...]:
    """The stages of a program; of a program alone the only one."""
    if isinstance(program, JointProgram):
        return program.stages
    return (Stage(program, np.arange(program.ranks, dtype=np.int32), program.name),)


def twins_of(program: Program) -> Mapping[int, int]:
    """Blocks that stand for a block of a stage before, around collectives that they share."""
    return program.twins if isinstance(program, JointProgram) else {}


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as people write them: `0-3,8`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)
