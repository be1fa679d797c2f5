"""Lowering: the graph as steps over logical buffers, in program order.

A node's value is a flat tuple of tensors: one for an array, the leaves in order for a tuple, none
for a token. So tuples cost nothing, and neither do reshapes, which are views.

Loops and branches become control rows between steps. The loop-carried state lies in buffers of its
own: filled before the loop, read by condition and body, and written at the end of the body. An
element that the body gives back unchanged (a loop invariant) needs none, it is read where it was.
The results of a conditional lie in buffers that every branch writes.

A collective becomes a placeholder: what is exchanged, and nothing of the wiring. The scalar
computations of reductions, sorts and scatters become regions, rows of scalar instructions. A
`fusion` becomes one instruction that names the rows of all its operations.
"""

import math
from collections import Counter
from collections.abc import Sequence

import attrs
import numpy as np

from ncc_compiler.codegen.buffers import (
    StepRange,
    coalesce_copies,
    resolved_buffer,
    without_dead_copies,
    write_in_place,
)
from ncc_compiler.codegen.costs import costs
from ncc_compiler.codegen.fusion import FusedComputation, fused_computation
from ncc_compiler.codegen.leaves import element_span, leaves
from ncc_compiler.codegen.lowered import (
    ControlStep,
    InstructionCosts,
    LogicalBuffer,
    LoweredFusion,
    LoweredProgram,
    ProgramStep,
    TensorView,
)
from ncc_compiler.codegen.parameters import aliases_of, origin_of, parameters_of, text_origin
from ncc_compiler.codegen.regions import RegionTable, selected_instr
from ncc_compiler.codegen.select import COLLECTIVES, SELECTORS
from ncc_compiler.codegen.trip_count import invariants, trip_count
from ncc_compiler.diagnostics import CompileError, Diagnostic, Span
from ncc_compiler.ir.collectives import (
    rank_groups,
    rank_pairs,
    reduction_by_name,
    reduction_of,
    written_stream,
)
from ncc_compiler.ir.graph import Computation, Module, Node
from ncc_compiler.ir.order import branch_names
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.isa import CASE, END, FUSION, LOOP, PTC2, TEST, Engine
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import (
    MAX_STREAMS,
    Block,
    BlockKind,
    BufferKind,
    Origin,
    TensorId,
)
from ncc_runtime.neff.shared.dtypes import DType

Value = tuple[int, ...]  # tensors

MOST_NESTED = 64
"""Loops and branches inside one another; each level is a level of recursion here."""

_MOST_BUFFER_BYTES = 2**44  # far above any HBM; sums of addresses stay within 64 bits


def lower(module: Module) -> LoweredProgram:
    """The entry computation as steps; calls are inlined and collectives canonical by now."""
    lowering = Lowering(module)
    entry = module.entry_computation
    inputs = [lowering.inputs(entry.nodes[position]) for position in entry.parameters()]
    results = lowering.run(entry, inputs)
    write_in_place(StepRange(lowering, 0, 0, 0), results)
    outputs = lowering.outputs(results)
    parameters, shardings = parameters_of(module, entry)
    lowered = LoweredProgram(
        name=module.name,
        replica_count=module.replica_count,
        num_partitions=module.num_partitions,
        buffers=tuple(lowering.buffers),
        tensors=tuple(lowering.tensors),
        steps=tuple(lowering.steps),
        inputs=tuple(tensor for value in inputs for tensor in value),
        outputs=outputs,
        regions=lowering.regions.rows(),
        fusions=tuple(lowering.fusions),
        control_steps=tuple(lowering.control_steps),
        blocks=tuple(lowering.blocks),
        parameters=parameters,
        shardings=shardings,
        aliases=aliases_of(module, entry),
    )
    return without_dead_copies(lowered, lowering.alias_of)


