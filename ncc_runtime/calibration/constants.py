"""The constants that are fitted: of one generation, or common to all."""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from ncc_runtime.calibration.predict import Overrides, PlacedRow, named, overridden
from ncc_runtime.machine_model.timing import OF_ALL_MACHINES

BEGIN: Overrides = MappingProxyType(
    {
        "cc.instruction_ps": 200_000,
        "cc.start_ps": 1_000_000,
        "intra_chip.die_latency_ps": 1_000_000,
    }
)
"""Constants that rows of collectives tell, and where the search begins; others are published, or
no row depends on them."""

STEPS_BEGIN: Overrides = MappingProxyType({"timing.launch_ps": 20_000_000})
"""The same of rows of whole steps."""

LEAST_PS, MOST_PS = 10_000, 50_000_000
"""The bounds of the search."""

MOST_LAUNCH_PS = 100_000_000_000
"""The same of a launch, which is a host's doing."""

COMMON = frozenset({"cc.instruction_ps", "timing.launch_ps"})
"""Constants of all generations alike. Assumed: their CC-cores are the same, and so are hosts."""

ALL = ""
"""The generation of common constants."""

Constants = Mapping[tuple[str, str], int]
"""Values by generation and key."""


def most_ps(key: str) -> int:
    """The upper bound of a constant."""
    return MOST_LAUNCH_PS if key == "timing.launch_ps" else MOST_PS


def shipped(rows: Iterable[PlacedRow], begin: Overrides = BEGIN) -> Overrides:
    """The free constants of the presets of one generation's rows.

    Between dies there is none where a chip has one die.
    """
    values: dict[str, int] = {}
    for row in {row.instance: row for row in rows}.values():
        with named(row):
            topology = overridden(row, {})
        for key in begin:
            figure = topology.figures.get(key, OF_ALL_MACHINES.get(key))
            value = None if figure is None else figure.value
            has_none = key == "intra_chip.die_latency_ps" and topology.intra_chip.dies == 1
            if isinstance(value, int) and not has_none:
                values.setdefault(key, value)
    return MappingProxyType({key: values[key] for key in begin if key in values})


def free_of(generation: str, key: str) -> tuple[str, str]:
    """A constant of a generation, as it is fitted."""
    return (ALL if key in COMMON else generation), key


def of_generation(constants: Constants, generation: str) -> Overrides:
    """The constants of one generation, and those common to all."""
    return MappingProxyType(
        {key: value for (where, key), value in constants.items() if where in (ALL, generation)}
    )
