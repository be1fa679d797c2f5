"""The proof of races inside a collective: no false alarm, no race unseen, alike ranks once."""

import contextlib
import random
from collections.abc import Callable, Iterator

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Executable, Post
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.verify.proof import Proof
from ncc_runtime.verify.races import accesses
from ncc_runtime.verify.races.accesses import Claims, claims_of
from ncc_runtime.verify.races.class_stretches import are_disjoint
from ncc_runtime.verify.races.classes import proved_by_turning
from ncc_runtime.verify.races.clocks import Chosen, Neighbours, lacking, unproved
from ncc_runtime.verify.races.races import prove_races
from ncc_runtime.verify.races.steps import Steps, chains_pushed, in_order, performed, waits_of
from ncc_runtime.verify.segments import Segment, segments
from tests.mutant_edits import with_post, with_queue, with_wait
from tests.programs import collective_program
from tests.race_oracle import Oracle

ALL_REDUCE = CollectiveOp.ALL_REDUCE
RING = {"all-reduce": "ring"}
EVERY = [(op, name) for op in CollectiveOp for name in ALGORITHMS[op]]

PLACES = {
    "four on a chip": (4, "trn2", {}),
    "three on a chip": (3, "trn2", {}),
    "two on each of four chips": (8, "trn1", {}),
    "eight chips": (8, "trn2", {"placement": "spread"}),
    "two instances": (16, "trn2", {"nodes": 2}),
    "64 of an instance": (64, "trn2", {}),
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
    return prove_races(executable, segments(executable))


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


# no false alarm


@pytest.mark.parametrize(("op", "name"), EVERY, ids=lambda part: getattr(part, "value", part))
def test_what_algorithms_make_is_free_of_races(op: CollectiveOp, name: str) -> None:
    made = []
    for ranks, topology, how in PLACES.values():
        with contextlib.suppress(LoweringError):  # does not suit the group
            made.append(proof(collective(op, name, ranks, topology, **how)))
    assert made
    assert [breach for one in made for breach in one.breaches] == []


@pytest.mark.parametrize("elements", [1, 64, 96, 1 << 16])
@pytest.mark.parametrize("algorithm", ["ring", "mesh", "rdh", "kangaring", "single-step-mesh"])
def test_collectives_in_place_are_free_of_races(algorithm: str, elements: int) -> None:
    assert proof(in_place(16, algorithm, elements)).breaches == ()


@pytest.mark.parametrize("algorithm", ["hier.ring.ring", "hier.mesh.rdh", "hier.rdh.mesh"])
def test_hierarchies_in_place_are_free_of_races(algorithm: str) -> None:
    assert proof(in_place(32, algorithm, 1 << 18, nodes=2)).breaches == ()


def test_groups_side_by_side_and_of_two_sizes_are_free_of_races() -> None:
    for groups in (((0, 1, 2, 3), (4, 5, 6, 7)), ((0, 3, 5), (1, 2, 4, 6, 7))):
        program = collective_program(ALL_REDUCE, 8, [30], groups=groups)
        for name in ("ring", "mesh", "tree"):
            model = ncc_runtime.load(program, algorithms={"all-reduce": name})
            assert proof(model.executable).breaches == ()


def test_alike_collectives_one_after_another_are_one_segment_and_count_each_transfer() -> None:
    program = collective_program(ALL_REDUCE, 4, [24], repeat=3)
    made = proof(ncc_runtime.load(program, algorithms=RING).executable)
    assert made.breaches == ()
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
        assert made.holds == Oracle(mutant).is_free_of_races(), (row, rank, made.breaches)
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
        assert made.holds == Oracle(mutant).is_free_of_races(), (row, rank, made.breaches)


@pytest.mark.parametrize("name", SMALL)
def test_a_lost_increment_or_a_moved_target_is_judged_as_brute_force_judges_it(name: str) -> None:
    executable = SMALL[name]()
    for mutant in random.Random(5).sample(list(_ring_mutants(executable)), 12):
        changed = mutant()
        made = proof(changed)
        assert made.holds == Oracle(changed).is_free_of_races(), made.breaches


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
    assert proof(executable).breaches == ()
    left_early = 0
    for row, rank in waiting(executable):
        mutant = with_other_wait(executable, row, rank, None)
        made = proof(mutant)
        assert made.holds == Oracle(mutant).is_a_barrier()
        left_early += any("leaves the barrier before rank" in one for one in made.breaches)
    assert left_early


# witnesses


def test_a_witness_names_both_rows_what_they_touch_and_the_missing_wait() -> None:
    made = proof(with_other_wait(ring(4, 24), 8, 0, None))
    assert made.breaches[0].splitlines() == [
        "race: result 0 0x48..0x60 of rank 0 are read and written in no order",
        "  rank 3, queue cc0.dma0, pc 4 (p0 all-reduce.0), round 4: "
        "writes result 0 0x48..0x60 of rank 0",
        "  rank 0, queue cc0.dma0, pc 5 (p0 all-reduce.0), round 5: "
        "reads result 0 0x48..0x60 of rank 0",
        "  missing: rank 0, queue cc0, pc 8 (p0 all-reduce.0) does not wait for cc0.data.3.0 >= 4",
    ]


def test_writing_before_the_peer_has_come_is_a_race_with_its_trigger() -> None:
    made = proof(with_other_wait(ring(4), 2, 0, None))
    assert made.breaches[0].startswith("race: the memory of rank 1 is used before that rank has")
    assert "does not wait for cc0.ready.1.0 >= 1" in made.breaches[0]


def test_completion_reported_too_early_is_a_race_with_what_still_arrives() -> None:
    made = proof(with_other_wait(ring(4), 10, 2, None))
    first, *rest = made.breaches[0].splitlines()
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
        "queue cc0, pc 21 (p1 all-reduce.1) does not wait for cc0.data.3.0 >= 10"
        in (made.breaches[0])
    )


