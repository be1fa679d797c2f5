"""Mesh algorithms: everybody writes to everybody, in steps whose number does not grow.

    reduce-scatter   step 0: the members of a chip share out the members of every other chip; for
                     each of theirs they reduce the chunks of their own chip's members, write there
                     step 1: each reduces the partial sums of all chips
    all-gather       step 0: the members of a chip share out the other chips; to each of theirs they
                     write the chunks of all members of their own chip, at its ingress rank
                     step 1: the members of a chip write each other what they have got
    all-reduce       the first, then the second; what an all-gather starts from is then no operand,
                     so each writes its own chunk to every chip

The ingress rank of a chip is the member nearest to the port by which bytes from the other chip
enter. All goes through one DMA ring of each member. A transfer of a plan has every member send and
receive at most once, so sends are cut into matchings.

Source: AWS Neuron docs, intranode-collective-comm.rst (steps, destinations shared out, nearest
rank); nec.h (at most 128 chips, one channel).
"""

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import attrs
import numpy as np

from ncc_runtime.collectives import stages
from ncc_runtime.collectives.chunks import Extent, Scratch
from ncc_runtime.collectives.layout import GroupLayout, Members, UnsuitedError
from ncc_runtime.collectives.plan import IDLE, Job, Location, Plan, Round, Space, Transfer
from ncc_runtime.collectives.stages import (
    MOST_SOURCES,
    Arrangement,
    StageAlgorithm,
    StageKind,
    Strand,
    Subgroups,
    chained_reduction,
    side_by_side,
)
from ncc_runtime.group_rules.rules import MESH_CHIPS
from ncc_runtime.topology.chip_routes import RouteTable, chip_routes
from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.quadrants import NO_PORT, planes_of_cores, ports_of_cores


def ingress_places(layout: GroupLayout, clusters: tuple[Members, ...]) -> tuple[Members, ...]:
    """[source][target]: the place in the target cluster that receives for it.

    It is at the port by which the route enters the chip. Where no port is published, or no member
    is at it, places take turns.
    """
    topology = layout.placement.topology
    port, plane = ports_of_cores(topology), planes_of_cores(topology)
    begins = np.array([layout.seats[source[0]].chip for source in clusters])
    entered = _entry_ports(topology, begins % topology.chips_per_node)
    found = []
    for number, source in enumerate(clusters):
        begin = layout.seats[source[0]]
        row = []
        for other, target in enumerate(clusters):
            seats = [layout.seats[member] for member in target]
            end = seats[0]
            code = int(entered[number, other]) if begin.node == end.node else NO_PORT
            chip = end.chip % topology.chips_per_node
            near = [
                k
                for k, seat in enumerate(seats)
                if code in (port[chip, seat.core], plane[chip, seat.core])
            ]
            if code == NO_PORT or not near:
                near = list(range(len(seats)))
            row.append(near[number % len(near)])
        found.append(tuple(row))
    return tuple(found)


def _entry_ports(topology: Topology, chips: np.ndarray) -> np.ndarray:
    """The port by which the first instance's routes enter, int8, by source and target chip."""
    first = np.zeros((len(chips), len(chips)), np.int64)
    ways, rows = _routes(topology).rows(first, chips[:, None], chips)
    return np.asarray(ways.enters[rows])


@lru_cache(maxsize=8)
def _routes(topology: Topology) -> RouteTable:
    return chip_routes(topology)


@attrs.frozen
class MeshSend:
    """One position writes to another: its own chunk, or a chunk of each member of its chip."""

    sender: int
    receiver: int
    chip: int  # of the sender, as a number of the form


def matchings(sends: Iterable[MeshSend]) -> list[list[MeshSend]]:
    """Sets in which nobody sends or receives twice: each send goes into the first it fits in."""
    found: list[list[MeshSend]] = []
    sending: dict[int, int] = {}  # bits: the sets a position sends in
    receiving: dict[int, int] = {}
    for send in sends:
        taken = sending.get(send.sender, 0) | receiving.get(send.receiver, 0)
        free = (~taken & (taken + 1)).bit_length() - 1
        if free == len(found):
            found.append([])
        found[free].append(send)
        sending[send.sender] = sending.get(send.sender, 0) | 1 << free
        receiving[send.receiver] = receiving.get(send.receiver, 0) | 1 << free
    return found


