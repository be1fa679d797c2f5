"""How control flow is decided: by predicates in memory, or by trip counts where values are not run.

With values (`ValueDecisions`), a predicate that guards a collective must be the same on every rank
of its groups: ranks that diverge would wait for each other for ever, so the first difference stops
the run.

Without values (`decisions_without_values`), the user or the compiler gives the trip count of a
loop. For other blocks the slice of the program that their predicate depends on is performed: all
rows that it depends on, backwards through buffers and the predicates of blocks around those rows
(Weiser, Program Slicing, 1981). This works where a slice contains no result of a collective and no
missing input. Its rows alone are performed, in separate memory, while the queues run as they do
with values.

The clock reads decisions that were recorded, or planned.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from ncc_runtime.errors import ControlError
from ncc_runtime.execution.scheduler import Decide, RowBatch, Scheduler
from ncc_runtime.execution.tape import BlockTape
from ncc_runtime.lowering.engine_queues import contained
from ncc_runtime.lowering.executable import CcQueue, Decision, EngineQueue, Executable, Jump
from ncc_runtime.neff.isa import CASE, END, LOOP, WORK
from ncc_runtime.neff.program import (
    ALIGNMENT,
    Block,
    BlockKind,
    BufferId,
    BufferKind,
    Program,
    TensorId,
)
from ncc_runtime.neff.stages import JointProgram, matched_blocks_of
from ncc_runtime.neff.structure import control_rows
from ncc_runtime.ranked_array import RankedArray

if TYPE_CHECKING:  # slow to import, and only values need it
    from ncc_runtime.execution.values.devices import Devices


class ValueDecisions:
    """Reads each rank's predicate when its queue reaches it."""

    def __init__(self, executable: Executable, machine: "Devices") -> None:
        self._executable = executable
        self._machine = machine
        self._guards: dict[tuple[int, int], _Guard] = {}

    def __call__(self, batch: RowBatch, jump: Jump) -> np.ndarray:
        block = self._executable.program.blocks[jump.block]
        value = self._machine.predicate(jump.block, batch.ranks)
        enters = selected(block, value)
        queue = self._executable.queues[batch.queue]
        if isinstance(queue, CcQueue):
            self._guard(queue.stream, jump.block).compare(batch.ranks, value)
        return enters

    def of_block(self, one: BlockTape, ranks: np.ndarray) -> np.ndarray:
        """The decisions of ranks whose queues come to a block together."""
        block = self._executable.program.blocks[one.block]
        value = self._machine.predicate(one.block, ranks)
        is_same = bool((value == value[0]).all())
        for number, _ in one.places:
            queue = self._executable.queues[number]
            if isinstance(queue, CcQueue):
                guard = self._guard(queue.stream, one.block)
                if is_same:
                    guard.agreed(ranks)
                else:
                    guard.compare(ranks, value)
        return selected(block, value)

    def _guard(self, stream: int, block: int) -> "_Guard":
        matched = matched_blocks_of(self._executable.program)
        key = (stream, matched.get(block, block))
        if key not in self._guards:
            self._guards[key] = _Guard(self._executable, key[1])
        return self._guards[key]


def selected(block: Block, value: np.ndarray) -> np.ndarray:
    """Whether a predicate (pred[] or s32[], by rank) enters a block's rows, by rank bool."""
    if block.kind is BlockKind.LOOP:
        return value.astype(bool)
    if value.dtype == np.bool_:
        return np.where(value, 0, 1) == block.index
    # XLA: an index that is out of range takes the last branch
    in_range = (value >= 0) & (value < block.of)
    return np.where(in_range, value, block.of - 1) == block.index


