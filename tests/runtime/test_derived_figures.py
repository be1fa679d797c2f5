"""What `nccrt topology show` derives: links of levels, diameter and bisection."""

import networkx
import pytest
from hypothesis import given, settings

from ncc_runtime.report.topology.text import bisection, describe, diameter, level_links
from ncc_runtime.topology.format.spec import example_names, preset_names
from ncc_runtime.topology.graph import Topology, build
from tests.draws_topology import build_levels, topologies
from tests.example_count import examples

GB = 10**9


@pytest.mark.parametrize(
    ("name", "links", "furthest", "halves_gb"),
    [
        ("trn2", 4, 4, 1024),  # two wraps of four links, 128 GB/s each
        ("trn2-ultraserver", 6, 6, 2048),  # two wraps of sixteen links in Z, 64 GB/s each
        ("tpu-v4-cube", 6, 6, 1600),
        ("dgx-h100", 1, 2, 1800),  # half of the ports of a switch
        ("trn3-gen1-ultraserver", 2, 3, 4096),
        ("trn3", 3, 3, 9216),  # the links between the racks
    ],
)
def test_links_diameter_and_bisection_are_those_of_the_wiring(
    name: str, links: int, furthest: int, halves_gb: int
) -> None:
    topology = build(name)
    assert sum(level.links for level in level_links(topology)) == links * topology.chips
    assert (diameter(topology) or (0,))[0] == furthest
    cut = bisection(topology)
    assert cut is not None
    assert cut.bytes_per_s / GB == pytest.approx(halves_gb, rel=1e-6)


def test_an_oversubscribed_spine_is_the_bisection() -> None:
    def rows(ratio: int) -> str:
        figure = '{{value = {}, source = "s"}}'.format
        return (
            '[[level]]\nname = "leaf"\nkind = "switch"\n'
            f"size = {figure(4)}\nbandwidth_bytes_per_s = {figure(100 * GB)}\n"
            f"latency_ps = {figure(1)}\n"
            '[[level]]\nname = "spine"\nkind = "switch"\njoins = "switches"\n'
            f"size = {figure(2)}\noversubscription = {figure(ratio)}\nlatency_ps = {figure(1)}\n"
        )

    for ratio in (1, 2, 4):
        cut = bisection(build_levels(rows(ratio)))
        assert cut is not None
        assert cut.bytes_per_s / GB == pytest.approx(400 / ratio, rel=1e-6)


@given(topology=topologies())
@settings(max_examples=examples(40))
def test_the_diameter_is_that_of_the_graph(topology: Topology) -> None:
    chips, links = topology.chips_per_node, topology.links
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(chips))
    ends = zip(links.src.tolist(), links.dst.tolist(), strict=True)
    graph.add_edges_from(list(ends)[: topology.links_per_node])
    found = diameter(topology)
    if chips == 1:
        assert found is None
        return
    lengths = dict(networkx.all_pairs_shortest_path_length(graph))
    away = [lengths[a][b] for a in range(chips) for b in range(chips) if a != b]
    assert found == (max(away), pytest.approx(sum(away) / len(away)))


@pytest.mark.parametrize("name", [*preset_names(), *example_names()])
def test_what_follows_is_shown_of_every_topology_with_links(name: str) -> None:
    topology = build(name)
    words = ("links of ", "diameter", "bisection")
    text = describe(topology)
    assert all((f"\n{word}" in text) is (topology.chips > 1) for word in words)
