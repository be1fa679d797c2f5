"""Traffic of algorithms equals the closed forms of docs/collectives.md, over the right links."""

import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.collectives.algorithms import hierarchical
from ncc_runtime.collectives.plan import IDLE
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.topology.routes import Routes
from tests.draws_placed_groups import OPERATORS, WORD, Case, layout_of
from tests.plan_runs import neighbour_reads, sent_bytes
from tests.programs import collective_program

PAIRS = [pair.name for pair in hierarchical.PAIRS]
ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER = OPERATORS

WHOLE = {
    "64 ranks of trn2": (("trn2", 1, 2), 64, "linear", 4),
    "one rank a chip": (("trn2", 1, 2), 16, "spread", 1),
    "one chip": (("trn2", 1, 1), 8, "linear", 8),
    "two instances of trn1": (("trn1", 2, 1), 32, "linear", 2),
}
"""Machine, ranks, placement, and the members of every chip."""


def whole(name: str, op: CollectiveOp, algorithm: str, chunk: int) -> tuple[Case, int, int]:
    """A case with chunks of so many elements; members of a chip and chips."""
    machine, ranks, how, local = WHOLE[name]
    size = chunk if op is ALL_GATHER else chunk * ranks
    case = Case(op, algorithm, layout_of(machine, ranks, how=how), (size,))
    return case, local, ranks // local


def off_chip(case: Case, sent: np.ndarray) -> int:
    """Bytes written from chip to chip."""
    chip = np.array([seat.chip for seat in case.layout.seats])
    return int(sent[chip[:, None] != chip].sum())


def away(sent: np.ndarray) -> np.ndarray:
    """Bytes that each member writes into the memory of others."""
    return np.asarray(sent.sum(axis=1) - sent.diagonal())


@pytest.mark.parametrize("chunk", [1, 12])
@pytest.mark.parametrize("name", WHOLE)
def test_traffic_of_mesh_equals_its_closed_forms(name: str, chunk: int) -> None:
    case, local, chips = whole(name, REDUCE_SCATTER, "mesh", chunk)
    plan, members, size = case.plan(), local * chips, chunk * WORD
    assert set(away(sent_bytes(plan))) == {(chips - 1) * size}
    assert set(neighbour_reads(plan)) == {chips * (local - 1) * size}
    case, local, chips = whole(name, ALL_GATHER, "mesh", chunk)
    plan = case.plan()
    assert away(sent_bytes(plan)).sum() == members * (members - 1) * size
    assert off_chip(case, sent_bytes(plan)) == members * (chips - 1) * size
    assert neighbour_reads(plan).sum() == members * (chips - 1) * (local - 1) * size // local
    case, local, chips = whole(name, ALL_REDUCE, "mesh", chunk)
    plan = case.plan()
    assert set(away(sent_bytes(plan))) == {(chips - 1 + members - 1) * size}
    assert off_chip(case, sent_bytes(plan)) == 2 * members * (chips - 1) * size


@pytest.mark.parametrize("chunk", [1, 12])
@pytest.mark.parametrize("name", WHOLE)
def test_traffic_of_rdh_equals_its_closed_forms(name: str, chunk: int) -> None:
    for op, steps, after in ((REDUCE_SCATTER, 1, 0), (ALL_GATHER, 1, 1), (ALL_REDUCE, 2, 1)):
        case, local, chips = whole(name, op, "rdh", chunk)
        plan, size = case.plan(), chunk * WORD
        sent = steps * (chips - 1) + after * (local - 1) * chips
        assert set(away(sent_bytes(plan))) == {sent * size}
        assert off_chip(case, sent_bytes(plan)) == steps * local * chips * (chips - 1) * size
        reads = 0 if op is ALL_GATHER else (local - 1) * chips * size
        assert set(neighbour_reads(plan)) == {reads}


def test_a_single_step_mesh_sends_the_whole_buffer_to_everybody() -> None:
    case, _, _ = whole("64 ranks of trn2", ALL_REDUCE, "single-step-mesh", 3)
    sent = sent_bytes(case.plan())
    assert set(away(sent)) == {63 * 64 * 3 * WORD}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("blocks", [1, 8192])
