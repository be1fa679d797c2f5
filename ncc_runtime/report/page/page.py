"""A run, or two beside each other, as one HTML file without any reference to others.

Python writes what can be read; the script (`assets/`) draws the charts and the timeline from
columns of numbers that stand in the file, compressed. Equal runs give equal bytes: no time of the
host is in it, nor a path.
"""

import importlib.metadata
import json
import os
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import attrs

from ncc_runtime.errors import InputError
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.whole_file import check_target, replacing
from ncc_runtime.report import diff as diff_report
from ncc_runtime.report.page import drawing_library, sections
from ncc_runtime.report.page.columns import ColumnStore, columns_json, packed
from ncc_runtime.report.page.events import TRACK_COLUMNS, Events, Words
from ncc_runtime.report.page.run_side import RunSide
from ncc_runtime.report.rates import PerStep
from ncc_runtime.report.run import Run
from ncc_runtime.report.timeline.write import mask_of_ranks
from ncc_runtime.report.topology.canvas import DARK, LIGHT, colours

SUFFIXES = (".html", ".htm")

ASSETS = Path(__file__).parent / "assets"

SCRIPTS = (
    "data.js",
    "text.js",
    "theme.js",
    "tables.js",
    "machine.js",
    "charts.js",
    "tracks.js",
    "timeline.js",
    "page.js",
)
"""In the order in which they stand in the page."""


@attrs.frozen(eq=False)
class Page:
    """The file, and what is told of it."""

    html: str
    sides: tuple[RunSide, ...]
    events: tuple[Events, ...]

    def as_dict(self) -> dict[str, Any]:
        """What `nccrt report --json` prints of it; times in microseconds."""
        side = self.sides[0]
        parts = side.breakdown
        return {
            "verdict": side.verdict,
            "time_us": side.time_us if side.is_complete else None,
            "mean_us": attrs.asdict(parts),
            "findings": [attrs.asdict(finding) for finding in side.findings],
            "alternatives": [attrs.asdict(other) for other in side.run.alternatives],
            "events": sum(each.events for each in self.events),
            "events_drawn": sum(each.kept for each in self.events),
        }


def library_text() -> str:
    """The script that draws; InputError if the package was built without it."""
    if not drawing_library.is_complete():
        raise InputError(
            f"Apache ECharts {drawing_library.VERSION}, which draws the page, is not in this "
            "installation: no npm registry was reached when it was built; python -m "
            f"{drawing_library.__name__} fetches it, or takes echarts-{drawing_library.VERSION}.tgz"
        )
    return (drawing_library.FOLDER / "echarts.min.js").read_text(encoding="utf-8")


def write_page(
    path: str | os.PathLike[str],
    run: Run,
    against: Run | None = None,
    ranks: Sequence[int] | None = None,
    per_step: PerStep | None = None,
) -> Page:
    """Write the page of a run, beside another one of the same program if it is given.

    `ranks` are those that the timeline has, all by default. InputError if the run has no clock,
    there is no such rank, the file's name does not end in .html, or one of two runs has columns of
    one instance and the other of all.
    """
    check_target(path, SUFFIXES)
    page = page_of(run, against, ranks, per_step)
    with replacing(path) as file:
        file.write(page.html.encode())
    return page


def page_of(
    run: Run,
    against: Run | None = None,
    ranks: Sequence[int] | None = None,
    per_step: PerStep | None = None,
) -> Page:
    """The page of a run as text."""
    columns_of = {each.executable.representatives for each in (run, against) if each is not None}
    if len(columns_of) > 1:  # bytes and instructions are counted by rank
        few, many = sorted(columns_of)
        raise InputError(
            f"one run has the columns of {few} ranks and the other of {many}, which cannot be set "
            "side by side: load both models without times_only"
        )
    library = library_text()
    runs = [run] if against is None else [run, against]
    sides = tuple(RunSide(letter, each, per_step) for letter, each in zip("ab", runs, strict=False))
    for each in runs:
        mask_of_ranks(each.executable, ranks)  # refuses those that are not there
    store, words = ColumnStore(), Words()
    stored = [side.stored(store, words, ranks) for side in sides]
    columns, chunks = store.packed()
    index = {
        "trackColumns": list(TRACK_COLUMNS),
        "ops": [op.value for op in CollectiveOp],
        "words": list(words),
        "columns": columns_json(columns),
        "sides": [facts for facts, _ in stored],
    }
    events = tuple(each for _, each in stored)
    text = json.dumps(index, separators=(",", ":"), ensure_ascii=False)
    chunks = {"index": packed(text.encode()), **chunks}
    return Page(_document(sides, events, chunks, library), sides, events)


