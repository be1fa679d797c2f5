"""Links that are down or slowed: the `[[fault]]` rows of a topology's TOML, and what they change.

A row names `from` and `to`, the links one way, or `between = [a, b]`, both ways, by the chips'
numbers inside an instance, or the names of switches. `port` picks one of several links between
them, `node` one instance. It says `down = true` or `bandwidth_bytes_per_s`, and where that is known
from.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.topology.spec import BETWEEN_PORTS, LinkFault, Spec

Row = Mapping[str, Any]

MOST_NAMED = 8
"""A complaint names no more links than this."""

Edge = tuple[int | str, int | str, str]
"""A directed link of one instance: source, target, port; a switch is its name, `s0`."""


@attrs.frozen(eq=False)
class LinkStates:
    """Per directed link of all instances, instance by instance, as read-only columns."""

    is_down: np.ndarray  # (n,) bool
    bandwidth_bytes_per_s: np.ndarray  # (n,) int64
    strands: np.ndarray  # (n,) int32: links that carry it, those of a trunk one by one
    variant: np.ndarray  # (nodes,) int32: instances of one number have the same links


def link_states(
    spec: Spec, edges: Sequence[Edge], nodes: int, rates_of_whole: np.ndarray
) -> LinkStates:
    """What the faults make of the links of an instance, at their rates, for every instance."""
    is_down = np.zeros((nodes, len(edges)), bool)
    rates = np.tile(np.asarray(rates_of_whole, np.int64), (nodes, 1))
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
    columns = (is_down.ravel(), rates.ravel(), (~is_down).astype(np.int32).ravel(), variant)
    for column in columns:
        column.setflags(write=False)
    return LinkStates(*columns)


def _links_of(spec: Spec, row: int, edges: Sequence[Edge]) -> list[int]:
    """The links of an instance that a row means; each of its ends must have one."""
    fault = spec.faults[row]
    ports = fault.port.split(BETWEEN_PORTS) if fault.port is not None else None
    found: list[int] = []
    for source, target in fault.ends:
        links = [
            link
            for link, (here, there, port) in enumerate(edges)
            if (here, there) == (source, target) and (ports is None or port in ports)
        ]
        if not links:
            by = f" by port {fault.port}" if fault.port else ""
            start = source if isinstance(source, str) else f"chip {source}"
            led = dict.fromkeys(
                f"{there} by {port}" for here, there, port in edges if here == source
            )
            known = ", ".join([*list(led)[:MOST_NAMED], *["…"] * (len(led) > MOST_NAMED)])
            leads = f"its links lead to {known}" if led else "it has no links"
            reason = f"no link leads from {start} to {target}{by}; {leads}"
            raise spec.error(f"fault {row}", reason)
        found += links
    return found


def read_faults(rows: Sequence[Row]) -> tuple[LinkFault, ...]:
    """The rows of a file that follows the schema; links are looked up when the wiring is known."""
    return tuple(
        LinkFault(
            ends=_ends(row),
            source=row["source"],
            port=row.get("port"),
            node=row.get("node"),
            is_down=row.get("down"),
            bandwidth_bytes_per_s=row.get("bandwidth_bytes_per_s"),
        )
        for row in rows
    )


def _ends(row: Row) -> tuple[tuple[int | str, int | str], ...]:
    """(source, target) once for from and to, both ways for between."""
    if "between" not in row:
        return ((row["from"], row["to"]),)
    one, other = row["between"]
    return ((one, other), (other, one))
