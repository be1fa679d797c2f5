"""KangaRing: a ring of primaries, each with a secondary on its chip that it reads and writes.

    reduce-scatter   a primary joins what came in, its own share and its secondary's: three reads,
                     one write
    all-gather       a primary reads a chunk once and writes it to its successor and its secondary:
                     one read, two writes

A pair touches HBM 4 times a step instead of 6 in reduce-scatter, 3 instead of 4 in all-gather. The
two of a pair change roles from one cycle to the next.

Source: AWS Neuron docs, intranode-collective-comm.rst (pairs, touches, alternating roles); nec.h
(at most 256 ranks).
"""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.extents import Extent, Scratch, renumbered, sliced, whole_chunks
from ncc_runtime.collectives.layout import Layout, UnsuitedError
from ncc_runtime.collectives.plan import (
    IDLE,
    Copy,
    Job,
    Piece,
    Plan,
    Round,
    Space,
    Transfer,
)
from ncc_runtime.collectives.ring import SLICED_BYTES, SLOTS
from ncc_runtime.collectives.stages import side_by_side

MOST_MEMBERS = 256
"""Source: nec.h, KangaRing ranks."""


@attrs.frozen
class Pairs:
    """For each cycle its (primary, secondary) pairs in order; no two cycles need the same link."""

    cycles: tuple[tuple[tuple[int, int], ...], ...]


def arrange(layout: Layout) -> Pairs:
    """Pairs along the cycles of the chips; UnsuitedError unless whole chips close a ring."""
    per_chip = layout.placement.topology.ranks_per_chip
    if len(layout.by_node()) > 1:
        raise UnsuitedError("its members are on several instances")
    if layout.members > MOST_MEMBERS:
        raise UnsuitedError(f"it has more than {MOST_MEMBERS} members")
    if any(len(cluster) != per_chip for cluster in layout.by_chip()) or per_chip % 2:
        raise UnsuitedError(f"it does not hold all {per_chip} ranks of each of its chips")
    found = layout.chip_cycles()
    if not found:
        raise UnsuitedError("no links close a ring over its chips")
    return Pairs(tuple(_paired(cycle, number) for number, cycle in enumerate(found)))


def _paired(cycle: Sequence[Sequence[int]], number: int) -> tuple[tuple[int, int], ...]:
    members = [member for cluster in cycle for member in cluster]
    pairs = zip(members[::2], members[1::2], strict=True)
    return tuple((pair[1], pair[0]) if number % 2 else pair for pair in pairs)


def all_reduce(job: Job, pairs: Pairs) -> Plan:
    """The ring of pairs both ways round: a chunk for each pair."""
    width = job.buffers.element_bytes
    count = len(pairs.cycles[0])
    operands = whole_chunks(Space.OPERAND, job.buffers.operand_elements, count, width)
    scratch, strands = Scratch(), []
    for strand in _strands(pairs, operands, width):
        results = [extent.moved(Space.RESULT) for extent in strand.extents]
        rounds = strand.reduce_scatter([(result, strand.primaries) for result in results], scratch)
        strands.append(rounds + strand.all_gather(results))
    return Plan("kangaring", 2 * count, side_by_side(strands), scratch.bytes)


def reduce_scatter(job: Job, pairs: Pairs) -> Plan:
    """As all-reduce's first half; a pair has a chunk for each of its members."""
    width, members = job.buffers.element_bytes, 2 * len(pairs.cycles[0])
    operands = whole_chunks(Space.OPERAND, job.buffers.operand_elements, members, width)
    scratch, strands = Scratch(), []
    for strand in _strands(pairs, operands, width):
        owned = strand.owned()
        targets = [(_alone(extent, operands), who) for extent, who in owned]
        strand = attrs.evolve(strand, extents=[extent for extent, _ in owned])
        strands.append(strand.reduce_scatter(targets, scratch))
    return Plan("kangaring", members, side_by_side(strands), scratch.bytes)


def all_gather(job: Job, pairs: Pairs) -> Plan:
    """As all-reduce's second half; a pair has a chunk of each of its members."""
    width, members = job.buffers.element_bytes, 2 * len(pairs.cycles[0])
    results = whole_chunks(Space.RESULT, job.buffers.result_elements, members, width)
    strands = []
    for strand in _strands(pairs, results, width):
        owned = strand.owned()
        own = [(_alone(extent, results, Space.OPERAND), who) for extent, who in owned]
        strand = attrs.evolve(strand, extents=[extent for extent, _ in owned])
        strands.append(strand.all_gather(strand.extents, own))
    return Plan("kangaring", members, side_by_side(strands))


