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
    reduced_in_blocks,
    side_by_side,
)
from ncc_runtime.group_rules.rules import MESH_CHIPS
from ncc_runtime.topology.chip_routes import chip_routes
from ncc_runtime.topology.quadrants import NO_PORT, planes_of_cores, ports_of_cores


def ingress_places(layout: GroupLayout, clusters: tuple[Members, ...]) -> tuple[Members, ...]:
    """[source][target]: the place of the ingress rank in the target cluster.

    It is at the port by which the route enters the chip. Where no port is published, or no member
    is at it, places take turns.
    """
    topology = layout.placement.topology
    port, plane = ports_of_cores(topology), planes_of_cores(topology)
    # instances are wired alike: by source and target chip, the port by which a route of the first
    # instance enters the target
    chips = np.array([layout.seats[source[0]].chip for source in clusters])
    chips %= topology.chips_per_node
    first = np.zeros((len(chips), len(chips)), np.int64)
    routes, rows = chip_routes(topology).rows(first, chips[:, None], chips)
    entered = routes.enters[rows]
    places = []
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
        places.append(tuple(row))
    return tuple(places)


@attrs.frozen
class MeshSend:
    """One position writes to another: its own chunk, or a chunk of each member of its chip."""

    sender: int
    receiver: int
    chip: int  # of the sender, as a number of the form


def matchings(sends: Iterable[MeshSend]) -> list[list[MeshSend]]:
    """Sets in which no position sends or receives twice: each send goes into the first it fits."""
    sets: list[list[MeshSend]] = []
    sending: dict[int, int] = {}  # bits: the sets a position sends in
    receiving: dict[int, int] = {}
    for send in sends:
        taken = sending.get(send.sender, 0) | receiving.get(send.receiver, 0)
        free = (~taken & (taken + 1)).bit_length() - 1  # the lowest bit that is 0
        if free == len(sets):
            sets.append([])
        sets[free].append(send)
        sending[send.sender] = sending.get(send.sender, 0) | 1 << free
        receiving[send.receiver] = receiving.get(send.receiver, 0) | 1 << free
    return sets


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
    def most_members(self) -> int:
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
        (order,), MeshForm(sizes, ingress_places(layout, clusters)), _chunks_by_place(sizes)
    )


def _chunks_by_place(sizes: Sequence[int]) -> Members:
    """By position its chunk, numbered by place, then chip.

    So the chunks that a place of a chip receives from the other chips are one range.
    """
    places = [(place, chip) for chip, size in enumerate(sizes) for place in range(size)]
    number = {place: chunk for chunk, place in enumerate(sorted(places))}
    return tuple(number[place] for place in places)


def all_reduce(job: Job, arrangement: Arrangement) -> Plan:
    """Every member sends a part for each other chip and its whole chunk to everybody."""
    return stages.all_reduce("mesh", job, [_stage(job, arrangement)], arrangement.chunks)


def reduce_scatter(job: Job, arrangement: Arrangement) -> Plan:
    """Every member gets one part of its chunk from every other chip."""
    return stages.reduce_scatter("mesh", job, [_stage(job, arrangement)])


def all_gather(job: Job, arrangement: Arrangement) -> Plan:
    """Every chip gets every chunk from elsewhere once, then its members exchange them."""
    return stages.all_gather("mesh", job, [_stage(job, arrangement)])


def _stage(job: Job, arrangement: Arrangement) -> StageAlgorithm:
    subgroups = Subgroups(arrangement.orders, job.symmetry)
    return STAGE.stage(subgroups, arrangement.form, Strand(0, (0,)))


