"""The clock's kernel as Python runs it: for short runs, which end before machine code is loaded.

To load the machine code takes as long as some thousand steps without it, and to compile it,
once on a machine, as long as a million. So a process begins without; after a number of
steps it goes on in machine code from where it is. The functions are the same and all numbers
whole, so the result is.
"""

import itertools
import operator
from functools import cache
from typing import Any

import numpy as np

from ncc_runtime.execution.clock import kernel, machine_code
from ncc_runtime.execution.clock.tables import (
    BEYOND,
    LATEST,
    PAUSED,
    RECORDS,
    STEPS_LEFT,
    ClockState,
)

STEPS_IF_KEPT, STEPS_IF_NOT = 4_000, 200_000
"""Steps of a process without machine code, where that lies on disk and where it does not: 0.05 s
and 2 s (`benchmarks/first_run.py`)."""

RECORDS_IF_KEPT, RECORDS_IF_NOT = 20_000, 400_000
"""Larger tables are not made Python's objects, which takes about 1 us for a record."""

_CHANGED = (
    "process",
    "part",
    "node",
    "branch",
    "span",
    "offset",
    "semaphore",
    "increment",
    "event",
)
"""What the kernel changes, but for counts."""


class _Performed:
    steps = 0  # of this process, without machine code


def steps_for(machine: ClockState, left: int) -> int:
    """How many steps are quicker without machine code; 0 once it is loaded.

    A run that still has more events than that, as far as is known, goes on by machine code.
    """
    if machine_code.CODE.is_loaded:
        return 0
    records = sum(map(len, machine))
    steps = STEPS_IF_KEPT - _Performed.steps
    if records <= RECORDS_IF_KEPT and max(1, left) <= steps:
        return steps  # most runs end with them, and ask no disk
    most_records = RECORDS_IF_KEPT
    if not machine_code.CODE.is_kept:
        most_records, steps = RECORDS_IF_NOT, STEPS_IF_NOT - _Performed.steps
    return steps if records <= most_records and max(1, left) <= steps else 0


def run(machine: ClockState) -> int:
    """As `kernel.run`; it changes the arrays of the machine, as machine code does."""
    tables = {name: _as_records(name, table) for name, table in machine._asdict().items()}
    records = ClockState(**tables)
    before = records.counts[STEPS_LEFT]
    why = kernel.run(records)
    _Performed.steps += before - records.counts[STEPS_LEFT]
    try:
        machine.counts[:] = records.counts
        for name in _CHANGED:
            table, changed = getattr(machine, name), getattr(records, name)
            if table.dtype.names:
                rows = map(operator.attrgetter(*table.dtype.names), changed)
                changed = np.array(list(rows), table.dtype)
            table[:] = changed
    except OverflowError:  # a time beyond int64
        machine.counts[LATEST] = BEYOND
        return PAUSED
    return why


def _as_records(name: str, table: np.ndarray) -> Any:
    """A table as a list of objects whose attributes are Python's own numbers."""
    values = table.tolist()
    return list(itertools.starmap(_record(name), values)) if table.dtype.names else values


@cache
def _record(name: str) -> type:
    """A class with a slot for each field, made by its values in order."""
    names = RECORDS[name].names or ()
    body: dict[str, Any] = {}
    assigned = "; ".join(f"self.{each} = {each}" for each in names)
    exec(f"def __init__(self, {', '.join(names)}): {assigned}", body)  # noqa: S102 - our own names
    return type(name, (), {"__slots__": names, "__init__": body["__init__"]})
