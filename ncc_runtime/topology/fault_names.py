"""Faults by the names that every output prints: links down or slowed, slowed cores.

`c0-c1` is the links between two chips, both ways, `c0>c1` those one way, `c0.E` or `c0.E>c1` one
by its port, `c5.core0` a physical core of a chip. A switch is `s3`. Numbers run through all
instances, as in listings; in a topology's TOML (`format/rows.py`) they are those of one instance.
"""

import difflib
import re
from collections.abc import Iterator, Sequence

import attrs

from ncc_runtime.errors import TopologyError
from ncc_runtime.topology.fabric import InstanceWiring, Links
from ncc_runtime.topology.format.rows import core_of_name, ends_of_name, links_between
from ncc_runtime.topology.format.spec import LEAST_RATE, LinkFault, SlowedCore, Spec

_RATE = re.compile(r"(?P<number>\d{1,6}(\.\d{1,9})?) ?(?P<unit>%|[MGT]B/s)", re.ASCII)
_BYTES = {"MB/s": 10**6, "GB/s": 10**9, "TB/s": 10**12}
_ADAPTER = re.compile(r"n\d+\.efa\d+", re.ASCII)

MOST_NAMED = 8
"""A message or heading has no more names than this."""


@attrs.frozen
class NamedFault:
    """One `--down NAME` or `--slow NAME=RATE`, before it is known what is there."""

    name: str
    source: str  # the option, for messages
    percent: int | None = None  # of the full speed; None: a rate, or down
    bandwidth_bytes_per_s: int | None = None

    @property
    def is_down(self) -> bool:
        return self.percent is None and self.bandwidth_bytes_per_s is None


def down(name: str) -> NamedFault:
    """`c0-c1`; TopologyError if it is no name of a link."""
    source = f"--down {name}"
    if core_of_name(name) is not None:
        raise TopologyError(f"{source}: a core can be slow, as in --slow {name}=50%, and not down")
    _check_link(name, source)
    return NamedFault(name, source)


def slow(text: str) -> NamedFault:
    """`c0-c1=50%`, `c0.E=64GB/s` or `c5.core0=50%`; TopologyError if it is none."""
    source = f"--slow {text}"
    name, _, rate = text.rpartition("=")
    match = _RATE.fullmatch(rate)
    if not name or match is None:
        form = "NAME=RATE, as in c0-c1=50%, c0.E=64GB/s, c5.core0=50%"
        raise TopologyError(f"{source}: is not {form}")
    is_core = core_of_name(name) is not None
    if not is_core:
        _check_link(name, source)
    number = float(match["number"])
    if match["unit"] == "%":
        if not 1 <= number <= 100 or number != int(number):
            advice = "" if is_core else f"; --down {name} lets nothing through"
            raise TopologyError(f"{source}: percents are whole, from 1 to 100{advice}")
        return NamedFault(name, source, percent=int(number))
    if is_core:
        raise TopologyError(f"{source}: the speed of a core is in percent, as in {name}=50%")
    rate_bytes = round(number * _BYTES[match["unit"]])
    if rate_bytes < LEAST_RATE:
        raise TopologyError(f"{source}: a rate is at least 1MB/s; --down {name} lets nothing pass")
    return NamedFault(name, source, bandwidth_bytes_per_s=rate_bytes)


def _check_link(name: str, source: str) -> None:
    if _ADAPTER.fullmatch(name):
        raise TopologyError(
            f"{source}: adapters are all alike here; a TOML file can give all of them another "
            "efa.adapter_bandwidth_bytes_per_s"
        )
    if ends_of_name(name) is None:
        raise TopologyError(
            f"{source}: {name} is neither a link, as c0-c1, c0>c1 or c0.E are, nor a core, as "
            "c5.core0 is"
        )


