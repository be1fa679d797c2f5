"""Faults of counted collectives that a proof finds, each with the proof that does."""

from collections.abc import Callable

import attrs
import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.errors import ProofError
from ncc_runtime.lowering.cc_isa import CcOpcode, DmaOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Executable
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.verify.counters import Edges
from ncc_runtime.verify.deadlock import prove_deadlock
from ncc_runtime.verify.prove import prove, refuse
from ncc_runtime.verify.segments import segments
from ncc_runtime.verify.semantics.semantics import prove_semantics
from tests import mutant_edits as edit
from tests.counted_programs import OPS, SLOTTED, Shape, text_of

Edit = Callable[[Executable], Executable]


def executable_of(op: str, **sizes: int) -> Executable:
    shape = Shape(groups=((2, 0, 1), (3, 4, 5)), **sizes)
    return ncc_runtime.load(ncc_compiler.compile_text(text_of(op, shape))).executable


def numbers(executable: Executable, name: str) -> int:
    return [queue.name for queue in executable.queues].index(name)


def row_of(queue: DmaQueue, rank: int) -> int:
    """The first row of a ring that a rank performs."""
    return int(np.flatnonzero(queue.peer[:, rank] != IDLE)[0])


def register(column: str, ring: int, rank: int, change: Callable[[int], int]) -> Edit:
    """Another register in a rank's first row of a ring."""

    def made(executable: Executable) -> Executable:
        number = numbers(executable, f"cc0.dma{ring}")
        queue = executable.queues[number]
        assert isinstance(queue, DmaQueue)
        assert queue.registers is not None
        values = np.array(getattr(queue.registers, column))
        row = row_of(queue, rank)
        values[row, rank] = change(int(values[row, rank]))
        registers = attrs.evolve(queue.registers, **{column: values})
        return edit.with_queue(executable, number, attrs.evolve(queue, registers=registers))

    return made


def other_slot(executable: Executable) -> Executable:
    """A transfer into the slot of another member."""
    number = numbers(executable, "cc0.dma1")
    queue = executable.queues[number]
    assert isinstance(queue, DmaQueue)
    row = row_of(queue, 3)
    target = int(queue.target[row, 3])
    own = numbers(executable, "cc0.dma2")
    other = executable.queues[own]
    assert isinstance(other, DmaQueue)
    its_row, at = (int(one[0]) for one in np.nonzero(other.peer == queue.peer[row, 3]))
    assert int(other.target[its_row, at]) != target
    values = {"target": int(other.target[its_row, at])}
    return edit.with_cells(executable, number, (row, 3), values)


def with_core(executable: Executable, change: Callable[[CcQueue], CcQueue]) -> Executable:
    number = numbers(executable, "cc0")
    queue = executable.queues[number]
    assert isinstance(queue, CcQueue)
    return edit.with_queue(executable, number, change(queue))


def without_load(executable: Executable) -> Executable:
    """The first LOAD waits for nothing instead."""

    def change(queue: CcQueue) -> CcQueue:
        row = min(queue.loads)
        opcode = np.array(queue.opcode)
        opcode[row] = CcOpcode.WAIT
        loads = {at: load for at, load in queue.loads.items() if at != row}
        return attrs.evolve(queue, opcode=opcode, loads=loads)

    return with_core(executable, change)


def load_after_use(executable: Executable) -> Executable:
    """The last LOAD comes as the row before DONE."""
    number = numbers(executable, "cc0")
    queue = executable.queues[number]
    assert isinstance(queue, CcQueue)
    row, rows = max(queue.loads), list(range(len(queue.opcode)))
    order = [*rows[:row], *rows[row + 1 : -1], row, rows[-1]]
    loads = {order.index(at): load for at, load in queue.loads.items()}
    bare = edit.with_cc_rows(executable, number, order)
    return with_core(bare, lambda core: attrs.evolve(core, loads=loads))


def load_again(executable: Executable) -> Executable:
    """The first LOAD stands there twice, the second time before DONE."""
    number = numbers(executable, "cc0")
    queue = executable.queues[number]
    assert isinstance(queue, CcQueue)
    row, rows = min(queue.loads), list(range(len(queue.opcode)))
    order = [*rows[:-1], row, rows[-1]]
    loads = {**queue.loads, len(rows) - 1: queue.loads[row]}
    bare = edit.with_cc_rows(executable, number, order)
    return with_core(bare, lambda core: attrs.evolve(core, loads=loads))


def other_table(executable: Executable) -> Executable:
    """The first LOAD reads a word further."""

    def change(queue: CcQueue) -> CcQueue:
        row = min(queue.loads)
        load = queue.loads[row]
        moved = attrs.evolve(load, address=load.address + load.dtype.size_bytes)
        return attrs.evolve(queue, loads={**queue.loads, row: moved})

    return with_core(executable, change)


def other_type(executable: Executable) -> Executable:
    """The first LOAD takes its words for floats."""

    def change(queue: CcQueue) -> CcQueue:
        row = min(queue.loads)
        taken = attrs.evolve(queue.loads[row], dtype=DType.F32)
        return attrs.evolve(queue, loads={**queue.loads, row: taken})

    return with_core(executable, change)