def test_a_wait_that_only_a_later_collective_could_satisfy_is_named() -> None:
    program = collective_program(ALL_REDUCE, 4, [24], repeat=2)
    executable = ncc_runtime.load(program, algorithms=RING).executable
    made = proof(with_other_wait(executable, 10, 1, 1))
    assert made.breaches[0].splitlines()[0] == (
        "rank 1, queue cc0, pc 10 (p0 all-reduce.0) waits for cc0.data.0.0 >= 7, an increment "
        "that only a later collective could make"
    )


def test_witnesses_are_few_and_the_others_are_counted() -> None:
    executable = ring(16, placement="spread")
    last = max(row for row, _ in waiting(executable))  # for what a ring has sent itself
    made = proof(without_waits(executable, last))
    assert len(made.breaches) == 3
    assert made.breaches[-1].endswith("and 13 more in this collective")


# alike ranks once


def general(executable: Executable) -> tuple[Segment, Steps, Claims]:
    """The segment of an executable, its steps and claims, without regard to classes."""
    (segment,) = segments(executable)
    chain = chains_pushed(segment)
    assert chain is not None
    performs = performed(segment, chain)
    waits, faults = waits_of(segment, performs, executable.semaphore_count)
    assert not faults
    steps = in_order(chain, segment, performs, waits)
    return segment, steps, claims_of(segment, steps)


def classes_of(executable: Executable) -> str | None:
    (segment,) = segments(executable)
    chain = chains_pushed(segment)
    assert chain is not None
    return proved_by_turning(segment, chain)


@pytest.mark.parametrize("more", [0, 3])
@pytest.mark.parametrize("ranks", [4, 6, 16, 32, 64])
def test_rings_are_proved_by_turning_and_by_all_clocks(ranks: int, more: int) -> None:
    elements = 8 * ranks + more
    for executable in (ring(ranks, elements), in_place(ranks, "ring", elements)):
        _, steps, claims = general(executable)
        assert len(claims) > 0
        assert len(unproved(steps, claims)) == 0
        assert classes_of(executable) is not None


def test_a_class_is_told_by_its_lanes_and_the_first_ranks_of_their_cycles() -> None:
    made = proof(ring(16, 1 << 16, placement="spread"))
    assert made.classes == (
        "p0 all-reduce.0: ranks 0..15 as one class of 16 by rotation "
        "along lanes 0 and 1 (0 -> 1 -> 2 -> 3 -> 7 -> ...), "
        "along lanes 2 and 3 (0 -> 3 -> 15 -> 11 -> 7 -> ...)",
    )


def test_several_cycles_of_one_length_are_one_class() -> None:
    groups = ((0, 1, 2, 3), (4, 5, 6, 7), (8, 9, 10, 11))
    program = collective_program(ALL_REDUCE, 12, [24], groups=groups)
    (told,) = proof(ncc_runtime.load(program, algorithms=RING).executable).classes
    assert "ranks 0..11 as one class of 12 in 3 cycles of 4 by rotation along lane 0" in told


@pytest.mark.parametrize("ranks", [4, 16, 64])
def test_what_turning_proves_of_a_changed_ring_all_clocks_prove_too(ranks: int) -> None:
    executable = in_place(ranks, "ring", 4 * ranks)
    rows = sorted({row for row, _ in waiting(executable)})
    verdicts = set()
    for row in random.Random(7).sample(rows, min(len(rows), 14 if ranks < 64 else 5)):
        mutant = without_waits(executable, row)
        _, steps, claims = general(mutant)
        by_all = len(unproved(steps, claims)) == 0
        assert by_all or classes_of(mutant) is None
        assert by_all == proof(mutant).holds
        verdicts.add(by_all)
    assert False in verdicts


