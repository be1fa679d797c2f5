"""Lowering as a whole: a program on its placement becomes an executable.

Gives every stage queues of its own: of what is lowered together, the rows that are its.

A collective that stages share has all of its rows in the queues of each of them, the same rows in
the same order; cells of ranks that do not run a queue are idle.

Checks that DMA rings read other ranks' memory on their own chip only.
"""

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import attrs
import numpy as np

from ncc_runtime.collectives.choose import check_forced
from ncc_runtime.collectives.plan_memory import check_room
from ncc_runtime.collectives.symmetry import UnfoldedError
from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.capacity import check_capacity, check_channels, rank_capacity
from ncc_runtime.lowering.channels import SemaphoreIds, SemaphoresError
from ncc_runtime.lowering.choices import REMEDY, Choosing, addresses_of, semaphore_limit
from ncc_runtime.lowering.engine_queues import (
    Marker,
    Shifts,
    patched_queues,
    shifts,
    steps,
    stream_semaphores,
)
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    Executable,
    Filled,
    Post,
    Queue,
    Registers,
    Sync,
)
from ncc_runtime.lowering.moves import Team
from ncc_runtime.lowering.stream import StreamProgram
from ncc_runtime.machine_model.instances import are_placed_alike
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import ALIGNMENT, Program
from ncc_runtime.neff.stages import Stage, participants, stages_of
from ncc_runtime.placement import Placement
from ncc_runtime.topology.routes import Routes

if TYPE_CHECKING:  # slow to import, and only users' plans need it
    from ncc_runtime.plans.files import PlanFile


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
    """What belongs to one stage."""

    def __init__(self, program: Program, stage: Stage) -> None:
        self._ranks = stage.ranks
        self._mask: np.ndarray = np.zeros(program.ranks, bool)
        self._mask[stage.ranks] = True
        first = int(stage.ranks[0])
        self._takes_part = np.array(
            [first in (participants(one) or ()) for one in program.placeholders] + [False]
        )

    def of(self, placeholder: np.ndarray) -> np.ndarray:
        """Which rows are of collectives in which the stage takes part, (n,) bool."""
        return self._takes_part[placeholder]  # IDLE is the last

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
        owner, also, target = queue.source_rank, queue.also_peer, queue.also_target
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
            also_peer=None if also is None else self._own(also, rows),
            also_target=None if target is None else self._own(target, rows),
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


def check_reach(placement: Placement, queues: Sequence[Queue]) -> None:
    """Refuse a source in the memory of another chip: between chips bytes are only written."""
    for queue in queues:
        if isinstance(queue, DmaQueue) and queue.source_rank is not None:
            _check_ring(placement, queue, queue.source_rank)


def _check_ring(placement: Placement, queue: DmaQueue, owner: np.ndarray) -> None:
    chip = placement.chip
    own = chip[: owner.shape[1]]
    away = (owner != IDLE) & (chip[owner] != own[None, :, None])
    rows, ranks, numbers = np.nonzero(away)
    if not rows.size:
        return
    reader, other = int(ranks[0]), int(owner[rows[0], ranks[0], numbers[0]])
    raise LoweringError(
        f"collective {int(queue.placeholder[rows[0]])}, round {int(queue.round[rows[0]])}: rank "
        f"{reader} on chip {chip[reader]} would read the operand of rank {other} on chip "
        f"{chip[other]}; a DMA reads memory of its own chip only, others must write"
    )


@contextmanager
def without_collections() -> Iterator[None]:
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


@without_collections()
def fill(
    program: Program,
    placement: Placement,
    forced: Mapping[str, str],
    plans: Sequence["PlanFile"] = (),
    *,
    folded: bool = False,
    ignore_memory: bool = False,
) -> Executable:
    """Fill every placeholder; raises LoweringError where one cannot be, PlanError for a plan.

    A folded executable has columns of the ranks of one instance, where these stand for all; it can
    be timed, not proved or computed. With users' plans, of which nothing is known, there is none.
    With `ignore_memory`, what takes more memory than a rank has is placed too, to be timed.
    """
    check_forced(forced)
    check_capacity(program, placement.topology, ignore_memory=ignore_memory)
    seen = instance_ranks(program, placement) if folded and not plans else None
    choosing = None
    with suppress(UnfoldedError):  # then every rank has columns of its own
        choosing = Choosing(
            program, placement, (forced, plans), seen=seen, ignore_memory=ignore_memory
        )
        return fill_with(program, placement, _teams(choosing), seen, ignore_memory=ignore_memory)
    if choosing is None:
        choosing = Choosing(program, placement, (forced, plans), ignore_memory=ignore_memory)
    else:
        choosing = choosing.unfolded()
    return fill_with(program, placement, _teams(choosing), ignore_memory=ignore_memory)


def _teams(choosing: Choosing) -> list[list[Team]]:
    return [list(one.teams) for one in choosing.chosen()]


