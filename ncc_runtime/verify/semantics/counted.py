"""Proof of what counted collectives compute, for all counts that fit.

A transfer with length registers moves rows of its source to rows of its target, from the first on:
some prefix of the slot that its descriptors are built for. So instead of bytes the proof follows
slots: there is one transfer from every member to every other for each of its entries, it takes its
rows and offsets from just the words that the tables have for this pair, reads the sender's operand,
and writes the sender's slot at the receiver, or, where offsets are free, the receiver's result. A
reduction joins the slots of all members, each once. What the tables must say is left to checks when
they are known (`execution/variable_sizes.py`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE, Executable
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.verify.bindings import Role, binding_of
from ncc_runtime.verify.places import collective, place_of
from ncc_runtime.verify.segments import Segment
from ncc_runtime.verify.semantics.joined import Slots
from ncc_runtime.verify.semantics.registers import UNKNOWN, Loaded, loaded_again

MOST_FAULTS = 4
"""Transfers of one collective that a proof names."""

_What: TypeAlias = Callable[[int], str]
"""What is wrong with a transfer."""

Moments: TypeAlias = Mapping[tuple[int, int], Sequence[tuple[int, np.ndarray | None]]]
"""By queue and row of DMA rings: when, and which ranks."""


@attrs.frozen(eq=False)
class Transfers:
    """All transfers of a segment, one a row; what they use of registers is named by words."""

    ring: np.ndarray
    row: np.ndarray  # of the ring
    source: np.ndarray  # member whose ring it is
    target: np.ndarray  # member written to
    joins: np.ndarray  # bool: reads slots, not the operand
    read: np.ndarray  # address of the first source
    written: np.ndarray  # address
    size: np.ndarray
    words: np.ndarray  # (n, 3): of rows, source offset, target offset
    late: np.ndarray  # (n, 3) bool

    def __len__(self) -> int:
        return len(self.row)


def counted_breaches(executable: Executable, segment: Segment, moments: Moments) -> Iterator[str]:
    """Everything that is wrong with the transfers of a counted collective."""
    yield from loaded_again(executable, segment)
    judge = _Judge(executable, segment)
    yield from judge.faults()
    if segment.placeholder.op is CollectiveOp.REDUCE_SCATTER_V:
        name = collective(executable, segment.number)
        yield from (f"{name}: {fault}" for fault in judge.join_faults(moments))


def condition_of(executable: Executable, segment: Segment) -> str:
    """What is left to be checked when the tables are known."""
    name = collective(executable, segment.number)
    match segment.placeholder.op:
        case CollectiveOp.RAGGED_ALL_TO_ALL:
            what = "its rows lie inside the buffers and none of a result is written twice"
        case CollectiveOp.REDUCE_SCATTER_V:
            what = "its counts are at most a slot, and those of one chunk alike on all members"
        case _:
            what = "its counts are at most a slot and its rows lie inside the operand"
    return f"{name}: {what}; checked when the counts are known"


class _Judge:
    """The transfers of one segment, and what they must be."""

    def __init__(self, executable: Executable, segment: Segment) -> None:
        self._executable, self._segment = executable, segment
        op = segment.placeholder.op
        program, number = executable.program, segment.number
        groups = np.array(segment.placeholder.groups)
        self._members = groups.shape[1]
        self._place: np.ndarray = np.zeros(segment.ranks, np.int64)  # of a member in its group
        self._group: np.ndarray = np.zeros(segment.ranks, np.int64)
        self._place[groups] = np.arange(self._members)
        self._group[groups] = np.arange(len(groups))[:, None]
        self._is_ragged = op is CollectiveOp.RAGGED_ALL_TO_ALL
        self._is_joined = op is CollectiveOp.REDUCE_SCATTER_V
        counts = program.placeholders[number].counts
        self._entries = self._members
        if self._is_ragged:
            self._entries = program.tensors[counts[0]].elements
        self._updates = self._entries // self._members
        self._operand = self._starts(Role.OPERAND)
        self._result = self._starts(Role.RESULT)
        sizes = [
            binding_of(segment.bindings, role, 0, 0).size_bytes
            for role in (Role.OPERAND, Role.RESULT)
        ]
        is_cut = not self._is_ragged and not self._is_joined
        self._slot = sizes[1] // self._members if is_cut else sizes[1]
        self._most = min(sizes[0], self._slot)
        self._loaded = Loaded.of(executable, segment)
        self.transfers = self._found()

    def _starts(self, role: Role) -> np.ndarray:
        """Where the buffer lies, by member."""
        found: np.ndarray = np.zeros(self._segment.ranks, np.int64)
        for binding in self._segment.bindings:
            if binding.role is role:
                found[binding.rows] = binding.start
        return found

    def _found(self) -> Transfers:
        loaded = self._loaded
        parts: list[tuple[np.ndarray, ...]] = []
        for number, ring in enumerate(self._segment.rings):
            row, rank = np.nonzero(ring.peer != IDLE)
            pushed = self._pushed(ring.lane, len(ring))[row]
            none: np.ndarray = np.full(len(row), IDLE, np.int64)
            columns: tuple[np.ndarray, ...] = (none,) * 3
            if ring.registers is not None:
                columns = tuple(one[row, rank] for one in ring.registers.columns)
            words = np.stack([loaded.words(rank, one) for one in columns], axis=1)
            late = np.stack([loaded.late(rank, one, pushed) for one in columns], axis=1)
            read = ring.sources[row, rank, 0] if ring.sources.shape[2] else none
            parts.append(
                (
                    np.full(len(row), number),
                    row,
                    rank,
                    ring.peer[row, rank],
                    self._is_join(read, rank),
                    read,
                    ring.target[row, rank],
                    ring.size_bytes[row, rank],
                    words,
                    late,
                )
            )
        return Transfers(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _is_join(self, read: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """Whether what is read are slots, not the operand."""
        if not self._is_joined:
            return np.zeros(len(rank), bool)
        return np.asarray(read != self._operand[rank])

    def _pushed(self, lane: int, rows: int) -> np.ndarray:
        """The row of the CC-core that pushes each row of a ring."""
        cc = self._segment.cc
        found: np.ndarray = np.zeros(rows, np.int64)
        at = np.flatnonzero(cc.lane == lane)
        found[cc.pushed[at]] = at
        return found

    def faults(self) -> Iterator[str]:
        """The first transfers that are not what they should be, and those that lack."""
        moves, named = self.transfers, 0
        for wrong, what in self._rules():
            for at in np.flatnonzero(wrong)[: MOST_FAULTS - named].tolist():
                named += 1
                ring = self._segment.rings[int(moves.ring[at])]
                where = self._segment.place(ring, int(moves.row[at]), int(moves.source[at]))
                yield f"{place_of(self._executable, *where)}: {what(at)}"
            if named:
                return
        yield from self._lacking()

    def _rules(self) -> Iterator[tuple[np.ndarray, _What]]:
        moves = self.transfers
        rank = self._segment.members.rank
        late = moves.late.any(axis=1)
        yield (
            np.asarray(late),
            lambda _: "uses a length register that is not loaded before it is pushed",
        )
        unknown = (moves.words == UNKNOWN).any(axis=1)
        yield (
            np.asarray(unknown),
            lambda _: "uses a length register that holds no word of its tables",
        )
        word = self._entry()
        inside = (word >= 0) & (word < self._entries)
        to = np.where(moves.joins, self._place[moves.source], self._place[moves.target])
        yield (
            np.logical_or(~inside, word // self._updates != to),
            lambda at: (
                f"moves as many rows to rank {rank(int(moves.target[at]))} as "
                f"{self._said_of(int(word[at]))}"
            ),
        )
        first = self._loaded.first[moves.source]
        source = np.where(moves.joins, IDLE, first[:, 0] + word + self._entries)
        target: np.ndarray = np.full(len(moves), IDLE, np.int64)
        if self._is_ragged:
            source, target = first[:, 0] + word, first[:, 2] + word
        yield (
            (moves.words[:, 1] != source) | (moves.words[:, 2] != target),
            lambda _: "takes its offsets from other words of the tables than its rows",
        )
        yield from self._places()

    def _entry(self) -> np.ndarray:
        """Which of the entries that count rows sent each transfer takes its rows from."""
        moves = self.transfers
        first = self._loaded.first[moves.source, int(self._is_ragged)]
        return np.asarray(moves.words[:, 0] - first)

    def _said_of(self, word: int) -> str:
        """Whose rows a word counts."""
        if not 0 <= word < self._entries:
            return "a word says that counts no rows sent"
        return f"are meant for member {word // self._updates} of its group"

    def _places(self) -> Iterator[tuple[np.ndarray, _What]]:
        moves = self.transfers
        yield self._strange(), lambda _: "is no plain copy of one source of its own"
        yield (
            self._group[moves.source] != self._group[moves.target],
            lambda _: "goes to another group",
        )
        yield (
            moves.size != self._most,
            lambda at: f"has descriptors for {int(moves.size[at])} bytes, the most is {self._most}",
        )
        sends = ~moves.joins
        yield (
            sends & (moves.read != self._operand[moves.source]),
            lambda _: "does not read from the first row of the operand on",
        )
        if self._is_joined:
            return
        slot = 0 if self._is_ragged else self._slot * self._place[moves.source]
        yield (
            moves.written != self._result[moves.target] + slot,
            lambda _: "does not write at its sender's slot",
        )

    def _strange(self) -> np.ndarray:
        """Transfers that are no copies where copies are meant."""
        moves = self.transfers
        found: np.ndarray = np.zeros(len(moves), bool)
        for number, ring in enumerate(self._segment.rings):
            own = np.flatnonzero((moves.ring == number) & ~moves.joins)
            row, rank = moves.row[own], moves.source[own]
            wrong = (ring.opcode[row] != DmaOpcode.COPY) | (ring.divisor[row] != 1)
            if ring.source_rank is not None:
                wrong |= (ring.source_rank[row, rank] != rank[:, None]).any(
                    axis=1, where=ring.sources[row, rank] != IDLE
                )
            if ring.second_peer is not None:
                wrong |= ring.second_peer[row, rank] != IDLE
            found[own] = wrong
        return found

    def _lacking(self) -> Iterator[str]:
        """Pairs of members between which an entry goes never, or more than once."""
        moves = self.transfers
        sends = ~moves.joins
        key = (moves.source * self._entries + self._entry())[sends]
        times = np.bincount(key, minlength=self._segment.ranks * self._entries)
        for at in np.flatnonzero(times != 1)[:MOST_FAULTS].tolist():
            member, entry = divmod(at, self._entries)
            group = self._segment.placeholder.groups[self._group[member]]
            rank = self._segment.members.rank
            update = f", update {entry % self._updates}" if self._updates > 1 else ""
            yield (
                f"{collective(self._executable, self._segment.number)}: {times[at]} transfers "
                f"from rank {rank(member)} to rank {rank(group[entry // self._updates])}{update}, "
                "must be 1"
            )

    def join_faults(self, moments: Moments) -> Iterator[str]:
        """What is wrong with the reductions of slots, in the order in which they come."""
        moves, segment = self.transfers, self._segment
        if not self._most:
            return  # rows of nothing
        slots = Slots(segment, self._result, self._most)
        for member, at in self._in_order(moments):
            ring, row = segment.rings[int(moves.ring[at])], int(moves.row[at])
            if moves.joins[at]:
                fault = slots.join(ring, row, member)
            else:
                fault = slots.arrive(int(moves.target[at]), int(moves.written[at]), member)
            if fault:
                where = place_of(self._executable, *segment.place(ring, row, member))
                yield f"{where}: {fault}"
                return
        yield from slots.lacking()

    def _in_order(self, moments: Moments) -> Iterator[tuple[int, int]]:
        """(member, transfer) in an order that the waits allow."""
        moves = self.transfers
        columns = (one.tolist() for one in (moves.ring, moves.row, moves.source))
        index = {key: at for at, key in enumerate(zip(*columns, strict=True))}
        for _, number, row, member in sorted(self._performed(moments)):
            at = index.get((number, row, member))
            if at is not None:
                yield member, at

    def _performed(self, moments: Moments) -> Iterator[tuple[int, int, int, int]]:
        """(moment, ring, row, member) of all rows."""
        everybody, inside = np.arange(self._executable.ranks), self._segment.members.inside
        rows = (
            (number, row, span)
            for number, ring in enumerate(self._segment.rings)
            for span in ring.spans
            for row in range(len(ring))
        )
        for number, row, span in rows:
            for moment, ranks in moments.get((span.queue, span.first + row), ()):
                who = span.ranks if ranks is None else ranks
                members = inside(everybody if who is None else who).tolist()
                yield from ((moment, number, row, one) for one in members if one != IDLE)
