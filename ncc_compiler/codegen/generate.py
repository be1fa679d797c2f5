"""The back end: a canonical graph to the program of a `.neff`, and its bytes.

`generate` runs the stages in order: lower to steps, write outputs over donated inputs, find the
waits, alias and place buffers, and `emit`, which puts them together as tables of instructions,
semaphores and placeholders.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import attrs

from ncc_compiler.codegen.buffers import alias_in_place_collectives
from ncc_compiler.codegen.donations import with_donations
from ncc_compiler.codegen.lower import lower
from ncc_compiler.codegen.lowered import ControlStep, LoweredFusion, LoweredProgram, ProgramStep
from ncc_compiler.codegen.order import Barrier, Order, Point, in_order, order_steps
from ncc_compiler.codegen.placement import BufferPlacement
from ncc_compiler.diagnostics import InternalError
from ncc_compiler.ir.graph import Module
from ncc_runtime.neff import check, container
from ncc_runtime.neff.isa import ENGINES, WAIT, Engine
from ncc_runtime.neff.memory import memory_of, memory_text
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import (
    AttributeValue,
    Buffer,
    BufferId,
    Fusion,
    Origin,
    Program,
    Semaphore,
    Tensor,
    TensorId,
)
from ncc_runtime.neff.shared.identity_memo import IdentityMemo
from ncc_runtime.neff.table import NONE, Instr, InstrTable


class _Stages:
    """A lowered program with its order and its placement."""

    def __init__(self, lowered: LoweredProgram) -> None:
        self.lowered = with_donations(lowered)
        self.order = order_steps(self.lowered)
        self.aliases = alias_in_place_collectives(self.lowered, self.order)
        self.placement = BufferPlacement(self.lowered, self.order, self.aliases)


_STAGES = IdentityMemo[Module, _Stages]()


def _stages_of(module: Module) -> _Stages:
    """The stages by what the module's text says, which passes ask before code is generated."""
    stages = _STAGES.get(module)
    if stages is None:
        stages = _Stages(lower(module))
        _STAGES.set(module, stages)
    return stages


def emit(lowered: LoweredProgram, stages: _Stages) -> Program:
    """The program; buffers in the memory of another one are gone from it."""
    alias_of, order = stages.aliases.alias_of, stages.order
    addresses = stages.placement.addresses()
    kept = [
        (index, buffer) for index, buffer in enumerate(lowered.buffers) if alias_of[index] == index
    ]
    number = {index: BufferId(row) for row, (index, _) in enumerate(kept)}
    queues = _Queues(lowered, order, stages.aliases.steps)
    fusions = tuple(map(queues.fusion, lowered.fusions))
    return Program(
        name=lowered.name,
        replica_count=lowered.replica_count,
        num_partitions=lowered.num_partitions,
        hbm_bytes=stages.placement.hbm_bytes,
        buffers=tuple(
            Buffer(buffer.name, buffer.kind, buffer.size_bytes, addresses[index])
            for index, buffer in kept
        ),
        tensors=tuple(
            Tensor(
                tensor.name, number[alias_of[tensor.buffer]], tensor.type.dtype, tensor.type.shape
            )
            for tensor in lowered.tensors
        ),
        inputs=tuple(map(TensorId, lowered.inputs)),
        outputs=tuple(map(TensorId, lowered.outputs)),
        constants={number[index]: buffer.data for index, buffer in kept if buffer.data is not None},
        regions=lowered.regions,
        attributes=tuple(queues.attributes),
        semaphores=queues.semaphores.rows,
        placeholders=tuple(queues.placeholders),
        queues={engine: InstrTable.from_rows(queues.rows[engine]) for engine in ENGINES},
        origins=tuple(queues.origins),
        blocks=lowered.blocks,
        parameters=lowered.parameters,
        shardings=lowered.shardings,
        aliases=lowered.aliases,
        results=lowered.results,
        fusions=fusions,
    )


def _awaited(order: Order) -> Iterator[Point]:
    """The points that must be posted, some of them more than once.

    Every row of control flow of the four engines that Sync gathers is one. After a jump Sync waits
    for the last increment before it, which must be that of the row that jumped.
    """
    for waits in order.waits:
        yield from waits
    for barrier in order.barriers:
        yield from barrier.gather
        if barrier.gathered is not None and any(barrier.waits):
            yield barrier.gathered
        yield from (row for row in barrier.rows if ENGINES[row.queue] is not Engine.SYNC)


