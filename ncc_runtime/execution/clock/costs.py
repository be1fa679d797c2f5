"""How long every row of a queue takes, and how long its increments are under way; whole arrays."""

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    EngineQueue,
    Executable,
    Post,
    Queue,
    descriptors,
)
from ncc_runtime.neff.isa import OPCODES, Engine, Shape
from ncc_runtime.neff.program import Program, TensorId
from ncc_runtime.neff.table import InstrTable
from ncc_runtime.timing import TimingModel


@attrs.frozen(eq=False)
class Costs:
    """Of one queue; arrays are (n, ranks) or (n, 1) int64 picoseconds."""

    busy: np.ndarray  # until the queue may start its next row
    complete: np.ndarray  # until the row is complete
    flight: tuple[np.ndarray, ...]  # per post, from completion until the increment is seen


def costs_of(executable: Executable, model: TimingModel, queue: Queue) -> Costs:
    """The costs of a queue's rows on this topology."""
    if isinstance(queue, EngineQueue):
        return _engine_costs(executable, model, queue)
    if isinstance(queue, CcQueue):
        return _cc_costs(executable, model, queue)
    return _dma_costs(executable, model, queue)


def _engine_costs(executable: Executable, model: TimingModel, queue: EngineQueue) -> Costs:
    complete = _instruction_ps(executable.program, model, queue.engine, queue.table)[:, None]
    triggers = {facts.trigger_sem for facts in executable.streams}
    flight = tuple(
        np.where(np.isin(post.sem, list(triggers)), model.trigger_ps, model.semaphore_local_ps)
        for post in queue.sync.posts
    )
    return Costs(complete, complete, flight)


def _instruction_ps(
    program: Program, model: TimingModel, engine: Engine, table: InstrTable
) -> np.ndarray:
    """Time of every instruction, (n,) int64; instructions of one dtype are priced together."""
    time = np.full(len(table), model.instruction_ps(engine), np.int64)
    dtypes = [_dtype_index(program, table, row) for row in range(len(table))]
    for tensor in sorted({index for index in dtypes if index != IDLE}):
        rows = np.array([row for row, index in enumerate(dtypes) if index == tensor])
        time[rows] = model.compute_ps(
            engine,
            program.tensors[tensor].dtype,
            table.flops[rows],
            table.elements[rows],
            table.bytes_in[rows] + table.bytes_out[rows],
        )
    return time


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


def _cc_costs(executable: Executable, model: TimingModel, queue: CcQueue) -> Costs:
    step = np.full((len(queue.opcode), 1), model.cc_instruction_ps, np.int64)
    idle = _idle(queue)
    complete = np.where(idle, 0, step)
    signal = (queue.opcode == CcOpcode.SIGNAL)[:, None]
    flight = tuple(
        np.where(signal, _signal_ps(executable, model, post), model.semaphore_local_ps)
        for post in queue.sync.posts
    )
    return Costs(complete, complete, flight)


def _idle(queue: CcQueue | DmaQueue) -> np.ndarray:
    """Cells in which a rank neither waits nor increments: they take no time."""
    idle = queue.sync.wait_sem == IDLE
    for post in queue.sync.posts:
        idle = idle & (post.rank == IDLE)
    return idle


def _signal_ps(executable: Executable, model: TimingModel, post: Post) -> np.ndarray:
    """Time until increments of other ranks' semaphores are seen there, no data before them."""
    mine = np.broadcast_to(np.arange(executable.ranks), post.rank.shape)
    to = np.where(post.rank == IDLE, mine, post.rank)
    routes = executable.routes
    way = routes.transport(mine, to), routes.hops(mine, to)
    return model.semaphore_ps(*way) + routes.crossing_ps(mine, to)


def _dma_costs(executable: Executable, model: TimingModel, queue: DmaQueue) -> Costs:
    """A run that writes twice takes as long as the slower of both ways; reads only add latency."""
    busy, complete = _written(executable, model, queue, queue.peer)
    local = np.full(queue.peer.shape, model.semaphore_local_ps, np.int64)
    flight = [_arrival_ps(model, queue.peer), local]
    if queue.also_peer is not None:
        second = _written(executable, model, queue, queue.also_peer)
        busy, complete = np.maximum(busy, second[0]), np.maximum(complete, second[1])
        flight.append(_arrival_ps(model, queue.also_peer))
    if queue.source_rank is not None:
        complete = complete + _read_latency_ps(executable, queue.source_rank)
    others = queue.sync.posts[len(flight) :]  # credits and readers' words travel by themselves
    flight += [_signal_ps(executable, model, post) for post in others]
    return Costs(busy, complete, tuple(flight))


def _written(
    executable: Executable, model: TimingModel, queue: DmaQueue, peer: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """How long runs to these peers keep the ring busy, and take in all; nothing where IDLE."""
    mine = np.broadcast_to(np.arange(executable.ranks), peer.shape)
    active = peer != IDLE
    to = np.where(active, peer, mine)
    routes = executable.routes
    transport, hops = routes.transport(mine, to), routes.hops(mine, to)
    rate = routes.bandwidth_bytes_per_s(mine, to)
    runs = descriptors(queue.size_bytes)
    stream = model.transfer_ps(transport, hops, queue.size_bytes, rate, runs)
    nothing = np.zeros_like(queue.size_bytes)
    fixed = model.transfer_ps(transport, hops, nothing, rate, nothing)
    complete = stream + routes.crossing_ps(mine, to)
    return np.where(active, stream - fixed, 0), np.where(active, complete, 0)


def _arrival_ps(model: TimingModel, peer: np.ndarray) -> np.ndarray:
    """Time until the word of an arrival is seen: it follows its data, its write is left to pay."""
    mine = np.arange(peer.shape[1])
    at_home = (peer == mine) | (peer == IDLE)
    return np.where(at_home, model.semaphore_local_ps, model.semaphore_remote_ps)


def _read_latency_ps(executable: Executable, owner: np.ndarray) -> np.ndarray:
    """Time until the first byte of the farthest source is here, (n, ranks)."""
    mine = np.broadcast_to(np.arange(executable.ranks)[:, None], owner.shape)
    latency = executable.routes.latency_ps(np.where(owner == IDLE, mine, owner), mine)
    return np.asarray(latency.max(axis=2, initial=0))
