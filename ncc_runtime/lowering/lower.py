"""Lowering: a program on its placement becomes an executable. Read `lower` first.

    plan     candidates for every placeholder, each a plan or several        (collectives/)
    choose   one of them, by their prices                                    (choices.py)
    lower    plans to descriptors, CC-core programs and semaphores           (lower_plans, below)
    split    queues of several pipeline stages, one for each stage           (stage_queues.py)

One placeholder is lowered by `StreamProgram.append` (stream.py), each plan of it by
`PlanLowering.append` (lower_plan.py).

Tests and benchmarks that have plans of their own call `lower_plans`.
"""

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeAlias

import attrs
import numpy as np

from ncc_runtime.collectives.choose import check_forced
from ncc_runtime.collectives.plan_memory import check_room
from ncc_runtime.collectives.symmetry import AsymmetryError, RankSymmetry
from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.capacity import check_capacity, check_channels, rank_capacity
from ncc_runtime.lowering.channels import SemaphoreIds, SemaphoresError
from ncc_runtime.lowering.choices import (
    REMEDY,
    PlansClock,
    ProgramChooser,
    addresses_of,
    semaphore_limit,
)
from ncc_runtime.lowering.engine_queues import (
    BlockShifts,
    Marker,
    patched_queues,
    shifts,
    stream_items,
    stream_semaphores,
)
from ncc_runtime.lowering.executable import (
    IDLE,
    DmaQueue,
    Executable,
    LoweredCollective,
    Queue,
)
from ncc_runtime.lowering.lower_plan import ReplicaGroups
from ncc_runtime.lowering.stage_queues import split_by_stage
from ncc_runtime.lowering.stream import StreamProgram
from ncc_runtime.neff.isa import ENGINES, Engine
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import ALIGNMENT, Program, Semaphore
from ncc_runtime.neff.stages import stages_of
from ncc_runtime.neff.table import Instr, InstrTable
from ncc_runtime.options import Policy
from ncc_runtime.placement import Placement
from ncc_runtime.progress import steps
from ncc_runtime.topology.routes import Routes

if TYPE_CHECKING:  # slow to import, and only users' plans need it
    from ncc_runtime.plans.files import PlanFile


Clock: TypeAlias = Callable[[Executable], int]
"""Picoseconds of the only collective of an executable."""


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Without the search for cyclic garbage: plans and rows are many and hold no cycles.

    Best around a whole function: when the search goes on, what only the function used is gone.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@without_garbage_collection()
def lower(
    program: Program,
    placement: Placement,
    forced: Mapping[str, str],
    plan_files: Sequence["PlanFile"] = (),
    *,
    policy: Policy = Policy.NEURON,
    times_only: bool = False,
    ignore_memory: bool = False,
    clock: Clock | None = None,
    deterministic: bool = False,
) -> Executable:
    """Lower every placeholder. `forced` names algorithms by operator, the policy chooses others:
    the cheapest, and where prices are near the one that the `clock`, if given, finds fastest.

    Users' `plan_files` say which placeholders they run.

    With `times_only` the executable has columns of one instance's ranks where these stand for all,
    and no addresses; it can be timed, not proved or computed. Users' plans are proved, so with them
    it has all of them. With `ignore_memory`, what takes more memory than a rank has is placed too,
    to be timed. `deterministic` collectives reduce in the order of their groups, wherever ranks
    are.

    Raises LoweringError where a placeholder cannot be lowered, PlanError for a plan.
    """
    check_forced(forced)
    check_capacity(program, placement.topology, ignore_memory=ignore_memory)
    chooser = ProgramChooser(
        program,
        placement,
        forced,
        plan_files,
        policy=policy,
        times_only=times_only,
        ignore_memory=ignore_memory,
        clock=None if clock is None else plans_clock(program, placement, clock),
        deterministic=deterministic,
    )
    while True:
        try:
            chosen = chooser.choose()
            executable = lower_plans(
                program,
                placement,
                [each.replica_groups for each in chosen],
                chooser.symmetry,
                ignore_memory=ignore_memory,
                has_addresses=not times_only or bool(plan_files),
            )
            lowered = (
                attrs.evolve(collective, is_beyond_policy=each.choice.is_beyond_policy)
                for collective, each in zip(executable.lowered, chosen, strict=True)
            )
            return attrs.evolve(
                executable, lowered=tuple(lowered), policy=policy, is_deterministic=deterministic
            )
        except AsymmetryError:  # one instance does not stand for all: every rank gets columns
            chooser.drop_symmetry()


def plans_clock(program: Program, placement: Placement, clock: Clock) -> PlansClock:
    """The time of plans of a program's placeholder, which is lowered alone, on stream 0.

    LoweringError where that cannot be, AsymmetryError if the symmetry does not hold.
    """
    queues = {engine: InstrTable.from_rows(()) for engine in ENGINES}
    queues[Engine.GPSIMD] = InstrTable.from_rows([Instr("ptc2", placeholder=0)])

    def timed(
        placeholder: Placeholder, plans: Sequence[ReplicaGroups], symmetry: RankSymmetry
    ) -> int:
        alone = attrs.evolve(
            program,
            placeholders=(attrs.evolve(placeholder, stream=0),),
            queues=queues,
            semaphores=(Semaphore("stream0", "stream 0"),),
            regions=(),
            attributes=(),
            blocks=(),
        )
        return clock(
            lower_plans(
                alone, placement, [plans], symmetry, ignore_memory=True, has_addresses=False
            )
        )

    return timed


