"""The rows of a topology's TOML: `[[level]]`, `[[fault]]` and `[[core]]`.

A `[[level]]` with a `kind` joins so many units, each all that the levels before it hold, from the
innermost level out. One without overrides figures of the base's level of that name. A cluster comes
last and is the network between instances.

A `[[fault]]` takes links down or slows them. It names `from` and `to`, the links one way, or
`between = [a, b]`, both ways, by the chips' numbers inside an instance, or the names of switches.
`port` picks one of several links between them, `node` one instance. It says `down = true`,
`bandwidth_bytes_per_s` or `percent` of the full rate, and from what source.

A `[[core]]` slows one physical core of a chip: by percents of the full speed its engines, its
DMA engines or both. `node` picks one instance.

Either may have a `name` instead of numbers: `c0-c1`, `c0>c1`, `c0.E`, `c5.core0`.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.errors import TopologyError
from ncc_runtime.topology.format.spec import (
    BETWEEN_PORTS,
    LARGEST_CHIPS,
    LEAST_RATE,
    LEVEL_KEYS,
    Figure,
    Joins,
    LevelKind,
    LevelRow,
    LinkFault,
    SlowedCore,
    Spec,
    figure_of,
)
from ncc_runtime.topology.format.toml_file import TomlFile

Figures = Mapping[str, Figure]
TomlTable = Mapping[str, Any]

_REQUIRED_KEYS: Mapping[LevelKind, tuple[str, ...]] = {
    LevelKind.TORUS: ("dims", "bandwidth_bytes_per_s", "latency_ps"),
    LevelKind.RING: ("size", "bandwidth_bytes_per_s", "latency_ps"),
    LevelKind.LINE: ("size", "bandwidth_bytes_per_s", "latency_ps"),
    LevelKind.FULL: ("size", "bandwidth_bytes_per_s", "latency_ps"),
    LevelKind.GRAPH: ("size", "links", "bandwidth_bytes_per_s", "latency_ps"),
    LevelKind.SWITCH: ("size", "latency_ps"),
    LevelKind.CLUSTER: ("adapters", "bandwidth_bytes_per_s", "latency_ps"),
}
_OPTIONAL_KEYS: Mapping[LevelKind, tuple[str, ...]] = {
    LevelKind.SWITCH: ("bandwidth_bytes_per_s", "oversubscription"),
    LevelKind.CLUSTER: ("queue_pair_bandwidth_bytes_per_s",),
}
_EFA_KEYS = {
    "adapters": "efa.adapters",
    "bandwidth_bytes_per_s": "efa.adapter_bandwidth_bytes_per_s",
    "latency_ps": "efa.latency_ps",
    "queue_pair_bandwidth_bytes_per_s": "efa.queue_pair_bandwidth_bytes_per_s",
}


@attrs.frozen
class Fabric:
    """The wiring that the rows of a file state."""

    levels: tuple[LevelRow, ...]  # of the instance; none: the wiring is fabric.shape
    figures: Figures
    network: str = ""  # the name of the cluster


def read_levels(file: TomlFile, rows: Sequence[TomlTable], below: Spec, stated: Figures) -> Fabric:
    """The levels of a file over those of its base; `stated` are its figures outside of levels."""
    if not rows:
        return Fabric(_inherited(file, below, stated), {})
    if all("kind" not in row for row in rows):
        return _overridden(file, rows, below)
    stray = next(
        (key for key in stated if key in ("fabric.shape", "fabric.dims", "fabric.links")), ""
    )
    stray = stray or next((key for key in stated if key.startswith("link.")), "")
    if stray:
        raise file.error(stray, "a fabric of levels has it under [[level]]")
    every = [_level(file, number, row) for number, row in enumerate(rows)]
    _check_names(file, every)
    cluster = [level for level in every if level.kind is LevelKind.CLUSTER]
    levels = tuple(level for level in every if level.kind is not LevelKind.CLUSTER)
    figures = {
        level.key(key): figure_of(row[key])
        for level, row in zip(every, rows, strict=True)
        for key in LEVEL_KEYS
        if key in row and level.kind is not LevelKind.CLUSTER
    }
    figures |= _network(file, every, rows, stated, below)
    if not cluster and "efa.adapters" not in stated and "efa.adapters" not in below.figures:
        figures["efa.adapters"] = Figure(0, "no level is a cluster")
    if levels:
        figures |= _chips(file, levels, figures, stated)
    return Fabric(levels, figures, cluster[0].name if cluster else "")


def _inherited(file: TomlFile, below: Spec, stated: Figures) -> tuple[LevelRow, ...]:
    """The base's levels, unless the file states a wiring."""
    if not below.levels or "fabric.shape" in stated:
        return ()
    stray = next((key for key in stated if key.startswith("link.")), "")
    stray = stray or next((key for key in ("fabric.dims", "fabric.links") if key in stated), "")
    if stray:
        names = " or ".join(level.name for level in below.levels)
        raise file.error(stray, f"the base has levels; override {names} under [[level]]")
    return below.levels


