"""Random topologies, placements and pairs of ranks."""

import math
import tempfile
from pathlib import Path

from hypothesis import strategies as st

from ncc_runtime.placement import Placement, place
from ncc_runtime.topology.graph import Topology, build

INSTANCES = {
    "trn2.48xlarge": (1, 2),
    "trn2u.48xlarge": (2,),
    "trn1.32xlarge": (1,),
    "trn1n.32xlarge": (1,),
    "trn1.2xlarge": (1,),
    "inf2.24xlarge": (1,),
    "inf2.48xlarge": (1,),
    "dgx-h100": (1,),
}
"""Small instances and the LNCs that are drawn of them."""


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
    nodes = draw(st.integers(1, 4)) if build(name).efa is not None else 1
    return build(name, nodes, draw(st.sampled_from(INSTANCES[name])))


@st.composite
def grids(draw: st.DrawFn) -> Topology:
    """A torus, ring or line of any small extents."""
    shape = draw(st.sampled_from(("torus", "ring", "line")))
    count = draw(st.sampled_from((2, 2, 3))) if shape == "torus" else 1
    dims = [draw(st.integers(1, 7 if count < 3 else 4)) for _ in range(count)]
    chips = math.prod(dims)
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


KINDS = ("torus", "ring", "line", "switch", "full", "graph")


@st.composite
def level_rows(draw: st.DrawFn, most: int = 3) -> str:
    """The `[[level]]` rows of a small fabric, any kinds on top of each other."""
    text, chips, has_switches = "", 1, False
    for number in range(draw(st.integers(1, most))):
        kind = draw(st.sampled_from(KINDS))
        size = draw(st.integers(1, max(1, min(4, 24 // chips))))
        figures, joins = _level_figures(draw, kind, size), "chips"
        if number:
            ways = ["places"] + ["chips"] * (kind == "switch") + ["switches"] * has_switches
            joins = draw(st.sampled_from(ways))
        if kind == "switch" and draw(st.booleans()):
            figures["oversubscription"] = str(draw(st.sampled_from((1, 1.5, 4))))
            if joins == "switches":
                del figures["bandwidth_bytes_per_s"]
        rows = "".join(
            f'{key} = {{value = {value}, source = "s"}}\n' for key, value in figures.items()
        )
        text += f'[[level]]\nname = "l{number}"\nkind = "{kind}"\njoins = "{joins}"\n{rows}'
        has_switches, chips = kind == "switch", chips * size
    return text


def _level_figures(draw: st.DrawFn, kind: str, size: int) -> dict[str, str]:
    rate, latency = draw(st.integers(10**6, 10**12)), draw(st.integers(0, 10**6))
    figures = {"bandwidth_bytes_per_s": str(rate), "latency_ps": str(latency)}
    if kind == "torus":
        return {"dims": str([size, draw(st.integers(1, 2))][: draw(st.integers(1, 2))]), **figures}
    if kind == "graph":
        size = max(2, size)
        tree = [[draw(st.integers(0, unit - 1)), unit] for unit in range(1, size)]
        figures["links"] = str(tree)
    return {"size": str(size), **figures}


@st.composite
def worn_fabrics(draw: st.DrawFn) -> Topology:
    """One to three levels with links and ports of switches down, on every instance or on one."""
    rows = draw(level_rows())
    links = build_levels(rows).links
    some = st.lists(st.integers(0, max(0, len(links) - 1)), max_size=5, unique=True)
    for link in draw(some) if len(links) else []:
        names = (links.end(int(end)) for end in (links.src[link], links.dst[link]))
        source, target = (name[1:] if name.startswith("c") else f'"{name}"' for name in names)
        where = draw(st.sampled_from(("", "node = 1\n")))
        rows += (
            f'[[fault]]\nfrom = {source}\nto = {target}\nport = "{links.port[link]}"\n'
            f'down = true\n{where}source = "s"\n'
        )
    return build_levels(rows, 2)


def build_levels(rows: str, nodes: int = 1, lnc: int | None = None) -> Topology:
    """A topology of Trainium2 chips with the given levels, joined over EFA."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "drawn.toml"
        efa = "".join(
            f'{key} = {{value = {value}, source = "s"}}\n'
            for key, value in (
                ("adapters", 1),
                ("adapter_bandwidth_bytes_per_s", 10**6),
                ("latency_ps", 9),
            )
        )
        path.write_text(f'name = "drawn"\nbase = "neuroncore-v3"\n[efa]\n{efa}{rows}')
        return build(str(path), nodes, lnc)


@st.composite
def fabrics(draw: st.DrawFn) -> Topology:
    """One to three levels of any kinds."""
    return build_levels(draw(level_rows()), draw(st.integers(1, 2)))


def topologies() -> st.SearchStrategy[Topology]:
    """Any topology that a preset or a small file can describe."""
    return st.one_of(presets(), grids(), graphs(), fabrics())


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
    state = draw(st.sampled_from(("down = true", "bandwidth_bytes_per_s = 1000000")))
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


@st.composite
def user_files(draw: st.DrawFn) -> str:
    """A file as a user might write it: up to four levels, few cores, DMA engines or CC-cores."""
    cores, lnc = draw(st.sampled_from(((1, 1), (2, 1), (3, 1), (4, 2), (5, 1), (8, 1), (8, 2))))
    figures = {
        "chips.cores": cores,
        "lnc.allowed": [lnc],
        "lnc.default": lnc,
        "hbm.stacks": 1,
        "intra_chip.dies": 1,
        "dma.engines_per_core": draw(st.sampled_from((1, 3, 16))),
        "cc.cores_per_core": draw(st.sampled_from((1, 2))),
        "cc.engines_per_channel": draw(st.sampled_from((1, 4))),
        "efa.adapters": 1,
        "efa.adapter_bandwidth_bytes_per_s": draw(st.integers(10**6, 10**12)),
        "efa.latency_ps": draw(st.integers(0, 10**9)),
    }
    if draw(st.booleans()):
        figures["efa.queue_pair_bandwidth_bytes_per_s"] = draw(st.integers(10**6, 10**12))
    stated = "".join(
        f'{key} = {{value = {value}, source = "s"}}\n' for key, value in figures.items()
    )
    head = 'name = "Übungsnetz 漢"  # of a user\nbase = "neuroncore-v3"\nrules = "none"\n'
    return head + stated + draw(level_rows(4))
