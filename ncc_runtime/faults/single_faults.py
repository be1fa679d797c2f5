"""Every single fault of a class, for campaigns.

A class lists its faults in a fixed order from the undisturbed run. If there are more than are to be
tried, so many are drawn without repetition from a seed, and tried in the order of the list.

Where a fault may come at any time, it comes before the launch, and for each run of a collective on
what it hits as it starts and in the middle of it: between those, a run is in the same steps.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.execution.disturbance import (
    FULL_SPEED,
    Disturbance,
    MemoryFault,
    PartSpeed,
    QueueSpeed,
    TransferFault,
)
from ncc_runtime.execution.trace import Trace
from ncc_runtime.faults.fault import Fault
from ncc_runtime.faults.outcome import Laboratory
from ncc_runtime.faults.resolve import joined, resolved
from ncc_runtime.lowering.executable import DmaQueue, EngineQueue, is_run_by
from ncc_runtime.machine_model.parts import PartKind, Parts
from ncc_runtime.machine_model.timing import TimingModel

LATE_PS = 10_000_000
"""How late a completion of `dma.late` is seen, and a rank of `rank.late` launched: assumed."""

SLOW_PERCENT = 50
"""Of the usual speed, what a core or a link of the classes `.slow` has: assumed."""

GIVEN = "given"
"""In place of a class: faults that were told."""

SAMPLED = 200
"""How many faults of a class of bits are tried, unless told: one for each bit would not end."""


@attrs.frozen(eq=False)
class SingleFault:
    """A fault of a class, and where it is."""

    name: str
    disturbance: Disturbance
    ranks: tuple[int, ...] = ()  # at fault, for whether the culprit that is found is the fault
    parts: tuple[int, ...] = ()


Faults = tuple[int, Callable[[int], SingleFault]]
"""How many faults a class has, and the n-th of them."""


# ---- what there is in an undisturbed run


class _Things:
    """What faults can hit in a program on its place."""

    def __init__(self, laboratory: Laboratory, seed: int) -> None:
        executable = self.executable = laboratory.executable
        self.trace = laboratory.trace
        self.seed = seed
        model = TimingModel.from_topology(executable.topology)
        self.parts = Parts(executable.routes, model, executable.ranks)
        self.queue, self.rank, self.nth, self.row = _transfers(self.trace)

    def transfer_name(self, n: int) -> str:
        queue = self.executable.queues[self.queue[n]]
        return f"{self.nth[n]} of {queue.name} on rank {self.rank[n]}"

    def transfers(self, fate: str, **fault: Any) -> Faults:
        """A fault for each transfer."""

        def of(n: int) -> SingleFault:
            queue, rank, nth = int(self.queue[n]), int(self.rank[n]), int(self.nth[n])
            disturbance = Disturbance(transfers=(TransferFault(queue, rank, nth, **fault),))
            return SingleFault(f"completion {self.transfer_name(n)} {fate}", disturbance, (rank,))

        return len(self.queue), of

    def size_bytes(self) -> np.ndarray:
        """Of each transfer, (n,) int64; of counted ones the most."""
        sizes = np.zeros(len(self.queue), np.int64)
        for number in np.unique(self.queue).tolist():
            queue, here = self.executable.queues[number], self.queue == number
            assert isinstance(queue, DmaQueue), queue.name
            all_sizes = np.broadcast_to(queue.size_bytes, queue.peer.shape)
            sizes[here] = all_sizes[self.row[here], self.rank[here]]
        return sizes

    def moments_ps(self, ranks: Sequence[int]) -> list[int]:
        """When faults of these ranks come: before the launch, in runs of their collectives."""
        runs = self.trace.runs
        of_ranks = np.isin(runs.rank, ranks)
        start = self.trace.start_ps[runs.first[of_ranks]]
        middle = start + (self.trace.end_ps[runs.last[of_ranks]] - start) // 2
        return [0, *np.unique(np.concatenate((start, middle))).tolist()]

    def queues_of(self, rank: int) -> list[int]:
        return [n for n, queue in enumerate(self.executable.queues) if is_run_by(queue, rank)]


def _transfers(trace: Trace) -> tuple[np.ndarray, ...]:
    """(queue, rank, nth, row) of every transfer, by ring, by rank, in the order of the ring."""
    columns: list[list[np.ndarray]] = [[np.zeros(0, np.int64)] for _ in range(4)]
    for queue, events in trace.blocks(trace.queues_of(DmaQueue)):
        rank = trace.rank[events].astype(np.int64)
        first = np.searchsorted(rank, rank)  # blocks hold all of a rank, ranks ascending
        more = (np.full(len(events), queue), rank, np.arange(len(events)) - first)
        for column, values in zip(columns, (*more, trace.row[events]), strict=True):
            column.append(values.astype(np.int64))
    return tuple(np.concatenate(column) for column in columns)


def microseconds(time_ps: int) -> str:
    """`35.2us`, exact."""
    return f"{time_ps // 10**6}.{time_ps % 10**6:06}".rstrip("0").rstrip(".") + "us"


def _listed(faults: Sequence[SingleFault]) -> Faults:
    return len(faults), faults.__getitem__


def _at(time_ps: int, what: str) -> str:
    return f"at {microseconds(time_ps)}: {what}" if time_ps else what


# ---- the classes


def _dead_ranks(things: _Things) -> Faults:
    return _listed(
        [
            SingleFault(
                _at(time_ps, f"rank {rank} dead"),
                Disturbance(
                    queues=tuple(QueueSpeed(n, rank, 0, time_ps) for n in things.queues_of(rank))
                ),
                (rank,),
            )
            for rank in range(things.executable.ranks)
            for time_ps in things.moments_ps([rank])
        ]
    )


def _dead_chips(things: _Things) -> Faults:
    executable, faults = things.executable, []
    links, stacks = executable.topology.links, executable.topology.hbm.stacks
    first_stack = things.parts.span(PartKind.HBM).start
    for chip in np.unique(executable.placement.chip).tolist():
        ranks = np.flatnonzero(executable.placement.chip == chip).tolist()
        parts = np.flatnonzero((links.src == chip) | (links.dst == chip)).tolist()
        parts += range(first_stack + chip * stacks, first_stack + (chip + 1) * stacks)
        for at_ps in things.moments_ps(ranks):
            disturbance = Disturbance(
                parts=tuple(PartSpeed(part, 0, at_ps) for part in parts),
                queues=tuple(
                    QueueSpeed(n, rank, 0, at_ps) for rank in ranks for n in things.queues_of(rank)
                ),
            )
            name = _at(at_ps, f"chip c{chip} dead")
            faults.append(SingleFault(name, disturbance, tuple(ranks), tuple(parts)))
    return _listed(faults)


def _late_ranks(things: _Things) -> Faults:
    return _listed(
        [
            SingleFault(
                f"rank {rank} late by {microseconds(LATE_PS)}",
                Disturbance(late_start_ps={rank: LATE_PS}),
                (rank,),
            )
            for rank in range(things.executable.ranks)
        ]
    )


def _slow_cores(things: _Things) -> Faults:
    speed = FULL_SPEED * SLOW_PERCENT // 100
    engines = [
        n for n, queue in enumerate(things.executable.queues) if isinstance(queue, EngineQueue)
    ]
    return _listed(
        [
            SingleFault(
                f"rank {rank} slow to {SLOW_PERCENT}%",
                Disturbance(
                    queues=tuple(
                        QueueSpeed(n, rank, speed) for n in engines if n in things.queues_of(rank)
                    )
                ),
                (rank,),
            )
            for rank in range(things.executable.ranks)
        ]
    )


def _stuck_rings(things: _Things) -> Faults:
    rings = sorted(set(zip(things.queue.tolist(), things.rank.tolist(), strict=True)))
    return _listed(
        [
            SingleFault(
                _at(at_ps, f"ring {things.executable.queues[queue].name} on rank {rank} stuck"),
                Disturbance(queues=(QueueSpeed(queue, rank, 0, at_ps),)),
                (rank,),
            )
            for queue, rank in rings
            for at_ps in things.moments_ps([rank])
        ]
    )


def _links(things: _Things) -> dict[str, list[int]]:
    """Links between two ends, both ways, by name: their parts."""
    links = things.executable.topology.links
    found: dict[str, list[int]] = {}
    for link, ends in enumerate(zip(links.src.tolist(), links.dst.tolist(), strict=True)):
        first, second = sorted(ends)
        found.setdefault(f"link {links.end(first)}-{links.end(second)}", []).append(link)
    return found


def _adapters(things: _Things) -> dict[str, list[int]]:
    """Adapters, both ways, by name: their parts."""
    span = things.parts.span(PartKind.EFA)
    half = (span.stop - span.start) // 2
    return {
        f"adapter {things.parts.name(span.start + n).partition(' ')[0]}": [
            span.start + n,
            span.start + half + n,
        ]
        for n in range(half)
    }


def _parts_down(things: _Things, parts: Mapping[str, Sequence[int]]) -> Faults:
    moments = things.moments_ps(range(things.executable.ranks))
    return _listed(
        [
            SingleFault(
                _at(at_ps, f"{name} down"),
                Disturbance(parts=tuple(PartSpeed(part, 0, at_ps) for part in of_name)),
                parts=tuple(of_name),
            )
            for name, of_name in parts.items()
            for at_ps in moments
        ]
    )


def _parts_slow(parts: Mapping[str, Sequence[int]]) -> Faults:
    speed = FULL_SPEED * SLOW_PERCENT // 100
    return _listed(
        [
            SingleFault(
                f"{name} slow to {SLOW_PERCENT}%",
                Disturbance(parts=tuple(PartSpeed(part, speed) for part in of_name)),
                parts=tuple(of_name),
            )
            for name, of_name in parts.items()
        ]
    )


def _bits_of_transfers(things: _Things) -> Faults:
    ends = np.cumsum(8 * things.size_bytes())

    def of(n: int) -> SingleFault:
        at = int(np.searchsorted(ends, n, side="right"))
        bit = n - (int(ends[at - 1]) if at else 0)
        queue, rank, nth = int(things.queue[at]), int(things.rank[at]), int(things.nth[at])
        fault = TransferFault(queue, rank, nth, flipped_bits=(bit,))
        name = f"bit {bit} of transfer {things.transfer_name(at)} flips"
        return SingleFault(name, Disturbance(transfers=(fault,)), (rank,))

    return int(ends[-1]) if len(ends) else 0, of


def _bits_of_memory(things: _Things) -> Faults:
    """Each bit of what the program uses, at a time that is drawn."""
    executable, end_ps = things.executable, things.trace.time_ps
    bits = 8 * executable.hbm_bytes

    def of(n: int) -> SingleFault:
        rank, bit = divmod(n, bits)
        at_ps = int(np.random.default_rng([things.seed, n]).integers(0, end_ps, endpoint=True))
        fault = MemoryFault(rank, bit // 8, bit % 8, at_ps)
        name = f"at {microseconds(at_ps)}: bit {bit % 8} of byte {bit // 8:#x} of rank {rank} flips"
        return SingleFault(name, Disturbance(memory=(fault,)), (rank,))

    return executable.ranks * bits, of


@attrs.frozen
class FaultClass:
    """Faults of one kind."""

    name: str
    what: str
    faults: Callable[[_Things], Faults]
    most: int | None = None  # that are tried unless told otherwise; None: all


CLASSES: Sequence[FaultClass] = (
    FaultClass(
        "dma.lost",
        "the completion of a transfer is lost",
        lambda things: things.transfers("lost", completions=0),
    ),
    FaultClass(
        "dma.late",
        f"the completion of a transfer is seen {microseconds(LATE_PS)} late",
        lambda things: things.transfers(f"late by {microseconds(LATE_PS)}", late_ps=LATE_PS),
    ),
    FaultClass(
        "dma.doubled",
        "the completion of a transfer comes twice",
        lambda things: things.transfers("doubled", completions=2),
    ),
    FaultClass("dma.stuck", "a DMA ring stands still from a moment on", _stuck_rings),
    FaultClass("rank.dead", "a rank dies, its memory lives on", _dead_ranks),
    FaultClass("rank.late", "the host launches a rank late", _late_ranks),
    FaultClass("chip.dead", "a chip dies with its ranks, memory and links", _dead_chips),
    FaultClass("core.slow", "the engines of a rank are slow", _slow_cores),
    FaultClass(
        "link.down",
        "links between two chips are down from a moment on",
        lambda things: _parts_down(things, _links(things)),
    ),
    FaultClass(
        "link.slow", "links between two chips are slow", lambda things: _parts_slow(_links(things))
    ),
    FaultClass(
        "adapter.down",
        "an EFA adapter is down from a moment on",
        lambda things: _parts_down(things, _adapters(things)),
    ),
    FaultClass("bit.transfer", "a bit of a transfer flips", _bits_of_transfers, SAMPLED),
    FaultClass("bit.memory", "a bit of a rank's memory flips", _bits_of_memory, SAMPLED),
)


def class_named(name: str) -> FaultClass:
    """A class; InputError with those that there are."""
    for one in CLASSES:
        if one.name == name:
            return one
    names = ", ".join(one.name for one in CLASSES)
    raise InputError(f"no class of faults is called {name!r}; there are {names}")


def faults_of(
    kind: FaultClass, laboratory: Laboratory, most: int | None, seed: int
) -> tuple[int, list[SingleFault]]:
    """How many faults a class has, and those that are to be tried; InputError if there are none."""
    count, of = kind.faults(_Things(laboratory, seed))
    if not count:
        raise InputError(f"{kind.name}: nothing in this program on its place can fail so")
    most = kind.most if most is None else most
    if most is None or most >= count:
        return count, [of(n) for n in range(count)]
    chosen = np.random.default_rng(seed).choice(count, most, replace=False)
    return count, [of(n) for n in np.sort(chosen).tolist()]


def given(
    faults: Sequence[Fault], laboratory: Laboratory, seeds: Sequence[int]
) -> tuple[FaultClass, list[SingleFault]]:
    """Faults, all in one run, as a class of their own: a run for each of some seeds."""
    found = [
        SingleFault(
            f"seed {seed}",
            joined(resolved(laboratory.clock, faults, seed)),
            tuple(range(laboratory.executable.ranks)),
        )
        for seed in seeds
    ]
    return FaultClass(GIVEN, "; ".join(map(str, faults)), lambda _: _listed(found)), found