@pytest.mark.parametrize("ranks", [8, 64])
def test_a_fault_of_one_rank_in_a_symmetric_ring_is_found(ranks: int) -> None:
    executable = ring(ranks)
    sites = [cell for cell in waiting(executable) if cell[1] == ranks - 2]
    for row, rank in sites[-3:]:
        made = proof(with_other_wait(executable, row, rank, None))
        assert made.breaches
        assert made.classes == ()


def test_one_moved_target_in_a_symmetric_ring_is_found() -> None:
    executable = ring(16, 64)
    number, queue = next((n, q) for n, q in enumerate(executable.queues) if isinstance(q, DmaQueue))
    target = np.array(queue.target)
    target[20, 5] = target[19, 5]  # where the step before writes
    mutant = with_queue(executable, number, attrs.evolve(queue, target=target))
    assert not proof(mutant).holds


def test_lanes_of_two_families_that_share_a_slot_race() -> None:
    executable = ring(64, 1 << 18)
    rings = [(n, q) for n, q in enumerate(executable.queues) if isinstance(q, DmaQueue)]
    (_, first), (number, second) = rings[0], rings[1]
    assert classes_of(executable) is not None
    moved = np.array(second.target)
    moved[0] = first.target[0]
    sources = np.array(second.sources)
    sources[1][sources[1] == second.target[0][0]] = first.target[0][0]
    shared = attrs.evolve(second, target=moved, sources=sources)
    made = proof(with_queue(executable, number, shared))
    assert made.breaches
    assert "channel buffer" in made.breaches[0]


def test_an_advance_that_pushes_nothing_is_not_turned_away() -> None:
    executable = ring(4)
    number, queue = cc_of(executable)
    rank = np.array(queue.sync.posts[0].rank)
    sem = np.array(queue.sync.posts[0].sem)
    assert (rank[5] != IDLE).all()
    rank[5], sem[5] = IDLE, IDLE
    sync = attrs.evolve(queue.sync, posts=(Post(rank, sem),))
    mutant = with_queue(executable, number, attrs.evolve(queue, sync=sync))
    assert classes_of(mutant) is None
    assert not proof(mutant).holds


# clocks


def test_neighbours_miss_order_that_goes_around_and_all_clocks_find_it() -> None:
    _, steps, claims = general(in_place(64, "ring", 256))
    missed = lacking(steps, Neighbours(steps.ranks, claims), claims)
    assert missed.any()
    everybody = Chosen(steps.ranks, np.arange(steps.ranks))
    assert not lacking(steps, everybody, claims).any()
    assert len(unproved(steps, claims)) == 0


def test_ranks_tracked_in_several_goes_are_judged_as_in_one() -> None:
    executable = with_other_wait(in_place(16, "ring", 64), 9, 3, None)
    _, steps, claims = general(executable)
    whole = lacking(steps, Chosen(steps.ranks, np.arange(16)), claims)
    parts = np.ones(len(claims), bool)
    for first in range(0, 16, 5):
        some = Chosen(steps.ranks, np.arange(first, min(first + 5, 16)))
        parts &= lacking(steps, some, claims)
    assert whole.any()
    np.testing.assert_array_equal(parts, whole)


def test_accesses_set_against_each_other_in_parts_give_the_same_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executable = in_place(8, "mesh", 64)
    row, rank = [cell for cell in waiting(executable) if cell[1] == 3][-1]
    executable = with_other_wait(executable, row, rank, None)
    _, steps, claims = general(executable)
    monkeypatch.setattr(accesses, "BLOCK_CELLS", 16)
    monkeypatch.setattr(accesses, "BLOCK_ACCESSES", 100)
    _, _, in_parts = general(executable)
    whole, parts = claims.at(unproved(steps, claims)), in_parts.at(unproved(steps, in_parts))
    assert len(whole) > 0
    assert set(zip(*whole.columns()[:5], strict=True)) == set(
        zip(*parts.columns()[:5], strict=True)
    )


@settings(deadline=None, max_examples=200)
@given(
    spans=st.lists(st.tuples(st.integers(0, 40), st.integers(0, 6)), min_size=1, max_size=8),
    one_size=st.booleans(),
)
def test_disjoint_spans_are_those_that_share_no_byte(
    spans: list[tuple[int, int]], one_size: bool
) -> None:
    start = np.array([[first] for first, _ in spans])
    size = np.array([[3 if one_size else length] for _, length in spans])
    touched = [
        byte
        for first, length in zip(start[:, 0], size[:, 0], strict=True)
        for byte in range(first, first + length)
    ]
    assert are_disjoint(start, size) == (len(touched) == len(set(touched)))
