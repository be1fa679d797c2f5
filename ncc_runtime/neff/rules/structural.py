"""Types of opcodes that move, contract or fold: the result's shape follows from attributes."""

import itertools
from collections.abc import Iterator

from ncc_runtime.neff.program import Typed
from ncc_runtime.neff.rules.signature import (
    Signature,
    dtype_differs,
    not_distinct_below,
    shape_differs,
)
from ncc_runtime.neff.shared.dtypes import DType


def iota(signature: Signature) -> Iterator[str]:
    """Counts along a dimension of the result."""
    (result,) = signature.results
    yield from not_distinct_below(
        "iota_dimension", (signature.integer("iota_dimension"),), len(result.shape)
    )
    if result.dtype is DType.PRED:
        yield "not defined on pred"


def device_id(signature: Signature) -> Iterator[str]:
    """One integer."""
    (result,) = signature.results
    yield from shape_differs(result, ())
    if not result.dtype.is_integer:
        yield f"result is {result.type_text}, must be an integer"


def broadcast(signature: Signature) -> Iterator[str]:
    """Operand dimension k becomes result dimension dimensions[k]; the others repeat."""
    (operand,), (result,), dimensions = (
        signature.operands,
        signature.results,
        signature.integers("dimensions"),
    )
    yield from dtype_differs(result, operand.dtype)
    complaints = [*not_distinct_below("dimensions", dimensions, len(result.shape))]
    yield from complaints
    if not complaints and tuple(result.shape[d] for d in dimensions) != operand.shape:
        yield f"{operand.type_text} does not fill dimensions of {result.type_text}"


def reshape(signature: Signature) -> Iterator[str]:
    """The same elements in another shape."""
    (operand,), (result,) = signature.operands, signature.results
    yield from dtype_differs(result, operand.dtype)
    if result.elements != operand.elements:
        yield f"{operand.elements} elements become {result.elements}"


def transpose(signature: Signature) -> Iterator[str]:
    """Result dimension k is operand dimension dimensions[k]."""
    (operand,), (result,) = signature.operands, signature.results
    permutation, rank = signature.integers("dimensions"), len(operand.shape)
    yield from dtype_differs(result, operand.dtype)
    if sorted(permutation) != list(range(rank)):
        yield f"dimensions {list(permutation)} do not permute {rank}"
        return
    yield from shape_differs(result, tuple(operand.shape[d] for d in permutation))


