"""All-to-all on a torus: along one dimension after another, through the memory of chips between.

A member first sends everything that is bound for another place along its first dimension to the
member of its own plane on that chip, data of all members of its own chip together. That one sends
it on along the next dimension, and the last dimension takes it to the result. So a member has as
many peers as there are chips along the dimensions, not as there are members, and no data goes twice
over a link. Between dimensions data waits in scratch, ordered by where it goes next, then by where
it comes from.

The members at one place of their chips form a plane. Planes begin with different dimensions. Where
there are fewer planes than dimensions, or they do not divide evenly, chunks go in slices that do,
so that at any time all links of all dimensions are busy. Along a ring data goes the shorter way
round; what goes half-way round goes up from even places and down from odd ones, as links are wired
(`topology/chip_routes.py`), so that both directions carry the same.

Source: Jain and Sabharwal, "Optimal bucket algorithms for large MPI collectives on torus
interconnects", ICS 2010 (dimensions in different orders at once); message combining as in Suh and
Yalamanchili, "All-to-all communication with minimum start-up costs in 2D/3D tori and meshes", IEEE
TPDS 1998.
"""

import itertools
import math
from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.collectives.algorithms.torus import TorusGroup
from ncc_runtime.collectives.chunks import Extent, Scratch
from ncc_runtime.collectives.forwarding.link_graph import link_graph_of, torus_grid_of
from ncc_runtime.collectives.forwarding.schedule import ProxyRanks
from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
from ncc_runtime.collectives.plan import IDLE, LANES, Job, Location, Plan, Round, Space, Transfer
from ncc_runtime.collectives.stages import Strand, operand_slices, side_by_side

SLICE_BYTES = 16 * 1024
"""Least size of a slice of a chunk where chunks could stay whole; assumed."""


def arrange(layout: GroupLayout) -> TorusGroup:
    """UnsuitedError unless the chips fill a torus and have one number of members each."""
    grid, proxies = torus_grid_of(layout, link_graph_of(layout)), ProxyRanks.of(layout)
    if proxies.planes != proxies.places:
        raise UnsuitedError("its chips hold different numbers of members")
    return TorusGroup(proxies, grid)


def all_to_all(job: Job, group: TorusGroup) -> Plan:
    """As many rounds as there are dimensions; slices of chunks go side by side."""
    members, dims, scratch = group.proxies.members, len(group.grid.dims), Scratch()
    slices = _slices(job, group)
    strands = []
    for number, extents in enumerate(operand_slices(job, members, slices)):
        lanes = LANES // slices
        strand = Strand(number, tuple(range(number * lanes, (number + 1) * lanes)))
        staged = [_Staging.of(extent, scratch, dims - 1) for extent in extents]
        rounds: list[Round] = []
        for phase in range(dims):
            moves = [
                move
                for planes in _planes_by_order(group, number)
                for staging in staged
                for move in planes.moves(phase, staging, strand)
            ]
            rounds.append(Round(tuple(moves)))
        strands.append(rounds)
    return Plan("torus", members, side_by_side(strands), scratch.bytes)


def _slices(job: Job, group: TorusGroup) -> int:
    """The fewest for which planes times slices is a multiple of the dimensions; 1 if small."""
    dims = len(group.grid.dims)
    elements = max(job.buffers.operand_elements, default=0) // group.proxies.members
    is_large = elements * job.buffers.element_bytes >= dims * SLICE_BYTES
    return dims // math.gcd(dims, group.proxies.planes) if is_large else 1


def _planes_by_order(group: TorusGroup, number: int) -> Iterator["_OrderedPlanes"]:
    """The planes of slice `number`, together where they begin with the same dimension."""
    dims = len(group.grid.dims)
    for first in range(dims):
        planes = [
            plane for plane in range(group.proxies.planes) if (plane + number) % dims == first
        ]
        if planes:
            order = tuple((first + step) % dims for step in range(dims))
            table = group.proxies.table[np.transpose(group.grid.table, order)]
            yield _OrderedPlanes(table, tuple(planes))


@attrs.frozen(eq=False)
class _Staging:
    """One tensor's slice of every chunk, and the scratch where it waits between dimensions."""

    chunks: Extent  # at (1, members), alike in operands and results
    waiting: tuple[int, ...]  # offsets in scratch, each of as many slots as members
    slot_bytes: int

    @classmethod
    def of(cls, chunks: Extent, scratch: Scratch, stops: int) -> "_Staging":
        size = int(chunks.sizes.max(initial=0))
        return cls(chunks, tuple(scratch.take(size * chunks.chunks) for _ in range(stops)), size)


