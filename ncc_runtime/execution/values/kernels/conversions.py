"""Conversions: numbers narrower than the type they are computed in, there and back, and `convert`.

Narrow floats (bfloat16, float16, 8 bits and less) are computed in float32 and rounded once, to
nearest even; integers of less than 8 bits in 8 bits, and wrapped. Both ways have the bits of
ml_dtypes, with two additions. A NaN that becomes a float16, or was one, is quiet: numpy's own
conversions of it are so on some hosts only. And a NaN that arithmetic made becomes the canonical
one in the same pass.

A one-byte float is one of 256 float32, by a table. The way back is a table, too: no such float has
more than 4 bits of mantissa, so what a float32 is rounded to is told by its sign, its exponent, the
upper 5 bits of its mantissa, and whether any bit below is set. Tables are made by ml_dtypes.
"""

import functools
from collections.abc import Callable

import attrs
import numpy as np

from ncc_runtime.execution.values.kernels.compiled import LEAST, loop
from ncc_runtime.execution.values.kernels.numbers import (
    canonical_nans,
    has_nan,
    is_narrow_float,
    quiet_nans,
    wide_type,
)
from ncc_runtime.neff.shared.dtypes import DType

_FLOAT32, _FLOAT64 = np.dtype(np.float32), np.dtype(np.float64)