def _overridden(file: TomlFile, rows: Sequence[TomlTable], below: Spec) -> Fabric:
    known = {level.name: level for level in below.levels}
    figures: dict[str, Figure] = {}
    for number, row in enumerate(rows):
        level = known.get(row["name"])
        if level is None:
            names = (
                f"; its base has {', '.join(known)}" if known else ", which its base has none of"
            )
            raise _error(file, number, "kind", f"missing, for {row['name']} is a new level{names}")
        _check_keys(file, number, row, level.kind)
        figures |= {level.key(key): figure_of(row[key]) for key in LEVEL_KEYS if key in row}
    merged = {**below.figures, **figures}
    if any(key.endswith((".dims", ".size")) for key in figures):
        figures |= _chips(file, below.levels, merged, {})
    return Fabric(below.levels, figures)


def _level(file: TomlFile, number: int, row: TomlTable) -> LevelRow:
    if "kind" not in row:
        raise _error(file, number, "kind", "missing; levels are overridden alone or made anew")
    kind = LevelKind(row["kind"])
    _check_keys(file, number, row, kind)
    for key in _REQUIRED_KEYS[kind]:
        if key not in row:
            raise _error(file, number, key, f"missing, a {kind.value} needs it")
    usual = Joins.CHIPS if kind is LevelKind.SWITCH or number == 0 else Joins.PLACES
    joins = Joins(row.get("joins", usual.value))
    if number == 0 and joins is not Joins.CHIPS:
        raise _error(file, number, "joins", f"{joins.value}, the first level joins chips")
    if number and joins is Joins.CHIPS and kind is not LevelKind.SWITCH:
        raise _error(file, number, "joins", f"chips of all units to a {kind.value}; say places")
    if kind is LevelKind.SWITCH:
        _check_rate(file, number, row, joins)
    return LevelRow(row["name"], kind, joins)


def _check_rate(file: TomlFile, number: int, row: TomlTable, joins: Joins) -> None:
    """A switch has the rate of its ports, or up-links that follow from those below."""
    rate, ratio = "bandwidth_bytes_per_s" in row, "oversubscription" in row
    if joins is Joins.SWITCHES and rate == ratio:
        reason = "give it, or oversubscription, for the up-links"
        raise _error(file, number, "bandwidth_bytes_per_s", reason)
    if joins is not Joins.SWITCHES and not rate:
        raise _error(file, number, "bandwidth_bytes_per_s", "missing, a switch needs it")


