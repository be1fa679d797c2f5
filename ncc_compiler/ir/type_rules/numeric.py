"""Result types of ops that are whole numerical methods.

Result types of sort, topk, padding, reversal and custom calls.
"""

from collections.abc import Mapping

import attrs

from ncc_compiler.ir.custom_calls import (
    APPROX_TOPK,
    IDENTITIES,
    TARGETS,
    TOPK,
    TRSM,
    ConfigError,
    approx_topk_of,
    as_triangular_solve,
    call_of,
    dtype_of_target,
    refusal_of,
    target_of,
)
from ncc_compiler.ir.graph import Callees, Padding
from ncc_compiler.ir.op_tables.collectives import NCC_COLLECTIVES
from ncc_compiler.ir.rules import Part, Place
from ncc_compiler.ir.type_rules.facts import (
    Facts,
    Findings,
    Rule,
    are_distinct_dimensions,
    check_region,
    one_or_tuple,
    parameter_types,
    result_type,
)
from ncc_compiler.ir.types import ArrayType, TupleType, Type
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.lapack import OptionError, RoutineError, results_of

_FFT_TYPES = ("FFT", "IFFT", "RFFT", "IRFFT")
_COMPLEX = {DType.F32: DType.C64, DType.F64: DType.C128}
_REAL = {wide: narrow for narrow, wide in _COMPLEX.items()}
_TRANSPOSES = ("NO_TRANSPOSE", "TRANSPOSE", "ADJOINT")
_STATE_SIZES = {"rng_three_fry": (2,), "rng_philox": (2, 3), "rng_default": (2, 3)}


