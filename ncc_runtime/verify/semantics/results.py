"""Results compared with what was promised of them."""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.verify.bindings import Binding, Role
from ncc_runtime.verify.semantics.fingerprints import factor
from ncc_runtime.verify.semantics.promises import Promise
from ncc_runtime.verify.semantics.replay import Memory

BLOCK_CELLS = 1 << 20
"""Cells that are compared together."""


@attrs.frozen(eq=False)
class Difference:
    """Bytes of a rank's result that do not hold what was promised."""

    promise: Promise
    member: int  # place of the rank in Promise.ranks
    result: Binding
    offset: int  # of the first wrong byte in the result
    size_bytes: int  # as far as all is wrong, within one part

    @property
    def rank(self) -> int:
        """Whose result it is."""
        return int(self.promise.ranks[self.member])

    @property
    def part(self) -> int:
        """In which part of the result it lies."""
        return self.offset // _part_bytes(self.result, self.promise)


def differences(
    memory: Memory, promise: Promise, bindings: Sequence[Binding]
) -> Iterator[Difference]:
    """The first wrong bytes of every rank and result."""
    operands: dict[int, list[Binding]] = {}
    for binding in bindings:
        if binding.role is Role.OPERAND:
            operands.setdefault(binding.index, []).append(binding)
    for result in bindings:
        if result.role is not Role.RESULT or not result.size_bytes:
            continue
        own = promise if result.members is None else promise.of(result.members)
        given = _Given.of(memory, operands[result.index])
        step = max(1, BLOCK_CELLS // max(1, len(memory.cells)))
        for first in range(0, len(own.ranks), step):
            wrong = _wrong(memory, own, slice(first, first + step), (given, result))
            for member in np.flatnonzero(wrong.any(axis=1)).tolist():
                found = Difference(own, first + member, result, 0, 0)
                yield _at_first(memory, found, wrong[member])


@attrs.frozen(eq=False)
class _Given:
    """What everybody has for an operand."""

    at_first: np.ndarray  # (ranks,) uint64: the fingerprint of its first element
    size_bytes: int

    @classmethod
    def of(cls, memory: Memory, operands: Sequence[Binding]) -> "_Given":
        """That of an operand, wherever it lies."""
        found: np.ndarray = np.zeros(len(memory.symbols), np.uint64)
        for binding in operands:
            extent, first = memory.cells.extents.offset(binding)
            power = memory.powers(np.array([first // memory.unit_bytes]))
            found[binding.rows] = memory.symbols[binding.rows, extent] * power
        return cls(found, operands[0].size_bytes)


def _wrong(
    memory: Memory, promise: Promise, members: slice, pair: tuple[_Given, Binding]
) -> np.ndarray:
    """Where cells of the results of some members hold something else, (members, cells) bool."""
    cells, (given, result) = memory.cells, pair
    inside = cells.offset[cells.within(result)]
    part, inside = np.divmod(inside - inside[0], _part_bytes(result, promise))
    giver = promise.giver if len(promise.giver) == 1 else promise.giver[members]
    taken = promise.taken if len(promise.taken) == 1 else promise.taken[members]
    taken = np.broadcast_to(taken, (len(taken), promise.giver.shape[1]))
    offset = inside + taken[:, part] * (given.size_bytes // promise.operand_parts)
    at_first = _at_givers(given, promise)[giver][:, part]
    expected = at_first * memory.powers(offset // memory.unit_bytes)
    of_ranks = memory.held[:-2].reshape(-1, len(cells))
    return of_ranks[promise.ranks[members], cells.within(result)] != expected


def _part_bytes(result: Binding, promise: Promise) -> int:
    """Bytes of one of the equal parts of a result."""
    return result.size_bytes // promise.giver.shape[1]


def _at_givers(given: _Given, promise: Promise) -> np.ndarray:
    """What every rank has, then what stands for NOBODY and for EVERYBODY."""
    joined = given.at_first[list(promise.joined)].sum(dtype=np.uint64, keepdims=True)
    joined *= factor(promise.divisor)
    return np.concatenate((given.at_first, np.zeros(1, np.uint64), joined))


def _at_first(memory: Memory, found: Difference, wrong: np.ndarray) -> Difference:
    """The same with the first wrong bytes; `wrong` says so of the cells of the result."""
    offsets = memory.cells.offset[memory.cells.within(found.result)]
    edges = np.append(offsets - offsets[0], found.result.size_bytes)
    first = int(wrong.argmax())
    part = edges[:-1] // _part_bytes(found.result, found.promise)
    ends = ~wrong | (part != part[first])
    ends[:first] = False
    last = int(ends.argmax()) if ends.any() else len(wrong)
    offset = int(edges[first])
    return attrs.evolve(found, offset=offset, size_bytes=int(edges[last]) - offset)
