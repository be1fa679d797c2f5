"""Inputs of the ranks of one process: no process loads or draws what others need alone.

What a process gets is that of `inputs.bound_inputs`, cut to its ranks. Of an array [ranks, *shape]
the rows of its own ranks are read; a whole array, which a sharding cuts, is read or drawn some rows
at a time, and the tiles of its own ranks are kept.
"""

import math
from collections.abc import Callable, Iterator

import attrs
import numpy as np

from ncc_runtime import random_values
from ncc_runtime.array_files import StoredArray
from ncc_runtime.inputs import (
    Array,
    Draw,
    ExpectedInput,
    Given,
    accepted_arrays,
    as_dtype,
    check_complete,
    check_type,
    drawn_words,
    expected_input,
    parameter_text,
    rows_of,
)
from ncc_runtime.neff.program import Program, Sharding
from ncc_runtime.processes import Shares
from ncc_runtime.ranked_array import RankedArray
from ncc_runtime.threads import Threads

PASSING_BYTES = 8 << 20
"""Of a whole array, about so much is held at a time."""


@attrs.frozen(eq=False)
class _ArrayRows:
    """An array of which rows of dimension 0 can be had without the rest."""

    shape: tuple[int, ...]
    load: Callable[[int, int], np.ndarray]  # from one row up to another
    at_once: int  # rows


def own_inputs(
    program: Program,
    given: Given,
    seed: int | None,
    draw: Draw | None,
    threads: int,
    shares: Shares,
) -> Iterator[RankedArray]:
    """Every parameter of the ranks of a process, as `inputs.bound_inputs` gives it of all.

    Rows of the arrays are those that own ranks have, in the order of the numbers that
    `expected_input` gives them. InputError.
    """
    if seed is None:
        check_complete(program, given)
    for number, array in given.items():
        check_type(program, number, array)
    team = Threads(threads)

    def arrays() -> Iterator[RankedArray]:
        drawn = drawn_words(program, given, seed, draw)
        for number in range(len(program.inputs)):
            if number in given:
                yield _given(program, number, given[number], shares)
                continue
            assert seed is not None, "without a seed no input is missing"
            array = _drawn(program, number, seed, team, shares)
            if number in drawn:
                words = drawn[number]
                is_own = shares.are_own(accepted_arrays(program, number).ranks)
                held = np.unique(rows_of(program, number)[is_own])
                some = np.isin(words.row, held)
                flat = array.array.reshape(len(array.array), -1)
                rows = np.searchsorted(held, words.row[some])
                flat[rows, words.word[some]] = words.value[some].astype(array.dtype)
            yield array

    return arrays()


