"""Several programs of one world, each on its own ranks: pipeline stages.

A stage is a program and the ranks that run it. Joining stages (`joined`) gives them one numbering
of buffers, tensors, placeholders and all else; a collective that takes in ranks of several stages
is one placeholder. Addresses and semaphores stay those of each stage's own program, since no rank
runs two of them. A program alone is one stage of all ranks.
"""

import heapq
import itertools
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.errors import MismatchError
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import AttributeValue, BufferId, Program, TensorId
from ncc_runtime.neff.shared.groups import Groups
from ncc_runtime.neff.table import NONE, InstrTable


@attrs.frozen(eq=False)
class Stage:
    """A program and who runs it."""

    program: Program
    ranks: np.ndarray  # (r,) int32, ascending
    label: str = ""  # what messages call it

    @property
    def rows(self) -> slice | np.ndarray:
        """Its ranks as an index: consecutive ones as a slice, which makes views."""
        first, last = int(self.ranks[0]), int(self.ranks[-1])
        return slice(first, last + 1) if last - first + 1 == len(self.ranks) else self.ranks

    def groups_with_own_ranks(self, placeholder: Placeholder) -> Groups:
        """The groups of a collective that name a rank of the stage, of a permute the pairs."""
        own = set(self.ranks.tolist())
        found = placeholder.pairs if is_permute(placeholder) else placeholder.groups
        return tuple(group for group in found if own.intersection(group))


def is_permute(placeholder: Placeholder) -> bool:
    """Whether it has pairs instead of groups."""
    return placeholder.op is CollectiveOp.PERMUTE


@attrs.frozen
class JointPlaceholder(Placeholder):
    """A collective of joined stages: groups and pairs are those of the ranks that take part."""

    ranks: tuple[int, ...] = ()  # ascending


def participants(placeholder: Placeholder) -> tuple[int, ...] | None:
    """The ranks that take part in a collective; None: all ranks."""
    return placeholder.ranks if isinstance(placeholder, JointPlaceholder) else None


@attrs.frozen
class JointProgram(Program):
    """Joined stages as one program; its queues and semaphores are those of the stages.

    The program of each stage numbers everything as this one does, but for semaphores, which are a
    rank's own; its placeholders say where operands and results lie on its ranks. `inputs` and
    `outputs` are those of all stages, one stage after the other.
    """

    stages: tuple[Stage, ...] = ()
    twins: Mapping[int, int] = attrs.field(factory=dict)  # block → the same one of a stage before


def stages_of(program: Program) -> tuple[Stage, ...]:
    """The stages of a program; of a program alone the only one."""
    if isinstance(program, JointProgram):
        return program.stages
    return (Stage(program, np.arange(program.ranks, dtype=np.int32), program.name),)


def twins_of(program: Program) -> Mapping[int, int]:
    """Blocks that stand for a block of a stage before, around collectives that they share."""
    return program.twins if isinstance(program, JointProgram) else {}


