"""Matrix products and convolutions of a program: how many flops, and of which type."""

import math
from collections.abc import Iterator, Mapping, Sequence

import attrs

from ncc_runtime.neff.isa import OPCODES, Shape
from ncc_runtime.neff.program import AttributeValue, Program, TensorId
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.windows import read_labels
from ncc_runtime.neff.table import NONE, Instr
from ncc_runtime.neff.work.dataflow import Dataflow
from ncc_runtime.neff.work.tensor_engine import wider

PRODUCTS = frozenset(name for name, row in OPCODES.items() if row.shape is Shape.CONTRACT)
"""Opcodes that sum products over an index."""

Sizes = tuple[int, ...]
"""A shape."""


@attrs.frozen
class Product:
    """A matrix product or convolution of an instruction, which has several if it is a fusion."""

    opcode: str
    dtype: DType  # in which it is computed, which sets the speed
    flops: int
    origin: int  # row of Program.origins, or NONE


def products_of(program: Program, instr: Instr) -> Iterator[Product]:
    """The products that an instruction computes, in order."""
    if instr.opcode in PRODUCTS:
        left, right = (program.tensors[TensorId(operand)].dtype for operand in instr.operands[:2])
        yield Product(instr.opcode, wider(left, right), instr.flops, instr.origin)
    elif fusion := program.fusion_of(instr):
        if not any(row.opcode in PRODUCTS for row in fusion.body):
            return
        flow = Dataflow(
            fusion.values, fusion.parameters, fusion.body, fusion.results, program.regions
        )
        for row in fusion.body:
            if row.opcode in PRODUCTS:
                operands = fusion.types(row.operands)
                multiplied = multiply_adds(
                    row.opcode,
                    row.attributes,
                    fusion.values[row.results[0]].shape,
                    [operand.shape for operand in operands],
                )
                origin = instr.origin if row.origin == NONE else row.origin
                yield Product(row.opcode, flow.multiplied_as(row), 2 * multiplied, origin)


def multiply_adds(
    opcode: str, attributes: Mapping[str, AttributeValue], result: Sizes, operands: Sequence[Sizes]
) -> int:
    """Multiplications of the Tensor engine, each with an addition; 0 of what is no product."""

    def listed(name: str) -> tuple[int, ...]:
        value = attributes[name]
        assert isinstance(value, tuple), name
        return value

    match opcode:
        case "dot":  # for each element of the result, one for each contracted index
            contracted = (operands[0][d] for d in listed("lhs_contracting"))
            return math.prod(result) * math.prod(contracted)
        case "ragged-dot":
            # For each left element, one for each column of its group's right matrix: as if every
            # index of the ragged dimension were in a group.
            names = ("rhs_batch", "rhs_contracting", "rhs_group")
            not_columns = [d for name in names for d in listed(name)]
            columns = (size for d, size in enumerate(operands[1]) if d not in not_columns)
            return math.prod(operands[0]) * math.prod(columns)
        case "convolution":  # for each element of the result, one for each element of its kernel
            labels, kernel = read_labels(str(attributes["dim_labels"])), operands[1]
            features = kernel[labels.kernel_dimensions[1]]
            return math.prod(result) * (math.prod(kernel) // max(1, features))
    return 0
