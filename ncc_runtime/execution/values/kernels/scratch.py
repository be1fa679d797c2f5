"""How much memory a kernel takes beside its operands and results, before it runs.

Bytes of the arrays that numpy makes on the way, at their height; measured for each kind of kernel
(tests/runtime/test_host_memory.py holds these to it), and on the safe side for those that are rare.
"""

import math
from collections.abc import Sequence

import numpy as np

from ncc_runtime.execution.values.kernels.blockwise import BLOCK_BYTES, BlockPlan
from ncc_runtime.execution.values.kernels.numbers import HOST_FLOATS, wide_type
from ncc_runtime.execution.values.kernels.products import PATCH_ELEMENTS
from ncc_runtime.neff.isa import OPCODES, Shape
from ncc_runtime.neff.program import CONSTANT, Typed

_VIEWS = frozenset({"broadcast", "copy", "iota", "reshape", "reverse", "slice", "transpose"})
"""Opcodes that give views of their operands, which are copied into the results."""

_ELEMENTWISE = (Shape.UNARY, Shape.BINARY, Shape.TERNARY)

_INDEX = 8
"""Bytes of an index as kernels compute with it."""


def step_bytes(opcode: str, operands: Sequence[Typed], results: Sequence[Typed]) -> int:
    """Of one rank, for an operation that is performed whole: its results are new arrays too."""
    read = sum(_wide_bytes(one) for one in operands)
    written = sum(one.size_bytes for one in results)
    wide = sum(_wide_bytes(one) for one in results)
    is_converted = any(_wide(one) != one.dtype.numpy for one in (*operands, *results))
    if opcode in _VIEWS:
        return 0
    if opcode == CONSTANT or opcode in ("concatenate", "dynamic-update-slice", "pad"):
        return written
    if opcode == "dynamic-slice":
        return 2 * written
    if OPCODES[opcode].shape in _ELEMENTWISE:
        return written + 2 * wide + (read if is_converted else 0)
    if opcode == "dot":
        is_blas = not is_converted and results[0].dtype.numpy in HOST_FLOATS
        exact = 1 if is_blas or results[0].dtype.is_float else 2  # integers are summed in 8 bytes
        return written if is_blas else written + exact * 2 * (read + 2 * wide)
    if opcode == "gather":
        return written + 3 * _INDEX * operands[1].elements
    if opcode == "reduce":
        folded = operands[: len(operands) // 2]
        own = sum(one.size_bytes for one in folded)
        return own + 2 * sum(map(_wide_bytes, folded)) + written
    if opcode == "convolution":
        exact = 8 // min(8, _wide(results[0]).itemsize) if results[0].dtype.is_integer else 1
        return 3 * exact * (read + wide) + 2 * exact * PATCH_ELEMENTS * _wide(results[0]).itemsize
    if opcode in ("reduce-window", "select-and-scatter"):
        return 4 * max(read, wide) + written
    # scatters, sorts and whatever else moves elements by their indices
    elements = sum(one.elements for one in operands)
    return 3 * (read + wide) + 3 * _INDEX * elements


def plan_bytes(plan: BlockPlan) -> int:
    """Of a thread that performs a fusion block by block, for as many ranks as it does at once."""
    fusion, at_once = plan.fusion, max(1, BLOCK_BYTES // plan.rank_bytes)
    kept, whole, in_blocks = set(plan.kept), 0, 0
    for level in plan.levels:
        for row in level.whole:
            step = fusion.body[row]
            kept.update(step.results)
            operands, results = fusion.types(step.operands), fusion.types(step.results)
            whole = max(whole, step_bytes(step.opcode, operands, results))
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
