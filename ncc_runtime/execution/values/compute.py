"""What compute instructions do, on all ranks of a batch at once.

Every array has the ranks first: [ranks, *shape]. A kernel takes operands and returns results; the
number of ranks in a batch must not change a bit of any rank's result, so sums run over contiguous
last axes and a dot is one whole GEMM per rank.
"""

from collections.abc import Callable, Mapping

import attrs
import numpy as np

from ncc_runtime.execution.values import elementwise
from ncc_runtime.execution.values.nans import canonical_nans
from ncc_runtime.execution.values.regions import fold
from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.isa import OPCODES, Shape
from ncc_runtime.neff.program import AttributeValue, Program, Tensor


@attrs.frozen(eq=False)
class Work:
    """One instruction on some ranks: what a kernel needs beside its operands."""

    program: Program
    opcode: str
    attributes: Mapping[str, AttributeValue]
    results: tuple[Tensor, ...]
    ranks: np.ndarray  # (r,) int32

    def integers(self, name: str) -> tuple[int, ...]:
        """An attribute that is a list of integers."""
        value = self.attributes[name]
        assert isinstance(value, tuple), f"{self.opcode}.{name} is {value!r}"
        return value

    def integer(self, name: str) -> int:
        """An attribute that is one integer."""
        value = self.attributes[name]
        assert isinstance(value, int), f"{self.opcode}.{name} is {value!r}"
        return value


Arrays = list[np.ndarray]
Kernel = Callable[[Work, Arrays], Arrays]


def compute(work: Work, operands: Arrays) -> Arrays:
    """The results of an instruction, each [ranks, *shape] of its tensor."""
    shape = OPCODES[work.opcode].shape
    if shape in _ELEMENTWISE:
        dtype = work.results[0].dtype
        results = [elementwise.apply(work.opcode, operands, dtype, work.attributes)]
    else:
        results = KERNELS[work.opcode](work, operands)
    if shape is Shape.MOVE or work.opcode in _KEEPS_BITS:
        return results
    return [canonical_nans(result) for result in results]


_KEEPS_BITS = ("copy", "select")


_ELEMENTWISE = (Shape.UNARY, Shape.BINARY, Shape.TERNARY)


def _iota(work: Work, _: Arrays) -> Arrays:
    result = work.results[0]
    dimension = work.integer("iota_dimension")
    numbers = np.arange(result.shape[dimension]).astype(result.dtype.numpy)
    shape = [1] * (len(result.shape) + 1)
    shape[dimension + 1] = -1
    return [np.broadcast_to(numbers.reshape(shape), (len(work.ranks), *result.shape))]


def _partition_id(work: Work, _: Arrays) -> Arrays:
    return [(work.ranks % work.program.num_partitions).astype(work.results[0].dtype.numpy)]


def _replica_id(work: Work, _: Arrays) -> Arrays:
    return [(work.ranks // work.program.num_partitions).astype(work.results[0].dtype.numpy)]


def _broadcast(work: Work, operands: Arrays) -> Arrays:
    shape = work.results[0].shape
    spread = [1] * len(shape)
    for axis, dimension in enumerate(work.integers("dimensions")):
        spread[dimension] = operands[0].shape[axis + 1]
    order = np.argsort(work.integers("dimensions"), kind="stable")
    operand = operands[0].transpose(0, *(int(axis) + 1 for axis in order))
    return [np.broadcast_to(operand.reshape(-1, *spread), (len(work.ranks), *shape))]


def _reshape(work: Work, operands: Arrays) -> Arrays:
    return [operands[0].reshape(len(work.ranks), *work.results[0].shape)]


def _transpose(work: Work, operands: Arrays) -> Arrays:
    return [operands[0].transpose(0, *(axis + 1 for axis in work.integers("dimensions")))]


def _slice(work: Work, operands: Arrays) -> Arrays:
    bounds = (work.integers(name) for name in ("start", "limit", "stride"))
    cut = tuple(slice(*bound) for bound in zip(*bounds, strict=True))
    return [operands[0][(slice(None), *cut)]]


def _concatenate(work: Work, operands: Arrays) -> Arrays:
    return [np.concatenate(operands, axis=work.integer("dimension") + 1)]


def _dot(work: Work, operands: Arrays) -> Arrays:
    left, right = (_contractable(array, work.results[0].dtype) for array in operands)
    left_batch, right_batch = work.integers("lhs_batch"), work.integers("rhs_batch")
    left_sum, right_sum = work.integers("lhs_contracting"), work.integers("rhs_contracting")
    left_free = _others(left.ndim - 1, left_batch + left_sum)
    right_free = _others(right.ndim - 1, right_batch + right_sum)
    batch = [left.shape[axis + 1] for axis in left_batch]
    rows = [left.shape[axis + 1] for axis in left_free]
    columns = [right.shape[axis + 1] for axis in right_free]
    left = left.transpose(0, *(axis + 1 for axis in (*left_batch, *left_free, *left_sum)))
    right = right.transpose(0, *(axis + 1 for axis in (*right_batch, *right_sum, *right_free)))
    count, inner = len(work.ranks), int(np.prod([operands[0].shape[k + 1] for k in left_sum]))
    width = int(np.prod(batch))
    product = np.matmul(
        left.reshape(count, width, int(np.prod(rows)), inner),
        right.reshape(count, width, inner, int(np.prod(columns))),
    )
    result = product.reshape(count, *batch, *rows, *columns)
    return [result.astype(work.results[0].dtype.numpy, copy=False)]


def _contractable(array: np.ndarray, result: DType) -> np.ndarray:
    """The operand of a dot in the type its products are summed in.

    That is the result's type, but float32 for narrow floats, which are rounded once at the end.
    """
    narrow = result.is_float and result.size_bytes < 4
    return array.astype(np.float32 if narrow else result.numpy, copy=False)


def _others(rank: int, taken: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(axis for axis in range(rank) if axis not in taken)


def _reduce(work: Work, operands: Arrays) -> Arrays:
    count = len(operands) // 2
    region = work.program.regions[work.integer("region")]
    return fold(region, operands[:count], operands[count:], work.integers("dimensions"))


KERNELS: dict[str, Kernel] = {
    "broadcast": _broadcast,
    "concatenate": _concatenate,
    "dot": _dot,
    "iota": _iota,
    "partition-id": _partition_id,
    "reduce": _reduce,
    "replica-id": _replica_id,
    "reshape": _reshape,
    "slice": _slice,
    "transpose": _transpose,
}
"""Every compute opcode that is not elementwise."""
