"""Inputs of a run: given arrays checked and spread over ranks, seeded values for the rest."""

from collections.abc import Callable, Iterator, Mapping
from typing import TypeAlias

import attrs
import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.program import Program, Tensor
from ncc_runtime.neff.stages import stages_of


def check_constants(program: Program) -> None:
    """Refuse to compute with a program whose text left out the values of constants."""
    elided = program.elided()
    if not elided:
        return
    count = "a constant has" if len(elided) == 1 else f"{len(elided)} constants have"
    place = f" ({elided[0].place})" if elided[0].place else ""
    raise InputError(
        f"{count} no value, the model's text says {{...}}, the first is {elided[0].node}{place}; "
        "dump the model with --xla_dump_large_constants (print it with print_large_constants=True) "
        "and compile that, or run with --no-values for the time only"
    )


@attrs.frozen(eq=False)
class Words:
    """What some words of a parameter hold, where not any number will do."""

    rank: np.ndarray  # (n,) int64, counted among the ranks that have it
    word: np.ndarray  # (n,) int64, of its elements in order
    value: np.ndarray  # (n,) int64


Draw: TypeAlias = Callable[[Mapping[int, np.ndarray], int], Mapping[int, Words]]
"""By parameter, words that are not just any numbers, from what is given and the seed."""


def bound_inputs(
    program: Program, given: Mapping[int, np.ndarray], seed: int | None, draw: Draw | None = None
) -> Iterator[np.ndarray]:
    """Every parameter as [ranks, *shape] of its dtype, in order; missing ones from the seed.

    Of joined programs they are numbered one program after the other; ranks are those that run it.

    Without a seed none may be missing. An array of the parameter's own shape is the same on every
    rank. Floats wider than the parameter are rounded to it; any other dtype must match. Raises
    InputError.
    """
    for number in given:
        if not (isinstance(number, int) and 0 <= number < len(program.inputs)):
            raise InputError(
                f"input {number!r} is given; the program's {len(program.inputs)} parameters are "
                "numbered from 0"
            )
    if seed is None:
        _check_complete(program, given)
    counts = [len(stage.ranks) for stage in stages_of(program) for _ in stage.program.inputs]
    checked = {
        number: _bound(program, number, counts[number], np.asarray(one))
        for number, one in given.items()
    }
    generator = np.random.default_rng(seed)
    words = {} if seed is None or draw is None else draw(checked, seed)
    return (
        checked[number]
        if number in checked
        else _with_words(
            seeded(program.tensors[tensor], counts[number], generator), words.get(number)
        )
        for number, tensor in enumerate(program.inputs)
    )


def _with_words(array: np.ndarray, words: Words | None) -> np.ndarray:
    """The array, with what some of its words hold."""
    if words is not None:
        flat = array.reshape(len(array), -1)
        flat[words.rank, words.word] = words.value.astype(array.dtype)
    return array


_NAMED = 8  # missing parameters that a message names


def _check_complete(program: Program, given: Mapping[int, np.ndarray]) -> None:
    missing = [
        f"arg{number} {program.tensors[tensor].dtype.value}"
        f"[{','.join(map(str, program.tensors[tensor].shape))}]"
        for number, tensor in enumerate(program.inputs)
        if number not in given
    ]
    if missing:
        more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
        raise InputError(
            f"missing inputs: {', '.join(missing[:_NAMED])}{more}; give them, or a seed that fills "
            "what is missing"
        )


def _bound(program: Program, number: int, ranks: int, array: np.ndarray) -> np.ndarray:
    tensor = program.tensors[program.inputs[number]]
    wanted = (ranks, *tensor.shape)
    if array.shape not in (wanted, tensor.shape):
        raise InputError(
            f"arg{number} has shape {list(array.shape)}; the program takes {list(wanted)}, or "
            f"{list(tensor.shape)} for the same value on every rank"
        )
    return np.broadcast_to(_as_dtype(array, tensor.dtype, number), wanted)


def _as_dtype(array: np.ndarray, dtype: DType, number: int) -> np.ndarray:
    wanted = dtype.numpy
    if array.dtype == wanted:
        return array
    is_float = array.dtype.kind == "f" or "float" in array.dtype.name
    if dtype.is_float and is_float and array.dtype.itemsize >= wanted.itemsize:
        with np.errstate(over="ignore"):
            return array.astype(wanted)
    if dtype.is_integer and dtype.bits < 8 and array.dtype == np.int8:
        return array.astype(wanted)
    raise InputError(f"arg{number} is {array.dtype}; the program takes {dtype.value}")


def seeded(tensor: Tensor, ranks: int, generator: np.random.Generator) -> np.ndarray:
    """Values for a parameter nobody gave: normal floats, small integers, fair booleans."""
    shape = (ranks, *tensor.shape)
    dtype = tensor.dtype
    if dtype is DType.PRED:
        return generator.integers(0, 2, shape, np.uint8).astype(bool)
    if dtype.is_integer:
        limit = min(8, 2 ** max(1, dtype.bits - 1))  # of one bit: 1, or the -1 that it wraps to
        return generator.integers(0, limit, shape, np.uint8).astype(dtype.numpy)
    width = np.float32 if dtype.size_bytes <= 4 else np.float64
    values = generator.standard_normal(shape, width)
    if dtype.is_complex:
        return (values + 1j * generator.standard_normal(shape, width)).astype(dtype.numpy)
    return values.astype(dtype.numpy, copy=False)