@attrs.frozen(eq=False)
class Mesh:
    """A mesh of every subgroup; chunk k of an extent belongs to position k."""

    subgroups: Subgroups
    form: MeshForm
    strand: Strand
    chip: np.ndarray = attrs.field(init=False)  # (positions,)
    first: np.ndarray = attrs.field(init=False)  # (positions,), the first position of the chip

    @chip.default
    def _chip_of_positions(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.form.sizes)), self.form.sizes)

    @first.default
    def _first_of_chips(self) -> np.ndarray:
        sizes = np.array(self.form.sizes)
        return np.take(np.cumsum(sizes) - sizes, self.chip)

    @property
    def chips(self) -> int:
        """Chips of a subgroup."""
        return self.form.chips

    @property
    def most_members(self) -> int:
        """Members of the chip that has most."""
        return self.form.most_members

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
            self._partial_sum(extent, served, by_chip[served.shift])
            for served in _served(self.form)
            for extent, by_chip in zip(extents, slots, strict=True)
        ]
        position = self.subgroups.position
        reductions = []
        for extent, target, by_chip in zip(extents, targets, slots, strict=True):
            moves = reduced_in_blocks(
                self._last_sources(extent, by_chip),
                target.piece(position),
                extent.size(position),
                self.subgroups.self_peers,
                self.strand,
                scratch,
                divided_by,
            )
            reductions.append([Round((move,)) for move in moves])
        last = side_by_side(reductions)
        return [Round(tuple(sends)), *last] if sends else list(last)

    def all_gather(self, sources: Sequence[Extent], targets: Sequence[Extent]) -> list[Round]:
        """Chunk r of `sources` at position r, in chunk r of the targets of everybody."""
        # an operand can be read by a proxy on the same chip; a result that has just been reduced
        # cannot, for only operands may be read in another's memory
        by_chip = all(extent.space is Space.OPERAND for extent in sources)
        matched = _matched_sends(self.form, by_chip)
        sends = [
            self._sent(matching, chunk, source, target)
            for matching in matched
            for chunk in self._chunks(matching, by_chip)
            for source, target in zip(sources, targets, strict=True)
        ]
        if by_chip:
            sends += self._around(sources, targets, self.subgroups.position[:, None])
        sends += stages.kept(self.subgroups, self.strand, sources, targets)
        exchange = self._around(targets, targets, self._received(matched, by_chip))
        return [Round(tuple(moves)) for moves in (sends, exchange) if moves]

    def _partial_sum(self, extent: Extent, served: "_Served", slot: int) -> Transfer:
        """The receivers' chunks of all members of the senders' chips, reduced into a slot."""
        peer = self.subgroups.members_of(served.receiver)
        chunk = np.maximum(served.receiver, 0)[self.subgroups.position]
        sources = self._on_chip(extent, chunk, served.size)
        target = Location(Space.SCRATCH, self.subgroups.everywhere(slot))
        return self.strand.transfer(peer, sources, target, extent.size(chunk))

    def _on_chip(self, extent: Extent, chunk: np.ndarray, size: int) -> tuple[Location, ...]:
        """A chunk in the memory of everybody on a chip of `size` members."""
        if size == 1:
            return (extent.piece(chunk),)
        last = np.minimum(self.first + size, self.subgroups.size) - 1
        owners = [np.minimum(self.first + place, last) for place in range(size)]
        return tuple(extent.piece(chunk, self.subgroups.members_of(owner)) for owner in owners)

    def _last_sources(self, extent: Extent, slots: Sequence[int]) -> list[Location]:
        """What the last step reduces: a partial sum of every chip."""
        received = [Location(Space.SCRATCH, self.subgroups.everywhere(slot)) for slot in slots]
        # a member alone on its chip has no partial sum to make there: it reads its operand instead
        if self.chips == 1:
            return list(self._on_chip(extent, self.subgroups.position, self.most_members))
        if self.most_members == 1:
            return [extent.piece(self.subgroups.position), *received[1:]]
        return received

    def _chunks(self, matching: Sequence[MeshSend], by_chip: bool) -> Iterator[np.ndarray]:
        """By position, the chunk that each transfer of a matching moves, IDLE for none."""
        for place in range(self.most_members if by_chip else 1):
            chunk = np.full(self.subgroups.size, IDLE, np.int64)
            for send in matching:
                if not by_chip:
                    chunk[send.sender] = send.sender
                elif place < self.form.sizes[send.chip]:
                    chunk[send.sender] = self.form.position(send.chip, place)
            yield chunk

    def _sent(
        self, matching: Sequence[MeshSend], chunk: np.ndarray, source: Extent, target: Extent
    ) -> Transfer:
        """A chunk that lies at its owner, into the result of a member of another chip."""
        receiver = np.full(self.subgroups.size, IDLE, np.int64)
        for send in matching:
            receiver[send.sender] = send.receiver
        receiver[chunk == IDLE] = IDLE
        peer = self.subgroups.members_of(receiver)
        owner = self.subgroups.members_of(np.where(chunk == IDLE, np.arange(len(chunk)), chunk))
        is_own = bool((owner == self.subgroups.self_peers).all())
        moved = np.maximum(chunk, 0)[self.subgroups.position]
        read = source.piece(moved, None if is_own else owner)
        written = target.at(moved, np.maximum(peer, 0))
        return self.strand.transfer(peer, (read,), written, target.size(moved))

    def _received(self, matched: Sequence[Sequence[MeshSend]], by_chip: bool) -> np.ndarray:
        """By member, the chunks for others on its chip, (members, k), IDLE beyond the last."""
        received: list[list[int]] = [
            [] if by_chip else [position] for position in range(self.subgroups.size)
        ]
        for send in (send for matching in matched for send in matching):
            if by_chip:
                size = self.form.sizes[send.chip]
                received[send.receiver] += [self.form.position(send.chip, k) for k in range(size)]
            else:
                received[send.receiver].append(send.sender)
        table = np.full((len(received), max(map(len, received))), IDLE, np.int64)
        for position, chunks in enumerate(received):
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
        for shift in range(1, self.most_members):
            neighbour = np.where(shift < size, self.first + (place + shift) % size, IDLE)
            peer = self.subgroups.members_of(neighbour)
            for source, target in zip(sources, targets, strict=True):
                read = [stages.ExtentSource(source)]
                moves += stages.coalesced(peer, chunks, read, target, self.strand, symmetry)
        return moves


