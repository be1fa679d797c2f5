"""Every single fault of a class, for campaigns.

A class lists its faults in a fixed order from the undisturbed run. If there are more than are to be
tried, so many are drawn without repetition from a seed, and tried in the order of the list. They
are faults as users name them, and are resolved one by one where they are tried.

Where a fault may come at any time, it comes before the launch, and for each run of a collective on
what it hits as it starts and in the middle of it: between those, a run is in the same steps.
"""

import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Any

import attrs
import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.execution.disturbance import FULL_SPEED, Disturbance
from ncc_runtime.execution.trace import Trace
from ncc_runtime.faults.fault import Fault, Kind, When, time_text
from ncc_runtime.faults.outcome import Laboratory
from ncc_runtime.faults.resolve import FaultSites, joined, resolved
from ncc_runtime.lowering.executable import DmaQueue

LATE_PS = 10_000_000
"""How late a completion of `dma.late` is seen, and a rank of `rank.late` launched: assumed."""

SLOW_PERCENT = 50
"""Of the usual speed, what a core or a link of the classes `.slow` has: assumed."""

SAMPLED = 200
"""How many faults of a class of bits are tried, unless told: one for each bit would not end."""


@attrs.frozen(eq=False)
class SingleFault:
    """What is tried in a run of its own."""

    name: str
    disturbance: Callable[[], Disturbance]  # resolved each time it is asked for


Faults = tuple[int, Callable[[int], Fault]]
"""How many faults a class has, and the n-th of them."""


# ---- what there is in an undisturbed run


class _FaultSpace:
    """What faults can hit in a program on its place."""

    def __init__(self, laboratory: Laboratory, seed: int) -> None:
        self.sites = FaultSites(laboratory.clock, seed)
        self.trace = self.sites.run = laboratory.trace
        self.executable = self.sites.executable
        self.seed = seed
        self.queue, self.rank, self.nth, self.row = _transfers(self.trace)

    @cached_property
    def bits_before(self) -> np.ndarray:
        """(n + 1,) int64, bits that the transfers before each of them write; the last: all bits."""
        sizes = np.zeros(len(self.queue), np.int64)
        for number in np.unique(self.queue).tolist():
            queue, here = self.executable.queues[number], self.queue == number
            assert isinstance(queue, DmaQueue), queue.name
            sizes[here] = queue.bytes_of(self.row[here], self.rank[here])
        return np.append(0, np.cumsum(8 * sizes))

    def transfer(self, kind: Kind, n: int, **more: Any) -> Fault:
        """A fault of the n-th transfer of all."""
        ring = self.executable.queues[self.queue[n]].name
        return Fault(kind, ring, rank=int(self.rank[n]), nth=int(self.nth[n]), **more)

    def moments(self, ranks: Sequence[int]) -> list[When]:
        """When faults of these ranks come: before the launch, in runs of their collectives."""
        runs = self.trace.runs
        of_ranks = np.isin(runs.rank, ranks)
        start = self.trace.start_ps[runs.first[of_ranks]]
        middle = start + (self.trace.end_ps[runs.last[of_ranks]] - start) // 2
        return [When(), *map(When, np.unique(np.concatenate((start, middle))).tolist())]

    @property
    def ranks(self) -> range:
        return range(self.executable.ranks)

    @property
    def links(self) -> list[str]:
        """Links between two ends, both ways."""
        links = self.executable.topology.links
        ends = list(zip(links.src.tolist(), links.dst.tolist(), strict=True))
        joined_ends = dict.fromkeys((min(each), max(each)) for each in ends)
        return [f"{links.end(first)}-{links.end(second)}" for first, second in joined_ends]

    @property
    def adapters(self) -> list[str]:
        """EFA adapters, both ways."""
        topology = self.executable.topology
        count = 0 if topology.efa is None else topology.efa.adapters
        return [f"n{node}.efa{n}" for node in range(topology.nodes) for n in range(count)]


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


# ---- the classes


def _listed(faults: Iterable[Fault]) -> Faults:
    found = list(faults)
    return len(found), found.__getitem__


def _transfers_that(kind: Kind, **more: Any) -> Callable[[_FaultSpace], Faults]:
    """A fault of each transfer."""
    return lambda space: (len(space.queue), lambda n: space.transfer(kind, n, **more))


def _ranks_that(kind: Kind, **more: Any) -> Callable[[_FaultSpace], Faults]:
    """A fault of each rank, from its launch on."""
    return lambda space: _listed(Fault(kind, str(rank), **more) for rank in space.ranks)


def _dead_ranks(space: _FaultSpace) -> Faults:
    return _listed(
        Fault(Kind.RANK_DEAD, str(rank), when)
        for rank in space.ranks
        for when in space.moments([rank])
    )


