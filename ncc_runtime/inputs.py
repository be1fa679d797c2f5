"""Inputs of a run: given arrays checked and spread over ranks, seeded values for the rest."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import attrs
import numpy as np

from ncc_runtime.array_files import StoredArray, shown
from ncc_runtime.errors import InputError
from ncc_runtime.neff.program import Program, Sharding, Tensor
from ncc_runtime.neff.shared.dtypes import DType
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
class WordValues:
    """What some words of a parameter hold, where not any number will do."""

    rank: np.ndarray  # (n,) int64, counted among the ranks that have it
    word: np.ndarray  # (n,) int64, of its elements in order
    value: np.ndarray  # (n,) int64


Draw: TypeAlias = Callable[[Mapping[int, np.ndarray], int], Mapping[int, WordValues]]
"""By parameter, words that are not just any numbers, from what is given and the seed."""


Given: TypeAlias = Mapping[int, np.ndarray | StoredArray]
"""Arrays by the number of their parameter, those of a file not loaded yet."""


def numbered(program: Program, inputs: Sequence[Any] | Mapping[Any, Any]) -> Given:
    """The arrays by the number of their parameter; InputError where a name is of none, or of two.

    A key is a number, `arg0` or numpy's `arr_0`, or the parameter's own name, `params['w1']`.
    """
    if not isinstance(inputs, Mapping):
        inputs = dict(enumerate(inputs))
    named: dict[str, list[int]] = {}
    for number, parameter in enumerate(program.parameters):
        named.setdefault(parameter.name, []).append(number)
    found: dict[int, np.ndarray | StoredArray] = {}
    keys: dict[int, object] = {}
    extra: list[str] = []
    for key, array in inputs.items():
        one = array if isinstance(array, StoredArray) else np.asarray(array)
        meant = _number_of(key, named)
        if meant is None or not 0 <= meant < len(program.inputs):
            word = f"arg{meant}" if isinstance(key, int) else str(key)
            extra.append(f"{shown(word)} {_type_text(one)}")
            continue
        if meant in found:
            raise InputError(
                f"arg{meant} is there twice, as {shown(str(keys[meant]))} and as {shown(str(key))}"
            )
        found[meant], keys[meant] = one, key
    if extra:
        raise InputError(_superfluous(program, list(map(str, inputs)), found, extra, inputs))
    return found


_BY_NUMBER = re.compile(r"(?:arg|arr_)(\d{1,9})", re.ASCII)


def _number_of(key: object, named: Mapping[str, Sequence[int]]) -> int | None:
    """The number of the parameter that a key means, if it means one."""
    if not isinstance(key, str):
        return key if isinstance(key, int) else None
    match = _BY_NUMBER.fullmatch(key)
    own = named.get(key, ()) if key else ()
    if match is not None and own and list(own) != [int(match[1])]:
        raise InputError(
            f"{shown(key)} is the name of parameter {own[0]} and the number of another; give "
            "arrays by number, as numpy.savez(file, a, b) names them: arr_0, arr_1, …"
        )
    if match is not None:
        return int(match[1])
    if len(own) > 1:
        both = " and ".join(f"arg{number}" for number in own[:2])
        raise InputError(f"{shown(key)} is the name of {both}; give them by number")
    return own[0] if own else None


def _type_text(array: np.ndarray | StoredArray) -> str:
    return f"{array.dtype}{list(array.shape)}"


def parameter_text(program: Program, number: int) -> str:
    """A parameter as messages name it: `arg0 params['w1'] f32[64,32]`."""
    tensor, name = program.tensors[program.inputs[number]], program.parameter(number).name
    shown_name = f" {shown(name)[1:-1]}" if name and name != f"arg{number}" else ""
    return f"arg{number}{shown_name} {tensor.type_text}"


_NAMED = 8  # parameters that a message names

_JAX_DROPS = "jax.jit drops arguments that the function does not use (keep_unused=True keeps them)"


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - _NAMED} more" if len(texts) > _NAMED else ""
    return f"{', '.join(texts[:_NAMED])}{more}"


def _superfluous(
    program: Program, keys: list[str], found: Given, extra: Sequence[str], inputs: Mapping[Any, Any]
) -> str:
    """What to say of arrays that no parameter takes, which of them it is and which is missing."""
    count = len(program.inputs)
    known = _some([parameter_text(program, number) for number in range(count)])
    fact = f"no parameter takes {_some(extra)}; the program's {count} parameters are {known}"
    missing = [parameter_text(program, number) for number in range(count) if number not in found]
    if missing:
        fact += f"; {_some(missing)} {_is_are(missing)} not given"
        # only whoever gives more arrays than there are parameters may have one that JAX dropped
        return f"{fact}; {_JAX_DROPS}" if len(inputs) > count else fact
    if any(keys == [f"{word}{k}" for k in range(len(keys))] for word in ("", "arg", "arr_")):
        arrays = [
            one if isinstance(one, StoredArray) else np.asarray(one) for one in inputs.values()
        ]
        left_out = _only_way(
            count, len(arrays), lambda own, other: _fits(program, own, arrays[other])
        )
        if left_out:
            words = [f"arg{k} {_type_text(arrays[k])}" for k in left_out]
            fact += f"; the others fit in order if {_some(words)} {_is_are(words)} left out"
    return f"{fact}; {_JAX_DROPS}"


def _is_are(words: Sequence[str]) -> str:
    return "is" if len(words) == 1 else "are"


def _only_way(few: int, many: int, fits: Callable[[int, int], bool]) -> list[int]:
    """Which of many must be left out so that few fit the rest in order; empty if not one way does.

    Matched from the front and from the back; where both leave out the same, there is no other way.
    """
    fronts, at = [], 0
    for other in range(many):
        if at < few and fits(at, other):
            at += 1
        else:
            fronts.append(other)
    backs, at = [], few - 1
    for other in reversed(range(many)):
        if at >= 0 and fits(at, other):
            at -= 1
        else:
            backs.append(other)
    return fronts if len(fronts) == many - few and fronts == backs[::-1] else []


def bound_inputs(
    program: Program, given: Given, seed: int | None, draw: Draw | None = None
) -> Iterator[np.ndarray]:
    """Every parameter as [ranks, *shape] of its dtype, in order; missing ones from the seed.

    Of joined programs they are numbered one program after the other; ranks are those that run it.

    Without a seed none may be missing. `checked_input` says what an array may be. All shapes and
    types are looked at before the first array is loaded. Raises InputError.
    """
    if seed is None:
        _check_complete(program, given)
    for number, one in given.items():
        check_type(program, number, one)
    checked = {number: checked_input(program, number, one) for number, one in given.items()}
    counts = [len(stage.ranks) for stage in stages_of(program) for _ in stage.program.inputs]
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


def _with_words(array: np.ndarray, words: WordValues | None) -> np.ndarray:
    """The array, with what some of its words hold."""
    if words is not None:
        flat = array.reshape(len(array), -1)
        flat[words.rank, words.word] = words.value.astype(array.dtype)
    return array


def _check_complete(program: Program, given: Given) -> None:
    count = len(program.inputs)
    missing = [number for number in range(count) if number not in given]
    if not missing:
        return
    words = [parameter_text(program, number) for number in missing]
    fact = f"missing inputs: {_some(words)}; give them, or a seed that fills what is missing"
    if list(given) == [*range(len(given))] and given:  # perhaps one in the middle was forgotten
        skipped = _only_way(len(given), count, lambda own, other: _fits(program, other, given[own]))
        if skipped and skipped != missing:
            texts = [parameter_text(program, number) for number in skipped]
            fact += f"; those given fit in order if {_some(texts)} {_is_are(texts)} missing"
    raise InputError(fact)


@attrs.frozen(eq=False)
class _AcceptedArrays:
    """What arrays a parameter takes."""

    tensor: Tensor
    ranks: np.ndarray  # that have it
    sharding: Sharding | None

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """For every rank its own, the same for every rank, the whole that is cut.

        No two of them are alike: the first has a dimension more, the others differ in size.
        """
        shape = self.tensor.shape
        own, alike = (len(self.ranks), *shape), shape
        if self.sharding is None:
            return own, alike
        sizes = zip(shape, self.sharding.tiles, strict=True)
        return own, alike, tuple(size * tiles for size, tiles in sizes)


def _wanted(program: Program, number: int) -> _AcceptedArrays:
    before = 0
    for stage in stages_of(program):
        before += len(stage.program.inputs)
        if number < before:
            break
    sharding = program.parameter(number).sharding
    return _AcceptedArrays(
        program.tensors[program.inputs[number]],
        stage.ranks,
        None if sharding is None else program.shardings[sharding],
    )


def _fits(program: Program, number: int, array: np.ndarray | StoredArray) -> bool:
    wanted = _wanted(program, number)
    return array.shape in wanted.shapes and _converts(array.dtype, wanted.tensor.dtype)


def check_type(program: Program, number: int, array: np.ndarray | StoredArray) -> None:
    """Refuse an array whose shape or dtype the parameter does not take; it is not loaded."""
    wanted = _wanted(program, number)
    if array.shape not in wanted.shapes:
        own, alike, *whole = map(list, wanted.shapes)
        cut = f", or {whole[0]} for the whole, which its sharding cuts" if whole else ""
        raise InputError(
            f"{_called(program, number)} has shape {list(array.shape)}; the program takes {own}, "
            f"or {alike} for the same value on every rank{cut}"
        )
    dtype = wanted.tensor.dtype
    if not _converts(array.dtype, dtype):
        unnamed = ", as numpy stores what it lacks (bfloat16, fp8, int4)"
        raise InputError(
            f"{_called(program, number)} is {array.dtype}{unnamed * (array.dtype.kind == 'V')}; "
            f"the program takes {dtype.value}"
        )


def _called(program: Program, number: int) -> str:
    return parameter_text(program, number).rpartition(" ")[0]


def checked_input(program: Program, number: int, array: np.ndarray | StoredArray) -> np.ndarray:
    """An array as [ranks, *shape] of the dtype of its parameter; raises InputError.

    It may hold every rank's own, one for all ranks, or the whole, which the parameter's sharding
    cuts. Floats wider than the parameter are rounded to it. What numpy stores of a type that it
    lacks, bytes of that size, is taken as that type, and bytes as narrow integers if they fit. Any
    other dtype must match.
    """
    check_type(program, number, array)
    wanted = _wanted(program, number)
    values = _as_dtype(np.asarray(array), wanted.tensor.dtype, _called(program, number))
    own, *_ = wanted.shapes
    if wanted.sharding is not None and values.shape == wanted.shapes[-1]:
        return _cut(values, wanted.sharding)[np.array(wanted.sharding.parts)[wanted.ranks]]
    return np.broadcast_to(values, own)


def _cut(whole: np.ndarray, sharding: Sharding) -> np.ndarray:
    """[tiles, *shape], in row-major order of the tiles."""
    rank = whole.ndim
    sizes = [
        (tiles, size // tiles) for size, tiles in zip(whole.shape, sharding.tiles, strict=True)
    ]
    apart = whole.reshape([one for pair in sizes for one in pair])
    ordered = apart.transpose([*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)])
    return ordered.reshape(-1, *(size for _, size in sizes))


def _is_raw(found: np.dtype, dtype: DType) -> bool:
    """Whether an array holds the bytes of a type that numpy lacks."""
    wanted = dtype.numpy
    return (
        found.kind == "V"
        and found.names is None
        and (found.itemsize == wanted.itemsize and wanted.isbuiltin != 1)
    )


def _converts(found: np.dtype, dtype: DType) -> bool:
    wanted = dtype.numpy
    if found.newbyteorder("=") == wanted or _is_raw(found, dtype):
        return True
    if dtype.is_integer and dtype.bits < 8:
        return found in (np.int8, np.uint8)
    is_float = found.kind == "f" or "float" in found.name
    return dtype.is_float and is_float and found.itemsize >= wanted.itemsize


def _as_dtype(array: np.ndarray, dtype: DType, name: str) -> np.ndarray:
    wanted = dtype.numpy
    if array.dtype == wanted:
        return array
    is_narrow = dtype.is_integer and dtype.bits < 8
    least, most = (-(2 ** (dtype.bits - 1)) if dtype.is_signed else 0), 2**dtype.bits - 1
    if _is_raw(array.dtype, dtype):
        raw = np.ascontiguousarray(array).view(f"u{wanted.itemsize}").reshape(array.shape)
        if is_narrow:  # one element a byte, whose upper bits are zero
            _check_range(raw, 0, most, dtype, name)
        return raw.view(wanted)
    if is_narrow:
        _check_range(array, least, most + least, dtype, name)
    with np.errstate(over="ignore"):
        return array.astype(wanted)


def _check_range(array: np.ndarray, least: int, most: int, dtype: DType, name: str) -> None:
    outside = (array < least) | (array > most)
    if outside.any():
        raise InputError(
            f"{name} holds {array[outside][0]}; {dtype.value} goes from {least} to {most}"
        )


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