def _check_keys(file: TomlFile, number: int, row: TomlTable, kind: LevelKind) -> None:
    """A level states nothing that its kind has no use for."""
    known = (*_REQUIRED_KEYS[kind], *_OPTIONAL_KEYS.get(kind, ()))
    for key in row:
        if key in LEVEL_KEYS and key not in known:
            raise _error(file, number, key, f"a {kind.value} has none; it has {', '.join(known)}")
    if kind is LevelKind.CLUSTER and "joins" in row:
        raise _error(file, number, "joins", "a cluster has none; it joins instances")
    if kind is not LevelKind.TORUS:
        for key in ("bandwidth_bytes_per_s", "latency_ps"):
            if isinstance(row.get(key, {}).get("value"), list):
                reason = f"a list is for the dimensions of a torus, a {kind.value} has one value"
                raise _error(file, number, key, reason)


def _check_names(file: TomlFile, levels: Sequence[LevelRow]) -> None:
    for number, level in enumerate(levels):
        if level.name in [other.name for other in levels[:number]]:
            raise _error(file, number, "name", f"{level.name} is a level before; give another")
        if level.kind is LevelKind.CLUSTER and number < len(levels) - 1:
            raise _error(file, number, "kind", "a cluster joins whole instances; put it last")


def _network(
    file: TomlFile,
    levels: Sequence[LevelRow],
    rows: Sequence[TomlTable],
    stated: Figures,
    below: Spec,
) -> dict[str, Figure]:
    """The figures of a cluster, as those of adapters; a limit of the base is of its network."""
    if levels[-1].kind is not LevelKind.CLUSTER:
        return {}
    stray = next((key for key in stated if key.startswith("efa.")), "")
    if stray:
        raise file.error(stray, f"the level {levels[-1].name} says it")
    none = Figure(0, f"no limit, for the level {levels[-1].name} gives none")
    return {
        key: figure_of(rows[-1][word]) if word in rows[-1] else none
        for word, key in _EFA_KEYS.items()
        if word in rows[-1] or key in below.figures
    }


def _chips(
    file: TomlFile, levels: Sequence[LevelRow], figures: Figures, stated: Figures
) -> dict[str, Figure]:
    """The number of chips follows from the sizes."""
    count, words = 1, []
    for level in levels:
        size = 1
        extents = figures[level.key("dims" if level.kind is LevelKind.TORUS else "size")].value
        for extent in extents if isinstance(extents, tuple) else (extents,):
            size *= extent if isinstance(extent, int) else 1
        count *= size
        words.append(f"{size} of {level.name}")
        if count > LARGEST_CHIPS:
            key = level.key("dims" if level.kind is LevelKind.TORUS else "size")
            raise file.error(key, f"{count} chips are more than {LARGEST_CHIPS}")
    text = " x ".join(words)
    if "chips.count" in stated and stated["chips.count"].value != count:
        given = stated["chips.count"].value
        raise file.error("chips.count", f"{given}, the levels hold {count}: {text}")
    return {"chips.count": stated.get("chips.count", Figure(count, f"assumed: {text}"))}


def _error(file: TomlFile, number: int, key: str, reason: str) -> TopologyError:
    return file.error_at(("level", number, key), f"level {number}: {key}", reason)


FaultRow = Mapping[str, Any]

MOST_NAMED = 8
"""Links that an error names."""

Edge = tuple[int | str, int | str, str]
"""A directed link of one instance: source, target, port; a switch is its name, `s0`."""


@attrs.frozen(eq=False)
class LinkStates:
    """Per directed link of all instances, instance by instance, as read-only columns."""

    is_down: np.ndarray  # (n,) bool
    bandwidth_bytes_per_s: np.ndarray  # (n,) int64
    parallel_links: np.ndarray  # (n,) int32: links of a trunk that carry bytes, else 1
    variant: np.ndarray  # (nodes,) int32: instances of one number have the same links


