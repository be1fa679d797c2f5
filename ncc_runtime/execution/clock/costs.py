"""How long rows of engines and CC-cores take by themselves, whole arrays of picoseconds."""

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, EngineQueue, Executable
from ncc_runtime.neff.isa import OPCODES, Engine, Shape
from ncc_runtime.neff.program import Program, TensorId
from ncc_runtime.neff.table import InstrTable
from ncc_runtime.timing import TimingModel, duration_ps


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
    dtypes = np.array([_dtype_index(program, table, row) for row in range(len(table))], np.int64)
    for tensor in np.unique(dtypes[dtypes != IDLE]).tolist():
        rows = np.flatnonzero(dtypes == tensor)
        flops, elements = table.flops[rows], table.elements[rows]
        dtype = program.tensors[tensor].dtype
        rate = model.work_per_s(queue.engine, dtype)
        if rate:
            work[rows] = duration_ps(flops if queue.engine is Engine.TENSOR else elements, rate)
    overhead = np.full(len(table), model.instruction_ps(queue.engine), np.int64)
    traffic = np.where(dtypes == IDLE, 0, table.bytes_in + table.bytes_out)
    return Costs(overhead, work, traffic)


def _dtype_index(program: Program, table: InstrTable, row: int) -> int:
    """A tensor whose dtype says how fast the instruction works; IDLE for control."""
    name = table.opcode_names[int(table.opcode[row])]
    first, last = int(table.start[row]), int(table.start[row + 1])
    if OPCODES[name].shape is Shape.CONTROL or first == last:
        return IDLE
    # operands set the speed where there are any: a comparison of floats gives pred
    tensor = int(table.tensors[min(first + int(table.result_count[row]), last - 1)])
    wanted = program.tensors[TensorId(tensor)].dtype
    return next(index for index, one in enumerate(program.tensors) if one.dtype is wanted)


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
