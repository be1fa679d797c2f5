"""The culprit of a stall is the fault that was played, found from who waits for whom alone."""

import functools
from pathlib import Path

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.execution.clock.clock import Clock, TimedRun
from ncc_runtime.execution.control_flow import PlannedDecisions
from ncc_runtime.execution.disturbance import (
    Disturbance,
    PartSpeed,
    QueueSpeed,
    TransferFault,
)
from ncc_runtime.faults.flight_recorder import flight_record
from ncc_runtime.faults.waits import (
    Culprit,
    CulpritKind,
    SuspectKind,
    WaitGraph,
    process_name,
    stalled_run,
    wait_graph,
)
from ncc_runtime.lowering.executable import CcQueue, DmaQueue, Executable, is_run_by
from ncc_runtime.machine_model.parts import PartKind, Parts
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.runtime import program_of
from tests.clock_runs import collective, permute
from tests.programs import LOOP_OF_PAIRS
from tests.small_executables import raised
from tests.stage_programs import cut

ROOT = Path(__file__).parents[2]
ALL_REDUCE, ALL_TO_ALL = CollectiveOp.ALL_REDUCE, CollectiveOp.ALL_TO_ALL


def stages() -> Executable:
    program = program_of(ncc_compiler.compile_file(ROOT / "tests/data/hlo/collective_zoo.hlo"))
    return ncc_runtime.load(cut(program, [range(1), range(1, 4), range(4, 8)])).executable


MADE = {
    "ring": lambda n: collective(ALL_REDUCE, "ring", n, 4096 * n, placement="spread"),
    "ring of many ranks a chip": lambda n: collective(ALL_REDUCE, "ring", n, 4096 * n),
    "mesh": lambda n: collective(ALL_REDUCE, "mesh", n, 4096 * n),
    "rdh": lambda n: collective(ALL_REDUCE, "rdh", n, 4096 * n),
    "hierarchical": lambda n: collective(ALL_REDUCE, "hier.ring.ring", n, 4096 * n, nodes=2),
    "all-to-all": lambda n: collective(ALL_TO_ALL, "direct", n, 4096 * n),
    "all-to-all over EFA": lambda n: collective(ALL_TO_ALL, "pairwise", n, 4096 * n, nodes=2),
    "stages": lambda _: stages(),
    "loop": lambda _: ncc_runtime.load(ncc_compiler.compile_text(LOOP_OF_PAIRS)).executable,
}


@functools.cache
def clock_of(name: str, ranks: int = 16) -> Clock:
    executable = MADE[name](ranks)
    return Clock(executable, PlannedDecisions(executable, {}))


def graph_of(run: TimedRun) -> WaitGraph:
    return wait_graph(stalled_run(run.trace, run.stuck, run.held, run.halted))


def only_culprit(clock: Clock, disturbance: Disturbance) -> Culprit | None:
    """The culprit of a stall, whose report can be written; None if nothing stalls."""
    run = clock.run(disturbance)
    if run.is_complete:
        return None
    graph = graph_of(run)
    record = flight_record(graph)
    assert record.as_text().startswith("stall: ")
    assert len(record.as_json()["ranks"]) == clock.executable.ranks
    (culprit,) = graph.culprits
    assert culprit.victims or culprit.kind is CulpritKind.STILL
    return culprit


def moments(clock: Clock, count: int) -> list[int]:
    trace = clock.run().trace
    start = int(trace.start_ps.min())
    return np.linspace(start, trace.time_ps, count + 1)[:-1].astype(int).tolist()


def transfers_of(clock: Clock) -> list[tuple[int, int, int]]:
    trace = clock.run().trace
    return [
        (number, rank, nth)
        for number in trace.queues_of(DmaQueue)
        for rank in range(clock.executable.ranks)
        for nth in range(int(np.count_nonzero((trace.queue == number) & (trace.rank == rank))))
    ]


def check_lost(clock: Clock, lost: tuple[int, int, int]) -> None:
    culprit = only_culprit(clock, Disturbance(transfers=(TransferFault(*lost, completions=0),)))
    if culprit is not None:
        assert culprit.kind is CulpritKind.LOST
        assert culprit.lost == 1
        assert lost in {(one.queue, one.rank, one.nth) for one in culprit.transfers}
        (suspect,) = culprit.suspects
        assert suspect.name == process_name(clock.executable, lost[:2])


def check_dead(clock: Clock, rank: int, at_ps: int) -> None:
    queues = range(len(clock.executable.queues))
    dead = Disturbance(queues=tuple(QueueSpeed(queue, rank, 0, at_ps) for queue in queues))
    culprit = only_culprit(clock, dead)
    if culprit is not None:
        assert culprit.kind is CulpritKind.STILL
        assert any(one.ranks == (rank,) for one in culprit.suspects)


