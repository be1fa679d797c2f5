"""Transforms, factors and triangular systems: executor and reference, and what both must be."""

import ml_dtypes
import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from tests.reference_runs import run_text

DTYPES = {"f32": np.float32, "f64": np.float64, "c64": np.complex64, "c128": np.complex128}


def drawn(seed: int, dtype: str, *shape: int) -> np.ndarray:
    draw = np.random.default_rng(seed)
    numbers = draw.standard_normal(shape)
    if dtype.startswith("c"):
        numbers = numbers + 1j * draw.standard_normal(shape)
    return numbers.astype(DTYPES[dtype])


def text_of(line: str, *arrays: np.ndarray) -> str:
    names = {np.dtype(kind): name for name, kind in DTYPES.items()}
    rows = [
        f"{name} = {names[array.dtype]}[{','.join(map(str, array.shape[1:]))}] parameter({k})"
        for k, (name, array) in enumerate(zip("ab", arrays, strict=False))
    ]
    ranks = f"HloModule m, num_partitions={len(arrays[0])}"
    return "\n".join([ranks, *rows, f"ROOT r = {line}", ""])


def run_both(line: str, *arrays: np.ndarray) -> np.ndarray:
    """The executor's result, after it was found to be the reference's."""
    text = text_of(line, *arrays)
    [actual] = ncc_runtime.load(ncc_compiler.compile_text(text)).run(list(arrays)).outputs
    [wanted] = run_text(text, *arrays)
    assert actual.dtype == wanted.dtype
    tolerance = 1e-5 * np.abs(wanted[np.isfinite(wanted)]).max(initial=0.0)
    np.testing.assert_allclose(actual, wanted, rtol=0, atol=tolerance)
    return actual


LENGTHS = [(1,), (2,), (7,), (8,), (3, 5), (4, 6), (2, 3, 4), (3, 1, 5)]


