"""The model checker itself: what it finds, that its short cuts lose nothing, and real runs."""

import random

import attrs
import numpy as np
import pytest

from ncc_runtime.errors import DeadlockError
from ncc_runtime.execution.scheduler import RowBatch, Scheduler
from ncc_runtime.lowering.executable import Executable, Jump
from tests import mutant_edits as edit
from tests.model_checker import Graph, check
from tests.model_checker_pairs import check_pairs, decide, furthest
from tests.model_checker_rows import Follower, Way, chains_of
from tests.model_checker_ways import ways, ways_by_rank
from tests.mutants import Mutant, sample
from tests.mutation.small_matrix import Small

MOST_STATES = 100_000
"""More than any mutant below has: where all states are not seen, nothing is compared."""

SAMPLED = (
    Small("all-reduce", "ring", "trn1", 2),
    Small("all-reduce", "ring", "trn1", 2, is_used=True),
    Small("all-reduce", "mesh", "trn2", 2),
    Small("all-gather", "ring", "trn1", 2),
    Small("ncc.scatter", "direct", "trn1", 3),
    Small("ncc.barrier", "dissemination", "trn1", 3),
    Small("before_and_after", "ring", "trn1", 2),
    Small("two_streams", "kangaring", "trn1", 2),
    Small("branch", "kangaring", "trn1", 2),
)


def graphs(executable: Executable) -> list[Graph]:
    return [
        Graph(executable, chains_of(executable, way)) for way in ways_by_rank(executable.program)
    ]


FEW_ENDINGS = [small for small in SAMPLED if small.name != "branch"]
"""Those whose runs differ in so little that all memories they may end in can be visited."""


@pytest.fixture(scope="module", params=SAMPLED, ids=str)
def mutants(request) -> list[Mutant]:
    """A program, and some of its mutants, each of another kind."""
    executable = request.param.executable()
    some = sample(executable, seed=5, of_each_kind=1)
    count = 3 if request.param.name == "branch" else 25  # of it, each has 50,000 states
    return [Mutant("none", "", executable), *random.Random(5).sample(some, count)]


def test_taking_quiet_rows_at_once_changes_no_verdict(mutants: list[Mutant]):
    for mutant in mutants:
        for graph in graphs(mutant.executable):
            full = graph.explore(reduced=False, most_states=MOST_STATES)
            quick = graph.explore(reduced=True, most_states=MOST_STATES)
            assert attrs.evolve(quick, states=0) == attrs.evolve(full, states=0)


def test_pairs_of_rows_give_the_races_that_all_interleavings_show(mutants: list[Mutant]):
    for mutant in mutants:
        for graph in graphs(mutant.executable):
            full = graph.explore(reduced=False, most_states=MOST_STATES)
            pairs = check_pairs(graph)
            assert set(pairs.races) == set(full.races)
            assert set(pairs.wrong) == set(full.wrong)
            assert set(pairs.deadlocks) == set(full.deadlocks)


@pytest.mark.parametrize("mutants", FEW_ENDINGS, ids=str, indirect=True)
def test_without_a_race_all_interleavings_end_in_one_memory(mutants: list[Mutant]):
    for mutant in mutants:
        for graph in graphs(mutant.executable):
            verdict = check_pairs(graph)
            if verdict.races or verdict.deadlocks:
                continue
            assert len(graph.endings(most_states=MOST_STATES)) == 1


