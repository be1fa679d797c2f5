"""Loops and branches as marks between steps, and the copies that carry values through them.

The state of a loop lies in buffers of its own: filled before the loop, read by condition and body,
and written at the end of the body. What the body gives back as it got it needs none, it is read
where it was. The results of a conditional lie in buffers that every branch writes.
"""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ncc_compiler.codegen.draft import Mark
from ncc_compiler.codegen.leaves import leaves
from ncc_compiler.codegen.reuse import Made, Region, home_of, write_in_place, written_to
from ncc_compiler.codegen.trips import invariants, trip_count
from ncc_compiler.diagnostics import CompileError, Diagnostic
from ncc_compiler.ir.calls import branch_names
from ncc_compiler.ir.graph import Computation, Node
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.isa import CASE, END, LOOP, TEST
from ncc_runtime.neff.program import Block, BlockKind, BufferKind, Origin, TensorId

Value = tuple[int, ...]  # tensors

MOST_NESTED = 64
"""Loops and branches inside one another; each level is a level of recursion here."""


class Lowering(Made, Protocol):
    """What is made so far, and how to make more."""

    state: set[int]  # buffers that loops write at the end of their bodies
    depth: int  # blocks that are open

    def computation(self, name: str) -> Computation: ...

    def run(self, computation: Computation, arguments: Sequence[Value]) -> Value:
        """Append the steps of a computation; gives its result."""

    def new_value(self, node: Node) -> Value:
        """A new array for each one in the node's type."""

    def array(self, name: str, array: ArrayType, node: Node) -> int:
        """A tensor in an internal buffer of its own."""

    def copy(self, source: int, target: int, origin: Origin) -> None:
        """Append a step that copies a tensor."""

    def origin(self, node: Node) -> Origin: ...


def lower_while(lowering: Lowering, node: Node, initial: Value) -> Value:
    """The loop; its value is the state in the end."""
    condition = lowering.computation(node.callee("condition"))
    body = lowering.computation(node.callee("body"))
    kept = invariants(body)
    state = _state(lowering, node, initial, kept)
    trips = trip_count(node, condition, body, _numbers(lowering, initial))
    block = _open(lowering, node, LOOP)
    start = len(lowering.steps)
    (verdict,) = lowering.run(condition, [state])
    predicate = TensorId(verdict)
    if not _is_written(lowering, verdict, start):
        predicate = _copied(lowering, node, verdict)
    lowering.blocks[block] = Block(BlockKind.LOOP, node.name, predicate, trip_count=trips)
    _mark(lowering, node, TEST, block)
    region = Region.starting_here(lowering)
    result = lowering.run(body, [state])
    pairs = [pair for k, pair in enumerate(zip(result, state, strict=True)) if k not in kept]
    _write(lowering, node, region, pairs)
    _close(lowering, node, block)
    return state


def lower_conditional(lowering: Lowering, node: Node, operands: Sequence[Value]) -> Value:
    """One block for each branch; `operands` has the predicate and an argument for each."""
    predicate = TensorId(operands[0][0])
    home = home_of(lowering, predicate)
    # behind a branch that is passed over, the state may be written before everybody has read it
    if lowering.buffers[home].kind is not BufferKind.INTERNAL or home in lowering.state:
        predicate = _copied(lowering, node, predicate)
    names = branch_names(node)
    results = lowering.new_value(node)
    for index, (name, argument) in enumerate(zip(names, operands[1:], strict=True)):
        block = _open(lowering, node, CASE)
        lowering.blocks[block] = Block(BlockKind.CASE, node.name, predicate, index, len(names))
        region = Region.starting_here(lowering)
        found = lowering.run(lowering.computation(name), [argument])
        _write(lowering, node, region, list(zip(found, results, strict=True)))
        _close(lowering, node, block)
    return results


def _state(lowering: Lowering, node: Node, initial: Value, kept: frozenset[int]) -> Value:
    """Where the loop finds its state: in new arrays, filled here, except for what stays."""
    state = []
    for k, (source, kind) in enumerate(zip(initial, leaves(node.type), strict=True)):
        if k not in kept:
            target = lowering.array(f"{node.name}.{k}", kind, node)
            lowering.copy(source, target, lowering.origin(node))
            lowering.state.add(lowering.tensors[target].buffer)
        state.append(source if k in kept else target)
    return tuple(state)


def _numbers(lowering: Lowering, value: Value) -> dict[int, int]:
    """Whole numbers among the arrays that are constants of the program."""
    found = {}
    for k, tensor in enumerate(value):
        view = lowering.tensors[tensor]
        data, dtype = lowering.buffers[view.buffer].data, view.type.dtype.numpy
        if data is not None and not view.type.shape and dtype.kind in "iu":
            found[k] = int(np.frombuffer(data, dtype)[0])
    return found


def _open(lowering: Lowering, node: Node, opcode: str) -> int:
    """Begin a block, whose row is filled in by the caller."""
    block = len(lowering.blocks)
    lowering.blocks.append(Block(BlockKind.LOOP, node.name, TensorId(0)))
    lowering.depth += 1
    if lowering.depth > MOST_NESTED:
        text = f"loops and branches nest more than {MOST_NESTED} deep"
        raise CompileError([Diagnostic("codegen-C5", text, node.span)])
    _mark(lowering, node, opcode, block)
    return block


def _close(lowering: Lowering, node: Node, block: int) -> None:
    _mark(lowering, node, END, block)
    lowering.depth -= 1


def _mark(lowering: Lowering, node: Node, opcode: str, block: int) -> None:
    lowering.marks.append(Mark(len(lowering.steps), opcode, block, lowering.origin(node)))


def _is_written(lowering: Lowering, tensor: int, start: int) -> bool:
    """Whether a step from `start` on has written where the tensor lies."""
    buffer = home_of(lowering, tensor)
    steps = lowering.steps[start:]
    return any(home_of(lowering, result) == buffer for step in steps for result in step.results)


def _copied(lowering: Lowering, node: Node, tensor: int) -> TensorId:
    """The predicate in a buffer of its own."""
    view = lowering.tensors[tensor]
    copied = lowering.array(f"{node.name}.predicate", ArrayType(view.type.dtype), node)
    lowering.copy(tensor, copied, lowering.origin(node))
    return TensorId(copied)


def _write(
    lowering: Lowering, node: Node, region: Region, pairs: Sequence[tuple[int, int]]
) -> None:
    """Give the second of each pair the value of the first, all at the same time."""
    write_in_place(region, [source for source, _ in pairs])
    copies = written_to(region, pairs)
    needed = Counter(home_of(lowering, source) for source, _ in copies)
    while copies:
        ready = next(
            (k for k, (_, to) in enumerate(copies) if not needed[home_of(lowering, to)]), -1
        )
        if ready < 0:  # they go round in a circle, which a copy of one opens
            source, target = copies[0]
            view = lowering.tensors[source]
            spare = lowering.array(f"{view.name}.spare", view.type, node)
            lowering.copy(source, spare, lowering.origin(node))
            needed[home_of(lowering, source)] -= 1
            copies[0] = (spare, target)
            continue
        source, target = copies.pop(ready)
        lowering.copy(source, target, lowering.origin(node))
        needed[home_of(lowering, source)] -= 1
