"""Custom calls of linear algebra as texts: each target and option, with fitting operands."""

import itertools
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
    family = _Routines(letter, batch)
    yield from family.of_hermitian_matrices()
    yield from family.factorizations()
    yield from family.products_of_reflectors()
    yield from family.of_square_matrices()
    yield from family.of_tridiagonal_matrices()
    yield from family.jax_eigenvalues()
    yield from family.triangular_solves()


class _Routines:
    """The calls of an element type, on matrices with these batch dimensions."""

    def __init__(self, letter: str, batch: tuple[int, ...]) -> None:
        self.letter, self.batch = letter, batch
        self.kind = DTYPES[letter]
        self.is_complex = letter in "cz"
        self.lead = (2, *batch)
        self.square = drawn(1, letter, *self.lead, 5, 5)

    # Types of results

    def of(self, *shape: int) -> str:
        return spelled(self.kind, (*self.batch, *shape))

    def reals(self, *shape: int) -> str:
        return spelled(np.zeros(0, self.kind).real.dtype, (*self.batch, *shape))

    def integers(self, *shape: int) -> str:
        return spelled(np.int32, (*self.batch, *shape))

    def call(
        self,
        routine: str,
        config: str,
        inputs: tuple[np.ndarray, ...],
        results: list[str],
        unique: str,
        undefined: str = "",
    ) -> Call:
        target = routine if routine[0].isupper() else f"lapack_{self.letter}{routine}_ffi"
        target = target.replace("lapack_", "", 1) if routine.startswith("tri") else target
        target = "tridiagonal_solve_perturbed_ffi" if routine.startswith("tri") else target
        numbers, free = (tuple(map(int, text.split())) for text in (unique, undefined))
        sizes = "x".join(map(str, inputs[0].shape[2:])) or "none"
        name = f"{routine} {config} {sizes}".replace(" : ui8", "")
        return Call(name, text_of(target, config, inputs, results), inputs, numbers, free)

    # Families of routines

    def of_hermitian_matrices(self) -> Iterator[Call]:
        syevd, sytrd = ("heevd", "hetrd") if self.is_complex else ("syevd", "sytrd")
        of, reals, integers, n = self.of, self.reals, self.integers, 5
        for uplo in "LU":
            config = f"{{uplo = {letter_code(uplo)}}}"
            unread = np.tril(np.ones((n, n), self.kind), -1) * (uplo == "U")
            matrix = (positive(2, self.letter, *self.lead, n, n) + unread).astype(self.kind)
            yield self.call("potrf", config, (matrix,), [of(n, n), integers()], "0 1")
            results = [of(n, n), reals(n), reals(n - 1), of(n - 1), integers()]
            yield self.call(sytrd, config, (self.square,), results, "0 1 2 3 4")
            for jobz in "NV":
                config = f"{{mode = {letter_code(jobz)}, uplo = {letter_code(uplo)}}}"
                results = [of(n, n), reals(n), integers()]
                idle = "0" if jobz == "N" else ""
                yield self.call(syevd, config, (self.square,), results, "1 2", idle)

    def factorizations(self) -> Iterator[Call]:
        """LU, QR with and without pivots, and singular values."""
        of, reals, integers = self.of, self.reals, self.integers
        for m, n in ((6, 4), (4, 6), (5, 5), (1, 1)):
            k = min(m, n)
            matrix = drawn(3, self.letter, *self.lead, m, n)
            results = [of(m, n), integers(k), integers()]
            yield self.call("getrf", "{}", (matrix,), results, "0 1 2")
            results = [of(m, n), integers(k), integers(m)]
            yield self.call("LuDecomposition", '""', (matrix,), results, "0 1 2")
            for routine, config in (("geqrf", "{}"), ("Qr", '""')):
                yield self.call(routine, config, (matrix,), [of(m, n), of(k)], "0 1")
            for pivots in (np.zeros((*self.lead, n)), np.arange(n) % 2 * np.ones((*self.lead, n))):
                given = (matrix, pivots.astype(np.int32))
                yield self.call("geqp3", "{}", given, [of(m, n), integers(n), of(k)], "0 1 2")
            for jobz in "ASN":
                config, idle = f"{{mode = {letter_code(jobz)}}}", "0 2 3" if jobz == "N" else "0"
                u, v = (m, n) if jobz == "A" else (k, k)
                results = [of(m, n), reals(k), of(m, u), of(v, n), integers()]
                for routine in ("gesdd", "gesvd"):
                    yield self.call(routine, config, (matrix,), results, "1 4", idle)

    def products_of_reflectors(self) -> Iterator[Call]:
        """The orthogonal matrices of QR, by themselves and with others."""
        orgqr, ormqr = ("ungqr", "unmqr") if self.is_complex else ("orgqr", "ormqr")
        for m, n, k in ((6, 4, 3), (5, 5, 5), (4, 2, 2)):
            reflectors = drawn(4, self.letter, *self.lead, m, n)
            given = (reflectors, drawn(5, self.letter, *self.lead, k))
            yield self.call(orgqr, "{}", given, [self.of(m, n)], "0")
            name = "ProductOfElementaryHouseholderReflectors"
            yield self.call(name, '""', given, [self.of(m, n)], "0")
            for left in ("true", "false"):
                for transpose in ("true", "false"):
                    shape = (m, 3) if left == "true" else (3, m)
                    other = drawn(6, self.letter, *self.lead, *shape)
                    config = f"{{left = {left}, transpose = {transpose}}}"
                    yield self.call(ormqr, config, (*given, other), [self.of(*shape)], "0")

    def of_square_matrices(self) -> Iterator[Call]:
        """Eigenvalues with left and right vectors, the Schur and the Hessenberg form."""
        of, integers, n = self.of, self.integers, 5
        wide = np.result_type(self.kind, np.complex64)
        values = [of(n)] if self.is_complex else [of(n), of(n)]
        vectors = [spelled(wide, (*self.batch, n, n))] * 2
        first = len(values)
        for left in "NV":
            for right in "NV":
                codes = letter_code(left), letter_code(right)
                config = "{{compute_left = {}, compute_right = {}}}".format(*codes)
                idle = " ".join(str(first + k) for k, job in enumerate((left, right)) if job == "N")
                results = [*values, *vectors, integers()]
                yield self.call("geev", config, (self.square,), results, str(first + 2), idle)
            results = [of(n, n), of(n, n), *values, integers(), integers()]
            config = f"{{mode = {letter_code(left)}, sort = {letter_code('N')}}}"
            unique, idle = f"{first + 2} {first + 3}", "1" if left == "N" else ""
            yield self.call("gees", config, (self.square,), results, unique, idle)
        for low, high in ((1, 5), (2, 4)):
            config = f"{{high = {high} : i32, low = {low} : i32}}"
            matrix = np.triu(self.square) if low > 1 else self.square
            yield self.call("gehrd", config, (matrix,), [of(n, n), of(n - 1), integers()], "0 1 2")

    def of_tridiagonal_matrices(self) -> Iterator[Call]:
        of = self.of
        for n in (1, 2, 5):
            diagonals = (drawn(seed, self.letter, *self.lead, n) for seed in (7, 8, 9))
            given = (*diagonals, drawn(10, self.letter, *self.lead, n, 2))
            results = [of(n), of(n), of(n), of(n, 2), self.integers()]
            yield self.call("gtsv", "{}", given, results, "0 1 2 3 4")
            yield self.call("tridiagonal", "{}", given, [of(n, 2)], "0")

    def jax_eigenvalues(self) -> Iterator[Call]:
        """XLA's own iteration, whose options are one text."""
        for uplo in (0, 1):
            results = [self.of(5, 5), self.reals(5)]
            yield self.call("Eigh", f'"{uplo},1,100,1e-6"', (self.square,), results, "1")

    def triangular_solves(self) -> Iterator[Call]:
        matrix = (self.square + 3 * np.eye(5)).astype(self.kind)
        names = ("diag", "side", "trans_x", "uplo")
        for side, uplo, trans, diag in itertools.product("LR", "LU", "NTC", "NU"):
            letters = zip(names, (diag, side, trans, uplo), strict=True)
            config = ", ".join(f"{name} = {letter_code(one)}" for name, one in letters)
            shape = (5, 2) if side == "L" else (2, 5)
            given = (matrix, drawn(11, self.letter, *self.lead, *shape))
            yield self.call("trsm", f"{{{config}}}", given, [self.of(*shape)], "0")
