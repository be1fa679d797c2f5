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
    after = _afters(columns, members)
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
            after=after[number],
        )


def _piece(first: Stretch, offset: np.ndarray) -> Piece:
    return Piece(first.space, offset, first.tensor)


def _afters(columns: Sequence[Sequence[Single]], members: int) -> list[After]:
    """What each waits for, where its CC-core has not waited for that or for later."""
    known: list[dict[Way, int]] = [{} for _ in range(members)]  # the last waited for, by member
    ends: list[tuple[int, int]] = []  # by transfer: where its rows end, of arrivals and of its own
    cells: list[tuple[int, int, int]] = []  # row of the table below, member, what it waits for
    rows = 0
    for column in columns:
        arrived: dict[int, int] = {}  # waits so far, by member
        sent: dict[int, int] = {}
        own: list[tuple[int, int, int]] = []
        for single in column:
            its = known[single.member]
            last = [(max([one.number for one in ones]), way) for way, ones in single.needs.items()]
            for number, way in sorted(last):
                if its.get(way, IDLE) >= number:
                    continue
                its[way] = number
                if way[0] == "arrived":
                    place = arrived.get(single.member, 0)
                    cells.append((rows + place, single.member, number))
                    arrived[single.member] = place + 1
                else:
                    place = sent.get(single.member, 0)
                    own.append((place, single.member, number))
                    sent[single.member] = place + 1
        middle = rows + max(arrived.values(), default=0)
        cells += [(middle + row, member, number) for row, member, number in own]
        rows = middle + max(sent.values(), default=0)
        ends.append((middle, rows))
    table: np.ndarray = np.full((rows, members), IDLE, np.int32)
    at = np.array(cells, np.int64).reshape(-1, 3)
    table[at[:, 0], at[:, 1]] = at[:, 2]
    starts = [0, *(end for _, end in ends[:-1])]
    return [
        After(tuple(table[start:middle]), tuple(table[middle:end]))
        for start, (middle, end) in zip(starts, ends, strict=True)
    ]