class Lowering:
    """The program so far (a `PartialProgram`), and how to append to it."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._constants: dict[bytes, int] = {}  # data → buffer
        self._unknown: dict[Span | str, int] = {}  # place in the text, or name → buffer
        self.buffers: list[LogicalBuffer] = []
        self.tensors: list[TensorView] = []
        self.steps: list[ProgramStep] = []
        self.regions = RegionTable()
        self.fusions: list[LoweredFusion] = []
        self._fusions: dict[str, tuple[int, FusedComputation]] = {}  # by computation, its number
        self.control_steps: list[ControlStep] = []
        self.blocks: list[Block] = []
        self.alias_of: dict[int, int] = {}
        self.state: set[int] = set()  # buffers that loops write at the end of their bodies
        self.depth = 0  # of open blocks

    def inputs(self, node: Node) -> Value:
        """What a parameter of the entry holds."""
        return self.new_value(node, BufferKind.INPUT)

    def computation(self, name: str) -> Computation:
        return self._module.computations[name]

    def origin(self, node: Node) -> Origin:
        return origin_of(self._module, node)

    def run(self, computation: Computation, arguments: Sequence[Value]) -> Value:
        """Append the steps of a computation; gives its result."""
        values: list[Value] = [()] * len(computation.nodes)
        for position, argument in zip(computation.parameters(), arguments, strict=True):
            values[position] = argument
        for index, node in enumerate(computation.nodes):
            if node.op != "parameter":
                operands = [values[operand] for operand in node.operands]
                values[index] = self._value(computation, node, operands)
        return values[computation.root]

    def _value(self, computation: Computation, node: Node, values: Sequence[Value]) -> Value:
        operands = tuple(tensor for value in values for tensor in value)
        match node.op:
            case "constant":
                return (self._constant(node),)
            case "tuple" | "opt-barrier" | "optimization-barrier":
                return operands
            case "after-all":
                return ()
            case "get-tuple-element":
                index = node.attributes["index"]
                assert isinstance(index, int), node.name
                return operands[element_span(computation.nodes[node.operands[0]].type, index)]
            case "reshape" | "bitcast":  # a view of the operand's buffer
                source = self.tensors[operands[0]]
                if source.type == node.type:
                    return operands
                return (self._tensor(node.name, node.array, source.buffer),)
            case "while":
                return lower_while(self, node, operands)
            case "conditional":
                return lower_conditional(self, node, values)
            case "fusion":
                return self._fusion(node, operands)
        if node.op in COLLECTIVES:
            return self._collective(node, operands)
        return self._instruction(node, operands)

    def new_value(self, node: Node, kind: BufferKind = BufferKind.INTERNAL) -> Value:
        """A buffer and a tensor for every array of the node's type."""
        arrays = leaves(node.type)
        names = [f"{node.name}.{k}" for k in range(len(arrays))]
        if len(arrays) == 1:
            names = [node.name]
        return tuple(
            self.array(name, array, node, kind) for name, array in zip(names, arrays, strict=True)
        )

    def array(
        self, name: str, array: ArrayType, node: Node, kind: BufferKind = BufferKind.INTERNAL
    ) -> int:
        """A tensor in a buffer of its own."""
        if array.size_bytes > _MOST_BUFFER_BYTES:
            text = f"{array} takes {array.size_bytes} bytes, the limit is {_MOST_BUFFER_BYTES}"
            raise CompileError([Diagnostic("codegen-C3", text, node.span)])
        return self._tensor(name, array, self._buffer(name, kind, array.size_bytes))

    def _buffer(self, name: str, kind: BufferKind, size: int, data: bytes | None = None) -> int:
        self.buffers.append(LogicalBuffer(name, kind, size, data))
        return len(self.buffers) - 1

    def _tensor(self, name: str, array: ArrayType, buffer: int) -> int:
        self.tensors.append(TensorView(name, buffer, array))
        return len(self.tensors) - 1

    def _constant(self, node: Node) -> int:
        if not node.has_value():
            return self._tensor(node.name, node.array, self._elided(node))
        data = node.literal().array.tobytes()
        if data not in self._constants:
            buffer = self._buffer(node.name, BufferKind.CONSTANT, len(data), data)
            self._constants[data] = buffer
        return self._tensor(node.name, node.array, self._constants[data])

    def _elided(self, node: Node) -> int:
        """The buffer of a constant without value, one for all copies of the same text."""
        written = node.span or node.name
        if written not in self._unknown:
            self._unknown[written] = len(self.buffers)
            origin = text_origin(self._module, node)
            size = node.array.size_bytes
            self.buffers.append(LogicalBuffer(node.name, BufferKind.ELIDED, size, origin=origin))
        return self._unknown[written]

    def _collective(self, node: Node, operands: Value) -> Value:
        """A trigger in the GpSimd queue; some results lie where operands do."""
        match COLLECTIVES[node.op]:
            case CollectiveOp.BARRIER:
                results = operands
            case op if op.is_counted:
                # The result is the output operand with rows replaced: copy it, then write the rows.
                results = self.new_value(node)
                self.copy(operands[1], results[0], self.origin(node))
                operands = (operands[0], *results, *operands[2:])
            case _:
                results = self.new_value(node)
        collective = placeholder_of(self._module, node, self._arrays(operands), operands, results)
        self.steps.append(
            ProgramStep(
                PTC2,
                Engine.GPSIMD,
                results,
                operands,
                self.origin(node),
                collective=collective,
            )
        )
        return results

    def _instruction(self, node: Node, operands: Value) -> Value:
        selected = selected_instr(self._module, node, self.regions.number)
        results = self.new_value(node)
        self.steps.append(
            ProgramStep(
                selected.opcode,
                selected.engine,
                results,
                operands,
                self.origin(node),
                selected.attributes,
                costs=costs(node, self._arrays(results), self._arrays(operands)),
            )
        )
        return results

    def _fusion(self, node: Node, operands: Value) -> Value:
        """One instruction for all operations of the computation that the node calls."""
        name = node.callee("calls")
        if name not in self._fusions:
            fused = fused_computation(self._module, self.computation(name), self.regions)
            self._fusions[name] = len(self.fusions), fused
            self.fusions.append(fused.fusion)
        number, fused = self._fusions[name]
        constants = tuple(map(self._constant, fused.constants))
        results = self.new_value(node)
        self.steps.append(
            ProgramStep(
                FUSION,
                fused.engine,
                results,
                (*operands, *constants),
                self.origin(node),
                {"fusion": number},
                costs=fused.costs,
            )
        )
        return results

    def _arrays(self, value: Value) -> list[ArrayType]:
        return [self.tensors[tensor].type for tensor in value]

    def outputs(self, value: Value) -> Value:
        """The results in output buffers of their own; what cannot move there is copied."""
        outputs = []
        for tensor in value:
            buffer = resolved_buffer(self, tensor)
            if self.buffers[buffer].kind is BufferKind.INTERNAL:
                self.buffers[buffer] = attrs.evolve(self.buffers[buffer], kind=BufferKind.OUTPUT)
                outputs.append(tensor)
            else:
                source, name = self.tensors[tensor], f"out{len(outputs)}"
                copied = self._buffer(name, BufferKind.OUTPUT, source.type.size_bytes)
                outputs.append(self._tensor(name, source.type, copied))
                self.copy(tensor, outputs[-1], Origin(source.name))
        return tuple(outputs)

    def copy(self, source: int, target: int, origin: Origin) -> None:
        """Append a step that copies a tensor."""
        (array,) = self._arrays((source,))
        size = array.size_bytes
        cost = InstructionCosts(0, array.elements, size, size)
        engine = SELECTORS["copy"].engine
        self.steps.append(ProgramStep("copy", engine, (target,), (source,), origin, costs=cost))


