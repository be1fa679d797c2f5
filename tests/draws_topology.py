"""Random topologies, placements and pairs of ranks."""

import tempfile
from pathlib import Path

from hypothesis import strategies as st

from ncc_runtime.placement import Placement, place
from ncc_runtime.topology.graph import Topology, build

INSTANCES = {
    "trn2.48xlarge": (1, 2),
    "trn1.32xlarge": (1,),
    "trn1n.32xlarge": (1,),
    "trn1.2xlarge": (1,),
    "inf2.24xlarge": (1,),
    "inf2.48xlarge": (1,),
}


def topology_file(directory: Path, body: str, base: str = "trn2.48xlarge") -> str:
    """Write a topology that overrides `base`; a line `key = value` gets a source."""
    lines = [f'name = "drawn"\nbase = "{base}"']
    for line in body.splitlines():
        key, _, value = line.strip().partition(" = ")
        lines.append(f'{key} = {{value = {value}, source = "assumed"}}')
    path = directory / "drawn.toml"
    path.write_text("\n".join(lines))
    return str(path)


def build_drawn(body: str, nodes: int = 1) -> Topology:
    """A topology of a file that holds `body` over the trn2.48xlarge preset."""
    with tempfile.TemporaryDirectory() as directory:
        return build(topology_file(Path(directory), body), nodes)


@st.composite
def presets(draw: st.DrawFn) -> Topology:
    """A built-in topology, joined over EFA where it can be."""
    name = draw(st.sampled_from(sorted(INSTANCES)))
    joins = (name.startswith("trn") and "32x" in name) or name == "trn2.48xlarge"
    nodes = draw(st.integers(1, 4)) if joins else 1
    return build(name, nodes, draw(st.sampled_from(INSTANCES[name])))


@st.composite
def grids(draw: st.DrawFn) -> Topology:
    """A torus, ring or line of any small extents."""
    shape = draw(st.sampled_from(("torus", "ring", "line")))
    dims = [draw(st.integers(1, 7)) for _ in range(2 if shape == "torus" else 1)]
    chips = dims[0] * dims[-1] if shape == "torus" else dims[0]
    body = f'chips.count = {chips}\nfabric.shape = "{shape}"\nfabric.dims = {dims}\n'
    return build_drawn(body + f"efa.adapters = {chips}", draw(st.integers(1, 2)))


@st.composite
def graphs(draw: st.DrawFn) -> Topology:
    """A connected graph: a random tree and a few more links."""
    chips = draw(st.integers(2, 9))
    tree = [[draw(st.integers(0, chip - 1)), chip] for chip in range(1, chips)]
    ends = st.lists(st.integers(0, chips - 1), min_size=2, max_size=2, unique=True)
    more = draw(st.lists(ends, max_size=5))
    body = f'chips.count = {chips}\nfabric.shape = "graph"\nfabric.links = {tree + more}\n'
    return build_drawn(body + "efa.adapters = 1", draw(st.integers(1, 2)))


def topologies() -> st.SearchStrategy[Topology]:
    """Any topology that a preset or a small file can describe."""
    return st.one_of(presets(), grids(), graphs())


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Ranks placed linear or spread on a drawn topology, filling it or not."""
    topology = draw(topologies())
    per_node = draw(st.integers(1, topology.ranks_per_node))
    strategy = draw(st.sampled_from(("linear", "spread")))
    return place(topology, per_node * topology.nodes, strategy)
