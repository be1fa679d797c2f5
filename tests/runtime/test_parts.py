"""What transfers share, and what a load takes of it: DMA groups, chips, slowed cores."""

from pathlib import Path

import numpy as np
import pytest

from ncc_runtime.collectives.cost.model import TransferLoad, TransferLoads
from ncc_runtime.collectives.plan import IDLE, Location, SecondTarget, Space, Transfer
from ncc_runtime.machine_model.parts import UNLIMITED, PartKind, Parts
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.placement import place
from ncc_runtime.topology.graph import Topology, build
from ncc_runtime.topology.routes import Routes

SLOW_CORE = """
name = "slow"
base = "{base}"
[[core]]
chip = 0
core = 3
{node}
dma_percent = 25
engines_percent = 50
source = "assumed"
[intra_chip]
core_bandwidth_bytes_per_s = {{value = 100_000_000_000, source = "assumed"}}
"""


def parts_of(topology: Topology, ranks: int) -> Parts:
    routes = Routes(topology, place(topology, ranks))
    return Parts(routes, TimingModel.from_topology(topology), ranks)


def slowed(folder: Path, base: str = "trn2.48xlarge", node: str = "", nodes: int = 1) -> Topology:
    path = folder / "slow.toml"
    path.write_text(SLOW_CORE.format(base=base, node=node))
    return build(str(path), nodes)


def piece(owner: np.ndarray | None = None) -> Location:
    return Location(Space.OPERAND, np.zeros(4, np.int64), owner=owner)


def load_of(
    parts: Parts, peer: list[int], sources: int, lane: int = 0, also: SecondTarget | None = None
) -> TransferLoad:
    """A transfer of four members on the four ranks of a chip, 100 bytes each."""
    pieces = (piece(),) * sources
    size = np.full(4, 100, np.int64)
    move = Transfer(np.array(peer, np.int32), pieces, piece(), size, also, lane)
    return TransferLoads(parts, np.arange(4)[None]).of(move)


def amounts(parts: Parts, load: TransferLoad, kind: PartKind) -> list[int]:
    """What 100 bytes of every active member take of the parts of a kind."""
    return list(load.unit[parts.span(kind)] * 100)


def test_kinds_of_parts_follow_each_other_without_gaps() -> None:
    parts = parts_of(build("trn2", 2), 128)
    ends = [0, *(parts.span(kind).stop for kind in PartKind)]
    assert [parts.span(kind).start for kind in PartKind] == ends[:-1]
    assert ends[-1] == parts.count
    assert [parts.kind(end - 1) for end in ends[1:]] == list(PartKind)


@pytest.mark.parametrize(
    ("name", "lnc", "groups", "rate"),
    [
        ("trn1", 1, 4, 4 * 17_000_000_000),
        ("trn2", 1, 4, 4 * 23_000_000_000),
        ("trn2", 2, 4, 8 * 23_000_000_000),
    ],
)
def test_a_dma_ring_has_a_group_of_four_engines_of_each_core(
    name: str, lnc: int, groups: int, rate: int
) -> None:
    parts = parts_of(build(name, lnc=lnc), 2)
    assert parts.groups == groups
    assert set(parts.rates[parts.span(PartKind.DMA)]) == {rate}


def test_streams_and_lanes_take_the_groups_in_turn() -> None:
    parts = parts_of(build("trn2"), 4)
    first = parts.span(PartKind.DMA).start
    lanes = parts.dma(np.full(6, 1), 0, np.arange(6)) - first
    assert lanes.tolist() == [4, 5, 6, 7, 4, 5]
    assert parts.dma(np.array(1), 1, 0) == parts.dma(np.array(1), 0, 1)


def test_parts_of_which_no_limit_is_known_are_unlimited() -> None:
    parts = parts_of(build("trn2.3xlarge"), 4)
    assert set(parts.rates[parts.span(PartKind.CHIP)]) == {UNLIMITED}
    for kind in (PartKind.EFA, PartKind.QUEUE_PAIR):
        assert len(parts.rates[parts.span(kind)]) == 0


def test_every_instance_has_its_adapters_both_ways_and_every_rank_an_end() -> None:
    parts = parts_of(build("trn1.32xlarge", 2), 64)
    assert parts.rates[parts.span(PartKind.EFA)].tolist() == 32 * [12_500_000_000]
    assert parts.rates[parts.span(PartKind.QUEUE_PAIR)].tolist() == 128 * [9_700_000_000]
    adapters, pairs = (parts.span(kind).start for kind in (PartKind.EFA, PartKind.QUEUE_PAIR))
    passed = [part.tolist() for part in parts.network(np.array([3, 4]), np.array([32, 63]))]
    assert passed == [
        [adapters, adapters + 1],  # chips 1 and 2 of two ranks, two chips an adapter
        [adapters + 16 + 8, adapters + 16 + 15],
        [pairs + 3, pairs + 4],
        [pairs + 64 + 32, pairs + 64 + 63],
    ]


