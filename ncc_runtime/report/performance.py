"""What a run's time was spent on, as text and JSON: overlap, utilisation, critical path."""

from collections.abc import Iterator
from functools import cached_property
from typing import Any

import attrs

from ncc_runtime.execution.trace import Trace
from ncc_runtime.machine_model.parts import PartKind
from ncc_runtime.neff.program import short_place
from ncc_runtime.neff.stages import ranks_text
from ncc_runtime.report.critical_path import CriticalPath, PathStep, critical_path
from ncc_runtime.report.overlap import (
    AllReduces,
    Hideable,
    Overlap,
    OverlapByRank,
    all_reduces,
    overlap,
    overlap_by_rank,
)
from ncc_runtime.report.text_table import text_table, wrapped
from ncc_runtime.report.utilisation import SHARED, Utilisation, utilisation

LONGEST = 5
"""Steps of the critical path that a text shows."""

BUSIEST = 8
"""Parts of each kind that JSON has."""

_WORDS = {
    PartKind.LINK: "link",
    PartKind.HBM: "memory",
    PartKind.DMA: "DMA engines",
    PartKind.EFA: "adapter",
    PartKind.QUEUE_PAIR: "queue pair",
}


@attrs.frozen(eq=False)
class Performance:
    """What a run's time was spent on; each part is computed when it is first read."""

    trace: Trace

    @cached_property
    def path(self) -> CriticalPath:
        return critical_path(self.trace)

    @cached_property
    def by_rank(self) -> OverlapByRank:
        return overlap_by_rank(self.trace)

    @cached_property
    def overlap(self) -> Overlap:
        return overlap(self.trace)

    @cached_property
    def all_reduces(self) -> AllReduces | None:
        return all_reduces(self.trace)

    @cached_property
    def use(self) -> Utilisation:
        return utilisation(self.trace)

    @property
    def slowed_ps(self) -> int:
        """What sharing parts added to events, of one rank on average."""
        return int(self.trace.slowed_ps.sum()) // self.trace.executable.representatives


def as_json(performance: Performance) -> dict[str, Any]:
    """The object `timeline` of a run; times in microseconds, of one rank on average."""
    both, reduces = performance.overlap, performance.all_reduces
    return {
        "compute_us": both.mean_us(both.compute_ps),
        "collective_us": both.mean_us(both.collective_ps),
        "exposed_us": both.mean_us(both.exposed_ps),
        "most_exposed_us": both.most_exposed_ps / 1e6,
        "hidden_share": both.hidden_share,
        "all_reduce": None
        if reduces is None
        else {
            **_hideable(reduces.together),
            "each": [{"id": number, **_hideable(one)} for number, one in reduces.each.items()],
        },
        "slowed_us": performance.slowed_ps / 1e6,
        "slowed_on_critical_path_us": performance.path.slowed_ps / 1e6,
        "utilisation": {
            **{
                kind.value: [attrs.asdict(part) for part in performance.use.parts[kind][:BUSIEST]]
                for kind in SHARED
            },
            "engines": [attrs.asdict(engine) for engine in performance.use.engines],
        },
        "critical_path": [step_json(step) for step in performance.path.steps],
    }


def _hideable(hideable: Hideable) -> dict[str, Any]:
    return {
        "time_us": hideable.all_reduce_ps / 1e6,
        "independent_compute_us": hideable.independent_ps / 1e6,
        "possible_us": hideable.most_ps / 1e6,
        "hidden_us": hideable.hidden_ps / 1e6,
        "hidden_share_of_possible": hideable.share,
    }


def step_json(step: PathStep) -> dict[str, Any]:
    """A step of a critical path as an object; times in microseconds."""
    return {
        "what": step.what,
        "kind": step.kind,
        "line": step.line,
        "placeholder": step.placeholder,
        "ranks": list(step.ranks),
        "start_us": step.start_ps / 1e6,
        "time_us": step.time_ps / 1e6,
        "under_way_us": step.under_way_ps / 1e6,
        "slowed_us": step.slowed_ps / 1e6,
        "events": step.events,
        "late": step.late,
    }


def lines(performance: Performance) -> Iterator[str]:
    """Its summary as text, without the critical path."""
    both = performance.overlap
    if both.hidden_share is not None:
        yield (
            f"a rank on average: compute {both.mean_us(both.compute_ps):.3f} us, collectives "
            f"{both.mean_us(both.collective_ps):.3f} us, {both.mean_us(both.exposed_ps):.3f} us of "
            f"them exposed ({both.hidden_share:.1%} hidden)"
        )
    if performance.all_reduces is not None:
        yield from _all_reduce_lines(performance.all_reduces)
    busiest = [
        f"{_WORDS[kind]} {part.name} {part.share:.1%}"
        for kind in SHARED
        for part in performance.use.parts[kind][:1]
    ]
    busiest += [
        f"{engine.engine} {engine.mean_share:.1%}" for engine in performance.use.engines[:2]
    ]
    if busiest:
        yield f"busiest: {', '.join(busiest)}"
    if performance.slowed_ps or performance.path.slowed_ps:
        yield (
            f"lost by sharing: {performance.slowed_ps / 1e6:.3f} us of a rank on average, "
            f"{performance.path.slowed_ps / 1e6:.3f} us on the critical path"
        )


def _all_reduce_lines(reduces: AllReduces) -> Iterator[str]:
    """All together, then those that leave most exposed of what could be hidden."""
    yield f"all-reduces {_hidden_text(reduces.together)}"
    if len(reduces.each) > 1:
        exposed = {number: one.most_ps - one.hidden_ps for number, one in reduces.each.items()}
        for number in sorted(sorted(exposed, key=exposed.__getitem__, reverse=True)[:LONGEST]):
            yield f"  p{number} {_hidden_text(reduces.each[number])}"


def _hidden_text(hideable: Hideable) -> str:
    share = "" if hideable.share is None else f", {hideable.share:.1%} of what could be"
    return (
        f"{hideable.all_reduce_ps / 1e6:.3f} us beside {hideable.independent_ps / 1e6:.3f} us of "
        f"independent compute: {hideable.hidden_ps / 1e6:.3f} us hidden{share}"
    )


def path_lines(path: CriticalPath, width: int) -> Iterator[str]:
    """The longest steps of the critical path, in order of time, as a table."""
    shown = path.longest(LONGEST)
    more = f", the longest {len(shown)} of {len(path.steps)} steps" * (len(shown) < len(path.steps))
    has_lines = any(step.line for step in shown)
    headings = ["start us", "time us", "step", *["line"] * has_lines, "ranks", "waited for"]
    rows = []
    for step in shown:
        times = (f"{step.start_ps / 1e6:.3f}", f"{step.time_ps / 1e6:.3f}")
        ranks = ranks_text(step.ranks)
        ranks = ranks if len(ranks) <= 12 else f"{len(step.ranks)} ranks"
        line = [short_place(step.line)] if has_lines else []
        rows.append([*times, step.what, *line, ranks, step.late])
    yield f"critical path{more}"
    # long sentences go on in the next line
    rows = wrapped(headings, rows, (2, len(headings) - 1), width)
    yield from text_table(headings, rows, range(2, len(headings)))
