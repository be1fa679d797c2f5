"""The parts of a page as HTML: headings, tables, and the places that its script draws into.

All that is drawn is also there as text or as a table, so that a page can be read without a
picture, aloud, or on paper.
"""

from collections.abc import Iterator, Sequence
from html import escape

import numpy as np

from ncc_runtime.neff.memory import memory_text, size_text
from ncc_runtime.neff.stages import ranks_text
from ncc_runtime.report.collective_table import EqualCollectives
from ncc_runtime.report.collectives import REMOTE
from ncc_runtime.report.diff import Diff, why_nothing
from ncc_runtime.report.findings import time_text
from ncc_runtime.report.page.events import Events
from ncc_runtime.report.page.run_side import RunSide
from ncc_runtime.report.page.tables import TableCell, TableColumn, TableRow, number, table
from ncc_runtime.report.run import choice_text, is_proved
from ncc_runtime.report.topology.svg import share_text
from ncc_runtime.topology.routes import Transport

MOST_LINKS = 400
MOST_BUFFERS = 60
MOST_STEPS = 25
MOST_RANKS = 2048
"""Rows of the tables of links, buffers, steps of the critical path and ranks."""

TRANSPORTS = {
    Transport.INTRA_CHIP: "on chip",
    Transport.NEURONLINK: "links",
    Transport.EFA: "network",
}


def _share(part: float, whole: float) -> str:
    """In whole per cent; `<1%` for what is not nothing."""
    if not whole:
        return "-"
    return share_text(part / whole) or "0%"


HEADINGS = {
    "summary": "Summary",
    "comparison": "Compared",
    "timeline": "Timeline",
    "collectives": "Collectives",
    "overlap": "Overlap",
    "machine": "Machine",
    "memory": "Memory",
    "proofs": "Proofs",
}
"""Of the sections, in their order."""


def section(name: str, *parts: str) -> str:
    """A landmark with its heading."""
    body = "\n".join(part for part in parts if part)
    return (
        f'<section id="{name}" aria-labelledby="{name}-heading">\n'
        f'<h2 id="{name}-heading">{HEADINGS[name]}</h2>\n{body}\n</section>'
    )


def chart(name: str, about: str, height: int) -> str:
    """A place for a chart; what it shows stands below it as a table."""
    return (
        f'<div class="chart" id="{name}" role="img" aria-label="{escape(about)}" '
        f'style="height:{height}px"></div>'
    )


def details(heading: str, *parts: str) -> str:
    """What is folded away until it is asked for."""
    return f"<details><summary>{escape(heading)}</summary>{''.join(parts)}</details>"


def paragraph(text: str, kind: str = "") -> str:
    return f"<p{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{escape(text)}</p>"


def of_side(sides: Sequence[RunSide], side: RunSide) -> str:
    """The end of a heading where there are two runs."""
    return f" ({side.letter})" if len(sides) > 1 else ""


def summary(sides: Sequence[RunSide]) -> str:
    """Is it bound by communication, where, why, and what could be changed."""
    side = sides[0]
    of = of_side(sides, side)
    which = f"{side.letter}: " if len(sides) > 1 else ""
    parts = [f'<p class="verdict">{escape(which + side.verdict)}</p>', _figures(side)]
    parts += [paragraph(f"note: {note}", "note") for note in side.run.notes]
    faults = ""
    if side.run.faults is not None:
        lines = "\n".join(side.run.faults.lines())
        faults = f"<h3>What the faults did{of}</h3><pre>{escape(lines)}</pre>"
    parts += [
        "" if side.is_complete else faults,  # of a run that stalls it is what matters
        chart("chart-time", _time_words(sides), 62 + 40 * len(sides)),
        '<div class="columns"><div>',
        f"<h3>Where the time is lost{of}</h3>",
        _where(side),
        "</div><div>",
        f"<h3>Why: the critical path{of}</h3>",
        _why(side),
        *(
            ("</div><div>", f"<h3>What could be changed{of}</h3>", _changes(side))
            if side.is_complete
            else ()
        ),
        "</div></div>",
        faults if side.is_complete else "",
        details("The bar's numbers: a rank on average", _breakdown_table(sides)),
    ]
    return section("summary", *parts)


