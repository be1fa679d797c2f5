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
def worn(draw: st.DrawFn) -> Topology:
    """A torus, ring or graph with links down and slowed, on every instance or on one."""
    whole = draw(st.one_of(grids(), graphs()))
    count = min(whole.links_per_node, 6)
    some = st.lists(st.integers(0, max(0, whole.links_per_node - 1)), max_size=count, unique=True)
    rows = [_fault_row(draw, whole, link) for link in (draw(some) if count else [])]
    with tempfile.TemporaryDirectory() as directory:
        return build(_worn_file(Path(directory), whole, rows), whole.nodes)


def _fault_row(draw: st.DrawFn, topology: Topology, link: int) -> str:
    source, target = int(topology.links.src[link]), int(topology.links.dst[link])
    state = draw(st.sampled_from(("down = true", "bandwidth_bytes_per_s = 1000")))
    where = draw(st.sampled_from(("", "node = 0", "node = 1")))
    port = f'port = "{topology.links.port[link]}"'
    return f"[[fault]]\nfrom = {source}\nto = {target}\n{port}\n{state}\n{where}"


def _worn_file(directory: Path, whole: Topology, rows: list[str]) -> str:
    """The drawn topology once more, with faults."""
    keys = ("chips.count", "fabric.shape", "fabric.dims", "fabric.links", "efa.adapters")
    shape = [
        f"{key} = {_toml(whole.figures[key].value)}"
        for key in keys
        if key in whole.figures and whole.figures[key].source == "assumed"
    ]
    path = Path(topology_file(directory, "\n".join(shape)))
    faults = [f'{row}\nsource = "assumed"' for row in rows]
    path.write_text("\n".join([path.read_text(), *faults]))
    return str(path)


def _toml(value: object) -> str:
    if isinstance(value, tuple):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


@st.composite
def placements(draw: st.DrawFn) -> Placement:
    """Ranks placed linear or spread on a drawn topology, filling it or not."""
    topology = draw(topologies())
    per_node = draw(st.integers(1, topology.ranks_per_node))
    strategy = draw(st.sampled_from(("linear", "spread")))
    return place(topology, per_node * topology.nodes, strategy)