class _Guard:
    """The predicates of one block that guards a collective, in the order each rank reads them."""

    def __init__(self, executable: Executable, block: int) -> None:
        self._name = executable.program.blocks[block].name
        self._reads: np.ndarray = np.zeros(executable.ranks, np.int64)  # so far, by rank
        self._values: list[dict[int, set[int]]] = []  # by occasion: value to ranks
        self._partners: dict[int, set[int]] = {}
        # the collectives in the block, and in its matched blocks of other stages
        matched = matched_blocks_of(executable.program)
        guarded = (
            executable.program.placeholders[number]
            for stage in executable.stages
            for other, numbers in contained(stage.program).items()
            if matched.get(other, other) == block
            for number in numbers
        )
        for placeholder in guarded:
            for group in placeholder.groups or placeholder.pairs:
                for rank in group:
                    self._partners.setdefault(rank, set()).update(group)

    def agreed(self, ranks: np.ndarray) -> None:
        """Ranks read one value, and so do their partners, who are among them."""
        self._reads[ranks] += 1

    def compare(self, ranks: np.ndarray, values: np.ndarray) -> None:
        """Record what ranks read; ControlError if a rank and a partner read different values."""
        for occasion in np.unique(self._reads[ranks]).tolist():
            is_now = self._reads[ranks] == occasion
            while len(self._values) <= occasion:
                self._values.append({})
            ranks_of = self._values[occasion]
            for value in np.unique(values[is_now]).tolist():
                equal = ranks[is_now][values[is_now] == value]
                ranks_of.setdefault(int(value), set()).update(equal.tolist())
            if len(ranks_of) > 1:
                self._check(ranks_of, occasion)
        self._reads[ranks] += 1

    def _check(self, ranks_of: Mapping[int, set[int]], occasion: int) -> None:
        rank_values = {rank: value for value, ranks in ranks_of.items() for rank in ranks}
        for rank, value in sorted(rank_values.items()):
            for partner in sorted(self._partners.get(rank, ())):
                if rank_values.get(partner, value) != value:
                    raise ControlError(
                        f"{self._name}, occasion {occasion}: its predicate guards a collective "
                        f"and is {value} on rank {rank} and {rank_values[partner]} on rank "
                        f"{partner} of the same group; make it the same, by an all-reduce say"
                    )


class RecordedDecisions:
    """Passes decisions on from another decider, and records them."""

    def __init__(self, ranks: int, decide: Decide) -> None:
        self._decide = decide
        self._ranks = ranks
        self._taken: dict[tuple[int, int], list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)

    def __call__(self, batch: RowBatch, jump: Jump) -> np.ndarray:
        enters = self._decide(batch, jump)
        self._taken[batch.queue, batch.row].append((batch.ranks, enters))
        return enters

    def record(
        self, places: Sequence[tuple[int, int]], ranks: np.ndarray, enters: np.ndarray
    ) -> None:
        """What was decided at several rows together; always at all of these."""
        taken = self._taken[places[0]]
        if not taken:
            self._taken.update(dict.fromkeys(places, taken))
        taken.append((ranks, enters))

    def taken(self, queue: int, row: int) -> Sequence[np.ndarray]:
        """The decisions at a row, by rank, in order, bool."""
        nothing = np.zeros(0, np.int64), np.zeros(0, bool)
        columns = zip(nothing, *self._taken.get((queue, row), ()), strict=True)
        rank, enters = (np.concatenate(column) for column in columns)
        order = np.argsort(rank, kind="stable")
        bounds = np.searchsorted(rank[order], np.arange(1, self._ranks))
        return np.split(enters[order], bounds)

    def agree_with(self, other: "RecordedDecisions") -> bool:
        """Whether no rank decided otherwise than in another run, as far as both went."""
        for place in self._taken.keys() & other._taken.keys():
            for mine, others in zip(self.taken(*place), other.taken(*place), strict=True):
                both = min(len(mine), len(others))
                if (mine[:both] != others[:both]).any():
                    return False
        return True

    def fingerprint(self) -> Hashable:
        """Equal for runs of one executable whose decisions are the same."""
        return tuple(
            (place, tuple(enters.tobytes() for enters in self.taken(*place)))
            for place in sorted(self._taken)
        )

    def moved(self, executable: Executable, other: Executable) -> "RecordedDecisions":
        """The same decisions, at the rows where another lowering of the program takes them."""
        recorded = RecordedDecisions(self._ranks, self._decide)
        rows = zip(_jump_rows(executable), _jump_rows(other), strict=True)
        recorded._taken.update({there: self._taken[here] for here, there in rows})
        return recorded


