"""Recursive halving and doubling (RDH) along the axes of a hypercube of chips.

    reduce-scatter   step 0: of the members of a chip each reduces one share of what all have; then,
                     axis after axis, half of what is left goes across, reduced with what came in
    all-gather       axis after axis, everything held goes across; in the end the members of a chip
                     write each other what they hold
    all-reduce       the first, then the second

Axes are labelled with the Gray code of rows and columns, so that both ends of an axis of a 4x4
torus are neighbours. Members at the same place of their chips form a cube, and each place begins
with another axis, so that all links of a chip are at work in every step. A position is
place * chips + corner, so everything that goes across is a range of positions; the corner is the
label, its bits of the axes inside an instance rotated by the place.

Source: AWS Neuron docs, intranode-collective-comm.rst (stages, 4D hypercube),
internode-collective-comm.rst (N = 2^p); the labels are derived, AWS publishes none. The rotation is
assumed: over one link at a time RDH would take longer than mesh for every size.
"""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import attrs
import numpy as np

from ncc_runtime.collectives import stages
from ncc_runtime.collectives.chunks import Extent, Scratch
from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
from ncc_runtime.collectives.plan import IDLE, Job, Plan, Round, Space, Transfer
from ncc_runtime.collectives.stages import (
    MOST_SOURCES,
    Arrangement,
    StageAlgorithm,
    StageKind,
    Strand,
    Subgroups,
)
from ncc_runtime.topology.format.spec import FabricShape

LANES = (0, 1, 2, 3)
"""DMA rings; the first sends, all reduce what lies on the chip. Assumed."""

ONE_CHIP_CHANNELS = 2
"""Channels of a group on one chip, each with a slice of every chunk. Source: nki-library, channels
of fine-grained collectives: 2 for groups of 4, 8 and 16."""


@attrs.frozen
class CubeForm:
    """How many positions share a chip, and how many chips an instance."""

    local: int
    inside: int

    def rotated(self, label: np.ndarray, places: np.ndarray) -> np.ndarray:
        """Labels with their bits inside an instance rotated left by `places`."""
        axes = self.inside.bit_length() - 1
        if not axes:
            return label
        shift, inner = places % axes, label % self.inside
        rotated = (inner << shift | inner >> axes - shift) % self.inside
        return np.asarray(label - inner + rotated)


def arrange(layout: GroupLayout) -> Arrangement:
    """Places, then corners; UnsuitedError unless chips are alike and a power of two."""
    cubes = [
        [[members[k] for k in cluster] for cluster in labelled]
        for members, labelled in zip(
            layout.by_node(), layout.arranged_by_instance(_labelled), strict=True
        )
    ]
    clusters = [cluster for cube in cubes for cluster in cube]
    if len({len(cluster) for cluster in clusters}) > 1:
        raise UnsuitedError("its chips have different numbers of members")
    if len({len(cube) for cube in cubes}) > 1:
        raise UnsuitedError("its instances have different numbers of chips")
    if len(clusters) & (len(clusters) - 1):
        raise UnsuitedError(f"it is on {len(clusters)} chips, which is no power of two")
    local = len(clusters[0])
    if local > MOST_SOURCES:
        raise UnsuitedError(
            f"{local} members share a chip, a descriptor joins {MOST_SOURCES} at most"
        )
    form, corners = CubeForm(local, len(cubes[0])), np.arange(len(clusters))
    order = tuple(
        clusters[label][place]
        for place in range(local)
        for label in form.rotated(corners, np.array(place)).tolist()
    )
    return Arrangement((order,), form)


