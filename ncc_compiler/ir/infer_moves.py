"""Result types of ops that only move elements."""

from collections.abc import Mapping

from ncc_compiler.ir.facts import Facts, Findings, Rule, are_distinct_dimensions
from ncc_compiler.ir.rules import Part
from ncc_compiler.ir.types import ArrayType


def _broadcast(facts: Facts) -> Findings:
    operand, kind, dimensions = facts.arrays[0], facts.node.type, facts.node.integers("dimensions")
    if not isinstance(kind, ArrayType):
        yield facts.complain(2, f"the result is {kind}, not an array", Part.TYPE)
        return None
    if len(dimensions) != operand.rank:
        fact = f"{len(dimensions)} dimensions for an operand of rank {operand.rank}: {operand}"
        yield facts.complain(1, fact, "dimensions", "say for each where it goes in the result")
        return None
    if not are_distinct_dimensions(dimensions, kind.rank):
        fact = f"{_braces(dimensions)} are not distinct dimensions of {kind}"
        yield facts.complain(2, fact, "dimensions")
        return None
    for source, target in enumerate(dimensions):
        if operand.shape[source] != kind.shape[target]:
            fact = (
                f"dimension {source} of {operand} becomes dimension {target} of {kind}: "
                f"sizes {operand.shape[source]} and {kind.shape[target]}"
            )
            yield facts.complain(3, fact, "dimensions")
    return ArrayType(operand.dtype, kind.shape)


def _braces(numbers: tuple[int, ...]) -> str:
    return "{" + ",".join(map(str, numbers)) + "}"


def _reshape(facts: Facts) -> Findings:
    operand, kind = facts.arrays[0], facts.node.type
    if not isinstance(kind, ArrayType) or kind.elements != operand.elements:
        count = kind.elements if isinstance(kind, ArrayType) else 0
        fact = f"{operand} has {operand.elements} elements, {kind} has {count}"
        yield facts.complain(1, fact, Part.TYPE)
        return None
    return ArrayType(operand.dtype, kind.shape)


def _transpose(facts: Facts) -> Findings:
    operand, dimensions = facts.arrays[0], facts.node.integers("dimensions")
    if sorted(dimensions) != list(range(operand.rank)):
        fact = f"{_braces(dimensions)} is no permutation of the {operand.rank} of {operand}"
        yield facts.complain(1, fact, "dimensions")
        return None
    return ArrayType(operand.dtype, tuple(operand.shape[source] for source in dimensions))


def _slice(facts: Facts) -> Findings:
    operand, cuts = facts.arrays[0], facts.node.ranges()
    if len(cuts) != operand.rank:
        fact = f"{len(cuts)} ranges for an operand of rank {operand.rank}: {operand}"
        yield facts.complain(1, fact, "slice")
        return None
    shape, wrong = [], False
    for dimension, ((start, limit, stride), size) in enumerate(
        zip(cuts, operand.shape, strict=True)
    ):
        if not (0 <= start <= limit <= size and stride >= 1):
            fact = f"[{start}:{limit}:{stride}] does not cut dimension {dimension} of {operand}"
            wrong = True
            yield facts.complain(2, fact, "slice", "0 <= start <= limit <= size, stride >= 1")
        shape.append(-(-(limit - start) // max(1, stride)))
    return None if wrong else ArrayType(operand.dtype, tuple(shape))


def _concatenate(facts: Facts) -> Findings:
    first, dimensions = facts.arrays[0], facts.node.integers("dimensions")
    if len(dimensions) != 1 or not are_distinct_dimensions(dimensions, first.rank):
        fact = f"{_braces(dimensions)} is not one dimension of {first}"
        yield facts.complain(1, fact, "dimensions")
        return None
    dimension, total = dimensions[0], 0
    for position, kind in enumerate(facts.arrays):
        if kind.dtype != first.dtype or kind.rank != first.rank:
            yield facts.complain(2, f"operands do not fit: {first} and {kind}", position)
            return None
        if _without(kind.shape, dimension) != _without(first.shape, dimension):
            fact = f"operands differ beside dimension {dimension}: {first} and {kind}"
            yield facts.complain(3, fact, position)
        total += kind.shape[dimension]
    shape = (*first.shape[:dimension], total, *first.shape[dimension + 1 :])
    return ArrayType(first.dtype, shape)


def _without(shape: tuple[int, ...], dimension: int) -> tuple[int, ...]:
    return shape[:dimension] + shape[dimension + 1 :]


MOVE_RULES: Mapping[str, Rule] = {
    "broadcast": _broadcast,
    "reshape": _reshape,
    "transpose": _transpose,
    "slice": _slice,
    "concatenate": _concatenate,
}