def _figures(side: RunSide) -> str:
    """The few numbers that everybody asks for."""
    figures = [("predicted time" if side.is_complete else "performed", time_text(side.time_us))]
    if side.run.healthy_us is not None:
        figures.append(("with nothing down or slow", time_text(side.run.healthy_us)))
    if side.rates is not None:
        figures.append(("steps a second", f"{side.rates.steps_per_s:,.3f}"))
        used = side.rates.model_flops_utilisation
        if used is not None:
            less = 0 < used < 0.0005
            figures.append(("model flops utilisation", "<0.1%" if less else f"{used:.1%}"))
        done = side.rates.per_step
        if done is not None and not done.is_of_steps:
            figures.append((f"{done.unit} a second", f"{side.rates.per_s(done.unit):,.0f}"))
    hidden = side.performance.overlap.hidden_share
    if hidden is not None:
        figures.append(("collectives hidden", f"{hidden:.1%}"))
    use = side.memory
    of = "" if use.capacity is None else f" ({_share(use.size_bytes, use.capacity)})"
    figures.append(("memory a rank", f"{size_text(use.size_bytes)}{of}"))
    proofs = side.run.proofs
    if not proofs:
        figures.append(("proofs", "not verified"))
    else:
        figures.append(("proofs", f"all {len(proofs)} hold" if is_proved(proofs) else "FAILED"))
    rows = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in figures
    )
    return f'<dl class="figures">{rows}</dl>'


PARTS = (
    ("compute", "engines work, no collective is under way"),
    ("both", "engines work beside a collective, which is hidden"),
    ("exposed", "a collective is under way and no engine works"),
    ("idle", "neither"),
)


def _parts_of(side: RunSide) -> list[float]:
    parts = side.breakdown
    return [parts.compute_us, parts.hidden_us, parts.exposed_us, parts.idle_us]


def _time_words(sides: Sequence[RunSide]) -> str:
    words = []
    for side in sides:
        shares = [
            f"{name} {_share(part, side.time_us)}"
            for (name, _), part in zip(PARTS, _parts_of(side), strict=True)
        ]
        words.append(f"{f'{side.letter}: ' if len(sides) > 1 else ''}{', '.join(shares)}")
    return "; ".join(words)


def _breakdown_table(sides: Sequence[RunSide]) -> str:
    columns = [TableColumn("part", is_sorted=False), TableColumn("meaning", is_sorted=False)]
    for side in sides:
        columns += [
            TableColumn(f"us{of_side(sides, side)}", is_number=True, is_sorted=False),
            TableColumn("of the run", is_number=True, is_sorted=False),
        ]
    rows: list[TableRow] = []
    for at, (name, meaning) in enumerate(PARTS):
        row: list[TableCell | str] = [
            TableCell(name, html=f'<span class="key part-{name}"></span>'),
            meaning,
        ]
        for side in sides:
            part = _parts_of(side)[at]
            row += [number(part), _share(part, side.time_us)]
        rows.append(row)
    return table("table-time", "The time of a rank on average", columns, [rows])


def _where(side: RunSide) -> str:
    """The collectives that cost most, equal ones together."""
    rows = side.most_exposed()
    if not rows:
        return paragraph("No collective takes time that engines do not cover with work.")
    columns = [
        TableColumn("collectives", is_sorted=False),
        TableColumn("exposed", is_number=True, is_sorted=False),
        TableColumn("of the run", is_number=True, is_sorted=False),
        TableColumn("reached", is_number=True, is_sorted=False),
    ]
    cells: list[TableRow] = []
    for each in rows:
        exposed = each.exposed_us or 0.0
        share = exposed / side.time_us if side.time_us else 0.0
        how = ", ".join([each.first.algorithm, *each.lines[:1]])
        cells.append(
            [
                TableCell(f"{_many(each)} {each.first.op}", html=f"<small>{escape(how)}</small>"),
                TableCell(time_text(exposed), exposed, share),
                f"{share:.1%}",
                _reached(side, each),
            ]
        )
    about = (
        "Exposed: time of the rank that waits most, added up. Reached: the least time that any "
        "algorithm would take there, as a share of the time that is taken."
    )
    return table("table-where", "Collectives that no work covers", columns, [cells]) + paragraph(
        about, "small"
    )


