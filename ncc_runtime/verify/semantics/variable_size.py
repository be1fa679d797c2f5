"""Proof of what collectives of variable size (v-collectives) compute, for all counts that fit.

A transfer with length registers moves rows of its source to rows of its target, from the first on:
some prefix of the slot that its descriptors are built for. So instead of bytes the proof follows
slots: there is one transfer from every member to every other for each of its entries, it takes its
rows and offsets from just the words that the tables have for this pair, reads the sender's operand,
and writes the sender's slot at the receiver, or, where offsets are free, the receiver's result. A
reduction joins the slots of all members, each once. What the tables must say is left to checks when
they are known (`execution/variable_sizes.py`).

A register that a run of descriptors uses must have been loaded before the run is pushed, and must
not be loaded again within the collective, for the run may be performed at any time until its end.
"""

from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE, Executable, RegisterLoad
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Tensor
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.order import Batch
from ncc_runtime.verify.bindings import Role, binding_of
from ncc_runtime.verify.conflicts import CC
from ncc_runtime.verify.places import breach_at, collective, place_of
from ncc_runtime.verify.proof import Breach
from ncc_runtime.verify.segments import DmaRingRows, Segment

MOST_FAULTS = 4
"""Transfers of one collective that a proof names."""

UNKNOWN = -2
"""In place of a word: a register holds no word of the collective's tables."""


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


def variable_size_breaches(
    executable: Executable, segment: Segment, batches: Sequence[Batch]
) -> Iterator[Breach]:
    """Everything that is wrong with the transfers of a collective, in the order of a run."""
    yield from _loaded_again(executable, segment)
    slots = _Slots(executable, segment)
    yield from slots.breaches()
    if segment.placeholder.op is CollectiveOp.REDUCE_SCATTER_V:
        yield from slots.reduction_breaches(batches)


# ---- what registers hold


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
            (one.first + one.words for loads in segment.cc.loads for one in loads.values()),
            default=0,
        )
        shape = (segment.ranks, count + 1)  # the last stands for a register beyond all
        word: np.ndarray = np.full(shape, UNKNOWN, np.int64)
        row_of: np.ndarray = np.full(shape, len(segment.cc), np.int64)
        tables_of = len(executable.program.placeholders[segment.number].counts)
        firsts: np.ndarray = np.zeros((segment.ranks, tables_of), np.int64)
        for span, loads in zip(segment.cc.spans, segment.cc.loads, strict=True):
            ranks = span.queue.ranks
            ranks = np.arange(executable.ranks) if ranks is None else ranks
            members = segment.members.inside(ranks)
            ranks, members = ranks[members != IDLE], members[members != IDLE]
            program = executable.stage_of(int(ranks[0])).program
            tensors = program.placeholders[segment.number].counts
            tables = [(program.address(tensor), program.tensors[tensor]) for tensor in tensors]
            known: dict[tuple[int, DType], int] = {}  # tables in one place are the same words
            before = 0
            for number, (start, table) in enumerate(tables):
                firsts[members, number] = known.setdefault((start, table.dtype), before)
                before += table.elements
            for row, load in sorted(loads.items()):
                address = np.broadcast_to(load.address, executable.ranks)[ranks]
                first = _first_word(tables, address, load)[:, None]
                into = slice(load.first, load.first + load.words)
                words = np.where(first == UNKNOWN, UNKNOWN, first + np.arange(load.words))
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


def _first_word(
    tables: Sequence[tuple[int, Tensor]], address: np.ndarray, load: RegisterLoad
) -> np.ndarray:
    """Which word of the tables, numbered through, the first of a LOAD is, by rank."""
    before = 0
    first: np.ndarray = np.full(len(address), UNKNOWN, np.int64)
    for start, table in tables:
        inside, rest = np.divmod(address - start, table.dtype.size_bytes)
        fits = (rest == 0) & (inside >= 0) & (inside + load.words <= table.elements)
        if load.dtype is table.dtype:
            first = np.where(fits & (first == UNKNOWN), before + inside, first)
        before += table.elements
    return first


