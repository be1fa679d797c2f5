"""The control rows of all stages in one order, the events.

Blocks around collectives that stages share are twins: one block, with one set of events. All other
blocks are a stage's own. In the order of events a stage goes through its own blocks one after the
other, and comes to what it shares when all do that share it.
"""

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from ncc_runtime.lowering.executable import IDLE, EngineQueue, Executable
from ncc_runtime.neff.stages import matched_blocks_of, participants
from ncc_runtime.neff.structure import Structure
from ncc_runtime.verify.places import collective
from ncc_runtime.verify.stage_parts import StagePart

Event = tuple[str, int]
"""An opcode and a block; among twins the first."""

_COLLECTIVE = "collective"
"""In place of an opcode: behind it stands a placeholder."""

_Parts = Sequence[tuple[StagePart, Structure]]


def events_of(executable: Executable, parts: _Parts) -> tuple[tuple[Event, ...], tuple[str, ...]]:
    """The events of all stages, and why there is no order of them."""
    faults = _unlike(executable, parts)
    if faults:
        return (), faults
    shared = _shared(executable)
    ways = [deque(_way(executable, one, shared)) for one in parts]
    found = _merged(ways)
    if any(ways):
        steps = (
            f"{part.title}{_text(executable, way[0])} is next"
            for (part, _), way in zip(parts, ways, strict=True)
            if way
        )
        head = "shared collectives and blocks have no order that all programs keep"
        return (), ("\n  ".join([head, *steps]),)
    return tuple(event for event in found if event[0] != _COLLECTIVE), ()


def own_events(executable: Executable, one: tuple[StagePart, Structure]) -> tuple[Event, ...]:
    """The control rows of a stage as events."""
    part, structure = one
    twins = matched_blocks_of(executable.program)
    numbers = ((opcode, part.first_block + block) for opcode, block in structure.rows)
    return tuple((opcode, twins.get(block, block)) for opcode, block in numbers)


def _unlike(executable: Executable, parts: _Parts) -> tuple[str, ...]:
    """Blocks that no one stage has, and twins that are not alike."""
    blocks = executable.program.blocks
    found = [
        part.first_block + block
        for part, structure in parts
        for block in range(len(structure.block_rows))
    ]
    if sorted(found) != list(range(len(blocks))):
        return ("the blocks of the stages are not those of the program",)
    return tuple(
        f"k{block} stands for k{first}, which is a {blocks[first].kind.value}"
        for block, first in matched_blocks_of(executable.program).items()
        if blocks[block].kind is not blocks[first].kind
    )


def _shared(executable: Executable) -> frozenset[int]:
    """The collectives in which several stages take part."""
    whole = [frozenset(stage.ranks.tolist()) for stage in executable.stages]
    return frozenset(
        number
        for number, one in enumerate(executable.program.placeholders)
        if (ranks := participants(one)) and not any(own.issuperset(ranks) for own in whole)
    )


def _way(
    executable: Executable, one: tuple[StagePart, Structure], shared: Collection[int]
) -> list[Event]:
    """What a stage comes to: its control rows, and what it shares where that is triggered."""
    found: list[Event] = []
    triggered = _triggered(one, shared) if shared else {}
    events = own_events(executable, one)
    for stretch in range(len(events) + 1):
        found += [(_COLLECTIVE, number) for number in sorted(triggered.get(stretch, ()))]
        found += events[stretch : stretch + 1]
    return found


def _triggered(
    one: tuple[StagePart, Structure], shared: Collection[int]
) -> Mapping[int, Sequence[int]]:
    """By stretch, the shared collectives that engines trigger there."""
    part, structure = one
    found: dict[int, list[int]] = {}
    for queue in part.executable.queues:
        if isinstance(queue, EngineQueue):
            column = queue.table.placeholder
            rows = np.flatnonzero((column != IDLE) & np.isin(column, list(shared)))
            stretches = structure.phases(queue.engine, rows).tolist()
            for stretch, number in zip(stretches, column[rows].tolist(), strict=True):
                found.setdefault(stretch, []).append(number)
    return found


def _merged(ways: Sequence[deque[Event]]) -> list[Event]:
    """As far as all ways come; what is left of them is where they do not agree."""
    owners = Counter(event for way in ways for event in set(way))
    found: list[Event] = []
    while any(ways):
        for way in ways:
            while way and owners[way[0]] == 1:
                found.append(way.popleft())
        heads = Counter(way[0] for way in ways if way)
        met = next((event for event, count in heads.items() if count == owners[event]), None)
        if met is None:
            break
        found.append(met)
        for way in ways:
            if way and way[0] == met:
                way.popleft()
    return found


def _text(executable: Executable, event: Event) -> str:
    opcode, number = event
    return collective(executable, number) if opcode == _COLLECTIVE else f"{opcode} k{number}"
