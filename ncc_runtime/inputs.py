"""Inputs of a run: given arrays checked and spread over ranks, seeded values for the rest."""

import math
import operator
import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

from ncc_runtime import random_values
from ncc_runtime.array_files import StoredArray, shown
from ncc_runtime.errors import InputError
from ncc_runtime.neff.isa import WORK
from ncc_runtime.neff.program import Program, Sharding, Tensor
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.stages import stages_of
from ncc_runtime.neff.table import NONE
from ncc_runtime.ranked_array import RankedArray
from ncc_runtime.threads import Threads


def check_values(program: Program) -> None:
    """Refuse to compute with a program that does not say all that it computes.

    Its text left out the values of constants, or of some work it has only the sizes.
    """
    for stage in stages_of(program):
        for table in stage.program.queues.values():
            if WORK in table.opcode_names:
                first = next(instr for instr in table if instr.opcode == WORK)
                is_named = first.origin != NONE
                name = stage.program.origins[first.origin].node if is_named else WORK
                raise InputError(
                    f"{stage.program.name} has work of which only sizes are known, the first is "
                    f"{name}: it has times and no values; run it with --no-values"
                )
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
class WordValues:
    """Values of some words of a parameter, such as counts, which may not be any number."""

    row: np.ndarray  # (n,) int64, the array that some of its ranks have, as `rows_of` numbers them
    word: np.ndarray  # (n,) int64, of its elements in order
    value: np.ndarray  # (n,) int64


Draw: TypeAlias = Callable[[Mapping[int, np.ndarray], int], Mapping[int, WordValues]]
"""Words of tables of counts by parameter, from the given arrays and the seed."""


Array: TypeAlias = np.ndarray | StoredArray | RankedArray
"""What a parameter may be given: an array of a file is loaded when it is used."""

Given: TypeAlias = Mapping[int, Array]
"""Arrays by the number of their parameter."""


def numbered(program: Program, inputs: Sequence[Any] | Mapping[Any, Any]) -> Given:
    """The arrays by the number of their parameter; InputError where a name is of none, or of two.

    A key is a number, `arg0` or numpy's `arr_0`, or the parameter's own name, `params['w1']`. What
    a run calls `out0` is taken by its number, too.
    """
    if not isinstance(inputs, Mapping):
        inputs = dict(enumerate(inputs))
    named: dict[str, list[int]] = {}
    for position, parameter in enumerate(program.parameters):
        named.setdefault(parameter.name, []).append(position)
    given: dict[int, Array] = {}
    keys: dict[int, object] = {}
    extra: list[str] = []
    for key, value in inputs.items():
        array = value if isinstance(value, StoredArray | RankedArray) else np.asarray(value)
        number = _number_of(key, named)
        if number is None or not 0 <= number < len(program.inputs):
            word = f"arg{number}" if isinstance(key, int) else str(key)
            extra.append(f"{shown(word)} {_type_text(array)}")
            continue
        if number in given:
            first, second = shown(str(keys[number])), shown(str(key))
            raise InputError(f"arg{number} is there twice, as {first} and as {second}")
        given[number], keys[number] = array, key
    if extra:
        raise InputError(_superfluous(program, given, extra, inputs))
    return given


_BY_NUMBER = re.compile(r"(?:arg|arr_)(\d{1,9})", re.ASCII)
_OUTPUT = re.compile(r"out(\d{1,9})", re.ASCII)


def _number_of(key: object, named: Mapping[str, Sequence[int]]) -> int | None:
    """The number of the parameter that a key names; None if it names none."""
    if not isinstance(key, str):
        return key if isinstance(key, int) else None
    match = _BY_NUMBER.fullmatch(key)
    numbers = named.get(key, ()) if key else ()
    if match is not None and numbers and list(numbers) != [int(match[1])]:
        raise InputError(
            f"{shown(key)} is the name of parameter {numbers[0]} and the number of another; give "
            "arrays by number, as numpy.savez(file, a, b) names them: arr_0, arr_1, …"
        )
    if match is not None:
        return int(match[1])
    if not numbers and (match := _OUTPUT.fullmatch(key)):  # of a run whose outputs these are
        return int(match[1])
    if len(numbers) > 1:
        both = " and ".join(f"arg{number}" for number in numbers[:2])
        raise InputError(f"{shown(key)} is the name of {both}; give them by number")
    return numbers[0] if numbers else None


