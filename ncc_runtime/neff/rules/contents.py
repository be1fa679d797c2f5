"""Rules of what memory holds: what is read was written last, and results that lie on operands.

Buffers share addresses, so whether a row reads what it means to is a question of data flow. It is
answered by an abstract interpretation: of every elementary interval of memory, which buffer it was
written as last. A read of a buffer must find nothing else, on every path through loops and branches
and in every round: memory that a later round reads may be written in between as that buffer only.

Rows of a phase are taken in one order that their waits allow. In any other order that they allow,
rows that touch the same bytes come in the same one, or they race, which is proved elsewhere
(`verify/engine_races.py`).
"""

import heapq
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from ncc_runtime.arrays import union
from ncc_runtime.neff.in_place import may_overwrite
from ncc_runtime.neff.isa import CASE, ENGINES, LOOP, TEST
from ncc_runtime.neff.program import READ_ONLY, BlockKind, Program
from ncc_runtime.neff.rank_queues import rank_queues
from ncc_runtime.neff.rules.rule import rule
from ncc_runtime.neff.structure import Structure, structure_of
from ncc_runtime.neff.table import NONE, Instr
from ncc_runtime.order import EdgesOfOneRank

_AT_PLACEHOLDER, _AT_CONTROL, _AT_END = -1, -2, -3

_NOTHING, _DIFFERENT, _FIRST = 0, 1, 2
"""What an interval holds: nothing yet; on different paths different things; buffer k as k + 2."""


class _Access(NamedTuple):
    """A tensor that is read or written."""

    tensor: int
    is_write: bool
    queue: int  # of an engine; or one of those below
    row: int  # of the queue; a placeholder, a control row, or an output

    def text(self, structure: Structure) -> str:
        """Where it is."""
        if self.queue == _AT_PLACEHOLDER:
            return f"placeholder p{self.row}"
        if self.queue == _AT_CONTROL:
            opcode, block = structure.rows[self.row]
            return f"{opcode} k{block}"
        if self.queue == _AT_END:
            return f"output {self.row}"
        return f"queue {ENGINES[self.queue].value}, pc {self.row}"


@rule("neff-M8")
def _what_is_read_was_written_last(program: Program) -> Iterator[str]:
    structure = structure_of(program)
    if structure is None:
        return  # what neff-C1 to neff-C3 refuse
    accesses = _accesses_by_phase(program, structure)
    if accesses is None:
        return  # what the rules of semaphores refuse
    memory = _Memory(program)
    states = _states(program, structure, memory, accesses)
    for state, of_phase in zip(states, accesses, strict=True):
        if state is not None:
            for access, text in memory.wrong_reads(state.copy(), of_phase):
                yield f"{access.text(structure)}: {text}"


def _accesses_by_phase(program: Program, structure: Structure) -> list[list[_Access]] | None:
    """What rows touch, in an order that their waits allow; None where there is no such order.

    The control row at the end of a phase is its last. A collective reads from its trigger to its
    completion, and its results are there when it is complete.
    """
    queues = rank_queues(program, structure)
    run = EdgesOfOneRank(queues.targets).run()
    if run.stuck:
        return None
    found: list[list[_Access]] = [[] for _ in range(len(structure.rows) + 1)]
    completed = {row: number for number, row in queues.completed.items()}
    phase_of = [
        structure.phases(engine, np.arange(len(program.queues[engine]))).tolist()
        for engine in ENGINES
    ]
    tables = [program.queues[engine] for engine in ENGINES]
    columns = [
        (table.start.tolist(), table.tensors.tolist(), table.result_count.tolist())
        for table in tables
    ]
    triggers = [table.placeholder.tolist() for table in tables]
    for batch in run.batches:
        queue, row = batch.queue, batch.row
        if queue < len(ENGINES):
            at, number = found[phase_of[queue][row]], triggers[queue][row]
            if number == NONE:
                start, tensors, result_count = columns[queue]
                first, end = start[row], start[row + 1]
                operands = first + result_count[row]
                at += [_Access(tensor, False, queue, row) for tensor in tensors[operands:end]]
                at += [_Access(tensor, True, queue, row) for tensor in tensors[first:operands]]
                continue
        elif (queue, row) in completed:
            number = completed[queue, row]
            trigger_queue, pc = queues.triggered[number]
            at = found[phase_of[trigger_queue][pc]]
        else:
            continue
        one = program.placeholders[number]
        reads, writes = (*one.operands, *one.counts), one.results if queue >= len(ENGINES) else ()
        at += [_Access(tensor, False, _AT_PLACEHOLDER, number) for tensor in reads]
        at += [_Access(tensor, True, _AT_PLACEHOLDER, number) for tensor in writes]
    for phase, (opcode, block) in enumerate(structure.rows):
        if opcode in (TEST, CASE):
            predicate = program.blocks[block].predicate
            found[phase].append(_Access(predicate, False, _AT_CONTROL, phase))
    found[-1] += [
        _Access(tensor, False, _AT_END, number) for number, tensor in enumerate(program.outputs)
    ]
    return found


