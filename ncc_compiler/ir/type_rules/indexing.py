"""Result types of gather, scatter and slices whose place is data.

Result types of ops that only move elements.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import TypeAlias

import attrs

from ncc_compiler.ir.rules import Complaint, Part
from ncc_compiler.ir.type_rules.facts import (
    Facts,
    Findings,
    Rule,
    are_distinct_dimensions,
    check_region,
    one_or_tuple,
)
from ncc_compiler.ir.types import ArrayType

Shape: TypeAlias = tuple[int, ...]
FindingsOfShape: TypeAlias = Generator[Complaint, None, Shape | None]


def _are_in_order(dimensions: Sequence[int], rank: int) -> bool:
    return are_distinct_dimensions(dimensions, rank) and list(dimensions) == sorted(dimensions)


def _but(shape: Shape, dimension: int) -> Shape:
    return tuple(size for d, size in enumerate(shape) if d != dimension)


def _starts(facts: Facts, first: int) -> Findings:
    """The operands from `first` on are start indices; gives the type of one, if they are right."""
    rank, starts = facts.arrays[0].rank, facts.arrays[first:]
    is_vector = len(starts) == 1 and starts[0].shape == (rank,)
    if not is_vector and (len(starts) != rank or any(one.rank for one in starts)):
        given = ", ".join(map(str, starts)) or "none"
        fact = f"start indices for an operand of rank {rank} are {given}"
        yield facts.complain(1, fact, first, "one scalar for each dimension")
        return None
    for position, kind in enumerate(starts, first):
        if not kind.dtype.is_integer or kind.dtype != starts[0].dtype:
            fact = f"start indices are {starts[0]} and {kind}"
            fact = fact if kind.dtype.is_integer else f"a start index is {kind}, not an integer"
            yield facts.complain(2, fact, position)
            return None
    return facts.arrays[0]


def _sizes_fit(facts: Facts, key: str, number: int) -> Findings:
    """The sizes of a slice are within the operand; gives the slice's type."""
    operand, sizes = facts.arrays[0], facts.node.integers(key)
    if len(sizes) != operand.rank:
        fact = f"{len(sizes)} sizes for an operand of rank {operand.rank}: {operand}"
        yield facts.complain(number, fact, key)
        return None
    for dimension, (size, limit) in enumerate(zip(sizes, operand.shape, strict=True)):
        if not 0 <= size <= limit:
            fact = f"size {size} does not fit in dimension {dimension} of {operand}"
            yield facts.complain(number, fact, key)
            return None
    return ArrayType(operand.dtype, sizes)


def _dynamic_slice(facts: Facts) -> Findings:
    are_right = yield from _starts(facts, 1)
    kind = yield from _sizes_fit(facts, "dynamic_slice_sizes", 3)
    return kind if are_right else None


def _dynamic_update_slice(facts: Facts) -> Findings:
    yield from _starts(facts, 2)
    operand, update = facts.arrays[:2]
    if update.dtype != operand.dtype or update.rank != operand.rank:
        yield facts.complain(3, f"{update} does not update {operand}", 1)
    elif any(size > limit for size, limit in zip(update.shape, operand.shape, strict=True)):
        yield facts.complain(4, f"{update} is larger than {operand}", 1)
    return operand


@attrs.frozen
class Numbers:
    """Dimension numbers of a gather or scatter under names that both share."""

    indices: ArrayType
    vector_dim: int
    index_map: Shape  # operand dimensions that index vectors speak of
    map_key: str
    dropped: Shape  # operand dimensions that windows do not have
    dropped_key: str
    batching: Shape
    batching_key: str
    indices_batching: Shape
    indices_batching_key: str

    @property
    def batch_shape(self) -> Shape:
        """The shape of the indices without the index vectors."""
        return _but(self.indices.shape, self.vector_dim)


def _numbers(facts: Facts, position: int, keys: tuple[str, str, str, str]) -> Numbers:
    index_map, dropped, batching, indices_batching = keys
    return Numbers(
        facts.arrays[position],
        facts.node.integer("index_vector_dim"),
        facts.node.integers(index_map),
        index_map,
        facts.node.integers(dropped),
        dropped,
        facts.node.integers(batching),
        batching,
        facts.node.integers(indices_batching),
        indices_batching,
    )


