"""Transposes go into the products beside them, whose dimensions may be taken in any order.

A product is result[batch…, lhs free…, rhs free…]; its attributes say which dimensions of its
operands these are. So

    dot(transpose(a), b)        is a dot of a, if its free dimensions keep their order
    transpose(dot(a, b))        is dot(b, a), if the two blocks of free dimensions change places

and a transpose inside of a block of free dimensions is one of that operand, which is done where the
operand is smaller than the result. Between the product and its transpose may stand what works on
each element alone: conversions, factors that are the same for all elements, sums over ranks.

Frameworks write such transposes for every gradient and for `einsum`. Engines read operands in
either order, but an array in memory is moved element by element.
"""

from collections.abc import Sequence
from typing import ClassVar

import attrs

from ncc_compiler.ir.graph import Attribute, Computation, Module, Node, NodeId
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.passes.manager import Pass
from ncc_compiler.passes.rebuild import Rebuild, users_of, with_computations

_TRANSPOSE = "transpose"
_PER_ELEMENT = frozenset({"all-reduce", "convert", "multiply", "divide", "negate"})
"""Ops between a product and its transpose, of one array and perhaps of splats."""

_WIDE = 8
"""Bytes of an element of float64."""


@attrs.frozen
class FoldTransposes(Pass):
    """A product that others read in its own order stays as it is; 0 in `enabled` leaves all.

    So do those of float64 and other wide types. Libraries may add the summands of a transposed
    product in another order, which rounding to a narrower type hides in the reference.
    """

    name: ClassVar[str] = "fold-transposes"

    enabled: int = 1

    def run(self, module: Module) -> Module:
        if not self.enabled:
            return module
        computations = {
            name: _Folding(body).run() if _is_concerned(body) else body
            for name, body in module.computations.items()
        }
        return with_computations(module, computations)


def _is_concerned(body: Computation) -> bool:
    ops = {node.op for node in body.nodes}
    return {"dot", _TRANSPOSE} <= ops


@attrs.frozen
class _Product:
    """The dimensions of a product's operands by role, and those of its result that they become."""

    batch: tuple[tuple[int, ...], tuple[int, ...]]
    contracted: tuple[tuple[int, ...], tuple[int, ...]]
    free: tuple[tuple[int, ...], tuple[int, ...]]

    @classmethod
    def of(cls, node: Node, ranks: Sequence[int]) -> "_Product":
        batch = node.integers("lhs_batch_dims"), node.integers("rhs_batch_dims")
        contracted = node.integers("lhs_contracting_dims"), node.integers("rhs_contracting_dims")
        left, right = (
            tuple(d for d in range(ranks[k]) if d not in batch[k] and d not in contracted[k])
            for k in range(2)
        )
        return cls(batch, contracted, (left, right))

    def attributes(self) -> dict[str, Attribute]:
        found: dict[str, Attribute] = {}
        for k, side in enumerate(("lhs", "rhs")):
            if self.batch[k]:
                found[f"{side}_batch_dims"] = self.batch[k]
            found[f"{side}_contracting_dims"] = self.contracted[k]
        return found


_DIMS = frozenset(
    f"{side}_{role}_dims" for side in ("lhs", "rhs") for role in ("batch", "contracting")
)


