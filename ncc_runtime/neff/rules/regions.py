"""Regions: scalar bodies whose values are defined before use and whose dtypes agree."""

from collections.abc import Iterator

import numpy as np

from ncc_runtime.neff.isa import OPCODES, Shape
from ncc_runtime.neff.program import CONSTANT, Program, Region, RegionInstr
from ncc_runtime.neff.rules.rule import rule
from ncc_runtime.neff.rules.signature import Signature, scalar
from ncc_runtime.neff.rules.types import attribute_names, counts, type_breaches
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.dtypes import scalar as scalar_value

_SCALAR_SHAPES = (Shape.UNARY, Shape.BINARY, Shape.TERNARY)


@rule("neff-N7")
def values_are_defined(program: Program) -> Iterator[str]:
    """First stage: operands and results of regions are values that exist."""
    for number, region in enumerate(program.regions):
        yield from (f"region r{number}{breach}" for breach in _undefined(region))


def _undefined(region: Region) -> Iterator[str]:
    defined = len(region.parameters)
    for row in region.body:
        for operand in row.operands:
            if not 0 <= operand < defined:
                yield f", v{defined}: reads v{operand}"
        defined += 1
    for value in region.results:
        if not 0 <= value < defined:
            yield f": gives v{value}, there are {defined}"


@rule("neff-R1")
def _bodies_are_scalar(program: Program) -> Iterator[str]:
    for number, region in enumerate(program.regions):
        for position, row in enumerate(region.body):
            for breach in _breaches(region, row):
                value = len(region.parameters) + position
                yield f"region r{number}, v{value}: {row.opcode}: {breach}"


def _breaches(region: Region, row: RegionInstr) -> Iterator[str]:
    if row.opcode == CONSTANT:
        if row.operands or row.attributes or not is_spelled(row.constant, row.dtype):
            yield f"{row.constant!r} is no {row.dtype.value} value"
        return
    if row.constant is not None:
        yield f"has the value {row.constant!r}"
    if row.opcode not in OPCODES or OPCODES[row.opcode].shape not in _SCALAR_SHAPES:
        yield "is no scalar operation"
        return
    dtypes = region.value_dtypes()
    signature = Signature(
        row.opcode,
        (scalar(row.dtype),),
        tuple(scalar(dtypes[operand]) for operand in row.operands),
        row.attributes,
    )
    for breaches in (counts, attribute_names, type_breaches):
        yield from breaches(signature)


def is_spelled(text: str | None, dtype: DType) -> bool:
    """Whether a text is a scalar of the dtype."""
    if text is None or (dtype is DType.PRED and text not in ("true", "false")):
        return False
    try:
        with np.errstate(all="ignore"):
            scalar_value(text, dtype)
    except (ValueError, OverflowError):
        return False
    return True


RULES = (_bodies_are_scalar,)