def _indices(facts: Facts, numbers: Numbers, position: int) -> Findings:
    """Rules 1 to 3: what index vectors are and which dimensions they speak of."""
    indices, operand = numbers.indices, facts.arrays[0]
    if not indices.dtype.is_integer:
        yield facts.complain(1, f"the indices are {indices}, not integers", position)
        return None
    if not 0 <= numbers.vector_dim <= indices.rank:
        fact = f"dimension {numbers.vector_dim} of {indices} holds no index vectors"
        yield facts.complain(1, fact, "index_vector_dim")
        return None
    width = (*indices.shape, 1)[numbers.vector_dim]
    if len(numbers.index_map) != width:
        fact = f"{len(numbers.index_map)} entries for index vectors of {width} numbers"
        yield facts.complain(2, fact, numbers.map_key)
    listed = (*numbers.index_map, *numbers.batching)
    if not are_distinct_dimensions(numbers.index_map, operand.rank):
        fact = f"{list(numbers.index_map)} are not distinct dimensions of {operand}"
        yield facts.complain(3, fact, numbers.map_key)
    elif len(set(listed)) < len(listed):
        fact = f"{list(numbers.index_map)} and batching {list(numbers.batching)} overlap"
        yield facts.complain(3, fact, numbers.map_key)
    return indices


def _dropped(facts: Facts, numbers: Numbers, number: int) -> Findings:
    """Dimensions that windows do not have are dimensions of the operand, each once, in order."""
    operand = facts.arrays[0]
    lists = ((numbers.dropped_key, numbers.dropped), (numbers.batching_key, numbers.batching))
    for key, dimensions in lists:
        if not _are_in_order(dimensions, operand.rank):
            fact = f"{list(dimensions)} are not dimensions of {operand} in order"
            yield facts.complain(number, fact, key)
            return None
    if set(numbers.dropped) & set(numbers.batching):
        fact = f"{list(numbers.dropped)} and batching {list(numbers.batching)} overlap"
        yield facts.complain(number, fact, numbers.batching_key)
        return None
    return operand


def _batching(facts: Facts, numbers: Numbers, number: int) -> Findings:
    """Batching dimensions come in pairs of one size; rules `number` and the next."""
    operand, indices = facts.arrays[0], numbers.indices
    ours, theirs = numbers.batching, numbers.indices_batching
    allowed = are_distinct_dimensions(theirs, indices.rank) and numbers.vector_dim not in theirs
    if not allowed or len(ours) != len(theirs):
        fact = f"{list(theirs)} of {indices} do not pair with {list(ours)} of {operand}"
        yield facts.complain(number, fact, numbers.indices_batching_key)
        return None
    for a, b in zip(ours, theirs, strict=True):
        if operand.shape[a] != indices.shape[b]:
            fact = (
                f"batching sizes differ: {operand.shape[a]} and {indices.shape[b]} "
                f"(dimension {a} of {operand}, {b} of {indices})"
            )
            yield facts.complain(number + 1, fact, numbers.indices_batching_key)
    return indices


_GATHER_KEYS = (
    "start_index_map",
    "collapsed_slice_dims",
    "operand_batching_dims",
    "start_indices_batching_dims",
)


def _gather(facts: Facts) -> Findings:
    operand, numbers = facts.arrays[0], _numbers(facts, 1, _GATHER_KEYS)
    indices = yield from _indices(facts, numbers, 1)
    window = yield from _sizes_fit(facts, "slice_sizes", 4)
    dropped = yield from _dropped(facts, numbers, 5)
    if not (indices and isinstance(window, ArrayType) and dropped):
        return None
    for dimension in (*numbers.dropped, *numbers.batching):
        if window.shape[dimension] > 1:
            fact = f"slice size {window.shape[dimension]} of dimension {dimension} is above 1"
            yield facts.complain(6, fact, "slice_sizes")
    yield from _batching(facts, numbers, 9)
    left_out = (*numbers.dropped, *numbers.batching)
    sizes = [size for d, size in enumerate(window.shape) if d not in left_out]
    shape = yield from _interleaved(facts, sizes, numbers.batch_shape)
    return None if shape is None else ArrayType(operand.dtype, shape)


