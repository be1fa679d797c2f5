"""Single transfers put together to the columns of a plan: what members do alike is one transfer."""

import itertools
from collections.abc import Sequence

import numpy as np

from ncc_runtime.collectives.plan import IDLE, LANES, After, Copy, Piece, Round, Space, Transfer
from ncc_runtime.plans.loops import Stretch
from ncc_runtime.plans.making import SENT, Singles, Way
from ncc_runtime.plans.steps import NONE

_SPACES = tuple(Space)


def rounds_of(singles: Singles, members: int) -> tuple[Round, ...]:
    """The rounds of a plan."""
    member, peer, lane, rounds = (
        np.array(one, np.int64)
        for one in (singles.member, singles.peer, singles.lane, singles.round)
    )
    writer, empties = np.array(singles.writer, np.int64), np.array(singles.empties, np.int64)
    widest = max(map(len, singles.sources), default=0)
    sources = [
        _lying([one[k] if k < len(one) else None for one in singles.sources]) for k in range(widest)
    ]
    target, also = _lying(singles.target), _lying(singles.also)
    # what all cells of a transfer have in common
    kinds = [rounds, lane, np.array(singles.divisor), writer == NONE, peer == member]
    kinds += [space for space, _ in (*sources, target, also)]
    order, column = _packed(_first_alike(kinds), rounds, member, peer, members)

    # credits: how many slots of a channel have been handed back, where anybody waits for that
    handed = (writer * members + member) * LANES + lane
    awaited = ((member * members + peer) * LANES + lane)[empties != NONE]
    place = np.zeros(len(order), np.int64)
    hands = order[writer[order] != NONE]
    place[hands] = 1 + _times_before(handed[hands])
    credit = np.where(empties == NONE, 0, place[empties])
    consumed = np.where((writer != NONE) & np.isin(handed, awaited), writer, IDLE)

    # a column is cut where its transfers await different credits
    _, its_number = np.unique(_first_alike([column, credit[order]]), return_inverse=True)
    number = np.empty(len(order), np.int64)
    number[order] = its_number
    order = order[np.argsort(its_number, kind="stable")]
    heads = order[np.flatnonzero(np.diff(number[order], prepend=-1))]  # one cell of each transfer

    def table(cells: np.ndarray, dtype: type[np.integer], rest: int) -> np.ndarray:
        found: np.ndarray = np.full((len(heads), members), rest, dtype)
        found[number, member] = cells
        return found

    def pieces(lying: tuple[np.ndarray, np.ndarray]) -> list[Piece | None]:
        """By transfer, None where it has none."""
        space, offset = lying
        return [
            None if area == NONE else Piece(_SPACES[area % len(_SPACES)], row, area // len(_SPACES))
            for area, row in zip(space[heads].tolist(), table(offset, np.int64, 0), strict=True)
        ]

    is_consumed = np.zeros(len(heads), bool)
    is_consumed[number[consumed != IDLE]] = True
    transfers = [
        Transfer(
            peer=its_peer,
            sources=tuple(one for one in its_sources if one is not None),
            target=its_target,
            size_bytes=size,
            also=None if second is None else Copy(home, second),
            lane=its_lane,
            consumed=its_consumed if hands_back else None,
            credit=its_credit,
            divisor=divisor,
            after=after,
        )
        for (
            its_peer,
            its_sources,
            its_target,
            size,
            second,
            home,
            its_lane,
            its_consumed,
            hands_back,
            its_credit,
            divisor,
            after,
        ) in zip(
            table(peer, np.int32, IDLE),
            zip(*map(pieces, sources), strict=True) if sources else itertools.repeat(()),
            pieces(target),
            table(np.array(singles.size_bytes, np.int64), np.int64, 0),
            pieces(also),
            table(member, np.int32, IDLE),
            lane[heads].tolist(),
            table(consumed, np.int32, IDLE),
            is_consumed.tolist(),
            credit[heads].tolist(),
            [singles.divisor[head] for head in heads.tolist()],
            _afters(singles, members, number.tolist(), order.tolist()),
            strict=False,
        )
    ]
    edges = np.flatnonzero(np.diff(rounds[heads], prepend=-1, append=-1)).tolist()
    return tuple(Round(tuple(transfers[one:two])) for one, two in itertools.pairwise(edges))


def _lying(stretches: Sequence[Stretch | None]) -> tuple[np.ndarray, np.ndarray]:
    """Of stretches a number of the space and tensor, NONE for none, and the offset."""
    cells = [
        (NONE, 0)
        if one is None
        else (one.tensor * len(_SPACES) + _SPACES.index(one.space), one.offset)
        for one in stretches
    ]
    found = np.array(cells, np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _first_alike(columns: Sequence[np.ndarray]) -> np.ndarray:
    """For each row the first that is equal to it in all columns."""
    order = np.lexsort(columns)  # rows that are equal stay in order
    is_new = np.ones(len(order), bool)
    is_new[1:] = np.any([one[order[1:]] != one[order[:-1]] for one in columns], axis=0)
    found = np.empty(len(order), np.int64)
    found[order] = order[is_new][np.cumsum(is_new) - 1]
    return found


def _times_before(values: np.ndarray) -> np.ndarray:
    """How often the value of each row is in rows before it."""
    order = np.argsort(values, kind="stable")
    found = np.empty(len(values), np.int64)
    found[order] = np.arange(len(values)) - np.searchsorted(values[order], values[order])
    return found


def _packed(
    kind: np.ndarray, rounds: np.ndarray, member: np.ndarray, peer: np.ndarray, members: int
) -> tuple[np.ndarray, np.ndarray]:
    """Singles in the order of the plan, and columns: of a kind, of different members, to others.

    Those that go equally far come first, as most plans have transfers that all members make so.
    """
    order = np.lexsort((member, (peer - member) % members, kind, rounds))
    columns: list[int] = []
    used, last = 0, NONE
    there: list[tuple[int, set[int], set[int]]] = []  # columns of the kind, with ends so far
    for its_kind, sender, receiver in zip(
        *(one[order].tolist() for one in (kind, member, peer)), strict=True
    ):
        if its_kind != last:
            there, last = [], its_kind
        for column, senders, receivers in there:
            if sender not in senders and receiver not in receivers:
                columns.append(column)
                senders.add(sender)
                receivers.add(receiver)
                break
        else:
            columns.append(used)
            there.append((used, {sender}, {receiver}))
            used += 1
    column_of = np.array(columns, np.int64)
    packed = np.argsort(column_of, kind="stable")
    return order[packed], column_of[packed]


def _afters(
    singles: Singles, members: int, number: Sequence[int], order: Sequence[int]
) -> list[After]:
    """What each transfer waits for, where its CC-core has not waited for that or for later."""
    known: list[dict[Way, int]] = [{} for _ in range(members)]  # the last waited for, by member
    ends: list[tuple[int, int]] = []  # by transfer: where its rows end, of arrivals and of its own
    cells: list[tuple[int, int, int]] = []  # row of the table below, member, what it waits for
    rows = 0
    for _, column in itertools.groupby(order, number.__getitem__):
        arrived = sent = 0  # waits so far, of the member that has most
        own: list[tuple[int, int, int]] = []
        for single in column:
            member = singles.member[single]
            its, its_arrived, its_sent = known[member], 0, 0
            last = [
                (max([number[one] for one in ones]), way)
                for way, ones in singles.needs[single].items()
            ]
            for awaited, way in sorted(last):
                if its.get(way, IDLE) >= awaited:
                    continue
                its[way] = awaited
                if way < SENT:
                    cells.append((rows + its_arrived, member, awaited))
                    its_arrived += 1
                else:
                    own.append((its_sent, member, awaited))
                    its_sent += 1
            arrived, sent = max(arrived, its_arrived), max(sent, its_sent)
        middle = rows + arrived
        cells += [(middle + row, member, awaited) for row, member, awaited in own]
        rows = middle + sent
        ends.append((middle, rows))
    table: np.ndarray = np.full((rows, members), IDLE, np.int32)
    cell = np.array(cells, np.int64).reshape(-1, 3)
    table[cell[:, 0], cell[:, 1]] = cell[:, 2]
    starts = [0, *(end for _, end in ends[:-1])]
    return [
        After(tuple(table[start:middle]), tuple(table[middle:end]))
        for start, (middle, end) in zip(starts, ends, strict=True)
    ]
