"""How long rows of engines and CC-cores take by themselves, whole arrays of picoseconds.

How long increments are under way until they are seen, per post of a queue, as columns.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.errors import LoweringError
from ncc_runtime.execution.clock.cells import Alike, alike
from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    EngineQueue,
    Executable,
    Post,
    Queue,
)
from ncc_runtime.machine_model.timing import TimingModel, duration_ps
from ncc_runtime.neff.isa import OPCODES, Engine, Shape
from ncc_runtime.neff.program import Program, TensorId
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.table import InstrTable

MOST_WORK_S = 90_000
"""One instruction takes less: the kernel multiplies picoseconds by 100, in 63 bits."""


@attrs.frozen(eq=False)
class Costs:
    """Of one queue's rows."""

    overhead: np.ndarray  # (n,) int64 ps, before anything is moved
    work: np.ndarray  # (n,) int64 ps, while it is
    traffic: np.ndarray  # (n,) int64 bytes, to and from memory


def engine_costs(program: Program, model: TimingModel, queue: EngineQueue) -> Costs:
    """Of instructions; those of one dtype are priced together."""
    table = queue.table
    work = np.zeros(len(table), np.int64)
    amounts = table.flops if queue.engine is Engine.TENSOR else table.elements
    rows_of: dict[DType, list[int]] = {}
    for row in range(len(table)):
        if (dtype := _dtype(program, table, row)) is not None:
            rows_of.setdefault(dtype, []).append(row)
    moves: np.ndarray = np.zeros(len(table), bool)
    for dtype, rows in rows_of.items():
        moves[rows] = True
        if rate := model.work_per_s(queue.engine, dtype):
            longest_s = int(amounts[rows].max()) // rate
            if longest_s >= MOST_WORK_S:
                raise LoweringError(
                    f"{queue.name} works for {longest_s:,} s on one instruction, the clock counts "
                    f"less than {MOST_WORK_S:,}; run it without the clock, or split the array"
                )
            work[rows] = duration_ps(amounts[rows], rate)
    overhead = np.full(len(table), model.instruction_ps(queue.engine), np.int64)
    return Costs(overhead, work, np.where(moves, table.bytes_in + table.bytes_out, 0))


def _dtype(program: Program, table: InstrTable, row: int) -> DType | None:
    """The dtype that says how fast an instruction works; None for control."""
    name = table.opcode_names[int(table.opcode[row])]
    first, last = int(table.start[row]), int(table.start[row + 1])
    if OPCODES[name].shape is Shape.CONTROL or first == last:
        return None
    # operands set the speed where there are any: a comparison of floats gives pred
    tensor = int(table.tensors[min(first + int(table.result_count[row]), last - 1)])
    return program.tensors[TensorId(tensor)].dtype


def cc_costs(executable: Executable, model: TimingModel, queue: CcQueue) -> Costs:
    """Of CC-core rows; the wait for a trigger also pays for the start of its collective.

    It pays for its LOADs too: a row and a read of local memory each.
    """
    row_ps = model.cc_row_ps(queue.stream, len(executable.streams))
    overhead = np.full(len(queue.opcode), row_ps, np.int64)
    first = np.flatnonzero(
        (queue.placeholder != IDLE) & (np.r_[IDLE, queue.placeholder[:-1]] != queue.placeholder)
    )
    overhead[first] += model.cc_start_ps
    loads = np.bincount(queue.placeholder[queue.opcode == CcOpcode.LOAD], minlength=1)
    known = first[queue.placeholder[first] < len(loads)]
    overhead[known] += loads[queue.placeholder[known]] * (row_ps + model.semaphore_local_ps)
    nothing = np.zeros(len(queue.opcode), np.int64)
    return Costs(overhead, nothing, nothing)


class Flights:
    """Flight times of the increments of one executable on one topology."""

    def __init__(self, executable: Executable, model: TimingModel, ranks: int) -> None:
        self._executable = executable
        self._ranks = ranks  # whose increments are asked for, the first ones
        self._model = model
        self._triggers = [facts.trigger_sem for facts in executable.streams]

    def of(self, queue: Queue) -> Iterator[Alike]:
        """Per post, ps by row and rank, as many as Sync.posts; anything where there is none."""
        if isinstance(queue, EngineQueue):
            yield from map(self._of_engine, queue.sync.posts)
        elif isinstance(queue, CcQueue):
            signals = queue.opcode == CcOpcode.SIGNAL
            yield from (self._of_cc(post, signals) for post in queue.sync.posts)
        else:
            arrivals = {0} if queue.also_peer is None else {0, 2}
            for number, post in enumerate(queue.sync.posts):
                follows = number in arrivals or number == 1
                yield self._of_arrival(post) if follows else self._of_signal(post)

    def _of_engine(self, post: Post) -> Alike:
        rows, model = alike(post.sem), self._model
        is_trigger = np.isin(rows.rows, self._triggers)
        flight = np.where(is_trigger, model.trigger_ps, model.semaphore_local_ps)
        return Alike(flight, rows.index)

    def _of_cc(self, post: Post, signals: np.ndarray) -> Alike:
        rows = alike(post.rank)
        away = self._signal_ps(rows.rows)
        home = np.full_like(away, self._model.semaphore_local_ps)
        index = rows.index + np.where(signals, 0, len(away))
        return Alike(np.concatenate((away, home)), index)

    def _of_arrival(self, post: Post) -> Alike:
        """The word follows its data, its write is left to pay."""
        rows, model = alike(post.rank), self._model
        to, mine = self._ends(rows.rows)
        local, remote = model.semaphore_local_ps, model.semaphore_remote_ps
        return Alike(np.where(to == mine, local, remote), rows.index)

    def _of_signal(self, post: Post) -> Alike:
        rows = alike(post.rank)
        return Alike(self._signal_ps(rows.rows), rows.index)

    def _ends(self, rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Whose semaphore it is, the own where there is none, and whose increment."""
        mine = np.broadcast_to(np.arange(self._ranks), (len(rank), self._ranks))
        return np.where(rank == IDLE, mine, rank), mine

    def _signal_ps(self, rank: np.ndarray) -> np.ndarray:
        """Of increments of other ranks' semaphores, no data before them."""
        to, mine = self._ends(rank)
        routes = self._executable.routes
        way = routes.transport(mine, to), routes.links_ps(mine, to)
        return self._model.semaphore_ps(*way) + routes.crossing_ps(mine, to)
