"""Random disturbances of small runs: flapping parts, stops at exact times of events, repeats."""

import random

import numpy as np

from ncc_runtime.execution.disturbance import (
    ALWAYS_PS,
    Disturbance,
    PartSpeed,
    QueueSpeed,
    TransferFault,
)
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import DmaQueue, Executable
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.machine_model.timing import TimingModel


def drawn_disturbance(executable: Executable, undisturbed: Trace, seed: int) -> Disturbance:
    """One to five faults of any kinds; half of their times are those of undisturbed events."""
    draw = random.Random(seed)
    model = TimingModel.from_topology(executable.topology)
    parts = Parts(executable.routes, model, executable.ranks)
    instants = np.unique(np.concatenate((undisturbed.start_ps, undisturbed.end_ps))).tolist()
    rings = [n for n, queue in enumerate(executable.queues) if isinstance(queue, DmaQueue)]
    rings = rings or [0]
    part_speeds: list[PartSpeed] = []
    queue_speeds: list[QueueSpeed] = []
    transfers: list[TransferFault] = []
    late: dict[int, int] = {}

    def time() -> int:
        if instants and draw.random() < 0.5:
            return int(draw.choice(instants))
        return draw.randrange(max(1, undisturbed.time_ps))

    def speed() -> int:
        return draw.choice([0, 0, 1, draw.randrange(1, 10_000), 5_000, 9_999])

    def until(start: int) -> int:
        return draw.choice([start + draw.randrange(1, 20_000_000), max(start + 1, time())])

    def rank() -> int:
        return draw.randrange(executable.ranks)

    for _ in range(draw.randint(1, 5)):
        start, now = time(), speed()
        end = ALWAYS_PS if now != 1 and draw.random() < 0.2 else until(start)
        kind = draw.randrange(6)
        if kind == 0:
            part = draw.randrange(parts.count)
            part_speeds.append(PartSpeed(part, now, start, end))
            if draw.random() < 0.5:  # the same part again
                part_speeds.append(PartSpeed(part, speed() or 3, time()))
        elif kind == 1:  # a part flaps
            part, period = draw.randrange(parts.count), draw.randrange(1, 3_000_000)
            part_speeds += [
                PartSpeed(part, 0, start + 2 * number * period, start + (2 * number + 1) * period)
                for number in range(draw.randint(2, 8))
            ]
        elif kind == 2:
            queue = draw.randrange(len(executable.queues))
            queue_speeds.append(QueueSpeed(queue, rank(), now, start, end))
        elif kind == 3:  # a whole rank
            who = rank()
            queue_speeds += [
                QueueSpeed(queue, who, now, start, end) for queue in range(len(executable.queues))
            ]
        elif kind == 4:
            transfers.append(
                TransferFault(
                    draw.choice(rings),
                    rank(),
                    draw.randrange(4),
                    draw.choice([0, 1, 1, 2]),
                    draw.choice([0, 1, draw.randrange(5_000_000)]),
                    draw.choice([0, 1, draw.randrange(5_000_000)]),
                )
            )
        else:
            late[rank()] = draw.choice([1, draw.randrange(30_000_000)])
    return Disturbance(tuple(part_speeds), tuple(queue_speeds), tuple(transfers), (), late)
