"""How busy links, memory, DMA engines, adapters and compute engines were, of what they could do."""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.execution.clock.costs import engine_costs
from ncc_runtime.execution.trace import Trace, works
from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE, DmaQueue, EngineQueue, Executable
from ncc_runtime.machine_model.instances import part_classes
from ncc_runtime.machine_model.parts import PartKind, Parts
from ncc_runtime.machine_model.timing import PS_PER_S, TimingModel
from ncc_runtime.neff.isa import ENGINES
from ncc_runtime.report.row_texts import program_of
from ncc_runtime.topology.routes import Transport

SHARED = (PartKind.LINK, PartKind.HBM, PartKind.DMA, PartKind.EFA)
"""The kinds of parts that reports name."""


@attrs.frozen
class PartUse:
    """One part of the machine, over the whole run."""

    name: str  # `c0.E`, `c0.hbm1`, `r3.dma0`, `r3.efa out`
    bytes: int  # that passed, those that pass twice counted twice
    rate_bytes_per_s: int
    share: float  # of what it could have passed


@attrs.frozen
class EngineUse:
    """One compute engine of a rank, over the whole run."""

    engine: str
    mean_share: float  # of the time it works, over the ranks that have it
    most_share: float
    most_rank: int
    peak_share: float  # of its published rate, over the whole time, on average


@attrs.frozen
class Utilisation:
    """Parts that were used, most used first."""

    parts: dict[PartKind, tuple[PartUse, ...]]
    engines: tuple[EngineUse, ...]


def utilisation(trace: Trace) -> Utilisation:
    """What was used how much of the run's time."""
    executable = trace.executable
    parts = Parts(
        executable.routes, TimingModel.from_topology(executable.topology), executable.ranks
    )
    amounts = np.zeros(parts.count, np.int64)
    for number, events in trace.blocks(trace.queues_of(DmaQueue)):
        queue = executable.queues[number]
        assert isinstance(queue, DmaQueue)
        for where, sizes in _moved(parts, queue, trace.row[events], trace.rank[events]):
            np.add.at(amounts, where, sizes)
    engines = _engines(parts, amounts, trace)
    if executable.representatives < executable.ranks:
        stands_for = part_classes(parts, executable.ranks // executable.representatives)[
            : parts.count
        ]
        amounts = np.bincount(stands_for, amounts, parts.count).astype(np.int64)
    found = {kind: _used(parts, kind, amounts, trace) for kind in SHARED}
    return Utilisation(found, engines)


_Passed = tuple[np.ndarray, np.ndarray]
"""Parts, and bytes that passed each."""


def _moved(parts: Parts, queue: DmaQueue, row: np.ndarray, rank: np.ndarray) -> Iterator[_Passed]:
    """What transfers, rows of a ring on ranks, took of which parts."""
    sends = queue.peer[row, rank] != IDLE
    row, rank = row[sends], rank[sends].astype(np.int64)
    cells = row, rank
    sizes = np.broadcast_to(queue.size_bytes, queue.peer.shape)[cells].astype(np.int64)
    yield from _written(parts, rank, queue.peer[cells], sizes)
    writes = np.ones(len(row), np.int64)
    if queue.second_peer is not None:
        also = queue.second_peer[cells]
        twice = also != IDLE
        writes += twice
        yield from _written(parts, rank[twice], also[twice], sizes[twice])
    read = queue.sources[cells] != IDLE
    owners = np.broadcast_to(rank[:, None], read.shape)
    if queue.source_rank is not None:
        owners = np.where(read, queue.source_rank[cells], owners)
    for owner, some in zip(owners.T, read.T, strict=True):
        yield parts.stack[owner[some]], sizes[some]
    reduces = queue.opcode[row] == DmaOpcode.REDUCE
    passes = parts.routes.topology.dma.reduce_passes
    engines = np.maximum(writes, np.where(reduces, passes * read.sum(axis=1), 1))
    yield parts.dma(rank, queue.stream, queue.lane), engines * sizes


def _written(
    parts: Parts, senders: np.ndarray, receivers: np.ndarray, sizes: np.ndarray
) -> Iterator[_Passed]:
    """What bytes take on their way, and where they arrive."""
    yield parts.stack[receivers], sizes
    pairs, pair = np.unique(senders * parts.ranks + receivers, return_inverse=True)
    amounts = np.zeros(len(pairs), np.int64)
    np.add.at(amounts, pair, sizes)
    src, dst = np.divmod(pairs, parts.ranks)
    start, links = parts.routes.link_runs(src, dst)
    yield links.astype(np.int64), np.repeat(amounts, np.diff(start))
    over = parts.routes.transport(src, dst) == Transport.EFA.code
    for share in parts.adapters(src[over], dst[over]):
        yield share, amounts[over]


def _used(parts: Parts, kind: PartKind, amounts: np.ndarray, trace: Trace) -> tuple[PartUse, ...]:
    """The parts of a kind that anything passed, most used first."""
    span = parts.span(kind)
    passed, rates = amounts[span], parts.rates[span]
    share = passed / rates * (PS_PER_S / max(1, trace.time_ps))
    order = np.argsort(-share, kind="stable")
    return tuple(
        PartUse(
            _name(trace.executable, parts, kind, at),
            int(passed[at]),
            int(rates[at]),
            float(share[at]),
        )
        for at in order[passed[order] > 0].tolist()
    )


def _name(executable: Executable, parts: Parts, kind: PartKind, at: int) -> str:
    """The part of a kind by its number there."""
    topology = executable.topology
    if kind is PartKind.LINK:
        return topology.links.name(at)
    if kind is PartKind.HBM:
        chip, stack = divmod(at, topology.hbm.stacks)
        return f"c{chip}.hbm{stack}"
    if kind is PartKind.EFA:
        way, rank = divmod(at, executable.ranks)
        return f"r{rank}.efa {'in' if way else 'out'}"
    rank, group = divmod(at, parts.groups)
    return f"r{rank}.dma{group}"


def _engines(parts: Parts, amounts: np.ndarray, trace: Trace) -> tuple[EngineUse, ...]:
    """The engines that work on some rank, most used first; adds what they read and write."""
    executable = trace.executable
    time = np.zeros((len(ENGINES), executable.representatives), np.int64)
    peak = np.zeros(len(ENGINES), np.int64)
    for number, events in trace.blocks(trace.queues_of(EngineQueue)):
        queue = executable.queues[number]
        assert isinstance(queue, EngineQueue)
        engine = ENGINES.index(queue.engine)
        events = events[works(queue)[trace.row[events]]]
        row, rank = trace.row[events], trace.rank[events]
        costs = engine_costs(program_of(executable, queue), parts.model, queue)
        np.add.at(amounts, parts.stack[rank], costs.traffic[row])
        np.add.at(time[engine], rank, trace.end_ps[events] - trace.start_ps[events])
        peak[engine] += costs.work[row].sum()
    whole = max(1, trace.time_ps)
    found = [
        EngineUse(
            engine.value,
            mean_share=float(one.mean()) / whole,
            most_share=int(one.max()) / whole,
            most_rank=int(one.argmax()),
            peak_share=int(work) / executable.representatives / whole,
        )
        for engine, one, work in zip(ENGINES, time, peak, strict=True)
        if one.any()
    ]
    return tuple(sorted(found, key=lambda one: -one.mean_share))
