"""What every step of a program reads: the state that outputs feed, batches, and what is drawn."""

import functools
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.array_files import StoredArray, shown
from ncc_runtime.errors import InputError
from ncc_runtime.inputs import (
    Array,
    check_type,
    checked_input,
    numbered,
    parameter_text,
    seeded,
)
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.stages import ranks_text, stages_of
from ncc_runtime.ranked_array import RankedArray
from ncc_runtime.threads import Threads

Feed = tuple[tuple[int, int], ...]
"""Pairs of an output and the input that takes it at the next step, by number."""


@attrs.frozen(eq=False)
class InputsOfSteps:
    """The state that goes from step to step, and where else inputs change."""

    program: Program
    feed: Feed
    batches: Mapping[int, StoredArray]  # by input: a row for each step, [rows, …]
    drawn: tuple[int, ...]  # inputs that are drawn anew at every step
    seed: int
    threads: Threads

    @property
    def rows(self) -> Mapping[int, int]:
        """Of each input with batches: after how many steps they begin again."""
        return {number: array.shape[0] for number, array in self.batches.items()}

    def of_step(self, step: int) -> dict[int, RankedArray]:
        """The inputs of a step that are not those of the step before, each [ranks, *shape].

        The same whenever it is asked for, so that a run that goes on reads what it would have read.
        """
        program = self.program
        rows = {number: row_of(array, step) for number, array in self.batches.items()}
        own = {number: checked_input(program, number, row) for number, row in rows.items()}
        for number in self.drawn:
            own[number] = seeded(program, number, self.seed, (step, number), self.threads)
        return own


def row_of(array: StoredArray, step: int) -> StoredArray:
    """The row of a step; it is loaded when it is used."""
    row = step % array.shape[0]
    return StoredArray(array.shape[1:], array.dtype, lambda: np.asarray(array)[row])


def inputs_of_steps(
    program: Program,
    feed: Mapping[str, str] | None,
    batches: Mapping[Any, Any],
    draw: Sequence[str],
    seed: int | None,
    threads: int = 1,
) -> InputsOfSteps:
    """What the words of a user name, checked: types, shapes, each input once; InputError."""
    pairs = feed_of(program, feed)
    drawn = tuple(numbered(program, dict.fromkeys(draw, 0)))
    if drawn and seed is None:
        raise InputError("inputs that are drawn at every step need a seed")
    rows = {number: _loaded_once(array) for number, array in numbered(program, batches).items()}
    uses = [*(number for _, number in pairs), *rows, *drawn]
    for number in uses:
        if uses.count(number) > 1:
            raise InputError(
                f"{parameter_text(program, number)} is both fed by an output, in batches, or drawn "
                "at every step; only one of these can fill it"
            )
    for number, array in rows.items():
        if not array.shape or not array.shape[0]:
            what = f"{parameter_text(program, number)}: its batches have shape {list(array.shape)}"
            raise InputError(f"{what}, and no row for the first step")
        try:
            check_type(program, number, row_of(array, 0))
        except InputError as error:
            raise InputError(f"a step's row of batches: {error}") from error
    return InputsOfSteps(program, pairs, rows, drawn, seed or 0, Threads(threads))


def _loaded_once(array: Array) -> StoredArray:
    """An array that stays in memory once a row of it was used."""
    load = functools.cache(lambda: np.asarray(array))
    return StoredArray(array.shape, array.dtype, load)


def feed_of(program: Program, words: Mapping[str, str] | None) -> Feed:
    """Which outputs feed which inputs; without words what the program's aliases say."""
    if words is None:
        if not program.aliases:
            raise InputError(
                "nothing says which outputs the next step takes as inputs: the model has no "
                "input_output_alias; name them, as in out0=arg0"
            )
        return program.aliases
    pairs: dict[int, int] = {}  # by input
    for left, right in words.items():
        output, number = _output(program, left), next(iter(numbered(program, {right: 0})))
        if number in pairs:
            both = f"out{pairs[number]} and out{output}"
            raise InputError(f"{parameter_text(program, number)} is fed by {both}; name one")
        _check_pair(program, output, number)
        pairs[number] = output
    return tuple(sorted((output, number) for number, output in pairs.items()))


def _check_pair(program: Program, output: int, number: int) -> None:
    given, taken = program.outputs[output], program.inputs[number]
    text = program.tensors[given].type_text
    if text != program.tensors[taken].type_text:
        raise InputError(
            f"out{output} is {text} and cannot feed {parameter_text(program, number)}; "
            "types and shapes must be equal"
        )
    sides = _output_ranks(program, output), ranks_of(program, number)
    if not np.array_equal(*sides):
        one, other = (ranks_text(ranks.tolist()) for ranks in sides)
        raise InputError(f"out{output} is of ranks {one} and cannot feed arg{number} of {other}")


def ranks_of(program: Program, number: int) -> np.ndarray:
    """The ranks that have a parameter, ascending."""
    return [stage.ranks for stage in stages_of(program) for _ in stage.program.inputs][number]


def _output_ranks(program: Program, number: int) -> np.ndarray:
    return [stage.ranks for stage in stages_of(program) for _ in stage.program.outputs][number]


def _output(program: Program, word: str) -> int:
    """The number of the output that a word names."""
    names = [program.result(number).name for number in range(len(program.outputs))]
    match = re.fullmatch(r"out(\d{1,9})", word, re.ASCII)
    if match and int(match[1]) < len(names):
        return int(match[1])
    if word and names.count(word) == 1:
        return names.index(word)
    if names.count(word) > 1 and word:
        raise InputError(f"{shown(word)} is the name of several outputs; give them by number")
    known = f"out0 to out{len(names) - 1}" if names else "none"
    raise InputError(f"the program has no output {shown(word)}; there are {known}")


_PAIR = re.compile(r"(out)(\d{1,6})-(\d{1,6})=(arg)(\d{1,6})-(\d{1,6})", re.ASCII)


def pairs_in(text: str) -> Iterator[tuple[str, str]]:
    """`out0=arg0,out2-4=arg1-3` as pairs of names; InputError for another form."""
    for part in text.split(","):
        if match := _PAIR.fullmatch(part.strip()):
            left, right = (range(int(match[k]), int(match[k + 1]) + 1) for k in (2, 5))
            if not left or len(left) != len(right):
                raise InputError(f"{part.strip()!r}: as many outputs as inputs, in rising order")
            yield from ((f"out{a}", f"arg{b}") for a, b in zip(left, right, strict=True))
            continue
        name, equals, target = (word.strip() for word in part.partition("="))
        if not (name and equals and target):
            raise InputError(f"{part.strip()!r} is not OUT=ARG, as in out0=arg0 or out0-3=arg2-5")
        yield name, target
