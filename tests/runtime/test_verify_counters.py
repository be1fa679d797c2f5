"""The rule of growing counters: what its proof accepts, and what it says."""

import attrs
import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    Decision,
    DmaQueue,
    EngineQueue,
    Executable,
)
from ncc_runtime.neff.isa import ENGINES, Engine
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.table import Instr, InstrTable
from ncc_runtime.verify.counters import prove_counters
from ncc_runtime.verify.wellformed.wellformed import prove_well_formed
from tests.mutant_edits import (
    with_cc_rows,
    with_more_posts,
    with_post,
    with_pushes_swapped,
    with_queue,
    with_shift,
    with_wait,
)
from tests.programs import collective_program
from tests.small_executables import (
    breach,
    cell,
    hold,
    last_wait,
    looped,
    looped_without_collective,
    number_of,
    proofs,
    raised,
    ring,
)


def test_a_wait_for_more_than_there_ever_is_names_both_numbers():
    executable = ring()
    row = last_wait(executable, "cc0", "cc0.data.3.0")
    counters, deadlock = proofs(raised(executable, "cc0", row, rank=0))
    assert breach(
        counters,
        rf"^rank 0, queue cc0, pc {row} \(p0 all-reduce.0\): waits for cc0.data.3.0 >= 7, "
        "which is incremented 6 times in all$",
    )
    assert breach(deadlock, r"needs cc0.data.3.0 >= 7, it holds 6; nothing increments it any more")


def test_a_lost_increment_is_missed_by_who_waits_for_it():
    executable = ring()
    silent = with_post(executable, number_of(executable, "cc0.dma0"), 0, (5, 0), (IDLE, IDLE))
    counters, deadlock = proofs(silent)
    assert breach(counters, "rank 1, .*waits for cc0.data.0.0 >= 6, .* 5 times in all")
    assert breach(deadlock, "rank 1, queue cc0, .*waits for what nobody provides")


def test_a_second_queue_that_increments_a_counter_is_named():
    executable = ring()
    names = {name: sem for sem, name in executable.semaphore_names(1).items()}
    row = next(
        row
        for row in range(len(executable.queues[number_of(executable, "cc0")].sync.wait_sem))
        if executable.queues[number_of(executable, "cc0")].opcode[row] == CcOpcode.WAIT
    )
    doubled = with_post(
        executable, number_of(executable, "cc0"), 0, (row, 2), (1, names["cc0.data.0.0"])
    )
    counters, _ = proofs(doubled)
    assert breach(
        counters,
        r"rank 1: 2 queues increment cc0.data.0.0, in no order that is known\n"
        rf"  rank 2, queue cc0, pc {row} .*\n  rank 0, queue cc0.dma0, pc 0",
    )


def test_an_increment_of_a_semaphore_that_no_rank_has_is_named():
    executable = ring()
    number = number_of(executable, "cc0.dma0")
    astray = with_post(executable, number, 0, (0, 3), (0, executable.semaphore_count))
    assert breach(
        prove_well_formed(astray),
        r"^exe-W4 rank 3, queue cc0.dma0, pc 0 .*: posts semaphore 8 of rank 0, there are 8",
    )


def test_a_run_that_waits_for_another_push_than_its_own_is_named():
    executable = ring()
    form = prove_well_formed(raised(executable, "cc0.dma0", 3, rank=2, by=-1))
    assert breach(
        form,
        r"^exe-W15 rank 2, queue cc0.dma0, pc 3 .*: waits for semaphore 2 >= 3, must be 2 >= 4$",
    )


def test_a_tail_that_is_incremented_beside_the_pushes_is_named():
    executable = ring()
    names = {name: sem for sem, name in executable.semaphore_names(1).items()}
    more = with_more_posts(
        executable, number_of(executable, "cc0"), (0, 1), (1, names["cc0.tail0"])
    )
    assert breach(prove_well_formed(more), "^exe-W13 queue cc0: 2 posts a row, must be 1$")


def test_pushes_in_another_order_are_named():
    executable = ring()
    number = number_of(executable, "cc0")
    core = executable.queues[number]
    assert isinstance(core, CcQueue)
    first, second, *_ = np.flatnonzero(core.opcode == CcOpcode.ADVANCE).tolist()
    swapped = with_pushes_swapped(executable, number, (first, second))
    assert breach(
        prove_well_formed(swapped), "^exe-W14 queue cc0: dma0 has 7 rows: push 0 is of row 1$"
    )


