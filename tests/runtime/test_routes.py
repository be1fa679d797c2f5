"""Routes: only links that exist, minimal, from source to destination."""

from collections import deque
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from ncc_runtime.errors import TopologyError
from ncc_runtime.placement import Placement, place
from ncc_runtime.topology.format.spec import FabricShape
from ncc_runtime.topology.graph import Topology, build
from ncc_runtime.topology.routes import TRANSPORTS, Routes, Transport
from tests.draws_topology import build_drawn, graphs, placements, worn


def all_pairs(placement: Placement) -> tuple[np.ndarray, np.ndarray]:
    """Every pair of a few ranks, the last of them included."""
    some = np.unique(np.linspace(0, placement.ranks - 1, 24, dtype=np.int64))
    src, dst = np.meshgrid(some, some, indexing="ij")
    return src.ravel(), dst.ravel()


def fewest_hops(topology: Topology, source: int) -> dict[int, int]:
    """Breadth first over the links, independently of the router."""
    found, todo = {source: 0}, deque([source])
    while todo:
        chip = todo.popleft()
        for target in topology.links.dst[topology.links.src == chip].tolist():
            if target not in found:
                found[target] = found[chip] + 1
                todo.append(target)
    return found


@given(placement=placements())
def test_a_transport_follows_from_the_places(placement: Placement) -> None:
    src, dst = all_pairs(placement)
    codes = Routes(placement.topology, placement).transport(src, dst)
    for a, b, code in zip(src, dst, codes, strict=True):
        if a == b:
            expected = Transport.LOCAL
        elif placement.chip[a] == placement.chip[b]:
            expected = Transport.INTRA_CHIP
        elif placement.node[a] == placement.node[b]:
            expected = Transport.NEURONLINK
        else:
            expected = Transport.EFA
        assert TRANSPORTS[code] is expected


@given(placement=placements())
def test_links_of_a_route_lead_from_chip_to_chip_without_a_gap(placement: Placement) -> None:
    routes, links = Routes(placement.topology, placement), placement.topology.links
    src, dst = all_pairs(placement)
    start, flat = routes.link_runs(src, dst)
    for k, (a, b) in enumerate(zip(src, dst, strict=True)):
        chip = placement.chip[a]
        for link in flat[start[k] : start[k + 1]]:
            assert links.src[link] == chip
            chip = links.dst[link]
        assert chip == placement.chip[b] or placement.node[a] != placement.node[b]


@given(placement=placements())
def test_routes_have_the_fewest_hops(placement: Placement) -> None:
    routes = Routes(placement.topology, placement)
    src, dst = all_pairs(placement)
    hops = routes.hops(src, dst)
    for a in np.unique(src):
        found = fewest_hops(placement.topology, int(placement.chip[a]))
        for b, count in zip(dst[src == a], hops[src == a], strict=True):
            assert count == found.get(int(placement.chip[b]), 0)


@given(placement=placements())
def test_hops_count_the_links_of_the_route(placement: Placement) -> None:
    routes = Routes(placement.topology, placement)
    src, dst = all_pairs(placement)
    start, _ = routes.link_runs(src, dst)
    assert (np.diff(start) == routes.hops(src, dst)).all()


@given(placement=placements())
def test_ranks_meet_over_efa_only_between_instances(placement: Placement) -> None:
    routes = Routes(placement.topology, placement)
    src, dst = all_pairs(placement)
    is_efa = routes.transport(src, dst) == Transport.EFA.code
    assert (is_efa == (placement.node[src] != placement.node[dst])).all()


