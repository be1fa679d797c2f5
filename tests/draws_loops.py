"""Hypothesis strategies for modules of loops and branches, nested, over exact integers.

All arrays are s32[n,n], so that every right answer has the same bits. Blocks that only some ranks
run, or some more often, hold no collectives; all others may.
"""

import attrs
import numpy as np
from hypothesis import strategies as st

from ncc_compiler.ir.graph import (
    Callee,
    Callees,
    Computation,
    Literal,
    Module,
    Node,
    NodeId,
    Raw,
    SourceTargetPairs,
)
from ncc_compiler.ir.types import ArrayType, TokenType, TupleType, Type
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.groups import ExplicitGroups

RANKS = 3
INT, PRED, TOKEN = ArrayType(DType.S32), ArrayType(DType.PRED), TokenType()
_LOCAL = ("add", "subtract", "xor", "dot", "transpose", "copy", "negate", "power", "update")
_COLLECTIVES = ("all-reduce", "two all-reduces", "collective-permute", "reversed permute")


@attrs.define
class _Module:
    """Computations so far."""

    draw: object
    array: ArrayType
    computations: dict[str, Computation] = attrs.field(factory=dict)
    blocks: int = 0

    def fresh(self, what: str) -> str:
        self.blocks += 1
        return f"{what}{self.blocks}"

    def number(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))  # type: ignore[operator]

    def add(self, body: "_Body", root: NodeId) -> str:
        self.computations[body.name] = Computation(body.name, tuple(body.nodes), root)
        return body.name


@attrs.define
class _Body:
    """One computation in the making."""

    module: _Module
    name: str
    depth: int
    collects: bool  # all ranks that are needed for a collective are here
    nodes: list[Node] = attrs.field(factory=list)
    arrays: list[NodeId] = attrs.field(factory=list)
    counter: NodeId | None = None  # the same on all ranks that are here together

    def node(self, op: str, kind: Type, *operands: NodeId, **attributes: object) -> NodeId:
        name = f"{self.name}.{len(self.nodes)}"
        self.nodes.append(Node(name, op, kind, operands, attributes))  # type: ignore[arg-type]
        return NodeId(len(self.nodes) - 1)

    def constant(self, value: int) -> NodeId:
        array = np.array(value, np.int32)
        array.setflags(write=False)
        return self.node("constant", INT, literal=Literal(array))

    def element(self, whole: NodeId, index: int) -> NodeId:
        kind = self.nodes[whole].type
        assert isinstance(kind, TupleType)
        return self.node("get-tuple-element", kind.elements[index], whole, index=index)

    def tuple(self, *operands: NodeId) -> NodeId:
        kind = TupleType(tuple(self.nodes[operand].type for operand in operands))
        return self.node("tuple", kind, *operands)

    def pick(self) -> NodeId:
        newest = len(self.arrays) - 1
        return self.arrays[newest - self.module.number(0, min(newest, 5))]

    def rank_number(self) -> NodeId:
        rank = self.node("replica-id", ArrayType(DType.U32))
        return self.node("convert", INT, rank)


def _body_of_state(module: _Module, name: str, depth: int, collects: bool, kind: Type) -> _Body:
    body = _Body(module, name, depth, collects)
    body.node("parameter", kind, parameter_number=0)
    return body


def _fill(body: _Body, most: int) -> None:
    """Some operations, loops and branches."""
    module = body.module
    for _ in range(module.number(1, most)):
        kind = module.number(0, 9)
        if kind >= 8 and body.depth < 3:
            (_loop if kind == 8 else _conditional)(body)
        elif kind >= 6 and body.collects:
            _collective(body, _COLLECTIVES[module.number(0, len(_COLLECTIVES) - 1)])
        else:
            _local(body, _LOCAL[module.number(0, len(_LOCAL) - 1)])