def test_a_run_that_is_never_pushed_is_named():
    executable = ring()
    number = number_of(executable, "cc0")
    core = executable.queues[number]
    assert isinstance(core, CcQueue)
    last = int(np.flatnonzero(core.opcode == CcOpcode.ADVANCE)[-1])
    rows = [row for row in range(len(core.opcode)) if row != last]
    form = prove_well_formed(with_cc_rows(executable, number, rows))
    assert breach(form, "^exe-W14 queue cc0: dma0 has 7 rows: 6 pushes$")


def test_a_push_by_a_rank_that_has_no_run_there_is_named():
    program = collective_program(CollectiveOp.PERMUTE, 4, [8], pairs=((0, 1), (1, 2)))
    executable = ncc_runtime.load(program, algorithms={"collective-permute": "direct"}).executable
    ring_number = next(
        number for number, queue in enumerate(executable.queues) if isinstance(queue, DmaQueue)
    )
    queue = executable.queues[ring_number]
    idle = with_wait(executable, ring_number, (0, 0), IDLE, 0)
    assert cell(queue.sync.wait_sem, 0, 0) != IDLE
    assert breach(
        prove_well_formed(idle),
        r"^exe-W14 rank 0, queue cc0.dma0, pc 0 .*: its push, cc0 at pc \d+, posts semaphore 2, "
        "must be -1",
    )


def taking_turns(waits: bool) -> Executable:
    """Two collectives of a stream, triggered by different engines."""
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16], repeat=2)
    rows = {
        Engine.GPSIMD: [Instr("ptc2", placeholder=0)],
        Engine.SYNC: [Instr("ptc2", placeholder=1, wait_sem=0, wait_value=1)],
    }
    queues = {engine: InstrTable.from_rows(rows.get(engine, ())) for engine in ENGINES}
    executable = ncc_runtime.load(attrs.evolve(program, queues=queues)).executable
    if not waits:
        for rank in range(4):
            number = number_of(executable, "Sync")
            executable = with_wait(executable, number, (0, rank), IDLE, 0)
    return executable


def test_queues_that_take_turns_at_a_trigger_count_as_one():
    assert hold(taking_turns(waits=True))


def test_queues_that_may_come_in_either_order_are_named():
    counters = prove_counters(taking_turns(waits=False))
    assert breach(
        counters,
        r"^rank 0, queue Sync, pc 0 \(p1 .*\): increments trigger0 without waiting for increment 1 "
        r"of it\n  rank 0, queue GpSimd, pc 0 \(p0",
    ) or breach(counters, r"^rank 0, queue GpSimd, pc 0 .* without waiting for increment 1")
    assert len(counters.texts) == 1  # all ranks are alike


def test_who_waits_for_all_increments_does_not_mind_their_order():
    executable = taking_turns(waits=False)
    first = last_wait(executable, "cc0", "trigger0")
    core = executable.queues[number_of(executable, "cc0")]
    row = int(np.flatnonzero(core.sync.wait_sem[:, 0] == core.sync.wait_sem[first, 0])[0])
    for rank in range(4):
        executable = raised(executable, "cc0", row, rank)
    assert hold(executable)


THREE_ENGINES = """HloModule m, replica_count=2
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT s = f32[] add(a, b) }
ENTRY e { x = f32[8,8] parameter(0)  w = f32[8,8] parameter(1)  v = f32[8,8] parameter(2)
 n = f32[8,8] negate(x)
 d = f32[8,8] dot(w, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
 m = f32[8,8] add(x, w)
 u = f32[8,8] exponential(v)
 y = f32[8,8] all-reduce(n), replica_groups={}, to_apply=add
 ROOT r = (f32[8,8], f32[8,8], f32[8,8], f32[8,8]) tuple(y, d, u, m) }
"""


