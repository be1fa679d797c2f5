"""Ring algorithms: every member talks to its successor on a cycle only.

    reduce-scatter   step k: position r sends chunk (r-1-k) on, adding its own share to what it got
    all-gather       step k: position r passes chunk (r-k) on
    all-reduce       the first, then the second

Several cycles that share no link carry a slice of every chunk each, in a DMA ring each. On each of
them, where it reduces, chunks of some size go in two halves, so that one is reduced while the other
is under way.

On several instances every cycle is a chain through each of them, joined over EFA, and there are as
many cycles as a group has adapters in an instance, each of which enters and leaves by another one.
Chunks go whole there, on as few of these cycles as have little each: an adapter is as quick with
both halves of a chunk one after the other, and with little data it is the latency that counts.

Source: AWS Neuron docs, intranode-collective-comm.rst (chunk order, cycles over mutually exclusive
wires, two slices), internode-collective-comm.rst (open chains, several cycles so that all adapters
work, each at a different chip); Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms", JPDC
2009 (2(P-1)/P of the buffer per member).
"""

from collections.abc import Iterator, Sequence

import attrs

from ncc_runtime.collectives import stages
from ncc_runtime.collectives.chunks import Extent, Scratch
from ncc_runtime.collectives.layout import GroupLayout, Members
from ncc_runtime.collectives.plan import LANES, Job, Location, Plan, Round, Space, Transfer
from ncc_runtime.collectives.stages import Arrangement, StageKind, Strand, Subgroups

SLOTS = 2
"""Chunks a member's scratch can hold: one arrives while the other is read (double buffering)."""

SLICED_BYTES = 2 * 2 * 64 * 1024
"""Chunks from this size on are cut in two; assumed: below, a half on each of two cycles is no full
descriptor. However many cycles there are, so that fewer of them, where links are down, are not cut
sooner and quicker for it."""

CHANNEL_BYTES = 16 * 1024
"""Across instances, a channel for as much of a chunk; assumed: less takes a tenth of the 15 us that
a message is under way (1.7 us at 9.7 GB/s)."""

ACROSS = "across instances"
"""The form of an arrangement of chains joined over EFA."""

BUDGET = 20_000
"""Steps of the search for chains at different adapters before it takes the most it found."""


def arrange(layout: GroupLayout) -> Arrangement:
    """Rings over the cycles of the links, or there and back; else one in the group's order."""
    if len(layout.by_node()) == 1:
        return Arrangement(_inside(layout))
    return _over_instances(layout)


def _over_instances(layout: GroupLayout) -> Arrangement:
    """Chains through every instance, joined in the order of the instances."""
    chains = layout.arranged_by_instance(_chains)
    channels = min(map(len, chains))
    return Arrangement(
        tuple(
            tuple(
                members[k]
                for members, inside in zip(layout.by_node(), chains, strict=True)
                for k in inside[channel]
            )
            for channel in range(channels)
        ),
        form=ACROSS,
    )


