"""The rows that a program performs, in an order for all runs, without counters and semaphores.

Every order that semaphores allow ends in the same state (docs/isa.md). One run of the queues, in
which nothing is performed and each block is entered once, gives such an order. Control rows cut all
queues into phases that belong together (`neff/structure.py`), and a wait asks only for increments
of its own phase or of one before. So the phases may be performed one after the other: rows of a
phase in the order of that run, blocks as often as their predicates say, on the ranks that enter.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.scheduler import AtOnce, RowBatch, Scheduler
from ncc_runtime.execution.trace import Traffic, TrafficCounter
from ncc_runtime.lowering.executable import (
    CcQueue,
    Decision,
    DmaQueue,
    EngineQueue,
    Executable,
    Jump,
)
from ncc_runtime.neff.isa import END, OPCODES, TEST, Shape
from ncc_runtime.neff.structure import ControlRow, control_rows

NORMAL_FORM = "normal form"
"""A collective computed at once, as a function of its operands (`values/normal_form.py`)."""

LITERAL = "literal"
"""A collective of which every descriptor was performed, in some of its runs at least."""


@attrs.frozen(eq=False)
class TapeRound:
    """Batches that are unordered; CC-cores and control rows are left out."""

    batches: tuple[RowBatch, ...]


@attrs.frozen(eq=False)
class BlockTape:
    """A loop, or a branch that is perhaps not taken."""

    block: int  # of Program.blocks
    is_loop: bool
    before: "tuple[TapeRound | BlockTape, ...]"  # of a loop, what comes before each test
    body: "tuple[TapeRound | BlockTape, ...]"
    places: tuple[tuple[int, int], ...]  # queues and rows at which it is decided


Nodes = tuple[TapeRound | BlockTape, ...]


@attrs.frozen(eq=False, slots=False)
class Tape:
    """What a program performs."""

    executable: Executable
    nodes: Nodes
    sent: Mapping[int, Traffic]  # by placeholder at once, what it moves
    interpreters: Mapping[int, str]  # by placeholder, how it is performed

    @property
    def row_by_row(self) -> set[int]:
        """Placeholders whose transfers are performed one by one."""
        return {number for number, how in self.interpreters.items() if how == LITERAL}

    @functools.cached_property
    def has_blocks(self) -> bool:
        """Whether values decide what is performed."""
        return any(isinstance(node, BlockTape) for node in self.nodes)

    @functools.cached_property
    def rounds(self) -> tuple[TapeRound, ...]:
        """All of them, also those in blocks."""
        return tuple(_rounds(self.nodes))

    @functools.cached_property
    def traffic(self) -> tuple[Traffic, ...]:
        """What is moved, per placeholder, if every round is performed once by all ranks."""
        counter = TrafficCounter(self.executable)
        for one in self.rounds:
            self.count(counter, one.batches)
        return counter.traffic()

    def count(
        self, counter: TrafficCounter, batches: Sequence[RowBatch], times: np.ndarray | int = 1
    ) -> None:
        """Add what batches move that each rank performs so often, (ranks,) or one for all."""
        for batch in batches:
            queue = self.executable.queues[batch.queue]
            if batch.collective is not None:
                number = batch.collective.placeholder
                counter.add_performed(self.sent[number], number, batch.ranks, times)
            elif isinstance(queue, DmaQueue):  # of a program without blocks
                counter.add(queue, batch.row, batch.ranks)


def _rounds(nodes: Nodes) -> Iterator[TapeRound]:
    for node in nodes:
        if isinstance(node, TapeRound):
            yield node
        else:
            yield from _rounds(node.before)
            yield from _rounds(node.body)


def tape_of(
    executable: Executable,
    at_once: Sequence[AtOnce] = (),
    sent: Mapping[int, Traffic] | None = None,
) -> Tape | None:
    """None for what needs the state of the queues.

    These are collectives of variable size, and in programs with control flow joined programs and
    collectives that are not at once. `sent` is what those at once move. DeadlockError as
    `Scheduler.run`.
    """
    queues, program = executable.queues, executable.program
    if any(placeholder.op.is_counted for placeholder in program.placeholders):
        return None
    has_blocks = any(queue.jumps for queue in queues if not isinstance(queue, DmaQueue))
    if has_blocks and (len(at_once) < len(program.placeholders) or len(executable.stages) > 1):
        return None
    phases = _Phases(executable)
    rounds: dict[int, list[TapeRound]] = {}  # by phase
    by: dict[int, str] = {}
    seen: set[tuple[int, int]] = set()

    def record(batches: Sequence[RowBatch]) -> None:
        kept: dict[int, list[RowBatch]] = {}
        for batch in batches:
            phase, is_again = phases.of(batch), (batch.queue, batch.row) in seen
            if phase is None or (has_blocks and is_again):
                continue
            seen.add((batch.queue, batch.row))
            queue = queues[batch.queue]
            if batch.collective is not None:
                by.setdefault(batch.collective.placeholder, NORMAL_FORM)
            elif isinstance(queue, DmaQueue):
                by[int(queue.placeholder[batch.row])] = LITERAL
            kept.setdefault(phase, []).append(batch)
        for phase, some in kept.items():
            rounds.setdefault(phase, []).append(TapeRound(tuple(some)))

    Scheduler(executable, _EachBlockOnce(executable.ranks), at_once=at_once).run(record)
    if has_blocks and not _is_of_all_ranks(executable, rounds, by):
        return None
    nodes = _Assembly(executable, rounds).nodes() if has_blocks else tuple(rounds.get(0, ()))
    return Tape(executable, nodes, sent or {}, by)


def _is_of_all_ranks(
    executable: Executable, rounds: Mapping[int, Sequence[TapeRound]], by: Mapping[int, str]
) -> bool:
    """Whether each row was performed by all ranks together, and each collective at once."""
    batches = (batch for some in rounds.values() for one in some for batch in one.batches)
    return LITERAL not in by.values() and all(len(one.ranks) == executable.ranks for one in batches)


class _EachBlockOnce:
    """Decides that every rank enters a block, and leaves a loop when it comes there again."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._entered: dict[tuple[int, int], np.ndarray] = {}

    def __call__(self, batch: RowBatch, jump: Jump) -> np.ndarray:
        if jump.decision is Decision.CASE:
            return np.ones(len(batch.ranks), bool)
        nobody: np.ndarray = np.zeros(self._ranks, bool)
        entered = self._entered.setdefault((batch.queue, batch.row), nobody)
        entered[batch.ranks] ^= True
        return entered[batch.ranks]


