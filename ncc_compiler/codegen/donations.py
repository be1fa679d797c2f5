"""Donated inputs: outputs that take the memory of the inputs they are paired with.

A model's `input_output_alias` (JAX's `donate_argnums`) says that the caller needs an input no
longer. The output paired with it is then written in the input's memory: a cache, or weights and the
state of an optimiser, are in HBM once. That takes that nobody reads the input once the output is
written, in program order; `order_steps` has the writer wait for the readers. The first writer may
read the input itself if it works in place (`ncc_runtime/neff/in_place.py`). A pair for which this
does not hold is no error: the output has memory of its own.

Where the first writer is a copy of the input, as before a loop that carries it, there is nothing to
copy: the output holds what its input held until it is written.
"""

from collections.abc import Iterator

import attrs

from ncc_compiler.codegen.buffers import without_copies_in_place
from ncc_compiler.codegen.lowered import ControlStep, LoweredProgram
from ncc_compiler.codegen.order import in_order
from ncc_runtime.neff.in_place import may_overwrite
from ncc_runtime.neff.isa import CASE, END, LOOP
from ncc_runtime.neff.program import BufferKind


def with_donations(lowered: LoweredProgram) -> LoweredProgram:
    """The program with as many outputs in the memory of donated inputs as can be."""
    if not lowered.aliases:
        return lowered
    uses = _UsesInOrder(lowered)
    donated = {}
    for output, number in lowered.aliases:
        target = lowered.tensors[lowered.outputs[output]].buffer
        source = lowered.tensors[lowered.inputs[number]].buffer
        if uses.allow(target, source):
            donated[target] = source
    if not donated:
        return lowered
    return without_copies_in_place(attrs.evolve(lowered, donated=donated))


class _UsesInOrder:
    """When buffers are read for the last time and written for the first, by steps.

    What is used in a block is used from its first step to its last: a loop comes back to it.
    """

    def __init__(self, lowered: LoweredProgram) -> None:
        self._lowered = lowered
        first_step, last_step = _outermost_blocks(lowered)
        self._first_write: dict[int, tuple[int, int]] = {}  # where it counts, and the step itself
        self._last_read: dict[int, int] = {}
        self._reads: dict[int, int] = {}  # how many steps read it where it is read last
        for number, step in enumerate(lowered.steps):
            for buffer in {lowered.tensors[tensor].buffer for tensor in step.operands}:
                self._last_read[buffer] = last_step[number]
            for tensor in step.results:
                place = first_step[number], number
                self._first_write.setdefault(lowered.tensors[tensor].buffer, place)
        for block in lowered.blocks:
            self._last_read[lowered.tensors[block.predicate].buffer] = len(lowered.steps)

    def allow(self, target: int, source: int) -> bool:
        """Whether an output's buffer may lie in an input's memory."""
        lowered = self._lowered
        kinds = lowered.buffers[target].kind, lowered.buffers[source].kind
        sizes = {lowered.buffers[target].size_bytes, lowered.buffers[source].size_bytes}
        if kinds != (BufferKind.OUTPUT, BufferKind.INPUT) or len(sizes) > 1:
            return False
        if target not in self._first_write:
            return False
        (begin, writer), last_read = self._first_write[target], self._last_read.get(source, -1)
        if last_read < begin:
            return True
        # Inside of a block that ends later the input would be read again.
        return last_read == begin == writer and self._works_in_place(writer, target, source)

    def _works_in_place(self, number: int, target: int, source: int) -> bool:
        """Whether a step may write an output where it reads an input."""
        step, tensors = self._lowered.steps[number], self._lowered.tensors
        fusion = self._lowered.fusion_of(step)
        results = [tensors[tensor].type for tensor in step.results]
        operands = [tensors[tensor].type for tensor in step.operands]
        written = [k for k, tensor in enumerate(step.results) if tensors[tensor].buffer == target]
        read = [k for k, tensor in enumerate(step.operands) if tensors[tensor].buffer == source]
        return step.collective is None and all(
            may_overwrite(step.opcode, results, operands, result, operand, fusion)
            for result in written
            for operand in read
        )


def _outermost_blocks(lowered: LoweredProgram) -> tuple[list[int], list[int]]:
    """For every step the first and the last step of the outermost block that it is in."""
    first, last = list(range(len(lowered.steps))), list(range(len(lowered.steps)))
    for begin, end in _spans(lowered):
        first[begin:end] = [begin] * (end - begin)
        last[begin:end] = [end] * (end - begin)
    return first, last


def _spans(lowered: LoweredProgram) -> Iterator[tuple[int, int]]:
    """The steps of each outermost block, from one up to another."""
    depth = number = begin = 0
    for item in in_order(lowered):
        if not isinstance(item, ControlStep):
            number += 1
        elif item.opcode in (LOOP, CASE):
            begin = begin if depth else number
            depth += 1
        elif item.opcode == END:
            depth -= 1
            if not depth:
                yield begin, number