def _jump_rows(executable: Executable) -> list[tuple[int, int]]:
    """Queue and row of every jump, in an order that all lowerings of a program share."""
    return [
        (number, row)
        for number, queue in enumerate(executable.queues)
        if isinstance(queue, EngineQueue | CcQueue)
        for row in sorted(queue.jumps)
    ]


ALWAYS_ON = 2**62
"""The trip count of a branch that is always taken: never reached."""


class PlannedDecisions:
    """Decides by trip counts: those that the user gives, else those that the compiler knows.

    Blocks of `others` are decided elsewhere; their trips are not looked up here.
    """

    def __init__(
        self,
        executable: Executable,
        trip_counts: Mapping[str, int],
        others: Container[int] = (),
    ) -> None:
        blocks = self._blocks = executable.program.blocks
        check_names(blocks, trip_counts)
        missing = [
            blocks[number].name for number in undecided(blocks, trip_counts) if number not in others
        ]
        if missing:
            raise ControlError(f"nothing says where {', '.join(dict.fromkeys(missing))} goes")
        self._trips = [trip_counts.get(block.name, block.trip_count or 0) for block in blocks]

    def trips(self, jump: Jump) -> int:
        """Of a loop, its trips; of a branch, whether it is taken: always or never."""
        trips, block = self._trips[jump.block], self._blocks[jump.block]
        if jump.decision is Decision.CASE:
            return ALWAYS_ON if min(trips, block.of - 1) == block.index else 0
        return trips


def check_names(blocks: Sequence[Block], trip_counts: Mapping[str, int]) -> None:
    """ControlError if the user names a loop that is not there."""
    names = {block.name for block in blocks}
    for name in sorted(set(trip_counts) - names):
        existing = ", ".join(sorted(names)) or "none"
        raise ControlError(f"no loop or conditional is called {name!r}; there are: {existing}")


def undecided(blocks: Sequence[Block], trip_counts: Mapping[str, int]) -> list[int]:
    """The blocks for which neither the compiler nor the user gives a trip count."""
    return [
        number
        for number, block in enumerate(blocks)
        if block.trip_count is None and block.name not in trip_counts
    ]


Decisions = RecordedDecisions | PlannedDecisions
"""How control flow was decided, or will be; the clock reads it."""


@attrs.frozen
class Inputs:
    """What a run without values may read: which inputs are given, and how each is loaded."""

    given: Container[int]
    load: Callable[[int], RankedArray]
    describe: Callable[[int], str]
    check_bytes: Callable[[int], None]  # refuses to take so much memory of the host


def decisions_without_values(
    executable: Executable, trip_counts: Mapping[str, int], inputs: Inputs
) -> Decisions:
    """The decisions of a run without values; ControlError names blocks that nothing decides."""
    check_names(executable.program.blocks, trip_counts)
    open_blocks = undecided(executable.program.blocks, trip_counts)
    if not open_blocks:
        return PlannedDecisions(executable, trip_counts)
    if executable.representatives < executable.ranks:
        raise ControlError(_what_is_undecided(executable.program, dict.fromkeys(open_blocks, "")))
    slicer = _Slicer(executable, open_blocks)
    slices = {block: slicer.slice_of(block) for block in open_blocks}
    reasons = {
        block: reason
        for block, predicate_slice in slices.items()
        if (reason := predicate_slice.obstacle(executable.program, inputs))
    }
    if reasons:
        raise ControlError(_what_is_undecided(executable.program, reasons))
    buffers = frozenset().union(*(each.buffers for each in slices.values()))
    numbers = sorted(set().union(*(each.inputs for each in slices.values())))
    planned = PlannedDecisions(executable, trip_counts, open_blocks)
    return _perform_slices(executable, planned, frozenset(open_blocks), inputs, buffers, numbers)


def _what_is_undecided(program: Program, reasons: Mapping[int, str]) -> str:
    names: dict[str, tuple[BlockKind, str]] = {}
    for block, reason in reasons.items():
        names.setdefault(program.blocks[block].name, (program.blocks[block].kind, reason))
    same_name = Counter(block.name for block in program.blocks if block.index == 0)
    what = [
        f"{'how often' if kind is BlockKind.LOOP else 'which branch of'} {name} runs"
        + (f" (one number for all {same_name[name]} of that name)" if same_name[name] > 1 else "")
        for name, (kind, _) in names.items()
    ]
    why = [f"{name} follows from {reason}" for name, (_, reason) in names.items() if reason]
    options = " ".join(f"--trip-count {name}=N" for name in names)
    because = f" ({'; '.join(why)})" if why else ""
    return f"data decides {' and '.join(what)}{because}; without values say it: {options}"


