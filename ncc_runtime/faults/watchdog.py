"""Who notices that something went wrong, when, how surely, and what looking costs.

- The execution timeout of Neuron's runtime (`NEURON_RT_EXEC_TIMEOUT`): each host waits so long for
  its rank, from the launch on. It finds every stall, late, and blames runs that are only slow.
- Heartbeats: CC-cores write to a neighbour again and again, so that silence is noticed soon. They
  find ranks, chips and links that stop, not increments that are lost: beats go on then.
- Checksums of transfers find bits that flip on the way, which no timeout does.

The last two are options of ours: AWS documents neither. They cost time, which the clock shows: both
give a `Disturbance` to be joined to others.
"""

import enum
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.execution.clock.clock import TimedRun
from ncc_runtime.execution.disturbance import Disturbance, QueueSpeed, TransferFault
from ncc_runtime.execution.trace import Trace
from ncc_runtime.faults.flight_recorder import FlightRecord, flight_record
from ncc_runtime.faults.waits import stalled_run, wait_graph
from ncc_runtime.lowering.executable import CcQueue, DmaQueue, Executable
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.machine_model.timing import PS_PER_S, TimingModel, duration_ps
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.stages import ranks_text
from ncc_runtime.topology.routes import Transport

EXEC_TIMEOUT = "NEURON_RT_EXEC_TIMEOUT"
"""The environment variable of Neuron's runtime, in seconds."""

DEFAULT_TIMEOUT_S = 30.0
"""Where neither option nor variable says otherwise.

Source: AWS Neuron SDK docs, runtime configuration guide, the table (30). The text of that page says
2, the developer guide 600 for trn1 and inf2; logs that users published show 30 and 600.
"""

PROXY_TIMEOUT_PS = 10 * PS_PER_S
"""Until the host thread that drives transfers between instances gives up on one.

Source: AWS Neuron release notes 2.32.28 name 10 s for that of mesh; for other algorithms assumed.
"""


class NrtStatus(enum.IntEnum):
    """Status codes of Neuron's runtime that faults end in. Source: nrt/nrt_status.h."""

    SUCCESS = 0
    TIMEOUT = 5
    EXEC_HW_ERR_COLLECTIVES = 1200
    EXEC_HW_ERR_HBM_UE = 1201
    EXEC_HW_ERR_NC_UE = 1202
    EXEC_HW_ERR_DMA_ABORT = 1203
    NETWORK_PROXY_FAILURE = 1206


@attrs.frozen
class StatusReport:
    """What the host of a rank reports, when."""

    rank: int
    at_ps: int  # since the launch of the run
    status: NrtStatus
    text: str

    def as_json(self) -> dict[str, object]:
        return {
            "rank": self.rank,
            "time_us": self.at_ps / 1e6,
            "status": int(self.status),
            "name": f"NRT_{self.status.name}",
            "text": self.text,
        }


def exec_timeout_ps(
    seconds: float | None = None, environment: Mapping[str, str] | None = None
) -> int:
    """The execution timeout: as given, else as NEURON_RT_EXEC_TIMEOUT says, else the default.

    InputError if it is no positive number of seconds.
    """
    value, source = seconds, "--exec-timeout"
    if value is None:
        text = (os.environ if environment is None else environment).get(EXEC_TIMEOUT)
        source = EXEC_TIMEOUT
        try:
            value = DEFAULT_TIMEOUT_S if text is None else float(text)
        except ValueError:
            value = math.nan
        if math.isnan(value):
            raise InputError(f"{source}={text} is no number of seconds; for example {source}=30")
    if not 0 < value <= 10**6:
        raise InputError(
            f"{source} is {value:g} s; it must be more than 0 and at most 1,000,000 seconds"
        )
    return max(1, round(value * PS_PER_S))


