"""Topologies: presets against published totals, files against their schema."""

import re
from importlib import resources
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given

import ncc_runtime
from ncc_runtime.errors import TopologyError
from ncc_runtime.placement import place
from ncc_runtime.report.topology.text import describe
from ncc_runtime.topology.format.spec import ALIASES, example_names, preset_names
from ncc_runtime.topology.graph import Topology, build
from ncc_runtime.topology.quadrants import PORTS, ports_of_cores
from tests.draws_topology import build_drawn, topologies, topology_file

GIB = 2**30

DRIVER_NEIGHBOURS = {
    0: [12, 3, 4, 1],
    1: [13, 0, 5, 2],
    2: [14, 1, 6, 3],
    3: [15, 2, 7, 0],
    4: [0, 7, 8, 5],
}  # aws-neuron-driver, trn1_32xl_neigbor_ids: N, W, S, E


def total(topology: Topology, what: str) -> int:
    stacks = topology.chips * topology.hbm.stacks
    cores = topology.chips * topology.cores_per_chip
    return {
        "hbm bytes": stacks * topology.hbm.stack_bytes,
        "hbm bytes/s": stacks * topology.hbm.stack_bandwidth_bytes_per_s,
        "cores": cores,
        "dma engines": cores * topology.dma.engines_per_core,
        "cc cores": cores * topology.cc_cores_per_core,
        "link bytes/s": int(topology.links.bandwidth_bytes_per_s.sum()),
        "efa bits/s": 0
        if topology.efa is None
        else topology.efa.adapters * topology.efa.adapter_bandwidth_bytes_per_s * 8,
    }[what]


