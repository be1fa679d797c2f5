"""Control flow across queues: control rows cut every queue into phases that belong together.

All engines of a stage hold the same control rows (`loop`, `test`, `case`, `end`). Those of all
stages in one order are the *events*. Blocks around collectives that stages share are matched: one
block, with one set of events. All other blocks are a stage's own. In the order of events a stage
goes through its own blocks one after the other, and comes to what it shares when all do that share
it.

A CC-core follows the blocks of its stream: it has the events of these only, and marks the others
nowhere; of its rows those are before such an event that belong to placeholders that are triggered
by then. A DMA ring has the events of its CC-core, between the runs that are pushed before and
behind them.
"""

import functools
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    Decision,
    DmaQueue,
    EngineQueue,
    Executable,
    Jump,
)
from ncc_runtime.neff.isa import CASE, END, TEST
from ncc_runtime.neff.program import BlockKind
from ncc_runtime.neff.stages import matched_blocks_of, participants
from ncc_runtime.neff.structure import Structure, structure_of
from ncc_runtime.verify.places import collective, queue_text
from ncc_runtime.verify.stage_parts import StagePart, parts_of

UNMARKED = -1
"""In place of a row: a queue does not have this event."""

Event = tuple[str, int]
"""An opcode and a block; among matched blocks the first."""

_COLLECTIVE = "collective"
"""In place of an opcode: behind it stands a placeholder."""

_Parts = Sequence[tuple[StagePart, Structure]]


@attrs.frozen(eq=False)
class QueueFlow:
    """Where the events of control flow stand in every queue."""

    events: tuple[Event, ...]
    marks: tuple[np.ndarray, ...]  # per queue (events,): rows up to the event, or UNMARKED
    limits: tuple[np.ndarray, ...]  # likewise; UNMARKED only at events of other stages
    lengths: tuple[int, ...]  # rows of each queue
    matched: Mapping[int, int]  # of blocks that have the events of another one

    def place(self, opcode: str, block: int) -> int:
        """The position of an event."""
        return self._places[opcode, self.matched.get(block, block)]

    @functools.cached_property
    def _places(self) -> Mapping[Event, int]:
        return {event: place for place, event in enumerate(self.events)}

    def follows(self, queue: int, block: int) -> bool:
        """Whether a queue has the events of a block."""
        return bool(self.marks[queue][self.place(END, block)] != UNMARKED)

    def limit(self, queue: int, event: int) -> int:
        """The rows of a queue up to an event of its stage, from this one on; all behind the last.

        Rows of a CC-core that are not triggered by then are behind the event, followed or not.
        """
        behind = self.limits[queue][event:]
        marked = behind[behind != UNMARKED]
        return int(marked[0]) if len(marked) else self.lengths[queue]

    def between(self, queue: int, first: int, last: int) -> slice:
        """The rows of a queue behind one event, up to another; both are its own."""
        return slice(int(self.marks[queue][first]), int(self.marks[queue][last]))

    def phase(self, queue: int, event: int) -> slice:
        """The rows whose next event is this one (behind the last: len(events)); may be none."""
        marks = self.marks[queue]
        if event < len(marks) and marks[event] == UNMARKED:
            return slice(0, 0)
        before = marks[:event][marks[:event] != UNMARKED]
        first = int(before[-1]) if len(before) else 0
        return slice(first, int(marks[event]) if event < len(marks) else self.lengths[queue])


def flow_of(executable: Executable) -> tuple[QueueFlow | None, tuple[str, ...]]:
    """The flow, and where a queue's control flow is not that of the program."""
    lengths = tuple(len(queue.sync.wait_sem) for queue in executable.queues)
    if not executable.program.blocks and not any(_jumps(executable)):
        none = (np.zeros(0, np.int64),) * len(lengths)
        return QueueFlow((), none, none, lengths, {}), ()
    parts, faults = _structured(executable)
    events, more = ((), ()) if faults else events_of(executable, parts)
    faults = (*faults, *more)
    if faults:
        return None, faults
    marks, limits, breaches = _marked(executable, parts, events)
    flow = QueueFlow(events, marks, limits, lengths, matched_blocks_of(executable.program))
    return (None if breaches else flow), breaches


