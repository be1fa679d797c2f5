"""Campaigns: faults, each in a run of its own, what each comes to, and the table of all.

Faults that come to the same stand in one row: the same effect, the same culprit of a stall, the
same outputs with wrong values on as many ranks, or as many outputs where there are many. A row
names some of its faults and forgets the others, so a campaign takes no more memory than its rows.
"""

import io
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import attrs
from rich.console import Console
from rich.table import Table

from ncc_runtime.faults.outcome import Effect, FaultOutcome, Laboratory
from ncc_runtime.faults.report import finite
from ncc_runtime.faults.single_faults import GIVEN, FaultClass, SingleFault
from ncc_runtime.faults.waits import WaitGraph
from ncc_runtime.host_memory import budget_bytes, needed_bytes
from ncc_runtime.options import RunOptions
from ncc_runtime.progress import phase
from ncc_runtime.worker_processes import in_order, processors

EXAMPLES = 3
"""Faults that are named for each row."""

SHOWN = 24
"""Rows of the table that are printed; JSON has all."""

WIDTH = 160
"""Columns of a line; longer ones go on in the next."""

ALONE_S = 1.0
"""For so long one process tries faults: most campaigns are done then, and what is made once for all
of them is there for the processes that share the rest."""

CHUNK = 8
"""Faults that a process tries at a time."""

EVENT_BYTES = 400
"""Of memory that a stall takes for each event of the run: its trace, and what is made of it."""

MOST_OUTPUTS = 4
"""Wrong outputs up to which a row names them; more are counted."""

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

    def add(self, fault: SingleFault, outcome: FaultOutcome, graph: WaitGraph | None) -> None:
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

    def join(self, later: "CampaignRow") -> None:
        """Count faults that were tried after these."""
        self.faults += later.faults
        self.named += later.named
        self.examples += later.examples[: EXAMPLES - len(self.examples)]
        self.largest = max(self.largest, later.largest)
        self.relative = max(self.relative, later.relative)
        self.nans += later.nans
        self.latest_ps = max(self.latest_ps, later.latest_ps)


@attrs.frozen(eq=False)
class Campaign:
    """What the faults of one class come to."""

    kind: FaultClass
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
    laboratory: Laboratory,
    kind: FaultClass,
    there_are: int,
    faults: Sequence[SingleFault],
    processes: int | None = None,
) -> Campaign:
    """Try each fault in a run of its own; the result is the same for any number of processes.

    None: as many as there are processors, and as have room in memory, unless that is soon done.
    """
    rows: dict[Alike, CampaignRow] = {}
    done, began_s = 0, time.monotonic()
    with phase(f"trying {kind.name}", "faults", len(faults)) as now:
        if processes is None:
            while done < len(faults) and time.monotonic() - began_s < ALONE_S:
                _try(laboratory, faults[done : done + 1], rows)
                now.done = done = done + 1
            processes = _room_for(laboratory, faults[done:])
        left = faults[done:]
        chunks = [left[first : first + CHUNK] for first in range(0, len(left), CHUNK)]

        def tried(number: int) -> dict[Alike, CampaignRow]:
            return _try(laboratory, chunks[number], {})

        for number, found in enumerate(in_order(tried, len(chunks), processes)):
            for alike, row in found.items():
                rows.setdefault(alike, CampaignRow(alike)).join(row)
            now.done += len(chunks[number])
    order = list(Effect)[::-1]
    ordered = sorted(rows.values(), key=lambda row: (order.index(row.alike.effect), -row.faults))
    return Campaign(kind, there_are, len(faults), laboratory.trace.time_ps, tuple(ordered))