class _Folding:
    """A computation that is written anew, product by product."""

    def __init__(self, body: Computation) -> None:
        self._body = body
        self._users = users_of(body)
        self._rebuild = Rebuild(body)
        # What stands for a value before its transpose: by old position, dimensions of the result.
        self._transposed: dict[int, tuple[int, ...]] = {}

    def run(self) -> Computation:
        for position, node in enumerate(self._body.nodes):
            if node.op == _TRANSPOSE:
                self._trace_to_product(position)
        rebuild = self._rebuild
        for position, node in enumerate(self._body.nodes):
            now = rebuild.rewired(node)
            if node.op == _TRANSPOSE and self._transposed.get(node.operands[0]) is not None:
                rebuild.new_ids.append(now.operands[0])  # its operand is computed transposed
            elif node.op == "dot":
                rebuild.new_ids.append(self._product(now, self._transposed.get(position)))
            elif position in self._transposed:
                rebuild.new_ids.append(self._elementwise(now, node, self._transposed[position]))
            else:
                rebuild.new_ids.append(rebuild.add(now))
        return rebuild.finish()

    # Which values are computed in the order of their transposes

    def _trace_to_product(self, position: int) -> None:
        """Find the product that a transpose can go into, and all on the way there."""
        nodes, order = self._body.nodes, self._body.nodes[position].integers("dimensions")
        path: list[int] = []
        current: int
        (current,) = nodes[position].operands
        while True:
            node = nodes[current]
            is_read_once = len(self._users[current]) == 1 and current != self._body.root
            if not is_read_once or current in self._transposed:
                return
            path.append(current)
            if node.op == "dot":
                break
            following = self._source(node)
            if following is None:
                return
            current = following
        if self._takes(node, order):
            self._transposed.update(dict.fromkeys(path, order))

    def _source(self, node: Node) -> NodeId | None:
        """The array that an op takes apart element by element, beside splats."""
        if node.op not in _PER_ELEMENT or not isinstance(node.type, ArrayType):
            return None
        arrays = [operand for operand in node.operands if not self._is_splat(operand)]
        return arrays[0] if len(arrays) == 1 else None

    def _is_splat(self, operand: int) -> bool:
        node = self._body.nodes[operand]
        if node.op == "broadcast":
            return self._body.nodes[node.operands[0]].array.elements == 1
        return node.has_value() and node.literal().splat() is not None

    def _takes(self, node: Node, order: Sequence[int]) -> bool:
        """Whether a product can give its result in this order of dimensions."""
        if node.array.dtype.size_bytes >= _WIDE:
            return False
        operands = [operand.array for operand in self._body.operands_of(node)]
        plan = _swap(_Product.of(node, [operand.rank for operand in operands]), order)
        if plan is None:
            return False
        moved = (operands[k] for k in range(2) if plan.moved[k])
        return all(operand.elements < node.array.elements for operand in moved)

    # The nodes as they are then

    def _elementwise(self, now: Node, node: Node, order: tuple[int, ...]) -> NodeId:
        """An op on each element, of a transposed array and of splats in its new shape."""
        shape = tuple(node.array.shape[d] for d in order)
        kind = ArrayType(node.array.dtype, shape)
        operands = []
        for old, new in zip(node.operands, now.operands, strict=True):
            operands.append(self._splat(now, new, shape) if self._is_splat(old) else new)
        return self._rebuild.add(attrs.evolve(now, type=kind, operands=tuple(operands)))

    def _splat(self, node: Node, splat: NodeId, shape: tuple[int, ...]) -> NodeId:
        """A splat in another shape."""
        rebuild = self._rebuild
        kind, source = ArrayType(rebuild.type_of(splat).dtype, shape), rebuild.nodes[splat]
        if source.op == "constant":
            return rebuild.constant(node, kind, source.literal().array.reshape(-1)[0])
        (scalar,) = source.operands
        if rebuild.type_of(scalar).rank:
            scalar = rebuild.derived(node, "reshape", ArrayType(kind.dtype), [scalar])
        return rebuild.derived(node, "broadcast", kind, [scalar], dimensions=())

    def _product(self, node: Node, order: tuple[int, ...] | None) -> NodeId:
        """A product with the transposes of its operands in it, and its result in this order."""
        rebuild = self._rebuild
        operands = list(node.operands)
        product = _Product.of(node, [rebuild.type_of(operand).rank for operand in operands])
        if node.array.dtype.size_bytes >= _WIDE:
            return rebuild.add(node)
        plan = None if order is None else _swap(product, order)
        kind = node.array
        if plan is not None and order is not None:
            kind = ArrayType(kind.dtype, tuple(kind.shape[d] for d in order))
            for k in range(2):
                if plan.moved[k]:
                    operands[k] = self._moved(node, operands[k], plan.moved[k])
            product = plan.product
            if plan.swaps:
                operands.reverse()
        for k in range(2):
            product, operands[k] = self._without_transpose(product, operands[k], k)
        # The precisions of operands are a hint, in the order of operands.
        dropped = {*_DIMS, "operand_precision"} if plan is not None and plan.swaps else _DIMS
        others = {key: value for key, value in node.attributes.items() if key not in dropped}
        attributes = {**others, **product.attributes()}
        return rebuild.add(
            attrs.evolve(node, type=kind, operands=tuple(operands), attributes=attributes)
        )

    def _moved(self, node: Node, operand: NodeId, order: tuple[int, ...]) -> NodeId:
        """An operand of a product with its dimensions in another order."""
        source = self._rebuild.nodes[operand]
        if source.op == _TRANSPOSE:
            before = source.integers("dimensions")
            order, operand = tuple(before[d] for d in order), source.operands[0]
        array = self._rebuild.type_of(operand)
        kind = ArrayType(array.dtype, tuple(array.shape[d] for d in order))
        return self._rebuild.derived(node, _TRANSPOSE, kind, [operand], dimensions=order)

    def _without_transpose(
        self, product: _Product, operand: NodeId, k: int
    ) -> tuple[_Product, NodeId]:
        """The product of what its operand k is a transpose of, if the result stays as it is."""
        source = self._rebuild.nodes[operand]
        if source.op != _TRANSPOSE:
            return product, operand
        order = source.integers("dimensions")
        free = tuple(order[d] for d in product.free[k])
        if list(free) != sorted(free):
            return product, operand
        batch, contracted = list(product.batch), list(product.contracted)
        frees = list(product.free)
        batch[k] = tuple(order[d] for d in product.batch[k])
        contracted[k] = tuple(order[d] for d in product.contracted[k])
        frees[k] = free
        found = _Product((batch[0], batch[1]), (contracted[0], contracted[1]), (frees[0], frees[1]))
        return found, source.operands[0]


