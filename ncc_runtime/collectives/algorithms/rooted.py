"""Operators with a root, and barriers: what works for every group, whatever its wiring.

    broadcast  chain          root → 1 → 2 → …, segment after segment, from result to result
    reduce     chain          … → 2 → 1 → root, each reducing its own share with what it got
    gather     direct         every member writes at the root
    scatter    direct         the root writes at every member
    barrier    dissemination  in round k a signal to the member 2^k places on

A member's distance is its place in the group counted from the root on, round the end.

Source of the barrier: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization",
IJPP 1988.
"""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.collectives.chunks import Extent, chunked
from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
from ncc_runtime.collectives.plan import (
    IDLE,
    LANES,
    Job,
    Location,
    Plan,
    Round,
    Space,
    Transfer,
    divisor,
    self_peers,
)

SEGMENT_BYTES = 64 * 1024
"""Least part of a buffer that a chain passes on by itself; assumed: one full descriptor."""

MOST_CHAINED = 8192
"""Members of a chain. It has as many rounds as members; assumed: longer ones are of no use."""


def arrange(layout: GroupLayout) -> int:
    """The number of members; where they sit makes no difference."""
    return layout.members


def broadcast(job: Job, members: int) -> Plan:
    """Every member but the last of the chain sends the whole buffer on, once."""
    chain = _Chain.of(job, members)
    onward = np.where(chain.distance < members - 1, chain.neighbour(1), IDLE)
    rounds = []
    for step in range(members - 2 + chain.steps if members > 1 else 0):
        segment = step - chain.distance
        moves = [
            *chain.moves(segment, np.where(chain.is_root, onward, IDLE), (Space.OPERAND,)),
            *chain.moves(segment, np.where(chain.is_root, IDLE, onward), (Space.RESULT,)),
        ]
        rounds.append(Round(tuple(moves)))
    at_root = _local(job, Space.OPERAND, chain.is_root)
    return Plan("chain", members, (Round(tuple(at_root)), *rounds))


def reduce(job: Job, members: int) -> Plan:
    """Every member but the root sends the whole buffer once, reduced with what it received.

    Data arrives in the result; members other than the root clear theirs at the end.
    """
    chain = _Chain.of(job, members)
    last, divided_by = members - 1, divisor(job, members)
    onward = np.where(chain.is_root, IDLE, chain.neighbour(-1))
    is_farthest = chain.distance == last
    kept = np.where(chain.is_root, self_peers(members), IDLE)
    own, both = (Space.OPERAND,), (Space.RESULT, Space.OPERAND)
    rounds = []
    for step in range(last + chain.steps):
        segment = step - (last - chain.distance)
        moves = [
            *chain.moves(segment, np.where(is_farthest, onward, IDLE), own),
            *chain.moves(segment, np.where(is_farthest, IDLE, onward), both),
        ]
        kept_here = chain.moves(segment, kept, both if last else own)
        moves += [attrs.evolve(move, divisor=divided_by) for move in kept_here]
        rounds.append(Round(tuple(moves)))
    return Plan("chain", members, (*rounds, Round(tuple(_cleared(job, ~chain.is_root)))))


def gather(job: Job, members: int) -> Plan:
    """Every member but the root sends its operand, once."""
    root = _root(job)
    moves = [*_cleared(job, self_peers(members) != root)]
    for tensor, size in enumerate(_sizes(job, job.buffers.operand_elements)):
        for member in range(members):
            target = Location(Space.RESULT, np.full(members, member * size, np.int64), tensor)
            source = Location(Space.OPERAND, np.zeros(members, np.int64), tensor)
            moves.append(_single(members, member, root, source, target, size))
    return Plan("direct", members, (Round(tuple(moves)),))


def scatter(job: Job, members: int) -> Plan:
    """The root sends every other member its chunk."""
    root = _root(job)
    moves = []
    for tensor, size in enumerate(_sizes(job, job.buffers.result_elements)):
        for shift in range(members):
            member = (root + shift) % members
            source = Location(Space.OPERAND, np.full(members, member * size, np.int64), tensor)
            target = Location(Space.RESULT, np.zeros(members, np.int64), tensor)
            move = _single(members, root, member, source, target, size)
            moves.append(attrs.evolve(move, lane=shift % LANES))
    return Plan("direct", members, (Round(tuple(moves)),))


