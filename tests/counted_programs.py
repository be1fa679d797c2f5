"""Programs with counted collectives, and counts for them that fit."""

from collections.abc import Sequence

import attrs
import numpy as np
from hypothesis import strategies as st

from ncc_runtime.neff.shared.dtypes import DType

SLOTTED = ("ncc.all_to_all_v", "ncc.all_gather_v", "ncc.reduce_scatter_v")
OPS = ("ragged-all-to-all", *SLOTTED)


@attrs.frozen
class Shape:
    """Sizes of one counted collective over groups of one size."""

    groups: tuple[tuple[int, ...], ...]
    operand_rows: int = 12
    slot: int = 5  # rows of a slot, or of a ragged result by member
    width: int = 3
    updates: int = 1
    element: str = "f32"
    number: str = "s32"

    @property
    def members(self) -> int:
        return len(self.groups[0])

    @property
    def ranks(self) -> int:
        return self.members * len(self.groups)

    def output_rows(self, op: str) -> int:
        return self.slot if op == "ncc.reduce_scatter_v" else self.slot * self.members


@st.composite
def shapes(draw: st.DrawFn, elements: Sequence[str] = ("f32", "bf16", "s8", "f16", "s32")) -> Shape:
    """Groups of one size over all ranks, in any order, and sizes that go with them."""
    members, groups = draw(st.sampled_from([(1, 2), (2, 3), (3, 1), (4, 2), (7, 1), (8, 1)]))
    order = draw(st.permutations(range(members * groups)))
    return Shape(
        groups=tuple(tuple(order[k * members : (k + 1) * members]) for k in range(groups)),
        operand_rows=draw(st.integers(0, 9)),
        slot=draw(st.integers(0, 6)),
        width=draw(st.integers(0, 4)),
        updates=draw(st.integers(1, 3)),
        element=draw(st.sampled_from(elements)),
        number=draw(st.sampled_from(["s32", "s64", "u32", "u64"])),
    )


def text_of(op: str, shape: Shape, reduction: str = "add") -> str:
    """A program that is one such collective on its parameters."""
    operand = f"{shape.element}[{shape.operand_rows},{shape.width}]"
    output = f"{shape.element}[{shape.output_rows(op)},{shape.width}]"
    groups = "{" + ",".join("{" + ",".join(map(str, one)) + "}" for one in shape.groups) + "}"
    if op == "ragged-all-to-all":
        tables = [f"{shape.number}[{shape.members * shape.updates}]"] * 4
        call = f"ragged-all-to-all(x, out, t0, t1, t2, t3), replica_groups={groups}"
    else:
        tables = [f"u32[3,{shape.members}]"]
        listed = groups.replace("{", "[").replace("}", "]")
        named = f',"reduction":"{reduction}"' if op == "ncc.reduce_scatter_v" else ""
        call = (
            f'custom-call(x, out, t0), custom_call_target="{op}", '
            f'backend_config={{"replica_groups":{listed}{named}}}'
        )
    lines = [f"  t{k} = {kind} parameter({k + 2})" for k, kind in enumerate(tables)]
    return "\n".join(
        [
            f"HloModule counted, replica_count={shape.ranks}",
            "ENTRY main {",
            f"  x = {operand} parameter(0)",
            f"  out = {output} parameter(1)",
            *lines,
            f"  ROOT r = {output} {call}",
            "}",
        ]
    )


def counts_of(op: str, shape: Shape, seed: int) -> list[np.ndarray]:
    """Tables that fit, each [ranks, *shape]; every other draw is full."""
    rng = np.random.default_rng(seed)
    tables = [_group_counts(op, shape, rng) for _ in shape.groups]
    found = []
    for columns in zip(*tables, strict=True):
        whole = np.zeros((shape.ranks, *columns[0].shape[1:]), columns[0].dtype)
        for group, column in zip(shape.groups, columns, strict=True):
            whole[list(group)] = column
        found.append(whole)
    return found


def _group_counts(op: str, shape: Shape, rng: np.random.Generator) -> Sequence[np.ndarray]:
    n, most = shape.members, min(shape.slot, shape.operand_rows)
    if op == "ragged-all-to-all":
        return _ragged(shape, rng)
    rows = rng.integers(0, most + 1, (n, n))
    if op == "ncc.all_gather_v":
        rows[:] = rows[:, :1]
    if op == "ncc.reduce_scatter_v":
        rows[:] = rows[:1]
    start = rng.integers(0, shape.operand_rows - rows + 1)
    if op == "ncc.all_gather_v":
        start[:] = start[:, :1]
    return [np.stack([rows, start, rows.T], axis=1).astype(np.uint32)]


def _ragged(shape: Shape, rng: np.random.Generator) -> Sequence[np.ndarray]:
    """Every receiver's rows are dealt out to senders in any order, with holes between them."""
    n, updates = shape.members, shape.updates
    rows = np.zeros((n, n, updates), np.int64)
    target = np.zeros((n, n, updates), np.int64)
    for to in range(n):
        cuts = np.sort(rng.integers(0, shape.slot * n + 1, 2 * n * updates)).reshape(-1, 2)
        for (first, last), place in zip(cuts, rng.permutation(n * updates), strict=True):
            source, update = divmod(int(place), updates)
            rows[source, to, update] = min(last - first, shape.operand_rows)
            target[source, to, update] = first
    start = rng.integers(0, shape.operand_rows - rows + 1)
    dtype = {"s32": np.int32, "s64": np.int64, "u32": np.uint32, "u64": np.uint64}[shape.number]
    tables = (start, rows, target, rows.swapaxes(0, 1))
    return [table.reshape(n, n * updates).astype(dtype) for table in tables]


def buffers_of(op: str, shape: Shape, seed: int) -> list[np.ndarray]:
    """The operand and the output that it writes into, small whole numbers."""
    rng = np.random.default_rng(seed + 1)
    dtype = DType(shape.element).numpy
    sides = (shape.operand_rows, shape.output_rows(op))
    return [rng.integers(-9, 9, (shape.ranks, rows, shape.width)).astype(dtype) for rows in sides]