@attrs.frozen
class _Plan:
    """How a product gives its result in another order."""

    product: _Product  # of the operands in their new order, after they have been moved
    swaps: bool
    moved: tuple[tuple[int, ...], tuple[int, ...]]  # transposes of the old operands; (): none


def _swap(product: _Product, order: Sequence[int]) -> _Plan | None:
    """The product whose result has the dimensions of this one's in another order, if there is one.

    Batch dimensions come first in the result of any; the free ones of an operand come together.
    """
    batches, lefts = len(product.batch[0]), len(product.free[0])
    batch, rest = order[:batches], [d - batches for d in order[batches:]]
    if any(d >= batches for d in batch):
        return None
    left = [d for d in rest if d < lefts]
    right = [d - lefts for d in rest if d >= lefts]
    joined = [*left, *(d + lefts for d in right)]
    swapped = [*(d + lefts for d in right), *left]
    if rest == joined:
        swaps = False
    elif rest == swapped:
        swaps = True
    else:
        return None
    roles, moved = [], []
    for k, places in enumerate((left, right)):
        dims = [product.batch[k], product.contracted[k], product.free[k]]
        move: tuple[int, ...] = ()
        if places != sorted(places):
            rank = sum(map(len, dims))
            targets = dict(zip(product.free[k], (product.free[k][p] for p in places), strict=True))
            move = tuple(targets.get(d, d) for d in range(rank))
        moved.append(move)
        roles.append((tuple(dims[0][d] for d in batch), dims[1], dims[2]))
    if swaps:
        roles.reverse()
    found = _Product(
        (roles[0][0], roles[1][0]), (roles[0][1], roles[1][1]), (roles[0][2], roles[1][2])
    )
    return _Plan(found, swaps, (moved[0], moved[1]))