def _loaded_again(executable: Executable, segment: Segment) -> Iterator[Breach]:
    """Registers that two LOADs of the collective fill."""
    for span, loads in zip(segment.cc.spans, segment.cc.loads, strict=True):
        filled: set[int] = set()
        for row, load in sorted(loads.items()):
            registers = range(load.first, load.first + load.words)
            again = [register for register in registers if register in filled]
            filled.update(registers)
            if again:
                ranks = span.queue.ranks
                cell = span.number, span.first + row, 0 if ranks is None else int(ranks[0])
                text = f"loads register {again[0]} again, while transfers may use it"
                text = f"{place_of(executable, *cell)}: {text}"
                yield breach_at(executable, "semantics.register", text, cell)


# ---- what transfers move


@attrs.frozen(eq=False)
class _Transfers:
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
    copies: np.ndarray  # bool: a plain copy of one source of its own to one target

    def __len__(self) -> int:
        return len(self.row)


class _Slots:
    """The slots of a collective's buffers, and the transfers that move them."""

    def __init__(self, executable: Executable, segment: Segment) -> None:
        self._executable, self._segment = executable, segment
        self._name = collective(executable, segment.number)
        op = segment.placeholder.op
        self._is_ragged = op is CollectiveOp.RAGGED_ALL_TO_ALL
        self._is_reduced = op is CollectiveOp.REDUCE_SCATTER_V
        groups = np.array(segment.placeholder.groups)
        size = groups.shape[1]
        self._place: np.ndarray = np.zeros(segment.ranks, np.int64)  # of a member in its group
        self._group: np.ndarray = np.zeros(segment.ranks, np.int64)
        self._place[groups] = np.arange(size)
        self._group[groups] = np.arange(len(groups))[:, None]
        self._entries = size  # of a table that counts rows sent
        if self._is_ragged:
            program = executable.program
            counts = program.placeholders[segment.number].counts
            self._entries = program.tensors[counts[0]].elements
        self._updates = self._entries // size  # entries for each receiver
        self._operand, self._result = np.zeros((2, segment.ranks), np.int64)  # address by member
        for binding in segment.bindings:
            if binding.role is not Role.CHANNEL:
                starts = self._operand if binding.role is Role.OPERAND else self._result
                starts[binding.rows] = binding.start
        operand_bytes, result_bytes = (
            binding_of(segment.bindings, role, 0, 0).size_bytes
            for role in (Role.OPERAND, Role.RESULT)
        )
        is_cut = not self._is_ragged and not self._is_reduced
        self._slot = result_bytes // size if is_cut else result_bytes
        self._most = min(operand_bytes, self._slot)  # bytes of one transfer
        self._loaded = Loaded.of(executable, segment)
        self._transfers = self._all_transfers()

    def _all_transfers(self) -> _Transfers:
        segment, loaded = self._segment, self._loaded
        parts: list[tuple[np.ndarray, ...]] = []
        for number, ring in enumerate(segment.rings):
            row, rank = np.nonzero(ring.peer != IDLE)
            pushed = segment.pushing[number][row]
            none: np.ndarray = np.full(len(row), IDLE, np.int64)
            registers: tuple[np.ndarray, ...] = (none,) * 3
            if ring.registers is not None:
                registers = tuple(column[row, rank] for column in ring.registers.columns)
            read = ring.sources[row, rank, 0] if ring.sources.shape[2] else none
            copies = (ring.opcode[row] == DmaOpcode.COPY) & (ring.divisor[row] == 1)
            if ring.source_rank is not None:
                is_other = ring.source_rank[row, rank] != rank[:, None]
                copies &= ~is_other.any(axis=1, where=ring.sources[row, rank] != IDLE)
            if ring.second_peer is not None:
                copies &= ring.second_peer[row, rank] == IDLE
            parts.append(
                (
                    np.full(len(row), number),
                    row,
                    rank,
                    ring.peer[row, rank],
                    self._is_reduced & (read != self._operand[rank]),
                    read,
                    ring.target[row, rank],
                    ring.size_bytes[row, rank],
                    np.stack([loaded.words(rank, one) for one in registers], axis=1),
                    np.stack([loaded.late(rank, one, pushed) for one in registers], axis=1),
                    copies,
                )
            )
        return _Transfers(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def breaches(self) -> Iterator[Breach]:
        """The first transfers that are not what they should be, and those that are missing."""
        segment, transfers, named = self._segment, self._transfers, 0
        for wrong, what in self._rules():
            for at in np.flatnonzero(wrong)[: MOST_FAULTS - named].tolist():
                named += 1
                ring = segment.rings[int(transfers.ring[at])]
                yield self._of_row(
                    ring, int(transfers.row[at]), int(transfers.source[at]), what(at)
                )
            if named:
                return
        sends = ~transfers.joins
        key = (transfers.source * self._entries + self._entry())[sends]
        times = np.bincount(key, minlength=segment.ranks * self._entries)
        for at in np.flatnonzero(times != 1)[:MOST_FAULTS].tolist():
            member, entry = divmod(at, self._entries)
            group = segment.placeholder.groups[self._group[member]]
            sender, receiver = map(segment.members.rank, (member, group[entry // self._updates]))
            update = f", update {entry % self._updates}" if self._updates > 1 else ""
            text = f"{times[at]} transfers from rank {sender} to rank {receiver}{update}, must be 1"
            yield self._missing(text)

    def _rules(self) -> Iterator[tuple[np.ndarray, Callable[[int], str]]]:
        """Which transfers are wrong, and what is wrong with each; later rules presume earlier."""
        transfers = self._transfers
        yield (
            np.asarray(transfers.late.any(axis=1)),
            lambda _: "uses a length register that is not loaded before it is pushed",
        )
        yield (
            np.asarray((transfers.words == UNKNOWN).any(axis=1)),
            lambda _: "uses a length register that holds no word of its tables",
        )
        entry = self._entry()
        is_entry = (entry >= 0) & (entry < self._entries)
        meant = entry // self._updates
        to = self._place[np.where(transfers.joins, transfers.source, transfers.target)]
        yield (
            np.logical_or(~is_entry, meant != to),
            lambda at: (
                f"moves as many rows to rank {self._rank(transfers.target[at])} as "
                + (
                    f"are meant for member {meant[at]} of its group"
                    if is_entry[at]
                    else "a word says that counts no rows sent"
                )
            ),
        )
        first = self._loaded.first[transfers.source]
        source = np.where(transfers.joins, IDLE, first[:, 0] + entry + self._entries)
        target: np.ndarray = np.full(len(transfers), IDLE, np.int64)
        if self._is_ragged:
            source, target = first[:, 0] + entry, first[:, 2] + entry
        yield (
            (transfers.words[:, 1] != source) | (transfers.words[:, 2] != target),
            lambda _: "takes its offsets from other words of the tables than its rows",
        )
        sends = ~transfers.joins
        yield sends & ~transfers.copies, lambda _: "is no plain copy of one source of its own"
        yield (
            self._group[transfers.source] != self._group[transfers.target],
            lambda _: "goes to another group",
        )
        yield (
            transfers.size != self._most,
            lambda at: f"has descriptors for {transfers.size[at]} bytes, the most is {self._most}",
        )
        yield (
            sends & (transfers.read != self._operand[transfers.source]),
            lambda _: "does not read from the first row of the operand on",
        )
        if not self._is_reduced:
            slot = 0 if self._is_ragged else self._slot * self._place[transfers.source]
            yield (
                transfers.written != self._result[transfers.target] + slot,
                lambda _: "does not write at its sender's slot",
            )

    def _entry(self) -> np.ndarray:
        """Which of the entries that count rows sent each transfer takes its rows from."""
        transfers = self._transfers
        first = self._loaded.first[transfers.source, int(self._is_ragged)]
        return np.asarray(transfers.words[:, 0] - first)

    def _rank(self, member: int) -> int:
        return self._segment.members.rank(int(member))

    def _of_row(
        self, ring: DmaRingRows, row: int, member: int, what: str, name: str = ""
    ) -> Breach:
        cell = self._segment.place(ring, row, member)
        text = f"{name}{place_of(self._executable, *cell)}: {what}"
        return breach_at(self._executable, "semantics.transfer", text, cell)

    def _missing(self, text: str) -> Breach:
        numbers = frozenset(self._segment.numbers)
        return Breach("semantics.missing", f"{self._name}: {text}", placeholders=numbers)

    def reduction_breaches(self, batches: Sequence[Batch]) -> Iterator[Breach]:
        """The first thing that is wrong with the reductions of slots, in the order of a run."""
        if not self._most:
            return  # rows of nothing
        segment, transfers = self._segment, self._transfers
        columns = (one.tolist() for one in (transfers.ring, transfers.row, transfers.source))
        index = {key: at for at, key in enumerate(zip(*columns, strict=True))}
        held = _Held(segment, self._result, self._most)
        for queue, row, ranks in batches:
            if queue == CC:
                continue
            ring = segment.rings[queue - 1]
            for member in range(segment.ranks) if ranks is None else ranks.tolist():
                at = index.get((queue - 1, row, member))
                if at is None:
                    continue
                if transfers.joins[at]:
                    fault = held.join(ring, row, member)
                else:
                    target, address = int(transfers.target[at]), int(transfers.written[at])
                    fault = held.put(target, address, frozenset({member}))
                if fault:
                    yield self._of_row(ring, row, member, fault, f"{self._name}: ")
                    return
        missing = [one for group in segment.placeholder.groups for one in group]
        missing = [member for member in missing if member not in held.done]
        if missing:
            text = f"nothing is written into the result of rank {self._rank(missing[0])}"
            yield self._missing(text)


class _Held:
    """Whose rows lie in the slots of every member, as reductions join them."""

    def __init__(self, segment: Segment, result: np.ndarray, most: int) -> None:
        self._segment, self._result, self._most = segment, result, most
        self._channels = [binding for binding in segment.bindings if binding.role is Role.CHANNEL]
        self._slots: dict[int, dict[int, frozenset[int]]] = {}  # by member: address → whose rows
        self.done: set[int] = set()  # members whose result is written

    def put(self, member: int, address: int, whose: frozenset[int]) -> str:
        """Rows have come to a member; what is wrong with that."""
        slots = self._slots.setdefault(member, {})
        is_inside = any(
            binding.start <= address and address + self._most <= binding.end
            for binding in self._channels
            if binding.members is None or member in binding.members
        )
        if not is_inside:
            return "writes outside of the channel buffer and the result"
        if any(abs(address - other) < self._most for other in slots):
            return "writes over a slot that is to be joined"
        slots[address] = whose
        return ""

    def join(self, ring: DmaRingRows, row: int, member: int) -> str:
        """A reduction at a member; what is wrong with it."""
        rank_of = self._segment.members.rank
        slots = self._slots.setdefault(member, {})
        is_copy = ring.opcode[row] == DmaOpcode.COPY
        is_source = ring.sources[row, member] != IDLE
        sources = ring.sources[row, member][is_source].tolist()
        is_own = int(ring.peer[row, member]) == member
        if ring.second_peer is not None:
            is_own &= int(ring.second_peer[row, member]) == IDLE
        if ring.source_rank is not None:
            is_own &= bool((ring.source_rank[row, member][is_source] == member).all())
        if not is_own:
            return "joins slots of another rank, or for one"
        if not sources or (is_copy and len(sources) > 1):
            return "joins nothing" if not sources else "copies one of several sources"
        if not is_copy and ring.opcode[row] != DmaOpcode.REDUCE:
            return "is no copy and no reduction"
        unknown = [source for source in sources if source not in slots]
        if unknown:
            return f"joins {unknown[0]:#x}, where the rows of nobody have come"
        whose: frozenset[int] = frozenset()
        for source in sources:
            twice = whose & slots[source]
            if twice:
                return f"joins the rows of rank {rank_of(min(twice))} twice"
            whose |= slots[source]
        for source in sources:
            del slots[source]
        target = int(ring.target[row, member])
        divided = 1 if is_copy else int(ring.divisor[row])  # a copy divides nothing
        if target != int(self._result[member]):
            return "divides too early" if divided != 1 else self.put(member, target, whose)
        placeholder = self._segment.placeholder
        group = next(group for group in placeholder.groups if member in group)
        missing = sorted(set(group) - whose)
        if missing:
            return f"joins without the rows of rank {rank_of(missing[0])}"
        divisor = len(group) if placeholder.reduction is Reduction.AVERAGE else 1
        if divided != divisor:
            return f"divides by {divided}, must be {divisor}"
        if member in self.done:
            return "writes the result again"
        self.done.add(member)
        return ""
