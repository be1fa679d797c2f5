"""Collectives whose tables say how many rows go where: every member writes straight to every other.

Descriptors are built for the most that there can be: a slot, or all of the smaller buffer where
offsets are free. The CC-core reads the tables when it is triggered; what a transfer really moves is
in the registers that its `count` names.

Reference: MPI_Alltoallv, MPI_Allgatherv and MPI_Reduce_scatter of the MPI 4.1 standard; XLA's
ragged-all-to-all; metadata of nki.collectives, AWS Neuron SDK.
"""

import attrs
import numpy as np

from ncc_runtime.collectives.algorithms.all_to_all import GroupShifts
from ncc_runtime.collectives.chunks import Scratch
from ncc_runtime.collectives.layout import UnsuitedError
from ncc_runtime.collectives.plan import (
    LANES,
    CountEntries,
    Job,
    Location,
    Plan,
    Round,
    Space,
    Transfer,
    divisor,
    self_peers,
)
from ncc_runtime.collectives.stages import Strand, reduced_in_blocks
from ncc_runtime.neff.placeholder import CollectiveOp, even_share

MOST_ENTRIES = 4096
"""Entries of a table that length registers hold; assumed, as many as ranks of a large run."""


def ragged_all_to_all(job: Job, shifts: GroupShifts) -> Plan:
    """Tables: source offsets, rows, target offsets; one entry for each member and update."""
    if job.buffers.entries > MOST_ENTRIES:
        raise UnsuitedError(
            f"its tables have {job.buffers.entries} entries, length registers hold {MOST_ENTRIES}"
        )
    members, entries = shifts.members, job.buffers.entries
    updates, most = entries // members, min(*_bytes(job))
    transfers = []
    for number, lane in shifts.in_rings(LANES):
        peer = shifts.peers(number).astype(np.int64)
        for update in range(updates):
            entry = peer * updates + update
            count = CountEntries(rows=entries + entry, source=entry, target=2 * entries + entry)
            zero = np.zeros(members, np.int64)
            transfers.append(_sent(lane, peer, Location(Space.RESULT, zero), most, count))
    return Plan("direct", members, (Round(tuple(transfers)),))


def into_slots(job: Job, shifts: GroupShifts) -> Plan:
    """All-to-all and all-gather: member r's rows for member j land at slot r of j's result."""
    operand, result = _bytes(job)
    slot = result // shifts.members
    return Plan("direct", shifts.members, (_to_slots(shifts, Space.RESULT, slot, operand),))


def reduce_scatter(job: Job, shifts: GroupShifts) -> Plan:
    """Into a slot of the peer's channel buffer each; then the owner reduces as many rows of all."""
    members = shifts.members
    scratch, (operand, slot) = Scratch(), _bytes(job)
    slots = [scratch.take(slot) for _ in range(members)]
    stride = slots[1] if members > 1 else slot
    first = _to_slots(shifts, Space.SCRATCH, slot, operand, stride)
    zero = np.zeros(members, np.int64)
    moves = reduced_in_blocks(
        [Location(Space.SCRATCH, np.full(members, at, np.int64)) for at in slots],
        Location(Space.RESULT, zero),
        np.full(members, min(slot, operand), np.int64),
        self_peers(members),
        Strand(0, (0,)),
        scratch,
        divisor(job, members),
    )
    entry = self_peers(members).astype(np.int64)  # the rows that members keep for themselves
    counted = (attrs.evolve(move, count=CountEntries(rows=entry), strand=None) for move in moves)
    rounds = [Round((move,)) for move in counted]
    return Plan("direct", members, (first, *rounds), scratch.bytes)


def assumed(job: Job, plan: Plan) -> Plan:
    """The plan with the sizes that are assumed where counts are not known.

    Slots are full; where offsets are free every transfer has an even share of what there is.
    """
    if job.placeholder.op is not CollectiveOp.RAGGED_ALL_TO_ALL:
        return plan
    share = even_share(min(*_bytes(job)), job.buffers.entries, job.buffers.row_bytes)
    rounds = [
        Round(
            tuple(
                attrs.evolve(move, size_bytes=np.full_like(move.size_bytes, share))
                for move in one_round.transfers
            )
        )
        for one_round in plan.rounds
    ]
    return attrs.evolve(plan, rounds=tuple(rounds))


_WITHOUT_COUNTS = {
    CollectiveOp.RAGGED_ALL_TO_ALL: CollectiveOp.ALL_TO_ALL,
    CollectiveOp.ALL_TO_ALL_V: CollectiveOp.ALL_TO_ALL,
    CollectiveOp.ALL_GATHER_V: CollectiveOp.ALL_GATHER,
    CollectiveOp.REDUCE_SCATTER_V: CollectiveOp.REDUCE_SCATTER,
}


def as_if_full(job: Job) -> Job:
    """The collective without counts that moves what is assumed of a variable-size one."""
    if not job.placeholder.op.is_counted:
        return job
    op, members = _WITHOUT_COUNTS[job.placeholder.op], max(map(len, job.placeholder.groups))
    (operand,), (result,) = job.buffers.operand_elements, job.buffers.result_elements
    has_slots = job.placeholder.op in (CollectiveOp.ALL_GATHER_V, CollectiveOp.ALL_TO_ALL_V)
    slot = min(operand, result // members if has_slots else result)
    full = slot if job.placeholder.op is CollectiveOp.RAGGED_ALL_TO_ALL else slot * members
    buffers = attrs.evolve(
        job.buffers,
        operand_elements=(slot if op is CollectiveOp.ALL_GATHER else full,),
        result_elements=(slot if op is CollectiveOp.REDUCE_SCATTER else full,),
    )
    return Job(attrs.evolve(job.placeholder, op=op, counts=()), buffers)


def _bytes(job: Job) -> tuple[int, int]:
    """The sizes of the operand and of the result."""
    buffers = job.buffers
    return (
        buffers.operand_elements[0] * buffers.element_bytes,
        buffers.result_elements[0] * buffers.element_bytes,
    )


def _to_slots(shifts: GroupShifts, space: Space, slot: int, operand: int, stride: int = 0) -> Round:
    """One transfer to every member, at the sender's slot; bytes of a slot and of the operand.

    The first row of the table says how many rows, the second from where.
    """
    members = shifts.members
    target = Location(space, self_peers(members).astype(np.int64) * (stride or slot))
    issued = ((lane, shifts.peers(number)) for number, lane in shifts.in_rings(LANES))
    peers = ((lane, peer.astype(np.int64)) for lane, peer in issued)
    return Round(
        tuple(
            _sent(lane, peer, target, min(slot, operand), CountEntries(peer, members + peer))
            for lane, peer in peers
        )
    )


def _sent(
    lane: int, peer: np.ndarray, target: Location, size: int, count: CountEntries
) -> Transfer:
    return Transfer(
        peer=peer.astype(np.int32),
        sources=(Location(Space.OPERAND, np.zeros(len(peer), np.int64)),),
        target=target,
        size_bytes=np.full(len(peer), size, np.int64),
        lane=lane,
        count=count,
    )
