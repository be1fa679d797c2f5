"""What heartbeats and checksums would find of some faults, when, and what looking costs."""

from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.execution.clock.clock import Clock
from ncc_runtime.execution.clock.event_log import MOST_EVENTS
from ncc_runtime.execution.disturbance import TransferFault
from ncc_runtime.execution.trace import Trace
from ncc_runtime.faults.fault import Fault, time_text
from ncc_runtime.faults.resolve import ResolvedFault, joined, resolved
from ncc_runtime.faults.seeds import SeededRuns
from ncc_runtime.faults.watchdog import Alarm, Checksum, Heartbeat, Summing, timeout_table
from ncc_runtime.neff.stages import ranks_text

SHOWN = 8
"""Alarms that a text names."""


@attrs.frozen
class HeartbeatReport:
    """What heartbeats of a period show of a run with faults; times in picoseconds."""

    beat: Heartbeat
    beat_ps: int  # how long one keeps a CC-core
    undisturbed_ps: int  # without faults and beats
    time_ps: int  # without faults, with beats
    fault_ps: int | None  # when the first fault began
    ends: bool  # the run with the faults: then every alarm is a false one
    alarms: tuple[Alarm, ...]

    def lines(self) -> Iterator[str]:
        """As text."""
        beat, cost = self.beat, _cost(self.undisturbed_ps, self.time_ps)
        yield f"heartbeats every {time_text(beat.period_ps)}, {beat.misses} missed: {cost}"
        for alarm in self.alarms[:SHOWN]:
            after = ""
            if self.fault_ps is not None and not self.ends:
                after = f", {(alarm.at_ps - self.fault_ps) / 1e6:,.3f} us after the fault"
            at = f"{alarm.at_ps / 1e6:,.3f} us{after}"
            yield f"  rank {alarm.by} misses beats of rank {alarm.rank} at {at}"
        if len(self.alarms) > SHOWN:
            yield f"  and {len(self.alarms) - SHOWN} more"
        if not self.alarms:
            yield "  no beat is missed so often" + (
                "" if self.ends else ": they go on while the program stalls"
            )
        elif self.ends:
            yield "  false: the run would come to its end"

    def as_json(self) -> dict[str, Any]:
        """The key `heartbeat` of `fault_report`; times in microseconds."""
        return {
            "period_us": self.beat.period_ps / 1e6,
            "misses": self.beat.misses,
            "beat_us": self.beat_ps / 1e6,
            "time_us": self.time_ps / 1e6,
            "is_false": bool(self.alarms) and self.ends,
            "alarms": [
                {"rank": alarm.rank, "by": alarm.by, "time_us": alarm.at_ps / 1e6}
                for alarm in self.alarms
            ],
        }


def heartbeat_report(
    clock: Clock,
    beat: Heartbeat,
    undisturbed: Trace,
    faults: Sequence[ResolvedFault],
    *,
    fault_ps: int | None,
    end_ps: int | None,
    until_ps: int,
) -> HeartbeatReport:
    """Beats beside faults; `end_ps` of the run with these, None if it stalls.

    Alarms count up to the end of the run, or of one that stalls up to `until_ps`.
    InputError if beats leave CC-cores no time, or are too many.
    """
    executable, busy_ps = clock.executable, beat.beat_ps(clock.executable)
    longest_ps = undisturbed.time_ps * beat.period_ps // max(1, beat.period_ps - busy_ps)
    costs = beat.disturbance(executable, longest_ps + beat.period_ps)
    return HeartbeatReport(
        beat,
        busy_ps,
        undisturbed.time_ps,
        clock.run(costs).trace.time_ps,
        fault_ps,
        end_ps is not None,
        beat.alarms(executable, joined(faults), until_ps if end_ps is None else end_ps),
    )


