"""When a rank's buffers are live, on the clock of a run, and how much memory that is.

A buffer is live from the start of the instruction or collective that writes it to the end of the
last one that reads it before it is written anew. Parameters and constants are so all the time,
outputs from when they are written until the end. Buffers that share addresses, as results in the
place of their operands do, count once. What is live is at most what is charged (`neff/memory.py`):
addresses are given for every order of the queues, a clock shows one.
"""

import attrs
import numpy as np

from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import EngineQueue
from ncc_runtime.neff.memory import KIND_NAMES, lines_of_buffers
from ncc_runtime.neff.program import BufferKind, Program

MOST_LIVES = 50_000
"""Of more, each buffer has one life, from its first write to its last read."""

READS, WRITES = 1, 2


@attrs.frozen
class LiveBuffer:
    """A buffer, and when it is live: from the start of its first life to the end of its last."""

    name: str
    kind: str  # of KIND_NAMES
    line: str  # `model.py:12`, where it is known; else empty
    size_bytes: int
    address: int
    start_ps: int
    end_ps: int
    lives: int
    at_peak: bool  # live when temporaries and outputs take most


@attrs.frozen(eq=False)
class MemoryOverTime:
    """Of one rank: columns by time, and its buffers, the largest first.

    Bytes hold from a time until the next one.
    """

    rank: int
    time_ps: np.ndarray  # (n,) int64, ascending, from 0
    temporaries: np.ndarray  # (n,) int64, bytes that no output takes
    outputs: np.ndarray  # (n,) int64, without those in the memory of parameters
    lasting: int  # parameters and constants
    buffers: tuple[LiveBuffer, ...]

    @property
    def peak_bytes(self) -> int:
        """The most that is live at one time."""
        return self.lasting + int((self.temporaries + self.outputs).max(initial=0))

    @property
    def peak_ps(self) -> int:
        """The first time at which that is so."""
        return int(self.time_ps[np.argmax(self.temporaries + self.outputs)])


@attrs.frozen(eq=False)
class _Accesses:
    """Reads and writes of buffers as columns: one row for an instruction and a buffer."""

    buffer: np.ndarray
    start_ps: np.ndarray
    end_ps: np.ndarray
    how: np.ndarray  # READS, WRITES or both


def memory_over_time(trace: Trace, rank: int) -> MemoryOverTime:
    """The live buffers of a rank, which has columns."""
    stage = trace.executable.stage_of(rank)
    program, donated = stage.program, stage.program.donated()
    until_ps = trace.time_ps
    lives = _lives(_accesses(trace, rank, program), program, until_ps)
    kinds = [buffer.kind for buffer in program.buffers]
    address = np.array([buffer.address for buffer in program.buffers], np.int64)
    size = np.array([buffer.size_bytes for buffer in program.buffers], np.int64)
    is_output = np.array([kind is BufferKind.OUTPUT for kind in kinds])
    is_output[[int(number) for number in donated]] = False
    is_temporary = np.array([kind is BufferKind.INTERNAL for kind in kinds])
    times = np.unique(np.concatenate(([0], lives.start_ps, lives.end_ps)))
    times = times[times < max(until_ps, 1)]
    # an instruction may write an output in the place of a temporary that it reads: once, not twice
    together = _covered(lives, is_temporary | is_output, address, size, times)
    outputs = _covered(lives, is_output, address, size, times)
    peak_ps = int(times[np.argmax(together)])
    lines = lines_of_buffers(program)
    names = {
        program.tensors[tensor].buffer: program.parameter(number).name
        for number, tensor in enumerate(program.inputs)
    }
    buffers = []
    for number in stage.buffers:
        buffer, own = program.buffers[number], np.flatnonzero(lives.buffer == number)
        if not buffer.size_bytes or not len(own):
            continue
        start, end = lives.start_ps[own], lives.end_ps[own]
        buffers.append(
            LiveBuffer(
                name=names.get(number) or buffer.name,  # type: ignore[call-overload]
                kind=KIND_NAMES[buffer.kind],
                line=lines.get(number, ""),
                size_bytes=buffer.size_bytes,
                address=buffer.address,
                start_ps=int(start.min()),
                end_ps=int(end.max()),
                lives=len(own),
                at_peak=bool(((start <= peak_ps) & (peak_ps < end)).any()),
            )
        )
    kept = {BufferKind.INPUT, BufferKind.CONSTANT, BufferKind.ELIDED}
    return MemoryOverTime(
        rank=rank,
        time_ps=times,
        temporaries=together - outputs,
        outputs=outputs,
        lasting=sum(
            program.buffers[number].size_bytes for number in stage.buffers if kinds[number] in kept
        ),
        buffers=tuple(sorted(buffers, key=lambda each: (-each.size_bytes, each.address))),
    )