# Loops and branches


def lower_while(lowering: Lowering, node: Node, initial: Value) -> Value:
    """The loop; its value is the state in the end."""
    condition = lowering.computation(node.callee("condition"))
    body = lowering.computation(node.callee("body"))
    unchanged = invariants(body)
    state = _state(lowering, node, initial, unchanged)
    trips = trip_count(node, condition, body, _known_integers(lowering, initial))
    block = _open_block(lowering, node, LOOP)
    first_step = len(lowering.steps)
    (predicate,) = lowering.run(condition, [state])
    # A predicate that the condition does not write is copied: it may lie in the state, which the
    # body writes again while streams may still read it.
    buffer = resolved_buffer(lowering, predicate)
    if not any(
        resolved_buffer(lowering, result) == buffer
        for step in lowering.steps[first_step:]
        for result in step.results
    ):
        predicate = _copied_predicate(lowering, node, predicate)
    lowering.blocks[block] = Block(BlockKind.LOOP, node.name, TensorId(predicate), trip_count=trips)
    _add_control_step(lowering, node, TEST, block)
    step_range = StepRange.starting_here(lowering)
    result = lowering.run(body, [state])
    pairs = [pair for k, pair in enumerate(zip(result, state, strict=True)) if k not in unchanged]
    _parallel_copy(lowering, node, step_range, pairs)
    _close_block(lowering, node, block)
    return state