@attrs.frozen(eq=False)
class _Served:
    """Writes of partial sums by members of chips of one size, to members `shift` chips on."""

    shift: int
    size: int  # members of the senders' chips
    receiver: np.ndarray  # by position, IDLE for none


@lru_cache(maxsize=8)
def _served(form: MeshForm) -> tuple[_Served, ...]:
    """The sends of a reduce-scatter; a sum from the chip t places behind fills slot t."""
    sizes = form.sizes
    if form.chips == 1:
        return ()
    columns: dict[tuple[int, int, int], np.ndarray] = {}
    for shift in range(0 if form.most_members > 1 else 1, form.chips):
        for chip, size in enumerate(sizes):
            target = (chip + shift) % form.chips
            for place in range(sizes[target]):
                # a smaller chip serves a larger one in several transfers
                key = shift, place // size, size
                column = columns.setdefault(key, np.full(sum(sizes), IDLE, np.int64))
                column[form.position(chip, place)] = form.position(target, place)
    return tuple(_Served(shift, size, column) for (shift, _, size), column in columns.items())


@lru_cache(maxsize=8)
def _matched_sends(form: MeshForm, by_chip: bool) -> Sequence[Sequence[MeshSend]]:
    """The sends of an all-gather, in which a proxy sends for its chip or everybody for itself.

    By chip, one member of it for every other chip, to the ingress rank there; else every member to
    every other chip, at the same place there.
    """
    sends = []
    for shift in range(1, form.chips):
        for chip, size in enumerate(form.sizes):
            target = (chip + shift) % form.chips
            if by_chip:
                receiver = form.position(target, form.ingress_places[chip][target])
                sends.append(MeshSend(form.position(chip, shift - 1), receiver, chip))
            else:
                sends += [
                    MeshSend(form.position(chip, place), form.position(target, place), chip)
                    for place in range(size)
                ]
    return matchings(sends)


STAGE = StageKind(arrange, Mesh)
