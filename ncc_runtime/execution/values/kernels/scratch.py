"""How much memory a kernel takes beside its operands and results, before it runs.

Bytes of the arrays that numpy makes on the way, at their height; measured for each kind of kernel
(tests/runtime/test_host_memory.py holds these to it), and on the safe side for those that are rare.
"""

import math
from collections.abc import Iterable, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.values.kernels.blockwise import BLOCK_BYTES, BlockPlan
from ncc_runtime.execution.values.kernels.compute import KERNELS_INTO, STRIP
from ncc_runtime.execution.values.kernels.folds import PART_ELEMENTS, SUMS, has_loop
from ncc_runtime.execution.values.kernels.indexing import elements_of_row, scatters_in_place
from ncc_runtime.execution.values.kernels.numbers import HOST_FLOATS, is_narrow_float, wide_type
from ncc_runtime.execution.values.kernels.products import PATCH_ELEMENTS
from ncc_runtime.execution.values.kernels.regions import single_opcode
from ncc_runtime.execution.values.kernels.windows import NEUTRAL, padded_shape
from ncc_runtime.execution.values.kernels.work import KernelCall
from ncc_runtime.neff.isa import OPCODES, Shape
from ncc_runtime.neff.program import CONSTANT, AttributeValue, Program, Typed
from ncc_runtime.neff.shared.windows import WindowDimension, read_labels, read_window

_VIEWS = frozenset({"broadcast", "copy", "iota", "reshape", "reverse", "slice"})
"""Opcodes that give views of their operands, which are copied into the results."""

_ELEMENTWISE = (Shape.UNARY, Shape.BINARY, Shape.TERNARY)

_INDEX = 8
"""Bytes of an index, and of what integers are multiplied in, as kernels compute with them."""

_SORTED_INDEX = 68
"""Bytes for each index, or row, of updates of a scatter, which sorts them."""

_Attributes = Mapping[str, AttributeValue]


@attrs.frozen
class Held:
    """Memory that a thread keeps for the next product or convolution (`ThreadMemory`), in bytes."""

    left: int = 0
    right: int = 0
    sums: int = 0
    patches: int = 0
    other_sums: int = 0

    @property
    def all(self) -> int:
        """Of one thread."""
        return sum(attrs.astuple(self))


def most_held(some: Iterable[Held]) -> Held:
    """What is kept after all of them: of each kind the largest."""
    return Held(*map(max, zip(*map(attrs.astuple, [Held(), *some]), strict=True)))


@attrs.frozen
class HostBytes:
    """What an operation takes, in bytes.

    - `each`: for each rank that is computed at the same time
    - `once`: however many these are: for one rank after another, or one part
    - `held`: what the thread keeps then
    """

    each: int = 0
    once: int = 0
    held: Held = Held()

    def of(self, ranks: int) -> int:
        """Without what the thread keeps."""
        return self.each * ranks + self.once


