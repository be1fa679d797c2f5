"""What two clocks say of one run, side by side."""

from collections import defaultdict
from collections.abc import Sequence
from fractions import Fraction

import attrs

from ncc_runtime.execution.trace import Reason, Trace


@attrs.frozen
class Performed:
    """One row as a rank performed it."""

    queue: int
    rank: int
    turn: int  # which of the rows that this rank performed in this queue
    row: int
    start: int
    end: int
    cause: tuple[int, int, int] | None  # queue, rank and turn of another
    reason: Reason
    slowed: int

    @property
    def key(self) -> tuple[int, int, int]:
        return self.queue, self.rank, self.turn


def performed_in(trace: Trace) -> list[Performed]:
    """What a trace says, in the words of the reference."""
    turns: dict[tuple[int, int], int] = defaultdict(int)
    keys: list[tuple[int, int, int]] = []
    for queue, rank in zip(trace.queue.tolist(), trace.rank.tolist(), strict=True):
        keys.append((queue, rank, turns[queue, rank]))
        turns[queue, rank] += 1
    columns = (trace.row, trace.start_ps, trace.end_ps, trace.cause, trace.reason, trace.slowed_ps)
    rows = zip(keys, *(column.tolist() for column in columns), strict=True)
    return [
        Performed(*key, row, start, end, keys[cause] if cause >= 0 else None, Reason(why), slowed)
        for key, row, start, end, cause, why, slowed in rows
    ]


def first_difference(trace: Trace, reference: Sequence[Performed]) -> str:
    """The earliest row that the two clocks do not agree on; "" if they agree on all."""
    ours = {one.key: one for one in performed_in(trace)}
    theirs = {one.key: one for one in reference}
    for key in sorted(ours.keys() | theirs.keys(), key=lambda key: _start(ours, theirs, key)):
        if ours.get(key) != theirs.get(key):
            return f"{ours.get(key)} is {theirs.get(key)} by the reference"
    return ""


def _start(
    ours: dict[tuple[int, int, int], Performed],
    theirs: dict[tuple[int, int, int], Performed],
    key: tuple[int, int, int],
) -> int:
    return (ours.get(key) or theirs[key]).start


def largest_gap(trace: Trace, reference: Sequence[Performed]) -> Fraction:
    """How far apart the two clocks are at most, of the reference's time of the row."""
    theirs = {one.key: one.end for one in reference}
    ours = performed_in(trace)
    gaps = [Fraction(abs(one.end - theirs[one.key]), theirs[one.key]) for one in ours]
    return max(gaps, default=Fraction(0))
