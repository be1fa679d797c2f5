"""Processes of a run as threads of one, for tests that start no launcher."""

import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from ncc_runtime.processes import WINDOW_BYTES, Processes


class _Meeting:
    """Where threads put what others take."""

    def __init__(self, count: int) -> None:
        self.barrier = threading.Barrier(count, timeout=60)
        self.put: dict[int, Any] = {}


class ThreadProcesses(Processes):
    """One of several threads that hold ranks as processes do."""

    def __init__(self, number: int, count: int, meeting: _Meeting) -> None:
        self.number, self.count, self.on_host = number, count, count
        self._meeting = meeting

    def _swap(self, value: Any) -> dict[int, Any]:
        self._meeting.put[self.number] = value
        self._meeting.barrier.wait()
        found = dict(self._meeting.put)
        self._meeting.barrier.wait()
        return found

    def exchange(
        self, sent: Mapping[int, np.ndarray], received: Mapping[int, int]
    ) -> Mapping[int, np.ndarray]:
        assert self.number not in sent
        assert sum(len(data) for data in sent.values()) <= WINDOW_BYTES
        every = self._swap({other: data.copy() for other, data in sent.items()})
        came = {other: every[other][self.number] for other in received}
        assert {other: len(data) for other, data in came.items()} == dict(received)
        others = [other for other, data in every.items() if self.number in data]
        assert sorted(others) == sorted(received)
        return came

    def gather(self, value: Any) -> list[Any]:
        every = self._swap(value)
        return [every[number] for number in range(self.count)]

    def from_first(self, make: Callable[[], Any]) -> Any:
        return self.gather(make() if self.number == 0 else None)[0]


def among(count: int, perform: Callable[[Processes], Any]) -> list[Any]:
    """What each of so many threads gives; the first error, if one fails."""
    meeting = _Meeting(count)
    given: list[Any] = [None] * count
    errors: list[BaseException] = []

    def work(number: int) -> None:
        try:
            given[number] = perform(ThreadProcesses(number, count, meeting))
        except BaseException as error:  # noqa: BLE001 - raised again by the caller
            if not isinstance(error, threading.BrokenBarrierError):
                errors.append(error)
            meeting.barrier.abort()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return given
