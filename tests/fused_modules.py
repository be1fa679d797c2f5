"""Fuses parts of any module into `fusion` nodes, without the pass that decides what pays."""

from collections.abc import Callable, Iterable

import attrs

from ncc_compiler.codegen.select import SELECTORS
from ncc_compiler.ir.graph import Callee, Computation, Module, Node, NodeId
from ncc_compiler.ir.types import TupleType

FUSIBLE = frozenset({*SELECTORS, "bitcast", "constant", "reshape"})
"""Ops that a fusion may hold; most are more than the compiler itself would fuse."""

Cut = Callable[[Node], bool]
"""Whether a new fusion begins at a node."""


def fused_module(module: Module, cut: Cut) -> Module:
    """The module with runs of fusible nodes of its entry as fusions.

    Nodes that stand next to one another have nothing between them, so no cycle can come of it.
    """
    entry, computations = module.entry_computation, dict(module.computations)
    del computations[module.entry]
    outside = _Outside(entry)
    for run in _runs(entry, cut):
        if run[0] not in outside.fusible:
            outside.keep(run[0])
            continue
        name = f"fused.{run[0]}"
        computations[name] = outside.fuse(name, run)
    computations[module.entry] = outside.computation()
    return attrs.evolve(module, computations=computations)


def _runs(entry: Computation, cut: Cut) -> Iterable[list[NodeId]]:
    """The nodes in order: alone, or several that become a fusion."""
    run: list[NodeId] = []
    for position, node in enumerate(entry.nodes):
        if run and (node.op not in FUSIBLE or cut(node)):
            yield run
            run = []
        run.append(NodeId(position))
        if node.op not in FUSIBLE:
            yield run
            run = []
    if run:
        yield run


class _Outside:
    """The entry as it is rebuilt around its fusions."""

    def __init__(self, entry: Computation) -> None:
        self._entry = entry
        self.fusible = {NodeId(k) for k, node in enumerate(entry.nodes) if node.op in FUSIBLE}
        self._users: dict[NodeId, set[int]] = {NodeId(entry.root): {len(entry.nodes)}}
        for position, node in enumerate(entry.nodes):
            for operand in node.operands:
                self._users.setdefault(operand, set()).add(position)
        self._nodes: list[Node] = []
        self._moved: dict[NodeId, NodeId] = {}

    def _add(self, node: Node) -> NodeId:
        self._nodes.append(node)
        return NodeId(len(self._nodes) - 1)

    def keep(self, position: NodeId) -> None:
        """A node that stays outside."""
        node = self._entry.nodes[position]
        operands = tuple(self._moved[operand] for operand in node.operands)
        self._moved[position] = self._add(attrs.evolve(node, operands=operands))

    def fuse(self, name: str, run: list[NodeId]) -> Computation:
        """The computation of these nodes; a node that calls it stands for them."""
        members = set(run)
        operands = dict.fromkeys(
            operand
            for position in run
            for operand in self._entry.nodes[position].operands
            if operand not in members
        )
        body: list[Node] = []
        inside: dict[NodeId, NodeId] = {}
        for number, operand in enumerate(operands):
            kind = self._entry.nodes[operand].type
            parameter = {"parameter_number": number}
            inside[operand] = NodeId(len(body))
            body.append(Node(f"{name}.p{number}", "parameter", kind, (), parameter))
        for position in run:
            node = self._entry.nodes[position]
            moved = tuple(inside[operand] for operand in node.operands)
            inside[position] = NodeId(len(body))
            body.append(attrs.evolve(node, operands=moved))
        # latest first: results need not stand in the order in which they are computed
        results = [p for p in reversed(run) if self._users.get(p, set()) - members] or run[-1:]
        kind = TupleType(tuple(self._entry.nodes[position].type for position in results))
        inner = tuple(inside[position] for position in results)
        body.append(Node(f"{name}.root", "tuple", kind, inner))
        attributes = {"kind": "kLoop", "calls": Callee(name)}
        given = tuple(self._moved[operand] for operand in operands)
        fusion = self._add(Node(name, "fusion", kind, given, attributes))
        for index, position in enumerate(results):
            node = self._entry.nodes[position]
            self._moved[position] = self._add(
                Node(f"{node.name}.of", "get-tuple-element", node.type, (fusion,), {"index": index})
            )
        return Computation(name, tuple(body), NodeId(len(body) - 1))

    def computation(self) -> Computation:
        return Computation(self._entry.name, tuple(self._nodes), self._moved[self._entry.root])