def test_a_rank_of_two_cores_has_the_ways_of_both(tmp_path: Path) -> None:
    parts = parts_of(slowed(tmp_path), 4)
    assert set(parts.rates[parts.span(PartKind.CHIP)]) == {200_000_000_000}


def test_a_slowed_core_slows_the_dma_of_its_rank_alone(tmp_path: Path) -> None:
    parts = parts_of(slowed(tmp_path), 4)
    rates = parts.rates[parts.dma(np.arange(4), 0, 0)]
    assert rates.tolist() == [184 * 10**9, 46 * 10**9, 184 * 10**9, 184 * 10**9]


def test_a_slowed_core_is_in_every_instance_unless_one_is_named(tmp_path: Path) -> None:
    chips, cores = np.array([0, 16, 16]), np.array([1, 1, 2])
    assert slowed(tmp_path, nodes=2).engines_percent(chips, cores).tolist() == [50, 50, 100]
    named = slowed(tmp_path, node="node = 1", nodes=2)
    assert named.engines_percent(chips, cores).tolist() == [100, 50, 100]


def test_a_copy_passes_the_engines_once_and_two_writes_twice() -> None:
    parts = parts_of(build("trn2"), 4)
    to_next = [1, 2, 3, 0]
    assert amounts(parts, load_of(parts, to_next, 1), PartKind.DMA)[::4] == [100] * 4
    also = SecondTarget(np.array([2, IDLE, 0, 1], np.int32), piece())
    twice = load_of(parts, to_next, 1, also=also)
    assert amounts(parts, twice, PartKind.DMA)[::4] == [200, 100, 200, 200]


@pytest.mark.parametrize(("sources", "passes"), [(2, 4), (3, 6)])
def test_a_reduction_passes_the_engines_twice_for_each_source(sources: int, passes: int) -> None:
    parts = parts_of(build("trn2"), 4)
    load = load_of(parts, [0, 1, 2, 3], sources)
    assert amounts(parts, load, PartKind.DMA)[::4] == [passes * 100] * 4


def test_reductions_at_full_rate_pass_once_for_each_source(tmp_path: Path) -> None:
    path = tmp_path / "fast.toml"
    path.write_text(
        'name = "fast"\nbase = "trn2.48xlarge"\n[dma]\n'
        'reduce_passes = {value = 1, source = "assumed"}\n'
    )
    parts = parts_of(build(str(path)), 4)
    assert amounts(parts, load_of(parts, [0, 1, 2, 3], 3), PartKind.DMA)[::4] == [300] * 4


def test_a_lane_loads_its_own_group_of_engines() -> None:
    parts = parts_of(build("trn2"), 4)
    load = load_of(parts, [1, 2, 3, 0], 1, lane=2)
    assert amounts(parts, load, PartKind.DMA) == [0, 0, 100, 0] * 4


def test_writes_and_reads_of_neighbours_pass_the_ways_of_both_cores() -> None:
    parts = parts_of(build("trn2"), 4)
    written = load_of(parts, [1, IDLE, IDLE, IDLE], 1)
    assert amounts(parts, written, PartKind.CHIP) == [100, 0, 0, 0, 0, 100, 0, 0]
    owner = np.array([2, 1, 2, 3], np.int32)
    move = Transfer(
        np.array([0, IDLE, IDLE, IDLE], np.int32), (piece(owner),), piece(), np.full(4, 100)
    )
    read = TransferLoads(parts, np.arange(4)[None]).of(move)
    assert amounts(parts, read, PartKind.CHIP) == [0, 0, 100, 0, 100, 0, 0, 0]


def test_reading_from_the_other_die_takes_the_way_there() -> None:
    parts = parts_of(build("trn2"), 4)
    latencies = []
    for of in (0, 1, 2):
        owner = np.array([of, IDLE, IDLE, IDLE], np.int32)
        move = Transfer(
            np.array([0, IDLE, IDLE, IDLE], np.int32), (piece(owner),), piece(), np.full(4, 100)
        )
        latencies.append(TransferLoads(parts, np.arange(4)[None]).of(move).latency_ps)
    chip = parts.routes.topology.intra_chip
    assert latencies[1] - latencies[0] == chip.latency_ps
    assert latencies[2] - latencies[1] == chip.die_latency_ps