@pytest.mark.parametrize("lengths", LENGTHS)
@pytest.mark.parametrize(("real", "wide"), [("f32", "c64"), ("f64", "c128")])
def test_a_transform_and_its_inverse_give_what_was_there(lengths, real, wide):
    half = (*lengths[:-1], lengths[-1] // 2 + 1)
    whole, part = (",".join(map(str, (2, *shape))) for shape in (lengths, half))
    length = ",".join(map(str, lengths))
    given, spoken = drawn(0, wide, 3, 2, *lengths), drawn(1, real, 3, 2, *lengths)
    ahead = run_both(f"{wide}[{whole}] fft(a), fft_type=FFT, fft_length={{{length}}}", given)
    back = run_both(f"{wide}[{whole}] fft(a), fft_type=IFFT, fft_length={{{length}}}", ahead)
    np.testing.assert_allclose(back, given, atol=1e-5)
    ahead = run_both(f"{wide}[{part}] fft(a), fft_type=RFFT, fft_length={{{length}}}", spoken)
    back = run_both(f"{real}[{whole}] fft(a), fft_type=IRFFT, fft_length={{{length}}}", ahead)
    np.testing.assert_allclose(back, spoken, atol=1e-5)


def test_a_real_inverse_ignores_what_no_real_array_has():
    given = drawn(2, "c64", 2, 4, 4)
    run_both("f32[4,6] fft(a), fft_type=IRFFT, fft_length={4,6}", given)


@pytest.mark.parametrize(
    ("line", "shape"),
    [
        ("c64[0] fft(a), fft_type=FFT, fft_length={0}", (1, 0)),
        ("c64[0,3] fft(a), fft_type=FFT, fft_length={3}", (1, 0, 3)),
        ("c64[0,3] fft(a), fft_type=IFFT, fft_length={0,3}", (1, 0, 3)),
        ("f32[0] fft(a), fft_type=IRFFT, fft_length={0}", (1, 0)),
    ],
)
def test_a_transform_of_nothing_is_nothing(line, shape):
    assert run_both(line, np.zeros(shape, np.complex64)).size == 0


def positive(seed: int, dtype: str, *shape: int) -> np.ndarray:
    half = drawn(seed, dtype, *shape)
    return (half @ np.conj(half.swapaxes(-1, -2)) + np.eye(shape[-1])).astype(DTYPES[dtype])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("lower", [True, False])
def test_a_factor_multiplied_by_its_adjoint_is_the_matrix(dtype, lower):
    matrix = positive(3, dtype, 3, 2, 5, 5)
    keep, other = (np.tril, np.triu) if lower else (np.triu, np.tril)
    with_rubbish = (matrix + other(np.ones((5, 5)), 1 if lower else -1)).astype(matrix.dtype)
    line = f"{dtype}[2,5,5] cholesky(a), lower={str(lower).lower()}"
    factor = run_both(line, with_rubbish)
    np.testing.assert_array_equal(factor, keep(factor))
    adjoint = np.conj(factor.swapaxes(-1, -2))
    np.testing.assert_allclose(
        factor @ adjoint if lower else adjoint @ factor, matrix, rtol=1e-4, atol=1e-4
    )


def test_only_the_matrices_that_have_no_factor_become_nan():
    matrices = np.stack([np.eye(3), -np.eye(3), np.eye(3), np.full((3, 3), np.nan)])
    ranks = matrices.astype(np.float32).reshape(2, 2, 3, 3)
    factors = run_both("f32[2,3,3] cholesky(a), lower=true", ranks)
    assert np.isnan(factors).all(axis=(-1, -2)).tolist() == [[False, True], [False, True]]
    np.testing.assert_array_equal(factors[:, 0], ranks[:, 0])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("transpose", ["NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"])
@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize("lower", [True, False])
@pytest.mark.parametrize("unit", [True, False])
def test_a_solution_put_back_gives_the_right_side(dtype, transpose, left, lower, unit):
    matrix = (drawn(4, dtype, 2, 4, 4) + 3 * np.eye(4)).astype(DTYPES[dtype])
    given = drawn(5, dtype, 2, *((4, 3) if left else (3, 4)))
    flags = {"left_side": left, "lower": lower, "unit_diagonal": unit}
    spelled = ", ".join(f"{name}={str(flag).lower()}" for name, flag in flags.items())
    shape = "4,3" if left else "3,4"
    line = f"{dtype}[{shape}] triangular-solve(a, b), {spelled}, transpose_a={transpose}"
    found = run_both(line, matrix, given)
    triangle = np.tril(matrix) if lower else np.triu(matrix)
    if unit:
        triangle[..., range(4), range(4)] = 1
    if transpose != "NO_TRANSPOSE":
        triangle = triangle.swapaxes(-1, -2)
    triangle = triangle.conj() if transpose == "ADJOINT" else triangle
    product = triangle @ found if left else found @ triangle
    np.testing.assert_allclose(product, given, rtol=1e-3, atol=1e-3)


def test_a_zero_on_the_diagonal_divides_as_floats_do():
    found = run_both(
        "f32[1,1] triangular-solve(a, b), left_side=true, lower=true",
        np.zeros((1, 1, 1), np.float32),
        np.ones((1, 1, 1), np.float32),
    )
    assert found.tolist() == [[[np.inf]]]


def test_a_narrow_float_is_solved_in_float32_and_rounded_once():
    rows = "a = bf16[2,2] parameter(0)\nb = bf16[2,1] parameter(1)\n"
    line = "ROOT r = bf16[2,1] triangular-solve(a, b), left_side=true, lower=true\n"
    matrix = np.array([[[3, 0], [1, 3]]], ml_dtypes.bfloat16)
    given = np.array([[[1], [1]]], ml_dtypes.bfloat16)
    [found] = ncc_runtime.load(ncc_compiler.compile_text(rows + line)).run([matrix, given]).outputs
    wanted = np.array([1 / 3, 2 / 9], np.float32).astype(ml_dtypes.bfloat16)
    assert found[0, :, 0].tolist() == wanted.tolist()


@pytest.mark.parametrize(
    ("line", "arrays"),
    [
        ("c64[48,60] fft(a), fft_type=FFT, fft_length={48,60}", [drawn(6, "c64", 5, 48, 60)]),
        ("c64[8,129] fft(a), fft_type=RFFT, fft_length={256}", [drawn(7, "f32", 5, 8, 256)]),
        ("f32[40,40] cholesky(a), lower=true", [positive(8, "f32", 5, 40, 40)]),
        (
            "f32[40,7] triangular-solve(a, b), left_side=true, lower=true",
            [positive(9, "f32", 5, 40, 40), drawn(1, "f32", 5, 40, 7)],
        ),
        (
            "f32[40,33] dot(a, b), lhs_contracting_dims={0}, rhs_contracting_dims={1}",
            [drawn(2, "f32", 5, 333, 40), drawn(3, "f32", 5, 33, 333)],
        ),
        (
            "f32[4,14,14,9] convolution(a, b), window={size=3x3 pad=1_1x1_1}, "
            "dim_labels=b01f_01io->b01f",
            [drawn(4, "f32", 5, 4, 14, 14, 16), drawn(5, "f32", 5, 3, 3, 16, 9)],
        ),
    ],
)
def test_a_rank_alone_gets_the_bits_it_gets_among_others(line, arrays):
    together, alone = (
        ncc_runtime.load(ncc_compiler.compile_text(text_of(line, *given))).run(given).outputs[0]
        for given in (arrays, [array[3:4] for array in arrays])
    )
    assert together[3].tobytes() == alone[0].tobytes()
