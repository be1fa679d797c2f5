"""The reference run on texts, and on arrays [ranks, *shape] as the runtime takes them."""

from collections.abc import Sequence

import numpy as np

from ncc_compiler.diagnostics import Source
from ncc_compiler.ir.graph import Module
from ncc_compiler.ir.load import load_module
from ncc_compiler.reference import run_module


def reference_outputs(module: Module, inputs: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Outputs [ranks, *shape] from inputs [ranks, *shape]."""
    results = run_module(module, [[array[k] for array in inputs] for k in range(module.ranks)])
    return [np.stack(outputs) for outputs in zip(*results, strict=True)]


def run_text(text: str, *inputs: np.ndarray, ranks: int | None = None) -> list[np.ndarray]:
    """Outputs [ranks, *shape] of a program given as text."""
    return reference_outputs(load_module(Source("test.ir", text), ranks), inputs)


def assert_close(actual: np.ndarray, expected: np.ndarray, tolerance: float = 0.0) -> None:
    """Equal for integers; floats within 1e-5 of the largest magnitude, or the given tolerance."""
    assert actual.shape == expected.shape
    if actual.dtype.kind in "biu":
        np.testing.assert_array_equal(actual, expected)
        return
    actual, expected = actual.astype(np.float64), expected.astype(np.float64)
    scale = float(np.abs(expected).max(initial=0.0))
    np.testing.assert_allclose(actual, expected, rtol=0, atol=max(1e-5 * scale, tolerance))
