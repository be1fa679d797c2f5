"""Points computed by many processes: those of this machine are joblib's, those of a cluster Dask's.

Points go out in batches that take some tenths of a second, a few ahead for each process. A process
that is lost, killed for want of memory say, takes the batches with it that it had. Their points are
computed again when all others are done: first one by one, then those that are lost again each
alone, and what is lost alone has failed. So what kills its process costs no other point its result.
"""

import collections
import contextlib
import ctypes
import gc
import importlib.util
import json
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Future, wait
from pathlib import Path
from typing import Any, NoReturn, Protocol

import attrs

from ncc_runtime.errors import InputError
from ncc_runtime.progress import phase
from ncc_runtime.sweep.points import SweepPoint, version
from ncc_runtime.sweep.results import PointResult, Status, result_of

BATCH_S = 0.4
"""What a batch should take: much more than to send it, little enough to be lost."""

AHEAD = 2
"""Batches for each process, so that none waits for the next."""

GRACE_S = 10.0
"""A process that does not stop so long after the time of its point ends."""

CONNECT_S = 10.0
"""How long a Dask scheduler may take to answer."""

WORKERS_S = 60.0
"""How long workers of a cluster may take to come, or to come again."""

COUNT_S = 1.0
"""How often the workers of a cluster are counted, while points are done."""

LOOK_S = 5.0
"""While nothing is done, how often it is looked whether there is somebody to do it."""

ONE_THREAD = dict.fromkeys(
    ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), "1"
)
"""Environment of processes of which each has a processor to itself."""


class Pool(Protocol):
    """Processes that compute batches of points, each in at most so many seconds."""

    timeout_s: float | None

    def width(self) -> int:
        """How many batches are computed at a time."""

    def submit(self, points: Sequence[SweepPoint]) -> "Future[list[PointResult]]":
        """Have a batch computed; the future has BrokenExecutor if its process is lost."""

    def revive(self) -> None:
        """Replace processes that were lost."""

    def check(self) -> None:
        """Looked at now and then while nothing is done: InputError if nothing will be."""


def computed(points: Sequence[SweepPoint], pool: Pool) -> Iterator[Sequence[PointResult]]:
    """The results of points as they come, each once. NccError if no process can compute any."""
    # points with the same program and place follow each other, so that they find them read;
    # of many ranks first, so that the last ones are short
    left = sorted(points, key=lambda p: (p.hashes, -p.ranks, repr(p.place), repr(p.work)))
    rounds: tuple[tuple[bool, Callable[[], int]], ...] = (
        (True, lambda: AHEAD * pool.width()),
        (False, pool.width),
        (False, lambda: 1),
    )
    for is_batched, most in rounds:
        lost: list[SweepPoint] = []
        yield from _computed(collections.deque(left), pool, most, lost, is_batched=is_batched)
        left = lost
    why = "for want of memory" + ", or as it did not stop in time" * (pool.timeout_s is not None)
    reason = f"each of three processes that computed it was killed, perhaps {why}"
    yield [PointResult(point.key, Status.FAILED, reason) for point in left]


