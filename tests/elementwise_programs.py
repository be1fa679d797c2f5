"""Programs that try every elementwise op on the values at which its definition changes."""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.neff.shared.dtypes import DType

FLOATS = [dtype for dtype in DType if dtype.is_float]
INTEGERS = [dtype for dtype in DType if dtype.is_integer]
COMPLEX = {DType.C64: DType.F32, DType.C128: DType.F64}

ROUNDED_TWICE = (  # not the same last bits in every library
    *("acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "cbrt", "cosh", "cosine"),
    *("erf", "exponential", "exponential-minus-one", "log", "log-plus-one", "logistic"),
    *("power", "rsqrt", "sine", "sinh", "tan", "tanh"),
)
KEEPS_BITS = (
    *("abs", "bitcast-convert", "complex", "convert", "copy", "imag", "map", "negate", "real"),
    *("reduce-precision", "select", "sign"),
)
_UNARY_OF_FLOATS = (
    *("abs", "ceil", "copy", "floor", "imag", "negate", "real", "round-nearest-afz"),
    *("round-nearest-even", "sign", "sqrt"),
    *(op for op in ROUNDED_TWICE if op not in ("atan2", "power")),
)
_UNARY_OF_COMPLEX = (
    *("copy", "negate", "sign", "sqrt"),
    *(op for op in ROUNDED_TWICE if op not in ("atan2", "power", "cbrt", "erf")),
)
_UNARY_OF_INTEGERS = ("copy", "count-leading-zeros", "negate", "not", "popcnt")
_ARITHMETIC = ("add", "subtract", "multiply", "divide", "power")
_ORDERED = ("maximum", "minimum")
_BITWISE = ("and", "or", "xor")
_SHIFTS = ("shift-left", "shift-right-arithmetic", "shift-right-logical")
_DIRECTIONS = ("EQ", "NE", "LT", "LE", "GT", "GE")


@attrs.frozen
class Line:
    """One instruction and its result type, of operands x and y."""

    type: str
    call: str

    @property
    def op(self) -> str:
        return self.call.partition("(")[0]

    @property
    def keeps_bits(self) -> bool:
        """Whether it moves a NaN, or changes its sign or width, and computes nothing of it."""
        return self.op in KEEPS_BITS

    @property
    def is_exact(self) -> bool:
        return self.op not in ROUNDED_TWICE


def edges(dtype: DType) -> np.ndarray:
    """Values at which the definition of some op changes."""
    if dtype is DType.PRED:
        return np.array([False, True])
    if dtype.is_complex:
        parts = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0]
        pairs = [complex(real, imaginary) for real in parts for imaginary in parts]
        return np.array(pairs).astype(dtype.numpy)
    if dtype.is_float:
        numbers = [
            *(
                0.0,
                -0.0,
                1,
                -1,
                0.5,
                -0.5,
                2,
                2.5,
                -3,
                1.75,
                -1.5,
                100,
                -100,
                300,
                70000,
                -(2.0**31),
            ),
            *(1e-3, 1e-30, 3e38, 2.0**63, np.inf, -np.inf),
        ]
        with np.errstate(all="ignore"):
            return np.concatenate([np.array(numbers).astype(dtype.numpy), nans(dtype)])
    low = -(2 ** (dtype.bits - 1)) if dtype.is_signed else 0
    high = low + 2**dtype.bits - 1
    numbers = [low, low + 1, high, high - 1, 0, 1, 2, 3, 5, 12, -1, -2, -3]
    carrier = np.int64 if dtype.is_signed else np.uint64
    inside = [number for number in numbers if low <= number <= high]
    return np.array(inside, carrier).astype(dtype.numpy)


def nans(dtype: DType) -> np.ndarray:
    """Of each sign one; quiet ones with payloads where a host's float has room for them."""
    plain = np.array([np.nan, -np.nan]).astype(dtype.numpy)
    if dtype.bits <= 8:
        return plain
    raw = plain.view(np.dtype(f"u{dtype.size_bytes}"))
    return np.concatenate([raw, raw | raw.dtype.type(5)]).view(dtype.numpy)


def every_op(dtype: DType, count: int) -> list[Line]:
    """All instructions on arrays x and y of a dtype, of `count` elements."""
    return [Line(*line) for line in (*_arithmetic(dtype, count), *_other(dtype, count))]


