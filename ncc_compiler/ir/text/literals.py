"""Literals between text and arrays, whole arrays at a time.

Values are rounded to their type the way XLA does it: decimal to float64 to the type. A NaN keeps
its sign and payload. As in XLA, commas between elements say nothing, any number is true as a pred
unless it is 0, and 64-bit integers are read in either sign.
"""

import math
import re

import attrs
import numpy as np

from ncc_compiler.ir.graph import Elided, Literal
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.shared.dtypes import DType


class LiteralError(ValueError):
    """A literal that is wrong: the rule's number in its family, the fact, the place, the remedy."""

    def __init__(self, number: int, message: str, word: str = "", hint: str = "") -> None:
        super().__init__(message)
        self.number = number
        self.word = word  # the element at fault, empty for the whole literal
        self.hint = hint


COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
"""Comments may stand between the words and marks of a literal."""

_TYPED = re.compile(r"\s*[a-z][a-z0-9]*\[[^\[\]]*\](?:\{[\d,\s]*(?::[^{}]*)?\})?\s*(?=\S)")
_PART = r"((?:[^(),{}]|\(0x[0-9a-fA-F]*\))*)"
_COMPLEX = re.compile(rf"\({_PART},{_PART}\)")
_ROW = re.compile(r"\{([^{}]*)\}")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]+)?|[-+]?inf|[-+]?nan")
_NAN = re.compile(r"(-?)nan\(0x([0-9a-fA-F]{1,16})\)")
_WORD = re.compile(r"[^\s,]+")
_BOOLEANS = {"true": True, "false": False}


ELIDED = "{...}"
"""How XLA spells the values of an array that it does not print, being large."""


def read_literal(text: str, kind: ArrayType) -> Literal | Elided:
    """The value of a literal. Raises LiteralError."""
    text = COMMENT.sub(" ", text).strip()
    if match := _TYPED.match(text):
        text = text[match.end() :]
    if text == ELIDED and kind.shape:
        return Elided()
    if "..." in text:
        hint = "print the program with print_large_constants=True"
        fact = f"the value of the constant is left out, which only {ELIDED} of an array may be"
        raise LiteralError(3, fact, hint=hint)
    if kind.dtype.is_complex:
        text = _COMPLEX.sub(lambda match: f"{match[1].strip()}|{match[2].strip()}", text)
    words = _words(text, kind)
    array = _array_of(words, kind.dtype).reshape(kind.shape)
    array.setflags(write=False)
    return Literal(array)


def _words(text: str, kind: ArrayType) -> list[str]:
    """The elements in row-major order; the braces around them must follow the shape."""
    if not kind.shape:
        if "{" in text or "," in text:
            raise LiteralError(1, f"{kind} is a scalar, and the literal is not")
        return [text]
    rows = [_WORD.findall(row) for row in _ROW.findall(text)]
    words = [word for row in rows for word in row]
    if len(words) != kind.elements or not _nests(text, rows, kind):
        hint = "nest one pair of braces for each dimension, the outermost dimension first"
        if len(kind.shape) == 1:
            hint = f"{kind} is written {{a, b, …}} with {kind.shape[0]} elements"
        raise LiteralError(1, f"the literal does not have the shape of {kind}", hint=hint)
    return words


def _nests(text: str, rows: list[list[str]], kind: ArrayType) -> bool:
    """Whether the braces follow the shape: each innermost row becomes `r`, and dimension by
    dimension from inside out `{rr…}` of the right length becomes `r`, until a single one is left.
    """
    if not kind.elements:
        return not re.sub(r"[{},\s]", "", text)
    if any(len(row) != kind.shape[-1] for row in rows):
        return False
    skeleton = re.sub(r"[\s,]", "", _ROW.sub("r", text))
    for size in reversed(kind.shape[:-1]):
        skeleton = skeleton.replace("{" + "r" * size + "}", "r")
    return skeleton == "r"


