"""Small instructions as calls that are made once, on arrays that stay where they are.

What a small instruction takes is Python: views, types and loops of numpy are found anew for each
operation. Where its operands and results lie in the same places whenever it is performed, as in a
loop, that is done once: what only changes a view is a view from the start, what does not depend on
operands is computed now, and most of the rest is one loop of numpy that is told where to write. The
loops are those of `elementwise.py`, `folds.py`, `products.py` and `indexing.py`, so the bits are
those of `compute`, which performs whatever else there is.
"""

import functools
import math
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.values.kernels import elementwise
from ncc_runtime.execution.values.kernels.blockwise import observed_values
from ncc_runtime.execution.values.kernels.compute import fused_step, read_in_any_layout
from ncc_runtime.execution.values.kernels.folds import SUMS
from ncc_runtime.execution.values.kernels.indexing import SliceAtStarts
from ncc_runtime.execution.values.kernels.numbers import (
    HOST_FLOATS,
    canonical_nans,
    keeps_bits,
    may_be_nan,
)
from ncc_runtime.execution.values.kernels.products import matrices_of
from ncc_runtime.execution.values.kernels.regions import observed_in, single_opcode
from ncc_runtime.execution.values.kernels.work import Arrays, KernelCall
from ncc_runtime.neff.isa import OPCODES, Shape
from ncc_runtime.neff.program import CONSTANT, FusedInstr, Fusion, Program, Region
from ncc_runtime.neff.shared.dtypes import DType, scalar

Calls = list[Callable[[], object]]

_ELEMENTWISE = (Shape.UNARY, Shape.BINARY, Shape.TERNARY)
_VIEWS = frozenset({"broadcast", "reshape", "slice", "transpose"})


@attrs.frozen(eq=False)
class _Value:
    """An array that stays; `is_fixed`: its elements do too."""

    array: np.ndarray
    is_fixed: bool = False


def bound(
    program: Program,
    fusion: Fusion,
    ranks: np.ndarray,
    operands: Arrays,
    results: Arrays,
    is_apart: Sequence[bool],
) -> Calls:
    """What computes a fusion, or one operation as a fusion, to be called with errors ignored.

    `operands` and `results` are [ranks, *shape]; `is_apart` says of each result that it lies in no
    operand's memory.
    """
    binding = _Binding(program, ranks)
    values = {number: _Value(array) for number, array in enumerate(operands)}
    observed, any_layout = observed_values(program, fusion), read_in_any_layout(fusion)
    # results that may be written while operands are still read
    places = {
        number: place
        for number, place, apart in zip(fusion.results, results, is_apart, strict=True)
        if apart
    }
    for step in fusion.body:
        types = fusion.types(step.results)
        call = KernelCall(program, step.opcode, step.attributes, types, ranks)
        given = [values[number] for number in step.operands]
        is_observed = [number in observed for number in step.results]
        outs = [places.get(number) for number in step.results]
        found = binding.step(call, step, given, is_observed, outs)
        for number, value in zip(step.results, found, strict=True):
            if value.array is not places.get(number):
                places.pop(number, None)
            values[number] = value if number in any_layout else binding.contiguous(value)
    left = [
        (values[number].array, place)
        for number, place in zip(fusion.results, results, strict=True)
        if places.get(number) is not place
    ]
    if len(results) > 1 and not all(is_apart):
        # a result may be an operand as it is, which must outlive the writing of the others
        left = [(binding.saved(array, operands), place) for array, place in left]
    for array, place in left:
        binding.copy(array, place)
    return binding.calls