def _accesses(trace: Trace, rank: int, program: Program) -> _Accesses:
    """What instructions and collectives of a rank read and write, in order of time."""
    buffer_of = np.array([tensor.buffer for tensor in program.tensors], np.int64)
    is_rank = np.arange(trace.executable.representatives) == rank
    columns: list[list[np.ndarray]] = [[np.zeros(0, np.int64)] for _ in range(4)]

    def add(buffers: np.ndarray, start: np.ndarray, end: np.ndarray, how: np.ndarray) -> None:
        for column, values in zip(columns, (buffers, start, end, how), strict=True):
            column.append(np.asarray(values, np.int64))

    for number, events in trace.blocks(trace.queues_of(EngineQueue), is_rank):
        queue = trace.executable.queues[number]
        assert isinstance(queue, EngineQueue)
        table, row = queue.table, trace.row[events]
        first, count = table.start[row], np.diff(table.start)[row]
        which = np.repeat(np.arange(len(row)), count)
        within = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
        is_result = within < table.result_count[row][which]
        at = events[which]
        add(
            buffer_of[table.tensors[first[which] + within]],
            trace.start_ps[at],
            trace.end_ps[at],
            np.where(is_result, WRITES, READS),
        )
    runs = trace.runs
    for run in np.flatnonzero(runs.rank == rank).tolist():
        placeholder = program.placeholders[int(runs.placeholder[run])]
        reads = (*placeholder.operands, *placeholder.counts)
        tensors = np.array([*reads, *placeholder.results], np.int64)
        how = np.array([READS] * len(reads) + [WRITES] * len(placeholder.results))
        start = np.full(len(tensors), trace.start_ps[runs.first[run]])
        end = np.full(len(tensors), trace.end_ps[runs.last[run]])
        add(buffer_of[tensors], start, end, how)
    buffer, start, end, how = (np.concatenate(column) for column in columns)
    order = np.lexsort((end, start, buffer))
    buffer, start, end, how = (column[order] for column in (buffer, start, end, how))
    # an instruction that reads and writes a buffer has one row
    opens = np.ones(len(buffer), bool)
    opens[1:] = (buffer[1:] != buffer[:-1]) | (start[1:] != start[:-1]) | (end[1:] != end[:-1])
    first = np.flatnonzero(opens)
    if len(first):
        how = np.bitwise_or.reduceat(how, first)
    return _Accesses(buffer[first], start[first], end[first], how)


@attrs.frozen(eq=False)
class _Lives:
    """Live ranges of buffers as columns."""

    buffer: np.ndarray
    start_ps: np.ndarray
    end_ps: np.ndarray


def _lives(accesses: _Accesses, program: Program, until_ps: int) -> _Lives:
    """From each write of a buffer that does not read it to the last access before the next."""
    buffer = accesses.buffer
    changes = np.append(True, buffer[1:] != buffer[:-1])[: len(buffer)]
    opens = changes | (accesses.how == WRITES)
    if opens.sum() > MOST_LIVES:
        opens = changes
    first = np.flatnonzero(opens)
    end = np.maximum.reduceat(accesses.end_ps, first) if len(first) else accesses.end_ps
    lives = _Lives(buffer[first], accesses.start_ps[first], end)
    kinds = [program.buffers[number].kind for number in lives.buffer.tolist()]
    # what lasts is live whether something touches it or not; outputs are, once they are written
    is_output = np.array([kind is BufferKind.OUTPUT for kind in kinds], bool)
    is_temporary = np.array([kind is BufferKind.INTERNAL for kind in kinds], bool)
    lasting = np.array(
        [
            number
            for number, one in enumerate(program.buffers)
            if one.kind not in (BufferKind.OUTPUT, BufferKind.INTERNAL)
        ],
        np.int64,
    )
    outputs, at = np.unique(lives.buffer[is_output], return_index=True)
    return _Lives(
        np.concatenate((lives.buffer[is_temporary], outputs, lasting)),
        np.concatenate(
            (lives.start_ps[is_temporary], lives.start_ps[is_output][at], np.zeros_like(lasting))
        ),
        np.concatenate(
            (
                lives.end_ps[is_temporary],
                np.full(len(outputs), until_ps),
                np.full(len(lasting), until_ps),
            )
        ),
    )


def _covered(
    lives: _Lives, some: np.ndarray, address: np.ndarray, size: np.ndarray, times: np.ndarray
) -> np.ndarray:
    """Bytes of the addresses that live buffers of some kind take together, by time."""
    chosen = some[lives.buffer] & (lives.end_ps > lives.start_ps) & (size[lives.buffer] > 0)
    buffer = lives.buffer[chosen]
    low, high = address[buffer], address[buffer] + size[buffer]
    cuts = np.unique(np.concatenate((low, high)))
    widths = np.diff(cuts)
    first, last = np.searchsorted(cuts, low), np.searchsorted(cuts, high)
    begins = np.searchsorted(times, lives.start_ps[chosen])
    ends = np.searchsorted(times, lives.end_ps[chosen])
    change = np.zeros(len(times) + 1, np.int64)
    users = np.zeros(len(widths), np.int32)
    # ends come before begins of the same time: the place is free then
    moments = np.concatenate((ends, begins))
    signs = np.repeat([-1, 1], len(buffer))
    for at in np.lexsort((signs, moments)).tolist():
        one = at % len(buffer)
        cells = slice(first[one], last[one])
        if signs[at] > 0:
            change[moments[at]] += int(widths[cells][users[cells] == 0].sum())
            users[cells] += 1
        else:
            users[cells] -= 1
            change[moments[at]] -= int(widths[cells][users[cells] == 0].sum())
    return np.asarray(np.cumsum(change[:-1]))
