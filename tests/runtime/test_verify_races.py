"""The proof of races inside a collective: no false alarm, no race unseen, what witnesses say."""

import contextlib
import random
from collections.abc import Callable, Iterator

import attrs
import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable
from ncc_runtime.neff.placeholder import CollectiveOp
from tests.mutant_edits import with_post, with_queue
from tests.programs import LINK_DOWN, collective_program
from tests.race_oracle import Oracle
from tests.race_programs import (
    ALL_REDUCE,
    RING,
    in_place,
    proof,
    ring,
    waiting,
    with_other_wait,
    without_waits,
)

EVERY = [(op, name) for op in CollectiveOp for name in ALGORITHMS[op]]

PLACES = {
    "four on a chip": (4, "trn2", {}),
    "three on a chip": (3, "trn2", {}),
    "two on each of four chips": (8, "trn1", {}),
    "eight chips": (8, "trn2", {"placement": "spread"}),
    "two instances": (16, "trn2", {"nodes": 2}),
    "64 of an instance": (64, "trn2", {}),
    "four instances joined by Z": (32, "trn2-ultraserver", {"placement": "spread"}),
    "a link down": (64, LINK_DOWN, {}),
}


def collective(
    op: CollectiveOp, name: str, ranks: int, topology: str = "trn2", elements: int = 6, **place
) -> Executable:
    """One collective of a chunk of `elements` each and a few more; LoweringError if unsuited."""
    total = elements * ranks
    if op in (ALL_REDUCE, CollectiveOp.BROADCAST, CollectiveOp.REDUCE):
        total += 2  # chunks of different sizes
    sizes = [] if op is CollectiveOp.BARRIER else [total]
    pairs = tuple((rank, rank // 2) for rank in range(0, ranks, 2))
    pairs = pairs if op is CollectiveOp.PERMUTE else ()
    program = collective_program(op, ranks, sizes, pairs=pairs)
    return ncc_runtime.load(program, topology, algorithms={op.value: name}, **place).executable


# no false alarm


@pytest.mark.parametrize(("op", "name"), EVERY, ids=lambda part: getattr(part, "value", part))
def test_what_algorithms_make_is_free_of_races(op: CollectiveOp, name: str) -> None:
    made = []
    for ranks, topology, how in PLACES.values():
        with contextlib.suppress(LoweringError):  # does not suit the group
            made.append(proof(collective(op, name, ranks, topology, **how)))
    assert made
    assert [breach for one in made for breach in one.texts] == []


@pytest.mark.parametrize("elements", [1, 64, 96, 1 << 16])
@pytest.mark.parametrize("algorithm", ["ring", "mesh", "rdh", "kangaring", "single-step-mesh"])
def test_collectives_in_place_are_free_of_races(algorithm: str, elements: int) -> None:
    assert proof(in_place(16, algorithm, elements)).texts == ()


@pytest.mark.parametrize("algorithm", ["hier.ring.ring", "hier.mesh.rdh", "hier.rdh.mesh"])
def test_hierarchies_in_place_are_free_of_races(algorithm: str) -> None:
    assert proof(in_place(32, algorithm, 1 << 18, nodes=2)).texts == ()


def test_groups_side_by_side_and_of_two_sizes_are_free_of_races() -> None:
    for groups in (((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 3, 5), (1, 2, 4, 6, 7))):
        program = collective_program(ALL_REDUCE, 8, [30], groups=groups)
        for name in ("ring", "mesh", "tree"):
            model = ncc_runtime.load(program, algorithms={"all-reduce": name})
            assert proof(model.executable).texts == ()


def test_alike_collectives_one_after_another_are_one_segment_and_count_each_transfer() -> None:
    program = collective_program(ALL_REDUCE, 4, [24], repeat=3)
    made = proof(ncc_runtime.load(program, algorithms=RING).executable)
    assert made.texts == ()
    assert made.size == "84 transfers of 3 collectives (1 distinct)"


# what brute force says


SMALL = {
    "ring": lambda: collective(ALL_REDUCE, "ring", 4),
    "ring in place": lambda: in_place(4, "ring", 16),
    "mesh": lambda: collective(ALL_REDUCE, "mesh", 4, placement="spread"),
    "mesh on a chip": lambda: collective(ALL_REDUCE, "mesh", 4),
    "kangaring": lambda: collective(ALL_REDUCE, "kangaring", 4),
    "rdh": lambda: collective(CollectiveOp.REDUCE_SCATTER, "rdh", 4, placement="spread"),
    "tree": lambda: collective(ALL_REDUCE, "tree", 3),
    "hierarchy": lambda: collective(ALL_REDUCE, "hier.ring.ring", 4, nodes=2),
    "bruck": lambda: collective(CollectiveOp.ALL_TO_ALL, "bruck", 4),
    "chain": lambda: collective(CollectiveOp.BROADCAST, "chain", 4),
}


@pytest.mark.parametrize("name", SMALL)
def test_a_dropped_wait_is_found_unless_brute_force_says_it_orders_nothing(name: str) -> None:
    executable = SMALL[name]()
    found = 0
    for row, rank in waiting(executable):
        mutant = with_other_wait(executable, row, rank, None)
        made = proof(mutant)
        assert made.holds == Oracle(mutant).is_free_of_races(), (row, rank, made.texts)
        found += not made.holds
    assert found


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("by", [-1, 1])
def test_another_value_is_judged_as_brute_force_judges_it(name: str, by: int) -> None:
    executable = SMALL[name]()
    sites = random.Random(3).sample(list(waiting(executable)), 10)
    for row, rank in sites:
        mutant = with_other_wait(executable, row, rank, by)
        made = proof(mutant)
        assert made.holds == Oracle(mutant).is_free_of_races(), (row, rank, made.texts)


@pytest.mark.parametrize("name", SMALL)
def test_a_lost_increment_or_a_moved_target_is_judged_as_brute_force_judges_it(name: str) -> None:
    executable = SMALL[name]()
    for mutant in random.Random(5).sample(list(_ring_mutants(executable)), 12):
        changed = mutant()
        made = proof(changed)
        assert made.holds == Oracle(changed).is_free_of_races(), made.texts


def _ring_mutants(executable: Executable) -> Iterator[Callable[[], Executable]]:
    for number, queue in enumerate(executable.queues):
        if not isinstance(queue, DmaQueue):
            continue
        for row, rank in np.argwhere(queue.peer != IDLE).tolist():
            for which, post in enumerate(queue.sync.posts):
                if post.rank[row, rank] != IDLE:
                    yield lambda n=number, w=which, cell=(row, rank): with_post(
                        executable, n, w, cell, (IDLE, IDLE)
                    )
            for by in (-8, 8):
                yield lambda n=number, q=queue, cell=(row, rank), by=by: _moved(
                    executable, n, q, cell, by
                )


def _moved(
    executable: Executable, number: int, queue: DmaQueue, cell: tuple[int, int], by: int
) -> Executable:
    target = np.array(queue.target)
    target[cell] = max(0, target[cell] + by)
    return with_queue(executable, number, attrs.evolve(queue, target=target))


def test_a_barrier_holds_until_a_wait_is_dropped_that_keeps_it() -> None:
    executable = collective(CollectiveOp.BARRIER, "dissemination", 8)
    assert proof(executable).texts == ()
    left_early = 0
    for row, rank in waiting(executable):
        mutant = with_other_wait(executable, row, rank, None)
        made = proof(mutant)
        assert made.holds == Oracle(mutant).is_a_barrier()
        left_early += any("leaves the barrier before rank" in one for one in made.texts)
    assert left_early


# witnesses


def test_a_witness_names_both_rows_what_they_touch_and_the_missing_wait() -> None:
    made = proof(with_other_wait(ring(4, 24), 8, 0, None))
    assert made.texts[0].splitlines() == [
        "race: result 0 0x48..0x60 of rank 0 are read and written in no order",
        "  rank 3, queue cc0.dma0, pc 4 (p0 all-reduce.0), round 4: "
        "writes result 0 0x48..0x60 of rank 0",
        "  rank 0, queue cc0.dma0, pc 5 (p0 all-reduce.0), round 5: "
        "reads result 0 0x48..0x60 of rank 0",
        "  missing: rank 0, queue cc0, pc 8 (p0 all-reduce.0) does not wait for cc0.data.3.0 >= 4",
    ]


def test_writing_before_the_peer_has_come_is_a_race_with_its_trigger() -> None:
    made = proof(with_other_wait(ring(4), 2, 0, None))
    assert made.texts[0].startswith("race: the memory of rank 1 is used before that rank has")
    assert "does not wait for cc0.ready.1.0 >= 1" in made.texts[0]


def test_completion_reported_too_early_is_a_race_with_what_still_arrives() -> None:
    made = proof(with_other_wait(ring(4), 10, 2, None))
    first, *rest = made.texts[0].splitlines()
    assert first == (
        "race: rank 2, queue cc0, pc 12 (p0 all-reduce.0) reports completion while its memory "
        "is still in use"
    )
    assert rest[-1].endswith("does not wait for cc0.data.1.0 >= 6")


def test_values_in_witnesses_count_from_the_start_of_the_program() -> None:
    program = collective_program(ALL_REDUCE, 4, [24], repeat=2)
    executable = ncc_runtime.load(program, algorithms=RING).executable
    made = proof(with_other_wait(executable, 21, 0, None))
    assert (
        "queue cc0, pc 21 (p1 all-reduce.1) does not wait for cc0.data.3.0 >= 10" in (made.texts[0])
    )


def test_witnesses_are_few_and_the_others_are_counted() -> None:
    executable = ring(16, placement="spread")
    last = max(row for row, _ in waiting(executable))  # for what a ring has sent itself
    made = proof(without_waits(executable, last))
    assert len(made.texts) == 3
    assert made.texts[-1].endswith("and 13 more in this collective")
