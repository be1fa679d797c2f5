"""Reductions: one table for the compiler and the runtime."""

import enum

from ncc_runtime.neff.shared.dtypes import DType


class Reduction(enum.Enum):
    """How values of several ranks are combined; all but the last are XLA ops of regions."""

    ADD = "add"
    MULTIPLY = "multiply"
    MINIMUM = "minimum"
    MAXIMUM = "maximum"
    AND = "and"
    OR = "or"
    AVERAGE = "average"  # the sum, divided by their number before it is rounded


_BITWISE = frozenset({Reduction.AND, Reduction.OR})


def is_defined(reduction: Reduction, dtype: DType) -> bool:
    """Whether elements of a dtype have the reduction."""
    if reduction in _BITWISE:
        return dtype is DType.PRED or dtype.is_integer
    if reduction is Reduction.AVERAGE:
        return dtype.is_float or dtype.is_complex
    return True


def is_exact(reduction: Reduction, dtype: DType) -> bool:
    """Whether a reduction of several operands has the same bits in every order.

    Integers wrap, so their sums and products are those of a ring; bits and extremes have no order
    either: of two zeros -0 is less, a NaN wins, and all NaNs are one. Complex numbers are compared
    part by part, where a NaN in one part does not always win.
    """
    if not (dtype.is_float or dtype.is_complex):
        return True
    return reduction in (Reduction.MINIMUM, Reduction.MAXIMUM) and dtype.is_float
