"""Collectives whose races are proved, other waits of their CC-cores, and parts of the proof."""

from collections.abc import Iterator

import attrs
import numpy as np

import ncc_compiler
import ncc_runtime
from ncc_runtime.lowering.executable import IDLE, CcQueue, Executable
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.order import Obligations, OrderedQueues
from ncc_runtime.verify.deadlock import greedy, prove_deadlock
from ncc_runtime.verify.proof import Proof
from ncc_runtime.verify.races import obligations_of, prove_races
from ncc_runtime.verify.segments import segments
from ncc_runtime.verify.symmetry import proved_by_rotation
from tests.mutant_edits import with_queue, with_wait
from tests.programs import collective_program

ALL_REDUCE = CollectiveOp.ALL_REDUCE
RING = {"all-reduce": "ring"}


def ring(ranks: int, elements: int | None = None, **place: object) -> Executable:
    """A ring all-reduce between two buffers."""
    program = collective_program(ALL_REDUCE, ranks, [elements or 4 * ranks])
    return ncc_runtime.load(program, "trn2", algorithms=RING, **place).executable


def in_place(ranks: int, algorithm: str, elements: int, **place: object) -> Executable:
    """An all-reduce that writes where it reads."""
    program = ncc_compiler.compile_text(f"""HloModule m, replica_count={ranks}
    sum {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }}
    ENTRY e {{
      x = f32[{elements}] parameter(0)
      y = f32[{elements}] add(x, x)
      z = f32[{elements}] all-reduce(y), replica_groups={{}}, to_apply=sum
      ROOT w = f32[{elements}] add(z, z)
    }}""")
    algorithms = {"all-reduce": algorithm}
    executable = ncc_runtime.load(program, "trn2", algorithms=algorithms, **place).executable
    assert executable.program.placeholders[0].in_place
    return executable


def proof(executable: Executable) -> Proof:
    """That of races, or of deadlock if that is refuted."""
    deadlock, run = prove_deadlock(executable)
    return prove_races(executable, segments(executable), run) if deadlock.holds else deadlock


def cc_of(executable: Executable) -> tuple[int, CcQueue]:
    return next((n, q) for n, q in enumerate(executable.queues) if isinstance(q, CcQueue))


def waiting(executable: Executable) -> Iterator[tuple[int, int]]:
    """(row, rank) of every wait of the CC-cores but the first, which is for the trigger."""
    _, queue = cc_of(executable)
    shape = (len(queue.opcode), executable.ranks)
    sem = np.broadcast_to(queue.sync.wait_sem, shape)
    yield from ((row, rank) for row, rank in np.argwhere(sem != IDLE).tolist() if row)


def with_other_wait(executable: Executable, row: int, rank: int, by: int | None) -> Executable:
    """One rank waits at a row for more or less than it did, or, by None, for nothing."""
    number, queue = cc_of(executable)
    if by is None:
        return with_wait(executable, number, (row, rank), IDLE, 0)
    sync = queue.sync
    sem = int(sync.wait_sem[row, rank % sync.wait_sem.shape[1]])
    value = int(sync.wait_value[row, rank % sync.wait_value.shape[1]])
    return with_wait(executable, number, (row, rank), sem, value + by)


def without_waits(executable: Executable, row: int) -> Executable:
    """No rank waits at a row."""
    number, queue = cc_of(executable)
    sem = np.array(queue.sync.wait_sem)
    sem[row] = IDLE
    sync = attrs.evolve(queue.sync, wait_sem=sem)
    return with_queue(executable, number, attrs.evolve(queue, sync=sync))


def general(executable: Executable) -> tuple[OrderedQueues, Obligations]:
    """The queues of the one segment, and what they must know; all ranks by themselves."""
    (segment,) = segments(executable)
    return obligations_of(segment, greedy(executable))


def classes_of(executable: Executable) -> str | None:
    (segment,) = segments(executable)
    return proved_by_rotation(segment)
