"""Small placed programs for the clock, run by it and by its reference."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.execution.clock import uncompiled
from ncc_runtime.execution.clock.clock import simulate
from ncc_runtime.execution.control_flow import (
    Decisions,
    PlannedDecisions,
    RecordedDecisions,
    ValueDecisions,
)
from ncc_runtime.execution.scheduler import Scheduler
from ncc_runtime.execution.trace import Trace
from ncc_runtime.execution.values.devices import Devices
from ncc_runtime.inputs import bound_inputs
from ncc_runtime.lowering.executable import DmaQueue, Executable
from ncc_runtime.neff.placeholder import CollectiveOp
from tests.clock_comparison import first_difference
from tests.clock_reference import Reference
from tests.programs import collective_program


class Records(list[Any]):
    """A table of a clock without machine code; machine code takes no index for one from the end."""

    def __getitem__(self, at: Any) -> Any:
        assert at >= 0
        return super().__getitem__(at)

    def __setitem__(self, at: Any, record: Any) -> None:
        assert at >= 0
        super().__setitem__(at, record)


def refuse_negative_indices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the clock runs without machine code."""
    as_records = uncompiled._as_records
    monkeypatch.setattr(
        uncompiled, "_as_records", lambda name, table: Records(as_records(name, table))
    )


def planned(executable: Executable, trip_counts: Mapping[str, int] | None = None) -> Decisions:
    """Loops as often as is known or said."""
    return PlannedDecisions(executable, trip_counts or {})


def recorded(executable: Executable, inputs: Sequence[np.ndarray]) -> Decisions:
    """What the values decide."""
    machine = Devices(executable)
    machine.memory.load(bound_inputs(executable.program, dict(enumerate(inputs)), None))
    decisions = RecordedDecisions(executable.ranks, ValueDecisions(executable, machine))
    with machine:
        Scheduler(executable, decisions).run(machine.perform)
    return decisions


def timed(executable: Executable) -> Trace:
    return simulate(executable, planned(executable))


def agreed(executable: Executable, decisions: Decisions | None = None) -> tuple[Trace, Reference]:
    """Both clocks on the same run; every time, cause and reason must be the same."""
    decisions = decisions or planned(executable)
    trace = simulate(executable, decisions)
    reference = Reference(executable, decisions).run()
    difference = first_difference(trace, reference.performed)
    assert not difference, difference
    return trace, reference


def permute(
    pairs: Sequence[tuple[int, int]], size_bytes: int, ranks: int, topology: str, **place: object
) -> Executable:
    """Bytes from rank to rank, all at once."""
    program = collective_program(CollectiveOp.PERMUTE, ranks, [size_bytes // 4], pairs=tuple(pairs))
    return ncc_runtime.load(program, topology, **place).executable  # type: ignore[arg-type]


def collective(
    op: CollectiveOp, algorithm: str, ranks: int, elements: int, **place: object
) -> Executable:
    """One collective of all ranks by an algorithm, on trn2 unless said otherwise."""
    program = collective_program(op, ranks, [elements])
    place = {"topology": "trn2", **place}
    forced = {op.value: algorithm}
    return ncc_runtime.load(program, algorithms=forced, **place).executable  # type: ignore[arg-type]


def compiled(text: str, topology: str = "trn2", *, level: int = 1, **place: object) -> Executable:
    neff = ncc_compiler.compile_text(text, CompileOptions(level=level))
    return ncc_runtime.load(neff, topology, **place).executable  # type: ignore[arg-type]


def transfers(trace: Trace, sender: int) -> list[tuple[int, int, int, int]]:
    """(peer, row, start, end) of what a rank's rings moved, in time."""
    found = []
    for number, queue in enumerate(trace.executable.queues):
        if isinstance(queue, DmaQueue):
            for event in np.flatnonzero((trace.queue == number) & (trace.rank == sender)).tolist():
                row = int(trace.row[event])
                times = int(trace.start_ps[event]), int(trace.end_ps[event])
                found.append((int(queue.peer[row, sender]), row, *times))
    return sorted(found, key=lambda one: one[2:])
