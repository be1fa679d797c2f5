"""The values of one run, without times: played from a tape, or performed row by row.

A proved program whose order is its own is played; others are scheduled, and their transfers are
performed literally, descriptor by descriptor.
"""

from collections.abc import Callable, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.control_flow import RecordedDecisions, ValueDecisions
from ncc_runtime.execution.scheduler import RowBatch, Scheduler
from ncc_runtime.execution.tape import LITERAL, NORMAL_FORM, BlockTape, Tape
from ncc_runtime.execution.trace import Traffic, TrafficCounter
from ncc_runtime.execution.values.devices import Devices
from ncc_runtime.execution.variable_sizes import SizeRecord
from ncc_runtime.lowering.executable import DmaQueue, Executable
from ncc_runtime.pure_collectives import PureCollective

Watch = Callable[[Devices, Sequence[RowBatch]], None]
"""Sees rows that are ready just before the devices perform them."""


@attrs.frozen(eq=False)
class ValueRun:
    """What a run decided and moved; outputs lie in the devices."""

    decisions: RecordedDecisions
    traffic: tuple[Traffic, ...]
    sizes: SizeRecord  # of transfers of variable size
    interpreters: Mapping[int, str]  # by placeholder, how it was computed


def play_tape(executable: Executable, devices: Devices, tape: Tape) -> ValueRun:
    """Perform all rows of a tape; `devices` hold the inputs."""
    decisions = ValueDecisions(executable, devices)
    recorded = RecordedDecisions(executable.ranks, decisions)
    traffic, interpreters = tape.traffic, tape.interpreters

    def decide(block: BlockTape, ranks: np.ndarray) -> np.ndarray:
        enters = decisions.of_block(block, ranks)
        recorded.record(block.places, ranks, enters)
        return enters

    with devices:
        played = devices.play(tape, decide)
    if tape.has_blocks:
        counter = TrafficCounter(executable)
        for one, times in played.items():
            tape.count(counter, one.batches, times)
        traffic = counter.traffic()
        batches = [batch for one in played for batch in one.batches]
        done = {one.collective.placeholder for one in batches if one.collective is not None}
        interpreters = {number: how for number, how in interpreters.items() if number in done}
    return ValueRun(recorded, traffic, SizeRecord(executable), interpreters)


def perform_rows(
    executable: Executable,
    devices: Devices,
    pure: Mapping[int, PureCollective],
    shuffle_seed: int | None,
    watch: Watch | None,
) -> ValueRun:
    """Perform rows as they become ready; `devices` hold the inputs.

    Collectives that are `pure`, by placeholder, are computed at once, the others by their
    descriptors. With a seed one of the ready rows is drawn each time.
    """
    queues, counter = executable.queues, TrafficCounter(executable)
    sizes, interpreters = SizeRecord(executable), dict[int, str]()

    def perform(batches: Sequence[RowBatch]) -> None:
        if watch is not None:
            watch(devices, batches)
        devices.perform(batches)
        for batch in batches:
            queue = queues[batch.queue]
            if batch.collective is not None:
                number = batch.collective.placeholder
                interpreters.setdefault(number, NORMAL_FORM)
                counter.add_performed(pure[number].traffic, number, batch.ranks)
            elif isinstance(queue, DmaQueue):
                moved, row = devices.resolved(batch)
                interpreters[int(queue.placeholder[batch.row])] = LITERAL
                counter.add(moved, row, batch.ranks)
                if moved is not queue:
                    size_bytes = moved.size_bytes[row, batch.ranks]
                    sizes.add(batch.queue, batch.row, batch.ranks, size_bytes)

    at_once = [one.at_once for one in pure.values()]
    generator = None if shuffle_seed is None else np.random.default_rng(shuffle_seed)
    recorded = RecordedDecisions(executable.ranks, ValueDecisions(executable, devices))
    with devices:
        Scheduler(executable, recorded, at_once=at_once).run(perform, generator)
    return ValueRun(recorded, counter.traffic(), sizes, interpreters)
