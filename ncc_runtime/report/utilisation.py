"""How busy links, memory, DMA engines, adapters and compute engines were.

A transfer loads the parts that machine_model/usage.py names, as in the price and in the clock.
"""

import attrs
import numpy as np

from ncc_runtime.execution.clock.costs import engine_costs
from ncc_runtime.execution.trace import Trace, works
from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE, DmaQueue, EngineQueue, Executable
from ncc_runtime.machine_model.instances import part_classes
from ncc_runtime.machine_model.parts import NETWORK, PartKind, Parts
from ncc_runtime.machine_model.timing import PS_PER_S, TimingModel
from ncc_runtime.machine_model.usage import Usage, transfer_usage
from ncc_runtime.neff.isa import ENGINES
from ncc_runtime.report.row_texts import program_of

SHARED = (PartKind.LINK, PartKind.HBM, PartKind.DMA, *NETWORK)
"""The kinds of parts that reports name."""


@attrs.frozen
class PartUse:
    """One part of the machine, over the whole run."""

    name: str  # `c0.E`, `c0.hbm1`, `r3.dma0`, `n0.efa1 out`, `r3.efa out` of a queue pair
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


def parts_of_machine(executable: Executable) -> Parts:
    """The parts of what an executable is placed on."""
    model = TimingModel.from_topology(executable.topology)
    return Parts(executable.routes, model, executable.ranks)


def utilisation(trace: Trace) -> Utilisation:
    """The use of every part and engine over the time of the run."""
    executable = trace.executable
    parts = parts_of_machine(executable)
    amounts = np.zeros(parts.count, np.int64)
    for number, events in trace.blocks(trace.queues_of(DmaQueue)):
        queue = executable.queues[number]
        assert isinstance(queue, DmaQueue)
        part, passed = _transfer_bytes(parts, queue, trace.row[events], trace.rank[events])
        np.add.at(amounts, part, passed)
    engines = _engines(parts, amounts, trace)
    if executable.representatives < executable.ranks:
        # the ranks of one instance ran for those of all: what they moved through parts of other
        # instances counts at the same part of their own, as the others moved it there
        first_instance = part_classes(parts, executable.ranks // executable.representatives)
        amounts = np.bincount(first_instance[: parts.count], amounts, parts.count).astype(np.int64)
    return Utilisation({kind: _uses(parts, kind, amounts, trace) for kind in SHARED}, engines)


def _transfer_bytes(
    parts: Parts, queue: DmaQueue, row: np.ndarray, rank: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Bytes that transfers, rows of a ring on ranks, pass through parts: (entries,) of each."""
    sends = queue.peer[row, rank] != IDLE
    row, rank = row[sends], rank[sends]
    kind, usage = kinds_of_transfers(parts, queue, row, rank)
    amounts = np.zeros(len(usage.dma_passes), np.int64)
    np.add.at(amounts, kind, queue.bytes_of(row, rank))
    return usage.part, usage.times * amounts[usage.transfer]


def kinds_of_transfers(
    parts: Parts, queue: DmaQueue, row: np.ndarray, rank: np.ndarray
) -> tuple[np.ndarray, Usage]:
    """(transfers,) a number for each, equal where the same ranks write and read; what each uses.

    `row` of the ring on `rank`, where it has a transfer. Routes have dozens of links each, so they
    are written out once for all transfers that are alike.
    """
    rank = rank.astype(np.int64)
    cells = row, rank
    owners = rank[:, None] if queue.source_rank is None else queue.source_rank[cells]
    reads = queue.sources[cells] != IDLE
    columns = [
        rank,
        queue.peer[cells],
        np.full(len(row), IDLE) if queue.second_peer is None else queue.second_peer[cells],
        queue.opcode[row] == DmaOpcode.REDUCE,
        *np.where(reads, owners, IDLE).T,
    ]
    joined: np.ndarray = np.zeros(len(row), np.int64)
    most = 1  # numbers there may be
    for column in columns:
        if most * (parts.ranks + 1) > np.iinfo(np.int64).max:
            numbers, joined = np.unique(joined, return_inverse=True)
            most = len(numbers)
        joined = joined * (parts.ranks + 1) + column - IDLE
        most *= parts.ranks + 1
    _, first, joined = np.unique(joined, return_index=True, return_inverse=True)
    rank, peer, also, reduces, *owner = (column[first] for column in columns)
    usage = transfer_usage(parts, rank, [peer, also], owner, reduces, queue.stream, queue.lane)
    return joined, usage


def _uses(parts: Parts, kind: PartKind, amounts: np.ndarray, trace: Trace) -> tuple[PartUse, ...]:
    """The parts of a kind that anything passed, most used first."""
    span = parts.span(kind)
    passed, rates = amounts[span], parts.rates[span]
    share = passed / rates * (PS_PER_S / max(1, trace.time_ps))
    order = np.argsort(-share, kind="stable")
    return tuple(
        PartUse(
            parts.name(span.start + at),
            int(passed[at]),
            int(rates[at]),
            float(share[at]),
        )
        for at in order[passed[order] > 0].tolist()
    )


def _engines(parts: Parts, amounts: np.ndarray, trace: Trace) -> tuple[EngineUse, ...]:
    """The engines that work on some rank, most used first; adds what they read and write."""
    executable = trace.executable
    busy = np.zeros((len(ENGINES), executable.representatives), np.int64)
    peak = np.zeros(len(ENGINES), np.int64)
    for number, events in trace.blocks(trace.queues_of(EngineQueue)):
        queue = executable.queues[number]
        assert isinstance(queue, EngineQueue)
        engine = ENGINES.index(queue.engine)
        events = events[works(queue)[trace.row[events]]]
        row, rank = trace.row[events], trace.rank[events]
        costs = engine_costs(program_of(executable, queue), parts.model, queue)
        np.add.at(amounts, parts.stack[rank], costs.traffic[row])
        np.add.at(busy[engine], rank, trace.end_ps[events] - trace.start_ps[events])
        peak[engine] += costs.work[row].sum()
    run_ps = max(1, trace.time_ps)
    uses = [
        EngineUse(
            engine.value,
            mean_share=float(busy_ps.mean()) / run_ps,
            most_share=int(busy_ps.max()) / run_ps,
            most_rank=int(busy_ps.argmax()),
            peak_share=int(work_ps) / executable.representatives / run_ps,
        )
        for engine, busy_ps, work_ps in zip(ENGINES, busy, peak, strict=True)
        if busy_ps.any()
    ]
    return tuple(sorted(uses, key=lambda use: -use.mean_share))