class _Binding:
    """Makes the calls of one instruction on some ranks."""

    def __init__(self, program: Program, ranks: np.ndarray) -> None:
        self._program = program
        self._ranks = ranks
        self.calls: Calls = []

    def copy(self, source: np.ndarray, target: np.ndarray) -> None:
        """Write what the source holds then into the target."""
        self.calls.append(functools.partial(np.copyto, target, source, casting="unsafe"))

    def saved(self, array: np.ndarray, operands: Arrays) -> np.ndarray:
        """The array, or a copy of it if it may lie in the memory of operands."""
        if not any(np.may_share_memory(array, operand) for operand in operands):
            return array
        place = np.empty_like(array, order="C")
        self.copy(array, place)
        return place

    def contiguous(self, value: _Value) -> _Value:
        """The value laid out row by row."""
        if value.array.flags.c_contiguous:
            return value
        if value.is_fixed:
            return _Value(np.ascontiguousarray(value.array), is_fixed=True)
        place = np.empty_like(value.array, order="C")
        self.copy(value.array, place)
        return _Value(place)

    def step(
        self,
        call: KernelCall,
        step: FusedInstr,
        operands: Sequence[_Value],
        is_observed: Sequence[bool],
        outs: Sequence[np.ndarray | None],
    ) -> list[_Value]:
        """The results of an operation, in `outs` where that is easy; NaNs canonical if observed."""
        arrays = [value.array for value in operands]
        if step.opcode == CONSTANT or all(value.is_fixed for value in operands):
            found = self._typed(call, fused_step(call, step, arrays))
            return [_Value(array, is_fixed=True) for array in found]
        if step.opcode in _VIEWS:
            (array,) = fused_step(call, step, arrays)
            if np.may_share_memory(array, arrays[0]):
                return [_Value(array)]
        elif OPCODES[step.opcode].shape in _ELEMENTWISE:
            shape = (len(self._ranks), *call.results[0].shape)
            # a bitcast may change the shape
            if all(array.shape == shape or array.ndim == 1 for array in arrays):
                kind = call.results[0].dtype
                attributes, observed = step.attributes, is_observed[0]
                return [
                    self.elementwise(
                        step.opcode, attributes, operands, kind, shape, observed, outs[0]
                    )
                ]
        elif step.opcode == "reduce":
            return self._reduce(call, operands)
        elif binder := _BINDERS.get(step.opcode):
            value = binder(self, call, arrays, outs[0])
            if value is not None:
                return [value]
        places = self._places(call, outs)

        def perform() -> None:
            for place, array in zip(places, fused_step(call, step, arrays), strict=True):
                place[...] = array

        self.calls.append(perform)
        return [_Value(place) for place in places]

    def _places(self, call: KernelCall, outs: Sequence[np.ndarray | None]) -> Arrays:
        return [
            np.empty((len(self._ranks), *kind.shape), kind.dtype.numpy) if out is None else out
            for kind, out in zip(call.results, outs, strict=True)
        ]

    def _typed(self, call: KernelCall, arrays: Arrays) -> Arrays:
        kinds = call.results
        return [a.astype(k.dtype.numpy, copy=False) for a, k in zip(arrays, kinds, strict=True)]

    # ---- elementwise

    def elementwise(
        self,
        opcode: str,
        attributes: elementwise.Attributes,
        operands: Sequence[_Value],
        dtype: DType,
        shape: tuple[int, ...],
        is_observed: bool,
        out: np.ndarray | None = None,
    ) -> _Value:
        """The result of an elementwise opcode, of a shape that operands are broadcast to."""
        arrays = [
            value.array.reshape(value.array.shape + (1,) * (len(shape) - value.array.ndim))
            for value in operands
        ]
        is_computed = not keeps_bits(opcode, arrays[0].dtype)
        if all(value.is_fixed for value in operands):
            array = elementwise.apply(opcode, arrays, dtype, attributes)
            array = canonical_nans(array) if is_computed and is_observed else array
            return _Value(np.broadcast_to(array, shape), is_fixed=True)
        loop = elementwise.loop_of(opcode, attributes, [a.dtype for a in arrays], dtype.numpy)
        if loop is not None and loop[1]:  # which needs contiguous rows
            arrays = [self.contiguous(_Value(array)).array for array in arrays]
            out = out if out is not None and out.flags.c_contiguous else None
        place = np.empty(shape, dtype.numpy) if out is None else out
        if loop is not None:
            self.calls.append(functools.partial(loop[0], *arrays, out=place))
        else:

            def perform() -> None:
                place[...] = elementwise.apply(opcode, arrays, dtype, attributes)

            self.calls.append(perform)
        if is_computed and is_observed:
            self._make_nans_canonical(place)
        return _Value(place)

    def _make_nans_canonical(self, array: np.ndarray) -> None:
        if not may_be_nan(array.dtype):
            return

        def perform() -> None:
            # the greatest of floats is a NaN if there is one
            if array.dtype not in HOST_FLOATS or np.isnan(largest(array, axis=None)):
                array[...] = canonical_nans(array)

        largest = np.maximum.reduce
        self.calls.append(perform)

    # ---- folds

    def _reduce(self, call: KernelCall, operands: Sequence[_Value]) -> list[_Value]:
        """As `folds.fold` does it."""
        region, dimensions = call.region(), call.integers("dimensions")
        count = len(operands) // 2
        arrays, initial = operands[:count], operands[count:]
        kept = [axis for axis in range(arrays[0].array.ndim) if axis - 1 not in dimensions]
        folded = [dimension + 1 for dimension in sorted(dimensions)]
        shape = tuple(arrays[0].array.shape[axis] for axis in kept)
        size = math.prod(arrays[0].array.shape[axis] for axis in folded)
        rows = []
        for value in arrays:
            turned = attrs.evolve(value, array=value.array.transpose(*kept, *folded))
            laid_out = self.contiguous(turned)
            rows.append(attrs.evolve(laid_out, array=laid_out.array.reshape(*shape, size)))
        trailing = [1] * (len(shape) - 1)
        start = [
            attrs.evolve(value, array=np.broadcast_to(value.array.reshape(-1, *trailing), shape))
            for value in initial
        ]
        if not size:
            return start
        opcode = single_opcode(region)
        if opcode in SUMS and rows[0].array.dtype in HOST_FLOATS:
            total = np.empty(shape, rows[0].array.dtype)
            self.calls.append(
                functools.partial(SUMS[opcode].reduce, rows[0].array, axis=-1, out=total)
            )
            return self._region(region, [*start, _Value(total)], shape)
        while (length := rows[0].array.shape[-1]) > 1:
            even = length - length % 2
            ends = [
                attrs.evolve(value, array=value.array[..., first:even:2])
                for first in (0, 1)
                for value in rows
            ]
            pairs = self._region(region, ends, (*shape, even // 2))
            rows = [
                pair if even == length else self._joined(pair, value, even)
                for pair, value in zip(pairs, rows, strict=True)
            ]
        last = [attrs.evolve(value, array=value.array[..., 0]) for value in rows]
        return self._region(region, [*start, *last], shape)

    def _joined(self, pair: _Value, value: _Value, even: int) -> _Value:
        """What pairs have become, and behind it what is left over."""
        rest = value.array[..., even:]
        half = pair.array.shape[-1]
        place = np.empty((*rest.shape[:-1], half + rest.shape[-1]), rest.dtype)
        self.copy(pair.array, place[..., :half])
        self.copy(rest, place[..., half:])
        return _Value(place)

    def _region(
        self, region: Region, arguments: Sequence[_Value], shape: tuple[int, ...]
    ) -> list[_Value]:
        """As `regions.evaluate` does it."""
        values, observed = list(arguments), observed_in(region)
        for step in region.body:
            if step.opcode == CONSTANT:
                assert step.constant is not None, "a constant of a region has a value"
                array = np.broadcast_to(scalar(step.constant, step.dtype), shape)
                values.append(_Value(array, is_fixed=True))
                continue
            operands = [values[number] for number in step.operands]
            is_observed = len(values) in observed
            values.append(
                self.elementwise(
                    step.opcode, step.attributes, operands, step.dtype, shape, is_observed
                )
            )
        return [values[number] for number in region.results]

    # ---- products and windows

    def _dot(self, call: KernelCall, arrays: Arrays, out: np.ndarray | None) -> _Value | None:
        """None where operands must be converted or copied first."""
        (place,) = self._places(call, [out])
        if place.dtype not in HOST_FLOATS or any(a.dtype != place.dtype for a in arrays):
            return None
        left, right = matrices_of(call, arrays)
        if not all(np.may_share_memory(*pair) for pair in zip((left, right), arrays, strict=True)):
            return None
        shape = (*left.shape[:-1], right.shape[-1])
        product = place.reshape(shape, copy=False)
        self.calls.append(functools.partial(np.matmul, left, right, out=product))
        self._make_nans_canonical(place)
        return _Value(place)

    def _slice(self, call: KernelCall, arrays: Arrays, out: np.ndarray | None) -> _Value | None:
        (place,) = self._places(call, [out])
        if not place.size:
            return None
        found = SliceAtStarts(arrays[0], arrays[1:], place.shape[1:], writeable=False)
        self.calls.append(functools.partial(found.read, place))
        return _Value(place)

    def _update(self, call: KernelCall, arrays: Arrays, out: np.ndarray | None) -> _Value | None:
        (place,) = self._places(call, [out])
        array, update, *starts = arrays
        if not update.size:
            return None
        self.copy(array, place)
        found = SliceAtStarts(place, starts, update.shape[1:], writeable=True)
        self.calls.append(functools.partial(found.write, update))
        return _Value(place)


_BINDERS = {
    "dot": _Binding._dot,
    "dynamic-slice": _Binding._slice,
    "dynamic-update-slice": _Binding._update,
}
