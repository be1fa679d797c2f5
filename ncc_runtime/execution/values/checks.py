"""Checked mode: every byte knows the buffer it was last written as.

A read of a buffer must find bytes written as that buffer, an access must stay inside one buffer
the instruction names. So a read before a write, a read of what a later buffer has overwritten, and
a stray address are errors with a place, not wrong numbers.
"""

from collections.abc import Iterator

import numpy as np

from ncc_runtime.errors import MemoryFaultError
from ncc_runtime.lowering.executable import IDLE, DmaQueue, Executable
from ncc_runtime.neff.program import BufferId, Tensor
from ncc_runtime.processes import Shares

_UNWRITTEN = -1


class ByteOwners:
    """The buffer each byte was last written as, by number; channel buffers follow the program's."""

    def __init__(self, executable: Executable, stride: int, shares: Shares) -> None:
        """Of the ranks of this process."""
        self._executable, self._shares = executable, shares
        program = executable.program
        own = shares.end - shares.first
        self._owner: np.ndarray = np.full((own, stride), _UNWRITTEN, np.int32)
        spans = [(buffer.address, buffer.size_bytes) for buffer in program.buffers]
        spans += [(facts.scratch_address, facts.scratch_bytes) for facts in executable.streams]
        self._spans = spans
        # An output in a donated input's memory holds what that held until it is written.
        self._instead = {
            output: number
            for stage in executable.stages
            for output, number in stage.program.donated().items()
        }
        self._scratch = {
            facts.stream: len(program.buffers) + index
            for index, facts in enumerate(executable.streams)
        }
        for stage in executable.stages:
            inputs = [stage.program.tensors[tensor].buffer for tensor in stage.program.inputs]
            for buffer in (*inputs, *stage.program.constants):
                start, size = spans[buffer]
                rows = shares.own(stage.ranks) - shares.first
                self._owner[rows, start : start + size] = buffer

    def read_tensor(self, tensor: Tensor, ranks: np.ndarray, place: str) -> None:
        """Check that a tensor was written on all ranks."""
        start = self._spans[tensor.buffer][0] + tensor.offset
        for rank in ranks.tolist():
            self._read(rank, tensor.buffer, start, tensor.size_bytes, place)

    def write_tensor(self, tensor: Tensor, ranks: np.ndarray) -> None:
        """Record a write of a whole tensor."""
        start = self._spans[tensor.buffer][0] + tensor.offset
        self._owner[ranks - self._shares.first, start : start + tensor.size_bytes] = tensor.buffer

    def transfer(self, queue: DmaQueue, row: int, pc: int, ranks: np.ndarray) -> None:
        """Check the reads of a row and record its writes; errors name it by `pc`."""
        placeholder, scratch = int(queue.placeholder[row]), self._scratch[queue.stream]
        moving = (queue.peer[row, ranks] != IDLE) & (queue.size_bytes[row, ranks] > 0)
        writes = []
        for rank in ranks[moving].tolist():
            size = int(queue.size_bytes[row, rank])
            place = f"rank {rank}, queue {queue.name}, pc {pc}"
            for owner, source in _sources(queue, row, rank):
                # of another rank, only its operands stay as they are meanwhile
                operands, results = self._buffers(placeholder, owner)
                readable = {*operands, *results, scratch} if owner == rank else operands
                buffer = self._buffer_around(readable, source, size, place)
                if self._is_own(owner):
                    self._read(owner, buffer, source, size, place)
            for peer, target in _targets(queue, row, rank):
                _, results = self._buffers(placeholder, peer)
                buffer = self._buffer_around({*results, scratch}, target, size, place)
                writes.append((peer, target, size, buffer))
        for peer, target, size, buffer in writes:  # after all reads: ranks of a row run together
            if self._is_own(peer):
                self._owner[peer - self._shares.first, target : target + size] = buffer

    def _is_own(self, rank: int) -> bool:
        return self._shares.first <= rank < self._shares.end

    def _buffers(self, number: int, rank: int) -> tuple[set[int], set[int]]:
        """Of the operands and of the results of a placeholder, as a rank has them."""
        program = self._executable.stage_of(rank).program
        placeholder = program.placeholders[number]
        return (
            {int(program.tensors[tensor].buffer) for tensor in placeholder.operands},
            {int(program.tensors[tensor].buffer) for tensor in placeholder.results},
        )

    def _buffer_around(self, buffers: set[int], address: int, size: int, place: str) -> int:
        """The buffer that all of these bytes are in."""
        for buffer in sorted(buffers):
            start, length = self._spans[buffer]
            if start <= address and address + size <= start + length:
                return buffer
        raise MemoryFaultError(
            f"{place}: bytes {address:#x}..{address + size:#x} are outside the buffers of its "
            "placeholder"
        )

    def _read(self, rank: int, buffer: int, start: int, size: int, place: str) -> None:
        owners = self._owner[rank - self._shares.first, start : start + size]
        wrong = np.flatnonzero(
            (owners != buffer) & (owners != self._instead.get(BufferId(buffer), buffer))
        )
        if wrong.size:
            address, owner = start + int(wrong[0]), int(owners[wrong[0]])
            state = "was never written" if owner == _UNWRITTEN else f"holds {self._name(owner)}"
            raise MemoryFaultError(
                f"{place}: rank {rank} reads {self._name(buffer)} at {address:#x}, which {state}"
            )

    def _name(self, buffer: int) -> str:
        buffers = self._executable.program.buffers
        if buffer < len(buffers):
            return f"buffer {buffers[buffer].name!r}"
        return f"the channel buffer of stream {buffer - len(buffers)}"


def _sources(queue: DmaQueue, row: int, rank: int) -> Iterator[tuple[int, int]]:
    """(rank whose memory it is, address) of what one rank reads."""
    for number, source in enumerate(queue.sources[row, rank].tolist()):
        if source != IDLE:
            owners = queue.source_rank
            yield rank if owners is None else int(owners[row, rank, number]), source


def _targets(queue: DmaQueue, row: int, rank: int) -> Iterator[tuple[int, int]]:
    """(rank whose memory it is, address) of what one rank writes: at one target, or two."""
    yield int(queue.peer[row, rank]), int(queue.target[row, rank])
    if queue.second_peer is None or queue.second_target is None:
        return
    if queue.second_peer[row, rank] != IDLE:
        yield int(queue.second_peer[row, rank]), int(queue.second_target[row, rank])
