"""The interface of type rules (XLA: shape inference), and checks that several subjects share.

A type rule is a generator. It yields a Complaint for each broken rule of the op and returns the
type of the result, or None if it cannot be inferred; so it both checks and infers.
"""

from collections.abc import Callable, Generator, Sequence
from typing import TypeAlias

import attrs

from ncc_compiler.ir.graph import Attribute, Computation, Module, Node
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.rules import Complaint, NodePart, Place, rule_of
from ncc_compiler.ir.types import ArrayType, TupleType, Type
from ncc_runtime.neff.shared.dtypes import DType

Inference: TypeAlias = Generator[Complaint, None, Type | None]
"""Yields complaints and returns the type of the result, or None."""

TypeRule: TypeAlias = "Callable[[InferenceContext], Inference]"


@attrs.frozen(eq=False)
class InferenceContext:
    """A node, the types of its operands, and the module around it.

    Type rules may rely on the generic rules, which were checked before: the number of operands,
    required attributes, arrays where the op takes arrays.
    """

    module: Module
    node: Node
    operands: tuple[Type, ...]

    @property
    def arrays(self) -> tuple[ArrayType, ...]:
        """The operands of an op that takes arrays only."""
        return tuple(kind for kind in self.operands if isinstance(kind, ArrayType))

    def complain(
        self, number: int, message: str, at: Place = NodePart.OP, hint: str = ""
    ) -> Complaint:
        """Rule `<op>-C<number>` is broken."""
        return Complaint(f"{self.node.op}-C{number}", message, at, hint)

    def complain_of(
        self, rule: str, message: str, at: Place = NodePart.OP, hint: str = ""
    ) -> Complaint:
        """The op's rule with this sentence is broken."""
        return Complaint(rule_of(self.node.op, rule), message, at, hint)

    def attribute(self, key: str) -> Attribute | None:
        return self.node.attributes.get(key)

    def callee(self, key: str = "to_apply") -> Computation | None:
        """The computation that an attribute names; None if it has errors."""
        return self.computation(self.node.callee(key))

    def computation(self, name: str) -> Computation | None:
        """A computation of the module; None if it has errors."""
        callee = self.module.computations.get(name)
        if callee is None or not callee.nodes or any(node.op not in OPS for node in callee.nodes):
            return None
        return callee


def parameter_types(computation: Computation) -> list[Type]:
    """Types of the parameters by number."""
    return [computation.nodes[position].type for position in computation.parameters()]


def result_type(computation: Computation) -> Type:
    """The type of the root."""
    return computation.nodes[computation.root].type


def check_region(
    ctx: InferenceContext,
    number: int,
    takes: Sequence[Type],
    returns: Type,
    key: str = "to_apply",
) -> Inference:
    """Rule `number`: the computation that attribute `key` names takes and returns these types."""
    callee = ctx.callee(key)
    if callee is None:
        return None
    parameters, result = parameter_types(callee), result_type(callee)
    if parameters != list(takes) or result != returns:
        fact = (
            f"%{callee.name} takes ({listed(parameters)}) and returns {result}; "
            f"({listed(takes)}) and {returns} are needed"
        )
        yield ctx.complain(number, fact, key)
    return returns


def listed(kinds: Sequence[Type]) -> str:
    """The types as messages list them."""
    return ", ".join(map(str, kinds))


def without_dimension(shape: tuple[int, ...], dimension: int) -> tuple[int, ...]:
    """The sizes of all other dimensions."""
    return shape[:dimension] + shape[dimension + 1 :]


def one_or_tuple(kinds: Sequence[Type]) -> Type:
    """The result of an op that gives one value for each operand."""
    return kinds[0] if len(kinds) == 1 else TupleType(tuple(kinds))


def is_real(dtype: DType) -> bool:
    """Whether elements are integers or floats."""
    return dtype.is_integer or dtype.is_float


def is_inexact(dtype: DType) -> bool:
    """Whether elements are floats or complex numbers."""
    return dtype.is_float or dtype.is_complex


def are_distinct_dimensions(dimensions: Sequence[int], rank: int) -> bool:
    """Whether these are dimensions of an array of this rank, none twice."""
    return len(set(dimensions)) == len(dimensions) and all(0 <= d < rank for d in dimensions)