def _computed(
    left: collections.deque[SweepPoint],
    pool: Pool,
    most: Callable[[], int],
    lost: list[SweepPoint],
    *,
    is_batched: bool,
) -> Iterator[Sequence[PointResult]]:
    """The results of points but for those that are lost with their process, which it notes.

    `most` says how many batches may be under way at a time.
    """
    under_way: dict[Future[list[PointResult]], list[SweepPoint]] = {}
    number, passed_s, is_broken = 0, 0.0, False
    while left or under_way:
        ahead = most()  # workers of a cluster come and go
        while left and len(under_way) < ahead and not is_broken:
            count = 1
            if is_batched and number:
                fair = -(-len(left) // ahead)  # so that all have work until the end
                count = max(1, min(fair, int(BATCH_S * number / max(passed_s, 1e-6))))
            batch = _next_batch(left, count)
            try:
                under_way[pool.submit(batch)] = batch
            except BrokenExecutor:  # by a batch before it, of which we have not heard yet
                left.extendleft(reversed(batch))
                is_broken = True
        done, _ = wait(under_way, timeout=LOOK_S, return_when=FIRST_COMPLETED)
        if not done:
            pool.check()
        for future in done:
            batch = under_way.pop(future)
            try:
                results = future.result()
            except BrokenExecutor:
                lost += batch
                is_broken = True
                continue
            number += len(results)
            passed_s += sum(result.host_s for result in results)
            yield results
        if is_broken and not under_way:
            pool.revive()
            is_broken = False


def _next_batch(left: collections.deque[SweepPoint], most: int) -> list[SweepPoint]:
    """The first points, of one program."""
    batch = [left.popleft()]
    while left and len(batch) < most and left[0].hashes == batch[0].hashes:
        batch.append(left.popleft())
    return batch


def results_of(
    sender: str,
    points: Sequence[SweepPoint],
    programs: Mapping[str, bytes],
    timeout_s: float | None,
) -> list[PointResult]:
    """What a process computes of a batch that a process of version `sender` has sent.

    The process ends where a point does not stop when its time is over.
    """
    if sender != version():
        raise InputError(
            f"a worker of the cluster has version {version()} of neuron-ncc, and this is {sender}; "
            "install the same"
        )
    results = []
    for point in points:
        # points of one process would only wait for each other, as one interpreter runs them
        with _ALONE:
            try:
                with _at_most(timeout_s):
                    results.append(result_of(point, programs))
            except PointTimeoutError:
                reason = f"it took longer than --timeout, {timeout_s:g} s"
                results.append(PointResult(point.key, Status.FAILED, reason, host_s=timeout_s or 0))
    return results


_ALONE = threading.Lock()


class PointTimeoutError(BaseException):
    """A point has had its time. No handler of errors takes it for one."""


@contextlib.contextmanager
def _at_most(seconds: float | None) -> Iterator[None]:
    """Raises PointTimeoutError in what is inside after so many seconds, whatever thread it is."""
    if seconds is None:
        yield
        return
    thread, over, lock = threading.get_ident(), threading.Event(), threading.Lock()
    is_raised = False

    def watch() -> None:
        nonlocal is_raised
        if over.wait(seconds):
            return
        with lock:
            if over.is_set():
                return
            is_raised = True
            raised = ctypes.py_object(PointTimeoutError)
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), raised)
        if not over.wait(GRACE_S):  # in machine code without an end
            os._exit(1)

    threading.Thread(target=watch, daemon=True).start()
    try:
        try:
            yield
        finally:
            with lock:
                over.set()
    except PointTimeoutError:
        raise
    else:
        began_s = time.monotonic()
        while is_raised and time.monotonic() < began_s + 1:  # it is on its way to this thread
            time.sleep(0.001)


class LocalPool:
    """Processes of this machine."""

    def __init__(
        self, processes: int, programs: Mapping[str, bytes], timeout_s: float | None
    ) -> None:
        self._processes = processes
        self._programs = programs
        self.timeout_s = timeout_s
        self._sent: list[Future[Any]] = []
        self._executor = self._begun()

    def _begun(self) -> Any:
        from joblib.externals.loky import ProcessPoolExecutor

        # loky ends a process that has grown, and begins another: that is no news for users
        warnings.filterwarnings("ignore", "A worker stopped while some jobs", UserWarning)
        return ProcessPoolExecutor(
            self._processes,
            timeout=None,  # they wait for work as long as this process is there
            env=ONE_THREAD,
            initializer=_begin_worker,
            initargs=(os.getpid(),),
        )

    def width(self) -> int:
        return self._processes

    def submit(self, points: Sequence[SweepPoint]) -> "Future[list[PointResult]]":
        needed = {digest: self._programs[digest] for digest in points[0].hashes}
        return self.sent(results_of, version(), points, needed, self.timeout_s)

    def sent(self, call: Callable[..., Any], *given: Any, **named: Any) -> "Future[Any]":
        """A call in a process."""
        found: Future[Any] = self._executor.submit(call, *given, **named)
        self._sent = [one for one in self._sent if not one.done()] + [found]
        return found

    def revive(self) -> None:
        self.close()
        self._executor = self._begun()

    def check(self) -> None:
        """Its processes end with an error, or go on."""

    def close(self) -> None:
        # loky's manager fails of calls that have not reached the queue of its processes, which
        # takes as many as are sent ahead
        until_s = time.monotonic() + 1
        while not all(one.running() or one.done() for one in self._sent):
            if time.monotonic() > until_s:
                break
            time.sleep(0.001)
        self._sent.clear()
        self._executor.shutdown(wait=True, kill_workers=True)