def _array_of(words: list[str], dtype: DType) -> np.ndarray:
    if dtype is DType.PRED:
        return np.array([_boolean(word) for word in words], dtype=bool)
    if dtype.is_integer:
        return _integers(words, dtype)
    if dtype.is_complex:
        return _complexes(words, dtype)
    return _floats(words, dtype)


def _boolean(word: str) -> bool:
    if _INTEGER.fullmatch(word):
        return bool(word.strip("+-0"))
    if word not in _BOOLEANS:
        raise LiteralError(2, f"{_quoted(word)} is not a pred value", word, "write true or false")
    return _BOOLEANS[word]


def _integers(words: list[str], dtype: DType) -> np.ndarray:
    bits = int(dtype.value[1:])
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if dtype.is_signed else (0, (1 << bits) - 1)
    if bits == 64:  # read in either sign, as in XLA
        low, high = -(1 << 63), (1 << 64) - 1
    values = []
    for word in words:
        if not _INTEGER.fullmatch(word):
            raise LiteralError(2, f"{_quoted(word)} is not an integer of type {dtype.value}", word)
        value = int(word) if len(word) <= 32 else high + 1
        if not low <= value <= high:
            fact = f"{_quoted(word)} is out of range for {dtype.value}"
            raise LiteralError(2, fact, word, f"{dtype.value} holds {low} to {high}")
        values.append(value % (1 << 64))  # two's complement, which astype cuts to size
    return np.array(values, dtype=np.uint64).astype(dtype.numpy)


