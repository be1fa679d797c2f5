"""Races of one rank's own chains, the slow way: unfold each concrete way, close the order, compare.

A way says of each `test` and `case`, occasion by occasion, whether its block is entered. Every
chain replays it row by row with its own jumps and shifts, as the scheduler would; an n-th increment
is the n-th event that made one. Nothing is shared with the proof.
"""

import itertools
from collections.abc import Iterator, Mapping

import attrs

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    Decision,
    DmaQueue,
    EngineQueue,
    Executable,
)
from ncc_runtime.neff.isa import CASE, END, LOOP, TEST
from ncc_runtime.neff.table import Instr

Decisions = Mapping[int, list[bool]]  # by block, occasion by occasion
Item = tuple[str, int]  # queue and row
MOST_WAYS = 300


class TooManyWaysError(Exception):
    """There are more ways than this oracle looks at."""


class StuckError(Exception):
    """Some way does not come to its end."""


@attrs.define(eq=False)
class Event:
    """An instruction, or a placeholder from its trigger to DONE, or a control row."""

    item: Item
    wait: tuple[int, int] | None  # semaphore and value, corrected
    posts: list[int] = attrs.field(factory=list)
    accesses: list[tuple[int, int, bool]] = attrs.field(factory=list)
    before: int = 0  # of events, as bits


def races(executable: Executable, rank: int = 0, most_trips: int = 2) -> set[frozenset[Item]]:
    """All pairs of items that meet without order on some way."""
    found: set[frozenset[Item]] = set()
    for count, decisions in enumerate(_all_ways(executable, most_trips)):
        if count == MOST_WAYS:
            raise TooManyWaysError
        found |= _races_on(executable, rank, decisions)
    return found


def _all_ways(executable: Executable, most_trips: int) -> Iterator[Decisions]:
    """Every way with so many trips of each loop; no branch of a conditional is a choice, too."""
    rows = _control_rows(executable)
    groups = _conditionals(executable, rows)
    chosen: list[tuple[bool, bool]] = []  # what was chosen, and whether there was a choice
    while True:
        decisions, chosen = _walk(rows, groups, chosen, most_trips)
        yield decisions
        while chosen and (chosen[-1][0] or not chosen[-1][1]):
            chosen.pop()
        if not chosen:
            return
        chosen[-1] = (True, True)


def _engines(executable: Executable) -> list[EngineQueue]:
    return [queue for queue in executable.queues if isinstance(queue, EngineQueue)]


def _block(executable: Executable, instr: Instr) -> int:
    return int(executable.program.attributes[instr.attribute]["block"])


def _control_rows(executable: Executable) -> list[tuple[str, int]]:
    return [
        (instr.opcode, _block(executable, instr))
        for instr in _engines(executable)[0].table
        if instr.opcode in (LOOP, TEST, CASE, END)
    ]


def _conditionals(executable: Executable, rows: list[tuple[str, int]]) -> dict[int, list[int]]:
    """The branches of each branch's conditional, if nobody writes its predicate meanwhile."""
    blocks, groups = executable.program.blocks, {}
    for at, (opcode, block) in enumerate(rows):
        if opcode != CASE:
            continue
        before = rows[at - 1] if at else ("", -1)
        group = groups.get(before[1], []) if before[0] == END else []
        one = blocks[block]
        same = [(blocks[other].predicate, blocks[other].of) for other in group]
        if set(same) != {(one.predicate, one.of)} or one.index in [blocks[k].index for k in group]:
            group = []
        group.append(block)
        groups[block] = group
    return {
        block: [block] if _is_written(executable, group) else group
        for block, group in groups.items()
    }


def _is_written(executable: Executable, group: list[int]) -> bool:
    predicate = executable.program.blocks[group[0]].predicate
    for queue in _engines(executable):
        inside = False
        for instr in queue.table:
            if instr.opcode == CASE and _block(executable, instr) in (group[0], group[-1]):
                inside = _block(executable, instr) == group[0] != group[-1]
            if inside and predicate in instr.results:
                return True
    return False


def _walk(
    rows: list[tuple[str, int]],
    groups: dict[int, list[int]],
    chosen: list[tuple[bool, bool]],
    most_trips: int,
) -> tuple[Decisions, list[tuple[bool, bool]]]:
    """Follow the choices made so far, then enter nothing; gives all choices that there were."""
    place = {row: index for index, row in enumerate(rows)}
    decisions: dict[int, list[bool]] = {block: [] for _, block in rows}
    made: list[tuple[bool, bool]] = []
    trips: dict[int, int] = {}
    over: set[int] = set()  # branches whose conditional has taken another
    at = 0
    while at < len(rows):
        opcode, block = rows[at]
        at += 1
        if opcode == LOOP:
            trips[block] = 0
        elif opcode == END and block in trips and ("loop", block) in place:
            at = place[LOOP, block] + 1
        if opcode not in (TEST, CASE):
            continue
        if opcode == CASE and groups[block][0] == block:
            over -= set(groups[block])
        may = trips[block] < most_trips if opcode == TEST else block not in over
        enters = may and len(made) < len(chosen) and chosen[len(made)][0]
        made.append((enters, may))
        decisions[block].append(enters)
        if enters and opcode == TEST:
            trips[block] += 1
        elif enters:
            over |= set(groups[block])
        else:
            at = place[END, block] + 1
    return decisions, made


