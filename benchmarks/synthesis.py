"""How long plans take to be found for irregular wiring, and how far they are from their bounds.

Prints, per case, the slots of the search beside the least by its bound, the seconds of the search,
and with --clock what price and clock say of 256 MB, beside the bound and that of links alone.
Cases: a 4x4 torus of trn2 whole, without the links between two chips, also with one rank a chip,
without a chip; one of trn1 without the links between two chips; a 4x4x4 torus as a graph. With
--clock also what the clock says of all-gather on a cube of TPU v4 whole (by torus), without the
links between two chips, and without a chip.

Run: python benchmarks/synthesis.py [--clock] [--ops OP ...]
     python benchmarks/synthesis.py --every-link      # of trn2, one after another; minutes
"""

import argparse
import functools
import multiprocessing
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs
import numpy as np

from ncc_runtime.collectives.algorithms.synthesised import greedy_all_gather
from ncc_runtime.collectives.bounds import bound_of, tight_cuts
from ncc_runtime.collectives.choose import Chooser
from ncc_runtime.collectives.forwarding.link_graph import link_graph_of
from ncc_runtime.collectives.layout import GroupLayout
from ncc_runtime.execution.clock.clock import collective_ps
from ncc_runtime.lowering.choices import groups_of, job_of
from ncc_runtime.lowering.lower import lower
from ncc_runtime.placement import PlaceOptions, place_on
from ncc_runtime.report import bench
from ncc_runtime.report.bench import DTYPES, OPERATORS, program_of_case
from ncc_runtime.topology.graph import build

SIZE = 1 << 28
OPS = ("all-gather", "reduce-scatter", "all-reduce")
DOWN = (
    'name = "down"\nbase = "{}"\n[[fault]]\nbetween = [{}, {}]\ndown = true\nsource = "assumed"\n'
)
CUBE = "tpu-v4-cube"
GATHERED = (1 << 20, 1 << 23, 1 << 26)  # bytes a rank
TRN2_DOWN = ((0, 1), (5, 9), (0, 12), (1, 2))  # in a row, in a column, around it, in the middle


@attrs.frozen
class Case:
    """A topology and how many ranks are placed on it, and how."""

    name: str
    topology: str
    ranks: int
    placement: str = "linear"
    algorithm: str = "synthesised"

    @property
    def options(self) -> PlaceOptions:
        return PlaceOptions(self.topology, placement=self.placement)


def cases(folder: Path) -> Iterator[Case]:
    """The wirings that are tried."""
    cube = folder / "cube.toml"
    cube.write_text(_cube())
    yield Case("trn2", "trn2.48xlarge", 64)
    for ends in TRN2_DOWN:
        path = _down(folder, "trn2.48xlarge", ends)
        yield Case(f"trn2, links {ends[0]}-{ends[1]} down", path, 64)
    down = _down(folder, "trn2.48xlarge", TRN2_DOWN[0])
    yield Case("trn2, a rank a chip, links 0-1 down", down, 16, "spread")
    yield Case("trn1, links 0-1 down", _down(folder, "trn1.32xlarge", (0, 1)), 32)
    yield Case("trn2, 15 chips", "trn2.48xlarge", 60)
    yield Case("4x4x4 torus as a graph", str(cube), 256)


def cubes(folder: Path) -> Iterator[Case]:
    """A 4x4x4 torus with a rank a chip: whole, and what can be amiss with it."""
    yield Case("cube", CUBE, 64, algorithm="torus")
    yield Case("cube, links 0-1 down", _down(folder, CUBE, (0, 1)), 64)
    yield Case("cube, 63 chips", CUBE, 63)


def _down(folder: Path, base: str, ends: tuple[int, int]) -> str:
    """A file of an instance without the links between two chips."""
    path = folder / f"{base}-{ends[0]}-{ends[1]}.toml"
    path.write_text(DOWN.format(base, *ends))
    return str(path)


def _cube() -> str:
    chips = np.arange(64).reshape(4, 4, 4)
    pairs = [
        [int(a), int(b)]
        for axis in range(3)
        for a, b in zip(chips.ravel(), np.roll(chips, -1, axis).ravel(), strict=True)
    ]
    figure = '{{value = {}, source = "assumed"}}'
    return (
        'name = "cube"\nbase = "trn2.48xlarge"\n'
        f"[chips]\ncount = {figure.format(64)}\n"
        f"[fabric]\nshape = {figure.format(chr(34) + 'graph' + chr(34))}\n"
        f"links = {figure.format(pairs)}\n[efa]\nadapters = {figure.format(64)}\n"
    )


