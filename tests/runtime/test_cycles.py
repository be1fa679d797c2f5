"""Hamiltonian cycles of grids: made for tori and lines, over links that no two of them share."""

import itertools
import math
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_runtime.topology.cycles import closed_walk, disjoint_cycles, grid_cycles
from ncc_runtime.topology.graph import Topology, build
from tests.draws_topology import build_levels, grids, worn
from tests.example_count import examples


def torus(*dims: int) -> Topology:
    """Trainium2 chips on a torus."""
    return build_levels(
        f'[[level]]\nname = "t"\nkind = "torus"\ndims = {{value = {list(dims)}, source = "s"}}\n'
        'bandwidth_bytes_per_s = {value = 9000000, source = "s"}\n'
        'latency_ps = {value = 9, source = "s"}'
    )


def steps(cycle: Sequence[int]) -> list[tuple[int, int]]:
    return list(zip(cycle, (*cycle[1:], cycle[0]), strict=True))


def strands(topology: Topology) -> Counter[tuple[int, int]]:
    """Links that are up by their ends, those in parallel one by one."""
    links, found = topology.links, Counter[tuple[int, int]]()
    for link in np.flatnonzero(~links.is_down).tolist():
        found[int(links.src[link]), int(links.dst[link])] += int(links.parallel_links[link])
    return found


def assert_cycles(topology: Topology, chips: Sequence[int]) -> int:
    """Every cycle passes every chip once, and none uses a link of another; how many there are."""
    cycles = disjoint_cycles(topology, chips)
    used = Counter(edge for cycle in cycles if len(cycle) > 1 for edge in steps(cycle))
    assert used <= strands(topology)
    for cycle in cycles:
        assert sorted(cycle) == sorted(chips)
        assert cycle[0] == chips[0]
    return len(cycles)


FOUND = {
    (4, 4, 4): 6,
    (4, 4, 8): 6,
    (8, 8, 8): 6,
    (3, 5, 2): 6,
    (3, 5, 3): 6,
    (5, 7, 3): 6,
    (16, 16): 4,
    (9, 15): 4,
    (2, 8): 4,
    (5, 2): 2,  # an odd ring with both links across: each cycle but one crosses every pair once
    (1, 2, 1): 2,
    (2, 2, 4): 4,
}


@pytest.mark.parametrize("dims", FOUND, ids=str)
def test_a_torus_has_cycles_both_ways_for_every_dimension(dims: tuple[int, ...]) -> None:
    assert assert_cycles(torus(*dims), range(math.prod(dims))) == FOUND[dims]


@given(
    rings=st.lists(st.integers(2, 6), max_size=3).map(lambda dims: sorted(dims, reverse=True)),
    lines=st.lists(st.integers(1, 5), max_size=2),
)
@settings(max_examples=examples(60))
def test_cycles_of_a_grid_pass_every_place_and_share_no_link(
    rings: list[int], lines: list[int]
) -> None:
    dims = (*rings, *(extent for extent in lines if extent > 1))
    cycles = grid_cycles(tuple(rings), tuple(lines))
    places = list(itertools.product(*map(range, dims)))
    used: Counter[frozenset[int]] = Counter()
    for cycle in cycles:
        assert sorted(cycle) == list(range(len(places)))
        for here, there in steps(cycle):
            axes = [k for k in range(len(dims)) if places[here][k] != places[there][k]]
            assert len(axes) == 1
            apart = abs(places[here][axes[0]] - places[there][axes[0]])
            wraps = axes[0] < len(rings) and apart == dims[axes[0]] - 1
            assert apart == 1 or wraps
            used[frozenset((here, there))] += 1
    doubled = [k for k in range(len(rings)) if dims[k] == 2]
    for edge, times in used.items():
        one, other = (places[place] for place in edge)
        assert times <= 1 + any(one[k] != other[k] for k in doubled)


@pytest.mark.parametrize(
    ("rings", "lines", "count"),
    [
        ([4, 4], [2], 2),  # two torus instances side by side
        ([4, 4, 4], [3], 3),
        ([4], [5], 1),
        ([], [3, 4], 1),
        ([], [3, 3, 2], 1),
        ([], [3, 3], 0),  # an odd grid without wrap has as many places of one colour and one more
        ([], [7], 0),
    ],
)
def test_lines_keep_the_cycles_of_the_rings(rings: list[int], lines: list[int], count: int) -> None:
    assert len(grid_cycles(tuple(rings), tuple(lines))) == count


