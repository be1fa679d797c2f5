"""What a run's time was spent on, as text and JSON: overlap, utilisation, critical path."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

import attrs
from rich.table import Table

from ncc_runtime.execution.trace import Trace
from ncc_runtime.machine_model.parts import PartKind
from ncc_runtime.neff.stages import ranks_text
from ncc_runtime.report.critical_path import CriticalPath, Step, critical_path
from ncc_runtime.report.overlap import AllReduces, Hideable, Overlap, all_reduces, overlap
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
}


@attrs.frozen(eq=False)
class Performance:
    """Everything about a run's time that is worked out only when somebody wants to read it."""

    trace: Trace

    @cached_property
    def path(self) -> CriticalPath:
        return critical_path(self.trace)

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
        return int(self.trace.slowed_ps.sum()) // self.trace.executable.seen


def as_json(one: Performance) -> dict[str, Any]:
    """The object `timeline` of a run; times in microseconds, of one rank on average."""
    both = one.overlap
    return {
        "compute_us": both.mean_us(both.compute_ps),
        "collective_us": both.mean_us(both.collective_ps),
        "exposed_us": both.mean_us(both.exposed_ps),
        "most_exposed_us": both.most_exposed_ps / 1e6,
        "hidden_share": both.hidden_share,
        "all_reduce": _all_reduces(one.all_reduces),
        "slowed_us": one.slowed_ps / 1e6,
        "slowed_on_critical_path_us": one.path.slowed_ps / 1e6,
        "utilisation": {
            **{kind.value: _parts(one.use, kind) for kind in SHARED},
            "engines": [attrs.asdict(engine) for engine in one.use.engines],
        },
        "critical_path": [_step(step) for step in one.path.steps],
    }


def _all_reduces(found: AllReduces | None) -> dict[str, Any] | None:
    if found is None:
        return None
    each = [{"id": number, **_hideable(one)} for number, one in found.each.items()]
    return {**_hideable(found.together), "each": each}


def _hideable(found: Hideable) -> dict[str, Any]:
    return {
        "time_us": found.all_reduce_ps / 1e6,
        "independent_compute_us": found.independent_ps / 1e6,
        "possible_us": found.most_ps / 1e6,
        "hidden_us": found.hidden_ps / 1e6,
        "hidden_share_of_possible": found.share,
    }


def _parts(use: Utilisation, kind: PartKind) -> list[dict[str, Any]]:
    return [attrs.asdict(part) for part in use.parts[kind][:BUSIEST]]


def _step(step: Step) -> dict[str, Any]:
    return {
        "what": step.what,
        "kind": step.kind,
        "placeholder": step.placeholder,
        "ranks": list(step.ranks),
        "start_us": step.start_ps / 1e6,
        "time_us": step.time_ps / 1e6,
        "under_way_us": step.under_way_ps / 1e6,
        "slowed_us": step.slowed_ps / 1e6,
        "events": step.events,
        "late": step.late,
    }


def lines(one: Performance) -> Iterator[str]:
    """What a text says of it, but for the critical path."""
    both = one.overlap
    if both.hidden_share is not None:
        yield (
            f"a rank on average: compute {both.mean_us(both.compute_ps):.3f} us, collectives "
            f"{both.mean_us(both.collective_ps):.3f} us, {both.mean_us(both.exposed_ps):.3f} us of "
            f"them exposed ({both.hidden_share:.1%} hidden)"
        )
    if one.all_reduces is not None:
        yield from _all_reduce_lines(one.all_reduces)
    if busiest := ", ".join(_busiest(one.use)):
        yield f"busiest: {busiest}"
    if one.slowed_ps or one.path.slowed_ps:
        yield (
            f"lost by sharing: {one.slowed_ps / 1e6:.3f} us of a rank on average, "
            f"{one.path.slowed_ps / 1e6:.3f} us on the critical path"
        )


def _all_reduce_lines(found: AllReduces) -> Iterator[str]:
    """All together, then those that leave most exposed of what could be hidden."""
    yield f"all-reduces {_beside(found.together)}"
    if len(found.each) > 1:
        left = sorted(found.each, key=lambda number: _left_ps(found.each[number]), reverse=True)
        for number in sorted(left[:LONGEST]):
            yield f"  p{number} {_beside(found.each[number])}"


def _left_ps(one: Hideable) -> int:
    return one.most_ps - one.hidden_ps


def _beside(one: Hideable) -> str:
    share = "" if one.share is None else f", {one.share:.1%} of what could be"
    return (
        f"{one.all_reduce_ps / 1e6:.3f} us beside {one.independent_ps / 1e6:.3f} us of "
        f"independent compute: {one.hidden_ps / 1e6:.3f} us hidden{share}"
    )


def _busiest(use: Utilisation) -> Iterator[str]:
    for kind in SHARED:
        for part in use.parts[kind][:1]:
            yield f"{_WORDS[kind]} {part.name} {part.share:.1%}"
    for engine in use.engines[:2]:
        yield f"{engine.engine} {engine.mean_share:.1%}"


def table(path: CriticalPath) -> Table:
    """The longest steps of the critical path, in order of time."""
    shown = path.longest(LONGEST)
    more = f", the longest {len(shown)} of {len(path.steps)} steps" * (len(shown) < len(path.steps))
    found = Table(box=None, pad_edge=False, title=f"critical path{more}", title_justify="left")
    for name in ("start us", "time us"):
        found.add_column(name, justify="right", no_wrap=True)
    for name in ("step", "ranks", "waited for"):
        found.add_column(name, no_wrap=name == "ranks")  # long sentences go on in the next line
    for step in shown:
        times = (f"{step.start_ps / 1e6:.3f}", f"{step.time_ps / 1e6:.3f}")
        words = (step.what, _few(step.ranks), step.late)
        found.add_row(*times, *(word.replace("[", "\\[") for word in words))
    return found


def _few(ranks: Sequence[int]) -> str:
    text = ranks_text(ranks)
    return text if len(text) <= 12 else f"{len(ranks)} ranks"
