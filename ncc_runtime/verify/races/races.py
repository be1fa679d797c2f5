"""Proof that inside a placeholder no two accesses race, for every speed of every rank.

Of each distinct segment: every access of its ring rows to a rank's memory comes after that rank's
trigger and before that rank reports completion, and overlapping accesses of different rings, one of
them a write, are ordered by semaphores. A barrier keeps its promise too: nobody leaves before all
have come. What engines and other streams do meanwhile is another proof's (docs/proofs.md).
"""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, Executable
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.verify.places import collective
from ncc_runtime.verify.proof import Proof
from ncc_runtime.verify.races.accesses import Claims, claims_of, everybody_entered
from ncc_runtime.verify.races.classes import proved_by_turning
from ncc_runtime.verify.races.clocks import unproved
from ncc_runtime.verify.races.steps import (
    Steps,
    Waits,
    chains_pushed,
    in_order,
    performed,
    waits_of,
)
from ncc_runtime.verify.races.witness import Claim, Witness
from ncc_runtime.verify.segment_rows import blocks
from ncc_runtime.verify.segments import Segment

MOST_WITNESSES = 3
"""Of one segment; the rest is counted."""


@attrs.frozen
class _Verdict:
    breaches: tuple[str, ...] = ()
    classes: str | None = None


def prove_races(executable: Executable, segments: Sequence[Segment]) -> Proof:
    """Each distinct segment once."""
    verdicts = [_verdict(executable, segment) for segment in segments]
    classes = [
        f"{collective(executable, segment.number)}: {verdict.classes}"
        for segment, verdict in zip(segments, verdicts, strict=True)
        if verdict.classes is not None
    ]
    return Proof(
        name="races",
        size=_size(segments),
        breaches=tuple(text for verdict in verdicts for text in verdict.breaches),
        classes=tuple(classes),
    )


def _size(segments: Sequence[Segment]) -> str:
    transfers = sum(
        len(segment.numbers) * int(np.count_nonzero(ring.peer[rows] != IDLE))
        for segment in segments
        for ring in segment.rings
        for rows in blocks(ring.peer.shape)
    )
    collectives = sum(len(segment.numbers) for segment in segments)
    return f"{transfers} transfers of {collectives} collectives ({len(segments)} distinct)"


def _verdict(executable: Executable, segment: Segment) -> _Verdict:
    witness = Witness(executable, segment)
    chain = chains_pushed(segment)
    if chain is None:
        return _Verdict((witness.of_pushes(),))
    is_barrier = segment.placeholder.op is CollectiveOp.BARRIER
    floats = segment.placeholder.op is CollectiveOp.RAGGED_ALL_TO_ALL
    if not is_barrier and not floats and (classes := proved_by_turning(segment, chain)):
        return _Verdict(classes=classes)
    performs = performed(segment, chain)
    waits, faults = waits_of(segment, performs, executable.semaphore_count)
    if faults:
        return _Verdict(_shown([witness.of_fault(one) for one in faults[:MOST_WITNESSES]], faults))
    steps = in_order(chain, segment, performs, waits)
    stands = _standstill(steps, waits)
    if stands is not None:
        return _Verdict((witness.of_standstill(stands),))
    claims = claims_of(segment, steps)
    if is_barrier:
        groups = tuple(np.array(group) for group in segment.placeholder.groups)
        claims = Claims.together([claims, everybody_entered(groups, len(segment.cc) - 1)])
    lost = claims.at(unproved(steps, claims))
    return _Verdict(_witnesses(attrs.evolve(witness, steps=steps), lost))


def _standstill(steps: Steps, waits: Waits) -> tuple[int, int] | None:
    """A CC row that a rank does not get past, and the rank."""
    performed_rows = np.zeros(steps.ranks, np.int64)
    for row, ranks in steps.batches:
        performed_rows[slice(None) if ranks is None else ranks] = row + 1
    if (performed_rows == len(steps.chain)).all():
        return None
    stuck = waits.row == performed_rows[waits.rank]
    return int(waits.row[stuck][0]), int(waits.rank[stuck][0])


def _witnesses(witness: Witness, lost: Claims) -> tuple[str, ...]:
    order = np.lexsort((lost.rank, lost.row, lost.chain))
    firsts = lost.at(order[:MOST_WITNESSES])
    rows = zip(*(column.tolist() for column in firsts.columns()), strict=True)
    return _shown([witness.of_claim(Claim(*row)) for row in rows], lost)


def _shown(texts: Sequence[str], found: Sequence[object] | Claims) -> tuple[str, ...]:
    """Some witnesses, the last of them with the number of others."""
    more = len(found) - len(texts)
    if not more:
        return tuple(texts)
    return (*texts[:-1], f"{texts[-1]}\n  and {more} more in this collective")
