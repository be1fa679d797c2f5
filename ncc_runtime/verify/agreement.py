"""Whether programs that run together agree on the collectives that they share.

A program that is one of several (a stage, on ranks of its own) has calls: collectives that take in
ranks of other stages. Nothing names the calls that are one collective. As with the collective
operations of a communicator (MPI 3.1, section 5.13), order matches them: the n-th call of some
ranks on a stream matches the n-th of the same ranks on that stream in all other stages. So three
things are checked, before anything is lowered:

- Matched calls are the same: operator, dtype, sizes, members in their order, and the blocks around
  them, which then are matched, too: a loop of one stage is that loop of the other throughout.
- A collective of several groups is one as a whole, whichever of its groups are matched with whom.
- There is an order of all rows of all stages that waits allow (`order.py`). A rank stands for each
  stage; a matched collective is a rendezvous, complete when every stage has triggered it and its
  stream has completed all before it. Counters only grow, so if one run comes to its end, all do.

What differs is told with rank, operator, line and value on both sides.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.errors import MismatchError
from ncc_runtime.neff.isa import ENGINES, LOOP, TEST
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import BlockKind, Origin
from ncc_runtime.neff.rank_queues import QUEUES, Row, rank_queues
from ncc_runtime.neff.stages import Collective, Place, Stage, is_permute
from ncc_runtime.neff.structure import control_rows, structure_of
from ncc_runtime.neff.table import NONE
from ncc_runtime.order import EdgesOfOneRank, Target, cycles

SHOWN = 8
"""Mismatches told in full; the rest are counted."""

RankSet = frozenset[int]
"""The ranks of a group, or of a pair of a permute."""

Members = tuple[int, ...] | tuple[tuple[int, int], ...]
"""A group in its order; of a permute the pairs between two ranks."""


@attrs.frozen
class Agreement:
    """What of several stages is one."""

    collectives: tuple[Collective, ...]
    matched_blocks: Mapping[Place, Place]  # blocks around them: each with that of the first stage


def agreement(stages: Sequence[Stage]) -> Agreement:
    """Which collectives of the stages are one; MismatchError tells what differs."""
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
    matching = _MatchedCalls(stages)
    matching.compare()
    collectives = () if matching.mismatches else matching.collectives()
    mismatches = matching.mismatches or inversions(stages, collectives)
    if mismatches:
        count = "1 mismatch" if len(mismatches) == 1 else f"{len(mismatches)} mismatches"
        more = [f"… and {len(mismatches) - SHOWN} more"] if len(mismatches) > SHOWN else []
        lines = "\n  ".join([*mismatches[:SHOWN], *more])
        raise MismatchError(f"the programs do not fit together, {count}\n  {lines}")
    return Agreement(
        tuple(
            {stage: call.number for stage, call in collective.items()} for collective in collectives
        ),
        matching.blocks.with_first(),
    )


# ---- calls


@attrs.frozen
class Enclosing:
    """A block around a call, and which part of it."""

    block: int
    is_decided: bool  # behind `test` or `case`; before it is the condition of a loop


@attrs.frozen(eq=False)
class Call:
    """A collective of a stage that takes in ranks of others."""

    stage: int
    number: int
    placeholder: Placeholder
    elements: tuple[int, ...]  # of its operands; of variable size, of all its tensors
    groups: Mapping[RankSet, Members]  # those that take in ranks of others
    around: tuple[Enclosing, ...]  # outermost first
    origin: Origin | None

    @property
    def text(self) -> str:
        """Its name, and its line where that is known."""
        place = self.origin.place if self.origin is not None else ""
        name = self.placeholder.name or self.placeholder.op.value
        return f"{name} at {place}" if place else name


def calls_of(number: int, stage: Stage) -> Iterator[Call]:
    """The calls of a stage, in the order of its program."""
    program = stage.program
    known: dict[object, Mapping[RankSet, Members]] = {}  # many placeholders share their groups
    triggers: Mapping[int, tuple[int, tuple[Enclosing, ...]]] | None = None
    for position, placeholder in enumerate(program.placeholders):
        key = placeholder.groups, placeholder.pairs
        if key not in known:
            known[key] = _groups_beyond(stage, placeholder)
        if known[key]:
            triggers = triggers or _triggers(stage)
            origin, around = triggers[position]
            sized = placeholder.operands
            if placeholder.op.is_counted:
                sized = (*sized, *placeholder.results, *placeholder.counts)
            yield Call(
                stage=number,
                number=position,
                placeholder=placeholder,
                elements=tuple(program.tensors[one].elements for one in sized),
                groups=known[key],
                around=around,
                origin=program.origins[origin] if origin != NONE else None,
            )


def _groups_beyond(stage: Stage, placeholder: Placeholder) -> Mapping[RankSet, Members]:
    """Groups, or pairs, with ranks of the stage and of others."""
    own = set(stage.ranks.tolist())
    groups: dict[RankSet, Members] = {}
    for group in stage.groups_with_own_ranks(placeholder):
        ranks = frozenset(group)
        if own.issuperset(ranks):
            continue
        if is_permute(placeholder):
            both = {(group[0], group[1]), *groups.get(ranks, ())}
            groups[ranks] = tuple(sorted(both))
        else:
            groups[ranks] = group
    return groups


def _triggers(stage: Stage) -> Mapping[int, tuple[int, tuple[Enclosing, ...]]]:
    """By placeholder the origin of its trigger, and the blocks around that."""
    triggers: dict[int, tuple[int, tuple[Enclosing, ...]]] = {}
    for engine in ENGINES:
        table = stage.program.queues[engine]
        control = {row.pc: row for row in control_rows(stage.program, table)}
        pcs = np.flatnonzero(table.placeholder != NONE).tolist()
        around: list[Enclosing] = []
        for pc in sorted({*control, *pcs}):
            if pc not in control:
                triggers[int(table.placeholder[pc])] = int(table.origin[pc]), tuple(around)
                continue
            row = control[pc]
            if row.opcode == TEST:
                around[-1] = Enclosing(row.block, is_decided=True)
            elif around and around[-1].block == row.block:
                around.pop()
            else:
                around.append(Enclosing(row.block, is_decided=row.opcode != LOOP))
    return triggers


# ---- what matches


class MatchedBlocks:
    """Which blocks of several stages are one, as far as is known; of a stage no two blocks are."""

    def __init__(self) -> None:
        self._matched: dict[Place, Mapping[int, int]] = {}  # by block: by stage, the one there

    def match(self, one: Place, other: Place) -> bool:
        """Match two blocks; False, and nothing changes, if two of one stage would be one."""
        ours, theirs = (self._matched.get(place, dict((place,))) for place in (one, other))
        if any(ours.get(stage, block) != block for stage, block in theirs.items()):
            return False
        whole = {**ours, **theirs}
        self._matched |= dict.fromkeys(whole.items(), whole)
        return True

    def with_first(self) -> Mapping[Place, Place]:
        """Each block that is one with a block of a stage before, and that of the first stage."""
        firsts = {place: min(whole.items()) for place, whole in self._matched.items()}
        return {place: first for place, first in firsts.items() if place != first}


OPERATORS = "operators"

_PROPERTIES: tuple[tuple[str, Callable[[Call], object]], ...] = (
    (OPERATORS, lambda call: call.placeholder.op.value),
    ("dtypes", lambda call: call.placeholder.dtype.value),
    (
        "reductions",
        lambda call: call.placeholder.reduction.value if call.placeholder.reduction else "none",
    ),
    ("roots", lambda call: call.placeholder.root),
    (
        "sizes of operands",
        lambda call: f"{', '.join(map(str, call.elements)) or 'no'} elements",
    ),
)
"""What matched calls must have in common; the root's group is compared in its order, too."""


