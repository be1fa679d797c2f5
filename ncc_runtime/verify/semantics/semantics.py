"""Proof of what collectives compute: every byte of every result is made of what its spec says.

Transfers are performed on fingerprints (`fingerprints.py`) instead of data, in one order that the
waits allow, and results are compared with a table of what they must hold (`spec.py`). Where they
differ, a byte is traced back to say what it is made of (`provenance.py`). Collectives of variable
size move what tables say at run time; they have a proof of their own (`variable_size.py`).
"""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, Executable
from ncc_runtime.order import Batch, GreedyRun
from ncc_runtime.progress import steps
from ncc_runtime.verify.places import collective, place_of
from ncc_runtime.verify.proof import Breach, Cell, Proof
from ncc_runtime.verify.segments import Segment
from ncc_runtime.verify.semantics.provenance import explained
from ncc_runtime.verify.semantics.results import Outcome, outcome_of
from ncc_runtime.verify.semantics.variable_size import condition_of, variable_size_breaches

MOST_FAULTS = 4
"""Transfers of one placeholder that a proof names."""


@attrs.frozen
class Wrong:
    """The first bytes of a placeholder's results that are not what its spec says."""

    number: int  # of the placeholder
    rank: int
    result: int
    offset: int
    round: int | None  # of what wrote there last
    what: str


def prove_semantics(executable: Executable, segments: Sequence[Segment], run: GreedyRun) -> Proof:
    """Every distinct segment once, along the order of a run that comes to its end."""
    assert not run.stuck, "the proof of semantics presumes that of deadlock"
    breaches: list[Breach] = []
    transfers = ranges = collectives = 0
    conditions: list[str] = []
    for segment in steps(segments, "proof of semantics", "collectives"):
        batches, equal = segment.batches(run), len(segment.numbers)
        collectives += equal
        if segment.placeholder.op.is_counted:
            slots = sum(int(np.count_nonzero(ring.peer != IDLE)) for ring in segment.rings)
            transfers, ranges = transfers + slots, ranges + slots
            breaches += variable_size_breaches(executable, segment, batches)
            conditions.append(condition_of(executable, segment))
            continue
        outcome = outcome_of(segment, batches)
        transfers += equal * outcome.transfers
        ranges += equal * outcome.ranges
        breaches += _breaches(executable, segment, batches, outcome)
    size = (
        f"{transfers} transfers into {ranges} byte ranges of {collectives} collectives "
        f"({len(segments)} distinct)"
    )
    return Proof("semantics", size, breaches=tuple(breaches), conditions=tuple(conditions))


def first_wrong(segment: Segment, run: GreedyRun) -> Wrong | None:
    """The first wrong bytes of a segment's results, None if there are none."""
    batches = segment.batches(run)
    difference = outcome_of(segment, batches).difference
    if difference is None:
        return None
    what, writer = explained(segment, batches, difference)
    last = None if writer is None else int(segment.rings[writer.ring].round[writer.row])
    rank = segment.members.rank(difference.rank)
    return Wrong(segment.number, rank, difference.result.index, difference.offset, last, what)


def _breaches(
    executable: Executable, segment: Segment, batches: Sequence[Batch], outcome: Outcome
) -> Iterator[Breach]:
    name, numbers = collective(executable, segment.number), frozenset(segment.numbers)
    if not outcome.is_settled:
        text = f"{name}: not decided: its transfers cut the buffers into too many pieces"
        yield Breach("semantics.undecided", text, placeholders=numbers)
    for fault in outcome.faults[:MOST_FAULTS]:
        cell = segment.place(segment.rings[fault.ring], fault.row, fault.rank)
        text = f"{place_of(executable, *cell)}: {fault.what}"
        yield Breach("semantics.transfer", text, (Cell(*cell),), numbers)
    if outcome.difference is not None:
        what, writer = explained(segment, batches, outcome.difference)
        lines, cells = [f"{name}: {what}"], tuple[Cell, ...]()
        if writer is None:
            lines.append("no transfer writes there")
        else:
            ring = segment.rings[writer.ring]
            cell = segment.place(ring, writer.row, writer.rank)
            cells = (Cell(*cell),)
            round_of = int(ring.round[writer.row])
            lines.append(f"last written in round {round_of} by {place_of(executable, *cell)}")
        ranks = tuple(map(segment.members.rank, outcome.wrong_ranks))
        if len(ranks) > 1:
            lines.append(f"wrong on {len(ranks)} of {segment.ranks} ranks")
        yield Breach("semantics.result", "\n  ".join(lines), cells, numbers, ranks=ranks)
