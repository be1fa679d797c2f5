"""What an instruction costs: arithmetic, elements and HBM traffic, for the clock to read."""

import math
from collections.abc import Iterable

from ncc_compiler.codegen.lowered import InstructionCosts
from ncc_compiler.codegen.select import SELECTORS
from ncc_compiler.diagnostics import CompileError, Diagnostic
from ncc_compiler.ir.custom_calls import call_of
from ncc_compiler.ir.graph import Node
from ncc_compiler.ir.op_tables.numeric import AMOUNTS, WORK
from ncc_compiler.ir.types import ArrayType
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.products import PRODUCTS, multiply_adds
from ncc_runtime.neff.shared.windows import Window

READ_IN_PART = frozenset({"dynamic-slice", "gather"})
"""Ops that read no more of their first operand than they write."""

_MAX_COUNT = 2**63 - 1  # columns of the instruction table are int64


def costs(node: Node, results: list[ArrayType], operands: list[ArrayType]) -> InstructionCosts:
    """Costs of a node: flops of the Tensor engine, elements that the others walk over.

    Raises CompileError where they are too many to be counted.
    """
    if node.op == WORK:
        return InstructionCosts(*(node.integer(name) for name in AMOUNTS))
    selected = SELECTORS.get(node.op)
    flops = 0
    if selected is not None and selected.opcode in PRODUCTS:
        attributes = selected.attributes(node)
        shapes = [array.shape for array in operands]
        flops = 2 * multiply_adds(selected.opcode, attributes, results[0].shape, shapes)
    elements = _elements(node, results, operands)
    bytes_in = sum(array.size_bytes for array in operands)
    bytes_out = sum(array.size_bytes for array in results)
    if node.op in READ_IN_PART:
        bytes_in += bytes_out - operands[0].size_bytes
    return checked_costs(node.op, node, flops, elements, bytes_in, bytes_out)


def checked_costs(
    what: str, node: Node, flops: int, elements: int, bytes_in: int, bytes_out: int
) -> InstructionCosts:
    """The costs of the instruction of a node; CompileError where they are too many to count."""
    if (count := max(flops, elements)) > _MAX_COUNT:
        text = f"{what} takes {count} operations, at most {_MAX_COUNT} can be counted"
        raise CompileError([Diagnostic("codegen-C4", text, node.span)])
    return InstructionCosts(flops, elements, bytes_in, bytes_out)


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
        return places * math.prod(dimension.size for dimension in window.dimensions)
    if node.op == "fft":
        lengths = node.attributes["fft_length"]
        assert isinstance(lengths, tuple), node.name
        return written * sum(int(size).bit_length() for size in lengths if isinstance(size, int))
    if node.op in ("sort", "topk"):
        steps = (max(operand.shape, default=0).bit_length() for operand in operands)
        return sum(operand.elements * count for operand, count in zip(operands, steps, strict=True))
    if node.op in ("cholesky", "triangular-solve"):
        return written * operands[0].shape[-1]
    if node.op == "custom-call":
        return written + _lapack_elements(node, operands)
    return written


def _lapack_elements(node: Node, operands: list[ArrayType]) -> int:
    """Elements that a routine multiplies and adds: half of the flops of all its matrices.

    Flops of factorisations, reductions and products of reflectors: LAPACK Working Note 41
    (Blackford and Dongarra, 1999), appendix C. Of what iterates, for a usual number of iterations:
    Golub and Van Loan, Matrix Computations, 4th edition: eigenvalues of symmetric matrices 8.3
    (9 n^3 with vectors), of others 7.5.6 (10 n^3, 25 n^3 with the Schur form and vectors),
    singular values figure 8.6.1. gtsv is counted off LAPACK's code.
    """
    call = call_of(node)
    first = operands[0].shape
    if call.routine.startswith("gtsv"):
        right_sides = operands[3].shape[-1]
        return operands[0].elements * (4 + 7 * right_sides) // 2
    m, n = first[-2:]
    large, small = max(m, n), min(m, n)
    wants_vectors = any(call.options.get(job) in ("V", "A", "S") for job in _JOBS)
    reflectors = operands[1].shape[-1] if call.routine in ("orgqr", "ormqr") else 0
    match call.routine:
        case "potrf":
            flops = n**3 // 3
        case "getrf" | "lu":
            flops = large * small**2 - small**3 // 3
        case "geqrf" | "geqp3":
            flops = 2 * large * small**2 - 2 * small**3 // 3
        case "orgqr":
            k = reflectors
            flops = 4 * m * n * k - 2 * (m + n) * k**2 + 4 * k**3 // 3
        case "ormqr":
            rows, columns = operands[2].shape[-2:]
            other = columns if call.options["side"] == "L" else rows
            flops = 4 * rows * columns * reflectors - 2 * other * reflectors**2
        case "gehrd":
            flops = 10 * n**3 // 3
        case "sytrd":
            flops = 4 * n**3 // 3
        case "syevd":
            flops = 9 * n**3 if wants_vectors else 4 * n**3 // 3
        case "eigh":
            flops = 9 * n**3
        case "geev" | "gees":
            flops = 25 * n**3 if wants_vectors else 10 * n**3
        case "gesdd" | "gesvd":
            flops = 4 * large * small**2 - 4 * small**3 // 3
            if wants_vectors:
                flops = 14 * large * small**2 + 8 * small**3
            if call.options["jobz"] == "A":
                flops = 4 * large**2 * small + 8 * large * small**2 + 9 * small**3
        case _:
            raise AssertionError(call.routine)
    return math.prod(first[:-2]) * flops // 2


_JOBS = ("jobz", "jobvl", "jobvr", "jobvs")


def elements_by_engine(work: Iterable[tuple[Engine, InstructionCosts]]) -> dict[Engine, int]:
    """The elements that each engine walks over that takes part."""
    elements: dict[Engine, int] = {}
    for engine, cost in work:
        elements[engine] = elements.get(engine, 0) + cost.elements
    return elements
