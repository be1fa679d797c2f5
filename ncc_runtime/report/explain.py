"""Why each collective is filled as it is: candidates, prices, bound; as data and as JSON.

What `nccrt explain` prints: a table of candidates for every kind of collective.
"""

import contextlib
import io
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from rich.console import Console
from rich.table import Table

from ncc_runtime.collectives.bounds import Bound, bound_of, payload_bytes
from ncc_runtime.collectives.choose import Candidate, Choice
from ncc_runtime.collectives.cost.price import Price
from ncc_runtime.errors import LoweringError, PlanError
from ncc_runtime.execution.clock.clock import collective_ps
from ncc_runtime.lowering.choices import collective_key, groups_of, job_of, priced_choices
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.lowering.lower import plans_clock
from ncc_runtime.machine_model.parts import PartKind, Parts
from ncc_runtime.neff.memory import largest_lines
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import Origin, Program
from ncc_runtime.neff.stages import collective_origins
from ncc_runtime.placement import Placement
from ncc_runtime.plans import document
from ncc_runtime.plans.document import encoded
from ncc_runtime.plans.files import PlanFile
from ncc_runtime.report import html
from ncc_runtime.report.row_texts import lines_text
from ncc_runtime.report.run import facts, heading, memory_use


@attrs.frozen(eq=False)
class Explained:
    """Equal collectives, and how their algorithm was chosen."""

    ids: tuple[int, ...]
    names: tuple[str, ...]
    lines: tuple[str, ...]  #: of the user's code that are known, each once
    placeholder: Placeholder  #: the first of them
    bytes: int  #: of the larger side on one rank
    groups: tuple[tuple[int, ...], ...]
    choice: Choice
    bound: Bound
    healthy: Candidate | None  #: chosen where nothing is down or slow; None if nothing is

    @property
    def price(self) -> Price:
        """Of what was chosen."""
        price = self.choice.chosen.price
        assert price is not None, "explanations price every candidate that runs"
        return price

    @property
    def attained(self) -> float | None:
        """The bound as a part of the price; None where there is nothing to do."""
        return self._share(self.bound.time_ps)

    @property
    def attained_of_links(self) -> float | None:
        """The bound of links alone as a part of the price."""
        return self._share(self.bound.links_ps)

    def _share(self, time_ps: int) -> float | None:
        return time_ps / self.price.time_ps if self.price.time_ps else None


@attrs.frozen(eq=False, repr=False)
class Explanation:
    """Every kind of collective of a placed program: candidates, prices, bounds, what was chosen.

    `print` of it is the text of `nccrt explain`.

    - `rows`: one for each kind of collective, with `choice.candidates`, `choice.chosen`, `bound`
    """

    executable: Executable
    parts: Parts
    rows: tuple[Explained, ...]

    def __repr__(self) -> str:
        chosen = ", ".join(
            f"{row.placeholder.op.value} by {row.choice.chosen.name}" for row in self.rows
        )
        return f"<Explanation: {chosen or 'no collectives'}>"

    def __str__(self) -> str:
        return as_text(self)

    def as_dict(self) -> dict[str, Any]:
        """The object that `nccrt explain --json` prints; times in microseconds, sizes in bytes."""
        return as_json(self)

    def _repr_html_(self) -> str:
        headings = ("", *HEADINGS)
        parts: list[str] = []
        for row in self.rows:
            priced = [each for each in row.choice.candidates if each.price is not None]
            cells = (
                (_mark(row, each), each.name, *_cells(self.parts, _price(each))) for each in priced
            )
            parts += [
                html.table(_heading(row), headings, cells),
                html.line("\n".join(_closing(row))),
            ]
        return html.block(html.line(as_text(self).partition("\n\n")[0]), *parts)


def explained(
    executable: Executable, forced: Mapping[str, str], plans: Sequence[PlanFile] = ()
) -> Explanation:
    """Price every candidate of every placeholder; what is forced or given stays chosen."""
    program = executable.program

    def priced(placement: Placement) -> tuple[Parts, tuple[Choice, ...]]:
        return priced_choices(
            program,
            placement,
            forced,
            plans,
            policy=executable.policy,
            deterministic=executable.is_deterministic,
            ignore_memory=executable.ignores_memory,
            clock=plans_clock(program, placement, collective_ps),
        )

    parts, choices = priced(executable.placement)
    healthy: Sequence[Candidate | None] = [None] * len(choices)
    if executable.topology.active_faults:
        with contextlib.suppress(LoweringError, PlanError):  # what is forced may not run there
            healthy = [choice.chosen for choice in priced(executable.placement.healthy)[1]]
    alike: dict[object, list[int]] = {}
    for number, (placeholder, choice) in enumerate(zip(program.placeholders, choices, strict=True)):
        kind = placeholder.dtype, placeholder.reduction, choice.chosen.name
        alike.setdefault((collective_key(program, placeholder), *kind), []).append(number)
    origins = collective_origins(program)
    rows = tuple(
        _explained(program, parts, ids, origins, choices[ids[0]], healthy[ids[0]])
        for ids in alike.values()
    )
    return Explanation(executable, parts, rows)


