"""Dead code elimination: drops nodes whose values nobody uses, and computations nobody calls.

Results of fusions that nobody takes go too, with what only they needed.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import ClassVar

import attrs

from ncc_compiler.ir.graph import Attribute, Computation, Module, Node
from ncc_compiler.ir.ops import BARRIERS, OPS
from ncc_compiler.ir.types import TupleType
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import DROPPED, Rebuild, reachable, users_of, with_computations


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
        fusions = Counter(
            node.callee("calls")
            for body in module.computations.values()
            for node in body.nodes
            if node.op == "fusion"
        )
        shared = {name for name, count in fusions.items() if count > 1}
        for name, body in module.computations.items():  # callees come first
            has_effect = [_has_effect(node, effectful) for node in body.nodes]
            kept = _pruned(body, has_effect)
            results = _live_results(kept, shared) if fusions else {}
            if results:
                kept = _with_results(kept, results, alive)
                kept = _pruned(kept, [_has_effect(node, effectful) for node in kept.nodes])
            alive[name] = kept
            if any(has_effect):
                effectful.add(name)
        return with_computations(module, reachable(alive, module.entry))


def _has_effect(node: Node, effectful: Collection[str]) -> bool:
    """Whether a node does something beside its value, or runs one of these computations."""
    if OPS[node.op].has_side_effect:
        return True
    return bool(effectful) and any(callee in effectful for _, callee in node.callees())


def _pruned(
    computation: Computation, roots: Sequence[bool], *, keeps_parameters: bool = True
) -> Computation:
    """The computation without nodes that neither its root nor these roots need."""
    nodes = computation.nodes
    needed = [
        (keeps_parameters and node.op == "parameter") or kept
        for node, kept in zip(nodes, roots, strict=True)
    ]
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


def _live_results(body: Computation, shared: Collection[str]) -> dict[int, list[int]]:
    """Of fusions some of whose results are dead: the others, in order.

    A fusion whose computation others run, too, stays as it is.
    """
    fusions = [
        position
        for position, node in enumerate(body.nodes)
        if node.op == "fusion"
        and isinstance(node.type, TupleType)
        and node.callee("calls") not in shared
    ]
    users = users_of(body) if fusions else []
    live: dict[int, list[int]] = {}
    for position in fusions:
        kind = body.nodes[position].type
        assert isinstance(kind, TupleType)
        takers = [body.nodes[user] for user in users[position]]
        if position == body.root or any(taker.op != "get-tuple-element" for taker in takers):
            continue
        taken = sorted({taker.integer("index") for taker in takers})
        if len(taken) < len(kind.elements):
            live[position] = taken
    return live


def _with_results(
    body: Computation, results: Mapping[int, list[int]], computations: dict[str, Computation]
) -> Computation:
    """The computation with fusions of these results only; theirs are replaced."""
    rebuild = Rebuild(body)
    for position, node in enumerate(body.nodes):
        now = rebuild.rewired(node)
        if position in results:
            now = _fusion_of(now, results[position], computations)
        elif node.op == "get-tuple-element" and node.operands[0] in results:
            taken = results[node.operands[0]]
            if len(taken) == 1:
                rebuild.new_ids.append(rebuild.new_ids[node.operands[0]])
                continue
            index = taken.index(node.integer("index"))
            now = attrs.evolve(now, attributes={**node.attributes, "index": index})
        rebuild.new_ids.append(rebuild.add(now))
    return rebuild.finish()


def _fusion_of(node: Node, taken: list[int], computations: dict[str, Computation]) -> Node:
    """A fusion of some of its results; its computation is replaced by one of these."""
    name = node.callee("calls")
    inner = computations[name]
    root = inner.nodes[inner.root]
    assert root.op == "tuple", name
    parts = tuple(root.operands[index] for index in taken)
    kinds = tuple(inner.nodes[part].type for part in parts)
    if len(parts) == 1:
        cut = attrs.evolve(inner, root=parts[0])
    else:
        tuple_now = attrs.evolve(root, type=TupleType(kinds), operands=parts)
        nodes = (*inner.nodes[: inner.root], tuple_now, *inner.nodes[inner.root + 1 :])
        cut = attrs.evolve(inner, nodes=nodes)
    cut = _pruned(cut, [False] * len(cut.nodes), keeps_parameters=False)
    read = [cut.nodes[position].integer("parameter_number") for position in cut.parameters()]
    computations[name] = _renumbered(cut)
    return attrs.evolve(
        node,
        type=cut.nodes[cut.root].type,
        operands=tuple(node.operands[number] for number in read),
    )


def _renumbered(computation: Computation) -> Computation:
    """The computation with parameters numbered from 0."""
    nodes = list(computation.nodes)
    for number, position in enumerate(computation.parameters()):
        attributes: dict[str, Attribute] = {
            **nodes[position].attributes,
            "parameter_number": number,
        }
        nodes[position] = attrs.evolve(nodes[position], attributes=attributes)
    return attrs.evolve(computation, nodes=tuple(nodes))