def lower_conditional(lowering: Lowering, node: Node, operands: Sequence[Value]) -> Value:
    """One block for each branch; `operands` has the predicate and an argument for each."""
    (predicate,) = operands[0]
    buffer = resolved_buffer(lowering, predicate)
    # Behind a branch that is passed over, the state may be written before all streams have read it.
    if lowering.buffers[buffer].kind is not BufferKind.INTERNAL or buffer in lowering.state:
        predicate = _copied_predicate(lowering, node, predicate)
    names = branch_names(node)
    results = lowering.new_value(node)
    for index, (name, argument) in enumerate(zip(names, operands[1:], strict=True)):
        block = _open_block(lowering, node, CASE)
        lowering.blocks[block] = Block(
            BlockKind.CASE, node.name, TensorId(predicate), index, len(names)
        )
        step_range = StepRange.starting_here(lowering)
        result = lowering.run(lowering.computation(name), [argument])
        _parallel_copy(lowering, node, step_range, list(zip(result, results, strict=True)))
        _close_block(lowering, node, block)
    return results


def _state(lowering: Lowering, node: Node, initial: Value, unchanged: frozenset[int]) -> Value:
    """The loop-carried state: in new arrays that are filled here, but for loop invariants."""
    state = []
    for k, (source, kind) in enumerate(zip(initial, leaves(node.type), strict=True)):
        if k in unchanged:
            state.append(source)
            continue
        target = lowering.array(f"{node.name}.{k}", kind, node)
        lowering.copy(source, target, lowering.origin(node))
        lowering.state.add(lowering.tensors[target].buffer)
        state.append(target)
    return tuple(state)


def _known_integers(lowering: Lowering, value: Value) -> dict[int, int]:
    """The scalar integers among these arrays that are constants of the program."""
    known = {}
    for k, tensor in enumerate(value):
        view = lowering.tensors[tensor]
        data, dtype = lowering.buffers[view.buffer].data, view.type.dtype.numpy
        if data is not None and not view.type.shape and dtype.kind in "iu":
            known[k] = int(np.frombuffer(data, dtype)[0])
    return known


def _open_block(lowering: Lowering, node: Node, opcode: str) -> int:
    """Begin a block, whose row is filled in by the caller."""
    block = len(lowering.blocks)
    lowering.blocks.append(Block(BlockKind.LOOP, node.name, TensorId(0)))
    lowering.depth += 1
    if lowering.depth > MOST_NESTED:
        text = f"loops and branches nest more than {MOST_NESTED} deep"
        raise CompileError([Diagnostic("codegen-C5", text, node.span)])
    _add_control_step(lowering, node, opcode, block)
    return block


def _close_block(lowering: Lowering, node: Node, block: int) -> None:
    _add_control_step(lowering, node, END, block)
    lowering.depth -= 1


def _add_control_step(lowering: Lowering, node: Node, opcode: str, block: int) -> None:
    lowering.control_steps.append(
        ControlStep(len(lowering.steps), opcode, block, lowering.origin(node))
    )