def _many(each: EqualCollectives) -> str:
    return f"{len(each.rows)} x" if len(each.rows) > 1 else f"p{each.first.id}"


def _reached(side: RunSide, each: EqualCollectives) -> TableCell:
    bound, time = side.bound_us(each.rows), each.time_us
    if not time:
        return TableCell("-", -1.0)
    return TableCell(_share(bound, time), bound / time)


def _why(side: RunSide) -> str:
    """What the chain of events that the run's time is made of consists of."""
    path = side.performance.path
    if not path.steps:
        return paragraph("Nothing ran.")
    kinds: dict[str, float] = {}
    for step in path.steps:
        op = "" if step.placeholder is None else _op(side, step.placeholder)
        engine = step.what.partition(" of rank")[0] if step.kind == "engine" else ""
        name = {"collective": op, "engine": engine, "cc": "CC-cores", "launch": "launch"}[step.kind]
        kinds[name] = kinds.get(name, 0.0) + step.time_ps / 1e6
    rows: list[TableRow] = [
        [
            name,
            TableCell(time_text(spent), spent, spent / side.time_us),
            _share(spent, side.time_us),
        ]
        for name, spent in sorted(kinds.items(), key=lambda pair: -pair[1])[:8]
    ]
    columns = [
        TableColumn("of the critical path", is_sorted=False),
        TableColumn("time", is_number=True, is_sorted=False),
        TableColumn("share", is_number=True, is_sorted=False),
    ]
    reasons = []
    under_way = sum(step.under_way_ps for step in path.steps) / 1e6
    for words, time in (
        ("transfers wait for others that share links, memory or engines", path.slowed_ps / 1e6),
        ("increments of semaphores are on their way between queues", under_way),
    ):
        if time >= side.time_us / 200:
            reasons.append(f"{_share(time, side.time_us)} of the run: {words}")
    loads = sorted(side.loads.items(), key=lambda pair: -pair[1].share)
    if loads:
        mean = sum(load.share for _, load in loads) / len(loads)
        name, load = loads[0]
        reasons.append(
            f"the busiest link or adapter, {name}, passes {_share(load.share, 1)} of what it could "
            f"in the run; those in use {_share(mean, 1)} on average"
        )
    points = "".join(f"<li>{escape(text)}</li>" for text in reasons)
    return table("table-why", "The critical path by kind", columns, [rows]) + f"<ul>{points}</ul>"


def _op(side: RunSide, placeholder: int) -> str:
    return side.executable.program.placeholders[placeholder].op.value


def _changes(side: RunSide) -> str:
    """What was tried, then what is lost at most."""
    parts = []
    if side.run.alternatives:
        tried: list[TableRow] = []
        for other in sorted(side.run.alternatives, key=lambda each: each.time_us):
            gain = side.time_us - other.time_us
            change = "no change" if not gain else f"{-gain / side.time_us:+.1%}"
            tried.append(
                [other.words, TableCell(time_text(other.time_us)), TableCell(change, -gain)]
            )
        columns = [
            TableColumn("tried: the same with", is_sorted=False),
            TableColumn("time", is_number=True, is_sorted=False),
            TableColumn("change", is_number=True, is_sorted=False),
        ]
        parts.append(table("table-tried", "Timed beside this run", columns, [tried]))
    if side.findings:
        items = []
        for finding in side.findings:
            most = f"{time_text(finding.gain_us)}, {_share(finding.gain_us, side.time_us)}"
            items.append(
                f"<li><strong>at most {most}:</strong> {escape(finding.what)}. "
                f"<em>Try: {escape(finding.advice)}.</em></li>"
            )
        parts.append(f'<ol class="gains">{"".join(items)}</ol>')
        parts.append(paragraph("Gains do not add up: one change takes from the others.", "small"))
    else:
        parts.append(
            paragraph("Nothing stands out: no part of the run is lost by more than 0.5 %.")
        )
    return "".join(parts)