@attrs.frozen(eq=False)
class _Strand:
    """One ring of pairs with its share of every chunk; chunk k belongs to pair k."""

    pairs: np.ndarray  # (pairs, 2) int32: primary, secondary
    extents: list[Extent]
    number: int  # its lane, too

    @property
    def count(self) -> int:
        return len(self.pairs)

    @property
    def members(self) -> int:
        return self.pairs.size

    @property
    def primaries(self) -> np.ndarray:
        return np.asarray(self.pairs[:, 0])

    @property
    def secondaries(self) -> np.ndarray:
        return np.asarray(self.pairs[:, 1])

    def owned(self) -> list[tuple[Extent, np.ndarray]]:
        """Chunks by member, as chunks by pair: the primaries' and the secondaries'."""
        return [
            (extent, who)
            for who in (self.primaries, self.secondaries)
            for extent in renumbered(self.extents, who)
        ]

    def reduce_scatter(
        self, targets: Sequence[tuple[Extent, np.ndarray]], scratch: Scratch
    ) -> list[Round]:
        """Chunk k, reduced, in chunk k of each target at the member of pair k that it names."""
        slots = [
            [scratch.take(int(extent.sizes.max(initial=0))) for _ in range(SLOTS)]
            for extent in self.extents
        ]
        rounds = []
        for step in range(self.count):
            is_last = step == self.count - 1
            chunk = self._pair - 1 - step
            transfers = []
            for k, extent in enumerate(self.extents):
                peer = self._column(targets[k][1]) if is_last else self._shifted(1)
                target = targets[k][0].at(self._at(chunk), peer) if is_last else None
                moved = self._transfer(
                    peer,
                    self._joined(extent, chunk, slots[k][(step - 1) % SLOTS] if step else None),
                    target or self._slot(slots[k][step % SLOTS]),
                    extent.size(self._at(chunk)),
                )
                read = len(self.extents) * (step - SLOTS) + k + 1
                transfers.append(
                    attrs.evolve(
                        moved,
                        consumed=self._shifted(-1) if step else None,
                        credit=read if step >= SLOTS and not is_last else 0,
                    )
                )
            rounds.append(Round(tuple(transfers)))
        return rounds

    def all_gather(
        self,
        targets: Sequence[Extent],
        own: Sequence[tuple[Extent, np.ndarray]] = (),
    ) -> list[Round]:
        """Chunk k of everybody's targets; it begins at the primary's, or in its owner's `own`."""
        rounds = []
        for step in range(self.count):
            chunk = self._at(self._pair - step)
            first = own if step == 0 else ()
            transfers = [
                self._spread(step, chunk, target, first[k] if first else None)
                for k, target in enumerate(targets)
            ]
            if first:
                transfers += [
                    self._kept(extent, target, who)
                    for (extent, who), target in zip(own, targets, strict=True)
                ]
            rounds.append(Round(tuple(transfers)))
        return rounds

    def _spread(
        self,
        step: int,
        chunk: np.ndarray,
        target: Extent,
        own: tuple[Extent, np.ndarray] | None,
    ) -> Transfer:
        """A chunk to the successor and to the secondary; in the end to the secondary alone."""
        secondary, successor = self._column(self.secondaries), self._shifted(1)
        source, beside = target.piece(chunk), secondary
        if own is not None:
            owner = self._column(own[1])
            is_mine = np.array_equal(own[1], self.primaries)
            source = own[0].piece(chunk) if is_mine else own[0].piece(chunk, owner)
            beside = secondary if is_mine else self._column(self.primaries)
        size = target.size(chunk)
        if step == self.count - 1:
            return self._transfer(beside, (source,), target.at(chunk, beside), size)
        moved = self._transfer(successor, (source,), target.at(chunk, successor), size)
        return attrs.evolve(moved, also=Copy(beside, target.at(chunk, beside)))

    def _kept(self, own: Extent, target: Extent, who: np.ndarray) -> Transfer:
        """The members' own chunks into their own results."""
        mine = np.full(self.members, IDLE, np.int32)
        mine[who] = who
        chunk: np.ndarray = np.zeros(self.members, np.int64)
        chunk[who] = np.arange(self.count)
        return self._transfer(mine, (own.piece(chunk),), target.piece(chunk), target.size(chunk))

    def _joined(self, extent: Extent, chunk: np.ndarray, slot: int | None) -> tuple[Piece, ...]:
        """What came in, the own share, the secondary's."""
        at, secondary = self._at(chunk), self._column(self.secondaries)
        shares = (extent.piece(at), extent.piece(at, secondary))
        return shares if slot is None else (self._slot(slot), *shares)

    @property
    def _pair(self) -> np.ndarray:
        """By member, the number of its pair."""
        number: np.ndarray = np.empty(self.members, np.int64)
        number[self.pairs] = np.arange(self.count)[:, None]
        return number

    def _at(self, chunk: np.ndarray) -> np.ndarray:
        return np.asarray(chunk % self.count)

    def _column(self, values: np.ndarray) -> np.ndarray:
        """One value of each pair at its primary, IDLE at the secondaries."""
        column: np.ndarray = np.full(self.members, IDLE, np.int32)
        column[self.primaries] = values
        return column

    def _shifted(self, step: int) -> np.ndarray:
        return self._column(np.roll(self.primaries, -step))

    def _slot(self, offset: int) -> Piece:
        return Piece(Space.SCRATCH, np.full(self.members, offset, np.int64))

    def _transfer(
        self, peer: np.ndarray, sources: tuple[Piece, ...], target: Piece, size: np.ndarray
    ) -> Transfer:
        return Transfer(
            peer=peer,
            sources=sources,
            target=target,
            size_bytes=size,
            lane=self.number,
            strand=self.number,
        )


def _strands(pairs: Pairs, extents: list[Extent], width: int) -> list[_Strand]:
    """Every cycle's share of the chunks, in one or two slices."""
    largest = max((int(extent.sizes.max(initial=0)) for extent in extents), default=0)
    slices = 2 if largest // len(pairs.cycles) >= SLICED_BYTES else 1
    shares = sliced(extents, len(pairs.cycles) * slices, width)
    return [
        _Strand(np.array(pairs.cycles[number // slices], np.int32), share, number)
        for number, share in enumerate(shares)
    ]


def _alone(extent: Extent, whole: Sequence[Extent], space: Space = Space.RESULT) -> Extent:
    """The same share of chunks, each chunk in a buffer of its own."""
    start = extent.offsets.min() - whole[extent.tensor].offsets.min()
    return extent.moved(space, np.full_like(extent.offsets, start))
