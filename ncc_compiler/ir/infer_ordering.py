"""Result types of sort, topk, padding, reversal and custom calls."""

from collections.abc import Mapping

import attrs

from ncc_compiler.ir.custom_calls import (
    APPROX_TOPK,
    IDENTITIES,
    TOPK,
    approx_topk_of,
    refusal_of,
    target_of,
)
from ncc_compiler.ir.facts import (
    Facts,
    Findings,
    Rule,
    are_distinct_dimensions,
    check_region,
    one_or_tuple,
    parameter_types,
    result_type,
)
from ncc_compiler.ir.graph import Callees, Padding
from ncc_compiler.ir.infer_numeric import NUMERIC_RULES
from ncc_compiler.ir.linear_algebra import (
    TARGETS,
    TRSM,
    ConfigError,
    as_triangular_solve,
    call_of,
    dtype_of_target,
)
from ncc_compiler.ir.ops_collectives import NCC_COLLECTIVES
from ncc_compiler.ir.rules import Part, Place
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.lapack import OptionError, RoutineError, results_of

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