def _local(body: _Body, op: str) -> None:
    kind, x = body.module.array, body.pick()
    if op in ("add", "subtract", "xor"):
        found = body.node(op, kind, x, body.pick())
    elif op == "power":
        cube = body.node("broadcast", kind, body.constant(3), dimensions=())
        found = body.node("power", kind, x, cube)
    elif op == "dot":
        contracting = {"lhs_contracting_dims": (1,), "rhs_contracting_dims": (0,)}
        found = body.node("dot", kind, x, body.pick(), **contracting)
    elif op == "update":
        found = _update(body, x)
    elif op == "transpose":
        found = body.node("transpose", kind, x, dimensions=(1, 0))
    else:
        found = body.node(op, kind, x)
    body.arrays.append(found)


def _update(body: _Body, array: NodeId) -> NodeId:
    """A row of one array takes the place of one in another, which may be the same."""
    size = body.module.array.shape[0]
    row = ArrayType(DType.S32, (1, size))
    taken = body.node("slice", row, body.pick(), slice=((0, 1, 1), (0, size, 1)))
    place = body.counter or body.constant(body.module.number(0, 4))
    zero = body.constant(0)
    return body.node("dynamic-update-slice", body.module.array, array, taken, place, zero)


def _collective(body: _Body, op: str) -> None:
    kind, stream = body.module.array, body.module.number(0, 2)
    where = {"frontend_attributes": Raw(f'{{stream_id="{stream}"}}')}
    if op.endswith("permute"):
        pairs = tuple((k, (k + 1) % RANKS) for k in range(RANKS))
        pairs = tuple((b, a) for a, b in pairs) if op.startswith("reversed") else pairs[1:]
        permute = body.node(
            "collective-permute",
            kind,
            body.pick(),
            source_target_pairs=SourceTargetPairs(pairs),
            **where,
        )
        body.arrays.append(permute)
        return
    meaning = {"replica_groups": ExplicitGroups(()), "to_apply": Callee("sum"), **where}
    if op == "all-reduce":
        body.arrays.append(body.node(op, kind, body.pick(), **meaning))
        return
    both = body.node("all-reduce", TupleType((kind, kind)), body.pick(), body.pick(), **meaning)
    body.arrays += [body.element(both, 0), body.element(both, 1)]


def _loop(body: _Body) -> None:
    """State: a counter, a limit, arrays, in a nested tuple with a token."""
    module, name = body.module, body.module.fresh("loop")
    agrees = module.number(0, 2) > 0
    start = body.constant(module.number(0, 2))
    limit = body.constant(module.number(0, 4)) if agrees else body.rank_number()
    width = module.number(1, 4)
    inner = body.tuple(body.node("after-all", TOKEN), *(body.pick() for _ in range(width)))
    state = body.tuple(start, limit, inner)
    kind = body.nodes[state].type
    collects = body.collects and agrees
    attributes = {
        "condition": Callee(_condition(module, f"{name}.condition", kind, collects)),
        "body": Callee(_loop_body(body, f"{name}.body", kind, collects)),
    }
    whole = body.node("while", kind, state, **attributes)
    arrays = body.element(whole, 2)
    body.arrays += [body.element(arrays, k + 1) for k in range(width)]


def _condition(module: _Module, name: str, kind: Type, collects: bool) -> str:
    """The counter below the limit; some sum the limit over the ranks, which all must do."""
    body = _body_of_state(module, name, 3, collects, kind)
    counter, limit = body.element(NodeId(0), 0), body.element(NodeId(0), 1)
    if collects and module.number(0, 2) == 0:
        meaning = {"replica_groups": ExplicitGroups(()), "to_apply": Callee("sum")}
        total = body.node("all-reduce", INT, limit, **meaning)
        limit = body.node("subtract", INT, total, body.constant(2 * RANKS))
    return module.add(body, body.node("compare", PRED, counter, limit, direction="LT"))


