"""The graph as steps over buffers, in program order.

A node's value is a flat tuple of tensors: one for an array, the leaves in order for a tuple, none
for a token. So tuples cost nothing, and neither do reshapes, which are views.
"""

from collections.abc import Sequence

import attrs

from ncc_compiler.codegen.collectives import placeholder_of
from ncc_compiler.codegen.control_flow import lower_conditional, lower_while
from ncc_compiler.codegen.costs import costs
from ncc_compiler.codegen.draft import (
    Costs,
    Draft,
    DraftBuffer,
    DraftTensor,
    Mark,
    Step,
)
from ncc_compiler.codegen.leaves import element_span, leaves
from ncc_compiler.codegen.origins import origin_of, text_origin
from ncc_compiler.codegen.parameters import parameters_of
from ncc_compiler.codegen.regions import RegionTable
from ncc_compiler.codegen.reuse import Region, home_of, settled, write_in_place
from ncc_compiler.codegen.select import ANY_REGION, COLLECTIVES, REGIONS, SELECTORS
from ncc_compiler.diagnostics import CompileError, Diagnostic, Span
from ncc_compiler.ir.collectives import reduction_of
from ncc_compiler.ir.graph import Computation, Module, Node
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.isa import PTC2, Engine
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import AttributeValue, Block, BufferKind, Origin

Value = tuple[int, ...]  # tensors

_MOST_BUFFER_BYTES = 2**44  # far above any HBM; sums of addresses stay within 64 bits


def lower(module: Module) -> Draft:
    """The entry computation as a draft; calls are inlined and collectives canonical by now."""
    lowering = _Lowering(module)
    entry = module.entry_computation
    inputs = [lowering.inputs(entry.nodes[position]) for position in entry.parameters()]
    results = lowering.run(entry, inputs)
    write_in_place(Region(lowering, 0, 0, 0), results)
    outputs = lowering.outputs(results)
    return settled(_draft(module, lowering, inputs, outputs), lowering.moved)


def _draft(module: Module, lowering: "_Lowering", inputs: Sequence[Value], outputs: Value) -> Draft:
    parameters, shardings = parameters_of(module, module.entry_computation)
    return Draft(
        name=module.name,
        replica_count=module.replica_count,
        num_partitions=module.num_partitions,
        buffers=tuple(lowering.buffers),
        tensors=tuple(lowering.tensors),
        steps=tuple(lowering.steps),
        inputs=tuple(tensor for value in inputs for tensor in value),
        outputs=outputs,
        regions=lowering.regions.rows(),
        marks=tuple(lowering.marks),
        blocks=tuple(lowering.blocks),
        parameters=parameters,
        shardings=shardings,
    )


class _Lowering:
    """Buffers, tensors and steps made so far."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._constants: dict[bytes, int] = {}  # data → buffer
        self._unknown: dict[Span | str, int] = {}  # place in the text, or name → buffer
        self.buffers: list[DraftBuffer] = []
        self.tensors: list[DraftTensor] = []
        self.steps: list[Step] = []
        self.regions = RegionTable()
        self.marks: list[Mark] = []
        self.blocks: list[Block] = []
        self.moved: dict[int, int] = {}
        self.state: set[int] = set()
        self.depth = 0

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
                given = [values[operand] for operand in node.operands]
                values[index] = self._value(computation, node, given)
        return values[computation.root]

    def _value(self, computation: Computation, node: Node, given: Sequence[Value]) -> Value:
        operands = tuple(tensor for value in given for tensor in value)
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
            case "reshape" | "bitcast":
                return (self._view(node, operands[0]),)
            case "while":
                return lower_while(self, node, operands)
            case "conditional":
                return lower_conditional(self, node, given)
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
        self.buffers.append(DraftBuffer(name, kind, size, data))
        return len(self.buffers) - 1

    def _tensor(self, name: str, array: ArrayType, buffer: int) -> int:
        self.tensors.append(DraftTensor(name, buffer, array))
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
            self.buffers.append(DraftBuffer(node.name, BufferKind.ELIDED, size, origin=origin))
        return self._unknown[written]

    def _view(self, node: Node, operand: int) -> int:
        tensor = self.tensors[operand]
        if tensor.type == node.type:
            return operand
        return self._tensor(node.name, node.array, tensor.buffer)

    def _collective(self, node: Node, operands: Value) -> Value:
        """A trigger in the GpSimd queue; some results lie where operands do."""
        match COLLECTIVES[node.op]:
            case CollectiveOp.BARRIER:
                results = operands
            case op if op.is_counted:
                results = self.new_value(node)  # the output that it is given, with rows replaced
                self.copy(operands[1], results[0], origin_of(self._module, node))
                operands = (operands[0], *results, *operands[2:])
            case _:
                results = self.new_value(node)
        collective = placeholder_of(self._module, node, self._arrays(operands), operands, results)
        self.steps.append(
            Step(
                PTC2,
                Engine.GPSIMD,
                results,
                operands,
                origin_of(self._module, node),
                collective=collective,
            )
        )
        return results

    def _instruction(self, node: Node, operands: Value) -> Value:
        selection = SELECTORS[node.op]
        results = self.new_value(node)
        engine, attributes = selection.engine, selection.attributes(node)
        for key, name in REGIONS.get(node.op, {}).items():
            engine, attributes[name] = self._region(node, key)
        self.steps.append(
            Step(
                selection.opcode,
                engine,
                results,
                operands,
                origin_of(self._module, node),
                attributes,
                costs=costs(node, self._arrays(results), self._arrays(operands)),
            )
        )
        return results

    def _region(self, node: Node, key: str) -> tuple[Engine, AttributeValue]:
        """The engine that folds with the region, and the region's row."""
        computation = self._module.computations[node.callee(key)]
        is_simple = reduction_of(computation) is not None
        engine = SELECTORS[node.op].engine if is_simple else ANY_REGION
        return engine, self.regions.number(computation)

    def _arrays(self, value: Value) -> list[ArrayType]:
        return [self.tensors[tensor].type for tensor in value]

    def outputs(self, value: Value) -> Value:
        """The results in output buffers of their own; what cannot move there is copied."""
        found = []
        for tensor in value:
            buffer = home_of(self, tensor)
            if self.buffers[buffer].kind is BufferKind.INTERNAL:
                self.buffers[buffer] = attrs.evolve(self.buffers[buffer], kind=BufferKind.OUTPUT)
                found.append(tensor)
            else:
                found.append(self._copy_out(tensor, f"out{len(found)}"))
        return tuple(found)

    def _copy_out(self, tensor: int, name: str) -> int:
        source = self.tensors[tensor]
        size = source.type.size_bytes
        copied = self._tensor(name, source.type, self._buffer(name, BufferKind.OUTPUT, size))
        self.copy(tensor, copied, Origin(source.name))
        return copied

    def copy(self, source: int, target: int, origin: Origin) -> None:
        """Append a step that copies a tensor."""
        (array,) = self._arrays((source,))
        size = array.size_bytes
        cost = Costs(0, array.elements, size, size)
        engine = SELECTORS["copy"].engine
        self.steps.append(Step("copy", engine, (target,), (source,), origin, costs=cost))
