"""What memory holds, as symbols: every unit of bytes knows which contributions it is made of.

Initial memory is a symbol per unit; a copy hands symbols on; a reduction is the multiset of what it
joins. Two values are equal if and only if the same things were joined, each as often.
"""

import math
from collections.abc import Iterable, Iterator, Sequence

import attrs

from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import READ_ONLY
from ncc_runtime.neff.shared.reductions import Reduction
from tests.model_checker_steps import Bytes, Compute, Move, Row, Stage, Visit

Symbols = tuple[int, ...]
"""A value per unit of bytes."""


def unit_of(executable: Executable, chains: Iterable[Sequence[Row]]) -> int:
    """The largest number of bytes that divides every address and size."""
    found = 0
    for chain in chains:
        for row in chain:
            for access in row.accesses:
                found = math.gcd(found, access.start, access.end)
    for tensor in range(len(executable.program.tensors)):
        size = executable.program.tensors[tensor].size_bytes
        found = math.gcd(found, executable.program.address(tensor), size)
    return found or 1


def strays(executable: Executable, row: Row) -> Iterator[str]:
    """What a row of descriptors reads or writes that is not its placeholder's."""
    if not isinstance(row.effect, Move):
        return
    program = executable.program
    placeholder = program.placeholders[row.effect.placeholder]
    facts = next(one for one in executable.streams if one.stream == placeholder.stream)
    scratch = [(facts.scratch_address, facts.scratch_bytes)]
    operands, results = (
        [(program.address(one), program.tensors[one].size_bytes) for one in tensors]
        for tensors in (placeholder.operands, placeholder.results)
    )
    for what, places, allowed in (
        ("reads", row.effect.sources, operands + results + scratch),
        ("writes", row.effect.targets, results + scratch),
    ):
        for _, start, size in places:
            if not any(at <= start and start + size <= at + room for at, room in allowed):
                yield f"{row.place} {what} what is not its placeholder's"


