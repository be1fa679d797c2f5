"""Fusions: a computation that one instruction performs, as rows over numbered values.

Values are the arrays of the computation: its parameters, leaf by leaf, and what the rows compute.
Scalar constants are written into the rows. Other constants have memory of their own, as they have
elsewhere, and become parameters behind those of the computation. Tuples cost nothing; reshapes are
rows that move nothing.
"""

import functools
import operator
from collections.abc import Mapping, Sequence
from weakref import WeakValueDictionary

import attrs

from ncc_compiler.codegen.costs import READ_IN_PART, checked_costs, costs
from ncc_compiler.codegen.leaves import element_span, leaves
from ncc_compiler.codegen.lowered import InstructionCosts, LoweredFusion
from ncc_compiler.codegen.parameters import origin_of
from ncc_compiler.codegen.regions import (
    RegionTable,
    region_key,
    region_of,
    selected_instr,
    spelling,
)
from ncc_compiler.codegen.select import REGIONS
from ncc_compiler.ir.graph import Callee, Computation, Module, Node, SourceFrame
from ncc_compiler.ir.ops import BARRIERS
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.durations import engine_of
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.program import (
    CONSTANT,
    AttributeValue,
    FusedInstr,
    Fusion,
    ValueType,
)
from ncc_runtime.neff.shared.dtypes import scalar
from ncc_runtime.neff.shared.identity_memo import IdentityMemo
from ncc_runtime.neff.work.instructions import phases_of_fusion

Values = tuple[int, ...]

_FORWARDS = BARRIERS | {"tuple"}


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
    called = tuple([module.computations[name] for name in computation.called])
    numbers = tuple([regions.number(region) for region in called])
    known = _KNOWN.get(computation)
    if known is not None and known.is_for(module, called, numbers):
        return known.fused
    rows = _rows_of(module, computation, called)
    fusion = Fusion(
        name=computation.name,
        values=rows.values,
        parameters=rows.parameters,
        body=tuple([_renumbered(row, numbers) for row in rows.body]) if numbers else rows.body,
        results=rows.results,
    )
    nodes = computation.nodes
    fused = FusedComputation(
        LoweredFusion(fusion, tuple([origin_of(module, nodes[node]) for node in rows.nodes])),
        tuple([nodes[constant] for constant in rows.constants]),
        rows.engine,
        rows.costs,
    )
    _KNOWN.set(computation, _Known(fused, rows, module.frames, called, numbers))
    return fused


@attrs.frozen
class _Known:
    """The fusion that a computation was, and all that this depended on beside it."""

    fused: FusedComputation
    rows: "FusedRows"  # kept for computations that are alike
    frames: Mapping[int, SourceFrame]
    called: tuple[Computation, ...]
    numbers: tuple[int, ...]

    def is_for(
        self, module: Module, called: Sequence[Computation], numbers: tuple[int, ...]
    ) -> bool:
        """Whether it is the same in this module, where its regions are these."""
        is_same = all(map(operator.is_, self.called, called))
        return is_same and self.numbers == numbers and self.frames is module.frames


_REGION_NUMBERS = frozenset(name for names in REGIONS.values() for name in names.values())


def _renumbered(row: FusedInstr, numbers: Sequence[int]) -> FusedInstr:
    """The row with its regions' numbers in the program."""
    if _REGION_NUMBERS.isdisjoint(row.attributes):
        return row
    attributes = dict(row.attributes)
    for name in _REGION_NUMBERS & attributes.keys():
        number = attributes[name]
        assert isinstance(number, int), row.opcode
        attributes[name] = numbers[number]
    return attrs.evolve(row, attributes=attributes)


@attrs.frozen
class FusedRows:
    """What a computation does, without names: what it has in common with all that do the same."""

    values: tuple[ValueType, ...]
    parameters: int
    body: tuple[FusedInstr, ...]  # with regions by their places among those that are called
    results: Values
    nodes: tuple[int, ...]  # by row, the position of the node that it is from
    constants: tuple[int, ...]  # positions
    engine: Engine
    costs: InstructionCosts


# Models repeat their layers, and a program is lowered more than once, to know its memory.
_KNOWN = IdentityMemo[Computation, _Known]()
_ALIKE: WeakValueDictionary[object, FusedRows] = WeakValueDictionary()


def _rows_of(
    module: Module, computation: Computation, called: tuple[Computation, ...]
) -> FusedRows:
    """The rows of a computation, with regions by their places among those that it calls."""
    places = {region.name: place for place, region in enumerate(called)}
    key = (
        tuple([_what_it_does(node, places) for node in computation.nodes]),
        computation.root,
        tuple(map(region_key, map(region_of, called))),
    )
    rows = _ALIKE.get(key)
    if rows is None:
        rows = _ALIKE[key] = _made_rows(module, computation, called)
    return rows


