"""Result types of numerical methods: transforms, factorisations, random bits, batch norm.

The sentences of their rules stand in `op_tables/numeric.py`.
"""

from collections.abc import Mapping

from ncc_compiler.ir.op_tables.numeric import AMOUNTS, WORK
from ncc_compiler.ir.rules import NodePart
from ncc_compiler.ir.type_rules.context import (
    Inference,
    InferenceContext,
    TypeRule,
    is_inexact,
)
from ncc_compiler.ir.types import ArrayType, TupleType, Type
from ncc_runtime.neff.shared.dtypes import DType

_FFT_TYPES = ("FFT", "IFFT", "RFFT", "IRFFT")
_COMPLEX = {DType.F32: DType.C64, DType.F64: DType.C128}
_REAL = {compound: part for part, compound in _COMPLEX.items()}
_TRANSPOSES = ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")
_STATE_SIZES = {"rng_three_fry": (2,), "rng_philox": (2, 3), "rng_default": (2, 3)}


def _fft(ctx: InferenceContext) -> Inference:
    operand, lengths = ctx.arrays[0], ctx.node.integers("fft_length")
    kind = ctx.attribute("fft_type")
    if kind not in _FFT_TYPES:
        known = ", ".join(_FFT_TYPES)
        yield ctx.complain(1, f"unknown fft_type {kind}", "fft_type", f"one of {known}")
        return None
    if not 1 <= len(lengths) <= min(3, operand.rank):
        fact = f"fft_length has {len(lengths)} entries for {operand}"
        yield ctx.complain(2, fact, "fft_length")
        return None
    if operand.dtype not in (_COMPLEX if kind == "RFFT" else _REAL):
        yield ctx.complain(3, f"{kind} does not take {operand.dtype.value}", 0)
        return None
    # a transform of real numbers is symmetric: half of the last dimension is kept
    halved = (*lengths[:-1], lengths[-1] // 2 + 1 if lengths[-1] > 0 else 0)
    expected = halved if kind == "IRFFT" else lengths
    if operand.shape[-len(lengths) :] != expected or min(lengths) < 0:
        sizes = ",".join(map(str, expected))
        fact = f"{kind} of length {list(lengths)} takes an array that ends in [{sizes}]"
        yield ctx.complain(4, f"{fact}, not {operand}", "fft_length")
        return None
    kept = operand.shape[: -len(lengths)]
    if kind == "RFFT":
        return ArrayType(_COMPLEX[operand.dtype], kept + halved)
    return ArrayType(_REAL[operand.dtype] if kind == "IRFFT" else operand.dtype, kept + lengths)


def _cholesky(ctx: InferenceContext) -> Inference:
    operand = ctx.arrays[0]
    if not is_inexact(operand.dtype):
        yield ctx.complain(1, f"cholesky is not defined for {operand.dtype.value}", 0)
    if not _is_square(operand):
        yield ctx.complain(2, f"{operand} does not end in a square", 0)
    return operand


def _is_square(kind: ArrayType) -> bool:
    return kind.rank >= 2 and kind.shape[-2] == kind.shape[-1]


def _triangular_solve(ctx: InferenceContext) -> Inference:
    matrix, other = ctx.arrays
    if matrix.dtype is not other.dtype or not is_inexact(matrix.dtype):
        fact = f"triangular-solve is not defined for {matrix.dtype.value} and {other.dtype.value}"
        yield ctx.complain(1, fact, int(is_inexact(matrix.dtype)))
    if ctx.attribute("transpose_a") not in _TRANSPOSES:
        fact = f"unknown transpose_a {ctx.attribute('transpose_a')}"
        yield ctx.complain(5, fact, "transpose_a", f"one of {', '.join(_TRANSPOSES)}")
    if not _is_square(matrix):
        yield ctx.complain(2, f"{matrix} does not end in a square", 0)
    elif other.rank != matrix.rank or other.shape[:-2] != matrix.shape[:-2]:
        fact = f"dimensions before the last two differ: {matrix} and {other}"
        yield ctx.complain(3, fact, 1)
    elif other.shape[-2 if ctx.attribute("left_side") else -1] != matrix.shape[-1]:
        side = "left" if ctx.attribute("left_side") else "right"
        yield ctx.complain(4, f"{matrix} does not fit on the {side} of {other}", 1)
    return other


def _rng(ctx: InferenceContext) -> Inference:
    kind, distribution = ctx.node.type, ctx.attribute("distribution")
    if distribution not in ("rng_uniform", "rng_normal"):
        fact = f"unknown distribution {distribution}"
        yield ctx.complain(1, fact, "distribution", "one of rng_uniform, rng_normal")
    if not isinstance(kind, ArrayType):
        yield ctx.complain(3, f"the result is {kind}, not an array", NodePart.TYPE)
        return None
    for position, operand in enumerate(ctx.arrays):
        if operand != ArrayType(kind.dtype):
            fact = f"operand {position} is {operand}, the result {kind}"
            yield ctx.complain(2, fact, position)
    if not (kind.dtype.is_float or (kind.dtype.is_integer and distribution != "rng_normal")):
        yield ctx.complain(3, f"{distribution} does not give {kind.dtype.value}", NodePart.TYPE)
    return kind


def _rng_bit_generator(ctx: InferenceContext) -> Inference:
    state, algorithm, kind = ctx.arrays[0], ctx.attribute("algorithm"), ctx.node.type
    if algorithm not in _STATE_SIZES:
        known = ", ".join(_STATE_SIZES)
        fact = f"unknown algorithm {algorithm}"
        yield ctx.complain(1, fact, "algorithm", f"one of {known}")
        return None
    if state not in [ArrayType(DType.U64, (size,)) for size in _STATE_SIZES[str(algorithm)]]:
        yield ctx.complain(2, f"{algorithm} does not take a state of {state}", 0)
        return None
    elements = kind.elements if isinstance(kind, TupleType) else ()
    bits = elements[1] if len(elements) == 2 else None
    if not isinstance(bits, ArrayType) or not bits.dtype.is_integer:
        fact = f"the result is {kind}, not ({state}, an array of integers)"
        yield ctx.complain(3, fact, NodePart.TYPE)
        return None
    return TupleType((state, bits))


def _batch_norm(ctx: InferenceContext) -> Inference:
    """Shapes follow from the operands; any float type may be declared, as XLA allows."""
    array, *others = ctx.arrays
    for position, kind in enumerate(ctx.arrays):
        if not kind.dtype.is_float:
            fact = f"{ctx.node.op} is not defined for {kind.dtype.value}"
            yield ctx.complain(1, fact, position)
    feature = ctx.node.integer("feature_index")
    if not 0 <= feature < array.rank:
        yield ctx.complain(2, f"{array} has no dimension {feature}", "feature_index")
        return None
    if ctx.node.op == "batch-norm-grad" and others.pop().shape != array.shape:
        yield ctx.complain(4, f"{ctx.arrays[-1]} is not of the shape of {array}", 4)
    features = array.shape[feature : feature + 1]
    for position, kind in enumerate(others, start=1):
        if kind.shape != features:
            yield ctx.complain(3, f"{kind} does not have {features[0]} elements", position)
    if ctx.node.op == "batch-norm-inference":
        return _with_declared_float(ctx.node.type, array)
    expected = (array, ArrayType(array.dtype, features), ArrayType(array.dtype, features))
    declared = ctx.node.type.elements if isinstance(ctx.node.type, TupleType) else ()
    if len(declared) != len(expected):
        return TupleType(expected)
    kinds = zip(declared, expected, strict=True)
    return TupleType(tuple(_with_declared_float(*pair) for pair in kinds))


def _with_declared_float(declared: Type, inferred: ArrayType) -> ArrayType:
    """The inferred array, with the element type of the declared one if that is a float."""
    if isinstance(declared, ArrayType) and declared.dtype.is_float:
        return ArrayType(declared.dtype, inferred.shape)
    return inferred


_ENGINES = ("Tensor", "Vector", "Scalar", "GpSimd", "Sync")
_MOST_WORK = 2**60  # amounts of several instructions can be added in 63 bits


def _work(ctx: InferenceContext) -> Inference:
    if not isinstance(ctx.node.type, ArrayType):
        yield ctx.complain(1, f"the result is {ctx.node.type}, not an array")
        return None
    if (engine := ctx.attribute("engine")) not in _ENGINES:
        yield ctx.complain(2, f"there is no engine {engine}", "engine")
    for name in (*AMOUNTS, "duration_ps"):
        amount = ctx.attribute(name)
        if isinstance(amount, int) and not 0 <= amount <= _MOST_WORK:
            yield ctx.complain(3, f"{name} is {amount}", name)
    if (dtype := ctx.attribute("dtype")) not in _DTYPES:
        yield ctx.complain(4, f"there is no element type {dtype}", "dtype")
    return ctx.node.type


_DTYPES = frozenset(dtype.value for dtype in DType)

NUMERIC_RULES: Mapping[str, TypeRule] = {
    "batch-norm-grad": _batch_norm,
    "batch-norm-inference": _batch_norm,
    "batch-norm-training": _batch_norm,
    "fft": _fft,
    "cholesky": _cholesky,
    "triangular-solve": _triangular_solve,
    "rng": _rng,
    "rng-bit-generator": _rng_bit_generator,
    WORK: _work,
}