def _chains(inside: GroupLayout) -> tuple[Members, ...]:
    """Chains through all members of an instance that enter, and leave, by different adapters.

    Each is a cycle of its chips cut open, where there is none the chips in the group's order. Every
    cycle is cut as often as any other, so that links share the chains.
    """
    cycles = inside.chip_cycles() or (inside.by_chip(),)
    efa = inside.placement.topology.efa
    assert efa is not None, "a group is on several instances"
    adapters = [
        [inside.seats[cluster[0]].chip // efa.chips_per_adapter for cluster in cycle]
        for cycle in cycles
    ]
    most = min(LANES, len(set(adapters[0])))
    cuts: list[int] = []  # channel k enters cycle k % len(cycles) at this cluster

    def free_cuts() -> Iterator[int]:
        """Where the next cycle can be cut, given the cuts so far."""
        used = [(adapters[k % len(cycles)], cut) for k, cut in enumerate(cuts)]
        entered = {cycle[cut] for cycle, cut in used}
        left = {cycle[cut - 1] for cycle, cut in used}
        cycle = adapters[len(cuts) % len(cycles)]
        free = [
            cycle[cut] not in entered and cycle[cut - 1] not in left for cut in range(len(cycle))
        ]
        return iter([cut for cut, is_free in enumerate(free) if is_free])

    best: list[int] = []
    choices = [free_cuts()]
    for _ in range(BUDGET):  # depth first
        cut = next(choices[-1], None)
        if cut is None:
            choices.pop()
            if not choices:
                break
            cuts.pop()
            continue
        cuts.append(cut)
        best = max(best, cuts[:], key=len)
        if len(cuts) == most:
            break
        choices.append(free_cuts())
    ends = ((cycles[k % len(cycles)], cut) for k, cut in enumerate(best))
    return tuple(
        tuple(k for cluster in cycle[cut:] + cycle[:cut] for k in cluster) for cycle, cut in ends
    )


def _inside(layout: GroupLayout) -> tuple[Members, ...]:
    """The rings of a group on one instance.

    A cycle and its reverse have two DMA rings a rank, and so have the two rings there and back,
    which take their place where links close no cycle both ways. Of what is found with and without
    slow links that is taken that carries most.
    """
    found: list[tuple[Members, ...]] = []
    for rate in layout.rates():
        cycles = layout.cycles_over(rate)
        found.append(tuple(tuple(k for cluster in cycle for k in cluster) for cycle in cycles))
        if len(cycles) < 2:
            found.append(layout.there_and_back(rate))
    return max(found, key=layout.carried) or (tuple(range(layout.members)),)


def all_reduce(job: Job, arrangement: Arrangement) -> Plan:
    """2(P-1) sends of a share of one chunk per member, tensor and cycle."""
    return stages.all_reduce("ring", job, _rings(job, arrangement, job.buffers.operand_elements))


def reduce_scatter(job: Job, arrangement: Arrangement) -> Plan:
    """P-1 sends of a share of one chunk per member, tensor and cycle."""
    rings = _rings(job, arrangement, job.buffers.operand_elements)
    return stages.reduce_scatter("ring", job, rings)


def all_gather(job: Job, arrangement: Arrangement) -> Plan:
    """P-1 sends of a share of one chunk per member, tensor and cycle."""
    rings = _rings(job, arrangement, job.buffers.result_elements, is_reducing=False)
    return stages.all_gather("ring", job, rings)


@attrs.frozen(eq=False)
class Ring:
    """One ring per subgroup; chunk k of an extent belongs to position k."""

    subgroups: Subgroups
    strand: Strand

    @property
    def goes_by_chunk(self) -> bool:
        """Whether transfers are of one chunk each, the same ones for every position."""
        return True

    def reduce_scatter(
        self,
        extents: Sequence[Extent],
        targets: Sequence[Extent],
        scratch: Scratch,
        divided_by: int = 1,
    ) -> list[Round]:
        """Chunk r of the extents, reduced and divided, at position r in chunk r of the targets."""
        slots = [
            [self._slot(scratch.take(int(extent.sizes.max(initial=0)))) for _ in range(SLOTS)]
            for extent in extents
        ]
        steps = self.subgroups.size - 1
        rounds = [self._reduce_step(extents, step, slots) for step in range(steps)]
        last = self._last_reduction(extents, targets, slots)
        moves = tuple(attrs.evolve(move, divisor=divided_by) for move in last.transfers)
        rounds.append(Round(moves))
        return rounds

    def all_gather(self, sources: Sequence[Extent], targets: Sequence[Extent]) -> list[Round]:
        """Chunk r of `sources` at position r, in chunk r of the targets of everybody."""
        rounds = [
            self._forward(step, targets if step else sources, targets)
            for step in range(self.subgroups.size - 1)
        ]
        keep = stages.kept(self.subgroups, self.strand, sources, targets)
        first = Round((*(rounds[0].transfers if rounds else ()), *keep))
        return [first, *rounds[1:]] if first.transfers else []

    def _reduce_step(
        self, extents: Sequence[Extent], step: int, slots: Sequence[Sequence[Location]]
    ) -> Round:
        chunk = (self.subgroups.position - 1 - step) % self.subgroups.size
        transfers = []
        for k, extent in enumerate(extents):
            sources: tuple[Location, ...] = (extent.piece(chunk),)
            if step:
                sources = (slots[k][(step - 1) % SLOTS], *sources)
            freed = len(extents) * (step - SLOTS) + k + 1  # slots that must be free by then
            moved = Transfer(
                self.subgroups.shifted(1),
                sources,
                slots[k][step % SLOTS],
                extent.size(chunk),
                lane=self.strand.lanes[0],
                consumed=self.subgroups.shifted(-1) if step else None,
                credit=freed if step >= SLOTS else 0,
                strand=self.strand.number,
            )
            transfers.append(moved)
        return Round(tuple(transfers))

    def _last_reduction(
        self,
        extents: Sequence[Extent],
        targets: Sequence[Extent],
        slots: Sequence[Sequence[Location]],
    ) -> Round:
        """The chunk a member keeps: its share and the last chunk received; a copy if alone."""
        position, local_peers = self.subgroups.position, self.subgroups.self_peers
        steps = self.subgroups.size - 1
        transfers = []
        for k, (extent, target) in enumerate(zip(extents, targets, strict=True)):
            sources: tuple[Location, ...] = (extent.piece(position),)
            if steps:
                sources = (slots[k][(steps - 1) % SLOTS], *sources)
            kept = self.strand.transfer(
                local_peers, sources, target.piece(position), extent.size(position)
            )
            consumed = self.subgroups.shifted(-1) if steps else None
            transfers.append(attrs.evolve(kept, consumed=consumed))
        return Round(tuple(transfers))

    def _forward(self, step: int, sources: Sequence[Extent], targets: Sequence[Extent]) -> Round:
        chunk = (self.subgroups.position - step) % self.subgroups.size
        peer = self.subgroups.shifted(1)
        return Round(
            tuple(
                self.strand.transfer(
                    peer, (source.piece(chunk),), target.at(chunk, peer), source.size(chunk)
                )
                for source, target in zip(sources, targets, strict=True)
            )
        )

    def _slot(self, offset: int) -> Location:
        return Location(Space.SCRATCH, self.subgroups.everywhere(offset))


def _rings(
    job: Job, arrangement: Arrangement, elements: Sequence[int], *, is_reducing: bool = True
) -> list[Ring]:
    """The rings of tensors of so many elements, each with its share of every chunk."""
    orders = arrangement.orders
    if arrangement.form == ACROSS:
        orders = orders[: max(1, _chunk_bytes(arrangement, elements, job) // CHANNEL_BYTES)]
    slices = slices_of(arrangement, elements, job) if is_reducing else 1
    return [
        Ring(Subgroups([order], job.symmetry), Strand(cycle * slices + part, (cycle,)))
        for cycle, order in enumerate(orders)
        for part in range(slices)
    ]


def _chunk_bytes(arrangement: Arrangement, elements: Sequence[int], job: Job) -> int:
    """The largest chunk of tensors of so many elements."""
    members = len(arrangement.orders[0])
    return max((-(-count // members) for count in elements), default=0) * job.buffers.element_bytes


def slices_of(arrangement: Arrangement, elements: Sequence[int], job: Job) -> int:
    """Slices of a chunk on each cycle: two from some size on, else one."""
    if arrangement.form == ACROSS:
        return 1
    return 2 if _chunk_bytes(arrangement, elements, job) >= SLICED_BYTES else 1


STAGE = StageKind(arrange, lambda subgroups, _, strand: Ring(subgroups, strand))
