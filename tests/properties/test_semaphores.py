"""The rule that makes execution confluent: counters only grow and each has one incrementing queue.

Checked on random placed programs, by reading the executable alone (docs/isa.md).
"""

import numpy as np
from hypothesis import given, settings

import ncc_runtime
from ncc_runtime.collectives.semaphores import NO_SEMAPHORES, by_rank, semaphores_of
from ncc_runtime.lowering.choices import ProgramChooser
from ncc_runtime.lowering.executable import IDLE
from tests.draws_collectives import Case, cases
from tests.example_count import examples


@settings(max_examples=examples(80))
@given(case=cases())
def test_each_semaphore_is_incremented_by_one_queue_and_waited_for_within_reach(case: Case):
    topology, nodes, placement, lnc = case.place
    executable = ncc_runtime.load(
        case.program, topology, nodes=nodes, placement=placement, lnc=lnc
    ).executable
    ranks = executable.ranks
    writers: dict[tuple[int, int], set[tuple[int, int]]] = {}
    totals = np.zeros((ranks, executable.semaphore_count), np.int64)
    for number, queue in enumerate(executable.queues):
        for post in queue.sync.posts:
            for row, sender in zip(*np.nonzero(post.rank != IDLE), strict=True):
                key = (int(post.rank[row, sender]), int(post.sem[row, sender]))
                writers.setdefault(key, set()).add((int(sender), number))
                totals[key] += 1
    assert all(len(queues) == 1 for queues in writers.values())
    for queue in executable.queues:
        sem, value = np.broadcast_arrays(queue.sync.wait_sem, queue.sync.wait_value)
        sem, value = (np.broadcast_to(one, (len(one), ranks)) for one in (sem, value))
        rows, waiting = np.nonzero(sem != IDLE)
        assert (totals[waiting, sem[rows, waiting]] >= value[rows, waiting]).all()


@settings(max_examples=examples(80))
@given(case=cases())
def test_the_choice_counts_the_semaphores_that_filling_hands_out(case: Case):
    topology, nodes, placement, lnc = case.place
    executable = ncc_runtime.load(
        case.program, topology, nodes=nodes, placement=placement, lnc=lnc
    ).executable
    program, found = case.program, NO_SEMAPHORES
    chosen = ProgramChooser(program, executable.placement).choose()
    for placeholder, one in zip(program.placeholders, chosen, strict=True):
        teams = [(team.plan, team.ranks) for team in one.replica_groups]
        mine = semaphores_of(placeholder.stream, program.ranks, teams)
        found = np.union1d(found, mine)
    most = int(by_rank(found, program.ranks).max())
    assert most + len(program.semaphores) == executable.semaphore_count
