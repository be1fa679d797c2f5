"""Several programs of one world, each on its own ranks: pipeline stages.

A stage is a program and the ranks that run it. Joining stages (`joined`) gives them one numbering
of buffers, tensors, placeholders and all else; a collective that takes in ranks of several stages
is one placeholder. Addresses and semaphores stay those of each stage's own program, since no rank
runs two of them. A program alone is one stage of all ranks.
"""

import heapq
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.errors import MismatchError
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import (
    ArrayInfo,
    AttributeValue,
    BufferId,
    FusedInstr,
    Origin,
    Program,
    TensorId,
)
from ncc_runtime.neff.shared.groups import Groups
from ncc_runtime.neff.table import NONE, InstrTable


@attrs.frozen(eq=False)
class Stage:
    """A program and the ranks that run it."""

    program: Program
    ranks: np.ndarray  # (r,) int32, ascending
    label: str = ""  # its name in messages
    buffers: range = attrs.field()  # its own, among those of the program

    @buffers.default
    def _all_buffers(self) -> range:
        return range(len(self.program.buffers))

    @property
    def rows(self) -> slice | np.ndarray:
        """Its ranks as an index: consecutive ones as a slice, which makes views."""
        first, last = int(self.ranks[0]), int(self.ranks[-1])
        return slice(first, last + 1) if last - first + 1 == len(self.ranks) else self.ranks

    def groups_with_own_ranks(self, placeholder: Placeholder) -> Groups:
        """The groups of a collective that name a rank of the stage, of a permute the pairs."""
        ranks = set(self.ranks.tolist())
        groups = placeholder.pairs if is_permute(placeholder) else placeholder.groups
        return tuple(group for group in groups if ranks.intersection(group))


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
    matched_blocks: Mapping[int, int] = attrs.field(factory=dict)
    """A block → the same loop or branch of a stage before, around collectives that they share."""


def stages_of(program: Program) -> tuple[Stage, ...]:
    """The stages of a program; of a program alone the only one."""
    if isinstance(program, JointProgram):
        return program.stages
    return (Stage(program, np.arange(program.ranks, dtype=np.int32), program.name),)


def collective_origins(program: Program) -> tuple[Origin, ...]:
    """Where every collective comes from, by placeholder; a shared one as in its first stage."""
    origins: dict[int, Origin] = {}
    for stage in stages_of(program):
        for table in stage.program.queues.values():
            for row in np.flatnonzero((table.placeholder != NONE) & (table.origin != NONE)):
                number = int(table.placeholder[row])
                origins.setdefault(number, stage.program.origins[int(table.origin[row])])
    return tuple(
        origins.get(number, Origin(placeholder.name))
        for number, placeholder in enumerate(program.placeholders)
    )


def matched_blocks_of(program: Program) -> Mapping[int, int]:
    """Blocks that are a block of a stage before, each with that; {} of a program alone."""
    return program.matched_blocks if isinstance(program, JointProgram) else {}


def ranks_text(ranks: Sequence[int]) -> str:
    """Ascending numbers, such as ranks, with consecutive ones joined: `0-3,8`."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][1] + 1:
            runs[-1][1] = rank
        else:
            runs.append([rank, rank])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in runs)


Place = tuple[int, int]
"""A stage, and a number in its own program."""

Collective = Mapping[int, int]
"""A collective by stage: its number in the stage's own program."""

REGIONS = ("region", "scatter_region", "select_region")
"""Attributes that are numbers of regions."""


