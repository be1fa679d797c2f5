"""Targets of custom calls that have a public meaning, and those that mean work left undone."""

import difflib
import re
from collections.abc import Iterable

import attrs

from ncc_compiler.ir.graph import Attribute, Callee, Callees, Module, Node, Quoted
from ncc_compiler.ir.linear_algebra import SPELLED, TARGETS, ConfigError, config_of
from ncc_compiler.ir.types import Type

TOPK = "TopK"
"""The largest elements of the last dimension and where they are; XLA makes it of a sort."""

APPROX_TOPK = "ApproxTopK"
"""JAX's approx_max_k and approx_min_k: what a sort by the comparator puts first along a dimension.

All of them are found: a recall of 1 is as much as any target asks for.
"""

IDENTITIES = frozenset(
    {"LayoutConstraint", "MoveToDevice", "MoveToHost", "annotate_device_placement"}
)
"""Say where an array shall live or in which layout, and give it back."""

PARTITION_IT = (
    "partition it: run the program that made it, on a host without accelerators, with "
    "JAX_PLATFORMS=cpu XLA_FLAGS='--xla_force_host_platform_device_count=DEVICES "
    "--xla_dump_to=dump --xla_dump_large_constants --xla_dump_hlo_pass_re=spmd-partitioning', "
    "then nccc compile dump/*after_spmd-partitioning*.txt"
)
"""How to get what can be compiled from a program that is annotated only."""

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
"""What no target of ours will be, and what to do instead."""


@attrs.frozen
class Refused:
    """Why a target is refused, and what to do."""

    fact: str
    advice: str


def refusal_of(target: str, collectives: Iterable[str]) -> Refused | None:
    """Why a target has no meaning here; None for one that has."""
    if target in IDENTITIES or target in (TOPK, APPROX_TOPK) or target in TARGETS:
        return None
    for kind in REFUSED_KINDS:
        if re.fullmatch(kind.targets, target):
            return Refused(f"{target} {kind.what}", kind.advice)
    known = sorted({*IDENTITIES, TOPK, APPROX_TOPK, *collectives})
    near = difflib.get_close_matches(target, [*known, *TARGETS], n=1, cutoff=0.8)
    advice = f"did you mean {near[0]}?" if near else f"known are {', '.join((*known, *SPELLED))}"
    return Refused(f"unknown custom call target {target}", advice)


def target_of(node: Node) -> str:
    """The target of a custom call."""
    target = node.attributes["custom_call_target"]
    assert isinstance(target, Quoted), node.name
    return target.text


def wants_largest(module: Module, node: Node) -> bool:
    """Whether a TopK asks for the largest; its computation, if any, says which goes first."""
    called = node.attributes.get("called_computations")
    if not isinstance(called, Callees) or len(called.names) != 1:
        return True
    computation = module.computations[called.names[0]]
    return computation.nodes[computation.root].attributes.get("direction") != "LT"


@attrs.frozen
class ApproxTopK:
    """What an ApproxTopK asks for: the first `count` along a dimension."""

    count: int
    dimension: int


# JSON, or the dictionary of MLIR that jaxlib prints: "top_k": 3 or top_k = 3 : i64
_ENTRY = re.compile(r'(\w+)\\?"?\s*[:=]\s*(true|false|-?[0-9]{1,18}\b)')


def approx_topk_of(node: Node) -> ApproxTopK:
    """What an ApproxTopK asks for; ConfigError if its options do not say so."""
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
    """The sort, of a given type, whose first elements an ApproxTopK gives.

    Its operands are arrays, and behind them as many initial values, which nothing is left to need.
    """
    called = node.attributes["called_computations"]
    assert isinstance(called, Callees), node.name
    attributes: dict[str, Attribute] = {
        "dimensions": (approx_topk_of(node).dimension,),
        "to_apply": Callee(*called.names),
    }
    arrays = node.operands[: len(node.operands) // 2]
    return attrs.evolve(node, op="sort", type=result, operands=arrays, attributes=attributes)
