"""Regions of two scalars, and `reduce`, which folds with one in the order of the elements."""

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np

from ncc_compiler.ir.graph import Callee, Computation, Module
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.reference.elementwise import ELEMENTWISE
from ncc_compiler.reference.step import Step, Value, leaves

Arrays: TypeAlias = tuple[np.ndarray, ...]
Combine: TypeAlias = Callable[[Arrays, Arrays], Arrays]
"""Accumulators and values, equally many arrays of one shape, to new accumulators."""

_TRANSPARENT = {"parameter", "constant", "tuple", "get-tuple-element"}


def region_on_arrays(step: Step, rank: int, key: str = "to_apply") -> Callable[[Arrays], Arrays]:
    """The region of a step, applied to arrays of one shape element by element.

    Where all its ops are elementwise, one evaluation on whole arrays gives all elements at once.
    """
    region = step.callee(key)

    def once(arguments: Arrays) -> Arrays:
        (result,) = step.evaluate(region, (rank,), [arguments])
        return leaves(result)

    def on_whole_arrays(arguments: Arrays) -> Arrays:
        shape = arguments[-1].shape
        return tuple(np.broadcast_to(array, shape) for array in once(arguments))

    def element_by_element(arguments: Arrays) -> Arrays:
        shape = arguments[-1].shape
        results = tuple(np.empty(shape, dtype) for dtype in _result_dtypes(region))
        for index in np.ndindex(shape):
            scalars = tuple(np.asarray(array[index]) for array in arguments)
            for result, scalar in zip(results, once(scalars), strict=True):
                result[index] = scalar
        return results

    return on_whole_arrays if _is_elementwise(region, step.module) else element_by_element


def _result_dtypes(region: Computation) -> list[np.dtype]:
    kind = region.nodes[region.root].type
    kinds = kind.elements if isinstance(kind, TupleType) else (kind,)
    return [one.dtype.numpy for one in kinds if isinstance(one, ArrayType)]


def combine_of(step: Step, rank: int) -> Combine:
    """The region of a step as a way to join accumulators and values."""
    apply = region_on_arrays(step, rank)
    return lambda accumulators, values: apply((*accumulators, *values))


def _is_elementwise(region: Computation, module: Module) -> bool:
    def allows(op: str, callee: object) -> bool:
        if op == "call" and isinstance(callee, Callee):
            return _is_elementwise(module.computations[callee.name], module)
        return op in _TRANSPARENT or op in ELEMENTWISE

    return all(allows(node.op, node.attributes.get("to_apply")) for node in region.nodes)


def map_(step: Step) -> list[Value]:
    """The region applied to the elements that stand in one place."""
    return [
        np.array(region_on_arrays(step, rank)(step.arrays(position))[0])
        for position, rank in enumerate(step.ranks)
    ]


def reduce(step: Step) -> list[Value]:
    """Fold the listed dimensions of several arrays at once, from their initial values."""
    return [_reduce_on(step, position) for position in range(len(step.ranks))]


def _reduce_on(step: Step, position: int) -> Value:
    operands = step.arrays(position)
    arrays, initial = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    folded = sorted(step.node.integers("dimensions"))
    kept = [k for k in range(arrays[0].ndim) if k not in folded]
    shape = tuple(arrays[0].shape[k] for k in kept)
    count = math.prod(arrays[0].shape[k] for k in folded)
    rows = [array.transpose(kept + folded).reshape(*shape, count) for array in arrays]
    combine = combine_of(step, step.ranks[position])
    accumulators = tuple(np.broadcast_to(value, shape) for value in initial)
    for k in range(count):
        accumulators = combine(accumulators, tuple(row[..., k] for row in rows))
    results = tuple(np.array(array) for array in accumulators)
    return results if isinstance(step.node.type, TupleType) else results[0]
