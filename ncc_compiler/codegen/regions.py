"""Scalar computations: the regions of folds."""

from ncc_compiler.codegen.select import SELECTORS
from ncc_compiler.diagnostics import CompileError, Diagnostic
from ncc_compiler.ir.graph import Computation, Node
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.program import Region, RegionInstr


class RegionTable:
    """Regions of a program, each once, however many computations say the same."""

    def __init__(self) -> None:
        self._regions: list[Region] = []
        self._known: dict[object, int] = {}

    def number(self, computation: Computation) -> int:
        """The row of the region that does what the computation does."""
        region = region_of(computation)
        key = _meaning(region)
        if key not in self._known:
            self._known[key] = len(self._regions)
            self._regions.append(region)
        return self._known[key]

    def rows(self) -> tuple[Region, ...]:
        return tuple(self._regions)


def _meaning(region: Region) -> object:
    body = tuple(
        (row.opcode, row.operands, row.dtype, tuple(sorted(row.attributes.items())), row.constant)
        for row in region.body
    )
    return region.parameters, body, region.results


# Between scalars these change nothing.
_SCALAR_IDENTITIES = frozenset({"broadcast", "copy", "reshape", "transpose"})


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
        if node.op == "tuple" or node.op in _SCALAR_IDENTITIES:
            values[index] = operands
        elif node.op == "get-tuple-element":
            values[index] = (operands[node.integer("index")],)
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
        return RegionInstr("constant", (), _scalar(node), constant=_spelling(node))
    selection = SELECTORS.get(node.op)
    if selection is None:
        raise _refused(node, f"a region cannot run {node.op}")
    return RegionInstr(selection.opcode, operands, _scalar(node), selection.attributes(node))


def _scalar(node: Node) -> DType:
    if not isinstance(node.type, ArrayType) or node.type.shape:
        raise _refused(node, f"a region computes with scalars, not with {node.type}")
    return node.type.dtype


def _refused(node: Node, message: str) -> CompileError:
    return CompileError([Diagnostic("codegen-C1", message, node.span)])


def _spelling(node: Node) -> str:
    """The shortest text that reads back as the same value."""
    value = node.literal().array.item()
    if isinstance(value, complex):
        return f"({value.real!r}, {value.imag!r})"
    return str(value).lower() if isinstance(value, bool) else repr(value)