@attrs.frozen
class _Slice:
    """What a predicate depends on."""

    buffers: frozenset[int]
    inputs: frozenset[int]
    collectives: frozenset[int]  # whose results it reads
    elided: frozenset[int]  # constants without value
    sized: frozenset[int]  # results of work of which only sizes are known

    def obstacle(self, program: Program, inputs: Inputs) -> str:
        """Why it cannot be performed; empty if it can."""
        if self.collectives:
            number = min(self.collectives)
            placeholder = program.placeholders[number]
            return f"the result of p{number} {placeholder.name or placeholder.op.value}"
        missing = [number for number in sorted(self.inputs) if number not in inputs.given]
        if missing:
            return f"{inputs.describe(missing[0])}, which is not given"
        if self.elided:
            return f"{program.buffers[min(self.elided)].name}, a constant without value"
        if self.sized:
            return f"{program.buffers[min(self.sized)].name}, of which only sizes are known"
        return ""


class _Slicer:
    """Program slices of predicates, from the writers of each buffer and the blocks around them."""

    def __init__(self, executable: Executable, open_blocks: Sequence[int]) -> None:
        program = self._program = executable.program
        self._open = frozenset(open_blocks)
        self._reads: dict[int, set[int]] = {}  # by buffer that is written, those that are read
        self._enclosing: dict[int, set[int]] = {}  # by buffer, the blocks around its writers
        self._collectives: dict[int, set[int]] = {}
        self._sized: set[int] = set()
        self._inputs = {
            int(program.tensors[tensor].buffer): number
            for number, tensor in enumerate(program.inputs)
        }
        for queue in executable.queues:
            if isinstance(queue, EngineQueue):
                self._add_rows(queue)
        for stage in executable.stages:
            for number, placeholder in enumerate(stage.program.placeholders):
                for result in placeholder.results:
                    buffer = int(program.tensors[result].buffer)
                    self._collectives.setdefault(buffer, set()).add(number)

    def _add_rows(self, queue: EngineQueue) -> None:
        tensors = self._program.tensors
        enclosing = list(_enclosing_blocks(self._program, queue))
        for row, instr in enumerate(queue.table):
            read = {int(tensors[operand].buffer) for operand in instr.operands}
            for result in instr.results:
                buffer = int(tensors[result].buffer)
                self._reads.setdefault(buffer, set()).update(read)
                self._enclosing.setdefault(buffer, set()).update(enclosing[row])
                if instr.opcode == WORK:
                    self._sized.add(buffer)

    def slice_of(self, block: int) -> _Slice:
        """Everything that the predicate of a block depends on."""
        tensors, buffers = self._program.tensors, self._program.buffers
        pending = [int(tensors[self._program.blocks[block].predicate].buffer)]
        reached: set[int] = set()
        while pending:
            buffer = pending.pop()
            if buffer in reached:
                continue
            reached.add(buffer)
            pending += self._reads.get(buffer, ())
            pending += (
                int(tensors[self._program.blocks[other].predicate].buffer)
                for other in self._enclosing.get(buffer, set()) & self._open
            )
        return _Slice(
            frozenset(reached),
            frozenset(self._inputs[buffer] for buffer in reached if buffer in self._inputs),
            frozenset(number for buffer in reached for number in self._collectives.get(buffer, ())),
            frozenset(buffer for buffer in reached if buffers[buffer].kind is BufferKind.ELIDED),
            frozenset(reached & self._sized),
        )


def _enclosing_blocks(program: Program, queue: EngineQueue) -> Iterator[frozenset[int]]:
    """Of every row of a queue, the blocks around it."""
    control = {row.pc: row for row in control_rows(program, queue.table)}
    inside: frozenset[int] = frozenset()
    for pc in range(len(queue.table)):
        if pc in control and control[pc].opcode in (LOOP, CASE):
            inside |= {control[pc].block}
        yield inside
        if pc in control and control[pc].opcode == END:
            inside -= {control[pc].block}


