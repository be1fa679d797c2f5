"""The constants that are fitted: of one generation, or common to all."""

from collections.abc import Mapping
from types import MappingProxyType

from ncc_runtime.calibration.predict import Overrides, named, overridden
from ncc_runtime.calibration.rows import MeasuredRow

BEGIN: Overrides = MappingProxyType(
    {
        "cc.instruction_ps": 200_000,
        "cc.start_ps": 1_000_000,
        "intra_chip.die_latency_ps": 1_000_000,
    }
)
"""Fitted constants and where the search begins; others are published, or no row depends on them."""

LEAST_PS, MOST_PS = 10_000, 50_000_000
"""The lower bound of the search."""

BOUNDS: Overrides = MappingProxyType({"intra_chip.die_latency_ps": 1_800_000})
"""An upper bound of the search. A hop of a ring over all ranks of trn2 takes 1 to 2 us (AWS
Neuron docs, intranode-collective-comm.rst); without its dies it takes 1.5, and one of four crosses.
"""

COMMON = frozenset({"cc.instruction_ps"})
"""Constants of all generations alike. Assumed: their CC-cores are the same."""

ALL = ""
"""The generation of common constants."""

Constants = Mapping[tuple[str, str], int]
"""Values by generation and key."""


def shipped(row: MeasuredRow) -> Overrides:
    """The free constants of a row's preset."""
    with named(row):
        topology = overridden(row, {})
    values = {key: topology.figures[key].value for key in BEGIN}
    if topology.intra_chip.dies == 1:
        del values["intra_chip.die_latency_ps"]
    return MappingProxyType({key: value for key, value in values.items() if isinstance(value, int)})


def free_of(generation: str, key: str) -> tuple[str, str]:
    """A constant of a generation, as it is fitted."""
    return (ALL if key in COMMON else generation), key


def of_generation(constants: Constants, generation: str) -> Overrides:
    """The constants of one generation, and those common to all."""
    return MappingProxyType(
        {key: value for (where, key), value in constants.items() if where in (ALL, generation)}
    )


def most_ps(constants: Constants) -> list[int]:
    """The upper bound of each constant."""
    return [BOUNDS.get(key, MOST_PS) for _, key in constants]
