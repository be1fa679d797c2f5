"""Rules of memory: buffers in memory, tensors in buffers, constants, inputs and outputs."""

from collections.abc import Iterable, Iterator

import attrs
import numpy as np

from ncc_runtime.neff.isa import ENGINES
from ncc_runtime.neff.program import ALIGNMENT, READ_ONLY, BufferId, BufferKind, Program
from ncc_runtime.neff.rules.rule import rule


@attrs.frozen
class Interval:
    """Addresses [start, end); those `alone` may overlap no other, the rest each other."""

    start: int
    end: int
    alone: bool
    name: str


def forbidden_overlaps(intervals: Iterable[Interval]) -> Iterator[tuple[Interval, Interval]]:
    """Pairs that overlap and may not, by address: one for each interval that begins in another.

    The other is the one that reaches farthest, so an interval may be in no pair although a later
    one begins in it. Where nothing may not overlap, there is no pair.
    """
    farthest: Interval | None = None  # of those so far, the one that ends last
    farthest_alone: Interval | None = None  # of those that are alone
    used = (interval for interval in intervals if interval.start < interval.end)
    for interval in sorted(used, key=lambda interval: (interval.start, interval.name)):
        other = farthest if interval.alone else farthest_alone
        if other and interval.start < other.end:
            yield other, interval
        if farthest is None or interval.end > farthest.end:
            farthest = interval
        if interval.alone and (farthest_alone is None or interval.end > farthest_alone.end):
            farthest_alone = interval


@rule("neff-M1")
def _buffers_lie_in_memory(program: Program) -> Iterator[str]:
    for number, buffer in enumerate(program.buffers):
        if buffer.address % ALIGNMENT:
            yield f"buffer b{number}: address {buffer.address:#x} is no multiple of {ALIGNMENT}"
        if buffer.end > program.hbm_bytes:
            yield f"buffer b{number}: ends at {buffer.end}, memory has {program.hbm_bytes} bytes"


@rule("neff-M2")
def _lasting_buffers_are_alone(program: Program) -> Iterator[str]:
    """Inputs and constants share with no other buffer, and outputs with internal ones only.

    But for an output that `aliases` pair with an input, which may lie exactly where that does.
    """
    donated = program.donated()
    apart = [number for number in range(len(program.buffers)) if number not in donated]
    for kinds in (READ_ONLY, {BufferKind.OUTPUT}):
        intervals = (
            Interval(
                program.buffers[number].address,
                program.buffers[number].end,
                program.buffers[number].kind in kinds,
                f"{program.buffers[number].kind.value} b{number} ({program.buffers[number].name})",
            )
            for number in apart
            if kinds is READ_ONLY or program.buffers[number].kind in kinds
        )
        for lower, other in forbidden_overlaps(intervals):
            yield f"{other.name} overlaps {lower.name} at {other.start:#x}"


@rule("neff-M3")
def _tensors_lie_in_buffers(program: Program) -> Iterator[str]:
    for number, tensor in enumerate(program.tensors):
        end, size = tensor.offset + tensor.size_bytes, program.buffers[tensor.buffer].size_bytes
        if end > size:
            yield f"tensor t{number}: ends at byte {end} of b{tensor.buffer}, which has {size}"
        if tensor.offset % tensor.dtype.size_bytes:
            yield (
                f"tensor t{number}: offset {tensor.offset} is no multiple of its element, "
                f"{tensor.dtype.size_bytes} bytes"
            )


@rule("neff-M4")
def _constants_fill_their_buffers(program: Program) -> Iterator[str]:
    for number, buffer in enumerate(program.buffers):
        data = program.constants.get(BufferId(number))
        if (data is not None) != (buffer.kind is BufferKind.CONSTANT):
            has = "without" if data is None else "with"
            yield f"buffer b{number}: {buffer.kind.value} {has} a value"
        elif data is not None and len(data) != buffer.size_bytes:
            yield f"buffer b{number}: {len(data)} bytes of value, {buffer.size_bytes} of room"


@rule("neff-M5")
def _inputs_have_buffers(program: Program) -> Iterator[str]:
    """One input tensor for each input buffer, filling it."""
    first: dict[int, int] = {}  # by buffer, the first input that lies there
    for position, tensor in enumerate(program.inputs):
        view = program.tensors[tensor]
        buffer = program.buffers[view.buffer]
        if buffer.kind is not BufferKind.INPUT:
            yield f"input {position}: t{tensor} lies in {buffer.kind.value} b{view.buffer}"
        elif view.size_bytes != buffer.size_bytes:
            yield f"input {position}: {view.size_bytes} bytes, b{view.buffer} {buffer.size_bytes}"
        if first.setdefault(view.buffer, position) != position:
            yield f"input {position}: shares b{view.buffer} with input {first[view.buffer]}"
    for number, buffer in enumerate(program.buffers):
        if buffer.kind is BufferKind.INPUT and number not in first:
            yield f"buffer b{number}: no input fills it"


@rule("neff-M6")
def _outputs_last(program: Program) -> Iterator[str]:
    for position, tensor in enumerate(program.outputs):
        buffer = program.tensors[tensor].buffer
        if program.buffers[buffer].kind is BufferKind.INTERNAL:
            yield f"output {position}: t{tensor} lies in b{buffer}, which may be reused"


@rule("neff-M7")
def _inputs_and_constants_are_never_written(program: Program) -> Iterator[str]:
    is_read_only = np.array(
        [program.buffers[tensor.buffer].kind in READ_ONLY for tensor in program.tensors], bool
    )
    for engine in ENGINES:
        table = program.queues[engine]
        rows = np.repeat(np.arange(len(table)), np.diff(table.start))
        is_result = np.arange(len(rows)) < (table.start[:-1] + table.result_count)[rows]
        wrong = is_result & is_read_only[table.tensors]
        for row, tensor in zip(rows[wrong].tolist(), table.tensors[wrong].tolist(), strict=True):
            buffer = _buffer_text(program, tensor)
            yield f"queue {engine.value}, pc {row}: writes t{tensor}, {buffer}"
    for number, placeholder in enumerate(program.placeholders):
        for tensor in placeholder.results:
            if is_read_only[tensor]:
                yield f"placeholder p{number}: writes t{tensor}, {_buffer_text(program, tensor)}"


def _buffer_text(program: Program, tensor: int) -> str:
    buffer = program.buffers[program.tensors[tensor].buffer]
    return f"which lies in {buffer.kind.value} {buffer.name}"


RULES = (
    _buffers_lie_in_memory,
    _lasting_buffers_are_alone,
    _tensors_lie_in_buffers,
    _constants_fill_their_buffers,
    _inputs_have_buffers,
    _outputs_last,
    _inputs_and_constants_are_never_written,
)
