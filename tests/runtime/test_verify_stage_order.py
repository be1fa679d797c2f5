"""Counters and deadlock of several programs: control flow of their own, and what they share."""

from collections.abc import Sequence

import attrs
import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, Executable, is_run_by
from ncc_runtime.neff.isa import ENGINES, Engine
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.stages import JointProgram
from ncc_runtime.neff.table import Instr, InstrTable
from ncc_runtime.verify.counters import Edges
from ncc_runtime.verify.deadlock import greedy
from ncc_runtime.verify.flow import flow_of
from tests.mutant_edits import with_post, with_ring_size, with_shift, with_wait
from tests.programs import collective_program
from tests.small_executables import breach, hold, proofs
from tests.stage_programs import stage

EVERYBODY = "replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=sum"
HALVES = "replica_groups={{0,1},{2,3}}, use_global_device_ids=true, to_apply=sum"

LOOP = """below {
  p = (s32[], s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  ROOT lt = pred[] compare(i, n), direction=LT
}
step {
  p = (s32[], s32[], f32[4]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] get-tuple-element(p), index=1
  x = f32[4] get-tuple-element(p), index=2
BODY
  k = s32[] constant(1)
  j = s32[] add(i, k)
  ROOT t = (s32[], s32[], f32[4]) tuple(j, n, y)
}"""
OWN = f"  y = f32[4] all-reduce(x), channel_id=1, {HALVES}"
ROUNDS = """
  n = s32[] parameter(1)
  zero = s32[] constant(0)
  state = (s32[], s32[], f32[4]) tuple(zero, n, {before})
  last = (s32[], s32[], f32[4]) while(state), condition=below, body=step
  {after} = f32[4] get-tuple-element(last), index=2"""


def shared(result: str, operand: str, channel: int, stream: int = 0) -> str:
    """A collective of everybody."""
    where = f', frontend_attributes={{stream_id="{stream}"}}'
    return f"\n  {result} = f32[4] all-reduce({operand}), channel_id={channel}, {EVERYBODY}{where}"


def looped(*around: str, body: str = OWN, name: str = "looped") -> Program:
    """A loop from a to b between what stands before it and what stands behind it."""
    before, behind = around
    x = "\n  x = f32[4] parameter(0)"
    rounds = ROUNDS.format(before="a", after="b")
    text = f"{x}{before}{rounds}{behind}\n  ROOT r = f32[4] negate(c)"
    return stage(text, ranks=4, before=LOOP.replace("BODY", body), name=name)


def plain() -> Program:
    """The same collective of everybody, and no loop."""
    x = "  x = f32[4] parameter(0)"
    return stage(f"{x}{shared('y', 'x', 9)}\n  ROOT r = f32[4] negate(y)", ranks=4)


COPY = "\n  {} = f32[4] negate({})"
EARLY = looped(shared("a", "x", 9), COPY.format("c", "b"))
LATE = looped(COPY.format("a", "x"), shared("c", "b", 9), name="late")


def placed(*programs: Program, ranks: Sequence[range] = (range(2), range(2, 4))) -> Executable:
    return ncc_runtime.load(list(zip(programs, ranks, strict=True))).executable


@pytest.mark.parametrize(
    "programs", [(EARLY, plain()), (plain(), EARLY), (LATE, plain()), (EARLY, LATE), (LATE, EARLY)]
)
def test_each_program_may_have_a_loop_of_its_own_before_or_behind_what_they_share(programs):
    assert hold(placed(*programs))


def test_what_is_shared_comes_in_the_order_of_events_behind_every_loop_before_it():
    flow, faults = flow_of(placed(EARLY, LATE))
    assert not faults
    assert flow is not None
    assert [block for _, block in flow.events] == [1, 1, 1, 0, 0, 0]


@pytest.mark.parametrize("waits", [True, False])
def test_engines_take_turns_in_a_program_without_loops_beside_one_with_a_loop(waits):
    sem, value = (0, 1) if waits else (IDLE, 0)
    rows = {
        Engine.GPSIMD: [Instr("ptc2", placeholder=0)],
        Engine.SYNC: [Instr("ptc2", placeholder=1, wait_sem=sem, wait_value=value)],
    }
    queues = {engine: InstrTable.from_rows(rows.get(engine, ())) for engine in ENGINES}
    twice = collective_program(CollectiveOp.ALL_REDUCE, 4, [4], groups=((0, 1), (2, 3)), repeat=2)
    twice = attrs.evolve(twice, queues=queues)
    alone = looped(COPY.format("a", "x"), COPY.format("c", "b"))
    counters, _ = proofs(placed(twice, alone))
    assert counters.holds == waits
    assert waits or breach(counters, "^rank 0, queue .*: increments trigger0 without waiting for")


