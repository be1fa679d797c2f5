"""Small placed programs for the proofs of order, and ways to spoil them."""

import re

import numpy as np

import ncc_compiler
import ncc_runtime
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.verify.counters import prove_counters
from ncc_runtime.verify.deadlock import prove_deadlock
from ncc_runtime.verify.proof import Proof
from tests.mutant_edits import with_wait
from tests.programs import collective_program

LOOPED = """HloModule m, replica_count=4
add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT s = f32[] add(a,b) }
cond { p = (s32[], f32[8]) parameter(0)
 i = s32[] get-tuple-element(p), index=0
 n = s32[] constant(3)
 ROOT lt = pred[] compare(i, n), direction=LT }
body { p = (s32[], f32[8]) parameter(0)
 i = s32[] get-tuple-element(p), index=0
 x = f32[8] get-tuple-element(p), index=1
 one = s32[] constant(1)
 j = s32[] add(i, one)
 y = f32[8] all-reduce(x), replica_groups={}, to_apply=add
 z = f32[8] negate(y)
 ROOT r = (s32[], f32[8]) tuple(j, z) }
ENTRY e { x = f32[8] parameter(0)
 z = s32[] constant(0)
 t = (s32[], f32[8]) tuple(z, x)
 w = (s32[], f32[8]) while(t), condition=cond, body=body
 v = f32[8] get-tuple-element(w), index=1
 y = f32[8] all-reduce(v), replica_groups={}, to_apply=add
 ROOT r = f32[8] negate(y)
}
"""


def proofs(executable: Executable) -> tuple[Proof, Proof]:
    return prove_counters(executable), prove_deadlock(executable)[0]


def hold(executable: Executable) -> bool:
    return all(proof.holds for proof in proofs(executable))


def ring(ranks: int = 4, elements: int = 16) -> Executable:
    program = collective_program(CollectiveOp.ALL_REDUCE, ranks, [elements])
    return ncc_runtime.load(program, algorithms={"all-reduce": "ring"}).executable


def looped() -> Executable:
    return ncc_runtime.load(ncc_compiler.compile_text(LOOPED), "trn2").executable


def looped_without_collective() -> Executable:
    """The loop computes only; its all-reduce is gone, the one behind it is there."""
    text = LOOPED.replace("all-reduce(x), replica_groups={}, to_apply=add", "negate(x)")
    return ncc_runtime.load(ncc_compiler.compile_text(text), "trn2").executable


def number_of(executable: Executable, name: str) -> int:
    return [queue.name for queue in executable.queues].index(name)


def cell(column: np.ndarray, row: int, rank: int) -> int:
    """Of a column (n, ranks or 1)."""
    return int(column[row, min(rank, column.shape[1] - 1)])


def raised(executable: Executable, name: str, row: int, rank: int, by: int = 1) -> Executable:
    """One wait asks for more."""
    number = number_of(executable, name)
    sync = executable.queues[number].sync
    sem, value = cell(sync.wait_sem, row, rank), cell(sync.wait_value, row, rank)
    return with_wait(executable, number, (row, rank), sem, value + by)


def last_wait(executable: Executable, name: str, what: str) -> int:
    """The last row of a queue at which rank 0 waits for a semaphore of this name."""
    names = executable.semaphore_names(0)
    column = executable.queues[number_of(executable, name)].sync.wait_sem
    found = [row for row in range(len(column)) if names.get(cell(column, row, 0)) == what]
    return found[-1]


def breach(proof: Proof, pattern: str) -> bool:
    return any(re.search(pattern, text, re.DOTALL) for text in proof.texts)
