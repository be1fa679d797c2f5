"""Fusion: operations that follow each other become one instruction, which reads and writes once.

Every instruction reads its operands from HBM and writes its results there. A fused one does so once
for all its operations: what they hand to each other stays in SBUF.

    a ─▶ multiply ─▶ add ─▶ exponential ─▶ e        a, b ─▶ fusion ─▶ e, s
                 b ──┘          └─▶ reduce ─▶ s

Fused are elementwise operations, broadcasts, iotas, changes of shape or type, reductions by a known
operation, and scalar constants. Which of them come together, `clusters.py` decides. The result is
XLA's own `fusion`, with a computation of its own; of several results each has its old name, as an
element of the fusion's tuple.
"""

from collections import ChainMap
from collections.abc import Callable, Mapping
from typing import ClassVar

import attrs

from ncc_compiler.ir.graph import (
    Attribute,
    Callee,
    Computation,
    Literal,
    Module,
    Node,
    NodeId,
)
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.options import FUSE_LIMIT_NODES
from ncc_compiler.overlap.clusters import Cluster, Clustering, clusters_of
from ncc_compiler.overlap.cost_model import CONTROL_FLOW, FUSION
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import (
    Rebuild,
    provenance,
    stable_order,
    unused_name,
    with_computations,
)


@attrs.frozen
class Fuse(Pass):
    """A fusion holds at most `limit_nodes` operations; 0 in `enabled` leaves all by themselves.

    A computation that has fusions has been through and stays as it is; regions of reductions are
    scalar, and stay too.
    """

    name: ClassVar[str] = "fuse"

    enabled: int = 1
    limit_nodes: int = FUSE_LIMIT_NODES

    def run(self, module: Module) -> Module:
        if not self.enabled:
            return module

        def with_fusions(body: Computation, computations: dict[str, Computation]) -> Computation:
            if any(map(_is_ours, body.nodes)):
                return body
            clustering = clusters_of(module, body, self.limit_nodes)
            return fused(body, clustering, dict(module.computations), computations)

        return with_computations(module, rewrite_running(module, with_fusions))


def _is_ours(node: Node) -> bool:
    """Whether this pass made a fusion; those of whole patterns are there before it."""
    return node.op == FUSION and node.attributes.get("kind") != "kCustom"


RewriteRunning = Callable[[Computation, dict[str, Computation]], Computation]
"""Gives the computation in a computation's place, and adds those that it calls to the others."""


def rewrite_running(module: Module, rewrite: RewriteRunning) -> dict[str, Computation]:
    """The module's computations, callees before callers; those that run are rewritten."""
    running = _running_computations(module)
    computations: dict[str, Computation] = {}
    for name, body in module.computations.items():
        computations[name] = rewrite(body, computations) if name in running else body
    return computations


def _running_computations(module: Module) -> set[str]:
    """The entry, bodies and conditions of loops, and branches; but not what is a region, too."""
    running, pending = {module.entry}, [module.entry]
    regions: set[str] = set()
    while pending:
        for node in module.computations[pending.pop()].nodes:
            callees = {callee for _, callee in node.callees()}
            if node.op in CONTROL_FLOW:
                pending += sorted(callees - running)
                running |= callees
            else:
                regions |= callees
    return running - regions


def fused(
    body: Computation,
    clustering: Clustering,
    taken: dict[str, Computation],
    computations: dict[str, Computation],
) -> Computation:
    """The computation with its clusters as fusions; theirs are added to `computations`.

    They have names that neither those have nor the ones `taken`.
    """
    return _Fusing(body, clustering, taken, computations).run()


