"""The virtual devices: performs batches of ready instructions on the memory of all ranks."""

import functools
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ncc_runtime.execution.scheduler import AtOnce, RowBatch
from ncc_runtime.execution.values.checks import ByteOwners
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
from ncc_runtime.neff.program import READ_ONLY, Program, TensorId
from ncc_runtime.neff.table import Instr

SPLIT_WORK = 1 << 20
"""Bytes and multiply-adds that a batch must cost before its ranks are divided among threads."""

Task = Callable[[], None]
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
        executable.check_all_ranks_have_columns()
        self.executable = executable
        self.arena = Arena(executable.ranks, executable.hbm_bytes)
        self._threads = threads
        self._checked = checked
        self._byte_owners: ByteOwners | None = None
        self._registers = LengthRegisters(executable, self.arena)
        self._normal_forms = normal_forms or {}
        self._evaluations: dict[tuple[int, tuple[int, ...]], Evaluation] = {}
        self._pool: ThreadPoolExecutor | None = None
        self._overwritten: dict[int, np.ndarray] = {}  # by number, inputs as they were loaded
        program = executable.program
        if any("lapack" in stage.program.opcodes() for stage in executable.stages):
            # Load scipy before BLAS is limited to one thread: libraries loaded later are not.
            import ncc_runtime.execution.values.kernels.linear_algebra  # noqa: F401
        self._views = [
            self.arena.tensor(tensor.dtype.numpy, tensor.shape, program.address(number))
            for number, tensor in enumerate(program.tensors)
        ]

    @property
    def held_bytes(self) -> int:
        """Host memory that it keeps between runs."""
        return self.arena.bytes.nbytes

    def __enter__(self) -> "Devices":
        if self._threads > 1:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="rank")
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None

    def load(self, inputs: Iterable[np.ndarray], again: Container[int] = ()) -> None:
        """Write parameters, each [ranks, *shape], and constants.

        Those `again`, by number, are the same in the next step, whatever a run writes over them.
        """
        self._renew()
        self._overwritten = {}
        on_inputs = self._on_inputs()
        for number, ((rows, tensor), array) in enumerate(zip(self._inputs(), inputs, strict=True)):
            self._views[tensor][rows] = array
            if number in again and tensor in on_inputs.values():
                self._overwritten[number] = self._views[tensor][rows].copy()
        for stage in self.executable.stages:
            for buffer, data in stage.program.constants.items():
                address = stage.program.buffers[buffer].address
                memory = self.arena.bytes[:, address : address + len(data)]
                memory[stage.rows] = np.frombuffer(data, np.uint8)

    def load_again(self, feed: Sequence[tuple[int, int]], inputs: Mapping[int, np.ndarray]) -> None:
        """After a run: write outputs into inputs, by pairs of numbers, and other inputs anew.

        Inputs of `load` that stay the same are written again where an output lies in their memory.
        All else is as it was, since nothing writes it while a program runs. Ranks of an output are
        those of its input.
        """
        self._renew()
        targets, program = self._inputs(), self.executable.program
        outputs = [tensor for stage in self.executable.stages for tensor in stage.program.outputs]
        on_inputs = self._on_inputs()
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
        for number, value in (*values, *self._overwritten.items()):
            rows, tensor = targets[number]
            self._views[tensor][rows] = value
        for number, array in inputs.items():
            rows, tensor = targets[number]
            self._views[tensor][rows] = array

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
        self._registers = LengthRegisters(self.executable, self.arena)
        if self._checked:
            self._byte_owners = ByteOwners(self.executable, self.arena.bytes.shape[1])

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
        return [self._views[tensor][stage.rows].copy() for stage, tensor in outputs]

    def predicate(self, tensor: int, ranks: np.ndarray) -> np.ndarray:
        """A scalar of the ranks, as it is now, (r,)."""
        if self._byte_owners is not None:
            view = self.executable.program.tensors[TensorId(tensor)]
            self._byte_owners.read_tensor(view, ranks, "control flow")
        return self._views[tensor][ranks]

    def perform(self, batches: Sequence[RowBatch]) -> None:
        """Perform batches that are ready together; their order cannot matter."""
        tasks = [task for batch in batches for task in self._tasks(batch)]
        if self._pool is None or len(tasks) == 1:
            for task in tasks:
                task()
            return
        for future in [self._pool.submit(task) for task in tasks]:
            future.result()

    def _tasks(self, batch: RowBatch) -> list[Task]:
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

    def _compute_tasks(self, queue: EngineQueue, batch: RowBatch) -> list[Task]:
        table, row = queue.table, batch.row
        name = table.opcode_names[int(table.opcode[row])]
        if OPCODES[name].shape is Shape.CONTROL:
            return []
        work = int(table.flops[row]) + int(table.bytes_in[row] + table.bytes_out[row])
        parts = self._divided(batch.ranks, work)
        return [functools.partial(self._compute, queue, row, ranks) for ranks in parts]

    def _collective_tasks(self, collective: AtOnce, groups: tuple[int, ...]) -> list[Task]:
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
        return self._evaluations[number, groups].tasks(operands, results)

    def _transfer_tasks(self, batch: RowBatch) -> list[Task]:
        queue, row = self.resolved(batch)
        work = int(queue.size_bytes[row, batch.ranks].max(initial=0))
        parts = self._divided(batch.ranks, work)
        return [functools.partial(self._transfer, queue, row, batch.row, part) for part in parts]

    def resolved(self, batch: RowBatch) -> tuple[DmaQueue, int]:
        """A ring and a row of it with the sizes and addresses that a batch of transfers has now."""
        queue = self.executable.queues[batch.queue]
        assert isinstance(queue, DmaQueue), queue.name
        if queue.registers is None:
            return queue, batch.row
        return self._registers.resolved(queue, batch.row), 0

    def _divided(self, ranks: np.ndarray, work_per_rank: int) -> list[np.ndarray]:
        """The ranks, split into a part per thread where the work is worth it."""
        if self._pool is None or work_per_rank * len(ranks) < SPLIT_WORK:
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
        instr = queue.table[row]
        if self._byte_owners is not None:
            place = f"queue {queue.name}, pc {row}"
            for tensor in instr.operands:
                self._byte_owners.read_tensor(program.tensors[tensor], ranks, place)
        # Consecutive ranks as a slice make views of operands; other ranks copy them.
        rows: slice | np.ndarray = ranks
        if int(ranks[-1]) - int(ranks[0]) + 1 == len(ranks):
            rows = slice(int(ranks[0]), int(ranks[0]) + len(ranks))
        call = KernelCall(
            program=program,
            opcode=instr.opcode,
            attributes=program.attributes[instr.attribute] if instr.attribute >= 0 else {},
            results=tuple(program.tensors[tensor] for tensor in instr.results),
            ranks=ranks,
        )
        operands = [self._views[tensor][rows] for tensor in instr.operands]
        if isinstance(rows, slice) and _is_update_in_place(program, instr):
            if keeps:
                operands[1:] = [operand.copy() for operand in operands[1:]]
            return functools.partial(update_slice, *operands)
        results = compute(call, operands)
        if keeps:
            results = [np.array(result) for result in results]
        return functools.partial(self._write, instr.results, rows, ranks, results)

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
