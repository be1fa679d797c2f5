"""Proofs of collectives that several programs share, or that only some ranks run."""

import random
from collections.abc import Iterator

import attrs
import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Executable, is_run_by
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.verify.deadlock import greedy
from ncc_runtime.verify.races import prove_races
from ncc_runtime.verify.segments import segments
from ncc_runtime.verify.semantics.semantics import prove_semantics
from tests.mutant_edits import with_cells, with_queue, with_source, with_wait
from tests.programs import collective_program
from tests.stage_programs import cut, stage

ALL = [(op, name) for op, names in ALGORITHMS.items() for name in names]
CUTS = {
    "halves": [range(4), range(4, 8)],
    "turns": [range(0, 8, 2), range(1, 8, 2)],
    "three": [range(1), range(1, 4), range(4, 8)],
}
WHO = "use_global_device_ids=true, to_apply=sum"
HALVES = ((0, 1, 2, 3), (4, 5, 6, 7))


def program_of(op: CollectiveOp, groups: tuple[tuple[int, ...], ...] = (), **more) -> Program:
    sizes = [] if op is CollectiveOp.BARRIER else [24, 8]
    sizes = sizes[:1] if op.is_counted else sizes
    if op is CollectiveOp.PERMUTE:
        more["pairs"], groups = ((1, 3), (3, 1), (5, 7), (7, 5), (2, 6)), ()
    return collective_program(op, 8, sizes, root=1, groups=groups, **more)


def placed(program: Program, parts: str = "halves", algorithm: str = "ring") -> Executable:
    """The program cut into stages, each with addresses of its own."""
    forced = {program.placeholders[0].op.value: algorithm}
    return ncc_runtime.load(cut(program, CUTS[parts]), "trn2", algorithms=forced).executable