@attrs.frozen(eq=False)
class _OrderedPlanes:
    """Planes that go along the dimensions in one order, which is that of the table's sides.

    After dimension p a member has slots for (destinations along the later dimensions, sources along
    p, …, 0, place on the source's chip), row-major. So the data for the next member lies together.
    """

    table: np.ndarray  # (sides, places), members
    planes: tuple[int, ...]

    @property
    def sides(self) -> tuple[int, ...]:
        return self.table.shape[:-1]

    @property
    def places(self) -> int:
        """Members of a chip."""
        return int(self.table.shape[-1])

    @property
    def proxies(self) -> np.ndarray:
        """(sides, planes), the members of these planes."""
        return np.asarray(self.table[..., list(self.planes)])

    def moves(self, phase: int, staging: _Staging, strand: Strand) -> Iterator[Transfer]:
        """All transfers along one dimension; those to different members alternate."""
        side = self.sides[phase]
        by_step = [self._sent(phase, (step + 1) % side, staging, strand) for step in range(side)]
        for turn in zip(*by_step, strict=True):
            yield from turn

    def _sent(self, phase: int, step: int, staging: _Staging, strand: Strand) -> Iterator[Transfer]:
        """The transfers to members `step` chips further along a dimension."""
        pieces = self._passed(phase, step, staging) if phase else self._collected(step, staging)
        peer = self._column(np.roll(self.proxies, -step, phase), IDLE).astype(np.int32)
        for source, target, size in pieces:
            sizes = self._column(np.full(self.proxies.shape, size), 0)
            yield strand.transfer(peer, (source,), target, sizes, step)

    def _collected(self, step: int, staging: _Staging) -> Iterator[tuple[Location, Location, int]]:
        """(source, target, bytes) of single chunks in the operands of the chip's members."""
        here, dims = self._coordinate(0), len(self.sides)
        destinations = np.roll(self.proxies, -step, 0).reshape(self.sides[0], -1, len(self.planes))
        for number in range(destinations.shape[1]):
            chunk = destinations[:, number].reshape(self.sides[0], *(1,) * (dims - 1), -1)
            for seat in range(self.places):
                owner = np.broadcast_to(self.table[..., seat, None], self.proxies.shape)
                source = self._chunk(staging, Space.OPERAND, chunk, owner)
                if dims == 1:
                    yield source, self._chunk(staging, Space.RESULT, owner), staging.slot_bytes
                else:
                    slot = (number * self.sides[0] + here) * self.places + seat
                    yield source, self._slot(staging, 0, slot), staging.slot_bytes

    def _passed(
        self, phase: int, step: int, staging: _Staging
    ) -> Iterator[tuple[Location, Location, int]]:
        """(source, target, bytes) of data from the dimension before, in runs that lie together."""
        here, side = self._coordinate(phase), self.sides[phase]
        arrived = math.prod(self.sides[:phase]) * self.places  # sources whose data lies together
        later = math.prod(self.sides[phase + 1 :])
        destination = (here + step) % side
        for number in range(later):
            first = (destination * later + number) * arrived
            if phase < len(self.sides) - 1:
                slot = (number * side + here) * arrived
                pieces = self._slot(staging, phase - 1, first), self._slot(staging, phase, slot)
                yield *pieces, arrived * staging.slot_bytes
                continue
            for begin, end, member in self._runs(staging):
                source = self._slot(staging, phase - 1, first + begin)
                target = self._chunk(staging, Space.RESULT, member[here])
                yield source, target, (end - begin) * staging.slot_bytes

    def _runs(self, staging: _Staging) -> Iterator[tuple[int, int, np.ndarray]]:
        """Begin and end of slots whose chunks lie together in all results, and the first's source.

        The source is (side,), by place along the last dimension.
        """
        last = len(self.sides) - 1
        axes = (last, *reversed(range(last)), last + 1)
        sources = np.transpose(self.table, axes).reshape(self.sides[last], -1)
        offsets = staging.chunks.offsets[0][sources]
        is_next = (np.diff(offsets, axis=1) == staging.slot_bytes).all(axis=0)
        bounds = [0, *(np.flatnonzero(~is_next) + 1).tolist(), sources.shape[1]]
        for begin, end in itertools.pairwise(bounds):
            yield begin, end, sources[:, begin]

    def _coordinate(self, dim: int) -> np.ndarray:
        """By proxy, its coordinate along a dimension."""
        where = np.arange(self.sides[dim]).reshape(-1, *(1,) * (len(self.sides) - dim))
        return np.broadcast_to(where, self.proxies.shape)

    def _chunk(
        self, staging: _Staging, space: Space, member: np.ndarray, owner: np.ndarray | None = None
    ) -> Location:
        """The chunk of a member, in the proxy's buffer or in that of an owner."""
        members = np.broadcast_to(member, self.proxies.shape)
        offset = self._column(staging.chunks.offsets[0][members], 0)
        owners = None if owner is None else self._column(owner, IDLE).astype(np.int32)
        return Location(space, offset, staging.chunks.tensor, owners)

    def _slot(self, staging: _Staging, stop: int, slot: np.ndarray) -> Location:
        """A slot of scratch."""
        where = np.broadcast_to(
            staging.waiting[stop] + slot * staging.slot_bytes, self.proxies.shape
        )
        return Location(Space.SCRATCH, self._column(where, 0))

    def _column(self, values: np.ndarray, idle: int) -> np.ndarray:
        """(members,) int64, these values at the proxies."""
        column = np.full(self.table.size, idle, np.int64)
        column[self.proxies.ravel()] = values.ravel()
        return column