def comparison(sides: Sequence[RunSide], diff: Diff) -> str:
    """Two runs side by side, and what changed."""
    parts = []
    columns = [TableColumn("figure", is_sorted=False)]
    columns += [TableColumn(side.letter, is_sorted=False) for side in sides]
    columns.append(TableColumn("change", is_sorted=False))
    a, b = sides
    rows: list[TableRow] = [["place", *(place_text(side) for side in sides), ""]]

    def row(name: str, values: Sequence[float], texts: Sequence[str]) -> None:
        change = f"{(values[1] - values[0]) / values[0]:+.1%}" if values[0] else "-"
        rows.append([name, *texts, "none" if values[0] == values[1] else change])

    def times(name: str, values: Sequence[float]) -> None:
        row(name, values, [time_text(value) for value in values])

    times("predicted time", [side.time_us for side in sides])
    for at, (name, _) in enumerate(PARTS):
        times(f"a rank on average: {name}", [_parts_of(side)[at] for side in sides])
    for transport, words in TRANSPORTS.items():
        sent = [
            sum(row.bytes_by_transport[transport.value] for row in side.collectives)
            for side in sides
        ]
        if any(sent):
            row(f"bytes sent, {words}", sent, [size_text(size) for size in sent])
    busiest = [max((load.share for load in side.loads.values()), default=0.0) for side in sides]
    row("the busiest link or adapter", busiest, [_share(share, 1) for share in busiest])
    memory = [side.memory.size_bytes for side in sides]
    row("memory a rank", memory, [size_text(size) for size in memory])
    faster = "equal" if a.time_us == b.time_us else ("a" if a.time_us < b.time_us else "b")
    if faster == "equal":
        words = "Both take the same time."
    else:
        low, high = sorted((a.time_us, b.time_us))
        less = f"{time_text(high - low)} less, {(high - low) / high:.1%}"
        words = f"{faster} is faster: {less}."
    parts.append(f'<p class="verdict">{escape(words)}</p>')
    parts.append(table("table-places", "Both places", columns, [rows]))
    if diff.is_empty:
        parts.append(paragraph(f"Nothing changes: {why_nothing(diff)}."))
    else:
        parts.append(_changed(diff))
    return section("comparison", *parts)


def place_text(side: RunSide) -> str:
    """Where a side ran, and how its algorithms were chosen."""
    executable = side.executable
    choice = choice_text(executable.policy, executable.is_deterministic)
    return f"{executable.placement.where}; {choice}"


def _changed(diff: Diff) -> str:
    """The collectives that differ, a row for each kind."""
    columns = [
        TableColumn("collectives"),
        TableColumn("operator"),
        TableColumn("what changes"),
        TableColumn("algorithm, a"),
        TableColumn("algorithm, b"),
        TableColumn("mean us, a", is_number=True, about="of one run of one of them"),
        TableColumn("mean us, b", is_number=True, about="of one run of one of them"),
        TableColumn("change us", is_number=True, about="b less a, of all their runs together"),
        TableColumn("busiest link, a"),
        TableColumn("busiest link, b"),
    ]
    rows: list[TableRow] = []
    for row in diff.rows:
        if not row.changes:
            continue
        one, other = row.sides
        more = f" +{len(row.ids) - 1}" if len(row.ids) > 1 else ""
        total = (other.mean_time_us - one.mean_time_us) * row.runs
        rows.append(
            [
                TableCell(f"p{row.ids[0]}{more}", float(row.ids[0])),
                row.op,
                ", ".join(change.value for change in row.changes),
                one.algorithm,
                other.algorithm,
                number(one.mean_time_us),
                number(other.mean_time_us),
                number(total),
                *(_busiest(side.traffic.busiest_link) for side in row.sides),
            ]
        )
    rows.sort(
        key=lambda cells: -abs(cells[7].value or 0.0) if isinstance(cells[7], TableCell) else 0.0
    )
    return table("table-changed", "Collectives that change", columns, [rows])


