"""Custom calls: targets with a public meaning, and targets that are refused with advice.

JAX lowers `cholesky`, `qr`, `eigh`, `svd`, `lu` … to custom calls of dense linear algebra:

    custom-call(x), custom_call_target="lapack_spotrf_ffi", backend_config={uplo = 76 : ui8}

For CPUs these are LAPACK's routines with the letter of the element type, and option letters are
given as character codes. For TPUs there are a few other targets. Both become routines of
neff/shared/lapack.py. Layouts of operands and results do not change values.
"""

import difflib
import re
from collections.abc import Iterable, Mapping

import attrs

from ncc_compiler.ir.graph import Attribute, Callee, Callees, Module, Node, Quoted, Raw
from ncc_compiler.ir.types import Type
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.lapack import COMPLEX_NAMES, ROUTINES

_LETTERS = {"s": DType.F32, "d": DType.F64, "c": DType.C64, "z": DType.C128}
_TPU_TARGETS = {
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
    """By target such as `lapack_sgeqrf_ffi`: the routine, and its element type."""
    targets = {}
    for routine in (*(name for name in ROUTINES if name not in _NOT_LAPACK), TRSM):
        for letter, dtype in _LETTERS.items():
            name = COMPLEX_NAMES.get(routine, routine) if dtype.is_complex else routine
            targets[f"lapack_{letter}{name}_ffi"] = routine, dtype
    return targets


_LAPACK = _lapack_targets()

TARGETS = frozenset({*_LAPACK, *_TPU_TARGETS})
"""Every target of linear algebra."""

_NAMES = sorted({target.removesuffix("_ffi")[8:] for target in _LAPACK})
SPELLED = (
    *sorted(_TPU_TARGETS),
    f"lapack_Tx_ffi with T in s, d, c, z and x in {', '.join(_NAMES)}",
)
"""The targets as messages list them, those of LAPACK as one pattern."""

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
_ATTRIBUTE_ENTRY = re.compile(r"\s*(\w+)\s*=\s*(true|false|-?[0-9]{1,18})\s*(?::\s*\w+\s*)?")


class ConfigError(Exception):
    """backend_config does not give the options of the routine."""


@attrs.frozen
class RoutineCall:
    """A routine of neff/shared/lapack.py, or TRSM, with its options."""

    routine: str
    options: Mapping[str, str | int]


def dtype_of_target(target: str) -> DType | None:
    """The element type that a target is for; None if it takes any."""
    return _LAPACK[target][1] if target in _LAPACK else None


def call_of(node: Node) -> RoutineCall:
    """The routine and options of a custom call of linear algebra. Raises ConfigError."""
    target = node.attributes["custom_call_target"]
    assert isinstance(target, Quoted), node.name
    if target.text == "Eigh":
        # `1,1,100,1e-6`: lower, sorted, and when to stop; eigenvalues are sorted in any case
        text = config_of(node)
        flags = text.split(",")[:2]
        if len(flags) != 2 or not set(flags) <= {"0", "1"}:
            raise ConfigError(
                f"{text[:40]!r} does not begin with two flags: lower, sorted, as in 1,1"
            )
        return RoutineCall("eigh", {"uplo": "L" if flags[0] == "1" else "U"})
    if target.text in _TPU_TARGETS:
        return RoutineCall(_TPU_TARGETS[target.text], {})
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


def _options(routine: str, text: str) -> dict[str, str | int]:
    """The options of a LAPACK routine in a text such as `{uplo = 76 : ui8, left = true}`."""
    keys = _KEYS.get(routine, {})
    options: dict[str, str | int] = {}
    inside = text.removeprefix("{").removesuffix("}").strip()
    for part in inside.split(",") if inside else ():
        entry = _ATTRIBUTE_ENTRY.fullmatch(part)
        if entry is None:
            raise ConfigError(f"{part.strip()[:40]!r} is not of the form uplo = 76 : ui8")
        key, value = entry[1], entry[2]
        if key not in keys:
            continue  # tuning, which does not change the result
        if key in _FLAGS:
            name, letters = _FLAGS[key]
            options[name] = letters[value in ("true", "1")]
        elif value in ("true", "false"):
            raise ConfigError(f"{key} of {routine} is {value}, must be a number")
        else:
            number = int(value)  # the code of a letter, except for bounds
            is_letter = keys[key] not in ("ilo", "ihi")
            options[keys[key]] = chr(number) if is_letter and 32 < number < 127 else number
    for key, name in keys.items():
        if name not in options:
            raise ConfigError(f"{routine} is not given {key}")
    if routine == TRSM:
        for name, letters in _TRSM_LETTERS.items():
            if options[name] not in list(letters):
                letter = options[name]
                raise ConfigError(f"{name} of trsm is {letter!r}, must be {' or '.join(letters)}")
    return options


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


TOPK = "TopK"
"""The largest elements of the last dimension and their indices; XLA expands it to a sort."""

APPROX_TOPK = "ApproxTopK"
"""JAX's approx_max_k and approx_min_k: the first elements of a sort by the comparator along a
dimension. It is computed exactly, which satisfies any recall_target."""

IDENTITIES = frozenset(
    {"LayoutConstraint", "MoveToDevice", "MoveToHost", "annotate_device_placement"}
)
"""Targets that ask for a memory space or a layout, and return their operand."""

PARTITION_IT = (
    "give it as StableHLO, what lowered.as_text() of JAX prints, in a file .mlir, which is "
    "partitioned when it is read, or the function to ncc_compiler.from_jax; or partition it: run "
    "the program that made it, on a host without accelerators, with "
    "JAX_PLATFORMS=cpu XLA_FLAGS='--xla_force_host_platform_device_count=DEVICES "
    "--xla_dump_to=dump --xla_dump_large_constants --xla_dump_hlo_pass_re=spmd-partitioning', "
    "then nccc compile dump/*after_spmd-partitioning*.txt"
)
"""How to get a partitioned program from an annotated one."""

_ON_HOST = (
    "a device cannot run a host's code: take the jax.pure_callback, io_callback or "
    "jax.debug.print (jax.debug.callback) out of the function that is compiled, or write it with "
    "ops; what should be seen can be a result"
)
_AS_OPS = "trace the function for CPUs, with JAX_PLATFORMS=cpu or jax.export(platforms=['cpu'])"
_KERNEL = (
    "only its vendor's hardware runs its code: trace the function without the kernel, with ops "
    "(in JAX pallas_call(..., interpret=True) makes ops of it)"
)
_BEFORE_BACKEND = (
    "a backend of XLA put it in place of ops: take the program before that backend's passes, the "
    "first dump or the one after spmd-partitioning"
)


@attrs.frozen
class RefusedKind:
    """Custom calls that are refused for one reason; `targets` matches their names."""

    targets: str  # a regular expression
    what: str
    advice: str


REFUSED_KINDS = (
    RefusedKind(r"(?i).*callback.*", "is a host callback", _ON_HOST),
    RefusedKind(
        r"Sharding|SPMDFullToShardShape|SPMDShardToFullShape|xla\.sdy\..*",
        "stands for partitioning that has not been done",
        PARTITION_IT,
    ),
    RefusedKind(
        r"AwsNeuron.*|nki\..*",
        "is a kernel for NeuronCores (NKI), whose code the program does not hold as ops",
        "trace the function without the kernel, with ops",
    ),
    RefusedKind(
        r"tpu_custom_call|Mosaic.*|mosaic.*",
        "is a kernel of Mosaic (Pallas for TPUs or GPUs)",
        _KERNEL,
    ),
    RefusedKind(
        r"__gpu\$xla\.gpu\.triton|triton_kernel_call|.*[Tt]riton.*",
        "is a kernel of Triton",
        _KERNEL,
    ),
    RefusedKind(
        r"__(cudnn|cublas|cufft|cub|cusolver|hipblas|gpu|cutlass)\$?.*",
        "is a call of a GPU vendor's library",
        _BEFORE_BACKEND,
    ),
    RefusedKind(
        r"(cu|hip)(solver|sparse|blas|dnn|fft|hybrid)?_?\w+_ffi|(cu|hip)(solver|sparse|hybrid|_)\w+",
        "is a call of a GPU vendor's library",
        _AS_OPS,
    ),
    RefusedKind(r"__(onednn|xla_cpu|ynn|eigen).*", "is a call of a CPU library", _BEFORE_BACKEND),
    RefusedKind(
        r"lapack_\w+(?<!_ffi)|blas_\w+(?<!_ffi)",
        "is LAPACK as older versions of JAX call it",
        "trace the function with a newer JAX",
    ),
    RefusedKind(
        r"PartialReduce",
        "keeps an unsaid choice of elements, as TPUs do for approx_max_k and approx_min_k",
        "give the StableHLO of the function with aggregate_to_topk=True, which is sorted exactly, "
        f"or {_AS_OPS}",
    ),
    RefusedKind(
        r"shape_assertion|stablehlo\.dynamic_\w+|dynamic_\w+|Pad(To)?Static|SliceToDynamic",
        "is of a program whose shapes are not known",
        "trace the function with numbers for shapes",
    ),
)
"""Targets that are refused on purpose, and what to do instead."""


@attrs.frozen
class TargetRefusal:
    """Why a target is refused, and what to do."""

    fact: str
    advice: str


def refusal_of(target: str, collectives: Iterable[str]) -> TargetRefusal | None:
    """Why a target has no meaning here; None for one that has."""
    if target in IDENTITIES or target in (TOPK, APPROX_TOPK) or target in TARGETS:
        return None
    for kind in REFUSED_KINDS:
        if re.fullmatch(kind.targets, target):
            return TargetRefusal(f"{target} {kind.what}", kind.advice)
    known = sorted({*IDENTITIES, TOPK, APPROX_TOPK, *collectives})
    near = difflib.get_close_matches(target, [*known, *TARGETS], n=1, cutoff=0.8)
    advice = f"did you mean {near[0]}?" if near else f"known are {', '.join((*known, *SPELLED))}"
    return TargetRefusal(f"unknown custom call target {target}", advice)


def target_of(node: Node) -> str:
    """The target of a custom call."""
    target = node.attributes["custom_call_target"]
    assert isinstance(target, Quoted), node.name
    return target.text


def wants_largest(module: Module, node: Node) -> bool:
    """Whether a TopK asks for the largest; its comparator, if it has one, says so."""
    called = node.attributes.get("called_computations")
    if not isinstance(called, Callees) or len(called.names) != 1:
        return True
    computation = module.computations[called.names[0]]
    return computation.nodes[computation.root].attributes.get("direction") != "LT"


@attrs.frozen
class ApproxTopK:
    """An ApproxTopK: the first `count` elements along a dimension."""

    count: int
    dimension: int


# JSON, or the dictionary of MLIR that jaxlib prints: "top_k": 3 or top_k = 3 : i64
_ENTRY = re.compile(r'(\w+)\\?"?\s*[:=]\s*(true|false|-?[0-9]{1,18}\b)')


def approx_topk_of(node: Node) -> ApproxTopK:
    """The options of an ApproxTopK. Raises ConfigError."""
    options = dict(_ENTRY.findall(config_of(node)))
    if options.get("aggregate_to_topk", "false") not in ("true", "1"):
        raise ConfigError(
            "aggregate_to_topk is not true: which elements are kept depends on the device"
        )
    for key in ("top_k", "reduction_dim"):
        if not options.get(key, "").removeprefix("-").isdigit():
            raise ConfigError(f"{key} is not given as a number")
    return ApproxTopK(int(options["top_k"]), int(options["reduction_dim"]))


def as_sort(node: Node, result: Type) -> Node:
    """The sort, of a given type, whose first elements are the result of an ApproxTopK.

    Its operands are arrays, then as many initial values, which an exact sort does not need.
    """
    called = node.attributes["called_computations"]
    assert isinstance(called, Callees), node.name
    attributes: dict[str, Attribute] = {
        "dimensions": (approx_topk_of(node).dimension,),
        "to_apply": Callee(*called.names),
    }
    arrays = node.operands[: len(node.operands) // 2]
    return attrs.evolve(node, op="sort", type=result, operands=arrays, attributes=attributes)
