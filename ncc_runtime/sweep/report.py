"""What a sweep says: rows, best first, as text, CSV and JSON; the front of time and instances."""

import csv
import io
from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from ncc_runtime.report.run import SCHEMA
from ncc_runtime.report.text_table import text_table
from ncc_runtime.sweep.points import Bench, SweepPoint
from ncc_runtime.sweep.results import PointResult, Status
from ncc_runtime.words import size_label

MOST_SHOWN = 60
"""Rows that a table has, if nobody says another number."""

NUMBER_KEYS = ("ranks", "size", "nodes", "lnc", "level", "samples", "fault_seed")
"""Words that are numbers, which say nothing without their keys."""

_MOST_REASONS = 8
_MOST_LETTERS = 160  # of a reason


@attrs.frozen
class SweepRow:
    """A point, by the words that said it, and what it came to.

    - `task`: what is done; times of one task are compared
    - `samples`: how many a run is of, if somebody said it
    - `program`: of a model, the `.neff` files that were made of it
    """

    words: Mapping[str, Any]
    point: SweepPoint | None  # None: of a model that does not compile
    result: PointResult
    task: str
    samples: int | None = None
    program: tuple[str, ...] = ()

    @property
    def is_done(self) -> bool:
        return self.result.status is Status.DONE

    @property
    def cost_us(self) -> float:
        """The time that rows of a task are compared by: of a run, or of a sample of it."""
        assert self.result.time_us is not None, self.result
        return self.result.time_us / (self.samples or 1)

    @property
    def group(self) -> tuple[Any, ...]:
        """The task, and what goes wrong: rows that are alternatives have the same."""
        if self.point is None:
            return (self.task, (), (), 0)
        return (self.task, self.point.place.faults, self.point.faults, self.point.fault_seed)

    @property
    def group_label(self) -> str:
        """The group in words: `mlp.neff, down c0-c1, rank 3 slow to 50%`."""
        words = [self.task]
        if self.point is not None:
            words += [fault.source.removeprefix("--") for fault in self.point.place.faults]
            words += self.point.faults
            words += [f"seed {self.point.fault_seed}"] * bool(self.point.fault_seed)
        return ", ".join(words)

    @property
    def size_bytes(self) -> int | None:
        """Of a bench."""
        work = None if self.point is None else self.point.work
        return work.size_bytes if isinstance(work, Bench) else None


def default_task(words: Mapping[str, Any], point: SweepPoint | None) -> str:
    """What a point does, where no `task` says it: `all_reduce of 1 MiB, bf16`, or its program."""
    if point is not None and isinstance(work := point.work, Bench):
        return f"{work.op} of {size_label(work.size_bytes)}, {work.dtype}"
    return str(words.get("model", words.get("program", "")))


def in_order(rows: Sequence[SweepRow]) -> list[SweepRow]:
    """Groups as they come, in each what is done by time, best first, then the rest."""
    groups = {group: number for number, group in enumerate(dict.fromkeys(r.group for r in rows))}
    return sorted(
        rows,
        key=lambda row: (groups[row.group], not row.is_done, row.cost_us if row.is_done else 0),
    )


def front(rows: Sequence[SweepRow]) -> list[SweepRow]:
    """Of each group the Pareto front of time against instances, fewest instances first.

    A row is on it if no row of its group takes as few instances and less time, or fewer and as
    little; of equal ones the first.
    """
    best: dict[tuple[Any, ...], dict[int, SweepRow]] = {}
    for row in rows:
        if row.is_done:
            by_instances = best.setdefault(row.group, {})
            before = by_instances.get(row.result.instances or 0)
            if before is None or row.cost_us < before.cost_us:
                by_instances[row.result.instances or 0] = row
    found = []
    for by_instances in best.values():
        least_us = float("inf")
        for _, row in sorted(by_instances.items()):
            if row.cost_us < least_us:
                least_us = row.cost_us
                found.append(row)
    return found


