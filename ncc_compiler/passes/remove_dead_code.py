"""Dead code elimination: drops nodes whose values nobody uses, and computations nobody calls."""

from collections.abc import Mapping, Sequence
from typing import ClassVar

import attrs

from ncc_compiler.ir.graph import Computation, Module
from ncc_compiler.ir.ops import BARRIERS, OPS
from ncc_compiler.ir.types import TupleType
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import DROPPED, Rebuild, reachable


@attrs.frozen
class RemoveDeadCode(Pass):
    """Parameters stay, being the signature, and so do barriers and what runs them.

    Any other dead collective goes, on every rank alike. Elements of a tuple that nobody reads
    behind an `opt-barrier` go with what computes them.
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
    elements: dict[int, set[int]] = {}  # of barriers: which elements are read of them
    whole: set[int] = {computation.root}  # nodes that are read otherwise than by element
    narrow: dict[int, list[int]] = {}  # barriers of a tuple of which not all is read, and what is
    for position in range(len(nodes) - 1, -1, -1):  # users come after what they use
        if not needed[position]:
            continue
        node = nodes[position]
        read = node.operands
        source = nodes[read[0]] if read else node
        if node.op == "get-tuple-element" and source.op in BARRIERS:
            elements.setdefault(read[0], set()).add(node.integer("index"))
        elif node.op in BARRIERS and source.op == "tuple" and position not in whole:
            narrow[position] = sorted(elements[position])
            read = tuple(source.operands[element] for element in narrow[position])
            if len(read) == len(source.operands):
                del narrow[position]
                read = node.operands
            whole.update(read)
        else:
            whole.update(read)
        for operand in read:
            needed[operand] = True
    if all(needed) and not narrow:
        return computation
    return _rebuilt(computation, needed, narrow)


def _rebuilt(
    computation: Computation, needed: Sequence[bool], narrow: Mapping[int, Sequence[int]]
) -> Computation:
    """The nodes that are needed, with barriers of the elements that are read of them."""
    nodes, rebuild = computation.nodes, Rebuild(computation)
    for position, (node, is_needed) in enumerate(zip(nodes, needed, strict=True)):
        if not is_needed:
            rebuild.new_ids.append(DROPPED)
        elif position in narrow:
            operands = nodes[node.operands[0]].operands
            kept = [rebuild.new_ids[operands[element]] for element in narrow[position]]
            kind = TupleType(tuple(rebuild.nodes[operand].type for operand in kept))
            parts = rebuild.derived(node, "tuple", kind, kept)
            attributes = {k: v for k, v in node.attributes.items() if k != "sharding"}
            barrier = attrs.evolve(node, type=kind, operands=(parts,), attributes=attributes)
            rebuild.new_ids.append(rebuild.add(barrier))
        elif node.op == "get-tuple-element" and node.operands[0] in narrow:
            index = narrow[node.operands[0]].index(node.integer("index"))
            moved = attrs.evolve(node, attributes={**node.attributes, "index": index})
            rebuild.new_ids.append(rebuild.add(rebuild.rewired(moved)))
        else:
            rebuild.new_ids.append(rebuild.add(rebuild.rewired(node)))
    return rebuild.finish()
