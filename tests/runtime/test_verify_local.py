"""Races among the engines and streams of one rank: what is called one, and how it is told."""

import attrs
import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.isa import CASE, END, ENGINES, LOOP, TEST, WAIT, Engine
from ncc_runtime.neff.program import Block, BlockKind, TensorId
from ncc_runtime.neff.table import Instr
from ncc_runtime.verify.engine_races import prove_local
from ncc_runtime.verify.proof import Proof
from tests.draws_local_order import TENSORS, all_reduce, program_of_rows
from tests.local_edits import with_waits

VECTOR, GPSIMD, SYNC, STREAM = 1, 3, 4, 5  # semaphores
P, Q = TENSORS, TENSORS + 1  # predicates


def row(*, writes=(), reads=(), wait=None, post=None, opcode="copy", **columns) -> Instr:
    """An instruction; `wait` is a semaphore and a value."""
    sem, value = wait or (-1, 0)
    return Instr(
        opcode,
        results=tuple(writes),
        operands=tuple(reads),
        wait_sem=sem,
        wait_value=value,
        post_sem=-1 if post is None else post,
        **columns,
    )


def trigger(number: int, **columns) -> Instr:
    return row(opcode="ptc2", placeholder=number, **columns)


def placed(queues, placeholders=(), blocks=(), **settings) -> Executable:
    rows = {Engine(name): rows for name, rows in queues.items()}
    program = program_of_rows(rows, placeholders, blocks, **settings)
    return ncc_runtime.load(program).executable


def proof(queues, placeholders=(), blocks=(), **settings) -> Proof:
    return prove_local(placed(queues, placeholders, blocks, **settings))


def blocked(queues, *control):
    """Queues whose rows are lists of phases, with the control rows between them.

    A control row of a queue may be given in the place of a phase's last row; else it is bare.
    """
    found = {}
    for engine in ENGINES:
        phases = queues.get(engine.value, [[] for _ in range(len(control) + 1)])
        rows = []
        for (opcode, block), phase in zip(control, phases, strict=False):
            own = bool(phase) and phase[-1].opcode == opcode
            rows += phase if own else [*phase, row(opcode=opcode, attribute=block)]
        found[engine.value] = [*rows, *phases[-1]]
    return found


def test_a_reader_that_waits_for_the_writer_is_in_order():
    queues = {
        "Vector": [row(writes=[0], post=VECTOR)],
        "Sync": [row(reads=[0], wait=(VECTOR, 1))],
    }
    assert proof(queues).holds


def test_a_race_is_told_with_both_rows_and_the_wait_that_is_missing():
    queues = {
        "Vector": [row(writes=[0], origin=0), row(post=VECTOR)],
        "Sync": [row(writes=[1], reads=[0])],
    }
    assert proof(queues).texts == (
        "rank 0, queue Vector, pc 0 (copy, add.1, model.py:7): in no order with Sync pc 0, which "
        "touches [0x0, 0x40) too\n"
        "  Vector pc 0 writes t0 t0 f32[16], [0x0, 0x40)\n"
        "  rank 0, queue Sync, pc 0 (copy) reads t0 t0 f32[16], [0x0, 0x40)\n"
        "  when Sync pc 0 begins, it knows of nothing in Vector\n"
        "  path: straight through the program\n"
        "  missing: a wait for vector >= 1 at Sync pc 0; Vector pc 1 makes it",
    )


def test_a_race_is_a_record_of_both_rows_and_the_missing_wait():
    queues = {
        "Vector": [row(writes=[1]), row(writes=[0], post=VECTOR)],
        "Sync": [row(reads=[0])],
    }
    executable = placed(queues)
    (breach,) = prove_local(executable).breaches
    cells = [(executable.queues[cell.queue].name, cell.row) for cell in breach.cells]
    assert cells == [("Sync", 0), ("Vector", 1)]
    assert (breach.rule, breach.semaphore, breach.value) == ("engines.race", VECTOR, 1)


def test_a_program_without_rows_has_no_races():
    assert proof({}).holds


def test_two_reads_need_no_order():
    assert proof({"Vector": [row(reads=[0])], "Sync": [row(reads=[0])]}).holds


@pytest.mark.parametrize(("offset", "holds"), [(64, True), (63, False)])
def test_tensors_race_where_they_share_a_byte(offset, holds):
    queues = {"Vector": [row(writes=[0])], "Sync": [row(writes=[1])]}
    assert proof(queues, offsets=(0, offset, 192, 256, 320)).holds == holds


