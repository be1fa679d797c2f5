"""Single transfers put together to the columns of a plan: what members do alike is one transfer."""

import itertools
from collections.abc import Sequence

import numpy as np

from ncc_runtime.collectives.plan import IDLE, LANES, After, Copy, Piece, Round, Space, Transfer
from ncc_runtime.plans.loops import Stretch
from ncc_runtime.plans.making import SENT, Singles
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

    def rows(cells: np.ndarray, dtype: type[np.integer], rest: int) -> list[np.ndarray]:
        """By transfer the column of its members."""
        found: np.ndarray = np.full((len(heads), members), rest, dtype)
        found[number, member] = cells
        return list(found)

    def pieces(lying: tuple[np.ndarray, np.ndarray]) -> list[Piece | None]:
        """By transfer, None where it has none."""
        space, offset = lying
        return [
            None if area == NONE else Piece(_SPACES[area % len(_SPACES)], row, area // len(_SPACES))
            for area, row in zip(space[heads].tolist(), rows(offset, np.int64, 0), strict=True)
        ]

    peers, homes = rows(peer, np.int32, IDLE), rows(member, np.int32, IDLE)
    sizes = rows(np.array(singles.size_bytes, np.int64), np.int64, 0)
    its_sources, its_also = [pieces(one) for one in sources], pieces(also)
    targets = [one for one in pieces(target) if one is not None]  # there always is one
    hands_back = np.zeros(len(heads), bool)
    hands_back[number[consumed != IDLE]] = True
    its_consumed = [
        row if is_there else None
        for row, is_there in zip(rows(consumed, np.int32, IDLE), hands_back.tolist(), strict=True)
    ]
    afters = _afters(singles, members, number, order, len(heads))
    its_credit = credit.tolist()
    transfers = [
        Transfer(
            peer=peers[k],
            sources=tuple([one for its in its_sources if (one := its[k]) is not None]),
            target=targets[k],
            size_bytes=sizes[k],
            also=None if (second := its_also[k]) is None else Copy(homes[k], second),
            lane=singles.lane[head],
            consumed=its_consumed[k],
            credit=its_credit[head],
            divisor=singles.divisor[head],
            after=afters[k],
        )
        for k, head in enumerate(heads.tolist())
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
    singles: Singles, members: int, number: np.ndarray, order: np.ndarray, transfers: int
) -> list[After]:
    """What each transfer waits for, where its CC-core has not waited for that or for later.

    A wait is a row of these columns: who waits, in which transfer, for which, which comes which
    way.
    """
    needs = singles.needs
    every = [ones for its in needs for ones in its.values()]
    starts = np.cumsum([0, *map(len, every[:-1])])
    named = number[[one for ones in every for one in ones]]
    awaited = np.maximum.reduceat(named, starts) if every else named
    way = np.array([way for its in needs for way in its], np.int64)
    single = np.repeat(np.arange(len(needs)), [len(its) for its in needs])
    member = np.array(singles.member, np.int64)[single]
    place: np.ndarray = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    place = place[single]

    # not where the member has waited for as late a transfer of that way; the highest so far of
    # all ways at once, for those of each way are above all of the way before it
    by_way = np.lexsort((place, way, member))
    is_new = np.ones(len(by_way), bool)
    is_new[1:] = np.any([np.diff(one[by_way]) != 0 for one in (way, member)], axis=0)
    height = np.cumsum(is_new) * len(order) + awaited[by_way]
    is_later = np.ones(len(by_way), bool)
    is_later[1:] = height[1:] > np.maximum.accumulate(height)[:-1]
    kept = by_way[is_later]

    is_sent = way >= SENT
    kept = kept[np.lexsort((way[kept], awaited[kept], is_sent[kept], place[kept]))]
    turn = _times_before(2 * place[kept] + is_sent[kept])
    transfer, sent = number[single[kept]], is_sent[kept]
    rows = np.zeros((2, transfers), np.int64)  # by transfer, of arrivals and of its own
    np.maximum.at(rows, (sent.astype(np.int64), transfer), turn + 1)
    ends = np.cumsum(rows.sum(axis=0))
    middles = ends - rows[1]
    table: np.ndarray = np.full((int(ends.max(initial=0)), members), IDLE, np.int32)
    first = np.where(sent, middles[transfer], middles[transfer] - rows[0, transfer])
    table[first + turn, member[kept]] = awaited[kept]
    cells, middle_of, end_of = list(table), middles.tolist(), ends.tolist()
    return [
        After(tuple(cells[start:middle]), tuple(cells[middle:end]))
        for start, middle, end in zip([0, *end_of[:-1]], middle_of, end_of, strict=True)
    ]
