"""Campaigns: faults, each in a run of its own, what each comes to, and the table of all.

Faults that come to the same stand in one row: the same effect, the same culprit of a stall, the
same outputs with wrong values on as many ranks. A row names some of its faults and forgets the
others, so a campaign takes no more memory than its rows.
"""

from collections.abc import Iterable, Mapping, Sequence

import attrs

from ncc_runtime.faults.outcome import Effect, Laboratory, Outcome
from ncc_runtime.faults.single_faults import SingleFault
from ncc_runtime.faults.waits import WaitGraph
from ncc_runtime.progress import steps

EXAMPLES = 3
"""Faults that are named for each row."""

SHOWN = 24
"""Rows of the table that are printed; JSON has all."""

MOST_SUSPECTS = 3
"""Suspects that a row names; the rest are counted."""


@attrs.frozen
class Alike:
    """What makes faults one row of the table."""

    effect: Effect
    is_proved: bool
    has_race: bool = False
    is_settled: bool = True
    what: str = ""  # the culprit of a stall, the outputs that are wrong, what a device refuses


@attrs.define
class CampaignRow:
    """Faults that come to the same."""

    alike: Alike
    faults: int = 0
    named: int = 0  # stalls whose culprit is where the fault is
    examples: list[str] = attrs.Factory(list)
    largest: float = 0.0  # |value - undisturbed| of wrong values
    relative: float = 0.0
    nans: int = 0
    latest_ps: int = 0  # the end of the longest of these runs

    def add(self, fault: SingleFault, outcome: Outcome, graph: WaitGraph | None) -> None:
        """Count one more."""
        self.faults += 1
        if len(self.examples) < EXAMPLES:
            self.examples.append(fault.name)
        if graph is not None:
            self.named += _names_it(graph, fault)
        for one in outcome.differences:
            self.largest = max(self.largest, one.largest)
            self.relative = max(self.relative, one.relative)
            self.nans += one.nans
        if outcome.timed is not None:
            self.latest_ps = max(self.latest_ps, outcome.timed.trace.time_ps)


@attrs.frozen(eq=False)
class Campaign:
    """What the faults of one class come to."""

    name: str
    what: str
    there_are: int  # faults of the class
    tried: int
    undisturbed_ps: int
    rows: tuple[CampaignRow, ...]  # the worst effects first, then those of most faults

    @property
    def counts(self) -> Mapping[Effect, int]:
        """Faults by effect."""
        return {
            effect: sum(row.faults for row in self.rows if row.alike.effect is effect)
            for effect in Effect
        }


def campaign(
    laboratory: Laboratory, name: str, what: str, there_are: int, faults: Sequence[SingleFault]
) -> Campaign:
    """Try each fault in a run of its own."""
    rows: dict[Alike, CampaignRow] = {}
    for fault in steps(faults, f"trying {name}", "faults"):
        outcome = laboratory.outcome(fault.disturbance)
        graph = None
        if outcome.effect is Effect.STALL and outcome.timed is not None:
            graph = laboratory.waits(outcome)
        alike = _alike(outcome, graph)
        rows.setdefault(alike, CampaignRow(alike)).add(fault, outcome, graph)
    order = list(Effect)[::-1]
    ordered = sorted(rows.values(), key=lambda row: (order.index(row.alike.effect), -row.faults))
    return Campaign(name, what, there_are, len(faults), laboratory.trace.time_ps, tuple(ordered))


def _alike(outcome: Outcome, graph: WaitGraph | None) -> Alike:
    what = outcome.error
    if graph is not None:
        what = "; ".join(_suspects(graph))
    elif outcome.differences:
        what = ", ".join(
            f"out{one.output} on {len(one.ranks)} rank{'s' * (len(one.ranks) != 1)}"
            for one in outcome.differences
        )
    return Alike(outcome.effect, outcome.is_proved, outcome.has_race, outcome.is_settled, what)


def _suspects(graph: WaitGraph) -> Iterable[str]:
    """The culprits of a stall, those of each in a few words."""
    for culprit in graph.culprits:
        names = [suspect.name for suspect in culprit.suspects]
        more = f" and {len(names) - MOST_SUSPECTS} more" * (len(names) > MOST_SUSPECTS)
        yield f"{' or '.join(names[:MOST_SUSPECTS])}{more} ({culprit.kind.value})"


def _names_it(graph: WaitGraph, fault: SingleFault) -> bool:
    """Whether a culprit is where the fault is."""
    return any(
        not set(fault.ranks).isdisjoint(suspect.ranks)
        or not set(fault.parts).isdisjoint(suspect.parts)
        for culprit in graph.culprits
        for suspect in culprit.suspects
    )