def _unary(dtype: DType) -> tuple[str, ...]:
    if dtype is DType.PRED:
        return ("not", "copy")
    if dtype.is_integer:
        return (*_UNARY_OF_INTEGERS, *(("abs", "sign") if dtype.is_signed else ()))
    return _UNARY_OF_COMPLEX if dtype.is_complex else _UNARY_OF_FLOATS


def _binary(dtype: DType) -> tuple[str, ...]:
    if dtype is DType.PRED:
        return ("add", "multiply", *_ORDERED, *_BITWISE)
    if dtype.is_integer:
        return (*_ARITHMETIC, *_ORDERED, *_BITWISE, *_SHIFTS, "remainder", "mulhi")
    if dtype.is_complex:
        return (*_ARITHMETIC[:-1], *_ORDERED)
    return (*_ARITHMETIC, *_ORDERED, "remainder", "atan2")


def _arithmetic(dtype: DType, count: int) -> Iterator[tuple[str, str]]:
    own, truth = f"{dtype.value}[{count}]", f"pred[{count}]"
    yield from ((own, f"{op}(x)") for op in _unary(dtype))
    yield from ((own, f"{op}(x, y)") for op in _binary(dtype))
    for direction in _DIRECTIONS:
        yield truth, f"compare(x, y), direction={direction}"
        if dtype.is_float:
            yield truth, f"compare(x, y), direction={direction}, type=TOTALORDER"
    yield own, "select(yes, x, y)"
    yield own, "map(x, y), dimensions={0}, to_apply=other"


def _other(dtype: DType, count: int) -> Iterator[tuple[str, str]]:
    own, part = f"{dtype.value}[{count}]", COMPLEX.get(dtype)
    yield from ((f"{target.value}[{count}]", "convert(x)") for target in DType)
    for other in DType:
        if other.is_complex is not dtype.is_complex:
            continue
        if other.bits == dtype.bits:
            yield f"{other.value}[{count}]", "bitcast-convert(x)"
        elif dtype.bits % other.bits == 0:
            yield f"{other.value}[{count},{dtype.bits // other.bits}]", "bitcast-convert(x)"
    yield from ((own, call) for call in ("clamp(x, y, x)", "clamp(one, x, y)", "clamp(x, y, one)"))
    if part:
        yield from ((f"{part.value}[{count}]", f"{op}(x)") for op in ("abs", "real", "imag"))
        return
    if dtype.is_float:
        yield f"pred[{count}]", "is-finite(x)"
        for bits in ((5, 2), (8, 7), (3, 0), (11, 1), (1, 3)):
            kept = f"exponent_bits={bits[0]}, mantissa_bits={bits[1]}"
            yield own, f"reduce-precision(x), {kept}"
    if _has_random_bits(dtype):
        yield from ((f"s{bits}[{count}]", "stochastic-convert(x, random)") for bits in (4, 8, 32))
    if dtype in COMPLEX.values():
        yield f"c{dtype.bits * 2}[{count}]", "complex(x, y)"
    if dtype is not DType.PRED:
        yield f"{dtype.value}[20,2]", "iota(), iota_dimension=0"


def _has_random_bits(dtype: DType) -> bool:
    """Whether there is an unsigned integer as wide: none has 6 bits."""
    return dtype.is_float and dtype.bits != 6


def program(dtype: DType, lines: list[Line], count: int) -> str:
    """One instruction for each line, all of them results."""
    kind, scalar = f"{dtype.value}[{count}]", f"{dtype.value}[]"
    one = {"pred": "true", "s1": "-1"}.get(dtype.value, "(1, 0)" if dtype.is_complex else "1")
    random = (
        f"  random = u{dtype.bits}[{count}] bitcast-convert(y)\n" if _has_random_bits(dtype) else ""
    )
    types, names = ", ".join(line.type for line in lines), range(len(lines))
    body = "\n".join(f"  r{k} = {line.type} {line.call}" for k, line in enumerate(lines))
    return f"""other {{
  a = {scalar} parameter(0)
  b = {scalar} parameter(1)
  yes = pred[] compare(a, b), direction=NE
  ROOT c = {scalar} select(yes, b, a)
}}

ENTRY main {{
  x = {kind} parameter(0)
  y = {kind} parameter(1)
  one = {scalar} constant({one})
  yes = pred[] constant(true)
{random}{body}
  ROOT all = ({types}) tuple({", ".join(f"r{k}" for k in names)})
}}
"""
