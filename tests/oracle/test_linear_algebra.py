"""Custom calls of linear algebra against XLA's CPU and the LAPACK that jax calls."""

from pathlib import Path

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from tests.lapack_calls import DTYPES, calls
from tests.oracle import arrays
from tests.oracle.children import run_module
from tests.oracle.xla import Xla

PRECISION = {"s": 1e-4, "d": 1e-11, "c": 1e-4, "z": 1e-11}
NOT_ON_CPUS = ("LuDecomposition",)
OWN_VECTORS = ("Eigh",)
"""XLA's CPU computes it by Jacobi's method, with vectors of other signs than LAPACK's."""


@pytest.mark.parametrize("batch", [(), (2, 2)])
@pytest.mark.parametrize("letter", DTYPES)
def test_every_routine_gives_what_jax_gives(letter: str, batch: tuple[int, ...], xla: Xla) -> None:
    for call in calls(letter, batch):
        if call.name.startswith(NOT_ON_CPUS):
            continue
        theirs = xla.run(call.text, call.inputs)
        neff = ncc_compiler.compile_text(call.text)
        ours = ncc_runtime.load(neff).run(list(call.inputs)).outputs
        for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
            free = number not in call.unique and call.name.startswith(OWN_VECTORS)
            if number in call.undefined or free:
                continue
            assert (one.dtype, one.shape) == (other.dtype, other.shape)
            atol = PRECISION[letter] * max(1.0, float(np.abs(other).max(initial=0)))
            np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=call.name)


@pytest.fixture(scope="module")
def for_tpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tpu")
    run_module("tests.oracle.write_tpu_programs", str(folder))
    return folder


@pytest.mark.parametrize("kind", ["real", "complex"])
@pytest.mark.parametrize("function", ["svd", "eigh", "qr", "solve", "least_squares"])
def test_what_jax_lowers_for_tpus_gives_what_it_gives_on_cpus(
    kind: str, function: str, for_tpus: Path
) -> None:
    [given] = arrays.load(for_tpus / f"{kind}.npz").values()
    text = (for_tpus / f"{kind}-{function}.hlo").read_text()
    ours = ncc_runtime.load(ncc_compiler.compile_text(text)).run([given[None]]).outputs
    theirs = arrays.load(for_tpus / f"{kind}-{function}-out.npz").values()
    for one, other in zip(ours, theirs, strict=True):
        assert (one[0].dtype, one[0].shape) == (other.dtype, other.shape)
        atol = 1e-4 * max(1.0, float(np.abs(other).max(initial=0)))
        np.testing.assert_allclose(one[0], other, rtol=0, atol=atol)