@pytest.mark.parametrize(
    ("name", "what", "published"),
    [
        ("trn2.48xlarge", "hbm bytes", 1536 * GIB),
        ("trn2.48xlarge", "hbm bytes/s", 46_400 * 10**9),
        ("trn2.48xlarge", "cores", 128),
        ("trn2.48xlarge", "dma engines", 16 * 128),
        ("trn2.48xlarge", "cc cores", 16 * 16),
        ("trn2.48xlarge", "link bytes/s", 16 * 1024 * 10**9 // 2),
        ("trn2.48xlarge", "efa bits/s", 3_200 * 10**9),
        ("trn2.3xlarge", "hbm bytes", 96 * GIB),
        ("trn1.32xlarge", "hbm bytes", 512 * GIB),
        ("trn1.32xlarge", "hbm bytes/s", 13_120 * GIB),
        ("trn1.32xlarge", "dma engines", 16 * 32),
        ("trn1.32xlarge", "cc cores", 16 * 6),
        ("trn1.32xlarge", "link bytes/s", 16 * 384 * 10**9 // 2),
        ("trn1.32xlarge", "efa bits/s", 800 * 10**9),
        ("trn1n.32xlarge", "efa bits/s", 1_600 * 10**9),
        ("trn1.2xlarge", "hbm bytes", 32 * GIB),
        ("inf2.48xlarge", "hbm bytes/s", 9_840 * GIB),
        ("inf2.48xlarge", "link bytes/s", 12 * 192 * GIB // 2),
        ("inf2.24xlarge", "hbm bytes", 192 * GIB),
        ("inf2.24xlarge", "cores", 12),
        ("inf2.xlarge", "cores", 2),
        ("inf2.8xlarge", "hbm bytes/s", 820 * GIB),
    ],
)
def test_totals_of_an_instance_are_the_published_ones(name: str, what: str, published: int) -> None:
    # a chip's published link bandwidth counts both directions, hence half of it a directed link
    assert total(build(name), what) == published


def test_every_trainium2_chip_has_1024_gb_per_s_of_links() -> None:
    links = build("trn2").links
    for chip in range(16):
        touching = (links.src == chip) | (links.dst == chip)
        assert links.bandwidth_bytes_per_s[touching].sum() == 1024 * 10**9


@pytest.mark.parametrize("name", ["trn1.32xlarge", "trn1n.32xlarge", "trn2.48xlarge"])
def test_torus_neighbours_are_the_drivers(name: str) -> None:
    links = build(name).links
    for chip, neighbours in DRIVER_NEIGHBOURS.items():
        assert links.dst[links.src == chip].tolist() == neighbours
        assert [links.name(link)[-1] for link in np.flatnonzero(links.src == chip)] == list("NWSE")


# aws-neuron-driver, v3: the neighbours of the S-engines 0..3 of every chip
ENGINE_NEIGHBOURS = [
    [12, 1, 3, 4], [0, 13, 5, 2], [14, 3, 1, 6], [2, 15, 7, 0],
    [8, 5, 7, 0], [4, 9, 1, 6], [10, 7, 5, 2], [6, 11, 3, 4],
    [4, 9, 11, 12], [8, 5, 13, 10], [6, 11, 9, 14], [10, 7, 15, 8],
    [0, 13, 15, 8], [12, 1, 9, 14], [2, 15, 13, 10], [14, 3, 11, 12],
]  # fmt: skip
# and the physical core of each logical one at LNC 1, by parity of row and column
PHYSICAL_CORES = {
    (0, 0): [4, 5, 6, 7, 2, 3, 0, 1],
    (0, 1): [2, 3, 0, 1, 4, 5, 6, 7],
    (1, 0): [0, 1, 2, 3, 6, 7, 4, 5],
    (1, 1): [6, 7, 4, 5, 0, 1, 2, 3],
}


@pytest.mark.parametrize("lnc", [1, 2])
def test_trainium2_cores_sit_at_the_ports_that_the_drivers_tables_give(lnc: int) -> None:
    topology = build("trn2", lnc=lnc)
    ports = ports_of_cores(topology)
    for chip in range(16):
        links = np.flatnonzero(topology.links.src == chip)
        leads = {topology.links.port[link]: int(topology.links.dst[link]) for link in links}
        physical = PHYSICAL_CORES[chip // 4 % 2, chip % 2]
        for core in range(topology.ranks_per_chip):
            neighbour = ENGINE_NEIGHBOURS[chip][physical[core * lnc] // 2]
            assert leads[PORTS[ports[chip, core]]] == neighbour


def test_inf2_48xlarge_is_a_ring_and_24xlarge_an_open_line() -> None:
    ring, line = build("inf2.48xlarge").links, build("inf2.24xlarge").links
    pairs = {frozenset(pair) for pair in zip(ring.src.tolist(), ring.dst.tolist(), strict=True)}
    assert pairs == {frozenset({chip, (chip + 1) % 12}) for chip in range(12)}
    pairs = {frozenset(pair) for pair in zip(line.src.tolist(), line.dst.tolist(), strict=True)}
    assert pairs == {frozenset({chip, chip + 1}) for chip in range(5)}


@pytest.mark.parametrize(
    ("name", "lnc", "ranks", "efa_mbit_per_s"),
    [
        ("trn2", 1, 128, 154_400),
        ("trn2", 2, 64, 154_400),
        ("trn2.3xlarge", 1, 8, 0),
        ("trn2.3xlarge", 2, 4, 0),
        ("trn1", None, 32, 77_600),
        ("trn1n.32xlarge", None, 32, 77_600),
        ("inf2", None, 24, 0),
        ("trn1.2xlarge", None, 2, 0),
    ],
)
def test_ranks_and_what_one_alone_gets_of_efa(
    name: str, lnc: int | None, ranks: int, efa_mbit_per_s: int
) -> None:
    topology = build(name, lnc=lnc)
    assert topology.max_ranks == ranks
    assert topology.rank_efa_bandwidth_bytes_per_s * 8 == efa_mbit_per_s * 10**6


def test_a_rank_at_lnc_2_has_both_cores_and_shares_no_stack() -> None:
    one, two = build("trn2", lnc=1), build("trn2", lnc=2)
    assert two.rank_dma_bandwidth_bytes_per_s == 2 * one.rank_dma_bandwidth_bytes_per_s
    assert two.rank_ring_descriptors == 2 * one.rank_ring_descriptors
    assert (one.rank_cc_cores, two.rank_cc_cores) == (2, 4)
    assert two.rank_hbm_bandwidth_bytes_per_s == 725 * 10**9
    assert one.rank_hbm_bandwidth_bytes_per_s == 725 * 10**9 // 2


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_an_alias_is_its_instance(alias: str) -> None:
    assert build(alias).name == ALIASES[alias]


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_carries_its_own_name_and_a_source_for_every_figure(name: str) -> None:
    topology = build(name)
    assert topology.name == name
    assert all(figure.source.strip() for figure in topology.figures.values())
    assert topology.generation == name[: len(topology.generation)]


PUBLISHED = ("AWS Neuron SDK", "aws-neuron", "neuron-driver", "Mooncake issue")


@pytest.mark.parametrize("name", preset_names())
def test_every_figure_of_a_preset_cites_a_publication_or_is_called_assumed(name: str) -> None:
    for key, figure in build(name).figures.items():
        is_cited = any(word in figure.source for word in PUBLISHED)
        assert is_cited or figure.source.startswith(("assumed", "fitted: ")), key


def test_presets_say_of_unpublished_figures_that_they_are_assumed() -> None:
    assert build("trn2").figures["link.latency_ps"].source == "assumed"


@given(topology=topologies())
def test_instances_repeat_the_same_links(topology: Topology) -> None:
    links, count = topology.links, topology.links_per_node
    for node in range(topology.nodes):
        part = slice(node * count, (node + 1) * count)
        for ends in (links.src, links.dst):
            chips, switches = topology.chips_per_node, topology.switches_per_node
            shift = np.where(ends[:count] < links.chips, node * chips, node * switches)
            assert (ends[part] == ends[:count] + shift).all()


@given(topology=topologies())
def test_a_port_of_a_chip_is_one_link(topology: Topology) -> None:
    names = [topology.links.name(link) for link in range(len(topology.links))]
    assert len(set(names)) == len(names)


@given(topology=topologies())
def test_every_link_has_one_the_other_way(topology: Topology) -> None:
    links = topology.links  # the halves of an oversubscribed switch are one
    sides = (links.src.tolist(), links.dst.tolist())
    sources, targets = ([links.end(end).rstrip("x") for end in side] for side in sides)
    ends = [way for way in zip(sources, targets, strict=True) if way[0] != way[1]]
    assert sorted(ends) == sorted((target, source) for source, target in ends)


def test_arrays_of_a_topology_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        build("trn2").links.src[0] = 1


@pytest.mark.parametrize(
    ("name", "arguments", "message"),
    [
        ("inf2", {"nodes": 2}, "2 instances of inf2.48xlarge.*no EFA.*nccom-test.rst"),
        ("trn1.2xlarge", {"nodes": 2}, "no EFA adapters.*trn1-arch.rst"),
        ("trn1", {"lnc": 2}, "trn1.32xlarge runs at lnc 1, not 2.*lnc.rst"),
        ("trn2", {"lnc": 4}, "runs at lnc 1 or 2, not 4"),
        ("trn2", {"lnc": 0}, "runs at lnc 1 or 2, not 0"),
        ("trn2", {"nodes": 0}, "nodes is 0, must be from 1"),
        ("trn2.48xlrge", {}, "did you mean trn2.48xlarge"),
        ("trn1n", {}, "did you mean trn1n.32xlarge;"),
        ("trn3-gen2", {}, "did you mean trn3-gen2-ultraserver;"),
        ("TRN2", {}, "did you mean trn2;"),
        ("k80", {}, "'k80' is unknown; known: "),
        ("", {}, "'' is unknown; known: "),
        ("no/such.toml", {}, "no/such.toml: no such file"),
        ("/", {}, "/: is a directory"),
    ],
)
def test_what_cannot_be_built_is_refused_with_the_reason(
    name: str, arguments: dict[str, int], message: str
) -> None:
    with pytest.raises(TopologyError, match=message):
        build(name, **arguments)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("chips.count = 0", "chips.count: 0 is not an integer from 1"),
        ("chips.count = true", "chips.count: True is not an integer"),
        ("chips.count = 8\nefa.adapters = 8", r"fabric.dims: extents \[4, 4\] hold 16 of 8"),
        ("fabric.dims = [16]", "a torus has 2 or 3 extents, not 1"),
        ('fabric.shape = "cube"', "'cube' is not one of torus, ring"),
        ('fabric.shape = "none"', "none leaves 16 chips unconnected"),
        ('fabric.shape = "graph"', "fabric.links: missing"),
        ('fabric.shape = "graph"\nfabric.links = [[0, 1]]', "chip 0 has no route to chip 2"),
        ('fabric.shape = "graph"\nfabric.links = [[0, 99]]', r"chip 99 of \[0, 99\]"),
        ('fabric.shape = "graph"\nfabric.links = [[3, 3]]', "pairs of different chips"),
        ("link.bandwidth = 5", "link.bandwidth: unknown key; did you mean link.bandwidth_bytes"),
        ("link.latency_ps = 1.5", "link.latency_ps: 1.5 is not an integer from 0"),
        ("link.bandwidth_bytes_per_s = 10_000_000_000_000_000", r"not an integer from 10\^6 to"),
        ("link.bandwidth_bytes_per_s = 999_999", r"999999 is not an integer from 10\^6 to 10\^15"),
        ("efa.adapters = 5", "5 adapters do not divide 16 chips"),
        ("hbm.stacks = 3", "3 stacks do not divide 8 cores"),
        ("lnc.default = 1\nlnc.allowed = [2]", r"lnc.default: 1 is not among \[2\]"),
        ("lnc.allowed = [4]", r"lnc.allowed: \[4\] are not 1, or 2"),
        ("cores = 3", "cores: unknown key"),
        ('fabric.core_ports = ["NWSE"]', "not four words, each a permutation of NWSE"),
        ('fabric.core_ports = ["NWSE", "NWSE", "NWSE", "NWSS"]', "not four words"),
        ("chips.cores = 2\nhbm.stacks = 2", "fabric.core_ports: 4 ports do not divide 2 cores"),
    ],
)
def test_a_wrong_file_is_refused_by_file_and_key(tmp_path, body: str, message: str) -> None:
    with pytest.raises(TopologyError, match=rf"drawn.toml(:\d+:\d+)?: .*{message}"):
        build(topology_file(tmp_path, body))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("name = 'x'", "missing"),
        ("base = 'trn2.48xlarge'", "name: missing"),
        ("name = 'x'\nbase = 'h100'", "base: 'h100' is unknown; known: neuroncore-v2"),
        ("name = 3", "name: 3 is not a line of text"),
        ("name = = 3", "not TOML: invalid value"),
        ("name = 'x'\nchips = 3", "chips: 3 is not a table, with keys such as count"),
        ("name = 'x'\n[link]\nlatency_ps = 5", r"expected \{value = …, source = \"…\"\}, not 5"),
        ("name = 'x'\nlink.latency_ps = {value = 5, source = ' '}", "the source is empty"),
    ],
)
def test_a_file_that_is_no_topology_is_refused(tmp_path, text: str, message: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(text)
    with pytest.raises(TopologyError, match=rf"mine.toml(:\d+:\d+)?: .*{message}"):
        build(str(file))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("between = [0, 1]\ndown = true", "fault 0: the source is empty"),
        ("between = [0, 1]\nsource = 's'", "fault 0: neither down nor bandwidth_bytes_per_s"),
        ("down = true\nsource = 's'", r"expected from = a and to = b, or between = \[a, b\]"),
        ("from = 0\nto = 5\ndown = true\nsource = 's'", "no link leads from chip 0 to 5"),
        (
            "from = 0\nto = 1\nport = 'W'\ndown = true\nsource = 's'",
            "no link leads from chip 0 to 1 by port W",
        ),
        ("from = 0\nto = 1\ndown = 'yes'\nsource = 's'", "down: 'yes' is not true or false"),
        ("from = 0\nto = -1\ndown = true\nsource = 's'", "to: -1 is not an integer from 0"),
        (
            "from = 0\nto = 1\nbandwidth_bytes_per_s = 0\nsource = 's'",
            "bandwidth_bytes_per_s: 0 is not an integer from 1000000 to",
        ),
        ("from = 0\nto = 1\nup = true\nsource = 's'", "fault 0: up: unknown key; known: from, to"),
    ],
)
def test_a_wrong_fault_is_refused_by_its_number(tmp_path, fault: str, message: str) -> None:
    file = tmp_path / "worn.toml"
    file.write_text(f"name = 'worn'\nbase = 'trn2.48xlarge'\n[[fault]]\n{fault}\n")
    with pytest.raises(TopologyError, match=rf"worn.toml:\d+:\d+: .*{message}"):
        build(str(file))


