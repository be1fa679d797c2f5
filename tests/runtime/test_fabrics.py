"""Fabrics of levels: UltraServers, switches and what users compose, from links to the clock."""

from pathlib import Path
from xml.etree import ElementTree

import networkx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_runtime
from ncc_runtime.collectives.layout import GroupLayout
from ncc_runtime.errors import TopologyError
from ncc_runtime.group_rules.judge import verdicts
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.placement import place
from ncc_runtime.report.explain import explained
from ncc_runtime.report.topology.svg import as_svg
from ncc_runtime.report.topology.text import describe
from ncc_runtime.topology import chip_routes
from ncc_runtime.topology import chip_routes as tables
from ncc_runtime.topology.cycles import disjoint_cycles
from ncc_runtime.topology.format.spec import example_names, preset_names
from ncc_runtime.topology.graph import Topology, build
from ncc_runtime.topology.quadrants import PORTS, planes_of_cores, ports_of_cores
from ncc_runtime.topology.routes import Routes
from tests.clock_runs import agreed, permute
from tests.draws_placed_groups import suited
from tests.draws_topology import build_levels, fabrics, topologies, worn_fabrics
from tests.example_count import examples
from tests.programs import collective_program

LARGE = ("trn2-ultraserver", "trn3-gen1-ultraserver", "trn3-gen2-ultraserver", "tpu-v4-cube")
MIB = 2**20


def level(name: str, kind: str, joins: str = "", **figures: object) -> str:
    """A row of `[[level]]` whose links run at 64 GB/s and 100 ns unless they are said."""
    both = {"bandwidth_bytes_per_s": 64 * 10**9, "latency_ps": 100_000, **figures}
    lines = [f'{key} = {{value = {value}, source = "s"}}' for key, value in both.items() if value]
    joins = f'joins = "{joins}"\n' if joins else ""
    return f'[[level]]\nname = "{name}"\nkind = "{kind}"\n{joins}' + "\n".join(lines) + "\n"


def chip_pairs(topology: Topology) -> Routes:
    return Routes(topology, place(topology, topology.chips, "spread"))


@pytest.mark.parametrize("name", LARGE)
def test_every_two_chips_have_one_way_without_a_gap_of_the_fewest_links(name: str) -> None:
    topology = build(name)
    routes, links = chip_pairs(topology), topology.links
    chips = np.arange(topology.chips)
    src, dst = (side.ravel() for side in np.meshgrid(chips, chips, indexing="ij"))
    start, flat = routes.link_runs(src, dst)
    at = src.copy()
    for step in range(int(np.diff(start).max())):
        goes = np.flatnonzero(np.diff(start) > step)
        link = flat[start[goes] + step]
        assert (links.src[link] == at[goes]).all()
        at[goes] = links.dst[link]
    assert (at == dst).all()
    assert (np.diff(start).reshape(len(chips), -1) == fewest(topology)).all()


def fewest(topology: Topology) -> np.ndarray:
    """Links between all chips, by powers of the matrix of neighbours."""
    count = topology.chips + topology.switches_per_node
    joined = np.zeros((count, count), bool)
    joined[topology.links.src, topology.links.dst] = True
    reached, found, hop = np.eye(count, dtype=bool), np.full((count, count), -1), 0
    while (found < 0).any():
        found[reached & (found < 0)] = hop
        reached, hop = (reached.astype(np.float32) @ joined) > 0, hop + 1
    return found[: topology.chips, : topology.chips]


@pytest.mark.parametrize(
    ("name", "rate"),
    [
        ("trn2-ultraserver", 640),  # 1,280 GB/s a chip in both directions
        ("trn3-gen1-ultraserver", 704),
        ("trn3-gen2-ultraserver", 704),
        ("dgx-h100", 450),
        ("tpu-v4-cube", 300),
    ],
)
def test_a_chip_lets_out_and_takes_in_the_published_rate(name: str, rate: int) -> None:
    links = build(name).links
    for ends in (links.src, links.dst):
        sums = np.bincount(ends, links.bandwidth_bytes_per_s)[: links.chips]
        assert set(sums.tolist()) == {rate * 10**9}


