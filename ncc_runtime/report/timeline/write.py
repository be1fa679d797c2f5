"""Writes the timeline of a run: `.pftrace` for Perfetto, `.json` for Chrome, either with `.gz`.

It is written in batches, so memory does not grow with the run; the file appears complete or not at
all.
"""

import contextlib
import gzip
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, Protocol, cast

import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.whole_file import check_target, replacing
from ncc_runtime.progress import phase
from ncc_runtime.report.timeline import link_use, tracks
from ncc_runtime.report.timeline import marks as marks_of
from ncc_runtime.report.timeline.marks import Mark
from ncc_runtime.report.timeline.tracks import Content, Samples, TimelineBatch

SUFFIXES = (".pftrace", ".json", ".pftrace.gz", ".json.gz")


class TimelineWriter(Protocol):
    """Takes the content of a timeline, batch by batch."""

    def write(self, content: TimelineBatch | Samples) -> None: ...

    def end(self) -> None: ...


def write_timeline(
    path: str,
    trace: Trace,
    ranks: np.ndarray | None = None,
    marks: Sequence[Mark] = (),
) -> None:
    """Write the events of some ranks (bool by rank; None: all), and marks beside them."""
    check_target(path, SUFFIXES)
    with (
        replacing(path) as file,
        _compressed(path, file) as stream,
        phase("timeline", "events", trace.count(ranks)) as now,
    ):
        writer = _writer(path, stream)
        for content in contents(trace, ranks, marks):
            writer.write(content)
            if isinstance(content, TimelineBatch):
                now.done += content.events
        writer.end()


def mask_of_ranks(executable: Executable, ranks: Sequence[int] | None) -> np.ndarray | None:
    """Bool by rank for `write_timeline`; InputError for ranks that the program has not."""
    if ranks is None:
        return None
    simulated = executable.representatives
    for rank in ranks:
        if not 0 <= rank < executable.ranks:
            raise InputError(f"rank {rank} is not below the program's {executable.ranks} ranks")
        if rank >= simulated:
            raise InputError(
                f"rank {rank} does what rank {rank % simulated} does, whose instance stands for "
                f"all; name ranks below {simulated}"
            )
    return np.isin(np.arange(simulated), ranks)


def contents(
    trace: Trace, ranks: np.ndarray | None, marks: Sequence[Mark] = ()
) -> Iterator[Content]:
    """The content of a timeline."""
    if ranks is None:
        ranks = np.ones(trace.executable.representatives, bool)
    yield from tracks.batches(trace, ranks)
    yield from link_use.contents(trace, ranks)
    yield from marks_of.contents(marks, trace.executable.ranks + 1)


@contextlib.contextmanager
def _compressed(path: str, file: BinaryIO) -> Iterator[BinaryIO]:
    if not path.endswith(".gz"):
        yield file
        return
    # no name and no time: the same run gives the same bytes
    with gzip.GzipFile("", "wb", zlib.Z_BEST_SPEED, file, mtime=0) as stream:
        yield cast("BinaryIO", stream)


def _writer(path: str, stream: BinaryIO) -> TimelineWriter:
    if ".json" in Path(path).suffixes[-2:]:
        from ncc_runtime.report.timeline.chrome_file import ChromeWriter

        return ChromeWriter(stream)
    from ncc_runtime.report.timeline.perfetto_file import PerfettoWriter

    return PerfettoWriter(stream)