def test_a_loop_around_what_they_share_is_one():
    body = shared("y", "x", 1)
    programs = [looped(COPY.format("a", "x"), COPY.format("c", "b"), body=body) for _ in range(3)]
    executable = placed(*programs, ranks=(range(1), range(1, 2), range(2, 4)))
    flow, _ = flow_of(executable)
    assert flow is not None
    assert [opcode for opcode, _ in flow.events] == ["loop", "test", "end"]
    assert flow.matched == {1: 0, 2: 0}
    assert hold(executable)


def permuted(*pairs: str) -> Program:
    """A loop that sends from rank to rank, pair by pair."""
    names = ["x", *(f"x{number}" for number in range(1, len(pairs))), "y"]
    sent = (
        f"  {names[number + 1]} = f32[4] collective-permute({names[number]}), "
        f"channel_id={1 + int(pair[0])}, source_target_pairs={{{{{pair}}}}}"
        for number, pair in enumerate(pairs)
    )
    return looped(COPY.format("a", "x"), COPY.format("c", "b"), body="\n".join(sent))


def test_a_loop_is_one_whichever_neighbours_meet_first():
    programs = permuted("0,3"), permuted("1,2"), permuted("1,2", "2,3"), permuted("0,3", "2,3")
    executable = placed(*programs, ranks=[range(rank, rank + 1) for rank in range(4)])
    flow, _ = flow_of(executable)
    assert flow is not None
    assert flow.matched == {1: 0, 2: 0, 3: 0}
    assert hold(executable)


def test_blocks_without_a_common_order_are_told_program_by_program():
    executable = placed(EARLY, LATE)
    assert isinstance(executable.program, JointProgram)
    one_loop = attrs.evolve(executable.program, matched_blocks={1: 0})
    counters, _ = proofs(attrs.evolve(executable, program=one_loop))
    assert counters.texts == (
        "shared collectives and blocks have no order that all programs keep\n"
        "  looped: p1 a is next\n"
        "  late: loop k0 is next",
    )


def test_a_jump_of_the_second_program_that_shifts_too_little():
    body = shared("y", "x", 1)
    programs = [looped(COPY.format("a", "x"), COPY.format("c", "b"), body=body) for _ in range(2)]
    executable = placed(*programs)
    number, core = cores(executable)[1]
    row = next(row for row, jump in core.jumps.items() if row > jump.target)
    sem = int(core.sync.wait_sem[np.flatnonzero(core.opcode == CcOpcode.WAIT)[-1], 3])
    counters, _ = proofs(with_shift(executable, number, row, (3, sem), -1))
    assert breach(counters, rf"^rank 3, queue cc0, pc {row}: shifts waits for cc0")
    assert len(counters.texts) == 1


def test_a_wait_for_what_another_program_does_in_a_loop_of_its_own():
    executable = placed(plain(), EARLY)
    (first, waiting), (number, core) = cores(executable)
    made = Edges(executable).count.reshape(-1, 4)
    sem = int(np.flatnonzero(made[:, 0] == 0)[-1])
    inside = range(*sorted(core.jumps)[:2])
    rows = np.flatnonzero(core.sync.posts[0].rank[:, 2] == 3)
    row = next(row for row in rows.tolist() if row in inside)
    told = with_post(executable, number, 0, (row, 2), (0, sem))
    wait = int(np.flatnonzero(waiting.opcode == CcOpcode.WAIT)[-1])
    counters, _ = proofs(with_wait(told, first, (wait, 0), sem, 1))
    assert breach(counters, "rank 0, queue cc0: waits for .*, which grows in k0; .* not follow k0")


def test_who_does_not_run_a_queue_is_at_its_end_from_the_start():
    executable = placed(plain(), EARLY)
    run = greedy(with_ring_size(executable, 0))
    for number, queue in enumerate(executable.queues):
        if number in run.reached:
            others = np.setdiff1d(np.arange(4), queue.ranks)
            assert (run.reached[number][others] == len(queue.sync.wait_sem)).all()
    assert {rank for _, rank in run.stuck} == {0, 1, 2, 3}
    assert all(is_run_by(executable.queues[queue], rank) for queue, rank in run.stuck)


def test_a_program_that_stops_shows_where_each_program_waits():
    executable = placed(plain(), plain())
    number, core = cores(executable)[1]
    row = next(row for row, post in enumerate(core.sync.posts[0].rank[:, 2]) if post in (0, 1))
    lost = with_post(executable, number, 0, (row, 2), (IDLE, IDLE))
    counters, deadlock = proofs(lost)
    assert not counters.holds
    assert breach(deadlock, r"  rank [01], queue cc0, pc \d+ \(p0 y\)")


def cores(executable: Executable) -> list[tuple[int, CcQueue]]:
    """The CC-core queues, program by program."""
    found = enumerate(executable.queues)
    return [(number, queue) for number, queue in found if isinstance(queue, CcQueue)]