def _type_text(array: Array) -> str:
    return f"{array.dtype}{list(array.shape)}"


def parameter_text(program: Program, number: int) -> str:
    """A parameter as messages name it: `arg0 params['w1'] f32[64,32]`."""
    tensor, name = program.tensors[program.inputs[number]], program.parameter(number).name
    shown_name = f" {shown(name)[1:-1]}" if name and name != f"arg{number}" else ""
    return f"arg{number}{shown_name} {tensor.type_text}"


_NAMED = 8  # parameters that a message names

_JAX_DROPS = "jax.jit drops arguments that the function does not use (keep_unused=True keeps them)"


def _listed(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return f"{', '.join(texts[:_NAMED])}{more}"


def _superfluous(
    program: Program, given: Given, extra: Sequence[str], inputs: Mapping[Any, Any]
) -> str:
    """The message about arrays that no parameter takes: probably extra, and which are missing."""
    count = len(program.inputs)
    known = _listed([parameter_text(program, number) for number in range(count)])
    fact = f"no parameter takes {_listed(extra)}; the program's {count} parameters are {known}"
    missing = [parameter_text(program, number) for number in range(count) if number not in given]
    if missing:
        fact += f"; {_listed(missing)} {_is_are(missing)} not given"
        # only whoever gives more arrays than there are parameters may have one that JAX dropped
        return f"{fact}; {_JAX_DROPS}" if len(inputs) > count else fact
    keys = list(map(str, inputs))
    if any(keys == [f"{word}{k}" for k in range(len(keys))] for word in ("", "arg", "arr_")):
        arrays = [
            array if isinstance(array, StoredArray | RankedArray) else np.asarray(array)
            for array in inputs.values()
        ]
        left_out = _unique_omission(
            count, len(arrays), lambda number, other: _fits(program, number, arrays[other])
        )
        if left_out:
            words = [f"arg{k} {_type_text(arrays[k])}" for k in left_out]
            fact += f"; the others fit in order if {_listed(words)} {_is_are(words)} left out"
    return f"{fact}; {_JAX_DROPS}"


def _is_are(words: Sequence[str]) -> str:
    return "is" if len(words) == 1 else "are"


def _unique_omission(few: int, many: int, fits: Callable[[int, int], bool]) -> list[int]:
    """Which of `many` to leave out so that `few` fit the rest in order; empty unless it is unique.

    Greedy from the front gives the earliest match of each, from the back the latest; the omission
    is unique where both leave out the same.
    """
    from_front, at = [], 0
    for other in range(many):
        if at < few and fits(at, other):
            at += 1
        else:
            from_front.append(other)
    from_back, at = [], few - 1
    for other in reversed(range(many)):
        if at >= 0 and fits(at, other):
            at -= 1
        else:
            from_back.append(other)
    is_unique = len(from_front) == many - few and from_front == from_back[::-1]
    return from_front if is_unique else []


def drawn_words(
    program: Program, given: Given, seed: int | None, draw: Draw | None
) -> Mapping[int, WordValues]:
    """What `draw` makes of given inputs and a seed, by input; nothing without the two."""
    if seed is None or draw is None:
        return {}
    known = {
        number: checked_input(program, number, array).whole() for number, array in given.items()
    }
    return draw(known, seed)


def bound_inputs(
    program: Program,
    given: Given,
    seed: int | None,
    draw: Draw | None = None,
    threads: int = 1,
) -> Iterator[RankedArray]:
    """Every parameter as [ranks, *shape] of its dtype, in order; missing ones from the seed.

    Of joined programs they are numbered one program after the other; ranks are those that run it.

    Without a seed none may be missing. `checked_input` says what an array may be. All shapes and
    types are checked now, and arrays loaded when they are asked for. Raises InputError.
    """
    if seed is None:
        check_complete(program, given)
    accepted = {number: check_type(program, number, array) for number, array in given.items()}
    team = Threads(threads)

    def arrays() -> Iterator[RankedArray]:
        drawn = drawn_words(program, given, seed, draw)
        for number in range(len(program.inputs)):
            if number in given:
                yield _as_parameter(program, number, given[number], accepted[number])
                continue
            assert seed is not None, "without a seed no input is missing"
            array = seeded(program, number, seed, (number,), team)
            if number in drawn:
                words = drawn[number]
                flat = array.array.reshape(len(array.array), -1)
                flat[words.row, words.word] = words.value.astype(array.dtype)
            yield array

    return arrays()


def rows_of(program: Program, number: int) -> np.ndarray:
    """Which array of a parameter each of its ranks has, (ranks,) int64, as far as shardings say.

    Ranks that have the same part of one array have the same number; so do all ranks if each has the
    whole. Of an array of which nothing is known each rank has its own.
    """
    accepted = accepted_arrays(program, number)
    if accepted.sharding is not None:
        return np.array(accepted.sharding.parts, np.int64)[accepted.ranks]
    is_whole = program.parameter(number).shape is not None
    return np.arange(len(accepted.ranks)) * (not is_whole)


def seeded(
    program: Program, number: int, seed: int, key: Sequence[int], threads: Threads
) -> RankedArray:
    """Random values for a parameter; `key` says which of those of the seed.

    Ranks that have the same part of one array have the same values, as in a real run: the whole
    array is drawn, and cut.
    """
    accepted, rows = accepted_arrays(program, number), rows_of(program, number)
    dtype, (_, common, *unsharded) = accepted.tensor.dtype, accepted.shapes
    if unsharded:
        whole = random_values.drawn(dtype, unsharded[0], seed, key, threads)
        return checked_input(program, number, whole)
    shape = (int(rows.max(initial=-1)) + 1, *common)
    return RankedArray(random_values.drawn(dtype, shape, seed, key, threads), rows)


@attrs.frozen(eq=False)
class ExpectedInput:
    """What `bound_inputs` will give for a parameter, and what that takes of the host's memory."""

    row_of: np.ndarray  # (ranks,) as in RankedArray
    is_contiguous: bool  # its rows have no gaps
    held_bytes: int  # of an array that is made for it; 0 for the caller's own
    passing_bytes: int  # beside it, while it is made


def kind_of_inputs(given: Given) -> Hashable:
    """Equal where `expected_input` is, for all parameters."""
    return tuple(
        (
            number,
            type(array),
            array.shape,
            array.dtype,
            array.strides if isinstance(array, np.ndarray) else None,
            array.row_of.tobytes() if isinstance(array, RankedArray) else None,
        )
        for number, array in given.items()
    )


def expected_input(program: Program, number: int, given: Given) -> ExpectedInput:
    """Without loading or drawing it."""
    accepted, rows = accepted_arrays(program, number), rows_of(program, number)
    size, own = accepted.tensor.size_bytes, np.arange(len(accepted.ranks))
    array = given.get(number)
    if array is None or (accepted.sharding is not None and array.shape == accepted.whole):
        held = (int(rows.max(initial=-1)) + 1) * size
        if accepted.sharding is None:
            return ExpectedInput(rows, True, held, 0)
        return ExpectedInput(rows, True, math.prod(accepted.sharding.tiles) * size, 2 * held)
    is_common = array.shape == accepted.tensor.shape
    if isinstance(array, RankedArray):
        ranked = array
    elif is_common:
        ranked = RankedArray(np.empty((1, 0)), np.zeros(len(own), np.int64))
    else:
        ranked = RankedArray(np.empty((len(own), 0)), own)
    is_ready = isinstance(array, np.ndarray | RankedArray) and (
        array.dtype == accepted.tensor.dtype.numpy
    )
    if isinstance(array, np.ndarray) and not is_common:
        ranked = RankedArray.of_each(array)
    if is_ready:
        is_contiguous = is_common or ranked.memory() is not None
        return ExpectedInput(ranked.row_of, is_contiguous, 0, 0)
    stored = math.prod(array.shape) * array.dtype.itemsize
    return ExpectedInput(ranked.row_of, True, len(ranked.array) * size, stored)


def check_complete(program: Program, given: Given) -> None:
    """InputError if an input is missing."""
    count = len(program.inputs)
    missing = [number for number in range(count) if number not in given]
    if not missing:
        return
    words = [parameter_text(program, number) for number in missing]
    fact = f"missing inputs: {_listed(words)}; give them, or a seed that fills what is missing"
    if list(given) == [*range(len(given))] and given:  # perhaps one in the middle was forgotten
        skipped = _unique_omission(
            len(given), count, lambda position, number: _fits(program, number, given[position])
        )
        if skipped and skipped != missing:
            texts = [parameter_text(program, number) for number in skipped]
            fact += f"; those given fit in order if {_listed(texts)} {_is_are(texts)} missing"
    raise InputError(fact)


@attrs.frozen(eq=False)
class AcceptedArrays:
    """The arrays that a parameter accepts."""

    tensor: Tensor
    ranks: np.ndarray  # that have it
    sharding: Sharding | None
    whole: tuple[int, ...] | None  # its shape, of what is sharded

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """One array per rank, one for all ranks, and the unsharded array, if it is sharded.

        The shapes differ: the first has one more dimension, the others differ in size.
        """
        shape = self.tensor.shape
        per_rank = (len(self.ranks), *shape)
        return (per_rank, shape) if self.whole is None else (per_rank, shape, self.whole)


def accepted_arrays(program: Program, number: int) -> AcceptedArrays:
    """Those that a parameter accepts."""
    before = 0
    for stage in stages_of(program):
        before += len(stage.program.inputs)
        if number < before:
            break
    tensor, info = program.inputs[number], program.parameter(number)
    is_whole = info.sharding is None
    return AcceptedArrays(
        program.tensors[tensor],
        stage.ranks,
        None if info.sharding is None else program.shardings[info.sharding],
        None if is_whole else program.whole_shape(info, tensor),
    )


def _fits(program: Program, number: int, array: Array) -> bool:
    accepted = accepted_arrays(program, number)
    return array.shape in accepted.shapes and _converts(array.dtype, accepted.tensor.dtype)


def check_type(program: Program, number: int, array: Array) -> AcceptedArrays:
    """Refuse an array whose shape or dtype the parameter does not take; it is not loaded.

    Returns what it takes.
    """
    accepted = accepted_arrays(program, number)
    if array.shape not in accepted.shapes:
        per_rank, common, *unsharded = map(list, accepted.shapes)
        cut = f", or {unsharded[0]} for the whole, which its sharding cuts" if unsharded else ""
        raise InputError(
            f"{_called(program, number)} has shape {list(array.shape)}; the program takes "
            f"{per_rank}, or {common} for the same value on every rank{cut}"
        )
    dtype = accepted.tensor.dtype
    if not _converts(array.dtype, dtype):
        raw = ", as numpy stores what it lacks (bfloat16, fp8, int4)"
        raise InputError(
            f"{_called(program, number)} is {array.dtype}{raw * (array.dtype.kind == 'V')}; "
            f"the program takes {dtype.value}"
        )
    return accepted


def _called(program: Program, number: int) -> str:
    return parameter_text(program, number).rpartition(" ")[0]


def checked_input(program: Program, number: int, array: Array) -> RankedArray:
    """An array as [ranks, *shape] of the dtype of its parameter; raises InputError.

    It may hold every rank's own, one for all ranks, or the whole, which the parameter's sharding
    cuts. Floats wider than the parameter are rounded to it. What numpy stores of a type that it
    lacks, bytes of that size, is taken as that type, and bytes as narrow integers if they fit. Any
    other dtype must match.
    """
    return _as_parameter(program, number, array, check_type(program, number, array))


def _as_parameter(
    program: Program, number: int, array: Array, accepted: AcceptedArrays
) -> RankedArray:
    """The same of an array whose shape and dtype the parameter takes."""
    dtype, ranks = accepted.tensor.dtype, len(accepted.ranks)

    def typed(values: np.ndarray) -> np.ndarray:
        # first, since the name that messages give takes longer to make than all else
        if values.dtype == dtype.numpy:
            return values
        return as_dtype(values, dtype, _called(program, number))

    if isinstance(array, RankedArray):
        return RankedArray(typed(array.array), array.row_of)
    values = typed(np.asarray(array))
    if accepted.sharding is not None and values.shape == accepted.shapes[-1]:
        tiles = _tiles(values, accepted.sharding, accepted.tensor.shape)
        return RankedArray(tiles, np.array(accepted.sharding.parts)[accepted.ranks])
    if values.shape == accepted.tensor.shape:
        return RankedArray.same(values, ranks)
    return RankedArray.of_each(values)


def _tiles(array: np.ndarray, sharding: Sharding, shape: tuple[int, ...]) -> np.ndarray:
    """[tiles, *shape], in row-major order of the tiles; what is missing in the last ones is 0."""
    rank = array.ndim
    sizes = list(zip(sharding.tiles, shape, strict=True))
    missing = [tiles * part - size for (tiles, part), size in zip(sizes, array.shape, strict=True)]
    if any(missing):
        padded = np.zeros([tiles * part for tiles, part in sizes], array.dtype)
        padded[tuple(map(slice, array.shape))] = array
        array = padded
    # each dimension as (tile, place in the tile); then the tile indices in front
    split = array.reshape([extent for pair in sizes for extent in pair])
    ordered = split.transpose([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)])
    return ordered.reshape(math.prod(sharding.tiles), *shape)