def step_scratch(
    program: Program,
    opcode: str,
    attributes: _Attributes,
    operands: Sequence[Typed],
    results: Sequence[Typed],
    *,
    writes_in_place: bool = False,
) -> HostBytes:
    """Of an operation that is performed whole.

    Its results are new arrays too, unless it writes where they lie, if it can.
    """
    own, written = (sum(one.size_bytes for one in some) for some in (operands, results))
    read, wide = (sum(map(_wide_bytes, some)) for some in (operands, results))
    is_in_place = writes_in_place and opcode in KERNELS_INTO
    new = 0 if is_in_place else written
    if opcode in _VIEWS or (opcode == "transpose" and not is_in_place):
        return HostBytes()
    if opcode == "transpose":
        columns = max(1, *operands[0].shape[-1:])
        return HostBytes(once=2 * own * min(STRIP, columns) // columns)  # a strip and the next
    if opcode in (CONSTANT, "concatenate", "dynamic-update-slice", "pad"):
        return HostBytes(new)
    if opcode == "dynamic-slice":
        return HostBytes(written + new)
    if OPCODES[opcode].shape in _ELEMENTWISE:
        return HostBytes(written + 2 * wide + (read if read > own else 0))
    if opcode == "dot":
        return _product_scratch(operands, results[0], new)
    if opcode == "convolution":
        return _convolution_scratch(attributes, operands, results[0], new)
    if opcode == "gather":
        return _gather_scratch(attributes, operands, results[0], is_in_place)
    if opcode == "scatter":
        call = KernelCall(program, opcode, attributes, tuple(results), np.arange(0))
        is_in_place &= scatters_in_place(call, operands[0].shape, operands[-1].shape)
        row = elements_of_row(call, operands[0].shape, operands[-1].shape)
        return _scatter_scratch(operands, len(results), is_in_place, row)
    if opcode in ("sort", "topk"):
        return HostBytes(_INDEX * operands[0].elements + 2 * operands[0].size_bytes + own)
    if opcode == "reduce":
        return _fold_scratch(program, attributes, operands, written)
    if opcode == "reduce-window":
        return _window_scratch(program, attributes, operands[0], results[0])
    if opcode == "select-and-scatter":
        return HostBytes(6 * max(read, wide) + written)
    return HostBytes(5 * (read + wide))


def _is_summed_as_it_is(operands: Sequence[Typed], result: Typed) -> bool:
    """Whether a product is of float32, float64 or complex numbers of one type."""
    is_host = result.dtype.is_complex or result.dtype.numpy in HOST_FLOATS
    return is_host and all(one.dtype is result.dtype for one in operands)


def _canonical_bytes(result: Typed) -> int:
    """To make NaNs the canonical one."""
    size = result.size_bytes
    return size * 5 // 2 if is_narrow_float(result.dtype.numpy) else size * result.dtype.is_float


def _rounded_bytes(result: Typed) -> int:
    """To round the sums of one rank: whole numbers by way of 64 bits."""
    is_whole = result.dtype.is_integer
    return result.size_bytes + _INDEX * result.elements * is_whole


def _product_scratch(operands: Sequence[Typed], result: Typed, new: int) -> HostBytes:
    each = max(new, _canonical_bytes(result))
    if _is_summed_as_it_is(operands, result):
        return HostBytes(each)
    kind = _summed(operands, result)
    left, right = (one.elements * kind for one in operands)
    return HostBytes(
        new + _canonical_bytes(result),
        _rounded_bytes(result),
        Held(left, right, result.elements * kind),
    )


def _summed(operands: Sequence[Typed], result: Typed) -> int:
    """Bytes of the type that products are summed in, at most."""
    if result.dtype.is_float or result.dtype.is_complex:
        return max(_wide(one).itemsize for one in (*operands, result))
    return _INDEX


def _convolution_scratch(
    attributes: _Attributes, operands: Sequence[Typed], result: Typed, new: int
) -> HostBytes:
    window = read_window(str(attributes["window"]))
    labels = read_labels(str(attributes["dim_labels"]))
    source, kernel = operands
    kind = _summed(operands, result)
    batch, features, *spatial = (source.shape[axis] for axis in labels.input_dimensions)
    positions = (result.shape[axis] for axis in labels.result_dimensions[2:])
    padded = batch * features * math.prod(padded_shape(spatial, window))
    one_tap = batch * features * math.prod(positions)
    taps = math.prod(one.size for one in window.dimensions)
    patches = min(taps * one_tap, max(PATCH_ELEMENTS, result.elements, one_tap))
    is_same = _is_summed_as_it_is(operands, result)
    groups = (attributes["feature_groups"], attributes["batch_groups"])
    rank = len(result.shape)
    is_row_by_row = labels.result_dimensions == (0, rank - 1, *range(1, rank - 1))
    held = Held(
        0 if is_same else source.elements * kind,
        0 if is_same else kernel.elements * kind,
        0 if is_same and is_row_by_row and groups == (1, 1) else result.elements * kind,
        patches * kind,
        result.elements * kind if patches < taps * one_tap else 0,
    )
    rounded = _rounded_bytes(result) if held.sums else 0  # else sums are written where they lie
    once = padded * kind + 2 * kernel.elements * kind + rounded
    return HostBytes(new + _canonical_bytes(result), once, held)


def _gather_scratch(
    attributes: _Attributes, operands: Sequence[Typed], result: Typed, is_in_place: bool
) -> HostBytes:
    """Indices as numbers of 64 bits: read, clamped, joined."""
    sizes, offsets = attributes["slice_sizes"], attributes["offset_dims"]
    mapped = attributes["start_index_map"]
    assert isinstance(sizes, tuple), sizes
    assert isinstance(offsets, tuple), offsets
    assert isinstance(mapped, tuple), mapped
    shape, rank = operands[0].shape, len(result.shape)
    partial = [d for d, size in enumerate(sizes) if size != shape[d]]
    are_rows = partial == [*range(len(partial))] and all(sizes[d] == 1 for d in partial)
    is_in_place &= are_rows and offsets == (*range(rank - len(offsets), rank),)
    batch = operands[1].elements // max(1, len(mapped))
    beside = max(0, len(sizes) - len(mapped)) + 2
    indices = _INDEX * (2 * operands[1].elements + beside * batch)
    return HostBytes(indices + (0 if is_in_place else result.size_bytes))


def _scatter_scratch(
    operands: Sequence[Typed], count: int, is_in_place: bool, row: int
) -> HostBytes:
    """Tables of rows; updates that fit, those that share a target, in pairs, and combined.

    `row`: elements of a row. Of a window that is smaller than a dimension there are several.
    """
    tables, updates = operands[is_in_place:count], operands[count + 1 :]
    own = sum(one.size_bytes for one in updates)
    combined = 4 * own + 2 * (sum(map(_wide_bytes, updates)) - own)
    rows = operands[-1].elements // max(1, row)
    indices = _SORTED_INDEX * max(operands[count].elements, rows)
    return HostBytes(sum(one.size_bytes for one in tables) + combined + indices)


def _fold_scratch(
    program: Program, attributes: _Attributes, operands: Sequence[Typed], written: int
) -> HostBytes:
    """Arrays are folded part by part, and copied first where what is folded is no run."""
    folded = operands[: len(operands) // 2]
    number, dimensions = attributes["region"], attributes["dimensions"]
    assert isinstance(number, int), number
    assert isinstance(dimensions, tuple), dimensions
    region, first = program.regions[number], min(dimensions, default=0)
    is_run = sorted(dimensions) == [*range(first, first + len(dimensions))]
    each = 2 * written + (0 if is_run else sum(one.size_bytes for one in folded))
    opcode, kind = single_opcode(region), folded[0].dtype.numpy
    size = math.prod(folded[0].shape[dimension] for dimension in dimensions)
    part = min(folded[0].elements * program.ranks, PART_ELEMENTS)
    if has_loop(opcode, kind):
        if is_narrow_float(kind) or _wide(folded[0]) != kind:
            return HostBytes(each, 3 * part * _wide(folded[0]).itemsize)
        if opcode in SUMS and kind in HOST_FLOATS:
            return HostBytes(each, part * kind.itemsize * 3 // 2)
        if kind.kind == "f":  # the largest and the smallest look at zeros again
            return HostBytes(each, max(part, size) * (kind.itemsize + 3))
        return HostBytes(each)
    values = 6 * sum(_wide(one).itemsize for one in folded) + 4 * len(region.body)
    return HostBytes(each, part * values)


def _window_scratch(
    program: Program, attributes: _Attributes, operand: Typed, result: Typed
) -> HostBytes:
    number = attributes["region"]
    assert isinstance(number, int), number
    opcode, wide = single_opcode(program.regions[number]), _wide(operand)
    if opcode not in NEUTRAL or operand.dtype.is_complex:
        largest = max(_wide_bytes(operand), _wide_bytes(result))
        return HostBytes(6 * largest + result.size_bytes)
    window = read_window(str(attributes["window"]))
    alone = WindowDimension(size=1)
    first = next((k for k, one in enumerate(window.dimensions) if one != alone), len(operand.shape))
    rest = operand.shape[first:]
    beyond = math.prod(padded_shape(operand.shape, window)) / max(1, operand.elements)
    part = max(PART_ELEMENTS, math.prod(rest)) * max(1, beyond)
    return HostBytes(2 * result.size_bytes, int(6 * part) * wide.itemsize)


def plan_scratch(plan: BlockPlan, ranks: int) -> HostBytes:
    """Of a thread that performs a fusion block by block for so many ranks, some at once."""
    fusion, at_once = plan.fusion, min(ranks, max(1, BLOCK_BYTES // plan.rank_bytes))
    kept, in_blocks = set(plan.kept), 0
    whole: list[HostBytes] = []
    for level in plan.levels:
        for row in level.whole:
            step = fusion.body[row]
            kept.update(step.results)
            operands, results = fusion.types(step.operands), fusion.types(step.results)
            whole.append(
                step_scratch(plan.program, step.opcode, step.attributes, operands, results)
            )
        for loop in level.loops:
            written = [value for row in loop.steps for value in fusion.body[row].results]
            kinds = [fusion.values[value].dtype.numpy for value in written]
            sizes = [
                wide_type(kind).itemsize * math.prod(plan.block_shape(loop, value))
                for value, kind in zip(written, kinds, strict=True)
            ]
            # few values of a loop are alive at a time, and a step has few arrays beside them, with
            # one more where numpy rounds to narrow floats
            largest = max(sizes, default=0)
            few = 4 if any(map(is_narrow_float, kinds)) else 3
            in_blocks = max(in_blocks, min(sum(sizes), 6 * largest) + few * largest)
    beside = sum(fusion.values[value].size_bytes for value in kept.difference(fusion.results))
    return HostBytes(
        once=at_once * (beside + in_blocks) + max((one.of(at_once) for one in whole), default=0),
        held=most_held(one.held for one in whole),
    )


def _wide(one: Typed) -> np.dtype:
    return wide_type(one.dtype.numpy)


def _wide_bytes(one: Typed) -> int:
    return one.elements * _wide(one).itemsize
