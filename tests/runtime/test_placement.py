"""Placement: every rank on a core of its own, or a refusal with a remedy."""

import json

import numpy as np
import pytest
from hypothesis import given

from ncc_runtime.errors import PlacementError
from ncc_runtime.placement import (
    Placement,
    PlaceOptions,
    nodes_needed,
    parse_on,
    place,
    place_on,
)
from ncc_runtime.topology.graph import build
from tests.draws_topology import placements


@given(placement=placements())
def test_no_two_ranks_share_a_core(placement: Placement) -> None:
    places = set(zip(placement.chip.tolist(), placement.core.tolist(), strict=True))
    assert len(places) == placement.ranks


@given(placement=placements())
def test_every_rank_is_on_a_core_that_exists(placement: Placement) -> None:
    topology = placement.topology
    assert (placement.chip // topology.chips_per_node == placement.node).all()
    assert ((placement.node >= 0) & (placement.node < topology.nodes)).all()
    assert ((placement.core >= 0) & (placement.core < topology.ranks_per_chip)).all()


@given(placement=placements())
def test_ranks_are_divided_equally_over_the_instances_in_order(placement: Placement) -> None:
    per_node = placement.ranks // placement.topology.nodes
    assert (placement.node == np.arange(placement.ranks) // per_node).all()


@given(placement=placements())
def test_spread_fills_no_chip_twice_before_all_once(placement: Placement) -> None:
    counts = np.bincount(placement.chip, minlength=placement.topology.chips)
    full = placement.topology.ranks_per_chip
    if placement.strategy == "spread":
        assert counts.max() - counts.min() <= 1
    else:
        assert set(counts.tolist()) - {0, full} <= {
            placement.ranks // placement.topology.nodes % full
        }


@given(placement=placements())
def test_linear_takes_consecutive_logical_cores(placement: Placement) -> None:
    if placement.strategy == "linear":
        per_node = placement.ranks // placement.topology.nodes
        assert (placement.logical_core == np.arange(placement.ranks) % per_node).all()


def test_logical_cores_are_numbered_as_neuron_does() -> None:
    placement = place(build("trn2", nodes=2, lnc=1), 64, "spread")
    assert placement.logical_core[[0, 1, 16, 32, 63]].tolist() == [0, 8, 1, 0, 121]


@pytest.mark.parametrize(
    ("instance", "ranks", "lnc", "nodes"),
    [
        ("trn2", 1, None, 1),
        ("trn2", 64, None, 1),
        ("trn2", 65, None, 2),
        ("trn2", 65, 1, 1),
        ("trn2", 1024, None, 16),
        ("trn1", 33, None, 2),
        ("inf2", 24, None, 1),
    ],
)
def test_nodes_default_to_what_the_ranks_need(
    instance: str, ranks: int, lnc: int | None, nodes: int
) -> None:
    assert nodes_needed(instance, ranks, lnc) == nodes


@pytest.mark.parametrize(
    ("on", "ranks", "message"),
    [
        ("inf2", 25, "25 ranks do not fit on 1 inf2.48xlarge, 24 at most; without EFA"),
        ("trn1.2xlarge", 3, "2 at most; without EFA .*trn1-arch.rst"),
        ("trn2.3xlarge", 8, "at lnc 2, 4 at most; lnc 1 would hold them"),
        ("trn2,nodes=1", 65, "65 ranks do not fit on 1 .* 64 at most; 2 instances .*; lnc 1"),
        ("trn2,nodes=1", 129, "64 at most; 3 instances would hold them$"),
        ("trn2", 65, "65 ranks do not divide equally over 2 .*; with nodes=5 each would hold 13"),
        ("trn2,nodes=8", 4, "4 ranks do not divide equally over 8 .*; with nodes=1 each"),
        ("trn2", 0, "0 ranks cannot be placed"),
        ("trn2,placement=spred", 4, "'spred' is not linear, spread or a file.*mean spread"),
        ("trn2,placement=/", 4, "/: is a directory"),
    ],
)
def test_ranks_that_cannot_be_placed_are_refused_with_a_remedy(
    on: str, ranks: int, message: str
) -> None:
    with pytest.raises(PlacementError, match=message):
        place_on(parse_on(on), ranks)


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("trn2", PlaceOptions("trn2")),
        (
            "trn2.48xlarge,nodes=2,placement=spread,lnc=1",
            PlaceOptions("trn2.48xlarge", 2, "spread", 1),
        ),
        (" my/own.toml , placement = map.json", PlaceOptions("my/own.toml", None, "map.json")),
    ],
)
def test_one_word_says_where(text: str, options: PlaceOptions) -> None:
    assert parse_on(text) == options


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "does not begin with a topology"),
        ("nodes=2", "does not begin with a topology"),
        ("trn2,node=2", "'node=2' is none of nodes=N"),
        ("trn2,", "'' is none of"),
        ("trn2,nodes=", "'nodes=' is none of"),
        ("trn2,nodes=two", "nodes=two is not a number from 1"),
        ("trn2,nodes=0", "nodes=0 is not a number from 1"),
        ("trn2,lnc=-1", "lnc=-1 is not a number"),
        ("trn2,lnc=1,lnc=2", "lnc is given twice: 1 and 2"),
    ],
)
def test_a_word_that_says_something_else_is_refused(text: str, message: str) -> None:
    with pytest.raises(PlacementError, match=message):
        parse_on(text)


def written(tmp_path, document: object) -> str:
    file = tmp_path / "map.json"
    file.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(file)


def test_a_file_places_rank_by_rank_and_says_how_many_instances(tmp_path) -> None:
    file = written(tmp_path, {"ranks": [[1, 15, 3], [0, 0, 0], [1, 0, 2]]})
    placement = place_on(PlaceOptions("trn2", placement=file), 3)
    assert placement.topology.nodes == 2
    assert placement.chip.tolist() == [31, 0, 16]
    assert placement.core.tolist() == [3, 0, 2]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"ranks": [[0, 0, 0]]}, "1 places for 2 ranks"),
        ({"ranks": [[0, 0, 1], [0, 0, 1]]}, r"ranks 0 and 1 are both at \[0, 0, 1\]"),
        ({"ranks": [[0, 0, 0], [0, 16, 0]]}, "rank 1: chip 16 is not below 16"),
        ({"ranks": [[0, 0, 4], [0, 0, 0]]}, "rank 0: core 4 is not below 4"),
        ({"ranks": [[0, 0], [0, 0, 0]]}, r"rank 0: \[0, 0\] is not \[node, chip, core\]"),
        ({"ranks": [[0, 0, True], [0, 0, 0]]}, "rank 0: .* is not"),
        ({"ranks": [[0, -1, 0], [0, 0, 0]]}, "rank 0: .* is not"),
        ({"ranks": 3}, "ranks is not a list"),
        ({}, "expected"),
        ([], "expected"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
    ],
)
def test_a_wrong_file_is_refused(tmp_path, document: object, message: str) -> None:
    with pytest.raises(PlacementError, match=f"map.json: .*{message}"):
        place_on(PlaceOptions("trn2", placement=written(tmp_path, document)), 2)


def test_a_file_cannot_use_an_instance_that_was_not_asked_for(tmp_path) -> None:
    file = written(tmp_path, {"ranks": [[1, 0, 0]]})
    with pytest.raises(PlacementError, match="node 1 is not below 1"):
        place_on(PlaceOptions("trn2", nodes=1, placement=file), 1)


def test_arrays_of_a_placement_cannot_be_written() -> None:
    with pytest.raises(ValueError, match="read-only"):
        place(build("trn2"), 4).chip[0] = 1
