"""Conversions between dtypes, and numeric functions that round once.

`convert` as XLA defines it, the working dtypes that ops compute in, and functions of numbers, each
computed in a wider type than its own.
"""

import functools
import math
from collections.abc import Callable, Mapping

import numpy as np

from ncc_compiler.ir.graph import Node
from ncc_runtime.neff.shared.dtypes import DType


@functools.cache
def _by_numpy_dtype() -> dict[np.dtype, DType]:
    return {dtype.numpy: dtype for dtype in DType}


def dtype_of(array: np.ndarray) -> DType:
    """The element type that this numpy dtype holds."""
    return _by_numpy_dtype()[array.dtype]


def working(array: np.ndarray) -> np.ndarray:
    """The values in a dtype that numpy itself computes in, exactly."""
    dtype = dtype_of(array)
    if dtype.is_float and dtype.size_bytes < 4:
        return array.astype(np.float32)
    if dtype.is_integer and dtype.bits < 8:
        return array.astype(np.int8 if dtype.is_signed else np.uint8)
    return array


def in_double(array: np.ndarray) -> np.ndarray:
    """The values in float64 or complex128."""
    wide = working(array)
    return wide.astype(np.complex128 if wide.dtype.kind == "c" else np.float64)


def narrowed(array: np.ndarray, dtype: DType) -> np.ndarray:
    """A result in a working dtype, rounded to nearest even or wrapped."""
    if not dtype.is_integer or dtype.bits >= 8:
        return array.astype(dtype.numpy, copy=False)
    values = 1 << dtype.bits
    low = array.astype(np.int64) & (values - 1)
    is_negative = (low >= values // 2) & dtype.is_signed  # two's complement
    return np.where(is_negative, low - values, low).astype(dtype.numpy)


def converted(array: np.ndarray, node: Node) -> np.ndarray:
    """The array in the dtype of the node's result.

    Floats saturate to integers and NaN becomes 0; integers wrap; anything but zero is true;
    float types are rounded to nearest even, and NaNs keep their sign.
    """
    dtype = node.array.dtype
    if dtype_of(array) is dtype:
        return array
    wide = working(array)
    if dtype is DType.PRED:
        return np.asarray(wide != 0)
    if dtype.is_integer:
        if wide.dtype.kind in "fc":
            return _saturated(wide.real, dtype)
        return narrowed(wide, dtype)
    if dtype.is_complex:
        return wide.astype(dtype.numpy)
    rounded = _rounded(wide.real, dtype)
    source = array if array.dtype.kind != "c" else np.ascontiguousarray(array.real)
    has_payloads = dtype_of(source) in _MANTISSAS and dtype in _MANTISSAS
    return _with_payloads(source, rounded) if has_payloads else rounded


def _saturated(array: np.ndarray, dtype: DType) -> np.ndarray:
    low, high = 0, 2**dtype.bits - 1
    if dtype.is_signed:
        low, high = -(2 ** (dtype.bits - 1)), 2 ** (dtype.bits - 1) - 1
    wide = np.trunc(array.astype(np.float64))
    inside = (wide >= low) & (wide < float(high + 1))
    carrier = np.uint64 if dtype is DType.U64 else np.int64
    exact = np.where(inside, wide, 0).astype(carrier)
    edge = np.where(wide > 0, carrier(high), carrier(low))
    result = np.where(inside, exact, np.where(np.isnan(wide), carrier(0), edge))
    return narrowed(result, dtype)


_MANTISSAS = {DType.BF16: 7, DType.F16: 10, DType.F32: 23, DType.F64: 52}


def _with_payloads(source: np.ndarray, rounded: np.ndarray) -> np.ndarray:
    """The rounded floats with the NaN payloads of the source, truncated or filled with zeros.

    As XLA's CPU converts: NaNs become quiet, but for bfloat16 to float32 (its upper half); to
    bfloat16, and from float64 to float16, only the sign is kept.
    """
    before, after = dtype_of(source), dtype_of(rounded)
    old, new = _MANTISSAS[before], _MANTISSAS[after]
    is_signalling = before is DType.BF16 and after is DType.F32
    is_lost = after is DType.BF16 or (before, after) == (DType.F64, DType.F16)
    quiet, infinity = 1 << (new - 1), (1 << (after.bits - 1)) - (1 << new)

    def converted_nan(raw: int) -> int:
        sign, payload = raw >> (before.bits - 1), 0 if is_lost else raw & ((1 << old) - 1)
        aligned = payload << new >> old
        return sign << (after.bits - 1) | infinity | aligned | (0 if is_signalling else quiet)

    result, is_nan = np.array(rounded), np.isnan(source)
    nans = source[is_nan].view(np.dtype(f"u{before.size_bytes}")).tolist()
    bits = np.array([converted_nan(raw) for raw in nans], np.dtype(f"u{after.size_bytes}"))
    result[is_nan] = bits.view(rounded.dtype)
    return result


def _rounded(array: np.ndarray, dtype: DType) -> np.ndarray:
    """To a float type; numpy would round an integer twice on its way to f16."""
    if dtype is DType.F16 and array.dtype.kind in "iu":
        return array.astype(np.float64).astype(np.float16)
    return array.astype(dtype.numpy)


Function = Callable[..., np.ndarray]

_WIDER: Mapping[np.dtype, np.dtype] = {
    np.dtype(np.float32): np.dtype(np.float64),
    np.dtype(np.float64): np.dtype(np.longdouble),
    np.dtype(np.complex64): np.dtype(np.complex128),
    np.dtype(np.complex128): np.dtype(np.clongdouble),
}


def _in_wider_type(function: Function) -> Function:
    def compute(*arrays: np.ndarray) -> np.ndarray:
        dtype = arrays[0].dtype
        wide = function(*(array.astype(_WIDER[dtype]) for array in arrays))
        return np.asarray(wide).astype(dtype)

    return compute


def _for_each(function: Callable[..., object], *arrays: np.ndarray) -> np.ndarray:
    """One element at a time, as Python numbers."""
    objects = (array.astype(np.object_) for array in arrays)
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*objects))


