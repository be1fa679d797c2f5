"""Products with the work beside them: what is done to a product's result, or to an operand.

    x, w ─▶ dot ─▶ fusion ─▶ y        x, w ─▶ fusion (dot, add, tanh) ─▶ y

The Tensor engine leaves a product in PSUM, from where other engines take it; they need not read it
from HBM. After `fuse`, a product joins the first instruction that reads it, and an instruction that
only a product reads joins that. One instruction has one product at most.

Nothing changes its place among heavy operations and collectives: between the two that join none
stands, all other readers come later, and both wait for the same collectives. So no more bytes are
live, and no collective waits for more.

It pays if the traffic that is saved is a good part of the product's own. A product of few rows
reads little else than weights, and stays as it is.
"""

import bisect
from collections import ChainMap
from collections.abc import Iterable, Mapping
from typing import ClassVar

import attrs

from ncc_compiler.codegen.leaves import leaves
from ncc_compiler.ir.graph import Attribute, Callee, Computation, Module, Node, NodeId
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.overlap import tiles
from ncc_compiler.overlap.analyses import ancestors_among, descendants_among, live_ranges_of
from ncc_compiler.overlap.clusters import NodeRole, roles_of
from ncc_compiler.overlap.cost_model import FUSION, is_heavy
from ncc_compiler.overlap.fuse import rewrite_running
from ncc_compiler.overlap.order_constraints import anti_dependences
from ncc_compiler.overlap.schedule import region_ids_of
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import (
    DROPPED,
    Rebuild,
    provenance,
    reachable,
    unused_name,
    users_of,
    with_computations,
)

_SHARE = 8
"""What is saved is at least this part of what the product reads and writes by itself."""


@attrs.frozen
class FuseProducts(Pass):
    """Products and the instructions beside them become fusions of kind kOutput."""

    name: ClassVar[str] = "fuse-products"

    enabled: int = 1

    def run(self, module: Module) -> Module:
        if not self.enabled:
            return module

        def joined(body: Computation, computations: dict[str, Computation]) -> Computation:
            has_products = any(node.op == "dot" for node in body.nodes)
            return _Joining(module, body, computations).run() if has_products else body

        computations = rewrite_running(module, joined)
        return with_computations(module, reachable(computations, module.entry))


@attrs.frozen
class _Group:
    """Nodes that become one instruction: a product, and at most one before and one behind it."""

    members: tuple[int, ...]  # in order; the last one's place is the instruction's
    is_read: bool  # whether others read the product itself


