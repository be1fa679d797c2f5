"""What the Tensor engine's array takes for products and transpositions."""

import math
from collections.abc import Iterable, Sequence

from ncc_runtime.neff.isa import OPCODES, Shape
from ncc_runtime.neff.program import CONSTANT, AttributeValue, FusedInstr, Typed
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.windows import read_labels
from ncc_runtime.neff.work.work import PARTITIONS, SBUF_BYTES

MOVING_COLUMNS = 512
"""Columns that one instruction of the Tensor engine moves through the array at most."""

LEAST_CYCLES = 64
"""Cycles of the shortest instruction of an engine. Source: the cost formulas, MIN_II."""

_DOT = ("lhs_batch", "rhs_batch", "lhs_contracting", "rhs_contracting")


def is_product_row(row: FusedInstr) -> bool:
    """Whether a row is a matrix product or a convolution."""
    return row.opcode != CONSTANT and OPCODES[row.opcode].shape is Shape.CONTRACT


def wider(left: DType, right: DType) -> DType:
    """The dtype of two that the array multiplies as slowly as both together."""
    return max(left, right, key=lambda kind: (kind.size_bytes, not kind.is_float))


def product_cycles(m: int, k: int, n: int) -> int:
    """Cycles of the array for [m, k] x [k, n] in bfloat16; float32 takes more by its peak.

    A tile of 128 x 128 of one operand is loaded and up to 512 columns of the other are moved
    through it, in max(min(64, columns of the tile), columns moved) cycles; the operand that is
    loaded is the one that makes fewer. Source: cost formula of nki.isa.nc_matmul.
    """
    return -(-k // PARTITIONS) * min(_streamed(n, m), _streamed(m, n))


def _streamed(loaded: int, moved: int) -> int:
    tiles, rest = divmod(loaded, PARTITIONS)
    return tiles * _moving(moved, PARTITIONS) + (_moving(moved, rest) if rest else 0)


def _moving(columns: int, loaded: int) -> int:
    rest = columns % MOVING_COLUMNS
    return columns - rest + (max(rest, min(LEAST_CYCLES, loaded)) if rest else 0)


def reads_of_product(m: int, n: int, left_bytes: int, right_bytes: int) -> tuple[int, int]:
    """How often each operand of a product is read from HBM, as little as SBUF allows.

    Either blocks of one operand stay in half of SBUF while the other one streams past each, or
    sums of a block of the result do, and both stream.
    """
    half = SBUF_BYTES // 2
    side = math.isqrt(half // 4)  # float32 sums
    options = (
        (1, -(-left_bytes // half)),
        (-(-right_bytes // half), 1),
        (-(-n // side), -(-m // side)),
    )
    reads = min(options, key=lambda times: times[0] * left_bytes + times[1] * right_bytes)
    return max(1, reads[0]), max(1, reads[1])


def sizes_of_product(row: FusedInstr, values: Sequence[Typed]) -> tuple[int, int, int, int]:
    """(products, rows, sums, columns) of a product."""
    left, right = (values[operand].shape for operand in row.operands[:2])
    result = values[row.results[0]].elements
    if row.opcode == "convolution":
        labels = read_labels(str(row.attributes["dim_labels"]))
        groups = row.attributes["feature_groups"]
        assert isinstance(groups, int), row.opcode
        features = right[labels.kernel_dimensions[1]]
        sums = math.prod(right) // max(1, features)
        return groups, result // max(1, features), sums, features // max(1, groups)
    dimensions = {name: row.attributes[name] for name in _DOT}
    batch = math.prod(_sizes(left, dimensions["lhs_batch"]))
    k = math.prod(_sizes(left, dimensions["lhs_contracting"]))
    m = math.prod(left) // max(1, batch * k)
    if row.opcode == "dot":
        return batch, m, k, math.prod(right) // max(1, batch * k)
    # ragged: as if every index of the ragged dimension were in a group
    return batch, m, k, result // max(1, batch * m)


def _sizes(shape: Sequence[int], dimensions: AttributeValue) -> Iterable[int]:
    assert isinstance(dimensions, tuple), dimensions
    return (shape[dimension] for dimension in dimensions)


def transposing_cycles(row: FusedInstr, values: Sequence[Typed]) -> int:
    """A tile of 128 x 128 at a time goes through the array, 128 cycles each (nc_transpose)."""
    shape, dimensions = permuted(row, values)
    if not shape or dimensions[-1] == len(shape) - 1:
        return 0
    last, to_last = shape[-1], shape[dimensions[-1]]
    others = math.prod(shape) // max(1, last * to_last)
    return -(-last // PARTITIONS) * -(-to_last // PARTITIONS) * others * PARTITIONS


def permuted(row: FusedInstr, values: Sequence[Typed]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The shape that a transposition has and how it permutes it, without dimensions of one."""
    shape, dimensions = values[row.operands[0]].shape, row.attributes["dimensions"]
    assert isinstance(dimensions, tuple), row.opcode
    kept = [dimension for dimension, size in enumerate(shape) if size != 1]
    number = {dimension: place for place, dimension in enumerate(kept)}
    order = (number[dimension] for dimension in dimensions if dimension in number)
    return tuple(shape[dimension] for dimension in kept), tuple(order)
