"""How much memory a kernel takes beside its operands and results, before it runs.

Bytes of the arrays that numpy makes on the way, at their height; measured for each kind of kernel
(tests/runtime/test_host_memory.py holds these to it), and on the safe side for those that are rare.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from ncc_runtime.execution.values.kernels.blockwise import BLOCK_BYTES, BlockPlan
from ncc_runtime.execution.values.kernels.folds import SUMS
from ncc_runtime.execution.values.kernels.numbers import HOST_FLOATS, wide_type
from ncc_runtime.execution.values.kernels.products import PATCH_ELEMENTS
from ncc_runtime.execution.values.kernels.regions import single_opcode
from ncc_runtime.neff.isa import OPCODES, Shape
from ncc_runtime.neff.program import CONSTANT, AttributeValue, Program, Typed

_VIEWS = frozenset({"broadcast", "copy", "iota", "reshape", "reverse", "slice", "transpose"})
"""Opcodes that give views of their operands, which are copied into the results."""

_ELEMENTWISE = (Shape.UNARY, Shape.BINARY, Shape.TERNARY)

_INDEX = 8
"""Bytes of an index, and of what integers are multiplied in, as kernels compute with them."""

_SORTED_INDEX = 60
"""Bytes for each index of a scatter, which sorts them."""


def step_bytes(
    program: Program,
    opcode: str,
    attributes: Mapping[str, AttributeValue],
    operands: Sequence[Typed],
    results: Sequence[Typed],
) -> int:
    """Of one rank, for an operation that is performed whole: its results are new arrays too."""
    own, written = (sum(one.size_bytes for one in some) for some in (operands, results))
    read, wide = (sum(map(_wide_bytes, some)) for some in (operands, results))
    if opcode in _VIEWS:
        return 0
    if opcode in (CONSTANT, "concatenate", "dynamic-update-slice", "pad"):
        return written
    if opcode == "dynamic-slice":
        return 2 * written
    if OPCODES[opcode].shape in _ELEMENTWISE:
        return written + 2 * wide + (read if read > own else 0)
    if opcode == "dot":
        if results[0].dtype.is_float or results[0].dtype.is_complex:
            return written + (read + wide if (read, wide) != (own, written) else 0)
        return written + _INDEX * sum(one.elements for one in (*operands, *results, *results))
    if opcode == "gather":
        return written + 2 * _INDEX * operands[1].elements
    if opcode == "scatter":
        return 3 * own + read - own + _SORTED_INDEX * operands[len(results)].elements
    if opcode in ("sort", "topk"):
        return _INDEX * operands[0].elements + 2 * operands[0].size_bytes + own
    if opcode == "reduce":
        return _fold_bytes(program, attributes, operands) + written
    if opcode == "convolution":
        kind = _wide(results[0]).itemsize
        exact = 1 if results[0].dtype.is_float else max(1, _INDEX // kind)
        return int(3.5 * exact * (read + wide)) + 2 * exact * kind * PATCH_ELEMENTS
    if opcode in ("reduce-window", "select-and-scatter"):
        return 6 * max(read, wide) + written
    return 5 * (read + wide)


def _fold_bytes(
    program: Program, attributes: Mapping[str, AttributeValue], operands: Sequence[Typed]
) -> int:
    folded = operands[: len(operands) // 2]
    region, dimensions = attributes["region"], attributes["dimensions"]
    assert isinstance(region, int), region
    assert isinstance(dimensions, tuple), dimensions
    own, wide = sum(one.size_bytes for one in folded), sum(map(_wide_bytes, folded))
    rank = len(folded[0].shape)
    is_last = sorted(dimensions) == [*range(rank - len(dimensions), rank)]
    copied = 0 if is_last else own
    if single_opcode(program.regions[region]) in SUMS and _wide(folded[0]) in HOST_FLOATS:
        return copied + (wide + wide // 2 if wide > own else 0)
    return own + 2 * wide


def plan_bytes(plan: BlockPlan) -> int:
    """Of a thread that performs a fusion block by block, for as many ranks as it does at once."""
    fusion, at_once = plan.fusion, max(1, BLOCK_BYTES // plan.rank_bytes)
    kept, whole, in_blocks = set(plan.kept), 0, 0
    for level in plan.levels:
        for row in level.whole:
            step = fusion.body[row]
            kept.update(step.results)
            operands, results = fusion.types(step.operands), fusion.types(step.results)
            own = step_bytes(plan.program, step.opcode, step.attributes, operands, results)
            whole = max(whole, own)
        for loop in level.loops:
            sizes = [
                _wide(fusion.values[value]).itemsize * math.prod(plan.block_shape(loop, value))
                for row in loop.steps
                for value in fusion.body[row].results
            ]
            # few values of a loop are alive at a time, and a step has few arrays beside them
            largest = max(sizes, default=0)
            in_blocks = max(in_blocks, min(sum(sizes), 6 * largest) + 3 * largest)
    beside = sum(fusion.values[value].size_bytes for value in kept.difference(fusion.results))
    return at_once * (beside + whole + in_blocks)


def _wide(one: Typed) -> np.dtype:
    return wide_type(one.dtype.numpy)


def _wide_bytes(one: Typed) -> int:
    return one.elements * _wide(one).itemsize
