"""Custom calls of linear algebra: executor and reference, and what decompositions must be."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from tests.lapack_calls import DTYPES, Call, calls, drawn, letter_code, spelled, text_of
from tests.reference_runs import run_text

PRECISION = {"s": 1e-4, "d": 1e-11, "c": 1e-4, "z": 1e-11}


def run_both(call: Call, tolerance: float) -> tuple[list[np.ndarray], list[np.ndarray]]:
    """Results of executor and reference, after the unique ones were found to be the same."""
    neff = ncc_compiler.compile_text(call.text)
    ours = ncc_runtime.load(neff).run(list(call.inputs)).outputs
    theirs = run_text(call.text, *call.inputs)
    for number, (one, other) in enumerate(zip(ours, theirs, strict=True)):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        if number in call.unique:
            atol = tolerance * max(1.0, float(np.abs(other).max(initial=0)))
            np.testing.assert_allclose(one, other, rtol=0, atol=atol, err_msg=call.name)
        elif number in call.undefined:
            assert not one.any(), call.name
    return ours, theirs


def some_calls() -> list[tuple[str, Call]]:
    """Every routine on complex numbers, and those that are others on reals."""
    real = ("geev", "gees", "sy", "or", "potrf")
    kept = [("d", call) for call in calls("d", ()) if call.name.startswith(real)]
    wide = [("c", call) for call in calls("c", (2,))]
    kept += [pair for pair in wide if "trsm" not in pair[1].name]
    return kept + [pair for pair in wide if "trsm" in pair[1].name][::5]


def assert_decomposed(call: Call, results: list[np.ndarray], tolerance: float) -> None:
    """What is no unique result fits the operand: vectors are orthogonal and give it back."""
    matrix, routine = call.inputs[0], call.name.split()[0]

    def same(left: np.ndarray, right: np.ndarray) -> None:
        size = float(np.abs(right).max(initial=0))
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance * 10 * max(1.0, size))

    def unitary(vectors: np.ndarray) -> None:
        smaller = vectors.shape[-1] <= vectors.shape[-2]
        product = adjoint(vectors) @ vectors if smaller else vectors @ adjoint(vectors)
        same(product, np.broadcast_to(np.eye(product.shape[-1]), product.shape))

    is_lower = "uplo = 76" in call.name or '"1,' in call.name
    if routine in ("syevd", "heevd", "Eigh") and 0 not in call.undefined:
        vectors, values = results[:2]
        triangle = np.tril(matrix, -1) if is_lower else np.triu(matrix, 1)
        middle = np.real(np.diagonal(matrix, axis1=-2, axis2=-1))
        whole = triangle + adjoint(triangle) + np.eye(matrix.shape[-1]) * middle[..., None, :]
        unitary(vectors)
        same((vectors * values[..., None, :]) @ adjoint(vectors), whole)
    if routine in ("gesdd", "gesvd") and 2 not in call.undefined:
        _, values, left, right, _ = results
        unitary(left)
        unitary(right)
        count = values.shape[-1]
        same((left[..., :count] * values[..., None, :]) @ right[..., :count, :], matrix)
    if routine == "geev":
        *values, left, right, _ = results
        numbers = values[0] + 1j * values[1] if len(values) == 2 else values[0]
        first = len(values)
        if first + 1 not in call.undefined:
            same(matrix @ right, right * numbers[..., None, :])
            same(np.linalg.norm(right, axis=-2), np.ones(numbers.shape))
        if first not in call.undefined:
            same(adjoint(left) @ matrix, adjoint(left) * numbers[..., None])
            same(np.linalg.norm(left, axis=-2), np.ones(numbers.shape))
    if routine == "gees":
        form, vectors = results[:2]
        same(np.tril(form, -2), np.zeros_like(form))
        if 1 not in call.undefined:
            unitary(vectors)
            same(vectors @ form @ adjoint(vectors), matrix)
        values = results[2] + 1j * results[3] if len(results) == 6 else results[2]
        wanted = np.linalg.eigvals(matrix)
        for ours, theirs in zip(values.reshape(-1, 5), wanted.reshape(-1, 5), strict=True):
            assert max(np.abs(theirs - one).min() for one in ours) < 1e3 * tolerance


def adjoint(matrix: np.ndarray) -> np.ndarray:
    return np.conj(matrix.swapaxes(-1, -2))


@pytest.mark.parametrize(
    ("letter", "call"),
    [pytest.param(*pair, id=f"{pair[0]} {pair[1].name}") for pair in some_calls()],
)
def test_a_routine_gives_what_its_definition_says(letter: str, call: Call) -> None:
    for results in run_both(call, PRECISION[letter]):
        assert_decomposed(call, results, PRECISION[letter])


@pytest.mark.slow
@pytest.mark.parametrize("batch", [(), (2, 2), (0,)])
@pytest.mark.parametrize("letter", DTYPES)
def test_every_routine_does_on_every_element_type_and_batch(
    letter: str, batch: tuple[int, ...]
) -> None:
    for call in calls(letter, batch):
        for results in run_both(call, PRECISION[letter]):
            if batch != (0,):
                assert_decomposed(call, results, PRECISION[letter])


def one_call(
    target: str, config: str, inputs: list[np.ndarray], results: list[tuple[type, tuple[int, ...]]]
) -> list[np.ndarray]:
    """The executor's results, whose integers are the reference's."""
    kinds = [spelled(dtype, shape) for dtype, shape in results]
    numbers = [k for k, (dtype, _) in enumerate(results) if dtype is np.int32]
    text = text_of(target, config, tuple(inputs), kinds)
    return run_both(Call(target, text, tuple(inputs), tuple(numbers)), 1e-6)[0]


LOWER = f"{{uplo = {letter_code('L')}}}"


def test_info_names_the_minor_that_is_not_positive_and_the_pivot_that_is_zero() -> None:
    matrices = np.stack([np.eye(3), np.diag([1.0, -1, 1]), np.diag([1.0, 1, 0])])[None]
    kind = (np.float64, (3, 3, 3))
    _, info = one_call("lapack_dpotrf_ffi", LOWER, [matrices], [kind, (np.int32, (3,))])
    assert info.tolist() == [[0, 2, 3]]
    results = [kind, (np.int32, (3, 3)), (np.int32, (3,))]
    factors, pivots, info = one_call("lapack_dgetrf_ffi", "{}", [matrices], results)
    assert info.tolist() == [[0, 0, 3]]
    assert pivots.tolist() == [[[1, 2, 3]] * 3]
    np.testing.assert_array_equal(factors, matrices)


def test_a_tridiagonal_system_without_solution_keeps_its_right_side() -> None:
    zero, right = np.zeros((1, 3)), np.ones((1, 3, 2))
    results = [(np.float64, (3,))] * 3 + [(np.float64, (3, 2)), (np.int32, ())]
    *_, kept, info = one_call("lapack_dgtsv_ffi", "{}", [zero, zero, zero, right], results)
    assert info.tolist() == [1]
    np.testing.assert_array_equal(kept, right)


def test_a_perturbed_system_without_solution_has_a_large_finite_one() -> None:
    target, zero = "tridiagonal_solve_perturbed_ffi", np.zeros((1, 3))
    middle, right = np.array([[1.0, 0.0, 3.0]]), np.ones((1, 3, 1))
    kinds = [spelled(np.float64, (3, 1))]
    text = text_of(target, "{}", (zero, middle, zero, right), kinds)
    [found] = (
        ncc_runtime.load(ncc_compiler.compile_text(text)).run([zero, middle, zero, right]).outputs
    )
    step = 3 * np.finfo(np.float64).eps
    np.testing.assert_allclose(found[0, :, 0], [1, 1 / step, 1 / 3])


@pytest.mark.parametrize("place", [1, 2, 3])
def test_a_perturbed_system_that_is_not_finite_has_no_numbers(place: int) -> None:
    target, right = "tridiagonal_solve_perturbed_ffi", np.ones((1, 3, 1))
    diagonals = [np.full((1, 3), float(k == 1)) for k in range(3)]
    diagonals[place - 1][0, 1] = np.nan
    text = text_of(target, "{}", (*diagonals, right), [spelled(np.float64, (3, 1))])
    model = ncc_runtime.load(ncc_compiler.compile_text(text))
    [found] = model.run([*diagonals, right]).outputs
    assert np.isnan(found).all()


@pytest.mark.parametrize("uplo", ["L", "U"])
def test_eigenvalues_follow_from_one_triangle_whatever_the_other_holds(uplo: str) -> None:
    whole = np.array([[[2.0, 1.0], [1.0, 2.0]]])
    kinds = [spelled(np.float64, shape) for shape in ((2, 2), (2,))]
    config = f'"{int(uplo == "L")},1,100,1e-6"'
    for cell, expected in (((1, 0), uplo == "U"), ((0, 1), uplo == "L"), ((0, 0), False)):
        for value in (np.nan, np.inf):
            matrix = whole.copy()
            matrix[0][cell] = value
            text = text_of("Eigh", config, (matrix,), kinds)
            (vectors, values), _ = run_both(Call("Eigh", text, (matrix,), (1,)), 1e-12)
            if expected:
                np.testing.assert_allclose(values, [[1, 3]])
            else:
                assert np.isnan(values).all()
                assert np.isnan(vectors).all()


@pytest.mark.parametrize("target", ["lapack_dgesdd_ffi", "lapack_dgeev_ffi"])
def test_what_is_not_finite_has_no_values_and_says_so(target: str) -> None:
    matrix, square = np.full((1, 3, 3), np.nan), (np.float64, (3, 3))
    row, wide, info = (np.float64, (3,)), (np.complex128, (3, 3)), (np.int32, ())
    if target == "lapack_dgesdd_ffi":
        config = f"{{mode = {letter_code('A')}}}"
        results = [square, row, square, square, info]
    else:
        config = f"{{compute_left = {letter_code('V')}, compute_right = {letter_code('V')}}}"
        results = [row, row, wide, wide, info]
    assert one_call(target, config, [matrix], results)[-1].tolist() == [-4]


@pytest.mark.parametrize(("rows", "columns"), [(0, 3), (3, 0), (0, 0)])
def test_empty_matrices_have_empty_factors_and_whole_vectors(rows: int, columns: int) -> None:
    matrix, kind = np.zeros((2, rows, columns)), np.float64
    shape = (kind, (rows, columns))
    one_call("lapack_dgeqrf_ffi", "{}", [matrix], [shape, (kind, (0,))])
    info = (np.int32, ())
    one_call("lapack_dgetrf_ffi", "{}", [matrix], [shape, (np.int32, (0,)), info])
    rowed = (np.int32, (rows,))
    *_, order = one_call("LuDecomposition", '""', [matrix], [shape, (np.int32, (0,)), rowed])
    assert order.tolist() == [list(range(rows))] * 2
    results = [shape, (kind, (0,)), (kind, (rows, rows)), (kind, (columns, columns)), info]
    config = f"{{mode = {letter_code('A')}}}"
    _, _, left, right, _ = one_call("lapack_dgesdd_ffi", config, [matrix], results)
    np.testing.assert_array_equal(left, np.broadcast_to(np.eye(rows), left.shape))
    np.testing.assert_array_equal(right, np.broadcast_to(np.eye(columns), right.shape))


def test_a_product_of_no_reflectors_is_the_identity() -> None:
    given = [drawn(1, "d", 1, 4, 2), np.zeros((1, 0))]
    [found] = one_call("lapack_dorgqr_ffi", "{}", given, [(np.float64, (4, 2))])
    np.testing.assert_array_equal(found[0], np.eye(4, 2))


@pytest.mark.parametrize("name", ["syevd", "gesdd", "geev", "getrf"])
def test_a_rank_alone_and_any_number_of_threads_give_the_same_bits(name: str) -> None:
    [call, *_] = [one for one in calls("d", (2,)) if one.name.startswith(name)]
    many = [np.concatenate([array] * 3) for array in call.inputs]
    text = call.text.replace("replica_count=2", "replica_count=6")
    model = ncc_runtime.load(ncc_compiler.compile_text(text))
    alone = ncc_runtime.load(ncc_compiler.compile_text(call.text)).run(list(call.inputs)).outputs
    for threads in (1, 3):
        for one, part in zip(model.run(many, threads=threads).outputs, alone, strict=True):
            assert one[4:].tobytes() == part.tobytes()
