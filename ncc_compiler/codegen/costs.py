"""What an instruction costs: arithmetic, elements and HBM traffic, for the clock to read."""

import math
from collections.abc import Callable, Mapping

from ncc_compiler.codegen.draft import Costs
from ncc_compiler.diagnostics import CompileError, Diagnostic
from ncc_compiler.ir.graph import Node
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.windows import ConvolutionLabels, Window

_MOST = 2**63 - 1  # of a column


def costs(node: Node, results: list[ArrayType], operands: list[ArrayType]) -> Costs:
    """Costs of a node: flops of the Tensor engine, elements that the others walk over."""
    flops = _FLOPS[node.op](node, results[0], operands) if node.op in _FLOPS else 0
    elements = _elements(node, results, operands)
    if max(flops, elements) > _MOST:
        most = max(flops, elements)
        text = f"{node.op} takes {most} operations, at most {_MOST} can be counted"
        raise CompileError([Diagnostic("codegen-C4", text, node.span)])
    return Costs(
        flops=flops,
        elements=elements,
        bytes_in=_bytes_read(node, results, operands),
        bytes_out=sum(array.size_bytes for array in results),
    )


def _bytes_read(node: Node, results: list[ArrayType], operands: list[ArrayType]) -> int:
    """All of the operands; of one that is read here and there, as much as is written."""
    if node.op not in ("dynamic-slice", "gather"):
        return sum(array.size_bytes for array in operands)
    indices = sum(array.size_bytes for array in operands[1:])
    return sum(array.size_bytes for array in results) + indices


def _dot_flops(node: Node, result: ArrayType, operands: list[ArrayType]) -> int:
    """A multiplication and an addition for each result element and contracted index."""
    contracted = [operands[0].shape[d] for d in node.integers("lhs_contracting_dims")]
    return 2 * result.elements * math.prod(contracted)


def _ragged_dot_flops(node: Node, _: ArrayType, operands: list[ArrayType]) -> int:
    """A multiplication and an addition for each left element and column that it meets: one group's.

    As if every index of the ragged dimension were in a group.
    """
    names = ("batch_dims", "contracting_dims", "group_dims")
    taken = [number for name in names for number in node.integers(f"rhs_{name}")]
    left, right = operands[:2]
    columns = math.prod(size for d, size in enumerate(right.shape) if d not in taken)
    return 2 * left.elements * columns


def _convolution_flops(node: Node, result: ArrayType, operands: list[ArrayType]) -> int:
    """A multiplication and an addition for each result element and element of its kernel."""
    labels, kernel = node.attributes["dim_labels"], operands[1]
    assert isinstance(labels, ConvolutionLabels), node.name
    features = kernel.shape[labels.kernel_dimensions[1]]
    return 2 * result.elements * (kernel.elements // max(1, features))


_FLOPS: Mapping[str, Callable[[Node, ArrayType, list[ArrayType]], int]] = {
    "convolution": _convolution_flops,
    "dot": _dot_flops,
    "ragged-dot": _ragged_dot_flops,
}
"""Arithmetic of the Tensor engine."""


def _elements(node: Node, results: list[ArrayType], operands: list[ArrayType]) -> int:
    """Elements that an engine walks over, an element as often as it is computed with.

    Folds walk over what they read, methods over their operand once for each step; everything else
    over what it writes.
    """
    if node.op == "reduce":
        return sum(array.elements for array in operands[: len(operands) // 2])
    written = sum(array.elements for array in results)
    if node.op in ("reduce-window", "select-and-scatter"):
        window = node.attributes["window"]
        assert isinstance(window, Window), node.name
        places = written if node.op == "reduce-window" else operands[1].elements
        return places * math.prod(one.size for one in window.dimensions)
    if node.op == "fft":
        lengths = node.attributes["fft_length"]
        assert isinstance(lengths, tuple), node.name
        return written * sum(int(size).bit_length() for size in lengths if isinstance(size, int))
    if node.op in ("sort", "topk"):
        steps = (max(one.shape, default=0).bit_length() for one in operands)
        return sum(one.elements * count for one, count in zip(operands, steps, strict=True))
    if node.op in ("cholesky", "triangular-solve"):
        return written * operands[0].shape[-1]
    return written