@attrs.frozen
class MeshForm:
    """Positions chip by chip, and where on a chip it is that bytes from another arrive."""

    sizes: tuple[int, ...]  # members of each chip
    ingress_places: tuple[tuple[int, ...], ...]  # [source chip][target chip]: place on the target

    @property
    def chips(self) -> int:
        """Chips of a subgroup."""
        return len(self.sizes)

    @property
    def widest(self) -> int:
        """Members of the chip that has most."""
        return max(self.sizes)

    def position(self, chip: int, place: int) -> int:
        """The position of a place on a chip, places counted round."""
        return sum(self.sizes[:chip]) + place % self.sizes[chip]


def arrange(layout: GroupLayout) -> Arrangement:
    """Members by chip, chips in order; UnsuitedError if there are too many to write to."""
    by_chip = sorted(layout.by_chip(), key=lambda cluster: layout.seats[cluster[0]].chip)
    clusters = tuple(
        tuple(sorted(cluster, key=lambda member: layout.seats[member].core)) for cluster in by_chip
    )
    if len(clusters) > MESH_CHIPS.most:
        raise UnsuitedError(f"it is on {len(clusters)} chips, a mesh has {MESH_CHIPS.most} at most")
    sizes = tuple(len(cluster) for cluster in clusters)
    if max(sizes) > MOST_SOURCES:
        raise UnsuitedError(
            f"{max(sizes)} members share a chip, a descriptor joins {MOST_SOURCES} at most"
        )
    order = tuple(member for cluster in clusters for member in cluster)
    return Arrangement(
        (order,), MeshForm(sizes, ingress_places(layout, clusters)), _place_by_place(sizes)
    )


def _place_by_place(sizes: Sequence[int]) -> Members:
    """Chunks of positions such that what a place of a chip gets from the others is one range."""
    places = [(place, chip) for chip, size in enumerate(sizes) for place in range(size)]
    rank = {place: number for number, place in enumerate(sorted(places))}
    return tuple(rank[place] for place in places)


def all_reduce(job: Job, wiring: Arrangement) -> Plan:
    """Every member sends a part for each other chip and its whole chunk to everybody."""
    return stages.all_reduce("mesh", job, [_mesh(job, wiring)], wiring.chunks)


def reduce_scatter(job: Job, wiring: Arrangement) -> Plan:
    """Every member gets one part of its chunk from every other chip."""
    return stages.reduce_scatter("mesh", job, [_mesh(job, wiring)])


def all_gather(job: Job, wiring: Arrangement) -> Plan:
    """Every chip gets every chunk from elsewhere once, then its members exchange them."""
    return stages.all_gather("mesh", job, [_mesh(job, wiring)])