def status_reports(
    record: FlightRecord, timeout_ps: int, late_start_ps: Mapping[int, int] | None = None
) -> tuple[StatusReport, ...]:
    """What the hosts of all ranks with work left report, the first one first.

    A host waits from its own launch on. Of a rank inside a collective it reports a stuck
    collective, 1200; of one whose collectives are all complete or not yet triggered a timeout, 5.
    Where a transfer to another instance stands still, the host thread that drives it gives up
    first, 1206. Which code ends what is assumed from their names in nrt_status.h.
    """
    launched = late_start_ps or {}
    executable = record.graph.run.executable
    proxies: dict[int, int] = {}  # by rank, since when a transfer over EFA stands still
    for culprit in record.graph.culprits:
        for transfer in culprit.transfers:
            ring = executable.queues[transfer.queue]
            process = transfer.queue, transfer.rank
            if not isinstance(ring, DmaQueue) or process not in record.graph.run.pushed:
                continue
            peer = ring.peer[transfer.row, transfer.rank]
            if executable.routes.transport(np.array(transfer.rank), peer) == Transport.EFA.code:
                since = record.graph.waiters[process].since_ps
                since = record.graph.run.progress_ps.get(process, since)
                proxies[transfer.rank] = since or 0
    found = []
    for one in record.ranks:
        if not one.queues:
            continue
        at_ps = launched.get(one.rank, 0) + timeout_ps
        proxy_ps = proxies.get(one.rank, at_ps) + PROXY_TIMEOUT_PS
        core = int(executable.placement.core[one.rank])
        chip = int(executable.placement.chip[one.rank])
        where = f"rank {one.rank} on core {core} of c{chip}"
        if proxy_ps < at_ps:
            text = f"{where}: a transfer to another instance made no progress for 10 s"
            found.append(StatusReport(one.rank, proxy_ps, NrtStatus.NETWORK_PROXY_FAILURE, text))
        elif one.inside:
            names = ", ".join(state.name for state in one.inside)
            text = f"{where}: collective {names} has not completed, a hang is suspected"
            found.append(StatusReport(one.rank, at_ps, NrtStatus.EXEC_HW_ERR_COLLECTIVES, text))
        else:
            text = f"{where}: stuck outside of collectives"
            found.append(StatusReport(one.rank, at_ps, NrtStatus.TIMEOUT, text))
    return tuple(sorted(found, key=lambda one: (one.at_ps, one.rank)))


@attrs.frozen
class Detection:
    """From a fault until it is noticed."""

    fault_ps: int
    first_ps: int  # the first report, since the launch
    last_ps: int

    @property
    def first_after_ps(self) -> int:
        """From the fault to the first report."""
        return self.first_ps - self.fault_ps

    @property
    def last_after_ps(self) -> int:
        """From the fault until all have reported."""
        return self.last_ps - self.fault_ps


def detection(reports: Sequence[StatusReport], fault_ps: int) -> Detection | None:
    """When a fault is noticed; None if nobody reports."""
    if not reports:
        return None
    times = [one.at_ps for one in reports]
    return Detection(fault_ps, min(times), max(times))


@attrs.frozen(eq=False)
class StallReport:
    """A stall as its users see it: who reports what when, and the flight recorder's record."""

    record: FlightRecord
    timeout_ps: int
    reports: tuple[StatusReport, ...]
    noticed: Detection | None  # None: when the fault was is not known

    def as_text(self) -> str:
        """The record, then the reports, alike ones in one line, and the time of detection."""
        lines = [self.record.as_text(), "what hosts report"]
        alike: dict[tuple[int, NrtStatus], list[int]] = {}
        for one in self.reports:
            alike.setdefault((one.at_ps, one.status), []).append(one.rank)
        for (at_ps, status), ranks in alike.items():
            plural = "s" if len(ranks) > 1 else ""
            at = f"{at_ps / 1e6:,.3f} us"
            lines.append(
                f"  rank{plural} {ranks_text(sorted(ranks))} at {at}: NRT_{status.name} ({status})"
            )
        if self.noticed is not None:
            first, last = self.noticed.first_after_ps / 1e6, self.noticed.last_after_ps / 1e6
            lines.append(f"noticed {first:,.3f} us after the fault, by all after {last:,.3f} us")
        return "\n".join(lines)

    def as_json(self) -> dict[str, Any]:
        noticed = None
        if self.noticed is not None:
            noticed = {
                "fault_us": self.noticed.fault_ps / 1e6,
                "first_after_us": self.noticed.first_after_ps / 1e6,
                "last_after_us": self.noticed.last_after_ps / 1e6,
            }
        return {
            **self.record.as_json(),
            "exec_timeout_us": self.timeout_ps / 1e6,
            "reports": [one.as_json() for one in self.reports],
            "detection": noticed,
        }