def _what_it_does(node: Node, places: Mapping[str, int]) -> object:
    """All that the rows of a node depend on."""
    attributes = tuple(
        [
            (key, places[value.name] if isinstance(value, Callee) else value)
            for key, value in node.attributes.items()
            if key not in _DESCRIPTIONS
        ]
    )
    return node.op, node.type, node.operands, attributes


_DESCRIPTIONS = frozenset({"frontend_attributes", "metadata", "sharding"})


def _made_rows(
    module: Module, computation: Computation, called: tuple[Computation, ...]
) -> FusedRows:
    rows = _Rows(module, computation, called)
    for position, node in enumerate(computation.nodes):
        if node.op != "parameter":
            rows.add(position, node)
    results = rows.results()
    values = tuple(map(_value_type, rows.types))
    body = tuple(rows.body)
    fusion = Fusion(computation.name, values, rows.parameters, body, results)
    return FusedRows(
        values,
        rows.parameters,
        body,
        results,
        tuple(rows.nodes),
        rows.constants,
        engine_of(phases_of_fusion(fusion, [region_of(region) for region in called])),
        _costs_of(computation, rows, results),
    )


@functools.lru_cache(maxsize=1024)
def _value_type(kind: ArrayType) -> ValueType:
    return ValueType(kind.dtype, kind.shape)


class _Rows:
    """The rows of a fusion so far, and the values of the nodes that they compute."""

    def __init__(
        self, module: Module, computation: Computation, called: tuple[Computation, ...]
    ) -> None:
        self._module, self._nodes = module, computation.nodes
        self._places = {region.name: place for place, region in enumerate(called)}
        self._root = computation.root
        self._values: list[Values] = [()] * len(computation.nodes)
        self.types: list[ArrayType] = []
        self.body: list[FusedInstr] = []
        self.nodes: list[int] = []  # by row
        self.work: list[tuple[Engine, InstructionCosts]] = []  # of the rows that take time
        for position in computation.parameters():
            self._values[position] = self._new(leaves(computation.nodes[position].type))
        self.constants = tuple(
            [
                position
                for position, node in enumerate(computation.nodes)
                if node.op == "constant" and not _fits_into_row(node)
            ]
        )
        for at in self.constants:
            self._values[at] = self._new([computation.nodes[at].array])
        self.parameters = len(self.types)

    def add(self, position: int, node: Node) -> None:
        """Append what a node does; its operands have been added."""
        operands = tuple(value for operand in node.operands for value in self._values[operand])
        match node.op:
            case "constant" if self._values[position]:  # a parameter
                return
            case "constant":
                values = self._row(position, CONSTANT, (), [node.array], constant=spelling(node))
            case "get-tuple-element":
                index = node.attributes["index"]
                assert isinstance(index, int), node.name
                values = operands[element_span(self._nodes[node.operands[0]].type, index)]
            case "reshape" | "bitcast":
                values = self._reshaped(position, operands)
            case op if op in _FORWARDS:
                values = operands
            case _:
                selected = selected_instr(
                    self._module, node, lambda region: self._places[region.name]
                )
                kinds, attributes = leaves(node.type), selected.attributes
                values = self._row(position, selected.opcode, operands, kinds, attributes)
                if node.op != "broadcast":  # engines read through other access patterns
                    cost = costs(node, self._arrays(values), self._arrays(operands))
                    self.work.append((selected.engine, cost))
        self._values[position] = values

    def results(self) -> Values:
        """The values of the root; what is a parameter is copied."""
        return tuple(
            value
            if value >= self.parameters
            else self._row(self._root, "copy", (value,), [self.types[value]])[0]
            for value in self._values[self._root]
        )

    def _reshaped(self, position: int, operands: Values) -> Values:
        node = self._nodes[position]
        (source,) = self._arrays(operands)
        if source.dtype is not node.array.dtype:
            assert source.dtype.bits == node.array.dtype.bits, node.name
            same_shape = ArrayType(node.array.dtype, source.shape)
            operands = self._row(position, "bitcast-convert", operands, [same_shape])
        if source.shape == node.array.shape:
            return operands
        return self._row(position, "reshape", operands, [node.array])

    def _row(
        self,
        position: int,
        opcode: str,
        operands: Values,
        kinds: list[ArrayType],
        attributes: Mapping[str, AttributeValue] | None = None,
        constant: str | None = None,
    ) -> Values:
        results = self._new(kinds)
        self.body.append(FusedInstr(opcode, results, operands, attributes or {}, constant=constant))
        self.nodes.append(position)
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


def _costs_of(computation: Computation, rows: _Rows, results: Values) -> InstructionCosts:
    """The work of all rows; each parameter is read once, each result is written once."""
    read = [0] * rows.parameters
    in_part = [0] * rows.parameters
    for row in rows.body:
        for place, value in enumerate(row.operands):
            if value >= rows.parameters:
                continue
            if row.opcode in READ_IN_PART and place == 0:
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