class _MatchedCalls:
    """The calls of all stages by their ranks, and the mismatches among them."""

    def __init__(self, stages: Sequence[Stage]) -> None:
        self.mismatches: list[str] = []
        self.blocks = MatchedBlocks()
        self._reported: set[object] = set()
        self._stages = stages
        self._calls = [tuple(calls_of(number, stage)) for number, stage in enumerate(stages)]
        self._stage_of = {
            rank: number for number, one in enumerate(stages) for rank in one.ranks.tolist()
        }
        self._by_ranks: dict[RankSet, dict[int, list[Call]]] = {}  # and by stage
        for call in itertools.chain(*self._calls):
            for ranks in call.groups:
                by_stage = self._by_ranks.setdefault(
                    ranks, {self._stage_of[rank]: [] for rank in ranks}
                )
                by_stage[call.stage].append(call)
        # stage, number and ranks of calls that others lack
        self._unmatched: set[tuple[int, int, RankSet]] = set()
        for ranks, by_stage in self._by_ranks.items():
            fewest = min(map(len, by_stage.values()))
            for calls in by_stage.values():
                self._unmatched |= {(call.stage, call.number, ranks) for call in calls[fewest:]}

    def compare(self) -> None:
        """Find all that differs; two calls that differ in all their groups are told once."""
        for ranks, by_stage in self._by_ranks.items():
            if len({len(calls) for calls in by_stage.values()}) > 1:
                self._report_unmatched(ranks, by_stage)
            elif not self._use_other_streams(ranks, by_stage):
                for where, calls in _matched(by_stage):
                    for other in calls[1:]:
                        self._compare_calls(ranks, where, calls[0], other)
                    self._compare_blocks(ranks, where, calls)

    def collectives(self) -> tuple[Mapping[int, Call], ...]:
        """Matched calls by stage, those of all groups together; a stage has one of each."""
        joined: dict[tuple[int, int], Mapping[int, Call]] = {}  # by stage and number
        for ranks, by_stage in self._by_ranks.items():
            for _, calls in _matched(by_stage):
                whole: dict[int, Call] = {}
                for call in calls:
                    for other in joined.get((call.stage, call.number), {call.stage: call}).values():
                        known = whole.setdefault(other.stage, other)
                        if known.number != other.number:
                            what = "its groups meet two collectives, which would have to be one"
                            self._report(ranks, what, (call, ""), (known, ""), (other, ""))
                joined |= {(stage, call.number): whole for stage, call in whole.items()}
        return tuple({id(whole): whole for whole in joined.values()}.values())

    def _report_unmatched(self, ranks: RankSet, by_stage: Mapping[int, Sequence[Call]]) -> None:
        """Some stage lacks a call of these ranks: show the most alike that it has, or numbers."""
        fewest = min(map(len, by_stage.values()))
        extra = next(calls[fewest] for calls in by_stage.values() if len(calls) > fewest)
        for stage in (stage for stage, calls in by_stage.items() if len(calls) == fewest):
            # calls that lack a partner, too, and have ranks in common
            candidates = [
                (other, others)
                for other in self._calls[stage]
                for others in other.groups
                if ranks & others and (stage, other.number, others) in self._unmatched
            ]
            if not candidates:
                self._report_numbers(ranks, by_stage)
                return
            stream = extra.placeholder.stream
            other, others = min(
                candidates,
                key=lambda one: (one[0].placeholder.stream != stream, -len(ranks & one[1])),
            )
            what = OPERATORS
            values = extra.placeholder.op.value, other.placeholder.op.value
            if values[0] == values[1]:
                what = "pairs" if is_permute(extra.placeholder) else "members of groups"
                values = members_text(extra.groups[ranks]), members_text(other.groups[others])
            self._report(ranks | others, f"{what} differ", (extra, values[0]), (other, values[1]))

    def _report_numbers(self, ranks: RankSet, by_stage: Mapping[int, Sequence[Call]]) -> None:
        fewest = min(map(len, by_stage.values()))
        lines = []
        for stage, calls in sorted(by_stage.items()):
            extra = f", the first without partner is {calls[fewest].text}" if calls[fewest:] else ""
            none = "" if calls else "; one whose result nothing uses is not compiled, return it"
            lines.append(f"{self._rank_text(stage, ranks)}: {len(calls)}{extra}{none}")
        key = tuple(call.number for calls in by_stage.values() for call in calls)
        self._add(("number", key), ranks, "mismatching number of cc ops", lines)

    def _use_other_streams(self, ranks: RankSet, by_stage: Mapping[int, Sequence[Call]]) -> bool:
        """Whether stages use streams unequally often, which is reported where it shows first."""
        first, *others = by_stage.values()
        for calls in others:
            ours, theirs = ([call.placeholder.stream for call in side] for side in (first, calls))
            if sorted(ours) != sorted(theirs):
                sides = zip(
                    zip(first, ours, strict=True), zip(calls, theirs, strict=True), strict=True
                )
                unlike = next((one, other) for one, other in sides if one[1] != other[1])
                self._report(ranks, "streams differ", *unlike)
                return True
        return False

    def _compare_calls(self, ranks: RankSet, where: str, one: Call, other: Call) -> None:
        for what, value in _PROPERTIES:
            values = value(one), value(other)
            if values[0] != values[1]:
                text = f"{where}: {what} differ"
                self._report(ranks, text, (one, values[0]), (other, values[1]))
                if what == OPERATORS:
                    return  # all else follows from that
        members = members_text(one.groups[ranks]), members_text(other.groups[ranks])
        if members[0] != members[1]:
            is_pair = is_permute(one.placeholder)
            what = "pairs differ" if is_pair else "the order of members in their group differs"
            self._report(ranks, f"{where}: {what}", (one, members[0]), (other, members[1]))

    def _compare_blocks(self, ranks: RankSet, where: str, calls: Sequence[Call]) -> None:
        """The first two that differ; each with each, as trips that one does not know fit any."""
        for one, other in itertools.combinations(calls, 2):
            if not self._match_blocks(one, other):
                around = self._blocks_text(one), self._blocks_text(other)
                what = f"{where}: loops and branches around them differ"
                self._report(ranks, what, (one, around[0]), (other, around[1]))
                return

    def _match_blocks(self, one: Call, other: Call) -> bool:
        """Whether blocks are alike, and each is matched with no other of that stage."""
        if len(one.around) != len(other.around):
            return False
        for ours, theirs in zip(one.around, other.around, strict=True):
            a = self._stages[one.stage].program.blocks[ours.block]
            b = self._stages[other.stage].program.blocks[theirs.block]
            trips = None in (a.trip_count, b.trip_count) or a.trip_count == b.trip_count
            alike = (a.kind, a.index, a.of) == (b.kind, b.index, b.of) and trips
            if not (alike and ours.is_decided == theirs.is_decided):
                return False
            if not self.blocks.match((one.stage, ours.block), (other.stage, theirs.block)):
                return False
        return True

    def _blocks_text(self, call: Call) -> str:
        """The blocks around a call as people read them, innermost first."""
        texts = []
        for enclosing in reversed(call.around):
            block = self._stages[call.stage].program.blocks[enclosing.block]
            if block.kind is BlockKind.CASE:
                texts.append(f"branch {block.index} of {block.of} of {block.name}")
            else:
                trips = "" if block.trip_count is None else f" ({block.trip_count} trips)"
                part = "" if enclosing.is_decided else "the condition of "
                texts.append(f"{part}loop {block.name}{trips}")
        return ", in ".join(texts) or "none"

    def _report(self, ranks: RankSet, what: str, *sides: tuple[Call, object]) -> None:
        """Note a mismatch, with the calls and the value of each."""
        key = what, *sorted((call.stage, call.number) for call, _ in sides)
        lines = []
        for call, value in sorted(sides, key=lambda side: (side[0].stage, side[0].number)):
            text = f"{call.text}: {value}" if value != "" else call.text
            lines.append(f"{self._rank_text(call.stage, ranks)}: {text}")
        self._add(key, ranks, what, list(dict.fromkeys(lines)))

    def _add(self, key: object, ranks: RankSet, what: str, lines: Sequence[str]) -> None:
        if key not in self._reported:
            self._reported.add(key)
            title = f"ranks {members_text(sorted(ranks))}, {what}"
            self.mismatches.append("\n    ".join([title, *lines]))

    def _rank_text(self, stage: int, ranks: Iterable[int]) -> str:
        """The first of the ranks that runs a stage."""
        its = self._stages[stage]
        own = [rank for rank in ranks if self._stage_of[rank] == stage]
        return f"rank {min(own, default=its.ranks[0])} ({its.label})"


