"""Results compared with what was promised of them."""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.verify.fingerprints import factor
from ncc_runtime.verify.promises import Promise
from ncc_runtime.verify.replay import Memory
from ncc_runtime.verify.segments import Home, Role

BLOCK = 1 << 20
"""Cells that are compared together."""


@attrs.frozen(eq=False)
class Difference:
    """Bytes of a rank's result that do not hold what was promised."""

    promise: Promise
    member: int  # place of the rank in Promise.ranks
    operand: Home
    result: Home
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


def paired(homes: Sequence[Home]) -> Iterator[tuple[Home, Home]]:
    """Operand k and result k, those that have bytes."""
    results = {home.index: home for home in homes if home.role is Role.RESULT}
    for home in homes:
        if home.role is Role.OPERAND and results[home.index].size_bytes:
            yield home, results[home.index]


def differences(memory: Memory, promise: Promise, homes: Sequence[Home]) -> Iterator[Difference]:
    """The first wrong bytes of every rank and result."""
    for operand, result in paired(homes):
        step = max(1, BLOCK // max(1, len(memory.cells)))
        for first in range(0, len(promise.ranks), step):
            members = slice(first, first + step)
            wrong = _wrong(memory, promise, members, (operand, result))
            for member in np.flatnonzero(wrong.any(axis=1)).tolist():
                found = Difference(promise, first + member, operand, result, 0, 0)
                yield _at_first(memory, found, wrong[member])


def _wrong(memory: Memory, promise: Promise, members: slice, pair: tuple[Home, Home]) -> np.ndarray:
    """Where cells of the results of some members hold something else, (members, cells) bool."""
    cells, (operand, result) = memory.cells, pair
    inside = cells.offset[cells.within(result)]
    part, inside = np.divmod(inside - inside[0], _part_bytes(result, promise))
    giver = promise.giver if len(promise.giver) == 1 else promise.giver[members]
    taken = promise.taken if len(promise.taken) == 1 else promise.taken[members]
    taken = np.broadcast_to(taken, (len(taken), promise.giver.shape[1]))
    extent, first = cells.extents.offset(operand)
    offset = first + inside + taken[:, part] * (operand.size_bytes // promise.operand_parts)
    symbol = _symbols(memory, promise, extent)[giver][:, part]
    expected = symbol * memory.powers(offset // memory.unit_bytes)
    of_ranks = memory.held[:-2].reshape(-1, len(cells))
    return of_ranks[promise.ranks[members], cells.within(result)] != expected


def _part_bytes(result: Home, promise: Promise) -> int:
    """Bytes of one of the equal parts of a result."""
    return result.size_bytes // promise.giver.shape[1]


def _symbols(memory: Memory, promise: Promise, extent: int) -> np.ndarray:
    """The symbols of an extent of every rank, then what stands for NOBODY and for EVERYBODY."""
    of_ranks = memory.symbols[:, extent]
    joined = of_ranks[list(promise.joined)].sum(dtype=np.uint64, keepdims=True)
    joined *= factor(promise.divisor)
    return np.concatenate((of_ranks, np.zeros(1, np.uint64), joined))


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