def smaller(executable: Executable) -> Executable:
    """Descriptors for less than a slot."""
    number = numbers(executable, "cc0.dma1")
    queue = executable.queues[number]
    assert isinstance(queue, DmaQueue)
    row = row_of(queue, 3)
    values = {"size_bytes": int(queue.size_bytes[row, 3]) - 4}
    return edit.with_cells(executable, number, (row, 3), values)


def refusal(executable: Executable) -> str:
    with pytest.raises(ProofError) as error:
        refuse(prove(executable))
    return str(error.value)


def semantics_breach(executable: Executable) -> str:
    """The first that the proof of semantics finds, whatever form says."""
    edges = Edges(executable)
    _, run = prove_deadlock(executable, edges)
    return prove_semantics(executable, segments(executable, edges), run).texts[0]


@pytest.mark.parametrize("op", OPS)
def test_what_the_runtime_fills_is_proved_on_a_condition(op: str) -> None:
    proofs = prove(executable_of(op, updates=2))
    assert all(proof.holds for proof in proofs)
    conditions = [one for proof in proofs for one in proof.conditions]
    assert len(conditions) == 1
    assert "checked when the counts are known" in conditions[0]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize(
    ("change", "said"),
    [
        (register("rows", 1, 3, lambda one: one ^ 1), "moves as many rows to rank 4 as"),
        (register("rows", 2, 2, lambda one: one - one % 3 + (one + 1) % 3), "moves as many rows"),
        (register("source", 1, 3, lambda one: one - 1), "takes its offsets from other words"),
        (register("source", 1, 3, lambda _: -1), "takes its offsets from other words"),
        (register("target", 1, 3, lambda one: max(one, 0) + 1), "takes its offsets from other"),
        (without_load, "exe-W23|exe-W24|not loaded before it is pushed|holds no word"),
        (load_after_use, "uses a length register that is not loaded before it is pushed"),
        (load_again, "loads register 0 again, while transfers may use it"),
        (other_table, "holds no word of its tables"),
        (other_type, "holds no word of its tables"),
        (smaller, "has descriptors for"),
    ],
)
def test_a_fault_is_found(op: str, change: Edit, said: str) -> None:
    found = refusal(change(executable_of(op)))
    assert any(one in found for one in said.split("|")), found


@pytest.mark.parametrize("op", SLOTTED)
def test_a_slot_of_another_member_is_found(op: str) -> None:
    found = refusal(other_slot(executable_of(op)))
    assert "slot" in found or "overlap" in found or "written twice" in found


def test_rows_that_nobody_joins_are_found() -> None:
    executable = executable_of("ncc.reduce_scatter_v")
    number = numbers(executable, "cc0.dma0")
    queue = executable.queues[number]
    assert isinstance(queue, DmaQueue)
    sources = np.array(queue.sources)
    sources[1, 2, 1] = sources[1, 2, 0]
    wrong = edit.with_queue(executable, number, attrs.evolve(queue, sources=sources))
    assert "joins the rows" in refusal(wrong)


@pytest.mark.parametrize(
    ("opcode", "said"),
    [
        (DmaOpcode.FILL, "is no copy and no reduction"),
        (DmaOpcode.COPY, "copies one of several sources"),
    ],
)
def test_slots_are_joined_by_reductions_only(opcode: DmaOpcode, said: str) -> None:
    executable = executable_of("ncc.reduce_scatter_v")
    number = numbers(executable, "cc0.dma0")
    queue = executable.queues[number]
    assert isinstance(queue, DmaQueue)
    codes = np.where(queue.opcode == DmaOpcode.REDUCE, opcode, queue.opcode).astype(np.uint8)
    wrong = edit.with_queue(executable, number, attrs.evolve(queue, opcode=codes))
    assert said in semantics_breach(wrong)


def test_zeros_that_a_fill_writes_are_nobodys_rows() -> None:
    """Before the reduction of a slot a FILL writes there, which has no source."""
    executable = executable_of("ncc.reduce_scatter_v")
    number = numbers(executable, "cc0.dma0")
    queue = executable.queues[number]
    assert isinstance(queue, DmaQueue)
    codes, sources = np.array(queue.opcode), np.array(queue.sources)
    row = int(np.flatnonzero(codes == DmaOpcode.REDUCE)[0])
    codes[row], sources[row] = DmaOpcode.FILL, IDLE
    queue = attrs.evolve(queue, opcode=codes, sources=sources)
    assert "joins nothing" in semantics_breach(edit.with_queue(executable, number, queue))


@pytest.mark.parametrize("op", OPS)
def test_no_register_can_be_another(op: str) -> None:
    shape = Shape(groups=((1, 0, 2),), updates=2)
    executable = ncc_runtime.load(ncc_compiler.compile_text(text_of(op, shape))).executable
    survivors = []
    for number, queue in enumerate(executable.queues):
        if not isinstance(queue, DmaQueue) or queue.registers is None:
            continue
        for name in ("rows", "source", "target"):
            column = getattr(queue.registers, name)
            known = int(column.max()) + 2
            for row, rank in np.ndindex(column.shape):
                for value in {-1, (column[row, rank] + 1) % known} - {int(column[row, rank])}:
                    edited = np.array(column)
                    edited[row, rank] = value
                    registers = attrs.evolve(queue.registers, **{name: edited})
                    changed = attrs.evolve(queue, registers=registers)
                    mutant = edit.with_queue(executable, number, changed)
                    if all(proof.holds for proof in prove(mutant)):
                        survivors.append((queue.name, name, row, rank, value))
    assert survivors == []
