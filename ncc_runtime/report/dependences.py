"""Which instructions of a rank a collective needs, and which need it, by the data they touch.

Events are taken in the order in which they start. A race-free program has written what it reads by
then, so the last writer of every byte is who made it. What is read again from a reused buffer is no
dependence. Events are few on one rank; sets of collectives are bits of a whole number.
"""

import bisect
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.trace import Trace, works
from ncc_runtime.lowering.executable import EngineQueue
from ncc_runtime.neff.program import Program

MOST_EVENTS = 200_000
"""A rank with more instructions is not looked at."""

MOST_PAIRS = 200_000_000
"""Nor one with more pairs of an instruction and a collective that is asked about."""


@attrs.frozen(eq=False)
class Independence:
    """Which computing events of a rank neither need a run of a collective nor are needed by it."""

    events: np.ndarray  # (n,) int64, the computing events
    of_run: np.ndarray  # (runs, n) bool, of the runs that were asked about, in their order


def independence(trace: Trace, rank: int, runs: np.ndarray) -> Independence | None:
    """How the computing events of a rank stand to these of its runs of collectives.

    `runs` are positions in `trace.runs`. None if that is too much to find out.
    """
    wanted = np.arange(trace.executable.seen) == rank
    blocks = list(trace.blocks(trace.queues_of(EngineQueue), wanted))
    computing = [_working(trace, number, events) for number, events in blocks]
    count = sum(map(len, computing))
    if count > MOST_EVENTS or count * len(runs) > MOST_PAIRS:
        return None
    touched = _touched(trace, rank, [number for number, _ in blocks], computing)
    own = np.flatnonzero(trace.runs.rank == rank)
    events = np.concatenate([trace.runs.first[own], *computing])
    bits = {int(run): bit for bit, run in enumerate(runs.tolist())}
    bit_of = [bits.get(run) for run in own.tolist()] + [None] * (len(events) - len(own))
    order = np.lexsort((events, trace.end_ps[events], trace.start_ps[events])).tolist()
    makers = _makers(touched, order)
    needs, needed = _closures(makers, bit_of, order)
    tied = [needs[at] | needed[at] for at in range(len(own), len(events))]
    return Independence(events[len(own) :], ~_bits(tied, len(runs)).T)


def _bits(numbers: Sequence[int], width: int) -> np.ndarray:
    """The lowest bits of whole numbers, (numbers, width) bool."""
    size = -(-width // 8)
    columns = np.frombuffer(b"".join(one.to_bytes(size, "little") for one in numbers), np.uint8)
    bits = np.unpackbits(columns.reshape(len(numbers), size), axis=1, bitorder="little")
    return bits[:, :width].astype(bool)


def _working(trace: Trace, number: int, events: np.ndarray) -> np.ndarray:
    queue = trace.executable.queues[number]
    assert isinstance(queue, EngineQueue)
    return np.asarray(events[works(queue)[trace.row[events]]])


Range = tuple[int, int]
"""Addresses [first, behind the last)."""

Touched = tuple[Sequence[Range], Sequence[Range]]
"""What is read, and what is written."""


def _touched(
    trace: Trace, rank: int, queues: Sequence[int], computing: Sequence[np.ndarray]
) -> list[Touched]:
    """Of the collectives' runs of a rank, then of its computing events."""
    found: list[Touched] = []
    program = trace.executable.stage_of(rank).program
    for number in trace.runs.placeholder[trace.runs.rank == rank].tolist():
        placeholder = program.placeholders[number]
        found.append(
            (
                _ranges(program, (*placeholder.operands, *placeholder.counts)),
                _ranges(program, placeholder.results),
            )
        )
    for number, events in zip(queues, computing, strict=True):
        queue = trace.executable.queues[number]
        assert isinstance(queue, EngineQueue)
        rows = [
            (_ranges(program, row.operands), _ranges(program, row.results)) for row in queue.table
        ]
        found += [rows[row] for row in trace.row[events].tolist()]
    return found


def _ranges(program: Program, tensors: Sequence[int]) -> list[Range]:
    return [
        (program.address(one), program.address(one) + program.tensors[one].size_bytes)
        for one in tensors
    ]


class _LastWriters:
    """Who wrote every address last; what nobody wrote has no maker."""

    def __init__(self) -> None:
        self._low: list[int] = [0]
        self._writer: list[int | None] = [None]

    def write(self, place: Range, writer: int) -> None:
        low, high = place
        if low == high:
            return
        self._cut(high)
        self._cut(low)
        first, last = bisect.bisect_left(self._low, low), bisect.bisect_left(self._low, high)
        self._low[first:last], self._writer[first:last] = [low], [writer]

    def read(self, place: Range) -> Iterator[int]:
        low, high = place
        first = bisect.bisect_right(self._low, low) - 1
        last = bisect.bisect_left(self._low, high)
        yield from (one for one in self._writer[first:last] if one is not None)

    def _cut(self, at: int) -> None:
        """Let a stretch begin here."""
        after = bisect.bisect_right(self._low, at)
        if self._low[after - 1] != at:
            self._low.insert(after, at)
            self._writer.insert(after, self._writer[after - 1])


def _makers(touched: Sequence[Touched], order: Sequence[int]) -> list[set[int]]:
    """Who made what each one reads."""
    last, found = _LastWriters(), [set[int]() for _ in touched]
    for at in order:
        reads, writes = touched[at]
        for place in reads:
            found[at].update(last.read(place))
        for place in writes:
            last.write(place, at)
    return found


def _closures(
    makers: Sequence[set[int]], bit_of: Sequence[int | None], order: Sequence[int]
) -> tuple[list[int], list[int]]:
    """Of each one, the collectives that it needs, and those that need it, as bits."""
    own = [0 if bit is None else 1 << bit for bit in bit_of]
    needs, needed = [0] * len(makers), [0] * len(makers)
    for at in order:
        for maker in makers[at]:
            needs[at] |= needs[maker] | own[maker]
    for at in reversed(order):
        for maker in makers[at]:
            needed[maker] |= needed[at] | own[at]
    return needs, needed