@pytest.mark.parametrize(
    ("name", "src", "dst", "expected"),
    [
        ("trn3", 0, 3, "c0.server>s0, s0.p3>c3"),  # a server's own switch before the rack's
        ("trn3", 0, 4, "c0.rack>s36, s36.p4>c4"),
        ("trn3", 5, 77, "c5.cross+>c77"),
        ("trn3", 0, 77, "c0.rack>s36, s36.p5>c5, c5.cross+>c77"),
        ("trn3", 77, 0, "c77.rack>s37, s37.p0>c72, c72.cross->c0"),
        ("trn3-gen1-ultraserver", 3, 20, "c3.pair>s0, s0.p20>c20"),  # servers 0 and 1
        ("trn3-gen1-ultraserver", 20, 52, "c20.cross+>c52"),  # servers 1 and 3
        ("trn2-ultraserver", 0, 16, "c0.U>c16"),
        ("trn2-ultraserver", 16, 48, "c16.D>c0, c0.D>c48"),  # halfway, odd instance: down
        ("trn2-ultraserver", 0, 21, "c0.E>c1, c1.S>c5, c5.U>c21"),  # columns, rows, planes
        ("tpu-v4-cube", 0, 63, "c0.W>c3, c3.N>c15, c15.D>c63"),
    ],
)
def test_a_way_through_a_fabric_is_the_assumed_one(
    name: str, src: int, dst: int, expected: str
) -> None:
    topology = build(name)
    routes = chip_pairs(topology)
    words = ", ".join(topology.links.step(link) for link in routes.links(src, dst))
    assert words == expected


def test_latency_is_that_of_links_and_of_switches_that_are_passed() -> None:
    topology = build("trn3")
    routes = chip_pairs(topology)
    ends = np.array([[0, 3], [0, 5], [0, 72], [0, 77]]).T
    assert routes.links_ps(*ends).tolist() == [150_000, 150_000, 100_000, 250_000]
    assert routes.hops(*ends).tolist() == [2, 2, 1, 3]


def test_every_second_instance_of_an_ultraserver_is_turned() -> None:
    topology = build("trn2-ultraserver")
    ports, planes = ports_of_cores(topology), planes_of_cores(topology)
    alone = ports_of_cores(build("trn2"))
    for instance in range(4):
        part = slice(16 * instance, 16 * instance + 16)
        turned = alone[:, ::-1] if instance % 2 else alone
        assert (ports[part] == turned).all()
    # left by S-engines 1 and 2, right by 0 and 3; physical S-engines by parity of row and column
    engines = {
        (0, 0): [2, 3, 1, 0],
        (0, 1): [1, 0, 2, 3],
        (1, 0): [0, 1, 3, 2],
        (1, 1): [3, 2, 0, 1],
    }
    for chip in range(64):
        own = engines[chip // 4 % 4 % 2, chip % 2]
        own = own[::-1] if chip // 16 % 2 else own
        assert [PORTS[code] for code in planes[chip]] == [
            "D" if one in (1, 2) else "U" for one in own
        ]


def test_an_ultraserver_ranks_instance_by_instance_with_an_adapter_a_chip() -> None:
    topology = build("trn2-ultraserver", nodes=2)
    placement = place(topology, 512)
    routes = Routes(topology, placement)
    assert placement.chip_in_node[[0, 63, 64, 255, 256]].tolist() == [0, 15, 16, 63, 0]
    assert routes.describe(0, 256) == "efa n0.efa0>n1.efa0"
    assert routes.describe(67, 511) == "efa n0.efa16>n1.efa63"
    assert "neuronlink" in routes.describe(0, 255)


@given(topology=topologies(), data=st.data())
@settings(max_examples=examples(40))
def test_large_fabrics_are_routed_as_small_ones(topology: Topology, data: st.DataObject) -> None:
    dense = chip_pairs(topology)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tables, "DENSE_CHIPS", 0)
        patch.setattr(chip_routes, "LARGEST_CACHE", data.draw(st.sampled_from((0, 99, 10**6))))
        sparse = chip_pairs(topology)
    ranks = st.lists(st.integers(0, topology.chips - 1), min_size=1, max_size=9)
    src, dst = np.array(data.draw(ranks))[:, None], np.array(data.draw(ranks))
    for query in ("hops", "links_ps", "latency_ps", "bandwidth_bytes_per_s", "crossings"):
        assert (getattr(dense, query)(src, dst) == getattr(sparse, query)(src, dst)).all()
    for one, other in zip(dense.link_runs(src, dst), sparse.link_runs(src, dst), strict=True):
        assert one.tolist() == other.tolist()


