"""Types of opcodes with start indices or index vectors, of pad, reverse, sort and topk."""

import itertools
from collections.abc import Iterator, Sequence

import attrs

from ncc_runtime.neff.program import Typed
from ncc_runtime.neff.rules.signature import (
    Signature,
    dtype_differs,
    not_distinct_below,
    shape_differs,
)
from ncc_runtime.neff.rules.structural import folds
from ncc_runtime.neff.shared.dtypes import DType

Shape = tuple[int, ...]


def _without(shape: Shape, dimensions: Sequence[int]) -> Shape:
    return tuple(size for d, size in enumerate(shape) if d not in dimensions)


def _exceeds(sizes: Shape, shape: Shape) -> bool:
    """Whether a window of these sizes is no window of an array of that shape."""
    fit = len(sizes) == len(shape) and all(0 <= s <= n for s, n in zip(sizes, shape, strict=True))
    return not fit


def _not_starts(operand: Typed, starts: tuple[Typed, ...]) -> Iterator[str]:
    """Complain unless these are one integer for each dimension, or one vector of them."""
    rank = len(operand.shape)
    is_vector = len(starts) == 1 and starts[0].shape == (rank,)
    if not is_vector and (len(starts) != rank or any(start.shape for start in starts)):
        yield f"{len(starts)} start indices, must be {rank} scalars or one vector"
    if any(not start.dtype.is_integer or start.dtype is not starts[0].dtype for start in starts):
        yield f"start indices are {', '.join(start.type_text for start in starts)}"


def dynamic_slice(signature: Signature) -> Iterator[str]:
    """An array, then where the window of the result's shape starts."""
    (result,) = signature.results
    if not signature.operands:
        yield "no operands"
        return
    operand, *starts = signature.operands
    yield from dtype_differs(result, operand.dtype)
    yield from _not_starts(operand, tuple(starts))
    if _exceeds(result.shape, operand.shape):
        yield f"{result.type_text} is no window of {operand.type_text}"


def dynamic_update_slice(signature: Signature) -> Iterator[str]:
    """An array, what overwrites a window of it, then where the window starts."""
    (result,) = signature.results
    if len(signature.operands) < 2:
        yield f"{len(signature.operands)} operands, must be at least 2"
        return
    operand, update, *starts = signature.operands
    yield from dtype_differs(result, operand.dtype)
    yield from shape_differs(result, operand.shape)
    yield from dtype_differs(update, operand.dtype)
    yield from _not_starts(operand, tuple(starts))
    if _exceeds(update.shape, operand.shape):
        yield f"{update.type_text} is no window of {operand.type_text}"


@attrs.frozen
class _Vectors:
    """Index vectors, and the dimensions of the operand that they and batches index."""

    operand: Typed
    indices: Typed
    vector_dim: int
    index_map: Shape
    dropped: Shape
    batching: Shape
    indices_batching: Shape

    @property
    def batch(self) -> Shape:
        """The shape of the indices without the vectors."""
        return _without(self.indices.shape, (self.vector_dim,))

    @property
    def left_out(self) -> Shape:
        """Dimensions of the operand that windows do not have."""
        return self.dropped + self.batching

    def breaches(self) -> Iterator[str]:
        """Complain of what gather and scatter have in common."""
        # a vector dimension behind the last one stands for vectors of one number
        rank, width = len(self.operand.shape), (*self.indices.shape, 1)
        if not self.indices.dtype.is_integer:
            yield f"indices are {self.indices.type_text}"
        if not 0 <= self.vector_dim <= len(self.indices.shape):
            yield f"index_vector_dim {self.vector_dim} is no dimension of {self.indices.type_text}"
            return
        if width[self.vector_dim] != len(self.index_map):
            yield f"index vectors have {width[self.vector_dim]} numbers, not {len(self.index_map)}"
        yield from not_distinct_below("indexed dimensions", self.index_map + self.batching, rank)
        yield from not_distinct_below("window-less dimensions", self.left_out, rank)
        used = (*self.indices_batching, self.vector_dim)
        yield from not_distinct_below("batching dimensions", used, len(self.indices.shape) + 1)
        if len(self.batching) != len(self.indices_batching):
            yield f"{len(self.batching)} batching dimensions and {len(self.indices_batching)}"

    def unequal_batches(self) -> Iterator[str]:
        """Complain of paired batching dimensions that differ; once the dimensions exist."""
        for ours, theirs in zip(self.batching, self.indices_batching, strict=True):
            if self.operand.shape[ours] != (*self.indices.shape, 1)[theirs]:
                yield f"batching dimensions {ours} and {theirs} differ in size"


def _vectors(signature: Signature, indices: Typed, keys: str) -> _Vectors:
    index_map, dropped, batching, indices_batching = (
        signature.integers(key) for key in keys.split()
    )
    return _Vectors(
        signature.operands[0],
        indices,
        signature.integer("index_vector_dim"),
        index_map,
        dropped,
        batching,
        indices_batching,
    )


def _unordered(what: str, dimensions: Shape, rank: int) -> Iterator[str]:
    yield from not_distinct_below(what, dimensions, rank)
    if list(dimensions) != sorted(dimensions):
        yield f"{what} {list(dimensions)} are not in order"


_GATHERED = "start_index_map collapsed_slice_dims operand_batching_dims start_indices_batching_dims"