def _busiest(link: tuple[str, int]) -> TableCell:
    name, size = link
    return TableCell(f"{name}, {size_text(size)}" if size else "-", float(size))


def timeline(sides: Sequence[RunSide], stored: Sequence[Events]) -> str:
    """The timeline's place, its controls, and what it shows as tables."""
    kinds = (
        ("collective", "collectives", True),
        ("engine", "engines", True),
        ("cc", "CC-cores", False),
        ("dma", "DMA rings", False),
        ("link", "links and adapters", False),
    )
    boxes = "".join(
        f'<label><input type="checkbox" name="kind" value="{kind}"{" checked" * shown}> '
        f"{words}</label>"
        for kind, words, shown in kinds
    )
    controls = (
        '<div class="controls" id="timeline-controls">'
        '<label>ranks <input type="text" id="timeline-ranks" size="12" spellcheck="false" '
        'aria-describedby="ranks-help"></label>'
        '<span id="ranks-help" class="small">such as 0-3,8 or all</span>'
        f"<fieldset><legend>tracks</legend>{boxes}</fieldset>"
        '<span class="buttons">'
        '<button type="button" data-do="in" aria-label="zoom in">+</button>'
        '<button type="button" data-do="out" aria-label="zoom out">−</button>'
        '<button type="button" data-do="left" aria-label="earlier">←</button>'
        '<button type="button" data-do="right" aria-label="later">→</button>'
        '<button type="button" data-do="all">whole run</button></span></div>'
    )
    helps = (
        "Drag to move, Ctrl and wheel (or pinch) to zoom, a click chooses an event. With the "
        "keyboard: left and right go from event to event, up and down from track to track, plus "
        "and minus zoom, Shift with left and right moves, C goes to the cause, Home and End to "
        "the first and last event, 0 shows the whole run."
    )
    place = (
        f'<p class="small" id="timeline-help">{helps}</p>'
        '<div id="timeline-scroll"><div id="timeline-space"><div id="timeline-sticky">'
        '<div id="timeline-canvas" role="application" tabindex="0" aria-label="Timeline" '
        'aria-describedby="timeline-help"></div>'
        '<div id="timeline-mark" hidden></div></div></div></div>'
        '<div id="timeline-tip" role="tooltip" hidden></div>'
        '<p id="timeline-said" class="chosen" aria-live="polite"></p>'
        '<div class="legend" id="timeline-legend"></div>'
    )
    more = details(
        "Events of the chosen track, in the time that is shown, as a table",
        '<div id="track-table" class="scroll" role="region" tabindex="0" '
        'aria-label="Events of the chosen track"></div>',
    )
    notes = "".join(map(_thinned, stored))
    paths = "".join(_steps(sides, side) for side in sides)
    return section("timeline", controls, place, notes, more, paths)


def _thinned(events: Events) -> str:
    if not events.cell_ps:
        return ""
    return paragraph(
        f"{events.events:,} events are drawn as {events.kept:,}: neighbours shorter than "
        f"{events.cell_ps / 1e6:g} us became one, but for ranks {ranks_text(events.whole) or '-'}. "
        "nccrt report --ranks keeps all events of the ranks that it names.",
        "note",
    )


def _steps(sides: Sequence[RunSide], side: RunSide) -> str:
    """The longest steps of the critical path."""
    path = side.performance.path
    shown = path.longest(MOST_STEPS)
    columns = [
        TableColumn("start us", is_number=True),
        TableColumn("time us", is_number=True),
        TableColumn("of the run", is_number=True),
        TableColumn("step"),
        TableColumn("line"),
        TableColumn("ranks"),
        TableColumn("waited for"),
        TableColumn("lost by sharing us", is_number=True),
    ]
    rows: list[TableRow] = []
    for step in shown:
        ranks = ranks_text(step.ranks)
        time = step.time_ps / 1e6
        rows.append(
            [
                number(step.start_ps / 1e6),
                number(time, share=time / side.time_us if side.time_us else 0.0),
                TableCell(_share(time, side.time_us), time),
                step.what,
                step.line,
                ranks if len(ranks) <= 24 else f"{len(step.ranks)} ranks",
                step.late,
                number(step.slowed_ps / 1e6),
            ]
        )
    more = f"the longest {len(shown)} of {len(path.steps)} steps"
    caption = f"Critical path{of_side(sides, side)}: {more}"
    return table(f"table-path-{side.letter}", caption, columns, [rows])


