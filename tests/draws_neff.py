"""Random programs that obey every rule of the contract, as hypothesis strategies.

A program grows one instruction at a time. Each result gets a buffer of its own, each instruction
waits for the producers of its operands, and all queues meet before each predicate is read and at
the end of each loop, so the programs can also be run. Loops and branches stand inside one another.
"""

import math
from collections.abc import Callable
from typing import Any

import attrs
from hypothesis import strategies as st

from ncc_runtime.neff.isa import CASE, END, ENGINES, LOOP, PTC2, TEST, WAIT, Engine
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import (
    ALIGNMENT,
    MAX_STREAMS,
    ArrayInfo,
    AttributeValue,
    Block,
    BlockKind,
    Buffer,
    BufferId,
    BufferKind,
    FusedInstr,
    Fusion,
    Origin,
    Program,
    Region,
    RegionInstr,
    Semaphore,
    Sharding,
    Tensor,
    TensorId,
    ValueType,
)
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.groups import Groups
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.neff.table import NONE, Instr, InstrTable

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
ARRAY_DTYPES = st.sampled_from([DType.F32, DType.BF16, DType.S32, DType.U8, DType.PRED, DType.C64])

_ANY_ARITHMETIC = ("add", "multiply")
_SUM = Region(
    "sum",
    (DType.F32, DType.F32),
    (
        RegionInstr("constant", (), DType.F32, constant="0.5"),
        RegionInstr("add", (0, 1), DType.F32),
        RegionInstr("compare", (3, 2), DType.PRED, {"direction": "GE"}),
        RegionInstr("select", (4, 3, 3), DType.F32),
    ),
    (5,),
)


