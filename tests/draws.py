"""Hypothesis strategies for the front end: types, literals, attributes, modules, damaged texts."""

import re
from pathlib import Path

import numpy as np
from hypothesis import strategies as st

from ncc_compiler.ir.graph import (
    Computation,
    Literal,
    Module,
    Node,
    NodeId,
    Raw,
    SourceFrame,
    SourceTargetPairs,
)
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.groups import ExplicitGroups, IotaGroups, MeshAxis, MeshGroups

HLO = Path(__file__).parent / "data" / "hlo"

names = st.from_regex(r"[a-zA-Z_é][\w.\-]{0,8}[\w]", fullmatch=True).filter(
    lambda name: name not in {"ROOT", "ENTRY", "HloModule", "StackFrames", "FileNames"}
)
dtypes = st.sampled_from(list(DType))
shapes = st.lists(st.integers(0, 3), max_size=3).map(tuple)
array_types = st.builds(ArrayType, dtypes, shapes)


@st.composite
def literals(draw: st.DrawFn, kind: ArrayType) -> Literal:
    """Any bits of the type: every NaN, infinity, subnormal; narrow integers stay in their bits."""
    size = kind.size_bytes
    raw = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype=np.uint8).copy()
    if kind.dtype is DType.PRED:
        array = (raw & 1).astype(bool)
    elif kind.dtype.is_integer and kind.dtype.bits < 8:
        unused = 8 - kind.dtype.bits
        shifted = (raw << unused).view(np.int8 if kind.dtype.is_signed else np.uint8)
        array = (shifted >> unused).astype(kind.dtype.numpy)
    else:
        unused = max(0, 8 - kind.dtype.bits)
        array = (raw & np.uint8(0xFF >> unused)).view(kind.dtype.numpy)
    array = array.reshape(kind.shape)
    array.setflags(write=False)
    return Literal(array)


axis_sizes = st.lists(st.integers(1, 4), min_size=1, max_size=3)


@st.composite
def replica_groups(draw: st.DrawFn) -> ExplicitGroups | IotaGroups | MeshGroups:
    """One of the four spellings."""
    sizes = draw(axis_sizes)
    match draw(st.sampled_from(["explicit", "iota", "transposed", "mesh"])):
        case "explicit":
            ids = draw(st.permutations(range(sizes[0] * 2)))
            return ExplicitGroups((tuple(ids[: sizes[0]]), tuple(ids[sizes[0] :])))
        case "mesh":
            axes = tuple((f"axis{k}", size) for k, size in enumerate(sizes))
            return MeshGroups(axes, (MeshAxis(draw(st.sampled_from(axes))[0]),))
        case spelling:
            total = int(np.prod(sizes))
            order = draw(st.permutations(range(len(sizes)))) if spelling == "transposed" else ()
            return IotaGroups((total, 1), tuple(sizes), tuple(order))


pairs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=4).map(
    lambda found: SourceTargetPairs(tuple(found))
)
frames = st.dictionaries(
    st.integers(1, 9),
    st.builds(
        SourceFrame,
        file=st.sampled_from(["a.py", 'dir "x"/b.py', "c\\d.py"]),
        function=st.sampled_from(["f", "<module>", ""]),
        line=st.integers(0, 99),
        column=st.integers(0, 99),
        parent=st.integers(0, 9),
    ),
    max_size=3,
)
_FREE = ['"text, with \\" marks"', "{}", "{{1},{2,{3}}}", "word"]
raw_attributes = st.fixed_dictionaries(
    {},
    optional={
        key: st.sampled_from(values).map(Raw)
        for key, values in {
            "metadata": ['{op_name="a{b" stack_frame_id=1}', "{}"],
            "backend_config": _FREE[:3],
            "frontend_attributes": ['{a.b="{",c={{0,1},{"}"}}}', "{}"],
            "sharding": _FREE[1:3],
            "of_another_xla": _FREE,
        }.items()
    },
)


@st.composite
def modules(draw: st.DrawFn) -> Module:
    """A module of constants, tuples and elements of them: whatever text can hold, it may hold."""
    chosen = draw(st.lists(names, min_size=3, max_size=6, unique=True))
    nodes: list[Node] = []
    for position, name in enumerate(chosen[:-1]):
        kind = draw(array_types)
        attributes = {"literal": draw(literals(kind)), **draw(raw_attributes)}
        if position and draw(st.booleans()):
            operand = NodeId(draw(st.integers(0, position - 1)))
            nodes.append(Node(name, "copy", nodes[operand].type, (operand,)))
        else:
            nodes.append(Node(name, "constant", kind, (), attributes))
    operands = tuple(map(NodeId, range(len(nodes))))
    kind = TupleType(tuple(node.type for node in nodes))
    nodes.append(Node(chosen[-1], "tuple", kind, operands, draw(raw_attributes)))
    entry = Computation(draw(names), tuple(nodes), NodeId(draw(st.integers(0, len(nodes) - 1))))
    return Module(
        name=draw(names),
        computations={entry.name: entry},
        entry=entry.name,
        replica_count=draw(st.integers(1, 3)),
        num_partitions=draw(st.integers(1, 3)),
        attributes={"is_scheduled": Raw("true")} if draw(st.booleans()) else {},
        frames=draw(frames),
    )


_TOKEN = re.compile(r"[\w.%\-]+|\s+|[^\w\s]")
_SPICE = [*'{}()[],=%:-><"#/*$\n', "ROOT", "ENTRY", "nan", "9" * 30, "/*", "parameter("]


@st.composite
def damaged_texts(draw: st.DrawFn) -> str:
    """A stretch of a real module with a few tokens dropped, doubled, swapped or thrown in."""
    text = (
        HLO / draw(st.sampled_from(["mlp_train_dp2_tp4.hlo", "collective_zoo.hlo"]))
    ).read_text()
    lines = text.splitlines(keepends=True)
    start = draw(st.integers(0, len(lines) - 1))
    tokens = _TOKEN.findall("".join(lines[start : start + draw(st.integers(1, 20))]))
    for _ in range(draw(st.integers(1, 5))):
        at = draw(st.integers(0, len(tokens) - 1))
        other = tokens[draw(st.integers(0, len(tokens) - 1))]
        spice = draw(st.sampled_from(_SPICE))
        tokens[at : at + 1] = draw(
            st.sampled_from([[], [tokens[at]] * 2, [other], [spice], [tokens[at], spice]])
        )
        tokens = tokens or [spice]
    return "".join(tokens)
