"""The order in which the collectives of an executable reduce, read from its descriptors.

Rows are performed as for the proof of semantics (`verify/semantics/replay.py`), in an order that
the waits allow, but a cell of memory holds the number of an expression (`sums.py`) in place of a
fingerprint. Since a proved program joins equal elements of all members only, an expression does
not say which element of an operand it reads: it is that of the result.
"""

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.bits.sums import UNWRITTEN, ZEROS, Arithmetic, Sums
from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE, Executable
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.neff.stages import participants
from ncc_runtime.order import Batch
from ncc_runtime.verify.bindings import Members, Role
from ncc_runtime.verify.conflicts import CC
from ncc_runtime.verify.counters import Edges
from ncc_runtime.verify.deadlock import greedy
from ncc_runtime.verify.prove import Evidence
from ncc_runtime.verify.segments import Segment, segments
from ncc_runtime.verify.semantics.cells import MemoryCells, cells_of
from ncc_runtime.verify.semantics.fingerprints import LOW_BITS, Powers
from ncc_runtime.verify.semantics.replay import Memory, Replay


@attrs.frozen(eq=False)
class ResultOrder:
    """How one rank's result of a collective is reduced, interval by interval.

    Of a collective of variable size the whole slot is one interval, whatever lies in it.
    """

    rank: int
    group: tuple[int, ...]  # whose operands are reduced: member k of an expression is group[k]
    result: int  # which result of the placeholder
    start: np.ndarray  # (intervals,) int64, bytes into the result, ascending from 0
    size_bytes: int
    expression: np.ndarray  # (intervals,) int64, numbers in `Sums`

    @property
    def sizes(self) -> np.ndarray:
        """Bytes of each interval, (intervals,) int64."""
        return np.diff(self.start, append=self.size_bytes)


@attrs.frozen(eq=False)
class CollectiveOrder:
    """In which order a placeholder's collective reduces."""

    sums: Sums
    results: tuple[ResultOrder, ...]  # by rank and result; empty where no order shows in the bits


class SumsOf:
    """The expressions of every arithmetic, shared by the executables that are compared."""

    def __init__(self) -> None:
        self._sums: dict[Arithmetic, Sums] = {}

    def __call__(self, placeholder: Placeholder) -> Sums:
        """Those of a placeholder that reduces."""
        assert placeholder.reduction is not None, "a collective that reduces"
        arithmetic = Arithmetic(placeholder.reduction, placeholder.dtype)
        return self._sums.setdefault(arithmetic, Sums(arithmetic))


def orders(
    executable: Executable,
    sums_of: SumsOf | None = None,
    wanted: Sequence[int] | None = None,
    evidence: Evidence | None = None,
) -> Mapping[int, CollectiveOrder]:
    """By placeholder that reduces; of `wanted` ones only, if given.

    Presumes that the executable is proved; `evidence` is that of its proofs, if at hand.
    Executables that are compared share `sums_of`: then equal numbers are equal bits. LoweringError
    if ranks have no columns of their own.
    """
    executable.check_is_whole()
    sums_of = sums_of or SumsOf()
    placeholders = executable.program.placeholders
    reducing = {
        number
        for number in (range(len(placeholders)) if wanted is None else wanted)
        if placeholders[number].op.reduces
    }
    found: dict[int, CollectiveOrder] = {}
    shown = {n for n in reducing if not sums_of(placeholders[n]).arithmetic.is_exact}
    for number in reducing - shown:
        found[number] = CollectiveOrder(sums_of(placeholders[number]), ())
    if not shown:
        return found
    if evidence is None:
        edges = Edges(executable)
        run = greedy(executable, edges)
        assert not run.stuck, "a program that is proved comes to its end"
        evidence = Evidence(segments(executable, edges), run)
    for segment in evidence.segments:
        equal = [number for number in segment.numbers if number in shown]
        if equal:
            sums = sums_of(segment.placeholder)
            batches = segment.batches(evidence.run)
            read = _of_slots if segment.placeholder.op.is_counted else _of_cells
            results = read(segment, batches, sums)
            known: dict[tuple[int, ...] | None, tuple[ResultOrder, ...]] = {}  # by ranks
            for number in equal:
                ranks = participants(placeholders[number])
                if ranks not in known:
                    members = Members.of(placeholders[number], executable.ranks)
                    known[ranks] = _among(results, segment.members, members)
                found[number] = CollectiveOrder(sums, known[ranks])
    return dict(sorted(found.items()))


def _among(
    results: tuple[ResultOrder, ...], own: Members, others: Members
) -> tuple[ResultOrder, ...]:
    """The orders of a segment where it stands for a collective of others than its own members.

    Joined programs have equal collectives among the ranks of each.
    """
    if own.order is others.order is None:
        return results
    rank_of = {own.rank(member): others.rank(member) for member in range(own.count)}
    return tuple(
        attrs.evolve(one, rank=rank_of[one.rank], group=tuple(rank_of[r] for r in one.group))
        for one in results
    )


def _groups(segment: Segment) -> Sequence[tuple[tuple[int, ...], Sequence[int]]]:
    """Groups of members, and those of each that have a result."""
    root = segment.placeholder.root
    return [
        (group, group if root is None else [group[root]]) for group in segment.placeholder.groups
    ]


def _first_expressions(segment: Segment, sums: Sums) -> np.ndarray:
    """By member the expression of its own contribution."""
    first: np.ndarray = np.full(segment.ranks, UNWRITTEN, np.uint64)
    for group, _ in _groups(segment):
        for place, member in enumerate(group):
            first[member] = sums.member(place)
    return first


