"""Whether programs that run together agree about the collectives that they share.

Compared before anything is lowered: the n-th collective of the same ranks on the same stream must
be the same on all sides, and no two sides may do them in orders that wait for each other.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs

from ncc_runtime.errors import MismatchError
from ncc_runtime.neff.stages import Place, Stage, is_permute
from ncc_runtime.verify.agreement.inversions import inversion
from ncc_runtime.verify.agreement.meetings import (
    Call,
    Meeting,
    Who,
    block_text,
    calls_of,
    members_text,
)
from ncc_runtime.verify.agreement.twins import Twins

OPERATORS = "operators"

SHOWN = 8
"""Mismatches told in full; the rest are counted."""


@attrs.frozen
class Agreement:
    """What of several stages is one."""

    meetings: tuple[Meeting, ...]
    twins: Mapping[Place, Place]  # blocks around them: each with that of the first stage


def agreement(stages: Sequence[Stage]) -> Agreement:
    """Which collectives of the stages are one; MismatchError tells what differs."""
    _check_worlds(stages)
    calls = calls_of(stages)
    comparison = _Comparison(stages, calls)
    comparison.compare()
    meetings = () if comparison.found else comparison.meetings()
    if not comparison.found:
        comparison.found += inversion(stages, meetings)
    found = comparison.found
    if found:
        count = "1 mismatch" if len(found) == 1 else f"{len(found)} mismatches"
        more = [f"… and {len(found) - SHOWN} more"] if len(found) > SHOWN else []
        lines = "\n  ".join([*found[:SHOWN], *more])
        raise MismatchError(f"the programs do not fit together, {count}\n  {lines}")
    return Agreement(meetings, comparison.twins.firsts())


def _check_worlds(stages: Sequence[Stage]) -> None:
    worlds = [
        f"{one.program.replica_count} replicas x {one.program.num_partitions} partitions"
        for one in stages
    ]
    for stage, world in zip(stages, worlds, strict=True):
        if world != worlds[0]:
            raise MismatchError(
                f"{stages[0].label} is compiled for {worlds[0]}, {stage.label} for {world}; "
                "compile every program for all ranks of the run"
            )


class _Comparison:
    """The calls of all stages, and the mismatches that have been found."""

    def __init__(self, stages: Sequence[Stage], calls: Sequence[Sequence[Call]]) -> None:
        self.found: list[str] = []
        self.twins = Twins()
        self._stages, self._calls = stages, calls
        self._owner = {
            rank: number for number, one in enumerate(stages) for rank in one.ranks.tolist()
        }
        self._sides: dict[Who, dict[int, list[Call]]] = {}
        for call in (call for its_calls in calls for call in its_calls):
            for who in call.groups:
                sides = self._sides.setdefault(who, {self._owner[rank]: [] for rank in who})
                sides[call.stage].append(call)
        self._alone: set[tuple[int, int, Who]] = set()  # stage, number and ranks without partner
        self._told: set[object] = set()

    def compare(self) -> None:
        """Find all that differs; two calls that differ in all their groups are told once."""
        for who, sides in self._sides.items():
            fewest = min(map(len, sides.values()))
            for calls in sides.values():
                self._alone |= {(call.stage, call.number, who) for call in calls[fewest:]}
        for who, sides in self._sides.items():
            if len({len(calls) for calls in sides.values()}) > 1:
                self._compare_members(who, sides)
            else:
                self._compare_streams(who, sides)

    def meetings(self) -> tuple[Meeting, ...]:
        """What meets, all groups of a collective together; each must meet one of another stage."""
        joined: dict[tuple[int, int], dict[int, Call]] = {}
        for who, sides in self._sides.items():
            for _, calls in _lined_up(sides):
                one = self._met(who, calls, joined)
                joined |= {(stage, call.number): one for stage, call in one.items()}
        return tuple({id(one): one for one in joined.values()}.values())

    def _met(
        self,
        who: Who,
        calls: Iterable[Call],
        joined: Mapping[tuple[int, int], Mapping[int, Call]],
    ) -> dict[int, Call]:
        """What meets in these calls, with all that meets in them by other groups; by stage."""
        one: dict[int, Call] = {}
        for call in calls:
            for other in joined.get((call.stage, call.number), {call.stage: call}).values():
                known = one.setdefault(other.stage, other)
                if known.number != other.number:
                    what = "its groups meet two collectives, which would have to be one"
                    self._tell(who, what, (call, ""), (known, ""), (other, ""))
        return one

    def _compare_members(self, who: Who, sides: Mapping[int, Sequence[Call]]) -> None:
        """Some stage lacks a collective of these ranks: the nearest that it has, or the numbers."""
        fewest = min(map(len, sides.values()))
        extra = next(calls[fewest] for calls in sides.values() if len(calls) > fewest)
        for stage in (stage for stage, calls in sides.items() if len(calls) == fewest):
            near = self._nearest(extra, who, stage)
            if near is None:
                self._tell_numbers(who, sides)
                return
            other, theirs = near
            what, value = _FACTS[0]
            values = value(extra), value(other)
            if values[0] == values[1]:
                values = members_text(extra.groups[who]), members_text(other.groups[theirs])
                what = "pairs" if is_permute(extra.placeholder) else "members of groups"
            self._tell(who | theirs, f"{what} differ", (extra, values[0]), (other, values[1]))

    def _nearest(self, call: Call, who: Who, stage: int) -> tuple[Call, Who] | None:
        """A call of the stage without partner that has ranks in common."""
        found = [
            (other.placeholder.stream != call.placeholder.stream, -len(who & theirs), other, theirs)
            for other in self._calls[stage]
            for theirs in other.groups
            if who & theirs and (stage, other.number, theirs) in self._alone
        ]
        return min(found, key=lambda one: one[:2])[2:] if found else None

    def _tell_numbers(self, who: Who, sides: Mapping[int, Sequence[Call]]) -> None:
        fewest = min(map(len, sides.values()))
        lines = []
        for stage, calls in sorted(sides.items()):
            extra = f", the first without partner is {calls[fewest].text}" if calls[fewest:] else ""
            none = "" if calls else "; one whose result nothing uses is not compiled, return it"
            lines.append(f"{self._place(stage, who)}: {len(calls)}{extra}{none}")
        key = tuple(call.number for calls in sides.values() for call in calls)
        self._add(("number", key), who, "mismatching number of cc ops", lines)

    def _compare_streams(self, who: Who, sides: Mapping[int, Sequence[Call]]) -> None:
        """Stream by stream, where all sides use the same streams equally often."""
        first, *others = sides.values()
        used = [sorted(call.placeholder.stream for call in calls) for calls in (first, *others)]
        for streams, calls in zip(used[1:], others, strict=True):
            if streams != used[0]:
                one, other = next(
                    pair
                    for pair in zip(first, calls, strict=True)
                    if pair[0].placeholder.stream != pair[1].placeholder.stream
                )
                values = one.placeholder.stream, other.placeholder.stream
                self._tell(who, "streams differ", (one, values[0]), (other, values[1]))
                return
        for where, calls in _lined_up(sides):
            for other in calls[1:]:
                self._compare_calls(who, where, calls[0], other)
            self._compare_nests(who, where, calls)

    def _compare_calls(self, who: Who, where: str, one: Call, other: Call) -> None:
        for what, value in _FACTS:
            values = value(one), value(other)
            if values[0] != values[1]:
                self._tell(who, f"{where}: {what} differ", (one, values[0]), (other, values[1]))
                if what == OPERATORS:
                    return  # all else follows from that
        members = members_text(one.groups[who]), members_text(other.groups[who])
        if members[0] != members[1]:
            is_pair = is_permute(one.placeholder)
            what = "pairs differ" if is_pair else "the order of members in their group differs"
            self._tell(who, f"{where}: {what}", (one, members[0]), (other, members[1]))

    def _compare_nests(self, who: Who, where: str, calls: Sequence[Call]) -> None:
        """The first two that differ; each with each, as trips that one does not know fit any."""
        for one, other in itertools.combinations(calls, 2):
            if not self._has_same_nest(one, other):
                nests = self._nest(one), self._nest(other)
                what = "loops and branches around them differ"
                self._tell(who, f"{where}: {what}", (one, nests[0]), (other, nests[1]))
                return

    def _has_same_nest(self, one: Call, other: Call) -> bool:
        """Whether blocks are alike, and each stands for one of the other stage throughout."""
        if len(one.nest) != len(other.nest):
            return False
        for mine, theirs in zip(one.nest, other.nest, strict=True):
            a = self._stages[one.stage].program.blocks[mine.block]
            b = self._stages[other.stage].program.blocks[theirs.block]
            trips = None in (a.trip_count, b.trip_count) or a.trip_count == b.trip_count
            alike = (a.kind, a.index, a.of) == (b.kind, b.index, b.of) and trips
            if not (alike and mine.is_decided == theirs.is_decided):
                return False
            if not self.twins.unite((one.stage, mine.block), (other.stage, theirs.block)):
                return False
        return True

    def _nest(self, call: Call) -> str:
        blocks = self._stages[call.stage].program.blocks
        levels = [block_text(blocks[level.block], level) for level in reversed(call.nest)]
        return ", in ".join(levels) or "none"

    def _tell(self, who: Who, what: str, *sides: tuple[Call, object]) -> None:
        """A mismatch with the calls and what each says."""
        key = what, *sorted((call.stage, call.number) for call, _ in sides)
        lines = []
        for call, value in sorted(sides, key=lambda side: (side[0].stage, side[0].number)):
            said = f": {value}" if value != "" else ""
            lines.append(f"{self._place(call.stage, who)}: {call.text}{said}")
        self._add(key, who, what, list(dict.fromkeys(lines)))

    def _add(self, key: object, who: Who, what: str, lines: Sequence[str]) -> None:
        if key not in self._told:
            self._told.add(key)
            title = f"ranks {members_text(sorted(who))}, {what}"
            self.found.append("\n    ".join([title, *lines]))

    def _place(self, stage: int, who: Who) -> str:
        its = self._stages[stage]
        ranks = [rank for rank in who if self._owner[rank] == stage]
        return f"rank {min(ranks, default=its.ranks[0])} ({its.label})"


def _lined_up(
    sides: Mapping[int, Sequence[Call]],
) -> Iterator[tuple[str, tuple[Call, ...]]]:
    """The n-th calls of every side on each stream, and which they are."""
    streams = sorted({call.placeholder.stream for calls in sides.values() for call in calls})
    for stream in streams:
        columns = (
            [call for call in calls if call.placeholder.stream == stream]
            for calls in sides.values()
        )
        for number, calls in enumerate(zip(*columns, strict=False)):
            yield f"collective {number} on stream {stream}", calls


def _reduction(call: Call) -> str:
    reduction = call.placeholder.reduction
    return "none" if reduction is None else reduction.value


def _sizes(call: Call) -> str:
    return f"{', '.join(map(str, call.elements)) or 'no'} elements"


_FACTS: tuple[tuple[str, Callable[[Call], object]], ...] = (
    (OPERATORS, lambda call: call.placeholder.op.value),
    ("dtypes", lambda call: call.placeholder.dtype.value),
    ("reductions", _reduction),
    ("roots", lambda call: call.placeholder.root),
    ("sizes of operands", _sizes),
)
"""What both sides must say alike; the members of the root's group are compared in their order."""