def _structured(
    executable: Executable,
) -> tuple[Sequence[tuple[StagePart, Structure]], tuple[str, ...]]:
    """The stages with their control rows, and where those of one do not agree."""
    found, faults = [], []
    for part in parts_of(executable):
        structure = control_structure(part.executable)
        if structure is None:
            text = "the control rows of the engines do not agree (rules neff-C1 to neff-C3)"
            faults.append(f"{part.title}{text}")
        else:
            found.append((part, structure))
    return found, tuple(faults)


def _marked(
    executable: Executable, parts: Sequence[tuple[StagePart, Structure]], events: Sequence[Event]
) -> tuple[tuple[np.ndarray, ...], tuple[np.ndarray, ...], tuple[str, ...]]:
    """Where the events stand in every queue, what is before each, and what is wrong there."""
    places = {event: place for place, event in enumerate(events)}
    marks, limits = (
        tuple(np.full(len(events), UNMARKED, np.int64) for _ in executable.queues) for _ in range(2)
    )
    breaches: list[str] = []
    for part, structure in parts:
        marking = _Marking(part, structure)
        own = [places[event] for event in own_events(executable, (part, structure))]
        for in_part, number in enumerate(part.queues):
            found = marking.marks(in_part)
            marks[number][own] = found
            limits[number][own] = marking.limits(in_part)
            breaches += marking.breaches(in_part, found)
    return marks, limits, tuple(breaches)


def _jumps(executable: Executable) -> Iterator[Mapping[int, Jump]]:
    return (queue.jumps for queue in executable.queues if not isinstance(queue, DmaQueue))


def control_structure(executable: Executable) -> Structure | None:
    """The control rows that all engines of a stage share; None where they do not agree."""
    tables = {
        queue.engine: queue.table for queue in executable.queues if isinstance(queue, EngineQueue)
    }
    program = executable.program
    return structure_of(attrs.evolve(program, queues={**program.queues, **tables}))


def triggered_phases(executable: Executable, structure: Structure) -> np.ndarray:
    """The phase in which each placeholder is triggered; behind all where it never is."""
    never = len(structure.rows) + 1
    found: np.ndarray = np.full(len(executable.program.placeholders), never, np.int64)
    for queue in executable.queues:
        if isinstance(queue, EngineQueue):
            rows = np.flatnonzero(queue.table.placeholder != IDLE)
            found[queue.table.placeholder[rows]] = structure.phases(queue.engine, rows)
    return found


