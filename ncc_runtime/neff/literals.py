"""The spelling of scalar constants, shared by who writes and who reads them."""

import numpy as np

from ncc_runtime.neff.dtypes import DType


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
