"""How far arrays are apart."""

import ml_dtypes
import numpy as np
import pytest

from ncc_runtime.bits.differences import BitDifference, difference


def test_equal_arrays_have_no_difference_and_zeros_of_two_signs_one() -> None:
    ones = np.ones(4, np.float32)
    assert difference(ones, ones.copy()) == BitDifference(4)
    zeros = difference(np.array([0.0], np.float32), np.array([-0.0], np.float32))
    assert (zeros.differing, zeros.absolute, zeros.ulps) == (1, 0.0, 1)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16, ml_dtypes.bfloat16])
def test_neighbours_are_one_step_apart(dtype: type) -> None:
    for value in (1.0, -1.0, 3.5):
        first = np.array([value], dtype)
        carrier = np.dtype(f"u{first.dtype.itemsize}")
        found = difference(first, (first.view(carrier) + carrier.type(1)).view(first.dtype))
        assert (found.differing, found.ulps) == (1, 1)
        assert found.absolute > 0


def test_the_farthest_numbers_of_64_bits_can_be_told() -> None:
    far = np.array([np.finfo(np.float64).max])
    assert difference(far, -far).ulps == 2 * int(far.view(np.int64)[0]) + 1


def test_what_is_not_finite_is_counted_apart() -> None:
    a, b = np.array([1.0, np.inf, np.nan], np.float32), np.array([2.0, 1.0, 1.0], np.float32)
    found = difference(a, b)
    assert (found.differing, found.not_finite, found.absolute, found.relative) == (3, 2, 1.0, 0.5)
    assert found.text.endswith("; 2 not finite")


def test_integers_and_complex_numbers_are_compared_too() -> None:
    found = difference(np.array([1, 5], np.int32), np.array([1, 2], np.int32))
    assert (found.differing, found.absolute, found.ulps) == (1, 3.0, 3)
    pairs = difference(np.array([1 + 1j], np.complex64), np.array([1 + 2j], np.complex64))
    assert (pairs.elements, pairs.differing) == (2, 1)
    flags = difference(np.array([True, False]), np.array([True, True]))
    assert flags.differing == 1
