"""The processes of one run: which ranks each holds, and what goes from one to another.

A run has one process, or those that `mpirun` or `srun` started. Ranks are dealt out in contiguous
shares. All processes come to the same decisions in the same order, so each knows what the others
send to it and how much: no message says so.

What crosses processes goes by MPI. Processes of one host share windows of memory: a sender writes
into its own, and receivers read there. Others get messages. mpi4py is imported when a launcher has
started several processes, and not before.
"""

import functools
import importlib.util
import os
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs
import numpy as np

from ncc_runtime.errors import InputError, NccError
from ncc_runtime.launcher import launched

WINDOW_BYTES = 6 << 20
"""What a process sends at once, at most; its window holds this twice."""

_ALIGNMENT = 64

_AGREED_S = 1.0
"""After so many seconds in which others did not fail, too, a process ends them all."""

HOST_PROCESSES = "NCC_MPI_HOST_PROCESSES"
"""Of the environment: so many processes, counted from the first, are taken for one host. For tests
of what goes between hosts on one."""

_Value = TypeVar("_Value")


@attrs.frozen(eq=False)
class Shares:
    """How ranks are dealt out: process k holds ranks bounds[k] to bounds[k + 1]."""

    number: int  # of this process
    bounds: np.ndarray  # (processes + 1,)

    @property
    def first(self) -> int:
        """The first rank of this process."""
        return int(self.bounds[self.number])

    @property
    def end(self) -> int:
        """The rank behind its last."""
        return int(self.bounds[self.number + 1])

    @property
    def count(self) -> int:
        """Processes."""
        return len(self.bounds) - 1

    @functools.cached_property
    def process_of(self) -> np.ndarray:
        """The process of each rank, (ranks,)."""
        return np.repeat(np.arange(self.count), np.diff(self.bounds))

    def own(self, ranks: np.ndarray) -> np.ndarray:
        """Those of some ranks, ascending, that this process holds."""
        first, end = np.searchsorted(ranks, (self.first, self.end))
        part: np.ndarray = ranks[first:end]
        return part

    def are_own(self, ranks: np.ndarray) -> np.ndarray:
        """Whether this process holds them, bool."""
        return (ranks >= self.first) & (ranks < self.end)