def breaches(executable: Executable) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the proofs of semantics and of races say."""
    found = segments(executable)
    run = greedy(executable)
    semantics = prove_semantics(executable, found, run)
    return semantics.texts, prove_races(executable, found, run).texts


NOTHING: tuple[tuple[str, ...], tuple[str, ...]] = (), ()


@pytest.mark.parametrize(("op", "name"), ALL)
def test_every_algorithm_is_proved_over_stages_and_inside_of_them(
    op: CollectiveOp, name: str
) -> None:
    for parts, groups in zip(CUTS, ((), HALVES, ((0, 4, 1, 5), (2, 3, 6, 7))), strict=True):
        try:
            executable = placed(program_of(op, groups), parts, name)
        except LoweringError as error:
            if "cannot run by" not in str(error):
                raise
            continue
        assert breaches(executable) == NOTHING


def test_a_collective_of_one_stage_knows_its_own_ranks_only() -> None:
    executable = placed(program_of(CollectiveOp.ALL_TO_ALL, HALVES), algorithm="pairwise")
    (one,) = segments(executable)
    assert one.numbers == (0, 1)
    assert one.ranks == 4
    assert one.placeholder.groups == ((0, 1, 2, 3),)


def test_alike_ranks_of_different_stages_are_one_class() -> None:
    executable = placed(program_of(CollectiveOp.ALL_REDUCE))
    (text,) = prove_races(executable, segments(executable), greedy(executable)).classes
    assert "ranks 0..7 as one class of 8" in text


def test_a_class_is_named_by_the_ranks_of_its_stage() -> None:
    busy = stage(
        f"""
  x = f32[64] parameter(0)
  ROOT y = f32[64] all-reduce(x), channel_id=1, replica_groups={{{{0,1,2,3}},{{4,5,6,7}}}}, {WHO}"""
    )
    silent = stage("  x = f32[3] parameter(0)\n  ROOT y = f32[3] negate(x)")
    executable = ncc_runtime.load(
        [(silent, range(4)), (busy, range(4, 8))], algorithms={"all-reduce": "ring"}
    ).executable
    (text,) = prove_races(executable, segments(executable), greedy(executable)).classes
    assert "ranks 4..7 as one class of 4 by rotation along lane 0 (4 -> 5 -> 6 -> 7 -> 4)" in text


# what is wrong is seen as it is in a program that all run


def ring_of(executable: Executable, rank: int) -> tuple[int, DmaQueue]:
    return next(
        (number, queue)
        for number, queue in enumerate(executable.queues)
        if isinstance(queue, DmaQueue) and queue.lane == 0 and is_run_by(queue, rank)
    )


def core_of(executable: Executable, rank: int) -> tuple[int, CcQueue]:
    return next(
        (number, queue)
        for number, queue in enumerate(executable.queues)
        if isinstance(queue, CcQueue) and is_run_by(queue, rank)
    )


def broken(whole: Executable, joint: Executable, pick: random.Random) -> Iterator[Executable]:
    """Both with the same cell changed."""
    rank, kind = pick.randrange(8), pick.choice(["wait", "target", "source", "size_bytes", "peer"])
    by = pick.choice([-4, 4, 8])
    _, core = core_of(whole, rank)
    _, ring = ring_of(whole, rank)
    waiting = np.flatnonzero(np.broadcast_to(core.sync.wait_sem, (len(core.opcode), 8))[1:, rank])
    at = int(pick.choice(waiting.tolist())) + 1
    row = int(pick.choice(np.flatnonzero(ring.peer[:, rank] != IDLE).tolist()))
    peer = pick.choice([one for one in range(8) if one != rank])
    for executable in (whole, joint):
        number, ring = ring_of(executable, rank)
        if kind == "wait":
            yield with_wait(executable, core_of(executable, rank)[0], (at, rank), IDLE, 0)
        elif kind == "source":
            address = int(ring.sources[row, rank, 0])
            yield with_source(executable, number, (row, rank), 0, address + by)
        elif kind == "peer":
            yield with_cells(executable, number, (row, rank), {"peer": peer})
        else:
            value = int(np.broadcast_to(getattr(ring, kind), (len(ring.opcode), 8))[row, rank])
            yield with_cells(executable, number, (row, rank), {kind: max(0, value + by)})


@pytest.mark.parametrize("parts", CUTS)
@pytest.mark.parametrize("algorithm", ["ring", "mesh", "rdh"])
def test_a_fault_is_found_in_stages_where_it_is_in_the_whole(algorithm: str, parts: str) -> None:
    program = program_of(CollectiveOp.ALL_REDUCE)
    whole = ncc_runtime.load(program, "trn2", algorithms={"all-reduce": algorithm}).executable
    joint = placed(program, parts, algorithm)
    found = []
    for seed in range(16):
        verdicts = [verdict(one) for one in broken(whole, joint, random.Random(seed))]
        assert verdicts[0] == verdicts[1], seed
        found.append(verdicts[0])
    assert "race" in found
    assert "wrong" in found


def verdict(executable: Executable) -> str:
    """Where there is a race, results depend on an order, which may be another."""
    semantics, races = breaches(executable)
    return "race" if races else "wrong" if semantics else "fine"


# witnesses


LATE = """
  w = f32[64] parameter(1)
  x = f32[8] parameter(0)
  n = f32[8] all-reduce(x), channel_id=1, replica_groups={{0,1,2,3},{4,5},{6,7}}, WHO
  m = f32[8] negate(n)
  ROOT y = f32[8] all-reduce(m), channel_id=2, replica_groups={{0,1,2,3,4,5,6,7}}, WHO"""
EARLY = """
  x = f32[8] parameter(0)
  m = f32[8] negate(x)
  y = f32[8] all-reduce(m), channel_id=2, replica_groups={{0,1,2,3,4,5,6,7}}, WHO
  ROOT r = (f32[8], f32[8]) tuple(y, m)"""


def late_and_early() -> Executable:
    """Ranks 4 to 7 come to the shared collective later, in other rows, and perform it in place."""
    early, late = (stage(text.replace("WHO", WHO)) for text in (EARLY, LATE))
    parts = [(early, range(4)), (late, range(4, 8))]
    return ncc_runtime.load(parts, algorithms={"all-reduce": "ring"}).executable


def shared(executable: Executable, rank: int) -> tuple[int, int, DmaQueue]:
    """The rank's ring, and the first row of the shared collective there."""
    number, ring = ring_of(executable, rank)
    (wanted,) = (
        n for n, one in enumerate(executable.program.placeholders) if len(one.groups[0]) == 8
    )
    return number, int(np.flatnonzero(ring.placeholder == wanted)[0]), ring