def barrier(_: Job, members: int) -> Plan:
    """ceil(log2 P) rounds of signals; after the last one every member has heard of all others."""
    nowhere, member = Location(Space.SCRATCH, np.zeros(members, np.int64)), self_peers(members)
    rounds = []
    for step in range((members - 1).bit_length()):
        peer = ((member + (1 << step)) % members).astype(np.int32)
        move = Transfer(peer, (nowhere,), nowhere, np.zeros(members, np.int64))
        rounds.append(Round((move,)))
    return Plan("dissemination", members, tuple(rounds))


def zeros(job: Job) -> Plan:
    """A plan of one member: zeros for a rank that is in no group of a broadcast."""
    return Plan("zeros", 1, (Round(tuple(_cleared(job, np.ones(1, bool)))),))


@attrs.frozen(eq=False)
class _Chain:
    """The members as a chain from the root on, and their buffers in segments."""

    distance: np.ndarray  # (members,) int64
    segments: list[Extent]  # of each tensor

    @classmethod
    def of(cls, job: Job, members: int) -> "_Chain":
        """Segments of at least one element, at most as many as members."""
        if members > MOST_CHAINED:
            raise UnsuitedError(f"it has {members} members, a chain {MOST_CHAINED} at most")
        element_bytes, segments = job.buffers.element_bytes, []
        for tensor, elements in enumerate(job.buffers.operand_elements):
            parts = min(members, max(1, -(-elements * element_bytes // SEGMENT_BYTES)))
            (extent,) = chunked(Space.OPERAND, [elements], parts, element_bytes)
            segments.append(attrs.evolve(extent, tensor=tensor))
        return cls((np.arange(members) - _root(job)) % members, segments)

    @property
    def is_root(self) -> np.ndarray:
        """(members,) bool"""
        return np.asarray(self.distance == 0)

    @property
    def steps(self) -> int:
        """Segments of the tensor that has most."""
        return max(extent.chunks for extent in self.segments)

    def neighbour(self, places: int) -> np.ndarray:
        """By member, the member that is `places` further from the root, (members,) int32."""
        members = len(self.distance)
        return ((self_peers(members) + places) % members).astype(np.int32)

    def moves(
        self, segment: np.ndarray, peer: np.ndarray, spaces: tuple[Space, ...]
    ) -> Iterator[Transfer]:
        """Segment `segment[m]` of every tensor, where there is one, to the result of `peer[m]`."""
        for extent in self.segments:
            is_sent = (peer != IDLE) & (segment >= 0) & (segment < extent.chunks)
            if not is_sent.any():
                continue
            chunk = np.where(is_sent, segment, 0)
            yield Transfer(
                peer=np.where(is_sent, peer, IDLE).astype(np.int32),
                sources=tuple(extent.moved(space).piece(chunk) for space in spaces),
                target=extent.moved(Space.RESULT).piece(chunk),
                size_bytes=extent.size(chunk),
            )


def _root(job: Job) -> int:
    root = job.placeholder.root
    assert root is not None, f"{job.placeholder.op.value} has a root"
    return root


def _sizes(job: Job, elements: tuple[int, ...]) -> list[int]:
    return [count * job.buffers.element_bytes for count in elements]


def _single(
    members: int, sender: int, receiver: int, source: Location, target: Location, size: int
) -> Transfer:
    """A transfer that one member makes alone."""
    peer = np.full(members, IDLE, np.int32)
    peer[sender] = receiver
    return Transfer(peer, (source,), target, np.full(members, size, np.int64))


def _local(job: Job, source: Space | None, where: np.ndarray) -> Iterator[Transfer]:
    """Results at some members, (members,) bool: copies of operands (`source`), or zeros."""
    members = len(where)
    nowhere: np.ndarray = np.zeros(members, np.int64)
    peer = np.where(where, self_peers(members), IDLE).astype(np.int32)
    if not where.any():
        return
    for tensor, size in enumerate(_sizes(job, job.buffers.result_elements)):
        sources = () if source is None else (Location(source, nowhere, tensor),)
        target = Location(Space.RESULT, nowhere, tensor)
        yield Transfer(peer, sources, target, np.full(members, size, np.int64))


def _cleared(job: Job, where: np.ndarray) -> Iterator[Transfer]:
    return _local(job, None, where)