def test_faults_take_links_down_and_slow_them_both_ways_or_one_way(tmp_path) -> None:
    file = tmp_path / "worn.toml"
    file.write_text(
        "name = 'worn'\nbase = 'trn2.48xlarge'\n"
        "[[fault]]\nbetween = [0, 1]\ndown = true\nsource = 's'\n"
        "[[fault]]\nfrom = 1\nto = 5\nnode = 1\nbandwidth_bytes_per_s = 7000000\nsource = 's'\n"
    )
    topology = build(str(file), nodes=2)
    links = topology.links
    down, slow = (
        [f"{links.name(link)}>c{links.dst[link]}" for link in np.flatnonzero(chosen)]
        for chosen in (links.is_down, links.bandwidth_bytes_per_s == 7 * 10**6)
    )
    assert down == ["c0.E>c1", "c1.W>c0", "c16.E>c17", "c17.W>c16"]
    assert slow == ["c17.S>c21"]
    text = describe(topology)
    assert "  c0-c1 of every instance: down (s)\n" in text
    assert "  c17>c21: at 0.007 GB/s (s)\n" in text


def test_a_description_shows_which_cores_sit_at_which_port() -> None:
    text = describe(build("trn2", lnc=1))
    assert "even row, even column  6-7  0-1  2-3  4-5\n" in text
    assert "odd row, odd column    2-3  4-5  6-7  0-1\n" in text
    assert "core at port" not in describe(build("trn1"))


