"""Fusions: a computation that one instruction performs, as rows over numbered values.

Values are the arrays of the computation: its parameters, leaf by leaf, and what the rows compute.
Scalar constants are written into the rows. Other constants have memory of their own, as they have
elsewhere, and become parameters behind those of the computation. Tuples cost nothing; reshapes are
rows that move nothing.
"""

from collections.abc import Iterable, Mapping

import attrs

from ncc_compiler.codegen.costs import checked_costs, costs
from ncc_compiler.codegen.leaves import element_span, leaves
from ncc_compiler.codegen.lowered import InstructionCosts, LoweredFusion
from ncc_compiler.codegen.parameters import origin_of
from ncc_compiler.codegen.regions import RegionTable, selected_instr, spelling
from ncc_compiler.ir.graph import Computation, Module, Node
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.durations import engine_of
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.program import (
    CONSTANT,
    AttributeValue,
    FusedInstr,
    Fusion,
    Origin,
    ValueType,
)
from ncc_runtime.neff.shared.dtypes import scalar
from ncc_runtime.neff.work import work_of_fusion

Values = tuple[int, ...]

_FORWARDS = frozenset({"tuple", "opt-barrier", "optimization-barrier"})
_READ_IN_PART = frozenset({"dynamic-slice", "gather"})


@attrs.frozen
class FusedComputation:
    """A computation as a fusion, and what its instruction has beside it."""

    fusion: LoweredFusion
    constants: tuple[Node, ...]  # operands behind those of the node
    engine: Engine
    costs: InstructionCosts


def fused_computation(
    module: Module, computation: Computation, regions: RegionTable
) -> FusedComputation:
    """The fusion that does what the computation does.

    Raises CompileError for costs that cannot be counted, and for a region that no engine runs.
    """
    rows = _Rows(module, computation, regions)
    for position, node in enumerate(computation.nodes):
        if node.op != "parameter":
            rows.add(position, node)
    results = rows.results()
    fusion = Fusion(
        name=computation.name,
        values=tuple(ValueType(kind.dtype, kind.shape) for kind in rows.types),
        parameters=rows.parameters,
        body=tuple(rows.body),
        results=results,
    )
    return FusedComputation(
        LoweredFusion(fusion, tuple(rows.origins)),
        rows.constants,
        engine_of(work_of_fusion(fusion, regions.rows())),
        _costs_of(computation, rows, results),
    )