def collectives(sides: Sequence[RunSide]) -> str:
    """A table for each run: equal ones together, and each."""
    parts = []
    for side in sides:
        if not side.collectives:
            parts.append(paragraph("The program has no collectives."))
            continue
        parts.append(
            '<div class="controls">'
            f'<label>find <input type="search" data-find="table-collectives-{side.letter}"></label>'
            f'<label><input type="checkbox" data-each="table-collectives-{side.letter}"> '
            "each in a row of its own</label>"
            '<span class="small" aria-live="polite" '
            f'id="table-collectives-{side.letter}-count"></span></div>'
        )
        parts.append(_collective_table(sides, side))
    about = (
        "Time: from the first rank's start to the last one's end; exposed: how much of it no "
        "engine covers, on the rank where that is most; both of all runs together. Bound: the "
        "least time that any algorithm would take there alone. On chip, links, network: bytes that "
        "all ranks send that way. p3 +17: p3 and 17 equal ones; its number "
        "shows it on the timeline."
    )
    some = any(side.collectives for side in sides)
    return section("collectives", paragraph(about, "small") if some else "", *parts)


def _collective_table(sides: Sequence[RunSide], side: RunSide) -> str:
    alike = side.equal_collectives
    each = [EqualCollectives((row,)) for row in side.collectives]
    transports = [kind for kind in REMOTE if any(group.sent_bytes(kind) for group in alike)]
    columns = [
        TableColumn("id"),
        TableColumn("collective"),
        TableColumn("line"),
        TableColumn("algorithm"),
        TableColumn("groups", is_number=True),
        TableColumn("bytes", is_number=True, about="of the larger side on one rank"),
        TableColumn("runs", is_number=True),
        TableColumn("start us", is_number=True),
        TableColumn("time us", is_number=True),
        TableColumn("exposed us", is_number=True),
        TableColumn("bound us", is_number=True, about="lower bound of any algorithm, of all runs"),
        TableColumn("reached", is_number=True, about="bound over time"),
        *(TableColumn(TRANSPORTS[kind], is_number=True) for kind in transports),
    ]

    def rows(groups: Sequence[EqualCollectives]) -> Iterator[TableRow]:
        for group in groups:
            first, exposed = group.first, group.exposed_us
            share = None if exposed is None or not side.time_us else exposed / side.time_us
            more = f" +{len(group.rows) - 1}" if len(group.rows) > 1 else ""
            name = first.op if more or not first.name else first.name
            button = (
                f'<button type="button" data-show="{first.id}" data-side="{side.letter}" '
                f'aria-label="p{first.id}, show on the timeline">p{first.id}</button>'
            )
            yield [
                TableCell("", float(first.id), html=button + more),
                name if name.replace("_", "-").startswith(first.op) else f"{first.op} {name}",
                ", ".join(group.lines),
                first.algorithm,
                TableCell(
                    f"{first.pairs} pairs"
                    if first.pairs
                    else f"{first.groups} of {first.group_size}",
                    float(first.pairs or first.groups),
                ),
                TableCell(size_text(first.bytes), float(first.bytes)),
                number(float(sum(row.runs or 0 for row in group.rows)), 0),
                number(min(group.starts, default=None)),
                number(group.time_us),
                number(exposed, share=share),
                number(side.bound_us(group.rows)),
                _reached(side, group),
                *(
                    TableCell(size_text(group.sent_bytes(kind)), float(group.sent_bytes(kind)))
                    for kind in transports
                ),
            ]

    caption = f"Table of collectives{of_side(sides, side)}"
    name = f"table-collectives-{side.letter}"
    return table(name, caption, columns, [rows(alike), rows(each)])


