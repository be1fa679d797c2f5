"""Single transfers put together to the columns of a plan: what members do alike is one transfer."""

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Sequence

import attrs
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
    found, number = [], 0
    known: list[dict[Way, int]] = [{} for _ in range(members)]
    for its in columns:
        made = []
        for column in (part for one in its for part in _by_credit(one)):
            for single in column:
                single.number = number
            number += 1
            made.append(_Column(column, members, counted, known).transfer())
        found.append(Round(tuple(made)))
    return tuple(found)


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


@attrs.frozen(eq=False)
class _Column:
    """One transfer of some members."""

    singles: Sequence[Single]
    members: int
    counted: set[_Channel]
    known: list[dict[Way, int]]  # by member: the last that its CC-core has waited for

    def transfer(self) -> Transfer:
        """The singles as columns."""
        first = self.singles[0]
        where = np.array([one.member for one in self.singles])
        peer = self._filled(where, [one.peer for one in self.singles], np.int32, IDLE)
        size = self._filled(where, [one.size_bytes for one in self.singles], np.int64, 0)
        also = None
        if first.also is not None:
            home = self._filled(where, where.tolist(), np.int32, IDLE)
            also = Copy(home, self._piece(where, [one.also for one in self.singles]))
        return Transfer(
            peer=peer,
            sources=tuple(
                self._piece(where, [one.sources[k] for one in self.singles])
                for k in range(len(first.sources))
            ),
            target=self._piece(where, [one.target for one in self.singles]),
            size_bytes=size,
            also=also,
            lane=first.lane,
            consumed=self._consumed(where),
            credit=first.credit,
            divisor=first.divisor,
            after=self._after(),
        )

    def _filled(
        self, where: np.ndarray, values: Sequence[int], dtype: type[np.integer], rest: int
    ) -> np.ndarray:
        column: np.ndarray = np.full(self.members, rest, dtype)
        column[where] = values
        return column

    def _piece(self, where: np.ndarray, stretches: Sequence[Stretch | None]) -> Piece:
        there = [one for one in stretches if one is not None]
        offsets = self._filled(where, [one.offset for one in there], np.int64, 0)
        return Piece(there[0].space, offsets, there[0].tensor)

    def _consumed(self, where: np.ndarray) -> np.ndarray | None:
        """Whose slots are handed back, where anybody waits for that."""
        writers = [
            one.writer
            if one.writer is not None and (one.writer, one.member, one.lane) in self.counted
            else IDLE
            for one in self.singles
        ]
        if all(writer == IDLE for writer in writers):
            return None
        return self._filled(where, writers, np.int32, IDLE)

    def _after(self) -> After:
        """What each waits for, where its CC-core has not waited for that or for later."""
        waits: dict[str, dict[int, list[int]]] = {"arrived": {}, "sent": {}}
        for single in self.singles:
            known = self.known[single.member]
            last = {way: max(one.number for one in ones) for way, ones in single.needs.items()}
            for way, number in sorted(last.items(), key=lambda item: item[1]):
                if known.get(way, IDLE) < number:
                    known[way] = number
                    waits[way[0]].setdefault(single.member, []).append(number)
        return After(self._side(waits["arrived"]), self._side(waits["sent"]))

    def _side(self, waits: dict[int, list[int]]) -> tuple[np.ndarray, ...]:
        widest = max(map(len, waits.values()), default=0)
        found = np.full((widest, self.members), IDLE, np.int32)
        for member, numbers in waits.items():
            found[: len(numbers), member] = numbers
        return tuple(found)
