"""Freedom from deadlock: greedy order, circles, full rings, and no false alarms."""

import re
from collections.abc import Sequence

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.ir.text.printer import print_module
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.errors import DeadlockError, LoweringError
from ncc_runtime.execution.scheduler import RowBatch, Scheduler
from ncc_runtime.lowering.cc_isa import DESCRIPTOR_BYTES, CcOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    EngineQueue,
    Executable,
    Jump,
    descriptors,
)
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.table import Instr, InstrTable
from ncc_runtime.options import LoadOptions
from ncc_runtime.placement import PlaceOptions
from ncc_runtime.runtime import load_on
from ncc_runtime.verify.deadlock import greedy, prove_deadlock
from tests.draws_collectives import Case, cases
from tests.draws_loops import looping_modules
from tests.draws_neff import programs
from tests.example_count import examples
from tests.mutant_edits import (
    with_queue,
    with_wait,
)
from tests.programs import LINK_DOWN, collective_program
from tests.small_executables import (
    breach,
    hold,
    number_of,
    proofs,
    ring,
)

DRAWN = settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])


@pytest.mark.parametrize(
    ("op", "name"), [(op, name) for op, rows in ALGORITHMS.items() for name in rows]
)
def test_every_algorithm_keeps_the_rule_and_comes_to_its_end(op: CollectiveOp, name: str):
    places = {
        "kangaring": (64, PlaceOptions("trn2")),
        "rank-order.kangaring": (64, PlaceOptions("trn2")),
        "torus": (64, PlaceOptions("trn2")),
        "pod": (64, PlaceOptions("trn2-ultraserver", placement="spread")),
        "synthesised": (64, PlaceOptions(LINK_DOWN)),
    }
    ranks, place = places.get(name, (128, PlaceOptions("trn2", 2)))
    if (op, name) == (CollectiveOp.ALL_REDUCE, "direct"):
        ranks, place = 4, PlaceOptions("trn2")  # of one chip
    sizes = [] if op is CollectiveOp.BARRIER else [128]
    pairs = tuple((rank, (rank + 1) % ranks) for rank in range(ranks))
    given_pairs = pairs if op is CollectiveOp.PERMUTE else ()
    program = collective_program(op, ranks, sizes, pairs=given_pairs, repeat=2)
    options = LoadOptions(algorithms={op.value: name})
    assert hold(load_on(program, place, options).executable)


@DRAWN
@given(case=cases(), data=st.data())
def test_no_collective_of_any_groups_raises_an_alarm(case: Case, data: st.DataObject):
    topology, nodes, placement, lnc = case.place
    name = data.draw(st.sampled_from(["", *sorted(ALGORITHMS[case.op])]))
    options = LoadOptions(algorithms={case.op.value: name} if name else {})
    on = PlaceOptions(topology, nodes, placement, lnc)
    try:
        executable = load_on(case.program, on, options).executable
    except LoweringError:
        return  # the algorithm does not suit the groups
    assert hold(executable)


@DRAWN
@given(module=looping_modules())
def test_no_compiled_loop_or_branch_raises_an_alarm(module):
    neff = ncc_compiler.compile_text(print_module(module))
    assert hold(ncc_runtime.load(neff).executable)


@DRAWN
@given(program=programs(most_steps=4))
def test_no_program_of_nested_blocks_on_several_streams_raises_an_alarm(program: Program):
    assert hold(ncc_runtime.load(program, "trn2").executable)


def ready_to_data(executable: Executable, ranks: list[int]) -> Executable:
    """Ranks that push their first run only when they have got one."""
    number = number_of(executable, "cc0")
    core = executable.queues[number]
    assert isinstance(core, CcQueue)
    row = int(np.flatnonzero(core.opcode == CcOpcode.ADVANCE)[0])
    for rank in ranks:
        names = {name: sem for sem, name in executable.semaphore_names(rank).items()}
        data = names[f"cc0.data.{(rank - 1) % executable.ranks}.0"]
        executable = with_wait(executable, number, (row, rank), data, 1)
    return executable


def test_a_deadlock_is_told_as_a_circle_with_all_its_members():
    counters, deadlock = proofs(ready_to_data(ring(), [0, 1, 2, 3]))
    assert counters.holds
    (text,) = deadlock.texts
    head, *members = text.split("\n")
    assert "4 queues wait for one another in a circle; 4 queues on 4 ranks cannot go on" in head
    assert len(members) == 4
    assert re.search(
        r"^  rank 0, queue cc0, pc \d+ \(p0 all-reduce.0\), advance: needs cc0.data.3.0 >= 1, it "
        r"holds 0; next would be rank 3, queue cc0.dma0, pc 0 \(p0 all-reduce.0\), which cc0, "
        r"pc \d+ pushes$",
        members[0],
    )


