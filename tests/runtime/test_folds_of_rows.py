"""Folds of rows of float32 and bfloat16: machine code and numpy give the same bits."""

import ml_dtypes
import numpy as np
import pytest

from ncc_runtime.execution.values.kernels.folds import fold_of_rows
from tests.kernel_ways import WAYS, compute_by

SIZES = (1, 2, 7, 8, 9, 100, 127, 128, 129, 136, 255, 257, 1000, 1024, 4097, 70_000)


def rows_of(size: int, *, is_wild: bool) -> np.ndarray:
    """Some rows of numbers of all magnitudes; wild ones have NaNs, infinities and both zeros."""
    generator = np.random.default_rng(size)
    rows = generator.standard_normal((1, 5, size)).astype(np.float32)
    rows *= np.exp2(generator.integers(-20, 20, rows.shape)).astype(np.float32)
    if is_wild:
        others = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, -np.nan], np.float32)
        is_other = generator.random(rows.shape) < 0.3
        rows = np.where(is_other, generator.choice(others, rows.shape), rows)
    return rows


def narrow_rows_of(size: int, *, is_wild: bool) -> np.ndarray:
    return rows_of(size, is_wild=is_wild).astype(ml_dtypes.bfloat16)


def in_order(number: np.float32) -> tuple[float, bool]:
    """-0 is less than +0."""
    return float(number), not np.signbit(number)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES)
def test_a_sum_has_the_order_of_numpys_pairwise_sum(
    way: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_by(way, monkeypatch)
    fold = fold_of_rows("add", np.dtype(np.float32))
    assert fold is not None
    rows = rows_of(size, is_wild=False)
    start = np.zeros((1, 5), np.float32)
    assert fold(start, rows).tobytes() == (start + np.add.reduce(rows, axis=-1)).tobytes()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_wild", [False, True])
@pytest.mark.parametrize("opcode", ["maximum", "minimum"])
def test_an_extreme_is_nan_if_there_is_one_and_tells_zeros_apart(
    way: str, size: int, is_wild: bool, opcode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_by(way, monkeypatch)
    fold = fold_of_rows(opcode, np.dtype(np.float32))
    assert fold is not None
    rows = rows_of(size, is_wild=is_wild)
    neutral = np.float32(-np.inf if opcode == "maximum" else np.inf)
    found = fold(np.full((1, 5), neutral), rows)
    best = max if opcode == "maximum" else min
    for one, row in zip(found[0], rows[0], strict=True):
        if np.isnan(row).any():
            assert np.isnan(one)
        else:
            wanted = best(row, key=in_order)
            assert in_order(one) == in_order(wanted)


@pytest.mark.parametrize("way", WAYS)
def test_a_row_of_negative_zeros_sums_to_zero(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As numpy's sum, which begins with zero."""
    compute_by(way, monkeypatch)
    fold = fold_of_rows("add", np.dtype(np.float32))
    assert fold is not None
    found = fold(np.full((1, 2), np.float32(-0.0)), np.full((1, 2, 9), np.float32(-0.0)))
    assert not np.signbit(found).any()


def pairs_of(row: np.ndarray) -> np.ndarray:
    """Neighbours added in pairs and rounded; an odd last one stays."""
    even = row[: len(row) // 2 * 2].astype(np.float32)
    return np.concatenate(((even[::2] + even[1::2]).astype(row.dtype), row[len(even) :]))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", [*SIZES, 1 << 17, (1 << 17) + 1])
@pytest.mark.parametrize("is_wild", [False, True])
def test_a_narrow_sum_adds_neighbours_in_pairs_and_rounds_every_one(
    way: str, size: int, is_wild: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_by(way, monkeypatch)
    fold = fold_of_rows("add", np.dtype(ml_dtypes.bfloat16))
    assert fold is not None
    rows = narrow_rows_of(size, is_wild=is_wild)
    with np.errstate(all="ignore"):
        found = fold(np.zeros((1, 5), ml_dtypes.bfloat16), rows)
    for one, row in zip(found[0], rows[0], strict=True):
        with np.errstate(all="ignore"):
            while len(row) > 1:
                row = pairs_of(row)
            expected = row[0].astype(np.float32) + np.float32(0)
        if np.isnan(expected):
            assert np.isnan(one)
        else:
            assert (one, np.signbit(one)) == (expected, np.signbit(expected))


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("is_wild", [False, True])
@pytest.mark.parametrize("opcode", ["maximum", "minimum"])
def test_a_narrow_extreme_is_that_of_the_same_numbers_in_float32(
    way: str, size: int, is_wild: bool, opcode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute_by(way, monkeypatch)
    neutral = -np.inf if opcode == "maximum" else np.inf
    rows = narrow_rows_of(size, is_wild=is_wild)
    found = []
    for kind in (ml_dtypes.bfloat16, np.float32):
        fold = fold_of_rows(opcode, np.dtype(kind))
        assert fold is not None
        found.append(fold(np.full((1, 5), neutral, kind), rows.astype(kind)).astype(np.float32))
    narrow, wide = found
    assert (np.isnan(narrow) == np.isnan(wide)).all()
    is_number = ~np.isnan(wide)
    assert narrow[is_number].tobytes() == wide[is_number].tobytes()
