"""What compute instructions do, on all ranks of a batch at once.

Every array has the ranks first: [ranks, *shape]. A kernel takes operands and returns results; the
number of ranks in a batch must not change a bit of any rank's result, so sums run over contiguous
last axes and a dot is one whole GEMM per rank.
"""

import math

import numpy as np

from ncc_runtime.execution.values.kernels import elementwise
from ncc_runtime.execution.values.kernels.indexing import INDEXING_KERNELS, scatter
from ncc_runtime.execution.values.kernels.numbers import canonical_nans, keeps_bits
from ncc_runtime.execution.values.kernels.numeric import METHOD_KERNELS, rng_bit_generator
from ncc_runtime.execution.values.kernels.ordering import ORDERING_KERNELS
from ncc_runtime.execution.values.kernels.products import convolution, dot, ragged_dot
from ncc_runtime.execution.values.kernels.regions import evaluate, fold
from ncc_runtime.execution.values.kernels.windows import reduce_window, select_and_scatter
from ncc_runtime.execution.values.kernels.work import Arrays, Kernel, KernelCall
from ncc_runtime.neff.isa import OPCODES, Shape


def compute(call: KernelCall, operands: Arrays) -> Arrays:
    """The results of an instruction, each [ranks, *shape] of its tensor."""
    if not any(math.prod(result.shape) for result in call.results):
        # Kernels may make arrays as long as one dimension; beside an empty one it may be any size.
        ranks = len(call.ranks)
        return [np.empty((ranks, *result.shape), result.dtype.numpy) for result in call.results]
    shape = OPCODES[call.opcode].shape
    if shape in _ELEMENTWISE:
        dtype = call.results[0].dtype
        results = [elementwise.apply(call.opcode, operands, dtype, call.attributes)]
    else:
        results = KERNELS[call.opcode](call, operands)
    if shape in _MOVES or (operands and keeps_bits(call.opcode, operands[0].dtype)):
        return results
    return [canonical_nans(result) for result in results]


_ELEMENTWISE = (Shape.UNARY, Shape.BINARY, Shape.TERNARY)
_MOVES = (Shape.MOVE, Shape.MAP, Shape.FOLD)
"""Opcodes that leave NaNs alone; regions have made those that they compute canonical."""


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


def _transpose(call: KernelCall, operands: Arrays) -> Arrays:
    return [operands[0].transpose(0, *(axis + 1 for axis in call.integers("dimensions")))]


def _slice(call: KernelCall, operands: Arrays) -> Arrays:
    bounds = (call.integers(name) for name in ("start", "limit", "stride"))
    slices = (slice(*bound) for bound in zip(*bounds, strict=True))
    return [operands[0][(slice(None), *slices)]]


def _concatenate(call: KernelCall, operands: Arrays) -> Arrays:
    return [np.concatenate(operands, axis=call.integer("dimension") + 1)]


def _reduce(call: KernelCall, operands: Arrays) -> Arrays:
    count = len(operands) // 2
    dimensions = call.integers("dimensions")
    return fold(call.region(), operands[:count], operands[count:], dimensions)


def _map(call: KernelCall, operands: Arrays) -> Arrays:
    results = evaluate(call.region(), operands)
    return [np.broadcast_to(result, operands[0].shape) for result in results]


KERNELS: dict[str, Kernel] = {
    "broadcast": _broadcast,
    "concatenate": _concatenate,
    "convolution": convolution,
    "dot": dot,
    "ragged-dot": ragged_dot,
    "iota": _iota,
    "map": _map,
    "partition-id": _partition_id,
    "reduce": _reduce,
    "reduce-window": reduce_window,
    "replica-id": _replica_id,
    "reshape": _reshape,
    "rng-bit-generator": rng_bit_generator,
    "select-and-scatter": select_and_scatter,
    "slice": _slice,
    "transpose": _transpose,
    "scatter": scatter,
    **INDEXING_KERNELS,
    **METHOD_KERNELS,
    **ORDERING_KERNELS,
}
"""Every compute opcode that is not elementwise."""