class Processes:
    """This process alone; `started` gives those of a launcher."""

    number = 0  # of this process
    count = 1
    on_host = 1  # how many run on this host

    def shares(self, ranks: int) -> Shares:
        """Contiguous shares of as equal a size as can be; InputError if one would have none."""
        if ranks < self.count:
            raise InputError(
                f"{self.count} processes for {ranks} ranks: each holds at least one; start at most "
                f"{ranks}"
            )
        return Shares(self.number, np.arange(self.count + 1) * ranks // self.count)

    def exchange(
        self, sent: Mapping[int, np.ndarray], received: Mapping[int, int]
    ) -> Mapping[int, np.ndarray]:
        """Send bytes, (n,) uint8, to others, and get as many from others as `received` says.

        All processes call it, in the same order, each with at most WINDOW_BYTES to send. What is
        received may lie in the memory of the sender: it stays until the next call.
        """
        assert not sent, "nobody to send to"
        assert not received, "nobody to receive from"
        return {}

    def gather(self, value: _Value) -> list[_Value]:
        """What each process gives, in their order; for what is small."""
        return [value]

    def from_first(self, make: Callable[[], _Value]) -> _Value:
        """What the first process makes, for all."""
        return make()

    def tells_failure(self) -> bool:
        """After an error: whether it is this process that tells of it.

        All fail together, or one does, and then it has to end the others (`end_all`).
        """
        return True

    @property
    def is_apart(self) -> bool:
        """Whether others did not fail with this one."""
        return False

    @property
    def name(self) -> str:
        """Of this process, for messages: its number, and its host."""
        return ""

    def end_all(self, code: int) -> None:
        """End the others, too, if they did not fail with this one; else wait for them."""

    def abort(self, code: int) -> None:
        """End all at once."""


ALONE = Processes()


class MpiProcesses(Processes):
    """Those that a launcher of MPI started."""

    def __init__(self) -> None:
        import mpi4py

        mpi4py.rc.thread_level = "funneled"  # one thread talks to others
        from mpi4py import MPI

        self._mpi = MPI
        self._all = MPI.COMM_WORLD
        self._failures = self._all.Dup()
        self.number, self.count = self._all.Get_rank(), self._all.Get_size()
        host = self._all.Split_type(MPI.COMM_TYPE_SHARED, self.number)
        if most := int(os.environ.get(HOST_PROCESSES, "0")):
            host = host.Split(self.number // most, self.number)
        self.on_host = host.Get_size()
        self._window = _Window(MPI, host) if self.on_host > 1 else None
        self._neighbours = {
            process: place for place, process in enumerate(host.allgather(self.number))
        }
        self._is_apart = False

    def exchange(
        self, sent: Mapping[int, np.ndarray], received: Mapping[int, int]
    ) -> Mapping[int, np.ndarray]:
        found: dict[int, np.ndarray] = {}
        requests = []
        for process, size in received.items():
            if process not in self._neighbours:
                found[process] = np.empty(size, np.uint8)
                requests.append(self._all.Irecv(found[process], process))
        for process, data in sent.items():
            if process not in self._neighbours:
                requests.append(self._all.Isend(data, process))
        if self._window is not None:
            near = self._neighbours
            own = {near[process]: data for process, data in sent.items() if process in near}
            sizes = {near[process]: size for process, size in received.items() if process in near}
            parts = self._window.exchange(own, sizes)
            found |= {process: parts[near[process]] for process in received if process in near}
        self._mpi.Request.Waitall(requests)
        return found

    def gather(self, value: _Value) -> list[_Value]:
        found: list[_Value] = self._all.allgather(value)
        return found

    def from_first(self, make: Callable[[], _Value]) -> _Value:
        made: _Value | None = None
        fault: Exception | None = None
        if self.number == 0:
            try:
                made = make()
            except NccError as error:  # of all, then
                fault = error
        made, fault = self._all.bcast((made, fault))
        if fault is not None:
            raise fault
        return made

    def tells_failure(self) -> bool:
        # Those that wait for a message of this one never come here. If several fail, but not all,
        # the first of them has told it, and ended the others, before their time is over.
        everybody, end = self._failures.Ibarrier(), time.monotonic() + _AGREED_S
        end += self.number * _AGREED_S / 4
        while not everybody.Test():
            if time.monotonic() > end:
                self._is_apart = True
                return True
            time.sleep(0.005)
        return self.number == 0

    @property
    def is_apart(self) -> bool:
        return self._is_apart

    @property
    def name(self) -> str:
        return f"process {self.number} of {self.count} on {self._mpi.Get_processor_name()}"

    def end_all(self, code: int) -> None:
        if self._is_apart:
            self.abort(code)
        self._failures.Barrier()  # a launcher ends all others once one has ended with an error

    def abort(self, code: int) -> None:
        sys.stdout.flush()
        sys.stderr.flush()
        self._all.Abort(code)


class _Window:
    """Memory that the processes of one host share: each writes its own part, others read there.

    A part has two halves, which take turns: who writes into a half has seen everybody come to the
    exchange after the one that used it last, and with it leave what it had got.
    """

    def __init__(self, mpi: Any, host: Any) -> None:
        self._host, self._processes = host, host.Get_size()
        self._header = -(-8 * self._processes // _ALIGNMENT) * _ALIGNMENT
        half = self._header + WINDOW_BYTES + _ALIGNMENT * self._processes
        self._window = mpi.Win.Allocate_shared(2 * half, 1, comm=host)
        self._halves = []  # by half and process
        for number in (0, 1):
            parts = []
            for process in range(self._processes):
                memory, _ = self._window.Shared_query(process)
                whole = np.frombuffer(memory, np.uint8)
                parts.append(whole[number * half : (number + 1) * half])
            self._halves.append(parts)
        self._turn = 0
        self._window.Lock_all()

    def exchange(
        self, sent: Mapping[int, np.ndarray], received: Mapping[int, int]
    ) -> Mapping[int, np.ndarray]:
        """As `Processes.exchange`, among those of a host, by their numbers there."""
        parts = self._halves[self._turn]
        self._turn = 1 - self._turn
        own = parts[self._host.Get_rank()]
        places = own[: 8 * self._processes].view(np.int64)
        at = self._header
        for process, data in sent.items():
            places[process] = at
            own[at : at + len(data)] = data
            at += -(-len(data) // _ALIGNMENT) * _ALIGNMENT
        self._window.Sync()
        self._host.Barrier()
        self._window.Sync()
        me, found = self._host.Get_rank(), {}
        for process, size in received.items():
            part = parts[process]
            place = int(part[: 8 * self._processes].view(np.int64)[me])
            found[process] = part[place : place + size]
        return found


@functools.cache
def started() -> Processes:
    """Those that a launcher started; this one alone without one. InputError without mpi4py."""
    number, count = launched()
    if count == 1:
        return ALONE
    fault = None
    if importlib.util.find_spec("mpi4py") is None:
        fault = "which need mpi4py; `pip install 'neuron-ncc[mpi]'`"
    else:
        processes = MpiProcesses()
        if processes.count == count:
            return processes
        fault = (
            f"and mpi4py sees {processes.count}: it uses another MPI than that of the launcher; "
            "install it anew for that one"
        )
    if number:
        time.sleep(5 * _AGREED_S)  # the first one has told it by then, and its end ends all
        sys.exit(1)
    raise InputError(f"{count} processes were started, {fault}")
