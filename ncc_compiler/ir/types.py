"""Types of graph values: arrays, tuples of them, and tokens."""

import functools
import math
from collections.abc import Sequence
from typing import TypeAlias

import attrs

from ncc_runtime.neff.shared.dtypes import DType


@attrs.frozen(cache_hash=True)
class ArrayType:
    """A dense array; layouts carry no meaning for values and are not kept here."""

    dtype: DType
    shape: tuple[int, ...] = ()

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @functools.cached_property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)

    @functools.cached_property
    def size_bytes(self) -> int:
        """Bytes of the dense array."""
        return self.elements * self.dtype.size_bytes

    def __str__(self) -> str:
        return f"{self.dtype.value}[{','.join(map(str, self.shape))}]"


@attrs.frozen(cache_hash=True)
class TupleType:
    """A tuple of values, possibly nested."""

    elements: tuple["Type", ...]

    def __str__(self) -> str:
        return f"({', '.join(map(str, self.elements))})"


@attrs.frozen
class TokenType:
    """An ordering token; it has no data."""

    def __str__(self) -> str:
        return "token[]"


Type: TypeAlias = ArrayType | TupleType | TokenType


def element_type(kind: Type, path: Sequence[int]) -> Type:
    """The type of an element of nested tuples; `path` has the outermost index first."""
    for index in path:
        assert isinstance(kind, TupleType), kind
        kind = kind.elements[index]
    return kind