@attrs.frozen
class ChecksumReport:
    """What sums of transfers show of a run with faults; times in picoseconds."""

    checksum: Checksum
    undisturbed_ps: int  # without faults and sums
    time_ps: int  # without faults, with sums
    found: tuple[int, ...]  # numbers of the faults whose flipped bits sums find
    with_faults_ps: (
        int | None
    )  # with sums and with faults, what was wrong is sent again; None: never

    def lines(self) -> Iterator[str]:
        """As text."""
        checksum, cost = self.checksum, _cost(self.undisturbed_ps, self.time_ps)
        yield f"checksums of transfers, {checksum.kind.value} by {checksum.by.value}: {cost}"
        if not self.found:
            yield "  they find none of the faults: no bits flip in transfers"
            return
        numbers = ranks_text(self.found)
        end = "never ends"
        if self.with_faults_ps is not None:
            end = f"takes {self.with_faults_ps / 1e6:,.3f} us"
        yield f"  they find f{numbers}; with all faults, and transfers sent again, the run {end}"

    def as_json(self) -> dict[str, Any]:
        """The key `checksum` of `fault_report`; times in microseconds."""
        return {
            "by": self.checksum.by.value,
            "kind": self.checksum.kind.value,
            "time_us": self.time_ps / 1e6,
            "found": list(self.found),
            "with_faults_us": None if self.with_faults_ps is None else self.with_faults_ps / 1e6,
        }


def checksum_report(
    clock: Clock, by: Summing, undisturbed: Trace, faults: Sequence[ResolvedFault]
) -> ChecksumReport:
    """Sums beside faults."""
    checksum = Checksum(by)
    costs = checksum.disturbance(undisturbed)
    found, again = [], []
    for number, fault in enumerate(faults):
        transfers = [_mended(checksum, undisturbed, each) for each in fault.disturbance.transfers]
        if transfers != list(fault.disturbance.transfers):
            found.append(number)
        mended = attrs.evolve(fault.disturbance, transfers=tuple(transfers))
        again.append(attrs.evolve(fault, disturbance=mended))
    every = joined(again)
    every = attrs.evolve(every, transfers=(*every.transfers, *costs.transfers))
    run = clock.run(every, in_memory=MOST_EVENTS)
    return ChecksumReport(
        checksum,
        undisturbed.time_ps,
        clock.run(costs).trace.time_ps,
        tuple(found),
        run.trace.time_ps if run.is_complete else None,
    )


def _mended(checksum: Checksum, undisturbed: Trace, fault: TransferFault) -> TransferFault:
    """The same, sent again if the sum of its bytes shows that bits have flipped.

    A sum of all bytes differs where one of zeros up to the last flipped bit does.
    """
    if not fault.flipped_bits:
        return fault
    sent = bytes(max(fault.flipped_bits) // 8 + 1)
    is_found = checksum.finds(sent, fault.flipped_bits)
    return checksum.sent_again(undisturbed, fault) if is_found else fault


@attrs.frozen
class FalseAlarms:
    """How often a detector takes a run for stalled that comes to its end."""

    detector: str
    runs: int  # that end
    share: float
    at_most: float  # with a confidence of 95 %

    def line(self) -> str:
        """As text."""
        return (
            f"{self.detector}: false alarms in {self.share:.1%} of {self.runs} runs that end, with "
            f"a confidence of 95 % in at most {self.at_most:.1%}"
        )

    def as_json(self) -> dict[str, Any]:
        """An entry of the key `false_alarms`."""
        return attrs.asdict(self)


def false_alarms_of_seeds(
    clock: Clock,
    faults: Sequence[Fault],
    found: SeededRuns,
    timeout_ps: int | None,
    beat: Heartbeat | None,
) -> list[FalseAlarms]:
    """Of detectors that are given, over runs of seeds; none if no run ends."""
    times_ps = [run.time_ps for run in found.runs if run.time_ps is not None]
    rows: list[FalseAlarms] = []
    if not times_ps:
        return rows
    if timeout_ps is not None:
        (row,) = timeout_table(times_ps, [timeout_ps])
        name = f"execution timeout of {time_text(timeout_ps)}"
        rows.append(FalseAlarms(name, len(times_ps), row.false_alarms, row.at_most))
    if beat is not None:
        alarmed = [
            bool(beat.alarms(clock.executable, joined(resolved(clock, faults, run.seed)), end_ps))
            for run in found.runs
            if (end_ps := run.time_ps) is not None
        ]
        (row,) = timeout_table(np.array(alarmed, np.int64), [0])
        name = f"heartbeats every {time_text(beat.period_ps)}, {beat.misses} missed"
        rows.append(FalseAlarms(name, len(alarmed), row.false_alarms, row.at_most))
    return rows


def _cost(before_ps: int, after_ps: int) -> str:
    return (
        f"without faults the run takes {after_ps / 1e6:,.3f} us instead of {before_ps / 1e6:,.3f} "
        f"us, {(after_ps - before_ps) / max(1, before_ps):+.1%}"
    )
