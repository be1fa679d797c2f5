"""One NaN for all: which NaN arithmetic keeps depends on numpy's loops, not on the program."""

import numpy as np

KEEPS_BITS = frozenset({"bitcast-convert", "complex", "copy", "imag", "real", "select"})
"""Opcodes that compute no number: a NaN stays the one it was."""


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
