"""All-to-all on a torus: along one dimension after another, through the memory of those between.

A member first sends everything that is bound for another place along its first dimension to the
member of its own place on that chip, data of all members of its own chip together; that one sends
it on along the next dimension, and the last dimension takes it to the result. So a member has as
many peers as there are chips along the dimensions, not as members, and no data goes twice over a
link. On the way data waits in scratch, ordered by where it goes next, then by where it comes from.

Members of one place on their chips make a plane. Planes begin with different dimensions, and where
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

from ncc_runtime.collectives.chunks import Extent, Scratch
from ncc_runtime.collectives.forwarding.link_graph import TorusGrid, link_graph_of, torus_grid_of
from ncc_runtime.collectives.forwarding.schedule import ProxyRanks
from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
from ncc_runtime.collectives.plan import IDLE, LANES, Job, Location, Plan, Round, Space, Transfer
from ncc_runtime.collectives.stages import Strand, operand_slices, side_by_side

SLICE_BYTES = 16 * 1024
"""Least size of a slice of a chunk where chunks could stay whole; assumed."""


@attrs.frozen(cache_hash=True)
class Group:
    """Who is on which chip, and the grid of the chips."""

    crew: ProxyRanks
    grid: TorusGrid

    def table(self, order: tuple[int, ...]) -> np.ndarray:
        """(chips along the dimensions in this order, places), the members."""
        return self.crew.table[np.transpose(self.grid.table, order)]


def arrange(layout: GroupLayout) -> Group:
    """UnsuitedError unless the chips fill a torus and have one number of members each."""
    grid, crew = torus_grid_of(layout, link_graph_of(layout)), ProxyRanks.of(layout)
    if crew.planes != crew.places:
        raise UnsuitedError("its chips hold different numbers of members")
    return Group(crew, grid)


def all_to_all(job: Job, group: Group) -> Plan:
    """As many rounds as there are dimensions; slices of chunks go side by side."""
    members, dims, scratch = group.crew.members, len(group.grid.dims), Scratch()
    slices = _slices(job, group)
    strands = []
    for number, extents in enumerate(operand_slices(job, members, slices)):
        rings = LANES // slices
        track = Strand(number, tuple(range(number * rings, (number + 1) * rings)))
        rooms = [_Room.of(extent, scratch, dims - 1) for extent in extents]
        strand: list[Round] = []
        for phase in range(dims):
            moves = [
                move
                for course in _courses(group, number)
                for room in rooms
                for move in course.moves(phase, room, track)
            ]
            strand.append(Round(tuple(moves)))
        strands.append(strand)
    return Plan("torus", members, side_by_side(strands), scratch.bytes)


def _slices(job: Job, group: Group) -> int:
    """So many that planes and slices together begin with all dimensions alike; 1 if small."""
    dims = len(group.grid.dims)
    elements = max(job.buffers.operand_elements, default=0) // group.crew.members
    is_large = elements * job.buffers.element_bytes >= dims * SLICE_BYTES
    return dims // math.gcd(dims, group.crew.planes) if is_large else 1


def _courses(group: Group, number: int) -> Iterator["_Course"]:
    """The planes of a slice by the dimension that they begin with."""
    dims = len(group.grid.dims)
    for first in range(dims):
        planes = [one for one in range(group.crew.planes) if (one + number) % dims == first]
        if planes:
            table = group.table(tuple((first + step) % dims for step in range(dims)))
            yield _Course(table, tuple(planes))


@attrs.frozen(eq=False)
class _Room:
    """One tensor's slice of every chunk, and where it waits after each dimension but the last."""

    chunks: Extent  # at (1, members), alike in operands and results
    waiting: tuple[int, ...]  # offsets in scratch, each of as many slots as members
    slot_bytes: int

    @classmethod
    def of(cls, chunks: Extent, scratch: Scratch, stops: int) -> "_Room":
        size = int(chunks.sizes.max(initial=0))
        return cls(chunks, tuple(scratch.take(size * chunks.chunks) for _ in range(stops)), size)


