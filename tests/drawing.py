"""A graph while it is being drawn: nodes, and what is known of each value.

Two right answers may differ where floats are summed in another order, so each value carries how
large it can be and how far two right answers can lie apart. A comparison then has a tolerance that
is argued, and ops that jump (floor, compare) are only drawn on values that have one right answer.
"""

import math
from collections.abc import Callable, Sequence

import attrs
import numpy as np
from hypothesis import strategies as st

from ncc_compiler.ir.graph import Attribute, Callee, Computation, Literal, Node, NodeId
from ncc_compiler.ir.types import ArrayType, TupleType, Type
from ncc_runtime.neff.shared.dtypes import DType

EPSILON = {DType.F32: 2.0**-23, DType.F16: 2.0**-10, DType.BF16: 2.0**-7}
FLOATS = tuple(EPSILON)
INTEGERS = (DType.S32, DType.U32, DType.S8, DType.U8)
LARGEST = 1000.0
MOST_ELEMENTS = 2048


@attrs.frozen
class Value:
    """An array of the graph: |x| <= bound, and right answers lie within `error` of each other."""

    node: NodeId
    type: ArrayType
    bound: float = 0.0
    error: float = 0.0

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    @property
    def is_exact(self) -> bool:
        return self.error == 0


@attrs.define
class Drawing:
    """The entry computation so far, and the regions it names."""

    draw: Callable
    replica_count: int
    num_partitions: int
    nodes: list[Node] = attrs.field(factory=list)
    values: list[Value] = attrs.field(factory=list)
    parameters: list[ArrayType] = attrs.field(factory=list)
    computations: dict[str, Computation] = attrs.field(factory=dict)

    def node(self, op: str, type_: Type, operands: Sequence[NodeId], **attributes: Attribute):
        self.nodes.append(Node(f"v{len(self.nodes)}", op, type_, tuple(operands), attributes))
        return NodeId(len(self.nodes) - 1)

    def add(self, op, type_, operands, *, bound=0.0, error=0.0, **attributes) -> Value:
        """One more array; for floats give its bound and error."""
        found = self.node(op, type_, [value.node for value in operands], **attributes)
        value = Value(found, type_, bound, error)
        self.values.append(value)
        return value

    def like(self, op, value: Value, operands, shape=None, **attributes) -> Value:
        """One more array of the value's dtype, bound and error."""
        type_ = ArrayType(value.dtype, value.type.shape if shape is None else tuple(shape))
        return self.add(op, type_, operands, bound=value.bound, error=value.error, **attributes)

    def elements(self, op, operands, types: Sequence[ArrayType], facts, **attributes):
        """An op with a tuple result, taken apart."""
        whole = self.node(op, TupleType(tuple(types)), [x.node for x in operands], **attributes)
        for k, (type_, (bound, error)) in enumerate(zip(types, facts, strict=True)):
            element = self.node("get-tuple-element", type_, [whole], index=k)
            self.values.append(Value(element, type_, bound, error))

    def parameter(self, type_: ArrayType) -> Value:
        bound = 2.0 if type_.dtype.is_float else 0.0
        self.parameters.append(type_)
        number = len(self.parameters) - 1
        return self.add("parameter", type_, [], bound=bound, parameter_number=number)

    def scalar(self, dtype: DType, number: float) -> Value:
        array = np.array(number).astype(dtype.numpy)
        array.setflags(write=False)
        return self.add("constant", ArrayType(dtype), [], bound=abs(number), literal=Literal(array))

    def full(self, number: float, type_: ArrayType) -> Value:
        """A scalar constant, broadcast where the type has dimensions."""
        scalar = self.scalar(type_.dtype, number)
        return self.like("broadcast", scalar, [scalar], type_.shape, dimensions=())

    def pick(self, wanted: Callable[[Value], bool]) -> Value | None:
        """One of the values that are wanted."""
        found = [value for value in self.values if wanted(value)]
        return self.draw(st.sampled_from(found)) if found else None

    def region(self, op: str, dtype: DType) -> Callee:
        """The region that combines two scalars by one op."""
        name = f"{op}_{dtype.value}"
        if name not in self.computations:
            scalar = ArrayType(dtype)
            nodes = (
                Node("a", "parameter", scalar, (), {"parameter_number": 0}),
                Node("b", "parameter", scalar, (), {"parameter_number": 1}),
                Node("r", op, scalar, (NodeId(0), NodeId(1))),
            )
            self.computations[name] = Computation(name, nodes, NodeId(2))
        return Callee(name)

    def shape(self, most_dimensions: int = 3) -> tuple[int, ...]:
        size = st.integers(1, 4)
        return tuple(self.draw(st.lists(size, min_size=0, max_size=most_dimensions)))

    def chance(self, of: int) -> bool:
        """True once in `of` times; shrinks to False."""
        return self.draw(st.integers(0, of - 1)) == of - 1


def rounding(dtype: DType, bound: float) -> float:
    """One unit in the last place of a value as large as the bound; integers have none."""
    return 2 * EPSILON[dtype] * bound if dtype in EPSILON else 0.0


def summed(values: Value, count: int) -> tuple[float, float]:
    """Bound and error of a sum of `count` of such values in any order."""
    if values.dtype not in EPSILON:
        return 0.0, 0.0
    bound = values.bound * count
    return bound, values.error * count + rounding(values.dtype, bound) * max(count, 1)


def elements_of(shape: Sequence[int]) -> int:
    return math.prod(shape)
