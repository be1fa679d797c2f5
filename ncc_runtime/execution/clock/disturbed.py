"""A disturbance as the kernel's records: `pace`, `fault` and `change` of tables.py."""

from collections.abc import Iterable, Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.errors import LoweringError
from ncc_runtime.execution.clock.tables import ENGINE, NONE, RING, ClockState, empty
from ncc_runtime.execution.disturbance import (
    ALWAYS_PS,
    FULL_SPEED,
    Disturbance,
    PartSpeed,
    QueueSpeed,
)
from ncc_runtime.machine_model.timing import PS_PER_S

_MOST_WORK_PS = (2**63 - 1) // FULL_SPEED


@attrs.frozen
class Halted:
    """A queue of a rank that a disturbance itself stops for ever."""

    queue: int
    rank: int
    row: int
    since_ps: int
    part: int | None  # through which nothing passes; None: the queue stands still


def changing_parts(disturbance: Disturbance) -> tuple[int, ...]:
    """The parts whose speed changes, each once, in order."""
    return tuple(sorted({each.part for each in disturbance.parts}))


def disturbed(machine: ClockState, disturbance: Disturbance) -> ClockState:
    """A machine before its first row, with all that will go wrong; its processes are changed."""
    ranks = int(machine.sizes[0]["ranks"])
    process, changes = machine.process, _part_changes(machine, disturbance)
    for rank, late_ps in disturbance.late_start_ps.items():
        process["free"][rank::ranks] += late_ps

    paces: list[tuple[int, int]] = []
    of_queues: dict[int, list[QueueSpeed]] = {}
    for each in disturbance.queues:
        of_queues.setdefault(each.queue * ranks + each.rank, []).append(each)
    for number, speeds in of_queues.items():
        is_engine = machine.queue[number // ranks]["kind"] == ENGINE
        steps = _steps(speeds)
        if not is_engine:
            steps = [(start, FULL_SPEED if speed else 0) for start, speed in steps]
        process[number]["first_pace"] = len(paces)
        paces += steps
        process[number]["end_pace"] = len(paces)
        changes += [(start, NONE, number, int(not speed)) for start, speed in steps]
    if of_queues:
        _check_work(machine)

    faults: dict[tuple[int, int], tuple[int, int, int]] = {}
    for fault in disturbance.transfers:
        place = fault.queue * ranks + fault.rank, fault.nth
        completions, longer, late = faults.get(place, (1, 0, 0))
        faults[place] = (
            completions * fault.completions,
            longer + fault.longer_ps,
            late + fault.late_ps,
        )
    for at, (number, _) in enumerate(sorted(faults)):
        if process[number]["end_fault"] == 0:
            process[number]["fault"] = at
        process[number]["end_fault"] = at + 1
    # what completes twice needs room for as many increments more
    machine.sizes[0]["most_posts"] *= max([1, *(times for times, _, _ in faults.values())])

    rows = [(nth, *faults[number, nth]) for number, nth in sorted(faults)]
    return machine._replace(
        pace=_table("pace", paces),
        fault=_table("fault", rows),
        change=_table("change", sorted(changes)),
    )


def _part_changes(machine: ClockState, disturbance: Disturbance) -> list[tuple[int, int, int, int]]:
    """Rows of `change` that give parts other rates."""
    of_parts: dict[int, list[PartSpeed]] = {}
    for each in disturbance.parts:
        of_parts.setdefault(each.part, []).append(each)
    changes = []
    for part, speeds in of_parts.items():
        usual = int(machine.part[part]["capacity"])
        for start, speed in _steps(speeds):
            rate = max(1, usual * speed // FULL_SPEED) if speed else 0
            changes.append((start, part, NONE, rate))
    return changes


def _steps(speeds: Sequence[PartSpeed | QueueSpeed]) -> list[tuple[int, int]]:
    """The speed from each time on at which it changes, the first at 0: products of what holds."""
    times = {0, *(each.start_ps for each in speeds), *(each.end_ps for each in speeds)}
    steps: list[tuple[int, int]] = []
    for start in sorted(times - {ALWAYS_PS}):
        speed = FULL_SPEED
        for each in speeds:
            if speed and each.start_ps <= start < each.end_ps:
                speed = max(1, speed * each.speed // FULL_SPEED) if each.speed else 0
        if not steps or steps[-1][1] != speed:
            steps.append((start, speed))
    return steps


def _check_work(machine: ClockState) -> None:
    """Refuse instructions so long that they overflow when counted in ten-thousandths."""
    rows, percent = machine.row, int(machine.process["percent"].min(initial=100))
    most = int((rows["overhead"] + rows["work"]).max(initial=0)) * 100 // max(1, percent)
    if most > _MOST_WORK_PS:
        raise LoweringError(
            f"an instruction takes {most // PS_PER_S:,} s, more than the "
            f"{_MOST_WORK_PS // PS_PER_S:,} s that the clock can count at changing speeds"
        )


def _table(name: str, rows: Iterable[tuple[int, ...]]) -> np.ndarray:
    listed = list(rows)
    table = empty(name, len(listed))
    table[:] = listed
    return table


def is_halted(machine: ClockState) -> np.ndarray:
    """Which processes a disturbance has stopped for ever, (processes,) bool; after a run."""
    process = machine.process
    return np.asarray((process["is_halted"] != 0) | (process["is_parked"] != 0))


def halted(machine: ClockState) -> Iterator[Halted]:
    """The same with what stops them."""
    ranks = int(machine.sizes[0]["ranks"])
    for number in np.flatnonzero(is_halted(machine)).tolist():
        of = machine.process[number]
        queue, rank = divmod(number, ranks)
        row = _row_of(machine, number)
        if of["is_halted"] or of["is_still"]:
            paces = machine.pace[of["first_pace"] : of["end_pace"]]
            began = int(of["start"]) if of["is_halted"] else int(of["since"])
            yield Halted(queue, rank, row, max(began, int(paces["start"][-1])), None)
            continue
        uses = machine.use["part"][of["first_use"] : of["end_use"]]
        part = int(uses[machine.part["capacity"][uses] == 0][0])
        yield Halted(queue, rank, row, int(of["since"]), part)


def _row_of(machine: ClockState, process: int) -> int:
    """The row at which a process is; of a ring: the one that was pushed."""
    of, ranks = machine.process[process], int(machine.sizes[0]["ranks"])
    number, rank = divmod(process, ranks)
    queue, row = machine.queue[number], int(of["row"])
    if queue["kind"] != RING:
        return row
    tail = machine.semaphore[rank * int(machine.sizes[0]["semaphores"]) + int(queue["tail"])]
    return int(machine.increment[int(tail["start"]) + row - int(tail["dropped"])]["pushed"])