def ranks_text(ranks: Sequence[int]) -> str:
    """Ranks as people write them: `0-3,8`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


Place = tuple[int, int]
"""A stage, and a number in its own program."""

REGIONS = ("region", "scatter_region", "select_region")
"""Attributes that are numbers of regions."""


def joined(
    stages: Sequence[Stage], shared: Sequence[Mapping[int, int]], twins: Mapping[Place, Place]
) -> JointProgram:
    """The stages as one program.

    `shared` are the collectives that stages share: by stage, the number there. `twins` are blocks
    around them that are one loop or branch: each with that of a stage before it.
    """
    programs = [stage.program for stage in stages]
    bases = _bases(programs)
    places = _places(stages, shared)
    moved = [
        _moved(
            program, base, {its[stage]: number for number, its in enumerate(places) if stage in its}
        )
        for stage, (program, base) in enumerate(zip(programs, bases, strict=True))
    ]
    tensors = tuple(itertools.chain.from_iterable(one.tensors for one in moved))
    whole = JointProgram(
        name=" + ".join(one.name for one in moved),
        replica_count=moved[0].replica_count,
        num_partitions=moved[0].num_partitions,
        hbm_bytes=max(one.hbm_bytes for one in moved),
        buffers=tuple(itertools.chain.from_iterable(one.buffers for one in moved)),
        tensors=tensors,
        inputs=tuple(itertools.chain.from_iterable(one.inputs for one in moved)),
        outputs=tuple(itertools.chain.from_iterable(one.outputs for one in moved)),
        constants={key: data for one in moved for key, data in one.constants.items()},
        regions=tuple(itertools.chain.from_iterable(one.regions for one in moved)),
        attributes=tuple(itertools.chain.from_iterable(one.attributes for one in moved)),
        semaphores=max((one.semaphores for one in moved), key=len),
        placeholders=tuple(_placeholder(stages, moved, its) for its in places),
        queues={},
        origins=tuple(itertools.chain.from_iterable(one.origins for one in moved)),
        blocks=tuple(itertools.chain.from_iterable(one.blocks for one in moved)),
        parameters=tuple(
            one.parameter(number) for one in moved for number in range(len(one.inputs))
        ),
        shardings=tuple(itertools.chain.from_iterable(one.shardings for one in moved)),
        twins={
            bases[stage].blocks + block: bases[other].blocks + twin
            for (stage, block), (other, twin) in twins.items()
        },
    )
    parts = (
        attrs.evolve(stage, program=_own(whole, moved[number], places, number))
        for number, stage in enumerate(stages)
    )
    return attrs.evolve(whole, stages=tuple(parts))


@attrs.frozen
class _Base:
    """How many of everything the stages before have."""

    buffers: int = 0
    tensors: int = 0
    regions: int = 0
    attributes: int = 0
    origins: int = 0
    blocks: int = 0
    shardings: int = 0


def _bases(programs: Sequence[Program]) -> list[_Base]:
    found = [_Base()]
    for program in programs:
        counts = {
            field.name: getattr(found[-1], field.name) + len(getattr(program, field.name))
            for field in attrs.fields(_Base)
        }
        found.append(_Base(**counts))
    return found[:-1]


def _places(
    stages: Sequence[Stage], shared: Sequence[Mapping[int, int]]
) -> tuple[Mapping[int, int], ...]:
    """The collectives in an order that keeps that of every stream: by stage, the number there."""
    partners = {place: one for one in shared for place in one.items()}
    before: dict[Place, int] = {}  # by first place of a collective, what it waits for
    behind: dict[Place, list[Place]] = {}
    whole: dict[Place, Mapping[int, int]] = {}
    for stage, its in enumerate(stages):
        latest: dict[int, Place] = {}
        for number, placeholder in enumerate(its.program.placeholders):
            one = partners.get((stage, number), {stage: number})
            first = min(one.items())
            whole[first] = one
            before.setdefault(first, 0)
            if placeholder.stream in latest:
                behind.setdefault(latest[placeholder.stream], []).append(first)
                before[first] += 1
            latest[placeholder.stream] = first
    ready = [(number, stage) for (stage, number), count in before.items() if not count]
    heapq.heapify(ready)
    found = []
    while ready:
        number, stage = heapq.heappop(ready)
        found.append(whole[stage, number])
        for other in behind.get((stage, number), ()):
            before[other] -= 1
            if not before[other]:
                heapq.heappush(ready, other[::-1])
    if len(found) < len(whole):
        raise MismatchError("shared collectives have no order that all programs keep")
    return tuple(found)


def _moved(program: Program, base: _Base, numbers: Mapping[int, int]) -> Program:
    """A program with the numbers of the whole, but for its semaphores."""
    placeholders = (
        attrs.evolve(
            one,
            operands=tuple(tensor + base.tensors for tensor in one.operands),
            results=tuple(tensor + base.tensors for tensor in one.results),
            counts=tuple(tensor + base.tensors for tensor in one.counts),
        )
        for one in program.placeholders
    )
    return attrs.evolve(
        program,
        tensors=tuple(
            attrs.evolve(one, buffer=BufferId(one.buffer + base.buffers)) for one in program.tensors
        ),
        inputs=tuple(TensorId(one + base.tensors) for one in program.inputs),
        outputs=tuple(TensorId(one + base.tensors) for one in program.outputs),
        constants={BufferId(key + base.buffers): data for key, data in program.constants.items()},
        attributes=tuple(_attributes(one, base) for one in program.attributes),
        placeholders=tuple(placeholders),
        queues={engine: _table(table, base, numbers) for engine, table in program.queues.items()},
        blocks=tuple(
            attrs.evolve(one, predicate=TensorId(one.predicate + base.tensors))
            for one in program.blocks
        ),
        parameters=tuple(
            one
            if one.sharding is None
            else attrs.evolve(one, sharding=one.sharding + base.shardings)
            for one in program.parameters
        ),
    )


def _attributes(row: Mapping[str, AttributeValue], base: _Base) -> Mapping[str, AttributeValue]:
    more = {"block": base.blocks, **dict.fromkeys(REGIONS, base.regions)}
    return {
        name: value + more[name] if name in more and isinstance(value, int) else value
        for name, value in row.items()
    }


def _table(table: InstrTable, base: _Base, numbers: Mapping[int, int]) -> InstrTable:
    renumbered = np.array([numbers[n] for n in sorted(numbers)] + [NONE], np.int32)
    columns = {
        "tensors": table.tensors + np.int32(base.tensors),
        "attribute": _plus(table.attribute, base.attributes),
        "origin": _plus(table.origin, base.origins),
        "placeholder": renumbered[table.placeholder],
    }
    for column in columns.values():
        column.setflags(write=False)
    return attrs.evolve(table, **columns)


def _plus(column: np.ndarray, more: int) -> np.ndarray:
    return np.where(column == NONE, NONE, column + more).astype(column.dtype)


def _placeholder(
    stages: Sequence[Stage], moved: Sequence[Program], its: Mapping[int, int]
) -> JointPlaceholder:
    """A collective as its first stage has it, over the groups of all who take part."""
    sides = [
        (stages[stage], moved[stage].placeholders[number]) for stage, number in sorted(its.items())
    ]
    groups = dict.fromkeys(
        group for stage, one in sides for group in stage.groups_with_own_ranks(one)
    )
    first = sides[0][1]
    fields = {field.name: getattr(first, field.name) for field in attrs.fields(type(first))}
    fields["pairs" if is_permute(first) else "groups"] = tuple(groups)
    ranks = np.sort(np.concatenate([stage.ranks for stage, _ in sides]))
    return JointPlaceholder(**fields, ranks=tuple(ranks.tolist()))


def _own(whole: Program, own: Program, places: Sequence[Mapping[int, int]], stage: int) -> Program:
    """The program of one stage, in the numbers of the whole."""
    placeholders = list(whole.placeholders)
    for number, its in enumerate(places):
        if stage in its:
            mine = own.placeholders[its[stage]]
            placeholders[number] = attrs.evolve(
                placeholders[number],
                operands=mine.operands,
                results=mine.results,
                counts=mine.counts,
                in_place=mine.in_place,
                channel_id=mine.channel_id,
                name=mine.name,
            )
    return attrs.evolve(
        own,
        buffers=whole.buffers,
        tensors=whole.tensors,
        regions=whole.regions,
        attributes=whole.attributes,
        placeholders=tuple(placeholders),
        origins=whole.origins,
        blocks=whole.blocks,
        shardings=whole.shardings,
    )