def gather(signature: Signature) -> Iterator[str]:
    """A window of the operand for each index vector."""
    (operand, indices), (result,) = signature.operands, signature.results
    vectors = _vectors(signature, indices, _GATHERED)
    sizes, offsets = signature.integers("slice_sizes"), signature.integers("offset_dims")
    yield from dtype_differs(result, operand.dtype)
    complaints = [*vectors.breaches(), *_unordered("offset_dims", offsets, len(result.shape))]
    if _exceeds(sizes, operand.shape):
        complaints.append(f"slice_sizes {list(sizes)} are no window of {operand.type_text}")
    yield from complaints
    if complaints:
        return
    yield from vectors.unequal_batches()
    if any(sizes[d] > 1 for d in vectors.left_out):
        yield f"slice_sizes {list(sizes)} are above 1 where windows have no dimension"
    shapes = (tuple(result.shape[d] for d in offsets), _without(result.shape, offsets))
    if shapes != (_without(sizes, vectors.left_out), vectors.batch):
        yield f"result is {result.type_text}, windows {list(sizes)} do not fill it"


_SCATTERED = (
    "scatter_dims_to_operand_dims inserted_window_dims input_batching_dims "
    "scatter_indices_batching_dims"
)


def scatter(signature: Signature) -> Iterator[str]:
    """n arrays, indices, n updates; the region takes n elements, then n updates."""
    count = len(signature.results)
    if not count or len(signature.operands) != 2 * count + 1:
        yield f"{len(signature.operands)} operands, {2 * count + 1} needed for {count} results"
        return
    arrays, updates = signature.operands[:count], signature.operands[count + 1 :]
    for array, update, result in zip(arrays, updates, signature.results, strict=True):
        yield from dtype_differs(result, array.dtype)
        yield from dtype_differs(update, array.dtype)
        yield from shape_differs(result, arrays[0].shape)
        if array.shape != arrays[0].shape or update.shape != updates[0].shape:
            yield f"shapes differ: {array.type_text} and {update.type_text}"
            return
    dtypes = tuple(array.dtype for array in arrays)
    yield from folds(signature, "region", dtypes * 2, dtypes)
    vectors = _vectors(signature, signature.operands[count], _SCATTERED)
    windows = signature.integers("update_window_dims")
    rank = len(updates[0].shape)
    complaints = [*vectors.breaches(), *_unordered("update_window_dims", windows, rank)]
    yield from complaints
    if complaints:
        return
    yield from vectors.unequal_batches()
    sizes = tuple(updates[0].shape[d] for d in windows)
    fits = _without(updates[0].shape, windows) == vectors.batch
    if not fits or _exceeds(sizes, _without(arrays[0].shape, vectors.left_out)):
        yield f"{updates[0].type_text} does not update {arrays[0].type_text}"


def pad(signature: Signature) -> Iterator[str]:
    """An array and the value before, behind and between its elements."""
    (operand, value), (result,) = signature.operands, signature.results
    padding = [signature.integers(name) for name in ("low", "high", "interior")]
    yield from dtype_differs(result, operand.dtype)
    if (value.dtype, value.shape) != (operand.dtype, ()):
        yield f"padding value is {value.type_text}, must be {operand.dtype.value}[]"
    if any(len(numbers) != len(operand.shape) for numbers in padding):
        yield f"low, high and interior must have {len(operand.shape)} entries each"
        return
    shape = tuple(
        low + size + max(size - 1, 0) * interior + high
        for low, high, interior, size in zip(*padding, operand.shape, strict=True)
    )
    if min((*padding[2], *shape), default=0) < 0:
        yield f"padding makes {list(shape)} of {operand.type_text}"
    yield from shape_differs(result, shape)


def reverse(signature: Signature) -> Iterator[str]:
    """The elements of some dimensions from last to first."""
    (operand,), (result,) = signature.operands, signature.results
    yield from dtype_differs(result, operand.dtype)
    yield from shape_differs(result, operand.shape)
    yield from not_distinct_below(
        "dimensions", signature.integers("dimensions"), len(operand.shape)
    )


def sort(signature: Signature) -> Iterator[str]:
    """n arrays of one shape; the region takes two elements of each, side by side."""
    if not signature.operands or len(signature.operands) != len(signature.results):
        yield f"{len(signature.operands)} operands for {len(signature.results)} results"
        return
    shape = signature.operands[0].shape
    for operand, result in zip(signature.operands, signature.results, strict=True):
        yield from dtype_differs(result, operand.dtype)
        yield from shape_differs(result, shape)
        if operand.shape != shape:
            yield f"arrays differ: {signature.operands[0].type_text} and {operand.type_text}"
    yield from not_distinct_below("dimension", (signature.integer("dimension"),), len(shape))
    pairs = itertools.chain.from_iterable((operand.dtype,) * 2 for operand in signature.operands)
    yield from folds(signature, "region", tuple(pairs), (DType.PRED,))


def topk(signature: Signature) -> Iterator[str]:
    """The first k of the last dimension, and their places."""
    (operand,), (values, places) = signature.operands, signature.results
    count = signature.integer("k")
    if not operand.shape or not 0 <= count <= operand.shape[-1] < 2**31:
        yield f"{operand.type_text} has no {count} elements in its last dimension"
        return
    if operand.dtype.is_complex:
        yield f"{operand.dtype.value} has no order"
    yield from dtype_differs(values, operand.dtype)
    yield from dtype_differs(places, DType.S32)
    for result in signature.results:
        yield from shape_differs(result, (*operand.shape[:-1], count))