class _Run:
    """A real run of the scheduler, followed step by step in a graph."""

    def __init__(self, executable: Executable, way: Way) -> None:
        self.executable = executable
        self.graph = Graph(executable, chains_of(executable, [way] * executable.ranks))
        self.state = [0] * len(self.graph.chains)
        self.chain_of = {
            (row.rank, row.queue): number
            for number, chain in enumerate(self.graph.chains)
            for row in chain
        }
        self._followers = [
            [Follower(way) for _ in range(executable.ranks)] for _ in executable.queues
        ]

    def decide(self, batch: RowBatch, jump: Jump) -> np.ndarray:
        mine = self._followers[batch.queue]
        return np.array([mine[rank].enters(jump) for rank in batch.ranks.tolist()])

    def perform(self, batches: list[RowBatch]) -> None:
        for batch in batches:
            name = self.executable.queues[batch.queue].name
            for rank in batch.ranks.tolist():
                self._step(rank, name, batch.row)

    def _step(self, rank: int, name: str, pc: int) -> None:
        chain = self.chain_of.get((rank, name))
        if chain is None or self.state[chain] >= len(self.graph.chains[chain]):
            return  # a row that neither waits nor does anything
        row = self.graph.chains[chain][self.state[chain]]
        if row.pc == pc:
            assert self.graph.is_enabled(self.state, chain), row.place
            self.state[chain] += 1


@pytest.mark.parametrize("seed", range(2))
def test_a_real_run_is_a_path_of_the_graph_to_its_end(mutants: list[Mutant], seed: int):
    for mutant in mutants:
        for way in ways(mutant.executable.program):
            run = _Run(mutant.executable, way)
            generator = np.random.default_rng(seed)
            deadlocked = False
            try:
                Scheduler(mutant.executable, run.decide).run(run.perform, generator)
            except DeadlockError:
                deadlocked = True
            assert tuple(run.state) == furthest(run.graph, {})
            assert deadlocked == bool(check_pairs(run.graph).deadlocks)


def test_what_the_runtime_makes_is_found_clean():
    for small in SAMPLED:
        assert not check(small.executable()).kinds


def ring(executable: Executable) -> int:
    return next(n for n, queue in enumerate(executable.queues) if queue.name == "cc0.dma0")


def test_a_signal_that_never_comes_is_a_deadlock():
    executable = SAMPLED[0].executable()
    broken = edit.with_post(executable, ring(executable), 0, (0, 1), (-1, -1))
    assert "rank 0, cc0" in check(broken).deadlocks[0]


def test_a_transfer_to_another_place_is_a_wrong_value():
    executable = Small("all-gather", "ring", "trn1", 2).executable()
    number = ring(executable)
    source = int(executable.queues[number].sources[0, 0, 0])
    broken = edit.with_source(executable, number, (0, 0), 0, source + 4)
    assert check(broken).kinds == {"values"}


def test_a_ring_without_room_for_one_run_of_descriptors_is_a_deadlock():
    executable = SAMPLED[0].executable()
    assert not check(edit.with_ring_size(executable, 1)).kinds
    assert check(edit.with_ring_size(executable, 0)).kinds == {"deadlock"}


def test_leaving_a_barrier_before_all_have_come_is_wrong():
    executable = Small("ncc.barrier", "dissemination", "trn1", 2).executable()
    number = next(n for n, queue in enumerate(executable.queues) if queue.name == "cc0")
    for row in np.flatnonzero(executable.queues[number].sync.wait_sem[:, 0] != -1).tolist():
        executable = edit.with_wait(executable, number, (row, 0), -1, 0)
    assert check(executable).kinds == {"values"}


def test_a_queue_that_leaves_a_loop_nowhere_is_a_deadlock():
    executable = Small("loop", "ring", "trn1", 2).executable()
    number = next(n for n, queue in enumerate(executable.queues) if queue.name == "cc0")
    (end,) = [row for row, jump in executable.queues[number].jumps.items() if jump.target == 0]
    broken = edit.with_jump(executable, number, end, target=1)  # behind its own test
    assert "deadlock" in decide(broken).kinds


def test_groups_that_part_at_a_block_may_wait_for_each_other():
    executable = Small("branch_of_groups", "ring", "trn1", 4).executable()
    (crossed, _) = sample(executable, 1, None, kinds=["signals of two groups crossed"])
    alike = [
        check_pairs(Graph(crossed.executable, chains_of(crossed.executable, [way] * 4)))
        for way in ways(executable.program)
    ]
    assert not any(one.deadlocks for one in alike)
    assert "deadlock" in decide(crossed.executable).kinds