def _dead_chips(space: _FaultSpace) -> Faults:
    chips = space.executable.placement.chip
    return _listed(
        Fault(Kind.CHIP_DEAD, f"c{chip}", when)
        for chip in np.unique(chips).tolist()
        for when in space.moments(np.flatnonzero(chips == chip).tolist())
    )


def _stuck_rings(space: _FaultSpace) -> Faults:
    rings = sorted(set(zip(space.queue.tolist(), space.rank.tolist(), strict=True)))
    return _listed(
        Fault(Kind.DMA_STUCK, space.executable.queues[queue].name, when, rank)
        for queue, rank in rings
        for when in space.moments([rank])
    )


def _down(kind: Kind, space: _FaultSpace, places: Iterable[str]) -> Faults:
    moments = space.moments(space.ranks)
    return _listed(Fault(kind, *each) for each in itertools.product(places, moments))


def _bits_of_transfers(space: _FaultSpace) -> Faults:
    def of(n: int) -> Fault:
        at = int(np.searchsorted(space.bits_before, n, side="right")) - 1
        return space.transfer(Kind.BIT_TRANSFER, at, bit=n - int(space.bits_before[at]))

    return int(space.bits_before[-1]), of


def _bits_of_memory(space: _FaultSpace) -> Faults:
    """Each bit of what the program uses, at a time that is drawn."""
    bits, end_ps = 8 * space.executable.hbm_bytes, space.trace.time_ps

    def of(n: int) -> Fault:
        rank, bit = divmod(n, bits)
        at_ps = int(np.random.default_rng([space.seed, n]).integers(0, end_ps, endpoint=True))
        return Fault(Kind.BIT_MEMORY, "", When(at_ps), rank, byte=bit // 8, bit=bit % 8)

    return space.executable.ranks * bits, of


@attrs.frozen
class FaultClass:
    """Faults of one kind."""

    name: str
    what: str
    faults: Callable[[_FaultSpace], Faults]
    most: int | None = None  # that are tried unless told otherwise; None: all


_SLOW = FULL_SPEED * SLOW_PERCENT // 100
_LATE = time_text(LATE_PS)

CLASSES: Sequence[FaultClass] = (
    FaultClass("dma.lost", "the completion of a transfer is lost", _transfers_that(Kind.DMA_LOST)),
    FaultClass(
        "dma.late",
        f"the completion of a transfer is seen {_LATE} late",
        _transfers_that(Kind.DMA_LATE, amount=LATE_PS),
    ),
    FaultClass(
        "dma.doubled",
        "the completion of a transfer comes twice",
        _transfers_that(Kind.DMA_DOUBLED),
    ),
    FaultClass("dma.stuck", "a DMA ring stands still from a moment on", _stuck_rings),
    FaultClass("rank.dead", "a rank dies, its memory lives on", _dead_ranks),
    FaultClass(
        "rank.late", "the host launches a rank late", _ranks_that(Kind.RANK_LATE, amount=LATE_PS)
    ),
    FaultClass("chip.dead", "a chip dies with its ranks, memory and links", _dead_chips),
    FaultClass(
        "core.slow", "the engines of a rank are slow", _ranks_that(Kind.RANK_SLOW, speed=_SLOW)
    ),
    FaultClass(
        "link.down",
        "links between two chips are down from a moment on",
        lambda space: _down(Kind.LINK_DOWN, space, space.links),
    ),
    FaultClass(
        "link.slow",
        "links between two chips are slow",
        lambda space: _listed(Fault(Kind.LINK_SLOW, link, speed=_SLOW) for link in space.links),
    ),
    FaultClass(
        "adapter.down",
        "an EFA adapter is down from a moment on",
        lambda space: _down(Kind.ADAPTER_DOWN, space, space.adapters),
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
    space = _FaultSpace(laboratory, seed)
    count, of = kind.faults(space)
    if not count:
        raise InputError(f"{kind.name}: nothing in this program on its place can fail so")
    most = kind.most if most is None else most
    chosen: Iterable[int] = range(count)
    if most is not None and most < count:
        generator = np.random.default_rng(seed)
        chosen = np.sort(generator.choice(count, most, replace=False)).tolist()

    def single(fault: Fault) -> SingleFault:
        at_ps = fault.when.at_ps
        return SingleFault(str(fault), lambda: space.sites.resolved(fault, 0, at_ps).disturbance)

    return count, [single(of(n)) for n in chosen]


def given(
    faults: Sequence[Fault], laboratory: Laboratory, seeds: Sequence[int]
) -> tuple[FaultClass, list[SingleFault]]:
    """Faults, all in one run, as a class of their own: a run for each of some seeds."""

    def single(seed: int) -> SingleFault:
        return SingleFault(f"seed {seed}", lambda: joined(resolved(laboratory.clock, faults, seed)))

    kind = FaultClass("given", "; ".join(map(str, faults)), lambda _: _listed(faults))
    return kind, [single(seed) for seed in seeds]
