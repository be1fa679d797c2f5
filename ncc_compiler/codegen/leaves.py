"""Values of any type as flat lists of arrays, and where each array of a computation comes from."""

import functools
import itertools

from ncc_compiler.ir.graph import Computation, Node
from ncc_compiler.ir.ops import BARRIERS
from ncc_compiler.ir.types import ArrayType, TupleType, Type

Leaf = tuple[int, int]
"""A node's position in its computation, and which array of its value."""


def leaves(kind: Type) -> list[ArrayType]:
    """The arrays inside a type, in order; a token has none."""
    if isinstance(kind, ArrayType):
        return [kind]
    arrays: list[ArrayType] = []
    pending: list[Type] = [kind]
    while pending:
        part = pending.pop()
        if isinstance(part, ArrayType):
            arrays.append(part)
        elif isinstance(part, TupleType):
            pending.extend(reversed(part.elements))
    return arrays


@functools.lru_cache(maxsize=1024)
def _starts(kind: TupleType) -> tuple[int, ...]:
    return tuple(
        itertools.accumulate((len(leaves(element)) for element in kind.elements), initial=0)
    )


def element_span(kind: Type, index: int) -> slice:
    """Which of a tuple's arrays belong to one of its elements."""
    assert isinstance(kind, TupleType), kind
    first, last = _starts(kind)[index : index + 2]
    return slice(first, last)


_FORWARDS = BARRIERS | {"copy", "tuple"}


def sources(computation: Computation) -> list[tuple[Leaf, ...]]:
    """For each node's arrays, where they were computed: through tuples, copies and barriers."""
    known: list[tuple[Leaf, ...]] = []
    for position, node in enumerate(computation.nodes):
        known.append(_sources_of(computation, position, node, known))
    return known


def _sources_of(
    computation: Computation, position: int, node: Node, known: list[tuple[Leaf, ...]]
) -> tuple[Leaf, ...]:
    if node.op in _FORWARDS:
        return tuple(leaf for operand in node.operands for leaf in known[operand])
    if node.op == "get-tuple-element":
        (operand,), index = node.operands, node.attributes["index"]
        assert isinstance(index, int), node.name
        return known[operand][element_span(computation.nodes[operand].type, index)]
    return tuple((position, k) for k in range(len(leaves(node.type))))
