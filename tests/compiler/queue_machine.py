"""A machine that runs a program's queues in any order, with a name for every value.

It shares nothing with the code generator: it knows instructions, semaphores and addresses. Values
are hashes of what computed them. An instruction scrambles its results when it starts and writes
them when it ends, and its operands must be the same at both times; so does a collective from its
trigger to its completion. Whatever is reused too early or read too soon changes an output's name.

Names also say where control flow goes. Each queue reads the predicate for itself, and so does each
stream that has work in the block, some time after GpSimd has told it to.
"""

import random
from collections.abc import Callable, Sequence

import attrs
import numpy as np

from ncc_compiler.codegen.lowered import ControlStep, LoweredProgram, ProgramStep
from ncc_runtime.neff.isa import CASE, ENGINES, PTC2, TEST, WAIT, Engine
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import ALIGNMENT, Program
from ncc_runtime.neff.table import NONE
from tests.compiler.control_paths import Jump, Path, Row, Shifts, control_rows

Choose = Callable[[Sequence[str]], str]
"""Picks who moves next, of the queues that can: engines by name, streams as `stream N`."""


EMPTY = 0
"""The name of what has no bytes."""


class StuckError(Exception):
    """No queue can move, and some have not ended."""


def names_from_draft(draft: LoweredProgram) -> list[int]:
    """The names of the outputs, from data flow alone."""
    held: dict[int, int] = {}
    for number, buffer in enumerate(draft.buffers):
        held[number] = hash(buffer.data) if buffer.size_bytes else EMPTY
    for position, tensor in enumerate(draft.inputs):
        if held[draft.tensors[tensor].buffer] != EMPTY:
            held[draft.tensors[tensor].buffer] = hash(("input", position))
    items = _steps_and_marks(draft)
    marks = {
        k: (one.opcode, one.block) for k, one in enumerate(items) if isinstance(one, ControlStep)
    }
    path, position = Path(marks, draft.blocks), 0
    while position < len(items):
        item = items[position]
        if isinstance(item, ControlStep):
            predicate = draft.tensors[draft.blocks[item.block].predicate].buffer
            position, _ = path.follow(position, held.get(predicate, 0))
            continue
        position += 1
        if item.collective is not None and item.collective.op is CollectiveOp.BARRIER:
            continue  # it gives back what it is given
        operands = tuple(held[draft.tensors[tensor].buffer] for tensor in item.operands)
        for place, tensor in enumerate(item.results):
            buffer = draft.tensors[tensor].buffer
            if draft.buffers[buffer].size_bytes:
                held[buffer] = hash((item.origin.node, place, operands))
    return [held[draft.tensors[tensor].buffer] for tensor in draft.outputs]


def _steps_and_marks(draft: LoweredProgram) -> list[ProgramStep | ControlStep]:
    items: list[ProgramStep | ControlStep] = list(draft.steps)
    for mark in reversed(draft.control_steps):
        items.insert(mark.at, mark)
    return items


@attrs.define
class _Running:
    """What a queue is in the middle of."""

    node: str
    results: tuple[int, ...]
    operands: tuple[int, ...]
    seen: tuple[int, ...]
    post: int
    control: Row | None = None


