"""Topological orders: of nodes in a computation, of computations in a module.

Both come from one depth-first search that keeps the order of the text where possible, uses no
recursion (programs are deep), and reports cycles. Then walks over the call graph: the branches of a
conditional, the collectives that computations contain, directly or through calls.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from ncc_compiler.ir.graph import Callee, Callees, Computation, Module, Node
from ncc_compiler.ir.ops import OPS


@attrs.frozen
class CallOrder:
    """Computations, callees first; each cycle with the node that closes it."""

    names: tuple[str, ...]
    cycles: tuple[tuple[tuple[str, ...], Node], ...]


Cycle = tuple[tuple[int, ...], int, int]
"""The positions around the cycle (the first again at its end), the user and use that close it."""


def use_order(
    operands: Sequence[Sequence[int | None]],
) -> tuple[tuple[int, ...], tuple[Cycle, ...]]:
    """Positions ordered so that operands come first, and the cycles that prevent it."""
    # most texts are in order already
    if all(use is None or use < user for user, uses in enumerate(operands) for use in uses):
        return tuple(range(len(operands))), ()
    walk = _DepthFirst(operands)
    for position in range(len(operands)):
        walk.visit(position)
    return tuple(walk.order), tuple(walk.cycles)


def call_order(computations: Mapping[str, Computation]) -> CallOrder:
    """Computations ordered so that callees come first."""
    names = list(computations)
    position = {name: k for k, name in enumerate(names)}
    calls = [
        [
            (position[callee], node)
            for node in computation.nodes
            for _, callee in node.callees()
            if callee in position
        ]
        for computation in computations.values()
    ]
    order, cycles = use_order([[callee for callee, _ in callees] for callees in calls])
    return CallOrder(
        tuple(names[k] for k in order),
        tuple((tuple(names[k] for k in cycle), calls[user][use][1]) for cycle, user, use in cycles),
    )


class _DepthFirst:
    """A depth-first search with the path as an explicit stack."""

    def __init__(self, operands: Sequence[Sequence[int | None]]) -> None:
        self.order: list[int] = []
        self.cycles: list[Cycle] = []
        self._operands = operands
        self._done: set[int] = set()
        self._path: dict[int, int] = {}  # the stack in order: position to its next use

    def visit(self, start: int) -> None:
        """Append `start` to the order, after everything it uses."""
        if start in self._done:
            return
        self._path[start] = 0
        current = start
        while self._path:
            current = self._step(current)

    def _step(self, current: int) -> int:
        """Follow the next use of `current`, or finish it; returns the new top of the stack."""
        use = self._path[current]
        if use == len(self._operands[current]):
            del self._path[current]
            self._done.add(current)
            self.order.append(current)
            return next(reversed(self._path)) if self._path else current
        self._path[current] = use + 1
        operand = self._operands[current][use]
        if operand is None or operand in self._done:
            return current
        if operand in self._path:
            path = list(self._path)
            self.cycles.append(((*path[path.index(operand) :], operand), current, use))
            return current
        self._path[operand] = 0
        return operand


def branch_names(node: Node) -> tuple[str, ...]:
    """The branches of a conditional by number, `true_computation` first; () if they are missing."""
    branches = node.attributes.get("branch_computations")
    if isinstance(branches, Callees):
        return branches.names
    pair = [node.attributes.get(key) for key in ("true_computation", "false_computation")]
    names = tuple(callee.name for callee in pair if isinstance(callee, Callee))
    return names if len(names) == len(pair) else ()


def collectives_in(module: Module, names: Iterable[str]) -> Iterator[Node]:
    """The collectives of these computations and of their callees, each once."""
    pending = list(dict.fromkeys(names))
    seen = set(pending)
    while pending:
        for node in module.computations[pending.pop()].nodes:
            if OPS[node.op].collective or node.op == "recv":
                yield node
            inner = {name for _, name in node.callees()}
            pending += sorted(inner - seen)
            seen |= inner
