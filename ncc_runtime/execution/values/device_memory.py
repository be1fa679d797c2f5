"""The memory of all ranks: where their buffers lie, what is loaded and what is read from them.

Inputs and outputs of a program that is played from a tape need not lie in the arena. An input that
nothing writes is read where the caller has it, and an output is written into a new array that the
caller gets: neither is copied.
"""

import collections
import functools
from collections.abc import Container, Iterable, Mapping, Sequence, Set

import numpy as np

from ncc_runtime.execution.tape import Tape
from ncc_runtime.execution.values.equal_ranks import EqualRanks, equal_ranks
from ncc_runtime.execution.values.memory import Arena, run_of
from ncc_runtime.execution.values.nan_bits import results_of_any_nan
from ncc_runtime.execution.values.normal_form import NormalForm
from ncc_runtime.execution.values.output_arrays import OutputArrays
from ncc_runtime.execution.values.row_layout import (
    RowLayout,
    prepared_nodes,
    rows_of,
    view_of,
)
from ncc_runtime.execution.values.tape_values import TapeValues, are_together
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.program import READ_ONLY, BufferKind, TensorId
from ncc_runtime.processes import Shares
from ncc_runtime.ranked_array import RankedArray, memory_of
from ncc_runtime.threads import Threads

BORROWED_BYTES = 64 * 1024
"""Inputs and outputs of so many bytes on a rank are not copied; others are quicker copied."""

KEPT_LAYOUTS = 4
"""Layouts that are kept: of inputs that are equal on the same ranks as before."""

_NONE_MOVABLE = frozenset[int](), frozenset[int]()
"""No inputs and no outputs, by tensor, lie elsewhere than in the arena."""