class _Memory:
    """Elementary intervals of a program's memory, and how states of them change and meet."""

    def __init__(self, program: Program) -> None:
        self._program = program
        start = np.array([program.address(k) for k in range(len(program.tensors))], np.int64)
        end = start + np.array([tensor.size_bytes for tensor in program.tensors], np.int64)
        edges = union(start, end)
        self._first = np.searchsorted(edges, start).tolist()
        self._end = np.searchsorted(edges, end).tolist()
        self._holds = [int(tensor.buffer) + _FIRST for tensor in program.tensors]
        # An output in an input's memory holds what that held until it is written.
        self._instead = np.full(len(program.buffers) + _FIRST, _NOTHING, np.int64)
        for output, source in program.donated().items():
            self._instead[output + _FIRST] = source + _FIRST
        self.initial = np.full(max(0, len(edges) - 1), _NOTHING, np.int64)
        for number, tensor in enumerate(program.tensors):
            if program.buffers[tensor.buffer].kind in READ_ONLY:  # filled before the program runs
                self.initial[self._first[number] : self._end[number]] = self._holds[number]

    def after(self, state: np.ndarray, accesses: Sequence[_Access]) -> np.ndarray:
        """The state behind some accesses."""
        state = state.copy()
        for access in accesses:
            if access.is_write:
                tensor = access.tensor
                state[self._first[tensor] : self._end[tensor]] = self._holds[tensor]
        return state

    def met(self, one: np.ndarray, other: np.ndarray) -> np.ndarray:
        """What is held where two paths meet."""
        found = np.where(one == other, one, _DIFFERENT)
        found = np.where((self._instead[one] == other) & (other >= _FIRST), one, found)
        return np.where((self._instead[other] == one) & (one >= _FIRST), other, found)

    def wrong_reads(
        self, state: np.ndarray, accesses: Iterable[_Access]
    ) -> Iterator[tuple[_Access, str]]:
        """Reads that may find what another buffer was written as, and that; changes the state."""
        instead = self._instead.tolist()
        for access in accesses:
            tensor = access.tensor
            first, end, holds = self._first[tensor], self._end[tensor], self._holds[tensor]
            if access.is_write:
                state[first:end] = holds
                continue
            found = state[first:end]
            wrong = found != holds
            if wrong.any():
                wrong &= (found != instead[holds]) | (found < _FIRST)
                if wrong.any():
                    held = int(found[wrong.argmax()])
                    text = f"reads t{tensor} of b{holds - _FIRST}, which {self._text(held)}"
                    yield access, text

    def _text(self, held: int) -> str:
        if held == _NOTHING:
            return "nothing has written"
        if held == _DIFFERENT:
            return "another buffer may have overwritten"
        number = held - _FIRST
        return f"b{number} ({self._program.buffers[number].name}) has overwritten"


def _states(
    program: Program,
    structure: Structure,
    memory: _Memory,
    accesses: Sequence[Sequence[_Access]],
) -> list[np.ndarray | None]:
    """What memory holds at the begin of every phase: a fixed point over loops.

    A state goes down twice at most, so few rounds are enough. None: no path leads there.
    """
    behind = _successors(program, structure, accesses)
    states: list[np.ndarray | None] = [None] * len(accesses)
    states[0] = memory.initial
    changed = [0]  # a heap without doubles
    while changed:
        phase = heapq.heappop(changed)
        state = states[phase]
        assert state is not None
        left = memory.after(state, accesses[phase]) if behind[phase] else state
        for target in behind[phase]:
            before = states[target]
            met = left if before is None else memory.met(before, left)
            if before is None or not np.array_equal(met, before):
                states[target] = met
                if target not in changed:
                    heapq.heappush(changed, target)
    return states


