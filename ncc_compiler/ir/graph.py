"""The graph: a module of computations, each a list of nodes in an order that respects uses.

Operands are positions in the same computation and always smaller than the node's own position, so
a graph is acyclic by construction. Everything is frozen; passes build new computations.
"""

import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import NewType, TypeAlias

import attrs
import numpy as np

from ncc_compiler.diagnostics import Span
from ncc_compiler.ir.types import ArrayType, Type
from ncc_runtime.neff.shared.groups import ReplicaGroups
from ncc_runtime.neff.shared.windows import ConvolutionLabels, Window

NodeId = NewType("NodeId", int)


@attrs.frozen(eq=False)
class Literal:
    """The value of a constant; compared bit by bit, so that a NaN equals itself."""

    array: np.ndarray  # shape and dtype of the constant's type, read-only

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Literal)
            and self.array.dtype == other.array.dtype
            and self.array.shape == other.array.shape
            and self.array.tobytes() == other.array.tobytes()
        )

    def __hash__(self) -> int:
        return hash((self.array.shape, self.array.tobytes()))

    def splat(self) -> np.ndarray | None:
        """The scalar that every element is, bit for bit, if there is one."""
        if not self.array.size:
            return None
        octets = np.ascontiguousarray(self.array).reshape(-1).view(np.uint8)
        words = octets.reshape(self.array.size, -1)
        return self.array.reshape(-1)[:1].reshape(()) if np.all(words == words[0]) else None


@attrs.frozen
class Elided:
    """The unknown value of a constant whose text leaves it out (`constant({...})`)."""


@attrs.frozen
class Callee:
    """The name of a computation of the module, as an attribute (`to_apply=%sum`)."""

    name: str


@attrs.frozen
class Callees:
    """Computations of the module in a list, as an attribute (`branch_computations={%a, %b}`)."""

    names: tuple[str, ...]


@attrs.frozen
class SourceTargetPairs:
    """`source_target_pairs={{0,1},{1,2}}`."""

    pairs: tuple[tuple[int, int], ...]


@attrs.frozen
class Lists:
    """`slice_sizes={{4,4},{2,8}}`."""

    lists: tuple[tuple[int, ...], ...]


@attrs.frozen
class Padding:
    """`padding=0_1x2_3_1`: for each dimension low, high and interior padding."""

    dimensions: tuple[tuple[int, int, int], ...]


@attrs.frozen
class Quoted:
    """A string, as an attribute (`custom_call_target="TopK"`)."""

    text: str


@attrs.frozen
class Raw:
    """An attribute kept as it was written, because it has no meaning for its op."""

    text: str


Attribute: TypeAlias = (
    int
    | float
    | bool
    | str
    | tuple[int, ...]
    | Literal
    | Elided
    | Callee
    | Callees
    | SourceTargetPairs
    | Lists
    | Padding
    | Quoted
    | ReplicaGroups
    | Window
    | ConvolutionLabels
    | Raw
    | tuple[tuple[int, int, int], ...]
)
"""Integer lists are tuples; `slice={[0:4:2], …}` is a tuple of (start, limit, stride)."""


@attrs.frozen
class Node:
    """One operation. `op` is a key of `ops.OPS`; attributes are keyed by XLA's attribute names."""

    name: str
    op: str
    type: Type
    operands: tuple[NodeId, ...] = ()
    attributes: Mapping[str, Attribute] = attrs.field(factory=dict)
    span: Span | None = attrs.field(default=None, eq=False, repr=False)

    @property
    def array(self) -> ArrayType:
        """The type of a node that is an array."""
        assert isinstance(self.type, ArrayType), self.name
        return self.type

    def integer(self, key: str) -> int:
        """The value of an attribute that is a number."""
        value = self.attributes[key]
        assert isinstance(value, int), (self.name, key)
        return value

    def number(self, key: str) -> float:
        """The value of an attribute that is a float32."""
        value = self.attributes[key]
        assert isinstance(value, float), (self.name, key)
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        """The value of an attribute that lists numbers; empty where it is left out."""
        value = self.attributes.get(key, ())
        assert isinstance(value, tuple), (self.name, key)
        return tuple(entry for entry in value if isinstance(entry, int))

    def ranges(self) -> tuple[tuple[int, int, int], ...]:
        """Start, limit and stride for each dimension of a `slice`."""
        value = self.attributes["slice"]
        assert isinstance(value, tuple), self.name
        return tuple(entry for entry in value if isinstance(entry, tuple))

    def literal(self) -> Literal:
        """The value of a `constant` that has one."""
        value = self.attributes["literal"]
        assert isinstance(value, Literal), self.name
        return value

    def has_value(self) -> bool:
        """Whether it is a constant whose value the text gives."""
        return self.op == "constant" and isinstance(self.attributes["literal"], Literal)

    def callee(self, key: str = "to_apply") -> str:
        """The computation that an attribute names."""
        value = self.attributes[key]
        assert isinstance(value, Callee), (self.name, key)
        return value.name

    def callees(self) -> Sequence[tuple[str, str]]:
        """Pairs of an attribute's key and the name of a computation in it."""
        return [
            (key, name)
            for key, value in self.attributes.items()
            if isinstance(value, _NAMING)
            for name in names_in(value)
        ]


_NAMING = (Callee, Callees)


def names_in(value: Attribute) -> tuple[str, ...]:
    """The computations that an attribute names."""
    if isinstance(value, Callee):
        return (value.name,)
    return value.names if isinstance(value, Callees) else ()


@attrs.frozen
class Computation:
    """Nodes in an order that respects uses; parameters are the nodes whose op is `parameter`."""

    name: str
    nodes: tuple[Node, ...]
    root: NodeId

    def parameters(self) -> tuple[NodeId, ...]:
        """Parameter nodes by their `parameter_number`."""
        numbered = [
            (node.integer("parameter_number"), NodeId(position))
            for position, node in enumerate(self.nodes)
            if node.op == "parameter"
        ]
        return tuple(position for _, position in sorted(numbered))

    @functools.cached_property
    def called(self) -> tuple[str, ...]:
        """The computations that nodes name, each once, in the order of first uses."""
        return tuple(dict.fromkeys(name for node in self.nodes for _, name in node.callees()))

    def operands_of(self, node: Node) -> Iterator[Node]:
        return (self.nodes[operand] for operand in node.operands)


@attrs.frozen
class SourceFrame:
    """A place in the user's own code, from the `StackFrames` preamble."""

    file: str
    function: str
    line: int
    column: int
    parent: int = 0  # frame id of the caller; 0: outermost


@attrs.frozen
class Module:
    """A program of one or more computations; ranks are replica_count × num_partitions."""

    name: str
    computations: Mapping[str, Computation]  # callees before callers
    entry: str
    replica_count: int = 1
    num_partitions: int = 1
    attributes: Mapping[str, Attribute] = attrs.field(factory=dict)  # the rest of the header
    frames: Mapping[int, SourceFrame] = attrs.field(factory=dict)  # by stack_frame_id

    @property
    def ranks(self) -> int:
        """Number of flattened (replica, partition) ids."""
        return self.replica_count * self.num_partitions

    @property
    def entry_computation(self) -> Computation:
        """The computation that runs."""
        return self.computations[self.entry]