@pytest.mark.parametrize(
    "rows",
    [
        level("plane", "switch", size=1024),
        level("leaf", "switch", size=32)
        + level(
            "spine", "switch", "switches", size=32, bandwidth_bytes_per_s=0, oversubscription=2
        ),
        level("cube", "torus", dims=[8, 8, 16]),
        level("box", "full", size=8) + level("rail", "switch", "places", size=128),
    ],
    ids=["switch", "tree", "torus", "rails"],
)
def test_1024_chips_are_routed_over_links_that_join_them(rows: str) -> None:
    topology = build_levels(rows)
    assert topology.chips == 1024
    links, placement = topology.links, place(topology, topology.max_ranks)
    routes, ranks = Routes(topology, placement), np.arange(topology.max_ranks)
    for shift in (1, 5, 64, 1000):
        peers = np.roll(ranks, shift)
        apart = placement.chip[ranks] != placement.chip[peers]
        start, path = routes.link_runs(ranks, peers)
        assert ((np.diff(start) > 0) == apart).all()
        assert (links.src[path[start[:-1][apart]]] == placement.chip[ranks[apart]]).all()
        assert (links.dst[path[start[1:][apart] - 1]] == placement.chip[peers[apart]]).all()
        inner = np.setdiff1d(np.arange(1, len(path)), start)  # not the first link of a route
        assert (links.dst[path[inner - 1]] == links.src[path[inner]]).all()
        slowest = np.minimum.reduceat(links.bandwidth_bytes_per_s[path], start[:-1][apart])
        assert (routes.bandwidth_bytes_per_s(ranks, peers)[apart] <= slowest).all()


@pytest.mark.parametrize("node", [-1, 2])
def test_a_graph_of_an_instance_that_is_not_there_is_refused(node: int) -> None:
    with pytest.raises(TopologyError, match="is not there"):
        build("trn2", 2).graph(node)


@given(topology=worn_fabrics())
@settings(max_examples=examples(60))
def test_the_graph_has_every_link_with_its_figures(topology: Topology) -> None:
    graph, links = topology.graph(), topology.links
    chips = [name for name, kind in graph.nodes(data="kind") if kind == "chip"]
    assert chips == [f"c{chip}" for chip in range(topology.chips)]
    joins = [(a, b, data) for a, b, data in graph.edges(data=True) if "link" in data]
    assert len(joins) == len(links)
    for source, target, data in joins:
        link = data["link"]
        assert links.step(link) == f"{data['name']}>{target}"
        assert source == links.end(links.src[link])
        for figure in ("bandwidth_bytes_per_s", "latency_ps", "parallel_links", "is_down"):
            assert data[figure] == getattr(links, figure)[link]


def test_instances_meet_in_the_network() -> None:
    graph = build("trn1", nodes=2).graph()
    path = networkx.shortest_path(graph, "c1", "c16", weight="latency_ps")
    assert path == ["c1", "n0.efa0", "network", "n1.efa0", "c16"]
    assert graph.edges["n0.efa0", "network"]["latency_ps"] == build("trn1").efa.latency_ps
    assert "network" not in build("trn1", nodes=2).graph(1)


@given(topology=worn_fabrics())
@settings(max_examples=examples(60))
def test_ways_go_round_what_is_down_by_the_fewest_links_left(topology: Topology) -> None:
    lengths = {}
    for node in range(topology.nodes):
        lengths.update(networkx.all_pairs_shortest_path_length(topology.graph(node, up_only=True)))
    chips = np.arange(topology.chips)
    src, dst = (side.ravel() for side in np.meshgrid(chips, chips, indexing="ij"))
    inside = src // topology.chips_per_node == dst // topology.chips_per_node
    src, dst = src[inside], dst[inside]
    wanted = [
        lengths[f"c{a}"].get(f"c{b}") for a, b in zip(src.tolist(), dst.tolist(), strict=True)
    ]
    if None in wanted:
        with pytest.raises(TopologyError, match=r"leave no route from c\d+ to c\d+"):
            chip_pairs(topology)
        return
    routes = chip_pairs(topology)
    assert routes.hops(src, dst).tolist() == wanted
    assert not topology.links.is_down[routes.link_runs(src, dst)[1]].any()


@pytest.mark.parametrize("name", [*preset_names(), *example_names()])
def test_cycles_of_chips_share_no_link(name: str) -> None:
    topology = build(name)
    links = topology.links
    joins = set(zip(links.src.tolist(), links.dst.tolist(), strict=True))
    used = [
        edge
        for cycle in disjoint_cycles(topology, range(topology.chips))
        for edge in zip(cycle, cycle[1:] + cycle[:1], strict=True)
        if len(cycle) > 1
    ]
    assert joins.issuperset(used)
    assert len(set(used)) == len(used)