class _Rows:
    """The rows of a fusion so far, and the values of the nodes that they compute."""

    def __init__(self, module: Module, computation: Computation, regions: RegionTable) -> None:
        self._module, self._nodes, self._regions = module, computation.nodes, regions
        self._root = computation.root
        self._values: list[Values] = [()] * len(computation.nodes)
        self.types: list[ArrayType] = []
        self.body: list[FusedInstr] = []
        self.origins: list[Origin] = []
        self.work: list[tuple[Engine, InstructionCosts]] = []  # of the rows that take time
        for position in computation.parameters():
            self._values[position] = self._new(leaves(computation.nodes[position].type))
        constants = {
            position: node
            for position, node in enumerate(computation.nodes)
            if node.op == "constant" and not _fits_into_row(node)
        }
        for at, node in constants.items():
            self._values[at] = self._new([node.array])
        self.constants = tuple(constants.values())
        self.parameters = len(self.types)

    def add(self, position: int, node: Node) -> None:
        """Append what a node does; its operands have been added."""
        operands = tuple(value for operand in node.operands for value in self._values[operand])
        match node.op:
            case "constant" if self._values[position]:  # a parameter
                return
            case "constant":
                values = self._row(node, CONSTANT, (), [node.array], constant=spelling(node))
            case "get-tuple-element":
                index = node.attributes["index"]
                assert isinstance(index, int), node.name
                values = operands[element_span(self._nodes[node.operands[0]].type, index)]
            case "reshape" | "bitcast":
                values = self._reshaped(node, operands)
            case op if op in _FORWARDS:
                values = operands
            case _:
                selected = selected_instr(self._module, node, self._regions)
                kinds, attributes = leaves(node.type), selected.attributes
                values = self._row(node, selected.opcode, operands, kinds, attributes)
                if node.op != "broadcast":  # engines read through other access patterns
                    cost = costs(node, self._arrays(values), self._arrays(operands))
                    self.work.append((selected.engine, cost))
        self._values[position] = values

    def results(self) -> Values:
        """The values of the root; what is a parameter is copied."""
        root = self._nodes[self._root]
        return tuple(
            value
            if value >= self.parameters
            else self._row(root, "copy", (value,), [self.types[value]])[0]
            for value in self._values[self._root]
        )

    def _reshaped(self, node: Node, operands: Values) -> Values:
        (source,) = self._arrays(operands)
        if source.dtype is not node.array.dtype:
            assert source.dtype.bits == node.array.dtype.bits, node.name
            same_shape = ArrayType(node.array.dtype, source.shape)
            operands = self._row(node, "bitcast-convert", operands, [same_shape])
        if source.shape == node.array.shape:
            return operands
        return self._row(node, "reshape", operands, [node.array])

    def _row(
        self,
        node: Node,
        opcode: str,
        operands: Values,
        kinds: list[ArrayType],
        attributes: Mapping[str, AttributeValue] | None = None,
        constant: str | None = None,
    ) -> Values:
        results = self._new(kinds)
        self.body.append(FusedInstr(opcode, results, operands, attributes or {}, constant=constant))
        self.origins.append(origin_of(self._module, node))
        return results

    def _new(self, kinds: list[ArrayType]) -> Values:
        first = len(self.types)
        self.types.extend(kinds)
        return tuple(range(first, len(self.types)))

    def _arrays(self, values: Values) -> list[ArrayType]:
        return [self.types[value] for value in values]


def _fits_into_row(node: Node) -> bool:
    """Whether a constant is a scalar of which its spelling keeps every bit."""
    if node.array.shape or not node.has_value():
        return False
    value = node.literal().array
    return scalar(spelling(node), node.array.dtype).tobytes() == value.tobytes()


def elements_by_engine(work: Iterable[tuple[Engine, InstructionCosts]]) -> dict[Engine, int]:
    """The elements that each engine walks over that takes part."""
    elements: dict[Engine, int] = {}
    for engine, cost in work:
        elements[engine] = elements.get(engine, 0) + cost.elements
    return elements


def busiest_engine(elements: Mapping[Engine, int]) -> Engine:
    """The engine that works longest: products on the Tensor engine take more than all else."""
    if Engine.TENSOR in elements:
        return Engine.TENSOR
    is_scalar = 2 * elements.get(Engine.SCALAR, 0) > sum(elements.values())
    return Engine.SCALAR if is_scalar else Engine.VECTOR


def _costs_of(computation: Computation, rows: _Rows, results: Values) -> InstructionCosts:
    """The work of all rows; each parameter is read once, each result is written once."""
    read = [0] * rows.parameters
    in_part = [0] * rows.parameters
    for row in rows.body:
        for place, value in enumerate(row.operands):
            if value >= rows.parameters:
                continue
            if row.opcode in _READ_IN_PART and place == 0:
                in_part[value] += rows.types[row.results[0]].size_bytes
            else:
                read[value] = rows.types[value].size_bytes
    whole = (
        max(size, min(part, kind.size_bytes))
        for size, part, kind in zip(read, in_part, rows.types, strict=False)
    )
    return checked_costs(
        f"fusion %{computation.name}",
        computation.nodes[computation.root],
        flops=sum(cost.flops for _, cost in rows.work),
        elements=sum(cost.elements for _, cost in rows.work),
        bytes_in=sum(whole),
        bytes_out=sum(rows.types[value].size_bytes for value in results),
    )