class _Phases:
    """In which phase each row is performed."""

    def __init__(self, executable: Executable) -> None:
        self._executable = executable
        self._phase: dict[int, np.ndarray] = {}  # by queue, for each row; -1 for control rows
        self._trigger: dict[int, int] = {}  # by placeholder
        for number, queue in enumerate(executable.queues):
            if isinstance(queue, EngineQueue):
                rows = [row.pc for row in control_rows(executable.program, queue.table)]
                phase = np.searchsorted(rows, np.arange(len(queue.table.opcode)), side="left")
                for row in np.flatnonzero(queue.table.placeholder >= 0).tolist():
                    self._trigger[int(queue.table.placeholder[row])] = int(phase[row])
                shapes = [OPCODES[name].shape for name in queue.table.opcode_names]
                is_control = np.array([shape is Shape.CONTROL for shape in shapes], bool)
                phase[is_control[queue.table.opcode]] = -1
                self._phase[number] = phase

    def of(self, batch: RowBatch) -> int | None:
        """None for rows that only order others; transfers are on tapes without blocks only."""
        queue = self._executable.queues[batch.queue]
        if batch.collective is not None:
            return self._trigger[batch.collective.placeholder]
        if isinstance(queue, EngineQueue):
            phase = int(self._phase[batch.queue][batch.row])
            return None if phase < 0 else phase
        return 0 if isinstance(queue, DmaQueue) else None


class _Assembly:
    """Phases and blocks, nested as the control rows say."""

    def __init__(self, executable: Executable, rounds: Mapping[int, Sequence[TapeRound]]) -> None:
        self._rounds = rounds
        engine = next(queue for queue in executable.queues if isinstance(queue, EngineQueue))
        self._rows: Sequence[ControlRow] = control_rows(executable.program, engine.table)
        self._places: dict[int, list[tuple[int, int]]] = {}
        for number, queue in enumerate(executable.queues):
            if isinstance(queue, EngineQueue | CcQueue):
                for row, jump in queue.jumps.items():
                    if jump.decision is not Decision.ALWAYS:
                        self._places.setdefault(jump.block, []).append((number, row))
        self._at = 0  # the next control row, and the phase before it

    def nodes(self) -> Nodes:
        """From here to the next row that ends this part: a `test`, an `end`, or none."""
        found: list[TapeRound | BlockTape] = []
        while True:
            found += self._rounds.get(self._at, ())
            if self._at == len(self._rows) or self._rows[self._at].opcode in (TEST, END):
                return tuple(found)
            opens = self._rows[self._at]
            self._at += 1
            first = self.nodes()  # up to the test of a loop, or the end of a branch
            is_loop = self._rows[self._at].opcode == TEST
            body = first
            if is_loop:
                self._at += 1
                body = self.nodes()
            self._at += 1
            before = first if is_loop else ()
            places = tuple(self._places[opens.block])
            found.append(BlockTape(opens.block, is_loop, before, body, places))
