"""Routines of dense linear algebra under LAPACK's names: options, operands and results.

A routine works on the last dimensions; all dimensions before them are a batch, the same for every
operand and result. The letter of the element type (s, d, c, z) is not in the name: the operands
say it. Options bear the names of LAPACK's arguments. What LAPACK leaves undefined is zero.
"""

from collections.abc import Iterator, Mapping, Sequence

import attrs

from ncc_runtime.neff.shared.dtypes import DType

ELEMENTS = (DType.F32, DType.F64, DType.C64, DType.C128)
"""The element types of LAPACK: s, d, c and z."""

_REAL = {DType.C64: DType.F32, DType.C128: DType.F64}
_COMPLEX = {real: wide for wide, real in _REAL.items()}

Array = tuple[DType, tuple[int, ...]]
"""An element type and a shape."""


@attrs.frozen
class Routine:
    """One row: options with the letters that each may be, and the types, spelled as below.

    `T[m,n] R[min] I[]` are a matrix of the element type T, as many reals of the same precision as
    the smaller of m and n, and an integer; C is complex. `complex_results` are those of c and z
    where they differ.
    """

    operands: str
    results: str
    options: Mapping[str, str] = attrs.field(factory=dict)
    complex_results: str = ""
    indices: tuple[str, ...] = ()  # options that are a row or column, counted from 1


ROUTINES: Mapping[str, Routine] = {
    "potrf": Routine("T[n,n]", "T[n,n] I[]", {"uplo": "LU"}),
    "getrf": Routine("T[m,n]", "T[m,n] I[min] I[]"),
    "geqrf": Routine("T[m,n]", "T[m,n] T[min]"),
    "geqp3": Routine("T[m,n] I[n]", "T[m,n] I[n] T[min]"),
    "orgqr": Routine("T[m,n] T[k]", "T[m,n]"),
    "ormqr": Routine("T[r,q] T[k] T[m,n]", "T[m,n]", {"side": "LR", "trans": "NC"}),
    "syevd": Routine("T[n,n]", "T[n,n] R[n] I[]", {"jobz": "NV", "uplo": "LU"}),
    "gesdd": Routine("T[m,n]", "T[m,n] R[min] T[m,u] T[v,n] I[]", {"jobz": "ASN"}),
    "gesvd": Routine("T[m,n]", "T[m,n] R[min] T[m,u] T[v,n] I[]", {"jobz": "ASN"}),
    "geev": Routine(
        "T[n,n]",
        "T[n] T[n] C[n,n] C[n,n] I[]",
        {"jobvl": "NV", "jobvr": "NV"},
        "T[n] T[n,n] T[n,n] I[]",
    ),
    "gees": Routine(
        "T[n,n]",
        "T[n,n] T[n,n] T[n] T[n] I[] I[]",
        {"jobvs": "NV"},
        "T[n,n] T[n,n] T[n] I[] I[]",
    ),
    "gehrd": Routine("T[n,n]", "T[n,n] T[n-1] I[]", indices=("ilo", "ihi")),
    "sytrd": Routine("T[n,n]", "T[n,n] R[n] R[n-1] T[n-1] I[]", {"uplo": "LU"}),
    "gtsv": Routine("T[n] T[n] T[n] T[n,k]", "T[n] T[n] T[n] T[n,k] I[]"),
    "gtsv-perturbed": Routine("T[n] T[n] T[n] T[n,k]", "T[n,k]"),
    "eigh": Routine("T[n,n]", "T[n,n] R[n]", {"uplo": "LU"}),
    "lu": Routine("T[m,n]", "T[m,n] I[min] I[m]"),
}
"""Every routine. The last three are not LAPACK's: a tridiagonal system whose tiny pivots are made
larger, and what TPUs compute instead of syevd and getrf: without `info` (eigenvalues and vectors
are NaN where there are none), and with pivots from 0 and the permutation of the rows that they
make.
"""

COMPLEX_NAMES = {"orgqr": "ungqr", "ormqr": "unmqr", "syevd": "heevd", "sytrd": "hetrd"}
"""LAPACK's other names of routines for complex elements."""

OPTIONS: Mapping[str, type] = {
    **{name: str for row in ROUTINES.values() for name in row.options},
    **{name: int for row in ROUTINES.values() for name in row.indices},
}
"""The type of each option of any routine."""


class RoutineError(Exception):
    """A routine does not take these operands."""


class OptionError(RoutineError):
    """A routine does not take these options."""