def uncut(
    array: RankedArray, sharding: Sharding | None, whole: tuple[int, ...], ranks: np.ndarray
) -> np.ndarray:
    """The whole array of [ranks, *shape], of the lowest rank that has each part.

    A view of what that rank has, if all of it is there and no other rank shares it.
    """
    if sharding is None:
        return array.of(0) if array.is_each else array.of(0).copy()
    parts = np.array(sharding.parts)[ranks]
    owners = [int(np.flatnonzero(parts == tile)[0]) for tile in range(math.prod(sharding.tiles))]
    grid = array.array[array.row_of[owners]].reshape(*sharding.tiles, *array.shape[1:])
    rank = len(whole)
    # tile index and place in the tile, of each dimension, next to one another
    ordered = grid.transpose([axis for k in range(rank) for axis in (k, rank + k)])
    padded = ordered.reshape(list(map(operator.mul, sharding.tiles, array.shape[1:])))
    return padded[tuple(map(slice, whole))]


def _is_raw(stored: np.dtype, dtype: DType) -> bool:
    """Whether an array holds the bytes of a type that numpy lacks."""
    target = dtype.numpy
    is_bytes = stored.kind == "V" and stored.names is None
    return is_bytes and stored.itemsize == target.itemsize and target.isbuiltin != 1


