"""What a program takes of a rank's memory, by kind; one record for reports and refusals.

Parameters, constants and outputs add up, but for outputs in the memory of donated parameters, which
count as those. Temporaries share, with one another and with outputs that are not yet written: what
is charged for them is the address range that they take besides, however many there are in it.
"""

from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np

from ncc_runtime.neff.program import ALIGNMENT, BufferId, BufferKind, Program, short_place
from ncc_runtime.neff.stages import stages_of

_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("B", 1))

KIND_NAMES = {
    BufferKind.INPUT: "parameters",
    BufferKind.OUTPUT: "outputs",
    BufferKind.CONSTANT: "constants",
    BufferKind.ELIDED: "constants",
    BufferKind.INTERNAL: "temporaries",
}
"""What reports call the kinds of buffers."""

MOST_LARGEST = 8
"""Entries that `largest` has."""


@attrs.frozen
class EqualBuffers:
    """Buffers of one kind and size that one line of the user's code made."""

    kind: str  # of KIND_NAMES
    name: str  # of the first; of a parameter its name in the model, if that is known
    line: str  # `model.py:12`, where it is known; else empty
    count: int
    size_bytes: int  # of each

    @property
    def takes_bytes(self) -> int:
        """What they take at the least: temporaries may share one place."""
        return self.size_bytes * (1 if self.kind == "temporaries" else self.count)

    @property
    def text(self) -> str:
        """In words: `temporaries z and 3 more (m.py:13) of 7.6 MiB each`."""
        more = f" and {self.count - 1} more" if self.count > 1 else ""
        line = f" ({short_place(self.line)})" if self.line else ""
        each = " each" if self.count > 1 else ""
        kind = self.kind if self.count > 1 else _SINGULAR[self.kind]
        return f"{kind} {self.name}{more}{line} of {size_text(self.size_bytes)}{each}"


_SINGULAR = {
    "parameters": "parameter",
    "outputs": "output",
    "constants": "constant",
    "temporaries": "temporary",
}


@attrs.frozen
class MemoryUse:
    """Bytes of the rank that takes most; the parts add up to `size_bytes`."""

    program: Program  # that this rank runs
    buffers: range  # its own buffers, among those of `program`
    parameters: int
    outputs: int
    constants: int
    temporaries: int  # the range that they share, besides memory of outputs
    channel_buffers: int | None  # None: not placed yet
    capacity: int | None  # of a rank; None: not placed yet

    @property
    def size_bytes(self) -> int:
        """All that is charged: the size of the rank's address range."""
        return sum(self.by_kind.values())

    @property
    def by_kind(self) -> dict[str, int]:
        """Bytes by kind, in the order of their addresses."""
        return {
            "parameters": self.parameters,
            "outputs": self.outputs,
            "constants": self.constants,
            "temporaries": self.temporaries,
            "channel_buffers": self.channel_buffers or 0,
        }

    @property
    def share(self) -> float | None:
        """Of the capacity; above 1 where it does not fit."""
        return None if self.capacity is None else self.size_bytes / self.capacity

    @property
    def fits(self) -> bool:
        """Whether it takes no more than a rank has; what has no place yet fits."""
        return self.capacity is None or self.size_bytes <= self.capacity

    def largest(self) -> list[EqualBuffers]:
        """The buffers that take most, equal ones together."""
        lines = lines_of_buffers(self.program)
        names = {
            self.program.tensors[tensor].buffer: self.program.parameter(number).name
            for number, tensor in enumerate(self.program.inputs)
        }
        alike: dict[tuple[str, str, int], list[int]] = {}
        for number in self.buffers:
            buffer = self.program.buffers[number]
            key = KIND_NAMES[buffer.kind], lines.get(number, ""), buffer.size_bytes
            if buffer.size_bytes:
                alike.setdefault(key, []).append(number)
        rows = []
        for (kind, line, size), numbers in alike.items():
            name = names.get(BufferId(numbers[0])) or self.program.buffers[numbers[0]].name
            rows.append(EqualBuffers(kind, name, line, len(numbers), size))
        return sorted(rows, key=lambda row: -row.takes_bytes)[:MOST_LARGEST]