def _given(program: Program, number: int, array: Array, shares: Shares) -> RankedArray:
    accepted = accepted_arrays(program, number)
    is_own, dtype = shares.are_own(accepted.ranks), accepted.tensor.dtype
    name = parameter_text(program, number).rpartition(" ")[0]
    if isinstance(array, RankedArray):
        held, row_of = np.unique(array.row_of[is_own], return_inverse=True)
        return RankedArray(as_dtype(array.array[held], dtype, name), row_of)
    if accepted.sharding is not None and array.shape == accepted.whole:
        parts = np.array(accepted.sharding.parts)[accepted.ranks][is_own]
        held, row_of = np.unique(parts, return_inverse=True)
        row_bytes = max(1, math.prod(array.shape[1:]) * array.dtype.itemsize)
        at_once = max(1, PASSING_BYTES // row_bytes)
        if isinstance(array, StoredArray) and array.load_rows is None:
            at_once = max(1, *array.shape[:1])
        tiles = _tiles(
            _ArrayRows(
                array.shape, lambda a, b: as_dtype(_rows(array, a, b), dtype, name), at_once
            ),
            accepted.sharding,
            accepted.tensor.shape,
            held,
            dtype.numpy,
        )
        return RankedArray(tiles, row_of)
    count = int(np.count_nonzero(is_own))
    if array.shape == accepted.tensor.shape:
        return RankedArray.same(as_dtype(np.asarray(array), dtype, name), count)
    first = int(is_own.argmax()) if count else 0
    return RankedArray.of_each(as_dtype(_rows(array, first, first + count), dtype, name))


def _rows(array: np.ndarray | StoredArray, first: int, end: int) -> np.ndarray:
    if isinstance(array, StoredArray):
        return array.rows(first, end)
    return array[first:end] if array.ndim else array


def _drawn(program: Program, number: int, seed: int, team: Threads, shares: Shares) -> RankedArray:
    """As `inputs.seeded`."""
    accepted, labels = accepted_arrays(program, number), rows_of(program, number)
    dtype, shape = accepted.tensor.dtype, accepted.tensor.shape
    held, row_of = np.unique(labels[shares.are_own(accepted.ranks)], return_inverse=True)
    is_sharded = accepted.sharding is not None and accepted.whole is not None
    whole = (int(labels.max(initial=-1)) + 1, *shape)
    if is_sharded:
        assert accepted.whole is not None, "of what is sharded"
        whole = accepted.whole

    def load(first: int, end: int) -> np.ndarray:
        return random_values.drawn_rows(dtype, whole, (first, end), seed, (number,), team)

    if is_sharded:
        assert accepted.sharding is not None, "of what is sharded"
        row_bytes = max(1, math.prod(whole[1:]) * dtype.numpy.itemsize)
        rows = _ArrayRows(whole, load, max(1, PASSING_BYTES // row_bytes))
        tiles = _tiles(rows, accepted.sharding, shape, held, dtype.numpy)
        return RankedArray(tiles, row_of)
    if len(held) and int(held[-1] - held[0]) == len(held) - 1:
        return RankedArray(load(int(held[0]), int(held[-1]) + 1), row_of)
    array: np.ndarray = np.empty((len(held), *shape), dtype.numpy)
    for row, label in enumerate(held.tolist()):
        array[row] = load(label, label + 1)[0]
    return RankedArray(array, row_of)


def _tiles(
    rows: _ArrayRows, sharding: Sharding, shape: tuple[int, ...], held: np.ndarray, dtype: np.dtype
) -> np.ndarray:
    """[tiles, *shape] of the tiles that are held, by number; what is missing in the last ones is 0.

    As `inputs.checked_input` cuts them.
    """
    tiles: np.ndarray = np.zeros((len(held), *shape), dtype)
    if not shape:
        tiles[...] = rows.load(0, 1)
        return tiles
    places = np.stack(np.unravel_index(held, sharding.tiles), axis=1) * shape
    used = [
        (start, min(start + shape[0], rows.shape[0])) for start in np.unique(places[:, 0]).tolist()
    ]
    for begin, stop in used:
        for first in range(begin, stop, rows.at_once):
            end = min(first + rows.at_once, stop)
            slab = rows.load(first, end)
            for tile in np.flatnonzero(places[:, 0] == begin).tolist():
                own: tuple[slice, ...] = tuple(
                    slice(start, min(start + extent, size))
                    for start, extent, size in zip(
                        places[tile, 1:].tolist(), shape[1:], rows.shape[1:], strict=True
                    )
                )
                part = slab[(slice(None), *own)]
                there = tiles[tile, first - begin : end - begin]
                there[tuple(slice(0, extent) for extent in part.shape)] = part
    return tiles


def expected_own_input(
    program: Program, number: int, given: Given, shares: Shares
) -> ExpectedInput:
    """As `inputs.expected_input`, with the bytes that this process takes."""
    whole = expected_input(program, number, given)
    accepted, array = accepted_arrays(program, number), given.get(number)
    held = len(np.unique(whole.row_of[shares.are_own(accepted.ranks)])) * accepted.tensor.size_bytes
    if isinstance(array, np.ndarray | RankedArray) and not whole.held_bytes:
        return whole
    passing = min(whole.passing_bytes, 2 * PASSING_BYTES)
    if isinstance(array, StoredArray) and array.load_rows is None:
        passing = whole.passing_bytes
    return attrs.evolve(whole, held_bytes=held, passing_bytes=passing)
