"""Lowering: a program on its placement becomes an executable. Read `lower` first.

    choose   an algorithm for every placeholder, by the price of its plans   (choices.py)
    plan     its plans, one for all replica groups with one arrangement      (collectives/)
    lower    plans to descriptors, CC-core programs and semaphores           (lower_plans, below)
    split    queues of several pipeline stages, one for each stage           (stage_queues.py)

Tests and benchmarks that have plans of their own call `lower_plans`.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

from ncc_runtime.collectives.choose import check_forced
from ncc_runtime.collectives.plan_memory import check_room
from ncc_runtime.collectives.symmetry import AsymmetryError, RankSymmetry
from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.capacity import check_capacity, check_channels, rank_capacity
from ncc_runtime.lowering.channels import SemaphoreIds, SemaphoresError
from ncc_runtime.lowering.choices import REMEDY, ProgramChooser, addresses_of, semaphore_limit
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
from ncc_runtime.neff.program import ALIGNMENT, Program
from ncc_runtime.neff.stages import stages_of
from ncc_runtime.placement import Placement
from ncc_runtime.topology.routes import Routes

if TYPE_CHECKING:  # slow to import, and only users' plans need it
    from ncc_runtime.plans.files import PlanFile


@contextmanager
def without_garbage_collection() -> Iterator[None]:
    """Without the search for cyclic garbage: plans and rows hold no cycles and live to the end.

    As a decorator, of a function whose plans are gone when the search goes on.
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
    plans: Sequence["PlanFile"] = (),
    *,
    times_only: bool = False,
    ignore_memory: bool = False,
) -> Executable:
    """Lower every placeholder. `forced` names algorithms by operator, `plans` are users' own.

    With `times_only` the executable has columns of one instance's ranks where these stand for all;
    it can be timed, not proved or computed. With `ignore_memory`, what takes more memory than a
    rank has is placed too, to be timed.

    Raises LoweringError where a placeholder cannot be lowered, PlanError for a plan.
    """
    check_forced(forced)
    check_capacity(program, placement.topology, ignore_memory=ignore_memory)
    chooser = ProgramChooser(
        program, placement, forced, plans, times_only=times_only, ignore_memory=ignore_memory
    )
    while True:
        try:
            chosen = [choice.replica_groups for choice in chooser.choose()]
            return lower_plans(
                program, placement, chosen, chooser.symmetry, ignore_memory=ignore_memory
            )
        except AsymmetryError:  # one instance does not stand for all: every rank gets columns
            chooser.drop_symmetry()


def lower_plans(
    program: Program,
    placement: Placement,
    plans: Sequence[Sequence[ReplicaGroups]],
    symmetry: RankSymmetry | None = None,
    *,
    ignore_memory: bool = False,
) -> Executable:
    """Lower every placeholder by the plans given for it, whatever these are.

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

    # A stream completes one placeholder before the next begins. So it needs one channel buffer, as
    # large as its largest plan asks for; these follow the program's own memory.
    scratch_bytes: dict[int, int] = {}
    lanes: dict[int, set[int]] = {}
    for placeholder, replica_groups in zip(program.placeholders, plans, strict=True):
        stream = placeholder.stream
        largest = max((groups.plan.scratch_bytes for groups in replica_groups), default=0)
        scratch_bytes[stream] = max(scratch_bytes.get(stream, 0), largest)
        lanes.setdefault(stream, set()).update(*(groups.plan.lanes for groups in replica_groups))
    scratch: dict[int, int] = {}  # addresses by stream
    hbm_bytes, address = program.hbm_bytes, _aligned(program.hbm_bytes)
    for stream, size in sorted(scratch_bytes.items()):
        scratch[stream], hbm_bytes = address, max(hbm_bytes, address + size)
        address += _aligned(size)
    if not ignore_memory:
        check_channels(topology, program.hbm_bytes, hbm_bytes)

    # rows, placeholder by placeholder; ids that are alike on all ranks are taken first
    ids = SemaphoreIds(
        representatives, first=len(program.semaphores), limit=semaphore_limit(program, topology)
    )
    streams = {
        stream: StreamProgram(stream, symmetry, ids, sorted(used))
        for stream, used in sorted(lanes.items())
    }
    done_sems = stream_semaphores(program)
    for step in stream_items(program):
        stream, item = step.stream, step.item
        if isinstance(item, Marker):
            streams[stream].follow(item, done_sems[stream], step.ranks)
            continue
        addresses = addresses_of(program, item, scratch[stream])
        try:
            streams[stream].append(item, plans[item], addresses, done_sems[stream])
        except SemaphoresError as reason:
            placeholder = program.placeholders[item]
            op = placeholder.op.value
            names = ", ".join(dict.fromkeys(groups.plan.algorithm for groups in plans[item]))
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
            stream.facts(scratch[number], scratch_bytes[number])
            for number, stream in streams.items()
        ),
        semaphore_count=ids.count,
        hbm_bytes=hbm_bytes,
        representatives=representatives,
        ignores_memory=ignore_memory and hbm_bytes > rank_capacity(topology),
    )


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
