"""The work of a program's instructions, read off their opcodes, attributes and types."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fractions import Fraction

import attrs
import numpy as np

from ncc_runtime.neff.isa import FUSION, OPCODES, WORK, Engine, Shape
from ncc_runtime.neff.program import (
    CONSTANT,
    AttributeValue,
    FusedInstr,
    Fusion,
    Program,
    Region,
    Typed,
)
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.identity_memo import IdentityMemo
from ncc_runtime.neff.table import NONE, Instr, InstrTable
from ncc_runtime.neff.work.dataflow import Dataflow
from ncc_runtime.neff.work.kept import NOTHING_KEPT, Kept, kept_in_sbuf
from ncc_runtime.neff.work.moves import MOVES, work_of_move, work_of_scatter
from ncc_runtime.neff.work.phases import phases_of_rows, work_of_rows
from ncc_runtime.neff.work.work import FLOPS_PER_CYCLE, NOTHING, Mode, Work, WorkPhase

Works = tuple[list[Work], np.ndarray]

_WORKS: IdentityMemo[Program, IdentityMemo[InstrTable, Works]] = IdentityMemo()


def works_of(program: Program, engine: Engine, table: InstrTable) -> Works:
    """The different works of a queue's instructions, and the number of each instruction's, (n,).

    Instructions of one opcode, one row of attributes and the same types do the same work, but for
    what stays in SBUF from the instruction before or for the next. The clock and several reports
    ask; it is worked out once.
    """
    if (known := _WORKS.get(program)) is None:
        known = IdentityMemo()
        _WORKS.set(program, known)
    if (works := known.get(table)) is None:
        works = _works_of(program, engine, table)
        known.set(table, works)
    return works


def _works_of(program: Program, engine: Engine, table: InstrTable) -> Works:
    kinds: dict[tuple[DType, tuple[int, ...]], int] = {}
    is_method = [_is_counted(name) for name in table.opcode_names]
    starts, tensors, elements = (
        table.start.tolist(),
        table.tensors.tolist(),
        table.elements.tolist(),
    )
    kind: dict[int, int] = {}  # of the tensors that are used: a program may have many more
    for tensor in dict.fromkeys(tensors):
        view = program.tensors[tensor]
        kind[tensor] = kinds.setdefault((view.dtype, view.shape), len(kinds))
    columns = (table.opcode, table.attribute, table.result_count)
    numbers: dict[object, int] = {}
    works: list[Work] = []
    kept_by_row = kept_in_sbuf(program, table)
    index = np.empty(len(table), np.int64)
    for row, (opcode, attribute, results) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        first, last = starts[row], starts[row + 1]
        used = tensors[first:last]
        operands = used[results:]
        # a product of an array with itself reads one array
        is_each_once = len(set(operands)) == len(operands)
        same = () if is_each_once else tuple(map(operands.index, operands))
        kept = kept_by_row.get(row)
        key = (
            *(opcode, attribute, results, same, tuple([kind[tensor] for tensor in used])),
            elements[row] if is_method[opcode] else 0,
            table.opcode_names[opcode] in _UPDATES
            and program.address(operands[0]) == program.address(used[0]),
            tuple((t in kept.loads, t in kept.stores) for t in used) if kept else None,
        )
        number = numbers.setdefault(key, len(works))
        if number == len(works):
            works.append(_work_of(program, engine, table[row], kept or NOTHING_KEPT))
        index[row] = number
    return works, index


_UPDATES = frozenset({"dynamic-update-slice", "scatter"})


def _is_in_place(program: Program, instr: Instr) -> bool:
    """Whether an update writes where its array is, and so moves no more than itself."""
    return program.address(instr.operands[0]) == program.address(instr.results[0])


def _is_counted(opcode: str) -> bool:
    """Whether only the compiler knows over how many elements an instruction walks."""
    is_window = opcode in ("reduce-window", "select-and-scatter", "scatter", "sort", "topk")
    return is_window or OPCODES[opcode].shape is Shape.METHOD


def _work_of(program: Program, engine: Engine, instr: Instr, kept: Kept) -> Work:
    if OPCODES[instr.opcode].shape is Shape.CONTROL or not instr.operands + instr.results:
        return NOTHING
    attributes = program.attributes[instr.attribute] if instr.attribute != NONE else {}
    if instr.opcode == WORK:
        return work_of_sizes(attributes, engine)
    if instr.opcode == FUSION:
        number = attributes["fusion"]
        assert isinstance(number, int), instr.opcode
        fusion = program.fusions[number]
        values = kept.among(instr, range(fusion.parameters), fusion.results)
        return work_of_fusion(fusion, program.regions, values)
    # operands that are one tensor are one value
    places = {tensor: place for place, tensor in enumerate(dict.fromkeys(instr.operands))}
    types = [program.tensors[tensor] for tensor in (*places, *instr.results)]
    if _is_of_sequencer((instr.opcode,), types):
        return _by_sequencer(types[: len(places)], types[len(places) :])
    results = tuple(range(len(places), len(types)))
    operands = tuple(places[tensor] for tensor in instr.operands)
    row = FusedInstr(instr.opcode, results, operands, attributes)
    counted = instr.elements if _is_counted(instr.opcode) else 0
    flow = Dataflow(types, len(places), (row,), results, program.regions, engine, counted)
    is_scatter = instr.opcode == "scatter"
    if instr.opcode not in MOVES and not is_scatter:
        return work_of_rows(flow, kept.among(instr, operands, results))
    is_in_place = instr.opcode in _UPDATES and _is_in_place(program, instr)
    price = work_of_scatter if is_scatter else work_of_move
    return price(row, types, is_in_place)


def work_of_sizes(attributes: Mapping[str, AttributeValue], engine: Engine) -> Work:
    """The work of an instruction of which only sizes are known: a roofline.

    Engines and DMA work at once all the while. Flops are those of the Tensor engine in `dtype`,
    bfloat16 if that is not said. Elements are walked over by the engine of the queue, by Vector
    where that is Tensor; Sync moves only.
    Source: Williams, Waterman and Patterson, "Roofline", CACM 52 (4), 2009.
    """
    read, written, elements, flops = (
        amount
        for name in ("bytes_read", "bytes_written", "elements", "flops")
        if isinstance(amount := attributes[name], int)
    )
    lanes: dict[tuple[Engine, Mode], int] = {}
    passes: dict[DType, int] = {}
    if flops:
        dtype = DType(attributes.get("dtype", DType.BF16.value))
        passes[dtype] = -(-flops // FLOPS_PER_CYCLE)
    if elements and engine is not Engine.SYNC:
        walks = Engine.VECTOR if engine is Engine.TENSOR else engine
        lanes[walks, Mode.FULL] = elements
    given_ps = attributes.get("duration_ps")
    assert given_ps is None or isinstance(given_ps, int), given_ps
    return Work(
        phases=(WorkPhase(lanes, passes, {engine: 1}),) if lanes or passes else (),
        bytes_read=read,
        bytes_written=written,
        dma_read=read,
        dma_written=written,
        tile=Fraction(0),
        starts=bool(read) + bool(written),
        given_ps=given_ps,
    )


_REGISTER_SHAPES = frozenset({Shape.NULLARY, Shape.UNARY, Shape.BINARY, Shape.TERNARY})


def _is_of_sequencer(opcodes: Iterable[str], types: Iterable[Typed]) -> bool:
    """Whether registers of a sequencer do it: counters of loops, starts of slices, predicates.

    Source: the architecture guides, register arithmetic and branches run in the sequencer.
    """
    return all(
        view.elements == 1 and (view.dtype.is_integer or view.dtype is DType.PRED) for view in types
    ) and all(opcode in _SPELLED or OPCODES[opcode].shape in _REGISTER_SHAPES for opcode in opcodes)


_SPELLED = frozenset({CONSTANT, "broadcast", "reshape"})


def _by_sequencer(read: Iterable[Typed], written: Iterable[Typed]) -> Work:
    """No more than the bytes of a few registers."""
    return attrs.evolve(
        NOTHING,
        bytes_read=sum(view.size_bytes for view in read),
        bytes_written=sum(view.size_bytes for view in written),
    )


def work_of_fusion(fusion: Fusion, regions: Sequence[Region], kept: Collection[int] = ()) -> Work:
    """The work of an instruction that performs a fusion; `kept` as in `work_of_rows`."""
    flow = _flow_of_fusion(fusion, regions)
    if flow is not None:
        return work_of_rows(flow, kept)
    return _by_sequencer(fusion.values[: fusion.parameters], fusion.types(fusion.results))


def phases_of_fusion(fusion: Fusion, regions: Sequence[Region]) -> tuple[WorkPhase, ...]:
    """The phases of its work."""
    flow = _flow_of_fusion(fusion, regions)
    return () if flow is None else phases_of_rows(flow)


def _flow_of_fusion(fusion: Fusion, regions: Sequence[Region]) -> Dataflow | None:
    """Its rows; None if registers of a sequencer do all of it."""
    values, rows = fusion.values, fusion.body
    if _is_of_sequencer((row.opcode for row in rows), values):
        return None
    return Dataflow(values, fusion.parameters, rows, fusion.results, regions)
