"""Faults that are drawn, over many seeds: how long the step takes, and who was the slowest.

Each seed is one run of the clock with the faults as that seed draws them, so every figure is that
of a run which `--seed` repeats alone. Of a quantile it is the smallest of the times that at least
that share of the runs do not exceed; a run that never ends is longer than any other.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from ncc_runtime.execution.clock.clock import Clock
from ncc_runtime.execution.disturbance import Disturbance
from ncc_runtime.execution.trace import NO_EVENT, Trace
from ncc_runtime.faults.blame import NOBODY
from ncc_runtime.faults.fault import Fault
from ncc_runtime.faults.resolve import joined, resolved
from ncc_runtime.faults.touched import Delays, OrderedTrace
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.progress import steps
from ncc_runtime.report.critical_path import intervals_of
from ncc_runtime.report.plot_file import picture
from ncc_runtime.report.row_texts import placeholder_text
from ncc_runtime.report.text_table import text_table

QUANTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99, "worst": 1.0}
"""What is reported of many runs."""

BINS = 12
"""Bars of a histogram."""

SLOWEST = 8
"""Ranks that a text names."""


@attrs.frozen
class SeededRun:
    """One run. Times in picoseconds."""

    seed: int
    time_ps: int | None  # None: it never ends
    slowest: int  # the rank at which most was added on the chain to its end; NOBODY
    waited_ps: tuple[int, ...]  # by collective: how much longer it took a rank, on average


@attrs.frozen(eq=False)
class SeededRuns:
    """Runs of one executable with faults as seeds draw them."""

    executable: Executable
    undisturbed_ps: int
    runs: tuple[SeededRun, ...]

    @cached_property
    def _ascending(self) -> tuple[SeededRun, ...]:
        key = {run: math.inf if run.time_ps is None else run.time_ps for run in self.runs}
        return tuple(sorted(self.runs, key=lambda run: (key[run], run.seed)))

    def quantile(self, share: float) -> SeededRun:
        """The run that a share of all, 0 to 1, do not take longer than."""
        at = max(0, math.ceil(share * len(self.runs)) - 1)
        return self._ascending[at]

    @property
    def times_ps(self) -> np.ndarray:
        """(ending runs,) int64, ascending."""
        return np.array([run.time_ps for run in self._ascending if run.time_ps is not None])

    @property
    def mean_ps(self) -> float:
        """Of the runs that end; NaN if none does."""
        return float(self.times_ps.mean()) if len(self.times_ps) else math.nan

    @property
    def standard_error_ps(self) -> float:
        """Of the mean; NaN of less than two runs."""
        times = self.times_ps
        return float(times.std(ddof=1)) / math.sqrt(len(times)) if len(times) > 1 else math.nan

    @property
    def slowest(self) -> list[tuple[int, int]]:
        """(rank, in how many runs it was the slowest), the most frequent first."""
        ranks = [run.slowest for run in self.runs if run.slowest != NOBODY]
        rank, count = np.unique(np.array(ranks, np.int64), return_counts=True)
        order = np.lexsort((rank, -count))
        return list(zip(rank[order].tolist(), count[order].tolist(), strict=True))


def run_seeds(
    undisturbed: Trace,
    disturbed: Callable[[Disturbance], Trace],
    drawn: Callable[[int], Disturbance],
    seeds: Sequence[int],
) -> SeededRuns:
    """A run for each seed: `drawn` gives what goes wrong, `disturbed` times it."""
    before = OrderedTrace(undisturbed)
    runs = [
        _run(before, OrderedTrace(disturbed(drawn(seed))), seed)
        for seed in steps(seeds, "seeds", "runs")
    ]
    return SeededRuns(undisturbed.executable, undisturbed.time_ps, tuple(runs))


def seeded(clock: Clock, faults: Sequence[Fault], seeds: Sequence[int]) -> SeededRuns:
    """The same of faults on the executable of a clock. InputError for what is not there."""

    def drawn(seed: int) -> Disturbance:
        return joined(resolved(clock, faults, seed))

    return run_seeds(
        clock.run().trace, lambda disturbance: clock.run(disturbance).trace, drawn, seeds
    )


def _run(before: OrderedTrace, after: OrderedTrace, seed: int) -> SeededRun:
    delays = Delays(before, after)
    waited = _waited_ps(delays)
    if len(after.trace) < len(before.trace):
        return SeededRun(seed, None, NOBODY, waited)
    return SeededRun(seed, after.trace.time_ps, _slowest(delays), waited)


def _waited_ps(delays: Delays) -> tuple[int, ...]:
    """By collective: how much longer a rank was in it from trigger to completion, on average."""
    trace = delays.disturbed.trace
    count = len(trace.executable.program.placeholders)
    runs = trace.runs
    longer = delays.end_ps[runs.last] - delays.start_ps[runs.first]
    total = np.zeros(count, np.int64)
    np.add.at(total, runs.placeholder, longer)
    ranks = [len(np.unique(runs.rank[runs.placeholder == number])) for number in range(count)]
    return tuple(int(ps) // max(1, many) for ps, many in zip(total, ranks, strict=True))


def _slowest(delays: Delays) -> int:
    """The rank at which most was added on the chain to the end; NOBODY if the end is not late."""
    trace = delays.disturbed.trace
    chain = dict.fromkeys(interval.event for interval in intervals_of(trace))
    events = np.array([event for event in chain if event != NO_EVENT], np.int64)
    added = np.zeros(trace.executable.representatives, np.int64)
    more = np.maximum(0, delays.longer_ps[events])
    more += np.maximum(0, delays.later_than_cause_ps[events])
    np.add.at(added, trace.rank[events], more)
    return int(added.argmax()) if added.any() else NOBODY


def lines(found: SeededRuns) -> Iterator[str]:
    """The statistics as text, with a histogram."""
    runs, never = found.runs, sum(run.time_ps is None for run in found.runs)
    first, last = min(run.seed for run in runs), max(run.seed for run in runs)
    ends = f", {never} of them never end" if never else ""
    yield (
        f"{len(runs)} runs, seeds {first} to {last}{ends}; without these faults "
        f"{_us(found.undisturbed_ps)} us"
    )
    rows = []
    for name, share in QUANTILES.items():
        run = found.quantile(share)
        later_ps = None if run.time_ps is None else run.time_ps - found.undisturbed_ps
        rows.append((name, _us(run.time_ps), _us(later_ps), f"--seed {run.seed}"))
    yield from text_table(("", "time us", "more", "alone"), rows, words=(0, 3))
    if len(found.times_ps) > 1:
        error_us = found.standard_error_ps / 1e6
        yield f"mean {found.mean_ps / 1e6:.3f} us, standard error {error_us:.3f} us"
    yield from _histogram(found)
    slowest = found.slowest
    if slowest:
        named = ", ".join(f"rank {rank} in {count}" for rank, count in slowest[:SLOWEST])
        more = f", {len(slowest) - SLOWEST} other ranks" * (len(slowest) > SLOWEST)
        yield f"slowest: {named}{more} of {len(runs)} runs"
    yield from _waiting(found)


def _histogram(found: SeededRuns) -> Iterator[str]:
    times = found.times_ps
    if len(times) < 2 or times[0] == times[-1]:
        return
    counts, edges = np.histogram(times / 1e6, BINS)
    for count, low, high in zip(counts.tolist(), edges, edges[1:], strict=False):
        bar = "#" * -(-count * 40 // int(counts.max()))
        yield f"{low:12.3f} to {high:12.3f}  {count:5}  {bar}".rstrip()


def _waiting(found: SeededRuns) -> Iterator[str]:
    """The collectives in which a rank lost most."""
    waited = np.array([run.waited_ps for run in found.runs], np.int64).reshape(len(found.runs), -1)
    worst = waited.max(axis=0, initial=0)
    shown = [number for number in np.argsort(-worst, kind="stable")[:SLOWEST] if worst[number]]
    if not shown:
        return
    yield "longer in a collective than without, us of a rank on average"
    rows = [
        (
            *placeholder_text(found.executable, int(number)).split(" ", 1),
            *(
                _us(int(np.quantile(waited[:, number], share, method="inverted_cdf")))
                for share in QUANTILES.values()
            ),
        )
        for number in shown
    ]
    yield from text_table(("id", "collective", *QUANTILES), rows, words=(0, 1))


def as_json(found: SeededRuns) -> dict[str, Any]:
    """The object `seeds`: every run, so that it can be repeated alone; times in microseconds."""
    return {
        "undisturbed_us": found.undisturbed_ps / 1e6,
        **{
            f"{name}_us": None if (ps := found.quantile(share).time_ps) is None else ps / 1e6
            for name, share in QUANTILES.items()
        },
        "mean_us": found.mean_ps / 1e6 if len(found.times_ps) else None,
        "standard_error_us": found.standard_error_ps / 1e6 if len(found.times_ps) > 1 else None,
        "never": sum(run.time_ps is None for run in found.runs),
        "slowest": [{"rank": rank, "runs": count} for rank, count in found.slowest],
        "runs": [
            {
                "seed": run.seed,
                "time_us": None if run.time_ps is None else run.time_ps / 1e6,
                "slowest": None if run.slowest == NOBODY else run.slowest,
                "waited_us": [ps / 1e6 for ps in run.waited_ps],
            }
            for run in found.runs
        ],
    }


def plotted(found: SeededRuns, heading: str, file_name: str) -> bytes:
    """The picture, SVG or PNG by the file's name: times of all runs, and who was the slowest."""

    def draw(figure: Any) -> None:
        times, ranks = figure.subplots(1, 2)
        us = found.times_ps / 1e6
        times.hist(us, bins=max(BINS, math.isqrt(len(us))), color="tab:blue")
        times.axvline(found.undisturbed_ps / 1e6, color="black", label="without faults")
        for (name, share), style in zip(QUANTILES.items(), ("-", "--", "-.", ":"), strict=True):
            if (ps := found.quantile(share).time_ps) is not None:
                times.axvline(ps / 1e6, color="tab:red", linestyle=style, label=name)
        times.set_xlabel("time (us)")
        times.set_ylabel("runs")
        times.legend()
        rank, count = np.array(sorted(found.slowest), np.int64).reshape(-1, 2).T
        ranks.bar(rank, count, color="tab:blue")
        ranks.set_xlabel("rank")
        ranks.set_ylabel("runs in which it was the slowest")

    return picture(file_name, heading, draw)


def _us(ps: int | None) -> str:
    return "never" if ps is None else f"{ps / 1e6:.3f}"
