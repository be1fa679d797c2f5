"""An oracle of flipped bits: no times, and none of what plays faults."""

from collections.abc import Iterable, Sequence

import numpy as np

from ncc_runtime.execution.control_flow import ValueDecisions
from ncc_runtime.execution.disturbance import TransferFault
from ncc_runtime.execution.scheduler import RowBatch, Scheduler
from ncc_runtime.execution.values.devices import Devices
from ncc_runtime.lowering.executable import DmaQueue, Executable
from ncc_runtime.ranked_array import RankedArray


def flipped_in_any_order(
    executable: Executable, fault: TransferFault, inputs: Iterable[RankedArray]
) -> list[np.ndarray]:
    """The outputs where whole rows are performed as soon as they may start, and one is flipped."""
    devices = Devices(executable)
    devices.memory.load(inputs)
    seen = 0

    def perform(batches: Sequence[RowBatch]) -> None:
        nonlocal seen
        for batch in batches:
            devices.perform([batch])
            if batch.queue == fault.queue and fault.rank in batch.ranks:
                if seen == fault.nth:
                    flip(*devices.resolved(batch), *fault.flipped_bits)
                seen += 1

    def flip(ring: DmaQueue, row: int, bit: int) -> None:
        cell = row, fault.rank
        targets = [(ring.peer[cell], ring.target[cell])]
        if ring.second_peer is not None and ring.second_target is not None:
            targets.append((ring.second_peer[cell], ring.second_target[cell]))
        if bit // 8 < np.broadcast_to(ring.size_bytes, ring.peer.shape)[cell]:
            for rank, address in targets:
                if rank >= 0:
                    devices.arena.bytes[rank, address + bit // 8] ^= np.uint8(1 << bit % 8)

    Scheduler(executable, ValueDecisions(executable, devices)).run(perform)
    return [output.whole() for output in devices.outputs()]
