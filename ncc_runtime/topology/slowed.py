"""Cores that run slower than their kind: the `[[core]]` rows of a topology's TOML.

A row names a chip of the instance and one of its physical cores, and says by percents of the full
speed how fast its engines and its DMA engines are, and where that is known from. `node` picks one
instance.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ncc_runtime.topology.spec import SlowedCore, Spec

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


def read_slowed(rows: Sequence[Mapping[str, Any]]) -> tuple[SlowedCore, ...]:
    """The rows of a file that follows the schema; cores are looked up when they are counted."""
    return tuple(SlowedCore(**row) for row in rows)
