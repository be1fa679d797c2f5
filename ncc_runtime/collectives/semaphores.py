"""The semaphores that plans take, counted before any is allocated.

Every semaphore is one number: stream, what it counts, lane, the rank it lies at, the other end.
What several placeholders take together is the union of their numbers, for they share channels.
Lowering allocates them.
"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from ncc_runtime.arrays import union
from ncc_runtime.collectives.plan import IDLE, Plan, Transfer

DATA, READY, FREE, RING, TRIGGER = range(5)
"""What a semaphore counts."""

_KINDS = 5
_LANES = 1 << 10

_BATCH = 1 << 16
"""Pairs of ranks that are numbered together, about."""

NO_SEMAPHORES: np.ndarray = np.empty(0, np.int64)

Channel = tuple[int, np.ndarray, np.ndarray, bool]
"""Lane, senders, receivers, and whether the receivers hand slots back."""


def semaphores_of(
    stream: int,
    ranks: int,
    replica_groups: Sequence[tuple[Plan, np.ndarray]],
    representatives: int | None = None,
) -> np.ndarray:
    """The semaphores of plans over (groups, members) ranks: distinct numbers, ascending.

    Only those that lie at the first `representatives` ranks, if that is given.
    """
    counted = ranks if representatives is None else representatives
    everybody = np.arange(counted, dtype=np.int64)
    numbers = [_numbers(stream, TRIGGER, 0, everybody, 0 * everybody, ranks)]
    for lane in frozenset[int]().union(*(plan.lanes for plan, _ in replica_groups)):
        for which in (0, 1):  # tail and completions
            other = np.full(counted, which, np.int64)
            numbers.append(_numbers(stream, RING, lane, everybody, other, ranks))
    for plan, groups in replica_groups:
        members = groups.astype(np.int64)
        for lane_of, senders, receivers, is_freed in _batched(_channels(plan)):
            first, last = members[:, senders], members[:, receivers]
            lanes = np.broadcast_to(lane_of, first.shape)
            here, remote = last < counted, (first != last) & (first < counted)
            freed = is_freed & (first < counted)
            for kind, where, at, other in (
                (DATA, here, last, first),
                (READY, remote, first, last),
                (FREE, freed, first, last),
            ):
                numbers.append(_numbers(stream, kind, lanes[where], at[where], other[where], ranks))
    return union(*numbers)


def by_rank(semaphores: np.ndarray, ranks: int) -> np.ndarray:
    """(ranks,) how many lie at each rank."""
    return np.bincount(semaphores // _ends(ranks) % ranks, minlength=ranks)


def _ends(ranks: int) -> int:
    """How many other ends there are: ranks, or the two semaphores of a ring."""
    return max(ranks, 2)


def _numbers(
    stream: int,
    kind: int,
    lane: int | np.ndarray,
    at: np.ndarray,
    other: np.ndarray,
    ranks: int,
) -> np.ndarray:
    """Numbers of semaphores that lie at ranks, with another end each."""
    assert np.all(lane < _LANES), "lanes are few"
    place = ((stream * _KINDS + kind) * _LANES + lane) * ranks + at
    return np.asarray(place * _ends(ranks) + other)


def _batched(
    channels: Iterator[Channel],
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Channels in batches of pairs: lane, sender, receiver, and whether slots are handed back."""
    batch: list[Channel] = []
    for channel in itertools.chain(channels, [None]):
        if channel is not None:
            batch.append(channel)
        if batch and (channel is None or len(batch) * len(batch[-1][1]) >= _BATCH):
            counts = [len(senders) for _, senders, _, _ in batch]
            lanes, senders, receivers, are_freed = zip(*batch, strict=True)
            yield (
                np.repeat(lanes, counts),
                np.concatenate(senders),
                np.concatenate(receivers),
                np.repeat(are_freed, counts),
            )
            batch = []


def _channels(plan: Plan) -> Iterator[Channel]:
    """The channels of a plan between members; columns that are equal come once."""
    known = set()
    for one_round in plan.rounds:
        for move in one_round.transfers:
            key = (
                (move.lane, move.credit > 0, move.peer.tobytes()),
                None if move.second_target is None else move.second_target.peer.tobytes(),
                None if move.consumed is None else move.consumed.tobytes(),
                *[
                    None if source.owner is None else source.owner.tobytes()
                    for source in move.sources
                ],
            )
            if key not in known:
                known.add(key)
                yield from _of_transfer(move)


def _of_transfer(move: Transfer) -> Iterator[Channel]:
    """Channels to members written to, to owners of operands, from writers of slots handed back."""
    peers = [move.peer] if move.second_target is None else [move.peer, move.second_target.peer]
    for peer in peers:
        active = np.flatnonzero(peer != IDLE)
        remote = active[peer[active] != active]
        yield move.lane, active, peer[active], False
        if move.credit:
            yield move.lane, remote, peer[remote], True
    members = np.arange(len(move.peer))
    for source in move.sources:
        if source.owner is not None:
            readers = np.flatnonzero((source.owner != members) & (move.peer != IDLE))
            readers = readers[source.owner[readers] != IDLE]
            yield move.lane, readers, source.owner[readers], False
    if move.consumed is not None:
        readers = np.flatnonzero(move.consumed != IDLE)
        yield move.lane, move.consumed[readers], readers, True
