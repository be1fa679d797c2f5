"""The types and attributes of one instruction, and checks that most type rules share."""

from collections.abc import Iterator, Mapping

import attrs

from ncc_runtime.neff.program import AttributeValue, Fusion, Region, Typed, ValueType
from ncc_runtime.neff.shared.dtypes import DType


@attrs.frozen
class Signature:
    """An opcode with its attributes and types; many instructions have equal ones."""

    opcode: str
    results: tuple[Typed, ...]
    operands: tuple[Typed, ...]
    attributes: Mapping[str, AttributeValue] = attrs.field(factory=dict)
    regions: tuple[Region, ...] = ()
    fusions: tuple[Fusion, ...] = ()

    def integers(self, name: str) -> tuple[int, ...]:
        """An attribute that is a list of integers; rule neff-T2 has seen that it is there."""
        value = self.attributes[name]
        assert isinstance(value, tuple), (self.opcode, name, value)
        return value

    def text(self, name: str) -> str:
        """An attribute that is a text."""
        value = self.attributes[name]
        assert isinstance(value, str), (self.opcode, name, value)
        return value

    def integer(self, name: str) -> int:
        """An attribute that is one integer."""
        value = self.attributes[name]
        assert isinstance(value, int), (self.opcode, name, value)
        return value


def scalar(dtype: DType) -> ValueType:
    """The type of a value inside a region."""
    return ValueType(dtype)


def shape_differs(result: Typed, expected: tuple[int, ...]) -> Iterator[str]:
    """Complain if a result has another shape than its operands make it."""
    if result.shape != expected:
        yield f"result is {result.type_text}, operands make [{','.join(map(str, expected))}]"


def dtype_differs(result: Typed, expected: DType) -> Iterator[str]:
    """Complain if a result has another dtype than its operands make it."""
    if result.dtype is not expected:
        yield f"result is {result.type_text}, operands make {expected.value}"


def not_distinct_below(what: str, dimensions: tuple[int, ...], rank: int) -> Iterator[str]:
    """Complain unless these are distinct dimensions of an array of that rank."""
    if len(set(dimensions)) < len(dimensions) or not all(0 <= d < rank for d in dimensions):
        yield f"{what} [{','.join(map(str, dimensions))}] are not distinct dimensions of {rank}"
