"""Which NaN a result holds: the operand's where bits are only moved, else one NaN for all.

Which NaN arithmetic keeps depends on numpy's loops, not on the program.
"""

import numpy as np

MAY_KEEP_BITS = frozenset(
    {
        *("abs", "bitcast-convert", "complex", "convert", "copy", "imag", "negate", "real"),
        *("reduce-precision", "select", "sign"),
    }
)
"""Opcodes that compute no number of a NaN: they move it, change its sign or its width."""

_COMPUTES_COMPLEX = frozenset({"abs", "sign"})


def keeps_bits(opcode: str, operand: np.dtype) -> bool:
    """Whether the NaNs of a result are the operand's; complex `abs` and `sign` compute theirs."""
    if opcode in _COMPUTES_COMPLEX and operand.kind == "c":
        return False
    return opcode in MAY_KEEP_BITS


def quiet_nans(array: np.ndarray) -> np.ndarray:
    """Floats of 16, 32 or 64 bits with the highest payload bit of every NaN set, as converters do.

    Numpy's own conversions of float16 do so on some hosts only.
    """
    wrong = np.isnan(array)
    if not wrong.any():
        return array
    raw = np.ascontiguousarray(array).view(np.dtype(f"u{array.dtype.itemsize}"))
    highest = raw.dtype.type(1 << (np.finfo(array.dtype).nmant - 1))
    return np.where(wrong, raw | highest, raw).view(array.dtype)


def canonical_nans(array: np.ndarray) -> np.ndarray:
    """The array with every NaN made the positive quiet one, so that bits do not hang on batches."""
    if array.dtype.kind not in "fc" and "float" not in array.dtype.name:
        return array
    if array.dtype.kind == "c":  # each part by itself: the other one is a number still
        parts = np.ascontiguousarray(array).view(array.real.dtype)
        return canonical_nans(parts).view(array.dtype).reshape(array.shape)
    with np.errstate(invalid="ignore"):  # one 8-bit type raises it for its NaNs
        wrong = np.isnan(array)
    if not wrong.any():
        return array
    return np.where(wrong, np.array(np.nan, array.dtype), array)