def three_engines(*, waits_halfway: bool) -> Executable:
    """Tensor waits for what Scalar makes, and that for two increments by Tensor and Vector."""
    executable = ncc_runtime.load(ncc_compiler.compile_text(THREE_ENGINES), "trn2").executable
    shared, made = executable.semaphore_count, executable.semaphore_count + 1
    executable = attrs.evolve(executable, semaphore_count=made + 1)
    tensor, vector, scalar = (number_of(executable, n) for n in ("Tensor", "Vector", "Scalar"))
    for rank in range(2):
        executable = with_wait(executable, tensor, (0, rank), made, 1)
        executable = with_more_posts(executable, tensor, (0, rank), (rank, shared))
        executable = with_more_posts(executable, vector, (0, rank), (rank, shared))
        if waits_halfway:
            executable = with_wait(executable, vector, (1, rank), made, 1)
            executable = with_more_posts(executable, vector, (1, rank), (rank, shared))
        executable = with_wait(executable, scalar, (0, rank), shared, 2)
        executable = with_more_posts(executable, scalar, (0, rank), (rank, made))
    return executable


def test_turns_that_stop_halfway_are_none():
    counters = prove_counters(three_engines(waits_halfway=True))
    assert breach(counters, r"^rank 0: 2 queues increment s\d+, in no order that is known")


def test_a_join_that_waits_for_itself_is_a_deadlock():
    counters, deadlock = proofs(three_engines(waits_halfway=False))
    assert counters.holds
    assert breach(deadlock, "^rank 0, queue Tensor, pc 0 .*: 2 queues wait for one another in a")


def test_a_wait_that_only_a_later_collective_could_end_is_named():
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [24], repeat=2)
    executable = ncc_runtime.load(program, algorithms={"all-reduce": "ring"}).executable
    assert breach(
        prove_counters(raised(executable, "cc0", 10, rank=1)),
        r"^rank 1, queue cc0, pc 10 \(p0 all-reduce.0\): waits for cc0.data.0.0 >= 7, an increment "
        "of neither its own collective nor an earlier one of its stream$",
    )


def test_a_wait_in_a_loop_for_what_comes_behind_it_is_named():
    executable = looped()
    for name in ("Vector", "Scalar", "GpSimd", "Tensor", "Sync"):
        queue = executable.queues[number_of(executable, name)]
        assert isinstance(queue, EngineQueue)
        end = next(row for row, jump in queue.jumps.items() if jump.decision is Decision.ALWAYS)
        done = [index for index, s in enumerate(executable.program.semaphores) if "str" in s.owner]
        rows = np.flatnonzero(np.isin(queue.sync.wait_sem[:end, 0], done))
        if len(rows):
            row = int(rows[-1])
            counters = prove_counters(raised(executable, name, row, rank=1))
            assert breach(
                counters,
                rf"^rank 1, queue {name}, pc {row} .* >= 3, which is incremented 2 times before "
                "the next control row$",
            )
            return
    pytest.fail("no engine waits for the stream inside of the loop")


def test_a_wait_in_a_loop_for_a_stream_that_is_triggered_behind_it_is_named():
    """The stream does not follow the loop; if the loop ran once and went on, nothing would stop."""
    executable = looped_without_collective()
    tensor = number_of(executable, "Tensor")
    (end,) = (
        row
        for row, jump in executable.queues[tensor].jumps.items()
        if jump.decision is Decision.ALWAYS
    )
    (sem,) = (s for s, name in executable.semaphore_names(1).items() if name == "cc0.sent0")
    counters, deadlock = proofs(with_wait(executable, tensor, (end, 1), sem, 1))
    assert breach(
        counters,
        rf"^rank 1, queue Tensor, pc {end} \(end, w\): waits for cc0.sent0 >= 1, which is "
        "incremented 0 times before the next control row$",
    )
    assert deadlock.holds


@pytest.mark.parametrize("decision", [Decision.ALWAYS, Decision.TEST])
@pytest.mark.parametrize("name", ["cc0", "Sync"])
def test_a_jump_that_shifts_by_something_else_than_its_rows_increment_is_named(
    name: str, decision: Decision
):
    executable = looped()
    number = number_of(executable, name)
    queue = executable.queues[number]
    assert isinstance(queue, EngineQueue | CcQueue)
    row = next(row for row, jump in queue.jumps.items() if jump.decision is decision)
    sem = int(queue.sync.wait_sem[queue.sync.wait_sem[:, 0] != IDLE][0, 0])
    counters = prove_counters(with_shift(executable, number, row, (2, sem), 1))
    what = "repeats" if decision is Decision.ALWAYS else "skips"
    assert breach(
        counters, rf"rank 2, queue {name}, pc {row}.*: shifts waits for .* the rows that it {what}"
    )


