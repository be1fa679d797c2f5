"""Where a byte came from: traced back through the rows of a placeholder, address by address.

Fingerprints tell that something is wrong; this tells what. It reads the rows themselves and knows
nothing of cells.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import DmaOpcode
from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.verify.segments import RingRows
from ncc_runtime.verify.semantics.replay import Step


@attrs.frozen(order=True)
class Contribution:
    """A byte as it was when the placeholder began, and by what it has been divided since."""

    rank: int
    address: int
    divisor: int = 1

    @property
    def byte(self) -> tuple[int, int]:
        """Which it is."""
        return self.rank, self.address


@attrs.frozen
class Writer:
    """A row that has written a byte."""

    ring: int
    row: int  # of the ring's rows
    rank: int


@attrs.frozen(eq=False)
class Trace:
    """What a byte was made of."""

    contributions: Counter[Contribution]  # empty: zeros
    writer: Writer | None  # the last; None: it is as it was


def trace(rings: Sequence[RingRows], steps: Sequence[Step], rank: int, address: int) -> Trace:
    """What a byte holds when the steps have been performed."""
    contributions, last = Counter({Contribution(rank, address): 1}), None
    for step in reversed(steps):
        ring = rings[step.ring]
        before: Counter[Contribution] = Counter()
        for contribution, performer, inside in list(_written(ring, step, contributions)):
            last = last or Writer(step.ring, step.row, performer)
            count = contributions.pop(contribution, 0)  # 0: another has written it in this step
            for source in _sources(ring, step.row, performer):
                divisor = contribution.divisor * source.divisor
                before[Contribution(source.rank, source.address + inside, divisor)] += count
        contributions += before
    return Trace(contributions, last)


def _written(
    ring: RingRows, step: Step, contributions: Counter[Contribution]
) -> Iterator[tuple[Contribution, int, int]]:
    """The contributions that a step writes, by whom, and how far into its range."""
    for address in sorted({contribution.address for contribution in contributions}):
        for performer, peer, inside in _writes(ring, step, address):
            for contribution in [one for one in contributions if one.byte == (peer, address)]:
                yield contribution, performer, inside


def _writes(ring: RingRows, step: Step, address: int) -> Iterator[tuple[int, int, int]]:
    """The transfers of a step that write at an address: who, to whom, how far into the range."""
    ranks = np.arange(ring.peer.shape[1]) if step.ranks is None else step.ranks
    for peer, target in ((ring.peer, ring.target), (ring.second_peer, ring.second_target)):
        if peer is None or target is None:
            continue
        peers, inside = peer[step.row, ranks], address - target[step.row, ranks]
        hit = (peers != IDLE) & (inside >= 0) & (inside < ring.size_bytes[step.row, ranks])
        for at in np.flatnonzero(hit).tolist():
            yield int(ranks[at]), int(peers[at]), int(inside[at])


def _sources(ring: RingRows, row: int, rank: int) -> Iterator[Contribution]:
    """The first bytes of what a transfer reads."""
    opcode, addresses = int(ring.opcode[row]), ring.sources[row, rank].tolist()
    if opcode != DmaOpcode.REDUCE:
        addresses = addresses[: 0 if opcode == DmaOpcode.FILL else 1]
    divisor = int(ring.divisor[row]) if opcode == DmaOpcode.REDUCE else 1
    for number, address in enumerate(addresses):
        if address != IDLE:
            owner = rank if ring.source_rank is None else int(ring.source_rank[row, rank, number])
            yield Contribution(owner, address, divisor)
