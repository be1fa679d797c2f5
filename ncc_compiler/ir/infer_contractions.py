"""Result types of ops that fold dimensions away."""

import itertools
from collections.abc import Mapping, Sequence

from ncc_compiler.ir.facts import (
    Facts,
    Findings,
    Rule,
    are_distinct_dimensions,
    one_or_tuple,
    parameter_types,
    result_type,
)
from ncc_compiler.ir.rules import Part
from ncc_compiler.ir.types import ArrayType, Type
from ncc_runtime.neff.dtypes import DType

_SIDES = ("lhs", "rhs")
_LISTS = ("batch_dims", "contracting_dims")


def _kind(dtype: DType) -> str:
    if dtype.is_integer:
        return "integer"
    return "float" if dtype.is_float else dtype.value


def _dot(facts: Facts) -> Findings:
    left, right = facts.arrays
    if _kind(left.dtype) != _kind(right.dtype) or left.dtype is DType.PRED:
        fact = f"{left.dtype.value} and {right.dtype.value} are not multiplied"
        yield facts.complain(4, fact, int(left.dtype is not DType.PRED))
    wrong = False
    for complaint in itertools.chain(_dot_numbers(facts), _dot_pairs(facts)):
        wrong = True
        yield complaint
    if wrong:
        return None
    free = [
        size
        for side, kind in zip(_SIDES, facts.arrays, strict=True)
        for dimension, size in enumerate(kind.shape)
        if all(dimension not in facts.node.integers(f"{side}_{name}") for name in _LISTS)
    ]
    batch = [left.shape[dimension] for dimension in facts.node.integers("lhs_batch_dims")]
    dtype = facts.node.type.dtype if isinstance(facts.node.type, ArrayType) else left.dtype
    if _kind(dtype) != _kind(left.dtype):
        fact = f"{left.dtype.value} and {right.dtype.value} do not give {dtype.value}"
        yield facts.complain(5, fact, Part.TYPE)
    return ArrayType(dtype, (*batch, *free))


def _dot_numbers(facts: Facts) -> Findings:
    for side, kind in zip(_SIDES, facts.arrays, strict=True):
        batch, contracting = (f"{side}_{name}" for name in _LISTS)
        listed = facts.node.integers(batch) + facts.node.integers(contracting)
        if not are_distinct_dimensions(listed, kind.rank):
            fact = f"{list(listed)} are not distinct dimensions of {kind}"
            yield facts.complain(1, fact, contracting)
    return None


def _dot_pairs(facts: Facts) -> Findings:
    left, right = facts.arrays
    for name in _LISTS:
        ours, theirs = (facts.node.integers(f"{side}_{name}") for side in _SIDES)
        what = name.removesuffix("_dims")
        if len(ours) != len(theirs):
            fact = f"{len(ours)} {what} dimensions on the left, {len(theirs)} on the right"
            yield facts.complain(2, fact, f"rhs_{name}")
        for a, b in zip(ours, theirs, strict=False):
            if not (0 <= a < left.rank and 0 <= b < right.rank):
                continue
            if left.shape[a] != right.shape[b]:
                fact = (
                    f"{what} sizes differ: {left.shape[a]} and {right.shape[b]} "
                    f"(dimension {a} of {left}, {b} of {right})"
                )
                yield facts.complain(3, fact, f"rhs_{name}")
    return None


def _reduce(facts: Facts) -> Findings:
    count, kinds = len(facts.operands) // 2, facts.arrays
    dimensions = facts.node.integers("dimensions")
    if len(kinds) % 2:
        fact = f"{count + 1} arrays and {count} initial values"
        yield facts.complain(1, fact, len(kinds) - 1, "arrays come first, then initial values")
        return None
    arrays, starts = kinds[:count], kinds[count:]
    for position, kind in enumerate(arrays):
        if kind.shape != arrays[0].shape:
            yield facts.complain(2, f"shapes differ: {arrays[0]} and {kind}", position)
            return None
    if not are_distinct_dimensions(dimensions, arrays[0].rank):
        fact = f"{list(dimensions)} are not distinct dimensions of {arrays[0]}"
        yield facts.complain(3, fact, "dimensions")
        return None
    for position, (kind, start) in enumerate(zip(arrays, starts, strict=True)):
        if start != ArrayType(kind.dtype):
            fact = f"the initial value of {kind} is {start}, not {ArrayType(kind.dtype)}"
            yield facts.complain(4, fact, count + position)
    yield from _reduce_region(facts, arrays)
    kept = [size for d, size in enumerate(arrays[0].shape) if d not in dimensions]
    return one_or_tuple([ArrayType(kind.dtype, tuple(kept)) for kind in arrays])


def _reduce_region(facts: Facts, arrays: tuple[ArrayType, ...]) -> Findings:
    callee = facts.callee()
    if callee is None:
        return None
    scalars = [ArrayType(kind.dtype) for kind in arrays]
    wanted, given = scalars * 2, parameter_types(callee)
    if given != wanted or result_type(callee) != one_or_tuple(scalars):
        fact = (
            f"%{callee.name} takes ({_listed(given)}) and returns {result_type(callee)}; "
            f"({_listed(wanted)}) and {one_or_tuple(scalars)} are needed"
        )
        yield facts.complain(5, fact, "to_apply")
    return None


def _listed(kinds: Sequence[Type]) -> str:
    return ", ".join(map(str, kinds))


CONTRACTION_RULES: Mapping[str, Rule] = {"dot": _dot, "reduce": _reduce}
