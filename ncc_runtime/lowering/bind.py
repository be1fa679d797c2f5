"""Binds placeholders to ranks: sizes for the algorithms, teams of ranks for the plans."""

import itertools
from collections.abc import Hashable, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.collectives import rooted
from ncc_runtime.collectives.candidates import Candidate
from ncc_runtime.collectives.choose import Chooser
from ncc_runtime.collectives.plan import Buffers, Job
from ncc_runtime.lowering.capacity import rank_capacity
from ncc_runtime.lowering.executable import Load
from ncc_runtime.lowering.moves import Team
from ncc_runtime.lowering.team import Addresses
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.reductions import Reduction
from ncc_runtime.neff.stages import Stage, is_permute, participants, stages_of
from ncc_runtime.placement import Placement
from ncc_runtime.topology.graph import Topology


def job_of(program: Program, placeholder: Placeholder) -> Job:
    """The placeholder with the sizes of its buffers; pairs are places in its group."""
    tensors = program.tensors
    ranks = participants(placeholder)
    if ranks is not None and placeholder.pairs:
        at = {rank: place for place, rank in enumerate(ranks)}
        pairs = tuple((at[source], at[target]) for source, target in placeholder.pairs)
        placeholder = attrs.evolve(placeholder, pairs=pairs)
    return Job(
        placeholder,
        Buffers(
            element_bytes=placeholder.dtype.size_bytes,
            operand_elements=tuple(tensors[tensor].elements for tensor in placeholder.operands),
            result_elements=tuple(tensors[tensor].elements for tensor in placeholder.results),
            in_place=placeholder.in_place,
            row_bytes=program.row_bytes(placeholder) if placeholder.counts else 0,
            entries=tensors[placeholder.counts[0]].elements if placeholder.counts else 0,
        ),
    )


SEMAPHORES_PER_CC_CORE = 256
"""Source: neuron-driver, v2 and v3 headers (256 semaphores per NeuronCore and per TOP_SP)."""


def semaphore_limit(program: Program, topology: Topology) -> int:
    """Semaphores that a rank has: what the program's engines use, and those of its CC-cores."""
    return len(program.semaphores) + SEMAPHORES_PER_CC_CORE * topology.rank_cc_cores


def chooser_of(
    program: Program,
    placement: Placement,
    forced: Mapping[str, str],
    seen: int | None = None,
    *,
    ignore_memory: bool = False,
) -> Chooser:
    """The chooser for the placeholders of a program, whose streams share what memory is left."""
    streams = len({placeholder.stream for placeholder in program.placeholders})
    left = rank_capacity(placement.topology) - program.hbm_bytes
    room = None if ignore_memory else left // max(1, streams)
    return Chooser(placement, forced, room, streams, seen)


def groups_of(program: Program, placeholder: Placeholder) -> tuple[tuple[int, ...], ...]:
    """The groups of a placeholder; the pairs of a permute are among all who take part."""
    if placeholder.groups:
        return placeholder.groups
    ranks = participants(placeholder)
    if ranks is None:
        return (tuple(range(program.ranks)),)
    return (ranks,) if is_permute(placeholder) else ()


def alike_as(program: Program, placeholder: Placeholder) -> Hashable:
    """Placeholders that are equal in this have equal candidates and plans."""
    said = (placeholder.op, placeholder.groups, placeholder.pairs, placeholder.root)
    is_average = placeholder.reduction is Reduction.AVERAGE
    takes_part = participants(placeholder)
    return (*said, takes_part, is_average, job_of(program, placeholder).buffers)


def teams_of(program: Program, job: Job, one: Candidate) -> list[Team]:
    """A candidate's teams: one for all groups with one arrangement, in the order they appear.

    A permute has no groups: all ranks are members of one team, numbered as they are. Ranks that
    are in no group of a broadcast are a team of their own.
    """
    groups = groups_of(program, job.placeholder)
    teams = [Team(plan, ranks) for plan, ranks in one.teams]
    ranks = participants(job.placeholder)
    outside = sorted(set(range(program.ranks) if ranks is None else ranks).difference(*groups))
    if outside:
        teams.append(Team(rooted.zeros(job), np.array(outside, np.int32)[:, None]))
    return teams


def addresses_of(program: Program, number: int, scratch: int) -> Addresses:
    """Where the operands, the results and the stream's channel buffer lie."""
    sides = [(stage, stage.program.placeholders[number]) for stage in stages_of(program)]
    ranks = participants(program.placeholders[number])
    inside = [(stage, one) for stage, one in sides if ranks is None or int(stage.ranks[0]) in ranks]
    return Addresses(
        operands=_lying(program, [(stage, one.operands) for stage, one in inside]),
        results=_lying(program, [(stage, one.results) for stage, one in inside]),
        scratch=scratch,
        ranks=None if ranks is None else np.array(ranks, np.int32),
        tables=_tables(program, [(stage, one.counts) for stage, one in inside]),
    )


def _tables(program: Program, sides: Sequence[tuple[Stage, tuple[int, ...]]]) -> tuple[Load, ...]:
    """The tables of counts that transfers use; what is received is only checked."""
    tensors = [program.tensors[tensor] for tensor in sides[0][1]]
    addresses = [np.atleast_1d(np.asarray(one, np.int64)) for one in _lying(program, sides)]
    firsts = itertools.accumulate((one.elements for one in tensors), initial=0)
    found = [
        Load(address, one.elements, one.dtype, first)
        for address, one, first in zip(addresses, tensors, firsts, strict=False)
    ]
    return tuple(found[:3])


def _lying(
    program: Program, sides: Sequence[tuple[Stage, tuple[int, ...]]]
) -> tuple[int | np.ndarray, ...]:
    """The address of each tensor: one, or one for each rank where stages differ."""
    found: list[int | np.ndarray] = []
    for tensors in zip(*(one for _, one in sides), strict=True):
        addresses = [program.address(tensor) for tensor in tensors]
        if len(set(addresses)) == 1:
            found.append(addresses[0])
            continue
        column: np.ndarray = np.zeros(program.ranks, np.int64)
        for (stage, _), address in zip(sides, addresses, strict=True):
            column[stage.ranks] = address
        found.append(column)
    return tuple(found)