def _interleaved(facts: Facts, sizes: list[int], batch: Shape) -> FindingsOfShape:
    """The window's dimensions where offset_dims say, the others in between; rules 7 and 8."""
    offsets = facts.node.integers("offset_dims")
    if len(offsets) != len(sizes):
        fact = f"{len(offsets)} dimensions for windows of {len(sizes)}"
        yield facts.complain(7, fact, "offset_dims")
        return None
    rank = len(offsets) + len(batch)
    if not _are_in_order(offsets, rank):
        fact = f"{list(offsets)} are not dimensions of a result of rank {rank} in order"
        yield facts.complain(8, fact, "offset_dims")
        return None
    inside, outside = iter(sizes), iter(batch)
    return tuple(next(inside) if d in offsets else next(outside) for d in range(rank))


_SCATTER_KEYS = (
    "scatter_dims_to_operand_dims",
    "inserted_window_dims",
    "input_batching_dims",
    "scatter_indices_batching_dims",
)


def _scatter(facts: Facts) -> Findings:
    kinds, count = facts.arrays, len(facts.arrays) // 2
    operands, updates = kinds[:count], kinds[count + 1 :]
    if [kind.dtype for kind in operands] != [kind.dtype for kind in updates]:
        fact = f"operands are {_listed(operands)}, updates are {_listed(updates)}"
        yield facts.complain(4, fact, len(kinds) - 1, "operands, indices, updates")
        return None
    scalars = [ArrayType(kind.dtype) for kind in operands]
    yield from check_region(facts, 13, scalars * 2, one_or_tuple(scalars))
    for position, kind in enumerate(kinds):
        first = operands[0] if position < count else updates[0]
        if position != count and kind.shape != first.shape:
            yield facts.complain(5, f"shapes differ: {first} and {kind}", position)
            return None
    numbers = _numbers(facts, count, _SCATTER_KEYS)
    indices = yield from _indices(facts, numbers, count)
    dropped = yield from _dropped(facts, numbers, 6)
    if indices and dropped:
        yield from _batching(facts, numbers, 11)
        yield from _updates(facts, numbers, updates[0])
    return one_or_tuple(operands)


def _updates(facts: Facts, numbers: Numbers, updates: ArrayType) -> Findings:
    """Rules 7 to 10: updates are windows that fit, one for each index vector."""
    windows, operand = facts.node.integers("update_window_dims"), facts.arrays[0]
    left_out = (*numbers.dropped, *numbers.batching)
    limits = [size for d, size in enumerate(operand.shape) if d not in left_out]
    if len(windows) != len(limits):
        fact = f"{len(windows)} dimensions for windows of {len(limits)}"
        yield facts.complain(7, fact, "update_window_dims")
        return None
    if not _are_in_order(windows, updates.rank):
        fact = f"{list(windows)} are not dimensions of {updates} in order"
        yield facts.complain(8, fact, "update_window_dims")
        return None
    others = tuple(size for d, size in enumerate(updates.shape) if d not in windows)
    last = len(facts.arrays) - 1
    if others != numbers.batch_shape:
        fact = f"updates go to {list(others)} places, the indices say {list(numbers.batch_shape)}"
        yield facts.complain(9, fact, last)
    for dimension, limit in zip(windows, limits, strict=True):
        if updates.shape[dimension] > limit:
            fact = f"dimension {dimension} of {updates} is a window on {limit} elements"
            yield facts.complain(10, fact, last)
    return updates


def _listed(kinds: Sequence[ArrayType]) -> str:
    return ", ".join(map(str, kinds)) or "none"


INDEXING_RULES: Mapping[str, Rule] = {
    "dynamic-slice": _dynamic_slice,
    "dynamic-update-slice": _dynamic_update_slice,
    "gather": _gather,
    "scatter": _scatter,
}
"""The rules of ops that take places as operands."""


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