def _races_on(executable: Executable, rank: int, decisions: Decisions) -> set[frozenset[Item]]:
    chains = [
        _engine_events(executable, queue, rank, decisions)
        if isinstance(queue, EngineQueue)
        else _stream_events(executable, queue, rank, decisions)
        for queue in executable.queues
        if not isinstance(queue, DmaQueue)
    ]
    order = _closed(chains)
    number = {id(event): index for index, event in enumerate(order)}
    found = set()
    touching = [event for event in order if event.accesses]
    for one, other in itertools.combinations(touching, 2):
        if one.item[0] == other.item[0] or not _meet(one, other):
            continue
        if not (other.before >> number[id(one)] & 1 or one.before >> number[id(other)] & 1):
            found.add(frozenset((one.item, other.item)))
    return found


def _meet(one: Event, other: Event) -> bool:
    return any(
        a < d and c < b and (first or second)
        for a, b, first in one.accesses
        for c, d, second in other.accesses
    )


def _closed(chains: list[list[Event]]) -> list[Event]:
    """Events in an order that they may happen in, with all that is before each."""
    owners = {}
    for chain in chains:
        for event in chain:
            for sem in event.posts:
                owners.setdefault(sem, []).append(event)
    order: list[Event] = []
    bits: dict[int, int] = {}
    at = [0] * len(chains)
    moved = True
    while moved:
        moved = False
        for index, chain in enumerate(chains):
            while at[index] < len(chain):
                event = chain[at[index]]
                cause = None
                if event.wait is not None and event.wait[1] > 0:
                    posts = owners.get(event.wait[0], [])
                    if event.wait[1] > len(posts):
                        raise StuckError
                    cause = posts[event.wait[1] - 1]
                    if id(cause) not in bits:
                        break
                    event.before |= cause.before | 1 << bits[id(cause)]
                if at[index]:
                    last = chain[at[index] - 1]
                    event.before |= last.before | 1 << bits[id(last)]
                bits[id(event)] = len(order)
                order.append(event)
                at[index] += 1
                moved = True
    if any(at[index] < len(chain) for index, chain in enumerate(chains)):
        raise StuckError
    return order


class _Replay:
    """The rows that a queue performs on a way, with what they wait for."""

    def __init__(self, queue, rank: int, decisions: Decisions) -> None:
        self.queue, self.rank = queue, rank
        self._decisions = {block: iter(choices) for block, choices in decisions.items()}

    def rows(self) -> Iterator[tuple[int, tuple[int, int] | None, list[int]]]:
        sync, row, offsets = self.queue.sync, 0, {}
        while row < len(sync.wait_sem):
            sem = int(sync.wait_sem[row][self.rank if sync.wait_sem.shape[1] > 1 else 0])
            value = int(sync.wait_value[row][self.rank if sync.wait_value.shape[1] > 1 else 0])
            wait = None if sem == IDLE else (sem, value + offsets.get(sem, 0))
            posts = [
                int(post.sem[row, self.rank])
                for post in sync.posts
                if post.rank[row, self.rank] == self.rank
            ]
            yield row, wait, posts
            jump = self.queue.jumps.get(row)
            row += 1
            if jump is None:
                continue
            if jump.decision is Decision.ALWAYS or not next(self._decisions[jump.block]):
                row = jump.target
                shift = jump.shift[self.rank if len(jump.shift) > 1 else 0]
                for one, by in enumerate(shift.tolist()):
                    offsets[one] = offsets.get(one, 0) + by


def _extent(program, tensor: int, is_write: bool) -> tuple[int, int, bool]:
    start = program.address(tensor)
    return start, start + program.tensors[tensor].size_bytes, is_write


def _engine_events(executable, queue: EngineQueue, rank: int, decisions) -> list[Event]:
    program, events = executable.program, []
    for row, wait, posts in _Replay(queue, rank, decisions).rows():
        instr = queue.table[row]
        event = Event((queue.name, row), wait, posts)
        event.accesses = [_extent(program, tensor, False) for tensor in instr.operands]
        event.accesses += [_extent(program, tensor, True) for tensor in instr.results]
        if instr.opcode in (TEST, CASE):
            block = program.blocks[int(program.attributes[instr.attribute]["block"])]
            event.accesses = [_extent(program, block.predicate, False)]
        events.append(event)
    return events


def _stream_events(executable, queue: CcQueue, rank: int, decisions) -> list[Event]:
    program, events = executable.program, []
    opened = None
    for row, wait, posts in _Replay(queue, rank, decisions).rows():
        opcode, number = CcOpcode(int(queue.opcode[row])), int(queue.placeholder[row])
        if opcode in (CcOpcode.TEST, CcOpcode.CASE):
            predicate = program.blocks[queue.jumps[row].block].predicate
            event = Event((queue.name, row), wait, posts, [_extent(program, predicate, False)])
            events.append(event)
        elif number != IDLE:
            if opened is None:
                placeholder = program.placeholders[number]
                opened = Event((queue.name, row), wait)
                opened.accesses = [_extent(program, one, False) for one in placeholder.operands]
                opened.accesses += [_extent(program, one, True) for one in placeholder.results]
            if opcode is CcOpcode.DONE:
                opened.posts = posts
                events.append(opened)
                opened = None
    return events
