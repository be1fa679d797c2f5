"""The virtual devices: performs batches of ready instructions on the memory of all ranks.

What is equal on several ranks is computed and stored once while a tape is played
(`equal_ranks.py`). So a rank's bytes lie in some row of a buffer's array, which `RowLayout`
says; an instruction is performed on views of rows, by those ranks that perform for others.
"""

import collections
import contextlib
import functools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from ncc_runtime.execution.scheduler import AtOnce, RowBatch
from ncc_runtime.execution.tape import BlockTape, Tape, TapeRound
from ncc_runtime.execution.values.checks import ByteOwners
from ncc_runtime.execution.values.device_memory import DeviceMemory
from ncc_runtime.execution.values.equal_ranks import RowPlaces
from ncc_runtime.execution.values.exchanges import (
    PIECES_BYTES,
    MovedPieces,
    RankMemory,
    of_collective,
    of_transfers,
)
from ncc_runtime.execution.values.exchanges import perform as perform_pieces
from ncc_runtime.execution.values.kernels.blockwise import (
    BlockPlan,
    can_be_cut,
    fusion_of,
    single_step,
)
from ncc_runtime.execution.values.kernels.bound import bound
from ncc_runtime.execution.values.kernels.compute import compute
from ncc_runtime.execution.values.kernels.indexing import SliceAtStarts, update_slice
from ncc_runtime.execution.values.kernels.work import KernelCall
from ncc_runtime.execution.values.normal_form import Evaluation, NormalForm
from ncc_runtime.execution.values.row_layout import (
    PreparedBlock,
    PreparedInstruction,
    PreparedNode,
    PreparedRounds,
    RowLayout,
    even_runs,
    rows_of,
    view_of,
)
from ncc_runtime.execution.values.transfers import (
    InFlight,
    LengthRegisters,
    begun_transfers,
    sized_transfers,
    transfer,
)
from ncc_runtime.lowering.executable import DmaQueue, EngineQueue, Executable
from ncc_runtime.neff.isa import FUSION, OPCODES, Shape
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import Program, TensorId
from ncc_runtime.neff.table import Instr
from ncc_runtime.processes import ALONE, Processes
from ncc_runtime.progress import phase
from ncc_runtime.ranked_array import RankedArray
from ncc_runtime.threads import Threads

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

SPLIT_WORK = 1 << 20
"""Bytes and multiply-adds that a batch must cost before its ranks are divided among threads."""

SMALL_BYTES = 64 * 1024
"""What is smaller, on all ranks together, is not worth the preparation of blocks."""

RUNS_BEFORE_CALLS = 1
"""How often rounds run before calls are made for them: most programs run once, and to make the
calls takes longer than to perform the rounds."""

PART_BYTES = 8 << 20
"""Bytes read and written by an instruction that is computed whole, for so many ranks at a time."""

_ELEMENTWISE = (Shape.UNARY, Shape.BINARY, Shape.TERNARY)


@attrs.frozen(eq=False)
class HostTask:
    """Work that one thread does."""

    perform: Callable[[], object]
    work: int  # bytes and multiply-adds


DecideBlock = Callable[[BlockTape, np.ndarray], np.ndarray]
"""Which of these ranks enter a block, (r,) bool."""

Begun = Callable[[], object]
"""Writes what an instruction has computed."""