def _converts(stored: np.dtype, dtype: DType) -> bool:
    """Whether `as_dtype` makes the type of a stored one."""
    target = dtype.numpy
    if stored.newbyteorder("=") == target or _is_raw(stored, dtype):
        return True
    if dtype.is_integer and dtype.bits < 8:
        return stored in (np.int8, np.uint8)
    is_float = stored.kind == "f" or "float" in stored.name
    return dtype.is_float and is_float and stored.itemsize >= target.itemsize


def as_dtype(array: np.ndarray, dtype: DType, name: str) -> np.ndarray:
    """An array as one of a parameter's type; InputError for integers that do not fit."""
    target = dtype.numpy
    if array.dtype == target:
        return array
    is_narrow = dtype.is_integer and dtype.bits < 8
    least, most = (-(2 ** (dtype.bits - 1)) if dtype.is_signed else 0), 2**dtype.bits - 1
    if _is_raw(array.dtype, dtype):
        raw = np.ascontiguousarray(array).view(f"u{target.itemsize}").reshape(array.shape)
        if is_narrow:  # one element a byte, whose upper bits are zero
            _check_range(raw, 0, most, dtype, name)
        return raw.view(target)
    if is_narrow:
        _check_range(array, least, most + least, dtype, name)
    with np.errstate(over="ignore"):
        return array.astype(target)


def _check_range(array: np.ndarray, least: int, most: int, dtype: DType, name: str) -> None:
    outside = (array < least) | (array > most)
    if outside.any():
        raise InputError(
            f"{name} holds {array[outside][0]}; {dtype.value} goes from {least} to {most}"
        )
