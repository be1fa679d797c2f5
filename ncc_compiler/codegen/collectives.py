"""Collectives to placeholders: what the program says of them, and nothing of the wiring."""

import math

from ncc_compiler.codegen.select import COLLECTIVES
from ncc_compiler.diagnostics import CompileError, Diagnostic
from ncc_compiler.ir.collectives import (
    rank_groups,
    rank_pairs,
    reduction_by_name,
    reduction_of,
    written_stream,
)
from ncc_compiler.ir.graph import Module, Node
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import MAX_STREAMS
from ncc_runtime.neff.reductions import Reduction


def placeholder_of(
    module: Module,
    node: Node,
    arrays: list[ArrayType],
    operands: tuple[int, ...],
    results: tuple[int, ...],
) -> Placeholder:
    """The placeholder of a canonical collective whose operands have the types `arrays`.

    A barrier names no tensors: it only has to stand between those before it and behind it. Of a
    counted one the second operand is where the results lie, and those behind it are the counts.
    """
    op = COLLECTIVES[node.op]
    counts = operands[2:] if op.is_counted else ()
    if op.is_counted:
        arrays, operands = arrays[:1], operands[:1]
    if op is CollectiveOp.BARRIER:
        arrays, operands, results = [ArrayType(DType.U8)], (), ()
    channel = node.attributes.get("channel_id")
    permutes = op is CollectiveOp.PERMUTE
    groups = () if permutes else rank_groups(module, node)
    _check_is_canonical(node, arrays, len(groups[0]) if groups else 1)
    return Placeholder(
        op=op,
        dtype=arrays[0].dtype,
        operands=operands,
        results=results,
        reduction=_reduction(module, node, arrays[0].dtype),
        groups=groups,
        pairs=rank_pairs(module, node) if permutes else (),
        root=_root(op, node),
        stream=_stream(node),
        channel_id=channel if isinstance(channel, int) else None,
        name=node.name,
        counts=counts,
    )


def _root(op: CollectiveOp, node: Node) -> int | None:
    """Where the root is in each group; of a broadcast it is the first."""
    if op is CollectiveOp.BROADCAST:
        return 0
    return node.integer("root") if op.is_rooted else None


def _reduction(module: Module, node: Node, dtype: DType) -> Reduction | None:
    """How the collective combines values, if it does."""
    if "to_apply" not in node.attributes:
        return reduction_by_name(node, dtype)
    found = reduction_of(module.computations[node.callee()])
    assert found is not None, f"{node.name}: %{node.callee()} is no reduction"
    return found


def _stream(node: Node) -> int:
    stream = written_stream(node) or 0
    if stream >= MAX_STREAMS:
        text = f"stream_id is {stream}, there are {MAX_STREAMS} streams"
        raise CompileError([Diagnostic("codegen-C2", text, node.span)])
    return stream


def _check_is_canonical(node: Node, arrays: list[ArrayType], group_size: int) -> None:
    """Chunks must be byte ranges, as the pass `expand-collectives` leaves them."""
    assert len({array.dtype for array in arrays}) == 1, f"{node.name} mixes element types"
    for array in arrays:
        for dimension in node.integers("dimensions"):
            contiguous = group_size == 1 or math.prod(array.shape[:dimension]) in (0, 1)
            assert contiguous, f"{node.name}: chunks of dimension {dimension} are not byte ranges"
    assert "dimensions" in node.attributes or node.op != "all-to-all" or group_size == 1, node.name
