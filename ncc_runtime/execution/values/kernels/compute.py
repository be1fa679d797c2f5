"""What compute instructions do, on all ranks of a batch at once.

Every array has the ranks first: [ranks, *shape]. A kernel takes operands and returns results; the
number of ranks in a batch must not change a bit of any rank's result, so sums run over contiguous
last axes and a dot is one whole GEMM per rank.
"""

import math

import attrs
import numpy as np

from ncc_runtime.execution.values.kernels import elementwise
from ncc_runtime.execution.values.kernels.folds import fold
from ncc_runtime.execution.values.kernels.indexing import INDEXING_KERNELS
from ncc_runtime.execution.values.kernels.numbers import canonical_nans, is_narrow_float, keeps_bits
from ncc_runtime.execution.values.kernels.numeric import METHOD_KERNELS, rng_bit_generator
from ncc_runtime.execution.values.kernels.ordering import ORDERING_KERNELS
from ncc_runtime.execution.values.kernels.products import convolution, dot, ragged_dot
from ncc_runtime.execution.values.kernels.regions import evaluate
from ncc_runtime.execution.values.kernels.windows import reduce_window, select_and_scatter
from ncc_runtime.execution.values.kernels.work import Arrays, Kernel, KernelCall, KernelInto
from ncc_runtime.neff.isa import FUSION, OPCODES, Shape
from ncc_runtime.neff.program import CONSTANT, FusedInstr, Fusion
from ncc_runtime.neff.shared.dtypes import scalar


def compute(
    call: KernelCall, operands: Arrays, out: np.ndarray | None = None, *, any_nans: bool = False
) -> Arrays:
    """The results of an instruction, each [ranks, *shape] of its tensor.

    They may lie in `out`, memory for the first one; what it holds is else undefined. NaNs that are
    computed are canonical, unless they may be any.
    """
    if not any(math.prod(result.shape) for result in call.results):
        # Kernels may make arrays as long as one dimension; beside an empty one it may be any size.
        ranks = len(call.ranks)
        return [np.empty((ranks, *result.shape), result.dtype.numpy) for result in call.results]
    shape = OPCODES[call.opcode].shape
    if shape in _ELEMENTWISE:
        dtype = call.results[0].dtype
        results = [elementwise.apply(call.opcode, operands, dtype, call.attributes)]
    elif call.opcode in KERNELS_INTO:
        results = KERNELS_INTO[call.opcode](call, operands, out)
    else:
        results = KERNELS[call.opcode](call, operands)
    if any_nans or shape in _MOVES or (operands and keeps_bits(call.opcode, operands[0].dtype)):
        return results
    if shape in _ELEMENTWISE and is_narrow_float(results[0].dtype):
        return results  # canonical since they were rounded
    return [canonical_nans(result) for result in results]


_ELEMENTWISE = (Shape.UNARY, Shape.BINARY, Shape.TERNARY)
_MOVES = (Shape.MOVE, Shape.MAP, Shape.FOLD, Shape.FUSED)
"""Opcodes that leave NaNs alone; regions and fusions have made those that they compute canonical.
"""


def _iota(call: KernelCall, _: Arrays) -> Arrays:
    result = call.results[0]
    dimension = call.integer("iota_dimension")
    numbers = np.arange(result.shape[dimension]).astype(result.dtype.numpy)
    shape = [1] * (len(result.shape) + 1)
    shape[dimension + 1] = -1
    return [np.broadcast_to(numbers.reshape(shape), (len(call.ranks), *result.shape))]


def _partition_id(call: KernelCall, _: Arrays) -> Arrays:
    return [(call.ranks % call.program.num_partitions).astype(call.results[0].dtype.numpy)]