class Growing:
    """A program under construction; every method keeps it valid."""

    def __init__(self, draw: st.DrawFn) -> None:
        self.draw = draw
        self.replicas, self.partitions = draw(st.integers(1, 3)), draw(st.integers(1, 4))
        self.ranks = self.replicas * self.partitions
        self.buffers: list[Buffer] = []
        self.tensors: list[Tensor] = []
        self.hidden: set[int] = set()  # tensors of blocks that are closed and may not have run
        self.constants: dict[BufferId, bytes] = {}
        self.inputs: list[TensorId] = []
        self.attributes: list[dict[str, AttributeValue]] = []
        self.fusions: list[Fusion] = []
        self.placeholders: list[Placeholder] = []
        self.rows: dict[Engine, list[Instr]] = {engine: [] for engine in ENGINES}
        self.producer: dict[int, tuple[int, int]] = {}  # tensor → semaphore and its value
        self.posts = dict.fromkeys(ENGINES, 0)
        self.streams: tuple[int, ...] = tuple(range(MAX_STREAMS))  # that may be used here
        self.completed = [0] * MAX_STREAMS  # placeholders and acknowledgements
        self.blocks: list[Block] = []
        self.depth = 0
        self.end = 0

    def tensor(self, dtype: DType, shape: tuple[int, ...], kind: BufferKind) -> int:
        """A new tensor in a new buffer behind all others."""
        size = math.prod(shape) * dtype.size_bytes
        self.buffers.append(Buffer(self.draw(NAMES), kind, size, self.end))
        self.end += -(-size // ALIGNMENT) * ALIGNMENT
        buffer = BufferId(len(self.buffers) - 1)
        self.tensors.append(Tensor(self.draw(NAMES), buffer, dtype, shape))
        if kind is BufferKind.CONSTANT:
            self.constants[buffer] = self.draw(st.binary(min_size=size, max_size=size))
        if kind is BufferKind.INPUT:
            self.inputs.append(TensorId(len(self.tensors) - 1))
        return len(self.tensors) - 1

    def attribute(self, **values: AttributeValue) -> int:
        """The row of these attributes."""
        if values not in self.attributes:
            self.attributes.append(values)
        return self.attributes.index(values)

    def wait_for(self, engine: Engine, tensors: tuple[int, ...]) -> tuple[int, int]:
        """Put `wait`s before an instruction for all but its last producer; give the last one."""
        needed = sorted({self.producer[tensor] for tensor in tensors if tensor in self.producer})
        own = ENGINES.index(engine)
        needed = [(semaphore, value) for semaphore, value in needed if semaphore != own]
        for semaphore, value in needed[:-1]:
            self.emit(engine, Instr(WAIT, wait_sem=semaphore, wait_value=value, post_sem=own))
        return needed[-1] if needed else (NONE, 0)

    def emit(self, engine: Engine, row: Instr) -> None:
        """Append a row; control rows may post, every other row posts its engine's semaphore."""
        self.rows[engine].append(row)
        self.posts[engine] += row.post_sem != NONE

    def compute(
        self,
        opcode: str,
        operands: tuple[int, ...],
        results: tuple[int, ...],
        attribute: int = NONE,
    ) -> None:
        """An instruction on a random engine."""
        engine = self.draw(st.sampled_from(ENGINES))
        semaphore, value = self.wait_for(engine, operands)
        own = ENGINES.index(engine)
        costs = self.draw(st.tuples(*[st.integers(0, 2**40)] * 4))
        self.emit(
            engine,
            Instr(
                opcode,
                results,
                operands,
                attribute=attribute,
                wait_sem=semaphore,
                wait_value=value,
                post_sem=own,
                origin=self.draw(st.sampled_from([NONE, 0, 1])),
                flops=costs[0],
                elements=costs[1],
                bytes_in=costs[2],
                bytes_out=costs[3],
            ),
        )
        for result in results:
            self.producer[result] = (own, self.posts[engine])

    def collect(self, placeholder: Placeholder) -> None:
        """A collective; all of a stream are triggered by one engine, in order."""
        engine = ENGINES[placeholder.stream % len(ENGINES)]
        semaphore, value = self.wait_for(engine, placeholder.operands)
        own = ENGINES.index(engine)
        trigger = Instr(
            PTC2,
            placeholder=len(self.placeholders),
            wait_sem=semaphore,
            wait_value=value,
            post_sem=own,
        )
        self.emit(engine, trigger)
        self.placeholders.append(placeholder)
        self.completed[placeholder.stream] += 1
        done = (len(ENGINES) + placeholder.stream, self.completed[placeholder.stream])
        for result in placeholder.results:
            self.producer[result] = done

    def meet(self) -> None:
        """Sync waits for all other queues and for the streams, then they wait for Sync."""
        sync = ENGINES.index(Engine.SYNC)
        others = [engine for engine in ENGINES if engine is not Engine.SYNC]
        for engine in others:
            self.emit(engine, Instr(WAIT, post_sem=ENGINES.index(engine)))
        needed = [(ENGINES.index(engine), self.posts[engine]) for engine in others]
        needed += [(len(ENGINES) + n, count) for n, count in enumerate(self.completed) if count]
        for semaphore, value in needed:
            self.emit(Engine.SYNC, Instr(WAIT, wait_sem=semaphore, wait_value=value))
        self.emit(Engine.SYNC, Instr(WAIT, post_sem=sync))
        for engine in others:
            self.emit(engine, Instr(WAIT, wait_sem=sync, wait_value=self.posts[Engine.SYNC]))

    def control(self, opcode: str, block: int) -> None:
        """The same control row in every queue; some of them post."""
        attribute = self.attribute(block=block)
        posting = self.draw(st.sampled_from([(), (Engine.SYNC,), ENGINES]))
        for number, engine in enumerate(ENGINES):
            post = number if engine in posting else NONE
            self.emit(engine, Instr(opcode, attribute=attribute, post_sem=post))

    def enclose(self, opcode: str, block: Block, before: Callable[[], int]) -> None:
        """A block: `before` its test or case something gives the predicate; random steps."""
        number, first, outer = len(self.blocks), len(self.placeholders), self.streams
        first_tensor = len(self.tensors)
        self.blocks.append(block)
        self.streams = tuple(self.draw(st.sets(st.sampled_from(outer or (0,)), max_size=2)))
        self.streams = tuple(stream for stream in self.streams if stream in outer)
        self.depth += 1
        if opcode == LOOP:
            self.control(LOOP, number)
            grow(self, 2)
        self.blocks[number] = attrs.evolve(block, predicate=TensorId(before()))
        self.meet()
        self.control(TEST if opcode == LOOP else CASE, number)
        for stream in self.streams:
            self.completed[stream] += 1  # it acknowledges the predicate
        grow(self, 2)
        used = {placeholder.stream for placeholder in self.placeholders[first:]}
        for stream in sorted(set(self.streams) - used):
            permute(self, stream)
        if opcode == LOOP:
            self.meet()
        self.control(END, number)
        self.hidden.update(range(first_tensor, len(self.tensors)))
        self.depth -= 1
        self.streams = outer

    def visible(self) -> list[int]:
        """The tensors that are written on every way here."""
        return [number for number in range(len(self.tensors)) if number not in self.hidden]

    def program(self) -> Program:
        """What has grown; its last tensor that is visible is copied out."""
        last = self.visible()[-1]
        kind = self.tensors[last]
        output = self.tensor(kind.dtype, kind.shape, BufferKind.OUTPUT)
        self.compute("copy", (last,), (output,))
        semaphores = [Semaphore(engine.value.lower(), engine.value) for engine in ENGINES]
        semaphores += [Semaphore(f"cc {n}", f"stream {n}") for n in range(MAX_STREAMS)]
        return Program(
            name=self.draw(NAMES),
            replica_count=self.replicas,
            num_partitions=self.partitions,
            hbm_bytes=self.end + self.draw(st.integers(0, 100)),
            buffers=tuple(self.buffers),
            tensors=tuple(self.tensors),
            inputs=tuple(self.inputs),
            outputs=(TensorId(output),),
            constants=self.constants,
            regions=(_SUM,),
            attributes=tuple(self.attributes),
            semaphores=tuple(semaphores),
            placeholders=tuple(self.placeholders),
            queues={engine: InstrTable.from_rows(rows) for engine, rows in self.rows.items()},
            origins=(
                Origin("add.1", "model.py:7", "jit(f)/add"),
                Origin(self.draw(NAMES), op_name=self.draw(NAMES)),
            ),
            blocks=tuple(self.blocks),
            aliases=self.aliases(output),
            fusions=tuple(self.fusions),
            **self.array_infos(output),
        )

    def aliases(self, output: int) -> tuple[tuple[int, int], ...]:
        """Perhaps the output feeds an input of its type."""
        kind = self.tensors[output].type_text
        alike = [k for k, one in enumerate(self.inputs) if self.tensors[one].type_text == kind]
        return (
            ((0, self.draw(st.sampled_from(alike))),) if alike and self.draw(st.booleans()) else ()
        )

    def array_infos(self, output: int) -> dict[str, tuple[ArrayInfo, ...] | tuple[Sharding, ...]]:
        """Names and shardings of inputs and outputs, if any is known."""
        cut = next((self.tensors[one].shape for one in self.inputs if self.tensors[one].shape), ())
        shardings = []
        if self.ranks < 2:  # a tile has a rank
            cut = ()
        if cut:
            tiles = (2, *[1] * (len(cut) - 1))
            rest = st.lists(st.integers(0, 1), min_size=self.ranks - 2, max_size=self.ranks - 2)
            parts = self.draw(rest.flatmap(lambda drawn: st.permutations([0, 1, *drawn])))
            shardings = [Sharding(tiles, tuple(parts))]

        def known(tensors: list[int]) -> tuple[ArrayInfo, ...]:
            found = tuple(self.array_info(self.tensors[one].shape, len(cut)) for one in tensors)
            return found if any(one != ArrayInfo() for one in found) else ()

        return {
            "parameters": known(self.inputs),
            "results": known([output]),
            "shardings": tuple(shardings),
        }

    def array_info(self, shape: tuple[int, ...], rank: int) -> ArrayInfo:
        """Of an array of this shape, where there is a sharding of arrays of `rank`, unless 0."""
        name = self.draw(NAMES)
        if rank and len(shape) == rank and self.draw(st.booleans()):
            whole = (2 * shape[0] - 1, *shape[1:])  # the last tile is padded
            is_padded = shape[0] > 1 and self.draw(st.booleans())
            return ArrayInfo(name, 0, whole if is_padded else None)
        return ArrayInfo(name, None, shape if self.draw(st.booleans()) else None)


def _any(program: Growing) -> tuple[int, Tensor]:
    number = program.draw(st.sampled_from(program.visible()))
    return number, program.tensors[number]


def _new(program: Growing, dtype: DType, shape: tuple[int, ...]) -> int:
    return program.tensor(dtype, shape, BufferKind.INTERNAL)


def _elementwise(program: Growing) -> None:
    number, view = _any(program)
    opcode = program.draw(st.sampled_from(_ANY_ARITHMETIC))
    program.compute(opcode, (number, number), (_new(program, view.dtype, view.shape),))


def _compare(program: Growing) -> None:
    number, view = _any(program)
    attribute = program.attribute(direction=program.draw(st.sampled_from(["EQ", "NE"])))
    result = _new(program, DType.PRED, view.shape)
    program.compute("compare", (number, number), (result,), attribute)


def _transpose(program: Growing) -> None:
    number, view = _any(program)
    order = tuple(program.draw(st.permutations(range(len(view.shape)))))
    result = _new(program, view.dtype, tuple(view.shape[d] for d in order))
    program.compute("transpose", (number,), (result,), program.attribute(dimensions=order))


def _concatenate(program: Growing) -> None:
    number, view = _any(program)
    if view.shape:
        result = _new(program, view.dtype, (2 * view.shape[0], *view.shape[1:]))
        row = program.attribute(dimension=0)
        program.compute("concatenate", (number, number), (result,), row)


def _slice(program: Growing) -> None:
    number, view = _any(program)
    starts = tuple(program.draw(st.integers(0, size)) for size in view.shape)
    sizes = tuple(size - start for start, size in zip(starts, view.shape, strict=True))
    row = program.attribute(start=starts, limit=view.shape, stride=(1,) * len(starts))
    program.compute("slice", (number,), (_new(program, view.dtype, sizes),), row)


def _iota(program: Growing) -> None:
    result = _new(program, DType.S32, (3, 2))
    program.compute("iota", (), (result,), program.attribute(iota_dimension=1))


def _reduce(program: Growing) -> None:
    source = _new(program, DType.F32, (2, 3))
    start = _new(program, DType.F32, ())
    seed = program.tensor(DType.F32, (), BufferKind.CONSTANT)
    program.compute("copy", (seed,), (start,))
    program.compute("broadcast", (seed,), (source,), program.attribute(dimensions=()))
    row = program.attribute(dimensions=(1,), region=0)
    program.compute("reduce", (source, start), (_new(program, DType.F32, (2,)),), row)


def _fusion(program: Growing) -> None:
    """A chain of rows on a tensor; its last value is a result, perhaps one before it, too."""
    number, view = _any(program)
    body: list[FusedInstr] = []
    values, latest = [ValueType(view.dtype, view.shape)], 0

    def row(opcode: str, kind: ValueType, operands: tuple[int, ...], **more: Any) -> int:
        origin = program.draw(st.sampled_from([NONE, 0, 1]))
        values.append(kind)
        result = len(values) - 1
        body.append(FusedInstr(opcode, (result,), operands, origin=origin, **more))
        return result

    for _ in range(program.draw(st.integers(0, 3))):
        latest = row("add", values[latest], (latest, program.draw(st.sampled_from([0, latest]))))
    half = row("constant", ValueType(DType.F32), (), constant="0.5")
    many = row("broadcast", ValueType(DType.F32, (2, 3)), (half,), attributes={"dimensions": ()})
    folds = {"dimensions": (1,), "region": 0}
    row("reduce", ValueType(DType.F32, (2,)), (many, half), attributes=folds)
    chosen = program.draw(st.sets(st.integers(1, len(values) - 1), min_size=1, max_size=3))
    results = tuple(program.draw(st.permutations(sorted(chosen))))
    fusion = Fusion(program.draw(NAMES), tuple(values), 1, tuple(body), results)
    written = tuple(_new(program, kind.dtype, kind.shape) for kind in fusion.types(results))
    attribute = program.attribute(fusion=len(program.fusions))
    program.fusions.append(fusion)
    program.compute("fusion", (number,), written, attribute)


def _groups(program: Growing) -> Groups:
    """The ranks, in any order, cut into groups of one size."""
    order = program.draw(st.permutations(range(program.ranks)))
    sizes = [size for size in range(1, program.ranks + 1) if program.ranks % size == 0]
    size = program.draw(st.sampled_from(sizes))
    return tuple(tuple(order[at : at + size]) for at in range(0, program.ranks, size))


def _gather(program: Growing) -> None:
    if not program.streams:
        return
    number, view = _any(program)
    groups = _groups(program)
    result = _new(program, view.dtype, (view.elements * len(groups[0]),))
    stream = program.draw(st.sampled_from(program.streams))
    op = CollectiveOp.ALL_GATHER
    program.collect(Placeholder(op, view.dtype, (number,), (result,), groups=groups, stream=stream))


def _all_reduce(program: Growing) -> None:
    """One over several tensors, in place or not."""
    if not program.streams:
        return
    _, view = _any(program)
    count = program.draw(st.integers(1, 3))
    operands = tuple(_new(program, view.dtype, view.shape) for _ in range(count))
    source = program.tensors.index(view)
    for operand in operands:
        program.compute("copy", (source,), (operand,))
    in_place = program.draw(st.booleans())
    results = (
        operands if in_place else tuple(_new(program, view.dtype, view.shape) for _ in range(count))
    )
    program.collect(
        Placeholder(
            CollectiveOp.ALL_REDUCE,
            view.dtype,
            operands,
            results,
            Reduction.ADD,
            _groups(program),
            stream=program.streams[0],
            in_place=in_place,
            channel_id=program.draw(st.none() | st.integers(0, 9)),
            name=program.draw(NAMES),
        )
    )


def _permute(program: Growing) -> None:
    if program.streams:
        permute(program, program.streams[-1])


def permute(program: Growing, stream: int) -> None:
    """Some ranks send a tensor to others."""
    number, view = _any(program)
    result = _new(program, view.dtype, view.shape)
    targets = program.draw(st.permutations(range(program.ranks)))
    pairs = tuple(enumerate(targets))[: program.draw(st.integers(0, program.ranks))]
    op = CollectiveOp.PERMUTE
    program.collect(Placeholder(op, view.dtype, (number,), (result,), pairs=pairs, stream=stream))


def _predicate(program: Growing, dtype: DType) -> int:
    """A scalar; as a loop's predicate it does not hold."""
    seed = program.tensor(DType.S32, (), BufferKind.CONSTANT)
    result = _new(program, dtype, ())
    if dtype is DType.PRED:
        program.compute("compare", (seed, seed), (result,), program.attribute(direction="NE"))
    else:
        program.compute("copy", (seed,), (result,))
    return result


def _loop(program: Growing) -> None:
    trips = program.draw(st.none() | st.integers(0, 3))
    block = Block(BlockKind.LOOP, program.draw(NAMES), TensorId(0), trip_count=trips)
    program.enclose(LOOP, block, lambda: _predicate(program, DType.PRED))


def _branches(program: Growing) -> None:
    """A conditional of which some branches have rows."""
    dtype = program.draw(st.sampled_from([DType.PRED, DType.S32]))
    count = 2 if dtype is DType.PRED else program.draw(st.integers(1, 3))
    predicate = _predicate(program, dtype)
    name = program.draw(NAMES)
    for index in sorted(program.draw(st.sets(st.integers(0, count - 1)))):
        block = Block(BlockKind.CASE, name, TensorId(predicate), index, count)
        program.enclose(CASE, block, lambda: predicate)


_FLAT_STEPS: tuple[Callable[[Growing], None], ...] = (
    _elementwise,
    _compare,
    _transpose,
    _concatenate,
    _slice,
    _iota,
    _reduce,
    _fusion,
    _gather,
    _all_reduce,
    _permute,
)
_DEEPEST = 3


def grow(program: Growing, most_steps: int) -> None:
    """Up to that many random steps."""
    steps = _FLAT_STEPS if program.depth == _DEEPEST else (*_FLAT_STEPS, _loop, _branches)
    for step in program.draw(st.lists(st.sampled_from(steps), max_size=most_steps)):
        step(program)


@st.composite
def programs(draw: st.DrawFn, most_steps: int = 6) -> Program:
    """A valid program with one to three inputs and up to that many steps."""
    program = Growing(draw)
    for _ in range(draw(st.integers(1, 3))):
        program.tensor(draw(ARRAY_DTYPES), draw(SHAPES), BufferKind.INPUT)
    grow(program, most_steps)
    return program.program()
