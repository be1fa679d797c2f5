"""Element types, by their names and as numpy has them."""

import pytest

from ncc_runtime.neff.shared.dtypes import DType

NARROW = {DType.S1: 1, DType.S2: 2, DType.S4: 4, DType.U1: 1, DType.U2: 2, DType.U4: 4}
NARROW |= {DType.F4E2M1FN: 4, DType.F6E2M3FN: 6, DType.F6E3M2FN: 6}


@pytest.mark.parametrize("dtype", DType)
def test_an_element_has_the_bytes_that_numpy_gives_it(dtype: DType) -> None:
    assert dtype.size_bytes == dtype.numpy.itemsize


@pytest.mark.parametrize("dtype", DType)
def test_only_the_narrowest_numbers_have_fewer_bits_than_their_bytes(dtype: DType) -> None:
    assert dtype.bits == NARROW.get(dtype, 8 * dtype.size_bytes)