def with_faults(
    spec: Spec, wiring: InstanceWiring, nodes: int, faults: Sequence[NamedFault]
) -> Spec:
    """The specification with more faults, behind its own; TopologyError for what is not there."""
    links, cores = [], []
    for fault in faults:
        core = core_of_name(fault.name)
        if core is not None:
            cores.append(_slowed(spec, fault, core, wiring.chips, nodes))
        else:
            links.append(_link(fault, wiring, nodes))
    return attrs.evolve(spec, faults=(*spec.faults, *links), slowed=(*spec.slowed, *cores))


def _slowed(
    spec: Spec, fault: NamedFault, place: tuple[int, int], chips: int, nodes: int
) -> SlowedCore:
    chip, core = place
    _check_chip(fault, chip, chips * nodes)
    cores = spec.number("chips.cores")
    if core >= cores:
        raise TopologyError(f"{fault.source}: c{chip} has core0 to core{cores - 1}")
    node, within = divmod(chip, chips)
    percent = fault.percent or 100
    return SlowedCore(within, core, fault.source, node, percent, percent)


def _check_chip(fault: NamedFault, chip: int, chips: int) -> None:
    if chip >= chips:
        raise TopologyError(f"{fault.source}: there is no c{chip}; chips are c0 to c{chips - 1}")


def _link(fault: NamedFault, wiring: InstanceWiring, nodes: int) -> LinkFault:
    named = ends_of_name(fault.name)
    assert named is not None, fault.name  # checked when it was read
    (source, target), *_ = named.ends
    places = [_place(fault, end, wiring, nodes) for end in (source, target) if end is not None]
    node = places[0][0]
    if any(other != node for other, _ in places):
        raise TopologyError(
            f"{fault.source}: its ends are of instances {node} and {places[1][0]}, which no link "
            "joins"
        )
    ends: tuple[tuple[int | str, int | str | None], ...] = ((places[0][1], None),)
    if target is not None:
        ends = ((places[0][1], places[1][1]),)
        if len(named.ends) > 1:
            ends = (*ends, (places[1][1], places[0][1]))
    edges = edges_of(wiring)
    for each in ends:
        if not links_between(edges, each, named.port):
            raise TopologyError(f"{fault.source}: {_missing(fault.name, each[0], wiring, node)}")
    return LinkFault(
        ends=ends,
        source=fault.source,
        port=named.port,
        node=node,
        is_down=True if fault.is_down else None,
        bandwidth_bytes_per_s=fault.bandwidth_bytes_per_s,
        percent=fault.percent,
    )


def links_of_name(links: Links, name: str) -> list[int]:
    """The links of a topology that a name means; TopologyError where there is none."""
    named = ends_of_name(name)
    if named is None:
        raise TopologyError(f"{name} is no link, as c0-c1, c0>c1 and c0.E are")
    ends = [links.end(end) for end in (*links.src.tolist(), *links.dst.tolist())]
    keys = [int(end[1:]) if end.startswith("c") else end for end in ends]
    ports = [links.port[link % len(links.port)] for link in range(len(links))]
    edges = list(zip(keys[: len(links)], keys[len(links) :], ports, strict=True))
    found: list[int] = []
    for each in named.ends:
        these = links_between(edges, each, named.port)
        if not these:
            leaving = [links.step(link) for link, edge in enumerate(edges) if edge[0] == each[0]]
            raise TopologyError(f"there is no such link; {_nearest(name, each[0], leaving)}")
        found += these
    return found


def edges_of(wiring: InstanceWiring) -> list[tuple[int | str, int | str, str]]:
    """Source, target and port of each link of an instance; a switch is its name."""
    switches = [f"s{number}{half}" for number, half in wiring.switches]
    ends = [*range(wiring.chips), *switches]
    src, dst = ([ends[end] for end in side.tolist()] for side in (wiring.src, wiring.dst))
    return list(zip(src, dst, wiring.port, strict=True))