def memory_of(
    program: Program, size_bytes: int | None = None, capacity: int | None = None
) -> MemoryUse:
    """The memory of the rank that takes most; several stages differ.

    `size_bytes` is that of a rank with channel buffers, once the program is placed, and `capacity`
    what a rank there has.
    """
    stage = max(stages_of(program), key=lambda stage: stage.program.hbm_bytes)
    taken = stage.program.hbm_bytes
    lasting = dict.fromkeys(KIND_NAMES.values(), 0)
    donated = stage.program.donated()
    for number in stage.buffers:
        buffer = stage.program.buffers[number]
        if buffer.kind is not BufferKind.INTERNAL and number not in donated:
            # with what lies between it and the next one
            padded = -(-buffer.size_bytes // ALIGNMENT) * ALIGNMENT
            lasting[KIND_NAMES[buffer.kind]] += min(padded, taken - buffer.address)
    return MemoryUse(
        program=stage.program,
        buffers=stage.buffers,
        parameters=lasting["parameters"],
        outputs=lasting["outputs"],
        constants=lasting["constants"],
        temporaries=taken - sum(lasting.values()),
        channel_buffers=None if size_bytes is None else size_bytes - taken,
        capacity=capacity,
    )


def lines_of_buffers(program: Program) -> dict[int, str]:
    """By buffer, the line of the instruction that first writes it, in the order of the queues."""
    buffer_of = np.array([tensor.buffer for tensor in program.tensors], np.int64)
    lines: dict[int, str] = {}
    for table in program.queues.values():
        row = np.repeat(np.arange(len(table)), np.diff(table.start))
        is_result = np.arange(len(row)) < (table.start[:-1] + table.result_count)[row]
        buffers, first = np.unique(buffer_of[table.tensors[is_result]], return_index=True)
        written = list(zip(buffers.tolist(), row[is_result][first].tolist(), strict=True))
        for at in np.flatnonzero(table.placeholder >= 0).tolist():
            results = program.placeholders[int(table.placeholder[at])].results
            written += [(int(buffer_of[tensor]), at) for tensor in results]
        for buffer, at in written:
            origin = int(table.origin[at])
            if origin >= 0 and program.origins[origin].place:
                lines.setdefault(buffer, program.origins[origin].place)
    places = {origin.node: origin.place for origin in program.origins}
    for number, buffer in enumerate(program.buffers):  # of constants without value
        if buffer.kind is BufferKind.ELIDED and places.get(buffer.name):
            lines.setdefault(number, places[buffer.name])
    return lines


def memory_text(memory: MemoryUse) -> str:
    """In one line: `HBM of 24 GiB a rank: parameters 9.1, temporaries 6.0, in all 15.1 (63 %)`.

    Figures have the unit of the capacity, or where that does not show a tenth of each, their own.
    """
    total, capacity = memory.size_bytes, memory.capacity
    kinds = {kind.replace("_", " "): size for kind, size in memory.by_kind.items() if size}
    unit, unit_bytes = _unit_of(total if capacity is None else capacity)
    is_even = unit != "B" and all(10 * size >= unit_bytes for size in kinds.values())
    if capacity is not None and is_even:
        text = {kind: f"{size / unit_bytes:.1f}" for kind, size in kinds.items()}
        in_all = f"in all {total / unit_bytes:.1f}"
    else:
        text = {kind: size_text(size) for kind, size in kinds.items()}
        in_all = f"in all {size_text(total)}"
    parts = [f"{kind} {size}" for kind, size in text.items()]
    if capacity is None:
        return f"HBM a rank: {', '.join([*parts, in_all])}"
    parts.append(f"{in_all} ({_percent(total / capacity)})")
    if not memory.fits:
        parts.append(f"{size_text(total - capacity)} too much")
    return f"HBM of {size_text(capacity).replace('.0 ', ' ')} a rank: {', '.join(parts)}"


def memory_json(memory: MemoryUse) -> dict[str, Any]:
    """The object `memory` of reports; sizes in bytes."""
    return {
        "bytes": memory.size_bytes,
        "capacity_bytes": memory.capacity,
        "share": memory.share,
        "by_kind": memory.by_kind,
        "largest": [attrs.asdict(row) for row in memory.largest()],
    }


def largest_lines(memory: MemoryUse, count: int) -> Iterator[str]:
    """The largest buffers as lines of a table."""
    rows = memory.largest()[:count]
    cells = [
        (f"{row.count} x" * (row.count > 1), size_text(row.size_bytes), row.kind) for row in rows
    ]
    if not cells:
        return
    times, sizes, kinds = (max(map(len, column)) for column in zip(*cells, strict=True))
    for row, (many, size, kind) in zip(rows, cells, strict=True):
        line = f"  {short_place(row.line)}" if row.line else ""
        yield f"  {many:>{times}}  {size:>{sizes}}  {kind:<{kinds}}  {row.name}{line}"


def size_text(size_bytes: int) -> str:
    """A size of memory for people: `417.3 GiB`."""
    unit, unit_bytes = _unit_of(size_bytes)
    return f"{size_bytes} B" if unit == "B" else f"{size_bytes / unit_bytes:.1f} {unit}"


def _unit_of(size_bytes: int) -> tuple[str, int]:
    return next(((unit, size) for unit, size in _UNITS if size_bytes >= size), _UNITS[-1])


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %" if share >= 0.01 else "less than 1 %"