@pytest.mark.parametrize("name", MADE)
def test_the_transfer_whose_completion_is_lost_is_named(name: str) -> None:
    clock = clock_of(name)
    every = transfers_of(clock)
    for lost in every[:: max(1, len(every) // 12)]:
        check_lost(clock, lost)


@pytest.mark.parametrize("name", MADE)
def test_a_rank_that_dies_is_named(name: str) -> None:
    clock = clock_of(name)
    for number, at_ps in enumerate(moments(clock, 8)):
        check_dead(clock, number * 5 % clock.executable.ranks, at_ps)


@pytest.mark.parametrize("name", MADE)
def test_a_ring_that_stands_still_is_named(name: str) -> None:
    clock = clock_of(name)
    executable = clock.executable
    every = [
        (number, rank)
        for number, queue in enumerate(executable.queues)
        if isinstance(queue, DmaQueue)
        for rank in range(executable.ranks)
        if is_run_by(queue, rank)
    ]
    for number, at_ps in enumerate(moments(clock, 8)):
        queue, rank = every[number * 7 % len(every)]
        culprit = only_culprit(clock, Disturbance(queues=(QueueSpeed(queue, rank, 0, at_ps),)))
        if culprit is not None:
            assert culprit.kind is CulpritKind.STILL
            names = [one.name for one in culprit.suspects]
            assert process_name(executable, (queue, rank)) in names


@pytest.mark.parametrize("kind", [PartKind.LINK, PartKind.EFA])
@pytest.mark.parametrize("name", MADE)
def test_a_link_or_adapter_through_which_nothing_passes_is_named(name: str, kind: PartKind) -> None:
    clock = clock_of(name)
    executable = clock.executable
    model = TimingModel.from_topology(executable.topology)
    span = Parts(executable.routes, model, executable.ranks).span(kind)
    every = range(span.start, span.stop)
    at_ps = moments(clock, 4)[1]
    for part in every[:: max(1, len(every) // 12)]:
        culprit = only_culprit(clock, Disturbance(parts=(PartSpeed(part, 0, at_ps),)))
        if culprit is not None:
            assert culprit.kind is CulpritKind.STILL
            assert any(one.parts == (part,) for one in culprit.suspects)
            assert len(culprit.suspects) <= 5


def test_a_chip_that_dies_is_named_and_not_each_of_its_ranks() -> None:
    clock = clock_of("mesh")
    executable, links = clock.executable, clock.executable.topology.links
    model = TimingModel.from_topology(executable.topology)
    stack = Parts(executable.routes, model, executable.ranks).stack
    ranks = np.flatnonzero(executable.placement.chip == 2)
    parts = {*np.flatnonzero((links.src == 2) | (links.dst == 2)).tolist(), *stack[ranks].tolist()}
    for at_ps in moments(clock, 6):
        queues = range(len(executable.queues))
        culprit = only_culprit(
            clock,
            Disturbance(
                parts=tuple(PartSpeed(part, 0, at_ps) for part in sorted(parts)),
                queues=tuple(
                    QueueSpeed(queue, rank, 0, at_ps) for queue in queues for rank in ranks.tolist()
                ),
            ),
        )
        assert culprit is not None
        assert "chip c2" in [one.name for one in culprit.suspects]


def test_several_faults_are_several_culprits() -> None:
    executable = permute([(0, 1), (2, 3)], 4096, 4, "trn2")
    clock = Clock(executable, PlannedDecisions(executable, {}))
    first = next(one for one in transfers_of(clock) if one[1] == 0)
    run = clock.run(
        Disturbance(
            queues=tuple(QueueSpeed(queue, 2, 0) for queue in range(len(executable.queues))),
            transfers=(TransferFault(*first, completions=0),),
        )
    )
    lost, still = sorted(graph_of(run).culprits, key=lambda one: one.kind.value)
    assert (lost.kind, still.kind) == (CulpritKind.LOST, CulpritKind.STILL)
    assert lost.ranks == (0,)
    assert 2 in still.ranks


def test_a_queue_is_named_where_another_rank_of_its_chip_goes_on() -> None:
    clock = clock_of("mesh")
    at_ps = moments(clock, 4)[1]
    core = next(n for n, q in enumerate(clock.executable.queues) if isinstance(q, CcQueue))
    culprit = only_culprit(clock, Disturbance(queues=(QueueSpeed(core, 3, 0, at_ps),)))
    assert culprit is not None
    assert culprit.suspects[0].kind is SuspectKind.QUEUE
    assert culprit.suspects[0].name == "cc0 of rank 3"


def test_a_wait_that_nothing_ends_is_the_culprit_of_an_unproved_program() -> None:
    ring = collective(ALL_REDUCE, "ring", 4, 64)
    row = int(np.flatnonzero(ring.queues[5].sync.wait_sem[:, 0] >= 0)[-1])
    edited = raised(ring, "cc0", row, 2, by=5)
    clock = Clock(edited, PlannedDecisions(edited, {}))
    culprit = only_culprit(clock, Disturbance())
    assert culprit is not None
    assert culprit.kind is CulpritKind.NEVER
    assert culprit.suspects[0].name == "cc0 of rank 2"


def test_queues_that_wait_for_one_another_are_a_deadlock() -> None:
    """Every rank of a ring waits for data that its neighbour sends after the like."""
    edited = collective(ALL_REDUCE, "ring", 4, 64)
    sync = next(queue for queue in edited.queues if isinstance(queue, CcQueue)).sync
    for rank in range(4):
        data = {sem for sem, what in edited.semaphore_names(rank).items() if ".data." in what}
        row = next(r for r in range(len(sync.wait_sem)) if sync.wait_sem[r, rank] in data)
        edited = raised(edited, "cc0", row, rank)
    culprit = only_culprit(Clock(edited, PlannedDecisions(edited, {})), Disturbance())
    assert culprit is not None
    assert culprit.kind is CulpritKind.CYCLE
    assert set(culprit.ranks) == {0, 1, 2, 3}


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [16, 64])
@pytest.mark.parametrize("name", [name for name in MADE if name not in ("stages", "loop")])
def test_every_lost_completion_and_every_dead_rank(name: str, ranks: int) -> None:
    clock = clock_of(name, ranks)
    every = transfers_of(clock)
    for lost in every if ranks == 16 else every[:: max(1, len(every) // 200)]:
        check_lost(clock, lost)
    for rank in range(ranks):
        for at_ps in moments(clock, 4):
            check_dead(clock, rank, at_ps)
