"""What `nccrt bench` says: a row for each size, the closing average, what was measured beside it.

Time is the clock's, from the first rank's start to the last one's end, as `nccrt run` has it for a
collective; the launch is not part of it. Columns, keys and factors are nccom-test's, and columns
of ours stand behind them. Source: AWS Neuron SDK docs, nccom-test.rst.
"""

import csv
import io
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.execution.clock.clock import collective_ps
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.report.bench import Case, type_name
from ncc_runtime.report.run import SCHEMA


@attrs.frozen
class BenchRow:
    """One row of a bench."""

    case: Case
    algorithm: str
    time_us: float
    forced: str = ""  # the algorithm that was asked for; "": the cheapest
    checked: str | None = None  # the mode of the check that it passed
    runs_us: tuple[float, ...] = ()  # of runs one after another, where their spread is wanted
    measured_us: float | None = None  # what was measured of the same
    healthy_us: float | None = None  # where nothing is down or slow
    free_us: float | None = None  # where any order of reduction may be chosen

    @property
    def size_bytes(self) -> int:
        return self.case.elements * self.case.dtype.size_bytes

    @property
    def algbw_gb_per_s(self) -> float:
        return self.size_bytes / self.time_us / 1e3 if self.time_us else 0.0

    @property
    def busbw_gb_per_s(self) -> float:
        return self.algbw_gb_per_s * self.case.operator.wire_share(self.case.members)

    @property
    def ratio(self) -> float | None:
        """Predicted over measured."""
        return None if self.measured_us is None else self.time_us / self.measured_us


def row_of(case: Case, executable: Executable) -> BenchRow:
    """The row of a case, whose program is placed and filled: by what, and its time."""
    return BenchRow(case, executable.lowered[0].name, collective_ps(executable) / 1e6)


STATISTICS: Mapping[str, Callable[[Sequence[float]], float]] = {
    "min": min,
    "avg": statistics.fmean,
    "p50": statistics.median,
    "p99": lambda runs: float(np.percentile(runs, 99)),
    "max": max,
}
"""Of the times of several runs; p99 is between the two nearest runs."""


@attrs.frozen
class Column:
    """A column of table, CSV and JSON: nccom-test's name, and a row's value."""

    name: str
    width: int  # in the table, whose rows are printed before the next ones are known
    value: Callable[[BenchRow], int | float | str | None]

    def cell(self, row: BenchRow) -> str:
        value = self.value(row)
        if value is None:
            return "-".rjust(self.width)
        return (f"{value:.2f}" if isinstance(value, float) else str(value)).rjust(self.width)


_FIRST = (
    Column("size(B)", 12, lambda row: row.size_bytes),
    Column("count(elems)", 12, lambda row: row.case.elements),
    Column("type", 6, lambda row: type_name(row.case.dtype)),
)
_SIDES = (
    Column("input(B)", 12, lambda row: row.case.operand_elements * row.case.dtype.size_bytes),
    Column("output(B)", 12, lambda row: row.case.result_elements * row.case.dtype.size_bytes),
)
_FIGURES = (
    Column("time(us)", 11, lambda row: row.time_us),
    Column("algbw(GB/s)", 11, lambda row: row.algbw_gb_per_s),
    Column("busbw(GB/s)", 11, lambda row: row.busbw_gb_per_s),
)
_ALGORITHM = (Column("algorithm", 16, lambda row: row.algorithm),)
_HEALTHY = (Column("healthy(us)", 11, lambda row: row.healthy_us),)
_FREE = (Column("any-order(us)", 13, lambda row: row.free_us),)
_COMPARED = (
    Column("measured(us)", 12, lambda row: row.measured_us),
    Column("ratio", 6, lambda row: row.ratio),
)


def _of_runs(name: str) -> Column:
    statistic = STATISTICS[name]
    return Column(f"time:{name}(us)", 12, lambda row: statistic(row.runs_us))


_RUNS = tuple(map(_of_runs, STATISTICS))


@attrs.frozen
class Layout:
    """Which columns a table has."""

    algorithm: bool = False
    sides: bool = False
    runs: bool = False
    compared: bool = False
    healthy: bool = False
    free: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        return (
            *_FIRST,
            *(_SIDES if self.sides else ()),
            *_FIGURES,
            *(_HEALTHY if self.healthy else ()),
            *(_FREE if self.free else ()),
            *(_RUNS if self.runs else ()),
            *(_COMPARED if self.compared else ()),
            *(_ALGORITHM if self.algorithm else ()),
        )

    def head(self) -> str:
        return "  ".join(column.name.rjust(column.width) for column in self.columns)

    def line(self, row: BenchRow) -> str:
        return "  ".join(column.cell(row) for column in self.columns)


