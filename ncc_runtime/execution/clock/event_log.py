"""Events as the kernel notes them: in memory, and beyond a limit in a temporary file.

The file has no name, so it goes with the process, however that ends.
"""

import contextlib
import tempfile
import weakref
from collections.abc import Iterator
from typing import BinaryIO, cast

import numpy as np

from ncc_runtime.errors import LoweringError, reason_of
from ncc_runtime.execution.clock.tables import EVENTS, TAKEN, Machine, empty

IN_MEMORY = 1 << 21
"""Events that are kept in memory, 39 bytes each."""

CHUNK = 1 << 18
"""Events that are read back together."""

MOST_EVENTS = int(np.iinfo(np.int32).max)
"""Events of one simulated run: they name each other in 32 bits."""


class EventLog:
    """All events of one run, those that the kernel's table still holds among them."""

    def __init__(self, in_memory: int) -> None:
        self._in_memory = max(1, in_memory)
        self._file: BinaryIO | None = None
        self._events = empty("event", 0)

    @property
    def is_on_disk(self) -> bool:
        """Whether memory did not do."""
        return self._file is not None

    def has_memory_for(self, events: int) -> bool:
        """Whether so many may be kept in memory."""
        return events <= self._in_memory

    def first_table(self, events: int) -> np.ndarray:
        """An empty table for so many, as far as memory is for."""
        return empty("event", max(1, min(events, self._in_memory)))

    def room(self, machine: Machine) -> Machine:
        """The same with room for more events."""
        table, noted = machine.event, int(machine.counts[EVENTS])
        if noted > MOST_EVENTS - len(table):
            raise LoweringError(
                f"the run has more than {MOST_EVENTS:,} events, which the clock cannot number; "
                "run fewer trips of its loops"
            )
        if 2 * len(table) <= self._in_memory and not self.is_on_disk:
            more = empty("event", len(table))
            return machine._replace(event=np.concatenate((table, more)))
        self._append(table)
        machine.counts[TAKEN] = noted
        return machine

    def close(self, machine: Machine) -> None:
        """The run is over."""
        rest = machine.event[: machine.counts[EVENTS] - machine.counts[TAKEN]]
        if self.is_on_disk:
            self._append(rest)
        else:
            self._events = rest

    @property
    def events(self) -> np.ndarray:
        """All of them, if they are in memory."""
        assert not self.is_on_disk, "events are read in chunks"
        return self._events

    def chunks(self) -> Iterator[np.ndarray]:
        """All of them, in order."""
        if self._file is None:
            yield from (self._events[at : at + CHUNK] for at in range(0, len(self._events), CHUNK))
            return
        self._file.seek(0)
        while len(some := np.fromfile(self._file, self._events.dtype, CHUNK)):
            yield some

    def _append(self, events: np.ndarray) -> None:
        with told_of_no_room():
            if self._file is None:
                self._file = cast("BinaryIO", tempfile.TemporaryFile(prefix="ncc-"))  # noqa: SIM115
                weakref.finalize(self, self._file.close)
            events.tofile(self._file)


@contextlib.contextmanager
def told_of_no_room() -> Iterator[None]:
    """LoweringError where a temporary file cannot be written."""
    try:
        yield
    except OSError as error:
        raise LoweringError(
            f"{tempfile.gettempdir()}: the events of the run cannot be kept there: "
            f"{reason_of(error)}; set TMPDIR to a folder with more room"
        ) from error
