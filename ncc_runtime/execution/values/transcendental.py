"""Functions of real and complex numbers that numpy's loops compute.

Numpy has other loops for strided arrays than for contiguous ones, with other last bits. So every
operand is made contiguous first: the bits must not depend on how many ranks compute together.
"""

from collections.abc import Callable, Mapping

import numpy as np

from ncc_runtime.execution.values import complex_numbers

Function = Callable[..., np.ndarray]


def on_contiguous(function: Function) -> Function:
    """The function on contiguous copies of what is not contiguous."""

    def call(*arrays: np.ndarray) -> np.ndarray:
        return np.asarray(function(*(np.asarray(array, order="C") for array in arrays)))

    return call


def _by_kind(real: Function, of_complex: Function) -> Function:
    """One function for floats, another one for complex numbers."""

    def call(*arrays: np.ndarray) -> np.ndarray:
        return (of_complex if arrays[0].dtype.kind == "c" else real)(*arrays)

    return call


_divide = _by_kind(np.divide, complex_numbers.quotient)


def _logistic(array: np.ndarray) -> np.ndarray:
    one = np.ones_like(array)
    return _divide(one, one + np.exp(-array))


def _rsqrt(array: np.ndarray) -> np.ndarray:
    return _divide(np.ones_like(array), np.sqrt(array))


def _erf(array: np.ndarray) -> np.ndarray:
    from scipy import special

    return np.asarray(special.erf(array))


_LOOPS: Mapping[str, Function] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atan2": _by_kind(np.arctan2, complex_numbers.atan2),
    "atanh": np.arctanh,
    "cbrt": np.cbrt,
    "cosh": np.cosh,
    "cosine": np.cos,
    "divide": _divide,
    "erf": _erf,
    "exponential": np.exp,
    "exponential-minus-one": _by_kind(np.expm1, complex_numbers.expm1),
    "log": np.log,
    "log-plus-one": _by_kind(np.log1p, complex_numbers.log1p),
    "logistic": _logistic,
    "multiply": np.multiply,
    "power": np.power,
    "rsqrt": _rsqrt,
    "sign": complex_numbers.sign,
    "sine": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "tanh": np.tanh,
}

TRANSCENDENTAL: Mapping[str, Function] = {
    name: on_contiguous(function) for name, function in _LOOPS.items()
}
"""Opcodes for floats and complex numbers that are one function of contiguous arrays."""