@attrs.frozen
class Comparison:
    """How far predictions are from what was measured of the same sizes."""

    source: str  # the file
    algorithm: str  # that was asked for; "": the cheapest
    rows: int
    median_ratio: float  # predicted over measured
    median_error: float  # |predicted - measured| / measured
    worst_error: float
    worst: BenchRow
    left_out: int  # measured rows of other sizes, operators, types or machines

    def as_text(self) -> str:
        of = f" of {self.algorithm}" if self.algorithm else ""
        text = (
            f"predicted/measured{of}: median {self.median_ratio:.2f}, "
            f"error median {self.median_error:.1%}, worst {self.worst_error:.1%} at "
            f"{self.worst.size_bytes} B, over {_counted(self.rows, 'row')} of {self.source}"
        )
        if self.left_out:
            text += f"; {_counted(self.left_out, 'row')} of it of something else left out"
        return text

    def as_json(self) -> dict[str, Any]:
        return {
            "file": self.source,
            "algorithm": self.algorithm or None,
            "rows": self.rows,
            "median_ratio": self.median_ratio,
            "median_error": self.median_error,
            "worst_error": self.worst_error,
            "worst_size_bytes": self.worst.size_bytes,
            "left_out": self.left_out,
        }


def comparisons(rows: Sequence[BenchRow], source: str, left_out: int) -> list[Comparison]:
    """How far those rows are that were measured, by the algorithm that was asked for."""
    found = []
    for name in dict.fromkeys(row.forced for row in rows):
        pairs = [(row, row.ratio) for row in rows if row.forced == name and row.ratio is not None]
        if pairs:
            ratios = [ratio for _, ratio in pairs]
            worst, worst_ratio = max(pairs, key=lambda pair: abs(pair[1] - 1))
            one = Comparison(
                source=source,
                algorithm=name,
                rows=len(pairs),
                median_ratio=statistics.median(ratios),
                median_error=statistics.median(abs(ratio - 1) for ratio in ratios),
                worst_error=abs(worst_ratio - 1),
                worst=worst,
                left_out=left_out,
            )
            found.append(one)
    return found


def _counted(number: int, thing: str) -> str:
    return f"{number} {thing}" + "s" * (number != 1)


def averages(rows: Iterable[BenchRow]) -> dict[str, float]:
    """The mean of busbw in GB/s for each algorithm that was asked for."""
    by_algorithm: dict[str, list[float]] = {}
    for row in rows:
        by_algorithm.setdefault(row.forced, []).append(row.busbw_gb_per_s)
    return {name: statistics.fmean(own) for name, own in by_algorithm.items()}


def closing_lines(rows: Sequence[BenchRow]) -> list[str]:
    """What stands under a table: averages, that values were checked, that runs were alike."""
    lines = []
    means = averages(rows)
    for name, average in means.items():
        of = f" of {name}" if len(means) > 1 else ""
        lines.append(f"Avg bus bandwidth{of}:  {average:.4f}GB/s")
    lines += [
        f"check {mode}: every value is as expected"
        for mode in sorted({row.checked for row in rows if row.checked})
    ]
    alike = [row for row in rows if row.runs_us and len(set(row.runs_us)) == 1]
    if alike:
        of = "each size" if len(alike) == len(rows) else _counted(len(alike), "row")
        lines.append(f"{len(alike[0].runs_us)} runs of {of} took equally long: nothing varies")
    return lines


def as_json(rows: Sequence[BenchRow], place: Mapping[str, Any]) -> dict[str, Any]:
    """The object of `--json`."""
    return {
        "schema": SCHEMA,
        **place,
        "results": [_json_row(row) for row in rows],
        "averages": [
            {"algorithm": name or None, "busbw_gb_per_s": mean}
            for name, mean in averages(rows).items()
        ],
    }


def _json_row(row: BenchRow) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "op": row.case.operator.name,
        "size_bytes": row.size_bytes,
        "count_elems": row.case.elements,
        "type": type_name(row.case.dtype),
        "ranks": row.case.ranks,
        "group_size": row.case.members,
        "iterations": row.case.iterations,
        "time_us": row.time_us,
        "healthy_us": row.healthy_us,
        "free_us": row.free_us,
        "algbw_gb_per_s": row.algbw_gb_per_s,
        "busbw_gb_per_s": row.busbw_gb_per_s,
        "algorithm": row.algorithm,
        "check": row.checked,
    }
    if row.runs_us:
        fields["runs_us"] = {name: of(row.runs_us) for name, of in STATISTICS.items()}
    if row.measured_us is not None:
        fields |= {"measured_us": row.measured_us, "ratio": row.ratio}
    return fields


def as_report(rows: Sequence[BenchRow], place: Mapping[str, Any], layout: Layout) -> dict[str, Any]:
    """The object of `--report-to-json-file`: `results` with nccom-test's keys."""
    columns = attrs.evolve(layout, algorithm=True).columns
    return {
        "schema": SCHEMA,
        **place,
        "results": [
            {
                **{column.name: column.value(row) for column in columns},
                "op": row.case.operator.name,
                "ranks": row.case.ranks,
                "group_size": row.case.members,
                "iterations": row.case.iterations,
                "check": row.checked,
            }
            for row in rows
        ],
    }


def as_csv(rows: Sequence[BenchRow], layout: Layout) -> str:
    """The text of `--report-to-csv-file`: the columns of the table and the algorithm."""
    columns = attrs.evolve(layout, algorithm=True).columns
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(column.name for column in columns)
    writer.writerows([column.value(row) for column in columns] for row in rows)
    return out.getvalue()
