"""Custom calls of linear algebra as texts: each target and option, with fitting operands."""

from collections.abc import Iterator

import attrs
import numpy as np

DTYPES = {"s": np.float32, "d": np.float64, "c": np.complex64, "z": np.complex128}
NAMES = {
    np.dtype(np.int32): "s32",
    **dict(zip(map(np.dtype, DTYPES.values()), ("f32", "f64", "c64", "c128"), strict=True)),
}


@attrs.frozen(eq=False)
class Call:
    """A call on two ranks.

    `unique` are the results that nothing but rounding can change, `undefined` those that LAPACK
    leaves undefined and that are zero here; vectors of eigenvalues and the like are neither.
    """

    name: str
    text: str
    inputs: tuple[np.ndarray, ...]
    unique: tuple[int, ...]
    undefined: tuple[int, ...] = ()


def drawn(seed: int, letter: str, *shape: int) -> np.ndarray:
    """Numbers of a normal distribution, [ranks, *shape]."""
    draw = np.random.default_rng(seed)
    numbers = draw.standard_normal(shape)
    if letter in "cz":
        numbers = numbers + 1j * draw.standard_normal(shape)
    return numbers.astype(DTYPES[letter])


def positive(seed: int, letter: str, *shape: int) -> np.ndarray:
    """Hermitian matrices with positive eigenvalues."""
    half = drawn(seed, letter, *shape)
    return (half @ np.conj(half.swapaxes(-1, -2)) + np.eye(shape[-1])).astype(half.dtype)


def spelled(array_or_kind: object, shape: tuple[int, ...]) -> str:
    return f"{NAMES[np.dtype(array_or_kind)]}[{','.join(map(str, shape))}]"


def text_of(target: str, config: str, inputs: tuple[np.ndarray, ...], results: list[str]) -> str:
    """A program of one call whose results are its own; matrices lie column by column, as in JAX."""
    kinds = [spelled(array.dtype, array.shape[1:]) for array in inputs]
    rows = [f"x{k} = {kind} parameter({k})" for k, kind in enumerate(kinds)]
    most = max(array.ndim - 1 for array in inputs)
    kinds, results = ([_laid_out(kind, most) for kind in part] for part in (kinds, results))
    kind = results[0] if len(results) == 1 else f"({', '.join(results)})"
    given = ", ".join(f"x{k}" for k in range(len(inputs)))
    if target.endswith("_ffi"):
        layouts = f"operand_layout_constraints={{{', '.join(kinds)}}}"
        config = f"{config}, {layouts}, api_version=API_VERSION_TYPED_FFI"
    rows.append(
        f'ROOT r = {kind} custom-call({given}), custom_call_target="{target}", '
        f"backend_config={config}"
    )
    return "\n".join([f"HloModule m, replica_count={len(inputs[0])}", "ENTRY e {", *rows, "}", ""])


def _laid_out(kind: str, most: int) -> str:
    """With the layout that JAX asks for: of arrays with the most dimensions, columns are whole."""
    if "[]" in kind:
        return kind
    rank = kind.count(",") + 1
    order = [*reversed(range(rank))]
    if rank == most and rank > 1:
        order[:2] = order[1], order[0]
    return f"{kind}{{{','.join(map(str, order))}}}"


def letter_code(letter: str) -> str:
    return f"{ord(letter)} : ui8"