def test_a_topology_keeps_its_instances_rules_unless_its_chips_or_wiring_differ(tmp_path) -> None:
    assert build_drawn("link.bandwidth_bytes_per_s = 1_000_000").instance == "trn2.48xlarge"
    assert build_drawn("chips.count = 8\nfabric.dims = [2, 4]\nefa.adapters = 8").instance == ""
    assert build("trn1n.32xlarge").instance == "trn1n.32xlarge"


def test_a_file_that_is_not_text_is_refused(tmp_path) -> None:
    file = tmp_path / "mine.toml"
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(TopologyError, match="not UTF-8 text at byte 0"):
        build(str(file))


def test_a_file_overrides_only_what_it_states() -> None:
    slow = build_drawn("link.bandwidth_bytes_per_s = 1_000_000", nodes=3)
    assert set(slow.links.bandwidth_bytes_per_s.tolist()) == {10**6}
    assert (slow.name, slow.max_ranks, slow.efa) == ("drawn", 192, build("trn2").efa)


def test_the_documented_file_is_a_topology(tmp_path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "topology.md").read_text()
    file = tmp_path / "documented.toml"
    file.write_text(text.split("```toml\n")[1].split("```")[0])
    topology = build(str(file), nodes=2)
    assert (topology.dims, topology.max_ranks) == ((2, 4), 64)


