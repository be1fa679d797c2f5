"""-O2 is never slower than -O1, on any preset that holds the program.

Times are predicted, to the picosecond the same on every host. The compiler knows no topology, so it
takes an order only where estimates at several speeds of collectives agree that it pays.
"""

import functools
from pathlib import Path

import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.topology.format.spec import preset_names
from ncc_runtime.topology.graph import build

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = {
    path.stem: path
    for folder in (ROOT / "tests/data/hlo", ROOT / "ir_examples")
    for path in sorted(folder.iterdir())
    if path.suffix in (".hlo", ".ir")
}

SAMPLE = [
    ("data_parallel_step", "trn2.48xlarge"),
    ("fsdp_scan_layers", "inf2.48xlarge"),
    ("llama_4l_64ranks", "trn2.48xlarge"),
    ("many_gradients", "trn1.32xlarge"),
    ("mlp_train_dp2_tp4", "trn1.32xlarge"),
    ("mlp_train_dp8", "trn2-ultraserver"),
    ("moe_all_to_all", "trn2.48xlarge"),
    ("overlapped_gradients", "trn3-gen1-ultraserver"),
    ("tp8_dp4_step", "trn1.32xlarge"),
    ("zero2_step", "inf2.48xlarge"),
]


@functools.cache
def compiled(name: str, level: int) -> ncc_compiler.Neff:
    return ncc_compiler.compile_file(PROGRAMS[name], CompileOptions(level=level))


def predicted_ps(name: str, level: int, topology: str, nodes: int) -> int:
    neff = compiled(name, level)
    loops = {block.name: 4 for block in neff.program.blocks if block.trip_count is None}
    model = ncc_runtime.load(neff, topology=topology, nodes=nodes, times_only=True)
    trace = model.run(values=False, verify=False, trip_counts=loops).trace
    assert trace is not None
    return trace.time_ps


def nodes_for(name: str, topology: str) -> int | None:
    """How many instances hold the program; None where they cannot be joined, or divide it."""
    ranks, one = compiled(name, 1).program.ranks, build(topology)
    nodes = -(-ranks // one.ranks_per_node)
    return nodes if nodes == 1 or (one.efa is not None and ranks % nodes == 0) else None


@pytest.mark.parametrize(("name", "topology"), SAMPLE)
def test_thorough_is_never_slower(name, topology):
    nodes = nodes_for(name, topology)
    assert nodes is not None
    assert predicted_ps(name, 2, topology, nodes) <= predicted_ps(name, 1, topology, nodes)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROGRAMS)
def test_thorough_is_never_slower_on_any_preset(name):
    slower = {}
    for topology in preset_names():
        nodes = nodes_for(name, topology)
        if nodes is None:
            continue
        thorough, usual = (predicted_ps(name, level, topology, nodes) for level in (2, 1))
        if thorough > usual:
            slower[topology] = thorough / usual
    assert not slower