def test_256_ranks_on_four_instances_send_two_times_three_quarters_of_a_64th_over_efa(
    name: str, blocks: int
) -> None:
    layout = layout_of(("trn2", 4, 2), 256)
    elements = 64 * 4 * 4 * 3 * 2 * blocks  # divided by members, channels and slices
    sent = sent_bytes(Case(ALL_REDUCE, name, layout, (elements,)).plan())
    node = np.array([seat.node for seat in layout.seats])
    over_efa = np.where(node[:, None] != node, sent, 0).sum(axis=1)
    assert set(over_efa * 4 * 64) == {2 * 3 * elements * WORD}


def test_the_counters_of_a_run_say_the_same_of_256_ranks() -> None:
    elements = 64 * 4 * 4
    program = collective_program(ALL_REDUCE, 256, [elements])
    model = ncc_runtime.load(program, "trn2", nodes=4, algorithms={"all-reduce": "hier.mesh.rdh"})
    (row,) = model.run(seed=0).collectives
    assert row.bytes_by_transport["efa"] == 256 * 2 * 3 * (elements * WORD // 64) // 4


@pytest.mark.parametrize("name", PAIRS)
def test_reduce_scatter_and_all_gather_send_x_minus_1_chunks_over_efa(name: str) -> None:
    layout = layout_of(("trn2", 4, 2), 64)
    node = np.array([seat.node for seat in layout.seats])
    for op, size in ((REDUCE_SCATTER, 64 * 12), (ALL_GATHER, 12)):
        sent = sent_bytes(Case(op, name, layout, (size,)).plan())
        assert set(np.where(node[:, None] != node, sent, 0).sum(axis=1)) == {3 * 12 * WORD}


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize(
    ("machine", "ranks", "group"),
    [
        (("trn2", 1, 2), 64, None),
        (("trn2", 1, 2), 64, [*range(16), *range(48, 64)]),  # rows 0 and 3, which are joined
        (("trn2", 1, 2), 64, [*range(16)]),
        (("trn2", 1, 2), 64, [*range(4), *range(16, 20), *range(32, 36), *range(48, 52)]),
        (("trn1", 1, 1), 32, None),
    ],
)
def test_every_axis_of_rdh_is_one_hop(
    op: CollectiveOp, machine: tuple[str, int, int], ranks: int, group: list[int] | None
) -> None:
    layout = layout_of(machine, ranks, group)
    size = 4 * layout.members
    sent = sent_bytes(Case(op, "rdh", layout, (size,)).plan())
    names = np.array(range(ranks) if group is None else group)
    sender, receiver = np.nonzero(sent)
    routes = Routes(layout.placement.topology, layout.placement)
    assert routes.hops(names[sender], names[receiver]).max() == 1


@pytest.mark.parametrize("name", WHOLE)
def test_rdh_takes_a_step_for_each_axis_and_one_transfer_where_chunks_lie_together(
    name: str,
) -> None:
    case, local, chips = whole(name, ALL_REDUCE, "rdh", 12)
    axes, on_chip = chips.bit_length() - 1, local > 1
    rounds = case.plan().rounds
    assert len(rounds) == 2 * axes + 1 + on_chip * (1 + (axes > 0))
    # what lies on the chip: one in each DMA ring, of which a group on one chip has two
    first = min(4, chips) if on_chip and axes else 1 + on_chip
    counts = [len(one.transfers) for one in rounds[: 2 * axes + 1]]
    assert counts == [first, *[1] * (2 * axes)]


def test_rdh_of_one_rank_a_chip_moves_halves_in_one_transfer_wherever_they_begin() -> None:
    for op, first in ((REDUCE_SCATTER, 1), (ALL_GATHER, 2)):  # one copies its own chunk
        case, _, _ = whole("one rank a chip", op, "rdh", 12)
        counts = [len(one.transfers) for one in case.plan().rounds]
        assert (counts[0], set(counts[1:])) == (first, {1})


def test_mesh_bytes_arrive_at_the_core_of_the_port_by_which_they_come() -> None:
    case, _, _ = whole("64 ranks of trn2", ALL_GATHER, "mesh", 1)
    routes = Routes(case.layout.placement.topology, case.layout.placement)
    chip = case.layout.placement.chip
    (first, _) = case.plan().rounds
    arrived = 0
    for move in first.transfers:
        sender = np.flatnonzero(move.peer != IDLE)
        receiver = move.peer[sender]
        far = chip[sender] != chip[receiver]
        sender, receiver = sender[far], receiver[far]
        pair = routes.table.pair(np.zeros(len(sender), int), chip[sender], chip[receiver])
        assert (routes.port[receiver] == routes.table.enters[pair]).all()
        arrived += len(receiver)
    assert arrived == 16 * 15 * 4


def test_members_of_a_chip_share_out_the_chips_that_a_mesh_writes_to() -> None:
    case, _, _ = whole("64 ranks of trn2", ALL_GATHER, "mesh", 1)
    chip = np.array([seat.chip for seat in case.layout.seats])
    (first, _) = case.plan().rounds
    served: list[set[int]] = [set() for _ in chip]
    for move in first.transfers:
        for member in np.flatnonzero(move.peer != IDLE):
            served[member] |= {int(chip[move.peer[member]])} - {int(chip[member])}
    assert {len(chips) for chips in served} == {3, 4}


def test_a_large_buffer_goes_between_instances_in_three_slices() -> None:
    layout = layout_of(("trn2", 4, 2), 16)
    node = np.array([seat.node for seat in layout.seats])

    def first_rounds(elements: int) -> dict[int, tuple[int, int]]:
        """By strand, the first round inside instances and the first between them."""
        found: dict[int, tuple[int, int]] = {}
        plan = Case(ALL_REDUCE, "hier.mesh.rdh", layout, (elements,)).plan()
        for number, one_round in enumerate(plan.rounds):
            for move in one_round.transfers:
                assert move.strand is not None
                crosses = bool((node[move.peer] != node)[move.peer != IDLE].any())
                inside, between = found.get(move.strand, (999, 999))
                if crosses:
                    between = min(between, number)
                else:
                    inside = min(inside, number)
                found[move.strand] = inside, between
        return found

    assert list(first_rounds(1 << 10)) == [0]
    slices = first_rounds(1 << 20)
    assert list(slices) == [0, 1, 2]
    assert slices[0][1] < slices[1][0] < slices[1][1] < slices[2][0]


@pytest.mark.parametrize("name", ["64 ranks of trn2", "one chip"])
@pytest.mark.parametrize("op", OPERATORS)
def test_traffic_of_kangaring_equals_its_closed_forms(name: str, op: CollectiveOp) -> None:
    chunk = 16  # divided by members and cycles
    case, _, _ = whole(name, op, "kangaring", chunk)
    plan, members = case.plan(), case.layout.members
    buffer = members * chunk * WORD
    moved = away(sent_bytes(plan)).sum() + neighbour_reads(plan).sum()
    twice = 4 * (members - 1) if op is ALL_REDUCE else 2 * (members - 1)
    assert 2 * moved == (twice + (op is REDUCE_SCATTER)) * buffer


@pytest.mark.parametrize("name", ["tree", "double-tree"])
@pytest.mark.parametrize("ranks", [1, 2, 7, 64])
def test_a_tree_sends_everything_up_and_down_once(name: str, ranks: int) -> None:
    case = Case(ALL_REDUCE, name, layout_of(("trn2", 1, 2), ranks), (100,))
    assert away(sent_bytes(case.plan())).sum() == 2 * (ranks - 1) * 100 * WORD


@pytest.mark.parametrize("ranks", [1, 2, 6, 8])
def test_bruck_sends_a_chunk_for_each_digit_of_its_way(ranks: int) -> None:
    layout = layout_of(("trn2", 1, 2), ranks)
    for name, sends in (
        ("pairwise", ranks - 1),
        ("bruck", sum(way.bit_count() for way in range(ranks))),
    ):
        case = Case(CollectiveOp.ALL_TO_ALL, name, layout, (3 * ranks,))
        assert set(away(sent_bytes(case.plan()))) == {sends * 3 * WORD}
