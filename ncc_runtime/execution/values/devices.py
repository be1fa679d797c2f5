"""The virtual devices: performs batches of ready instructions on the memory of all ranks.

Inputs and outputs of a program without control flow need not lie in that memory. An input that
nothing writes is read where the caller has it, and an output is written into a new array that the
caller gets: neither is copied.
"""

import collections
import contextlib
import functools
import os
import sys
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import TYPE_CHECKING

import attrs
import numpy as np

from ncc_runtime.execution.scheduler import AtOnce, RowBatch
from ncc_runtime.execution.tape import BlockTape, Nodes, Tape, TapeRound
from ncc_runtime.execution.values.checks import ByteOwners
from ncc_runtime.execution.values.kernels.blockwise import BlockPlan, can_be_cut, fusion_of
from ncc_runtime.execution.values.kernels.compute import compute
from ncc_runtime.execution.values.kernels.indexing import update_slice
from ncc_runtime.execution.values.kernels.work import KernelCall
from ncc_runtime.execution.values.memory import Arena
from ncc_runtime.execution.values.normal_form import Evaluation, NormalForm
from ncc_runtime.execution.values.transfers import (
    InFlight,
    LengthRegisters,
    begun_transfers,
    transfer,
)
from ncc_runtime.lowering.executable import DmaQueue, EngineQueue, Executable
from ncc_runtime.neff.isa import OPCODES, Shape
from ncc_runtime.neff.program import READ_ONLY, BufferKind, Program, TensorId
from ncc_runtime.neff.table import Instr
from ncc_runtime.progress import phase

if TYPE_CHECKING:
    from threadpoolctl import ThreadpoolController

SPLIT_WORK = 1 << 20
"""Bytes and multiply-adds that a batch must cost before its ranks are divided among threads."""

SMALL_BYTES = 64 * 1024
"""What is smaller, on all ranks together, is not worth the preparation of blocks."""

BORROWED_BYTES = 64 * 1024
"""Inputs and outputs of so many bytes on a rank are not copied; others are quicker copied."""


KEPT_OUTPUTS = 2
"""Arrays of one output that are kept: of the last run, which the caller may still have, and one."""