def stall_report(
    run: TimedRun,
    timeout_ps: int,
    *,
    fault_ps: int | None = None,
    late_start_ps: Mapping[int, int] | None = None,
) -> StallReport:
    """The report of a run of the clock that is not complete.

    `fault_ps` is when the first fault began, `late_start_ps` how much later hosts launched ranks.
    ValueError if the run is complete.
    """
    if run.is_complete:
        raise ValueError("the run is complete: nothing stalls")
    record = flight_record(wait_graph(stalled_run(run.trace, run.stuck, run.held, run.halted)))
    reports = status_reports(record, timeout_ps, late_start_ps)
    noticed = None if fault_ps is None else detection(reports, fault_ps)
    return StallReport(record, timeout_ps, reports, noticed)


# ---- false alarms


def false_alarms(times_ps: Sequence[int] | np.ndarray, timeout_ps: int) -> float:
    """The share of sound steps, or of gaps between beats, that take longer than a timeout."""
    times = np.asarray(times_ps)
    if not times.size:
        raise InputError("false alarms are counted over at least one run")
    return float(np.count_nonzero(times > timeout_ps) / times.size)


@attrs.frozen
class TimeoutRow:
    """What one timeout means."""

    timeout_ps: int
    mean_detection_ps: float  # of a fault at any moment of a step of median length, alike likely
    longest_detection_ps: int  # of a fault as the step begins
    false_alarms: float  # a step
    at_most: float  # with a confidence of 95 %, from as many steps as were seen


def timeout_table(
    times_ps: Sequence[int] | np.ndarray, timeouts_ps: Sequence[int]
) -> tuple[TimeoutRow, ...]:
    """What timeouts mean for steps that take as long as these, such as runs with stragglers.

    `at_most` is the upper end of Wilson's interval: where no step of n was too long, that is about
    4 / n and not nothing.
    """
    median = float(np.median(np.asarray(times_ps)))
    rows = []
    for timeout in timeouts_ps:
        share = false_alarms(times_ps, timeout)
        mean = timeout - min(median, timeout) / 2
        rows.append(TimeoutRow(timeout, mean, timeout, share, _wilson(share, len(times_ps))))
    return tuple(rows)


def _wilson(share: float, count: int) -> float:
    """The upper end of Wilson's score interval at 95 %. Source: Wilson, 1927."""
    z2 = 1.96**2
    middle = share + z2 / (2 * count)
    spread = math.sqrt(z2 * (share * (1 - share) / count + z2 / (4 * count**2)))
    return min(1.0, (middle + spread) / (1 + z2 / count))


# ---- heartbeats


MOST_BEATS = 200_000
"""Of one run, which the clock plays one by one."""


@attrs.frozen
class Alarm:
    """A rank misses the beats of the one before it."""

    rank: int  # whose beats are missed
    by: int
    at_ps: int  # since the launch