def _place(
    fault: NamedFault, end: int | str, wiring: InstanceWiring, nodes: int
) -> tuple[int, int | str]:
    """The instance of a chip or switch, and what it is there."""
    if isinstance(end, int):
        _check_chip(fault, end, wiring.chips * nodes)
        return divmod(end, wiring.chips)
    half = "x" if end.endswith("x") else ""
    number = int(end.removesuffix("x").removeprefix("s"))
    of_instance = wiring.switches[-1][0] + 1 if wiring.switches else 0
    if number >= of_instance * nodes:
        known = f"switches are s0 to s{of_instance * nodes - 1}" if of_instance else "there is none"
        raise TopologyError(f"{fault.source}: there is no switch {end}; {known}")
    node, within = divmod(number, of_instance)
    return node, f"s{within}{half}"


def _missing(name: str, source: int | str, wiring: InstanceWiring, node: int) -> str:
    """That no link has the name, and those that leave its source, the nearest first."""
    known = [
        f"{_shifted(here, wiring, node)}.{port}>{_shifted(there, wiring, node)}"
        for here, there, port in edges_of(wiring)
        if here == source
    ]
    return f"there is no such link; {_nearest(name, _shifted(source, wiring, node), known)}"


def _nearest(name: str, source: int | str, known: Sequence[str]) -> str:
    """The links of a chip or switch, those first whose names are the most alike."""
    near = difflib.get_close_matches(name, known, n=max(1, len(known)), cutoff=0)
    more = ["…"] * (len(near) > MOST_NAMED)
    what = ", ".join([*near[:MOST_NAMED], *more])
    end = f"c{source}" if isinstance(source, int) else source
    return f"{end} has {what or 'none'}"


def _shifted(end: int | str | None, wiring: InstanceWiring, node: int) -> str:
    """An end of an instance by its name through all instances."""
    of_instance = wiring.switches[-1][0] + 1 if wiring.switches else 0
    return end_name(end, node * wiring.chips, node * of_instance)


def end_name(end: int | str | None, first_chip: int, first_switch: int) -> str:
    """`c4`, `s1x`, with numbers from the first ones of its instance."""
    if not isinstance(end, str):
        return f"c{(end or 0) + first_chip}"
    half = "x" if end.endswith("x") else ""
    return f"s{int(end.removesuffix('x').removeprefix('s')) + first_switch}{half}"


@attrs.frozen
class ActiveFault:
    """A fault of a topology, named through all instances."""

    name: str
    state: str  # `down`, `at 50 %`, `at 64 GB/s`
    node: int | None  # None: of every instance, and numbers are those of one
    source: str

    def as_json(self) -> dict[str, str | int | None]:
        return {"name": self.name, "state": self.state, "node": self.node, "source": self.source}


def active_faults(
    faults: Sequence[LinkFault], slowed: Sequence[SlowedCore], chips: int, switches: int
) -> Iterator[ActiveFault]:
    """Faults as they are printed; `chips` and numbers of `switches` of one instance."""
    for fault in faults:
        node = fault.node or 0
        source, target = (end_name(end, node * chips, node * switches) for end in fault.ends[0])
        joint = "-" if len(fault.ends) > 1 else ">"
        port = f".{fault.port}" if fault.port else ""
        state = [] if fault.is_down is None else ["down" if fault.is_down else "up"]
        if fault.percent is not None:
            state.append(f"at {fault.percent} %")
        if fault.bandwidth_bytes_per_s is not None:
            state.append(f"at {fault.bandwidth_bytes_per_s / 1e9:g} GB/s")
        name = f"{source}{port}{joint}{target}"
        yield ActiveFault(name, ", ".join(state), fault.node, fault.source)
    for row in slowed:
        engines, dma = row.engines_percent, row.dma_percent
        text = f"at {dma} %" if engines == dma else f"engines at {engines} %, DMA at {dma} %"
        chip = row.chip + (row.node or 0) * chips
        yield ActiveFault(f"c{chip}.core{row.core}", text, row.node, row.source)
