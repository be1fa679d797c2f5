"""Every case gives its outputs, or its complaint: reference, virtual devices, all levels."""

import importlib.util
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.diagnostics import CompileError
from ncc_compiler.driver import compile_file, load_text, read_text
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.options import CompileOptions
from ncc_runtime.errors import NccError
from tests.conformance.cases import Case, cases
from tests.reference_runs import reference_outputs

pytestmark = pytest.mark.conformance

PLACES: tuple[dict[str, Any], ...] = (
    {"topology": "trn2.48xlarge"},
    {"topology": "trn1.32xlarge", "placement": "spread"},
)

HLO = cases("hlo")
STABLEHLO = cases("stablehlo") if importlib.util.find_spec("jaxlib") else []


def array_of(values: Any, type_: ArrayType, ranks: int) -> np.ndarray:
    """Numbers as [ranks, *shape] of a type; those without an axis of ranks are for all."""
    dtype = type_.dtype.numpy
    if dtype.kind == "c":
        pairs = np.asarray(values, np.float64)
        found = (pairs[..., 0] + 1j * pairs[..., 1]).astype(dtype)
    elif dtype.kind in "biu" or dtype in (ml_dtypes.int4, ml_dtypes.uint4):
        found = np.asarray(values, object).astype(dtype)  # by Python's whole numbers, exactly
    else:
        found = np.asarray(values, np.float64).astype(dtype)
    shape = (ranks, *type_.shape)
    assert found.shape in (shape, shape[1:]), f"{found.shape} is neither {shape} nor {shape[1:]}"
    return np.broadcast_to(found, shape)


def assert_same(actual: np.ndarray, expected: np.ndarray, near: float) -> None:
    assert actual.shape == expected.shape
    if near:
        wide = np.complex128 if expected.dtype.kind == "c" else np.float64
        np.testing.assert_allclose(actual.astype(wide), expected.astype(wide), rtol=near, atol=near)
        return
    assert actual.dtype == expected.dtype
    both_nan = np.zeros(actual.shape, bool)
    if expected.dtype.kind in "fcV":  # every NaN is as good as another, and 0 is not -0
        both_nan = (actual != actual) & (expected != expected)
    bits = [
        np.ascontiguousarray(array).view(np.uint8).reshape(*array.shape, array.dtype.itemsize)
        for array in (actual, expected)
    ]
    same = (bits[0] == bits[1]).all(-1)
    assert (same | both_nan).all(), f"{actual}\nis not\n{expected}"


def check(case: Case, text: str) -> None:
    """A text against its case, by the reference and on virtual devices."""
    module = load_text(text, case.ranks)
    entry = module.entry_computation
    assert module.ranks == case.ranks
    inputs = [
        array_of(values, entry.nodes[position].type, case.ranks)
        for values, position in zip(case.inputs, entry.parameters(), strict=True)
    ]
    root = entry.nodes[entry.root].type
    types = [root] if isinstance(root, ArrayType) else list(root.elements)
    wanted = [
        array_of(values, type_, case.ranks)
        for values, type_ in zip(case.outputs, types, strict=True)
    ]
    for actual, expected in zip(reference_outputs(module, inputs), wanted, strict=True):
        assert_same(actual, expected, case.near)
    for level in (0, 1, 2):
        options = CompileOptions(level=level, ranks=case.ranks)
        neff = ncc_compiler.compile_text(text, options)
        for place in PLACES:
            run = ncc_runtime.load(neff, **place).run(inputs, checked=True)
            assert all(proof.holds for proof in run.proofs)
            for actual, expected in zip(run.outputs, wanted, strict=True):
                assert_same(actual, expected, case.near)


def complaint(case: Case, compiled: Any) -> str:
    """What is said of a case that is refused, by the compiler or when it is placed or run."""
    try:
        ncc_runtime.load(compiled(), topology="trn2.48xlarge").run(seed=0)
    except CompileError as error:
        return "\n".join(f"{one.code} {one.message} {one.help}" for one in error.diagnostics)
    except NccError as error:
        return str(error)
    pytest.fail(f"{case} is taken")


@pytest.mark.parametrize("case", HLO, ids=str)
def test_hlo(case: Case) -> None:
    if case.refused:
        options = CompileOptions(ranks=case.ranks if case.ranks > 1 else None)
        found = complaint(case, lambda: ncc_compiler.compile_text(case.text, options))
        assert case.refused in found
    else:
        check(case, case.text)


@pytest.mark.parametrize("case", STABLEHLO, ids=str)
def test_stablehlo(case: Case, tmp_path: Any) -> None:
    path = tmp_path / "case.mlir"
    path.write_text(case.text)
    if case.refused:
        options = CompileOptions(ranks=case.ranks)
        assert case.refused in complaint(case, lambda: compile_file(path, options))
    else:
        check(case, read_text(path).text)
