"""Which ranks hold the same bits, so that these are computed once and stored once.

Global value numbering, over ranks instead of names: two ranks are equal in a value if it is made by
the same operations from operands in which they are equal (Alpern, Wegman and Zadeck, POPL 1988;
XLA's replication analysis asks the same). All ranks start in one class of each value, and classes
are split until nothing splits them any more. The smallest rank of a class performs for it: it alone
computes, in its own memory, and the others read there.

Why they may. Ranks perform rows of a tape together. So when a rank reads a value in the memory of
q, which performs for it, q performs the same row, as long as both have taken the same branches. In
the memory of q nothing is written but what q itself performs, at the place of the tape where it
does. What q writes over the value comes behind q's own reads of it, in a later round: that is what
the proof of races says of one rank, and the other rank reads in the same row. Where ranks take
different branches, who performs for them must take theirs: what is read inside of a block is stored
apart for ranks whose predicates differ, unless nothing ever writes over it.

An instruction that writes a result where an operand lies reads and writes one place in one rank's
memory. So such an operand is stored as finely as the result. Where paths meet, what comes from
each of them is stored as finely as what is read behind. To store more finely than values differ is
always right: it is what is done without all this.
"""

import functools
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.values.normal_form import NormalForm
from ncc_runtime.execution.values.tape_values import TapeRow, TapeValues
from ncc_runtime.neff.program import Program

SMALL_BYTES = 64 * 1024
"""Buffers that take less, on all ranks together, are stored by every rank: what is small costs a
call of numpy, however many ranks it is for."""

_OF_RANK = frozenset({"partition-id", "replica-id"})
"""Opcodes whose results depend on the rank. (Random numbers depend on a state, an operand.)"""

Partition = np.ndarray
"""Of each rank the smallest rank of its class, (ranks,)."""

Places = np.ndarray
"""Of each rank the one in whose memory its bytes of a value lie, (ranks,)."""


@attrs.frozen(eq=False)
class RowPlaces:
    """Who performs a row for whom, and where its values lie."""

    performed: Partition
    read: tuple[Places, ...]  # by operand
    written: tuple[Places, ...]  # by result


@attrs.frozen(eq=False)
class EqualRanks:
    """What is equal on ranks while a tape is played, and where it lies."""

    each: Places  # every rank has its own: so it is with all that is not named below
    rows: Mapping[object, RowPlaces]  # by queue and row, or placeholder
    inputs: list[Places]
    outputs: list[Places]
    constants: Mapping[int, Places]  # by buffer
    predicates: Mapping[int, Places]  # by block
    equal_outputs: list[Partition]
    used: list[np.ndarray]  # by buffer, the ranks in whose memory it ever lies, ascending

    @classmethod
    def nothing(cls, program: Program) -> "EqualRanks":
        """Every rank computes and stores all that it has."""
        each = np.arange(program.ranks)
        inputs, outputs = [each] * len(program.inputs), [each] * len(program.outputs)
        return cls(each, {}, inputs, outputs, {}, {}, outputs, [each] * len(program.buffers))

    def performed(self, key: object) -> Partition:
        """Who performs a row for whom."""
        return self.rows[key].performed if key in self.rows else self.each

    def of_row(self, key: object, operands: int, results: int) -> RowPlaces:
        """Of an instruction by queue and row, or of a collective by its placeholder."""
        if key in self.rows:
            return self.rows[key]
        return RowPlaces(self.each, (self.each,) * operands, (self.each,) * results)


