"""What two placements of one program change, collective by collective."""

import enum
from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.lowering.bind import alike_as
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.program import Program
from ncc_runtime.report.collectives import REMOTE
from ncc_runtime.report.heading import SCHEMA
from ncc_runtime.report.moved import Moved, moved
from ncc_runtime.report.run import Run


class Change(enum.Enum):
    """In what a collective differs; the value is the word of reports."""

    ALGORITHM = "algorithm"
    TRANSPORT = "transport"
    LINKS = "bytes per link"
    INSTRUCTIONS = "instructions"
    TIME = "time"


@attrs.frozen
class Side:
    """One of the collectives that are alike, run once on one of the places."""

    algorithm: str
    moved: Moved
    mean_time_us: float  # over all of them, as often as they run


@attrs.frozen(eq=False)
class Compared:
    """Collectives that are alike on both places."""

    ids: tuple[int, ...]
    op: str
    runs: int  # of all of them together: more than they are where they stand in loops
    sides: tuple[Side, Side]

    @property
    def changes(self) -> tuple[Change, ...]:
        """In what the sides differ."""
        one, two = self.sides
        rows = [(side.moved.cc_instructions, side.moved.descriptor_runs) for side in self.sides]
        differs = {
            Change.ALGORITHM: one.algorithm != two.algorithm,
            Change.TRANSPORT: one.moved.bytes_by_transport != two.moved.bytes_by_transport,
            Change.LINKS: one.moved.bytes_by_link != two.moved.bytes_by_link,
            Change.INSTRUCTIONS: rows[0] != rows[1],
            Change.TIME: one.mean_time_us != two.mean_time_us,
        }
        return tuple(change for change, is_so in differs.items() if is_so)


@attrs.frozen(eq=False)
class Diff:
    """Two placements of one program side by side."""

    program: Program
    executables: tuple[Executable, Executable]
    times_us: tuple[float, float]
    rows: tuple[Compared, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all changed, the predicted time included."""
        return self.times_us[0] == self.times_us[1] and not any(row.changes for row in self.rows)


def compared(executables: tuple[Executable, Executable], runs: tuple[Run, Run]) -> Diff:
    """Compare two places of one program, each of which has been run with a clock."""
    program = executables[0].program
    facts = [moved(one) for one in executables]
    alike: dict[object, list[int]] = {}
    for number, placeholder in enumerate(program.placeholders):
        names = tuple(one.filled[number].name for one in executables)
        key = (alike_as(program, placeholder), names, *(one[number] for one in facts))
        alike.setdefault(key, []).append(number)
    rows = []
    for ids in alike.values():
        count = sum(runs[0].collectives[number].runs or 0 for number in ids)
        sides = [
            Side(one.filled[ids[0]].name, fact[ids[0]], _mean_time_us(run, ids))
            for one, fact, run in zip(executables, facts, runs, strict=True)
        ]
        op = program.placeholders[ids[0]].op.value
        rows.append(Compared(tuple(ids), op, count, (sides[0], sides[1])))
    times = (runs[0].time_us or 0.0, runs[1].time_us or 0.0)
    return Diff(program, executables, times, tuple(rows))


def _mean_time_us(run: Run, ids: Sequence[int]) -> float:
    """Of one run of one of these collectives; 0 if none of them ran."""
    rows = [run.collectives[number] for number in ids]
    count = sum(row.runs or 0 for row in rows)
    return round(sum(row.time_us or 0.0 for row in rows) / max(1, count), 6)


def why_nothing(diff: Diff) -> str:
    """Why the places make no difference to the program."""
    one, two = (executable.placement for executable in diff.executables)
    if not diff.rows:
        return "the program has no collectives, and its engines run alike on both"
    columns = ((one.node, two.node), (one.chip, two.chip), (one.core, two.core))
    is_same = all(np.array_equal(mine, theirs) for mine, theirs in columns)
    names = {executable.topology.name for executable in diff.executables}
    if is_same and len(names) == 1:
        return "every rank is on the same core of the same machine"
    if is_same:
        return "ranks are on equal cores, and what the programs use is the same on both topologies"
    if np.array_equal(one.chip, two.chip):
        return "ranks are on other cores of the same chips, and all their ways are equally long"
    return "ranks are on other chips, but every group sits alike and uses the same links"


def as_json(diff: Diff) -> dict[str, Any]:
    """The object that `nccrt diff --json` prints; times in microseconds, sizes in bytes."""
    return {
        "schema": SCHEMA,
        "model": diff.program.name,
        "places": [
            {**_place(executable), "time_us": time}
            for executable, time in zip(diff.executables, diff.times_us, strict=True)
        ],
        "changed": not diff.is_empty,
        "why_nothing": why_nothing(diff) if diff.is_empty else None,
        "collectives": [
            {
                "ids": list(row.ids),
                "op": row.op,
                "runs": row.runs,
                "changes": [change.value for change in row.changes],
                "sides": [_side(side) for side in row.sides],
            }
            for row in diff.rows
        ],
    }


def _place(executable: Executable) -> dict[str, Any]:
    topology = executable.topology
    return {
        "topology": topology.name,
        "nodes": topology.nodes,
        "lnc": topology.lnc,
        "placement": executable.placement.strategy,
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "algorithm": side.algorithm,
        "bytes_by_transport": {one.value: side.moved.of(one) for one in REMOTE},
        "bytes_by_link": dict(side.moved.bytes_by_link),
        "cc_instructions": side.moved.cc_instructions,
        "descriptor_runs": side.moved.descriptor_runs,
        "mean_time_us": side.mean_time_us,
    }
