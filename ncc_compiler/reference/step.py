"""What the meaning of an op is given: the node, the ranks, and the operand values on each."""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from ncc_compiler.ir.graph import Computation, Module, Node

Value: TypeAlias = "np.ndarray | tuple[Value, ...]"
"""An array, or a tuple of values."""


def leaves(value: Value) -> tuple[np.ndarray, ...]:
    """The arrays of a value in order."""
    if isinstance(value, tuple):
        return tuple(array for element in value for array in leaves(element))
    return (value,)


Ranks: TypeAlias = tuple[int, ...]
Evaluate: TypeAlias = Callable[[Computation, Ranks, Sequence[Sequence[Value]]], list[Value]]
"""Run a computation on some ranks: arguments[k] are those of ranks[k], and so is result k."""


@attrs.frozen(eq=False)
class OpStep:
    """One op about to happen: operands[k][i] is operand i on rank ranks[k]."""

    module: Module
    node: Node
    ranks: Ranks
    operands: tuple[tuple[Value, ...], ...]
    arguments: Sequence[Sequence[Value]]  # of the computation that the node is in, per rank
    evaluate: Evaluate

    def arrays(self, position: int) -> tuple[np.ndarray, ...]:
        """The operands on rank ranks[position], all of them arrays."""
        values = self.operands[position]
        assert all(isinstance(value, np.ndarray) for value in values), self.node.name
        return tuple(value for value in values if isinstance(value, np.ndarray))

    def callee(self, key: str = "to_apply") -> Computation:
        """The computation that an attribute names."""
        return self.module.computations[self.node.callee(key)]


Meaning: TypeAlias = Callable[[OpStep], list[Value]]
"""Gives the result on each of the step's ranks."""
