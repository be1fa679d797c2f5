"""What faults do to a run: the report of `nccrt run --fault` and `nccrt faults --fault`."""

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.execution.clock.event_log import MOST_EVENTS
from ncc_runtime.execution.trace import Trace
from ncc_runtime.faults import blame_report
from ncc_runtime.faults.blame import Blame, blamed
from ncc_runtime.faults.detectors import (
    ChecksumReport,
    HeartbeatReport,
    checksum_report,
    heartbeat_report,
)
from ncc_runtime.faults.fault import MOST_PS, Fault, time_text
from ncc_runtime.faults.fault_marks import began_ps, fault_marks
from ncc_runtime.faults.outcome import Effect, FaultOutcome, Laboratory, OutputDifference
from ncc_runtime.faults.resolve import ResolvedFault, joined, resolved
from ncc_runtime.faults.touched import OrderedTrace
from ncc_runtime.faults.watchdog import Heartbeat, StallReport, Summing, stall_report
from ncc_runtime.neff.stages import ranks_text
from ncc_runtime.report.timeline.marks import Mark

SHOWN = 8
"""Outputs that differ that a text names."""


@attrs.frozen(eq=False)
class FaultReport:
    """What faults do to one run; `lines` as text, `as_json` as an object.

    - `faults`: as resolved, with their draws
    - `undisturbed_ps`: the time of the run without them
    - `timeout_ps`: after how long hosts give up
    - `outcome`: harmless, wrong values, stall, error or endless loop
    - `blame`: who lost time, and by which fault; None for a run without an end, and where values
      that are wrong decided control flow, so that other rows ran
    - `stall`: what every rank waits for, the culprit, and who notices when; None without a stall
    - `heartbeat`, `checksum`: what these would find and cost; None if not asked, or without an end
    """

    faults: tuple[ResolvedFault, ...]
    seed: int
    undisturbed_ps: int
    timeout_ps: int
    outcome: FaultOutcome
    blame: Blame | None = None
    stall: StallReport | None = None
    has_values: bool = True
    heartbeat: HeartbeatReport | None = None
    checksum: ChecksumReport | None = None

    @property
    def is_complete(self) -> bool:
        """Whether the run comes to its end."""
        return self.outcome.effect in (Effect.HARMLESS, Effect.WRONG)

    @property
    def is_given_up(self) -> bool:
        """Whether it comes to its end later than hosts wait: a false alarm."""
        timed = self.outcome.timed
        return self.is_complete and timed is not None and timed.trace.time_ps > self.timeout_ps

    @property
    def timeline(self) -> tuple[Trace, Sequence[Mark]] | None:
        """What was performed, with marks of the faults and of rows that stalled.

        None for a run without an end.
        """
        timed = self.outcome.timed
        if timed is None:
            return None
        return timed.trace, fault_marks(timed.trace, self.faults, (*timed.halted, *timed.stuck))

    def refusal(self) -> str:
        """In one line, why the run does not come to its end."""
        effect, stall = self.outcome.effect, self.stall
        if effect is Effect.ERROR:
            return f"the run ends in an error of a device: {self.outcome.error}"
        if effect is Effect.ENDLESS:
            return "the run does not end: a loop that follows from data goes on and on"
        assert stall is not None, "what else keeps a run from its end"
        return f"the run stalls: {stall.record.culprits_text()}"

    def lines(self) -> Iterator[str]:
        """As printed under a run."""
        for fault, begin_ps in zip(self.faults, self._begins_ps(), strict=True):
            over = "; the run is over before it" * (begin_ps is None and self.is_complete)
            yield f"fault: {fault.name} ({fault.fault.source}){over}"
        yield f"outcome: {self._outcome()}"
        worst_first = sorted(self.outcome.differences, key=lambda each: -each.relative)
        yield from map(difference_text, worst_first[:SHOWN])
        if more := worst_first[SHOWN:]:
            yield f"  … and {len(more)} more outputs, all in --json"
        if self.is_given_up:
            yield f"hosts give up after {time_text(self.timeout_ps)}, before it ends: a false alarm"
        if self.blame is not None:
            yield from blame_report.lines(self.blame)
        elif self.outcome.timed is not None:
            time_ps = self.outcome.timed.trace.time_ps
            yield (
                f"control flow is another: {time_ps / 1e6:.3f} us instead of "
                f"{self.undisturbed_ps / 1e6:.3f} us, and no row is compared with its own"
            )
        if self.stall is not None:
            yield from self.stall.as_text().splitlines()
        for detector in (self.heartbeat, self.checksum):
            if detector is not None:
                yield from detector.lines()

    def _begins_ps(self) -> list[int | None]:
        """When each fault is there first; None if the run is over before, or has no end."""
        timed = self.outcome.timed
        if timed is None:
            return [None] * len(self.faults)
        ordered = OrderedTrace(timed.trace)
        begins = [began_ps(ordered, fault) for fault in self.faults]
        over_ps = timed.trace.time_ps if self.is_complete else MOST_PS
        return [None if ps is None or ps > over_ps else ps for ps in begins]

    def _outcome(self) -> str:
        outcome = self.outcome
        how = "proved" if outcome.is_proved else "compared with the undisturbed run"
        if outcome.effect is Effect.HARMLESS:
            how = how if self.has_values else "by time; no values were computed"
            race = "; at another timing values may differ: a row no longer waits for all it reads"
            return f"all rows are performed, values are right ({how}){race * outcome.has_race}"
        if outcome.effect is Effect.WRONG:
            return "wrong values, and nothing says so"
        return self.refusal()

    def as_json(self) -> dict[str, Any]:
        """The object `fault_report` of `--json`; times in microseconds."""
        outcome = self.outcome
        return {
            "faults": [
                {
                    "fault": fault.name,
                    "class": fault.fault.kind.value,
                    "source": fault.fault.source,
                    "begins_us": None if begin_ps is None else begin_ps / 1e6,
                }
                for fault, begin_ps in zip(self.faults, self._begins_ps(), strict=True)
            ],
            "seed": self.seed,
            "undisturbed_us": self.undisturbed_ps / 1e6,
            "outcome": outcome.effect.value,
            "is_proved": outcome.is_proved,
            "has_race": outcome.has_race,
            "error": outcome.error or None,
            "is_given_up": self.is_given_up,
            "differences": [
                {
                    "output": f"out{each.output}",
                    "ranks": list(each.ranks),
                    "elements": each.elements,
                    "of": each.of,
                    "largest": finite(each.largest),
                    "relative": finite(each.relative),
                    "nans": each.nans,
                }
                for each in outcome.differences
            ],
            "blame": None if self.blame is None else blame_report.as_json(self.blame),
            "stall": None if self.stall is None else self.stall.as_json(),
            "heartbeat": None if self.heartbeat is None else self.heartbeat.as_json(),
            "checksum": None if self.checksum is None else self.checksum.as_json(),
        }