def _perform_slices(
    executable: Executable,
    planned: PlannedDecisions,
    open_blocks: Container[int],
    inputs: Inputs,
    buffers: frozenset[int],
    numbers: Sequence[int],
) -> RecordedDecisions:
    """Run all queues to their ends, but compute only the rows that write these buffers."""
    import threadpoolctl

    from ncc_runtime.execution.values.devices import Devices

    tensors = executable.program.tensors
    rows: set[tuple[int, int]] = set()
    written = set(buffers)  # also results that nothing reads, of rows with several
    for number, queue in enumerate(executable.queues):
        if not isinstance(queue, EngineQueue):
            continue
        for row, instr in enumerate(queue.table):
            results = {int(tensors[result].buffer) for result in instr.results}
            if not results.isdisjoint(buffers):
                rows.add((number, row))
                written |= results
    reduced = _with_memory_of(executable, frozenset(written), numbers)
    inputs.check_bytes(executable.ranks * reduced.hbm_bytes)
    machine = Devices(reduced)
    machine.memory.load(inputs.load(number) for number in numbers)

    def perform(batches: Sequence[RowBatch]) -> None:
        in_slices = [batch for batch in batches if (batch.queue, batch.row) in rows]
        if in_slices:
            machine.perform(in_slices)

    read = ValueDecisions(executable, machine)
    decisions = _SliceDecisions(executable.ranks, planned, open_blocks, read)
    recorded = RecordedDecisions(executable.ranks, decisions)
    with threadpoolctl.threadpool_limits(1, user_api="blas"), machine:
        Scheduler(executable, recorded).run(perform)
    return recorded


def _with_memory_of(
    executable: Executable, buffers: frozenset[int], numbers: Sequence[int]
) -> Executable:
    """The executable with memory for these buffers and inputs alone, other tensors being empty."""
    program, end = executable.program, 0
    placed = list(program.buffers)
    for buffer in sorted(buffers):
        placed[buffer] = attrs.evolve(placed[buffer], address=end)
        end += -(-placed[buffer].size_bytes // ALIGNMENT) * ALIGNMENT
    empty = BufferId(next(iter(buffers)))
    tensors = tuple(
        tensor
        if tensor.buffer in buffers
        else attrs.evolve(tensor, buffer=empty, shape=(0,), offset=0)
        for tensor in program.tensors
    )
    kept = {program.inputs[number] for number in numbers}

    def reduced(full: Program) -> Program:
        constants = full.constants.items()
        return attrs.evolve(
            full,
            buffers=tuple(placed),
            tensors=tensors,
            inputs=tuple(TensorId(tensor) for tensor in full.inputs if tensor in kept),
            constants={buffer: data for buffer, data in constants if buffer in buffers},
        )

    result = reduced(program)
    if isinstance(result, JointProgram):
        stages = (attrs.evolve(stage, program=reduced(stage.program)) for stage in result.stages)
        result = attrs.evolve(result, stages=tuple(stages))
    return attrs.evolve(executable, program=result, hbm_bytes=end)


class _SliceDecisions:
    """Counts the trips of blocks that are planned, and reads the predicates of the others."""

    def __init__(
        self,
        ranks: int,
        planned: PlannedDecisions,
        open_blocks: Container[int],
        read: ValueDecisions,
    ) -> None:
        self._ranks, self._planned = ranks, planned
        self._open, self._read = open_blocks, read
        self._trips: dict[tuple[int, int], np.ndarray] = {}  # by queue and row, of every rank

    def __call__(self, batch: RowBatch, jump: Jump) -> np.ndarray:
        if jump.block in self._open:
            return self._read(batch, jump)
        zeros: np.ndarray = np.zeros(self._ranks, np.int64)
        trips = self._trips.setdefault((batch.queue, batch.row), zeros)
        enters = trips[batch.ranks] < self._planned.trips(jump)
        trips[batch.ranks] = np.where(enters, trips[batch.ranks] + 1, 0)
        return np.asarray(enters)