def overlap(sides: Sequence[RunSide]) -> str:
    """Compute beside collectives, rank by rank."""
    parts = []
    for side in sides:
        each, reduces = side.performance.by_rank, side.performance.all_reduces
        hidden = each.collective_ps - each.exposed_ps
        idle = side.trace.time_ps - each.compute_ps - each.exposed_ps
        parts.append(f"<h3>Every rank{of_side(sides, side)}</h3>")
        about = f"Stacked bars of {len(each.compute_ps)} ranks; the table below has their numbers"
        parts.append(chart(f"chart-ranks-{side.letter}", about, 260))
        columns = [TableColumn("rank", is_number=True)]
        columns += [TableColumn(f"{name} us", is_number=True, about=text) for name, text in PARTS]
        stacked = np.stack([each.compute_ps - hidden, hidden, each.exposed_ps, idle]) / 1e6
        rows: list[TableRow] = [
            [TableCell(str(rank), float(rank)), *map(number, stacked[:, rank].tolist())]
            for rank in range(min(len(each.compute_ps), MOST_RANKS))
        ]
        caption = f"Time of every rank{of_side(sides, side)}"
        parts.append(
            details("The numbers", table(f"table-ranks-{side.letter}", caption, columns, [rows]))
        )
        if reduces is not None:
            together = reduces.together
            share = "" if together.share is None else f", {together.share:.1%} of what could be"
            parts.append(
                paragraph(
                    f"All-reduces take {time_text(together.all_reduce_ps / 1e6)} on the first "
                    f"rank, beside {time_text(together.independent_ps / 1e6)} of compute that does "
                    f"not depend on them: {time_text(together.hidden_ps / 1e6)} are hidden{share}."
                )
            )
    return section("overlap", *parts)


def machine(sides: Sequence[RunSide]) -> str:
    """The picture with traffic, groups and faults, and links as a table."""
    pictures = []
    for side in sides:
        heading = f"<h3>{side.letter}: {escape(place_text(side))}</h3>" if len(sides) > 1 else ""
        pictures.append(
            f'<div class="machine-side">{heading}{_machine_controls(side)}'
            f'<div class="scroll machine-scroll" id="machine-{side.letter}" tabindex="0" '
            f'role="region" aria-label="Picture of the machine{of_side(sides, side)}">'
            f"{side.svg}</div></div>"
        )
    tables = "".join(_link_table(sides, side) for side in sides)
    many = "two" if len(sides) > 1 else "one"
    return section("machine", f'<div class="machines {many}">{"".join(pictures)}</div>', tables)


def _machine_controls(side: RunSide) -> str:
    options = "".join(
        f'<option value="{at}">{escape(each.name)}</option>'
        for at, each in enumerate(side.divisions)
    )
    chooser = (
        f'<label>groups by colour <select data-groups="{side.letter}">{options}'
        '<option value="">none</option></select></label>'
        if side.divisions
        else ""
    )
    return (
        f'<div class="controls">{chooser}<span class="buttons">'
        f'<button type="button" data-zoom="{side.letter}" data-by="in" '
        'aria-label="larger picture">+</button>'
        f'<button type="button" data-zoom="{side.letter}" data-by="out" '
        'aria-label="smaller picture">−</button>'
        f'<button type="button" data-zoom="{side.letter}" data-by="fit">fit</button>'
        f'<button type="button" data-zoom="{side.letter}" data-by="one">100 %</button></span></div>'
        f'<p class="legend groups" id="groups-{side.letter}"></p>'
    )


