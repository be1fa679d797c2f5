"""Points computed by processes: each once, whichever process is lost, late or another version."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Future
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_runtime.errors import InputError
from ncc_runtime.sweep import workers
from ncc_runtime.sweep.points import PointReader, SweepPoint, version
from ncc_runtime.sweep.results import PointResult, Status, result_of
from ncc_runtime.sweep.workers import LocalPool, Workers, computed, results_of
from tests.example_count import examples
from tests.sweep.strange_points import strange_pool


def points_of(count: int) -> list[SweepPoint]:
    reader = PointReader()
    return [
        reader.point({"op": "all_reduce", "ranks": 2, "size": 4 * (1 + number)})
        for number in range(count)
    ]


POINTS = points_of(24)
EXPECTED = {point.key: result_of(point, {}) for point in POINTS}


def test_processes_compute_what_this_one_computes() -> None:
    with Workers(2).pool({}, None) as pool:
        found = [result for results in computed(POINTS, pool) for result in results]
    assert len(found) == len(POINTS)
    assert {result.key: result for result in found} == EXPECTED


def test_points_of_a_process_that_is_lost_are_computed_again(tmp_path: Path) -> None:
    with strange_pool(2, tmp_path) as pool:
        pool.once = {POINTS[3].key, POINTS[17].key}
        found = [result for results in computed(POINTS, pool) for result in results]
    assert len(list(tmp_path.iterdir())) == 2
    assert len(found) == len(POINTS)
    assert {result.key: result for result in found} == EXPECTED


def test_a_point_that_kills_its_process_has_failed_and_no_other(tmp_path: Path) -> None:
    with strange_pool(2, tmp_path) as pool:
        pool.deadly = {POINTS[5].key}
        found = [result for results in computed(POINTS, pool) for result in results]
    assert len(found) == len(POINTS)
    failed = [result for result in found if result.status is Status.FAILED]
    assert [result.key for result in failed] == [POINTS[5].key]
    assert "was killed" in failed[0].reason
    done = {result.key: result for result in found if result.status is Status.DONE}
    assert done == {key: result for key, result in EXPECTED.items() if key != POINTS[5].key}


def test_a_point_in_machine_code_that_never_ends_is_ended(tmp_path: Path) -> None:
    with strange_pool(2, tmp_path, timeout_s=0.5) as pool:
        pool.stuck = {POINTS[1].key}
        found = [result for results in computed(POINTS[:4], pool) for result in results]
    failed = [result for result in found if result.status is Status.FAILED]
    assert [result.key for result in failed] == [POINTS[1].key]
    assert len(found) == 4
    assert failed[0].reason.endswith("for want of memory, or as it did not stop in time")


class UnluckyPool:
    """Loses batches as it is told, and some points always."""

    timeout_s = None

    def __init__(self, losses: Sequence[bool], deadly: frozenset[str]) -> None:
        self._losses = list(losses)
        self._deadly = deadly
        self.computed: list[str] = []

    def width(self) -> int:
        return 2

    def submit(self, points: Sequence[SweepPoint]) -> "Future[list[PointResult]]":
        found: Future[list[PointResult]] = Future()
        is_deadly = any(point.key in self._deadly for point in points)
        if is_deadly or (self._losses and self._losses.pop()):
            found.set_exception(BrokenExecutor("lost"))
        else:
            self.computed += [point.key for point in points]
            found.set_result([PointResult(point.key, Status.DONE, time_us=1.0) for point in points])
        return found

    def revive(self) -> None:
        pass

    def check(self) -> None:
        pass


@settings(max_examples=examples(100))
@given(
    st.lists(st.booleans(), max_size=20),
    st.sets(st.sampled_from(range(len(POINTS))), max_size=4),
    st.integers(0, len(POINTS)),
)
def test_each_point_has_one_result_whatever_is_lost(
    losses: list[bool], deadly: set[int], count: int
) -> None:
    points = POINTS[:count]
    killers = frozenset(POINTS[number].key for number in deadly)
    pool = UnluckyPool(losses, killers)
    found = [result for results in computed(points, pool) for result in results]
    assert sorted(result.key for result in found) == sorted(point.key for point in points)
    assert len(pool.computed) == len(set(pool.computed))
    failed = {result.key for result in found if result.status is Status.FAILED}
    assert killers & {point.key for point in points} <= failed
    assert failed <= killers | {key for key in EXPECTED if key not in pool.computed}


def test_a_point_that_takes_too_long_has_failed_and_the_next_is_computed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def slow(point: SweepPoint, programs: object) -> PointResult:
        while point is POINTS[0]:
            time.sleep(0.001)
        return EXPECTED[point.key]

    monkeypatch.setattr(workers, "result_of", slow)
    first, second = results_of(version(), POINTS[:2], {}, 0.2)
    assert first.status is Status.FAILED
    assert first.reason == "it took longer than --timeout, 0.2 s"
    assert second == EXPECTED[POINTS[1].key]


def test_the_end_of_a_time_that_comes_with_the_result_harms_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def close(point: SweepPoint, programs: object) -> PointResult:
        until = time.monotonic() + 0.0498
        while time.monotonic() < until:
            pass
        return PointResult(point.key, Status.DONE, time_us=1.0)

    monkeypatch.setattr(workers, "result_of", close)
    for _ in range(8):
        found = results_of(version(), POINTS[:3], {}, 0.05)
        assert [result.key for result in found] == [point.key for point in POINTS[:3]]


def test_a_worker_of_another_version_is_refused() -> None:
    with pytest.raises(InputError, match=r"has version .* of neuron-ncc, and this is other"):
        results_of("other", POINTS[:1], {}, None)


@pytest.mark.parametrize(
    ("raised", "status", "reason"),
    [
        (MemoryError("no 8 GiB"), Status.FAILED, "the host is out of memory: no 8 GiB"),
        (ValueError("bad\nvalue"), Status.FAILED, "a fault of ours: ValueError: bad value"),
        (InputError("does not fit"), Status.REFUSED, "does not fit"),
    ],
)
def test_what_ends_a_point_is_its_reason(
    raised: Exception, status: Status, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr("ncc_runtime.sweep.results._timed", fail)
    found = result_of(POINTS[0], {})
    assert (found.status, found.reason) == (status, reason)


def test_processes_have_one_thread_each_for_arrays() -> None:
    with Workers(1).pool({}, None) as pool:
        assert isinstance(pool, LocalPool)
        found = pool.sent(os.getenv, "OMP_NUM_THREADS").result()
    assert found == "1"