def _erf(x: np.ndarray) -> np.ndarray:
    return _for_each(math.erf, x).astype(x.dtype)


def complex_quotient(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """x / y of complex numbers, as C99 defines it in Annex G.5.1."""
    return _for_each(_quotient, x, y).astype(x.dtype)


def _quotient(x: complex, y: complex) -> complex:
    a, b, c, d = x.real, x.imag, y.real, y.imag
    largest = max(abs(c), abs(d))
    shift = 0
    if math.isfinite(largest) and largest > 0:
        shift = -math.frexp(largest)[1]
        c, d = math.ldexp(c, shift), math.ldexp(d, shift)
    size = c * c + d * d
    if size == 0:
        infinite = math.copysign(math.inf, c)
        return complex(infinite * a, infinite * b)
    parts = np.ldexp([(a * c + b * d) / size, (b * c - a * d) / size], shift)
    result = complex(*parts.tolist())
    if not (math.isnan(result.real) and math.isnan(result.imag)):
        return result
    if math.inf in (abs(a), abs(b)) and math.isfinite(c) and math.isfinite(d):
        a, b = _sign_of_infinite(a), _sign_of_infinite(b)
        return complex(math.inf * (a * c + b * d), math.inf * (b * c - a * d))
    if math.inf in (abs(c), abs(d)) and math.isfinite(a) and math.isfinite(b):
        c, d = _sign_of_infinite(c), _sign_of_infinite(d)
        return complex(0.0 * (a * c + b * d), 0.0 * (b * c - a * d))
    return result


def _sign_of_infinite(number: float) -> float:
    return math.copysign(1.0 if math.isinf(number) else 0.0, number)


def _of_parts(real: np.ndarray, imaginary: np.ndarray) -> np.ndarray:
    """Complex numbers, also where a part is infinite or NaN."""
    pairs = np.stack(np.broadcast_arrays(real, imaginary), axis=-1)
    return pairs.view(np.result_type(pairs.dtype, np.complex64))[..., 0]


def _unit(x: np.ndarray) -> np.ndarray:
    """x / |x| of complex numbers; a zero stays."""
    size = np.abs(x)
    return np.where(size == 0, x, _of_parts(x.real / size, x.imag / size))


def sign(x: np.ndarray) -> np.ndarray:
    """Keeps the sign of a zero, and NaN."""
    if x.dtype.kind == "c":
        return _unit(x)
    if x.dtype.kind == "f":
        return np.where(np.isnan(x) | (x == 0), x, np.copysign(x.dtype.type(1), x))
    return np.asarray(np.sign(x))


def _reciprocal(x: np.ndarray) -> np.ndarray:
    one = np.ones_like(x)
    return complex_quotient(one, x) if x.dtype.kind == "c" else np.asarray(one / x)


def _rsqrt(x: np.ndarray) -> np.ndarray:
    return _reciprocal(np.sqrt(x))


def _logistic(x: np.ndarray) -> np.ndarray:
    return _reciprocal(np.ones_like(x) + np.exp(-x))


def _expm1(x: np.ndarray) -> np.ndarray:
    """Of complex numbers, in the wider type, e^x (cos y + i sin y) - 1."""
    if x.dtype.kind != "c":
        return np.expm1(x)
    real, imaginary = x.real, x.imag
    expm1, half_sine = np.expm1(real), np.sin(imaginary / 2)
    # e^x cos y - 1, with cos y = 1 - 2 sin(y/2)^2 against cancellation
    real = expm1 - 2 * half_sine * half_sine * np.exp(real)
    return _of_parts(real, np.where(imaginary == 0, imaginary, (expm1 + 1) * np.sin(imaginary)))


def _log1p(x: np.ndarray) -> np.ndarray:
    if x.dtype.kind != "c":
        return np.log1p(x)
    real, imaginary = x.real, x.imag
    small = np.log1p(np.maximum(real * (2 + real) + imaginary * imaginary, -1)) / 2
    is_small = np.abs(real) + np.abs(imaginary) < 1
    large = np.log(np.hypot(1 + real, imaginary))
    return _of_parts(np.where(is_small, small, large), np.arctan2(imaginary, 1 + real))


def _atan2(y: np.ndarray, x: np.ndarray) -> np.ndarray:
    if y.dtype.kind != "c":
        return np.arctan2(y, x)
    return np.asarray(-1j * np.log((x + 1j * y) / np.sqrt(x * x + y * y)))


def _round_away(x: np.ndarray) -> np.ndarray:
    """Halves away from zero, everything else to the nearest."""
    nearest, truncated = np.rint(x), np.trunc(x)
    is_half = np.abs(x - truncated) == 0.5
    return np.where(is_half, truncated + np.copysign(x.dtype.type(1), x), nearest)


_IN_WIDER_TYPE: Mapping[str, Function] = {
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": _atan2,
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "cosh": np.cosh,
    "cosine": np.cos,
    "exponential-minus-one": _expm1,
    "log-plus-one": _log1p,
    "sine": np.sin,
    "sinh": np.sinh,
    "tan": np.tan,
}

FUNCTIONS: Mapping[str, Function] = {
    **{name: _in_wider_type(function) for name, function in _IN_WIDER_TYPE.items()},
    "abs": np.abs,
    "ceil": np.ceil,
    "complex": _of_parts,
    "erf": _erf,
    "exponential": np.exp,
    "floor": np.floor,
    "imag": np.imag,
    "is-finite": np.isfinite,
    "log": np.log,
    "logistic": _logistic,
    "round-nearest-afz": _round_away,
    "round-nearest-even": np.rint,
    "rsqrt": _rsqrt,
    "sign": sign,
    "sqrt": np.sqrt,
    "tanh": np.tanh,
}
"""Functions of numpy's own dtypes."""