def varying(rows: Sequence[SweepRow]) -> list[str]:
    """The keys of words that are not the same in all rows, in the order in which they come.

    Rows of a task come together, so that is no word of theirs.
    """
    keys = dict.fromkeys(key for row in rows for key in row.words if key != "task")
    return [key for key in keys if len({str(row.words.get(key, "")) for row in rows}) > 1]


@attrs.frozen
class SweepReport:
    """All rows of a sweep, in order, and which are on the front."""

    name: str
    rows: tuple[SweepRow, ...]
    left: int = 0  # points that are not computed yet

    @property
    def counts(self) -> dict[Status, int]:
        return {status: sum(row.result.status is status for row in self.rows) for status in Status}

    def as_text(self, most: int | None = None) -> str:
        """A table of the best rows of each task, the front, and reasons of what is not done."""
        said = [f"{number} {status}" for status, number in self.counts.items() if number]
        said += [f"{self.left} left"] * bool(self.left)
        lines = [f"{self.name}: {_counted(len(self.rows) + self.left)}; {', '.join(said)}"]
        on_front = front(self.rows)
        done = [row for row in self.rows if row.is_done]
        if done:
            shown = self._shown(done, most)
            lines += ["", *_table(shown, self.rows, on_front)]
            if len(shown) < len(done):
                hidden = len(done) - len(shown)
                lines.append(f"… and {hidden} more, slower ones: --top shows more, --csv all")
            instances = {row.result.instances for row in done}
            if len(instances) > 1:
                lines += ["", "* the fastest on so many instances, and faster than on fewer"]
            fastest = list({row.group: row for row in reversed(done)}.values())[::-1]
            programs = [
                f"the fastest of {row.task}: {' '.join(row.program)}"
                for row in fastest
                if row.program
            ]
            lines += ["", *programs[:_MOST_REASONS]] if programs else []
        return "\n".join([*lines, *self._reasons()])

    def _shown(self, done: Sequence[SweepRow], most: int | None) -> list[SweepRow]:
        """So many of each group, or of all groups alike so many that there are MOST_SHOWN."""
        groups = len({row.group for row in done})
        if most is None:
            most = len(done) if len(done) <= MOST_SHOWN else max(1, MOST_SHOWN // groups)
        seen: dict[tuple[Any, ...], int] = {}
        shown = []
        for row in done:
            seen[row.group] = seen.get(row.group, 0) + 1
            if seen[row.group] <= most:
                shown.append(row)
        return shown

    def _reasons(self) -> list[str]:
        by_reason: dict[str, list[SweepRow]] = {}
        for row in self.rows:
            if not row.is_done:
                first, *_ = row.result.reason.splitlines() or [""]
                by_reason.setdefault(f"{row.result.status}: {first}", []).append(row)
        if not by_reason:
            return []
        keys = varying(self.rows)
        lines = [""]
        most_first = sorted(by_reason.items(), key=lambda item: -len(item[1]))
        for reason, rows in most_first[:_MOST_REASONS]:
            words = rows[0].words
            which = ", ".join(f"{key} {words[key]}" for key in keys if key in words)
            shown = reason if len(reason) <= _MOST_LETTERS else f"{reason[:_MOST_LETTERS]}…"
            example = f" ({which})" if len(rows) == 1 else f" (the first: {which})"
            lines.append(f"{_counted(len(rows))} {shown}{example if which else ''}")
        if more := most_first[_MOST_REASONS:]:
            lines.append(f"… and {len(more)} more reasons, all in --csv")
        return lines

    def as_csv(self) -> str:
        """All rows, with every word that any has."""
        fronts = {id(row) for row in front(self.rows)}
        keys = list(dict.fromkeys(key for row in self.rows for key in row.words))
        keys = [key for key in keys if key not in _FIGURES]
        out = io.StringIO()
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow([*keys, *_FIGURES])
        for row in self.rows:
            figures = _figures(row, is_on_front=id(row) in fronts)
            writer.writerow([*(row.words.get(key, "") for key in keys), *figures.values()])
        return out.getvalue()

    def as_json(self) -> dict[str, Any]:
        """The object of `--json`."""
        fronts = {id(row) for row in front(self.rows)}
        return {
            "schema": SCHEMA,
            "sweep": self.name,
            "points": len(self.rows) + self.left,
            "left": self.left,
            **{status.value: number for status, number in self.counts.items()},
            "rows": [
                {
                    "point": dict(row.words),
                    **_figures(row, is_on_front=id(row) in fronts),
                    "key": row.result.key,
                }
                for row in self.rows
            ],
        }


def _figures(row: SweepRow, *, is_on_front: bool) -> dict[str, Any]:
    result = row.result
    return {
        "task": row.task,
        "ranks": result.ranks or row.words.get("ranks"),
        "status": result.status.value,
        "time_us": result.time_us,
        "samples": row.samples,
        "time_per_sample_us": row.cost_us if row.is_done and row.samples else None,
        "busbw_gb_per_s": result.busbw_gb_per_s,
        "instances": result.instances,
        "on_front": is_on_front,
        "used_algorithm": result.algorithm or None,
        "memory_bytes": result.memory_bytes,
        "memory_share": result.memory_share,
        "program": " ".join(row.program) or row.words.get("program"),
        "reason": result.reason or None,
    }


_FIGURES = (
    *("task", "ranks", "status", "time_us", "samples", "time_per_sample_us", "busbw_gb_per_s"),
    *("instances", "on_front", "used_algorithm", "memory_bytes", "memory_share", "program"),
    "reason",
)


def _counted(points: int) -> str:
    return f"{points} point" + "s" * (points != 1)


def _table(
    shown: Sequence[SweepRow], rows: Sequence[SweepRow], on_front: Sequence[SweepRow]
) -> list[str]:
    """Columns of words that vary among all rows, then figures that some row has."""
    fronts = {id(row) for row in on_front}
    keys = varying(rows)
    done = [row for row in rows if row.is_done]
    columns: list[tuple[str, list[str]]] = [
        (key, [str(row.words.get(key, "-")) for row in shown]) for key in keys
    ]
    words = set(range(len(columns))) - {k for k, key in enumerate(keys) if key in NUMBER_KEYS}
    if len({row.result.ranks for row in done}) > 1 and "ranks" not in keys:
        columns.append(("ranks", [str(row.result.ranks) for row in shown]))
    if len({row.result.instances for row in done}) > 1:
        columns.append(("instances", [str(row.result.instances) for row in shown]))
    columns.append(("time(us)", [f"{row.result.time_us:.2f}" for row in shown]))
    if any(row.samples for row in done):
        columns.append(("time/sample(us)", [f"{row.cost_us:.3f}" for row in shown]))
    if any(row.result.busbw_gb_per_s is not None for row in done):
        busbw = [_decimal(row.result.busbw_gb_per_s, 2) for row in shown]
        columns.append(("busbw(GB/s)", busbw))
        words.add(len(columns))
        columns.append(("used", [row.result.algorithm for row in shown]))
    else:
        shares = [row.result.memory_share for row in shown]
        memory = ["-" if share is None else _percent(share) for share in shares]
        columns.append(("memory", memory))
    marks = ["*" if id(row) in fronts else "" for row in shown]
    if len({row.result.instances for row in done}) > 1:
        columns.append(("", marks))
    headings = [heading for heading, _ in columns]
    cells = [list(row) for row in zip(*(column for _, column in columns), strict=True)]
    return [line.rstrip() for line in text_table(headings, cells, words)]


def _percent(share: float) -> str:
    return f"{100 * share:.0f}%" if share >= 0.01 else "<1%"


def _decimal(number: float | None, digits: int) -> str:
    return "-" if number is None else f"{number:.{digits}f}"