def test_chips_of_one_switch_are_neighbours_for_a_permute() -> None:
    placement = place(build("trn3"), 576)
    for other, allowed in ((3, True), (71, True), (72, True), (73, False)):
        pairs = ((0, 4 * other), (4 * other, 0))
        program = collective_program(CollectiveOp.PERMUTE, 576, [8], pairs=pairs)
        found = [one for one in verdicts(program, placement) if one.rule.startswith("permute")]
        assert [one.allowed for one in found] == [allowed]


def test_up_links_follow_from_the_oversubscription() -> None:
    spine = level(
        "spine", "switch", "switches", size=2, bandwidth_bytes_per_s=0, oversubscription=4
    )
    topology = build_levels(level("leaf", "switch", size=8) + spine)
    links = topology.links
    ups = [link for link in range(len(links)) if links.port[link] == "spine"]
    assert [links.step(link) for link in ups] == ["s0.spine>s2", "s1.spine>s2"]
    assert {int(links.bandwidth_bytes_per_s[link]) for link in ups} == {8 * 64 * 10**9 // 4}
    routes = chip_pairs(topology)
    assert routes.links_ps(np.array(0), np.array(15)) == 300_000  # leaf, spine, leaf
    assert routes.links_ps(np.array(0), np.array(7)) == 100_000


EXCHANGE = [(0, 2), (1, 3), (2, 0), (3, 1)]


def exchange(tmp_path: Path, rows: str) -> int:
    """The time of MiB-sized swaps between both halves of four chips, by two clocks."""
    file = tmp_path / "fabric.toml"
    file.write_text(f'name = "f"\nbase = "neuroncore-v3"\n{rows}')
    executable = permute(EXCHANGE, 64 * MIB, 4, str(file), placement="spread")
    trace, _ = agreed(executable)
    return int(trace.end_ps.max())


def test_transfers_share_the_up_links_of_a_switch(tmp_path: Path) -> None:
    leaf = level("leaf", "switch", size=2)
    free, tight = (
        exchange(
            tmp_path,
            leaf + level("spine", "switch", "switches", size=2, bandwidth_bytes_per_s=rate * 10**9),
        )
        for rate in (128, 32)
    )
    assert free < tight
    # two transfers at once over an up-link of half a port's rate: a quarter of that each
    assert tight - free == pytest.approx(64 * MIB * (1000 / 16 - 1000 / 64), rel=0.01)


def test_transfers_share_the_inside_of_an_oversubscribed_switch(tmp_path: Path) -> None:
    free, tight = (
        exchange(tmp_path, level("one", "switch", size=4, oversubscription=ratio))
        for ratio in (1, 4)
    )
    assert tight - free == pytest.approx(64 * MIB * (1000 / 16 - 1000 / 64), rel=0.01)


def test_a_port_of_a_switch_that_is_down_leaves_another_way(tmp_path: Path) -> None:
    file = tmp_path / "worn.toml"
    fault = '[[fault]]\nfrom = 0\nto = "s0"\ndown = true\nsource = "s"\n'
    file.write_text(f'name = "worn"\nbase = "trn3-gen2-ultraserver"\n{fault}')
    topology = build(str(file))
    routes = chip_pairs(topology)
    assert [topology.links.step(link) for link in routes.links(0, 1)] == [
        "c0.rack>s36",
        "s36.p1>c1",
    ]
    assert [topology.links.step(link) for link in routes.links(1, 0)] == [
        "c1.server>s0",
        "s0.p0>c0",
    ]
    assert "c0>s0 of every instance: down (s)" in describe(topology)
    file.write_text(f'name = "worn"\nbase = "dgx-h100"\n{fault}')
    with pytest.raises(TopologyError, match="leave no route from c0 to c1"):
        chip_pairs(build(str(file)))


def test_a_level_of_the_base_is_overridden_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    row = '[[level]]\nname = "cross"\nbandwidth_bytes_per_s = {value = 7000000, source = "s"}\n'
    file.write_text(f'name = "mine"\nbase = "trn3"\n{row}')
    with pytest.raises(TopologyError, match="'trn3' is unknown"):
        build(str(file))
    file.write_text(f'name = "mine"\nbase = "trn3-gen2-ultraserver"\n{row}')
    topology = build(str(file))
    slow = topology.links.bandwidth_bytes_per_s == 7 * 10**6
    assert slow.sum() == 144
    assert topology.instance == ""
    assert topology.levels[:2] == build("trn3").levels[:2]


def test_only_switches_close_a_ring_in_the_order_of_chips() -> None:
    placement = place(build("dgx-h100"), 8)
    (cycle,) = GroupLayout.of(placement, [3, 1, 0, 2, 7, 6, 5, 4]).chip_cycles()
    assert [placement.chip[[3, 1, 0, 2, 7, 6, 5, 4]][one] for (one,) in cycle] == list(range(8))


def test_nobodys_rules_hold_for_what_is_not_trainium() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 3, [8])
    assert verdicts(program, place(build("dgx-h100"), 3)) == ()
    assert verdicts(program, place(build("trn2"), 3)) != ()
    assert {one.allowed for one in verdicts(program, place(build("trn2u.48xlarge"), 3))} == {False}