def test_knowledge_travels_through_a_third_queue():
    queues = {
        "Vector": [row(writes=[0], post=VECTOR)],
        "GpSimd": [row(wait=(VECTOR, 1), opcode=WAIT, post=GPSIMD)],
        "Sync": [row(reads=[0], wait=(GPSIMD, 1))],
    }
    assert proof(queues).holds


@pytest.mark.parametrize(("value", "holds"), [(2, True), (1, False)])
def test_a_wait_for_too_little_is_a_race(value, holds):
    queues = {
        "Vector": [row(writes=[0], post=VECTOR), row(writes=[0], post=VECTOR)],
        "Sync": [row(reads=[0], wait=(VECTOR, value))],
    }
    assert proof(queues).holds == holds


@pytest.mark.parametrize(
    ("next_row", "holds"),
    [
        (row(writes=[0]), False),  # the operand
        (row(reads=[0]), True),
        (row(reads=[1]), False),  # the result
        (row(reads=[1], wait=(STREAM, 1)), True),
    ],
)
def test_a_collective_owns_its_tensors_until_it_is_done(next_row, holds):
    queues = {"GpSimd": [row(writes=[0]), trigger(0), next_row]}
    assert proof(queues, [all_reduce(0, 1)]).holds == holds


def test_a_collective_starts_with_what_its_trigger_knows():
    queues = {"Vector": [row(writes=[0], post=VECTOR)], "GpSimd": [trigger(0)]}
    (breach,) = proof(queues, [all_reduce(0, 1)]).texts
    assert "at the trigger of cc0 pc 0 to" in breach.splitlines()[-1]
    queues["GpSimd"] = [trigger(0, wait=(VECTOR, 1))]
    assert proof(queues, [all_reduce(0, 1)]).holds


def test_queues_that_take_turns_trigger_one_stream():
    queues = {
        "GpSimd": [trigger(0, post=GPSIMD)],
        "Vector": [row(writes=[2]), trigger(1, wait=(GPSIMD, 1))],
        "Sync": [row(reads=[3], wait=(STREAM, 2))],
    }
    assert proof(queues, [all_reduce(0, 1), all_reduce(2, 3)]).holds
    queues["Sync"] = [row(reads=[3], wait=(STREAM, 1))]
    assert not proof(queues, [all_reduce(0, 1), all_reduce(2, 3)]).holds


LOOP_ROWS = ((LOOP, 0), (TEST, 0), (END, 0))
A_LOOP = (Block(BlockKind.LOOP, "while.3", TensorId(P)),)


def test_an_iteration_races_with_the_next():
    queues = blocked(
        {
            "Vector": [[], [], [row(writes=[0], post=VECTOR)], []],
            "Sync": [[], [], [row(reads=[0], wait=(VECTOR, 1))], []],
        },
        *LOOP_ROWS,
    )
    (breach,) = proof(queues, blocks=A_LOOP).texts
    assert breach.splitlines()[0].startswith("rank 0, queue Sync, pc 2")
    assert breach.splitlines()[4] == (
        "  path: from the body of while.3 (k0) back to the start of while.3 (k0), into the body of "
        "while.3 (k0), past all other blocks"
    )


def test_a_wait_for_the_last_iteration_orders_it_before_the_next():
    queues = blocked(
        {
            "Vector": [
                [row(post=VECTOR)],
                [],
                [row(writes=[0], wait=(SYNC, 1), post=VECTOR)],
                [],
            ],
            "Sync": [[row(post=SYNC)], [], [row(reads=[0], wait=(VECTOR, 2), post=SYNC)], []],
        },
        *LOOP_ROWS,
    )
    assert proof(queues, blocks=A_LOOP).holds


def test_what_is_waited_for_in_a_loop_may_never_be_waited_for():
    queues = blocked(
        {
            "Vector": [[row(writes=[0], post=VECTOR)], [], [], []],
            "Sync": [[], [], [row(opcode=WAIT, wait=(VECTOR, 1))], [row(reads=[0])]],
        },
        *LOOP_ROWS,
    )
    (breach,) = proof(queues, blocks=A_LOOP).texts
    assert "missing: a wait for vector >= 1 at Sync pc 4" in breach


def test_a_condition_runs_again_behind_the_body():
    queues = blocked(
        {"Vector": [[], [row(writes=[0])], [], []], "Sync": [[], [], [row(reads=[0])], []]},
        *LOOP_ROWS,
    )
    assert len(proof(queues, blocks=A_LOOP).texts) == 2  # before the body and behind it


