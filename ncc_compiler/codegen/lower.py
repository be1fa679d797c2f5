"""The graph as steps over buffers, in program order.

A node's value is a flat tuple of tensors: one for an array, the leaves in order for a tuple, none
for a token. So tuples cost nothing, and neither do reshapes, which are views.
"""

import attrs

from ncc_compiler.codegen.collectives import placeholder_of
from ncc_compiler.codegen.costs import costs
from ncc_compiler.codegen.draft import Costs, Draft, DraftBuffer, DraftTensor, Step
from ncc_compiler.codegen.origins import origin_of
from ncc_compiler.codegen.regions import RegionTable
from ncc_compiler.codegen.select import ANY_REGION, COLLECTIVES, SELECTORS
from ncc_compiler.diagnostics import CompileError, Diagnostic
from ncc_compiler.ir.collectives import reduction_of
from ncc_compiler.ir.graph import Module, Node
from ncc_compiler.ir.types import ArrayType, TupleType, Type
from ncc_runtime.neff.isa import PTC2, Engine
from ncc_runtime.neff.program import AttributeValue, BufferKind, Origin

Value = tuple[int, ...]  # tensors

_MOST_BUFFER_BYTES = 2**44  # far above any HBM; sums of addresses stay within 64 bits


def lower(module: Module) -> Draft:
    """The entry computation as a draft; calls are inlined and collectives canonical by now."""
    lowering = _Lowering(module)
    entry = module.entry_computation
    for position in entry.parameters():
        lowering.visit(position, entry.nodes[position])
    for index, node in enumerate(entry.nodes):
        if node.op != "parameter":
            lowering.visit(index, node)
    inputs = [tensor for p in entry.parameters() for tensor in lowering.values[p]]
    outputs = lowering.outputs(lowering.values[entry.root])
    return Draft(
        name=module.name,
        replica_count=module.replica_count,
        num_partitions=module.num_partitions,
        buffers=tuple(lowering.buffers),
        tensors=tuple(lowering.tensors),
        steps=tuple(lowering.steps),
        inputs=tuple(inputs),
        outputs=outputs,
        regions=lowering.regions.rows(),
    )


def leaves(kind: Type) -> list[ArrayType]:
    """The arrays inside a type, in order."""
    found: list[ArrayType] = []
    pending = [kind]
    while pending:
        one = pending.pop()
        if isinstance(one, ArrayType):
            found.append(one)
        elif isinstance(one, TupleType):
            pending.extend(reversed(one.elements))
    return found


class _Lowering:
    """Buffers, tensors and steps made so far."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._nodes = module.entry_computation.nodes
        self._constants: dict[bytes, int] = {}  # data → buffer
        self._leaf_starts: dict[Type, list[int]] = {}
        self.values: list[Value] = [()] * len(self._nodes)
        self.buffers: list[DraftBuffer] = []
        self.tensors: list[DraftTensor] = []
        self.steps: list[Step] = []
        self.regions = RegionTable()

    def visit(self, position: int, node: Node) -> None:
        operands = tuple(t for operand in node.operands for t in self.values[operand])
        self.values[position] = self._value(node, operands)

    def _value(self, node: Node, operands: Value) -> Value:
        match node.op:
            case "parameter":
                return self._new_value(node, BufferKind.INPUT)
            case "constant":
                return (self._constant(node),)
            case "tuple":
                return operands
            case "get-tuple-element":
                return self._element(node, operands)
            case "reshape":
                return (self._view(node, operands[0]),)
        if node.op in COLLECTIVES:
            return self._collective(node, operands)
        return self._instruction(node, operands)

    def _new_value(self, node: Node, kind: BufferKind) -> Value:
        """A buffer and a tensor for every array of the node's type."""
        arrays = leaves(node.type)
        for array in arrays:
            if array.size_bytes > _MOST_BUFFER_BYTES:
                text = f"{array} takes {array.size_bytes} bytes, the limit is {_MOST_BUFFER_BYTES}"
                raise CompileError([Diagnostic("codegen-C3", text, node.span)])
        names = [f"{node.name}.{k}" for k in range(len(arrays))]
        if len(arrays) == 1:
            names = [node.name]
        return tuple(
            self._tensor(name, array, self._buffer(name, kind, array.size_bytes))
            for name, array in zip(names, arrays, strict=True)
        )

    def _buffer(self, name: str, kind: BufferKind, size: int, data: bytes | None = None) -> int:
        self.buffers.append(DraftBuffer(name, kind, size, data))
        return len(self.buffers) - 1

    def _tensor(self, name: str, array: ArrayType, buffer: int) -> int:
        self.tensors.append(DraftTensor(name, buffer, array))
        return len(self.tensors) - 1

    def _constant(self, node: Node) -> int:
        data = node.literal().array.tobytes()
        if data not in self._constants:
            buffer = self._buffer(node.name, BufferKind.CONSTANT, len(data), data)
            self._constants[data] = buffer
        return self._tensor(node.name, node.array, self._constants[data])

    def _view(self, node: Node, operand: int) -> int:
        tensor = self.tensors[operand]
        if tensor.type == node.type:
            return operand
        return self._tensor(node.name, node.array, tensor.buffer)

    def _element(self, node: Node, operands: Value) -> Value:
        """The leaves of one element of a tuple."""
        kind, index = self._nodes[node.operands[0]].type, node.integer("index")
        assert isinstance(kind, TupleType), node.name
        if kind not in self._leaf_starts:
            starts = [0]
            for element in kind.elements:
                starts.append(starts[-1] + len(leaves(element)))
            self._leaf_starts[kind] = starts
        starts = self._leaf_starts[kind]
        return operands[starts[index] : starts[index + 1]]

    def _collective(self, node: Node, operands: Value) -> Value:
        """A trigger in the GpSimd queue."""
        results = self._new_value(node, BufferKind.INTERNAL)
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
        results = self._new_value(node, BufferKind.INTERNAL)
        engine, attributes = selection.engine, selection.attributes(node)
        if node.op == "reduce":
            engine, region = self._region(node)
            attributes["region"] = region
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

    def _region(self, node: Node) -> tuple[Engine, AttributeValue]:
        """The engine that folds with the region, and the region's row."""
        computation = self._module.computations[node.callee()]
        is_simple = reduction_of(computation) is not None
        engine = SELECTORS[node.op].engine if is_simple else ANY_REGION
        return engine, self.regions.number(computation)

    def _arrays(self, value: Value) -> list[ArrayType]:
        return [self.tensors[tensor].type for tensor in value]

    def outputs(self, value: Value) -> Value:
        """The results in output buffers of their own; what cannot move there is copied."""
        found = []
        for tensor in value:
            buffer = self.tensors[tensor].buffer
            if self.buffers[buffer].kind is BufferKind.INTERNAL:
                self.buffers[buffer] = attrs.evolve(self.buffers[buffer], kind=BufferKind.OUTPUT)
                found.append(tensor)
            else:
                found.append(self._copy_out(tensor, f"out{len(found)}"))
        return tuple(found)

    def _copy_out(self, tensor: int, name: str) -> int:
        source = self.tensors[tensor]
        array, size = source.type, source.type.size_bytes
        copied = self._tensor(name, array, self._buffer(name, BufferKind.OUTPUT, size))
        self.steps.append(
            Step(
                "copy",
                SELECTORS["copy"].engine,
                (copied,),
                (tensor,),
                Origin(source.name),
                costs=Costs(0, array.elements, size, size),
            )
        )
        return copied
