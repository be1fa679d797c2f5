"""Random programs whose queues wait for whatever they like: some race, none gets stuck.

They grow in an order in which they could run: a wait asks for what has been counted so far, so
every way comes to its end. Memory is a handful of tensors that overlap.
"""

import random
from collections.abc import Mapping, Sequence

import attrs

from ncc_runtime.neff.isa import CASE, END, ENGINES, LOOP, TEST, WAIT, Engine
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import (
    Block,
    BlockKind,
    Buffer,
    BufferId,
    BufferKind,
    Origin,
    Program,
    Semaphore,
    Tensor,
    TensorId,
)
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.neff.table import Instr, InstrTable

RANKS = 2
TENSORS, PREDICATES = 5, 3
_BUSY = (Engine.VECTOR, Engine.GPSIMD, Engine.SYNC)


@attrs.define
class Drawn:
    """A program in the making."""

    dice: random.Random
    order: float  # how often a row waits
    streams: int = 2
    rows: dict[Engine, list[Instr]] = attrs.field(factory=lambda: {one: [] for one in ENGINES})
    counts: list[int] = attrs.field(factory=lambda: [0] * (len(ENGINES) + 2))
    placeholders: list[Placeholder] = attrs.field(factory=list)
    blocks: list[Block] = attrs.field(factory=list)
    busy: tuple[Engine, ...] = _BUSY

    def emit(self, engine: Engine, row: Instr, posts: float = 0.7) -> None:
        """A row that perhaps waits for something recent, and perhaps increments."""
        own = ENGINES.index(engine)
        others = [one for one, count in enumerate(self.counts) if count and one != own]
        if others and self.dice.random() < self.order:
            sem = self.dice.choice(others)
            value = max(1, self.counts[sem] - self.dice.choice((0, 0, 0, 1, 2)))
            row = attrs.evolve(row, wait_sem=sem, wait_value=value)
        if self.dice.random() < posts:
            row = attrs.evolve(row, post_sem=own)
            self.counts[own] += 1
        self.rows[engine].append(row)

    def operation(self) -> None:
        kinds = range(TENSORS + (PREDICATES if self.dice.random() < 0.1 else 0))
        reads = tuple(self.dice.choices(range(TENSORS), k=self.dice.choice((0, 1, 1))))
        writes = tuple(self.dice.choices(kinds, k=self.dice.choice((0, 1, 1))))
        self.emit(self.dice.choice(self.busy), Instr("copy", writes, reads))

    def meet(self) -> None:
        """A barrier, perhaps not of all."""
        for engine in self.busy:
            if engine is not Engine.SYNC and self.dice.random() < 0.9:
                self.rows[engine].append(Instr(WAIT, post_sem=ENGINES.index(engine)))
                self.counts[ENGINES.index(engine)] += 1
        for sem, count in enumerate(self.counts):
            if count and sem != 4 and self.dice.random() < 0.95:
                self.rows[Engine.SYNC].append(Instr(WAIT, wait_sem=sem, wait_value=count))
        self.rows[Engine.SYNC].append(Instr(WAIT, post_sem=4))
        self.counts[4] += 1
        for engine in self.busy:
            if engine is not Engine.SYNC and self.dice.random() < 0.95:
                self.rows[engine].append(Instr(WAIT, wait_sem=4, wait_value=self.counts[4]))

    def collective(self, stream: int) -> None:
        operand, result = self.dice.sample(range(TENSORS), 2)
        self.emit(Engine.GPSIMD, Instr("ptc2", placeholder=len(self.placeholders)))
        self.placeholders.append(all_reduce(operand, result, stream))
        self.counts[len(ENGINES) + stream] += 1

    def control(self, opcode: str, block: int, streams: tuple[int, ...]) -> None:
        for engine in self.dice.sample(ENGINES, len(ENGINES)):
            row = Instr(opcode, attribute=block)
            if engine in self.busy:
                self.emit(engine, row)
            else:
                self.rows[engine].append(row)
        if opcode in (TEST, CASE):
            for stream in streams:
                self.counts[len(ENGINES) + stream] += 1

    def block(self, depth: int, kind: BlockKind, what: tuple[int, int, int]) -> None:
        predicate, index, of = what
        number, first = len(self.blocks), len(self.placeholders)
        streams = tuple(one for one in range(self.streams) if self.dice.random() < 0.4)
        self.blocks.append(Block(kind, f"b{number}", TensorId(TENSORS + predicate), index, of))
        before, self.streams = self.streams, 0
        if kind is BlockKind.LOOP:
            self.control(LOOP, number, ())
            self.some(depth + 1, self.dice.choice((0, 1, 2)))
        if self.dice.random() < self.order:
            self.meet()
        self.control(TEST if kind is BlockKind.LOOP else CASE, number, streams)
        self.some(depth + 1, self.dice.choice((1, 2, 3)))
        for stream in streams:
            self.collective(stream)
            if self.dice.random() < 0.5:
                self.operation()
        if self.dice.random() < self.order:
            self.meet()
        assert len(self.placeholders) == first + len(streams)
        self.control(END, number, streams)
        self.streams = before

    def some(self, depth: int, steps: int) -> None:
        for _ in range(steps):
            kind = self.dice.random()
            if kind < 0.15 and depth < 2:
                predicate = self.dice.randrange(PREDICATES)
                self.block(depth, BlockKind.LOOP, (predicate, 0, 1))
            elif kind < 0.3 and depth < 2:
                predicate = self.dice.randrange(PREDICATES)
                for index in range(self.dice.choice((1, 2))):
                    self.block(depth, BlockKind.CASE, (predicate, index, 2))
            elif kind < 0.4 and self.streams:
                self.collective(self.dice.randrange(self.streams))
            else:
                self.operation()