def _link_table(sides: Sequence[RunSide], side: RunSide) -> str:
    loads = sorted(side.loads.items(), key=lambda pair: (-pair[1].share, pair[0]))
    if not loads:
        return paragraph(f"Nothing passes a link or adapter{of_side(sides, side)}.")
    topology = side.executable.topology
    targets = {
        topology.links.name(link): topology.links.step(link).partition(">")[2]
        for link in range(len(topology.links))
    }
    columns = [
        TableColumn("link or adapter"),
        TableColumn("to"),
        TableColumn("bytes", is_number=True),
        TableColumn("mean GB/s", is_number=True, about="over the whole run"),
        TableColumn("of what it could pass", is_number=True),
    ]
    rows: list[TableRow] = []
    for name, load in loads[:MOST_LINKS]:
        rate = load.bytes / (side.time_us * 1e3) if side.time_us else 0.0
        rows.append(
            [
                name,
                targets.get(name, topology.network),
                TableCell(size_text(load.bytes), float(load.bytes)),
                number(rate, 2),
                TableCell(f"{load.share:.1%}", load.share, load.share),
            ]
        )
    more = f"the busiest {MOST_LINKS} of {len(loads)}" if len(loads) > MOST_LINKS else len(loads)
    caption = f"Links and adapters{of_side(sides, side)} that carry something: {more}"
    return details(caption, table(f"table-links-{side.letter}", caption, columns, [rows]))


def memory(sides: Sequence[RunSide]) -> str:
    """What is live over time, and the largest buffers."""
    parts = []
    for side in sides:
        live, use = side.live, side.memory
        parts.append(f"<h3>Rank {live.rank}{of_side(sides, side)}</h3>" if len(sides) > 1 else "")
        parts.append(paragraph(f"{memory_text(use)}."))
        channels = use.channel_buffers or 0
        about = (
            f"Live memory of rank {live.rank} over time: at most "
            f"{size_text(live.peak_bytes + channels)}, at {time_text(live.peak_ps / 1e6)}, of "
            f"{size_text(use.size_bytes)} that are charged"
        )
        parts.append(chart(f"chart-memory-{side.letter}", about, 280))
        parts.append(
            paragraph(
                f"{about}: addresses are given for every order of the queues, and the clock shows "
                "one. Live is what was written and is still read.",
                "small",
            )
        )
        columns = [
            TableColumn("buffer"),
            TableColumn("kind"),
            TableColumn("line"),
            TableColumn("size", is_number=True),
            TableColumn("live from us", is_number=True),
            TableColumn("until us", is_number=True),
            TableColumn("times written", is_number=True, about="from the start of the buffer"),
            TableColumn("live at the peak"),
        ]
        rows: list[TableRow] = [
            [
                buffer.name,
                buffer.kind,
                buffer.line,
                TableCell(size_text(buffer.size_bytes), float(buffer.size_bytes)),
                number(buffer.start_ps / 1e6),
                number(buffer.end_ps / 1e6),
                number(float(buffer.lives), 0),
                "yes" if buffer.at_peak else "no",
            ]
            for buffer in live.buffers[:MOST_BUFFERS]
        ]
        more = f"the largest {len(rows)} of {len(live.buffers)}"
        caption = f"Buffers of rank {live.rank}{of_side(sides, side)}: {more}"
        parts.append(table(f"table-memory-{side.letter}", caption, columns, [rows]))
    return section("memory", *parts)


def proofs(sides: Sequence[RunSide]) -> str:
    """What was proved before the run."""
    parts = []
    for side in sides:
        if not side.run.proofs:
            parts.append(paragraph(f"Not verified{of_side(sides, side)} (--no-verify)."))
            continue
        all_columns: list[tuple[str, list[str]]] = [
            ("proof", [proof.name for proof in side.run.proofs]),
            ("verdict", [proof.verdict for proof in side.run.proofs]),
            ("size", [proof.size for proof in side.run.proofs]),
            ("presumes", [proof.presumed for proof in side.run.proofs]),
            ("holds if", ["; ".join(proof.conditions) for proof in side.run.proofs]),
        ]
        filled = [column for column in all_columns if any(column[1])]
        columns = [TableColumn(heading, is_sorted=False) for heading, _ in filled]
        rows: list[TableRow] = list(zip(*(cells for _, cells in filled), strict=True))
        caption = f"What is proved{of_side(sides, side)}, for every order of execution"
        parts.append(table(f"table-proofs-{side.letter}", caption, columns, [rows]))
        breaches = "\n".join(text for proof in side.run.proofs for text in proof.texts)
        parts.append(f"<pre>{escape(breaches)}</pre>" if breaches else "")
    return section("proofs", *parts)
