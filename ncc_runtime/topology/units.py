"""The units of a fabric's levels as a tree: which chips and switches each holds."""

from collections.abc import Iterator

import attrs

from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.levels import Level
from ncc_runtime.topology.spec import Joins, LevelKind


@attrs.frozen
class Unit:
    """What one level holds: chips from `first` on, in units of the level below."""

    level: int  # which of the topology's; -1: a chip
    number: int  # among the units of its level in the instance
    first: int  # chip, through all instances
    chips: int
    switches: tuple[str, ...]  # their names


def instance_unit(topology: Topology, node: int) -> Unit:
    """All chips of an instance, as the unit of its outermost level."""
    level = len(topology.levels) - 1
    chips = topology.chips_per_node
    return Unit(level, 0, node * chips, chips, _switches(topology, node, level, 0))


def parts_of(topology: Topology, unit: Unit) -> Iterator[Unit]:
    """The units that a unit joins, in order."""
    size = topology.levels[unit.level].size
    chips, node = unit.chips // size, unit.first // topology.chips_per_node
    for place in range(size):
        number = unit.number * size + place
        switches = _switches(topology, node, unit.level - 1, number)
        yield Unit(unit.level - 1, number, unit.first + place * chips, chips, switches)


def _switches(topology: Topology, node: int, level: int, number: int) -> tuple[str, ...]:
    """Switches are numbered level by level, unit by unit; those of one unit of a level."""
    first, held = 0, 1
    each = 0
    for index, one in enumerate(topology.levels[: level + 1]):
        units = topology.chips_per_node // (held * one.size)
        each = _switches_of_unit(one, held, each)
        if index < level:
            first += units * each
        held *= one.size
    if level < 0 or topology.levels[level].kind is not LevelKind.SWITCH:
        return ()
    last = topology.links.switches[-1][0] + 1
    start = node * last + first + number * each
    return tuple(f"s{start + place}" for place in range(each))


def _switches_of_unit(level: Level, chips: int, below: int) -> int:
    """How many switches a unit of a level has, whose parts have so many chips and switches."""
    if level.kind is not LevelKind.SWITCH:
        return 0
    return {Joins.CHIPS: 1, Joins.PLACES: chips, Joins.SWITCHES: below}[level.joins]