def _begin_worker(parent: int) -> None:
    """What a process of ours does before its first batch."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of a terminal; its parent ends it
    gc.set_threshold(500_000, *gc.get_threshold()[1:])  # few objects are garbage

    def watch() -> NoReturn:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)  # nobody would hear what it computes

    threading.Thread(target=watch, daemon=True).start()


class DaskPool:
    """The workers of a Dask cluster, which may come and go.

    A program lies with the workers that have needed it; Dask sends it on from one to the next, and
    has it from its scheduler again where all that had it are lost.
    """

    def __init__(
        self, address: str, programs: Mapping[str, bytes], timeout_s: float | None
    ) -> None:
        import distributed

        self.timeout_s = timeout_s
        try:
            where = address
            if address.endswith(".json"):  # Dask would wait for a file that is not there
                where = json.loads(Path(address).read_text())["address"]
            self._client = distributed.Client(
                where, timeout=CONNECT_S, set_as_default=False, name="nccrt sweep"
            )
        except (OSError, ValueError, KeyError, TypeError, TimeoutError) as error:
            what = " ".join(str(error).split()) or type(error).__name__
            raise InputError(f"no Dask scheduler answers at {address}: {what}") from error
        self._address = address
        self._lost = distributed.scheduler.KilledWorker
        self._executor = self._client.get_executor(pure=False)
        try:
            with phase("waiting for the cluster", "workers"):
                self._client.wait_for_workers(1, timeout=WORKERS_S)
        except TimeoutError:
            self.close()
            raise InputError(
                f"the Dask cluster at {address} has no worker after {WORKERS_S:g} s: start some, "
                "and give the command again"
            ) from None
        try:  # else workers would end where they read the first batch, without a word to us
            self._client.run(exec, "import ncc_runtime.sweep.workers")
        except ImportError as error:
            self.close()
            raise InputError(
                f"a worker of the Dask cluster at {address} cannot import neuron-ncc: {error}; "
                "install there what is here"
            ) from error
        self._seen_s = time.monotonic()  # when there were workers
        self._counted_s, self._width = 0.0, 1
        self._programs = {
            digest: self._client.submit(_itself, data, key=f"nccrt-{digest}")
            for digest, data in programs.items()
        }

    def width(self) -> int:
        if time.monotonic() > self._counted_s + COUNT_S:
            self._width = max(1, sum(self._client.nthreads().values()))
            self._counted_s = time.monotonic()
        return self._width

    def submit(self, points: Sequence[SweepPoint]) -> "Future[list[PointResult]]":
        needed = {digest: self._programs[digest] for digest in points[0].hashes}
        return self.sent(results_of, version(), points, needed, self.timeout_s)

    def sent(self, call: Callable[..., Any], *given: Any, **named: Any) -> "Future[Any]":
        """A call in a process."""
        sent, found = self._executor.submit(call, *given, **named), Future[Any]()
        sent.add_done_callback(lambda ended: self._told(ended, found))
        return found

    def _told(self, ended: Any, found: "Future[Any]") -> None:
        """Passes an end on, in the words of `concurrent.futures`."""
        error = CancelledError() if ended.cancelled() else ended.exception()
        if error is None:
            found.set_result(ended.result())
        elif isinstance(error, self._lost):
            found.set_exception(BrokenExecutor(str(error)))
        elif isinstance(error, CancelledError | OSError):
            found.set_exception(
                InputError(
                    f"the Dask cluster at {self._address} is gone; what is computed is kept, and "
                    "the same command goes on from there"
                )
            )
        else:
            found.set_exception(error)

    def revive(self) -> None:
        """Dask does that itself."""

    def check(self) -> None:
        now_s = time.monotonic()
        if self._client.nthreads():
            self._seen_s = now_s
        elif now_s - self._seen_s > WORKERS_S:
            raise InputError(
                f"the Dask cluster at {self._address} has had no worker for {WORKERS_S:g} s; what "
                "is computed is kept: start some, and the same command goes on from there"
            )

    def close(self) -> None:
        self._executor.shutdown(wait=False)
        self._client.close(timeout=CONNECT_S)


def _itself(data: bytes) -> bytes:
    return data


@attrs.frozen
class Workers:
    """Which processes: so many of this machine, or those of a cluster."""

    processes: int
    cluster: str | None = None

    @contextlib.contextmanager
    def pool(
        self, programs: Mapping[str, bytes], timeout_s: float | None
    ) -> "Iterator[LocalPool | DaskPool]":
        """The processes while the context lasts; whatever they still compute is then given up."""
        if self.cluster is None:
            pool: LocalPool | DaskPool = LocalPool(self.processes, programs, timeout_s)
        else:
            pool = DaskPool(self.cluster, programs, timeout_s)
        try:
            yield pool
        finally:
            pool.close()


def processors() -> int:
    """How many processes this machine has processors for, in a container or as told."""
    import joblib

    return int(joblib.cpu_count())


def check_can_use(workers: Workers) -> None:
    """InputError before the work where a cluster is asked for and Dask is not installed."""
    if workers.cluster is not None and importlib.util.find_spec("distributed") is None:
        raise InputError("--dask needs Dask: pip install 'neuron-ncc[dask]'")
