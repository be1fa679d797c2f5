"""Instructions written as a line, and what the rules of types say about them."""

import re

from ncc_runtime.neff.program import AttributeValue, BufferId, Region, RegionInstr, Tensor
from ncc_runtime.neff.rules.signature import Signature
from ncc_runtime.neff.rules.types import attribute_names, counts, type_breaches
from ncc_runtime.neff.shared.dtypes import DType

SUM = Region("sum", (DType.F32,) * 2, (RegionInstr("add", (0, 1), DType.F32),), (2,))
NOT_LESS = Region(
    "ge",
    (DType.F32,) * 2,
    (RegionInstr("compare", (0, 1), DType.PRED, {"direction": "GE"}),),
    (2,),
)


def signature(
    opcode: str,
    types: str,
    attributes: dict[str, AttributeValue],
    regions: tuple[Region, ...] = (SUM,),
) -> Signature:
    """The instruction of a line such as `f32[2] = f32[2,3] f32[]`."""
    results, _, operands = types.partition("=")
    return Signature(opcode, _tensors(results), _tensors(operands), attributes, regions)


def _tensors(text: str) -> tuple[Tensor, ...]:
    return tuple(
        Tensor("", BufferId(0), DType(dtype), tuple(map(int, re.findall(r"\d+", shape))))
        for dtype, shape in re.findall(r"(\w+)\[([\d,]*)\]", text)
    )


def breaches(one: Signature) -> list[str]:
    return [*counts(one), *attribute_names(one), *type_breaches(one)]
