"""All ways through the blocks of a program: what each test and case decides, time after time."""

import itertools
from collections.abc import Iterator, Mapping, Sequence

import attrs

from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.neff.isa import CASE, END, LOOP, TEST, Engine
from ncc_runtime.neff.program import BlockKind, Program

MOST_TRIPS = 2
MOST_WAYS = 200

Decided = tuple[tuple[int, bool], ...]
"""Blocks and whether they were gone into, in order."""


class TooManyWaysError(Exception):
    """There are more ways than the checker takes."""


def ways(program: Program) -> list[Mapping[int, tuple[bool, ...]]]:
    """By block, its decisions in order; each loop runs 0 to 2 times whenever it is come to."""
    found = []
    for decided in _of_sequence(_parsed(program)):
        by_block: dict[int, list[bool]] = {block: [] for block in range(len(program.blocks))}
        for block, enters in decided:
            by_block[block].append(enters)
        found.append({block: tuple(enters) for block, enters in by_block.items()})
        if len(found) > MOST_WAYS:
            raise TooManyWaysError(f"more than {MOST_WAYS} ways")
    return found


def ways_by_rank(program: Program) -> list[Sequence[Mapping[int, tuple[bool, ...]]]]:
    """All ways, one for each rank: ranks that no collective in a block ties may part.

    Ranks that collectives of blocks tie, perhaps by way of others, are taken to decide alike at
    every block.
    """
    group_of = list(range(program.ranks))
    for number in _in_blocks(program):
        placeholder = program.placeholders[number]
        for group in placeholder.groups or placeholder.pairs:
            joined = {group_of[rank] for rank in group}
            group_of = [min(joined) if one in joined else one for one in group_of]
    classes = sorted(set(group_of))
    every = ways(program)
    if len(every) ** len(classes) > MOST_WAYS:
        raise TooManyWaysError(f"more than {MOST_WAYS} ways")
    return [
        [chosen[classes.index(one)] for one in group_of]
        for chosen in itertools.product(every, repeat=len(classes))
    ]


def _in_blocks(program: Program) -> set[int]:
    """The collectives that a block repeats or skips."""
    found = set()
    for table in program.queues.values():
        depth = 0
        for row in table:
            depth += (row.opcode in (LOOP, CASE)) - (row.opcode == END)
            if depth and row.placeholder != IDLE:
                found.add(row.placeholder)
    return found


@attrs.define
class _Nested:
    """A loop, or the branches of one conditional, and what stands in them."""

    blocks: list[int]
    before: list["_Nested"] = attrs.field(factory=list)  # of a loop: before its test
    inside: list[list["_Nested"]] = attrs.field(factory=list)  # by block
    branches: int = 0  # of a conditional, of which some may have no block
    places: list[int] = attrs.field(factory=list)  # which branch each block is


def _parsed(program: Program) -> list[_Nested]:
    """The blocks of any queue, since all queues hold the same."""
    table = program.queues[Engine.SYNC]
    rows = [
        (row.opcode, int(program.attributes[row.attribute]["block"]))
        for row in table
        if row.opcode in (LOOP, TEST, CASE, END)
    ]
    return _sequence(program, iter(rows))


def _sequence(program: Program, rows: Iterator[tuple[str, int]]) -> list[_Nested]:
    """Siblings up to the row that ends them."""
    found: list[_Nested] = []
    for opcode, number in rows:
        block = program.blocks[number]
        if opcode in (TEST, END):
            break
        if block.kind is BlockKind.LOOP:
            nested = _Nested([number], before=_sequence(program, rows))
            found.append(nested)
        else:
            nested = found[-1] if found and _continues(program, found[-1], number) else None
            if nested is None:
                nested = _Nested([], branches=block.of)
                found.append(nested)
            nested.blocks.append(number)
            nested.places.append(block.index)
        nested.inside.append(_sequence(program, rows))
    return found


def _continues(program: Program, nested: _Nested, number: int) -> bool:
    """Whether a branch belongs to the conditional before it."""
    if not nested.places:
        return False
    last, block = program.blocks[nested.blocks[-1]], program.blocks[number]
    return last.predicate == block.predicate and last.index < block.index


def _of_sequence(siblings: Sequence[_Nested]) -> Iterator[Decided]:
    for parts in itertools.product(*(list(_of(one)) for one in siblings)):
        yield sum(parts, ())


def _of(nested: _Nested) -> Iterator[Decided]:
    if nested.places:
        yield from _of_conditional(nested)
        return
    block = nested.blocks[0]
    before, inside = (list(_of_sequence(one)) for one in (nested.before, nested.inside[0]))
    for trips in range(MOST_TRIPS + 1):
        for parts in itertools.product(*[before, inside] * trips, before):
            decided: Decided = ()
            for number, part in enumerate(parts):
                decided += part
                if number % 2 == 0:
                    decided += ((block, number < 2 * trips),)
            yield decided


def _of_conditional(nested: _Nested) -> Iterator[Decided]:
    for chosen in range(nested.branches):
        options = [
            [((block, True), *inner) for inner in _of_sequence(inside)]
            if place == chosen
            else [((block, False),)]
            for block, place, inside in zip(
                nested.blocks, nested.places, nested.inside, strict=True
            )
        ]
        for parts in itertools.product(*options):
            yield sum(parts, ())