def test_a_predicate_is_read_by_every_queue():
    read_in_time = row(opcode=TEST, attribute=0, wait=(VECTOR, 1))
    queues = blocked(
        {"Vector": [[], [row(writes=[P], post=VECTOR)], [], []]}
        | {name: [[], [read_in_time], [], []] for name in ("Tensor", "Scalar", "Sync")},
        *LOOP_ROWS,
    )
    breaches = proof(queues, blocks=A_LOOP).texts
    late = [text for text in breaches if "queue GpSimd, pc 1 (test) reads t5" in text]
    again = [text for text in breaches if "back to the start of while.3" in text]
    assert len(late) == 1
    assert len(again) == 4  # nobody says that it has read, and Vector writes in the next iteration
    assert len(breaches) == 5


def branches(first: int, second: int):
    return (
        Block(BlockKind.CASE, "conditional.2", TensorId(first), 0, 2),
        Block(BlockKind.CASE, "conditional.2", TensorId(second), 1, 2),
    )


BRANCH_ROWS = ((CASE, 0), (END, 0), (CASE, 1), (END, 1))


@pytest.mark.parametrize(("second", "holds"), [(P, True), (Q, False)])
def test_branches_of_one_conditional_never_meet(second, holds):
    queues = blocked(
        {
            "Vector": [[], [row(writes=[0])], [], [], []],
            "Sync": [[], [], [], [row(reads=[0])], []],
        },
        *BRANCH_ROWS,
    )
    assert proof(queues, blocks=branches(P, second)).holds == holds


def test_branches_whose_predicate_is_written_between_them_may_both_run():
    queues = blocked(
        {
            "Vector": [[], [row(writes=[0])], [], [], []],
            "GpSimd": [[], [], [row(writes=[P])], [], []],
            "Sync": [[], [], [], [row(reads=[0])], []],
        },
        *BRANCH_ROWS,
    )
    touching = [text for text in proof(queues, blocks=branches(P, P)).texts if "t0" in text]
    assert len(touching) == 1


def test_branches_meet_in_the_next_iteration():
    queues = blocked(
        {
            "Vector": [[], [], [], [row(writes=[0])], [], [], [], []],
            "Sync": [[], [], [], [], [], [row(reads=[0])], [], []],
        },
        (LOOP, 0),
        (TEST, 0),
        (CASE, 1),
        (END, 1),
        (CASE, 2),
        (END, 2),
        (END, 0),
    )
    breaches = proof(queues, blocks=(*A_LOOP, *branches(Q, Q))).texts
    assert len(breaches) == 2
    assert all("back to the start of while.3" in breach for breach in breaches)


def test_alike_ranks_are_proved_once():
    queues = {
        "Vector": [row(writes=[0], post=VECTOR)],
        "Sync": [row(reads=[0], wait=(VECTOR, 1))],
    }
    executable = placed(queues)
    assert prove_local(executable).classes == ("ranks 0..1",)
    sync = [queue.name for queue in executable.queues].index("Sync")
    both = np.array([[VECTOR, -1]], np.int32)
    column = attrs.evolve(executable.queues[sync].sync, wait_sem=both)
    changed = [*executable.queues]
    changed[sync] = attrs.evolve(changed[sync], sync=column)
    found = prove_local(attrs.evolve(executable, queues=tuple(changed)))
    assert found.classes == ("rank 0", "rank 1")
    assert len(found.texts) == 1
    assert "rank 1, queue Sync, pc 0" in found.texts[0]


def test_a_queue_that_waits_for_nobody_is_told():
    executable = placed({"Vector": [row(writes=[0])], "Sync": [row(reads=[0])]})
    sync = [queue.name for queue in executable.queues].index("Sync")
    (breach,) = prove_local(with_waits(executable, sync, {0: (VECTOR, 1)})).texts
    assert breach == (
        "rank 0, queue Sync, pc 0 (copy): waits for what no queue of its rank increments in time"
    )


def test_fifty_conditionals_in_a_row_take_no_time():
    text = [
        "HloModule conditionals, replica_count=2",
        "by_tanh {\n p = f32[8] parameter(0)\n ROOT q = f32[8] tanh(p)\n}",
        "by_negate {\n p = f32[8] parameter(0)\n ROOT q = f32[8] negate(p)\n}",
    ]
    text.append("ENTRY main {\n x0 = f32[8] parameter(0)\n c = pred[] parameter(1)")
    called = "true_computation=by_tanh, false_computation=by_negate"
    text += [f" x{k + 1} = f32[8] conditional(c, x{k}, x{k}), {called}" for k in range(50)]
    text.append(" ROOT y = f32[8] add(x50, x0)\n}")
    executable = ncc_runtime.load(ncc_compiler.compile_text("\n".join(text))).executable
    found = prove_local(executable)
    assert found.holds
    assert len(executable.program.blocks) == 100
    assert found.seconds < 3