class DeviceMemory:
    """The arena, the arrays that some buffers lie in instead, and a view of each tensor.

    Of several processes each holds the memory of its share of the ranks.
    """

    def __init__(
        self,
        executable: Executable,
        shares: Shares,
        normal_forms: Mapping[int, NormalForm],
        threads: Threads,
    ) -> None:
        """`normal_forms` are those of proved collectives, by placeholder."""
        self.executable = executable
        self.shares = shares
        self.arena = Arena(shares.end - shares.first, executable.hbm_bytes, shares.first)
        self._normal_forms = normal_forms
        self._labels: list[np.ndarray] = []  # by input, ranks with the same label have the same
        self.layout = self._new_layout(None, frozenset(), frozenset())  # of what is performed now
        self._layouts: dict[object, RowLayout] = {}
        self._movable: dict[Tape, tuple[frozenset[int], frozenset[int]]] = {}
        self._values: dict[Tape, TapeValues | None] = {}  # where ranks perform rows together
        self.moved: set[int] = set()  # buffers that do not lie in the arena now
        self.output_arrays = OutputArrays(threads)
        self._constants_in: dict[int, np.ndarray] = {}  # by buffer, the rows that hold it
        self._lent: dict[int, np.ndarray] = {}  # outputs in arrays of their own, by tensor
        self._overwritten: dict[int, RankedArray] = {}  # by number, inputs as they were loaded
        program = executable.program
        self.views = [
            self.arena.tensor(tensor.dtype.numpy, tensor.shape, program.address(number))
            for number, tensor in enumerate(program.tensors)
        ]
        """By tensor, an array of its rows; which of them are a rank's, the layout says."""
        self._in_arena = tuple(self.views)
        self._tensors_in: dict[int, list[int]] = collections.defaultdict(list)
        for number, tensor in enumerate(program.tensors):
            self._tensors_in[tensor.buffer].append(number)

    def choose_layout(
        self,
        labels: Sequence[np.ndarray],
        are_contiguous: Sequence[bool],
        tape: Tape | None,
        *,
        keeps_state: bool,
    ) -> None:
        """Choose the layout of what is loaded next; `load` does it, too.

        Of each input `labels` say which ranks have the same, and `are_contiguous` whether its rows
        have no gaps, so that it may be read where it is.
        """
        self._labels = list(labels)
        if tape is None:
            self.layout = self._layout_of(None)
            return
        readable, lent = _NONE_MOVABLE if keeps_state else self._movable_tensors(tape)
        borrowed = frozenset(
            tensor
            for (_, tensor), is_contiguous in zip(self._inputs, are_contiguous, strict=True)
            if tensor in readable and is_contiguous
        )
        self.layout = self._layout_of(tape, borrowed, lent)

    def choose_next_layout(self, feed: Sequence[tuple[int, int]]) -> None:
        """Choose the layout of the step after this one; pairs of an output and an input, by number.

        All else is given to it as it was.
        """
        for output, number in feed:
            ranks, _ = self.results[output]
            self._labels[number] = self.layout.equal.equal_outputs[output][ranks]
        self.layout = self._layout_of(self.layout.tape)

    def load(
        self,
        inputs: Iterable[RankedArray],
        unchanged: Container[int] = (),
        tape: Tape | None = None,
        *,
        keeps_state: bool = False,
        labels: Sequence[np.ndarray] | None = None,
    ) -> None:
        """Write parameters and constants; `tape` is what is played next.

        Of several processes each has the inputs of its own ranks; `labels` say of all ranks which
        have the same.

        Those `unchanged`, by number, are the same in every step, whatever a run writes over them.
        If a tape is played, and `release` called behind it, inputs may be read where they are, and
        outputs be written where the caller gets them; not if the devices keep the state.
        """
        self._overwritten = {}
        given = collections.deque(inputs)
        are_contiguous = [one.memory() is not None for one in given]
        if labels is None:
            labels = [one.row_of for one in given]
        self.choose_layout(labels, are_contiguous, tape, keeps_state=keeps_state)
        for tensor, rows in self.layout.lent.items():
            kind = self.executable.program.tensors[TensorId(tensor)]
            shape = rows, *kind.shape
            array = self.output_arrays.array(("lent", tensor), shape, kind.dtype.numpy)
            self._lent[tensor] = array
            self._move(tensor, array)
        on_inputs = self._on_inputs.values()
        for number, (_, tensor) in enumerate(self._inputs):
            one = given.popleft()  # and not held any longer than it takes to copy it
            if tensor in self.layout.borrowed:
                self._move(tensor, one.array)
                continue
            self._write_input(number, one)
            if number in unchanged and tensor in on_inputs:
                self._overwritten[number] = RankedArray(one.array.copy(), one.row_of)
        self._load_constants(always=tape is None)

    def _write_input(self, number: int, given: RankedArray) -> None:
        """Into every row where a rank reads it."""
        rows, source = self.layout.input_rows[number]
        self.views[self._inputs[number][1]][rows] = rows_of(given.array, source)

    def _load_constants(self, *, always: bool) -> None:
        """Into every row where a rank reads them; they stay while tapes are played."""
        if self.layout.has_constants and not always:
            return
        for stage in self.executable.stages:
            for buffer, data in stage.program.constants.items():
                equal = self.layout.equal
                ranks = self.shares.own(stage.ranks)
                rows = np.unique(equal.constants.get(buffer, equal.each)[ranks]) - self.arena.first
                known = self._constants_in.get(buffer, rows[:0])
                missing = rows if always else np.setdiff1d(rows, known)
                if len(missing):
                    address = stage.program.buffers[buffer].address
                    memory = self.arena.bytes[:, address : address + len(data)]
                    memory[run_of(missing)] = np.frombuffer(data, np.uint8)
                    self._constants_in[buffer] = np.union1d(known, missing)
        self.layout.has_constants = True  # for good: no row of `_constants_in` is ever taken out

    def load_again(
        self,
        feed: Sequence[tuple[int, int]],
        inputs: Mapping[int, RankedArray],
        tape: Tape | None = None,
    ) -> None:
        """After a run: write outputs into inputs, by pairs of numbers, and other inputs anew.

        Inputs of `load` that stay the same are written again where an output lies in their memory.
        All else is as it was, since nothing writes it while a program runs. Ranks of an output are
        those of its input. `tape` is what is played next.
        """
        before, program = self.layout, self.executable.program
        fed = {number: output for output, number in feed}
        anew = {**self._overwritten, **inputs}
        for number, output in fed.items():
            ranks, _ = self.results[output]
            self._labels[number] = before.equal.equal_outputs[output][ranks]
        for number, one in anew.items():
            self._labels[number] = one.row_of
        self.layout = self._layout_of(tape)
        moves = []
        for number, (ranks, target) in enumerate(self._inputs):
            if number in anew:
                continue
            source, places = target, before.equal.inputs[number]
            if number in fed:
                _, source = self.results[fed[number]]
                places = before.equal.outputs[fed[number]]
            ranks = self.shares.own(ranks)
            rows, first = np.unique(self.layout.equal.inputs[number][ranks], return_index=True)
            rows, found = rows - self.arena.first, places[ranks][first] - self.arena.first
            if self._on_inputs.get(source, source) == target:  # some of it is where it is to be
                rows, found = rows[rows != found], found[rows != found]
            value = rows_of(self.views[source], view_of(found))
            # an input that is passed on as an output lies where another pair may write
            kind = program.buffers[program.tensors[TensorId(source)].buffer].kind
            is_input = source in self._on_inputs or kind in READ_ONLY
            moves.append((target, rows, value.copy() if is_input else value))
        for target, rows, value in moves:
            self.views[target][run_of(rows)] = value
        for number, one in anew.items():
            self._write_input(number, one)
        self._load_constants(always=False)

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

    @functools.cached_property
    def results(self) -> list[tuple[np.ndarray, int]]:
        """Of each result its ranks and its tensor."""
        stages = self.executable.stages
        return [(stage.ranks, tensor) for stage in stages for tensor in stage.program.outputs]

    @functools.cached_property
    def _inputs(self) -> list[tuple[np.ndarray, int]]:
        """Of each parameter its ranks and its tensor."""
        stages = self.executable.stages
        return [(stage.ranks, tensor) for stage in stages for tensor in stage.program.inputs]

    def outputs(self) -> list[RankedArray]:
        """The results of the ranks that run each program, in memory that is the caller's."""
        given = dict(self._lent)  # each once: a caller may write into what it gets
        results = []
        for (rows, which), (_, tensor) in zip(self.layout.output_rows, self.results, strict=True):
            array = given.pop(tensor, None)
            if array is None:
                array = self.views[tensor][rows].copy()
            results.append(RankedArray(array, which))
        return results

    def _layout_of(
        self, tape: Tape | None, borrowed: Set[int] = frozenset(), lent: Set[int] = frozenset()
    ) -> RowLayout:
        """The layout for inputs with these labels; these inputs and outputs, by tensor, moved."""
        key = tape, borrowed, lent, tuple(labels.tobytes() for labels in self._labels)
        if key not in self._layouts:
            if len(self._layouts) == KEPT_LAYOUTS:
                del self._layouts[next(iter(self._layouts))]
            self._layouts[key] = self._new_layout(tape, borrowed, lent)
        return self._layouts[key]

    def _new_layout(self, tape: Tape | None, borrowed: Set[int], lent: Set[int]) -> RowLayout:
        program = self.executable.program
        equal = EqualRanks.nothing(program)
        of_any_nan: Mapping[object, Set[int]] = {}
        if tape is not None and (values := self._values_of(tape)) is not None:
            equal = equal_ranks(values, self._labels, self.shares.process_of)
            of_any_nan = results_of_any_nan(values)
        buffer_of = [tensor.buffer for tensor in program.tensors]
        moved: dict[int, np.ndarray] = {}
        given_rows = [
            self._given_rows(ranks, labels)
            for (ranks, _), labels in zip(self._inputs, self._labels, strict=False)
        ]
        for (_, tensor), given in zip(self._inputs, given_rows, strict=False):
            if tensor in borrowed:
                moved[buffer_of[tensor]] = given
        lent_rows = {}
        for (_, tensor), places in zip(self.results, equal.outputs, strict=True):
            used = equal.used[buffer_of[tensor]]
            # one that holds more on its way, such as partial sums, is copied in the end
            if tensor in lent and np.array_equal(used, np.unique(places)):
                row: np.ndarray = np.full(len(places), -1)
                used = self.shares.own(used)
                row[used] = np.arange(len(used))
                moved[buffer_of[tensor]] = row
                lent_rows[tensor] = len(used)
        first_rank = self.shares.first
        layout = RowLayout(
            equal, tape, borrowed, lent_rows, buffer_of, moved, of_any_nan, first_rank
        )
        if tape is not None:
            layout.nodes.extend(prepared_nodes(tape.nodes))
        # of the ranks that read a row of an input, the first one's is written there
        for (ranks, _), places, given in zip(self._inputs, equal.inputs, given_rows, strict=False):
            is_own = self.shares.are_own(ranks)
            rows, first = np.unique(places[ranks[is_own]], return_index=True)
            layout.input_rows.append((run_of(rows - first_rank), view_of(given[is_own][first])))
        for (ranks, tensor), places in zip(self.results, equal.outputs, strict=True):
            own = layout.rows(tensor, places[self.shares.own(ranks)])
            rows, which = np.unique(own, return_inverse=True)
            layout.output_rows.append((run_of(rows), which))
        return layout

    def _given_rows(self, ranks: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """In which row of what is given for an input each of its ranks has its own, (ranks,).

        Of several processes each is given what its ranks have, in the order of the labels.
        """
        if self.shares.count == 1:
            return labels
        is_own = self.shares.are_own(ranks)
        rows: np.ndarray = np.full(len(labels), -1)
        rows[is_own] = np.unique(labels[is_own], return_inverse=True)[1]
        return rows

    def _movable_tensors(self, tape: Tape) -> tuple[frozenset[int], frozenset[int]]:
        """Inputs and outputs, by tensor, that need not lie in the arena while a tape is played."""
        if tape in self._movable:
            return self._movable[tape]
        self._movable[tape] = _NONE_MOVABLE
        if len(self.executable.stages) > 1:
            return self._movable[tape]
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
        self._movable[tape] = inputs, some(program.outputs, BufferKind.OUTPUT)
        return self._movable[tape]

    def _move(self, tensor: int, array: np.ndarray) -> None:
        """Let the buffer of a tensor lie in an array, [rows, …]."""
        program, memory = self.executable.program, memory_of(array)
        assert memory is not None, "rows without gaps"
        buffer = program.tensors[TensorId(tensor)].buffer
        for number in self._tensors_in[buffer]:
            one = program.tensors[TensorId(number)]
            part = memory[:, one.offset : one.offset + one.size_bytes].view(one.dtype.numpy)
            self.views[number] = part.reshape(len(array), *one.shape, copy=False)
        self.moved.add(buffer)

    def release(self) -> None:
        """Let go of the arrays of others; all buffers lie in the arena again."""
        for buffer in self.moved:
            for number in self._tensors_in[buffer]:
                self.views[number] = self._in_arena[number]
        self.moved.clear()
        self._lent.clear()

    def _values_of(self, tape: Tape) -> TapeValues | None:
        """The values of a tape, if all ranks perform its rows together."""
        if tape not in self._values:
            values = TapeValues(tape, self._normal_forms) if are_together(tape) else None
            self._values[tape] = values
        return self._values[tape]