@attrs.define(eq=False)
class Memory:
    """Symbols of every rank's memory; unwritten units are their own symbols."""

    executable: Executable
    unit: int
    _held: dict[tuple[int, int], int] = attrs.field(factory=dict)  # by rank and unit
    _number: dict[object, int] = attrs.field(factory=dict)
    _meaning: list[object] = attrs.field(factory=list)
    _asked: set[tuple[int, int, int]] = attrs.field(factory=set)
    _entered: dict[tuple[int, int, int], tuple[Symbols, ...]] = attrs.field(factory=dict)
    _left: dict[tuple[int, int, int], tuple[tuple[Symbols, ...], set[int]]] = attrs.field(
        factory=dict
    )

    def fork(self) -> "Memory":
        """A copy that goes its own way; symbols mean the same in both."""
        return attrs.evolve(
            self,
            held=dict(self._held),
            asked=set(self._asked),
            entered=dict(self._entered),
            left=dict(self._left),
        )

    def key(self) -> object:
        """Equal for equal contents, and equal contents at entries and completions."""
        left = ((visit, symbols) for visit, (symbols, _) in self._left.items())
        return (
            frozenset(self._held.items()),
            frozenset(self._entered.items()),
            frozenset(left),
        )

    def perform(self, row: Row) -> None:
        """What a row does to memory."""
        match row.effect:
            case Visit() as visit:
                self._visit(visit)
            case Move() as move:
                self._move(move)
            case Compute() as compute:
                operands = tuple(self._read(one) for one in compute.operands)
                for number, place in enumerate(compute.results):
                    what = ("compute", compute.what, operands, number)
                    units = range(place[2] // self.unit)
                    self._write(place, [self._symbol((*what, unit)) for unit in units])

    def _symbol(self, meaning: object) -> int:
        if meaning not in self._number:
            self._number[meaning] = len(self._meaning)
            self._meaning.append(meaning)
        return self._number[meaning]

    def _read(self, place: Bytes) -> Symbols:
        rank, start, size = place
        units = range(start // self.unit, (start + size) // self.unit)
        return tuple(
            self._held[rank, unit]
            if (rank, unit) in self._held
            else self._symbol(("memory", rank, unit))
            for unit in units
        )

    def _write(self, place: Bytes, symbols: Sequence[int]) -> None:
        rank, start, _ = place
        for unit, symbol in enumerate(symbols, start // self.unit):
            self._held[rank, unit] = symbol

    def _move(self, move: Move) -> None:
        placeholder = self.executable.program.placeholders[move.placeholder]
        read = [self._read(one) for one in move.sources]
        units = range(move.targets[0][2] // self.unit)
        if move.opcode is DmaOpcode.FILL:
            symbols = [self._symbol("zero") for _ in units]
        elif move.opcode is DmaOpcode.COPY:
            symbols = list(read[0])
        else:
            key = (move.placeholder, move.occasion, placeholder.reduction)
            symbols = [self._joined(key, move.divisor, parts) for parts in zip(*read, strict=True)]
        for target in move.targets:
            self._write(target, symbols)

    def _joined(self, key: object, divisor: int, parts: Sequence[int]) -> int:
        """The multiset of what is joined; partial sums of the same placeholder are taken apart."""
        leaves: list[int] = []
        for part in parts:
            match self._meaning[part]:
                case ("sum", tag, 1, inside) if tag == key:
                    leaves += inside
                case _:
                    leaves.append(part)
        if divisor == 1 and len(leaves) == 1:
            return leaves[0]
        return self._symbol(("sum", key, divisor, tuple(sorted(leaves))))

    def _places(self, tensors: Iterable[int], rank: int) -> list[Bytes]:
        program = self.executable.program
        return [(rank, program.address(one), program.tensors[one].size_bytes) for one in tensors]

    def _visit(self, visit: Visit) -> None:
        placeholder = self.executable.program.placeholders[visit.placeholder]
        key = visit.placeholder, visit.occasion, visit.rank
        if visit.stage is Stage.ASKED:
            self._asked.add(key)
            return
        if visit.stage is Stage.BEGUN:
            places = self._places(placeholder.operands, visit.rank)
            self._entered[key] = tuple(map(self._read, places))
            return
        results = tuple(map(self._read, self._places(placeholder.results, visit.rank)))
        there = {rank for number, occasion, rank in self._asked if (number, occasion) == key[:2]}
        self._left[key] = results, there

    def wrong(self) -> Iterator[str]:
        """Completions whose results are not what the operator promises, and input overwritten."""
        program = self.executable.program
        for (number, occasion, rank), (results, there) in self._left.items():
            placeholder = program.placeholders[number]
            where = f"p{number} on rank {rank}, time {occasion}"
            group = next((one for one in placeholder.groups if rank in one), ())
            if placeholder.op is CollectiveOp.BARRIER:
                if not there.issuperset(group):
                    yield f"{where} is done before ranks {set(group) - there} have come"
                continue
            givers = group or [one for one, target in placeholder.pairs if target == rank]
            if any((number, occasion, one) not in self._entered for one in givers):
                yield f"{where} is done, and not all who give it something began"
                continue
            for tensor, found in enumerate(results):
                wanted = tuple(self._wanted(placeholder, (number, occasion, rank), group, tensor))
                if wanted != found:
                    yield f"{where}: result {tensor} is {self._about(found, wanted)}"
        for number, buffer in enumerate(program.buffers):
            units = range(buffer.address // self.unit, buffer.end // self.unit)
            touched = any((rank, unit) in self._held for rank in self._ranks for unit in units)
            if buffer.kind in READ_ONLY and number not in program.donated().values() and touched:
                yield f"buffer {number}, {buffer.name}, is read-only and was written"

    @property
    def _ranks(self) -> range:
        return range(self.executable.ranks)

    def _about(self, found: Symbols, wanted: Symbols) -> str:
        at = next(k for k, pair in enumerate(zip(found, wanted, strict=True)) if len(set(pair)) > 1)
        return f"{self._text(found[at])} at unit {at}, not {self._text(wanted[at])}"

    def _text(self, symbol: int) -> str:
        match self._meaning[symbol]:
            case ("sum", _, divisor, inside):
                return f"sum({', '.join(map(self._text, inside))})/{divisor}"
            case other:
                return str(other)

    def _wanted(
        self, placeholder: Placeholder, key: tuple[int, int, int], group: Sequence[int], tensor: int
    ) -> Symbols:
        """What the operator promises to a rank, from what all had when they came."""
        number, occasion, rank = key
        size = self.executable.program.tensors[placeholder.results[tensor]].size_bytes
        zeros = (self._symbol("zero"),) * (size // self.unit)

        def given(member: int) -> Symbols:
            return self._entered[number, occasion, member][tensor]

        if placeholder.op is CollectiveOp.PERMUTE:
            sources = [source for source, target in placeholder.pairs if target == rank]
            return given(sources[0]) if sources else zeros
        if not group:
            return zeros
        mine, members = group.index(rank), len(group)

        def chunk(symbols: Symbols) -> Symbols:
            width = len(symbols) // members
            return symbols[mine * width : (mine + 1) * width]

        def joined(columns: Iterable[Symbols]) -> Symbols:
            divisor = members if placeholder.reduction is Reduction.AVERAGE else 1
            tag = (number, occasion, placeholder.reduction)
            parts = zip(*columns, strict=True)
            return tuple(self._joined(tag, divisor, part) for part in parts)

        root = group[placeholder.root] if placeholder.root is not None else IDLE_ROOT
        match placeholder.op:
            case CollectiveOp.ALL_REDUCE:
                return joined(map(given, group))
            case CollectiveOp.REDUCE_SCATTER:
                return joined(chunk(given(member)) for member in group)
            case CollectiveOp.ALL_GATHER:
                return sum(map(given, group), ())
            case CollectiveOp.ALL_TO_ALL:
                return sum((chunk(given(member)) for member in group), ())
            case CollectiveOp.BROADCAST:
                return given(root)
            case CollectiveOp.SCATTER:
                return chunk(given(root))
            case CollectiveOp.REDUCE:
                return joined(map(given, group)) if rank == root else zeros
            case CollectiveOp.GATHER:
                return sum(map(given, group), ()) if rank == root else zeros
        raise AssertionError(placeholder.op)


IDLE_ROOT = -1
