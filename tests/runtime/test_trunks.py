"""Parallel links between two chips carry traffic together, as one link of their summed rate."""

from pathlib import Path

import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.errors import TopologyError
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.report.explain import explained
from ncc_runtime.topology.graph import Topology, build
from tests.draws_topology import build_levels
from tests.programs import collective_program

GB = 10**9
MIB = 2**20


def wired(links: str, size: int = 3, rate: int = 10 * GB) -> str:
    """A level whose chips are joined by a list of pairs."""
    return (
        '[[level]]\nname = "g"\nkind = "graph"\n'
        f'size = {{value = {size}, source = "s"}}\nlinks = {{value = {links}, source = "s"}}\n'
        f'bandwidth_bytes_per_s = {{value = {rate}, source = "s"}}\n'
        'latency_ps = {value = 100_000, source = "s"}\n'
    )


def rates(topology: Topology) -> dict[str, int]:
    links = topology.links
    found = links.bandwidth_bytes_per_s.tolist()
    return {links.step(link): found[link] // GB for link in range(len(links))}


def test_pairs_that_are_listed_more_than_once_are_one_link_of_the_summed_rate() -> None:
    topology = build_levels(wired("[[0, 1], [0, 1], [1, 2], [1, 0]]"))
    assert rates(topology) == {
        "c0.p0&p1&p2>c1": 30,
        "c1.p0&p1&p3>c0": 30,
        "c1.p2>c2": 10,
        "c2.p0>c1": 10,
    }


FAULTS = {
    'between = [0, 1]\nport = "p0"\ndown = true': (20, False, 2),
    "between = [0, 1]\ndown = true": (10, True, 0),
    'between = [0, 1]\nport = "p0&p1"\ndown = true': (10, False, 1),
    'between = [0, 1]\nport = "p1"\nbandwidth_bytes_per_s = 8_000_000_000': (24, False, 3),
    'between = [0, 1]\nport = "p1"\nbandwidth_bytes_per_s = 1_000_000_000': (20, False, 2),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_one_parallel_link_leaves_what_the_others_carry(fault: str) -> None:
    rows = wired("[[0, 1], [0, 1], [0, 1], [1, 2]]")
    links = build_levels(f'{rows}[[fault]]\n{fault}\nsource = "s"\n').links
    there = np.flatnonzero((links.src == 0) & (links.dst == 1))
    rate = links.bandwidth_bytes_per_s[there] // GB
    state = rate, links.is_down[there], links.parallel_links[there]
    assert [column.tolist() for column in state] == [[one] for one in FAULTS[fault]]


def test_a_fault_of_one_instance_leaves_the_parallel_links_of_another_alone() -> None:
    rows = wired("[[0, 1], [0, 1]]", size=2)
    fault = '[[fault]]\nbetween = [0, 1]\nport = "p1"\ndown = true\nnode = 1\nsource = "s"\n'
    links = build_levels(rows + fault, 2).links
    assert (links.bandwidth_bytes_per_s // GB).tolist() == [20, 20, 10, 10]


def times_us(tmp_path: Path, rows: str, op: CollectiveOp) -> tuple[float, ...]:
    """What the clock, the price and the bound say of 64 MiB between two chips of a topology."""
    file = tmp_path / "pair.toml"
    file.write_text(
        f'name = "pair"\nbase = "dgx-h100"\nefa.adapters = {{value = 0, source = "s"}}\n{rows}'
    )
    pairs = ((0, 1),) if op is CollectiveOp.PERMUTE else ()
    model = ncc_runtime.load(collective_program(op, 2, [16 * MIB], pairs=pairs), str(file))
    (row,) = explained(model.executable, {}).rows
    return model.run(values=False).time_us or 0, row.price.time_ps / 1e6, row.bound.time_ps / 1e6


@pytest.mark.parametrize("op", [CollectiveOp.PERMUTE, CollectiveOp.ALL_GATHER])
def test_two_parallel_links_take_half_the_time_of_one(tmp_path: Path, op: CollectiveOp) -> None:
    one = times_us(tmp_path, wired("[[0, 1]]", size=2), op)
    two = times_us(tmp_path, wired("[[0, 1], [0, 1]]", size=2), op)
    bytes_us = 64 * MIB / (10 * GB) * 1e6
    assert [a - b for a, b in zip(one, two, strict=True)] == pytest.approx([bytes_us / 2] * 3, 0.01)


def test_parallel_links_that_carry_too_much_in_all_are_refused(tmp_path: Path) -> None:
    with pytest.raises(TopologyError, match=r"drawn.toml:\d+:\d+: level\.g: parallel links carry"):
        build_levels(wired("[[0, 1], [0, 1], [1, 2]]", rate=9 * 10**14))


def test_a_torus_of_two_rows_lets_every_port_of_a_chip_carry_bytes(tmp_path: Path) -> None:
    file = tmp_path / "two.toml"
    changed = "\n".join(
        f'{key} = {{value = {value}, source = "s"}}'
        for key, value in (("chips.count", 8), ("fabric.dims", [2, 4]), ("efa.adapters", 8))
    )
    file.write_text(f'name = "two"\nbase = "trn2.48xlarge"\n{changed}\n')
    topology = build(str(file))
    out = np.bincount(topology.links.src, topology.links.bandwidth_bytes_per_s)
    assert set(out.tolist()) == {512 * GB}
    assert topology.links.step(0) == "c0.N&S>c4"