def test_a_part_of_a_torus_has_the_cycles_of_its_own_grid() -> None:
    topology = torus(4, 4, 8)
    plane = range(32, 64)  # 4 x 8, both dimensions closed
    assert assert_cycles(topology, plane) == 4
    box = [chip for chip in range(128) if chip % 8 in (7, 0, 1)]  # across the wrap, open
    assert assert_cycles(topology, box) == 4


def test_cycles_with_a_link_that_is_down_are_left_out() -> None:
    down = '\n[[fault]]\nbetween = [0, 1]\ndown = true\nsource = "s"\n'
    rows = (
        '[[level]]\nname = "t"\nkind = "torus"\ndims = {value = [4, 4, 4], source = "s"}\n'
        'bandwidth_bytes_per_s = {value = 9000000, source = "s"}\n'
        'latency_ps = {value = 9, source = "s"}'
    )
    assert assert_cycles(build_levels(rows + down), range(64)) == 4


def test_cycles_do_not_share_what_is_left_of_parallel_links() -> None:
    rows = (
        '[[level]]\nname = "t"\nkind = "torus"\ndims = {value = [2, 4], source = "s"}\n'
        'bandwidth_bytes_per_s = {value = 9000000, source = "s"}\n'
        'latency_ps = {value = 9, source = "s"}'
    )
    down = '\n[[fault]]\nbetween = [0, 4]\nport = "N"\ndown = true\nsource = "s"\n'
    cycles = disjoint_cycles(build_levels(rows + down), range(8))
    used = Counter(edge for cycle in cycles for edge in steps(cycle))
    assert len(cycles) >= 2
    assert used[0, 4] <= 1 >= used[4, 0]


@given(topology=st.one_of(grids(), worn()))
@settings(max_examples=examples(60))
def test_any_grid_has_cycles_of_its_own_links_only(topology: Topology) -> None:
    assert_cycles(topology, range(topology.chips_per_node))


def test_the_published_cycles_of_trainium2_are_kept() -> None:
    assert disjoint_cycles(build("trn2"), range(16))[0][:8] == (0, 1, 2, 3, 7, 4, 5, 6)


def assert_walks(topology: Topology, chips: Sequence[int]) -> tuple[int, ...]:
    """A walk over all chips that takes no link twice the same way; the walk."""
    walk = closed_walk(topology, chips)
    assert set(walk) == set(chips)
    assert Counter(steps(walk)) <= strands(topology)
    return walk


def line(chips: int, *, down: str = "") -> Topology:
    """Trainium2 chips on a line."""
    return build_levels(
        f'[[level]]\nname = "l"\nkind = "line"\nsize = {{value = {chips}, source = "s"}}\n'
        'bandwidth_bytes_per_s = {value = 9000000, source = "s"}\n'
        f'latency_ps = {{value = 9, source = "s"}}\n{down}'
    )


def test_a_walk_goes_along_a_line_there_and_back() -> None:
    assert assert_walks(line(4), [2, 0, 1, 3]) == (0, 1, 2, 3, 2, 1)
    assert assert_walks(line(2), [1, 0]) == (1, 0)
    assert assert_walks(line(9), range(3, 6)) == (3, 4, 5, 4)


def test_a_walk_goes_round_a_tree_where_no_path_passes_all_chips() -> None:
    walk = assert_walks(torus(3, 3), [0, 1, 4, 7, 3, 5])  # a star with 4 in the middle
    assert len(walk) == 8 or len(walk) == 10
    star = build_levels(
        '[[level]]\nname = "g"\nkind = "graph"\nsize = {value = 4, source = "s"}\n'
        'links = {value = [[0, 1], [0, 2], [0, 3]], source = "s"}\n'
        'bandwidth_bytes_per_s = {value = 9000000, source = "s"}\n'
        'latency_ps = {value = 9, source = "s"}\n'
    )
    assert assert_walks(star, range(4)) == (1, 0, 2, 0, 3, 0)


def test_there_is_no_walk_between_chips_that_links_do_not_join() -> None:
    assert closed_walk(line(4), [0, 1, 3]) == ()
    one_way = '[[fault]]\nfrom = 1\nto = 2\ndown = true\nsource = "s"\n'
    assert closed_walk(line(4, down=one_way), range(4)) == ()


@given(topology=st.one_of(grids(), worn()))
@settings(max_examples=examples(60))
def test_a_walk_of_any_grid_takes_no_link_twice_the_same_way(topology: Topology) -> None:
    chips = range(topology.chips_per_node)
    walk = closed_walk(topology, chips)
    if walk:
        assert assert_walks(topology, chips) == walk
    else:
        links = {edge for edge in strands(topology) if max(edge) < len(chips)}
        reached = {0}
        for _ in chips:
            reached |= {end for start, end in links if start in reached and (end, start) in links}
        assert len(chips) == 1 or reached != set(chips)