def test_the_document_lists_every_preset() -> None:
    text = (Path(__file__).parents[2] / "docs" / "topology.md").read_text()
    assert all(f"`{name}`" in text for name in (*preset_names(), *ALIASES, *example_names()))


def test_presets_are_files_of_the_installed_package() -> None:
    assert (resources.files("ncc_runtime.topology") / "presets" / "trn2.48xlarge.toml").is_file()


def test_the_list_has_every_preset_once() -> None:
    rows = ncc_runtime.topologies()
    assert [row.name for row in rows if not row.is_example] == list(preset_names())
    assert [row.name for row in rows if row.is_example] == list(example_names())
    assert {alias for row in rows for alias in row.aliases} == set(ALIASES)


def test_the_list_says_which_instances_can_be_joined() -> None:
    joins = {row.name for row in ncc_runtime.topologies() if row.joins}
    assert joins == {
        "trn1.32xlarge",
        "trn1n.32xlarge",
        "trn2.48xlarge",
        "trn2u.48xlarge",
        "trn2-ultraserver",
        "trn3-gen1-ultraserver",
        "trn3-gen2-ultraserver",
        "dgx-h100",
        "tpu-v4-cube",
    }


def test_a_described_torus_shows_chips_ranks_and_what_wraps() -> None:
    topology = build("trn1", nodes=2)
    text = describe(topology, place(topology, 48, "spread")).splitlines()
    assert "instance 1" in text
    row = next(line for line in text if line.lstrip().startswith("c16 "))
    assert row.split(" -- ")[0].strip() == "c16 [24,40]"
    assert row.endswith("-- (c16)")