def test_the_smallest_of_several_circles_is_the_witness():
    executable = ready_to_data(ring(), [0, 1, 2, 3])
    number = number_of(executable, "cc0")
    core = executable.queues[number]
    assert isinstance(core, CcQueue)
    row = int(np.flatnonzero(core.opcode == CcOpcode.ADVANCE)[0])
    names = {name: sem for sem, name in executable.semaphore_names(2).items()}
    tail = with_wait(executable, number, (row, 2), names["cc0.tail0"], 1)  # its own push
    (text,) = prove_deadlock(tail)[0].texts
    assert text.startswith(f"rank 2, queue cc0, pc {row} ")
    assert "waits for a later row of its own queue; 4 queues on 4 ranks cannot go on" in text


def test_a_rank_too_few_in_a_circle_is_no_deadlock():
    assert hold(ready_to_data(ring(), [1, 2, 3]))


def test_what_waits_for_a_stuck_queue_is_no_member_of_the_circle():
    executable = ready_to_data(ring(), [0, 1, 2, 3])
    program = executable.program
    sync = number_of(executable, "Sync")
    queue = executable.queues[sync]
    assert isinstance(queue, EngineQueue)
    table = InstrTable.from_rows([Instr("wait", wait_sem=0, wait_value=1)])
    column = np.zeros((1, 1), np.int32)
    waiting = attrs.evolve(
        queue,
        table=table,
        sync=attrs.evolve(queue.sync, wait_sem=column, wait_value=column + 1, posts=()),
    )
    program = attrs.evolve(program, queues={**program.queues, Engine.SYNC: table})
    executable = attrs.evolve(with_queue(executable, sync, waiting), program=program)
    (text,) = prove_deadlock(executable)[0].texts
    assert "4 queues wait for one another in a circle; 8 queues on 4 ranks cannot go on" in text


def with_ring_descriptors(executable: Executable, depth: int) -> Executable:
    dma = attrs.evolve(executable.topology.dma, ring_descriptors=depth)
    return attrs.evolve(executable, topology=attrs.evolve(executable.topology, dma=dma))