def slice_(signature: Signature) -> Iterator[str]:
    """Every stride-th element of [start, limit), per dimension."""
    (operand,), (result,) = signature.operands, signature.results
    bounds = [signature.integers(name) for name in ("start", "limit", "stride")]
    yield from dtype_differs(result, operand.dtype)
    if any(len(bound) != len(operand.shape) for bound in bounds):
        yield f"start, limit and stride must have {len(operand.shape)} entries each"
        return
    ranges = list(zip(*bounds, operand.shape, strict=True))
    for start, limit, stride, size in ranges:
        if not 0 <= start <= limit <= size or stride < 1:
            yield f"[{start}:{limit}:{stride}] is no range of {size} elements"
            return
    expected = tuple(-((start - limit) // stride) for start, limit, stride, _ in ranges)
    yield from shape_differs(result, expected)


def concatenate(signature: Signature) -> Iterator[str]:
    """Operands behind one another along a dimension."""
    (result,), dimension = signature.results, signature.integer("dimension")
    if not signature.operands:
        yield "no operands"
        return
    first = signature.operands[0]
    complaints = [*not_distinct_below("dimension", (dimension,), len(first.shape))]
    yield from complaints
    if complaints:
        return
    for operand in signature.operands:
        if _without(operand.shape, dimension) != _without(first.shape, dimension):
            yield f"operands differ: {first.type_text} and {operand.type_text}"
            return
        yield from dtype_differs(result, operand.dtype)
    length = sum(operand.shape[dimension] for operand in signature.operands)
    expected = (*first.shape[:dimension], length, *first.shape[dimension + 1 :])
    yield from shape_differs(result, expected)


def _without(shape: tuple[int, ...], *dimensions: int) -> tuple[int, ...]:
    return tuple(size for d, size in enumerate(shape) if d not in dimensions)


def dot(signature: Signature) -> Iterator[str]:
    """Batch dimensions, then the free dimensions of the left operand, then of the right one."""
    yield from _product(signature, (), ())


def ragged_dot(signature: Signature) -> Iterator[str]:
    """A dot whose left operand has groups along a dimension, each with its own right operand."""
    lhs, rhs, sizes = signature.operands
    ragged, groups = signature.integer("lhs_ragged"), signature.integers("rhs_group")
    batch, contracting = (signature.integers(f"lhs_{name}") for name in ("batch", "contracting"))
    if ragged in batch or not 0 <= ragged < len(lhs.shape):
        yield f"dimension {ragged} of {lhs.type_text} has no groups"
        return
    count = sizes.shape[-1:]
    is_summed = ragged in contracting
    yield from _product(signature, count if is_summed else (), groups)
    if len(groups) != (0 if is_summed else 1):
        yield f"rhs_group is {list(groups)}"
    elif tuple(rhs.shape[d] for d in groups if d < len(rhs.shape)) != (() if is_summed else count):
        yield f"{rhs.type_text} does not have {list(count)} groups in {list(groups)}"
    free = tuple(d for d in range(len(lhs.shape)) if d not in batch + contracting)
    siblings = contracting if is_summed else free
    before = batch + siblings[: siblings.index(ragged)]
    prefix = tuple(lhs.shape[d] for d in before if d < len(lhs.shape))
    if not sizes.dtype.is_integer or sizes.shape not in (count, (*prefix, *count)) or not count:
        yield f"sizes of groups are {sizes.type_text}"


def _product(
    signature: Signature, outer: tuple[int, ...], groups: tuple[int, ...]
) -> Iterator[str]:
    """Complain of a product whose result has `outer` dimensions in front.

    `groups` are dimensions of the right operand at which each row uses one index only.
    """
    lhs, rhs = signature.operands[:2]
    sides = [
        (side, signature.integers(f"{name}_batch"), signature.integers(f"{name}_contracting"))
        for name, side in (("lhs", lhs), ("rhs", rhs))
    ]
    complaints = [
        complaint
        for side, batch, contracted in sides
        for complaint in not_distinct_below(
            "dimensions",
            batch + contracted + (groups if side is rhs else ()),
            len(side.shape),
        )
    ]
    yield from complaints
    if complaints:
        return
    shared = [
        [tuple(side.shape[d] for d in dimensions) for dimensions in (batch, contracted)]
        for side, batch, contracted in sides
    ]
    if shared[0] != shared[1]:
        yield f"batch and contracting sizes differ: {lhs.type_text} and {rhs.type_text}"
    free = itertools.chain.from_iterable(
        _without(side.shape, *batch, *contracted, *(groups if side is rhs else ()))
        for side, batch, contracted in sides
    )
    yield from shape_differs(signature.results[0], (*outer, *shared[0][0], *free))
    if any(side.dtype.is_complex for side in (lhs, rhs)) != signature.results[0].dtype.is_complex:
        yield f"{lhs.type_text} and {rhs.type_text} do not make {signature.results[0].type_text}"


def reduce(signature: Signature) -> Iterator[str]:
    """n arrays, then n initial values; the region takes n accumulators, then n elements."""
    count = len(signature.results)
    arrays, initial = signature.operands[:count], signature.operands[count:]
    if not count or len(initial) != count:
        yield f"{len(signature.operands)} operands, {2 * count} needed for {count} results"
        return
    rank, dimensions = len(arrays[0].shape), signature.integers("dimensions")
    complaints = [*not_distinct_below("dimensions", dimensions, rank)]
    if any(array.shape != arrays[0].shape for array in arrays):
        complaints.append(f"arrays differ: {', '.join(array.type_text for array in arrays)}")
    yield from complaints
    if complaints:
        return
    for result in signature.results:
        yield from shape_differs(result, _without(arrays[0].shape, *dimensions))
    yield from starts_differ(signature, arrays, initial)
    dtypes = tuple(array.dtype for array in arrays)
    yield from folds(signature, "region", dtypes * 2, dtypes)


def starts_differ(
    signature: Signature, arrays: tuple[Typed, ...], initial: tuple[Typed, ...]
) -> Iterator[str]:
    """Complain of results or initial values of other dtypes than the folded arrays."""
    for result, array, start in zip(signature.results, arrays, initial, strict=True):
        yield from dtype_differs(result, array.dtype)
        if (start.dtype, start.shape) != (array.dtype, ()):
            yield f"initial value is {start.type_text}, must be {array.dtype.value}[]"


def folds(
    signature: Signature, key: str, takes: tuple[DType, ...], gives: tuple[DType, ...]
) -> Iterator[str]:
    """Complain unless the region that an attribute names takes and gives these dtypes."""
    number = signature.integer(key)
    if not 0 <= number < len(signature.regions):
        yield f"region {number}, there are {len(signature.regions)}"
        return
    region = signature.regions[number]
    if region.parameters != takes or region.result_dtypes() != gives:
        taken, given = (", ".join(dtype.value for dtype in dtypes) for dtypes in (takes, gives))
        yield f"region r{number} ({region.name}) does not fold ({taken}) into ({given})"


def fusion(signature: Signature) -> Iterator[str]:
    """Operands and results have the types of the fusion's parameters and results."""
    number = signature.integer("fusion")
    if not 0 <= number < len(signature.fusions):
        yield f"fusion {number}, there are {len(signature.fusions)}"
        return
    fused = signature.fusions[number]
    ends = (
        ("operands", signature.operands, fused.types(range(fused.parameters))),
        ("results", signature.results, fused.types(fused.results)),
    )
    for word, arrays, expected in ends:
        if [(each.dtype, each.shape) for each in arrays] != [
            (each.dtype, each.shape) for each in expected
        ]:
            given, needed = ([array.type_text for array in kinds] for kinds in (arrays, expected))
            yield (
                f"{word} are {', '.join(given) or 'none'}, "
                f"those of fusion f{number} {', '.join(needed) or 'none'}"
            )


_MOST_WORK = 2**60


def work(signature: Signature) -> Iterator[str]:
    """Any arrays; amounts that can be added up, and a dtype that there is."""
    for name in ("bytes_read", "bytes_written", "duration_ps", "elements", "flops"):
        amount = signature.attributes.get(name, 0)
        assert isinstance(amount, int), (signature.opcode, name, amount)
        if not 0 <= amount <= _MOST_WORK:
            yield f"{name} is {amount}, must be 0 to 2**60"
    dtype = signature.attributes.get("dtype")
    if dtype is not None and dtype not in _DTYPES:
        yield f"dtype is {dtype!r}, none of {', '.join(sorted(_DTYPES))}"


_DTYPES = frozenset(dtype.value for dtype in DType)