def _copied_predicate(lowering: Lowering, node: Node, tensor: int) -> int:
    """The predicate in a buffer of its own."""
    view = lowering.tensors[tensor]
    copied = lowering.array(f"{node.name}.predicate", ArrayType(view.type.dtype), node)
    lowering.copy(tensor, copied, lowering.origin(node))
    return copied


def _parallel_copy(
    lowering: Lowering, node: Node, step_range: StepRange, pairs: Sequence[tuple[int, int]]
) -> None:
    """Copy the first of each pair to the second, all at once, as at the phis of SSA form.

    A target may be written once no copy that is left reads it.
    """
    write_in_place(step_range, [source for source, _ in pairs])
    copies = coalesce_copies(step_range, pairs)
    reads_left = Counter(resolved_buffer(lowering, source) for source, _ in copies)
    while copies:
        is_ready = (not reads_left[resolved_buffer(lowering, target)] for _, target in copies)
        first_ready = next((k for k, ready in enumerate(is_ready) if ready), None)
        if first_ready is not None:
            source, target = copies.pop(first_ready)
            lowering.copy(source, target, lowering.origin(node))
        else:  # only cycles are left; a copy of one element breaks its cycle
            source, target = copies[0]
            view = lowering.tensors[source]
            spare = lowering.array(f"{view.name}.spare", view.type, node)
            lowering.copy(source, spare, lowering.origin(node))
            copies[0] = (spare, target)
        reads_left[resolved_buffer(lowering, source)] -= 1


# Collectives


def placeholder_of(
    module: Module,
    node: Node,
    arrays: list[ArrayType],
    operands: tuple[int, ...],
    results: tuple[int, ...],
) -> Placeholder:
    """The placeholder of a canonical collective whose operands have the types `arrays`.

    A barrier names no tensors: it only has to stand between those before it and behind it. Of a
    variable-size (v-) collective the second operand is the output, and those after it the counts.
    """
    op = COLLECTIVES[node.op]
    counts = operands[2:] if op.is_counted else ()
    if op.is_counted:
        arrays, operands = arrays[:1], operands[:1]
    if op is CollectiveOp.BARRIER:
        arrays, operands, results = [ArrayType(DType.U8)], (), ()
    permutes = op is CollectiveOp.PERMUTE
    groups = () if permutes else rank_groups(module, node)
    _check_is_canonical(node, arrays, len(groups[0]) if groups else 1)
    if "to_apply" in node.attributes:
        reduction = reduction_of(module.computations[node.callee()])
        assert reduction is not None, f"{node.name}: %{node.callee()} is no reduction"
    else:
        reduction = reduction_by_name(node, arrays[0].dtype)
    root: int | None = None
    if op is CollectiveOp.BROADCAST:
        root = 0  # HLO broadcasts from the first of each group
    elif op.is_rooted:
        root = node.integer("root")
    stream = written_stream(node) or 0
    if stream >= MAX_STREAMS:
        text = f"stream_id is {stream}, there are {MAX_STREAMS} streams"
        raise CompileError([Diagnostic("codegen-C2", text, node.span)])
    channel = node.attributes.get("channel_id")
    return Placeholder(
        op=op,
        dtype=arrays[0].dtype,
        operands=operands,
        results=results,
        reduction=reduction,
        groups=groups,
        pairs=rank_pairs(module, node) if permutes else (),
        root=root,
        stream=stream,
        channel_id=channel if isinstance(channel, int) else None,
        name=node.name,
        counts=counts,
    )


def _check_is_canonical(node: Node, arrays: list[ArrayType], group_size: int) -> None:
    """Chunks must be byte ranges, as the pass `expand-collectives` leaves them."""
    assert len({array.dtype for array in arrays}) == 1, f"{node.name} mixes element types"
    for array in arrays:
        for dimension in node.integers("dimensions"):
            contiguous = group_size == 1 or math.prod(array.shape[:dimension]) in (0, 1)
            assert contiguous, f"{node.name}: chunks of dimension {dimension} are not byte ranges"
    assert "dimensions" in node.attributes or node.op != "all-to-all" or group_size == 1, node.name
