"""`nccrt bench`: time, bandwidth and algorithm of one collective, size by size.

Time is the clock's, from the first rank's start to the last one's end, as `nccrt run` has it for a
collective; the launch is not part of it. Columns and factors are nccom-test's. Source: AWS Neuron
SDK docs, nccom-test.rst.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from rich.console import Console
from rich.table import Table

from ncc_runtime.errors import InputError
from ncc_runtime.execution.clock.clock import collective_ps
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.report.bench_program import Case
from ncc_runtime.report.heading import SCHEMA

WIDTH = 120


@attrs.frozen
class Measured:
    """One line of a bench."""

    case: Case
    algorithm: str
    time_us: float
    checked: str | None  # the mode of the check that it passed

    @property
    def size_bytes(self) -> int:
        return self.case.elements * self.case.dtype.size_bytes

    @property
    def algbw_gb_per_s(self) -> float:
        return self.size_bytes / self.time_us / 1e3 if self.time_us else 0.0

    @property
    def busbw_gb_per_s(self) -> float:
        return self.algbw_gb_per_s * self.case.operator.wire_share(self.case.ranks)


def sizes(least: int, most: int, factor: int | None, step: int | None) -> Iterator[int]:
    """From the least to the most, by a factor (2 unless said otherwise) or a step."""
    size = least
    while size <= most:
        yield size
        size = size + step if step else size * (factor or 2)


def operands(case: Case, mode: str, generator: np.random.Generator) -> np.ndarray:
    """What the ranks give, [ranks, elements]: ones, or small whole numbers."""
    shape = (case.ranks, case.operand_elements)
    if mode == "all_ones":
        return np.ones(shape, case.dtype.numpy)
    return generator.integers(0, 4, shape, np.uint8).astype(case.dtype.numpy)


def check(case: Case, given: np.ndarray, got: np.ndarray) -> None:
    """Compare with what numpy says; InputError names the first element that is wrong."""
    wanted = _wanted(case, given)
    exact = case.dtype.is_integer or not case.operator.op.reduces
    wide = np.int64 if case.dtype.is_integer else np.float64
    apart = np.abs(got.astype(wide) - wanted.astype(wide))
    # sums of non-negative numbers: each of the joins rounds its result once
    slack = 0.0 if exact else case.ranks * _epsilon(case.dtype)
    wrong = ~(apart <= slack * np.abs(wanted.astype(np.float64)))
    if wrong.any():
        rank, element = (int(at[0]) for at in np.nonzero(wrong))
        raise InputError(
            f"{case.operator.name} of {case.size_bytes} bytes: rank {rank} element {element} is "
            f"{got[rank, element]}, expected {wanted[rank, element]}"
        )
    if case.operator.op is CollectiveOp.ALL_REDUCE and (got != got[:1]).any():
        raise InputError(f"{case.operator.name} of {case.size_bytes} bytes: the ranks differ")


def _epsilon(dtype: DType) -> float:
    """From 1 to the next larger value."""
    one = np.ones(1, dtype.numpy)
    above = (one.view(f"u{dtype.size_bytes}") + 1).view(dtype.numpy)
    return float(above[0]) - 1.0


def _wanted(case: Case, given: np.ndarray) -> np.ndarray:
    """The results, [ranks, elements]; sums in 64 bits, wrapped to the integer type."""
    op, ranks = case.operator.op, case.ranks
    if op is CollectiveOp.PERMUTE:
        wanted = np.zeros_like(given)
        for source, target in case.pairs:
            wanted[target] = given[source]
        return wanted
    if op in (CollectiveOp.ALL_GATHER, CollectiveOp.ALL_GATHER_V):
        return np.broadcast_to(given.reshape(-1), (ranks, given.size))
    if op in (CollectiveOp.ALL_TO_ALL, CollectiveOp.ALL_TO_ALL_V):
        chunks = given.reshape(ranks, ranks, -1)
        return chunks.swapaxes(0, 1).reshape(ranks, -1)
    wide = np.int64 if case.dtype.is_integer else np.float64
    total = given.astype(wide).sum(axis=0)
    if case.dtype.is_integer:
        total = total.astype(case.dtype.numpy)
    if op is CollectiveOp.ALL_REDUCE:
        return np.broadcast_to(total, given.shape)
    return total.reshape(ranks, -1)


def measured(case: Case, executable: Executable, mode: str | None) -> Measured:
    """The line of a case, whose program is placed and filled: by what, and its time."""
    return Measured(case, executable.filled[0].name, collective_ps(executable) / 1e6, mode)


def as_json(lines: Sequence[Measured], place: Mapping[str, Any]) -> dict[str, Any]:
    """The object of `--json` and of the report file."""
    return {"schema": SCHEMA, **place, "results": [_json_line(one) for one in lines]}


def _json_line(one: Measured) -> dict[str, Any]:
    return {
        "op": one.case.operator.name,
        "size_bytes": one.size_bytes,
        "count_elems": one.case.elements,
        "type": type_name(one.case.dtype),
        "ranks": one.case.ranks,
        "iterations": one.case.iterations,
        "time_us": one.time_us,
        "algbw_gb_per_s": one.algbw_gb_per_s,
        "busbw_gb_per_s": one.busbw_gb_per_s,
        "algorithm": one.algorithm,
        "check": one.checked,
    }


def type_name(dtype: DType) -> str:
    """nccom-test's name of a type."""
    from ncc_runtime.report.bench_program import DTYPES

    return next(name for name, one in DTYPES.items() if one is dtype)


def as_text(lines: Sequence[Measured], heading: str, *, show_algorithm: bool) -> str:
    """The table that `nccrt bench` prints."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, highlight=False, no_color=True, markup=False)
    console.print(heading)
    table = Table(box=None, pad_edge=False)
    columns = ["size(B)", "count(elems)", "type", "time(us)", "algbw(GB/s)", "busbw(GB/s)"]
    columns += ["algorithm"] if show_algorithm else []
    for column in columns:
        table.add_column(column, justify="right")
    for one in lines:
        figures = (one.time_us, one.algbw_gb_per_s, one.busbw_gb_per_s)
        cells = [str(one.size_bytes), str(one.case.elements), type_name(one.case.dtype)]
        cells += [f"{figure:.2f}" for figure in figures]
        table.add_row(*cells, *([one.algorithm] if show_algorithm else []))
    console.print(table)
    passed = {one.checked for one in lines if one.checked}
    for mode in sorted(passed):
        console.print(f"check {mode}: every value is as expected")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())