def long_runs(descriptors_each: int) -> Executable:
    """A ring on one chip, on two lanes, whose runs are of so many descriptors."""
    return ring(4, 2 * 4 * descriptors_each * DESCRIPTOR_BYTES // 4)


def nothing(batches: Sequence[RowBatch]) -> None:
    assert batches


def one_trip(batch: RowBatch, jump: Jump) -> np.ndarray:
    return np.ones(len(batch.ranks), bool)


def test_a_run_that_no_ring_can_hold_is_a_deadlock():
    executable = with_ring_descriptors(long_runs(40), 1)  # of 32 engines
    counters, deadlock = proofs(executable)
    assert counters.holds
    assert breach(
        deadlock,
        r"waits for what nobody provides.*needs room for 40 descriptors in cc0.dma\d, "
        "which holds 32 when it is empty",
    )
    with pytest.raises(DeadlockError, match=r"pushes 40 descriptors to cc0.dma\d, which holds 32"):
        Scheduler(executable, one_trip).run(nothing)


def most_waiting(executable: Executable, seed: int | None) -> int:
    """The most descriptors that a ring held of a rank, in a run to the end."""
    waiting: dict[int, np.ndarray] = {}
    lanes = {
        (queue.stream, queue.lane): number
        for number, queue in enumerate(executable.queues)
        if isinstance(queue, DmaQueue)
    }
    most = 0

    def perform(batches: Sequence[RowBatch]) -> None:
        nonlocal most
        done = []
        for batch in batches:
            queue = executable.queues[batch.queue]
            if isinstance(queue, DmaQueue):
                done.append((batch.queue, batch.row, batch.ranks))
            elif isinstance(queue, CcQueue) and queue.opcode[batch.row] == CcOpcode.ADVANCE:
                number = lanes[queue.stream, int(queue.ring[batch.row])]
                ring_queue = executable.queues[number]
                held = waiting.setdefault(number, np.zeros(executable.ranks, np.int64))
                ranks = batch.ranks[queue.sync.posts[0].rank[batch.row, batch.ranks] != IDLE]
                row = int(queue.ring_row[batch.row])
                held[ranks] += descriptors(ring_queue.size_bytes[row, ranks])
                most = max(most, int(held.max()))
        for number, row, ranks in done:
            waiting[number][ranks] -= descriptors(executable.queues[number].size_bytes[row, ranks])

    shuffle = None if seed is None else np.random.default_rng(seed)
    Scheduler(executable, one_trip).run(perform, shuffle)
    return most


def test_a_full_ring_holds_up_its_core_and_no_more():
    plain = long_runs(20)
    assert max(most_waiting(plain, seed) for seed in range(4)) > 32
    small = with_ring_descriptors(plain, 1)
    assert hold(small)
    assert max(most_waiting(small, seed) for seed in (None, *range(4))) == 20


def replayed(executable: Executable) -> np.ndarray:
    """Counters behind the batches of a greedy run, each checked to be ready in its turn."""
    held = np.zeros((executable.ranks, executable.semaphore_count), np.int64)
    at = {number: np.zeros(executable.ranks, np.int64) for number in range(len(executable.queues))}
    for batch in greedy(executable).batches:
        queue = executable.queues[batch.queue]
        everybody = np.arange(executable.ranks)
        ranks = everybody if batch.ranks is None else batch.ranks
        shape = (len(queue.sync.wait_sem), executable.ranks)
        sem = np.broadcast_to(queue.sync.wait_sem, shape)[batch.row, ranks]
        value = np.broadcast_to(queue.sync.wait_value, shape)[batch.row, ranks]
        assert ((sem == IDLE) | (held[ranks, sem] >= value)).all()
        if isinstance(queue, DmaQueue):
            ranks = ranks[sem != IDLE]  # other cells hold no transfer
        else:
            assert (at[batch.queue][ranks] == batch.row).all()
        at[batch.queue][ranks] += 1
        for post in queue.sync.posts:
            target, posted = post.rank[batch.row, ranks], post.sem[batch.row, ranks]
            np.add.at(held, (target[target != IDLE], posted[target != IDLE]), 1)
    for number, queue in enumerate(executable.queues):
        is_ring = isinstance(queue, DmaQueue)
        rows = (queue.sync.wait_sem != IDLE).sum(axis=0) if is_ring else len(queue.sync.wait_sem)
        assert (at[number] == rows).all()
    return held


@DRAWN
@given(case=cases())
def test_the_greedy_order_runs_everything_once_behind_what_it_waits_for(case: Case):
    topology, nodes, placement, lnc = case.place
    on = PlaceOptions(topology, nodes, placement, lnc)
    executable = load_on(case.program, on, LoadOptions()).executable
    replayed(executable)


def test_ranks_that_part_and_meet_again_come_to_the_same_end():
    executable = ready_to_data(ring(ranks=6), [1, 2, 4])
    assert {len(batch.ranks) for batch in greedy(executable).batches if batch.ranks is not None}
    replayed(executable)


@settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_greedy_run_gets_as_far_as_the_scheduler(data: st.DataObject):
    algorithm = data.draw(st.sampled_from(["ring", "mesh", "tree"]))
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16], repeat=2)
    executable = ncc_runtime.load(program, algorithms={"all-reduce": algorithm}).executable
    number = number_of(executable, "cc0")
    sync = executable.queues[number].sync
    for _ in range(data.draw(st.integers(1, 3))):
        row = data.draw(st.integers(0, len(sync.wait_sem) - 1))
        rank = data.draw(st.integers(0, 3))
        sem = data.draw(st.integers(0, executable.semaphore_count - 1))
        value = data.draw(st.integers(0, 6))
        executable = with_wait(executable, number, (row, rank), sem, value)
    scheduler = Scheduler(executable, one_trip)
    proof, run = prove_deadlock(executable)
    if proof.holds:
        scheduler.run(nothing)
    else:
        with pytest.raises(DeadlockError):
            scheduler.run(nothing)
    held = np.zeros_like(scheduler.state.semaphores)
    for batch in run.batches:
        queue = executable.queues[batch.queue]
        is_idle = isinstance(queue, DmaQueue) & (queue.sync.wait_sem[batch.row] == IDLE)
        for post in queue.sync.posts:
            ranks = np.arange(4) if batch.ranks is None else batch.ranks
            ranks = ranks[~np.broadcast_to(is_idle, 4)[ranks]]
            to, sem = post.rank[batch.row, ranks], post.sem[batch.row, ranks]
            np.add.at(held, (to[to != IDLE], sem[to != IDLE]), 1)
    np.testing.assert_array_equal(held, scheduler.state.semaphores)
