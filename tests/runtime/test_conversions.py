"""Narrow numbers to the type they are computed in and back: the bits of ml_dtypes, every one."""

from collections.abc import Iterator

import ml_dtypes  # noqa: F401 - the types' own conversions are the oracle
import numpy as np
import pytest

from ncc_runtime.execution.values.kernels.conversions import convert, narrowed, round_to, widened
from ncc_runtime.execution.values.kernels.numbers import canonical_nans, wide_type
from ncc_runtime.neff.shared.dtypes import DType
from tests.kernel_ways import WAYS, compute_by

NARROW_FLOATS = [d for d in DType if d.is_float and d not in (DType.F32, DType.F64)]
NARROW_INTEGERS = [d for d in DType if d.is_integer and d.bits < 8]

per_float = pytest.mark.parametrize("dtype", NARROW_FLOATS, ids=lambda dtype: dtype.value)


@pytest.fixture(params=WAYS, autouse=True)
def _way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    compute_by(request.param, monkeypatch)


def every(dtype: DType) -> np.ndarray:
    """All bits that an element has."""
    raw = np.arange(1 << 8 * dtype.size_bytes).astype(f"u{dtype.size_bytes}")
    return raw.view(dtype.numpy)


def wide_numbers(dtype: DType) -> Iterator[np.ndarray]:
    """Float32 at which rounding changes, with their neighbours; NaNs of all kinds; random bits."""
    own = every(dtype).astype(np.float32)
    finite = np.unique(own[np.isfinite(own)]).astype(np.float64)
    middles = ((finite[1:] + finite[:-1]) / 2).astype(np.float32)  # ties
    limits = np.array([3e38, 1e-45, 1e-38, 2**-24, 2**-25, 2**-26, 65519.996, 65520], np.float32)
    for numbers in (own, middles, limits, -limits, finite.astype(np.float32)):
        words = numbers.view(np.uint32)
        for step in (0, 1, -1):
            yield (words + np.int32(step).astype(np.uint32)).view(np.float32)
    generator = np.random.default_rng(0)
    yield generator.integers(0, 1 << 32, 1 << 20, np.uint32).view(np.float32)
    payloads = generator.integers(1, 1 << 23, 1 << 12, np.uint32)
    signs = generator.integers(0, 2, 1 << 12, np.uint32) << 31
    yield (signs | 0x7F800000 | payloads).view(np.float32)


def assert_bits(actual: np.ndarray, wanted: np.ndarray) -> None:
    assert actual.dtype == wanted.dtype
    raw = np.dtype(f"u{wanted.dtype.itemsize}")
    np.testing.assert_array_equal(actual.view(raw), wanted.view(raw))


def quiet(array: np.ndarray) -> np.ndarray:
    """Float32 whose NaNs have the highest bit of their payload set."""
    raw = array.view(np.uint32)
    return np.where(np.isnan(array), raw | 0x400000, raw).astype(np.uint32).view(np.float32)


@per_float
def test_a_narrow_float_of_any_bits_is_widened_exactly(dtype: DType) -> None:
    array = every(dtype)
    with np.errstate(all="ignore"):
        wanted = array.astype(np.float32)
    assert_bits(widened(array), quiet(wanted) if dtype is DType.F16 else wanted)


@per_float
def test_a_float32_is_rounded_as_the_type_itself_rounds_it(dtype: DType) -> None:
    for wide in wide_numbers(dtype):
        with np.errstate(all="ignore"):
            wanted = (quiet(wide) if dtype is DType.F16 else wide).astype(dtype.numpy)
        assert_bits(narrowed(wide, dtype.numpy, keeps_nans=True), wanted)
        assert_bits(narrowed(wide, dtype.numpy), canonical_nans(wanted))
        rounded = wide.copy()
        round_to(rounded, dtype.numpy)
        assert_bits(rounded, widened(canonical_nans(wanted)))


@pytest.mark.parametrize("dtype", NARROW_INTEGERS, ids=lambda dtype: dtype.value)
def test_integers_of_few_bits_wrap(dtype: DType) -> None:
    wide = np.arange(256, dtype=np.uint8).view(wide_type(dtype.numpy))
    few = wide.astype(dtype.numpy)
    assert_bits(narrowed(wide, dtype.numpy), few)
    assert_bits(widened(few), few.astype(wide.dtype))
    rounded = wide.copy()
    round_to(rounded, dtype.numpy)
    assert_bits(rounded, few.astype(wide.dtype))


@per_float
@pytest.mark.parametrize("source", ["s8", "u16", "s16", "pred", "s32", "f64", "c64"])
def test_other_types_are_converted_as_the_type_itself_does(dtype: DType, source: str) -> None:
    kind = DType(source).numpy
    words = np.random.default_rng(1).integers(-(1 << 15), 1 << 15, 1 << 14)
    array = words.astype(kind)
    with np.errstate(all="ignore"):
        wanted = (array.real if source == "c64" else array).astype(dtype.numpy)
    assert_bits(convert(array, dtype), wanted)


@pytest.mark.parametrize("dtype", [DType.BF16, DType.F8E4M3FN], ids=lambda dtype: dtype.value)
def test_arrays_are_converted_however_they_lie(dtype: DType) -> None:
    base = np.random.default_rng(2).standard_normal((6, 50, 40)).astype(np.float32)
    arrays = (
        base,
        base.transpose(2, 0, 1),
        base[:, 3:17],
        base[:, :, ::3],
        base[::-1, ::-2],
        np.broadcast_to(base[:, :1], (6, 9, 40)),
        np.broadcast_to(np.float32(1.3), (5, 7)),
        base[:, :0],
        base[0, 0, 0],
    )
    for array in arrays:
        few = narrowed(array, dtype.numpy)
        assert_bits(np.array(few), np.array(array.astype(dtype.numpy)))
        assert_bits(np.array(widened(few)), np.array(few.astype(np.float32)))
        place = np.empty((2, *array.shape), np.float32)[0].swapaxes(0, -1) if array.ndim else None
        if place is not None:
            assert widened(few.swapaxes(0, -1), out=place) is place
            assert_bits(np.array(place), np.array(few.swapaxes(0, -1).astype(np.float32)))


def test_a_conversion_keeps_the_order_of_dimensions_in_memory() -> None:
    """Products tell BLAS to read a matrix transposed that lies so: it sums in another order."""
    array = np.zeros((3, 5, 4), DType.BF16.numpy).transpose(0, 2, 1)
    assert widened(array).strides == array.astype(np.float32).strides