@given(placement=placements())
def test_bandwidth_is_the_slowest_part_of_the_way(placement: Placement) -> None:
    topology, routes = placement.topology, Routes(placement.topology, placement)
    src, dst = all_pairs(placement)
    engines = topology.rank_dma_bandwidth_bytes_per_s // topology.rank_dma_channels
    stack = topology.hbm.stack_bandwidth_bytes_per_s
    cores_of_stack = max(1, topology.ranks_per_chip // topology.hbm.stacks)
    rates = routes.bandwidth_bytes_per_s(src, dst)
    for a, b, rate in zip(src.tolist(), dst.tolist(), rates, strict=True):
        transport = TRANSPORTS[int(routes.transport(np.array(a), np.array(b)))]
        links = topology.links.bandwidth_bytes_per_s[list(routes.links(a, b))]
        places = [placement.core[rank] // cores_of_stack for rank in (a, b)]
        is_shared = placement.chip[a] == placement.chip[b] and places[0] == places[1]
        limits = {
            Transport.LOCAL: [],
            Transport.INTRA_CHIP: [topology.rank_chip_bandwidth_bytes_per_s or engines],
            Transport.NEURONLINK: links.tolist(),
            Transport.EFA: [topology.rank_efa_bandwidth_bytes_per_s],
        }[transport]
        assert rate == min(engines, stack // 2 if is_shared else stack, *limits)


@pytest.mark.parametrize(
    ("src", "dst", "expected"),
    [
        (3, 3, 0),  # local
        (0, 1, 50_000),  # another core of the die
        (0, 2, 50_000 + 4_300_000),  # a core of the other die
        (2, 7, 150_000),  # the next chip, from the port itself to the core at N
        (0, 4, 200_000),  # the next chip, across it at either end
        (0, 42, 500_000),  # two columns and two rows away, from a core at W to one at E
        (0, 64, 15_000_000),  # the other instance
    ],
)
def test_latency_grows_with_hops_and_crossings_and_is_published_over_efa(
    src: int, dst: int, expected: int
) -> None:
    placement = place(build("trn2", nodes=2), 128)
    routes = Routes(placement.topology, placement)
    assert routes.latency_ps(np.array(src), np.array(dst)) == expected


@pytest.mark.parametrize(
    ("name", "nodes", "src", "dst", "expected"),
    [
        ("trn2", 1, 5, 5, "local c1"),
        ("trn2", 1, 0, 1, "intra_chip c0"),
        ("trn2", 1, 2, 8, "neuronlink c0.E>c1, c1.E>c2"),  # core 2 sits at E, core 8 at W
        ("trn2", 1, 5, 14, "neuronlink c1.W>c0, c0.W>c3, c3:E>S"),  # halfway, odd column: down
        ("trn2", 1, 0, 15, "neuronlink c0.W>c3"),
        ("trn2", 1, 2, 22, "neuronlink c0.E>c1, c1.S>c5, c5:N>W"),  # columns before rows
        ("trn2", 1, 0, 35, "neuronlink c0:W>S, c0.S>c4, c4.S>c8"),
        ("trn2", 2, 64, 68, "neuronlink c16:W>E, c16.E>c17, c17:W>N"),
        ("trn2", 2, 12, 76, "efa n0.efa3>n1.efa3"),
        ("trn1", 2, 5, 38, "efa n0.efa1>n1.efa1"),  # chips 2 and 3 share an adapter
        ("inf2", 1, 0, 22, "neuronlink c0.W>c11"),
    ],
)
def test_a_route_is_described_by_its_links_or_adapters(
    name: str, nodes: int, src: int, dst: int, expected: str
) -> None:
    topology = build(name, nodes)
    assert Routes(topology, place(topology, topology.max_ranks)).describe(src, dst) == expected


def test_every_pair_at_once_loads_all_torus_links_alike() -> None:
    topology = build("trn2")
    routes = Routes(topology, place(topology, 16, "spread"))
    src, dst = np.meshgrid(np.arange(16), np.arange(16))
    _, links = routes.link_runs(src, dst)
    assert set(np.bincount(links, minlength=64).tolist()) == {8}


def test_a_line_never_goes_round() -> None:
    topology = build("inf2.24xlarge")
    routes = Routes(topology, place(topology, 12))
    assert routes.links(0, 11) == tuple(
        link for link in range(len(topology.links)) if topology.links.name(link).endswith("E")
    )


@given(topology=graphs(), data=st.data())
def test_of_equal_ways_through_a_graph_the_lowest_first_link_is_taken(
    topology: Topology, data: st.DataObject
) -> None:
    routes = Routes(topology, place(topology, topology.nodes * topology.chips_per_node, "spread"))
    src, dst = (data.draw(st.integers(0, topology.chips_per_node - 1)) for _ in range(2))
    links = topology.links
    away = {chip: fewest_hops(topology, chip).get(dst, -1) for chip in range(topology.chips)}
    for link in routes.links(src, dst):
        chip = int(links.src[link])
        shorter = [
            other
            for other in np.flatnonzero(links.src == chip).tolist()
            if away[int(links.dst[other])] == away[chip] - 1
        ]
        assert link == min(shorter)


@pytest.mark.parametrize("src", [-1, 64])
def test_a_rank_outside_the_placement_is_a_fault(src: int) -> None:
    topology = build("trn2")
    with pytest.raises(ValueError, match="not all among the 64 placed ranks"):
        Routes(topology, place(topology, 64)).hops(np.array([src]), np.array([0]))


def test_queries_broadcast_and_keep_their_shape() -> None:
    topology = build("trn2")
    routes = Routes(topology, place(topology, 64))
    src, dst = np.arange(64)[:, None], np.arange(64)[None, :]
    assert routes.transport(src, dst).shape == (64, 64)
    assert routes.transport(src, dst).dtype == np.uint8
    assert routes.bandwidth_bytes_per_s(src, dst).dtype == np.int64
    assert routes.latency_ps(src, dst).dtype == np.int64


def test_empty_queries_have_empty_answers() -> None:
    topology = build("trn1.2xlarge")
    routes, none = Routes(topology, place(topology, 2)), np.empty(0, np.int64)
    assert routes.hops(none, none).shape == (0,)
    assert routes.link_runs(none, none)[1].shape == (0,)


def test_an_adapter_is_that_of_the_ranks_chip() -> None:
    topology = build("trn1", nodes=2)
    routes = Routes(topology, place(topology, 64))
    assert routes.adapter(np.array([0, 3, 4, 31, 32, 63])).tolist() == [0, 0, 1, 7, 8, 15]


def test_without_efa_a_rank_has_no_adapter() -> None:
    topology = build("inf2")
    assert Routes(topology, place(topology, 2)).adapter(np.array([1])).tolist() == [-1]


def test_parallel_links_of_a_two_wide_torus_are_one_way_in_one_hop() -> None:
    topology = build_drawn("chips.count = 4\nfabric.dims = [2, 2]\nefa.adapters = 4")
    assert topology.shape is FabricShape.TORUS
    routes = Routes(topology, place(topology, 4, "spread"))
    assert [routes.describe(a, b) for a, b in ((0, 1), (1, 0), (0, 2))] == [
        "neuronlink c0.W&E>c1",
        "neuronlink c1.W&E>c0",
        "neuronlink c0.N&S>c2",
    ]


def published_port(chip: int, core: int) -> str:
    """Where a core of trn2.48xlarge at LNC 2 sits, from the driver's tables by chip."""
    parity = (chip // 4 % 2, chip % 2)
    return {(0, 0): "WSEN", (0, 1): "NWSE", (1, 0): "SENW", (1, 1): "ENWS"}[parity][core]


@pytest.mark.parametrize("lnc", [1, 2])
def test_a_core_leaves_for_a_neighbour_by_its_own_port_or_crosses_its_chip_first(lnc: int) -> None:
    topology = build("trn2", lnc=lnc)
    routes = Routes(topology, place(topology, topology.max_ranks))
    per_chip, links = topology.ranks_per_chip, topology.links
    for link in range(len(links)):
        chip, target, port = int(links.src[link]), int(links.dst[link]), links.port[link]
        for core in range(per_chip):
            here = published_port(chip, core * lnc // 2)
            way = routes.describe(chip * per_chip + core, target * per_chip)
            first = f"neuronlink c{chip}.{port}>" if here == port else f"c{chip}:{here}>{port}, "
            assert first in way


def test_crossings_are_counted_where_they_are_described() -> None:
    topology = build("trn2")
    routes = Routes(topology, place(topology, 64))
    src, dst = np.meshgrid(np.arange(0, 64, 3), np.arange(64), indexing="ij")
    counts = routes.crossings(src, dst)
    described = [routes.describe(a, b).count(":") for a, b in zip(src.flat, dst.flat, strict=True)]
    assert counts.ravel().tolist() == described
    assert set(described) == {0, 1, 2}


@pytest.mark.parametrize("name", ["trn1", "inf2", "inf2.24xlarge"])
def test_without_published_ports_nothing_crosses(name: str) -> None:
    topology = build(name)
    ranks = np.arange(topology.max_ranks)
    routes = Routes(topology, place(topology, len(ranks)))
    assert not routes.crossings(ranks[:, None], ranks).any()


def reachable(topology: Topology, node: int) -> dict[int, set[int]]:
    """What every chip of an instance reaches over links that are up, without the router."""
    links, first = topology.links, node * topology.chips_per_node
    found = {}
    for chip in range(first, first + topology.chips_per_node):
        reached, todo = {chip}, [chip]
        while todo:
            onward = (links.src == todo.pop()) & ~links.is_down
            more = set(links.dst[onward].tolist()) - reached
            reached |= more
            todo += more
        found[chip] = reached
    return found


@given(topology=worn())
def test_no_route_uses_a_link_that_is_down_and_all_pairs_are_reached(topology: Topology) -> None:
    whole = all(
        len(reached) == topology.chips_per_node
        for node in range(topology.nodes)
        for reached in reachable(topology, node).values()
    )
    placement = place(topology, topology.chips, "spread")
    if not whole:
        with pytest.raises(TopologyError, match=r"leave no route from c\d+ to c\d+"):
            Routes(topology, placement)
        return
    routes, ranks = Routes(topology, placement), np.arange(topology.chips)
    src, dst = (side.ravel() for side in np.meshgrid(ranks, ranks, indexing="ij"))
    start, links = routes.link_runs(src, dst)
    assert not topology.links.is_down[links].any()
    inside = (placement.node[src] == placement.node[dst]) & (src != dst)
    ends = links[start[1:][inside] - 1]
    assert (topology.links.dst[ends] == placement.chip[dst[inside]]).all()


@given(topology=worn())
def test_a_slowed_link_bounds_the_routes_over_it(topology: Topology) -> None:
    placement = place(topology, topology.chips, "spread")
    try:
        routes = Routes(topology, placement)
    except TopologyError:
        reject()  # two parts without a link between them, which the test before this one is about
    ranks = np.arange(topology.chips)
    for src, dst in ((a, b) for a in ranks[:4] for b in ranks[-4:]):
        rates = topology.links.bandwidth_bytes_per_s[list(routes.links(src, dst))]
        if len(rates):
            assert routes.bandwidth_bytes_per_s(src, dst) <= rates.min()
            assert (routes.bandwidth_bytes_per_s(src, dst) == 1000) == (1000 in rates)


FAULT = '[[fault]]\nbetween = [0, 1]\ndown = true\nsource = "assumed"\n'


def worn_trn2(tmp_path: Path, faults: str, nodes: int = 1) -> Topology:
    file = tmp_path / "worn.toml"
    file.write_text(f'name = "worn"\nbase = "trn2.48xlarge"\n{faults}')
    return build(str(file), nodes)


def test_a_route_goes_round_a_link_that_is_down_and_others_stay(tmp_path: Path) -> None:
    topology = worn_trn2(tmp_path, FAULT)
    routes, whole = (Routes(one, place(one, 16, "spread")) for one in (topology, build("trn2")))
    assert len(routes.links(0, 1)) == len(routes.links(1, 0)) == 3
    broken = {link for link in range(64) if topology.links.is_down[link]}
    for src, dst in ((a, b) for a in range(16) for b in range(16)):
        if not broken & set(whole.links(src, dst)):
            assert routes.links(src, dst) == whole.links(src, dst)


def test_a_fault_of_one_instance_leaves_the_others_alone(tmp_path: Path) -> None:
    topology = worn_trn2(tmp_path, FAULT.replace("down", "node = 1\ndown"), nodes=3)
    routes = Routes(topology, place(topology, 48, "spread"))
    assert [len(routes.links(16 * node, 16 * node + 1)) for node in range(3)] == [1, 3, 1]


def test_a_chip_without_links_is_named_unless_no_rank_is_on_it(tmp_path: Path) -> None:
    rows = [FAULT.replace("[0, 1]", f"[0, {chip}]") for chip in (1, 3, 4, 12)]
    topology = worn_trn2(tmp_path, "".join(rows))
    with pytest.raises(
        TopologyError, match=r"worn: .*no route from c0 to c1, c0 to c2.* and 22 more"
    ):
        Routes(topology, place(topology, 64))
    places = tmp_path / "places.json"
    places.write_text('{"ranks": [[0, 1, 0], [0, 3, 0]]}')
    routes = Routes(topology, place(topology, 2, str(places)))
    assert len(routes.links(0, 1)) == 2
