"""Cores that run slower than their kind: the `[[core]]` rows of a topology's TOML.

A row names a chip of the instance and one of its physical cores, and says by percents of the full
speed how fast its engines and its DMA engines are, and where that is known from. `node` picks one
instance.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ncc_runtime.errors import TopologyError
from ncc_runtime.topology.faults import source_of, tables_of
from ncc_runtime.topology.spec import LARGEST, LARGEST_COUNT, SlowedCore, Spec

_KEYS = ("chip", "core", "node", "engines_percent", "dma_percent", "source")

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
    """The rows of a topology; each must name a core that its instance has."""
    for number, row in enumerate(spec.slowed):
        for what, value in (("chips.count", row.chip), ("chips.cores", row.core)):
            if value >= spec.number(what):
                word = "chip" if what == "chips.count" else "core"
                raise spec.error(
                    f"core {number}", f"{word} {value} is not below {spec.number(what)}"
                )
    return spec.slowed


def read_slowed(origin: str, rows: object) -> tuple[SlowedCore, ...]:
    """The rows of a file, checked; cores are looked up when their number is known."""
    tables = tables_of(origin, "core", rows)
    return tuple(_slowed(f"{origin}: core {number}", row) for number, row in enumerate(tables))


def _slowed(place: str, row: Mapping[str, object]) -> SlowedCore:
    source = source_of(place, row, _KEYS)
    if "engines_percent" not in row and "dma_percent" not in row:
        raise TopologyError(f"{place}: neither engines_percent nor dma_percent is given")
    return SlowedCore(
        chip=_integer(place, row, "chip", (0, LARGEST_COUNT)),
        core=_integer(place, row, "core", (0, LARGEST_COUNT)),
        source=source,
        node=_integer(place, row, "node", (0, LARGEST)) if "node" in row else None,
        engines_percent=_integer(place, {"engines_percent": 100, **row}, "engines_percent"),
        dma_percent=_integer(place, {"dma_percent": 100, **row}, "dma_percent"),
    )


def _integer(
    place: str, row: Mapping[str, object], key: str, limits: tuple[int, int] = (1, 100)
) -> int:
    value, (low, high) = row.get(key), limits
    if type(value) is not int:
        raise TopologyError(f"{place}: {key}: {value!r} is not an integer from {low} to {high}")
    if not low <= value <= high:
        raise TopologyError(f"{place}: {key}: {value} is not an integer from {low} to {high}")
    return value
