"""The work of moves, which DMA does alone, from memory to memory."""

import math
from collections.abc import Sequence
from fractions import Fraction

from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.program import FusedInstr, Typed
from ncc_runtime.neff.work.tensor_engine import permuted, transposing_cycles
from ncc_runtime.neff.work.work import (
    DMA_ROW_BYTES,
    PARTITIONS,
    TILE_COLUMNS,
    Mode,
    Work,
    WorkPhase,
)

READ_IN_PART = frozenset({"dynamic-slice", "gather", "slice"})
"""What reads a part of its first operand."""

MOVES = frozenset(
    {
        *("concatenate", "copy", "dynamic-slice", "dynamic-update-slice", "gather", "pad"),
        *("reshape", "reverse", "slice", "transpose"),
    }
)
"""What DMA does alone, from HBM to HBM; a transposition whose runs are short takes Tensor."""


def work_of_move(row: FusedInstr, values: Sequence[Typed], is_in_place: bool) -> Work:
    """A move that DMA does alone: one DMA, from memory to memory."""
    result = values[row.results[0]]
    run = contiguous_bytes(row, values)
    operands = [values[operand] for operand in row.operands]
    whole = 0  # of an update that is not in place: the array is copied first
    if row.opcode == "dynamic-update-slice":
        size = operands[1].size_bytes
        whole = 0 if is_in_place else operands[0].size_bytes
        read = written = size
    elif row.opcode in READ_IN_PART:
        read = written = result.size_bytes
    else:
        read = sum(operand.size_bytes for operand in operands)
        written = result.size_bytes
    starts, phases = 1, tuple[WorkPhase, ...]()
    dma_read, dma_written = bytes_of_dma(read, run) + whole, bytes_of_dma(written, run) + whole
    if row.opcode == "concatenate":
        along = row.attributes["dimension"]
        assert isinstance(along, int), row.opcode
        dma_read = dma_written = sum(
            bytes_of_dma(view.size_bytes, math.prod(view.shape[along:]) * view.dtype.size_bytes)
            for view in operands
        )
    if run < min(DMA_ROW_BYTES, result.size_bytes) and row.opcode == "transpose":
        phases = _through_array(row, values)
        starts, dma_read, dma_written = 2, read, written
    if row.opcode == "gather":  # GpSimd writes the descriptors once it has the indices
        starts, indices = 2, operands[1].elements
        phases = (WorkPhase({(Engine.GPSIMD, Mode.FULL): indices}, {}, {Engine.GPSIMD: 1}),)
        read += operands[1].size_bytes
        dma_read += operands[1].size_bytes
    tile = min(Fraction(1), Fraction(PARTITIONS * TILE_COLUMNS, max(1, result.elements)))
    return Work(phases, read + whole, written + whole, dma_read, dma_written, tile, starts)


def work_of_scatter(row: FusedInstr, values: Sequence[Typed], is_in_place: bool) -> Work:
    """Windows are fetched, joined with updates by GpSimd and put back, by DMA."""
    arrays = len(row.results)
    operands = [values[operand] for operand in row.operands]
    whole = 0 if is_in_place else sum(view.size_bytes for view in operands[:arrays])
    indices = operands[min(arrays, len(operands) - 1)]
    updates = sum(view.size_bytes for view in operands[arrays + 1 :])
    run = updates // max(1, _windows(row, values))
    elements = sum(view.elements for view in operands[arrays + 1 :])
    chain = {Engine.GPSIMD: 1}
    most = max(view.elements for view in operands)
    return Work(
        (WorkPhase({(Engine.GPSIMD, Mode.FULL): elements}, {}, chain),),
        bytes_read=whole + indices.size_bytes + 2 * updates,
        bytes_written=whole + updates,
        dma_read=whole + indices.size_bytes + updates + bytes_of_dma(updates, run),
        dma_written=whole + bytes_of_dma(updates, run),
        tile=min(Fraction(1), Fraction(PARTITIONS * TILE_COLUMNS, max(1, most))),
        starts=3,  # indices, windows and updates, results
    )


def _windows(row: FusedInstr, values: Sequence[Typed]) -> int:
    """How many windows of each array a scatter writes."""
    updates = values[row.operands[-1]].shape
    of_window = row.attributes["update_window_dims"]
    assert isinstance(of_window, tuple), row.opcode
    return math.prod(size for at, size in enumerate(updates) if at not in of_window)


def _through_array(row: FusedInstr, values: Sequence[Typed]) -> tuple[WorkPhase, ...]:
    """A transposition by the Tensor engine, far quicker than DMA element by element."""
    result = values[row.results[0]]
    lanes = {(Engine.VECTOR, Mode.FULL): result.elements * max(1, result.dtype.size_bytes // 4)}
    passes = {result.dtype: transposing_cycles(row, values)}
    return (WorkPhase(lanes, passes, {Engine.TENSOR: 1, Engine.VECTOR: 1}),)


def contiguous_bytes(row: FusedInstr, values: Sequence[Typed]) -> int:
    """Bytes that lie one after the other where they are read and where they are written."""
    result, operand = values[row.results[0]], values[row.operands[0]]
    size = result.dtype.size_bytes
    match row.opcode:
        case "slice":
            strides = row.attributes["stride"]
            assert isinstance(strides, tuple), row.opcode
            if any(step > 1 for step in strides[-1:]):
                return size
            return size * _contiguous(result.shape, operand.shape)
        case "dynamic-slice":
            return size * _contiguous(result.shape, operand.shape)
        case "dynamic-update-slice":
            return size * _contiguous(values[row.operands[1]].shape, operand.shape)
        case "pad":
            return size * _contiguous(operand.shape, result.shape)
        case "reverse":
            dimensions = row.attributes["dimensions"]
            assert isinstance(dimensions, tuple), row.opcode
            return size * math.prod(operand.shape[max(dimensions, default=-1) + 1 :])
        case "transpose":
            shape, order = permuted(row, values)
            kept = len(shape)
            while kept and order[kept - 1] == kept - 1:
                kept -= 1
            return size * math.prod(shape[kept:])
        case "gather":
            windows = row.attributes["slice_sizes"]
            assert isinstance(windows, tuple), row.opcode
            return size * _contiguous(windows, operand.shape)
    return result.size_bytes


def _contiguous(part: Sequence[int], whole: Sequence[int]) -> int:
    """Elements of a box that lie one after the other in the array that it is cut out of."""
    elements = 1
    for size, full in zip(reversed(part), reversed(whole), strict=True):
        elements *= size
        if size != full:
            break
    return elements


def bytes_of_dma(size: int, run: int) -> int:
    """Bytes as DMA counts them, if they come in runs of so many."""
    return size if run >= DMA_ROW_BYTES else -(-size // max(1, run)) * DMA_ROW_BYTES