class Devices:
    """What instructions do to the memory of all ranks (`DeviceMemory`); reusable over runs."""

    def __init__(
        self,
        executable: Executable,
        threads: int = 1,
        checked: bool = False,
        normal_forms: Mapping[int, NormalForm] | None = None,
        processes: Processes = ALONE,
    ) -> None:
        """`normal_forms` are those of proved collectives, by placeholder.

        Of several `processes` each holds the memory of its share of the ranks.
        """
        executable.check_is_whole()
        self.executable = executable
        self._processes = processes
        self.shares = processes.shares(executable.ranks)
        self._is_alone = self.shares.count == 1
        self._threads = Threads(threads)
        self._normal_forms = normal_forms or {}
        self.memory = DeviceMemory(executable, self.shares, self._normal_forms, self._threads)
        self.arena, self._views = self.memory.arena, self.memory.views
        self._checked = checked
        self._byte_owners: ByteOwners | None = None
        self._registers = LengthRegisters(executable, self.arena, self._of_all)
        self._has_registers = any(one.op.is_counted for one in executable.program.placeholders)
        self._plans: dict[object, BlockPlan | None] = {}  # by queue, row and results of any NaN
        if any("lapack" in stage.program.opcodes() for stage in executable.stages):
            # Load scipy before BLAS is limited to one thread: libraries loaded later are not.
            import ncc_runtime.execution.values.kernels.linear_algebra  # noqa: F401
        control = {name for name, opcode in OPCODES.items() if opcode.shape is Shape.CONTROL}
        self._computes = any(stage.program.opcodes() - control for stage in executable.stages)

    def __enter__(self) -> "Devices":
        """A run begins, whose inputs are loaded (`DeviceMemory.load`)."""
        if self._has_registers:
            self._registers = LengthRegisters(self.executable, self.arena, self._of_all)
        if self._checked:
            stride = self.arena.bytes.shape[1]
            self._byte_owners = ByteOwners(self.executable, stride, self.shares)
        self._stack = contextlib.ExitStack()
        if self._computes:
            # BLAS on one thread: its own threads would change the order of sums with the machine
            self._stack.enter_context(_blas_libraries().limit(limits=1, user_api="blas"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def layout(self) -> RowLayout:
        """Of what is performed now."""
        return self.memory.layout

    def outputs(self) -> list[RankedArray]:
        """The results of the ranks that run each program, in memory that is the caller's."""
        if self._byte_owners is not None:
            for number, (ranks, tensor) in enumerate(self.memory.results):
                view = self.executable.program.tensors[TensorId(tensor)]
                own = self.shares.own(ranks)
                self._byte_owners.read_tensor(view, own, f"output {number}")
        return self.memory.outputs()

    def predicate(self, block: int, ranks: np.ndarray) -> np.ndarray:
        """The predicate of a block on some ranks, as it is now, (r,)."""
        tensor = self.executable.program.blocks[block].predicate
        equal = self.layout.equal
        places = equal.predicates.get(block, equal.each)

        def read(own: np.ndarray) -> np.ndarray:
            if self._byte_owners is not None:
                view = self.executable.program.tensors[TensorId(tensor)]
                self._byte_owners.read_tensor(view, own, "control flow")
            found: np.ndarray = self._views[tensor][self.layout.rows(tensor, places[own])]
            return found

        return self._of_all(ranks, read)

    def _of_all(self, ranks: np.ndarray, read: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        """What `read` gives for ranks, ascending, some of which other processes hold."""
        own = read(self.shares.own(ranks))
        return own if self._is_alone else np.concatenate(self._processes.gather(own))

    def perform(self, batches: Sequence[RowBatch]) -> None:
        """Perform batches that are ready together; their order cannot matter."""
        if not self._is_alone:
            self._move_pieces(batches)
        self._perform([task for batch in batches for task in self._tasks(batch)])

    def play(self, tape: Tape, decide: DecideBlock) -> Mapping[TapeRound, np.ndarray]:
        """Perform all rows of a tape; how often each rank performed each round, (ranks,) int64."""
        by_all, by_some = collections.Counter[PreparedRounds](), dict[TapeRound, np.ndarray]()
        layout = self.layout
        assert layout.tape is tape, "the tape for which inputs are loaded"

        def perform(nodes: Sequence[PreparedNode], ranks: np.ndarray | None) -> None:
            for node in nodes:
                if isinstance(node, PreparedBlock):
                    perform_block(node, ranks)
                elif ranks is None:
                    by_all[node] += 1
                    self._perform_rounds(node)
                else:
                    for one in node.rounds:
                        nobody: np.ndarray = np.zeros(self.executable.ranks, np.int64)
                        by_some.setdefault(one, nobody)[ranks] += 1
                        self.perform(self._part(one, ranks))

        def perform_block(node: PreparedBlock, ranks: np.ndarray | None) -> None:
            while True:
                perform(node.before, ranks)
                own = everybody if ranks is None else ranks
                enters = decide(node.block, own)
                if not enters.all():
                    ranks = own[enters]
                    if not len(ranks):
                        return
                perform(node.body, ranks)
                if not node.block.is_loop:
                    return

        everybody = np.arange(self.executable.ranks)
        with phase("values", "rounds of instructions"), np.errstate(all="ignore"):
            perform(layout.nodes, None)
        counts = {
            one: np.full(self.executable.ranks, by_all[some])
            for some in by_all
            for one in some.rounds
        }
        for one, count in by_some.items():
            counts[one] = counts[one] + count if one in counts else count
        return counts

    def _perform_rounds(self, some: PreparedRounds) -> None:
        """Perform rounds on all ranks: at first batch by batch, later by calls made for it."""
        if some.calls is None and some.runs < RUNS_BEFORE_CALLS:
            some.runs += 1
            for one in some.rounds:
                self.perform(one.batches)
            return
        if some.calls is None:
            some.calls = [call for one in some.rounds for call in self._calls(one)]
        for call in some.calls:
            call()

    def _calls(self, one: TapeRound) -> list[Callable[[], object]]:
        """What performs a round whenever it is called, in this layout."""
        tasks: list[HostTask] = []
        calls: list[Callable[[], object]] = []
        fresh: list[RowBatch] = []  # whose tasks are made each time
        if not self._is_alone and any(self._is_move(batch) for batch in one.batches):
            calls.append(functools.partial(self._move_pieces, one.batches))
        for batch in one.batches:
            if not self._is_alone and self._is_move(batch):
                continue
            if batch.collective is not None:
                # of large ones views and registers would take more memory than their making time
                is_large = self.evaluation(batch).work >= SPLIT_WORK
                if is_large or self._touches(batch, self.layout.moved):
                    fresh.append(batch)
                else:
                    tasks += self._tasks(batch)
            elif (made := self._bound(batch)) is not None:
                calls += made
            else:
                tasks += self._tasks(batch)
        if fresh:
            return [
                *calls,
                lambda: self._perform([*tasks, *(t for each in fresh for t in self._tasks(each))]),
            ]
        if self._is_worth_threads(tasks):
            return [*calls, functools.partial(self._perform, tasks)]
        return [*calls, *(task.perform for task in tasks)]

    def _bound(self, batch: RowBatch) -> list[Callable[[], object]] | None:
        """A small instruction on arrays that stay where they are, as calls; None for others."""
        queue, program = self.executable.queues[batch.queue], self.executable.program
        if not isinstance(queue, EngineQueue) or self._checked:
            return None
        name = queue.table.opcode_names[int(queue.table.opcode[batch.row])]
        if OPCODES[name].shape is Shape.CONTROL:
            return []
        performers = self._performers(batch)
        if not len(performers):  # all are of other processes
            return []
        instr = queue.table[batch.row]
        one, *others = self._instructions(batch.queue, batch.row, performers)
        tensors = [program.tensors[TensorId(t)] for t in (*instr.operands, *instr.results)]
        if others or one.copied or any(each.buffer in self.layout.moved for each in tensors):
            return None
        if any(isinstance(rows, np.ndarray) for _, rows in (*one.operands, *one.results)):
            return None
        operands, results = (
            [rows_of(self._views[tensor], rows) for tensor, rows in some]
            for some in (one.operands, one.results)
        )
        if one.updates is not None:
            update = operands[1]
            if not update.size or update.nbytes > SMALL_BYTES:
                return None
            sizes = update.shape[1:]
            slices = SliceAtStarts(operands[0], operands[2:], sizes, writeable=True)
            return [functools.partial(slices.write, update)]
        fusion = fusion_of(program, instr) or single_step(program, instr)
        touched = fusion.values[1:] if name == "dynamic-slice" else fusion.values
        largest = max(value.size_bytes for value in touched) * len(one.call.ranks)
        # what threads would share, and what is computed block by block, is left to them
        most = SPLIT_WORK if name == "dot" else SMALL_BYTES
        work = int(queue.table.flops[batch.row]) * len(one.call.ranks)
        if largest > most or work > SPLIT_WORK or not can_be_cut(fusion):
            return None
        is_apart = [
            not _share_memory(program, instr.operands, [result]) for result in instr.results
        ]
        return bound(program, fusion, one.call.ranks, operands, results, is_apart)

    def _part(self, one: TapeRound, ranks: np.ndarray) -> list[RowBatch]:
        """What a round performs on some ranks, which are whole groups of its collectives."""
        parts = []
        for batch in one.batches:
            if batch.collective is None:
                parts.append(attrs.evolve(batch, ranks=ranks))
            else:
                groups = tuple(np.unique(batch.collective.group_of[ranks]).tolist())
                parts.append(attrs.evolve(batch, ranks=ranks, groups=groups))
        return parts

    def _touches(self, batch: RowBatch, buffers: Container[int]) -> bool:
        """Whether a collective reads or writes some buffers."""
        if batch.collective is None:
            return False
        program = self.executable.program
        placeholder = program.placeholders[batch.collective.placeholder]
        tensors = (*placeholder.operands, *placeholder.results)
        return any(program.tensors[TensorId(tensor)].buffer in buffers for tensor in tensors)

    def _perform(self, tasks: Sequence[HostTask]) -> None:
        """Tasks in any order, side by side if they are worth it."""
        if self._is_worth_threads(tasks):
            self._threads.perform([task.perform for task in tasks])
            return
        for task in tasks:
            task.perform()

    def _is_worth_threads(self, tasks: Sequence[HostTask]) -> bool:
        is_several = len(tasks) > 1 and self._threads.count > 1
        return is_several and sum(task.work for task in tasks) >= SPLIT_WORK

    def _tasks(self, batch: RowBatch) -> list[HostTask]:
        if not self._is_alone and self._is_move(batch):
            return []
        if batch.collective is not None:
            return self._collective_tasks(batch)
        queue = self.executable.queues[batch.queue]
        if isinstance(queue, EngineQueue):
            return self._compute_tasks(queue, batch)
        if isinstance(queue, DmaQueue):
            return self._transfer_tasks(batch)
        if batch.row in queue.loads:
            self._registers.load(queue, batch.row, batch.ranks)
        return []

    def _performers(self, batch: RowBatch) -> np.ndarray:
        """The ranks that perform an instruction for all of a batch."""
        performed, ranks = self.layout.equal.performed((batch.queue, batch.row)), batch.ranks
        ranks = self.shares.own(ranks)
        found: np.ndarray = ranks[performed[ranks] == ranks]
        return found

    def _compute_tasks(self, queue: EngineQueue, batch: RowBatch) -> list[HostTask]:
        table, row = queue.table, batch.row
        name = table.opcode_names[int(table.opcode[row])]
        if OPCODES[name].shape is Shape.CONTROL:
            return []
        work, moved = self._work_of(queue, row)
        ranks, threads = self._performers(batch), self._threads.count
        if not len(ranks):
            return []
        if len(ranks) < threads and work * len(ranks) >= SPLIT_WORK:
            ones = self._instructions(batch.queue, row, ranks)
            if all(one.may_be_divided(threads) for one in ones):
                share = work * len(ranks) // (len(ones) * threads)
                return [
                    HostTask(functools.partial(self._run_blocks, one, (k, threads)), share)
                    for one in ones
                    for k in range(threads)
                ]
        return [
            HostTask(functools.partial(self._compute, batch.queue, row, some), work * len(some))
            for some in self._divided(ranks, work, moved)
        ]

    def instructions_of(self, batch: RowBatch) -> list[Sequence[PreparedInstruction]]:
        """What each task of an instruction performs on its ranks, one after the other."""
        queue = self.executable.queues[batch.queue]
        assert isinstance(queue, EngineQueue), queue.name
        parts = self._divided(self._performers(batch), *self._work_of(queue, batch.row))
        return [self._instructions(batch.queue, batch.row, ranks) for ranks in parts]

    def scratch_bytes_of(self, batch: RowBatch) -> int:
        """What a collective takes beside its operands and results."""
        if self._is_alone:
            return self.evaluation(batch).scratch_bytes
        form, operands, _ = self._on_processes(batch, copies=False)
        is_copied = self._is_copied(batch, form)
        return PIECES_BYTES + is_copied * sum(one.bytes.size for one in operands)

    @property
    def bytes_beside(self) -> int:
        """Bytes that are kept beside each byte of the ranks' memory."""
        return np.dtype(np.int32).itemsize if self._checked else 0

    @property
    def threads(self) -> int:
        """How many work side by side."""
        return self._threads.count

    def _work_of(self, queue: EngineQueue, row: int) -> tuple[int, int]:
        """What a row costs a rank: bytes and multiply-adds, and bytes that are computed whole."""
        table = queue.table
        name = table.opcode_names[int(table.opcode[row])]
        moved = int(table.bytes_in[row] + table.bytes_out[row])
        is_in_blocks = name in (FUSION, "dot") or OPCODES[name].shape in _ELEMENTWISE
        return int(table.flops[row]) + moved, 0 if is_in_blocks else moved

    def _collective_tasks(self, batch: RowBatch) -> list[HostTask]:
        """A collective of some groups by its normal form."""
        assert batch.collective is not None, batch
        placeholder, evaluation = self._placeholder_of(batch.collective), self.evaluation(batch)
        operands, results = (
            [self._views[tensor].reshape(len(self._views[tensor]), -1) for tensor in tensors]
            for tensors in (placeholder.operands, placeholder.results)
        )
        return [HostTask(work, evaluation.work) for work in evaluation.tasks(operands, results)]

    def _is_move(self, batch: RowBatch) -> bool:
        """Whether it moves data between ranks."""
        is_ring = isinstance(self.executable.queues[batch.queue], DmaQueue)
        return is_ring or batch.collective is not None

    def _move_pieces(self, batches: Sequence[RowBatch]) -> None:
        """Perform the collectives and transfers of some batches, with the other processes."""

        def pieces() -> Iterator[MovedPieces]:
            for batch in batches:
                if batch.collective is not None:
                    form, operands, results = self._on_processes(batch)
                    yield from of_collective(form, operands, results, self.shares)
                elif isinstance(self.executable.queues[batch.queue], DmaQueue):
                    queue, row = self.resolved(batch)
                    if self._byte_owners is not None:
                        self._byte_owners.transfer(queue, row, batch.row, batch.ranks)
                    for one in sized_transfers(self.executable, queue, row, batch.ranks):
                        yield from of_transfers(one, memory, self.shares)

        each = self.layout.equal.each - self.shares.first
        memory = RankMemory(self.arena.bytes, each)
        perform_pieces(pieces(), self.shares, self._processes)

    def _on_processes(
        self, batch: RowBatch, *, copies: bool = True
    ) -> tuple[NormalForm, list[RankMemory], list[RankMemory]]:
        """A collective of some groups on ranks, and the memory of its operands and results."""
        assert batch.collective is not None, batch
        number, placeholder = batch.collective.placeholder, self._placeholder_of(batch.collective)
        key = number, batch.groups
        layout = self.layout
        if key not in layout.forms:
            form = self._normal_forms[number]
            if len(batch.groups) < len(batch.collective.groups):
                form = form.of_groups(batch.groups)
            places = layout.equal.of_row(
                number, len(placeholder.operands), len(placeholder.results)
            )
            layout.forms[key] = form.on_rows(places.read, self._written(places))
        form = layout.forms[key]
        each = layout.equal.each

        def memory(tensor: int) -> RankMemory:
            view = self._views[tensor]
            flat = view.reshape(len(view), -1, copy=False).view(np.uint8)
            return RankMemory(flat, layout.rows(tensor, each))

        operands = [memory(tensor) for tensor in placeholder.operands]
        results = [memory(tensor) for tensor in placeholder.results]
        if copies and self._is_copied(batch, form):
            operands = [attrs.evolve(one, bytes=one.bytes.copy()) for one in operands]
        return form, operands, results

    def _is_copied(self, batch: RowBatch, form: NormalForm) -> bool:
        """Whether operands of a collective must be copied before a result is written."""
        assert batch.collective is not None, batch
        program = self.executable.stage_of(batch.collective.groups[0][0]).program
        one = self._placeholder_of(batch.collective)
        return not form.is_blockwise and _share_memory(program, one.operands, one.results)

    def _written(self, places: RowPlaces) -> list[np.ndarray]:
        """By result, where each rank's goes, -1 where another rank's is written for it, too."""
        each = self.layout.equal.each
        is_own = places.performed == each
        return [
            rows if len(np.unique(rows)) == len(each) else np.where(is_own, rows, -1)
            for rows in places.written
        ]

    def _placeholder_of(self, collective: AtOnce) -> Placeholder:
        """As the program of the ranks has it that perform it."""
        program = self.executable.stage_of(collective.groups[0][0]).program
        return program.placeholders[collective.placeholder]

    def evaluation(self, batch: RowBatch) -> Evaluation:
        """How a collective of some groups is computed."""
        collective, groups, layout = batch.collective, batch.groups, self.layout
        assert collective is not None, batch
        number = collective.placeholder
        if (number, groups) not in layout.evaluations:
            form, placeholder = self._normal_forms[number], self._placeholder_of(collective)
            if len(groups) < len(collective.groups):
                form = form.of_groups(groups)
            places = layout.of_row(number, placeholder)
            program = self.executable.stage_of(collective.groups[0][0]).program
            shares = _share_memory(program, placeholder.operands, placeholder.results)
            form = form.on_rows(places.read, self._written(places))
            layout.evaluations[number, groups] = Evaluation(form, self._threads.count, shares)
        return layout.evaluations[number, groups]

    def _transfer_tasks(self, batch: RowBatch) -> list[HostTask]:
        queue, row = self.resolved(batch)
        work = int(queue.size_bytes[row, batch.ranks].max(initial=0))
        return [
            HostTask(
                functools.partial(self._transfer, queue, row, batch.row, part), work * len(part)
            )
            for part in self._divided(batch.ranks, work)
        ]

    def resolved(self, batch: RowBatch) -> tuple[DmaQueue, int]:
        """A ring and a row of it with the sizes and addresses that a batch of transfers has now."""
        queue = self.executable.queues[batch.queue]
        assert isinstance(queue, DmaQueue), queue.name
        if queue.registers is None:
            return queue, batch.row
        return self._registers.resolved(queue, batch.row), 0

    def _divided(
        self, ranks: np.ndarray, work_per_rank: int, bytes_per_rank: int = 0
    ) -> list[np.ndarray]:
        """The ranks in parts: one for each thread where the work is worth it, more if it is large.

        Kernels that are no loops over blocks take several times the bytes that they move.
        """
        count = 1
        if work_per_rank * len(ranks) >= SPLIT_WORK:
            count = max(self._threads.count, bytes_per_rank * len(ranks) // PART_BYTES)
        return (
            np.array_split(ranks, min(count, len(ranks))) if count > 1 and len(ranks) else [ranks]
        )

    def _transfer(self, queue: DmaQueue, row: int, pc: int, ranks: np.ndarray) -> None:
        """Perform a row of `queue` for some ranks; `pc` is its number in the program."""
        if self._byte_owners is not None:
            self._byte_owners.transfer(queue, row, pc, ranks)
        transfer(self.executable, self.arena, queue, row, ranks)

    def begin_transfers(self, batch: RowBatch) -> list[InFlight]:
        """What a row of a ring moves, read now; its bytes land when the caller says."""
        moved, row = self.resolved(batch)
        return list(begun_transfers(self.executable, self.arena, moved, row, batch.ranks))

    def begin(self, batch: RowBatch) -> Begun | None:
        """Read what a row of an engine or CC-core reads now; what comes back writes, later.

        For rows that take their time, while others may write what they have read.
        """
        queue = self.executable.queues[batch.queue]
        if not isinstance(queue, EngineQueue):
            self.perform([batch])  # the registers of a CC-core are its own
            return None
        name = queue.table.opcode_names[int(queue.table.opcode[batch.row])]
        if OPCODES[name].shape is Shape.CONTROL:
            return None
        ones = self._instructions(batch.queue, batch.row, batch.ranks)
        writes = [self._begin_compute(one, keeps=True) for one in ones]

        def write() -> None:
            for each in writes:
                each()

        return write

    def _compute(self, queue: int, row: int, ranks: np.ndarray) -> None:
        """Perform an instruction on some ranks, for all that share what these compute."""
        tensors, owners = self.executable.program.tensors, self._byte_owners
        ones = self._instructions(queue, row, ranks)
        if owners is not None:
            place = f"queue {self.executable.queues[queue].name}, pc {row}"
            for tensor, _ in ones[0].operands:
                owners.read_tensor(tensors[TensorId(tensor)], ranks, place)
        for one in ones:
            self._begin_compute(one)()
            for tensor, rows, source in one.copied:
                self._views[tensor][rows] = self._views[tensor][source]
        if owners is not None:
            for tensor, _ in ones[0].results:
                owners.write_tensor(tensors[TensorId(tensor)], ranks)

    def _begin_compute(self, one: PreparedInstruction, *, keeps: bool = False) -> Begun:
        """Compute, and give what writes the results; `keeps`: what was read may change till then.

        So what is to be written is copied, where it may lie in the memory of the ranks.
        """
        if one.plan is not None and not keeps:
            return functools.partial(self._run_blocks, one)
        operands = [rows_of(self._views[tensor], rows) for tensor, rows in one.operands]
        is_checked = self._byte_owners is not None  # then all of a result is written, and noted
        if one.updates is not None and not is_checked and self.memory.moved.isdisjoint(one.updates):
            if keeps:
                operands[1:] = [operand.copy() for operand in operands[1:]]
            return functools.partial(update_slice, *operands)
        out = None
        if one.is_apart and not keeps:
            tensor, rows = one.results[0]
            out = rows_of(self._views[tensor], rows)
        results = compute(one.call, operands, out)
        if keeps:
            results = [np.array(result) for result in results]
        elif one.overlaps:
            # a result may be an operand as it is, which must outlive the writing of the others
            memory = self.arena.bytes
            results = [
                result.copy() if np.may_share_memory(result, memory) else result
                for result in results
            ]
        return functools.partial(self._write, one, results, out)

    def _run_blocks(self, one: PreparedInstruction, part: tuple[int, int] = (0, 1)) -> None:
        """Compute block by block, into the memory of the results where that is possible.

        `part` (k, n) is the k-th of n parts, which may be computed side by side.
        """
        assert one.plan is not None, "an instruction with a plan"
        operands = [rows_of(self._views[tensor], rows) for tensor, rows in one.operands]
        places = [rows_of(self._views[tensor], rows) for tensor, rows in one.results]
        if one.overlaps:
            results = [np.empty_like(place, order="C") for place in places]
            one.plan.run(one.call.ranks, operands, results)
            for place, result in zip(places, results, strict=True):
                place[...] = result
        else:
            one.plan.run(one.call.ranks, operands, places, part)

    def _plan_of(self, number: int, row: int, call: KernelCall) -> BlockPlan | None:
        """How an instruction is computed block by block; None if it is small or of another kind."""
        queue, program = self.executable.queues[number], call.program
        assert isinstance(queue, EngineQueue), queue.name
        if self._checked:
            return None
        of_any_nan = frozenset(self.layout.of_any_nan.get((number, row), ()))
        key = number, row, of_any_nan
        if key not in self._plans:
            self._plans[key] = None
            fusion = fusion_of(program, queue.table[row])
            if fusion is not None and can_be_cut(fusion):
                self._plans[key] = BlockPlan(program, fusion, of_any_nan)
        plan = self._plans[key]
        return plan if plan and plan.rank_bytes * len(call.ranks) >= SMALL_BYTES else None

    def _overlaps(self, instr: Instr, plan: BlockPlan) -> bool:
        """Whether results lie where operands are that may still be read."""
        program = self.executable.program

        def place(tensor: int) -> tuple[int, int]:
            return program.address(tensor), program.tensors[TensorId(tensor)].size_bytes

        for k, operand in enumerate(instr.operands):
            start, size = place(operand)
            for number, result in enumerate(instr.results):
                address, length = place(result)
                if start < address + length and address < start + size:
                    one, other = (program.tensors[TensorId(x)] for x in (operand, result))
                    alike = (start, one.shape, one.dtype) == (address, other.shape, other.dtype)
                    if not (alike and plan.writes_over(k, number)):
                        return True
        return False

    def _instructions(
        self, number: int, row: int, ranks: np.ndarray
    ) -> Sequence[PreparedInstruction]:
        """A row of a queue on some ranks, in parts of which every operand and result is a view."""
        layout = self.layout
        key = number, row, ranks.tobytes()
        if key in layout.instructions:
            return layout.instructions[key]
        program, queue = self.executable.program, self.executable.queues[number]
        assert isinstance(queue, EngineQueue), queue.name
        instr = queue.table[row]
        places = layout.of_row((number, row), instr)
        read, written = ([rows[ranks] for rows in some] for some in (places.read, places.written))
        # ranks that are performed literally may be any: then operands are copied
        is_any = layout.tape is None and len(ranks) <= ranks[-1] - ranks[0]
        found = []
        for part in [slice(None)] if is_any else even_runs([*read, *written]):
            some = ranks[part]
            operands, results = (
                tuple(
                    (tensor, rows if is_any else view_of(rows[part]))
                    for tensor, rows in zip(tensors, columns, strict=True)
                )
                for tensors, columns in ((instr.operands, read), (instr.results, written))
            )
            updates = None
            if not is_any and _is_update_in_place(program, instr):
                tensors = instr.operands[0], instr.results[0]
                updates = tuple(program.tensors[TensorId(tensor)].buffer for tensor in tensors)
            call = KernelCall(
                program=program,
                opcode=instr.opcode,
                attributes=program.attributes[instr.attribute] if instr.attribute >= 0 else {},
                results=tuple(program.tensors[tensor] for tensor in instr.results),
                ranks=some,
            )
            plan = None if is_any else self._plan_of(number, row, call)
            if plan is not None:
                overlaps = self._overlaps(instr, plan)
            else:
                is_several = len(instr.results) > 1
                overlaps = is_several and _share_memory(program, instr.operands, instr.results)
            is_apart = plan is None and len(results) == 1 and isinstance(results[0][1], slice)
            is_apart = is_apart and not _share_memory(program, instr.operands, instr.results)
            others = np.setdiff1d(np.flatnonzero(np.isin(places.performed, some)), some)
            first, own_ranks = self.shares.first, self.shares.own(layout.equal.each)
            copied = tuple(
                (tensor, others - first, places.performed[others] - first)
                for tensor, rows in zip(instr.results, places.written, strict=True)
                if len(others) and len(np.unique(rows[own_ranks])) == len(own_ranks)
            )
            found.append(
                PreparedInstruction(
                    call, operands, results, updates, plan, overlaps, is_apart, copied
                )
            )
        if not is_any:
            layout.instructions[key] = found
        return found

    def _write(
        self, one: PreparedInstruction, results: Sequence[np.ndarray], out: np.ndarray | None
    ) -> None:
        for (tensor, rows), array in zip(one.results, results, strict=True):
            if array is not out:  # else it lies there
                self._views[tensor][rows] = array


@functools.cache
def _blas_libraries() -> "ThreadpoolController":
    """Looked for once; scipy's, where an opcode needs it, is loaded before (`Devices`)."""
    import threadpoolctl

    return threadpoolctl.ThreadpoolController()


def _share_memory(program: Program, operands: Iterable[int], results: Iterable[int]) -> bool:
    """Whether any operand overlaps any result."""
    read, written = (
        [(program.address(tensor), program.tensors[TensorId(tensor)].size_bytes) for tensor in some]
        for some in (operands, results)
    )
    return any(
        start < address + length and address < start + size
        for start, size in read
        for address, length in written
    )


def _is_update_in_place(program: Program, instr: Instr) -> bool:
    """Whether the result lies where its operand does, so that only the slice is to be written."""
    if instr.opcode != "dynamic-update-slice":
        return False
    return program.address(instr.operands[0]) == program.address(instr.results[0])
