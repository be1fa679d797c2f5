"""`nccrt sweep --plot`: times over sizes or of the best points, and over instances."""

import collections
from collections.abc import Mapping, Sequence
from typing import Any

from ncc_runtime.errors import InputError
from ncc_runtime.report.plot_file import (
    COLOURS,
    count_axis,
    figure_axis,
    line_style,
    picture,
    size_axis,
)
from ncc_runtime.sweep.report import NUMBER_KEYS, SweepReport, SweepRow, front, varying

MOST_LINES = 10
"""Lines that one can tell apart; of more there are those of the fastest points."""

MOST_BARS = 24

MOST_FRONTS = 6

_OTHERS = "#999999"
"""Of bars whose groups have no colour of their own."""

_LAST = ("size", "ranks", "nodes", "fault_seed", "op", "dtype", "samples", "task")
"""Keys that are no lines of their own if another varies."""


def check_series(series: str, points: Sequence[Mapping[str, Any]]) -> None:
    """InputError if no point, said by its words, has such a key."""
    known = dict.fromkeys(key for words in points for key in words)
    if series not in known:
        listed = ", ".join(known)
        raise InputError(f"--series {series}: no point has that key; there are {listed}")


def plotted(report: SweepReport, file_name: str, series: str | None = None) -> bytes:
    """SVG or PNG by the file's name; equal reports give equal bytes.

    On the left the time over the size, a line for each word of the key `series`, of which each size
    has the fastest point; without several sizes, the fastest points as bars. On the right, if they
    take several numbers of instances, the time over these, and the front.
    """
    done = [row for row in report.rows if row.is_done]
    keys = varying(done)
    chosen = series or next((key for key in keys if key not in _LAST), "")
    has_sizes = len({row.size_bytes for row in done} - {None}) > 1
    has_instances = len({row.result.instances for row in done}) > 1

    def draw(figure: Any) -> None:
        left, *right = figure.subplots(1, 1 + has_instances, squeeze=False)[0]
        if has_sizes:
            _over_sizes(left, done, chosen)
        else:
            _bars(left, done, keys)
        for axes in right:
            _over_instances(axes, done)

    most = max(1, min(len(done), MOST_BARS))
    height = 4.5 if has_sizes else max(4.5, 1.2 + 0.26 * most)
    counts = ", ".join(f"{number} {status}" for status, number in report.counts.items() if number)
    return picture(file_name, f"{report.name}: {counts}", draw, (6.5 + 5 * has_instances, height))


def _time_label(rows: Sequence[SweepRow]) -> str:
    return "time of a sample (us)" if any(row.samples for row in rows) else "time (us)"


def _over_sizes(axes: Any, rows: Sequence[SweepRow], series: str) -> None:
    lines: dict[str, dict[int, SweepRow]] = {}
    ops = {row.words.get("op") for row in rows}
    for row in rows:
        if row.size_bytes is None:
            continue
        name = str(row.words.get(series, "default")) if series else ""
        if len(ops) > 1 and series != "op":
            name = f"{row.words.get('op')} {name}".strip()
        line = lines.setdefault(name, {})
        before = line.get(row.size_bytes)
        if before is None or row.cost_us < before.cost_us:
            line[row.size_bytes] = row
    fastest = sorted(lines, key=lambda name: min(row.cost_us for row in lines[name].values()))
    for number, name in enumerate(name for name in lines if name in fastest[:MOST_LINES]):
        line = dict(sorted(lines[name].items()))
        times = [row.cost_us for row in line.values()]
        axes.plot(list(line), times, label=name, **line_style(number))
    size_axis(axes, [row.size_bytes for row in rows if row.size_bytes])
    figure_axis(axes, _time_label(rows))
    if any(lines):
        title = series if len(lines) <= MOST_LINES else f"{series} ({MOST_LINES} of {len(lines)})"
        axes.legend(fontsize=9, title=title, loc="upper left")


def _bars(axes: Any, rows: Sequence[SweepRow], keys: Sequence[str]) -> None:
    """The fastest on top."""
    shown = sorted(rows, key=lambda row: row.cost_us)[:MOST_BARS]
    names = []
    for row in shown:
        words = [
            f"{key} {row.words[key]}" if key in NUMBER_KEYS else f"{row.words[key]}"
            for key in keys
            if key in row.words
        ]
        names.append(", ".join(words) or row.task)
    places = range(len(shown))
    colours = dict(zip(_numbers(rows), COLOURS, strict=False))  # the groups after them have one
    own = [colours.get(row.group, _OTHERS) for row in shown]
    axes.barh(places, [row.cost_us for row in shown], color=own)
    axes.set_yticks(places, names, fontsize=8)
    axes.invert_yaxis()
    for place, row in zip(places, shown, strict=True):
        axes.annotate(f" {row.cost_us:,.4g}", (row.cost_us, place), va="center", fontsize=8)
    axes.margins(x=0.15)
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.grid(visible=True, axis="x", alpha=0.3)
    axes.set_axisbelow(True)
    axes.set_xlabel(_time_label(rows))
    if len(shown) < len(rows):
        axes.set_title(f"the fastest {len(shown)} of {len(rows)}", fontsize=9)
    groups = {row.group: row.group_label for row in shown}
    if len(groups) > 1:
        named = {colours[group]: label for group, label in groups.items() if group in colours}
        if others := len(groups) - len(named):
            named[_OTHERS] = f"{others} others"
        handles = [axes.barh([0], [0], color=colour) for colour in named]
        # inside it would hide the figures of the longest bars
        axes.figure.legend(
            handles,
            list(named.values()),
            fontsize=8,
            loc="outside lower left",
            ncols=1 + (len(named) > 4),
        )


def _numbers(rows: Sequence[SweepRow]) -> dict[tuple[Any, ...], int]:
    """Of each group, by which both pictures have it in one style; those with a long front first.

    Of equally long ones the faster are first.
    """
    by_time = sorted(front(rows), key=lambda row: row.cost_us)
    fronts = collections.Counter(row.group for row in by_time)
    return {group: number for number, (group, _) in enumerate(fronts.most_common())}


def _over_instances(axes: Any, rows: Sequence[SweepRow]) -> None:
    """All points, and the front of each group as a line of steps."""
    groups: dict[tuple[Any, ...], list[SweepRow]] = {}
    for row in front(rows):
        groups.setdefault(row.group, []).append(row)
    numbers = _numbers(rows)
    shown = [group for group in groups if numbers[group] < MOST_FRONTS]
    for group in shown:
        style = line_style(numbers[group])
        own = [row for row in rows if row.group == group]
        axes.plot(
            [row.result.instances for row in own],
            [row.cost_us for row in own],
            **{**style, "linestyle": "none", "alpha": 0.35},
        )
        axes.plot(
            [row.result.instances for row in groups[group]],
            [row.cost_us for row in groups[group]],
            drawstyle="steps-post",
            label=own[0].group_label,
            **{**style, "markersize": 7},
        )
    instances = (row.result.instances for row in rows if row.result.instances)
    count_axis(axes, instances, "instances")
    figure_axis(axes, _time_label(rows))
    some = f" ({len(shown)} of {len(groups)})" if len(shown) < len(groups) else ""
    axes.legend(fontsize=8, title=f"front of time and instances{some}", title_fontsize=8)
