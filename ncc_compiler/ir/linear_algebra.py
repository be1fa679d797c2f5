"""Custom calls of dense linear algebra: what JAX makes of `cholesky`, `qr`, `eigh`, `svd`, `lu` …

    custom-call(x), custom_call_target="lapack_spotrf_ffi", backend_config={uplo = 76 : ui8}

for CPUs, LAPACK's routines with the letter of the element type; letters of options are numbers.
For TPUs a few targets with names of their own. Both become routines of neff/lapack.py. Layouts of
operands and results say how matrices lie in memory; the values are the same in any layout.
"""

import re
from collections.abc import Mapping

import attrs

from ncc_compiler.ir.graph import Node, Quoted, Raw
from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.lapack import COMPLEX_NAMES, ROUTINES

_LETTERS = {"s": DType.F32, "d": DType.F64, "c": DType.C64, "z": DType.C128}
_OWN_NAMES = {
    "Eigh": "eigh",
    "LuDecomposition": "lu",
    "ProductOfElementaryHouseholderReflectors": "orgqr",
    "Qr": "geqrf",
    "tridiagonal_solve_perturbed_ffi": "gtsv-perturbed",
}

_NOT_LAPACK = ("eigh", "gtsv-perturbed", "lu")

TRSM = "trsm"
"""A triangular system; it becomes the op that HLO has for it."""


def _lapack_targets() -> Mapping[str, tuple[str, DType]]:
    """`lapack_sgeqrf_ffi` and its like: the routine, and the element type that it is for."""
    found = {}
    for routine in (*(name for name in ROUTINES if name not in _NOT_LAPACK), TRSM):
        for letter, dtype in _LETTERS.items():
            name = COMPLEX_NAMES.get(routine, routine) if dtype.is_complex else routine
            found[f"lapack_{letter}{name}_ffi"] = routine, dtype
    return found


_LAPACK = _lapack_targets()

TARGETS = frozenset({*_LAPACK, *_OWN_NAMES})
"""Every target of linear algebra."""

_NAMES = sorted({target.removesuffix("_ffi")[8:] for target in _LAPACK})
SPELLED = (*sorted(_OWN_NAMES), f"lapack_Tx_ffi with T in s, d, c, z and x in {', '.join(_NAMES)}")
"""The targets for messages, LAPACK's in one."""

_FLAGS = {"left": ("side", "RL"), "transpose": ("trans", "NC")}
_KEYS: Mapping[str, Mapping[str, str]] = {
    "potrf": {"uplo": "uplo"},
    "ormqr": {"left": "side", "transpose": "trans"},
    "syevd": {"mode": "jobz", "uplo": "uplo"},
    "gesdd": {"mode": "jobz"},
    "gesvd": {"mode": "jobz"},
    "geev": {"compute_left": "jobvl", "compute_right": "jobvr"},
    "gees": {"mode": "jobvs", "sort": "sort"},
    "gehrd": {"low": "ilo", "high": "ihi"},
    "sytrd": {"uplo": "uplo"},
    TRSM: {"side": "side", "uplo": "uplo", "trans_x": "trans", "diag": "diag"},
}
"""JAX's keys of backend_config, and LAPACK's names of these arguments."""

_TRSM_LETTERS = {"side": "LR", "uplo": "LU", "trans": "NTC", "diag": "NU"}
_ENTRY = re.compile(r"\s*(\w+)\s*=\s*(true|false|-?[0-9]{1,18})\s*(?::\s*\w+\s*)?")


class ConfigError(Exception):
    """backend_config does not give the options of the routine."""


@attrs.frozen
class RoutineCall:
    """A routine of neff/lapack.py, or TRSM, with its options."""

    routine: str
    options: Mapping[str, str | int]


def dtype_of_target(target: str) -> DType | None:
    """The element type that a target is for; None if it takes any."""
    return _LAPACK[target][1] if target in _LAPACK else None


def call_of(node: Node) -> RoutineCall:
    """What a custom call of linear algebra asks for; ConfigError if its options are not those."""
    target = node.attributes["custom_call_target"]
    assert isinstance(target, Quoted), node.name
    if target.text == "Eigh":
        return RoutineCall("eigh", {"uplo": _eigh_triangle(config_of(node))})
    if target.text in _OWN_NAMES:
        return RoutineCall(_OWN_NAMES[target.text], {})
    routine, _ = _LAPACK[target.text]
    options = _options(routine, config_of(node))
    if routine == "gees" and options.pop("sort") != "N":
        raise ConfigError("gees cannot sort: which eigenvalues go first only a host's code says")
    return RoutineCall(routine, options)


def config_of(node: Node) -> str:
    """The text of backend_config, which may be quoted; empty without one."""
    value = node.attributes.get("backend_config")
    text = value.text if isinstance(value, Raw | Quoted) else ""
    return text.strip().removeprefix('"').removesuffix('"').strip()


def _eigh_triangle(text: str) -> str:
    """`1,1,100,1e-6`: lower, sorted, and when to stop; eigenvalues are sorted in any case."""
    flags = text.split(",")[:2]
    if len(flags) != 2 or not set(flags) <= {"0", "1"}:
        raise ConfigError(f"{text[:40]!r} does not begin with two flags: lower, sorted, as in 1,1")
    return "L" if flags[0] == "1" else "U"


def _options(routine: str, text: str) -> dict[str, str | int]:
    keys = _KEYS.get(routine, {})
    found: dict[str, str | int] = {}
    inside = text.removeprefix("{").removesuffix("}").strip()
    for part in inside.split(",") if inside else ():
        entry = _ENTRY.fullmatch(part)
        if entry is None:
            raise ConfigError(f"{part.strip()[:40]!r} is not of the form uplo = 76 : ui8")
        key, value = entry[1], entry[2]
        if key not in keys:
            continue  # says how to compute it, not what
        if key in _FLAGS:
            name, letters = _FLAGS[key]
            found[name] = letters[value in ("true", "1")]
        elif value in ("true", "false"):
            raise ConfigError(f"{key} of {routine} is {value}, must be a number")
        else:
            number = int(value)
            is_letter = keys[key] not in ("ilo", "ihi")
            found[keys[key]] = chr(number) if is_letter and 32 < number < 127 else number
    for key, name in keys.items():
        if name not in found:
            raise ConfigError(f"{routine} is not given {key}")
    if routine == TRSM:
        for name, letters in _TRSM_LETTERS.items():
            if found[name] not in list(letters):
                letter = found[name]
                raise ConfigError(f"{name} of trsm is {letter!r}, must be {' or '.join(letters)}")
    return found


def as_triangular_solve(node: Node, call: RoutineCall) -> Node:
    """A call of trsm as the op that HLO has for it."""
    transposes = {"N": "NO_TRANSPOSE", "T": "TRANSPOSE", "C": "ADJOINT"}
    kept = {key: node.attributes[key] for key in ("metadata",) if key in node.attributes}
    return attrs.evolve(
        node,
        op="triangular-solve",
        attributes={
            **kept,
            "left_side": call.options["side"] == "L",
            "lower": call.options["uplo"] == "L",
            "unit_diagonal": call.options["diag"] == "U",
            "transpose_a": transposes[str(call.options["trans"])],
        },
    )