def _document(
    sides: Sequence[RunSide], events: Sequence[Events], chunks: dict[str, str], library: str
) -> str:
    """The whole file. Chunks are base64, which no name of a program can break out of."""
    side = sides[0]
    parts = {"summary": sections.summary(sides)}
    if len(sides) > 1:
        a, b = sides
        executables, runs = (a.executable, b.executable), (a.run, b.run)
        if a.is_complete and b.is_complete:
            difference = diff_report.compared(executables, runs)
            parts["comparison"] = sections.comparison(sides, difference)
    parts |= {
        "timeline": sections.timeline(sides, events),
        "collectives": sections.collectives(sides),
        "overlap": sections.overlap(sides),
        "machine": sections.machine(sides),
        "memory": sections.memory(sides),
        "proofs": sections.proofs(sides),
    }
    links = "".join(f'<li><a href="#{name}">{sections.HEADINGS[name]}</a></li>' for name in parts)
    name = side.executable.program.name
    places = " beside ".join(
        f"{f'{each.letter}: ' if len(sides) > 1 else ''}{sections.place_text(each)}"
        for each in sides
    )
    ranks = side.executable.ranks
    count = f"{ranks} ranks" if ranks > 1 else "1 rank"
    data = "\n".join(
        f'<script type="text/plain" id="chunk-{chunk}">{text}</script>'
        for chunk, text in chunks.items()
    )
    script = "\n".join((ASSETS / file).read_text(encoding="utf-8") for file in SCRIPTS)
    return f"""<!DOCTYPE html>
<html lang="en" data-theme="auto">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(name)}: {escape(places)}</title>
<style>
{_style()}</style>
</head>
<body>
<a class="skip" href="#main">Skip to the report</a>
<header>
<h1>{escape(name)}</h1>
<p>{escape(f"{count} on {places}")}</p>
<nav aria-label="Sections"><ul>{links}</ul></nav>
<label class="theme">theme <select id="theme"><option value="auto">as the system</option>
<option value="light">light</option><option value="dark">dark</option></select></label>
</header>
<noscript><p class="note">Without JavaScript there are no charts and no timeline; all tables are
here.</p></noscript>
<main id="main">
{chr(10).join(parts.values())}
</main>
<footer>
{_about()}
</footer>
{data}
<script>{library}</script>
<script>
(() => {{
"use strict";
{script}
}})();
</script>
</body>
</html>
"""


def _style() -> str:
    """The style sheet, with the colours of both themes."""
    text = (ASSETS / "page.css").read_text(encoding="utf-8")
    return text.replace("/*light*/", f"{colours(LIGHT)};").replace("/*dark*/", f"{colours(DARK)};")


def _about() -> str:
    """What made the page, and the licences of what is in it."""
    version = importlib.metadata.version("neuron-ncc")
    texts = "".join(
        f"<h3>{escape(name)}</h3><pre>"
        f"{escape((drawing_library.FOLDER / name).read_text(encoding='utf-8').strip())}</pre>"
        for name in ("NOTICE", "LICENSE", "LICENSE-d3")
    )
    made = (
        f"Made by neuron-ncc {version}. All times are predictions of its clock. Drawn with Apache "
        f"ECharts {drawing_library.VERSION}, Apache License 2.0."
    )
    return f"<p>{escape(made)}</p>{sections.details('Licences of Apache ECharts', texts)}"