def _matched(by_stage: Mapping[int, Sequence[Call]]) -> Iterator[tuple[str, tuple[Call, ...]]]:
    """The n-th calls of every stage on each stream, and which they are."""
    streams = sorted({call.placeholder.stream for calls in by_stage.values() for call in calls})
    for stream in streams:
        columns = (
            [call for call in calls if call.placeholder.stream == stream]
            for calls in by_stage.values()
        )
        for number, calls in enumerate(zip(*columns, strict=False)):
            yield f"collective {number} on stream {stream}", calls


def members_text(members: Sequence[object]) -> str:
    """A group, or pairs, as a program writes them."""
    words = (f"{{{one[0]},{one[1]}}}" if isinstance(one, tuple) else str(one) for one in members)
    return f"{{{','.join(words)}}}"


# ---- the order of all stages


def inversions(stages: Sequence[Stage], collectives: Sequence[Mapping[int, Call]]) -> list[str]:
    """Stages that come to shared collectives in orders that wait for each other, as text, or []."""
    targets: list[list[tuple[Target, ...]]] = []
    triggered, completed = dict[Place, Row](), dict[Place, Row]()
    for number, stage in enumerate(stages):
        structure = structure_of(stage.program)
        assert structure is not None, "rules of control flow hold for what is loaded"
        queues = rank_queues(stage.program, structure, first=number * QUEUES)
        targets += queues.targets
        triggered |= {(number, position): row for position, row in queues.triggered.items()}
        completed |= {(number, position): row for position, row in queues.completed.items()}
    rendezvous: dict[Row, Mapping[int, Call]] = {}
    for collective in collectives:
        places = [(stage, call.number) for stage, call in collective.items()]
        rows = [completed[place] for place in places]
        arrived = [*(triggered[place] for place in places)]
        arrived += [(queue, row - 1) for queue, row in rows if row]
        for queue, row in rows:
            rendezvous[queue, row] = collective
            targets[queue][row] = tuple(Target(*one, is_own=True) for one in arrived)
    done = EdgesOfOneRank(targets).run()
    stuck = {waiting: int(done.reached[waiting[0]][0]) for waiting in done.stuck}
    # by queue that cannot go on, the first for which it waits
    awaited = {
        (queue, rank): next(
            (target.queue, rank)
            for target in targets[queue][row]
            if done.reached[target.queue][0] <= target.row
        )
        for (queue, rank), row in stuck.items()
    }
    for cycle in cycles(awaited):
        # a stage waits for another where the cycle leaves it, which is at a shared collective; in
        # a cycle that leaves none a stage waits for itself: the proof of deadlock refuses it
        waiting = [
            (one[0] // QUEUES, rendezvous[one[0], stuck[one]])
            for one in cycle
            if one[0] // QUEUES != awaited[one][0] // QUEUES
        ]
        if waiting:
            lines = [
                "shared collectives stand in orders in which their programs wait for each other"
            ]
            for (_, before), (at, collective) in zip(
                (waiting[-1], *waiting[:-1]), waiting, strict=True
            ):
                where = f"rank {stages[at].ranks[0]} ({stages[at].label})"
                first, second = collective[at].text, before[at].text
                lines.append(f"{where}: {first} comes before {second}")
            return ["\n    ".join(lines)]
    return []