class _Fusing:
    """A computation with clusters as nodes; theirs are added to `computations`."""

    def __init__(
        self,
        body: Computation,
        clustering: Clustering,
        taken: dict[str, Computation],
        computations: dict[str, Computation],
    ) -> None:
        self._body = body
        self._clustering = clustering
        self._taken = taken  # names of computations that come later
        self._computations = computations
        self._rebuild = Rebuild(body)

    def run(self) -> Computation:
        clusters = {cluster.at: cluster for cluster in self._clustering.clusters}
        if not clusters:
            return self._body
        rebuild, nodes = self._rebuild, self._body.nodes
        rebuild.new_ids = [NodeId(-1)] * len(nodes)
        for position in self._order(clusters):
            if position in clusters:
                self._add(clusters[position])
            elif self._clustering.unfused[position]:
                rebuild.new_ids[position] = rebuild.add(rebuild.rewired(nodes[position]))
        return rebuild.finish()

    def _order(self, clusters: Mapping[int, Cluster]) -> list[int]:
        """The old positions, clusters at their place, each behind what it uses."""
        nodes, unfused = self._body.nodes, self._clustering.unfused
        place = {p: at for at, cluster in clusters.items() for p in cluster.results}
        runs_at: dict[int, list[int]] = {}  # where the nodes of clusters, copies too, are computed
        for at, cluster in clusters.items():
            for position in cluster.nodes:
                runs_at.setdefault(position, []).append(at)
        uses: list[list[int]] = [[] for _ in nodes]
        for position, node in enumerate(nodes):
            if unfused[position]:
                uses[position] = [place.get(operand, operand) for operand in node.operands]
        for at, cluster in clusters.items():
            uses[at] = [place.get(operand, operand) for operand in self._operands(cluster)]
        for position, others in self._clustering.anti_dependences.items():
            for writer in self._all_places(position, runs_at):
                for other in others:
                    readers = self._all_places(other, runs_at)
                    uses[writer] += [reader for reader in readers if reader != writer]
        return stable_order(uses)

    def _all_places(self, position: int, runs_at: Mapping[int, list[int]]) -> list[int]:
        """Where a node is computed: in clusters, by itself, or both."""
        alone = [position] if self._clustering.unfused[position] else []
        return alone + runs_at.get(position, [])

    def _operands(self, cluster: Cluster) -> list[NodeId]:
        """What a cluster reads, in the order in which it reads it."""
        nodes, inside = self._body.nodes, set(cluster.nodes)
        read = (operand for position in cluster.nodes for operand in nodes[position].operands)
        return [operand for operand in dict.fromkeys(read) if operand not in inside]

    def _add(self, cluster: Cluster) -> None:
        """Append a cluster as a fusion, and what its results are called."""
        rebuild, nodes = self._rebuild, self._body.nodes
        operands, results = self._operands(cluster), [nodes[p] for p in cluster.results]
        callee = self._computation(cluster, operands)
        is_reduced = any(node.op == "reduce" for node in results)
        root = nodes[cluster.results[-1]]
        attributes: dict[str, Attribute] = {
            "kind": cluster.kind or ("kInput" if is_reduced else "kLoop"),
            "calls": Callee(callee.name),
            **provenance(root),
        }
        fusion = rebuild.add(
            Node(
                rebuild.fresh(f"{root.name}_fusion"),
                FUSION,
                callee.nodes[callee.root].type,
                tuple(rebuild.new_ids[operand] for operand in operands),
                attributes,
                root.span,
            )
        )
        if len(results) == 1:
            rebuild.new_ids[cluster.results[0]] = fusion
            return
        for index, position in enumerate(cluster.results):
            node = nodes[position]
            element: dict[str, Attribute] = {"index": index, **provenance(node)}
            rebuild.new_ids[position] = rebuild.add(
                Node(node.name, "get-tuple-element", node.type, (fusion,), element, node.span)
            )

    def _computation(self, cluster: Cluster, operands: list[NodeId]) -> Computation:
        """The computation of a cluster, with parameters called as what they are given."""
        nodes, inner = self._body.nodes, list[Node]()
        new_ids: dict[int, NodeId] = {}
        taken = {nodes[position].name for position in (*operands, *cluster.nodes)}
        for number, operand in enumerate(operands):
            new_ids[operand] = NodeId(number)
            kind, attributes = nodes[operand].type, {"parameter_number": number}
            inner.append(Node(nodes[operand].name, "parameter", kind, (), attributes))
        for position in cluster.nodes:
            node = nodes[position]
            if node.op == "constant" and node.array.shape:
                name = unused_name(f"{node.name}.scalar", taken)
                taken.add(name)
                inner += _broadcast_scalar(node, name, NodeId(len(inner)))
            else:
                operands_now = tuple(new_ids[operand] for operand in node.operands)
                inner.append(attrs.evolve(node, operands=operands_now))
            new_ids[position] = NodeId(len(inner) - 1)
        root = new_ids[cluster.results[0]]
        if len(cluster.results) > 1:
            kind = TupleType(tuple(nodes[position].type for position in cluster.results))
            parts = tuple(new_ids[position] for position in cluster.results)
            name = unused_name("results", taken)
            root = NodeId(len(inner))
            inner.append(Node(name, "tuple", kind, parts))
        stem = f"fused_{nodes[cluster.results[-1]].name}"
        name = unused_name(stem, ChainMap(self._computations, self._taken))
        computation = Computation(name, tuple(inner), root)
        self._computations[name] = computation
        return computation


def _broadcast_scalar(node: Node, name: str, position: NodeId) -> tuple[Node, Node]:
    """A constant array of equal elements: a scalar of this name and place, and its broadcast."""
    value = node.literal().splat()
    assert value is not None, node.name
    kind = ArrayType(node.array.dtype)
    scalar = Node(name, "constant", kind, (), {"literal": Literal(value)})
    attributes: dict[str, Attribute] = {"dimensions": (), **provenance(node)}
    return scalar, Node(node.name, "broadcast", node.type, (position,), attributes, node.span)
