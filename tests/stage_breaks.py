"""An executable of two programs, and ways to break what is asked of several programs."""

import functools
from collections.abc import Callable

import attrs
import numpy as np

import ncc_runtime
from ncc_runtime.lowering.executable import IDLE, CcQueue, Executable, Post, Queue
from ncc_runtime.neff.placeholder import CollectiveOp
from tests import mutant_edits as edit
from tests.form_breaks import PUSH, Break
from tests.programs import collective_program
from tests.stage_programs import cut

Change = Callable[[Queue], Queue]


@functools.cache
def joint() -> Executable:
    """Two all-reduces over the cores of a chip, which two programs share."""
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [64], repeat=2)
    halves = cut(program, [range(2), range(2, 4)])
    return ncc_runtime.load(halves, "trn2", algorithms={"all-reduce": "ring"}).executable


def numbers_of(executable: Executable, name: str) -> list[int]:
    """The queues of that name, program by program."""
    return [number for number, queue in enumerate(executable.queues) if queue.name == name]


def of_second(name: str, change: Change) -> Break:
    """Another queue in the place of one of the second program."""

    def made(executable: Executable) -> Executable:
        number = numbers_of(executable, name)[1]
        return edit.with_queue(executable, number, change(executable.queues[number]))

    return made


def run_by(*ranks: int) -> Change:
    """Another set of ranks that run a queue; none: everybody."""
    return lambda queue: attrs.evolve(queue, ranks=np.array(ranks, np.int32) if ranks else None)


def at_row(column: str, row: int, value: int) -> Change:
    """Another value in a column that ranks share."""

    def change(queue: Queue) -> Queue:
        values = np.array(getattr(queue, column))
        values[row] = value
        return attrs.evolve(queue, **{column: values})

    return change


def without_rank(executable: Executable) -> Executable:
    """Nobody runs a program on rank 1."""
    first, second = executable.stages
    stages = (attrs.evolve(first, ranks=first.ranks[:1]), second)
    return attrs.evolve(executable, program=attrs.evolve(executable.program, stages=stages))


def partial(executable: Executable) -> Executable:
    """Rank 1 takes no part in a collective in which rank 0 does."""
    program = executable.program
    first, *others = program.placeholders
    placeholders = (attrs.evolve(first, ranks=(0, 2, 3)), *others)
    return attrs.evolve(executable, program=attrs.evolve(program, placeholders=placeholders))


def unpushed(queue: Queue) -> Queue:
    """A push of rank 2 does not count."""
    assert isinstance(queue, CcQueue)
    rank, sem = (np.array(one) for one in (queue.sync.posts[0].rank, queue.sync.posts[0].sem))
    rank[PUSH, 2] = sem[PUSH, 2] = IDLE
    return attrs.evolve(queue, sync=attrs.evolve(queue.sync, posts=(Post(rank, sem),)))
