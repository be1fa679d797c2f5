"""What `nccrt diff` prints: two lines for every kind of collective that changed."""

import io
from collections import Counter

from rich.console import Console
from rich.table import Table

from ncc_runtime.report.collectives import REMOTE
from ncc_runtime.report.diff import Compared, Diff, Side, why_nothing

WIDTH = 150
LETTERS = "ab"

HEADINGS = (
    "ids",
    "op",
    "runs",
    "",
    "algorithm",
    *(f"{transport.value} B" for transport in REMOTE),
    "links",
    "busiest",
    "its B",
    "CC rows",
    "descriptor runs",
    "mean time us",
)
WORDS = ("ids", "op", "", "algorithm", "busiest")


def as_text(diff: Diff) -> str:
    """The places, what changed, and in how many collectives."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, highlight=False, no_color=True, markup=False)
    console.print(f"{diff.program.name}: {diff.program.ranks} ranks")
    both = zip(LETTERS, diff.executables, diff.times_us, strict=True)
    for letter, executable, time in both:
        topology = executable.topology
        console.print(
            f"  {letter}  {topology.nodes} x {topology.name}, lnc {topology.lnc}, "
            f"{executable.placement.strategy}: predicted time {time:.3f} us"
        )
    changed = [row for row in diff.rows if row.changes]
    if diff.is_empty:
        console.print(f"nothing changes: {why_nothing(diff)}", soft_wrap=True)
    else:
        console.print(_counts(diff, changed), soft_wrap=True)
    if changed:
        console.print("bytes, links, CC rows and descriptor runs of one run of one collective")
        console.print(_table(changed))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _counts(diff: Diff, changed: list[Compared]) -> str:
    total = sum(len(row.ids) for row in diff.rows)
    if not changed:
        return f"none of {total} collectives changes; the engines take another time"
    counts: Counter[str] = Counter()
    for row in changed:
        counts.update({change.value: len(row.ids) for change in row.changes})
    what = ", ".join(f"{change} in {count}" for change, count in counts.items())
    return f"{sum(len(row.ids) for row in changed)} of {total} collectives change: {what}"


def _table(rows: list[Compared]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in WORDS else "right")
    for row in rows:
        ids = f"p{row.ids[0]}" + (f" and {len(row.ids) - 1} more" if len(row.ids) > 1 else "")
        for letter, side in zip(LETTERS, row.sides, strict=True):
            first = letter == LETTERS[0]
            common = (ids, row.op, str(row.runs)) if first else ("", "", "")
            table.add_row(*common, letter, *_cells(side))
    return table


def _cells(side: Side) -> list[str]:
    moved = side.moved
    name, most = moved.busiest_link
    return [
        side.algorithm,
        *(str(moved.of(transport)) for transport in REMOTE),
        str(len(moved.bytes_by_link)),
        name,
        str(most),
        str(moved.cc_instructions),
        str(moved.descriptor_runs),
        f"{side.mean_time_us:.3f}",
    ]
