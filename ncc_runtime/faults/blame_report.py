"""What faults cost, who waited for whom and the chain to the end, for people and as JSON."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ncc_runtime.faults.blame import NEVER, NOBODY, AlikeLosses, Blame, BlamedStep
from ncc_runtime.neff.stages import ranks_text
from ncc_runtime.report.performance import step_json
from ncc_runtime.report.row_texts import placeholder_text
from ncc_runtime.report.text_table import text_table

SHOWN = 12
"""Rows of waits and steps of the chain that a text shows."""

_MOST_RANKS = 24  # characters


def lines(blame: Blame) -> Iterator[str]:
    """The tables as text."""
    yield _heading(blame)
    yield from _faults(blame)
    if blame.waits:
        more = f", the worst {SHOWN} of {len(blame.waits)} rows" * (len(blame.waits) > SHOWN)
        yield f"who waited for whom, us of the rank that lost most{more}"
        yield from text_table(
            ("id", "collective", "ranks", "late", "waited", "own", "lost", "hidden", "by", "for"),
            [_wait(blame, wait) for wait in blame.waits[:SHOWN]],
            words=(0, 1, 2, 8, 9),
        )
    if blame.steps and blame.lost_ps > 0:
        shown = _longest(blame.steps)
        more = f", {len(shown)} of {len(blame.steps)} steps" * (len(shown) < len(blame.steps))
        yield f"from the first delay to the end of the run, us{more}"
        yield from text_table(
            ("start", "time", "added", "ranks", "step"),
            [_step(step) for step in shown],
            words=(3, 4),
        )


def _heading(blame: Blame) -> str:
    before, after = _us(blame.undisturbed_ps), _us(blame.time_ps)
    if not blame.ends:
        return f"by these faults the run never ends; without them it takes {before} us"
    if blame.lost_ps == 0:
        return f"these faults cost no time: {after} us with them and without"
    more = f"{_us(abs(blame.lost_ps))} us {'more' if blame.lost_ps > 0 else 'less'}"
    return f"with these faults the run takes {after} us instead of {before} us, {more}"


def _faults(blame: Blame) -> Iterator[str]:
    is_left_out = len(blame.faults) > 1 and blame.faults[0].without_ps is not None
    ends = ("run without it",) if is_left_out else ()
    headings = ("", "fault, us", "at most", "on the chain", *ends)
    rows = [
        (
            f"f{number}",
            fault.name,
            _us(fault.most_ps),
            _us(fault.on_chain_ps),
            *("never" if fault.without_ps == NEVER else _us(fault.without_ps) for _ in ends),
        )
        for number, fault in enumerate(blame.faults)
    ]
    yield from text_table(headings, rows, words=(0, 1))
    if blame.steps:
        yield (
            f"on the chain to the end, transfers that met others than without the faults added "
            f"{_us(blame.others_ps)} us; slack absorbed {_us(blame.absorbed_ps)} us"
        )


def _wait(blame: Blame, wait: AlikeLosses) -> tuple[str, ...]:
    number, name = placeholder_text(blame.executable, wait.placeholder).split(" ", 1)
    losses, runs = blame.collectives, [run + 1 for run in wait.runs]  # as faults count them
    if (losses.run[losses.placeholder == wait.placeholder] > 0).any():
        name = f"{name} run{'s' * (len(runs) > 1)} {ranks_text(runs)}"
    ranks = ranks_text(wait.ranks)
    times = (wait.late_ps, wait.waited_ps, wait.longer_ps, wait.lost_ps)
    return (
        number,
        name,
        ranks if len(ranks) <= _MOST_RANKS else f"{len(wait.ranks)} ranks",
        *(
            ("-", "-", "-", "never", "-")
            if wait.never
            else (*map(_us, times), _us(max(0, wait.lost_ps - wait.passed_ps)))
        ),
        "-" if wait.fault == NOBODY else f"f{wait.fault}",
        _for(wait),
    )


def _for(wait: AlikeLosses) -> str:
    if wait.for_rank == NOBODY and not wait.by_itself:
        return "-"
    whose = "its own" if wait.by_itself else f"rank {wait.for_rank}'s"
    return f"{whose} {'rows' if wait.began_inside else 'trigger'}"


def _longest(steps: Sequence[BlamedStep]) -> list[BlamedStep]:
    """The steps at which most changed, in order of time."""
    changed = [sum(step.added_ps) + step.others_ps + step.absorbed_ps for step in steps]
    order = sorted(range(len(steps)), key=lambda at: -changed[at])[:SHOWN]
    return [steps[at] for at in sorted(order) if changed[at]]


def _step(step: BlamedStep) -> tuple[str, ...]:
    ranks = ranks_text(step.step.ranks)
    added_ps = sum(step.added_ps) + step.others_ps - step.absorbed_ps
    return (
        _us(step.step.start_ps),
        _us(step.step.time_ps),
        _us(added_ps),
        ranks if len(ranks) <= _MOST_RANKS else f"{len(step.step.ranks)} ranks",
        step.step.what,
    )


def _us(ps: int | None) -> str:
    return "-" if ps is None else f"{ps / 1e6:.3f}"


def as_json(blame: Blame) -> dict[str, Any]:
    """The object `blame` of a run with faults; times in microseconds, null for what never was."""
    return {
        "ends": blame.ends,
        "undisturbed_us": blame.undisturbed_ps / 1e6,
        "lost_us": blame.lost_ps / 1e6 if blame.ends else None,
        "faults": [
            {
                "name": fault.name,
                "most_us": fault.most_ps / 1e6,
                "on_chain_us": fault.on_chain_ps / 1e6,
                "without_us": None if fault.without_ps in (None, NEVER) else fault.without_ps / 1e6,
                "ends_without": None if fault.without_ps is None else fault.without_ps != NEVER,
            }
            for fault in blame.faults
        ],
        "others_us": blame.others_ps / 1e6,
        "absorbed_us": blame.absorbed_ps / 1e6,
        "waits": [_wait_json(blame, wait) for wait in blame.waits],
        "rank_late_us": (blame.rank_late_ps / 1e6).tolist() if blame.ends else None,
        "collectives": _collectives_json(blame),
        "chain": [
            {
                **step_json(step.step),
                "added_us": [ps / 1e6 for ps in step.added_ps],
                "others_us": step.others_ps / 1e6,
                "absorbed_us": step.absorbed_ps / 1e6,
            }
            for step in blame.steps
        ],
    }


def _wait_json(blame: Blame, wait: AlikeLosses) -> dict[str, Any]:
    times = {
        "late_us": wait.late_ps,
        "waited_us": wait.waited_ps,
        "own_us": wait.longer_ps,
        "lost_us": wait.lost_ps,
        "hidden_us": max(0, wait.lost_ps - wait.passed_ps),
    }
    return {
        "id": wait.placeholder,
        "name": blame.executable.program.placeholders[wait.placeholder].name,
        "runs": [run + 1 for run in wait.runs],
        "ranks": list(wait.ranks),
        "fault": None if wait.fault == NOBODY else wait.fault,
        "for_rank": None if wait.for_rank == NOBODY else wait.for_rank,
        "by_itself": wait.by_itself,
        "began_inside": wait.began_inside,
        "never": wait.never,
        **{name: None if wait.never else ps / 1e6 for name, ps in times.items()},
    }


def _collectives_json(blame: Blame) -> list[dict[str, Any]]:
    """An object for each run of a collective, with lists over its ranks."""
    losses = blame.collectives
    runs = np.stack([losses.placeholder, losses.run], axis=1)
    starts = np.flatnonzero(np.append(True, (runs[1:] != runs[:-1]).any(axis=1))[: len(runs)])
    columns = {
        "trigger_us": losses.trigger_ps[1],
        "complete_us": losses.complete_ps[1],
        "undisturbed_trigger_us": losses.trigger_ps[0],
        "undisturbed_complete_us": losses.complete_ps[0],
    }
    lost = {
        "late_us": losses.late_ps,
        "waited_us": losses.waited_ps,
        "own_us": losses.longer_ps,
        "lost_us": losses.lost_ps,
        "passed_us": losses.passed_ps,
    }
    found = []
    for low, high in zip(starts, [*starts[1:], len(runs)], strict=True):
        own = slice(low, high)
        found.append(
            {
                "id": int(losses.placeholder[low]),
                "run": int(losses.run[low]) + 1,
                "ranks": losses.rank[own].tolist(),
                **{
                    name: [None if ps == NEVER else ps / 1e6 for ps in column[own].tolist()]
                    for name, column in columns.items()
                },
                **{name: (column[own] / 1e6).tolist() for name, column in lost.items()},
            }
        )
    return found