def test_one_stage_may_have_a_collective_in_place_and_another_apart() -> None:
    assert breaches(late_and_early()) == NOTHING


@pytest.mark.parametrize("rank", [1, 6])
def test_a_witness_stands_in_the_rows_of_the_ranks_own_stage(rank: int) -> None:
    executable = late_and_early()
    number, first, _ = shared(executable, rank)
    less = with_cells(executable, number, (first, rank), {"size_bytes": 0})
    (text,), _ = breaches(less)
    assert "the contribution of rank" in text
    core, queue = core_of(executable, rank)
    row = int(np.flatnonzero(queue.placeholder == queue.placeholder[-1])[3])
    sem = np.broadcast_to(queue.sync.wait_sem, (len(queue.opcode), 8))
    row = next(at for at in range(row, len(sem)) if sem[at, rank] != IDLE)
    late = with_wait(executable, core, (row, rank), IDLE, 0)
    (text, *_) = breaches(late)[1]
    assert f"missing: rank {rank}, queue cc0, pc {row} (" in text


def test_an_operand_is_written_only_where_it_is_the_result() -> None:
    executable = late_and_early()
    number, row, ring = shared(executable, 1)
    operand = next(part.bindings[0] for part in segments(executable) if part.ranks == 8)
    assert ring.peer[row, 1] == 2
    wrong = with_cells(executable, number, (row, 1), {"target": operand.start})
    text = "\n".join(breaches(wrong)[0])
    assert f"writes {operand.start:#x}..{operand.start + 4:#x} of rank 2, which it must not" in text


def test_memory_of_another_layout_is_nobodys() -> None:
    executable = late_and_early()
    (bindings,) = (one.bindings for one in segments(executable) if one.ranks == 8)
    later = next(one for one in bindings if one.members == (4, 5, 6, 7))
    number, row, _ = shared(executable, 1)
    address = later.start % (1 << 48)
    assert not any(one.start <= address < one.end for one in bindings)
    text = "\n".join(breaches(with_source(executable, number, (row, 1), 0, address))[0])
    assert f"rank 1, queue cc0.dma0, pc {row}" in text
    assert f"reads {address:#x}..{address + 4:#x} of rank 1, which it must not read" in text


def test_who_does_not_take_part_is_not_written_to() -> None:
    executable = late_and_early()
    number, ring = ring_of(executable, 6)
    assert ring.peer[0, 6] == 7
    wrong = with_cells(executable, number, (0, 6), {"peer": 2})
    text = "\n".join(breaches(wrong)[0])
    assert "rank 6, queue cc0.dma0, pc 0" in text
    assert "of rank 2, which it must not write" in text


def test_more_increments_in_one_stage_are_seen_by_it_alone() -> None:
    executable = placed(program_of(CollectiveOp.ALL_REDUCE))
    number, ring = ring_of(executable, 5)
    sync = attrs.evolve(ring.sync, posts=(*ring.sync.posts, ring.sync.posts[0]))
    more = with_queue(executable, number, attrs.evolve(ring, sync=sync))
    (one,) = segments(more)
    assert (one.rings[0].posts[-1].rank[:, :4] == IDLE).all()
    assert (one.rings[0].posts[-1].rank[:, 4:] != IDLE).any()