class QueueMachine:
    """One run of a program; `choose` decides the order."""

    def __init__(self, program: Program, choose: Choose) -> None:
        self._program, self._choose = program, choose
        self._rows = {engine.value: list(program.queues[engine]) for engine in ENGINES}
        self._pc = dict.fromkeys(self._rows, 0)
        self._running: dict[str, _Running] = {}
        self._triggered: dict[str, list[_Running]] = {}
        self._counters = [0] * len(program.semaphores)
        self._control = {name: control_rows(program, rows) for name, rows in self._rows.items()}
        self._paths = {name: Path(rows, program.blocks) for name, rows in self._control.items()}
        self._shifts = Shifts(program)
        self._offsets = {name: np.zeros(len(program.semaphores), np.int64) for name in self._rows}
        self._stream_semaphore = {
            semaphore.owner: number
            for number, semaphore in enumerate(program.semaphores)
            if semaphore.owner.startswith("stream")
        }
        self._cells = np.zeros(program.hbm_bytes // ALIGNMENT + 1, np.int64)
        self._garbage = 0
        for buffer, data in program.constants.items():
            self._fill(program.buffers[buffer].address, program.buffers[buffer].end, hash(data))
        for position, tensor in enumerate(program.inputs):
            self._write(tensor, hash(("input", position)))

    def run(self) -> list[int]:
        """The names of the outputs."""
        while True:
            movable = [name for name in self._rows if self._can_move(name)]
            movable += [name for name, waiting in self._triggered.items() if waiting]
            if not movable:
                break
            self._move(self._choose(movable))
        left = [name for name, rows in self._rows.items() if self._pc[name] < len(rows)]
        if left:
            raise StuckError(", ".join(left))
        return [self._read(tensor) for tensor in self._program.outputs]

    def _can_move(self, name: str) -> bool:
        if name in self._running:
            return True
        if self._pc[name] == len(self._rows[name]):
            return False
        row = self._rows[name][self._pc[name]]
        if row.wait_sem == NONE:
            return True
        return self._counters[row.wait_sem] >= row.wait_value + self._offsets[name][row.wait_sem]

    def _move(self, name: str) -> None:
        if name in self._triggered:
            done = self._triggered[name].pop(0)
            if done.control is None:
                self._end(done)
            elif self._predicate(done.control) != done.seen[0]:
                raise StuckError(f"{name} goes another way at {done.control}")
            self._counters[self._stream_semaphore[name]] += 1
        elif name in self._running:
            running = self._running.pop(name)
            self._end(running)
            self._advance(name)
            if running.post != NONE:
                self._counters[running.post] += 1
        else:
            self._start(name)

    def _advance(self, name: str) -> None:
        """Go on to the next row, wherever that is."""
        position = self._pc[name]
        row = self._control[name].get(position)
        if row is None:
            self._pc[name] += 1
            return
        value = self._predicate(row)
        self._pc[name], jump = self._paths[name].follow(position, value)
        if jump is not Jump.NONE:
            self._offsets[name] += self._shifts.of(row[1], jump)
        if name == Engine.GPSIMD.value:
            for stream in sorted(self._shifts.followers(row)):
                told = _Running("", (), (), (value,), NONE, row)
                self._triggered.setdefault(f"stream {stream}", []).append(told)

    def _predicate(self, row: Row) -> int:
        return self._read(self._program.blocks[row[1]].predicate) if row[0] in (TEST, CASE) else 0

    def _start(self, name: str) -> None:
        row = self._rows[name][self._pc[name]]
        node = self._program.origins[row.origin].node if row.origin != NONE else ""
        if row.opcode == PTC2:
            placeholder = self._program.placeholders[row.placeholder]
            begun = self._begin(placeholder.name, placeholder.results, placeholder.operands)
            self._triggered.setdefault(f"stream {placeholder.stream}", []).append(begun)
            self._running[name] = _Running("", (), (), (), row.post_sem)
        elif row.opcode == WAIT or self._pc[name] in self._control[name]:
            self._running[name] = _Running("", (), (), (), row.post_sem)
        else:
            self._running[name] = self._begin(node, row.results, row.operands, row.post_sem)

    def _begin(
        self, node: str, results: tuple[int, ...], operands: tuple[int, ...], post: int = NONE
    ) -> _Running:
        seen = tuple(self._read(tensor) for tensor in operands)
        places = {self._program.address(tensor) for tensor in operands}
        for tensor in results:
            if self._program.address(tensor) not in places:  # else it is in place
                self._write(tensor, self._noise())
        return _Running(node, results, operands, seen, post)

    def _end(self, running: _Running) -> None:
        seen = tuple(self._read(tensor) for tensor in running.operands)
        if seen != running.seen:
            seen = (self._noise(),)
        for place, tensor in enumerate(running.results):
            self._write(tensor, hash((running.node, place, seen)))

    def _noise(self) -> int:
        self._garbage += 1
        return hash(("garbage", self._garbage))

    def _fill(self, start: int, end: int, value: int) -> None:
        self._cells[start // ALIGNMENT : -(-end // ALIGNMENT)] = value

    def _range(self, tensor: int) -> tuple[int, int]:
        view = self._program.tensors[tensor]
        start = self._program.buffers[view.buffer].address + view.offset
        return start, start + view.size_bytes

    def _write(self, tensor: int, value: int) -> None:
        self._fill(*self._range(tensor), value)

    def _read(self, tensor: int) -> int:
        start, end = self._range(tensor)
        if start == end:
            return EMPTY
        found = set(self._cells[start // ALIGNMENT : -(-end // ALIGNMENT)].tolist())
        return found.pop() if len(found) == 1 else self._noise()


def any_order(seed: int) -> Choose:
    """Picks at random, mostly by a random preference, so that some queues run far ahead."""
    source = random.Random(seed)
    preference: dict[str, float] = {}

    def choose(movable: Sequence[str]) -> str:
        if source.random() < 0.2:
            return source.choice(movable)
        for name in movable:
            preference.setdefault(name, source.random())
        return max(movable, key=lambda name: preference[name])

    return choose


def late(name: str) -> Choose:
    """Lets one queue move only when no other can."""

    def choose(movable: Sequence[str]) -> str:
        return next((other for other in movable if other != name), movable[0])

    return choose
