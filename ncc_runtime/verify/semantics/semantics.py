"""Proof of what collectives compute: every byte of every result is made of what was promised.

Transfers are performed on fingerprints (`fingerprints.py`) instead of data, in one order that the
waits allow, and results are compared with a table of promises (`promises.py`). Where they differ,
a byte is traced back to say what it is made of.
"""

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable
from ncc_runtime.order import GreedyRun
from ncc_runtime.verify.places import collective, place_of
from ncc_runtime.verify.proof import Proof
from ncc_runtime.verify.segments import Segment, Span
from ncc_runtime.verify.semantics.counted import condition_of, counted_breaches
from ncc_runtime.verify.semantics.outcome import Filling, Outcome, outcome
from ncc_runtime.verify.semantics.provenance import Writer
from ncc_runtime.verify.semantics.replay import Step
from ncc_runtime.verify.semantics.wording import explained


@attrs.frozen
class Wrong:
    """The first bytes of a placeholder's results that are not what was promised."""

    number: int  # of the placeholder
    rank: int
    result: int
    offset: int
    round: int | None  # of what wrote there last
    what: str


Performed = Mapping[tuple[int, int], Sequence[tuple[int, np.ndarray | None]]]
"""By queue and row of DMA rings: when, and which ranks."""

MOST_FAULTS = 4
"""Transfers of one placeholder that a proof names."""


def prove_semantics(executable: Executable, segments: Sequence[Segment], run: GreedyRun) -> Proof:
    """Every distinct segment once, along the order of a run that comes to its end."""
    assert not run.stuck, "the proof of semantics presumes that of deadlock"
    performed = _performed(executable, run)
    breaches: list[str] = []
    transfers = ranges = collectives = 0
    conditions: list[str] = []
    for segment in segments:
        if segment.placeholder.op.is_counted:
            collectives += 1
            moves = sum(int(np.count_nonzero(one.peer != IDLE)) for one in segment.rings)
            transfers, ranges = transfers + moves, ranges + moves  # a slot each
            breaches += counted_breaches(executable, segment, performed)
            conditions.append(condition_of(executable, segment))
            continue
        filling = _filling(segment, performed)
        found = outcome(filling)
        alike = len(segment.numbers)
        collectives += alike
        transfers += alike * found.transfers
        ranges += alike * found.ranges
        breaches += _breaches(executable, segment, filling, found)
    size = (
        f"{transfers} transfers into {ranges} byte ranges of {collectives} collectives "
        f"({len(segments)} distinct)"
    )
    return Proof("semantics", size, breaches=tuple(breaches), conditions=tuple(conditions))


def first_wrong(segment: Segment, performed_by: GreedyRun) -> Wrong | None:
    """The first wrong bytes of a segment's results, None if there are none."""
    filling = _filling(segment, _batches(performed_by, segment))
    found = outcome(filling).difference
    if found is None:
        return None
    what, writer = explained(filling, found)
    last = None if writer is None else int(segment.rings[writer.ring].round[writer.row])
    rank = segment.members.rank(found.rank)
    return Wrong(segment.number, rank, found.result.index, found.offset, last, what)


def _batches(run: GreedyRun, segment: Segment) -> Performed:
    """When the rows of a segment's rings were performed."""
    rings = {span.queue for ring in segment.rings for span in ring.spans}
    return _performed_in(run, rings)


def _performed(executable: Executable, run: GreedyRun) -> Performed:
    rings = {
        number for number, queue in enumerate(executable.queues) if isinstance(queue, DmaQueue)
    }
    return _performed_in(run, rings)


def _performed_in(run: GreedyRun, rings: set[int]) -> Performed:
    found: dict[tuple[int, int], list[tuple[int, np.ndarray | None]]] = {}
    for moment, (queue, row, ranks) in enumerate(run.batches):
        if queue in rings:
            found.setdefault((queue, row), []).append((moment, ranks))
    return found


def _filling(segment: Segment, performed: Performed) -> Filling:
    steps = [
        (moment, Step(number, row, _who(segment, span, ranks)))
        for number, ring in enumerate(segment.rings)
        for span in ring.spans
        for row in range(len(ring))
        for moment, ranks in performed.get((span.queue, span.first + row), ())
    ]
    steps.sort(key=lambda step: step[0])
    return Filling(
        placeholder=segment.placeholder,
        members=segment.members,
        bindings=segment.bindings,
        rings=segment.rings,
        steps=tuple(step for _, step in steps),
    )


def _who(segment: Segment, span: Span, ranks: np.ndarray | None) -> np.ndarray | None:
    """Members by number, of ranks that perform a row; None: all."""
    ranks = span.ranks if ranks is None else ranks
    if ranks is None:
        return None
    number = segment.members.inside(ranks)
    return number[number != IDLE]


def _breaches(
    executable: Executable, segment: Segment, filling: Filling, found: Outcome
) -> Iterator[str]:
    name = collective(executable, segment.number)
    if not found.is_settled:
        yield f"{name}: not decided: its transfers cut the buffers into too many pieces"
    for number, fault in found.faults[:MOST_FAULTS]:
        ring = segment.rings[number]
        place = place_of(executable, *segment.place(ring, fault.row, fault.rank))
        yield f"{place}: {fault.what}"
    if found.difference is not None:
        what, writer = explained(filling, found.difference)
        lines = [f"{name}: {what}", _last_written(executable, segment, writer)]
        if len(found.wrong_ranks) > 1:
            lines.append(f"wrong on {len(found.wrong_ranks)} of {filling.ranks} ranks")
        yield "\n  ".join(lines)


def _last_written(executable: Executable, segment: Segment, writer: Writer | None) -> str:
    if writer is None:
        return "no transfer writes there"
    ring = segment.rings[writer.ring]
    place = place_of(executable, *segment.place(ring, writer.row, writer.rank))
    return f"last written in round {int(ring.round[writer.row])} by {place}"