@attrs.frozen(eq=False)
class Mesh:
    """A mesh of every subgroup; chunk k of an extent belongs to position k."""

    subgroups: Subgroups
    form: MeshForm
    strand: Strand
    chip: np.ndarray = attrs.field(init=False)  # by position
    first: np.ndarray = attrs.field(init=False)  # by position, the first of its chip

    @chip.default
    def _chip_of_roles(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.form.sizes)), self.form.sizes)

    @first.default
    def _first_of_chips(self) -> np.ndarray:
        edges = np.concatenate(([0], np.cumsum(self.form.sizes)))
        return np.take(edges, self.chip)

    @property
    def chips(self) -> int:
        """Chips of a subgroup."""
        return self.form.chips

    @property
    def widest(self) -> int:
        """Members of the chip that has most."""
        return self.form.widest

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
        slots = [
            [scratch.take(int(extent.sizes.max(initial=0))) for _ in range(self.chips)]
            for extent in extents
        ]
        sends = [
            self._part(
                extent, served, Location(Space.SCRATCH, self._everywhere(its_slots[served.turn]))
            )
            for served in _served(self.form)
            for extent, its_slots in zip(extents, slots, strict=True)
        ]
        position = self.subgroups.position
        joins = []
        for extent, target, its_slots in zip(extents, targets, slots, strict=True):
            moves = chained_reduction(
                self._parts(extent, its_slots),
                target.piece(position),
                extent.size(position),
                self.subgroups.self_peers,
                self.strand,
                scratch,
                divided_by,
            )
            joins.append([Round((move,)) for move in moves])
        last = side_by_side(joins)
        return [Round(tuple(sends)), *last] if sends else list(last)

    def all_gather(self, own: Sequence[Extent], targets: Sequence[Extent]) -> list[Round]:
        """Chunk r of `own` at position r, in chunk r of the targets of everybody."""
        grouped = all(extent.space is Space.OPERAND for extent in own)
        sets = _sets(self.form, grouped)
        sends = [
            move
            for one_set in sets
            for chunk in self._chunks(one_set, grouped)
            for source, target in zip(own, targets, strict=True)
            for move in self._deposit((source, target), (one_set, chunk))
        ]
        if grouped:
            sends += self._around(own, targets, self.subgroups.position[:, None])
        sends += stages.kept(self.subgroups, self.strand, own, targets)
        exchange = self._around(targets, targets, self._held(sets, grouped))
        return [Round(tuple(moves)) for moves in (sends, exchange) if moves]

    def _everywhere(self, offset: int) -> np.ndarray:
        return self.subgroups.everywhere(offset)

    def _part(self, extent: Extent, served: "_Served", slot: Location) -> Transfer:
        """The receivers' chunks of all members of the senders' chips, joined."""
        peer = self.subgroups.members_of(served.receiver)
        chunk = np.maximum(served.receiver, 0)[self.subgroups.position]
        sources = self._on_chip(extent, chunk, served.size)
        return self.strand.transfer(peer, sources, slot, extent.size(chunk))

    def _on_chip(self, extent: Extent, chunk: np.ndarray, size: int) -> tuple[Location, ...]:
        """A chunk in the memory of everybody on a chip of `size` members."""
        if size == 1:
            return (extent.piece(chunk),)
        last = np.minimum(self.first + size, self.subgroups.size) - 1
        owners = [np.minimum(self.first + place, last) for place in range(size)]
        return tuple(extent.piece(chunk, self.subgroups.members_of(owner)) for owner in owners)

    def _parts(self, extent: Extent, slots: Sequence[int]) -> list[Location]:
        """What the last step joins: a part from every chip."""
        received = [Location(Space.SCRATCH, self._everywhere(slot)) for slot in slots]
        if self.chips == 1:
            return list(self._on_chip(extent, self.subgroups.position, self.widest))
        if self.widest == 1:
            return [extent.piece(self.subgroups.position), *received[1:]]
        return received

    def _chunks(self, sends: Sequence[MeshSend], grouped: bool) -> Iterator[np.ndarray]:
        """By position, the chunk that each transfer of a matching moves, IDLE for none."""
        for place in range(self.widest if grouped else 1):
            chunk = np.full(self.subgroups.size, IDLE, np.int64)
            for send in sends:
                if not grouped:
                    chunk[send.sender] = send.sender
                elif place < self.form.sizes[send.chip]:
                    chunk[send.sender] = self.form.position(send.chip, place)
            yield chunk

    def _deposit(
        self,
        extents: tuple[Extent, Extent],
        moved: tuple[Sequence[MeshSend], np.ndarray],
    ) -> Iterator[Transfer]:
        """A chunk that lies at its owner, into the result of a member of another chip."""
        (source, target), (sends, chunk) = extents, moved
        receiver = np.full(self.subgroups.size, IDLE, np.int64)
        for send in sends:
            receiver[send.sender] = send.receiver
        receiver[chunk == IDLE] = IDLE
        peer = self.subgroups.members_of(receiver)
        owner = self.subgroups.members_of(np.where(chunk == IDLE, np.arange(len(chunk)), chunk))
        is_own = bool((owner == self.subgroups.self_peers).all())
        mine = np.maximum(chunk, 0)[self.subgroups.position]
        piece = source.piece(mine, None if is_own else owner)
        yield self.strand.transfer(
            peer, (piece,), target.at(mine, np.maximum(peer, 0)), target.size(mine)
        )

    def _held(self, sets: Sequence[Sequence[MeshSend]], grouped: bool) -> np.ndarray:
        """By member, the chunks for others on its chip, (members, k), IDLE beyond the last."""
        held: list[list[int]] = [
            [] if grouped else [position] for position in range(self.subgroups.size)
        ]
        for send in (send for one_set in sets for send in one_set):
            if grouped:
                size = self.form.sizes[send.chip]
                held[send.receiver] += [self.form.position(send.chip, k) for k in range(size)]
            else:
                held[send.receiver].append(send.sender)
        table = np.full((len(held), max(map(len, held))), IDLE, np.int64)
        for position, chunks in enumerate(held):
            table[position, : len(chunks)] = chunks
        return table[self.subgroups.position]

    def _around(
        self, sources: Sequence[Extent], targets: Sequence[Extent], chunks: np.ndarray
    ) -> list[Transfer]:
        """Chunks that members hold, to everybody else on their chips."""
        if not chunks.size:
            return []
        place = np.arange(self.subgroups.size) - self.first
        size = np.take(self.form.sizes, self.chip)
        symmetry = self.subgroups.symmetry
        moves: list[Transfer] = []
        for shift in range(1, self.widest):
            neighbour = np.where(shift < size, self.first + (place + shift) % size, IDLE)
            peer = self.subgroups.members_of(neighbour)
            for source, target in zip(sources, targets, strict=True):
                read = [stages.ExtentSource(source)]
                moves += stages.coalesced(peer, chunks, read, target, self.strand, symmetry)
        return moves


