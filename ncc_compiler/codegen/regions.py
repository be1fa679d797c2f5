"""Regions: the scalar computations that instructions apply to elements; scalars as text."""

import math
from collections.abc import Callable, Mapping

import attrs

from ncc_compiler.codegen.leaves import element_span
from ncc_compiler.codegen.select import ANY_REGION, REGIONS, SELECTORS, engine_of
from ncc_compiler.diagnostics import CompileError, Diagnostic
from ncc_compiler.ir.collectives import reduction_of
from ncc_compiler.ir.graph import Computation, Module, Node
from ncc_compiler.ir.ops import BARRIERS
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.isa import OPCODES, Engine, Shape
from ncc_runtime.neff.program import CONSTANT, AttributeValue, Region, RegionInstr
from ncc_runtime.neff.shared.dtypes import DType


@attrs.frozen
class SelectedInstr:
    """What runs a node: an opcode, the engine whose queue it is put into, and its attributes."""

    opcode: str
    engine: Engine
    attributes: Mapping[str, AttributeValue]


def selected_instr(
    module: Module, node: Node, number_of: Callable[[Computation], int]
) -> SelectedInstr:
    """The instruction of a node; `number_of` gives the numbers of regions."""
    selection = SELECTORS[node.op]
    engine, attributes = engine_of(node), selection.attributes(node)
    for key, name in REGIONS.get(node.op, {}).items():
        computation = module.computations[node.callee(key)]
        # The last region decides where there are two: of a select-and-scatter the scatter.
        engine = ANY_REGION if reduction_of(computation) is None else selection.engine
        attributes[name] = number_of(computation)
    return SelectedInstr(selection.opcode, engine, attributes)


def region_key(region: Region) -> object:
    """What a region has in common with those that do the same."""
    body = tuple(
        (row.opcode, row.operands, row.dtype, *sorted(row.attributes.items()), row.constant)
        for row in region.body
    )
    return region.parameters, body, region.results


class RegionTable:
    """Regions of a program, each once, however many computations say the same."""

    def __init__(self) -> None:
        self._regions: list[Region] = []
        self._known: dict[object, int] = {}

    def number(self, computation: Computation) -> int:
        """The row of the region that does what the computation does."""
        region = region_of(computation)
        key = region_key(region)
        if key not in self._known:
            self._known[key] = len(self._regions)
            self._regions.append(region)
        return self._known[key]

    def rows(self) -> tuple[Region, ...]:
        return tuple(self._regions)


# Between scalars these change nothing.
_IDENTITIES = BARRIERS | {"broadcast", "copy", "reshape", "transpose", "tuple"}
_SCALAR_SHAPES = (Shape.UNARY, Shape.BINARY, Shape.TERNARY)
_SAME_BITS = SELECTORS["bitcast-convert"]


def region_of(computation: Computation) -> Region:
    """The computation over scalars as numbered values, parameters first."""
    parameters = computation.parameters()
    values: list[tuple[int, ...]] = [()] * len(computation.nodes)
    for number, position in enumerate(parameters):
        values[position] = (number,)
    body: list[RegionInstr] = []
    for index, node in enumerate(computation.nodes):
        operands = tuple(value for operand in node.operands for value in values[operand])
        if node.op == "parameter":
            continue
        if node.op in _IDENTITIES:
            values[index] = operands
        elif node.op == "get-tuple-element":
            element = node.attributes["index"]
            assert isinstance(element, int), node.name
            kind = computation.nodes[node.operands[0]].type
            values[index] = operands[element_span(kind, element)]
        else:
            values[index] = (len(parameters) + len(body),)
            body.append(_region_instr(node, operands))
    return Region(
        name=computation.name,
        parameters=tuple(_scalar(computation.nodes[position]) for position in parameters),
        body=tuple(body),
        results=values[computation.root],
    )


def _region_instr(node: Node, operands: tuple[int, ...]) -> RegionInstr:
    if node.op == "constant":
        return RegionInstr(CONSTANT, (), _scalar(node), constant=spelling(node))
    selection = _SAME_BITS if node.op == "bitcast" else SELECTORS.get(node.op)
    if selection is None or OPCODES[selection.opcode].shape not in _SCALAR_SHAPES:
        raise _refused(node, f"a region cannot run {node.op}")
    return RegionInstr(selection.opcode, operands, _scalar(node), selection.attributes(node))


def _scalar(node: Node) -> DType:
    if not isinstance(node.type, ArrayType) or node.type.shape:
        raise _refused(node, f"a region computes with scalars, not with {node.type}")
    return node.type.dtype


def _refused(node: Node, message: str) -> CompileError:
    return CompileError([Diagnostic("codegen-C1", message, node.span)])


def spelling(node: Node) -> str:
    """The shortest text that reads back as the same value; of a NaN its sign is unchanged."""
    value = node.literal().array.item()
    if isinstance(value, complex):
        return f"({_float(value.real)}, {_float(value.imag)})"
    if isinstance(value, float):
        return _float(value)
    return str(value).lower() if isinstance(value, bool) else str(int(value))


def _float(value: float) -> str:
    if math.isnan(value):
        return "-nan" if math.copysign(1, value) < 0 else "nan"
    return repr(value)
