"""Memory of the host that a run of the devices takes, worked out before anything is loaded.

The ranks' memory is reserved as a whole and taken where it is written: which ranks store which
buffers, and where inputs and outputs lie elsewhere, the layout says. Beside it are the outputs, and
what instructions and collectives take on their way. The figure is no less than what is taken.
"""

from collections.abc import Iterable, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.scheduler import RowBatch
from ncc_runtime.execution.values.devices import Devices
from ncc_runtime.execution.values.kernels.scratch import (
    Held,
    HostBytes,
    most_held,
    plan_scratch,
    step_scratch,
)
from ncc_runtime.execution.values.memory import touched_bytes
from ncc_runtime.execution.values.row_layout import PreparedInstruction
from ncc_runtime.lowering.executable import EngineQueue
from ncc_runtime.neff.isa import FUSION, OPCODES, Shape
from ncc_runtime.neff.program import TensorId, Typed

TRANSFER_BYTES = 16 << 20
"""What transfers that are performed one by one take beside, about."""

PREPARED_BYTES = 8 * 1024
"""Of Python's objects for an instruction or a collective, about."""


@attrs.frozen
class DeviceBytes:
    """Memory of the host that a run takes beside its inputs.

    - `memory`: of the ranks, as far as it is written
    - `outputs`: arrays that the caller gets
    - `scratch`: what instructions and collectives take beside, on all threads, at its height
    """

    memory: int
    outputs: int
    scratch: int


def device_bytes(devices: Devices) -> DeviceBytes:
    """Of what is played next, in the layout that is chosen."""
    layout, tensors = devices.layout, devices.executable.program.tensors
    outputs = sum(
        tensors[TensorId(tensor)].size_bytes * len(np.unique(places[devices.shares.own(ranks)]))
        for places, (ranks, tensor) in zip(
            layout.equal.outputs, devices.memory.results, strict=True
        )
    )
    return DeviceBytes(_memory_bytes(devices), outputs, _scratch_bytes(devices))


def _memory_bytes(devices: Devices) -> int:
    shares = devices.shares
    arena, layout, program = devices.arena.bytes, devices.layout, devices.executable.program
    if layout.tape is None or layout.tape.row_by_row:
        return arena.nbytes * (1 + devices.bytes_beside)
    used = [
        (buffer.address, buffer.size_bytes, shares.own(layout.equal.used[number]) - shares.first)
        for number, buffer in enumerate(program.buffers)
        if number not in layout.moved and buffer.size_bytes
    ]
    counts = [len(ranks) for _, _, ranks in used]
    ranks = np.concatenate([np.zeros(0, np.int64), *(ranks for _, _, ranks in used)])
    addresses, sizes = (
        np.repeat(np.array([one[k] for one in used], np.int64), counts) for k in (0, 1)
    )
    return touched_bytes(ranks * arena.shape[1] + addresses, sizes, arena.nbytes)


def _scratch_bytes(devices: Devices) -> int:
    queues, tape = devices.executable.queues, devices.layout.tape
    rounds: Iterable[Sequence[RowBatch]]
    if tape is not None:
        rounds = (one.batches for one in tape.rounds)
    else:  # any rows may be ready together
        everybody = np.arange(devices.executable.ranks)
        rounds = [
            [
                RowBatch(number, row, everybody, everybody, everybody)
                for number, queue in enumerate(queues)
                if isinstance(queue, EngineQueue)
                for row in range(len(queue.table.opcode))
            ]
        ]
    is_literal = tape is None or bool(tape.row_by_row)
    most = prepared = 0
    held = Held()
    for batches in rounds:
        tasks: list[int] = []
        for batch in batches:
            if batch.collective is not None:
                tasks.append(devices.scratch_bytes_of(batch))
            elif isinstance(queues[batch.queue], EngineQueue):
                for some in _performed(devices, batch):
                    taken = [_scratch_of(one, keeps=is_literal) for one in some]
                    tasks.append(sum(own for own, _ in taken))
                    held = most_held([held, *(kept for _, kept in taken)])
        prepared += PREPARED_BYTES * len(tasks)
        most = max(most, sum(sorted(tasks)[-devices.threads :]))
    most += held.all * devices.threads
    # the allocator does not find room for an array wherever another one was
    return most + most // 8 + prepared + TRANSFER_BYTES * is_literal


def _performed(devices: Devices, batch: RowBatch) -> list[Sequence[PreparedInstruction]]:
    """By task, what is performed of a row of an engine."""
    queue = devices.executable.queues[batch.queue]
    assert isinstance(queue, EngineQueue), queue.name
    name = queue.table.opcode_names[int(queue.table.opcode[batch.row])]
    return [] if OPCODES[name].shape is Shape.CONTROL else devices.instructions_of(batch)


def _scratch_of(one: PreparedInstruction, *, keeps: bool) -> tuple[int, Held]:
    """What is freed after it, and what its thread keeps; with `keeps`, results are copied."""
    call, ranks = one.call, len(one.call.ranks)
    written = sum(result.size_bytes for result in call.results) * ranks
    beside = (one.overlaps + keeps) * written
    found: HostBytes
    if one.plan is not None and not keeps:
        found = plan_scratch(one.plan, ranks)
        return found.of(1) + beside, found.held
    if one.updates is not None and not keeps:
        return 0, Held()
    if call.opcode == FUSION:
        fusion = call.program.fusions[call.integer("fusion")]
        steps = [
            step_scratch(
                call.program,
                step.opcode,
                step.attributes,
                fusion.types(step.operands),
                fusion.types(step.results),
            )
            for step in fusion.body
        ]
        values = sum(value.size_bytes for value in fusion.values) * ranks
        most = max(step.of(ranks) for step in steps)
        return most + values + keeps * written, most_held(step.held for step in steps)
    operands: list[Typed] = [call.program.tensors[TensorId(tensor)] for tensor, _ in one.operands]
    found = step_scratch(
        call.program,
        call.opcode,
        call.attributes,
        operands,
        call.results,
        writes_in_place=one.is_apart and not keeps,
    )
    return found.of(ranks) + beside, found.held