OPERATORS = (
    CollectiveOp.ALL_REDUCE,
    CollectiveOp.ALL_GATHER,
    CollectiveOp.REDUCE_SCATTER,
    CollectiveOp.ALL_TO_ALL,
)


@pytest.mark.parametrize("op", OPERATORS, ids=lambda op: op.value)
@pytest.mark.parametrize("name", ["trn2-ultraserver", "trn3", "dgx-h100"])
def test_every_algorithm_that_suits_chips_of_a_fabric_is_proved_and_timed(
    name: str, op: CollectiveOp
) -> None:
    program = collective_program(op, 8, [1024])
    layout = GroupLayout.of(place(build(name), 8, "spread"), range(8))
    for algorithm in suited(op, layout):
        model = ncc_runtime.load(
            program, name, placement="spread", algorithms={op.value: algorithm}
        )
        run = model.run(values=False)
        assert [one.algorithm for one in run.collectives] == [algorithm]
        (row,) = explained(model.executable, {op.value: algorithm}, model.plans).rows
        assert run.collectives[0].time_us >= row.bound.time_ps / 1e6 > 0


def drawn(topology: Topology, ranks: int = 0) -> tuple[str, dict[str, list[dict[str, float]]]]:
    """The text, and the places of its boxes by kind, without those of the legend."""
    text = as_svg(topology, place(topology, ranks) if ranks else None)
    found: dict[str, list[dict[str, float]]] = {}
    for box in ElementTree.fromstring(text).findall("{*}rect"):
        sides = {key: float(box.attrib[key]) for key in ("x", "y", "width", "height")}
        found.setdefault(box.attrib["class"], []).append(sides)
    return text, found


@pytest.mark.parametrize("name", [*preset_names(), *example_names()])
def test_a_drawing_has_every_chip_rank_and_switch_once_and_apart(name: str) -> None:
    topology = build(name)
    text, boxes = drawn(topology, topology.max_ranks)
    assert len(boxes["chip"]) == topology.chips
    assert len(boxes["rank"]) == topology.max_ranks
    assert all(f">c{chip}<" in text for chip in range(topology.chips))
    places = np.array(
        [[box[side] for side in ("x", "y", "width", "height")] for box in boxes["chip"]]
    )
    x, y, width, height = places.T
    beside = (x[:, None] + width[:, None] <= x) | (x + width <= x[:, None])
    above = (y[:, None] + height[:, None] <= y) | (y + height <= y[:, None])
    assert (beside | above | np.eye(len(x), dtype=bool)).all()


@given(topology=fabrics())
@settings(max_examples=examples(40))
def test_any_fabric_can_be_drawn_inside_its_canvas_and_described(topology: Topology) -> None:
    text, boxes = drawn(topology, topology.max_ranks)
    root = ElementTree.fromstring(text)
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    every = [box for kind in boxes.values() for box in kind]
    assert all(box["x"] + box["width"] <= width for box in every)
    assert all(box["y"] + box["height"] <= height for box in every)
    assert len(boxes["chip"]) == topology.chips
    described = describe(topology, place(topology, topology.max_ranks))
    assert all(f"c{chip} " in described for chip in range(topology.chips))


def test_a_drawing_marks_links_that_are_down_or_slowed(tmp_path: Path) -> None:
    file = tmp_path / "worn.toml"
    rows = (
        "between = [0, 1]\ndown = true",
        "from = 5\nto = 6\nbandwidth_bytes_per_s = 32_000_000_000",
    )
    faults = "".join(f'[[fault]]\n{row}\nsource = "s"\n' for row in rows)
    file.write_text(f'name = "worn"\nbase = "trn2.48xlarge"\n{faults}')
    root = ElementTree.fromstring(as_svg(build(str(file))))
    lines = root.findall("{*}polyline")
    about = {line.attrib["class"]: line.findtext("{*}title") for line in lines}
    assert about["link down"] == "c0.E>c1 128 GB/s down; c1.W>c0 128 GB/s down"
    assert about["link slowed"] == "c5.E>c6 32 GB/s; c6.W>c5 128 GB/s"
    assert "32" in [text.text for text in root.findall("{*}text")]
