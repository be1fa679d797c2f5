"""Increments in a block that ranks wait for: only of those who go the same way there."""

import attrs
import numpy as np

import ncc_compiler
import ncc_runtime
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Executable, Queue
from ncc_runtime.verify.counters import prove_counters
from tests.mutant_edits import with_more_posts, with_shift, with_wait
from tests.small_executables import breach, number_of


def branching(results: str) -> Executable:
    """Groups (0, 1) and (2, 3) that go through a branch each by a predicate of its own."""
    program = ncc_compiler.compile_text(f"""HloModule m, replica_count=4
    sum {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }}
    yes {{
      p = f32[8] parameter(0)
      r = f32[8] all-reduce(p), replica_groups={{{{0,1}},{{2,3}}}}, to_apply=sum
      {results}
    }}
    no {{ p = f32[8] parameter(0)  ROOT r = f32[8] add(p, p) }}
    ENTRY e {{
      c = pred[] parameter(0)
      x = f32[8] parameter(1)
      ROOT z = f32[8] conditional(c, x, x), true_computation=yes, false_computation=no
    }}""")
    return ncc_runtime.load(program, algorithms={"all-reduce": "ring"}).executable


def with_one_more_semaphore(executable: Executable) -> Executable:
    def widened(queue: Queue) -> Queue:
        if isinstance(queue, DmaQueue):
            return queue
        jumps = {
            row: attrs.evolve(jump, shift=np.pad(jump.shift, ((0, 0), (0, 1))))
            for row, jump in queue.jumps.items()
        }
        return attrs.evolve(queue, jumps=jumps)

    return attrs.evolve(
        executable,
        semaphore_count=executable.semaphore_count + 1,
        queues=tuple(map(widened, executable.queues)),
    )


def told_by_the_other_group(executable: Executable) -> Executable:
    """In the branch, rank 0 waits for a transfer of rank 2."""
    sem, executable = executable.semaphore_count, with_one_more_semaphore(executable)
    core, ring = number_of(executable, "cc0"), number_of(executable, "cc0.dma0")
    queue = executable.queues[core]
    assert isinstance(queue, CcQueue)
    last = int(np.flatnonzero((queue.sync.wait_sem[:, 0] == IDLE) & (queue.placeholder == 0))[-1])
    executable = with_more_posts(executable, ring, (0, 2), (0, sem))
    executable = with_wait(executable, core, (last, 0), sem, 1)
    (jump,) = queue.jumps
    return with_shift(executable, core, jump, (0, sem), -1)


def test_groups_that_may_part_wait_for_themselves_only():
    assert prove_counters(branching("ROOT s = f32[8] add(r, r)")).holds


def test_a_wait_for_a_rank_that_may_pass_over_the_block_is_named():
    told = told_by_the_other_group(branching("ROOT s = f32[8] add(r, r)"))
    assert breach(
        prove_counters(told),
        r"^rank 2, queue cc0.dma0, pc 0 \(p0 r\): increments s\d+ of rank 0, which may go another "
        "way at k0; no collective of k0 ties the two$",
    )


def test_a_collective_of_the_block_ties_the_ranks_of_its_groups():
    all_ranks = "ROOT s = f32[8] all-reduce(r), replica_groups={{0,1,2,3}}, to_apply=sum"
    assert prove_counters(told_by_the_other_group(branching(all_ranks))).holds


def test_ranks_are_tied_by_way_of_others():
    middle = "ROOT s = f32[8] all-reduce(r), replica_groups={{0},{1,2},{3}}, to_apply=sum"
    assert prove_counters(told_by_the_other_group(branching(middle))).holds