class _Semaphores:
    """One counter for every engine that a queue waits for, and one for every stream."""

    def __init__(self, order: Order) -> None:
        awaited: list[set[int]] = [set() for _ in range(order.queues)]
        for point in _awaited(order):
            awaited[point.queue].add(point.count)
        names = [engine.value for engine in ENGINES] + [f"stream {id_}" for id_ in order.streams]
        used = [q for q in range(order.queues) if q >= len(ENGINES) or awaited[q]]
        self.rows = tuple(
            Semaphore(names[queue].lower().replace(" ", ""), names[queue]) for queue in used
        )
        self._number = {queue: row for row, queue in enumerate(used)}
        self._value = [
            {count: value for value, count in enumerate(sorted(counts), start=1)}
            for counts in awaited
        ]

    def wait(self, point: Point) -> tuple[int, int]:
        """The semaphore and the value that it has once the point is reached."""
        if point.queue >= len(ENGINES):  # a stream posts every one of its collectives
            return self._number[point.queue], point.count
        return self._number[point.queue], self._value[point.queue][point.count]

    def post(self, point: Point) -> int:
        """The semaphore that an engine increments at this point, or NONE."""
        awaited = point.queue < len(ENGINES) and point.count in self._value[point.queue]
        return self._number[point.queue] if awaited else NONE


class _Queues:
    """The rows of every queue, and the tables that they point into."""

    def __init__(self, lowered: LoweredProgram, order: Order, in_place: frozenset[int]) -> None:
        self.semaphores = _Semaphores(order)
        self.rows: Mapping[Engine, list[Instr]] = {engine: [] for engine in ENGINES}
        self.attributes: list[Mapping[str, AttributeValue]] = []
        self.placeholders: list[Placeholder] = []
        self.origins: list[Origin] = []
        self._attribute_rows: dict[tuple[tuple[str, AttributeValue], ...], int] = {}
        self._origin_rows: dict[Origin, int] = {}
        for buffer in lowered.buffers:
            if buffer.origin is not None:
                self._origin(buffer.origin)
        barriers, number = iter(order.barriers), itertools.count()
        for item in in_order(lowered):
            if isinstance(item, ControlStep):
                self._add_control_rows(item, next(barriers))
                continue
            index = next(number)
            self._add_instruction(item, order.waits[index], order.done[index], index in in_place)

    def _add_control_rows(self, control_step: ControlStep, barrier: Barrier) -> None:
        """The rows of a barrier, and the row of control flow behind it in every queue."""
        origin = self._origin(control_step.origin)
        attribute = self._attribute({"block": control_step.block})
        gather = [self._wait_row(point, origin) for point in barrier.gather]
        if gather and barrier.gathered is not None:
            gather[-1] = attrs.evolve(gather[-1], post_sem=self.semaphores.post(barrier.gathered))
        self.rows[Engine.SYNC].extend(gather)
        for engine, waits, done in zip(ENGINES, barrier.waits, barrier.rows, strict=True):
            row = Instr(
                control_step.opcode,
                attribute=attribute,
                post_sem=self.semaphores.post(done),
                origin=origin,
            )
            if waits and barrier.gathered is not None:
                semaphore, value = self.semaphores.wait(barrier.gathered)
                row = attrs.evolve(row, wait_sem=semaphore, wait_value=value)
            self.rows[engine].append(row)

    def _wait_row(self, point: Point, origin: int) -> Instr:
        semaphore, value = self.semaphores.wait(point)
        return Instr(WAIT, wait_sem=semaphore, wait_value=value, origin=origin)

    def _add_instruction(
        self, step: ProgramStep, points: tuple[Point, ...], done: Point, in_place: bool
    ) -> None:
        """The instruction; it carries its last wait, earlier ones are instructions before it."""
        origin, queue = self._origin(step.origin), self.rows[step.engine]
        queue.extend(self._wait_row(point, origin) for point in points[:-1])
        semaphore, value = self.semaphores.wait(points[-1]) if points else (NONE, 0)
        placeholder, is_trigger = NONE, step.collective is not None
        if step.collective is not None:
            placeholder = len(self.placeholders)
            self.placeholders.append(attrs.evolve(step.collective, in_place=in_place))
        queue.append(
            Instr(
                opcode=step.opcode,
                results=() if is_trigger else step.results,
                operands=() if is_trigger else step.operands,
                attribute=self._attribute(step.attributes),
                placeholder=placeholder,
                wait_sem=semaphore,
                wait_value=value,
                post_sem=self.semaphores.post(done),
                origin=origin,
                flops=step.costs.flops,
                elements=step.costs.elements,
                bytes_in=step.costs.bytes_in,
                bytes_out=step.costs.bytes_out,
            )
        )

    def fusion(self, lowered: LoweredFusion) -> Fusion:
        """The fusion with its rows' origins among those of the program."""
        body = (
            attrs.evolve(row, origin=self._origin(origin))
            for row, origin in zip(lowered.fusion.body, lowered.origins, strict=True)
        )
        return attrs.evolve(lowered.fusion, body=tuple(body))

    def _origin(self, origin: Origin) -> int:
        row = self._origin_rows.setdefault(origin, len(self.origins))
        if row == len(self.origins):
            self.origins.append(origin)
        return row

    def _attribute(self, attributes: Mapping[str, AttributeValue]) -> int:
        if not attributes:
            return NONE
        key = tuple(sorted(attributes.items()))
        row = self._attribute_rows.setdefault(key, len(self.attributes))
        if row == len(self.attributes):
            self.attributes.append(dict(key))
        return row


