"""The `[[level]]` rows of a topology's TOML: what joins chips, from the innermost level out.

A row with a `kind` makes a level of so many units, each all that the levels before it hold. A row
without one overrides figures of the base's level of that name. A cluster comes last and is the
network between instances.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ncc_runtime.errors import TopologyError
from ncc_runtime.topology.spec import (
    LARGEST_CHIPS,
    LEVEL_KEYS,
    Figure,
    Joins,
    LevelKind,
    LevelRow,
    Spec,
    figure_of,
)
from ncc_runtime.topology.toml_file import TomlFile

Figures = Mapping[str, Figure]
Row = Mapping[str, Any]

_NEEDED: Mapping[LevelKind, tuple[str, ...]] = {
    LevelKind.TORUS: ("dims", "bandwidth_bytes_per_s", "latency_ps"),
    LevelKind.RING: ("size", "bandwidth_bytes_per_s", "latency_ps"),
    LevelKind.LINE: ("size", "bandwidth_bytes_per_s", "latency_ps"),
    LevelKind.FULL: ("size", "bandwidth_bytes_per_s", "latency_ps"),
    LevelKind.GRAPH: ("size", "links", "bandwidth_bytes_per_s", "latency_ps"),
    LevelKind.SWITCH: ("size", "latency_ps"),
    LevelKind.CLUSTER: ("adapters", "bandwidth_bytes_per_s", "latency_ps"),
}
_MAY: Mapping[LevelKind, tuple[str, ...]] = {
    LevelKind.SWITCH: ("bandwidth_bytes_per_s", "oversubscription")
}
_EFA_KEYS = {
    "adapters": "efa.adapters",
    "bandwidth_bytes_per_s": "efa.adapter_bandwidth_bytes_per_s",
    "latency_ps": "efa.latency_ps",
}


@attrs.frozen
class Fabric:
    """What the rows of a file make of the wiring."""

    levels: tuple[LevelRow, ...]  # of the instance; none: the wiring is fabric.shape
    figures: Figures
    network: str = ""  # the name of the cluster


def read_levels(file: TomlFile, rows: Sequence[Row], below: Spec, own: Figures) -> Fabric:
    """The levels of a file over those of its base; `own` are its figures outside of levels."""
    if not rows:
        return Fabric(_inherited(file, below, own), {})
    if all("kind" not in row for row in rows):
        return _overridden(file, rows, below)
    stray = next((key for key in own if key in ("fabric.shape", "fabric.dims", "fabric.links")), "")
    stray = stray or next((key for key in own if key.startswith("link.")), "")
    if stray:
        raise file.error(stray, "a fabric of levels has it under [[level]]")
    stated = [_level(file, number, row) for number, row in enumerate(rows)]
    _check_names(file, stated)
    cluster = [level for level in stated if level.kind is LevelKind.CLUSTER]
    levels = tuple(level for level in stated if level.kind is not LevelKind.CLUSTER)
    figures = {
        level.key(key): figure_of(row[key])
        for level, row in zip(stated, rows, strict=True)
        for key in LEVEL_KEYS
        if key in row and level.kind is not LevelKind.CLUSTER
    }
    figures |= _network(file, stated, rows, own)
    if not cluster and "efa.adapters" not in own and "efa.adapters" not in below.figures:
        figures["efa.adapters"] = Figure(0, "no level is a cluster")
    if levels:
        figures |= _chips(file, levels, figures, own)
    return Fabric(levels, figures, cluster[0].name if cluster else "")


def _inherited(file: TomlFile, below: Spec, own: Figures) -> tuple[LevelRow, ...]:
    """The base's levels, unless the file says how chips are wired."""
    if not below.levels or "fabric.shape" in own:
        return ()
    stray = next((key for key in own if key.startswith("link.")), "")
    stray = stray or next((key for key in ("fabric.dims", "fabric.links") if key in own), "")
    if stray:
        names = " or ".join(level.name for level in below.levels)
        raise file.error(stray, f"the base has levels; override {names} under [[level]]")
    return below.levels


def _overridden(file: TomlFile, rows: Sequence[Row], below: Spec) -> Fabric:
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


def _level(file: TomlFile, number: int, row: Row) -> LevelRow:
    if "kind" not in row:
        raise _error(file, number, "kind", "missing; levels are overridden alone or made anew")
    kind = LevelKind(row["kind"])
    _check_keys(file, number, row, kind)
    for key in _NEEDED[kind]:
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


def _check_rate(file: TomlFile, number: int, row: Row, joins: Joins) -> None:
    """A switch has the rate of its ports, or up-links that follow from those below."""
    rate, ratio = "bandwidth_bytes_per_s" in row, "oversubscription" in row
    if joins is Joins.SWITCHES and rate == ratio:
        reason = "give it, or oversubscription, for the up-links"
        raise _error(file, number, "bandwidth_bytes_per_s", reason)
    if joins is not Joins.SWITCHES and not rate:
        raise _error(file, number, "bandwidth_bytes_per_s", "missing, a switch needs it")


def _check_keys(file: TomlFile, number: int, row: Row, kind: LevelKind) -> None:
    """A level states nothing that its kind has no use for."""
    known = (*_NEEDED[kind], *_MAY.get(kind, ()))
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
    file: TomlFile, levels: Sequence[LevelRow], rows: Sequence[Row], own: Figures
) -> dict[str, Figure]:
    """What a cluster says, as the figures of adapters."""
    if levels[-1].kind is not LevelKind.CLUSTER:
        return {}
    stray = next((key for key in own if key.startswith("efa.")), "")
    if stray:
        raise file.error(stray, f"the level {levels[-1].name} says it")
    return {key: figure_of(rows[-1][word]) for word, key in _EFA_KEYS.items()}


def _chips(
    file: TomlFile, levels: Sequence[LevelRow], figures: Figures, own: Figures
) -> dict[str, Figure]:
    """The number of chips follows from the sizes."""
    count, words = 1, []
    for level in levels:
        size = 1
        for number in _sizes(figures, level):
            size *= number
        count *= size
        words.append(f"{size} of {level.name}")
        if count > LARGEST_CHIPS:
            key = level.key("dims" if level.kind is LevelKind.TORUS else "size")
            raise file.error(key, f"{count} chips are more than {LARGEST_CHIPS}")
    text = " x ".join(words)
    if "chips.count" in own and own["chips.count"].value != count:
        given = own["chips.count"].value
        raise file.error("chips.count", f"{given}, the levels hold {count}: {text}")
    return {"chips.count": own.get("chips.count", Figure(count, f"assumed: {text}"))}


def _sizes(figures: Figures, level: LevelRow) -> tuple[int, ...]:
    key = level.key("dims" if level.kind is LevelKind.TORUS else "size")
    value = figures[key].value
    sizes = value if isinstance(value, tuple) else (value,)
    return tuple(size for size in sizes if isinstance(size, int))


def _error(file: TomlFile, number: int, key: str, reason: str) -> TopologyError:
    return file.error_at(("level", number, key), f"level {number}: {key}", reason)
