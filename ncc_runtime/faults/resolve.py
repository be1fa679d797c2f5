"""Faults on one executable: names become queues, ranks, parts, transfers and times.

Every rank draws by itself, from (seed, number of the fault, rank): one fault more changes no draw.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property

import attrs
import numpy as np

from ncc_runtime.errors import InputError, TopologyError
from ncc_runtime.execution.clock.clock import Clock
from ncc_runtime.execution.disturbance import (
    ALWAYS_PS,
    FULL_SPEED,
    Disturbance,
    MemoryFault,
    PartSpeed,
    QueueSpeed,
    TransferFault,
)
from ncc_runtime.execution.trace import Trace
from ncc_runtime.faults.fault import (
    HEADER_BYTES,
    MOST_FLAPS,
    MOST_PS,
    MOST_STOPS,
    PACKET_BYTES,
    RETRANSMIT_PS,
    Fault,
    Kind,
    When,
)
from ncc_runtime.lowering.executable import DmaQueue, EngineQueue, is_run_by
from ncc_runtime.machine_model.parts import PartKind, Parts
from ncc_runtime.machine_model.timing import PS_PER_S, TimingModel
from ncc_runtime.neff.program import Tensor
from ncc_runtime.report.row_texts import placeholder_text
from ncc_runtime.topology.fault_names import links_of_name
from ncc_runtime.topology.format.rows import core_of_name
from ncc_runtime.topology.routes import Transport

SHOWN = 8
"""Names of what there is that a message has."""


@attrs.frozen(eq=False)
class ResolvedFault:
    """A fault, and what it does to one executable."""

    fault: Fault
    disturbance: Disturbance

    @property
    def name(self) -> str:
        """As reports print it."""
        return str(self.fault)


def resolved(clock: Clock, faults: Sequence[Fault], seed: int = 0) -> tuple[ResolvedFault, ...]:
    """Each fault on the executable of a clock; InputError for what is not there.

    A fault at a run of a collective begins as that run does under the faults before it.
    """
    sites = FaultSites(clock, seed)
    begins_ps = {n: fault.when.at_ps for n, fault in enumerate(faults) if fault.when.run is None}
    found = {n: sites.resolved(faults[n], n, at_ps) for n, at_ps in begins_ps.items()}
    waiting = [number for number in range(len(faults)) if number not in found]
    while True:
        # what lasts as long as the run, or hits what happens in a time, follows from its times,
        # which it changes: later ones only, so that they settle from the first on
        unsettled = [n for n in found if _follows_times(faults[n])]
        trace = sites.run
        if (waiting and found) or unsettled:
            trace = clock.run(joined(found.values())).trace
        if unsettled:
            sites.run = trace
            again = {n: sites.resolved(faults[n], n, begins_ps[n]) for n in unsettled}
            if any(_differ(again[n].disturbance, found[n].disturbance) for n in unsettled):
                found |= again
                continue
        if not waiting:
            return tuple(found[number] for number in range(len(faults)))
        starts = {n: sites.start_ps(faults[n], trace, is_disturbed=bool(found)) for n in waiting}
        first = min(waiting, key=lambda number: (starts[number], number))
        begins_ps[first] = starts[first]
        found[first] = sites.resolved(faults[first], first, starts[first])
        waiting.remove(first)


def _follows_times(fault: Fault) -> bool:
    """Whether what a fault does depends on when things happen in the run that it disturbs."""
    has_times = fault.when != When()
    is_endless = fault.when.for_ps is None
    return (fault.kind is Kind.ADAPTER_LOSES and has_times) or bool(fault.flap_ps and is_endless)


def _differ(first: Disturbance, second: Disturbance) -> bool:
    return (first.parts, first.transfers) != (second.parts, second.transfers)


def joined(faults: Iterable[ResolvedFault]) -> Disturbance:
    """All of them in one run."""
    each = [fault.disturbance for fault in faults]
    late: dict[int, int] = {}
    for disturbance in each:
        for rank, late_ps in disturbance.late_start_ps.items():
            late[rank] = min(MOST_PS, late.get(rank, 0) + late_ps)
    return Disturbance(
        parts=tuple(part for one in each for part in one.parts),
        queues=tuple(queue for one in each for queue in one.queues),
        transfers=tuple(transfer for one in each for transfer in one.transfers),
        memory=tuple(flip for one in each for flip in one.memory),
        late_start_ps=late,
    )


class FaultSites:
    """What faults can name in an executable, by name."""

    def __init__(self, clock: Clock, seed: int) -> None:
        self._clock, self._seed = clock, seed
        self.executable = clock.executable
        model = TimingModel.from_topology(self.executable.topology)
        self.parts = Parts(self.executable.routes, model, self.executable.ranks)

    @cached_property
    def run(self) -> Trace:
        """In which faults find the transfers that they name; unless set, the undisturbed run."""
        return self._clock.run().trace

    def resolved(self, fault: Fault, number: int, at_ps: int) -> ResolvedFault:
        """A fault that begins at a time; `number` is its place among all, for draws."""
        for_ps = fault.when.for_ps
        end_ps = ALWAYS_PS if for_ps is None else at_ps + for_ps
        return ResolvedFault(fault, self._disturbance(fault, number, at_ps, end_ps))

    def start_ps(self, fault: Fault, trace: Trace, *, is_disturbed: bool) -> int:
        """When the run of a collective begins that a fault waits for: its first trigger."""
        when, program = fault.when, self.executable.program
        known = [placeholder_text(self.executable, n) for n in range(len(program.placeholders))]
        number = next((n for n, text in enumerate(known) if when.collective in text.split()), None)
        if number is None:
            raise self._missing(fault, f"collective {when.collective}", known)
        rank, start, _ = trace.spans(number)
        first = np.searchsorted(rank, rank)  # ranks ascend, the runs of a rank are in order
        of_run = start[np.arange(len(rank)) - first == (when.run or 1) - 1]
        if not len(of_run):
            most = int(np.bincount(rank).max(initial=0)) if len(rank) else 0
            times = f"{most} time{'s' * (most != 1)}"
            before = ", under the faults before it" if is_disturbed else ""
            raise InputError(f"fault '{fault}': {known[number]} runs {times}{before}")
        return int(of_run.min())

    def _missing(self, fault: Fault, what: str, known: Sequence[str]) -> InputError:
        more = ["…"] * (len(known) > SHOWN)
        there = ", ".join([*known[:SHOWN], *more]) or "none"
        return InputError(f"fault '{fault}': there is no {what}; there is {there}")

    # ---- what each kind does

    def _disturbance(self, fault: Fault, number: int, at_ps: int, end_ps: int) -> Disturbance:
        kind = fault.kind
        if kind is Kind.RANK_LATE:
            late = {rank: self._late_ps(fault, number, rank) for rank in self._ranks(fault)}
            return Disturbance(late_start_ps=late)
        if kind in (Kind.RANK_SLOW, Kind.CORE_SLOW):
            ranks = self._ranks(fault) if kind is Kind.RANK_SLOW else self._ranks_of_core(fault)
            return Disturbance(
                queues=tuple(
                    QueueSpeed(queue, rank, speed, at_ps, end_ps)
                    for rank in ranks
                    for speed in [self._speed(fault, number, rank)]
                    for queue in self._queues_of(rank)
                    if isinstance(self.executable.queues[queue], EngineQueue)
                )
            )
        if kind in (Kind.RANK_DEAD, Kind.CORE_DEAD):
            ranks = self._ranks(fault) if kind is Kind.RANK_DEAD else self._ranks_of_core(fault)
            return Disturbance(queues=self._stopped(ranks, at_ps, end_ps))
        if kind is Kind.CHIP_DEAD:
            return self._dead_chip(fault, at_ps, end_ps)
        if kind is Kind.DMA_STUCK:
            queue, rank = self._ring(fault)
            return Disturbance(queues=(QueueSpeed(queue, rank, 0, at_ps, end_ps),))
        if kind is Kind.ADAPTER_LOSES:
            return self._lost_packets(fault, number, at_ps, end_ps)
        if kind is Kind.BIT_MEMORY:
            return Disturbance(memory=(self._memory(fault, at_ps),))
        if fault.nth is not None:
            return Disturbance(transfers=(self._transfer(fault, number),))
        return Disturbance(parts=tuple(self._parts(fault, at_ps, end_ps)))

    def _draw(self, fault: Fault, number: int, rank: int) -> float:
        assert fault.draws is not None, fault
        share = 1.0 - np.random.default_rng((self._seed, number, rank)).random()
        return float(fault.draws.upper_quantile(np.array(share)))

    def _late_ps(self, fault: Fault, number: int, rank: int) -> int:
        if fault.amount is not None:
            return fault.amount
        return min(MOST_PS, round(self._draw(fault, number, rank)))

    def _speed(self, fault: Fault, number: int, rank: int) -> int:
        if fault.speed is not None:
            return fault.speed
        return max(1, round(FULL_SPEED / self._draw(fault, number, rank)))

    # ---- ranks and their queues

    def _ranks(self, fault: Fault) -> Sequence[int]:
        first, _, last = fault.place.partition("-")
        if first == "*":
            return range(self.executable.ranks)
        ranks = range(int(first), int(last or first) + 1)
        if ranks[-1] >= self.executable.ranks:
            known = [f"rank 0 to {self.executable.ranks - 1}"]
            raise self._missing(fault, f"rank {ranks[-1]}", known)
        return ranks

    def _ranks_of_core(self, fault: Fault) -> Sequence[int]:
        named = core_of_name(fault.place)
        assert named is not None, fault
        chip, core = named
        topology, place = self.executable.topology, self.executable.placement
        cores = topology.ranks_per_chip * topology.lnc
        if chip >= topology.chips or core >= cores:
            known = [f"c0 to c{topology.chips - 1} with core0 to core{cores - 1}"]
            raise self._missing(fault, f"core {fault.place}", known)
        on = (place.chip == chip) & (place.core == core // topology.lnc)
        return self._some(fault, np.flatnonzero(on).tolist())

    def _some(self, fault: Fault, ranks: Sequence[int]) -> Sequence[int]:
        if not ranks:
            raise InputError(f"fault '{fault}': no rank of the program is there")
        return ranks

    def _queues_of(self, rank: int) -> list[int]:
        queues = self.executable.queues
        return [number for number, queue in enumerate(queues) if is_run_by(queue, rank)]

    def _stopped(self, ranks: Sequence[int], at_ps: int, end_ps: int) -> tuple[QueueSpeed, ...]:
        return tuple(
            QueueSpeed(queue, rank, 0, at_ps, end_ps)
            for rank in ranks
            for queue in self._queues_of(rank)
        )

    def _dead_chip(self, fault: Fault, at_ps: int, end_ps: int) -> Disturbance:
        topology, chip = self.executable.topology, int(fault.place[1:])
        if chip >= topology.chips:
            raise self._missing(fault, f"chip c{chip}", [f"c0 to c{topology.chips - 1}"])
        ranks = np.flatnonzero(self.executable.placement.chip == chip).tolist()
        links = topology.links
        touching = np.flatnonzero((links.src == chip) | (links.dst == chip))
        stacks = topology.hbm.stacks
        first = self.parts.span(PartKind.HBM).start + chip * stacks
        parts = [*touching.tolist(), *range(first, first + stacks)]
        return Disturbance(
            parts=tuple(PartSpeed(part, 0, at_ps, end_ps) for part in parts),
            queues=self._stopped(ranks, at_ps, end_ps),
        )

    # ---- links and adapters

    def _parts(self, fault: Fault, at_ps: int, end_ps: int) -> Sequence[PartSpeed]:
        """A link, an adapter, or all adapters of an instance: down, slow or flapping."""
        subject = fault.kind.value.partition(".")[0]
        parts = self._links(fault) if subject == "link" else self._adapters(fault)
        if fault.flap_ps is not None:
            down_ps, every_ps = fault.flap_ps
            if end_ps == ALWAYS_PS:
                # at least until the run ends; some more, or it would be timed anew each time
                periods = max(0, self.run.time_ps - at_ps) // every_ps
                times = min(MOST_FLAPS, 1 << periods.bit_length())
            else:
                times = -(-(end_ps - at_ps) // every_ps)
            if times > MOST_FLAPS:
                raise InputError(
                    f"fault '{fault}': {times:,} times, the most is {MOST_FLAPS:,}; give a longer "
                    "period, or less time"
                )
            if times * len(parts) > MOST_STOPS:
                raise InputError(
                    f"fault '{fault}': {len(parts):,} links or adapters, each way counted, "
                    f"{times:,} times each; the most is {MOST_STOPS:,} in all: give a longer period"
                )
            starts = [at_ps + every_ps * time for time in range(times)]
            return [
                PartSpeed(part, 0, start, min(end_ps, start + down_ps))
                for part in parts
                for start in starts
            ]
        return [PartSpeed(part, self._speed_of_part(fault, part), at_ps, end_ps) for part in parts]

    def _speed_of_part(self, fault: Fault, part: int) -> int:
        if fault.kind in (Kind.LINK_DOWN, Kind.ADAPTER_DOWN):
            return 0
        if fault.kind is Kind.INSTANCE_MTU:
            # of the bytes on the wire, those that are not headers
            mtu = min(fault.amount or PACKET_BYTES, PACKET_BYTES)
            usual = PACKET_BYTES * (mtu + HEADER_BYTES)
            return mtu * (PACKET_BYTES + HEADER_BYTES) * FULL_SPEED // usual
        if fault.speed is not None:
            return fault.speed
        usual_rate, rate = int(self.parts.rates[part]), fault.amount or 0
        if rate > usual_rate:
            raise InputError(
                f"fault '{fault}': it has {usual_rate / 1e9:g} GB/s, and a fault makes it slower"
            )
        return max(1, rate * FULL_SPEED // usual_rate)

    def _links(self, fault: Fault) -> list[int]:
        """Numbers of the links of a name; links are the first parts."""
        try:
            return links_of_name(self.executable.topology.links, fault.place)
        except TopologyError as error:
            raise InputError(f"fault '{fault}': {error}") from error

    def _adapters(self, fault: Fault) -> list[int]:
        """Both directions of an adapter, of all, or of all of an instance."""
        topology = self.executable.topology
        efa = topology.efa
        count = 0 if efa is None else efa.adapters
        span = self.parts.span(PartKind.EFA)
        half = (span.stop - span.start) // 2
        name = fault.place
        if not half:
            raise InputError(f"fault '{fault}': {topology.name} has no EFA adapters")
        if name == "*":
            return list(range(span.start, span.stop))
        node, _, adapter = name.removeprefix("n").partition(".efa")
        if int(node) >= topology.nodes or (adapter and int(adapter) >= count):
            known = [f"n0 to n{topology.nodes - 1} with efa0 to efa{count - 1}"]
            raise self._missing(fault, name, known)
        first = int(node) * count
        chosen = [first + int(adapter)] if adapter else range(first, first + count)
        return [span.start + way * half + number for way in (0, 1) for number in chosen]

    def _lost_packets(self, fault: Fault, number: int, at_ps: int, end_ps: int) -> Disturbance:
        """Of the transfers that an adapter sends, what the packets take that are sent again.

        Those of one transfer are sent again together, after one timeout, and those that are lost
        again after another.
        """
        executable, trace = self.executable, self.run
        adapters = {part - self.parts.span(PartKind.EFA).start for part in self._adapters(fault)}
        rate = int(self.parts.rates[self.parts.span(PartKind.EFA)].max(initial=1))
        found: list[TransferFault] = []
        for queue_number, events in trace.blocks(trace.queues_of(DmaQueue)):
            queue = executable.queues[queue_number]
            assert isinstance(queue, DmaQueue), queue.name
            rank, row = trace.rank[events].astype(np.int64), trace.row[events].astype(np.int64)
            nth = np.arange(len(events)) - np.searchsorted(rank, rank)
            peer = queue.peer[row, rank]
            sizes = queue.bytes_of(row, rank)
            start = trace.start_ps[events]
            sends = (peer != -1) & (at_ps <= start) & (start < end_ps)
            sends &= np.isin(executable.routes.adapter(rank), list(adapters))
            far = executable.routes.transport(rank, np.where(peer == -1, rank, peer))
            for at in np.flatnonzero(sends & (far == Transport.EFA.code)).tolist():
                key = (self._seed, number, int(rank[at]), queue_number, int(nth[at]))
                generator = np.random.default_rng(key)
                packets, longer_ps = -(-max(1, int(sizes[at])) // PACKET_BYTES), 0
                while packets := int(generator.binomial(packets, fault.loss or 0)):
                    resent = packets * PACKET_BYTES * PS_PER_S // rate
                    longer_ps += RETRANSMIT_PS + resent
                if longer_ps:
                    _, _, sender, ring, n = key
                    found.append(TransferFault(ring, sender, n, longer_ps=longer_ps))
        return Disturbance(transfers=tuple(found))

    # ---- transfers and memory

    def _ring(self, fault: Fault) -> tuple[int, int]:
        """The queue and the rank."""
        rank = fault.rank or 0
        rings = {
            queue.name: number
            for number, queue in enumerate(self.executable.queues)
            if isinstance(queue, DmaQueue) and is_run_by(queue, rank)
        }
        if rank >= self.executable.ranks:
            known = [f"rank 0 to {self.executable.ranks - 1}"]
            raise self._missing(fault, f"rank {rank}", known)
        if fault.place not in rings:
            raise self._missing(fault, f"DMA ring {fault.place} on rank {rank}", sorted(rings))
        return rings[fault.place], rank

    def _transfer(self, fault: Fault, number: int) -> TransferFault:
        queue_number, rank = self._ring(fault)
        trace, nth = self.run, fault.nth or 0
        mine = np.flatnonzero((trace.queue == queue_number) & (trace.rank == rank))
        if nth >= len(mine):
            ring = f"{fault.place} on rank {rank}"
            raise InputError(f"fault '{fault}': {ring} performs {len(mine)} transfers, from 0")
        if fault.kind is Kind.BIT_TRANSFER:
            queue = self.executable.queues[queue_number]
            assert isinstance(queue, DmaQueue), queue.name
            size = int(queue.bytes_of(trace.row[mine[nth]], np.array(rank)))
            if (fault.bit or 0) >= 8 * size:
                raise InputError(f"fault '{fault}': the transfer writes {8 * size} bits, from 0")
            return TransferFault(queue_number, rank, nth, flipped_bits=(fault.bit or 0,))
        if fault.kind is Kind.DMA_LATE:
            late_ps = self._late_ps(fault, number, rank)
            return TransferFault(queue_number, rank, nth, late_ps=late_ps)
        return TransferFault(
            queue_number, rank, nth, completions=0 if fault.kind is Kind.DMA_LOST else 2
        )

    def _memory(self, fault: Fault, at_ps: int) -> MemoryFault:
        program, rank = self.executable.program, fault.rank or 0
        if rank >= self.executable.ranks:
            known = [f"rank 0 to {self.executable.ranks - 1}"]
            raise self._missing(fault, f"rank {rank}", known)
        if fault.byte is not None:
            used = self.executable.hbm_bytes
            if fault.byte >= used or (fault.bit or 0) >= 8:
                uses = f"the program uses {used} bytes of 8 bits of a rank's memory, from 0"
                raise InputError(f"fault '{fault}': {uses}")
            return MemoryFault(rank, fault.byte, fault.bit or 0, at_ps)
        arrays = self._arrays(rank)
        if fault.place not in arrays:
            where = f" on rank {rank}" if len(self.executable.stages) > 1 else ""
            raise self._missing(fault, f"array {fault.place}{where}", sorted(arrays, key=len))
        tensor_id = arrays[fault.place]
        tensor: Tensor = program.tensors[tensor_id]
        size = tensor.dtype.size_bytes
        element, bit = fault.element or 0, fault.bit or 0
        if element >= tensor.elements or bit >= 8 * size:
            raise InputError(
                f"fault '{fault}': {fault.place} has {tensor.elements} elements of {8 * size} "
                "bits, from 0"
            )
        address = program.address(tensor_id) + element * size + bit // 8
        return MemoryFault(rank, address, bit % 8, at_ps)

    def _arrays(self, rank: int) -> dict[str, int]:
        """Tensors of a rank by the names that users see: arg0, out0, of parameters, operations."""
        program, buffers = self.executable.program, self.executable.stage_of(rank).buffers
        names: dict[str, int] = {}

        def add(name: str, tensor: int) -> None:
            if program.tensors[tensor].buffer in buffers:
                names.setdefault(name, tensor)

        for number, tensor in enumerate(program.inputs):
            add(f"arg{number}", tensor)
            add(program.parameter(number).name or f"arg{number}", tensor)
        for number, tensor in enumerate(program.outputs):
            add(f"out{number}", tensor)
            add(program.result(number).name or f"out{number}", tensor)
        for number, each in enumerate(program.tensors):
            add(each.name, number)
        return names