_UNSHARED = 3
"""References to an array that only the devices keep: theirs, a loop's, and that of the count."""


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
    """Memory of all ranks and what instructions do to it; reusable over runs."""

    def __init__(
        self,
        executable: Executable,
        threads: int = 1,
        checked: bool = False,
        normal_forms: Mapping[int, NormalForm] | None = None,
    ) -> None:
        """`normal_forms` are those of proved collectives, by placeholder."""
        executable.check_is_whole()
        self.executable = executable
        self.arena = Arena(executable.ranks, executable.hbm_bytes)
        self._threads = threads
        self._checked = checked
        self._byte_owners: ByteOwners | None = None
        self._registers = LengthRegisters(executable, self.arena)
        self._has_registers = any(one.op.is_counted for one in executable.program.placeholders)
        self._normal_forms = normal_forms or {}
        self._evaluations: dict[tuple[int, tuple[int, ...]], Evaluation] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._pool_of = 0  # the process whose threads they are
        self._tape: _PreparedTape | None = None
        self._plans: dict[tuple[int, int], BlockPlan | None] = {}  # by queue and row
        self._instructions: dict[tuple[int, int, int, int], _Instruction] = {}
        self._moved: set[int] = set()  # buffers that do not lie in the arena now
        self._made: dict[int, collections.deque[np.ndarray]] = collections.defaultdict(
            lambda: collections.deque(maxlen=KEPT_OUTPUTS)
        )
        self._has_constants = False
        self._lent: dict[int, np.ndarray] = {}  # outputs in arrays of their own, by tensor
        self._overwritten: dict[int, np.ndarray] = {}  # by number, inputs as they were loaded
        program = executable.program
        if any("lapack" in stage.program.opcodes() for stage in executable.stages):
            # Load scipy before BLAS is limited to one thread: libraries loaded later are not.
            import ncc_runtime.execution.values.kernels.linear_algebra  # noqa: F401
        self._views = [
            self.arena.tensor(tensor.dtype.numpy, tensor.shape, program.address(number))
            for number, tensor in enumerate(program.tensors)
        ]
        self._in_arena = tuple(self._views)
        self._tensors_in: dict[int, list[int]] = collections.defaultdict(list)
        for number, tensor in enumerate(program.tensors):
            self._tensors_in[tensor.buffer].append(number)
        control = {name for name, opcode in OPCODES.items() if opcode.shape is Shape.CONTROL}
        self._computes = any(stage.program.opcodes() - control for stage in executable.stages)

    @property
    def held_bytes(self) -> int:
        """Host memory that it keeps between runs."""
        return self.arena.bytes.nbytes

    def __enter__(self) -> "Devices":
        self._stack = contextlib.ExitStack()
        if self._computes:
            # BLAS on one thread: its own threads would change the order of sums with the machine
            self._stack.enter_context(_blas_libraries().limit(limits=1, user_api="blas"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _threads_beside(self) -> ThreadPoolExecutor:
        """All threads but this one; they end when the devices are no longer used."""
        if self._pool is None or self._pool_of != os.getpid():
            self._pool = ThreadPoolExecutor(self._threads - 1, thread_name_prefix="rank")
            self._pool_of = os.getpid()
        return self._pool

    def load(
        self,
        inputs: Iterable[np.ndarray],
        unchanged: Container[int] = (),
        tape: Tape | None = None,
    ) -> None:
        """Write parameters, each [ranks, *shape], and constants.

        Those `unchanged`, by number, are the same in every step, whatever a run writes over them.
        If a `tape` is played next, and `release` called behind it, inputs may be read where they
        are, and outputs be written where the caller gets them.
        """
        self._renew()
        self._overwritten = {}
        on_inputs = self._on_inputs
        borrowed: frozenset[int] = frozenset()
        if tape is not None:
            prepared = self._prepared(tape)
            borrowed = prepared.borrowed
            for tensor in prepared.lent:
                array = self._array_for(tensor)
                if self._move(tensor, array):
                    self._lent[tensor] = array
        for number, ((rows, tensor), array) in enumerate(zip(self._inputs, inputs, strict=True)):
            if tensor in borrowed and self._move(tensor, array):
                continue
            self._views[tensor][rows] = array
            if number in unchanged and tensor in on_inputs.values():
                self._overwritten[number] = self._views[tensor][rows].copy()
        if tape is None or not self._has_constants:  # what plays a tape writes none
            self._load_constants()

    def _array_for(self, tensor: int) -> np.ndarray:
        """An array for an output, [ranks, *shape]: one of before if its owner has dropped it.

        The system takes longer to find new pages than a collective takes to fill them.
        """
        made = self._made[tensor]
        for array in made:
            if sys.getrefcount(array) == _UNSHARED:
                return array
        one = self.executable.program.tensors[TensorId(tensor)]
        array = np.empty((self.arena.ranks, *one.shape), one.dtype.numpy)
        made.append(array)
        return array

    def _load_constants(self) -> None:
        """Constants are read only: they stay."""
        for stage in self.executable.stages:
            for buffer, data in stage.program.constants.items():
                address = stage.program.buffers[buffer].address
                memory = self.arena.bytes[:, address : address + len(data)]
                memory[stage.rows] = np.frombuffer(data, np.uint8)
        self._has_constants = True

    def load_again(self, feed: Sequence[tuple[int, int]], inputs: Mapping[int, np.ndarray]) -> None:
        """After a run: write outputs into inputs, by pairs of numbers, and other inputs anew.

        Inputs of `load` that stay the same are written again where an output lies in their memory.
        All else is as it was, since nothing writes it while a program runs. Ranks of an output are
        those of its input.
        """
        self._renew()
        targets, program = self._inputs, self.executable.program
        outputs = [tensor for stage in self.executable.stages for tensor in stage.program.outputs]
        on_inputs = self._on_inputs
        values = []
        for output, number in feed:
            tensor = outputs[output]
            if on_inputs.get(tensor) == targets[number][1]:
                continue  # it is where it is to be
            view = self._views[tensor][targets[number][0]]
            # an input that is passed on as an output lies where another pair may write
            kind = program.buffers[program.tensors[tensor].buffer].kind
            is_input = tensor in on_inputs or kind in READ_ONLY
            values.append((number, view.copy() if is_input else view))
        for number, value in (*values, *self._overwritten.items(), *inputs.items()):
            rows, target = targets[number]
            self._views[target][rows] = value

    @functools.cached_property
    def _on_inputs(self) -> dict[int, int]:
        """By tensor of an output in the memory of a donated input: the tensor of that input."""
        found = {}
        for stage in self.executable.stages:
            program = stage.program
            donated = program.donated()
            input_in = {program.tensors[tensor].buffer: tensor for tensor in program.inputs}
            for tensor in program.outputs:
                buffer = program.tensors[tensor].buffer
                if buffer in donated:
                    found[int(tensor)] = int(input_in[donated[buffer]])
        return found

    def _renew(self) -> None:
        """What a run keeps beside the memory starts anew."""
        if self._has_registers:
            self._registers = LengthRegisters(self.executable, self.arena)
        if self._checked:
            self._byte_owners = ByteOwners(self.executable, self.arena.bytes.shape[1])

    @functools.cached_property
    def _inputs(self) -> list[tuple[slice | np.ndarray, int]]:
        """Of each parameter the rows of its ranks, and its tensor."""
        stages = self.executable.stages
        return [(stage.rows, tensor) for stage in stages for tensor in stage.program.inputs]

    def outputs(self) -> list[np.ndarray]:
        """Copies of the results, each [ranks that run its program, *shape]."""
        stages = self.executable.stages
        outputs = [(stage, tensor) for stage in stages for tensor in stage.program.outputs]
        if self._byte_owners is not None:
            for number, (stage, tensor) in enumerate(outputs):
                view = stage.program.tensors[tensor]
                self._byte_owners.read_tensor(view, stage.ranks, f"output {number}")
        given = dict(self._lent)  # each once: a caller may write into what it gets
        return [
            given.pop(tensor) if tensor in given else self._views[tensor][stage.rows].copy()
            for stage, tensor in outputs
        ]

    def predicate(self, tensor: int, ranks: np.ndarray) -> np.ndarray:
        """A scalar of the ranks, as it is now, (r,)."""
        if self._byte_owners is not None:
            view = self.executable.program.tensors[TensorId(tensor)]
            self._byte_owners.read_tensor(view, ranks, "control flow")
        return self._views[tensor][ranks]

    def perform(self, batches: Sequence[RowBatch]) -> None:
        """Perform batches that are ready together; their order cannot matter."""
        self._perform([task for batch in batches for task in self._tasks(batch)])

    def play(self, tape: Tape, decide: DecideBlock) -> Mapping[TapeRound, np.ndarray]:
        """Perform all rows of a tape; how often each rank performed each round, (ranks,) int64."""
        by_all, by_some = collections.Counter[TapeRound](), dict[TapeRound, np.ndarray]()
        prepared = self._prepared(tape)

        def perform(nodes: Nodes, ranks: np.ndarray | None) -> None:
            for node in nodes:
                if isinstance(node, TapeRound):
                    tasks: Sequence[HostTask] = ()
                    if ranks is None:
                        by_all[node] += 1
                        tasks, moving = prepared.rounds[node]
                    else:
                        nobody: np.ndarray = np.zeros(self.arena.ranks, np.int64)
                        by_some.setdefault(node, nobody)[ranks] += 1
                        moving = self._part(node, ranks)
                    fresh = [task for batch in moving for task in self._tasks(batch)]
                    self._perform([*tasks, *fresh] if fresh else tasks)
                else:
                    perform_block(node, ranks)

        def perform_block(block: BlockTape, ranks: np.ndarray | None) -> None:
            while True:
                perform(block.before, ranks)
                own = everybody if ranks is None else ranks
                enters = decide(block, own)
                if not enters.all():
                    ranks = own[enters]
                    if not len(ranks):
                        return
                perform(block.body, ranks)
                if not block.is_loop:
                    return

        everybody = np.arange(self.arena.ranks)
        with phase("values", "rounds of instructions"):
            perform(tape.nodes, None)
        return {
            one: by_all[one] + by_some.get(one, np.zeros(self.arena.ranks, np.int64))
            for one in (*by_all, *(by_some.keys() - by_all.keys()))
        }

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

    def _prepared(self, tape: Tape) -> "_PreparedTape":
        if self._tape is None or self._tape.tape is not tape:
            borrowed, lent = self._apart(tape)
            buffers = {self.executable.program.tensors[tensor].buffer for tensor in borrowed | lent}
            rounds: dict[TapeRound, tuple[list[HostTask], list[RowBatch]]] = {}
            for one in tape.rounds:
                moving = [batch for batch in one.batches if self._touches(batch, buffers)]
                tasks = [
                    task
                    for batch in one.batches
                    if batch not in moving
                    for task in self._tasks(batch)
                ]
                rounds[one] = tasks, moving
            self._tape = _PreparedTape(tape, rounds, borrowed, lent)
        return self._tape

    def _apart(self, tape: Tape) -> tuple[frozenset[int], frozenset[int]]:
        """Inputs and outputs, by tensor, that need not lie in the arena while a tape is played."""
        if len(self.executable.stages) > 1:
            return frozenset(), frozenset()
        program = self.executable.program
        donated = program.donated()
        excluded = {*donated, *donated.values()}
        for number in tape.row_by_row:
            placeholder = program.placeholders[number]
            tensors = (*placeholder.operands, *placeholder.results)
            excluded |= {program.tensors[tensor].buffer for tensor in tensors}

        def some(tensors: Iterable[int], kind: BufferKind) -> frozenset[int]:
            found = set()
            for number in tensors:
                tensor = program.tensors[TensorId(number)]
                buffer = program.buffers[tensor.buffer]
                is_whole = tensor.size_bytes == buffer.size_bytes >= BORROWED_BYTES
                if buffer.kind is kind and is_whole and tensor.buffer not in excluded:
                    found.add(int(number))
            return frozenset(found)

        inputs = some(program.inputs, BufferKind.INPUT)
        return inputs, some(program.outputs, BufferKind.OUTPUT)

    def _touches(self, batch: RowBatch, buffers: Container[int]) -> bool:
        """Whether a collective reads or writes some buffers."""
        if batch.collective is None:
            return False
        program = self.executable.program
        placeholder = program.placeholders[batch.collective.placeholder]
        tensors = (*placeholder.operands, *placeholder.results)
        return any(program.tensors[TensorId(tensor)].buffer in buffers for tensor in tensors)

    def _move(self, tensor: int, array: np.ndarray) -> bool:
        """Let the buffer of a tensor lie in an array, [ranks, …]; False if its rows have gaps."""
        program = self.executable.program
        try:
            memory = array.reshape(len(array), -1, copy=False).view(np.uint8)
        except ValueError:
            return False
        buffer = program.tensors[TensorId(tensor)].buffer
        for number in self._tensors_in[buffer]:
            one = program.tensors[TensorId(number)]
            part = memory[:, one.offset : one.offset + one.size_bytes].view(one.dtype.numpy)
            self._views[number] = part.reshape(len(array), *one.shape, copy=False)
        self._moved.add(buffer)
        return True

    def release(self) -> None:
        """Let go of the arrays of others; all buffers lie in the arena again."""
        for buffer in self._moved:
            for number in self._tensors_in[buffer]:
                self._views[number] = self._in_arena[number]
        self._moved.clear()
        self._lent.clear()

    def _perform(self, tasks: Sequence[HostTask]) -> None:
        """Tasks in any order, side by side if they are worth it."""
        if self._threads == 1 or len(tasks) <= 1 or sum(task.work for task in tasks) < SPLIT_WORK:
            for task in tasks:
                task.perform()
            return
        left = collections.deque(tasks)

        def work() -> None:
            while True:
                try:
                    task = left.popleft()
                except IndexError:
                    return
                task.perform()

        pool = self._threads_beside()
        others = [pool.submit(work) for _ in range(min(self._threads, len(tasks)) - 1)]
        try:
            work()
        finally:
            left.clear()
            wait(others)  # nothing goes on while its memory is read or given away
        for other in others:
            other.result()

    def _tasks(self, batch: RowBatch) -> list[HostTask]:
        if batch.collective is not None:
            return self._collective_tasks(batch.collective, batch.groups)
        queue = self.executable.queues[batch.queue]
        if isinstance(queue, EngineQueue):
            return self._compute_tasks(queue, batch)
        if isinstance(queue, DmaQueue):
            return self._transfer_tasks(batch)
        if batch.row in queue.loads:
            self._registers.load(queue, batch.row, batch.ranks)
        return []

    def _compute_tasks(self, queue: EngineQueue, batch: RowBatch) -> list[HostTask]:
        table, row = queue.table, batch.row
        name = table.opcode_names[int(table.opcode[row])]
        if OPCODES[name].shape is Shape.CONTROL:
            return []
        work = int(table.flops[row]) + int(table.bytes_in[row] + table.bytes_out[row])
        return [
            HostTask(functools.partial(self._compute, queue, row, ranks), work * len(ranks))
            for ranks in self._divided(batch.ranks, work)
        ]

    def _collective_tasks(self, collective: AtOnce, groups: tuple[int, ...]) -> list[HostTask]:
        """A collective of some groups by its normal form."""
        number = collective.placeholder
        ranks = collective.groups[0]
        program = self.executable.stage_of(ranks[0]).program
        placeholder = program.placeholders[number]
        operands, results = (
            [self._views[tensor].reshape(self.arena.ranks, -1) for tensor in tensors]
            for tensors in (placeholder.operands, placeholder.results)
        )
        if (number, groups) not in self._evaluations:
            form = self._normal_forms[number]
            if len(groups) < len(collective.groups):
                form = form.of_groups(groups)
            shares = _share_memory(program, placeholder.operands, placeholder.results)
            self._evaluations[number, groups] = Evaluation(form, self._threads, shares)
        evaluation = self._evaluations[number, groups]
        return [HostTask(work, evaluation.work) for work in evaluation.tasks(operands, results)]

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

    def _divided(self, ranks: np.ndarray, work_per_rank: int) -> list[np.ndarray]:
        """The ranks, split into a part per thread where the work is worth it."""
        if self._threads == 1 or work_per_rank * len(ranks) < SPLIT_WORK:
            return [ranks]
        return np.array_split(ranks, min(self._threads, len(ranks)))

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
        return self._begin_compute(queue, batch.row, batch.ranks, keeps=True)

    def _compute(self, queue: EngineQueue, row: int, ranks: np.ndarray) -> None:
        self._begin_compute(queue, row, ranks)()

    def _begin_compute(
        self, queue: EngineQueue, row: int, ranks: np.ndarray, *, keeps: bool = False
    ) -> Begun:
        """Compute, and give what writes the results; `keeps`: what was read may change till then.

        So what is to be written is copied, where it may lie in the memory of the ranks.
        """
        program = self.executable.program
        one = self._instruction(queue, row, ranks)
        if self._byte_owners is not None:
            place = f"queue {queue.name}, pc {row}"
            for tensor in one.operands:
                self._byte_owners.read_tensor(program.tensors[TensorId(tensor)], ranks, place)
        operands = [self._views[tensor][one.rows] for tensor in one.operands]
        is_checked = self._byte_owners is not None  # then all of a result is written, and noted
        if one.updates is not None and not is_checked and self._moved.isdisjoint(one.updates):
            if keeps:
                operands[1:] = [operand.copy() for operand in operands[1:]]
            return functools.partial(update_slice, *operands)
        if one.plan is not None and not keeps:
            return functools.partial(self._run_blocks, one, operands)
        results = compute(one.call, operands)
        if keeps:
            results = [np.array(result) for result in results]
        elif one.overlaps:
            # a result may be an operand as it is, which must outlive the writing of the others
            memory = self.arena.bytes
            results = [
                result.copy() if np.may_share_memory(result, memory) else result
                for result in results
            ]
        return functools.partial(self._write, one.results, one.rows, ranks, results)

    def _run_blocks(self, one: "_Instruction", operands: Sequence[np.ndarray]) -> None:
        """Compute block by block, into the memory of the results where that is possible."""
        assert one.plan is not None, "an instruction with a plan"
        places = [self._views[tensor][one.rows] for tensor in one.results]
        if one.overlaps:
            results = [np.empty_like(place, order="C") for place in places]
            one.plan.run(one.call.ranks, list(operands), results)
            for place, result in zip(places, results, strict=True):
                place[...] = result
        else:
            one.plan.run(one.call.ranks, list(operands), places)

    def _plan_of(self, queue: EngineQueue, row: int, call: KernelCall) -> BlockPlan | None:
        """How an instruction is computed block by block; None if it is small or of another kind."""
        instr, program = queue.table[row], call.program
        if self._checked:
            return None
        key = (id(queue), row)
        if key not in self._plans:
            self._plans[key] = None
            fusion = fusion_of(program, instr)
            if fusion is not None and can_be_cut(fusion):
                self._plans[key] = BlockPlan(program, fusion)
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

    def _instruction(self, queue: EngineQueue, row: int, ranks: np.ndarray) -> "_Instruction":
        """An instruction on some ranks; of consecutive ranks it is prepared once."""
        first, last = int(ranks[0]), int(ranks[-1])
        is_run = last - first + 1 == len(ranks)
        key = (id(queue), row, first, last)
        if is_run and key in self._instructions:
            return self._instructions[key]
        program = self.executable.program
        instr = queue.table[row]
        # Consecutive ranks as a slice make views of operands; other ranks copy them.
        rows = slice(first, last + 1) if is_run else ranks
        updates = None
        if is_run and _is_update_in_place(program, instr):
            tensors = instr.operands[0], instr.results[0]
            updates = tuple(program.tensors[TensorId(tensor)].buffer for tensor in tensors)
        call = KernelCall(
            program=program,
            opcode=instr.opcode,
            attributes=program.attributes[instr.attribute] if instr.attribute >= 0 else {},
            results=tuple(program.tensors[tensor] for tensor in instr.results),
            ranks=ranks,
        )
        plan = self._plan_of(queue, row, call) if is_run else None
        if plan is not None:
            overlaps = self._overlaps(instr, plan)
        else:
            is_several = len(instr.results) > 1
            overlaps = is_several and _share_memory(program, instr.operands, instr.results)
        one = _Instruction(call, instr.operands, instr.results, rows, updates, plan, overlaps)
        if is_run:
            self._instructions[key] = one
        return one

    def _write(
        self,
        tensors: Sequence[int],
        rows: slice | np.ndarray,
        ranks: np.ndarray,
        results: Sequence[np.ndarray],
    ) -> None:
        for tensor, array in zip(tensors, results, strict=True):
            self._views[tensor][rows] = array
            if self._byte_owners is not None:
                self._byte_owners.write_tensor(
                    self.executable.program.tensors[TensorId(tensor)], ranks
                )


@attrs.frozen(eq=False)
class _Instruction:
    """An instruction of an engine on some ranks."""

    call: KernelCall
    operands: Sequence[int]
    results: Sequence[int]
    rows: slice | np.ndarray  # of the ranks
    updates: tuple[int, ...] | None  # buffers of what a slice is written into where it lies
    plan: BlockPlan | None  # of what is computed block by block
    overlaps: bool  # results lie where operands may still be read


@attrs.frozen(eq=False)
class _PreparedTape:
    """A tape as tasks, and as collectives whose operands or results lie elsewhere in each run."""

    tape: Tape
    rounds: Mapping[TapeRound, tuple[list[HostTask], list[RowBatch]]]
    borrowed: frozenset[int]  # inputs, by tensor, that are read where the caller has them
    lent: frozenset[int]  # outputs, by tensor, that get an array of their own


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