def _explained(
    program: Program,
    parts: Parts,
    ids: list[int],
    origins: Sequence[Origin],
    choice: Choice,
    healthy: Candidate | None,
) -> Explained:
    placeholder = program.placeholders[ids[0]]
    job, groups = job_of(program, placeholder), groups_of(program, placeholder)
    return Explained(
        ids=tuple(ids),
        names=tuple(program.placeholders[number].name for number in ids),
        lines=tuple(dict.fromkeys(origins[n].place for n in ids if origins[n].place)),
        placeholder=placeholder,
        bytes=payload_bytes(job),
        groups=groups,
        choice=choice,
        bound=bound_of(parts, job, groups),
        healthy=healthy,
    )


def saved(explanation: Explanation) -> bytes:
    """A file of the plans that were chosen, each kind of collective once."""
    texts = []
    for row in explanation.rows:
        job = job_of(explanation.executable.program, row.placeholder)
        text = document.described(job, row.choice.chosen.replica_groups)
        if text not in texts:
            texts.append(text)
    return encoded(texts)


def why(row: Explained) -> str:
    """Why the candidate was chosen: the term by which it beats the best of the others."""
    chosen, price = row.choice.chosen, row.price
    others = [
        other
        for other in row.choice.candidates
        if other.price is not None and other.name != chosen.name
    ]
    if not others:
        return (
            "forced, and nothing else can run" if row.choice.is_forced else "nothing else can run"
        )
    next_best = min(others, key=lambda other: _price(other).time_ps)
    other = _price(next_best)
    ahead = other.time_ps - price.time_ps
    if row.choice.is_forced:
        than = "before" if ahead >= 0 else "behind"
        return f"forced; {_us(abs(ahead))} us {than} {next_best.name}"
    if ahead == 0 and chosen.clock_ps is None:
        return f"as cheap as {next_best.name}, and stands before it"
    gains = {
        "latency": other.latency_ps - price.latency_ps,
        "bandwidth": other.bandwidth_ps - price.bandwidth_ps,
    }
    if chosen.clock_ps is not None:
        timed = [each for each in others if each.clock_ps is not None]
        second = min(timed, key=lambda each: each.clock_ps or 0)
        other_us = _us(second.clock_ps or 0)
        return f"{_us(chosen.clock_ps)} us by the clock, {second.name} {other_us} us"
    term = max(gains, key=lambda name: gains[name])
    part = f" ({other.busiest})" if term == "bandwidth" and other.bandwidth_ps else ""
    return f"{_us(ahead)} us less than {next_best.name}: {_us(gains[term])} us less of {term}{part}"


def links_of(parts: Parts, price: Price) -> dict[str, int]:
    """Bytes by directed link, of links that carry any."""
    amounts = price.bytes_by_part[parts.span(PartKind.LINK)]
    names = parts.routes.topology.links
    return {names.name(int(link)): int(amounts[link]) for link in np.flatnonzero(amounts)}


def touched(parts: Parts, price: Price, kind: PartKind) -> tuple[int, int]:
    """Bytes at the busiest part of a kind, and at all of them."""
    amounts = price.bytes_by_part[parts.span(kind)]
    return int(amounts.max(initial=0)), int(amounts.sum())


def as_json(explanation: Explanation) -> dict[str, Any]:
    """The object that `nccrt explain --json` prints; times in microseconds, sizes in bytes."""
    return {
        **facts(explanation.executable),
        "collectives": [_row(explanation.parts, row) for row in explanation.rows],
    }