def test_a_shift_of_what_a_queue_never_waits_for_does_not_matter():
    executable = looped()
    number = number_of(executable, "Sync")
    queue = executable.queues[number]
    assert isinstance(queue, EngineQueue)
    row = next(iter(queue.jumps))
    assert hold(with_shift(executable, number, row, (0, executable.semaphore_count - 1), 5))


BRANCH_THAT_ENDS_A_LOOP = """HloModule c, replica_count=2
sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT t = f32[] add(a, b) }
yes { v = f32[4] parameter(0)
 ROOT w = f32[4] all-reduce(v), replica_groups={}, to_apply=sum }
no { v = f32[4] parameter(0)  ROOT n = f32[4] negate(v) }
cond { s = (s32[], s32[], f32[4]) parameter(0)  i = s32[] get-tuple-element(s), index=0
 l = s32[] constant(3)  ROOT c = pred[] compare(i, l), direction=LT }
body { s = (s32[], s32[], f32[4]) parameter(0)  i = s32[] get-tuple-element(s), index=0
 p = s32[] get-tuple-element(s), index=1  v = f32[4] get-tuple-element(s), index=2
 one = s32[] constant(1)  ni = s32[] add(i, one)
 w = f32[4] conditional(p, v, v), branch_computations={%yes, %no}
 ROOT o = (s32[], s32[], f32[4]) tuple(ni, p, w) }
ENTRY e { x = f32[4] parameter(0)  p = s32[] parameter(1)  z = s32[] constant(0)
 st = (s32[], s32[], f32[4]) tuple(z, p, x)
 lo = (s32[], s32[], f32[4]) while(st), condition=cond, body=body
 ROOT v = f32[4] get-tuple-element(lo), index=2 }
"""


def test_a_branch_does_not_jump_past_the_end_of_the_loop_around_it():
    program = ncc_compiler.compile_text(BRANCH_THAT_ENDS_A_LOOP)
    executable = ncc_runtime.load(program, "trn2").executable
    assert hold(executable)
    number = number_of(executable, "cc0")
    core = executable.queues[number]
    assert isinstance(core, CcQueue)
    row, jump = next(one for one in core.jumps.items() if one[1].decision is Decision.CASE)
    assert core.opcode[jump.target] == CcOpcode.END
    jumps = {**core.jumps, row: attrs.evolve(jump, target=jump.target + 1)}
    broken = with_queue(executable, number, attrs.evolve(core, jumps=jumps))
    assert breach(prove_counters(broken), "queue cc0: its control rows are not in the order of")


@pytest.mark.parametrize("name", ["cc0", "Vector"])
def test_a_jump_into_the_middle_of_things_is_named(name: str):
    executable = looped()
    number = number_of(executable, name)
    queue = executable.queues[number]
    assert isinstance(queue, EngineQueue | CcQueue)
    row, jump = next(pair for pair in queue.jumps.items() if pair[1].decision is Decision.TEST)
    jumps = {**queue.jumps, row: attrs.evolve(jump, target=jump.target - 2)}
    broken = with_queue(executable, number, attrs.evolve(queue, jumps=jumps))
    assert breach(prove_counters(broken), rf"^queue {name}, pc \d+: ")


def test_a_core_that_does_not_follow_a_loop_of_its_stream_is_named():
    executable = looped()
    number = number_of(executable, "cc0")
    core = executable.queues[number]
    assert isinstance(core, CcQueue)
    opcode = np.where(
        np.isin(core.opcode, (CcOpcode.TEST, CcOpcode.END)), CcOpcode.WAIT, core.opcode
    ).astype(np.uint8)
    straight = with_queue(executable, number, attrs.evolve(core, opcode=opcode, jumps={}))
    assert breach(
        prove_counters(straight), r"queue cc0: waits for .*, which grows in k0; the queue does not"
    )


def test_a_counter_that_loops_drive_beyond_32_bits_is_named():
    executable = looped()
    (block,) = executable.program.blocks
    program = attrs.evolve(executable.program, blocks=(attrs.evolve(block, trip_count=2**30),))
    counters = prove_counters(attrs.evolve(executable, program=program))
    assert breach(counters, "is incremented .* times, a semaphore holds at most 2147483647")