def _loop_body(outer: _Body, name: str, kind: Type, collects: bool) -> str:
    module = outer.module
    body = _body_of_state(module, name, outer.depth + 1, collects, kind)
    body.counter, limit = body.element(NodeId(0), 0), body.element(NodeId(0), 1)
    inner = body.element(NodeId(0), 2)
    inner_kind = body.nodes[inner].type
    assert isinstance(inner_kind, TupleType)
    width = len(inner_kind.elements) - 1
    old = [body.element(inner, k + 1) for k in range(width)]
    body.arrays += old
    _fill(body, 4)
    following = [old[k] if module.number(0, 4) == 0 else body.pick() for k in range(width)]
    token = body.element(inner, 0)
    more = body.node("add", INT, body.counter, body.constant(1))
    return module.add(body, body.tuple(more, limit, body.tuple(token, *following)))


def _conditional(body: _Body) -> None:
    """Two branches by a truth, or some by a number, each with arrays of its own."""
    module, name = body.module, body.module.fresh("branch")
    agrees = module.number(0, 2) > 0
    index = body.constant(module.number(-1, 3)) if agrees else body.rank_number()
    if agrees and body.counter is not None:
        index = body.counter
    count = module.number(1, 3)
    if module.number(0, 1):
        index, count = body.node("compare", PRED, index, body.constant(1), direction="EQ"), 2
    width = module.number(1, 2)
    arguments = [body.tuple(body.pick(), body.pick()) for _ in range(count)]
    result = TupleType((module.array,) * width)
    names = [
        _branch(body, f"{name}.{k}", body.nodes[argument].type, (body.collects and agrees, width))
        for k, argument in enumerate(arguments)
    ]
    called: dict[str, object] = {"branch_computations": Callees(tuple(names))}
    if body.nodes[index].type == PRED:
        pair = ("true_computation", "false_computation")
        called = {key: Callee(one) for key, one in zip(pair, names, strict=True)}
    whole = body.node("conditional", result, index, *arguments, **called)
    body.arrays += [body.element(whole, k) for k in range(width)]


def _branch(outer: _Body, name: str, kind: Type, how: tuple[bool, int]) -> str:
    collects, width = how
    body = _body_of_state(outer.module, name, outer.depth + 1, collects, kind)
    body.arrays += [body.element(NodeId(0), 0), body.element(NodeId(0), 1)]
    if outer.module.number(0, 3):
        _fill(body, 3)
    return outer.module.add(body, body.tuple(*(body.pick() for _ in range(width))))


def _sum_region() -> Computation:
    nodes = (
        Node("a", "parameter", INT, (), {"parameter_number": 0}),
        Node("b", "parameter", INT, (), {"parameter_number": 1}),
        Node("r", "add", INT, (NodeId(0), NodeId(1))),
    )
    return Computation("sum", nodes, NodeId(2))


@st.composite
def looping_modules(draw, most_ops: int = 6) -> Module:
    """A module on three ranks with one input; shrinks to straight lines."""
    size = draw(st.sampled_from([1, 3, 5]))
    module = _Module(draw, ArrayType(DType.S32, (size, size)))
    module.computations["sum"] = _sum_region()
    entry = _Body(module, "main", 0, collects=True)
    entry.arrays.append(entry.node("parameter", module.array, parameter_number=0))
    _fill(entry, most_ops)
    if not any(node.op in ("while", "conditional") for node in entry.nodes):
        _loop(entry)
    outputs = [entry.arrays[-1], *(entry.pick() for _ in range(draw(st.integers(0, 2))))]
    module.add(entry, entry.tuple(*outputs))
    return Module("loops", module.computations, "main", replica_count=RANKS)


def inputs_of(module: Module) -> np.ndarray:
    """Input 0 of every rank, [ranks, n, n] int32."""
    kind = module.entry_computation.nodes[0].type
    assert isinstance(kind, ArrayType)
    return np.random.default_rng(0).integers(-9, 9, (RANKS, *kind.shape), np.int32)