class _Partitions:
    """Partitions by number; equal ones have one number."""

    def __init__(self, process_of: np.ndarray) -> None:
        """`process_of` each rank, (ranks,): those of several are never in one class."""
        ranks = self._ranks = len(process_of)
        self._apart = process_of * ranks if process_of.any() else None
        self._numbers: dict[bytes, int] = {}
        self._refined: dict[tuple[int, int], int] = {}
        self.arrays: list[Partition] = []
        self.same = self.number(np.zeros(ranks, np.int64))
        self.each = self.number(np.arange(ranks))

    def number(self, labels: np.ndarray) -> int:
        """Ranks with the same label are in one class, if they may be."""
        if self._apart is not None:
            labels = self._apart + np.unique(labels, return_inverse=True)[1]
        _, first, which = np.unique(labels, return_index=True, return_inverse=True)
        array = first[which]
        key = array.tobytes()
        if key not in self._numbers:
            self._numbers[key] = len(self.arrays)
            self.arrays.append(array)
        return self._numbers[key]

    def refined(self, one: int, other: int) -> int:
        """The coarsest partition that is as fine as both."""
        if one in (other, self.each) or other == self.same:
            return one
        if other == self.each or one == self.same:
            return other
        key = min(one, other), max(one, other)
        if key not in self._refined:
            both = self.arrays[one] * self._ranks + self.arrays[other]
            self._refined[key] = self.number(both)
        return self._refined[key]

    def all_refined(self, some: Sequence[int]) -> int:
        """The same of several."""
        return functools.reduce(self.refined, some, self.same)


def equal_ranks(
    values: TapeValues, inputs: Sequence[np.ndarray], process_of: np.ndarray | None = None
) -> EqualRanks:
    """What is equal while a tape is played, where `inputs` say what is equal in each input.

    Those are labels, (ranks,): ranks with the same label have the same. Ranks must perform all rows
    of the tape together (`tape_values.are_together`). `process_of` each rank, (ranks,): one has the
    memory of its own ranks only, so nothing is computed once for ranks of several.
    """
    if process_of is None:
        process_of = np.zeros(values.program.ranks, np.int64)
    partitions = _Partitions(process_of)
    equal = _split(partitions, values, inputs)
    stored, performed = _stored(partitions, values, equal)
    places = [partitions.arrays[number] for number in stored]
    used: list[list[np.ndarray]] = [[] for _ in values.program.buffers]
    for value, buffer in enumerate(values.buffer):
        used[buffer].append(places[value])
    return EqualRanks(
        each=partitions.arrays[partitions.each],
        rows={
            row.key: RowPlaces(
                partitions.arrays[number],
                tuple(places[value] for value in row.operands),
                tuple(places[value] for value in row.results),
            )
            for row, number in zip(values.rows, performed, strict=True)
        },
        inputs=[places[value] for value in values.inputs],
        outputs=[places[value] for value in values.outputs],
        constants={buffer: places[value] for buffer, value in values.constants.items()},
        predicates={block: places[value] for block, value in values.predicates.items()},
        equal_outputs=[partitions.arrays[equal[value]] for value in values.outputs],
        used=[np.unique(some) for some in used],
    )


def _split(partitions: _Partitions, values: TapeValues, inputs: Sequence[np.ndarray]) -> list[int]:
    """By value, the partition of the ranks into those that are equal: the coarsest fixed point."""
    equal = [partitions.same] * len(values.buffer)
    for value, labels in zip(values.inputs, inputs, strict=True):
        equal[value] = partitions.number(labels)
    for value in values.unwritten:
        equal[value] = partitions.each
    known: dict[object, list[int]] = {}  # by collective and partitions of its operands

    def of_results(row: TapeRow) -> list[int]:
        paths = [equal[values.predicates[block]] for block in row.blocks]
        own = partitions.all_refined([*paths, *(equal[value] for value in row.rest)])
        operands = tuple(equal[value] for value in row.operands)
        if row.form is None:
            is_of_rank = _is_of_rank(values.program, row)
            one = partitions.each if is_of_rank else partitions.all_refined([own, *operands])
            return [one] * len(row.results)
        if (row.key, operands) not in known:
            split = equal_results(row.form, row.sizes, [partitions.arrays[k] for k in operands])
            known[row.key, operands] = [partitions.number(labels) for labels in split]
        found = [partitions.refined(own, one) for one in known[row.key, operands]]
        places = {values.buffer[value] for value in row.results}
        # what lies in one buffer is read as one
        return found if len(places) == len(found) else [partitions.all_refined(found)] * len(found)

    is_changed = True
    while is_changed:
        before = list(equal)
        for value, sources in values.met.items():
            equal[value] = partitions.all_refined([equal[value], *(equal[k] for k in sources)])
        for row in values.rows:
            for value, number in zip(row.results, of_results(row), strict=True):
                equal[value] = partitions.refined(equal[value], number)
        is_changed = equal != before
    return equal