def _successors(
    program: Program, structure: Structure, accesses: Sequence[Sequence[_Access]]
) -> list[tuple[int, ...]]:
    """By phase, those that may follow it."""
    spans = structure.block_rows
    last_of = _last_branches(program, structure, accesses)
    found: list[tuple[int, ...]] = []
    for place, (opcode, block) in enumerate(structure.rows):
        is_last = last_of.get(block) == block  # it is taken if no other was
        if opcode == LOOP or (opcode == CASE and is_last):
            found.append((place + 1,))
        elif opcode in (TEST, CASE):
            found.append((place + 1, spans[block].ends + 1))
        elif program.blocks[block].kind is BlockKind.LOOP:
            found.append((spans[block].opens + 1,))
        else:
            found.append((spans[last_of.get(block, block)].ends + 1,))
    found.append(())
    return found


def _last_branches(
    program: Program, structure: Structure, accesses: Sequence[Sequence[_Access]]
) -> dict[int, int]:
    """By branch, the last one of its conditional, where exactly one of the branches is taken.

    Branches that follow one another, with nothing between them, decide by one tensor that none of
    them writes, and are all there are.
    """
    spans = structure.block_rows
    branches = (k for k, block in enumerate(program.blocks) if block.kind is BlockKind.CASE)
    open_groups: dict[int, list[int]] = {}  # by the control row that one's last branch ends at
    found: dict[int, int] = {}
    for block in sorted(branches, key=lambda one: spans[one].opens):
        row, opens = program.blocks[block], spans[block].opens
        group = open_groups.pop(opens - 1, [])
        if group:
            first = program.blocks[group[0]]
            is_next = (first.predicate, first.of, len(group)) == (row.predicate, row.of, row.index)
            if not is_next or any(access.queue != _AT_CONTROL for access in accesses[opens]):
                group = []
        if row.index != len(group):
            continue
        group = [*group, block]
        open_groups[spans[block].ends] = group
        inside = accesses[spans[group[0]].opens + 1 : spans[block].ends + 1]
        if len(group) == row.of and not any(
            access.is_write and access.tensor == row.predicate
            for phase in inside
            for access in phase
        ):
            found |= dict.fromkeys(group, block)
    return found


@rule("neff-M9")
def _results_lie_on_operands_only_in_place(program: Program) -> Iterator[str]:
    """A result overlaps an operand only where the instruction may work in place, exactly there."""
    start = np.array([program.address(k) for k in range(len(program.tensors))], np.int64)
    end = start + np.array([tensor.size_bytes for tensor in program.tensors], np.int64)
    for engine in ENGINES:
        table = program.queues[engine]
        row = np.repeat(np.arange(len(table)), np.diff(table.start))
        place = np.arange(len(row)) - table.start[row]  # among the row's tensors
        for result in range(int(table.result_count.max(initial=0))):
            has_result = table.result_count[row] > result
            written = table.tensors[np.where(has_result, table.start[row] + result, 0)]
            overlaps = has_result & (place != result) & (start[written] < end[table.tensors])
            overlaps &= start[table.tensors] < end[written]
            for at in np.flatnonzero(overlaps).tolist():
                pc, other = int(row[at]), int(place[at])
                if not _is_in_place(program, table[pc], result, other, start):
                    yield (
                        f"queue {engine.value}, pc {pc}: result t{written[at]} overlaps "
                        f"t{table.tensors[at]}"
                    )


def _is_in_place(
    program: Program, instr: Instr, result: int, other: int, start: np.ndarray
) -> bool:
    """Whether a result may lie where another tensor of its row does; by place among these."""
    operand = other - len(instr.results)
    if operand < 0:
        return False
    if start[instr.results[result]] != start[instr.operands[operand]]:
        return False
    results, operands = (
        [program.tensors[tensor] for tensor in tensors]
        for tensors in (instr.results, instr.operands)
    )
    fusion = program.fusion_of(instr)
    return may_overwrite(instr.opcode, results, operands, result, operand, fusion)


RULES = (_what_is_read_was_written_last, _results_lie_on_operands_only_in_place)