class _Joining:
    """A computation whose products join what is beside them."""

    def __init__(
        self, module: Module, body: Computation, computations: dict[str, Computation]
    ) -> None:
        self._module = module
        self._body = body
        self._nodes = body.nodes
        self._computations = computations
        self._users = users_of(body)
        roles = roles_of(module, body)
        self._is_simple = [
            role is NodeRole.FUSED
            or (node.op == FUSION and node.attributes.get("kind") in ("kLoop", "kInput"))
            for role, node in zip(roles, body.nodes, strict=True)
        ]
        collectives = [p for p, node in enumerate(body.nodes) if OPS[node.op].collective]
        self._before = ancestors_among(body, collectives)
        self._leads_to = descendants_among(body, collectives)
        self._regions = regions = region_ids_of(body)
        self._fixed = [  # what nothing is moved across
            p
            for p, node in enumerate(body.nodes)
            if is_heavy(module, node) or OPS[node.op].collective
        ]
        self._first_writer: dict[int, int] = {}  # of what a node reads, in place
        for writer, readers in anti_dependences(body, live_ranges_of(body, regions)).items():
            for reader in readers:
                earlier = self._first_writer.get(reader, writer)
                self._first_writer[reader] = min(earlier, writer)

    def run(self) -> Computation:
        groups: dict[int, _Group] = {}  # by the position of the last member
        taken: set[int] = set()
        for product, node in enumerate(self._nodes):
            if node.op == "dot":
                group = self._group(product, taken)
                if len(group.members) > 1:
                    groups[group.members[-1]] = group
                    taken.update(group.members)
        return self._with_groups(groups, taken) if groups else self._body

    def _group(self, product: int, taken: set[int]) -> _Group:
        """A product with what may join it."""
        group = _Group((product,), True)
        consumer = min(self._users[product], default=None)
        if consumer is not None and self._is_simple[consumer] and consumer not in taken:
            others = len(self._users[product]) > 1 or product == self._body.root
            wider = _Group((product, consumer), others)
            saved = self._bytes([product]) * (1 if others else 2)
            leads_elsewhere = others and self._leads_to[product] & ~self._leads_to[consumer]
            if not leads_elsewhere and self._may_join(product, wider, saved):
                group = wider
        for producer in sorted(set(self._nodes[product].operands), reverse=True):
            is_alone = self._users[producer] == [product] and producer != self._body.root
            is_array = isinstance(self._nodes[producer].type, ArrayType)
            if not (is_alone and is_array and self._is_simple[producer]) or producer in taken:
                continue
            wider = attrs.evolve(group, members=(producer, *group.members))
            if self._may_join(product, wider, 2 * self._bytes([producer])):
                return wider
        return group

    def _may_join(self, product: int, group: _Group, saved: int) -> bool:
        """Whether the members can be one instruction, and whether it pays."""
        first, last = group.members[0], group.members[-1]
        own = self._bytes([product, *self._nodes[product].operands])
        if saved * _SHARE < own or self._regions[first] != self._regions[last]:
            return False
        if len({self._before[member] for member in group.members}) > 1:
            return False
        between = bisect.bisect_left(self._fixed, last) - bisect.bisect_right(self._fixed, first)
        if between > (first < product < last):
            return False
        if any(self._first_writer.get(member, last + 1) <= last for member in group.members[:-1]):
            return False
        computation = self._computation(group)
        inner = [k for k, node in enumerate(computation.nodes) if _computes(node)]
        return tiles.fits(computation, inner)

    def _bytes(self, positions: Iterable[int]) -> int:
        return sum(
            array.size_bytes
            for position in positions
            for array in leaves(self._nodes[position].type)
        )

    # Rewriting

    def _operands(self, group: _Group) -> list[NodeId]:
        read = (operand for member in group.members for operand in self._nodes[member].operands)
        return [
            operand
            for operand in dict.fromkeys(read)
            if operand not in group.members and not self._is_immediate(operand)
        ]

    def _is_immediate(self, position: int) -> bool:
        node = self._nodes[position]
        return node.op == "constant" and node.has_value() and not node.array.shape

    def _computation(self, group: _Group, name: str = "") -> Computation:
        """The computation of a group, with fusions in it taken apart."""
        inner: list[Node] = []
        names: set[str] = set()
        values: dict[int, NodeId] = {}  # by old node

        def add(node: Node) -> NodeId:
            fresh = unused_name(node.name, names)
            names.add(fresh)
            inner.append(attrs.evolve(node, name=fresh))
            return NodeId(len(inner) - 1)

        for number, operand in enumerate(self._operands(group)):
            old = self._nodes[operand]
            attributes: dict[str, Attribute] = {"parameter_number": number}
            values[operand] = add(Node(old.name, "parameter", old.type, (), attributes))
        for member in group.members:
            node = self._nodes[member]
            for operand in node.operands:
                if operand not in values:  # a number, which goes inside
                    values[operand] = add(self._nodes[operand])
            operands = tuple(values[operand] for operand in node.operands)
            if node.op != FUSION:
                values[member] = add(attrs.evolve(node, operands=operands))
                continue
            body = self._module.computations[node.callee("calls")]
            inside = dict(zip(body.parameters(), operands, strict=True))
            for position, part in enumerate(body.nodes):
                if part.op == "parameter" or (position == body.root and part.op == "tuple"):
                    continue
                read = tuple(inside[operand] for operand in part.operands)
                inside[NodeId(position)] = add(attrs.evolve(part, operands=read))
            values[member] = inside.get(body.root, NodeId(-1))
            results = [inside[operand] for operand in body.nodes[body.root].operands]
        last = self._nodes[group.members[-1]]
        if not isinstance(last.type, TupleType):
            results = [values[group.members[-1]]]
        if group.is_read and group.members[-1] != self._product(group):
            results.append(values[self._product(group)])
        root = results[0]
        if len(results) > 1 or isinstance(last.type, TupleType):
            kind = TupleType(tuple(inner[result].type for result in results))
            root = add(Node("results", "tuple", kind, tuple(results)))
        return Computation(name, tuple(inner), root)

    def _product(self, group: _Group) -> int:
        return next(member for member in group.members if self._nodes[member].op == "dot")

    def _with_groups(self, groups: Mapping[int, _Group], taken: set[int]) -> Computation:
        rebuild = Rebuild(self._body)
        products: dict[int, NodeId] = {}
        for position, node in enumerate(self._nodes):
            if position in groups:
                rebuild.new_ids.append(self._add(rebuild, groups[position], products))
            elif position in taken:
                rebuild.new_ids.append(DROPPED)  # read behind the last of its group only
            else:
                rebuild.new_ids.append(rebuild.add(rebuild.rewired(node)))
            for product, value in products.items():
                rebuild.new_ids[product] = value
            products.clear()
        return rebuild.finish()

    def _add(self, rebuild: Rebuild, group: _Group, products: dict[int, NodeId]) -> NodeId:
        """Append a group as a fusion; gives its last member's value, and sets its product's."""
        last = self._nodes[group.members[-1]]
        product = self._product(group)
        stem = f"fused_{last.name.removesuffix('_fusion')}"
        name = unused_name(stem, ChainMap(self._computations, dict(self._module.computations)))
        callee = self._computations[name] = self._computation(group, name)
        kind = callee.nodes[callee.root].type
        attributes: dict[str, Attribute] = {
            "kind": "kOutput",
            "calls": Callee(name),
            **provenance(self._nodes[product]),
        }
        operands = tuple(rebuild.new_ids[operand] for operand in self._operands(group))
        called = last.name if last.op == FUSION else rebuild.fresh(f"{last.name}_fusion")
        fusion = rebuild.add(Node(called, FUSION, kind, operands, attributes, last.span))
        if not isinstance(kind, TupleType) or isinstance(last.type, TupleType):
            value = fusion
        else:
            taken_name = last.name if last.op != FUSION else rebuild.fresh(f"{last.name}.result")
            value = rebuild.add(
                Node(taken_name, "get-tuple-element", last.type, (fusion,), {"index": 0})
            )
        if group.is_read and group.members[-1] != product:
            assert isinstance(kind, TupleType)
            node = self._nodes[product]
            index: dict[str, Attribute] = {"index": len(kind.elements) - 1, **provenance(node)}
            products[product] = rebuild.add(
                Node(node.name, "get-tuple-element", node.type, (fusion,), index, node.span)
            )
        return value


def _computes(node: Node) -> bool:
    return node.op not in ("parameter", "tuple")