def _row(parts: Parts, row: Explained) -> dict[str, Any]:
    return {
        "ids": list(row.ids),
        "names": list(row.names),
        "lines": list(row.lines),
        "op": row.placeholder.op.value,
        "dtype": row.placeholder.dtype.value,
        "bytes": row.bytes,
        "groups": len(row.groups),
        "group_size": max(map(len, row.groups)),
        "algorithm": row.choice.chosen.name,
        "forced": row.choice.is_forced,
        "why": why(row),
        "time_us": row.price.time_ps / 1e6,
        "healthy": None
        if row.healthy is None
        else {"algorithm": row.healthy.name, "time_us": row.healthy.time_ps / 1e6},
        "bound": {
            "time_us": row.bound.time_ps / 1e6,
            "latency_us": row.bound.latency_ps / 1e6,
            "bandwidth_us": row.bound.bandwidth_ps / 1e6,
            "decided_by": row.bound.decided_by,
            "links_us": row.bound.links_ps / 1e6,
        },
        "attained": row.attained,
        "attained_of_links": row.attained_of_links,
        "candidates": [_candidate(parts, candidate) for candidate in row.choice.candidates],
    }


def _candidate(parts: Parts, candidate: Candidate) -> dict[str, Any]:
    if candidate.price is None:
        why_not = "not_taken" if candidate.is_left_out else "cannot_run"
        return {"algorithm": candidate.name, why_not: candidate.reason}
    price = candidate.price
    shares = price.bound_ps_by_kind.items()
    return {
        "algorithm": candidate.name,
        "time_us": price.time_ps / 1e6,
        "latency_us": price.latency_ps / 1e6,
        "bandwidth_us": price.bandwidth_ps / 1e6,
        "bandwidth_us_by_part": {kind.value: time / 1e6 for kind, time in shares},
        "clock_us": None if candidate.clock_ps is None else candidate.clock_ps / 1e6,
        "decided_by": price.decided_by,
        "bytes_by_link": links_of(parts, price),
        **{
            f"{kind.value}_bytes": dict(
                zip(("busiest", "all"), touched(parts, price, kind), strict=True)
            )
            for kind in (PartKind.HBM, PartKind.DMA, PartKind.EFA)
        },
    }


def _price(candidate: Candidate) -> Price:
    assert candidate.price is not None, "only candidates that run have one"
    return candidate.price


def _us(time_ps: int) -> str:
    return f"{time_ps / 1e6:.3f}"


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
    console.print(heading(explanation.executable), soft_wrap=True)
    for line in largest_lines(memory_use(explanation.executable), MOST_NAMED):
        console.print(line, soft_wrap=True)
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
    lines = f" ({lines_text(row.lines)})" if row.lines else ""
    return (
        f"{row.placeholder.op.value} {row.placeholder.dtype.value}, {row.bytes} B, {many} of "
        f"{' or '.join(map(str, sizes))} ({{{ranks}{dots}}}): {named}{more}{lines}"
    )


def _table(parts: Parts, row: Explained) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in HEADINGS:
        words = ("algorithm", "decided by", "busiest link")
        table.add_column(name, justify="left" if name in words else "right")
    for candidate in row.choice.candidates:
        if candidate.price is not None:
            table.add_row(_mark(row, candidate), candidate.name, *_cells(parts, candidate.price))
    return table


def _mark(row: Explained, candidate: Candidate) -> str:
    return "*" if candidate.name == row.choice.chosen.name else ""


def _cells(parts: Parts, price: Price) -> Iterator[str]:
    for time in (price.time_ps, price.latency_ps, price.bandwidth_ps):
        yield f"{time / 1e6:.3f}"
    yield price.decided_by
    links = links_of(parts, price)
    yield max(links, key=lambda name: links[name], default="-")
    yield str(max(links.values(), default=0))
    yield str(sum(links.values()))
    yield from map(str, touched(parts, price, PartKind.HBM))
    yield str(touched(parts, price, PartKind.EFA)[1] // 2)  # each byte leaves once and arrives once


def _closing(row: Explained) -> Iterator[str]:
    reasons: dict[str, list[str]] = {}
    for candidate in row.choice.candidates:
        if candidate.price is None:
            why_not = "not taken" if candidate.is_left_out else "cannot run"
            reasons.setdefault(f"{why_not}: {candidate.reason}", []).append(candidate.name)
    for reason, names in reasons.items():
        yield f"  {', '.join(names)} {reason}"
    yield f"  chosen: {row.choice.chosen.name}, {why(row)}"
    if row.choice.is_beyond_policy:
        yield "  no algorithm that the policy takes can run: the best of all is taken"
    if row.healthy is not None:
        time_us = _us(row.healthy.time_ps)
        yield f"  healthy: {time_us} us by {row.healthy.name}, with nothing down or slow"
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
