"""Arguments and results of a run as a function has them: trees of whole arrays."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs
import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.inputs import uncut
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.stages import stages_of
from ncc_runtime.options import RunOptions
from ncc_runtime.ranked_array import RankedArray


class CallSignature(Protocol):
    """How the function that a program was takes and gives arrays; a front end provides it.

    Its text says what the function takes.
    """

    def flatten(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any] | None:
        """The arrays that the program takes, in order; None if these are other arguments."""
        ...

    def unflatten(self, results: Sequence[np.ndarray]) -> Any:
        """What the function returns, of whole arrays in the order of the program's outputs."""
        ...


def arguments(
    signature: CallSignature | None, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Sequence[Any] | Mapping[Any, Any]:
    """Arrays in the order of the program's inputs, or by name.

    The arguments are those of the function, if there is one; or one list or mapping of arrays; or
    the arrays. Raises InputError.
    """
    if signature is not None:
        arrays = signature.flatten(args, kwargs)
        if arrays is not None:
            return arrays
    is_collection = len(args) == 1 and isinstance(args[0], list | tuple | Mapping)
    if kwargs or (signature is not None and args and not is_collection):
        options = [field.name for field in attrs.fields(RunOptions)]
        like = [match for name in kwargs for match in difflib.get_close_matches(name, options, 1)]
        advice = f"; did you mean the option {' and '.join(like)}?" if like else ""
        if signature is None:
            names = ", ".join(kwargs)
            raise InputError(f"no argument or option of a run is called {names}{advice}")
        given = [_kind(argument) for argument in args]
        given += [f"{name}={_kind(argument)}" for name, argument in kwargs.items()]
        raise InputError(
            f"the function takes {signature}, and ({', '.join(given)}) were given{advice}"
        )
    return args[0] if is_collection else args


def _kind(argument: Any) -> str:
    """What an argument is, for a message: `float32[8,8]`, `dict`, `3`."""
    if hasattr(argument, "shape") and hasattr(argument, "dtype"):
        return f"{argument.dtype}[{','.join(map(str, argument.shape))}]"
    is_number = isinstance(argument, bool | int | float | None)
    return repr(argument)[:20] if is_number else type(argument).__name__


def result(
    signature: CallSignature | None, program: Program, outputs: Sequence[RankedArray]
) -> Any:
    """What the function returns; without one the arrays by name.

    Where it is known how an array lies on the ranks it is whole: each part is that of the lowest
    rank that has it. Otherwise it is [ranks, *shape].
    """
    arrays, number = [], 0
    for stage in stages_of(program):
        for tensor in stage.program.outputs:
            info = program.result(number)
            whole = program.whole_shape(info, tensor)
            if whole is None:
                arrays.append(np.array(outputs[number].whole()))
            else:
                sharding = None if info.sharding is None else program.shardings[info.sharding]
                arrays.append(uncut(outputs[number], sharding, whole, stage.ranks))
            number += 1
    if signature is not None:
        return signature.unflatten(arrays)
    numbers = [f"out{k}" for k in range(len(arrays))]
    names = [program.result(k).name or number for k, number in enumerate(numbers)]
    is_unique = len(set(names)) == len(names)
    return dict(zip(names if is_unique else numbers, arrays, strict=True))
