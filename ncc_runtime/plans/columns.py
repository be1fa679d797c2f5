"""Single transfers put together to the columns of a plan: what members do alike is one transfer."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence

import numpy as np

from ncc_runtime.collectives.plan import IDLE, After, Copy, Piece, Round, Transfer
from ncc_runtime.plans.loops import Stretch
from ncc_runtime.plans.singles import Single, Way

_Channel = tuple[int, int, int]
"""Sender, receiver, lane."""


def rounds_of(singles: Sequence[Single], members: int) -> tuple[Round, ...]:
    """The rounds of a plan; numbers the singles by transfer."""
    columns = [_packed(its, members) for its in _by_round(singles)]
    counted = _credit([column for its in columns for column in its])
    rounds = [[part for column in its for part in _by_credit(column)] for its in columns]
    transfers = iter(_transfers([one for its in rounds for one in its], members, counted))
    return tuple(Round(tuple(itertools.islice(transfers, len(its)))) for its in rounds)


def _by_round(singles: Sequence[Single]) -> Iterator[list[Single]]:
    found: dict[int, list[Single]] = defaultdict(list)
    for single in singles:
        found[single.round].append(single)
    for number in sorted(found):
        yield found[number]


def _packed(singles: Sequence[Single], members: int) -> list[list[Single]]:
    """Singles that can be one transfer: alike, of different members, to different ones."""
    alike: dict[Hashable, list[Single]] = defaultdict(list)
    for single in singles:
        alike[_kind(single)].append(single)
    found = []
    for its in alike.values():
        columns: list[tuple[list[Single], set[int], set[int]]] = []
        its.sort(key=lambda one: ((one.peer - one.member) % members, one.member))
        for single in its:
            fitting = (
                one for one in columns if single.member not in one[1] and single.peer not in one[2]
            )
            chosen = next(fitting, None)
            if chosen is None:
                chosen = [], set(), set()
                columns.append(chosen)
            chosen[0].append(single)
            chosen[1].add(single.member)
            chosen[2].add(single.peer)
        found += [column for column, _, _ in columns]
    return found


def _kind(single: Single) -> Hashable:
    """What all of a transfer have in common."""
    also = None if single.also is None else (single.also.space, single.also.tensor)
    return (
        single.lane,
        single.divisor,
        tuple((one.space, one.tensor) for one in single.sources),
        (single.target.space, single.target.tensor),
        also,
        single.writer is None,
        single.peer == single.member,
    )


def _credit(columns: Sequence[Sequence[Single]]) -> set[_Channel]:
    """Channels whose slots are used again; works out which emptying each transfer awaits."""
    singles = [single for column in columns for single in column]
    counted = {
        (single.member, single.peer, single.lane)
        for single in singles
        if single.empties is not None
    }
    emptied: Counter[_Channel] = Counter()
    place: dict[int, int] = {}
    for single in singles:
        if single.writer is not None:
            channel = single.writer, single.member, single.lane
            emptied[channel] += 1
            place[id(single)] = emptied[channel]
    for single in singles:
        if single.empties is not None:
            single.credit = place[id(single.empties)]
    return counted


def _by_credit(column: Sequence[Single]) -> Iterator[list[Single]]:
    found: dict[int, list[Single]] = defaultdict(list)
    for single in column:
        found[single.credit].append(single)
    yield from found.values()


def _transfers(
    columns: Sequence[Sequence[Single]], members: int, counted: set[_Channel]
) -> Iterator[Transfer]:
    """The transfers of a plan: cells of all are set at once, each has rows of these tables."""
    for number, column in enumerate(columns):
        for single in column:
            single.number = number
    singles = [single for column in columns for single in column]
    at = np.array([single.number for single in singles], np.int64)
    where = np.array([single.member for single in singles], np.int64)

    def table(values: Sequence[int], dtype: type[np.integer], rest: int) -> np.ndarray:
        found: np.ndarray = np.full((len(columns), members), rest, dtype)
        found[at, where] = values
        return found

    def offsets(stretches: Sequence[Stretch | None]) -> np.ndarray:
        return table([0 if one is None else one.offset for one in stretches], np.int64, 0)

    widest = max((len(single.sources) for single in singles), default=0)
    sources = [
        offsets([one.sources[k] if k < len(one.sources) else None for one in singles])
        for k in range(widest)
    ]
    peer = table([one.peer for one in singles], np.int32, IDLE)
    target = offsets([one.target for one in singles])
    also = offsets([one.also for one in singles])
    home = table([one.member for one in singles], np.int32, IDLE)
    size = table([one.size_bytes for one in singles], np.int64, 0)
    # whose slots are handed back, where anybody waits for that
    writers = [
        one.writer
        if one.writer is not None and (one.writer, one.member, one.lane) in counted
        else IDLE
        for one in singles
    ]
    consumed = table(writers, np.int32, IDLE)
    is_consumed = (consumed != IDLE).any(axis=1).tolist()
    known: list[dict[Way, int]] = [{} for _ in range(members)]
    for number, column in enumerate(columns):
        first = column[0]
        second = None
        if first.also is not None:
            second = Copy(home[number], _piece(first.also, also[number]))
        yield Transfer(
            peer=peer[number],
            sources=tuple(_piece(one, sources[k][number]) for k, one in enumerate(first.sources)),
            target=_piece(first.target, target[number]),
            size_bytes=size[number],
            also=second,
            lane=first.lane,
            consumed=consumed[number] if is_consumed[number] else None,
            credit=first.credit,
            divisor=first.divisor,
            after=_after(column, members, known),
        )


def _piece(first: Stretch, offset: np.ndarray) -> Piece:
    return Piece(first.space, offset, first.tensor)


def _after(column: Sequence[Single], members: int, known: Sequence[dict[Way, int]]) -> After:
    """What each waits for, where its CC-core has not waited for that or for later.

    `known` has of each member the last that its CC-core has waited for.
    """
    waits: dict[str, dict[int, list[int]]] = {"arrived": {}, "sent": {}}
    for single in column:
        its = known[single.member]
        last = [(max([one.number for one in ones]), way) for way, ones in single.needs.items()]
        for number, way in sorted(last):
            if its.get(way, IDLE) < number:
                its[way] = number
                waits[way[0]].setdefault(single.member, []).append(number)
    return After(_side(waits["arrived"], members), _side(waits["sent"], members))


def _side(waits: dict[int, list[int]], members: int) -> tuple[np.ndarray, ...]:
    if not waits:
        return ()
    found = np.full((max(map(len, waits.values())), members), IDLE, np.int32)
    for member, numbers in waits.items():
        found[: len(numbers), member] = numbers
    return tuple(found)