def widened(array: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:
    """The array in the type that it is computed in, laid out as it was; narrow ones in `out`."""
    dtype = array.dtype
    target = wide_type(dtype)
    if dtype == target:
        return array
    if target != _FLOAT32:
        spare = target.type(8 - int(dtype.name[-1]))
        return np.right_shift(array.view(target) << spare, spare, out=out)

    def widen(part: np.ndarray, place: np.ndarray) -> None:
        run = loop(f"widen_{_loop_of(dtype)}", part.size)
        if run is None:
            with np.errstate(all="ignore"):
                np.copyto(place, quiet_nans(part) if dtype == np.float16 else part)
        elif dtype.itemsize == 1:
            run(part, place, byte_tables(dtype).widened, part.size)
        else:
            run(part, place, part.size)

    return _converted(array, target, out, widen)


def narrowed(
    array: np.ndarray, dtype: np.dtype, out: np.ndarray | None = None, *, keeps_nans: bool = False
) -> np.ndarray:
    """Numbers of the type that `dtype` is computed in, rounded or wrapped to it, or in `out`.

    NaNs become the canonical one, or keep their sign, and in float16 their payload.
    """
    if array.dtype == dtype:
        return array
    wide = wide_type(dtype)
    if array.dtype != wide or wide == dtype:
        with np.errstate(all="ignore"):
            result = array.astype(dtype)
        return result if keeps_nans else canonical_nans(result)
    if wide != _FLOAT32:
        mask = wide.type((1 << int(dtype.name[-1])) - 1)
        place = None if out is None else out.view(wide)
        return np.bitwise_and(array, mask, out=place).view(dtype)

    def narrow(part: np.ndarray, place: np.ndarray) -> None:
        run = loop(f"narrow_{_loop_of(dtype)}", part.size)
        if run is None:
            with np.errstate(all="ignore"):
                few = (quiet_nans(part) if dtype == np.float16 else part).astype(dtype)
            place[...] = few if keeps_nans else canonical_nans(few)
        elif dtype.itemsize == 1:
            tables = byte_tables(dtype)
            run(part, place, tables.narrowed if keeps_nans else tables.canonical, part.size)
        else:
            run(part, place, part.size, int(keeps_nans))

    return _converted(array, dtype, out, narrow)


def round_to(array: np.ndarray, dtype: np.dtype) -> None:
    """Make contiguous numbers, of the type that `dtype` is computed in, such as `dtype` has.

    NaNs become the canonical one.
    """
    run = loop(f"round_to_{_loop_of(dtype)}", array.size) if is_narrow_float(dtype) else None
    if run is None:
        array[...] = widened(narrowed(array, dtype))
    elif dtype.itemsize == 1:
        tables = byte_tables(dtype)
        run(array, tables.rounded, tables.limits, array.size)
    else:
        run(array, array.size)


def _loop_of(dtype: np.dtype) -> str:
    """In the names of the loops for a narrow float."""
    return "byte" if dtype.itemsize == 1 else dtype.name


def _converted(
    array: np.ndarray,
    dtype: np.dtype,
    out: np.ndarray | None,
    convert_rows: Callable[[np.ndarray, np.ndarray], None],
) -> np.ndarray:
    """An array converted by a function of contiguous arrays."""
    if array.flags.c_contiguous and (out is None or out.flags.c_contiguous):
        result = np.empty(array.shape, dtype) if out is None else out
        convert_rows(array, result)
        return result
    # along dimensions that are broadcast one element is enough
    sizes = zip(array.shape, array.strides, strict=True)
    is_repeated = [size > 1 and not step for size, step in sizes]
    if any(is_repeated):
        core = array[tuple(slice(1) if each else slice(None) for each in is_repeated)]
        wide = np.broadcast_to(_converted(core, dtype, None, convert_rows), array.shape)
        if out is None:
            return wide
        out[...] = wide
        return out
    result = np.empty_like(array, dtype) if out is None else out

    def convert_part(part: np.ndarray, place: np.ndarray) -> None:
        if part.flags.c_contiguous and place.flags.c_contiguous:
            convert_rows(part, place)
        elif part.ndim > 1 and part.size >= LEAST * len(part):
            for one, other in zip(part, place, strict=True):
                convert_part(one, other)
        elif place.flags.c_contiguous:
            convert_rows(np.ascontiguousarray(part), place)
        else:
            rows = np.empty(part.shape, dtype)
            convert_rows(np.ascontiguousarray(part), rows)
            place[...] = rows

    # in the order of memory, in which both are laid out if `out` is not given
    order = np.argsort([-abs(step) for step in array.strides], kind="stable")
    convert_part(array.transpose(order), result.transpose(order))
    return result


@attrs.frozen(eq=False)
class ByteTables:
    """Of a one-byte float; those of 2^15 elements by the upper 15 bits of a float32."""

    widened: np.ndarray  # (256,) float32
    narrowed: np.ndarray  # (2^15,)
    canonical: np.ndarray  # the same with canonical NaNs
    rounded: np.ndarray  # the same as float32
    limits: np.ndarray  # (8,) uint32, in the order of loops.py


@functools.cache
def byte_tables(dtype: np.dtype) -> ByteTables:
    """The tables of a one-byte float."""
    import ml_dtypes

    every = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    upper = np.arange(1 << 15, dtype=np.uint32)  # the last bit stands for all that are below
    with np.errstate(all="ignore"):
        found = ((upper << 17) | (upper & 1)).view(np.float32).astype(dtype)
        beyond = np.array([np.inf, -np.inf, np.nan, -0.0], np.float32).astype(dtype)
    canonical = canonical_nans(found)
    rounded = every[canonical.view(np.uint8)]
    limits: np.ndarray = np.zeros(8, np.uint32)
    finfo: Callable[[np.dtype], np.finfo] = ml_dtypes.finfo
    info = finfo(dtype)
    infinity, negative, nan, zero = canonical_nans(beyond).astype(np.float32)
    if info.nmant and np.isnan(nan):  # others are seldom
        words = [info.smallest_normal, info.smallest_subnormal, info.max]
        smallest, unit, largest = np.array(words).astype(np.float32)
        words = [smallest, unit * np.float32(1 << 23), largest, infinity, negative, nan, zero]
        bits = np.array(words, np.float32).view(np.uint32)
        is_signed = bits[3] ^ bits[4]
        limits[:] = [23 - info.nmant, *bits[:4], is_signed, *bits[5:]]
    return ByteTables(every, found, canonical, rounded, limits)


def convert(array: np.ndarray, dtype: DType) -> np.ndarray:
    """To another dtype: pred is "not zero", float to integer saturates, NaN becomes 0.

    To a float, a NaN keeps its sign and as much of its payload as the type has bits for.
    """
    target = dtype.numpy
    if array.dtype == target:
        return array
    if dtype is DType.PRED:
        return widened(array) != 0
    source = widened(array)
    if source.dtype.kind == "c" and target.kind != "c":
        source = source.real
    if source.dtype.kind == "f" and dtype.is_integer:
        return _saturated(source, dtype)
    if target == np.float16 and source.dtype == _FLOAT64:  # of whose NaNs it keeps the sign
        wide = np.where(np.isnan(source), np.copysign(np.nan, source), source)
        return quiet_nans(wide).astype(target)
    if is_narrow_float(target) and source.dtype.kind in "iub" and source.dtype.itemsize <= 2:
        source = source.astype(np.float32)  # exact
    return narrowed(source, target, keeps_nans=True)


def _saturated(array: np.ndarray, dtype: DType) -> np.ndarray:
    bits = dtype.bits
    low = -(2 ** (bits - 1)) if dtype.is_signed else 0
    high = 2 ** (bits - 1) - 1 if dtype.is_signed else 2**bits - 1
    wide = array.astype(np.float64)
    if bits <= 32:  # whose limits are float64 themselves
        if wide.size and has_nan(wide):
            wide[np.isnan(wide)] = 0
        np.clip(wide, low, high, out=wide)
        return narrowed(wide.astype(wide_type(dtype.numpy)), dtype.numpy)
    carrier = np.dtype(np.uint64) if bits == 64 and not dtype.is_signed else np.dtype(np.int64)
    # The first float above the range: of 64 bits float(high) is rounded up to it already.
    above = float(high) + (0.0 if bits == 64 else 1.0)
    inside = (wide > float(low) - 1) & (wide < above)
    result = np.where(inside, np.trunc(wide), 0).astype(carrier)
    result = np.where(wide >= above, carrier.type(high), result)
    result = np.where(wide <= float(low), carrier.type(low), result)
    return np.where(np.isnan(wide), carrier.type(0), result).astype(dtype.numpy)
