"""The collectives that programs of one world share, as each of them sees them.

A call is a collective of one stage that takes in ranks of others. Calls of the same ranks on the
same stream meet one another in the order of their programs: the n-th meets the n-th.
"""

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.neff.isa import ENGINES, LOOP, TEST
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import Block, BlockKind, Origin, Program
from ncc_runtime.neff.stages import Stage, is_permute
from ncc_runtime.neff.structure import ControlRow, control_rows
from ncc_runtime.neff.table import NONE

Who = frozenset[int]
"""The ranks of a group, or of a pair of ranks of a permute."""

Members = tuple[int, ...] | tuple[tuple[int, int], ...]
"""A group in its order; of a permute the pairs between two ranks."""


@attrs.frozen
class Level:
    """A block around a collective, and which part of it."""

    block: int
    is_decided: bool  # behind `test` or `case`; before it is the condition of a loop


@attrs.frozen(eq=False)
class Call:
    """A collective of a stage that takes in ranks of others."""

    stage: int
    number: int
    placeholder: Placeholder
    elements: tuple[int, ...]  # of its operands; of variable size, of all its tensors
    groups: Mapping[Who, Members]  # those that take in ranks of others
    nest: tuple[Level, ...]  # outermost first
    origin: Origin | None

    @property
    def text(self) -> str:
        """Its name, and its line where that is known."""
        place = self.origin.place if self.origin is not None else ""
        name = self.placeholder.name or self.placeholder.op.value
        return f"{name} at {place}" if place else name


Meeting = Mapping[int, Call]
"""Calls that are one collective, by stage."""


def calls_of(stages: Sequence[Stage]) -> tuple[tuple[Call, ...], ...]:
    """The calls of every stage, in the order of its program."""
    return tuple(tuple(_calls(number, stage)) for number, stage in enumerate(stages))


def _calls(number: int, stage: Stage) -> Iterator[Call]:
    program = stage.program
    known: dict[object, Mapping[Who, Members]] = {}  # many placeholders share their groups
    triggers: Mapping[int, _Trigger] | None = None
    for position, placeholder in enumerate(program.placeholders):
        key = placeholder.groups, placeholder.pairs
        if key not in known:
            known[key] = _spanning(stage, placeholder)
        if known[key]:
            triggers = triggers if triggers is not None else _triggers(program)
            trigger = triggers[position]
            yield Call(
                stage=number,
                number=position,
                placeholder=placeholder,
                elements=tuple(program.tensors[one].elements for one in _sized(placeholder)),
                groups=known[key],
                nest=trigger.nest,
                origin=program.origins[trigger.origin] if trigger.origin != NONE else None,
            )


def _sized(placeholder: Placeholder) -> tuple[int, ...]:
    """The tensors that must be as large in all programs."""
    if placeholder.op.is_counted:
        return (*placeholder.operands, *placeholder.results, *placeholder.counts)
    return placeholder.operands


def _spanning(stage: Stage, placeholder: Placeholder) -> Mapping[Who, Members]:
    own = set(stage.ranks.tolist())
    found: dict[Who, Members] = {}
    for group in stage.groups_with_own_ranks(placeholder):
        who = frozenset(group)
        if own.issuperset(who):
            continue
        if is_permute(placeholder):
            both = {(group[0], group[1]), *found.get(who, ())}
            found[who] = tuple(sorted(both))
        else:
            found[who] = group
    return found


@attrs.frozen
class _Trigger:
    """Where a placeholder is triggered."""

    nest: tuple[Level, ...]
    origin: int


def _triggers(program: Program) -> Mapping[int, _Trigger]:
    found: dict[int, _Trigger] = {}
    for engine in ENGINES:
        table = program.queues[engine]
        marks = {row.pc: row for row in control_rows(program, table)}
        numbers = np.flatnonzero(table.placeholder != NONE).tolist()
        nest: list[Level] = []
        for pc in sorted({*marks, *numbers}):
            if pc in marks:
                _follow(nest, marks[pc])
            else:
                number, origin = int(table.placeholder[pc]), int(table.origin[pc])
                found[number] = _Trigger(tuple(nest), origin)
    return found


def _follow(nest: list[Level], row: ControlRow) -> None:
    """Open, decide or close a block."""
    if row.opcode == TEST:
        nest[-1] = Level(row.block, is_decided=True)
    elif nest and nest[-1].block == row.block:
        nest.pop()
    else:
        nest.append(Level(row.block, is_decided=row.opcode != LOOP))


def block_text(block: Block, level: Level) -> str:
    """A block as people read it."""
    if block.kind is BlockKind.CASE:
        return f"branch {block.index} of {block.of} of {block.name}"
    trips = "" if block.trip_count is None else f" ({block.trip_count} trips)"
    return f"{'' if level.is_decided else 'the condition of '}loop {block.name}{trips}"


def members_text(members: Sequence[object]) -> str:
    """A group, or pairs, as a program writes them."""
    words = (f"{{{one[0]},{one[1]}}}" if isinstance(one, tuple) else str(one) for one in members)
    return f"{{{','.join(words)}}}"