def link_states(
    spec: Spec, edges: Sequence[Edge], nodes: int, full_rates: np.ndarray
) -> LinkStates:
    """The links of one instance with the faults of each instance; `full_rates` without faults."""
    is_down = np.zeros((nodes, len(edges)), bool)
    rates = np.tile(np.asarray(full_rates, np.int64), (nodes, 1))
    for row, fault in enumerate(spec.faults):
        links = _links_of(spec, row, edges)
        where = slice(None) if fault.node is None else slice(fault.node, fault.node + 1)
        if fault.is_down is not None:
            is_down[where, links] = fault.is_down
        if fault.percent is not None:
            slowed = np.asarray(full_rates, np.int64)[links] * fault.percent // 100
            rates[where, links] = np.maximum(slowed, LEAST_RATE)
        if fault.bandwidth_bytes_per_s is not None:
            rates[where, links] = fault.bandwidth_bytes_per_s
    variant = np.zeros(nodes, np.int32)
    faulty = {fault.node for fault in spec.faults if fault.node is not None and fault.node < nodes}
    variant[sorted(faulty)] = np.arange(1, len(faulty) + 1)
    variant = np.unique(variant, return_inverse=True)[1].astype(np.int32)  # without gaps
    columns = (is_down.ravel(), rates.ravel(), (~is_down).astype(np.int32).ravel(), variant)
    for column in columns:
        column.setflags(write=False)
    return LinkStates(*columns)


def _links_of(spec: Spec, row: int, edges: Sequence[Edge]) -> list[int]:
    """The links of an instance that a row means; each of its ends must have one."""
    fault = spec.faults[row]
    matching: list[int] = []
    for ends in fault.ends:
        links = links_between(edges, ends, fault.port)
        if not links:
            source, target = ends
            by = f" by port {fault.port}" if fault.port else ""
            start = source if isinstance(source, str) else f"chip {source}"
            to = "" if target is None else f" to {target}"
            led = dict.fromkeys(
                f"{there} by {port}" for here, there, port in edges if here == source
            )
            known = ", ".join([*list(led)[:MOST_NAMED], *["…"] * (len(led) > MOST_NAMED)])
            leads = f"its links lead to {known}" if led else "it has no links"
            raise spec.error(f"fault {row}", f"no link leads from {start}{to}{by}; {leads}")
        matching += links
    return matching


def links_between(
    edges: Sequence[Edge], ends: tuple[int | str, int | str | None], port: str | None
) -> list[int]:
    """The links from one end to another, or to wherever they lead; by a port, or all."""
    source, target = ends
    ports = port.split(BETWEEN_PORTS) if port is not None else None
    return [
        link
        for link, (here, there, by) in enumerate(edges)
        if here == source and target in (None, there) and (ports is None or by in ports)
    ]


def with_targets(spec: Spec, edges: Sequence[Edge]) -> Spec:
    """The specification with the targets of faults that name a port alone."""
    faults = tuple(
        attrs.evolve(
            fault,
            ends=tuple(
                (source, edges[_links_of(spec, row, edges)[0]][1] if target is None else target)
                for source, target in fault.ends
            ),
        )
        for row, fault in enumerate(spec.faults)
    )
    return attrs.evolve(spec, faults=faults)


_LINK_NAME = re.compile(
    r"(?P<source>c\d{1,9}|s\d{1,9}x?)"
    r"(\.(?P<port>\w+(&\w+)*)(>(?P<there>c\d{1,9}|s\d{1,9}x?))?"
    r"|(?P<joint>[->])(?P<target>c\d{1,9}|s\d{1,9}x?))",
    re.ASCII,
)
_CORE_NAME = re.compile(r"c(?P<chip>\d{1,9})\.core(?P<core>\d{1,9})", re.ASCII)


@attrs.frozen
class NamedEnds:
    """What the name of a link says."""

    ends: tuple[tuple[int | str, int | str | None], ...]  # as in LinkFault
    port: str | None = None


