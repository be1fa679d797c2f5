"""Work that several processes share, on all processors that this one may use.

They are forked, so they have whatever this one has, without a copy of what nobody writes. A process
that stops for whatever reason ends the others: none is left behind, and nobody waits for one.
"""

import contextlib
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import NoReturn, TypeVar

from ncc_runtime import progress
from ncc_runtime.errors import NccError
from ncc_runtime.host_limits import processors

Result = TypeVar("Result")


def most_processes() -> int:
    """How many processes may work at a time; 1 where processes cannot be forked."""
    return processors() if sys.platform == "linux" else 1


def in_order(work: Callable[[int], Result], count: int, processes: int) -> Iterator[Result]:
    """work(0), work(1), … as they come, from so many processes; process p does every p-th of them.

    What `work` changes is not seen here, and it tells nobody how far it is. Results are pickled. An
    error of `work` is raised in its turn; NccError if a process ends before its work.
    """
    if processes == 1:
        yield from map(work, range(count))
        return
    pipes = [multiprocessing.Pipe(duplex=False) for _ in range(processes)]
    children: list[int] = []
    try:
        for number in range(processes):
            child = _fork()
            if child == 0:
                _work_and_exit(work, range(number, count, processes), pipes, number)
            children.append(child)
        for _, writer in pipes:
            writer.close()
        for item in range(count):
            try:
                result, error = pipes[item % processes][0].recv()
            except EOFError:
                raise NccError(
                    "a process that shares the work has ended: was it killed for want of memory? "
                    "`taskset -c 0` lets one process do it all"
                ) from None
            if error is not None:
                raise error
            yield result
    finally:
        for ends in pipes:
            for end in ends:
                end.close()
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _fork() -> int:
    """`os.fork`; not multiprocessing's, whose children write out what streams of this one hold.

    The only other threads are those that show progress and those of BLAS, which outlive a fork.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return os.fork()


def _work_and_exit(
    work: Callable[[int], Result],
    items: range,
    pipes: list[tuple[Connection, Connection]],
    number: int,
) -> NoReturn:
    """What a child does. Nothing of its parent's may be cleaned up, so it goes without a word."""
    try:
        if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:  # as of jobs in the background
            signal.signal(signal.SIGINT, signal.SIG_DFL)
        progress.unheard()  # its parent's thread, and its locks, are not there any more
        writer = pipes[number][1]
        for ends in pipes:  # who has the end of another's pipe would keep that alive
            for end in ends:
                if end is not writer:
                    end.close()
        for item in items:
            result, error = None, None
            try:
                result = work(item)
            except Exception as raised:  # noqa: BLE001 — its parent raises it
                error = _portable(raised)
            writer.send((result, error))
    finally:
        os._exit(0)


def _portable(error: Exception) -> Exception:
    """An error that can be pickled, with where it was raised as a note."""
    error.add_note("".join(traceback.format_exception(error)))
    try:
        pickle.loads(pickle.dumps(error))  # noqa: S301 — our own
    except Exception:  # noqa: BLE001 — whatever its class makes of it
        return RuntimeError("".join(traceback.format_exception(error)))
    return error
