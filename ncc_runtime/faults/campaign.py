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

from ncc_runtime.execution.disturbance import Disturbance
from ncc_runtime.faults.outcome import Effect, FaultOutcome, Laboratory
from ncc_runtime.faults.report import finite
from ncc_runtime.faults.single_faults import FaultClass, SingleFault
from ncc_runtime.faults.waits import WaitGraph
from ncc_runtime.host_memory import literal_memory
from ncc_runtime.options import RunOptions
from ncc_runtime.progress import phase
from ncc_runtime.worker_processes import in_order, most_processes

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
class OutcomeClass:
    """What makes faults one row of the table."""

    effect: Effect
    is_proved: bool
    has_race: bool = False
    is_settled: bool = True
    what: str = ""  # the culprit of a stall, the outputs that are wrong, what a device refuses


@attrs.define
class CampaignRow:
    """Faults that come to the same."""

    outcome: OutcomeClass
    faults: int = 0
    named: int = 0  # stalls whose culprit is where the fault is
    examples: list[str] = attrs.Factory(list)
    largest: float = 0.0  # |value - undisturbed| of wrong values
    relative: float = 0.0
    nans: int = 0
    latest_ps: int = 0  # the end of the longest of these runs

    def add(self, name: str, outcome: FaultOutcome, *, is_named: bool) -> None:
        """Count one more."""
        self.faults += 1
        self.named += is_named
        if len(self.examples) < EXAMPLES:
            self.examples.append(name)
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
            effect: sum(row.faults for row in self.rows if row.outcome.effect is effect)
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
    rows: dict[OutcomeClass, CampaignRow] = {}
    done, began_s = 0, time.monotonic()
    with phase(f"trying {kind.name}", "faults", len(faults)) as now:
        if processes is None:
            while done < len(faults) and time.monotonic() - began_s < ALONE_S:
                _try(laboratory, faults[done : done + 1], rows)
                now.done = done = done + 1
            processes = _room_for(laboratory, faults[done:])
        left = faults[done:]
        chunks = [left[first : first + CHUNK] for first in range(0, len(left), CHUNK)]

        def tried(number: int) -> dict[OutcomeClass, CampaignRow]:
            return _try(laboratory, chunks[number], {})

        for number, found in enumerate(in_order(tried, len(chunks), processes)):
            for outcome, row in found.items():
                rows.setdefault(outcome, CampaignRow(outcome)).join(row)
            now.done += len(chunks[number])
    order = list(Effect)[::-1]
    ordered = sorted(rows.values(), key=lambda row: (order.index(row.outcome.effect), -row.faults))
    return Campaign(kind, there_are, len(faults), laboratory.trace.time_ps, tuple(ordered))


def _room_for(laboratory: Laboratory, faults: Sequence[SingleFault]) -> int:
    """How many processes may try faults side by side."""
    options = RunOptions(memory_bytes=laboratory.memory_bytes)
    memory = literal_memory(laboratory.executable, options)
    need, budget = len(laboratory.trace) * EVENT_BYTES, memory.budget
    # those of a class are alike in this
    if any(laboratory.may_play_values(fault.disturbance()) for fault in faults[:1]):
        need += memory.needed
    most = most_processes() if budget is None else min(most_processes(), budget // need)
    return max(1, min(most, len(faults) // CHUNK))


def _try(
    laboratory: Laboratory, faults: Iterable[SingleFault], rows: dict[OutcomeClass, CampaignRow]
) -> dict[OutcomeClass, CampaignRow]:
    """Try faults one after the other, and count them in rows."""
    for fault in faults:
        disturbance = fault.disturbance()
        outcome = laboratory.outcome(disturbance)
        graph, is_named = None, False
        if outcome.effect is Effect.STALL and outcome.timed is not None:
            graph = laboratory.waits(outcome)
            is_named = _names_it(graph, disturbance)
        same = _outcome_class(outcome, graph)
        rows.setdefault(same, CampaignRow(same)).add(fault.name, outcome, is_named=is_named)
    return rows


def _outcome_class(outcome: FaultOutcome, graph: WaitGraph | None) -> OutcomeClass:
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
    return OutcomeClass(
        outcome.effect, outcome.is_proved, outcome.has_race, outcome.is_settled, what
    )


def _suspects(graph: WaitGraph) -> Iterable[str]:
    """The culprits of a stall, those of each in a few words."""
    for culprit in graph.culprits:
        names = [suspect.name for suspect in culprit.suspects]
        more = f" and {len(names) - MOST_SUSPECTS} more" * (len(names) > MOST_SUSPECTS)
        yield f"{' or '.join(names[:MOST_SUSPECTS])}{more} ({culprit.kind.value})"


def _names_it(graph: WaitGraph, fault: Disturbance) -> bool:
    """Whether a culprit is where the fault is."""
    ranks = {
        *(each.rank for each in fault.queues),
        *(each.rank for each in fault.transfers),
        *(each.rank for each in fault.memory),
        *fault.late_start_ps,
    }
    parts = {each.part for each in fault.parts}
    return any(
        not ranks.isdisjoint(suspect.ranks) or not parts.isdisjoint(suspect.parts)
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
            row.outcome.effect.value,
            str(row.faults),
            _what(row),
            "proof" if row.outcome.is_proved else "comparison",
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
        rows = [row for row in campaign.rows if row.outcome.effect is effect]
        if not faults:
            continue
        notes = []
        proved = sum(row.faults for row in rows if row.outcome.is_proved)
        races = sum(row.faults for row in rows if row.outcome.has_race)
        if effect is Effect.HARMLESS:
            notes.append(f"{proved} by proof, {faults - proved} by comparison")
        if effect is Effect.STALL:
            named = sum(row.named for row in rows)
            notes.append(f"a culprit is where the fault is in {named}")
        if races:
            notes.append(f"{races} with a race: at other times the values may differ")
        yield f"  {effect.value:<12} {faults:>8}  {'; '.join(notes)}".rstrip()


def _what(row: CampaignRow) -> str:
    """What faults of a row have in common."""
    words = [row.outcome.what] if row.outcome.what else []
    if row.outcome.effect is Effect.WRONG:
        words.append(f"up to {row.largest:.3g} off, {100 * row.relative:.3g} %")
        if row.nans:
            words.append(f"{row.nans} NaN")
    if row.outcome.has_race:
        words.append("a race")
    if not row.outcome.is_settled:
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
                "outcome": row.outcome.effect.value,
                "faults": row.faults,
                "what": row.outcome.what,
                "proved": row.outcome.is_proved,
                "race": row.outcome.has_race,
                "settled": row.outcome.is_settled,
                "culprit_named": row.named if row.outcome.effect is Effect.STALL else None,
                "largest_difference": finite(row.largest),
                "largest_relative_difference": finite(row.relative),
                "nans": row.nans,
                "until_us": row.latest_ps / 1e6,
                "examples": row.examples,
            }
            for row in campaign.rows
        ],
    }
