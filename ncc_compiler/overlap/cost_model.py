"""A cost model for ordering: how long operations take, relative to each other.

The unit is the time of one byte to or from local memory. The ratios below are round figures of an
accelerator in general: they weigh one order against another and price nothing. They are guesses,
tied to no topology; what a program takes on one, the runtime says.
"""

from collections.abc import Mapping, Sequence

import attrs

from ncc_compiler.codegen.costs import costs, elements_by_engine
from ncc_compiler.codegen.leaves import leaves
from ncc_compiler.codegen.select import ANY_REGION, COLLECTIVES, REGIONS, SELECTORS, engine_of
from ncc_compiler.ir.collectives import reduction_of
from ncc_compiler.ir.graph import Computation, Module, Node
from ncc_compiler.ir.op_tables.numeric import WORK
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.identity_memo import IdentityMemo

PS = 2.5
"""Picoseconds of a unit, about: memory moves 400 GB/s."""

INSTRUCTION = 1_700_000
"""What an instruction takes besides its work: its operands are loaded, its results are stored."""

SEQUENCED = 32 * 1024
"""What a row takes that moves no array: a trigger, arithmetic of one integer."""

START = 8 * 1024 * 1024
"""What a collective takes before it moves a byte: what one collective less saves."""

PER_COLLECTIVE_BYTE = 8
"""How much slower a byte goes to other ranks than to memory."""


@attrs.frozen
class Speed:
    """How quick collectives are on some topology, in the units of this file."""

    start: int
    per_byte: int

    def latency(self, size_bytes: int) -> int:
        """From a collective's trigger to its results."""
        return self.start + self.per_byte * size_bytes


LIKELY = Speed(START, PER_COLLECTIVE_BYTE)
SPEEDS = (Speed(START // 5, 3), LIKELY, Speed(4 * START, 20))
"""About the quickest, the median and the slowest all-reduce of presets of four ranks and more, at
2.5 ps a unit: `benchmarks/collective_speeds.py`."""

PER_ELEMENT = 4
"""What an element takes that an engine walks over; most operations move more bytes than that."""

CONTROL_FLOW = frozenset({"while", "conditional"})
"""Ops that are barriers of all queues."""

FUSION = "fusion"
"""The op of what the pass `fuse` makes: one instruction for a computation."""

HEAVY = frozenset(
    {"dot", "ragged-dot", "convolution", "custom-call", "fft", "cholesky", "triangular-solve"}
)
"""Ops whose work grows faster than their data."""


@attrs.frozen
class OpWork:
    """How long a node keeps its queue busy, and its results under way."""

    engine: Engine | None  # None: a name for data, or a row of control flow
    duration: int
    latency: int = 0  # of a collective: from its trigger to its results
    moved_bytes: int = 0  # of a collective: on one rank

    def latency_at(self, speed: Speed) -> int:
        """The latency where collectives are so quick."""
        return speed.latency(self.moved_bytes) if self.latency else 0


def is_heavy(module: Module, node: Node) -> bool:
    """Whether a node is heavy, or fuses what is."""
    if node.op != FUSION:
        return node.op in HEAVY
    return any(row.op in HEAVY for row in module.computations[node.callee("calls")].nodes)


def flops_per_unit(element_bytes: int) -> int:
    """Matrix engines are quick in narrow types: 64 flops for float32, 256 for bfloat16."""
    return max(1, 1024 // max(1, element_bytes) ** 2)


def larger_side(node: Node, operands: Sequence[Node]) -> int:
    """Bytes of a collective on one rank: of its operands or its results, the larger."""
    read = sum(array.size_bytes for operand in operands for array in leaves(operand.type))
    return max(read, sum(array.size_bytes for array in leaves(node.type)))


def work_of(module: Module, computation: Computation, node: Node) -> OpWork:
    """The work of a node of a canonical graph."""
    operands = [computation.nodes[operand] for operand in node.operands]
    if node.op in COLLECTIVES:
        size = larger_side(node, operands)
        return OpWork(Engine.GPSIMD, SEQUENCED, LIKELY.latency(size), size)
    if node.op == FUSION:
        return _fused_work(module, node, operands)
    if node.op not in SELECTORS:
        return OpWork(None, 0)
    engine = engine_of(node)
    callees = (module.computations[node.callee(key)] for key in REGIONS.get(node.op, ()))
    if any(reduction_of(callee) is None for callee in callees):
        engine = ANY_REGION
    arrays = [array for operand in operands for array in leaves(operand.type)]
    cost = costs(node, leaves(node.type), arrays)
    if node.op == WORK:
        if "duration_ps" in node.attributes:
            return OpWork(engine, int(node.integer("duration_ps") / PS))
        factor = DType(node.attributes["dtype"])
        arrays = [ArrayType(factor)]
    arithmetic = cost.flops // flops_per_unit(arrays[0].dtype.size_bytes if arrays else 1)
    duration = max(arithmetic, PER_ELEMENT * cost.elements, cost.bytes_in + cost.bytes_out)
    return OpWork(engine, _overhead([*leaves(node.type), *arrays]) + duration)


def _overhead(arrays: Sequence[ArrayType]) -> int:
    """Of an instruction on these arrays, besides its work; sequencers add and compare integers."""
    is_counter = all(array.elements == 1 and not array.dtype.is_float for array in arrays)
    return SEQUENCED if is_counter else INSTRUCTION


def _fused_work(module: Module, node: Node, operands: Sequence[Node]) -> OpWork:
    """The work of all that is fused, engines beside each other; HBM has its operands and results.

    It is one instruction.
    """
    busy = _busy_in(module.computations[node.callee("calls")])
    arrays = [array for each in (node, *operands) for array in leaves(each.type)]
    moved = sum(array.size_bytes for array in arrays)
    engine = max(busy, key=busy.__getitem__, default=Engine.VECTOR)
    return OpWork(engine, _overhead(arrays) + max(moved, *busy.values(), 0))


def _busy_in(body: Computation) -> Mapping[Engine, int]:
    """How long each engine works in a fused computation, which several passes ask."""
    known = _BUSY.get(body)
    if known is not None:
        return known
    rows = [row for row in body.nodes if row.op in SELECTORS and row.op != "broadcast"]
    work = [
        (
            SELECTORS[row.op].engine,
            costs(row, leaves(row.type), [operand.array for operand in body.operands_of(row)]),
        )
        for row in rows
    ]
    arithmetic = sum(
        cost.flops // flops_per_unit(body.nodes[row.operands[0]].array.dtype.size_bytes)
        for row, (_, cost) in zip(rows, work, strict=True)
        if cost.flops
    )
    busy = {
        engine: PER_ELEMENT * count for engine, count in elements_by_engine(work).items() if count
    }
    if arithmetic:
        busy[Engine.TENSOR] = arithmetic
    _BUSY.set(body, busy)
    return busy


_BUSY = IdentityMemo[Computation, Mapping[Engine, int]]()


def works_of(module: Module, computation: Computation) -> list[OpWork]:
    """The work of every node."""
    return [work_of(module, computation, node) for node in computation.nodes]