def searched(case: Case, slices: int) -> str:
    """One line of the search."""
    placement = place_on(case.options, case.ranks)
    graph = link_graph_of(GroupLayout.of(placement, range(case.ranks)))
    owners = tuple(np.repeat(np.arange(graph.chips), slices).tolist())
    greedy_all_gather.cache_clear()
    start = time.perf_counter()
    found = greedy_all_gather(graph, owners)
    seconds = time.perf_counter() - start
    per_slot = max(graph.rates) / int(graph.capacities.max())
    cuts = tight_cuts(graph, (1,) * graph.chips)
    least = slices * max(inside.sum() * per_slot / out for inside, out in cuts)
    return (
        f"{case.name}, {slices} units a chunk: {found.slots} slots, at least {least:.2f}, "
        f"ratio {found.slots / least:.3f}, {seconds:.3f} s"
    )


def clocked(case: Case, op: str, size: int = SIZE) -> str:
    """One line of the clock, for so many bytes of the larger buffer."""
    operator = OPERATORS[op.replace("-", "_")]
    program = program_of_case(bench.Case(operator, case.ranks, DTYPES["fp32"], size))
    placement = place_on(case.options, program.ranks)
    start = time.perf_counter()
    executable = lower(program, placement, {op: case.algorithm})
    filled = time.perf_counter() - start
    time_us = collective_ps(executable) / 1e6
    (placeholder,) = program.placeholders
    job, groups = job_of(program, placeholder), groups_of(program, placeholder)
    chooser = Chooser(placement, {op: case.algorithm})
    bound = bound_of(chooser.parts, job, groups)
    price = chooser.with_price(job, chooser.candidates(job, groups)[0]).price
    assert price is not None
    return (
        f"{case.name}, {op} of {size / 2**20:g} MB: "
        f"{time_us:.1f} us, price {price.time_ps / 1e6:.1f} us, "
        f"bound {bound.time_ps / 1e6:.1f} us ({bound.decided_by}), "
        f"ratio {time_us / (bound.time_ps / 1e6):.2f}, of links alone "
        f"{bound.links_ps / 1e6:.1f} us, ratio {time_us / (bound.links_ps / 1e6):.2f}, "
        f"filled in {filled:.2f} s"
    )


def main(ops: Sequence[str], with_clock: bool) -> None:
    """Print all cases."""
    with tempfile.TemporaryDirectory() as folder:
        for case in cases(Path(folder)):
            for slices in (1, 2, 4):
                print(searched(case, slices), flush=True)
            if with_clock and case.name != "trn2":
                for op in ops:
                    print(clocked(case, op), flush=True)
        for case in cubes(Path(folder)) if with_clock and "all-gather" in ops else ():
            for size in GATHERED:
                print(clocked(case, "all-gather", size * case.ranks), flush=True)


def every_link(topology: str, processes: int) -> None:
    """Print an all-reduce over all ranks without the links between each two chips."""
    links = build(topology).links
    pairs = sorted({(min(a, b), max(a, b)) for a, b in zip(links.src, links.dst, strict=True)})
    with tempfile.TemporaryDirectory() as folder:
        found = [
            Case(f"{topology}, links {a}-{b} down", _down(Path(folder), topology, (a, b)), 64)
            for a, b in ((int(a), int(b)) for a, b in pairs)
        ]
        with multiprocessing.get_context("spawn").Pool(processes) as pool:
            for line in pool.imap(functools.partial(clocked, op="all-reduce"), found):
                print(line, flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--clock", action="store_true", help="also run the clock")
    parser.add_argument("--ops", nargs="*", default=OPS, choices=OPS)
    parser.add_argument("--every-link", action="store_true", help="each link of trn2 down")
    parser.add_argument("--processes", type=int, default=1, help="for --every-link")
    arguments = parser.parse_args()
    if arguments.every_link:
        every_link("trn2.48xlarge", arguments.processes)
    else:
        main(arguments.ops, arguments.clock)