def drawn_program(seed: int, steps: int = 6) -> Program:
    """The program of a seed."""
    dice = random.Random(seed)
    drawn = Drawn(dice, order=dice.choice((0.3, 0.6, 0.9, 1.0)))
    drawn.some(0, steps)
    offsets = [64 * number + dice.choice((0, 0, 32)) for number in range(TENSORS)]
    return program_of_rows(drawn.rows, drawn.placeholders, drawn.blocks, offsets)


def program_of_rows(
    rows: Mapping[Engine, Sequence[Instr]],
    placeholders: Sequence[Placeholder] = (),
    blocks: Sequence[Block] = (),
    offsets: Sequence[int] = (0, 64, 128, 192, 256),
) -> Program:
    """Five tensors of 64 bytes at these offsets, then three predicates; a semaphore for each queue.

    Semaphores 0 to 4 are the engines' in their order, 5 and 6 those of streams 0 and 1. Row k of
    the attributes names block k.
    """
    names = [f"t{number}" for number in range(TENSORS + PREDICATES)]
    buffers = [Buffer("memory", BufferKind.INTERNAL, 64 * (TENSORS + 1), 0)]
    buffers += [
        Buffer(name, BufferKind.INTERNAL, 4, 1024 + 64 * number)
        for number, name in enumerate(names[TENSORS:])
    ]
    tensors = [
        Tensor(name, BufferId(0), DType.F32, (16,), offset)
        for name, offset in zip(names, offsets, strict=False)
    ]
    tensors += [
        Tensor(name, BufferId(1 + number), DType.S32, ())
        for number, name in enumerate(names[TENSORS:])
    ]
    semaphores = [Semaphore(engine.value.lower(), engine.value) for engine in ENGINES]
    semaphores += [Semaphore(f"stream{number}", f"stream {number}") for number in range(2)]
    return Program(
        name="rows",
        replica_count=1,
        num_partitions=RANKS,
        hbm_bytes=4096,
        buffers=tuple(buffers),
        tensors=tuple(tensors),
        inputs=(),
        outputs=(),
        constants={},
        regions=(),
        attributes=tuple({"block": number} for number in range(len(blocks))),
        semaphores=tuple(semaphores),
        placeholders=tuple(placeholders),
        queues={engine: InstrTable.from_rows(rows.get(engine, ())) for engine in ENGINES},
        origins=(Origin("add.1", "model.py:7"),),
        blocks=tuple(blocks),
    )


def all_reduce(operand: int, result: int, stream: int = 0) -> Placeholder:
    """Of two of the tensors, over all ranks."""
    return Placeholder(
        CollectiveOp.ALL_REDUCE,
        DType.F32,
        (operand,),
        (result,),
        Reduction.ADD,
        (tuple(range(RANKS)),),
        stream=stream,
    )
