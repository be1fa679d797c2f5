"""Element types: one table for the compiler and the runtime.

The text form is XLA's. Elements of less than a byte are stored one a byte.
"""

import enum
import functools
import re

import numpy as np


class DType(enum.Enum):
    """An element type; its value is the spelling of HLO text."""

    PRED = "pred"
    S1 = "s1"
    S2 = "s2"
    S4 = "s4"
    S8 = "s8"
    S16 = "s16"
    S32 = "s32"
    S64 = "s64"
    U1 = "u1"
    U2 = "u2"
    U4 = "u4"
    U8 = "u8"
    U16 = "u16"
    U32 = "u32"
    U64 = "u64"
    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"
    F64 = "f64"
    F4E2M1FN = "f4e2m1fn"
    F6E2M3FN = "f6e2m3fn"
    F6E3M2FN = "f6e3m2fn"
    F8E3M4 = "f8e3m4"
    F8E4M3 = "f8e4m3"
    F8E4M3FN = "f8e4m3fn"
    F8E4M3B11FNUZ = "f8e4m3b11fnuz"
    F8E4M3FNUZ = "f8e4m3fnuz"
    F8E5M2 = "f8e5m2"
    F8E5M2FNUZ = "f8e5m2fnuz"
    F8E8M0FNU = "f8e8m0fnu"
    C64 = "c64"
    C128 = "c128"

    __hash__ = object.__hash__  # each is one object; Enum's own hash is slow, being Python

    @property
    def numpy(self) -> np.dtype:
        """The numpy dtype that holds one element (from ml_dtypes where numpy has none)."""
        return _numpy_dtype(self)

    @functools.cached_property
    def size_bytes(self) -> int:
        """Bytes of one stored element."""
        return max(1, self.bits // 8)

    @functools.cached_property
    def bits(self) -> int:
        """Bits that one element has; fewer than it takes in memory for the narrowest numbers.

        A pred has the 8 of its byte, as XLA's bitcasts see it; u1 is the type of one bit.
        """
        (digits,) = re.findall(r"^[a-z]+(\d+)", "pred8" if self is DType.PRED else self.value)
        return int(digits)

    @functools.cached_property
    def is_integer(self) -> bool:
        """Whether it is a signed or unsigned integer; pred is neither."""
        return self.value[0] in "su"

    @functools.cached_property
    def is_signed(self) -> bool:
        """Whether it is a signed integer."""
        return self.value[0] == "s"

    @functools.cached_property
    def is_float(self) -> bool:
        """Whether it is a real floating-point type, bfloat16, fp8, fp6 and fp4 included."""
        return self.value[0] in "fb"

    @property
    def is_complex(self) -> bool:
        """Whether it is a complex type."""
        return self.value[0] == "c"


_NUMPY_NAMES = {
    DType.PRED: "bool",
    DType.S8: "int8",
    DType.S16: "int16",
    DType.S32: "int32",
    DType.S64: "int64",
    DType.U8: "uint8",
    DType.U16: "uint16",
    DType.U32: "uint32",
    DType.U64: "uint64",
    DType.F16: "float16",
    DType.F32: "float32",
    DType.F64: "float64",
    DType.C64: "complex64",
    DType.C128: "complex128",
}

_ML_NAMES = {
    DType.S1: "int1",
    DType.S2: "int2",
    DType.S4: "int4",
    DType.U1: "uint1",
    DType.U2: "uint2",
    DType.U4: "uint4",
    DType.BF16: "bfloat16",
    DType.F4E2M1FN: "float4_e2m1fn",
    DType.F6E2M3FN: "float6_e2m3fn",
    DType.F6E3M2FN: "float6_e3m2fn",
    DType.F8E3M4: "float8_e3m4",
    DType.F8E4M3: "float8_e4m3",
    DType.F8E4M3FN: "float8_e4m3fn",
    DType.F8E4M3B11FNUZ: "float8_e4m3b11fnuz",
    DType.F8E4M3FNUZ: "float8_e4m3fnuz",
    DType.F8E5M2: "float8_e5m2",
    DType.F8E5M2FNUZ: "float8_e5m2fnuz",
    DType.F8E8M0FNU: "float8_e8m0fnu",
}


@functools.cache
def _numpy_dtype(dtype: DType) -> np.dtype:
    if dtype in _NUMPY_NAMES:
        return np.dtype(_NUMPY_NAMES[dtype])
    import ml_dtypes

    narrow: np.dtype = np.dtype(getattr(ml_dtypes, _ML_NAMES[dtype]))
    return narrow


_WIDE = {"float32", "float64", "complex64", "complex128"}


def storable(array: np.ndarray) -> np.ndarray:
    """The array as `.npz` can hold it: types that numpy lacks become float32 or int8."""
    if array.dtype.name in _WIDE or (array.dtype.kind in "biuf" and array.dtype.isbuiltin == 1):
        return array
    is_integer = array.dtype.name.startswith(("int", "uint"))
    return array.astype(np.int8 if is_integer else np.float32)


def scalar(text: str, dtype: DType) -> np.ndarray:
    """A 0-dimensional array from HLO's spelling: `1`, `-inf`, `true`, `(1, -2)`.

    ValueError or OverflowError for what is no value of the dtype.
    """
    if dtype is DType.PRED:
        return np.array(text == "true")
    if dtype.is_complex:
        real, imaginary = text.strip("()").split(",")
        return np.array(complex(float(real), float(imaginary)), dtype.numpy)
    if dtype.is_integer:
        low = -(1 << (dtype.bits - 1)) if dtype.is_signed else 0
        if not low <= int(text) < low + (1 << dtype.bits):
            raise OverflowError(f"{text} is no {dtype.value}")
        return np.array(int(text)).astype(dtype.numpy)
    return np.array(float(text)).astype(dtype.numpy)