def _floats(words: list[str], dtype: DType) -> np.ndarray:
    doubles = np.array([_float(word, dtype) for word in words], dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = doubles.astype(dtype.numpy)
        back = rounded.astype(np.float64)
    if dtype is DType.F8E8M0FNU:
        # ml_dtypes rounds all between the least two powers up, also 5.9e-39: XLA's text of 2^-127
        is_least = (doubles > 2.0**-127) & (doubles < 1.5 * 2.0**-127)
        rounded[is_least] = 2.0**-127
    # a finite number that overflows, or an infinity or NaN that the type lacks
    kinds = (np.isfinite, np.isinf, np.isnan)
    lost = np.logical_or.reduce([kind(doubles) & ~kind(back) for kind in kinds])
    if lost.any():
        word = words[int(lost.argmax())]
        raise LiteralError(2, f"{_quoted(word)} is out of range for {dtype.value}", word)
    for position, word in enumerate(words):
        if "nan" in word:
            _set_nan(rounded, position, word, dtype)
    return rounded


def _float(word: str, dtype: DType) -> float:
    if _NAN.fullmatch(word):
        return math.nan
    if not _FLOAT.fullmatch(word):
        raise LiteralError(2, f"{_quoted(word)} is not a number of type {dtype.value}", word)
    value = float(word)
    if math.isinf(value) and "inf" not in word:
        raise LiteralError(2, f"{_quoted(word)} is out of range for {dtype.value}", word)
    return value


@attrs.frozen
class _NanBits:
    """Where a float type keeps the sign and the payload of its NaNs."""

    unsigned: type
    sign: int
    exponent: int
    payload: int
    quiet: int  # the payload of the NaN that is spelt without one


_MANTISSAS = {
    DType.F64: 52,
    DType.F32: 23,
    DType.F16: 10,
    DType.BF16: 7,
    DType.F8E3M4: 4,
    DType.F8E4M3: 3,
    DType.F8E4M3FN: 3,
    DType.F8E5M2: 2,
}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


def _nan_bits(dtype: DType) -> _NanBits | None:
    """None for types whose NaNs carry nothing."""
    if dtype not in _MANTISSAS:
        return None
    bits, mantissa = dtype.size_bytes * 8, _MANTISSAS[dtype]
    payload, sign = (1 << mantissa) - 1, 1 << (bits - 1)
    # F8E4M3FN has a single NaN, all ones; elsewhere the highest bit of the mantissa means quiet
    quiet = payload if dtype is DType.F8E4M3FN else (payload + 1) >> 1
    return _NanBits(_UNSIGNED[dtype.size_bytes], sign, sign - 1 - payload, payload, quiet)


def _set_nan(array: np.ndarray, position: int, word: str, dtype: DType) -> None:
    bits, match = _nan_bits(dtype), _NAN.fullmatch(word)
    if match and (bits is None or dtype is DType.F8E4M3FN):
        fact = f"{_quoted(word)} has a payload, and a NaN of {dtype.value} has none"
        raise LiteralError(2, fact, word, "write nan")
    if bits is None:
        return
    payload = int(match[2], 16) if match else bits.quiet
    if not 1 <= payload <= bits.payload:
        fact = f"the payload of {_quoted(word)} is out of range for {dtype.value}"
        raise LiteralError(2, fact, word, f"it is 0x1 to {bits.payload:#x}")
    sign = bits.sign if word.startswith("-") else 0
    array.view(bits.unsigned)[position] = sign | bits.exponent | payload


def _complexes(words: list[str], dtype: DType) -> np.ndarray:
    part = DType.F32 if dtype is DType.C64 else DType.F64
    pairs = [word.partition("|") for word in words]
    parts = [word for real, _, imaginary in pairs for word in (real, imaginary or "0")]
    return _floats(parts, part).view(dtype.numpy)


def _quoted(word: str) -> str:
    return repr(word if len(word) <= 40 else word[:37] + "...")


def spell_literal(literal: Literal | Elided, dtype: DType) -> str:
    """The canonical text of a literal; `read_literal` reads the same bits from it."""
    if isinstance(literal, Elided):
        return ELIDED
    array = literal.array
    if not array.size and array.ndim:
        return _spell_empty(array.shape)
    words = [_spell(value, dtype) for value in array.reshape(-1)]
    for size in reversed(array.shape):
        words = [_braced(words[at : at + size]) for at in range(0, len(words), size)]
    return words[0]


_MAX_EMPTY_BRACES = 1000


def _spell_empty(shape: tuple[int, ...]) -> str:
    """An array without elements; braces for dimensions before the empty one, unless too many."""
    before = shape[: shape.index(0)]
    text = "{}"
    for size in reversed(before if math.prod(before) <= _MAX_EMPTY_BRACES else ()):
        text = _braced([text] * size)
    return text


def _braced(words: list[str]) -> str:
    return "{ " + ", ".join(words) + " }"


def _spell(value: np.generic, dtype: DType) -> str:
    if dtype is DType.PRED:
        return "true" if value else "false"
    if dtype.is_integer:
        return str(int(value))
    if dtype.is_complex:
        part = DType.F32 if dtype is DType.C64 else DType.F64
        pair = np.array([value]).view(part.numpy)
        return f"({_spell_float(pair[:1], part)}, {_spell_float(pair[1:], part)})"
    return _spell_float(np.array([value]), dtype)


def _spell_float(element: np.ndarray, dtype: DType) -> str:
    """The shortest decimal that reads back as the same bits; `element` is an array of one."""
    value = float(element[0])
    if math.isnan(value):
        return _spell_nan(element, dtype)
    if math.isinf(value):
        return "inf" if value > 0 else "-inf"
    with np.errstate(over="ignore"):
        short = str(np.float32(value))
    exact = repr(value)
    is_same = dtype is not DType.F64 and float(short) == value
    reads_back = is_same or np.array(float(short)).astype(dtype.numpy) == element[0]
    text = short if reads_back and dtype is not DType.F64 else exact
    return text.removesuffix(".0")


def _spell_nan(element: np.ndarray, dtype: DType) -> str:
    bits = _nan_bits(dtype)
    if bits is None:
        return "nan"
    raw = int(element.view(bits.unsigned)[0])
    sign = "-" if raw & bits.sign else ""
    payload = raw & bits.payload
    return f"{sign}nan" if payload == bits.quiet else f"{sign}nan(0x{payload:x})"
