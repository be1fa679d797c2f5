"""The work of an instruction whose engines compute: its rows together, phase by phase."""

from collections.abc import Collection, Mapping, Sequence

from ncc_runtime.neff.isa import OPCODES, Engine, Shape
from ncc_runtime.neff.program import CONSTANT, FusedInstr
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.work.dataflow import Dataflow
from ncc_runtime.neff.work.row_costs import TABLE_FUNCTIONS, Costs, EngineCosts
from ncc_runtime.neff.work.tensor_engine import is_product_row
from ncc_runtime.neff.work.tiles import bytes_loaded, tile_of
from ncc_runtime.neff.work.work import Mode, Work, WorkPhase

Chain = tuple[int, ...]
"""Instructions that wait for one another, of each engine of `_ORDER`."""

_ORDER = (Engine.TENSOR, Engine.VECTOR, Engine.SCALAR, Engine.GPSIMD)
_NO_CHAIN = (0,) * len(_ORDER)


def work_of_rows(flow: Dataflow, kept: Collection[int] = ()) -> Work:
    """The work of all rows: operands are loaded once, results stored once.

    Values in `kept` are in SBUF already or stay there, neither loaded nor stored.
    """
    of_rows = EngineCosts(flow)
    costs = of_rows.costs
    level, chains, is_product = _levels(flow, costs)
    phases = _phases(flow, costs, level, chains)
    tile, passes = tile_of(flow, costs, level)
    read, dma_read = bytes_loaded(flow, of_rows.reads, passes, kept)
    stored = [result for result in flow.results if result not in kept]
    written = sum(flow.values[result].size_bytes for result in stored)
    tables = {row.opcode for row in flow.rows if row.opcode in TABLE_FUNCTIONS}
    return Work(
        phases,
        bytes_read=read,
        bytes_written=written,
        dma_read=dma_read,
        dma_written=written,
        tile=tile,
        starts=bool(flow.parameters and read) + bool(stored),
        tables=max(0, len(tables) - 1),
        overlaps=is_product,
    )


def phases_of_rows(flow: Dataflow) -> tuple[WorkPhase, ...]:
    """The phases of that work."""
    costs = EngineCosts(flow).costs
    level, chains, _ = _levels(flow, costs)
    return _phases(flow, costs, level, chains)


def _levels(flow: Dataflow, costs: Costs) -> tuple[list[int], list[Chain], bool]:
    """The phase of each row, the longest chain of instructions to it, whether there are
    products.

    What uses the result of a reduction along rows waits until whole rows are reduced.
    """
    level = [0] * len(flow.values)
    chain = [_NO_CHAIN] * len(flow.values)
    of_row, chains, is_product = [], [], False
    for number, row in enumerate(flow.rows):
        here = max((level[operand] for operand in row.operands), default=0)
        before = (chain[operand] for operand in row.operands if level[operand] == here)
        longest = max(before, key=sum, default=_NO_CHAIN)
        cost = costs[number]
        if cost is not None:
            at = _ORDER.index(cost.engine)
            longest = (*longest[:at], longest[at] + 1, *longest[at + 1 :])
        of_row.append(here)
        chains.append(longest)
        is_fold = OPCODES[row.opcode].shape is Shape.FOLD if row.opcode != CONSTANT else False
        is_product = is_product or is_product_row(row)
        for result in row.results:
            level[result] = here + is_fold
            chain[result] = _NO_CHAIN if is_fold else longest
    return of_row, chains, is_product


def _phases(
    flow: Dataflow, costs: Costs, level: Sequence[int], chains: Sequence[Chain]
) -> tuple[WorkPhase, ...]:
    phases = []
    for number in range(max(level, default=0) + 1):
        lanes: dict[tuple[Engine, Mode], int] = {}
        passes: dict[DType, int] = {}
        copied = 0
        rows = [row for row, here in enumerate(level) if here == number]
        for row in rows:
            cost = costs[row]
            if cost is None:
                continue
            if cost.engine is Engine.TENSOR:
                instr = flow.rows[row]
                is_product = is_product_row(instr)
                kind = flow.multiplied_as(instr) if is_product else flow.stored[instr.operands[0]]
                passes[kind] = passes.get(kind, 0) + cost.cycles
                if _needs_copy(flow, instr):
                    copied += flow.values[instr.results[0]].elements
                continue
            if cost.is_copy:
                copied += cost.cycles
                continue
            walked = (cost.engine, cost.mode)
            lanes[walked] = lanes.get(walked, 0) + cost.cycles
        if copied:
            copying = (_quieter(lanes), Mode.FULL)
            lanes[copying] = lanes.get(copying, 0) + copied
        longest = max((chains[row] for row in rows), key=sum, default=_NO_CHAIN)
        chain = {engine: count for engine, count in zip(_ORDER, longest, strict=True) if count}
        if lanes or passes or chain:
            phases.append(WorkPhase(lanes, passes, chain))
    return tuple(phases)


def _needs_copy(flow: Dataflow, row: FusedInstr) -> bool:
    """Whether a product is copied from PSUM to SBUF; one row that reads it can do that."""
    result = row.results[0]
    return flow.uses[result] != 1 or result in map(flow.view.__getitem__, flow.results)


def _quieter(lanes: Mapping[tuple[Engine, Mode], int]) -> Engine:
    """Which of Vector and Scalar has less to do."""
    busy = dict.fromkeys((Engine.SCALAR, Engine.VECTOR), 0)
    for (engine, _), cycles in lanes.items():
        if engine in busy:
            busy[engine] += cycles
    return min(busy, key=lambda engine: busy[engine])
