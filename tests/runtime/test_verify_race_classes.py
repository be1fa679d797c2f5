"""The proof of races for all ranks at once: one for all of a class, and clocks of many together."""

import random

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_runtime
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Post, Registers
from ncc_runtime.order import Chosen, unmet
from ncc_runtime.verify import conflicts, races
from ncc_runtime.verify.races import Neighbours, unproved
from ncc_runtime.verify.segments import segments
from ncc_runtime.verify.symmetry import are_disjoint, proved_by_rotation
from tests.example_count import examples
from tests.mutant_edits import with_queue
from tests.programs import collective_program
from tests.race_programs import (
    ALL_REDUCE,
    RING,
    cc_of,
    classes_of,
    general,
    in_place,
    proof,
    ring,
    waiting,
    with_other_wait,
    without_waits,
)

# alike ranks once


@pytest.mark.parametrize("more", [0, 3])
@pytest.mark.parametrize("ranks", [4, 6, 16, 32, 64])
def test_rings_are_proved_by_rotation_and_by_all_clocks(ranks: int, more: int) -> None:
    elements = 8 * ranks + more
    for executable in (ring(ranks, elements), in_place(ranks, "ring", elements)):
        queues, due = general(executable)
        assert len(due) > 0
        assert len(unproved(queues, due)) == 0
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
def test_what_rotation_proves_of_a_changed_ring_all_clocks_prove_too(ranks: int) -> None:
    executable = in_place(ranks, "ring", 4 * ranks)
    rows = sorted({row for row, _ in waiting(executable)})
    verdicts = set()
    for row in random.Random(7).sample(rows, min(len(rows), 14 if ranks < 64 else 5)):
        mutant = without_waits(executable, row)
        queues, due = general(mutant)
        by_all = len(unproved(queues, due)) == 0
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
        assert made.texts
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
    assert made.texts
    assert "channel buffer" in made.texts[0]


def test_an_increment_along_another_family_of_lanes_is_that_of_the_ranks_there() -> None:
    executable = ring(16, 1 << 16, placement="spread")
    rings = [(n, q) for n, q in enumerate(executable.queues) if isinstance(q, DmaQueue)]
    (number, first), (_, third) = rings[0], rings[2]
    freed, along = first.sync.posts[2], third.sync.posts[2].rank.max(axis=0)
    rank = np.where(freed.rank == IDLE, IDLE, along)
    posts = (*first.sync.posts[:2], Post(rank, freed.sem))
    sync = attrs.evolve(first.sync, posts=posts)
    mutant = with_queue(executable, number, attrs.evolve(first, sync=sync))
    queues, due = general(mutant)
    assert len(unproved(queues, due)) > 0
    assert not proof(mutant).holds


def test_an_advance_that_pushes_nothing_is_not_turned_away() -> None:
    executable = ring(4)
    number, queue = cc_of(executable)
    rank = np.array(queue.sync.posts[0].rank)
    sem = np.array(queue.sync.posts[0].sem)
    assert (rank[5] != IDLE).all()
    rank[5], sem[5] = IDLE, IDLE
    sync = attrs.evolve(queue.sync, posts=(Post(rank, sem),))
    mutant = with_queue(executable, number, attrs.evolve(queue, sync=sync))
    assert not proof(mutant).holds


def test_rows_that_add_a_register_to_an_address_are_proved_by_all_clocks() -> None:
    (segment,) = segments(ring(4))
    assert proved_by_rotation(segment) is not None
    with_registers = tuple(
        attrs.evolve(rows, registers=Registers(*(np.full(rows.peer.shape, IDLE),) * 3))
        for rows in segment.rings
    )
    assert proved_by_rotation(attrs.evolve(segment, rings=with_registers)) is None


# clocks


def test_neighbours_miss_order_that_goes_around_and_all_clocks_find_it() -> None:
    queues, due = general(in_place(64, "ring", 256))
    missed = unmet(queues, Neighbours(queues.ranks, due), due)
    assert missed.any()
    everybody = Chosen(queues.ranks, np.arange(queues.ranks))
    assert not unmet(queues, everybody, due).any()
    assert len(unproved(queues, due)) == 0


def test_ranks_tracked_in_several_goes_are_judged_as_in_one() -> None:
    executable = with_other_wait(in_place(16, "ring", 64), 9, 3, None)
    queues, due = general(executable)
    whole = unmet(queues, Chosen(queues.ranks, np.arange(16)), due)
    parts = np.ones(len(due), bool)
    for first in range(0, 16, 5):
        some = Chosen(queues.ranks, np.arange(first, min(first + 5, 16)))
        parts &= unmet(queues, some, due)
    assert whole.any()
    np.testing.assert_array_equal(parts, whole)


def test_accesses_set_against_each_other_in_parts_give_the_same_verdict(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executable = in_place(8, "mesh", 64)
    row, rank = [cell for cell in waiting(executable) if cell[1] == 3][-1]
    executable = with_other_wait(executable, row, rank, None)
    queues, due = general(executable)
    monkeypatch.setattr(conflicts, "BLOCK_CELLS", 16)
    monkeypatch.setattr(races, "BLOCK_ACCESSES", 100)
    _, in_parts = general(executable)
    whole, parts = due.at(unproved(queues, due)), in_parts.at(unproved(queues, in_parts))
    assert len(whole) > 0
    assert set(zip(*whole.columns()[:5], strict=True)) == set(
        zip(*parts.columns()[:5], strict=True)
    )


@settings(max_examples=examples(200))
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