def _room_for(laboratory: Laboratory, faults: Sequence[SingleFault]) -> int:
    """How many processes may try faults side by side."""
    need = len(laboratory.trace) * EVENT_BYTES
    if any(laboratory.may_play_values(fault.disturbance) for fault in faults):
        need += needed_bytes(laboratory.executable, RunOptions())
    budget = budget_bytes(RunOptions(memory_bytes=laboratory.memory_bytes))
    most = processors() if budget is None else min(processors(), budget // need)
    return max(1, min(most, len(faults) // CHUNK))


def _try(
    laboratory: Laboratory, faults: Iterable[SingleFault], rows: dict[Alike, CampaignRow]
) -> dict[Alike, CampaignRow]:
    """Try faults one after the other, and count them in rows."""
    for fault in faults:
        outcome = laboratory.outcome(fault.disturbance)
        graph = None
        if outcome.effect is Effect.STALL and outcome.timed is not None:
            graph = laboratory.waits(outcome)
        alike = _alike(outcome, graph)
        rows.setdefault(alike, CampaignRow(alike)).add(fault, outcome, graph)
    return rows


def _alike(outcome: FaultOutcome, graph: WaitGraph | None) -> Alike:
    what = outcome.error
    if graph is not None:
        what = "; ".join(_suspects(graph))
    elif len(outcome.differences) > MOST_OUTPUTS:
        what = f"{len(outcome.differences)} outputs"
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


# ---- the table


def as_text(campaign: Campaign, heading: str = "") -> str:
    """Counts by effect, then the rows."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, highlight=False, no_color=True, markup=False)
    drawn = f", {campaign.tried} of them drawn" * (campaign.tried < campaign.there_are)
    for line in (
        *([heading] if heading else []),
        f"{campaign.kind.name}: {campaign.kind.what}",
        f"{campaign.there_are} faults{drawn}, each in a run of its own",
        f"undisturbed: {campaign.undisturbed_ps / 1e6:.3f} us",
        *_counted(campaign),
        "",
    ):
        console.print(line, soft_wrap=True)
    table = Table(box=None, pad_edge=False)
    for name in ("outcome", "faults", "what", "by", "until us", "for example"):
        table.add_column(name, justify="right" if name in ("faults", "until us") else "left")
    for row in campaign.rows[:SHOWN]:
        table.add_row(
            row.alike.effect.value,
            str(row.faults),
            _what(row),
            "proof" if row.alike.is_proved else "comparison",
            f"{row.latest_ps / 1e6:.3f}" if row.latest_ps else "",
            row.examples[0],
        )
    console.print(table)
    if more := campaign.rows[SHOWN:]:
        faults = sum(row.faults for row in more)
        console.print(f"… and {len(more)} more rows of {faults} faults, all in --json")
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _counted(campaign: Campaign) -> Iterator[str]:
    """A line for each effect that there is."""
    for effect, faults in campaign.counts.items():
        rows = [row for row in campaign.rows if row.alike.effect is effect]
        if not faults:
            continue
        notes = []
        proved = sum(row.faults for row in rows if row.alike.is_proved)
        races = sum(row.faults for row in rows if row.alike.has_race)
        if effect is Effect.HARMLESS:
            notes.append(f"{proved} by proof, {faults - proved} by comparison")
        if effect is Effect.STALL and campaign.kind.name != GIVEN:
            named = sum(row.named for row in rows)
            notes.append(f"a culprit is where the fault is in {named}")
        if races:
            notes.append(f"{races} with a race: at other times the values may differ")
        yield f"  {effect.value:<12} {faults:>8}  {'; '.join(notes)}".rstrip()


def _what(row: CampaignRow) -> str:
    """What faults of a row have in common."""
    words = [row.alike.what] if row.alike.what else []
    if row.alike.effect is Effect.WRONG:
        words.append(f"up to {row.largest:.3g} off, {100 * row.relative:.3g} %")
        if row.nans:
            words.append(f"{row.nans} NaN")
    if row.alike.has_race:
        words.append("a race")
    if not row.alike.is_settled:
        words.append("control flow changes with the times")
    return "; ".join(words)


def as_json(campaign: Campaign) -> Mapping[str, Any]:
    """The keys of the object of `--json`, beside those of the place."""
    return {
        "class": campaign.kind.name,
        "there_are": campaign.there_are,
        "tried": campaign.tried,
        "undisturbed_us": campaign.undisturbed_ps / 1e6,
        "outcomes": {effect.value: faults for effect, faults in campaign.counts.items()},
        "rows": [
            {
                "outcome": row.alike.effect.value,
                "faults": row.faults,
                "what": row.alike.what,
                "proved": row.alike.is_proved,
                "race": row.alike.has_race,
                "settled": row.alike.is_settled,
                "culprit_named": row.named if row.alike.effect is Effect.STALL else None,
                "largest_difference": finite(row.largest),
                "largest_relative_difference": finite(row.relative),
                "nans": row.nans,
                "until_us": row.latest_ps / 1e6,
                "examples": row.examples,
            }
            for row in campaign.rows
        ],
    }
