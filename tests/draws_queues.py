"""Hypothesis strategies for modules that keep all queues busy and need much memory."""

from hypothesis import strategies as st

from ncc_compiler.ir.graph import Callee, Computation, Module, Node, NodeId, Raw, SourceTargetPairs
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.groups import ExplicitGroups

_OPS = {  # one or two for every engine
    "add": 2,
    "multiply": 2,
    "dot": 2,
    "tanh": 1,
    "exponential": 1,
    "copy": 1,
    "transpose": 1,
    "reshape": 1,
    "all-reduce": 1,
    "all-gather": 1,
    "collective-permute": 1,
    "two all-reduces": 2,
}


def _sum_region() -> Computation:
    scalar = ArrayType(DType.F32)
    nodes = (
        Node("a", "parameter", scalar, (), {"parameter_number": 0}),
        Node("b", "parameter", scalar, (), {"parameter_number": 1}),
        Node("r", "add", scalar, (NodeId(0), NodeId(1))),
    )
    return Computation("sum", nodes, NodeId(2))


def _attributes(op: str, stream: int) -> dict:
    everybody = {"replica_groups": ExplicitGroups(()), "dimensions": (0,)}
    on_stream = {"frontend_attributes": Raw(f'{{stream_id="{stream}"}}')}
    return {
        "dot": {"lhs_contracting_dims": (1,), "rhs_contracting_dims": (0,)},
        "transpose": {"dimensions": (1, 0)},
        "all-reduce": {
            "replica_groups": ExplicitGroups(()),
            "to_apply": Callee("sum"),
            **on_stream,
        },
        "collective-permute": {"source_target_pairs": SourceTargetPairs(((0, 0),))},
        "all-gather": {**everybody, **on_stream},
    }.get(op, {})


class _Drawing:
    """Nodes so far, and those of them that are arrays."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.arrays: list[NodeId] = []

    def node(self, op, type_, operands, **attributes) -> NodeId:
        self.nodes.append(Node(f"v{len(self.nodes)}", op, type_, tuple(operands), attributes))
        return NodeId(len(self.nodes) - 1)

    def two_all_reduces(self, type_, operands, stream) -> None:
        """Both in one collective."""
        both, attributes = TupleType((type_, type_)), _attributes("all-reduce", stream)
        whole = self.node("all-reduce", both, operands, **attributes)
        for k in range(2):
            self.arrays.append(self.node("get-tuple-element", type_, [whole], index=k))

    def pick(self, draw) -> NodeId:
        """An old value, more often a new one."""
        newest = len(self.arrays) - 1
        return self.arrays[newest - draw(st.integers(0, min(newest, 6)))]


@st.composite
def busy_modules(draw, most_ops: int = 40) -> Module:
    """A module on one rank whose arrays are all f32[n,n], for one of a few n."""
    size = draw(st.sampled_from([1, 4, 9]))
    type_ = ArrayType(DType.F32, (size, size))
    drawing = _Drawing()
    drawing.arrays.append(drawing.node("parameter", type_, (), parameter_number=0))
    count = draw(st.integers(1, most_ops))
    for op in draw(st.lists(st.sampled_from(list(_OPS)), min_size=count, max_size=count)):
        operands = [drawing.pick(draw) for _ in range(_OPS[op])]
        stream = draw(st.integers(0, 2))
        if op == "two all-reduces":
            drawing.two_all_reduces(type_, operands, stream)
        else:
            drawing.arrays.append(drawing.node(op, type_, operands, **_attributes(op, stream)))
    outputs = [drawing.arrays[-1], *draw(st.lists(st.sampled_from(drawing.arrays), max_size=3))]
    root = drawing.node("tuple", TupleType((type_,) * len(outputs)), outputs)
    entry = Computation("main", tuple(drawing.nodes), root)
    return Module("busy", {"sum": _sum_region(), "main": entry}, "main")
