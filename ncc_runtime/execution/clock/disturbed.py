"""A disturbance as the kernel's records: stages of queues' speeds, changes of parts, faults.

What happens at a time is either known from the start, so that a row that is performed ahead of time
finds it in a table (the stages of its queue's speed), or it concerns bytes under way and comes in
order of time (changes).
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from ncc_runtime.execution.clock.routes import MEGA, RouteRecords
from ncc_runtime.execution.clock.tables import BEYOND, NONE, ClockState, empty
from ncc_runtime.execution.disturbance import (
    ALWAYS_PS,
    FULL_SPEED,
    Disturbance,
    PartSpeed,
    QueueSpeed,
    TransferFault,
    joined_transfers,
)
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.machine_model.parts import PartKind, Parts


def changes_times(disturbance: Disturbance) -> bool:
    """Whether a run may take other times by it."""
    return bool(
        disturbance.parts
        or disturbance.queues
        or any(disturbance.late_start_ps.values())
        or any(_changes_times(fault) for fault in disturbance.transfers)
    )


def _changes_times(fault: TransferFault) -> bool:
    return fault.completions != 1 or fault.longer_ps > 0 or fault.late_ps > 0


def disturbed(
    machine: ClockState,
    executable: Executable,
    parts: Parts,
    routes: RouteRecords,
    disturbance: Disturbance,
) -> ClockState:
    """A machine before its first row to which a disturbance will happen; it has every rank.

    ValueError for a queue, rank or part that there is not.
    """
    _check(executable, parts, disturbance)
    ranks, process = executable.ranks, machine.process
    for rank, late_ps in disturbance.late_start_ps.items():
        process["free"][rank::ranks] += late_ps
    changes: list[tuple[int, int, int, int]] = []

    # stages of the queues whose speed changes
    speeds: dict[int, list[QueueSpeed]] = defaultdict(list)
    for speed in disturbance.queues:
        speeds[speed.queue * ranks + speed.rank].append(speed)
    stages: list[tuple[int, int]] = []
    for number, of_queue in speeds.items():
        process[number]["stage"] = len(stages)
        was_running = 1
        for start, until, speed_now in stages_of(of_queue):
            stages.append((until, speed_now))
            if was_running != min(1, speed_now):
                was_running = min(1, speed_now)
                changes.append((start, NONE, number, was_running))

    # rates of the parts that change them
    slowed: dict[int, list[PartSpeed]] = defaultdict(list)
    for part_speed in disturbance.parts:
        slowed[part_speed.part].append(part_speed)
    if slowed:
        rates = dict(_rates_of_parts(parts, slowed))
        for part, of_part in rates.items():
            changes += [(start, part, NONE, rate) for start, rate in of_part]
        route, use, part_records = routes.records(len(process), np.array(list(rates)))
        most_uses = int((route["end_use"] - route["first_use"]).max(initial=1))
        sizes = machine.sizes.copy()
        sizes["most_uses"] = most_uses
        node = empty("node", len(process) * most_uses)
        machine = machine._replace(route=route, use=use, part=part_records, node=node, sizes=sizes)

    faults = _faults(disturbance.transfers, ranks)
    for at in range(len(faults) - 1, -1, -1):
        process[faults[at]["process"]]["fault"] = at
    return machine._replace(
        stage=np.array(stages, machine.stage.dtype),
        change=np.array(sorted(changes), machine.change.dtype),
        fault=faults,
    )


def stages_of(speeds: Iterable[PartSpeed | QueueSpeed]) -> Iterator[tuple[int, int, int]]:
    """(start, end, speed) of all time, in order: the product of the speeds that hold.

    In ten-thousandths, rounded down, but not to 0. What ends at ALWAYS_PS or later never does.
    """
    holding = [speed for speed in speeds if speed.start_ps < speed.end_ps and speed.end_ps > 0]
    times = {0, BEYOND}
    for speed in holding:
        times |= {max(0, speed.start_ps), BEYOND if speed.end_ps >= ALWAYS_PS else speed.end_ps}
    ordered = sorted(times)
    begins: dict[int, list[PartSpeed | QueueSpeed]] = defaultdict(list)
    for speed in holding:
        begins[max(0, speed.start_ps)].append(speed)
    now_holding: list[PartSpeed | QueueSpeed] = []
    for at, start in enumerate(ordered[:-1]):
        now_holding = [speed for speed in now_holding if speed.end_ps > start] + begins[start]
        product, whole = 1, 1
        for speed in now_holding:
            product, whole = product * speed.speed, whole * FULL_SPEED
        yield start, ordered[at + 1], min(1, product) and max(1, product * FULL_SPEED // whole)


def _rates_of_parts(
    parts: Parts, slowed: Mapping[int, Sequence[PartSpeed]]
) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """(part, [(from a time on, MB/s)]) of the parts that change, pools of DMA engines among them.

    A rank's engines together have what its groups of engines have.
    """
    stages = {part: list(stages_of(of_part)) for part, of_part in slowed.items()}
    for part, of_part in stages.items():
        rate = int(parts.rates[part])
        yield part, [(start, whole_mb(rate * speed, FULL_SPEED)) for start, _, speed in of_part]
    dma = parts.span(PartKind.DMA)
    groups = [part for part in stages if dma.start <= part < dma.stop]
    for rank in sorted({(part - dma.start) // parts.groups for part in groups}):
        first = dma.start + rank * parts.groups
        of_rank = range(first, first + parts.groups)
        starts = sorted({start for part in of_rank for start, *_ in stages.get(part, ())})
        total = dict.fromkeys(starts, 0)
        for part in of_rank:
            for begin, end, speed in stages.get(part, [(0, BEYOND, FULL_SPEED)]):
                for start in starts:
                    if begin <= start < end:
                        total[start] += int(parts.rates[part]) * speed
        rates = [(start, whole_mb(each, FULL_SPEED)) for start, each in total.items()]
        yield parts.count + rank, rates


def whole_mb(rate: int, divisor: int) -> int:
    """Bytes a second, times a divisor, as whole MB/s; at least 1 where it is not 0."""
    return min(1, rate) and max(1, rate // divisor // MEGA)


def _faults(transfers: Sequence[TransferFault], ranks: int) -> np.ndarray:
    """Records of transfers whose times change, by process and number."""
    rows = [
        (each.queue * ranks + each.rank, each.nth, each.completions, each.longer_ps, each.late_ps)
        for _, each in sorted(joined_transfers(transfers).items())
        if _changes_times(each)
    ]
    return np.array(rows, empty("fault", 0).dtype)


def _check(executable: Executable, parts: Parts, disturbance: Disturbance) -> None:
    speeds = [each.speed for each in disturbance.parts]
    speeds += [each.speed for each in disturbance.queues]
    for speed in speeds:
        if not 0 <= speed <= FULL_SPEED:
            raise ValueError(f"speed {speed} is not between 0 and {FULL_SPEED}")
    for fault in disturbance.transfers:
        if fault.completions not in (0, 1, 2) or fault.longer_ps < 0 or fault.late_ps < 0:
            raise ValueError(f"{fault} completes 0 to 2 times, and not before it usually does")
    for rank, late_ps in disturbance.late_start_ps.items():
        if not 0 <= rank < executable.ranks or late_ps < 0:
            raise ValueError(f"there is no start of rank {rank} that is {late_ps} ps late")
    for part_speed in disturbance.parts:
        if not 0 <= part_speed.part < parts.count:
            raise ValueError(f"there is no part {part_speed.part}")
    named = [(each.queue, each.rank) for each in disturbance.queues]
    named += [(each.queue, each.rank) for each in disturbance.transfers]
    for queue, rank in named:
        if not 0 <= queue < len(executable.queues) or not 0 <= rank < executable.ranks:
            raise ValueError(f"there is no queue {queue} of rank {rank}")
