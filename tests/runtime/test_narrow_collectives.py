"""Collectives of elements that take one byte, and of those that numpy knows no strides for."""

import functools

import numpy as np
import pytest

import ncc_runtime
from ncc_runtime.execution.values.memory import Arena
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction
from tests.programs import collective_program

RANKS, ELEMENTS = 3, 6
BYTES = [dtype for dtype in DType if dtype.size_bytes == 1]
NUMBERS = [Reduction.ADD, Reduction.MULTIPLY, Reduction.MINIMUM, Reduction.MAXIMUM]
JOINED = {
    Reduction.ADD: np.add,
    Reduction.MULTIPLY: np.multiply,
    Reduction.MINIMUM: np.minimum,
    Reduction.MAXIMUM: np.maximum,
    Reduction.AND: np.bitwise_and,
    Reduction.OR: np.bitwise_or,
}
CASES = [
    (dtype, reduction)
    for dtype in BYTES
    for reduction in (NUMBERS if dtype.is_float else JOINED)
    if (dtype, reduction) != (DType.F8E8M0FNU, Reduction.ADD)  # it has no 3
]
REDUCING = [CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE_SCATTER]


def every_pattern(dtype: DType) -> np.ndarray:
    """Different elements on each rank; of floats, any bits."""
    numbers = np.random.default_rng(4).permutation(256)[: RANKS * ELEMENTS]
    raw = numbers.astype(np.uint8).reshape(RANKS, ELEMENTS)
    if dtype.is_float:
        return (raw & np.uint8(0xFF >> (8 - dtype.bits))).view(dtype.numpy)
    return wrapped(raw.astype(np.int64), dtype)


def wrapped(numbers: np.ndarray, dtype: DType) -> np.ndarray:
    """Integers of the dtype that are equal modulo its range; for pred, whether any is set."""
    if dtype is DType.PRED:
        return (numbers & 1).astype(bool)
    low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
    return ((numbers - low) % (1 << dtype.bits) + low).astype(dtype.numpy)


def values(dtype: DType) -> np.ndarray:
    """Floats of which every sum and product of three is a float of the dtype, or integers."""
    numbers = every_pattern(DType.U8).astype(np.int64)
    return (numbers % 2 + 1).astype(dtype.numpy) if dtype.is_float else wrapped(numbers, dtype)


def joined(array: np.ndarray, dtype: DType, reduction: Reduction) -> np.ndarray:
    """All ranks' elements, in numbers that hold every result."""
    wide = array.astype(np.float64 if dtype.is_float else np.int64)
    total = functools.reduce(JOINED[reduction], wide)
    if dtype is DType.PRED:
        return total != 0
    return total.astype(dtype.numpy) if dtype.is_float else wrapped(total, dtype)


@pytest.mark.parametrize("op", REDUCING, ids=lambda op: op.value)
@pytest.mark.parametrize(("dtype", "reduction"), CASES)
def test_a_reduction_of_bytes_joins_them_as_numbers(dtype, reduction, op):
    program = collective_program(op, RANKS, [ELEMENTS], dtype=dtype, reduction=reduction)
    array = values(dtype)
    output = ncc_runtime.load(program).run([array]).outputs[0]
    right = joined(array, dtype, reduction)
    parts = np.broadcast_to(right, (RANKS, ELEMENTS))
    if op is CollectiveOp.REDUCE_SCATTER:
        parts = right.reshape(RANKS, -1)
    assert output.tobytes() == np.ascontiguousarray(parts).tobytes()


@pytest.mark.parametrize("dtype", [*BYTES, DType.BF16, DType.C128], ids=lambda dtype: dtype.value)
@pytest.mark.parametrize(
    "op", [CollectiveOp.ALL_GATHER, CollectiveOp.ALL_TO_ALL, CollectiveOp.PERMUTE]
)
def test_a_collective_that_moves_bytes_changes_none(op, dtype):
    pairs = ((0, 1), (1, 2)) if op is CollectiveOp.PERMUTE else ()
    program = collective_program(op, RANKS, [ELEMENTS], dtype=dtype, pairs=pairs)
    array = every_pattern(dtype) if dtype.size_bytes == 1 else values(DType.U8).astype(dtype.numpy)
    output = ncc_runtime.load(program).run([array]).outputs[0]
    parts = array.reshape(RANKS, RANKS, -1)
    nothing = np.zeros(ELEMENTS * dtype.size_bytes, np.uint8).view(dtype.numpy)
    right = {
        CollectiveOp.ALL_GATHER: np.stack([array.reshape(-1)] * RANKS),
        CollectiveOp.ALL_TO_ALL: np.swapaxes(parts, 0, 1).reshape(RANKS, -1),
        CollectiveOp.PERMUTE: np.stack([nothing, array[0], array[1]]),
    }[op]
    assert (output.dtype, output.tobytes()) == (array.dtype, right.tobytes())


@pytest.mark.parametrize("dtype", list(DType), ids=lambda dtype: dtype.value)
def test_a_stretch_of_memory_is_written_in_place_whatever_its_dtype(dtype):
    arena = Arena(2, 8 * dtype.size_bytes)
    windows = arena.windows(dtype.numpy, 2)
    windows[np.array([0, 1]), np.array([3, 1])] = np.ones((2, 2), dtype.numpy)
    one, size = np.ones(2, dtype.numpy).tobytes(), dtype.size_bytes
    for rank, start in ((0, 3), (1, 1)):
        row = arena.row(rank, 0, 8 * size).tobytes()
        assert row == one.rjust((start + 2) * size, b"\0").ljust(8 * size, b"\0")