class _Marking:
    """Finds the events of each queue of a stage."""

    def __init__(self, part: StagePart, structure: Structure) -> None:
        self._executable = part.executable
        self._structure = structure
        self._kinds = [block.kind for block in part.executable.program.blocks]
        self._first_block = part.first_block

    def marks(self, number: int) -> np.ndarray:
        """Of one queue, (events,)."""
        queue = self._executable.queues[number]
        if isinstance(queue, EngineQueue):
            return self._structure.pcs[queue.engine] + 1
        return self._by_core(queue, self._of_core)

    def limits(self, number: int) -> np.ndarray:
        """What of one queue is before each event, (events,)."""
        queue = self._executable.queues[number]
        if isinstance(queue, EngineQueue):
            return self.marks(number)
        return self._by_core(queue, self._triggered_of_core)

    def _of_core(self, queue: CcQueue) -> np.ndarray:
        """By its jumps: a loop begins where its end goes back to, a branch ends where it goes."""
        marks: np.ndarray = np.full(len(self._structure.rows), UNMARKED, np.int64)
        for row, jump in queue.jumps.items():
            if not 0 <= jump.block < len(self._structure.block_rows):
                continue
            span = self._structure.block_rows[jump.block]
            if jump.decision is Decision.ALWAYS:
                marks[span.opens] = jump.target
                marks[span.ends] = row + 1
            else:
                marks[span.decides] = row + 1
                marks[span.ends] = jump.target
        return marks

    def _triggered_of_core(self, queue: CcQueue) -> np.ndarray:
        """Where it has no such event, by the placeholders that are triggered before."""
        marks = self._of_core(queue)
        rows = np.flatnonzero(queue.placeholder != IDLE)
        phase = np.maximum.accumulate(self._triggered[queue.placeholder[rows]])
        count = np.searchsorted(phase, np.arange(len(marks)), side="right")
        found = np.where(marks == UNMARKED, np.append(0, rows + 1)[count], marks)
        next_mark = np.where(marks == UNMARKED, len(queue.opcode), marks)
        next_mark = np.minimum.accumulate(next_mark[::-1])[::-1]
        return np.maximum.accumulate(np.minimum(found, next_mark))

    @functools.cached_property
    def _triggered(self) -> np.ndarray:
        return triggered_phases(self._executable, self._structure)

    def _by_core(
        self, queue: CcQueue | DmaQueue, of_core: Callable[[CcQueue], np.ndarray]
    ) -> np.ndarray:
        """Of a CC-core, or of a ring by what its core has pushed: run i is its i-th push."""
        if isinstance(queue, CcQueue):
            return of_core(queue)
        for core in self._executable.queues:
            if isinstance(core, CcQueue) and core.stream == queue.stream:
                pushes = (core.opcode == CcOpcode.ADVANCE) & (core.ring == queue.lane)
                rows = of_core(core)
                pushed = np.searchsorted(np.flatnonzero(pushes), rows)
                return np.where(rows == UNMARKED, UNMARKED, pushed)
        return np.full(len(self._structure.rows), UNMARKED, np.int64)

    def breaches(self, number: int, marks: np.ndarray) -> Iterator[str]:
        """Jumps that go elsewhere, are missing, or stand in another order than the events."""
        queue = self._executable.queues[number]
        if isinstance(queue, DmaQueue):
            return
        wanted = dict(self._wanted(marks))
        for row in sorted({*queue.jumps, *wanted, *_deciding(queue)}):
            jump = queue.jumps.get(row)
            found = None if jump is None else (jump.block, jump.decision, jump.target)
            if found is None or found != wanted.get(row):
                yield (
                    f"{queue_text(queue)}, pc {row}: {self._jump_text(found)}, "
                    f"the program's control flow has {self._jump_text(wanted.get(row))} there"
                )
        if isinstance(queue, CcQueue):
            yield from _splits(queue)
        # A CC-core has no row where a loop opens or a branch ends: such an event stands where the
        # jump says. All others have one, which lies behind the event before.
        places = np.flatnonzero(marks != UNMARKED)
        rows = [self._has_row(*self._structure.rows[place]) for place in places.tolist()]
        if (np.diff(marks[places], prepend=0) < np.array(rows, np.int64)).any():
            yield f"{queue_text(queue)}: its control rows are not in the order of the program"

    def _has_row(self, opcode: str, block: int) -> bool:
        """Whether every queue that follows a block has a row for this event of it."""
        return opcode in (TEST, CASE) or (opcode == END and self._kinds[block] is BlockKind.LOOP)

    def _wanted(self, marks: np.ndarray) -> Iterator[tuple[int, tuple[int, Decision, int]]]:
        """(row, (block, decision, target)) of the jumps that the marked events ask for."""
        for block, span in enumerate(self._structure.block_rows):
            places = (span.opens, span.decides, span.ends)
            opens, decides, ends = (int(marks[place]) for place in places)
            if UNMARKED in (opens, decides, ends):
                continue
            if self._kinds[block] is BlockKind.LOOP:
                yield ends - 1, (block, Decision.ALWAYS, opens)
                yield decides - 1, (block, Decision.TEST, ends)
            else:
                yield decides - 1, (block, Decision.CASE, ends)

    def _jump_text(self, jump: tuple[int, Decision, int] | None) -> str:
        if jump is None:
            return "no jump"
        block, decision, target = jump
        when = {Decision.TEST: "leaves", Decision.CASE: "skips", Decision.ALWAYS: "repeats"}
        return f"a jump to {target} that {when[decision]} k{block + self._first_block}"


def _splits(queue: CcQueue) -> Iterator[str]:
    """Jumps between two rows of one placeholder."""
    numbers = queue.placeholder
    for row, jump in queue.jumps.items():
        at = jump.target
        if 0 < at < len(numbers) and numbers[at] == numbers[at - 1] != IDLE:
            yield f"{queue_text(queue)}, pc {row}: a jump to {at}, inside of p{numbers[at]}"