def lower_plans(
    program: Program,
    placement: Placement,
    plans: Sequence[Sequence[ReplicaGroups]],
    symmetry: RankSymmetry | None = None,
    *,
    ignore_memory: bool = False,
    has_addresses: bool = True,
) -> Executable:
    """Lower every placeholder by the plans given for it, whatever these are.

    Addresses are half of what an executable holds, and times do not depend on them.
    AsymmetryError if `symmetry` reduces the ranks that have columns and these do not stand for all.
    """
    topology, symmetry = placement.topology, symmetry or RankSymmetry(program.ranks)
    representatives = symmetry.representatives
    check_room(
        [
            (groups.plan, symmetry.members(groups.ranks).size)
            for replica_groups in plans
            for groups in replica_groups
        ],
        representatives,
        program.ranks,
    )

    lanes: dict[int, set[int]] = {}  # by stream
    for placeholder, replica_groups in zip(program.placeholders, plans, strict=True):
        used = (groups.plan.lanes for groups in replica_groups)
        lanes.setdefault(placeholder.stream, set()).update(*used)
    buffers = _channel_buffers(program, plans)
    hbm_bytes = max([program.hbm_bytes, *(buffer.stop for buffer in buffers.values())])
    if not ignore_memory:
        check_channels(program, topology, hbm_bytes)

    # rows, placeholder by placeholder; ids that are alike on all ranks are taken first
    ids = SemaphoreIds(
        representatives, first=len(program.semaphores), limit=semaphore_limit(program, topology)
    )
    streams = {
        stream: StreamProgram(stream, symmetry, ids, sorted(used), has_addresses=has_addresses)
        for stream, used in sorted(lanes.items())
    }
    done_sems = stream_semaphores(program)
    for step in steps(tuple(stream_items(program)), "filling placeholders", "placeholders"):
        stream = step.stream
        if isinstance(step.item, Marker):
            streams[stream].follow(step.item, done_sems[stream], step.ranks)
            continue
        number = step.item
        addresses = addresses_of(program, number, buffers[stream].start)
        try:
            streams[stream].append(number, plans[number], addresses, done_sems[stream])
        except SemaphoresError as reason:
            placeholder = program.placeholders[number]
            op = placeholder.op.value
            names = ", ".join(dict.fromkeys(groups.plan.algorithm for groups in plans[number]))
            raise LoweringError(
                f"{placeholder.name}: {op} by {names}: {reason}: {REMEDY}, or another "
                f"--algorithm {op}="
            ) from None

    # queues, when all semaphores are known: the engines' first, then those of each stream
    triggers = {number: stream.trigger_sem for number, stream in streams.items()}
    queues: list[Queue] = []
    jump_shifts: dict[int, BlockShifts] = {}
    for stage in stages_of(program):
        stage_shifts = shifts(stage.program, triggers, ids.count)
        queues.extend(patched_queues(stage, triggers, stage_shifts, representatives))
        jump_shifts |= stage_shifts
    for stream_program in streams.values():
        core, rings = stream_program.queues(jump_shifts, ids.count)
        queues.extend(split_by_stage(program, core, rings, stream_program.control_row_ranks))
    check_reach(placement, queues)
    return Executable(
        program=program,
        topology=topology,
        placement=placement,
        routes=Routes(topology, placement),
        queues=tuple(queues),
        lowered=tuple(
            LoweredCollective(
                algorithms=tuple(groups.plan.algorithm for groups in replica_groups),
                group_sizes=tuple(groups.plan.members for groups in replica_groups),
            )
            for replica_groups in plans
        ),
        streams=tuple(
            stream.facts(buffers[number].start, len(buffers[number]))
            for number, stream in streams.items()
        ),
        semaphore_count=ids.count,
        hbm_bytes=hbm_bytes,
        representatives=representatives,
        has_addresses=has_addresses,
        ignores_memory=ignore_memory and hbm_bytes > rank_capacity(topology),
    )


def _channel_buffers(
    program: Program, plans: Sequence[Sequence[ReplicaGroups]]
) -> dict[int, range]:
    """The addresses of the channel buffer of each stream, behind the program's own memory.

    A stream completes one placeholder before the next begins, so one buffer is enough, as large as
    its largest plan asks for.
    """
    sizes: dict[int, int] = {}
    for placeholder, replica_groups in zip(program.placeholders, plans, strict=True):
        largest = max((groups.plan.scratch_bytes for groups in replica_groups), default=0)
        sizes[placeholder.stream] = max(sizes.get(placeholder.stream, 0), largest)
    buffers: dict[int, range] = {}
    address = _aligned(program.hbm_bytes)
    for stream, size in sorted(sizes.items()):
        buffers[stream] = range(address, address + size)
        address += _aligned(size)
    return buffers


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def check_reach(placement: Placement, queues: Sequence[Queue]) -> None:
    """Refuse a source in the memory of another chip: between chips bytes are only written."""
    chip = placement.chip
    for queue in queues:
        if not isinstance(queue, DmaQueue) or queue.source_rank is None:
            continue
        owner = queue.source_rank  # (rows, ranks, sources); the rank of a cell is its column
        is_remote = (owner != IDLE) & (chip[owner] != chip[None, : owner.shape[1], None])
        rows, ranks, numbers = np.nonzero(is_remote)
        if not rows.size:
            continue
        reader, other = int(ranks[0]), int(owner[rows[0], ranks[0], numbers[0]])
        raise LoweringError(
            f"collective {int(queue.placeholder[rows[0]])}, round {int(queue.round[rows[0]])}: "
            f"rank {reader} on chip {chip[reader]} would read the operand of rank {other} on chip "
            f"{chip[other]}; a DMA reads memory of its own chip only, others must write"
        )