@attrs.frozen
class Neff:
    """A compiled program: `ncc_runtime.load` places it, `save` writes it for `nccrt`.

    - `program`: its instructions, buffers and collective placeholders, the same on every rank
    - `data`: the bytes of its file (docs/neff.md)
    """

    program: Program = attrs.field(
        repr=lambda program: (
            f"<{program.name}: {program.ranks} ranks, "
            f"{len(program.placeholders)} collectives, {memory_text(memory_of(program))}>"
        )
    )
    data: bytes = attrs.field(repr=lambda data: f"<{len(data)} bytes>")
    signature: Any = attrs.field(default=None, eq=False, repr=False)
    """How the function that it was takes and gives trees of arrays: the runtime's `CallSignature`.
    It lives in this process only; the file has names and shardings."""

    def save(self, path: str | Path) -> None:
        """Write the file atomically: a reader sees the old one or the new one, never a part.

        NeffError if it cannot be written.
        """
        container.save(self.data, Path(path))


def generate(
    module: Module, describe: Callable[[Program], Program] = lambda program: program
) -> Program:
    """The program of a module without calls whose collectives are canonical.

    `describe` adds what is known of inputs and outputs, and which of them are pairs, to a program
    that has nothing but these.
    """
    stages = _stages_of(module)
    described = describe(_inputs_and_outputs(stages.lowered))
    if described.aliases != stages.lowered.aliases:
        stages = _Stages(attrs.evolve(lower(module), aliases=described.aliases))
    lowered = attrs.evolve(
        stages.lowered,
        parameters=described.parameters,
        results=described.results,
        shardings=described.shardings,
    )
    return emit(lowered, stages)


def hbm_bytes_of(module: Module) -> int:
    """The HBM of the program that `generate` makes of a module, by what the module's text says."""
    return _stages_of(module).placement.hbm_bytes


def fits_into(module: Module, hbm_bytes: int) -> bool:
    """Whether the program takes no more than so many bytes."""
    return _stages_of(module).placement.takes_at_most(hbm_bytes)


def _inputs_and_outputs(lowered: LoweredProgram) -> Program:
    """A program of which only the types of inputs and outputs are there, and their descriptions."""
    ends = (*lowered.inputs, *lowered.outputs)
    views = (lowered.tensors[tensor] for tensor in ends)
    return Program(
        name=lowered.name,
        replica_count=lowered.replica_count,
        num_partitions=lowered.num_partitions,
        hbm_bytes=0,
        buffers=(),
        tensors=tuple(
            Tensor(view.name, BufferId(0), view.type.dtype, view.type.shape) for view in views
        ),
        inputs=tuple(map(TensorId, range(len(lowered.inputs)))),
        outputs=tuple(map(TensorId, range(len(lowered.inputs), len(ends)))),
        constants={},
        regions=(),
        attributes=(),
        semaphores=(),
        placeholders=(),
        queues={},
        origins=(),
        parameters=lowered.parameters,
        shardings=lowered.shardings,
        aliases=lowered.aliases,
    )


def seal(program: Program) -> Neff:
    """The program as a file, once the contract's own checks have nothing to say."""
    complaints = check.check(program)
    if complaints:
        raise InternalError("the generated program breaks its contract: " + "; ".join(complaints))
    return Neff(program, container.pack(program))
