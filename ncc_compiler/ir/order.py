"""Orders that respect uses: nodes in a computation, computations in a module.

Both walks keep the order of the text where it is possible, use no recursion, and report cycles.
"""

from collections.abc import Mapping, Sequence

import attrs

from ncc_compiler.ir.graph import Computation, Node, names_in


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
    if all(use is None or use < user for user, uses in enumerate(operands) for use in uses):
        return tuple(range(len(operands))), ()
    walk = _Walk(operands)
    for position in range(len(operands)):
        walk.visit(position)
    return tuple(walk.order), tuple(walk.cycles)


def call_order(computations: Mapping[str, Computation]) -> CallOrder:
    """Computations ordered so that callees come first."""
    names = list(computations)
    position = {name: k for k, name in enumerate(names)}
    calls = [
        [
            (position[name], node)
            for node in computation.nodes
            for value in node.attributes.values()
            for name in names_in(value)
            if name in position
        ]
        for computation in computations.values()
    ]
    order, cycles = use_order([[callee for callee, _ in found] for found in calls])
    return CallOrder(
        tuple(names[k] for k in order),
        tuple((tuple(names[k] for k in cycle), calls[user][use][1]) for cycle, user, use in cycles),
    )


class _Walk:
    """Depth first, the path on an explicit stack."""

    def __init__(self, operands: Sequence[Sequence[int | None]]) -> None:
        self.order: list[int] = []
        self.cycles: list[Cycle] = []
        self._operands = operands
        self._done: set[int] = set()
        self._path: dict[int, int] = {}  # position to the use it goes on with, in path order

    def visit(self, start: int) -> None:
        """Put `start` into the order, behind everything it uses."""
        if start in self._done:
            return
        self._path[start] = 0
        current = start
        while self._path:
            current = self._step(current)

    def _step(self, current: int) -> int:
        """Follow one use of `current`, or finish it; gives the position to go on with."""
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
