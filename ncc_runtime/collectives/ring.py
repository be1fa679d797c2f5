"""Ring algorithms: every member talks to its successor only.

    reduce-scatter   step k: member r sends chunk (r-1-k) on, adding its own share to what came in
    all-gather       step k: member r passes chunk (r-k) on
    all-reduce       the first, then the second

Source: AWS Neuron docs, intranode-collective-comm.rst (chunk order); Patarasuk and Yuan,
"Bandwidth optimal all-reduce algorithms", JPDC 2009 (2(P-1)/P of the buffer per member).
"""

import numpy as np

from ncc_runtime.collectives.plan import (
    Job,
    Piece,
    Plan,
    Round,
    Space,
    Transfer,
    chunk_edges,
    home,
)

SLOTS = 2
"""Chunks a member's scratch can hold: one arrives while the other is read (double buffering)."""

SLOT_ALIGNMENT = 64


class _Chunks:
    """Offsets and sizes of the chunks of one tensor, indexed by chunk numbers modulo members."""

    def __init__(self, elements: int, members: int, element_bytes: int) -> None:
        self.members = members
        edges = chunk_edges(elements, members, element_bytes)
        self.offsets: np.ndarray = edges[:-1]
        self.sizes: np.ndarray = np.diff(edges)

    def offset(self, chunk: np.ndarray) -> np.ndarray:
        return np.take(self.offsets, chunk % self.members)

    def size(self, chunk: np.ndarray) -> np.ndarray:
        return np.take(self.sizes, chunk % self.members)

    @property
    def slot_bytes(self) -> int:
        """Room for the largest chunk, aligned."""
        return -(-int(self.sizes.max()) // SLOT_ALIGNMENT) * SLOT_ALIGNMENT


def all_reduce(job: Job, members: int) -> Plan:
    """Ring all-reduce: 2(P-1) sends of one chunk each per member and tensor."""
    chunks = _operand_chunks(job, members)
    slots, scratch = _slots(chunks)
    mine = home(members)
    rounds = _reduce_rounds(chunks, slots)
    rounds.append(_last_reduction(chunks, slots, [chunk.offset(mine) for chunk in chunks]))
    for step in range(members - 1):
        rounds.append(_forward(chunks, mine - step, Space.RESULT))
    return Plan("ring", members, tuple(rounds), scratch)


def reduce_scatter(job: Job, members: int) -> Plan:
    """Ring reduce-scatter: P-1 sends of one chunk each per member and tensor."""
    chunks = _operand_chunks(job, members)
    slots, scratch = _slots(chunks)
    rounds = _reduce_rounds(chunks, slots)
    nowhere = np.zeros(members, np.int64)
    rounds.append(_last_reduction(chunks, slots, [nowhere for _ in chunks]))
    return Plan("ring", members, tuple(rounds), scratch)


def all_gather(job: Job, members: int) -> Plan:
    """Ring all-gather: P-1 sends of one chunk each per member and tensor."""
    chunks = [
        _Chunks(elements, members, job.buffers.element_bytes)
        for elements in job.buffers.result_elements
    ]
    mine = home(members)
    rounds = []
    for step in range(members - 1):
        source = Space.RESULT if step else Space.OPERAND
        rounds.append(_forward(chunks, mine - step, source))
    keep = tuple(
        Transfer(
            peer=mine,
            sources=(Piece(Space.OPERAND, np.zeros(members, np.int64), tensor),),
            target=Piece(Space.RESULT, chunk.offset(mine), tensor),
            size_bytes=chunk.size(mine),
        )
        for tensor, chunk in enumerate(chunks)
    )
    first = Round((*(rounds[0].transfers if rounds else ()), *keep))
    return Plan("ring", members, (first, *rounds[1:]))


def _operand_chunks(job: Job, members: int) -> list[_Chunks]:
    width = job.buffers.element_bytes
    return [_Chunks(elements, members, width) for elements in job.buffers.operand_elements]


def _slots(chunks: list[_Chunks]) -> tuple[list[int], int]:
    """Where each tensor's first slot begins in scratch, and the scratch all slots take."""
    starts, at = [], 0
    for chunk in chunks:
        starts.append(at)
        at += SLOTS * chunk.slot_bytes
    return starts, at


def _slot(chunks: list[_Chunks], slots: list[int], tensor: int, step: int) -> np.ndarray:
    chunk = chunks[tensor]
    start = slots[tensor] + step % SLOTS * chunk.slot_bytes
    return np.full(chunk.members, start, np.int64)


def _reduce_rounds(chunks: list[_Chunks], slots: list[int]) -> list[Round]:
    """P-1 rounds: own chunk, joined from the second on by what the predecessor sent."""
    members = chunks[0].members
    mine = home(members)
    successor = (mine + 1) % members
    predecessor = (mine - 1) % members
    rounds = []
    for step in range(members - 1):
        transfers = []
        for tensor, chunk in enumerate(chunks):
            index = mine - 1 - step
            own = Piece(Space.OPERAND, chunk.offset(index), tensor)
            came = Piece(Space.SCRATCH, _slot(chunks, slots, tensor, step - 1))
            transfers.append(
                Transfer(
                    peer=successor,
                    sources=(came, own) if step else (own,),
                    target=Piece(Space.SCRATCH, _slot(chunks, slots, tensor, step)),
                    size_bytes=chunk.size(index),
                    consumed=predecessor if step else None,
                    credit=max(0, (step - SLOTS) * len(chunks) + tensor + 1)
                    if step >= SLOTS
                    else 0,
                )
            )
        rounds.append(Round(tuple(transfers)))
    return rounds


def _last_reduction(chunks: list[_Chunks], slots: list[int], targets: list[np.ndarray]) -> Round:
    """The chunk a member keeps: its own share joined to what came in last; a copy if alone."""
    members = chunks[0].members
    mine = home(members)
    alone = members == 1
    return Round(
        tuple(
            Transfer(
                peer=mine,
                sources=(
                    *(
                        ()
                        if alone
                        else (Piece(Space.SCRATCH, _slot(chunks, slots, k, members - 2)),)
                    ),
                    Piece(Space.OPERAND, chunk.offset(mine), k),
                ),
                target=Piece(Space.RESULT, target, k),
                size_bytes=chunk.size(mine),
                consumed=None if alone else (mine - 1) % members,
            )
            for k, (chunk, target) in enumerate(zip(chunks, targets, strict=True))
        )
    )


def _forward(chunks: list[_Chunks], index: np.ndarray, source: Space) -> Round:
    """Every member passes chunk `index` to its successor's result."""
    members = chunks[0].members
    successor = (home(members) + 1) % members
    nowhere = np.zeros(members, np.int64)
    return Round(
        tuple(
            Transfer(
                peer=successor,
                sources=(
                    Piece(source, nowhere if source is Space.OPERAND else chunk.offset(index), k),
                ),
                target=Piece(Space.RESULT, chunk.offset(index), k),
                size_bytes=chunk.size(index),
            )
            for k, chunk in enumerate(chunks)
        )
    )
