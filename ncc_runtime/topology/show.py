"""A topology as text: a picture of its chips, what a rank has, and every figure's source."""

from collections.abc import Iterable

import attrs
import numpy as np

from ncc_runtime.topology.derived import bisection, diameter, level_links
from ncc_runtime.topology.graph import Topology, build
from ncc_runtime.topology.pictures import pictures, ranks_a_chip, spans, title_of
from ncc_runtime.topology.quadrants import PORTS, planes_of_cores, ports_of_cores
from ncc_runtime.topology.routes import PlacedRanks
from ncc_runtime.topology.spec import ALIASES, Figure, example_names, preset_names

_PARITY = ("even", "odd")


@attrs.frozen
class ListedTopology:
    """One row of `nccrt topology list`."""

    name: str
    aliases: tuple[str, ...]
    chips: int
    ranks: int  # of one instance at the default lnc
    lnc: tuple[int, ...]
    joins: str  # by what several instances can be joined, "" if they cannot
    is_example: bool  # described as users would
    summary: str


def list_topologies() -> tuple[ListedTopology, ...]:
    """Every built-in topology, sorted by name, then the examples."""
    return tuple(_listed(build(name)) for name in (*preset_names(), *example_names()))


def _listed(topology: Topology) -> ListedTopology:
    allowed = topology.figures["lnc.allowed"].value
    return ListedTopology(
        name=topology.name,
        aliases=tuple(alias for alias, name in ALIASES.items() if name == topology.name),
        chips=topology.chips_per_node,
        ranks=topology.ranks_per_node,
        lnc=tuple(size for size in _as_tuple(allowed) if isinstance(size, int)),
        joins="" if topology.efa is None else topology.network,
        is_example=topology.name in example_names(),
        summary=topology.summary,
    )


def describe(topology: Topology, placement: PlacedRanks | None = None) -> str:
    """The text of `nccrt topology show`; with a placement, every chip shows its ranks."""
    instances = "1 instance" if topology.nodes == 1 else f"{topology.nodes} instances"
    hosts = topology.hosts_per_node
    of_hosts = f" of {hosts} servers" if hosts > 1 else ""
    lines = [
        title_of(topology),
        f"{instances}{of_hosts}, lnc {topology.lnc}: {topology.chips} chips, "
        f"{ranks_a_chip(topology)}, {topology.max_ranks} ranks at most",
        "",
        *pictures(topology, placement),
        *_faults(topology),
        *_slowed(topology),
        "",
        *_core_ports(topology),
        *_aligned(_rank_rows(topology)),
        "",
        *_aligned(_derived_rows(topology)),
        *_aligned((("figure", "value", "source"), *_figure_rows(topology))),
    ]
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _faults(topology: Topology) -> Iterable[str]:
    """A line for every row of the file that takes a link down or slows it."""
    if topology.faults:
        yield ""
    for fault in topology.faults:
        ends = ((f"c{end}" if isinstance(end, int) else end for end in way) for way in fault.ends)
        ways = ", ".join(">".join(way) for way in ends)
        port = f" by {fault.port}" if fault.port else ""
        where = "every instance" if fault.node is None else f"instance {fault.node}"
        state = [] if fault.is_down is None else ["down" if fault.is_down else "up"]
        if fault.bandwidth_bytes_per_s is not None:
            state.append(f"at {_rate(fault.bandwidth_bytes_per_s)}")
        yield f"  {ways}{port} of {where}: {', '.join(state)} ({fault.source})"


def _slowed(topology: Topology) -> Iterable[str]:
    """A line for each row of the file that slows a core."""
    if topology.slowed:
        yield ""
    for row in topology.slowed:
        where = "every instance" if row.node is None else f"instance {row.node}"
        yield (
            f"  c{row.chip} core {row.core} of {where}: engines at {row.engines_percent} %, "
            f"DMA at {row.dma_percent} % ({row.source})"
        )