def joined(
    stages: Sequence[Stage], shared: Sequence[Collective], matched_blocks: Mapping[Place, Place]
) -> JointProgram:
    """The stages as one program.

    `shared` are the collectives in which several stages take part. `matched_blocks` are blocks
    around them that are one loop or branch: each with that of a stage before it. MismatchError if
    no order of the collectives agrees with that of every stream.
    """
    offsets = _offsets([stage.program for stage in stages])
    collectives = _in_order(stages, shared)
    programs = [
        _renumbered(
            stage.program,
            offset,
            {by_stage[number]: k for k, by_stage in enumerate(collectives) if number in by_stage},
        )
        for number, (stage, offset) in enumerate(zip(stages, offsets, strict=True))
    ]
    joint = JointProgram(
        name=" + ".join(program.name for program in programs),
        replica_count=programs[0].replica_count,
        num_partitions=programs[0].num_partitions,
        hbm_bytes=max(program.hbm_bytes for program in programs),
        buffers=tuple(row for program in programs for row in program.buffers),
        tensors=tuple(row for program in programs for row in program.tensors),
        inputs=tuple(row for program in programs for row in program.inputs),
        outputs=tuple(row for program in programs for row in program.outputs),
        constants={key: data for program in programs for key, data in program.constants.items()},
        regions=tuple(row for program in programs for row in program.regions),
        attributes=tuple(row for program in programs for row in program.attributes),
        fusions=tuple(row for program in programs for row in program.fusions),
        semaphores=max((program.semaphores for program in programs), key=len),
        placeholders=tuple(_placeholder(stages, programs, by_stage) for by_stage in collectives),
        queues={},
        origins=tuple(row for program in programs for row in program.origins),
        blocks=tuple(row for program in programs for row in program.blocks),
        parameters=tuple(
            program.parameter(number)
            for program in programs
            for number in range(len(program.inputs))
        ),
        results=tuple(
            program.result(number) for program in programs for number in range(len(program.outputs))
        ),
        shardings=tuple(row for program in programs for row in program.shardings),
        aliases=tuple(
            (output + offset.outputs, number + offset.inputs)
            for program, offset in zip(programs, offsets, strict=True)
            for output, number in program.aliases
        ),
        matched_blocks={
            offsets[stage].blocks + block: offsets[first].blocks + match
            for (stage, block), (first, match) in matched_blocks.items()
        },
    )
    parts = (
        attrs.evolve(
            stage,
            program=_of_stage(joint, programs[number], collectives, number),
            buffers=range(offset.buffers, offset.buffers + len(programs[number].buffers)),
        )
        for number, (stage, offset) in enumerate(zip(stages, offsets, strict=True))
    )
    return attrs.evolve(joint, stages=tuple(parts))


@attrs.frozen
class _Offsets:
    """The first number of each kind of row of one stage: the rows of the stages before it."""

    buffers: int = 0
    tensors: int = 0
    regions: int = 0
    fusions: int = 0
    attributes: int = 0
    origins: int = 0
    blocks: int = 0
    shardings: int = 0
    inputs: int = 0
    outputs: int = 0


def _offsets(programs: Sequence[Program]) -> list[_Offsets]:
    offsets = [_Offsets()]
    for program in programs:
        counts = {
            field.name: getattr(offsets[-1], field.name) + len(getattr(program, field.name))
            for field in attrs.fields(_Offsets)
        }
        offsets.append(_Offsets(**counts))
    return offsets[:-1]


def _in_order(stages: Sequence[Stage], shared: Sequence[Collective]) -> tuple[Collective, ...]:
    """The collectives in an order that keeps that of every stream: a topological sort (Kahn 1962).

    Of those that may come next, the lowest number in its first stage is taken.
    """
    collective_at = {place: by_stage for by_stage in shared for place in by_stage.items()}
    collectives: dict[Place, Collective] = {}  # by place in the first stage that has it
    waits_for: dict[Place, int] = {}  # how many in front of it are not yet in the order
    successors: dict[Place, list[Place]] = {}
    for at, stage in enumerate(stages):
        latest: dict[int, Place] = {}  # by stream
        for number, placeholder in enumerate(stage.program.placeholders):
            by_stage = collective_at.get((at, number), {at: number})
            first = min(by_stage.items())
            collectives[first] = by_stage
            waits_for.setdefault(first, 0)
            if placeholder.stream in latest:
                successors.setdefault(latest[placeholder.stream], []).append(first)
                waits_for[first] += 1
            latest[placeholder.stream] = first
    ready = [(number, at) for (at, number), count in waits_for.items() if not count]
    heapq.heapify(ready)
    order = []
    while ready:
        number, at = heapq.heappop(ready)
        order.append(collectives[at, number])
        for successor in successors.get((at, number), ()):
            waits_for[successor] -= 1
            if not waits_for[successor]:
                heapq.heappush(ready, successor[::-1])
    if len(order) < len(collectives):
        raise MismatchError("shared collectives have no order that all programs keep")
    return tuple(order)


