"""Rings inside an instance: cycles of chips, and there and back where links close none."""

from collections import Counter

import numpy as np
import pytest

import ncc_runtime
from benchmarks.even_groups import OPS, SIZE, TOPOLOGIES, even_groups, served
from ncc_runtime.collectives.algorithms import ring
from ncc_runtime.collectives.layout import GroupLayout
from ncc_runtime.execution.clock.clock import collective_ps
from ncc_runtime.lowering.lower import lower
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.placement import parse_on, place_on
from ncc_runtime.report.bench import DTYPES, OPERATORS, Case, program_of_case
from ncc_runtime.topology.routes import Routes
from tests.programs import collective_program

Orders = tuple[tuple[int, ...], ...]


def orders_of(on: str, ranks: int, group: tuple[int, ...] = ()) -> Orders:
    """The rings of a group, as ranks."""
    members = group or tuple(range(ranks))
    arranged = ring.arrange(GroupLayout.of(place_on(parse_on(on), ranks), members))
    return tuple(tuple(members[k] for k in order) for order in arranged.orders)


def turned(order: tuple[int, ...], first: int) -> tuple[int, ...]:
    """The same ring from another rank on."""
    at = order.index(first)
    return order[at:] + order[:at]


def test_on_a_line_one_core_of_every_chip_sends_there_and_the_other_back() -> None:
    there, reverse = orders_of("inf2", 8)
    assert there == (0, 1, 2, 4, 6, 7, 5, 3)
    assert reverse == (0, 3, 5, 7, 6, 4, 2, 1)


def test_a_group_that_ends_in_the_middle_of_a_chip_goes_there_and_back_too() -> None:
    assert orders_of("inf2", 5)[0] == (0, 1, 2, 4, 3)


def test_a_ring_of_inf2_goes_on_from_chip_11_to_chip_0() -> None:
    there, reverse = orders_of("inf2", 24, (0, 1, 2, 3, 20, 21, 22, 23))
    assert turned(there, 20) == (20, 21, 23, 1, 2, 3, 0, 22)
    assert turned(reverse, 20) == (20, 22, 0, 3, 2, 1, 23, 21)


@pytest.mark.parametrize(
    ("on", "ranks"),
    [
        *(("inf2", ranks) for ranks in (4, 6, 10, 22)),
        *(("inf2.24xlarge", 12), ("inf2,down=c3-c4", 24), ("trn1,down=c0-c1", 8)),
        *(("trn1", 6), ("trn2", 8), ("trn2,down=c0-c1", 16), ("trn2,lnc=1,down=c0-c1", 32)),
        ("trn2,down=c0-c1,down=c0-c3,down=c0-c4", 64),
    ],
)
def test_rings_there_and_back_use_no_link_twice_the_same_way(on: str, ranks: int) -> None:
    placement = place_on(parse_on(on), ranks)
    routes = Routes(placement.topology, placement)
    orders = orders_of(on, ranks)
    assert len(orders) == 2
    for order in orders:
        assert sorted(order) == list(range(ranks))
        ends = zip(order, order[1:] + order[:1], strict=True)
        used = Counter(link for source, target in ends for link in routes.links(source, target))
        assert set(used.values()) == {1}
    assert orders[1] == (orders[0][0], *orders[0][:0:-1])


@pytest.mark.parametrize(
    ("on", "ranks", "rings"), [("trn1", 8, 2), ("trn2", 64, 4), ("inf2", 24, 2)]
)
def test_where_links_close_cycles_there_is_a_ring_for_each(on: str, ranks: int, rings: int) -> None:
    placement = place_on(parse_on(on), ranks)
    orders = orders_of(on, ranks)
    assert len(orders) == rings
    for order in orders:  # a chip after the other, all ranks of each
        chips = placement.chip[list(order)].reshape(-1, placement.topology.ranks_per_chip)
        assert (chips == chips[:, :1]).all()


def test_a_cycle_that_is_closed_one_way_only_gives_way_to_rings_there_and_back() -> None:
    assert orders_of("inf2,down=c11>c0", 24) == orders_of("inf2,down=c0-c11", 24)
    assert len(orders_of("inf2,down=c11>c0,down=c3>c2", 24)) == 1  # no way back: the cycle


def test_a_group_on_chips_that_no_links_join_is_a_ring_in_its_order() -> None:
    assert orders_of("inf2", 24, (0, 1, 4, 5)) == ((0, 1, 4, 5),)


@pytest.mark.parametrize("op", [CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE_SCATTER])
@pytest.mark.parametrize(
    ("on", "ranks", "down"),
    [("inf2", 6, ()), ("inf2", 5, ()), ("trn2", 8, ()), ("trn1", 8, ("c0-c1",))],
)
def test_rings_there_and_back_are_proved_and_reduce(
    on: str, ranks: int, down: tuple[str, ...], op: CollectiveOp
) -> None:
    program = collective_program(op, ranks, [ranks * 40_000])  # two slices of a chunk
    model = ncc_runtime.load(program, on, down=down, algorithms={op.value: "ring"})
    given = np.random.default_rng(7).integers(0, 9, (ranks, ranks * 40_000)).astype(np.float32)
    run = model.run([given], clock=False)
    total = given.sum(0)
    wanted = total.reshape(ranks, -1) if op is CollectiveOp.REDUCE_SCATTER else [total] * ranks
    np.testing.assert_array_equal(run.outputs[0], wanted)


def clocked(on: str, ranks: int, operator: str, size: int) -> int:
    """The time of a ring by the clock, in picoseconds."""
    program = program_of_case(Case(OPERATORS[operator], ranks, DTYPES["fp32"], size))
    forced = {program.placeholders[0].op.value: "ring"}
    return collective_ps(lower(program, place_on(parse_on(on), ranks), forced))


@pytest.mark.parametrize("operator", OPS)
@pytest.mark.parametrize(
    ("on", "ranks", "faults"),
    [
        ("inf2", 24, ("c0-c11", "c5-c6", "c2>c3", "c3>c2")),
        ("inf2.24xlarge", 12, ()),
        ("trn1", 8, ("c0-c1", "c0-c3", "c1>c2")),
        ("trn2", 16, ("c0-c1", "c0-c3", "c3>c2")),
        ("trn1", 32, ("c0-c1", "c0-c4", "c5>c9")),
        ("trn2,lnc=1", 32, ("c0-c1",)),
    ],
)
def test_a_ring_with_a_link_down_is_no_faster(
    on: str, ranks: int, faults: tuple[str, ...], operator: str
) -> None:
    """Within 1 %: at small sizes fewer rings, or other hops, save instructions."""
    for size in (2**16, 2**20, 2**24, SIZE):
        whole = clocked(on, ranks, operator, size)
        for fault in faults:
            worn = clocked(f"{on},down={fault}", ranks, operator, size)
            assert worn >= 0.99 * whole, (fault, size)


@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("operator", OPS)
def test_more_chips_of_inf2_never_get_less_bus_bandwidth(topology: str, operator: str) -> None:
    of_chips = [served(topology, operator, ranks) for ranks in even_groups(topology)][1:]
    rates = [one.busbw_gb_per_s for one in of_chips]
    assert rates == sorted(rates)
    if operator == "all_reduce":
        assert rates[0] > 35


@pytest.mark.parametrize("operator", OPS)
def test_inf2_with_a_link_down_is_no_faster_than_whole(operator: str) -> None:
    whole = served("inf2", operator, 24).busbw_gb_per_s
    assert served("inf2,down=c4-c5", operator, 24).busbw_gb_per_s <= whole
