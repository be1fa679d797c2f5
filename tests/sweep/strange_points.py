"""What processes of tests do in place of computing points; they import this file."""

import contextlib
import os
import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path

from ncc_runtime.sweep import workers
from ncc_runtime.sweep.points import SweepPoint
from ncc_runtime.sweep.results import PointResult
from ncc_runtime.sweep.workers import LocalPool, results_of, version

FOR_EVER_S = 3600


def strange(
    deadly: frozenset[str],
    once: frozenset[str],
    stuck: frozenset[str],
    folder: str,
    points: Sequence[SweepPoint],
    programs: Mapping[str, bytes],
    timeout_s: float | None,
) -> list[PointResult]:
    """As `results_of`, but for points that kill their process, once or always, or never end."""
    for point in points:
        mark = Path(folder) / point.key
        if point.key in deadly or (point.key in once and not mark.exists()):
            mark.touch()
            time.sleep(0.05)  # others are under way
            os.kill(os.getpid(), signal.SIGKILL)
    workers.GRACE_S = 0.2
    computed = workers.result_of

    def slow(point: SweepPoint, programs: Mapping[str, bytes]) -> PointResult:
        while point.key in stuck:
            time.sleep(FOR_EVER_S)  # which no exception of another thread ends
        return computed(point, programs)

    workers.result_of = slow
    try:
        return results_of(version(), points, programs, timeout_s)
    finally:
        workers.result_of = computed


class StrangePool(LocalPool):
    """Processes that do that."""

    def __init__(self, processes: int, folder: Path, timeout_s: float | None = None) -> None:
        super().__init__(processes, {}, timeout_s)
        self.deadly: set[str] = set()
        self.once: set[str] = set()
        self.stuck: set[str] = set()
        self._folder = str(folder)

    def submit(self, points: Sequence[SweepPoint]) -> "Future[list[PointResult]]":
        which = (frozenset(keys) for keys in (self.deadly, self.once, self.stuck))
        return self.sent(strange, *which, self._folder, points, {}, self.timeout_s)


@contextlib.contextmanager
def strange_pool(
    processes: int, folder: Path, timeout_s: float | None = None
) -> Iterator[StrangePool]:
    pool = StrangePool(processes, folder, timeout_s)
    try:
        yield pool
    finally:
        pool.close()
