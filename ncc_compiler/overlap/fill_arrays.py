"""Fills instead of constants of equal elements, where a value begins that is written in place.

The state of a loop, the stacks that a scan fills for one, and what a scatter adds to often begin as
an array of zeros. Folded to a constant, that would be in HBM twice: as the constant, and as the
memory that the loop writes.
"""

from typing import ClassVar

import attrs
import numpy as np

from ncc_compiler.ir.graph import Computation, Module, Node, NodeId
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, users_of, with_computations

_IN_PLACE = frozenset({"scatter", "dynamic-update-slice"})


@attrs.frozen
class FillArrays(Pass):
    """A constant array of equal elements becomes a scalar and its broadcast, one for each use.

    Uses are states of loops, results of the computation, and the first operands of updates and
    scatters. Arrays up to `limit_bytes` stay constants.
    """

    name: ClassVar[str] = "fill-arrays"

    limit_bytes: int = 64

    def run(self, module: Module) -> Module:
        inside = {
            node.callee("calls")
            for body in module.computations.values()
            for node in body.nodes
            if node.op == "fusion"
        }
        computations = {
            name: body if name in inside else self._filled(body)
            for name, body in module.computations.items()
        }
        return with_computations(module, computations)

    def _filled(self, body: Computation) -> Computation:
        values = {
            position: value
            for position, node in enumerate(body.nodes)
            if node.op == "constant" and node.has_value() and isinstance(node.type, ArrayType)
            if node.array.shape and node.array.size_bytes > self.limit_bytes
            if (value := node.literal().splat()) is not None
        }
        if not values:
            return body
        users = users_of(body)
        rebuild = Rebuild(body)
        for position, node in enumerate(body.nodes):
            now = rebuild.rewired(node)
            begins = range(0)
            if node.op in _IN_PLACE:
                begins = range(1)
            elif node.op == "tuple" and (
                position == body.root
                or any(body.nodes[user].op == "while" for user in users[position])
            ):
                begins = range(len(node.operands))
            operands = [
                _fill(rebuild, body.nodes[old], values[old])
                if k in begins and old in values
                else new
                for k, (old, new) in enumerate(zip(node.operands, now.operands, strict=True))
            ]
            if tuple(operands) != now.operands:
                now = attrs.evolve(now, operands=tuple(operands))
            rebuild.new_ids.append(rebuild.add(now))
        return rebuild.finish()


def _fill(rebuild: Rebuild, node: Node, value: np.ndarray) -> NodeId:
    """What fills an array with equal elements."""
    kind = ArrayType(node.array.dtype)
    scalar = rebuild.constant(node, kind, value)
    return rebuild.derived(node, "broadcast", node.array, [scalar], dimensions=())