def _renumbered(program: Program, offset: _Offsets, joint: Mapping[int, int]) -> Program:
    """A program in the joint numbering, but for its semaphores.

    `joint` has the joint number of each of its placeholders.
    """
    placeholders = (
        attrs.evolve(
            placeholder,
            operands=tuple(tensor + offset.tensors for tensor in placeholder.operands),
            results=tuple(tensor + offset.tensors for tensor in placeholder.results),
            counts=tuple(tensor + offset.tensors for tensor in placeholder.counts),
        )
        for placeholder in program.placeholders
    )
    tensors = (
        attrs.evolve(tensor, buffer=BufferId(tensor.buffer + offset.buffers))
        for tensor in program.tensors
    )

    def renumbered(info: ArrayInfo) -> ArrayInfo:
        if info.sharding is None:
            return info
        return attrs.evolve(info, sharding=info.sharding + offset.shardings)

    shift = {
        "block": offset.blocks,
        "fusion": offset.fusions,
        **dict.fromkeys(REGIONS, offset.regions),
    }

    def shifted(attributes: Mapping[str, AttributeValue]) -> Mapping[str, AttributeValue]:
        return {
            name: value + shift[name] if name in shift and isinstance(value, int) else value
            for name, value in attributes.items()
        }

    def fused(row: FusedInstr) -> FusedInstr:
        origin = row.origin if row.origin == NONE else row.origin + offset.origins
        return attrs.evolve(row, attributes=shifted(row.attributes), origin=origin)

    return attrs.evolve(
        program,
        tensors=tuple(tensors),
        inputs=tuple(TensorId(tensor + offset.tensors) for tensor in program.inputs),
        outputs=tuple(TensorId(tensor + offset.tensors) for tensor in program.outputs),
        constants={BufferId(key + offset.buffers): data for key, data in program.constants.items()},
        attributes=tuple(map(shifted, program.attributes)),
        fusions=tuple(
            attrs.evolve(fusion, body=tuple(map(fused, fusion.body))) for fusion in program.fusions
        ),
        placeholders=tuple(placeholders),
        queues={engine: _table(table, offset, joint) for engine, table in program.queues.items()},
        blocks=tuple(
            attrs.evolve(block, predicate=TensorId(block.predicate + offset.tensors))
            for block in program.blocks
        ),
        parameters=tuple(map(renumbered, program.parameters)),
        results=tuple(map(renumbered, program.results)),
    )


def _table(table: InstrTable, offset: _Offsets, joint: Mapping[int, int]) -> InstrTable:
    # NONE is -1: as an index it finds the last entry, which is NONE again
    renumbered = np.array([joint[number] for number in sorted(joint)] + [NONE], np.int32)
    columns = {
        "tensors": table.tensors + np.int32(offset.tensors),
        "attribute": _shifted(table.attribute, offset.attributes),
        "origin": _shifted(table.origin, offset.origins),
        "placeholder": renumbered[table.placeholder],
    }
    for column in columns.values():
        column.setflags(write=False)
    return attrs.evolve(table, **columns)


def _shifted(column: np.ndarray, offset: int) -> np.ndarray:
    return np.where(column == NONE, NONE, column + offset).astype(column.dtype)


def _placeholder(
    stages: Sequence[Stage], programs: Sequence[Program], by_stage: Collective
) -> JointPlaceholder:
    """A collective as its first stage has it, over the groups of all ranks that take part."""
    sides = [
        (stages[stage], programs[stage].placeholders[number])
        for stage, number in sorted(by_stage.items())
    ]
    groups = dict.fromkeys(
        group for stage, placeholder in sides for group in stage.groups_with_own_ranks(placeholder)
    )
    first = sides[0][1]
    fields = {field.name: getattr(first, field.name) for field in attrs.fields(type(first))}
    fields["pairs" if is_permute(first) else "groups"] = tuple(groups)
    ranks = np.sort(np.concatenate([stage.ranks for stage, _ in sides]))
    return JointPlaceholder(**fields, ranks=tuple(ranks.tolist()))


def _of_stage(
    joint: Program, program: Program, collectives: Sequence[Collective], stage: int
) -> Program:
    """The program of one stage, with the tables of the joint program."""
    placeholders = list(joint.placeholders)
    for number, by_stage in enumerate(collectives):
        if stage in by_stage:
            placeholder = program.placeholders[by_stage[stage]]
            placeholders[number] = attrs.evolve(
                placeholders[number],
                operands=placeholder.operands,
                results=placeholder.results,
                counts=placeholder.counts,
                in_place=placeholder.in_place,
                channel_id=placeholder.channel_id,
                name=placeholder.name,
            )
    return attrs.evolve(
        program,
        buffers=joint.buffers,
        tensors=joint.tensors,
        regions=joint.regions,
        fusions=joint.fusions,
        attributes=joint.attributes,
        placeholders=tuple(placeholders),
        origins=joint.origins,
        blocks=joint.blocks,
        shardings=joint.shardings,
    )