def _labelled(layout: GroupLayout) -> list[list[int]]:
    """Members of one instance by chip, chips in the order of their labels."""
    topology = layout.placement.topology
    chips = {
        layout.seats[cluster[0]].chip % topology.chips_per_node: sorted(
            cluster, key=lambda member: layout.seats[member].core
        )
        for cluster in layout.by_chip()
    }
    dims = topology.dims if topology.shape is FabricShape.TORUS else ()
    # coordinates on a torus, slowest first; chips that fill no grid are numbered through
    coordinates = {
        chip: tuple(chip // math.prod(dims[axis + 1 :]) % side for axis, side in enumerate(dims))
        for chip in sorted(chips)
    }
    if not dims or not _is_grid(set(coordinates.values())):
        coordinates = {chip: (number,) for number, chip in enumerate(sorted(chips))}
    values = [sorted(set(values)) for values in zip(*coordinates.values(), strict=True)]
    label = dict.fromkeys(coordinates, 0)
    for chip, place in coordinates.items():
        for along, value in zip(values, place, strict=True):
            label[chip] = label[chip] * len(along) + _gray(along.index(value))
    return [chips[chip] for chip in sorted(chips, key=label.__getitem__)]


def _is_grid(places: set[tuple[int, ...]]) -> bool:
    """Whether places fill a box all of whose sides are powers of two."""
    extents = [len(set(values)) for values in zip(*places, strict=True)]
    powers = all(extent & (extent - 1) == 0 for extent in extents)
    return powers and math.prod(extents) == len(places)


def _gray(number: int) -> int:
    """The Gray code: consecutive numbers differ in one bit, so neighbours share an axis."""
    return number ^ number >> 1


def all_reduce(job: Job, arrangement: Arrangement) -> Plan:
    """2 log2(chips) sends, of 2(chips-1)/chips of a chip member's share of the buffer in all."""
    return stages.all_reduce("rdh", job, _stages(job, arrangement))


def reduce_scatter(job: Job, arrangement: Arrangement) -> Plan:
    """log2(chips) sends, each half as long as the one before."""
    return stages.reduce_scatter("rdh", job, _stages(job, arrangement))


def all_gather(job: Job, arrangement: Arrangement) -> Plan:
    """log2(chips) sends, each twice as long as the one before, then the exchange on the chip."""
    return stages.all_gather("rdh", job, _stages(job, arrangement))


@attrs.frozen(eq=False)
class Rdh:
    """Cubes of every subgroup; chunk k of an extent belongs to position k."""

    subgroups: Subgroups
    form: CubeForm
    strand: Strand
    _ends: dict[int, np.ndarray] = attrs.field(init=False, factory=dict)  # by axis

    @property
    def local(self) -> int:
        """Members of a chip."""
        return self.form.local

    @property
    def chips(self) -> int:
        """Corners of a cube."""
        return self.subgroups.size // self.local

    @property
    def axes(self) -> range:
        """The bits of a corner, lowest first."""
        return range(self.chips.bit_length() - 1)

    @property
    def goes_by_chunk(self) -> bool:
        """Whether transfers are of one chunk each, the same ones for every position."""
        return False

    def reduce_scatter(
        self,
        extents: Sequence[Extent],
        targets: Sequence[Extent],
        scratch: Scratch,
        divided_by: int = 1,
    ) -> list[Round]:
        """Chunk r of the extents, reduced and divided, at position r in chunk r of the targets."""
        strands = [
            self._reduce_one(extent, target, scratch, divided_by)
            for extent, target in zip(extents, targets, strict=True)
        ]
        return list(stages.side_by_side(strands))

    def all_gather(self, sources: Sequence[Extent], targets: Sequence[Extent]) -> list[Round]:
        """Chunk r of `sources` at position r, in chunk r of the targets of everybody."""
        kept = stages.kept(self.subgroups, self.strand, sources, targets)
        rounds = []
        for axis in self.axes:
            # everything that is held before the axis goes to its other end
            peer, held = self._across_axis(axis), self._range(self.subgroups.position, axis)
            moves = [
                move
                for source, target in zip(targets if axis else sources, targets, strict=True)
                for move in self._coalesced(peer, held, [stages.ExtentSource(source)], target)
            ]
            rounds.append(Round(tuple(moves)))
        if kept:
            first = rounds[:1] or [Round(())]
            rounds[:1] = [Round((*first[0].transfers, *kept))]
        around = self._around(targets)
        return [*rounds, Round(tuple(around))] if around else rounds

    def _reduce_one(
        self, extent: Extent, target: Extent, scratch: Scratch, divided_by: int
    ) -> list[Round]:
        position = self.subgroups.position
        sources, rounds = [stages.ExtentSource(extent)], []
        if self.local > 1 and self.axes:
            share = self._slot(extent, len(self.axes), scratch)
            rounds.append(Round(tuple(self._reduce_on_chip(extent, share))))
            sources = [stages.ExtentSource(share)]
        elif self.local > 1:
            sources = self._shares(extent)
        for axis in reversed(self.axes):
            slot = self._slot(extent, axis, scratch)
            halves = self._range(position ^ 1 << axis, axis)  # the half that the other end keeps
            sends = self._coalesced(self._across_axis(axis), halves, sources, slot)
            rounds.append(Round(tuple(sends)))
            sources = [*sources, stages.ExtentSource(slot)]
        last = self._coalesced(self.subgroups.self_peers, position[:, None], sources, target)
        rounds.append(Round(tuple(attrs.evolve(move, divisor=divided_by) for move in last)))
        return rounds

    def _reduce_on_chip(self, extent: Extent, share: Extent) -> Iterator[Transfer]:
        """The operands of all members of a chip, reduced, for the chunks of each member's cube."""
        held = self._range(self.subgroups.position, len(self.axes))
        rings = min(self.chips, len(self.strand.lanes))
        local_peers, sources = self.subgroups.self_peers, self._shares(extent)
        for lane_index, chunks in enumerate(np.array_split(held, rings, axis=1)):
            yield from self._coalesced(local_peers, chunks, sources, share, lane_index)

    def _shares(self, extent: Extent) -> list[stages.ExtentSource]:
        """The extent in the memory of every member of the chip."""
        return [
            stages.ExtentSource(extent, self.subgroups.member(self._on_same_chip(np.array(place))))
            for place in range(self.local)
        ]

    def _on_same_chip(self, place: np.ndarray) -> np.ndarray:
        """By member, the position of the given place on its chip.

        Corners of places are rotated labels, so turn the member's corner back to the label first.
        """
        own_place, corner = np.divmod(self.subgroups.positions, self.chips)
        label = self.form.rotated(corner, own_place)
        return np.asarray(place * self.chips + self.form.rotated(label, -place))

    def _slot(self, extent: Extent, axis: int, scratch: Scratch) -> Extent:
        """Room for the range of chunks that is left after an axis, one behind the other.

        They lie in the order of positions. With one member a chip, transfers read the extent
        itself, so there they lie as in the extent: then runs are long.
        """
        is_uniform = bool((extent.sizes == extent.sizes[0, 0]).all())
        is_ascending = bool((extent.offsets[:, 1:] >= extent.offsets[:, :-1]).all())
        if is_uniform and (self.local > 1 or is_ascending):
            return self._uniform_slot(extent, axis, scratch)
        members, row = self._slot_members
        shape = (len(members), extent.chunks)
        sizes, begins = (
            np.broadcast_to(extent.rows(table, members), shape)
            for table in (extent.sizes, extent.offsets)
        )
        held = self._range(self.subgroups.positions[members], axis)
        if self.local == 1:
            order = np.argsort(np.take_along_axis(begins, held, axis=1), axis=1, kind="stable")
            held = np.take_along_axis(held, order, axis=1)
        held_sizes = np.take_along_axis(sizes, held, axis=1)
        ends = np.cumsum(held_sizes, axis=1)
        base = scratch.take(int(ends[:, -1].max(initial=0)))
        # back to the order of chunks: the column of a window is the low bits of the chunk
        offsets, window_sizes = np.empty_like(held_sizes), np.empty_like(held_sizes)
        within = held % (1 << axis)
        np.put_along_axis(offsets, within, ends - held_sizes + base, axis=1)
        np.put_along_axis(window_sizes, within, held_sizes, axis=1)
        slot = extent.moved(Space.SCRATCH, offsets)
        return attrs.evolve(slot, sizes=window_sizes, row=row, is_window=True)

    @staticmethod
    def _uniform_slot(extent: Extent, axis: int, scratch: Scratch) -> Extent:
        """Scratch for the chunks held before an axis, where all chunks have one size.

        It lies at the same offsets at every member.
        """
        size = int(extent.sizes[0, 0])
        offsets = np.arange(1 << axis, dtype=np.int64)[None] * size + scratch.take(size << axis)
        slot = extent.moved(Space.SCRATCH, offsets)
        return attrs.evolve(slot, sizes=np.full_like(offsets, size), row=None, is_window=True)

    @cached_property
    def _slot_members(self) -> tuple[np.ndarray, np.ndarray | None]:
        """Members whose slots are laid out, and the row of each; None: of all members.

        Representatives, and the members at the other ends of their axes, to whom they write.
        """
        members, columns = self.subgroups.self_peers, self.subgroups.columns
        if columns == len(members):
            return members, None
        across = [self._across_axis(axis)[:columns] for axis in self.axes]
        laid_out = np.unique(np.concatenate((members[:columns], *across)))
        row = np.full(len(members), IDLE, np.int64)
        row[laid_out] = np.arange(len(laid_out))
        return laid_out, row

    def _around(self, targets: Sequence[Extent]) -> list[Transfer]:
        """The chunks of a member's cube, to the other members on its chip."""
        held = self._range(self.subgroups.position, len(self.axes))
        place = self.subgroups.positions // self.chips
        moves: list[Transfer] = []
        for shift in range(1, self.local):
            peer = self.subgroups.member(self._on_same_chip((place + shift) % self.local))
            for target in targets:
                moves += self._coalesced(peer, held, [stages.ExtentSource(target)], target)
        return moves

    def _coalesced(
        self,
        peer: np.ndarray,
        chunks: np.ndarray,
        sources: Sequence[stages.ExtentSource],
        target: Extent,
        lane_index: int = 0,
    ) -> Iterator[Transfer]:
        symmetry = self.subgroups.symmetry
        return stages.coalesced(peer, chunks, sources, target, self.strand, symmetry, lane_index)

    def _across_axis(self, axis: int) -> np.ndarray:
        """By member, the member at the other end of an axis."""
        if axis not in self._ends:
            self._ends[axis] = self.subgroups.member(self.subgroups.positions ^ 1 << axis)
        return self._ends[axis]

    def _range(self, position: np.ndarray, axis: int) -> np.ndarray:
        """Positions that agree with `position[m]` on the axes from `axis` on, (members, 2^axis)."""
        return (position >> axis << axis)[:, None] + np.arange(1 << axis)


def _stages(job: Job, arrangement: Arrangement) -> list[StageAlgorithm]:
    """One for all axes; a group on one chip has no axes, and a stage for each of its channels."""
    subgroups = Subgroups(arrangement.orders, job.symmetry)
    strands = [Strand(0, LANES)]
    if subgroups.size > 1 and arrangement.form == CubeForm(subgroups.size, 1):
        strands = [Strand(channel, (channel,)) for channel in range(ONE_CHIP_CHANNELS)]
    return [STAGE.stage(subgroups, arrangement.form, strand) for strand in strands]


STAGE = StageKind(arrange, Rdh)