def _ranks(segment: Segment, members: Sequence[int]) -> tuple[int, ...]:
    return tuple(segment.members.rank(member) for member in members)


# ---- collectives of fixed size


def _of_cells(segment: Segment, batches: Sequence[Batch], sums: Sums) -> tuple[ResultOrder, ...]:
    """What every result holds when all rows are performed."""
    cells = cells_of(dict.fromkeys(segment.bindings, 1), segment.rings)
    while True:
        memory = _memory(segment, cells, sums)
        replay = _ExpressionReplay(segment, memory, sums)
        for queue, row, ranks in batches:
            if queue != CC:
                replay.perform(queue - 1, row, ranks)
        if not replay.mixed:
            break
        # a cell was written with several expressions: cut it there, and begin anew
        cells = cells.cut(*map(np.concatenate, zip(*replay.mixed, strict=True)))
    results = []
    for binding in segment.bindings:
        if binding.role is not Role.RESULT or not binding.size_bytes:
            continue
        within = cells.within(binding)
        start = cells.offset[within] - cells.offset[within.start]
        for group, having in _groups(segment):
            for member in having:
                if binding.members is not None and member not in binding.members:
                    continue
                held = memory.of_ranks[member, within].astype(np.int64)
                is_new = np.append(True, held[1:] != held[:-1])
                results.append(
                    ResultOrder(
                        segment.members.rank(member),
                        _ranks(segment, group),
                        binding.index,
                        start[is_new],
                        binding.size_bytes,
                        held[is_new],
                    )
                )
    return tuple(sorted(results, key=lambda one: (one.rank, one.result)))


def _memory(segment: Segment, cells: MemoryCells, sums: Sums) -> Memory:
    """Operands hold their members' contributions; all weights are 1, for all elements are alike."""
    extents = cells.extents
    longest = int((extents.end - extents.start).max())
    ones = np.ones(1 << LOW_BITS, np.uint64), np.ones((longest >> LOW_BITS) + 1, np.uint64)
    held: np.ndarray = np.full(segment.ranks * len(cells) + 2, UNWRITTEN, np.uint64)
    held[-2] = ZEROS
    of_ranks = held[:-2].reshape(segment.ranks, -1)
    first = _first_expressions(segment, sums)
    is_operand = np.zeros(len(extents.start), bool)
    for binding in segment.bindings:
        if binding.role is Role.OPERAND and binding.size_bytes:
            is_operand[extents.number(np.array(binding.start))] = True
    of_ranks[:, is_operand[cells.extent]] = first[:, None]
    element_bytes = segment.placeholder.dtype.size_bytes
    symbols: np.ndarray = np.zeros((0, 0), np.uint64)
    return Memory(cells, element_bytes, Powers(*ones), symbols, held)


class _ExpressionReplay(Replay):
    """Performs rows on numbers of expressions."""

    def __init__(self, segment: Segment, memory: Memory, sums: Sums) -> None:
        super().__init__(segment, memory)
        self._sums = sums

    def joined(self, reads: Sequence[np.ndarray], divisor: int) -> np.ndarray:
        """The expressions of what is joined."""
        if not reads:
            return np.full(1, ZEROS, np.uint64)
        if len(reads) == 1 and divisor == 1:
            return reads[0]
        columns = (read.tolist() for read in reads)
        numbers = [self._sums.joined(parts, divisor) for parts in zip(*columns, strict=True)]
        return np.array(numbers, np.uint64)


# ---- reduce-scatter of variable size


def _of_slots(segment: Segment, batches: Sequence[Batch], sums: Sums) -> tuple[ResultOrder, ...]:
    """The same where transfers move slots, of which each is one cell: by where it begins."""
    first = _first_expressions(segment, sums).tolist()
    slots: dict[tuple[int, int], int] = {}  # by member and address

    def address_of(role: Role, member: int) -> int:
        return next(
            binding.start
            for binding in segment.bindings
            if binding.role is role and (binding.members is None or member in binding.members)
        )

    operand = [address_of(Role.OPERAND, member) for member in range(segment.ranks)]
    for queue, row, ranks in batches:
        if queue == CC:
            continue
        ring = segment.rings[queue - 1]
        written: list[tuple[tuple[int, int], int]] = []
        for member in range(segment.ranks) if ranks is None else ranks.tolist():
            peer = int(ring.peer[row, member])
            if peer == IDLE:
                continue
            addresses = [one for one in ring.sources[row, member].tolist() if one != IDLE]
            parts = [
                first[member] if at == operand[member] else slots.get((member, at), UNWRITTEN)
                for at in addresses
            ]
            divisor = int(ring.divisor[row]) if ring.opcode[row] == DmaOpcode.REDUCE else 1
            target = peer, int(ring.target[row, member])
            written.append((target, sums.joined(parts, divisor)))
        slots.update(written)
    results = []
    for group, having in _groups(segment):
        for member in having:
            address = address_of(Role.RESULT, member)
            size = next(b.size_bytes for b in segment.bindings if b.role is Role.RESULT)
            expression = np.array([slots.get((member, address), UNWRITTEN)])
            rank, ranks_of_group = segment.members.rank(member), _ranks(segment, group)
            start = np.zeros(1, np.int64)
            results.append(ResultOrder(rank, ranks_of_group, 0, start, size, expression))
    return tuple(sorted(results, key=lambda one: one.rank))


def divisor_of(placeholder: Placeholder, members: int) -> int:
    """By what the reduction of so many members is divided."""
    return members if placeholder.reduction is Reduction.AVERAGE else 1