def finite(value: float) -> float | str:
    """A number, or the word that JSON has none for."""
    return value if np.isfinite(value) else str(value)


def difference_text(each: OutputDifference) -> str:
    """`out0 on ranks 0-3: 12 of 64 elements, by up to 0.5 (1e-3 of the value)`."""
    plural = "s" * (len(each.ranks) > 1)
    nans = f", {each.nans} of them NaN" if each.nans else ""
    most = f", by up to {each.largest:.6g} ({each.relative:.3g} of the value)"
    return (
        f"  out{each.output} on rank{plural} {ranks_text(each.ranks)}: {each.elements} of "
        f"{each.of} elements{nans}{most * (each.nans < each.elements)}"
    )


def reported(
    laboratory: Laboratory,
    faults: Sequence[Fault],
    seed: int,
    timeout_ps: int,
    *,
    values: bool = True,
    beat: Heartbeat | None = None,
    summing: Summing | None = None,
) -> FaultReport:
    """Run with faults, and with heartbeats and checksums of transfers beside them if given.

    InputError for what is not there, or cannot be seen without values.
    """
    if not values:
        unseen = next((fault for fault in faults if fault.kind.is_of_data), None)
        if unseen is not None:
            raise InputError(f"fault '{unseen}' changes data alone: leave out --no-values")
    clock = laboratory.clock
    found = resolved(clock, faults, seed)
    disturbance = joined(found)
    if values:
        outcome = laboratory.outcome(disturbance)
    else:
        timed = clock.run(disturbance, in_memory=MOST_EVENTS)
        effect = Effect.HARMLESS if timed.is_complete else Effect.STALL
        outcome = FaultOutcome(effect, is_proved=False, timed=timed)
    undisturbed_ps = laboratory.trace.time_ps
    if outcome.timed is None:
        return FaultReport(found, seed, undisturbed_ps, timeout_ps, outcome, has_values=values)
    trace = outcome.timed.trace
    stalls = outcome.effect is Effect.STALL
    stall: StallReport | None = None
    ordered = OrderedTrace(trace)
    begins = [ps for fault in found if (ps := began_ps(ordered, fault)) is not None]
    fault_ps = min(begins, default=None)
    if stalls:
        stall = stall_report(
            outcome.timed,
            timeout_ps,
            fault_ps=fault_ps,
            late_start_ps=disturbance.late_start_ps,
        )
    losses: Blame | None = None
    if outcome.has_same_rows:
        losses = blamed(clock, laboratory.trace, trace, found)
    beats: HeartbeatReport | None = None
    if beat is not None:
        beats = heartbeat_report(
            clock,
            beat,
            laboratory.trace,
            found,
            fault_ps=fault_ps,
            end_ps=None if stalls else trace.time_ps,
            until_ps=timeout_ps,
        )
    return FaultReport(
        found,
        seed,
        undisturbed_ps,
        timeout_ps,
        outcome,
        losses,
        stall,
        values,
        beats,
        None if summing is None else checksum_report(clock, summing, laboratory.trace, found),
    )