@attrs.frozen(eq=False)
class _Served:
    """Parts of chunks that members of chips of one size send to members `turn` chips on."""

    turn: int
    size: int
    receiver: np.ndarray  # by position, IDLE for none


@lru_cache(maxsize=8)
def _served(form: MeshForm) -> tuple[_Served, ...]:
    """Who joins and writes the parts for whom; chip t places behind fills slot t."""
    sizes = form.sizes
    if form.chips == 1:
        return ()
    columns: dict[tuple[int, int, int], np.ndarray] = {}
    for turn in range(0 if form.widest > 1 else 1, form.chips):
        for chip, size in enumerate(sizes):
            target = (chip + turn) % form.chips
            for place in range(sizes[target]):
                key = turn, place // size, size
                column = columns.setdefault(key, np.full(sum(sizes), IDLE, np.int64))
                column[form.position(chip, place)] = form.position(target, place)
    return tuple(_Served(turn, size, column) for (turn, _, size), column in columns.items())


@lru_cache(maxsize=8)
def _sets(form: MeshForm, grouped: bool) -> Sequence[Sequence[MeshSend]]:
    """The sends of an all-gather, of a chip together or one by one, as few sets."""
    return matchings(_by_chip(form) if grouped else _one_by_one(form))


def _by_chip(form: MeshForm) -> Iterator[MeshSend]:
    """One member of a chip for every other chip, which sends for all of its own."""
    for turn in range(1, form.chips):
        for chip in range(form.chips):
            target = (chip + turn) % form.chips
            receiver = form.position(target, form.ingress_places[chip][target])
            yield MeshSend(form.position(chip, turn - 1), receiver, chip)


def _one_by_one(form: MeshForm) -> Iterator[MeshSend]:
    """Every member for itself to every other chip, at the same place there."""
    for turn in range(1, form.chips):
        for chip, size in enumerate(form.sizes):
            target = (chip + turn) % form.chips
            for place in range(size):
                yield MeshSend(form.position(chip, place), form.position(target, place), chip)


def _mesh(job: Job, wiring: Arrangement) -> StageAlgorithm:
    return STAGE.stage(Subgroups(wiring.orders, job.symmetry), wiring.form, Strand(0, (0,)))


STAGE = StageKind(arrange, Mesh)
