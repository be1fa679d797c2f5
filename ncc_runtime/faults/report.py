"""What faults do to a run: the report of `nccrt run --fault` and `nccrt faults --fault`."""

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.execution.clock.event_log import MOST_EVENTS
from ncc_runtime.faults import blame_report
from ncc_runtime.faults.blame import Blame, blame, leave_one_out
from ncc_runtime.faults.fault import Fault
from ncc_runtime.faults.flight_recorder import FlightRecord, flight_record
from ncc_runtime.faults.outcome import Effect, FaultOutcome, Laboratory, OutputDifference
from ncc_runtime.faults.resolve import ResolvedFault, joined, resolved
from ncc_runtime.faults.watchdog import (
    Detection,
    NrtStatus,
    StatusReport,
    detection,
    status_reports,
)
from ncc_runtime.neff.stages import ranks_text

SHOWN = 8
"""Outputs that differ, and reports of hosts, that a text names."""


@attrs.frozen(eq=False)
class FaultReport:
    """What faults do to one run; `lines` as text, `as_json` as an object.

    - `faults`: as resolved, with their draws
    - `undisturbed_ps`: the time of the run without them
    - `outcome`: harmless, wrong values, stall, error or endless loop
    - `blame`: who lost time, and by which fault; None for a run without an end
    - `record`: of a stall, what every rank waits for, and the culprit
    - `reports`: of a stall, what the hosts say when their timeout ends
    """

    faults: tuple[ResolvedFault, ...]
    seed: int
    undisturbed_ps: int
    outcome: FaultOutcome
    blame: Blame | None = None
    record: FlightRecord | None = None
    reports: tuple[StatusReport, ...] = ()
    has_values: bool = True

    @property
    def is_complete(self) -> bool:
        """Whether the run comes to its end."""
        return self.outcome.effect in (Effect.HARMLESS, Effect.WRONG)

    @property
    def detection(self) -> Detection | None:
        """From the first fault of a stall until hosts report it."""
        return detection(self.reports, min(map(began_ps, self.faults), default=0))

    def refusal(self) -> str:
        """In one line, why the run does not come to its end."""
        effect, record = self.outcome.effect, self.record
        if effect is Effect.ERROR:
            return f"the run ends in an error of a device: {self.outcome.error}"
        if effect is Effect.ENDLESS:
            return "the run does not end: a loop that follows from data goes on and on"
        assert record is not None, "a stall has a record"
        culprits = [suspect.name for each in record.graph.culprits for suspect in each.suspects]
        named = ", ".join(culprits[:SHOWN]) or "a deadlock"
        return f"the run stalls; culprit: {named}"

    def lines(self) -> Iterator[str]:
        """As printed under a run."""
        for fault in self.faults:
            yield f"fault: {fault.name} ({fault.fault.source})"
        yield f"outcome: {self._outcome()}"
        yield from map(difference_text, self.outcome.differences[:SHOWN])
        if self.blame is not None:
            yield from blame_report.lines(self.blame)
        if self.record is not None:
            yield from self.record.as_text().splitlines()
        found = self.detection
        if found is not None:
            yield (
                f"noticed {found.first_after_ps / 1e6:,.3f} us after the fault, by all ranks after "
                f"{found.last_after_ps / 1e6:,.3f} us"
            )
            yield from self._reports()

    def _reports(self) -> Iterator[str]:
        """What hosts say, those that say the same in one line."""
        alike: dict[tuple[int, NrtStatus, str], list[int]] = {}
        for report in self.reports:
            what = report.text.partition(": ")[2]
            alike.setdefault((report.at_ps, report.status, what), []).append(report.rank)
        for (at_ps, status, what), ranks in list(alike.items())[:SHOWN]:
            named = f"rank{'s' * (len(ranks) > 1)} {ranks_text(ranks)}"
            yield f"  {named} at {at_ps / 1e6:,.3f} us, {status.value} {status.name}: {what}"
        if len(alike) > SHOWN:
            yield f"  … and {len(alike) - SHOWN} more lines"

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
        """The key `faults` of what `nccrt run --json` prints; times in us."""
        outcome, found = self.outcome, self.detection
        return {
            "faults": [
                {"fault": fault.name, "class": fault.fault.kind.value, "source": fault.fault.source}
                for fault in self.faults
            ],
            "seed": self.seed,
            "undisturbed_us": self.undisturbed_ps / 1e6,
            "outcome": outcome.effect.value,
            "is_proved": outcome.is_proved,
            "has_race": outcome.has_race,
            "error": outcome.error or None,
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
            "stall": None if self.record is None else self.record.as_json(),
            "reports": [report.as_json() for report in self.reports],
            "detection_us": None if found is None else found.first_after_ps / 1e6,
        }


def finite(value: float) -> float | str:
    """A number, or the word that JSON has none for."""
    return value if np.isfinite(value) else str(value)


def difference_text(each: OutputDifference) -> str:
    """`out0 on ranks 0-3: 12 of 64 elements, by up to 0.5 (1e-3 of the value)`."""
    plural = "s" * (len(each.ranks) > 1)
    nans = f", {each.nans} of them NaN" if each.nans else ""
    return (
        f"  out{each.output} on rank{plural} {ranks_text(each.ranks)}: {each.elements} of "
        f"{each.of} elements{nans}, by up to {each.largest:.6g} "
        f"({each.relative:.3g} of the value)"
    )


def began_ps(fault: ResolvedFault) -> int:
    """When a fault is there first; 0 for those of a transfer, which has no time before it runs."""
    disturbance = fault.disturbance
    times = [part.start_ps for part in disturbance.parts]
    times += [queue.start_ps for queue in disturbance.queues]
    return min([*times, *(flip.at_ps for flip in disturbance.memory)], default=0)


def reported(
    laboratory: Laboratory,
    faults: Sequence[Fault],
    seed: int,
    timeout_ps: int,
    *,
    values: bool = True,
) -> FaultReport:
    """Run with faults. InputError for what is not there, or cannot be seen without values."""
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
        return FaultReport(found, seed, undisturbed_ps, outcome, has_values=values)
    losses = leave_one_out(
        blame(laboratory.trace, outcome.timed.trace, found),
        found,
        lambda some: clock.run(joined(some), in_memory=MOST_EVENTS).trace,
    )
    record: FlightRecord | None = None
    reports: tuple[StatusReport, ...] = ()
    if outcome.effect is Effect.STALL:
        record = flight_record(laboratory.waits(outcome))
        reports = status_reports(record, timeout_ps, disturbance.late_start_ps)
    return FaultReport(
        found, seed, undisturbed_ps, outcome, losses, record, reports, has_values=values
    )
