"""When two arrays are equal enough."""

import numpy as np


def distance(left: np.ndarray, right: np.ndarray) -> float:
    """The largest difference between elements; NaN and infinities must be where they are."""
    wide = np.complex128 if "c" in (left.dtype.kind, right.dtype.kind) else np.float64
    left, right = left.astype(wide), right.astype(wide)
    finite = np.isfinite(right)
    np.testing.assert_array_equal(left[~finite], right[~finite])
    difference = np.abs(np.where(finite, left, 0) - np.where(finite, right, 0))
    return float(difference.max(initial=0.0))


def magnitude(array: np.ndarray) -> float:
    values = np.abs(array.astype(np.complex128))
    return float(values.max(initial=0.0, where=np.isfinite(values)))


def is_exact(array: np.ndarray) -> bool:
    """Whether the elements are integers; numpy does not know the kinds of all of them."""
    return array.dtype.kind in "biu" or array.dtype.name.startswith(("int", "uint"))


def assert_close(ours: np.ndarray, theirs: np.ndarray, tolerance: float = 0.0) -> None:
    """Integers equal; floats within 1e-5 of the largest, or the given tolerance."""
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    if is_exact(theirs):
        np.testing.assert_array_equal(ours, theirs)
        return
    scale = magnitude(theirs)
    error = distance(ours, theirs)
    assert error <= max(1e-5 * scale, tolerance), f"{error:.3g} apart, of {scale:.3g}"


def assert_as_exact(ours: np.ndarray, xla: np.ndarray, exact: np.ndarray) -> None:
    """As `assert_close`, or within twice XLA's own distance from the same in float64."""
    tolerance = 0.0 if is_exact(xla) else 2 * distance(xla, exact)
    if tolerance and distance(ours, exact) <= tolerance:
        return
    assert_close(ours, xla)
