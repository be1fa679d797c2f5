"""Flat rings over instances: chains through each, which enter and leave by different adapters."""

import itertools
from pathlib import Path

import pytest

from ncc_runtime.collectives.algorithms import ring
from ncc_runtime.collectives.layout import GroupLayout, Members
from ncc_runtime.placement import Placement, place
from ncc_runtime.topology.graph import build
from tests.draws_topology import topology_file


def chains(placement: Placement, group: list[int]) -> list[list[Members]]:
    """By channel and instance, the ranks in the order of the ring."""
    orders = ring.arrange(GroupLayout.of(placement, group)).orders
    ranks = [[group[member] for member in order] for order in orders]
    return [
        [tuple(run) for _, run in itertools.groupby(order, lambda rank: placement.node[rank])]
        for order in ranks
    ]


def adapter(placement: Placement, rank: int) -> int:
    """The adapter of a rank's chip, numbered through the instances."""
    efa = placement.topology.efa
    assert efa is not None
    return int(placement.chip[rank]) // efa.chips_per_adapter


def linked(placement: Placement) -> set[tuple[int, int]]:
    """Pairs of chips that a link joins."""
    links = placement.topology.links
    up = ~links.is_down
    return set(zip(links.src[up].tolist(), links.dst[up].tolist(), strict=True))


@pytest.mark.parametrize(
    ("topology", "nodes", "ranks", "channels"),
    [
        ("trn1", 2, 64, 8),
        ("trn1", 2, 16, 2),  # a row of chips, two of which share an adapter
        ("trn1", 4, 8, 1),  # a chip each
        ("trn1", 3, 3, 1),
        ("trn1n.32xlarge", 2, 64, 16),
        ("trn2", 2, 128, 16),
        ("trn2", 4, 64, 4),
        ("trn2-ultraserver", 2, 512, 16),  # 64 adapters, but a stream has 16 rings
        ("trn3-gen1-ultraserver", 2, 512, 16),
    ],
)
def test_each_channel_passes_all_members_and_enters_and_leaves_by_an_adapter_of_its_own(
    topology: str, nodes: int, ranks: int, channels: int
) -> None:
    placement = place(build(topology, nodes), ranks)
    found = chains(placement, list(range(ranks)))
    assert len(found) == channels
    for node in range(nodes):
        inside = [channel[node] for channel in found]
        members = {rank for rank in range(ranks) if placement.node[rank] == node}
        assert all(set(chain) == members and len(chain) == len(members) for chain in inside)
        for end in (0, -1):
            assert len({adapter(placement, chain[end]) for chain in inside}) == channels


@pytest.mark.parametrize(("topology", "ranks"), [("trn1", 64), ("trn2", 128), ("trn2", 32)])
def test_chains_follow_links_and_share_them_evenly(topology: str, ranks: int) -> None:
    placement = place(build(topology, 2), ranks)
    links, used = linked(placement), []
    for channel in chains(placement, list(range(ranks))):
        for chain in channel:
            chips = [chip for chip, _ in itertools.groupby(int(placement.chip[r]) for r in chain)]
            assert len(set(chips)) == len(chips)
            steps = list(itertools.pairwise(chips))
            assert set(steps) <= links
            used += steps
    assert max(used.count(step) for step in set(used)) <= 4


def test_chains_of_alike_instances_are_alike() -> None:
    placement = place(build("trn2", 3), 192)
    for channel in chains(placement, list(range(192))):
        first, *others = [[rank % 64 for rank in chain] for chain in channel]
        assert all(chain == first for chain in others)


def test_without_a_cycle_the_order_of_the_group_is_cut_at_every_adapter() -> None:
    placement = place(build("trn2", 2), 128)
    corners = [0, 20, 40, 64, 84, 104]  # chips 0, 5 and 10 of both instances: no links join them
    found = chains(placement, corners)
    assert found == [
        [(0, 20, 40), (64, 84, 104)],
        [(20, 40, 0), (84, 104, 64)],
        [(40, 0, 20), (104, 64, 84)],
    ]


def test_a_link_down_in_one_instance_leaves_as_many_channels_as_both_have(tmp_path: Path) -> None:
    path = tmp_path / "worn.toml"
    path.write_text(
        'name = "worn"\nbase = "trn1.32xlarge"\n'
        '[[fault]]\nbetween = [0, 1]\nnode = 1\ndown = true\nsource = "assumed"\n'
    )
    placement = place(build(str(path), 2), 64)
    found = chains(placement, list(range(64)))
    assert len(found) == 8
    links = linked(placement)
    for channel in found:
        for chain in channel:
            chips = [chip for chip, _ in itertools.groupby(int(placement.chip[r]) for r in chain)]
            assert set(itertools.pairwise(chips)) <= links


def test_one_adapter_for_all_chips_makes_one_channel(tmp_path: Path) -> None:
    topology = topology_file(
        tmp_path, 'chips.count = 4\nfabric.shape = "ring"\nfabric.dims = [4]\nefa.adapters = 1'
    )
    assert len(chains(place(build(topology, 2), 32), list(range(32)))) == 1