@attrs.frozen
class Heartbeat:
    """Each rank's CC-core writes to a semaphore of the next rank once a period."""

    period_ps: int
    misses: int = 3  # beats in a row that must be missing

    def __attrs_post_init__(self) -> None:
        if self.period_ps < 1 or self.misses < 1:
            raise InputError("a heartbeat has a period of more than 0 and at least 1 miss")

    def beat_ps(self, executable: Executable) -> int:
        """How long a beat keeps a CC-core from its programs: one instruction writes, one looks."""
        return 2 * TimingModel.from_topology(executable.topology).cc_instruction_ps

    def disturbance(self, executable: Executable, until_ps: int) -> Disturbance:
        """What beats cost: CC-cores do nothing else meanwhile; up to a time after the launch.

        InputError if beats would leave a CC-core no time for anything else, or are very many.
        """
        busy_ps = self.beat_ps(executable)
        if busy_ps >= self.period_ps:
            raise InputError(
                f"a beat keeps a CC-core busy for {busy_ps / 1e6:g} us: take a longer period than "
                f"{self.period_ps / 1e6:g} us"
            )
        beats = range(self.period_ps, until_ps, self.period_ps)
        if len(beats) * executable.ranks > MOST_BEATS:
            raise InputError(
                f"{executable.ranks} ranks would beat {len(beats):,} times each; more than "
                f"{MOST_BEATS:,} in all are not played: take a longer period than "
                f"{self.period_ps / 1e6:g} us"
            )
        return Disturbance(
            queues=tuple(
                QueueSpeed(number, rank, 0, at_ps, at_ps + busy_ps)
                for number, queue in enumerate(executable.queues)
                if isinstance(queue, CcQueue) and queue.stream == 0
                for rank in (range(executable.ranks) if queue.ranks is None else queue.ranks)
                for at_ps in beats
            )
        )

    def alarms(
        self, executable: Executable, disturbance: Disturbance, until_ps: int
    ) -> tuple[Alarm, ...]:
        """Who misses so many beats of whom in a row, up to a time; of each rank the first alarm.

        Beats of a rank are due at multiples of the period. None comes while its CC-core or a link
        or adapter of the way stands still, and before its host has launched it; the next rank looks
        when one is due and the way of a beat later.
        """
        model, routes = TimingModel.from_topology(executable.topology), executable.routes
        parts = Parts(routes, model, executable.ranks)
        of_parts: dict[int, list[tuple[int, int]]] = {}
        for part in disturbance.parts:
            if part.speed == 0:
                of_parts.setdefault(part.part, []).append((part.start_ps, part.end_ps))
        silent: dict[int, list[tuple[int, int]]] = {
            rank: [(0, late_ps)] for rank, late_ps in disturbance.late_start_ps.items()
        }
        for queue in disturbance.queues:
            cc = executable.queues[queue.queue]
            if queue.speed == 0 and isinstance(cc, CcQueue) and cc.stream == 0:
                silent.setdefault(queue.rank, []).append((queue.start_ps, queue.end_ps))
        found = []
        for rank in range(executable.ranks if executable.ranks > 1 else 0):
            neighbour = (rank + 1) % executable.ranks
            ends = np.array([rank]), np.array([neighbour])
            way = [*routes.links(rank, neighbour)]
            if routes.transport(*ends)[0] == Transport.EFA.code:
                way += [int(column[0]) for column in parts.network(*ends)]
            spans = sorted(
                silent.get(rank, []) + [s for part in way for s in of_parts.get(part, [])]
            )
            at_ps = self._missed_ps(spans)
            if at_ps is None:
                continue
            at_ps += int(routes.latency_ps(*ends)[0]) + model.semaphore_remote_ps
            if at_ps <= until_ps:
                found.append(Alarm(rank, neighbour, at_ps))
        return tuple(sorted(found, key=lambda alarm: (alarm.at_ps, alarm.rank)))

    def _missed_ps(self, silent: Sequence[tuple[int, int]]) -> int | None:
        """When the last of so many beats in a row was due in times without any, ascending."""
        low = high = 0
        for start_ps, end_ps in silent:
            if start_ps > high:
                low = start_ps
            high = max(high, end_ps)
            due = max(1, -(-low // self.period_ps)) + self.misses - 1
            if due * self.period_ps < high:
                return due * self.period_ps
        return None


# ---- checksums


class Summing(enum.Enum):
    """Who sums the bytes of a transfer, and how."""

    DMA = "dma"
    GPSIMD = "gpsimd"


class SumKind(enum.Enum):
    """What is computed of the bytes."""

    CRC32 = "crc32"  # of Ethernet and zlib: finds every change of up to 32 bits in a row
    ADD32 = "add32"  # words of 32 bits added modulo 2**32: two changes can cancel


@attrs.frozen
class Checksum:
    """Sender and receiver of a transfer sum its bytes; sums that differ are a fault.

    By `DMA` the engines sum what passes them, and send and compare the sum in one more descriptor
    at each side (assumed: the profiler's DmaPacket has a column `crc`, so engines can). By `GPSIMD`
    the core reads the bytes again, before they are sent and after they have arrived, at the rate
    of that engine for words of 32 bits.
    """

    by: Summing = Summing.DMA
    kind: SumKind = SumKind.CRC32

    def of(self, data: bytes) -> int:
        """The sum of some bytes."""
        if self.kind is SumKind.CRC32:
            return zlib.crc32(data)
        words = np.frombuffer(data + bytes(-len(data) % 4), "<u4")
        return int(words.sum(dtype=np.uint64) % 2**32)

    def finds(self, sent: bytes, flipped_bits: Sequence[int]) -> bool:
        """Whether bits that flip on the way are noticed; bits count from bit 0 of the first byte.

        ValueError if the bytes have no such bit.
        """
        arrived = bytearray(sent)
        for bit in flipped_bits:
            if not 0 <= bit < 8 * len(sent):
                raise ValueError(f"{len(sent)} bytes have no bit {bit}")
            arrived[bit // 8] ^= 1 << bit % 8
        return self.of(bytes(arrived)) != self.of(sent)

    def disturbance(self, trace: Trace) -> Disturbance:
        """What sums cost: every transfer of an undisturbed run takes so much longer."""
        return Disturbance(transfers=tuple(self._longer(trace)))

    def _longer(self, trace: Trace) -> Iterator[TransferFault]:
        for number, events in trace.blocks(trace.queues_of(DmaQueue)):
            ranks = trace.rank[events]
            nth = np.arange(len(events)) - np.searchsorted(ranks, ranks)  # ranks ascend
            longer = self.longer_ps(trace.executable, _sizes(trace, number, events))
            rows = zip(ranks.tolist(), nth.tolist(), longer.tolist(), strict=True)
            for rank, at, more in rows:
                if more:
                    yield TransferFault(number, rank, at, longer_ps=more)

    def longer_ps(self, executable: Executable, size_bytes: np.ndarray) -> np.ndarray:
        """How much longer transfers of these sizes take, int64; those without bytes no longer."""
        model = TimingModel.from_topology(executable.topology)
        size_bytes = np.asarray(size_bytes, np.int64)
        if self.by is Summing.DMA:
            each = np.full(size_bytes.shape, 2 * model.descriptor_ps, np.int64)
        else:
            words = -(-size_bytes // 4)
            rate = model.work_per_s(Engine.GPSIMD, DType.U32)
            each = 2 * (duration_ps(words, rate) + model.instruction_ps(Engine.GPSIMD))
        return np.where(size_bytes > 0, each, 0)

    def sent_again(self, trace: Trace, fault: TransferFault) -> TransferFault:
        """A transfer whose sum was wrong, sent again: whole, and as late as it took the first time.

        From an undisturbed run; what sums cost the first time is in `disturbance`. InputError if
        there is no such transfer.
        """
        events = np.flatnonzero((trace.queue == fault.queue) & (trace.rank == fault.rank))
        if fault.nth >= len(events):
            raise InputError(
                f"{trace.executable.queues[fault.queue].name} of rank {fault.rank} performs "
                f"{len(events)} transfers; there is no transfer {fault.nth}"
            )
        event = events[fault.nth : fault.nth + 1]
        again_ps = int(trace.end_ps[event[0]] - trace.start_ps[event[0]])
        size = _sizes(trace, fault.queue, event)
        again_ps += int(self.longer_ps(trace.executable, size)[0])
        return attrs.evolve(fault, flipped_bits=(), longer_ps=fault.longer_ps + again_ps)


def _sizes(trace: Trace, number: int, events: np.ndarray) -> np.ndarray:
    """The bytes of transfers of a ring."""
    ring = trace.executable.queues[number]
    assert isinstance(ring, DmaQueue), ring.name
    sizes = np.broadcast_to(ring.size_bytes, ring.peer.shape)
    return sizes[trace.row[events], trace.rank[events]]