def _core_ports(topology: Topology) -> Iterable[str]:
    """Which cores of a chip sit at which port, for every parity of its row and column."""
    if not topology.core_ports:
        return
    rows_, columns = topology.levels[0].dims[-2:]
    is_turned = len(topology.core_ports) > 4 and topology.chips_per_node > rows_ * columns
    corners = [
        (plane, row, column)
        for plane in range(1 + is_turned)
        for row in range(min(rows_, 2))
        for column in range(min(columns, 2))
    ]
    tables = ports_of_cores(topology), planes_of_cores(topology)
    known = [code for code, _ in enumerate(PORTS) if any((table == code).any() for table in tables)]
    rows = [("core at port", *(PORTS[code] for code in known))]
    for plane, row, column in corners:
        chip = (plane * rows_ + row) * columns + column
        sites = [table[chip] for table in tables]
        cores = (np.flatnonzero((sites[0] == code) | (sites[1] == code)).tolist() for code in known)
        where = f"{_PARITY[row]} row, {_PARITY[column]} column"
        rows.append(
            (f"{_PARITY[plane]} plane, {where}" if is_turned else where, *map(spans, cores))
        )
    yield from _aligned(rows)
    yield ""


def _rank_rows(topology: Topology) -> Iterable[tuple[str, ...]]:
    """What one rank has; derived from the figures below."""
    yield "a rank has", f"{topology.lnc} physical cores" if topology.lnc > 1 else "1 physical core"
    yield "", f"{topology.rank_cc_cores} CC-cores"
    rate = _rate(topology.rank_dma_bandwidth_bytes_per_s)
    channels = f"{topology.rank_dma_channels} groups of {topology.channel_engines}"
    yield "", f"{topology.rank_dma_engines} DMA engines in {channels}, {rate} in all"
    yield "", f"{_rate(topology.rank_hbm_bandwidth_bytes_per_s)} of HBM"
    if topology.efa is not None:
        yield "", f"{_rate(topology.rank_efa_bandwidth_bytes_per_s)} of {topology.network}"


def _derived_rows(topology: Topology) -> Iterable[tuple[str, ...]]:
    """What planners ask of an instance's links; follows from the figures below."""
    if topology.chips_per_node == 1:
        return
    for level in level_links(topology):
        least, most = level.out_of_chip
        out = f"{_rate(least)} to {_rate(most)}" if least < most else _rate(most)
        of_chip = f", {out} out of a chip" if most else ""
        all_of_them = f"{level.bytes_per_s / 1e12:g} TB/s in all"
        yield f"links of {level.name}", f"{level.links} one way, {all_of_them}{of_chip}"
    apart, cut = diameter(topology), bisection(topology)
    if apart is not None:
        yield "diameter", f"{apart[0]} links, {apart[1]:.4g} between two chips on average"
    if cut is not None:
        each = cut.bytes_per_s // (topology.chips_per_node // 2)
        halves = f"between {cut.halves}, {_rate(each)} a chip"
        yield "bisection", f"{cut.bytes_per_s / 1e12:g} TB/s each way {halves}"
    yield "", ""


def _figure_rows(topology: Topology) -> Iterable[tuple[str, ...]]:
    for key, figure in sorted(topology.figures.items()):
        yield key, _quantity(key, figure), figure.source


def _quantity(key: str, figure: Figure) -> str:
    """A value with the unit that its key names."""
    value = figure.value
    if isinstance(value, tuple):
        ones = (
            str(one) if isinstance(one, tuple) else _quantity(key, Figure(one, "")) for one in value
        )
        return " ".join(ones)
    if not isinstance(value, int):
        return str(value)
    if key.endswith("bandwidth_bytes_per_s"):
        return _rate(value)
    if "flops_per_s" in key:
        return f"{value / 1e12:g} TFLOP/s"
    if key.endswith("_hz"):
        return f"{value / 1e9:g} GHz"
    if key.endswith("_ps"):
        return f"{value / 1e6:g} us"
    return f"{value:,} bytes" if key.endswith("_bytes") else str(value)


def _rate(bytes_per_s: int) -> str:
    return f"{bytes_per_s / 1e9:g} GB/s"


def _as_tuple(value: object) -> tuple[object, ...]:
    return value if isinstance(value, tuple) else ()


def _aligned(rows: Iterable[tuple[str, ...]]) -> Iterable[str]:
    """Rows as columns two spaces apart, left aligned."""
    table = list(rows)
    if not table:
        return
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