def results_of(
    name: str, options: Mapping[str, object], operands: Sequence[Array]
) -> list[tuple[Array, ...]]:
    """The lists of results that a routine may have; RoutineError if it does not take the operands.

    There is one list, except where singular vectors are not computed: their arrays may have either
    size.
    """
    routine = ROUTINES[name]
    _check_options(name, routine, options)
    patterns = [*_patterns(routine.operands)]
    if len(operands) != len(patterns):
        raise RoutineError(f"{name} takes {len(patterns)} operands, not {len(operands)}")
    element, shape = operands[0]
    if element not in ELEMENTS:
        raise RoutineError(f"{name} is not defined for {element.value}")
    batch = shape[: max(0, len(shape) - len(patterns[0][1]))]
    sizes: dict[str, int] = {}
    for position, ((letter, dims), operand) in enumerate(zip(patterns, operands, strict=True)):
        _bind(name, position, _dtype(letter, element), dims, operand, batch, sizes)
    if "n" in sizes:
        sizes["n-1"] = max(0, sizes["n"] - 1)
        sizes["min"] = min(sizes.get("m", sizes["n"]), sizes["n"])
    _check_sizes(name, options, sizes)
    is_complex = element in _REAL
    pattern = routine.complex_results if is_complex and routine.complex_results else routine.results
    possible = []
    vector_sizes: list[dict[str, int]] = [{}]
    if "u" in pattern:  # how many left and right singular vectors there are room for
        every = {"u": sizes["m"], "v": sizes["n"]}
        few = {"u": sizes["min"], "v": sizes["min"]}
        vector_sizes = {"A": [every], "S": [few]}.get(str(options["jobz"]), [every, few])
    for vectors in vector_sizes:
        known = {**sizes, **vectors}
        possible.append(
            tuple(
                (_dtype(letter, element), (*batch, *(known[dim] for dim in dims)))
                for letter, dims in _patterns(pattern)
            )
        )
    return possible


def _patterns(text: str) -> Iterator[tuple[str, tuple[str, ...]]]:
    """`T[m,n] I[]` as letters and names of sizes."""
    for word in text.split():
        inside = word[2:-1]
        yield word[0], tuple(inside.split(",")) if inside else ()


def _dtype(letter: str, element: DType) -> DType:
    match letter:
        case "R":
            return _REAL.get(element, element)
        case "C":
            return _COMPLEX.get(element, element)
        case "I":
            return DType.S32
    return element


def _check_options(name: str, routine: Routine, options: Mapping[str, object]) -> None:
    for option, letters in routine.options.items():
        value = options.get(option)
        if not isinstance(value, str) or len(value) != 1 or value not in letters:
            raise OptionError(f"{option} of {name} is {value!r}, must be {' or '.join(letters)}")
    for option in routine.indices:
        if type(options.get(option)) is not int:
            raise OptionError(f"{option} of {name} is {options.get(option)!r}, must be a number")
    for option in options:
        if option not in (*routine.options, *routine.indices):
            raise OptionError(f"{name} has no option {option}")


def _bind(
    name: str,
    position: int,
    dtype: DType,
    dims: tuple[str, ...],
    operand: Array,
    batch: tuple[int, ...],
    sizes: dict[str, int],
) -> None:
    """Bind the named sizes of an operand; RoutineError where one is bound to another size."""
    given, shape = operand
    text = f"{given.value}[{','.join(map(str, shape))}]"
    if given is not dtype:
        raise RoutineError(f"operand {position} of {name} is {text}, must be of {dtype.value}")
    last = shape[len(batch) :]
    fits = shape[: len(batch)] == batch and len(last) == len(dims)
    if not fits or any(
        sizes.setdefault(d, size) != size for d, size in zip(dims, last, strict=False)
    ):
        expected = [*map(str, batch), *(str(sizes.get(dim, dim)) for dim in dims)]
        raise RoutineError(
            f"operand {position} of {name} is {text}, must be [{','.join(expected)}]"
        )


def _check_sizes(name: str, options: Mapping[str, object], sizes: Mapping[str, int]) -> None:
    """Constraints between sizes and options; RoutineError where one is broken."""
    if name == "orgqr" and not sizes["k"] <= sizes["n"] <= sizes["m"]:
        fact = f"{sizes['k']} reflectors and a matrix of {sizes['m']} x {sizes['n']}"
        raise RoutineError(f"{name} is given {fact}; reflectors <= columns <= rows is needed")
    if name == "ormqr":
        side = sizes["m"] if options["side"] == "L" else sizes["n"]
        if sizes["r"] != side or sizes["k"] > min(sizes["q"], side):
            fact = f"{sizes['k']} reflectors in a matrix of {sizes['r']} x {sizes['q']}"
            raise RoutineError(f"{name} is given {fact}, which do not fit a side of {side}")
    if name == "gehrd":
        low, high, n = options["ilo"], options["ihi"], sizes["n"]
        assert isinstance(low, int)
        assert isinstance(high, int)
        if not ((low, high) == (1, 0) if n == 0 else 1 <= low <= high <= n):
            raise OptionError(f"{name} is given ilo {low} and ihi {high} for a size of {n}")