def ends_of_name(name: str) -> NamedEnds | None:
    """`c0-c1`, `c0>c1`, `c0.E` or `c0.E>c1`, with numbers as they stand; None for another name."""
    match = _LINK_NAME.fullmatch(name)
    if match is None:
        return None
    source = _end(match["source"])
    if match["port"] is not None:
        there = None if match["there"] is None else _end(match["there"])
        return NamedEnds(((source, there),), match["port"])
    target = _end(match["target"])
    one_way = ((source, target),)
    return NamedEnds(one_way if match["joint"] == ">" else (*one_way, (target, source)))


def _end(name: str) -> int | str:
    if name.startswith("c"):
        return int(name[1:])
    return f"s{int(name[1:].removesuffix('x'))}{'x' if name.endswith('x') else ''}"


def core_of_name(name: str) -> tuple[int, int] | None:
    """Chip and physical core of `c5.core0`; None for another name."""
    match = _CORE_NAME.fullmatch(name)
    return None if match is None else (int(match["chip"]), int(match["core"]))


def read_faults(file: TomlFile, rows: Sequence[FaultRow]) -> tuple[LinkFault, ...]:
    """The rows of a file that follows the schema; links are looked up when the wiring is known."""
    faults = []
    for number, row in enumerate(rows):
        named = NamedEnds(_ends(row), row.get("port")) if "name" not in row else None
        if named is None:
            named = ends_of_name(row["name"])
            if named is None or core_of_name(row["name"]) is not None:
                reason = f"{row['name']!r} is no link, as c0-c1, c0>c1 or c0.E are"
                raise file.error_at(["fault", number, "name"], f"fault {number}: name", reason)
        fault = LinkFault(
            ends=named.ends,
            source=row["source"],
            port=named.port,
            node=row.get("node"),
            is_down=row.get("down"),
            bandwidth_bytes_per_s=row.get("bandwidth_bytes_per_s"),
            percent=row.get("percent"),
        )
        faults.append(fault)
    return tuple(faults)


def _ends(row: FaultRow) -> tuple[tuple[int | str, int | str | None], ...]:
    """(source, target) once for from and to, both ways for between."""
    if "between" not in row:
        return ((row["from"], row["to"]),)
    first, second = row["between"]
    return ((first, second), (second, first))


Places = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Instances, chips of them, and physical cores with one more axis: those of a logical core."""


def speeds_percent(slowed: Sequence[SlowedCore], of: str, places: Places) -> np.ndarray:
    """The slowest physical core of each logical one, in percent of the full speed, int64."""
    node, chip, core = places
    speeds = np.full(core.shape, 100, np.int64)
    for row in slowed:
        here = (chip == row.chip) & ((row.node is None) | (node == (row.node or 0)))
        speeds[here[..., None] & (core == row.core)] = getattr(row, of)
    return np.asarray(speeds.min(axis=-1))


def checked_slowed(spec: Spec) -> tuple[SlowedCore, ...]:
    """The slowed cores of a topology; TopologyError for one that its instance has not."""
    for number, row in enumerate(spec.slowed):
        for what, value in (("chips.count", row.chip), ("chips.cores", row.core)):
            if value >= spec.number(what):
                word = "chip" if what == "chips.count" else "core"
                raise spec.error(
                    f"core {number}", f"{word} {value} is not below {spec.number(what)}"
                )
    return spec.slowed


def read_slowed(file: TomlFile, rows: Sequence[Mapping[str, Any]]) -> tuple[SlowedCore, ...]:
    """The rows of a file that follows the schema; cores are looked up when they are counted."""
    slowed = []
    for number, row in enumerate(rows):
        fields = dict(row)
        if "name" in fields:
            place = core_of_name(name := fields.pop("name"))
            if place is None:
                reason = f"{name!r} is no physical core, as c5.core0 is"
                raise file.error_at(["core", number, "name"], f"core {number}: name", reason)
            fields["chip"], fields["core"] = place
        if "percent" in fields:
            percent = fields.pop("percent")
            fields |= {"engines_percent": percent, "dma_percent": percent}
        slowed.append(SlowedCore(**fields))
    return tuple(slowed)