def _deciding(queue: EngineQueue | CcQueue) -> Sequence[int]:
    """The rows of a queue that cannot do without a jump."""
    if isinstance(queue, CcQueue):
        codes: Sequence[int] = (CcOpcode.TEST, CcOpcode.CASE, CcOpcode.END)
        opcode = queue.opcode
    else:
        names = queue.table.opcode_names
        codes = [code for code, name in enumerate(names) if name in (TEST, CASE)]
        opcode = queue.table.opcode
    rows: list[int] = np.flatnonzero(np.isin(opcode, codes)).tolist()
    return rows


def events_of(executable: Executable, parts: _Parts) -> tuple[tuple[Event, ...], tuple[str, ...]]:
    """The events of all stages, and why there is no order of them."""
    faults = _unlike(executable, parts)
    if faults:
        return (), faults
    shared = _shared(executable)
    paths = [deque(_path(executable, one, shared)) for one in parts]
    found = _merged(paths)
    if any(paths):
        steps = (
            f"{part.title}{_text(executable, path[0])} is next"
            for (part, _), path in zip(parts, paths, strict=True)
            if path
        )
        head = "shared collectives and blocks have no order that all programs keep"
        return (), ("\n  ".join([head, *steps]),)
    return tuple(event for event in found if event[0] != _COLLECTIVE), ()


def own_events(executable: Executable, one: tuple[StagePart, Structure]) -> tuple[Event, ...]:
    """The control rows of a stage as events."""
    part, structure = one
    matched = matched_blocks_of(executable.program)
    numbers = ((opcode, part.first_block + block) for opcode, block in structure.rows)
    return tuple((opcode, matched.get(block, block)) for opcode, block in numbers)


def _unlike(executable: Executable, parts: _Parts) -> tuple[str, ...]:
    """Blocks that no one stage has, and matched that are not alike."""
    blocks = executable.program.blocks
    found = [
        part.first_block + block
        for part, structure in parts
        for block in range(len(structure.block_rows))
    ]
    if sorted(found) != list(range(len(blocks))):
        return ("the blocks of the stages are not those of the program",)
    return tuple(
        f"k{block} stands for k{first}, which is a {blocks[first].kind.value}"
        for block, first in matched_blocks_of(executable.program).items()
        if blocks[block].kind is not blocks[first].kind
    )


def _shared(executable: Executable) -> frozenset[int]:
    """The collectives in which several stages take part."""
    whole = [frozenset(stage.ranks.tolist()) for stage in executable.stages]
    return frozenset(
        number
        for number, one in enumerate(executable.program.placeholders)
        if (ranks := participants(one)) and not any(own.issuperset(ranks) for own in whole)
    )


def _path(
    executable: Executable, one: tuple[StagePart, Structure], shared: Collection[int]
) -> list[Event]:
    """What a stage comes to: its control rows, and what it shares where that is triggered."""
    found: list[Event] = []
    triggered = _triggered(one, shared) if shared else {}
    events = own_events(executable, one)
    for phase in range(len(events) + 1):
        found += [(_COLLECTIVE, number) for number in sorted(triggered.get(phase, ()))]
        found += events[phase : phase + 1]
    return found


def _triggered(
    one: tuple[StagePart, Structure], shared: Collection[int]
) -> Mapping[int, Sequence[int]]:
    """By phase, the shared collectives that engines trigger there."""
    part, structure = one
    found: dict[int, list[int]] = {}
    for queue in part.executable.queues:
        if isinstance(queue, EngineQueue):
            column = queue.table.placeholder
            rows = np.flatnonzero((column != IDLE) & np.isin(column, list(shared)))
            phases = structure.phases(queue.engine, rows).tolist()
            for phase, number in zip(phases, column[rows].tolist(), strict=True):
                found.setdefault(phase, []).append(number)
    return found


def _merged(paths: Sequence[deque[Event]]) -> list[Event]:
    """As far as all paths come; what is left of them is where they do not agree."""
    owners = Counter(event for path in paths for event in set(path))
    found: list[Event] = []
    while any(paths):
        for path in paths:
            while path and owners[path[0]] == 1:
                found.append(path.popleft())
        heads = Counter(path[0] for path in paths if path)
        met = next((event for event, count in heads.items() if count == owners[event]), None)
        if met is None:
            break
        found.append(met)
        for path in paths:
            if path and path[0] == met:
                path.popleft()
    return found


def _text(executable: Executable, event: Event) -> str:
    opcode, number = event
    return collective(executable, number) if opcode == _COLLECTIVE else f"{opcode} k{number}"
