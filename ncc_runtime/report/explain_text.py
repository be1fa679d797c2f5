"""What `nccrt explain` prints: a table of candidates for every kind of collective."""

import io
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from ncc_runtime.collectives.candidates import Candidate
from ncc_runtime.parts import Kind, Parts
from ncc_runtime.report.explain import Explained, Explanation, links_of, touched, why

WIDTH = 140
MOST_NAMED = 6
"""Ids and ranks that a heading names."""

HEADINGS = (
    "algorithm",
    "time us",
    "latency us",
    "bandwidth us",
    "decided by",
    "busiest link",
    "its B",
    "all links B",
    "busiest HBM B",
    "all HBM B",
    "EFA B",
)


def as_text(explanation: Explanation) -> str:
    """A heading, then every kind of collective in the order of the program."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, highlight=False, no_color=True, markup=False)
    place = explanation.placement
    console.print(
        f"{explanation.program.name}: {place.ranks} ranks on {place.topology.nodes} x "
        f"{place.topology.name}, lnc {place.topology.lnc}, {place.strategy}"
    )
    if not explanation.rows:
        console.print("no collectives: the topology makes no difference to this program")
    for row in explanation.rows:
        console.print()
        console.print(_heading(row))
        console.print(_table(explanation.parts, row))
        for line in _closing(row):
            console.print(line, soft_wrap=True)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _heading(row: Explained) -> str:
    named = ", ".join(f"p{number}" for number in row.ids[:MOST_NAMED])
    more = f" and {len(row.ids) - MOST_NAMED} more" if len(row.ids) > MOST_NAMED else ""
    sizes = sorted({len(group) for group in row.groups})
    many = "1 group" if len(row.groups) == 1 else f"{len(row.groups)} groups"
    ranks = ",".join(map(str, row.groups[0][:MOST_NAMED]))
    dots = ",…" if len(row.groups[0]) > MOST_NAMED else ""
    return (
        f"{row.placeholder.op.value} {row.placeholder.dtype.value}, {row.bytes} B, {many} of "
        f"{' or '.join(map(str, sizes))} ({{{ranks}{dots}}}): {named}{more}"
    )


def _table(parts: Parts, row: Explained) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for heading in HEADINGS:
        words = ("algorithm", "decided by", "busiest link")
        table.add_column(heading, justify="left" if heading in words else "right")
    for one in row.choice.candidates:
        if one.price is not None:
            mark = "*" if one.name == row.choice.chosen.name else ""
            table.add_row(mark, one.name, *_cells(parts, one))
    return table


def _cells(parts: Parts, one: Candidate) -> Iterator[str]:
    price = one.price
    assert price is not None, "rows are of candidates that run"
    for time in (price.time_ps, price.latency_ps, price.bandwidth_ps):
        yield f"{time / 1e6:.3f}"
    yield price.decided_by
    links = links_of(parts, price)
    yield max(links, key=lambda name: links[name], default="-")
    yield str(max(links.values(), default=0))
    yield str(sum(links.values()))
    yield from map(str, touched(parts, price, Kind.HBM))
    yield str(touched(parts, price, Kind.EFA)[1] // 2)  # each byte leaves once and arrives once


def _closing(row: Explained) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for one in row.choice.candidates:
        if one.price is None:
            reasons.setdefault(one.reason, []).append(one.name)
    for reason, names in reasons.items():
        yield f"  {', '.join(names)} cannot run: {reason}"
    yield f"  chosen: {row.choice.chosen.name}, {why(row)}"
    bound = row.bound
    yield (
        f"  lower bound {bound.time_ps / 1e6:.3f} us by {bound.decided_by} (latency "
        f"{bound.latency_ps / 1e6:.3f} us, bandwidth {bound.bandwidth_ps / 1e6:.3f} us over "
        f"{bound.passes}){_attained(row.attained)}"
    )
    if not bound.links_ps:
        yield "  no byte has to pass a link"
        return
    links = f"{bound.links_ps / 1e6:.3f} us{_attained(row.attained_of_links)}"
    yield f"  lower bound of links alone {links}"


def _attained(share: float | None) -> str:
    return "" if share is None else f"; attained {100 * share:.1f} %"
