"""What rows and increments cost on the clock, as whole arrays of picoseconds.

Rows of engines and CC-cores take an overhead and, for engines, time to compute. Increments of
semaphores take a latency until they are seen. What transfers cost is in routes.py.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.errors import LoweringError
from ncc_runtime.execution.clock.columns import DistinctRows, distinct_rows
from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    EngineQueue,
    Executable,
    Post,
    Queue,
)
from ncc_runtime.machine_model.compute import ComputeCosts, compute_costs
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.machine_model.timing import PS_PER_S, TimingModel
from ncc_runtime.machine_model.usage import completion_ps, signal_ps
from ncc_runtime.neff.isa import OPCODES, Shape
from ncc_runtime.neff.program import Program, TensorId
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.table import InstrTable

MOST_WORK_S = 90_000
"""Seconds that one instruction may take: the kernel multiplies picoseconds by 100, in 63 bits."""


@attrs.frozen(eq=False)
class RowCosts:
    """What the rows of one queue take, each by itself."""

    overhead: np.ndarray  # (n,) int64 ps, of engines and CC-cores, before anything is moved
    traffic: np.ndarray  # (n,) int64 bytes, to and from memory
    work: np.ndarray | None = None  # (n, 5) int64 ps of instructions, after that; see WORK


WORK = ("starts", "engines", "dma", "engines_tile", "dma_tile")
"""The columns of an instruction's work, those of ComputeCosts."""


def engine_costs(program: Program, model: TimingModel, queue: EngineQueue) -> ComputeCosts:
    """The costs of instructions. LoweringError for one that takes a day or more."""
    costs = compute_costs(program, model, queue.engine, queue.table)
    if (longest_s := int(costs.work.max(initial=0)) // PS_PER_S) >= MOST_WORK_S:
        raise LoweringError(
            f"{queue.name} works for {longest_s:,} s on one instruction, the clock counts "
            f"less than {MOST_WORK_S:,}; run it without the clock, or split the array"
        )
    return costs


def instruction_dtype(program: Program, table: InstrTable, row: int) -> DType | None:
    """The dtype that says how fast an instruction works; None for control."""
    name = table.opcode_names[int(table.opcode[row])]
    first, last = int(table.start[row]), int(table.start[row + 1])
    if OPCODES[name].shape is Shape.CONTROL or first == last:
        return None
    # operands set the speed where there are any: a comparison of floats gives pred
    tensor = int(table.tensors[min(first + int(table.result_count[row]), last - 1)])
    return program.tensors[TensorId(tensor)].dtype


def cc_costs(executable: Executable, model: TimingModel, queue: CcQueue) -> RowCosts:
    """The costs of CC-core rows. A wait for a trigger includes the start of its collective, and the
    LOADs of its tables: a row and a read of local memory each.
    """
    row_ps = model.cc_row_ps(queue.stream, len(executable.streams))
    overhead = np.full(len(queue.opcode), row_ps, np.int64)
    first = np.flatnonzero(
        (queue.placeholder != IDLE) & (np.r_[IDLE, queue.placeholder[:-1]] != queue.placeholder)
    )
    overhead[first] += model.cc_start_ps
    placeholders = int(queue.placeholder.max(initial=0)) + 1
    loads = np.bincount(queue.placeholder[queue.opcode == CcOpcode.LOAD], minlength=placeholders)
    overhead[first] += loads[queue.placeholder[first]] * (row_ps + model.semaphore_local_ps)
    return RowCosts(overhead, np.zeros(len(queue.opcode), np.int64))


class SemaphoreLatencies:
    """The time from an increment until it is seen; see machine_model/usage.py."""

    def __init__(self, executable: Executable, parts: Parts, ranks: int) -> None:
        """`ranks`: how many of the first ranks increment."""
        self._parts, self._model, self._ranks = parts, parts.model, ranks
        self._triggers = [facts.trigger_sem for facts in executable.streams]

    def of(self, queue: Queue) -> Iterator[DistinctRows]:
        """A column of ps for each post of the queue; any value where a row does not post."""
        for number, post in enumerate(queue.sync.posts):
            if isinstance(queue, EngineQueue):
                yield self._by_engine(post)
            elif isinstance(queue, CcQueue):
                yield self._by_cc_core(post, queue.opcode == CcOpcode.SIGNAL)
            else:
                # arrivals at the peers (posts 0 and 2) and the ring's own completion (post 1)
                # follow the data; other posts signal owners of sources that they have been read
                follows = number < 2 or (number == 2 and queue.second_peer is not None)
                rows = distinct_rows(post.rank)
                latency_ps = completion_ps if follows else signal_ps
                yield DistinctRows(latency_ps(self._parts, *self._ends(rows.rows)), rows.index)

    def _by_engine(self, post: Post) -> DistinctRows:
        rows, model = distinct_rows(post.sem), self._model
        is_trigger = np.isin(rows.rows, self._triggers)
        latency = np.where(is_trigger, model.trigger_ps, model.semaphore_local_ps)
        return DistinctRows(latency, rows.index)

    def _by_cc_core(self, post: Post, is_signal: np.ndarray) -> DistinctRows:
        """A SIGNAL goes to other ranks, all other rows increment semaphores of their own."""
        rows = distinct_rows(post.rank)
        remote = signal_ps(self._parts, *self._ends(rows.rows))
        local = np.full_like(remote, self._model.semaphore_local_ps)
        index = rows.index + np.where(is_signal, 0, len(remote))
        return DistinctRows(np.concatenate((remote, local)), index)

    def _ends(self, rank: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(rows, ranks) ranks that increment, and owners of the semaphores; the same where none."""
        src = np.broadcast_to(np.arange(self._ranks), (len(rank), self._ranks))
        return src, np.where(rank == IDLE, src, rank)