def _is_of_rank(program: Program, row: TapeRow) -> bool:
    """Whether what an instruction computes depends on the rank."""
    assert row.instr is not None, "an instruction"
    fusion = program.fusion_of(row.instr)
    body = () if fusion is None else fusion.body
    return not _OF_RANK.isdisjoint({row.instr.opcode, *(step.opcode for step in body)})


def _stored(
    partitions: _Partitions, values: TapeValues, equal: Sequence[int]
) -> tuple[list[int], list[int]]:
    """By value, where each rank's bytes lie; by row, who performs it for whom."""
    stored = list(equal)

    def refine(value: int, number: int) -> None:
        if not values.is_fixed[values.buffer[value]]:
            stored[value] = partitions.refined(stored[value], number)

    def paths(blocks: Sequence[int]) -> int:
        return partitions.all_refined([equal[values.predicates[block]] for block in blocks])

    is_changed = True
    while is_changed:
        before = list(stored)
        for row in reversed(values.rows):
            own = partitions.all_refined([stored[value] for value in row.results])
            for value in (*row.results, *row.overlapped, *row.rest):
                refine(value, own)
            for value in row.operands:
                refine(value, paths(row.blocks))
        for block, value in values.predicates.items():
            refine(value, paths(values.around[block]))
        for value, sources in values.met.items():
            for source in sources:
                refine(source, stored[value])
        is_changed = stored != before
    ranks = len(partitions.arrays[partitions.each])
    sizes = [values.program.buffers[buffer].size_bytes for buffer in values.buffer]
    is_small = [size * ranks < SMALL_BYTES for size in sizes]
    performed = []
    for row in values.rows:
        is_quick = all(is_small[value] for value in (*row.operands, *row.results))
        own = partitions.all_refined([stored[value] for value in row.results])
        performed.append(partitions.each if is_quick else own)
    # A collective writes a block for all ranks while that is in the cache: if its result is an
    # output, which callers mostly want of all ranks, that is quicker than to copy it later.
    given_away = {
        value
        for row in values.rows
        if row.form is not None
        for value in row.results
        if value in values.outputs
    }
    is_everywhere = [small or value in given_away for value, small in enumerate(is_small)]
    return [
        partitions.each if everywhere else number
        for number, everywhere in zip(stored, is_everywhere, strict=True)
    ], performed


def equal_results(
    form: NormalForm, sizes: Sequence[int], operands: Sequence[Partition]
) -> list[Partition]:
    """Which ranks are equal in each result of a collective, from which are so in its operands.

    They are if all of their pieces are made by the same steps of the same elements of operands of
    equal ranks. `sizes` are those of the results, in elements.
    """
    ranks = len(operands[0]) if operands else 0
    cells: list[list[np.ndarray]] = [[] for _ in sizes]  # [cells, columns] by result
    numbers: dict[object, int] = {}
    for one in form.classes:
        labels = operands[one.operand][one.leaves]
        content = np.column_stack([one.offset, labels])
        distinct, which = np.unique(content, axis=0, return_inverse=True)
        known = [
            numbers.setdefault((one.steps, one.operand, one.size, row.tobytes()), len(numbers))
            for row in distinct
        ]
        content_of = np.broadcast_to(np.array(known)[which][:, None], one.target_rank.shape)
        columns = one.target_rank, one.target_offset, content_of
        flat = [column.ravel() for column in columns]
        cells[one.operand].append(np.column_stack([*flat, np.full(len(flat[0]), one.size)]))
    return [
        _equal_rows(np.concatenate(some) if some else np.zeros((0, 4), np.int64), ranks, size)
        for some, size in zip(cells, sizes, strict=True)
    ]


def _equal_rows(cells: np.ndarray, ranks: int, size: int) -> Partition:
    """Ranks with the same cells; columns are the rank, the place, what it holds and its size.

    A rank that no cells fill holds besides what it held before: it is equal to no other.
    """
    cells = cells[np.lexsort(cells.T[::-1])]
    bounds = np.searchsorted(cells[:, 0], np.arange(ranks + 1))
    first: dict[bytes, int] = {}
    found = np.arange(ranks)
    for rank in range(ranks):
        own = cells[bounds[rank] : bounds[rank + 1], 1:]
        if own[:, 2].sum() == size:
            found[rank] = first.setdefault(own.tobytes(), rank)
    return found
