"""What the length registers of a segment hold: which word of which table of counts.

A register that a run of descriptors uses must have been loaded before the run is pushed, and must
not be loaded again within the collective, for the run may be performed at any time until its end.
"""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, Executable, RegisterLoad
from ncc_runtime.neff.program import Tensor
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.verify.places import place_of
from ncc_runtime.verify.segments import Segment

UNKNOWN = -2
"""A register that holds no word of the collective's tables."""


@attrs.frozen(eq=False)
class Loaded:
    """Of every register, by member: the word, its tables numbered through, and when it comes."""

    word: np.ndarray  # (members, registers) int64, UNKNOWN if it is of no table
    row: np.ndarray  # (members, registers) int64, of the CC-core; behind all rows if never
    first: np.ndarray  # (members, tables) int64, the first word of each table

    @classmethod
    def of(cls, executable: Executable, segment: Segment) -> "Loaded":
        """What the LOAD rows of a segment load."""
        count = max(
            (one.first + one.words for part in segment.cc.loads for one in part.values()), default=0
        )
        shape = (segment.ranks, count + 1)  # the last stands for a register beyond all
        word: np.ndarray = np.full(shape, UNKNOWN, np.int64)
        row_of: np.ndarray = np.full(shape, len(segment.cc), np.int64)
        tables_of = len(executable.program.placeholders[segment.number].counts)
        firsts: np.ndarray = np.zeros((segment.ranks, tables_of), np.int64)
        for span, loads in zip(segment.cc.spans, segment.cc.loads, strict=True):
            ranks = np.arange(executable.ranks) if span.ranks is None else span.ranks
            members = segment.members.inside(ranks)
            ranks, members = ranks[members != IDLE], members[members != IDLE]
            tables = _tables(executable, segment.number, ranks)
            firsts[members] = _first_words(tables)
            for row, load in sorted(loads.items()):
                address = np.broadcast_to(load.address, executable.ranks)[ranks]
                first = _first_word(tables, address, load)
                into = slice(load.first, load.first + load.words)
                words = np.where(
                    first[:, None] == UNKNOWN, UNKNOWN, first[:, None] + np.arange(load.words)
                )
                word[members, into], row_of[members, into] = words, row
        return cls(word, row_of, firsts)

    def words(self, members: np.ndarray, registers: np.ndarray) -> np.ndarray:
        """What some registers of members hold; IDLE where none is named."""
        known = np.minimum(registers, self.word.shape[1] - 1)
        return np.where(registers == IDLE, IDLE, self.word[members, known])

    def late(self, members: np.ndarray, registers: np.ndarray, pushed: np.ndarray) -> np.ndarray:
        """Where a register is named that is not loaded before a row of the CC-core."""
        known = np.minimum(registers, self.word.shape[1] - 1)
        return np.asarray((registers != IDLE) & (self.row[members, known] >= pushed))


_Tables = Sequence[tuple[int, Tensor]]
"""Where tables begin, and what they are."""


def _tables(executable: Executable, number: int, ranks: np.ndarray) -> _Tables:
    program = executable.stage_of(int(ranks[0])).program
    tensors = program.placeholders[number].counts
    return [(program.address(tensor), program.tensors[tensor]) for tensor in tensors]


def _first_words(tables: _Tables) -> list[int]:
    """The first word of each table; those that lie in one place are the same words."""
    known: dict[tuple[int, DType], int] = {}
    before, found = 0, []
    for start, table in tables:
        found.append(known.setdefault((start, table.dtype), before))
        before += table.elements
    return found


def _first_word(tables: _Tables, address: np.ndarray, load: RegisterLoad) -> np.ndarray:
    """Which word of the tables, numbered through, the first of a LOAD is, by rank."""
    before = 0
    found: np.ndarray = np.full(len(address), UNKNOWN, np.int64)
    for start, table in tables:
        inside, rest = np.divmod(address - start, table.dtype.size_bytes)
        fits = (rest == 0) & (inside >= 0) & (inside + load.words <= table.elements)
        if load.dtype is table.dtype:
            found = np.where(fits & (found == UNKNOWN), before + inside, found)
        before += table.elements
    return found


def loaded_again(executable: Executable, segment: Segment) -> Iterator[str]:
    """Registers that two LOADs of the collective fill."""
    for span, loads in zip(segment.cc.spans, segment.cc.loads, strict=True):
        filled: dict[int, int] = {}
        for row, load in sorted(loads.items()):
            again = [one for one in range(load.first, load.first + load.words) if one in filled]
            filled.update(dict.fromkeys(range(load.first, load.first + load.words), row))
            if again:
                rank = 0 if span.ranks is None else int(span.ranks[0])
                place = place_of(executable, span.queue, span.first + row, rank)
                yield f"{place}: loads register {again[0]} again, while transfers may use it"