@attrs.frozen(eq=False)
class _Course:
    """Planes that go along the dimensions in one order, which is that of the table's sides.

    After dimension p a member has slots for (goals along the later dimensions, sources along p, …,
    0, place on the source's chip), row-major. So what goes to one member next lies together.
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
    def agents(self) -> np.ndarray:
        """(sides, planes), the members of the planes."""
        return np.asarray(self.table[..., list(self.planes)])

    def moves(self, phase: int, room: _Room, track: Strand) -> Iterator[Transfer]:
        """Everything that goes along one dimension, to all members along it by turns."""
        side = self.sides[phase]
        by_step = [self._sent(phase, (step + 1) % side, room, track) for step in range(side)]
        for turn in zip(*by_step, strict=True):
            yield from turn

    def _sent(self, phase: int, step: int, room: _Room, track: Strand) -> Iterator[Transfer]:
        """What goes so many chips further along a dimension."""
        pieces = self._passed(phase, step, room) if phase else self._collected(step, room)
        peer = self._column(np.roll(self.agents, -step, phase), IDLE).astype(np.int32)
        for source, target, size in pieces:
            sizes = self._column(np.full(self.agents.shape, size), 0)
            yield track.transfer(peer, (source,), target, sizes, step)

    def _collected(self, step: int, room: _Room) -> Iterator[tuple[Location, Location, int]]:
        """From the operands of all members of the chip, each chunk by itself."""
        here, dims = self._coordinate(0), len(self.sides)
        goals = np.roll(self.agents, -step, 0).reshape(self.sides[0], -1, len(self.planes))
        for number in range(goals.shape[1]):
            chunk = goals[:, number].reshape(self.sides[0], *(1,) * (dims - 1), -1)
            for seat in range(self.places):
                owner = np.broadcast_to(self.table[..., seat, None], self.agents.shape)
                source = self._chunk(room, Space.OPERAND, chunk, owner)
                if dims == 1:
                    yield source, self._chunk(room, Space.RESULT, owner), room.slot_bytes
                else:
                    slot = (number * self.sides[0] + here) * self.places + seat
                    yield source, self._slot(room, 0, slot), room.slot_bytes

    def _passed(
        self, phase: int, step: int, room: _Room
    ) -> Iterator[tuple[Location, Location, int]]:
        """What came along the dimension before, as far as it lies together there and here."""
        here, side = self._coordinate(phase), self.sides[phase]
        came = math.prod(self.sides[:phase]) * self.places  # sources whose data lies together
        later = math.prod(self.sides[phase + 1 :])
        goal = (here + step) % side
        for number in range(later):
            first = (goal * later + number) * came
            if phase < len(self.sides) - 1:
                slot = (number * side + here) * came
                pieces = self._slot(room, phase - 1, first), self._slot(room, phase, slot)
                yield *pieces, came * room.slot_bytes
                continue
            for begin, end, member in self._runs(room):
                source = self._slot(room, phase - 1, first + begin)
                target = self._chunk(room, Space.RESULT, member[here])
                yield source, target, (end - begin) * room.slot_bytes

    def _runs(self, room: _Room) -> Iterator[tuple[int, int, np.ndarray]]:
        """Begin and end of slots whose chunks lie together in all results, and whose is first.

        By place along the last dimension, (side,).
        """
        last = len(self.sides) - 1
        axes = (last, *reversed(range(last)), last + 1)
        sources = np.transpose(self.table, axes).reshape(self.sides[last], -1)
        offsets = room.chunks.offsets[0][sources]
        is_next = (np.diff(offsets, axis=1) == room.slot_bytes).all(axis=0)
        edges = [0, *(np.flatnonzero(~is_next) + 1).tolist(), sources.shape[1]]
        for begin, end in itertools.pairwise(edges):
            yield begin, end, sources[:, begin]

    def _coordinate(self, dim: int) -> np.ndarray:
        """By agent, where it is along a dimension."""
        where = np.arange(self.sides[dim]).reshape(-1, *(1,) * (len(self.sides) - dim))
        return np.broadcast_to(where, self.agents.shape)

    def _chunk(
        self, room: _Room, space: Space, member: np.ndarray, owner: np.ndarray | None = None
    ) -> Location:
        """The chunk of a member, in the own buffer or in that of an owner."""
        members = np.broadcast_to(member, self.agents.shape)
        offset = self._column(room.chunks.offsets[0][members], 0)
        owners = None if owner is None else self._column(owner, IDLE).astype(np.int32)
        return Location(space, offset, room.chunks.tensor, owners)

    def _slot(self, room: _Room, stop: int, slot: np.ndarray) -> Location:
        """A slot of scratch."""
        where = np.broadcast_to(room.waiting[stop] + slot * room.slot_bytes, self.agents.shape)
        return Location(Space.SCRATCH, self._column(where, 0))

    def _column(self, what: np.ndarray, idle: int) -> np.ndarray:
        """(members,) int64, `what` at the agents."""
        found = np.full(self.table.size, idle, np.int64)
        found[self.agents.ravel()] = what.ravel()
        return found