def _replica_id(call: KernelCall, _: Arrays) -> Arrays:
    return [(call.ranks // call.program.num_partitions).astype(call.results[0].dtype.numpy)]


def _broadcast(call: KernelCall, operands: Arrays) -> Arrays:
    shape = call.results[0].shape
    sizes = [1] * len(shape)
    for axis, dimension in enumerate(call.integers("dimensions")):
        sizes[dimension] = operands[0].shape[axis + 1]
    order = np.argsort(call.integers("dimensions"), kind="stable")
    operand = operands[0].transpose(0, *(int(axis) + 1 for axis in order))
    return [np.broadcast_to(operand.reshape(len(operand), *sizes), (len(call.ranks), *shape))]


def _reshape(call: KernelCall, operands: Arrays) -> Arrays:
    return [operands[0].reshape(len(call.ranks), *call.results[0].shape)]


STRIP = 64
"""Elements: rows of a cache's line or more, few enough that their lines stay in the first cache."""


def _transpose(call: KernelCall, operands: Arrays, out: np.ndarray | None = None) -> Arrays:
    array = operands[0].transpose(0, *(axis + 1 for axis in call.integers("dimensions")))
    steps = [abs(step) for step in array.strides]
    inner = steps.index(min(steps))
    if out is None or inner == array.ndim - 1 or array[0].nbytes < STRIP**2:
        return [array]
    # Row by row of the result each element would be of another line of the cache. So strips along
    # the operand's inner dimension are copied as they lie, and turned from there.
    bits = np.dtype(f"u{array.itemsize}") if array.itemsize in (1, 2, 4, 8) else array.dtype
    source, target = array.view(bits), out.view(bits)
    order = np.argsort([-step for step in steps], kind="stable").tolist()
    back = np.argsort(order).tolist()
    for rank in range(len(array)):
        for start in range(0, array.shape[inner], STRIP):
            at = [slice(None)] * array.ndim
            at[0], at[inner] = slice(rank, rank + 1), slice(start, start + STRIP)
            strip = np.ascontiguousarray(source[tuple(at)].transpose(order))
            target[tuple(at)] = strip.transpose(back)
    return [out]


def _slice(call: KernelCall, operands: Arrays) -> Arrays:
    bounds = (call.integers(name) for name in ("start", "limit", "stride"))
    slices = (slice(*bound) for bound in zip(*bounds, strict=True))
    return [operands[0][(slice(None), *slices)]]


def _concatenate(call: KernelCall, operands: Arrays, out: np.ndarray | None = None) -> Arrays:
    return [np.concatenate(operands, axis=call.integer("dimension") + 1, out=out)]


def _reverse(call: KernelCall, operands: Arrays) -> Arrays:
    return [np.flip(operands[0], tuple(d + 1 for d in call.integers("dimensions")))]


def _reduce(call: KernelCall, operands: Arrays) -> Arrays:
    count = len(operands) // 2
    dimensions = call.integers("dimensions")
    return fold(call.region(), operands[:count], operands[count:], dimensions)


def _map(call: KernelCall, operands: Arrays) -> Arrays:
    results = evaluate(call.region(), operands)
    return [np.broadcast_to(result, operands[0].shape) for result in results]


_CHUNK_BYTES = 1 << 22
"""A fusion is computed for so many ranks at a time that its largest value stays in a cache."""


def _fusion(call: KernelCall, operands: Arrays) -> Arrays:
    fusion = call.program.fusions[call.integer("fusion")]
    ranks = len(call.ranks)
    at_once = _CHUNK_BYTES // max(1, *(value.size_bytes for value in fusion.values)) or 1
    if at_once >= ranks:
        return _fused(fusion, call, operands)
    results = [np.empty((ranks, *result.shape), result.dtype.numpy) for result in call.results]
    for first in range(0, ranks, at_once):
        rows = slice(first, first + at_once)
        part = attrs.evolve(call, ranks=call.ranks[rows])
        values = _fused(fusion, part, [operand[rows] for operand in operands])
        for result, value in zip(results, values, strict=True):
            result[rows] = value
    return results


def _fused(fusion: Fusion, call: KernelCall, operands: Arrays) -> Arrays:
    """The rows of a fusion one after the other, each as an instruction of its own would do it.

    So the bits are those of the same operations unfused.
    """
    last_use = {value: row for row, step in enumerate(fusion.body) for value in step.operands}
    views = read_in_any_layout(fusion)
    values = dict(enumerate(operands))
    for row, step in enumerate(fusion.body):
        types = fusion.types(step.results)
        part = KernelCall(call.program, step.opcode, step.attributes, types, call.ranks)
        results = fused_step(part, step, [values[operand] for operand in step.operands])
        for value, kind, array in zip(step.results, types, results, strict=True):
            typed = array.astype(kind.dtype.numpy, copy=False)
            values[value] = typed if value in views else np.ascontiguousarray(typed)
        for value in {*step.operands, *step.results}:
            if last_use.get(value, row) == row and value not in fusion.results:
                del values[value]
    return [values[value] for value in fusion.results]


def fused_step(
    call: KernelCall,
    step: FusedInstr,
    operands: Arrays,
    out: np.ndarray | None = None,
    *,
    any_nans: bool = False,
) -> Arrays:
    """The results of one row of a fusion, as `compute` gives them."""
    if step.opcode != CONSTANT:
        return compute(call, operands, out, any_nans=any_nans)
    assert step.constant is not None, "a constant of a fusion has a value"
    dtype = call.results[0].dtype
    return [np.full(len(call.ranks), scalar(step.constant, dtype), dtype.numpy)]


def read_in_any_layout(fusion: Fusion) -> frozenset[int]:
    """Values that need not be laid out row by row before they are read, such as broadcasts."""
    needed = {
        value for step in fusion.body if step.opcode not in _ANY_LAYOUT for value in step.operands
    }
    return frozenset(range(len(fusion.values))) - needed - set(fusion.results)


_ANY_LAYOUT = frozenset(
    {
        *(name for name, row in OPCODES.items() if row.shape in _ELEMENTWISE),
        *("broadcast", "reduce", "reshape"),
    }
)
"""Opcodes whose results have the same bits however their operands lie in memory."""


KERNELS_INTO: dict[str, KernelInto] = {
    "concatenate": _concatenate,
    "convolution": convolution,
    "dot": dot,
    "transpose": _transpose,
    **INDEXING_KERNELS,
}
"""Opcodes that write into memory for their result where they are given some, no operand's."""

KERNELS: dict[str, Kernel] = {
    **KERNELS_INTO,
    "broadcast": _broadcast,
    FUSION: _fusion,
    "ragged-dot": ragged_dot,
    "iota": _iota,
    "map": _map,
    "partition-id": _partition_id,
    "reduce": _reduce,
    "reduce-window": reduce_window,
    "replica-id": _replica_id,
    "reshape": _reshape,
    "reverse": _reverse,
    "rng-bit-generator": rng_bit_generator,
    "select-and-scatter": select_and_scatter,
    "slice": _slice,
    **METHOD_KERNELS,
    **ORDERING_KERNELS,
}
"""Every compute opcode that is not elementwise."""
