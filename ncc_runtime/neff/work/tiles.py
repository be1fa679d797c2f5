"""What SBUF holds of an instruction's values at a time, and how often HBM is read therefore."""

from collections.abc import Collection, Sequence
from fractions import Fraction

from ncc_runtime.neff.program import FusedInstr
from ncc_runtime.neff.work.dataflow import Dataflow
from ncc_runtime.neff.work.moves import READ_IN_PART, bytes_of_dma, contiguous_bytes
from ncc_runtime.neff.work.row_costs import Costs
from ncc_runtime.neff.work.work import PARTITIONS, SBUF_BYTES, TILE_COLUMNS


def tile_of(flow: Dataflow, costs: Costs, level: Sequence[int]) -> tuple[Fraction, int]:
    """The share of the whole that a tile is, and how often operands are read.

    A tile has 512 columns, or whole rows where rows are reduced and read again: of 128 rows, or
    of as many as fit into half of SBUF. If not even one row fits, every phase reads operands.
    """
    most = max((value.elements for value in flow.values), default=1)
    tile, row = Fraction(PARTITIONS * TILE_COLUMNS, max(1, most)), Fraction(0)
    for number, instr in enumerate(flow.rows):
        if instr.opcode == "reduce" and level[number] < max(level):
            kept = max(1, flow.values[instr.results[0]].elements)
            tile, row = max(tile, Fraction(PARTITIONS, kept)), max(row, Fraction(1, kept))
    room = Fraction(SBUF_BYTES // 2, max(1, _live_bytes(flow, costs)))
    passes = max(level, default=0) + 1 if row > room else 1
    return min(Fraction(1), tile, room), passes


def _live_bytes(flow: Dataflow, costs: Costs) -> int:
    """Bytes of values that are in SBUF at a time, at most, of a tile that is everything."""
    last = {}
    for number, row in enumerate(flow.rows):
        for operand in row.operands:
            last[flow.view[operand]] = number
    for result in flow.results:
        last[flow.view[result]] = len(flow.rows)
    sizes = [
        value.elements * kind.size_bytes
        for value, kind in zip(flow.values, flow.stored, strict=True)
    ]
    live = most = sum(sizes[value] for value in range(flow.parameters))
    ends: dict[int, list[int]] = {}
    for value, number in last.items():
        ends.setdefault(number, []).append(value)
    for number, row in enumerate(flow.rows):
        if costs[number] is not None:
            live += sum(sizes[result] for result in row.results)
            most = max(most, live)
        live -= sum(
            sizes[value]
            for value in ends.get(number, ())
            if value < flow.parameters or costs[flow.maker[value]] is not None
        )
    return most


def bytes_loaded(
    flow: Dataflow, reads: Sequence[int], passes: int, kept: Collection[int] = ()
) -> tuple[int, int]:
    """Bytes that are read from HBM, and as how many they count for DMA; what is kept is not."""
    read: set[int] = set()
    in_part: dict[int, list[FusedInstr]] = {}
    times = list(reads)
    for row in reversed(flow.rows):
        for place, operand in enumerate(row.operands):
            if row.opcode in READ_IN_PART and place == 0:
                in_part.setdefault(operand, []).append(row)
            else:
                read.add(operand)
            for result in row.results:
                times[operand] = max(times[operand], times[result])
    largest = max((value.elements for value in flow.values), default=1)
    bytes_read = dma_read = 0
    for value in range(flow.parameters):
        if value in kept:
            continue
        size = flow.values[value].size_bytes
        if value in read:
            often = max(times[value], passes if 2 * flow.values[value].elements > largest else 1, 1)
            bytes_read += size * often
            dma_read += size * often
        for row in in_part.get(value, ()) if value not in read else ():
            part = min(size, flow.values[row.results[0]].size_bytes)
            bytes_read += part
            dma_read += bytes_of_dma(part, contiguous_bytes(row, flow.values))
    return bytes_read, dma_read
