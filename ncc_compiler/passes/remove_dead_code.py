"""Drops nodes whose values nobody needs, and computations that nobody names."""

from typing import ClassVar

import attrs

from ncc_compiler.ir.graph import Computation, Module, NodeId
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, reachable

_NOWHERE = NodeId(-1)  # the new place of a dropped node; nothing that stays refers to it


@attrs.frozen
class RemoveDeadCode(Pass):
    """Parameters stay, being the signature; a dead collective goes, on every rank alike."""

    name: ClassVar[str] = "remove-dead-code"

    def run(self, module: Module) -> Module:
        alive = {name: _pruned(body) for name, body in module.computations.items()}
        return attrs.evolve(module, computations=reachable(alive, module.entry))


def _pruned(computation: Computation) -> Computation:
    nodes = computation.nodes
    needed = [node.op == "parameter" for node in nodes]
    needed[computation.root] = True
    for position in range(len(nodes) - 1, -1, -1):  # users come after what they use
        if needed[position]:
            for operand in nodes[position].operands:
                needed[operand] = True
    if all(needed):
        return computation
    rebuild = Rebuild(computation)
    for node, is_needed in zip(nodes, needed, strict=True):
        rebuild.new_ids.append(rebuild.add(rebuild.rewired(node)) if is_needed else _NOWHERE)
    return rebuild.finish()
