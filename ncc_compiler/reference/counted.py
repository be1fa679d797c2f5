"""Collectives that move as many rows as arrays of numbers say; XLA's and MPI's meaning.

The result is the output that was given, with the rows replaced that somebody sends: what lies
beyond the counts stays. Counts that do not fit each other are nobody's meaning: a ValueError.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from ncc_compiler.reference.collectives import present_groups
from ncc_compiler.reference.ncc_collectives import reduced
from ncc_compiler.reference.step import Meaning, Step, Value

Arrays: TypeAlias = Sequence[tuple[np.ndarray, ...]]
"""The operands of each member of a group."""

InGroup: TypeAlias = Callable[[Step, Arrays], list[np.ndarray]]


def _in_groups(in_group: InGroup, *, may_have_global_ids: bool) -> Meaning:
    def meaning(step: Step) -> list[Value]:
        place = {rank: position for position, rank in enumerate(step.ranks)}
        results: list[Value] = [()] * len(step.ranks)
        for group in present_groups(step, may_have_global_ids=may_have_global_ids):
            found = in_group(step, [step.arrays(place[rank]) for rank in group])
            for rank, result in zip(group, found, strict=True):
                results[place[rank]] = result
        return results

    return meaning


def _rows(array: np.ndarray, first: int, count: int, what: str) -> np.ndarray:
    """A view of some rows; ValueError if there are no such rows."""
    if first < 0 or count < 0 or first + count > len(array):
        raise ValueError(f"{what}: rows {first}..{first + count} of {len(array)}")
    return array[first : first + count]


def _ragged_all_to_all(step: Step, members: Arrays) -> list[np.ndarray]:
    """Update u of member s for member d is entry d * updates + u of what s says."""
    results = [member[1].copy() for member in members]
    updates = len(members[0][2]) // len(members)
    for source, (operand, _, *counts) in enumerate(members):
        starts, sizes, targets, _ = ([int(one) for one in vector] for vector in counts)
        for entry, (start, size, target) in enumerate(zip(starts, sizes, targets, strict=True)):
            to, update = divmod(entry, updates)
            expected = int(members[to][5][source * updates + update])
            if expected != size:
                raise ValueError(f"{step.node.name}: {size} rows for who expects {expected}")
            rows = _rows(operand, start, size, step.node.name)
            _rows(results[to], target, size, step.node.name)[...] = rows
    return results


def _exchanged(step: Step, members: Arrays) -> list[np.ndarray]:
    """Member s sends to d what column d of its metadata says.

    It lands at slot s of d, or where row 3 of the metadata of d says in column s.
    """
    results = [member[1].copy() for member in members]
    has_offsets = len(members[0][2]) > 3
    slot = len(results[0]) // (1 if has_offsets else len(members))
    for source, (operand, _, metadata) in enumerate(members):
        counts, starts = metadata[:2].astype(np.int64).tolist()
        for to, (count, start) in enumerate(zip(counts, starts, strict=True)):
            expected = members[to][2][:, source].astype(np.int64).tolist()
            if not 0 <= count <= slot or expected[2] != count:
                raise ValueError(f"{step.node.name}: {count} rows for a slot of {slot}")
            first = expected[3] if has_offsets else source * slot
            rows = _rows(operand, start, count, step.node.name)
            _rows(results[to], first, count, step.node.name)[...] = rows
    return results


def _gathered(step: Step, members: Arrays) -> list[np.ndarray]:
    """The same where every member sends the same rows to all."""
    for *_, metadata in members:
        if (metadata[:2] != metadata[:2, :1]).any():
            raise ValueError(f"{step.node.name}: not the same rows for all")
    return _exchanged(step, members)


def _reduced_and_scattered(step: Step, members: Arrays) -> list[np.ndarray]:
    """Chunk j, of as many rows on every member, is reduced for member j."""
    results = []
    for to, (_, output, own) in enumerate(members):
        counts = {int(member[2][0][to]) for member in members} | {*map(int, own[2])}
        if len(counts) > 1:
            raise ValueError(f"{step.node.name}: chunks of {sorted(counts)} rows are joined")
        (count,) = counts
        chunks = [
            _rows(member[0], int(member[2][1][to]), count, step.node.name) for member in members
        ]
        result = output.copy()
        _rows(result, 0, count, step.node.name)[...] = reduced(step, chunks)
        results.append(result)
    return results


COUNTED: Mapping[str, Meaning] = {
    "ragged-all-to-all": _in_groups(_ragged_all_to_all, may_have_global_ids=False),
    "ncc.all_gather_v": _in_groups(_gathered, may_have_global_ids=True),
    "ncc.all_to_all_v": _in_groups(_exchanged, may_have_global_ids=True),
    "ncc.reduce_scatter_v": _in_groups(_reduced_and_scattered, may_have_global_ids=True),
}
"""What each of them makes of the operands of all ranks."""