def instance_ranks(program: Program, placement: Placement) -> int | None:
    """The ranks of an instance, where all run one program on several that are alike."""
    topology = placement.topology
    if topology.nodes == 1 or len(stages_of(program)) > 1:
        return None
    model = TimingModel.from_topology(topology)
    parts = Parts(Routes(topology, placement), model, placement.ranks)
    return placement.ranks // topology.nodes if are_placed_alike(parts) else None


def fill_with(
    program: Program,
    placement: Placement,
    teams: list[list[Team]],
    seen: int | None = None,
    *,
    ignore_memory: bool = False,
) -> Executable:
    """The same with the teams of every placeholder given, and so with any plans.

    `seen` are how many ranks get columns, those of the first instance; UnfoldedError if they do not
    stand for the others.
    """
    topology, seen = placement.topology, seen or program.ranks
    every = [team for its_teams in teams for team in its_teams]
    check_room([(team.plan, team.seen(seen).size) for team in every], seen, program.ranks)
    streams = stream_semaphores(program)
    limit = semaphore_limit(program, topology)
    ids = SemaphoreIds(seen, len(program.semaphores), limit)
    scratch = _scratch(program, teams)
    hbm_bytes = max((at + size for at, size in scratch.values()), default=program.hbm_bytes)
    if not ignore_memory:
        check_channels(topology, program.hbm_bytes, hbm_bytes)
    built = {
        stream: StreamProgram(stream, (seen, program.ranks), ids, lanes)
        for stream, lanes in _lanes(program, teams).items()
    }
    for step in steps(program):
        item, stream = step.item, step.stream
        if isinstance(item, Marker):
            built[stream].follow(item, streams[stream], step.ranks)
            continue
        addresses = addresses_of(program, item, scratch[stream][0])
        try:
            built[stream].fill(item, teams[item], addresses, streams[stream])
        except SemaphoresError as reason:
            placeholder = program.placeholders[item]
            raise LoweringError(_too_many(placeholder, teams[item], reason)) from None
    queues = _queues(program, built, ids.count, seen)
    check_reach(placement, queues)
    return Executable(
        program=program,
        topology=topology,
        placement=placement,
        routes=Routes(topology, placement),
        queues=tuple(queues),
        filled=tuple(_ways_filled(its_teams) for its_teams in teams),
        streams=tuple(one.facts(*scratch[stream]) for stream, one in built.items()),
        semaphore_count=ids.count,
        hbm_bytes=hbm_bytes,
        seen=seen,
        ignores_memory=ignore_memory and hbm_bytes > rank_capacity(topology),
    )


def _queues(
    program: Program, built: Mapping[int, StreamProgram], width: int, seen: int
) -> list[Queue]:
    """All queues of the first ranks, with so many semaphores each."""
    triggers = {stream: one.trigger_sem for stream, one in built.items()}
    queues: list[Queue] = []
    passed: dict[int, Shifts] = {}
    for stage in stages_of(program):
        own = shifts(stage.program, triggers, width)
        queues.extend(patched_queues(stage, triggers, own, seen))
        passed |= own
    for one in built.values():
        queues.extend(split(program, *one.queues(passed, width), one.owners))
    return queues


def _too_many(placeholder: Placeholder, teams: list[Team], reason: SemaphoresError) -> str:
    names = ", ".join(dict.fromkeys(team.plan.algorithm for team in teams))
    op = placeholder.op.value
    return f"{placeholder.name}: {op} by {names}: {reason}: {REMEDY}, or another --algorithm {op}="


def _lanes(program: Program, teams: list[list[Team]]) -> dict[int, list[int]]:
    """The DMA rings each stream needs."""
    lanes: dict[int, set[int]] = {}
    for placeholder, its_teams in zip(program.placeholders, teams, strict=True):
        used = {lane for team in its_teams for lane in team.plan.lanes}
        lanes.setdefault(placeholder.stream, set()).update(used)
    return {stream: sorted(used) for stream, used in sorted(lanes.items())}


def _scratch(program: Program, teams: list[list[Team]]) -> dict[int, tuple[int, int]]:
    """(address, size) of each stream's channel buffer, behind the program's own memory."""
    sizes: dict[int, int] = {}
    for placeholder, its_teams in zip(program.placeholders, teams, strict=True):
        need = max((team.plan.scratch_bytes for team in its_teams), default=0)
        sizes[placeholder.stream] = max(sizes.get(placeholder.stream, 0), need)
    at = _aligned(program.hbm_bytes)
    placed = {}
    for stream, size in sorted(sizes.items()):
        placed[stream] = (at, size)
        at += _aligned(size)
    return placed


def _ways_filled(teams: list[Team]) -> Filled:
    return Filled(
        algorithms=tuple(team.plan.algorithm for team in teams),
        group_sizes=tuple(team.plan.members for team in teams),
    )


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