def _fft(facts: Facts) -> Findings:
    operand, lengths = facts.arrays[0], facts.node.integers("fft_length")
    kind = facts.attribute("fft_type")
    if kind not in _FFT_TYPES:
        known = ", ".join(_FFT_TYPES)
        yield facts.complain(1, f"unknown fft_type {kind}", "fft_type", f"one of {known}")
        return None
    if not 1 <= len(lengths) <= min(3, operand.rank):
        fact = f"fft_length has {len(lengths)} entries for {operand}"
        yield facts.complain(2, fact, "fft_length")
        return None
    if operand.dtype not in (_COMPLEX if kind == "RFFT" else _REAL):
        yield facts.complain(3, f"{kind} does not take {operand.dtype.value}", 0)
        return None
    halved = (*lengths[:-1], lengths[-1] // 2 + 1 if lengths[-1] > 0 else 0)
    taken = halved if kind == "IRFFT" else lengths
    if operand.shape[-len(lengths) :] != taken or min(lengths) < 0:
        wanted = ",".join(map(str, taken))
        fact = f"{kind} of length {list(lengths)} takes an array that ends in [{wanted}]"
        yield facts.complain(4, f"{fact}, not {operand}", "fft_length")
        return None
    kept = operand.shape[: -len(lengths)]
    if kind == "RFFT":
        return ArrayType(_COMPLEX[operand.dtype], kept + halved)
    return ArrayType(_REAL[operand.dtype] if kind == "IRFFT" else operand.dtype, kept + lengths)


def _is_inexact(dtype: DType) -> bool:
    return dtype.is_float or dtype.is_complex


def _cholesky(facts: Facts) -> Findings:
    operand = facts.arrays[0]
    if not _is_inexact(operand.dtype):
        yield facts.complain(1, f"cholesky is not defined for {operand.dtype.value}", 0)
    if not _is_square(operand):
        yield facts.complain(2, f"{operand} does not end in a square", 0)
    return operand


def _is_square(kind: ArrayType) -> bool:
    return kind.rank >= 2 and kind.shape[-2] == kind.shape[-1]


def _triangular_solve(facts: Facts) -> Findings:
    matrix, other = facts.arrays
    if matrix.dtype is not other.dtype or not _is_inexact(matrix.dtype):
        fact = f"triangular-solve is not defined for {matrix.dtype.value} and {other.dtype.value}"
        yield facts.complain(1, fact, int(_is_inexact(matrix.dtype)))
    if facts.attribute("transpose_a") not in _TRANSPOSES:
        fact, known = (
            f"unknown transpose_a {facts.attribute('transpose_a')}",
            ", ".join(_TRANSPOSES),
        )
        yield facts.complain(5, fact, "transpose_a", f"one of {known}")
    if not _is_square(matrix):
        yield facts.complain(2, f"{matrix} does not end in a square", 0)
    elif other.rank != matrix.rank or other.shape[:-2] != matrix.shape[:-2]:
        fact = f"dimensions before the last two differ: {matrix} and {other}"
        yield facts.complain(3, fact, 1)
    elif other.shape[-2 if facts.attribute("left_side") else -1] != matrix.shape[-1]:
        side = "left" if facts.attribute("left_side") else "right"
        yield facts.complain(4, f"{matrix} does not fit on the {side} of {other}", 1)
    return other


def _rng(facts: Facts) -> Findings:
    kind, distribution = facts.node.type, facts.attribute("distribution")
    if distribution not in ("rng_uniform", "rng_normal"):
        fact = f"unknown distribution {distribution}"
        yield facts.complain(1, fact, "distribution", "one of rng_uniform, rng_normal")
    if not isinstance(kind, ArrayType):
        yield facts.complain(3, f"the result is {kind}, not an array", Part.TYPE)
        return None
    for position, operand in enumerate(facts.arrays):
        if operand != ArrayType(kind.dtype):
            fact = f"operand {position} is {operand}, the result {kind}"
            yield facts.complain(2, fact, position)
    if not (kind.dtype.is_float or (kind.dtype.is_integer and distribution != "rng_normal")):
        yield facts.complain(3, f"{distribution} does not give {kind.dtype.value}", Part.TYPE)
    return kind


def _rng_bit_generator(facts: Facts) -> Findings:
    state, algorithm, kind = facts.arrays[0], facts.attribute("algorithm"), facts.node.type
    if algorithm not in _STATE_SIZES:
        known = ", ".join(_STATE_SIZES)
        fact = f"unknown algorithm {algorithm}"
        yield facts.complain(1, fact, "algorithm", f"one of {known}")
        return None
    if state not in [ArrayType(DType.U64, (size,)) for size in _STATE_SIZES[str(algorithm)]]:
        yield facts.complain(2, f"{algorithm} does not take a state of {state}", 0)
        return None
    elements = kind.elements if isinstance(kind, TupleType) else ()
    bits = elements[1] if len(elements) == 2 else None
    if not isinstance(bits, ArrayType) or not bits.dtype.is_integer:
        fact = f"the result is {kind}, not ({state}, an array of integers)"
        yield facts.complain(3, fact, Part.TYPE)
        return None
    return TupleType((state, bits))


def _batch_norm(facts: Facts) -> Findings:
    """Shapes follow from the operands; floats may be of any width, as XLA's verifier has it."""
    array, *others = facts.arrays
    for position, kind in enumerate(facts.arrays):
        if not kind.dtype.is_float:
            fact = f"{facts.node.op} is not defined for {kind.dtype.value}"
            yield facts.complain(1, fact, position)
    feature = facts.node.integer("feature_index")
    if not 0 <= feature < array.rank:
        yield facts.complain(2, f"{array} has no dimension {feature}", "feature_index")
        return None
    if facts.node.op == "batch-norm-grad" and others.pop().shape != array.shape:
        yield facts.complain(4, f"{facts.arrays[-1]} is not of the shape of {array}", 4)
    features = array.shape[feature : feature + 1]
    for position, kind in enumerate(others, start=1):
        if kind.shape != features:
            yield facts.complain(3, f"{kind} does not have {features[0]} elements", position)
    if facts.node.op == "batch-norm-inference":
        return _of_width(facts.node.type, array)
    wanted = (array, ArrayType(array.dtype, features), ArrayType(array.dtype, features))
    declared = facts.node.type.elements if isinstance(facts.node.type, TupleType) else ()
    if len(declared) != len(wanted):
        return TupleType(wanted)
    kinds = zip(declared, wanted, strict=True)
    return TupleType(tuple(_of_width(said, kind) for said, kind in kinds))


def _of_width(declared: Type, wanted: ArrayType) -> ArrayType:
    """The wanted array, in the float type that the text declares."""
    if isinstance(declared, ArrayType) and declared.dtype.is_float:
        return ArrayType(declared.dtype, wanted.shape)
    return wanted


NUMERIC_RULES: Mapping[str, Rule] = {
    "batch-norm-grad": _batch_norm,
    "batch-norm-inference": _batch_norm,
    "batch-norm-training": _batch_norm,
    "fft": _fft,
    "cholesky": _cholesky,
    "triangular-solve": _triangular_solve,
    "rng": _rng,
    "rng-bit-generator": _rng_bit_generator,
}


_MOST = 2**31 - 1  # of s32


def _pad(facts: Facts) -> Findings:
    (operand, value), padding = facts.arrays, facts.attribute("padding")
    assert isinstance(padding, Padding), facts.node.name
    if value != ArrayType(operand.dtype):
        yield facts.complain(2, f"the value is {value}, not {ArrayType(operand.dtype)}", 1)
    if len(padding.dimensions) != operand.rank:
        fact = f"{len(padding.dimensions)} entries for an operand of rank {operand.rank}: {operand}"
        yield facts.complain(1, fact, "padding")
        return None
    shape, wrong = [], False
    for dimension, (size, one) in enumerate(zip(operand.shape, padding.dimensions, strict=True)):
        low, high, interior = one
        shape.append(low + size + max(size - 1, 0) * interior + high)
        if interior < 0 or shape[-1] < 0:
            fact = f"dimension {dimension} of {operand} becomes {shape[-1]}"
            fact = f"interior padding {interior} of dimension {dimension}" if interior < 0 else fact
            wrong = True
            yield facts.complain(3, fact, "padding")
    return None if wrong else ArrayType(operand.dtype, tuple(shape))


def _reverse(facts: Facts) -> Findings:
    operand, dimensions = facts.arrays[0], facts.node.integers("dimensions")
    if not are_distinct_dimensions(dimensions, operand.rank):
        fact = f"{list(dimensions)} are not distinct dimensions of {operand}"
        yield facts.complain(1, fact, "dimensions")
    return operand


def _get_dimension_size(facts: Facts) -> Findings:
    operand, dimensions = facts.arrays[0], facts.node.integers("dimensions")
    if len(dimensions) != 1 or not are_distinct_dimensions(dimensions, operand.rank):
        fact = f"{list(dimensions)} is not one dimension of {operand}"
        yield facts.complain(1, fact, "dimensions")
    elif operand.shape[dimensions[0]] > _MOST:
        yield facts.complain(2, f"{operand.shape[dimensions[0]]} does not fit in s32", 0)
    return ArrayType(DType.S32)


def _sort(facts: Facts) -> Findings:
    kinds, dimensions = facts.arrays, facts.node.integers("dimensions")
    for position, kind in enumerate(kinds):
        if kind.shape != kinds[0].shape:
            yield facts.complain(1, f"shapes differ: {kinds[0]} and {kind}", position)
    if len(dimensions) != 1 or not are_distinct_dimensions(dimensions, kinds[0].rank):
        fact = f"{list(dimensions)} is not one dimension of {kinds[0]}"
        yield facts.complain(2, fact, "dimensions")
    pairs = [ArrayType(kind.dtype) for kind in kinds for _ in range(2)]
    yield from check_region(facts, 3, pairs, ArrayType(DType.PRED))
    return one_or_tuple(kinds)


def _topk(facts: Facts) -> Findings:
    operand, count = facts.arrays[0], facts.node.integer("k")
    if not operand.rank or not 0 <= count <= operand.shape[-1] <= _MOST:
        yield facts.complain(1, f"{operand} has no {count} elements in its last dimension", "k")
        return None
    if operand.dtype.is_complex:
        yield facts.complain(2, f"{operand.dtype.value} has no order", 0)
    return _values_and_places(operand, count)


def _values_and_places(operand: ArrayType, count: int) -> TupleType:
    shape = (*operand.shape[:-1], count)
    return TupleType((ArrayType(operand.dtype, shape), ArrayType(DType.S32, shape)))


def _custom_call(facts: Facts) -> Findings:
    target, key = target_of(facts.node), "custom_call_target"
    if target in TARGETS:
        return (yield from _linear_algebra(facts))
    refusal = refusal_of(target, (row.name for row in NCC_COLLECTIVES))
    if refusal is not None:
        yield facts.complain(1, refusal.fact, key, refusal.advice)
    elif target == TOPK:
        return (yield from _custom_topk(facts))
    elif target == APPROX_TOPK:
        return (yield from _approx_topk(facts))
    elif target in IDENTITIES and facts.operands != (facts.node.type,):
        given = ", ".join(map(str, facts.operands)) or "nothing"
        yield facts.complain(2, f"{target} takes {given} and returns {facts.node.type}")
    return facts.node.type


def _linear_algebra(facts: Facts) -> Findings:
    """A routine's row says what its results are; the target says of which element type."""
    target = target_of(facts.node)
    try:
        call = call_of(facts.node)
    except ConfigError as error:
        yield facts.complain(4, f"{target}: {error}", "backend_config")
        return None
    if len(facts.arrays) != len(facts.operands) or not facts.operands:
        given = ", ".join(map(str, facts.operands)) or "nothing"
        yield facts.complain(2, f"{target} takes arrays, not {given}")
        return None
    dtype = dtype_of_target(target)
    if dtype not in (None, facts.arrays[0].dtype):
        fact = f"{target} takes {dtype.value if dtype else ''}, not {facts.arrays[0]}"
        yield facts.complain(2, fact, 0)
        return None
    if call.routine == TRSM:
        if len(facts.arrays) != 2:
            yield facts.complain(2, f"{target} takes 2 operands, not {len(facts.arrays)}")
            return None
        solve = attrs.evolve(facts, node=as_triangular_solve(facts.node, call))
        return (yield from NUMERIC_RULES["triangular-solve"](solve))
    operands = [(array.dtype, array.shape) for array in facts.arrays]
    try:
        possible = results_of(call.routine, call.options, operands)
    except OptionError as error:
        yield facts.complain(4, f"{target}: {error}", "backend_config")
        return None
    except RoutineError as error:
        yield facts.complain(2, f"{target}: {error}")
        return None
    kinds = [one_or_tuple([ArrayType(*array) for array in results]) for results in possible]
    return facts.node.type if facts.node.type in kinds else kinds[0]


def _approx_topk(facts: Facts) -> Findings:
    """Arrays of one shape and an initial value of each; the comparator takes two of each."""
    try:
        asked = approx_topk_of(facts.node)
    except ConfigError as error:
        place: Place = "backend_config" if "backend_config" in facts.node.attributes else Part.OP
        yield facts.complain(4, f"{APPROX_TOPK}: {error}", place)
        return None
    half = len(facts.operands) // 2
    kinds, initial = facts.arrays[:half], facts.arrays[half:]
    shapes = {kind.shape for kind in kinds}
    if (
        len(facts.arrays) != len(facts.operands)
        or initial != tuple(ArrayType(kind.dtype) for kind in kinds)
        or len(shapes) != 1
    ):
        given = ", ".join(map(str, facts.operands)) or "nothing"
        fact = f"{APPROX_TOPK} takes arrays of one shape and an initial value of each, not {given}"
        yield facts.complain(2, fact)
        return None
    (shape,) = shapes
    if not 0 <= asked.dimension < len(shape) or not 0 <= asked.count <= shape[asked.dimension]:
        fact = f"{kinds[0]} has no {asked.count} elements in dimension {asked.dimension}"
        yield facts.complain(4, f"{APPROX_TOPK}: {fact}", "backend_config")
        return None
    called = facts.attribute("called_computations")
    if not isinstance(called, Callees) or len(called.names) != 1:
        yield facts.complain(2, f"{APPROX_TOPK} needs one called computation, which compares")
        return None
    comparator = facts.computation(called.names[0])
    needed = [ArrayType(kind.dtype) for kind in kinds for _ in range(2)]
    if comparator is not None:
        takes, returns = parameter_types(comparator), result_type(comparator)
        if takes != needed or returns != ArrayType(DType.PRED):
            fact = f"%{comparator.name} takes ({', '.join(map(str, takes))}) and returns {returns}"
            fact += f"; ({', '.join(map(str, needed))}) and pred[] are needed"
            yield facts.complain(2, fact, "called_computations")
    first = (*shape[: asked.dimension], asked.count, *shape[asked.dimension + 1 :])
    return one_or_tuple([ArrayType(kind.dtype, first) for kind in kinds])


def _custom_topk(facts: Facts) -> Findings:
    """The result says how many elements are asked for."""
    result = facts.node.type
    operand = facts.operands[0] if len(facts.operands) == 1 else None
    first = result.elements[0] if isinstance(result, TupleType) and result.elements else None
    if isinstance(operand, ArrayType) and isinstance(first, ArrayType):
        has_order = operand.rank and first.rank and not operand.dtype.is_complex
        if has_order and first.shape[-1] <= operand.shape[-1] <= _MOST:
            return _values_and_places(operand, first.shape[-1])
    given = ", ".join(map(str, facts.operands)) or "nothing"
    yield facts.complain(2, f"{TOPK} takes {given} and returns {result}")
    return None


ORDERING_RULES: Mapping[str, Rule] = {
    "pad": _pad,
    "reverse": _reverse,
    "get-dimension-size": _get_dimension_size,
    "sort": _sort,
    "topk": _topk,
    "custom-call": _custom_call,
}
"""The rules of ops that order, pad or reverse, and of custom calls."""
