"""Traces too large for memory: in a file, by queue and rank, the same otherwise."""

import numpy as np
import pytest

from ncc_runtime.errors import LoweringError
from ncc_runtime.execution.clock.clock import simulate
from ncc_runtime.execution.clock.event_log import SortedTrace
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.report.critical_path import critical_path
from ncc_runtime.report.timeline.write import write_timeline
from tests.clock_comparison import first_difference, performed_in
from tests.clock_runs import collective, compiled, planned
from tests.small_executables import LOOPED


def looped():
    return compiled(LOOPED.replace("constant(3)", "constant(40)"))


def four_instances():
    return collective(CollectiveOp.ALL_REDUCE, "rdh", 16, 1 << 12, nodes=4)


def both(executable):
    """The trace in memory, and the one in a file."""
    decisions = planned(executable)
    kept = simulate(executable, decisions)
    assert not isinstance(kept, SortedTrace)
    stored = simulate(executable, decisions, in_memory=100)
    assert isinstance(stored, SortedTrace)
    return kept, stored


@pytest.mark.parametrize("make", [looped, four_instances])
def test_events_on_disk_are_those_in_memory(make):
    kept, stored = both(make())
    assert not first_difference(stored, performed_in(kept))
    assert len(stored) == len(kept)
    assert stored.time_ps == kept.time_ps


@pytest.mark.parametrize("make", [looped, four_instances])
def test_events_on_disk_lie_by_queue_then_rank(make):
    _, stored = both(make())
    key = stored.queue.astype(np.int64) * stored.executable.ranks + stored.rank
    assert (np.diff(key) >= 0).all()
    queues = range(len(stored.executable.queues))
    found = [events for _, events in stored.blocks(queues, most=7)]
    assert (np.concatenate(found) == np.arange(len(stored))).all()


@pytest.mark.parametrize("make", [looped, four_instances])
def test_the_critical_path_is_the_same_from_disk(make):
    kept, stored = both(make())
    assert critical_path(stored) == critical_path(kept)


def test_the_timeline_of_a_trace_on_disk_has_the_same_slices(tmp_path):
    kept, stored = both(looped())
    sizes = []
    for name, trace in (("kept.json", kept), ("stored.json", stored)):
        write_timeline(str(tmp_path / name), trace)
        sizes.append((tmp_path / name).read_text(encoding="utf-8").count('"ph":"X"'))
    assert sizes[0] == sizes[1] > len(kept)


def test_files_of_events_have_no_name(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    _, stored = both(looped())
    assert len(stored.queue) > 10 * 100
    assert not list(tmp_path.iterdir())


def test_a_host_without_room_for_the_events_is_told_so(monkeypatch):
    def full(handle, start, count):
        raise OSError(28, "No space left on device")

    executable = looped()
    stored = simulate(executable, planned(executable), in_memory=100)
    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(LoweringError, match="no space left on device; set TMPDIR"):
        stored.count(), stored.queue


def test_a_folder_that_cannot_be_written_is_told_while_the_clock_runs(monkeypatch):
    def refused(**_):
        raise OSError(30, "Read-only file system")

    executable = looped()
    monkeypatch.setattr("tempfile.TemporaryFile", refused)
    with pytest.raises(LoweringError, match="read-only file system; set TMPDIR"):
        simulate(executable, planned(executable), in_memory=100)
