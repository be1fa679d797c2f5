"""How passes make new computations: nodes in order, each under a name of its own."""

import heapq
import operator
from collections.abc import Callable, Container, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from ncc_compiler.ir.graph import Attribute, Computation, Literal, Module, Node, NodeId
from ncc_compiler.ir.types import ArrayType, TupleType, Type
from ncc_runtime.neff.shared.dtypes import DType

if TYPE_CHECKING:
    import numpy.typing as npt

DROPPED = NodeId(-1)
"""The new id of a node that a pass drops; nothing that stays refers to it."""


class Rebuild:
    """A computation in the making, from an old one whose node names stay reserved for it."""

    def __init__(self, old: Computation) -> None:
        self._old = old
        self._taken = {node.name for node in old.nodes}
        self._suffixes: dict[str, int] = {}
        self.nodes: list[Node] = []
        self.new_ids: list[NodeId] = []  # by old id, so far

    def add(self, node: Node) -> NodeId:
        """Append a node that has its name from the old computation or from `fresh`."""
        self.nodes.append(node)
        return NodeId(len(self.nodes) - 1)

    def fresh(self, stem: str) -> str:
        """A name that nothing here has: the stem, with a number where it is taken."""
        name, number = stem, self._suffixes.get(stem, 0)
        while name in self._taken:
            number += 1
            name = f"{stem}.{number}"
        self._suffixes[stem] = number
        self._taken.add(name)
        return name

    def derived(
        self,
        source: Node,
        op: str,
        kind: Type,
        operands: Sequence[NodeId],
        **attributes: Attribute,
    ) -> NodeId:
        """Append a node that helps to do what `source` did; it takes over where that is from."""
        name = self.fresh(f"{source.name}.{op}")
        attributes |= provenance(source)
        return self.add(Node(name, op, kind, tuple(operands), attributes, source.span))

    def constant(self, source: Node, kind: ArrayType, value: "npt.ArrayLike") -> NodeId:
        """Append a constant, of an array or of one number in every element."""
        array = np.full(kind.shape, value, kind.dtype.numpy)
        array.setflags(write=False)
        return self.derived(source, "constant", kind, [], literal=Literal(array))

    def rank(self, source: Node, module: Module) -> NodeId:
        """Append what computes the own rank: replica x num_partitions + partition."""
        kind = ArrayType(DType.U32)
        partition = self.derived(source, "partition-id", kind, [])
        if module.replica_count == 1:
            return partition
        replica = self.derived(source, "replica-id", kind, [])
        partitions = self.constant(source, kind, module.num_partitions)
        first = self.derived(source, "multiply", kind, [replica, partitions])
        return self.derived(source, "add", kind, [first, partition])

    def rewired(self, node: Node) -> Node:
        """An old node with its operands as they are now."""
        new_ids = self.new_ids
        operands = tuple([new_ids[operand] for operand in node.operands])
        if operands == node.operands:
            return node
        return Node(node.name, node.op, node.type, operands, node.attributes, node.span)

    def type_of(self, position: NodeId) -> ArrayType:
        """The type of a new node that is an array."""
        kind = self.nodes[position].type
        assert isinstance(kind, ArrayType), self.nodes[position].name
        return kind

    def finish(self) -> Computation:
        """The new computation; the old one if nothing is new."""
        root, old = self.new_ids[self._old.root], self._old
        is_old = len(self.nodes) == len(old.nodes) and all(map(operator.is_, self.nodes, old.nodes))
        if root == old.root and is_old:
            return old
        return attrs.evolve(self._old, nodes=tuple(self.nodes), root=root)


def array_types(kind: Type) -> list[ArrayType]:
    """An array's type, or those of the arrays in a tuple."""
    kinds = kind.elements if isinstance(kind, TupleType) else (kind,)
    return [element for element in kinds if isinstance(element, ArrayType)]


def unused_name(stem: str, taken: Container[str]) -> str:
    """The stem, with a number where it is taken."""
    name, number = stem, 0
    while name in taken:
        number += 1
        name = f"{stem}.{number}"
    return name


def sum_region(dtype: DType, module: Module) -> Computation:
    """A region that adds, under a name that the module does not have."""
    kind = ArrayType(dtype)
    parameters = (
        Node(name, "parameter", kind, (), {"parameter_number": number})
        for number, name in enumerate(("a", "b"))
    )
    total = Node("sum", "add", kind, (NodeId(0), NodeId(1)))
    name = unused_name(f"sum_{dtype.value}", module.computations)
    return Computation(name, (*parameters, total), NodeId(2))


def provenance(node: Node) -> dict[str, Attribute]:
    """The attributes that say where a node is from, for what takes its place."""
    return {key: node.attributes[key] for key in ("metadata",) if key in node.attributes}


Rewrite = Callable[[Rebuild, Node], NodeId]
"""Adds what replaces an old node (given with new operands) and returns the new value."""


def rewrite_computation(computation: Computation, rewrite: Rewrite) -> Computation:
    """The computation with every node replaced, in order."""
    rebuild = Rebuild(computation)
    for node in computation.nodes:
        rebuild.new_ids.append(rewrite(rebuild, rebuild.rewired(node)))
    return rebuild.finish()


def rewrite_module(
    module: Module, rewrite: Rewrite, concerns: Callable[[Node], bool] = lambda _: True
) -> Module:
    """The module with every node replaced, of every computation that has a node of concern."""
    computations = {
        name: rewrite_computation(computation, rewrite)
        if any(concerns(node) for node in computation.nodes)
        else computation
        for name, computation in module.computations.items()
    }
    return with_computations(module, computations)


def with_computations(module: Module, computations: Mapping[str, Computation]) -> Module:
    """The module with these computations; the same one if they are those that it has."""
    is_same = len(computations) == len(module.computations) and all(
        map(operator.is_, computations.values(), module.computations.values())
    )
    return module if is_same else attrs.evolve(module, computations=computations)


def stable_order(uses: Sequence[Sequence[int]]) -> list[int]:
    """Positions in a topological order (each behind what it uses), else as before."""
    users: list[list[int]] = [[] for _ in uses]
    missing = [0] * len(uses)
    for position, used in enumerate(uses):
        for definition in set(used):
            users[definition].append(position)
            missing[position] += 1
    ready = [position for position, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:  # ascending, so a heap from the start
        position = heapq.heappop(ready)
        order.append(position)
        for user in users[position]:
            missing[user] -= 1
            if not missing[user]:
                heapq.heappush(ready, user)
    assert len(order) == len(uses), "a node uses itself"
    return order


def reachable(computations: Mapping[str, Computation], entry: str) -> dict[str, Computation]:
    """The computations that the entry runs, directly or through others, in their order."""
    reached, pending = {entry}, [entry]
    while pending:
        new = set(computations[pending.pop()].called) - reached
        reached |= new
        pending += new
    return {name: computation for name, computation in computations.items() if name in reached}


def users_of(computation: Computation) -> list[list[int]]:
    """The nodes that use each node, by position, each once, in program order."""
    users: list[list[int]] = [[] for _ in computation.nodes]
    for position, node in enumerate(computation.nodes):
        for operand in dict.fromkeys(node.operands):
            users[operand].append(position)
    return users