def calls(letter: str, batch: tuple[int, ...] = (3,)) -> Iterator[Call]:
    """Every routine for an element type, with each value of each option."""
    kind = DTYPES[letter]
    real = np.zeros(0, kind).real.dtype
    wide = np.result_type(kind, np.complex64)
    is_complex = letter in "cz"
    lead = (2, *batch)

    def of(*shape: int) -> str:
        return spelled(kind, (*batch, *shape))

    def reals(*shape: int) -> str:
        return spelled(real, (*batch, *shape))

    def integers(*shape: int) -> str:
        return spelled(np.int32, (*batch, *shape))

    def call(
        routine: str,
        config: str,
        inputs: tuple[np.ndarray, ...],
        results: list[str],
        unique: str,
        undefined: str = "",
    ) -> Call:
        target = routine if routine[0].isupper() else f"lapack_{letter}{routine}_ffi"
        target = target.replace("lapack_", "", 1) if routine.startswith("tri") else target
        target = "tridiagonal_solve_perturbed_ffi" if routine.startswith("tri") else target
        numbers, free = (tuple(map(int, text.split())) for text in (unique, undefined))
        sizes = "x".join(map(str, inputs[0].shape[2:])) or "none"
        name = f"{routine} {config} {sizes}".replace(" : ui8", "")
        return Call(name, text_of(target, config, inputs, results), inputs, numbers, free)

    orgqr, ormqr = ("ungqr", "unmqr") if is_complex else ("orgqr", "ormqr")
    syevd, sytrd = ("heevd", "hetrd") if is_complex else ("syevd", "sytrd")
    square, n = drawn(1, letter, *lead, 5, 5), 5
    for uplo in "LU":
        config = f"{{uplo = {letter_code(uplo)}}}"
        matrix = positive(2, letter, *lead, n, n) + np.tril(np.ones((n, n), kind), -1) * (
            uplo == "U"
        )
        yield call("potrf", config, (matrix.astype(kind),), [of(n, n), integers()], "0 1")
        results = [of(n, n), reals(n), reals(n - 1), of(n - 1), integers()]
        yield call(sytrd, config, (square,), results, "0 1 2 3 4")
        for jobz in "NV":
            config = f"{{mode = {letter_code(jobz)}, uplo = {letter_code(uplo)}}}"
            yield call(
                syevd,
                config,
                (square,),
                [of(n, n), reals(n), integers()],
                "1 2",
                "0" if jobz == "N" else "",
            )
    for m, n in ((6, 4), (4, 6), (5, 5), (1, 1)):
        k = min(m, n)
        matrix = drawn(3, letter, *lead, m, n)
        yield call("getrf", "{}", (matrix,), [of(m, n), integers(k), integers()], "0 1 2")
        yield call(
            "LuDecomposition", '""', (matrix,), [of(m, n), integers(k), integers(m)], "0 1 2"
        )
        for routine in ("geqrf", "Qr"):
            yield call(
                routine, "{}" if routine == "geqrf" else '""', (matrix,), [of(m, n), of(k)], "0 1"
            )
        for pivots in (np.zeros((*lead, n)), np.arange(n) % 2 * np.ones((*lead, n))):
            given = (matrix, pivots.astype(np.int32))
            yield call("geqp3", "{}", given, [of(m, n), integers(n), of(k)], "0 1 2")
        for jobz in "ASN":
            for routine in ("gesdd", "gesvd"):
                u, v = (m, n) if jobz == "A" else (k, k)
                results = [of(m, n), reals(k), of(m, u), of(v, n), integers()]
                config = f"{{mode = {letter_code(jobz)}}}"
                yield call(
                    routine, config, (matrix,), results, "1 4", "0 2 3" if jobz == "N" else "0"
                )
    for m, n, k in ((6, 4, 3), (5, 5, 5), (4, 2, 2)):
        reflectors, scales = drawn(4, letter, *lead, m, n), drawn(5, letter, *lead, k)
        given = (reflectors, scales)
        yield call(orgqr, "{}", given, [of(m, n)], "0")
        yield call("ProductOfElementaryHouseholderReflectors", '""', given, [of(m, n)], "0")
        for left in ("true", "false"):
            for transpose in ("true", "false"):
                shape = (m, 3) if left == "true" else (3, m)
                other = drawn(6, letter, *lead, *shape)
                config = f"{{left = {left}, transpose = {transpose}}}"
                yield call(ormqr, config, (*given, other), [of(*shape)], "0")
    n = 5
    for left in "NV":
        for right in "NV":
            values = [of(n)] if is_complex else [of(n), of(n)]
            vectors = [spelled(wide, (*batch, n, n))] * 2
            config = f"{{compute_left = {letter_code(left)}, compute_right = {letter_code(right)}}}"
            first = len(values)
            idle = " ".join(str(first + k) for k, job in enumerate((left, right)) if job == "N")
            results = [*values, *vectors, integers()]
            yield call("geev", config, (square,), results, str(first + 2), idle)
        values = [of(n)] if is_complex else [of(n), of(n)]
        results = [of(n, n), of(n, n), *values, integers(), integers()]
        config = f"{{mode = {letter_code(left)}, sort = {letter_code('N')}}}"
        yield call(
            "gees",
            config,
            (square,),
            results,
            f"{len(values) + 2} {len(values) + 3}",
            "1" if left == "N" else "",
        )
    for low, high in ((1, 5), (2, 4)):
        config = f"{{high = {high} : i32, low = {low} : i32}}"
        matrix = np.triu(square) if low > 1 else square
        yield call("gehrd", config, (matrix,), [of(n, n), of(n - 1), integers()], "0 1 2")
    for n in (1, 2, 5):
        given = tuple(drawn(seed, letter, *lead, n) for seed in (7, 8, 9))
        given = (*given, drawn(10, letter, *lead, n, 2))
        results = [of(n), of(n), of(n), of(n, 2), integers()]
        yield call("gtsv", "{}", given, results, "0 1 2 3 4")
        yield call("tridiagonal", "{}", given, [of(n, 2)], "0")
    for uplo in (0, 1):
        yield call("Eigh", f'"{uplo},1,100,1e-6"', (square,), [of(5, 5), reals(5)], "1")
    for side in "LR":
        for uplo in "LU":
            for trans in "NTC":
                for diag in "NU":
                    keys = zip(
                        ("diag", "side", "trans_x", "uplo"), (diag, side, trans, uplo), strict=True
                    )
                    config = (
                        "{" + ", ".join(f"{key} = {letter_code(one)}" for key, one in keys) + "}"
                    )
                    shape = (5, 2) if side == "L" else (2, 5)
                    matrix = (square + 3 * np.eye(5)).astype(kind)
                    given = (matrix, drawn(11, letter, *lead, *shape))
                    yield call("trsm", config, given, [of(*shape)], "0")
