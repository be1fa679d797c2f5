"""Dead code elimination: drops nodes whose values nobody uses, and computations nobody calls."""

from collections.abc import Sequence
from typing import ClassVar

import attrs

from ncc_compiler.ir.graph import Computation, Module
from ncc_compiler.ir.ops import OPS
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import DROPPED, Rebuild, reachable


@attrs.frozen
class RemoveDeadCode(Pass):
    """Parameters stay, being the signature, and so do barriers and what runs them.

    Any other dead collective goes, on every rank alike.
    """

    name: ClassVar[str] = "remove-dead-code"

    def run(self, module: Module) -> Module:
        alive: dict[str, Computation] = {}
        effectful: set[str] = set()  # computations with a side effect in them
        for name, body in module.computations.items():  # callees come first
            roots = [
                OPS[node.op].has_side_effect
                or any(callee in effectful for _, callee in node.callees())
                for node in body.nodes
            ]
            alive[name] = _pruned(body, roots)
            if any(roots):
                effectful.add(name)
        return attrs.evolve(module, computations=reachable(alive, module.entry))


def _pruned(computation: Computation, roots: Sequence[bool]) -> Computation:
    """The computation without nodes that neither its root nor these roots need."""
    nodes = computation.nodes
    needed = [node.op == "parameter" or kept for node, kept in zip(nodes, roots, strict=True)]
    needed[computation.root] = True
    for position in range(len(nodes) - 1, -1, -1):  # users come after what they use
        if needed[position]:
            for operand in nodes[position].operands:
                needed[operand] = True
    if all(needed):
        return computation
    rebuild = Rebuild(computation)
    for node, is_needed in zip(nodes, needed, strict=True):
        rebuild.new_ids.append(rebuild.add(rebuild.rewired(node)) if is_needed else DROPPED)
    return rebuild.finish()
