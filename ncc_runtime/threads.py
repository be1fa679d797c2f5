"""Threads of this host that share work whose parts may be done in any order."""

import collections
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait


class Threads:
    """So many threads, the caller's among them; the others end when nobody holds this object."""

    def __init__(self, count: int) -> None:
        self.count = count
        self._beside: ThreadPoolExecutor | None = None  # all threads but the caller's
        self._beside_of = 0  # the process whose threads they are: a fork has none of them

    def perform(self, tasks: Sequence[Callable[[], object]]) -> None:
        """Do tasks side by side; an error of one is raised, once no thread is at work."""
        if self.count == 1 or len(tasks) <= 1:
            for task in tasks:
                task()
            return
        left = collections.deque(tasks)

        def work() -> None:
            while True:
                try:
                    task = left.popleft()
                except IndexError:
                    return
                task()

        if self._beside is None or self._beside_of != os.getpid():
            self._beside = ThreadPoolExecutor(self.count - 1, thread_name_prefix="rank")
            self._beside_of = os.getpid()
        others = [self._beside.submit(work) for _ in range(min(self.count, len(tasks)) - 1)]
        try:
            work()
        finally:
            left.clear()
            wait(others)  # nothing goes on while its memory is read or given away
        for other in others:
            other.result()
