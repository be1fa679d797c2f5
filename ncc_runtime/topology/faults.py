"""Links that are down or slowed: the `[[fault]]` rows of a topology's TOML, and what they change.

A row names `from` and `to`, the links one way, or `between = [a, b]`, both ways, by the chips'
numbers inside an instance. `port` picks one of several links between them, `node` one instance.
It says `down = true` or `bandwidth_bytes_per_s`, and where that is known from.
"""

from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.errors import TopologyError
from ncc_runtime.topology.spec import LARGEST, LARGEST_COUNT, LinkFault, Spec

_KEYS = ("from", "to", "between", "port", "node", "down", "bandwidth_bytes_per_s", "source")

Edge = tuple[int, int, str]
"""A directed link of one instance: source chip, target chip, port."""


@attrs.frozen(eq=False)
class LinkStates:
    """Per directed link of all instances, instance by instance, as read-only columns."""

    is_down: np.ndarray  # (n,) bool
    bandwidth_bytes_per_s: np.ndarray  # (n,) int64
    variant: np.ndarray  # (nodes,) int32: instances of one number have the same links


def link_states(spec: Spec, edges: Sequence[Edge], nodes: int, rate: int) -> LinkStates:
    """What the faults make of links that would all run at `rate`."""
    is_down = np.zeros((nodes, len(edges)), bool)
    rates = np.full((nodes, len(edges)), rate, np.int64)
    for row, fault in enumerate(spec.faults):
        links = _links_of(spec, row, edges)
        where = slice(None) if fault.node is None else slice(fault.node, fault.node + 1)
        if fault.is_down is not None:
            is_down[where, links] = fault.is_down
        if fault.bandwidth_bytes_per_s is not None:
            rates[where, links] = fault.bandwidth_bytes_per_s
    variant = np.zeros(nodes, np.int32)
    apart = {fault.node for fault in spec.faults if fault.node is not None and fault.node < nodes}
    variant[sorted(apart)] = np.arange(1, len(apart) + 1)
    variant = np.unique(variant, return_inverse=True)[1].astype(np.int32)  # without gaps
    columns = (is_down.ravel(), rates.ravel(), variant)
    for column in columns:
        column.setflags(write=False)
    return LinkStates(*columns)


def _links_of(spec: Spec, row: int, edges: Sequence[Edge]) -> list[int]:
    """The links of an instance that a row means; each of its ends must have one."""
    fault = spec.faults[row]
    found: list[int] = []
    for source, target in fault.ends:
        links = [
            link
            for link, (here, there, port) in enumerate(edges)
            if (here, there) == (source, target) and fault.port in (None, port)
        ]
        if not links:
            by = f" by port {fault.port}" if fault.port else ""
            raise spec.error(f"fault {row}", f"no link leads from chip {source} to {target}{by}")
        found += links
    return found


def read_faults(origin: str, rows: object) -> tuple[LinkFault, ...]:
    """The rows of a file, checked; links are looked up when the wiring is known."""
    tables = tables_of(origin, "fault", rows)
    return tuple(_fault(f"{origin}: fault {number}", row) for number, row in enumerate(tables))


def tables_of(origin: str, word: str, rows: object) -> Sequence[Mapping[str, object]]:
    """The tables under [[word]] of a file."""
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TopologyError(f"{origin}: {word}: write each as a table under [[{word}]]")
    return rows


def source_of(place: str, row: Mapping[str, object], keys: Sequence[str]) -> str:
    """What a table cites; it has no other keys than these."""
    unknown = [key for key in row if key not in keys]
    if unknown:
        raise TopologyError(f"{place}: unknown key {unknown[0]}; known: {', '.join(keys)}")
    source = row.get("source")
    if not isinstance(source, str) or not source.strip():
        raise TopologyError(f"{place}: the source is empty; cite one or write assumed")
    return source


def _fault(place: str, row: Mapping[str, object]) -> LinkFault:
    source = source_of(place, row, _KEYS)
    port, down = row.get("port"), row.get("down")
    if not isinstance(port, str | None):
        raise TopologyError(f"{place}: port {port!r} is not a word such as E")
    if not isinstance(down, bool | None):
        raise TopologyError(f"{place}: down {down!r} is not true or false")
    rate = _integer(place, row, "bandwidth_bytes_per_s", (1, LARGEST))
    if down is None and rate is None:
        raise TopologyError(f"{place}: neither down nor bandwidth_bytes_per_s is given")
    node = _integer(place, row, "node", (0, LARGEST))
    return LinkFault(_ends(place, row), source, port, node, down, rate)


def _ends(place: str, row: Mapping[str, object]) -> tuple[tuple[int, int], ...]:
    """(source, target) once for from and to, both ways for between."""
    between = row.get("between", [])
    one_way = "from" in row and "to" in row
    if not isinstance(between, list) or one_way == (len(between) == 2):
        raise TopologyError(f"{place}: expected from = a and to = b, or between = [a, b]")
    named = {"from": row["from"], "to": row["to"]} if one_way else _pair(between)
    source, target = (_integer(place, named, key, (0, LARGEST_COUNT)) for key in ("from", "to"))
    assert source is not None, "a key that is given has a value"
    assert target is not None, "a key that is given has a value"
    return ((source, target),) if one_way else ((source, target), (target, source))


def _pair(ends: Iterable[object]) -> dict[str, object]:
    return dict(zip(("from", "to"), ends, strict=True))


def _integer(
    place: str, row: Mapping[str, object], key: str, limits: tuple[int, int]
) -> int | None:
    if key not in row:
        return None
    value, (low, high) = row[key], limits
    if type(value) is not int or not low <= value <= high:
        raise TopologyError(f"{place}: {key}: {value!r} is not an integer from {low} to {high}")
    return value