@pytest.mark.parametrize("ranks", [None, 32])
def test_a_described_torus_has_straight_columns(ranks: int | None) -> None:
    topology = build("trn1n.32xlarge")
    text = describe(topology, place(topology, ranks, "linear") if ranks else None)
    picture = text.split("\n\n")[1].splitlines()
    chips = [[match.start() for match in re.finditer(r"\(?\bc\d+", row)] for row in picture[::2]]
    links = [[match.start() for match in re.finditer(r"\|", row)] for row in picture[1::2]]
    assert len(chips) == 5
    assert {tuple(row[:4]) for row in (*chips, *links)} == {tuple(chips[0][:4])}


def test_a_described_chip_without_ranks_shows_a_dash() -> None:
    topology = build("inf2")
    assert "c1 -" in describe(topology, place(topology, 2))


def test_a_description_names_the_source_of_every_figure() -> None:
    topology = build("trn2")
    text = describe(topology)
    for key, figure in topology.figures.items():
        assert any(
            line.startswith(key) and line.endswith(figure.source) for line in text.splitlines()
        )


@given(topology=topologies())
def test_every_topology_can_be_described(topology: Topology) -> None:
    text = describe(topology, place(topology, topology.nodes))
    assert all(f"c{chip} " in text for chip in range(topology.chips))


@pytest.mark.parametrize(
    ("row", "complaint"),
    [
        ('chip = 16\ncore = 0\ndma_percent = 50\nsource = "assumed"', "chip 16 is not below 16"),
        ('chip = 0\ncore = 8\ndma_percent = 50\nsource = "assumed"', "core 8 is not below 8"),
        ('chip = 0\ncore = 0\nsource = "assumed"', "neither engines_percent nor dma_percent is"),
        ("chip = 0\ncore = 0\ndma_percent = 50", "the source is empty; cite one or write assumed"),
        (
            'chip = 0\ncore = 0\ndma = 50\nsource = "assumed"',
            "dma: unknown key; known: chip, core,",
        ),
        (
            'chip = 0\ncore = 0\ndma_percent = 0\nsource = "assumed"',
            "dma_percent: 0 is not an integer from 1 to 100",
        ),
        (
            'chip = "a"\ncore = 0\ndma_percent = 9\nsource = "assumed"',
            "chip: 'a' is not an integer from 0 to 16384",
        ),
    ],
)
def test_a_slowed_core_that_cannot_be_is_refused(tmp_path: Path, row: str, complaint: str) -> None:
    path = tmp_path / "slow.toml"
    path.write_text(f'name = "slow"\nbase = "trn2.48xlarge"\n[[core]]\n{row}\n')
    with pytest.raises(TopologyError) as refused:
        build(str(path))
    assert re.search(r"slow.toml:\d+:\d+: core 0: ", str(refused.value))
    assert complaint in str(refused.value)


def test_slowed_cores_are_shown_and_say_where_they_are(tmp_path: Path) -> None:
    path = tmp_path / "slow.toml"
    path.write_text(
        'name = "slow"\nbase = "trn2.48xlarge"\n[[core]]\nchip = 3\ncore = 7\nnode = 1\n'
        'engines_percent = 80\nsource = "assumed: a test"\n'
    )
    shown = describe(build(str(path), 2))
    assert "c19.core7: engines at 80 %, DMA at 100 % (assumed: a test)" in shown


def test_dies_must_divide_the_cores(tmp_path: Path) -> None:
    path = tmp_path / "dies.toml"
    path.write_text(
        'name = "dies"\nbase = "trn2.48xlarge"\n[intra_chip]\n'
        'dies = {value = 3, source = "assumed"}\n'
    )
    with pytest.raises(TopologyError, match=r"intra_chip\.dies: 3 dies do not divide 8 cores"):
        build(str(path))
