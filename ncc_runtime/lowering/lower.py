"""Lowering: a program on its placement becomes an executable. Read `lower` first.

    choose   an algorithm for every placeholder, by the price of its plans   (choices.py)
    plan     its plans, one for all replica groups with one arrangement      (collectives/)
    lower    plans to descriptors, CC-core programs and semaphores           (lower_plans, below)

At the end of the file: how queues of several stages of a pipeline are told apart. Every stage gets
queues of its own, with those rows of what is lowered together that belong to it. A collective that
stages share has all of its rows in the queues of each of them, the same rows in the same order;
cells of ranks that do not run a queue are idle.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import attrs
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
    CcQueue,
    DmaQueue,
    Executable,
    LoweredCollective,
    Post,
    Queue,
    Registers,
    Sync,
)
from ncc_runtime.lowering.lower_plan import ReplicaGroups
from ncc_runtime.lowering.stream import StreamProgram
from ncc_runtime.neff.program import ALIGNMENT, Program
from ncc_runtime.neff.stages import Stage, participants, stages_of
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
            chosen = [one.replica_groups for one in chooser.choose()]
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
        [(one.plan, symmetry.members(one.ranks).size) for groups in plans for one in groups],
        representatives,
        program.ranks,
    )

    # each stream has a channel buffer behind the program's own memory, and the rings that it needs
    scratch_bytes: dict[int, int] = {}
    lanes: dict[int, set[int]] = {}
    for placeholder, groups in zip(program.placeholders, plans, strict=True):
        stream = placeholder.stream
        need = max((one.plan.scratch_bytes for one in groups), default=0)
        scratch_bytes[stream] = max(scratch_bytes.get(stream, 0), need)
        lanes.setdefault(stream, set()).update(*(one.plan.lanes for one in groups))
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
            names = ", ".join(dict.fromkeys(one.plan.algorithm for one in plans[item]))
            raise LoweringError(
                f"{placeholder.name}: {op} by {names}: {reason}: {REMEDY}, or another "
                f"--algorithm {op}="
            ) from None

    # queues, when all semaphores are known: the engines' first, then those of each stream
    triggers = {stream: one.trigger_sem for stream, one in streams.items()}
    queues: list[Queue] = []
    jump_shifts: dict[int, BlockShifts] = {}
    for stage in stages_of(program):
        own = shifts(stage.program, triggers, ids.count)
        queues.extend(patched_queues(stage, triggers, own, representatives))
        jump_shifts |= own
    for one in streams.values():
        queues.extend(split(program, *one.queues(jump_shifts, ids.count), one.owners))
    check_reach(placement, queues)
    return Executable(
        program=program,
        topology=topology,
        placement=placement,
        routes=Routes(topology, placement),
        queues=tuple(queues),
        lowered=tuple(
            LoweredCollective(
                algorithms=tuple(one.plan.algorithm for one in groups),
                group_sizes=tuple(one.plan.members for one in groups),
            )
            for groups in plans
        ),
        streams=tuple(
            one.facts(scratch[stream], scratch_bytes[stream]) for stream, one in streams.items()
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
        owner = queue.source_rank
        away = (owner != IDLE) & (chip[owner] != chip[None, : owner.shape[1], None])
        rows, ranks, numbers = np.nonzero(away)
        if not rows.size:
            continue
        reader, other = int(ranks[0]), int(owner[rows[0], ranks[0], numbers[0]])
        raise LoweringError(
            f"collective {int(queue.placeholder[rows[0]])}, round {int(queue.round[rows[0]])}: "
            f"rank {reader} on chip {chip[reader]} would read the operand of rank {other} on chip "
            f"{chip[other]}; a DMA reads memory of its own chip only, others must write"
        )


Owners = Mapping[int, np.ndarray]
"""By control row of a CC-core, the ranks whose program has it."""


def split(
    program: Program, core: CcQueue, rings: Sequence[DmaQueue], owners: Owners
) -> Iterator[CcQueue | DmaQueue]:
    """The queues of one stream, stage by stage; a program alone keeps what it has."""
    stages = stages_of(program)
    if len(stages) == 1:
        yield core
        yield from rings
        return
    for stage in stages:
        own = _OwnRows(program, stage)
        runs = {ring.lane: own.of(ring.placeholder) for ring in rings}
        rows = own.of(core.placeholder)
        for row, ranks in owners.items():
            rows[row] = int(stage.ranks[0]) in ranks
        if rows.any():
            yield own.core(core, rows, runs)
        for ring in rings:
            if runs[ring.lane].any():
                yield own.ring(ring, runs[ring.lane])


class _OwnRows:
    """The rows and cells of one stage."""

    def __init__(self, program: Program, stage: Stage) -> None:
        self._ranks = stage.ranks
        self._mask: np.ndarray = np.zeros(program.ranks, bool)
        self._mask[stage.ranks] = True
        first = int(stage.ranks[0])
        self._takes_part = np.array(  # by placeholder; IDLE, which is -1, reads the last one
            [first in (participants(one) or ()) for one in program.placeholders] + [False]
        )

    def of(self, placeholder: np.ndarray) -> np.ndarray:
        """Which rows are of collectives in which the stage takes part, (n,) bool."""
        return self._takes_part[placeholder]

    def core(self, queue: CcQueue, rows: np.ndarray, runs: Mapping[int, np.ndarray]) -> CcQueue:
        """Its rows of a CC-core's program."""
        ring_row = queue.ring_row.copy()
        for lane, kept in runs.items():
            moved = queue.ring == lane
            ring_row[moved] = (np.cumsum(kept) - 1)[ring_row[moved]]
        place = np.append(np.cumsum(rows) - rows, rows.sum())  # of each row, were it the next
        jumps = {
            int(place[row]): attrs.evolve(jump, target=int(place[jump.target]))
            for row, jump in queue.jumps.items()
            if rows[row]
        }
        return attrs.evolve(
            queue,
            opcode=queue.opcode[rows],
            placeholder=queue.placeholder[rows],
            round=queue.round[rows],
            ring=queue.ring[rows],
            ring_row=ring_row[rows],
            sync=self._sync(queue.sync, rows),
            jumps=jumps,
            loads={int(place[row]): load for row, load in queue.loads.items() if rows[row]},
            ranks=self._ranks,
        )

    def ring(self, queue: DmaQueue, rows: np.ndarray) -> DmaQueue:
        """Its rows of a DMA ring."""
        owner, also_peer, also_target = queue.source_rank, queue.also_peer, queue.also_target
        registers = queue.registers
        return attrs.evolve(
            queue,
            opcode=queue.opcode[rows],
            placeholder=queue.placeholder[rows],
            round=queue.round[rows],
            divisor=queue.divisor[rows],
            peer=self._own(queue.peer, rows),
            sources=np.where(self._mask[:, None], queue.sources[rows], IDLE),
            target=self._own(queue.target, rows),
            size_bytes=self._own(queue.size_bytes, rows, 0),
            sync=self._sync(queue.sync, rows),
            source_rank=None if owner is None else np.where(self._mask[:, None], owner[rows], IDLE),
            also_peer=None if also_peer is None else self._own(also_peer, rows),
            also_target=None if also_target is None else self._own(also_target, rows),
            registers=None
            if registers is None
            else Registers(*(self._own(column, rows) for column in registers.columns)),
            ranks=self._ranks,
        )

    def _sync(self, sync: Sync, rows: np.ndarray) -> Sync:
        posts = (Post(self._own(post.rank, rows), self._own(post.sem, rows)) for post in sync.posts)
        return Sync(self._own(sync.wait_sem, rows), sync.wait_value[rows], tuple(posts))

    def _own(self, column: np.ndarray, rows: np.ndarray, idle: int = IDLE) -> np.ndarray:
        return np.where(self._mask, column[rows], column.dtype.type(idle))
