"""How two placements of one program differ, collective by collective: `nccrt diff`.

The traffic of a collective is counted from its descriptors, for one run: bytes and rows. Two lines
are printed for every kind of collective that changed.
"""

import enum
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import numpy as np
from rich.console import Console
from rich.table import Table

from ncc_runtime.execution.variable_sizes import assumed
from ncc_runtime.lowering.choices import collective_key
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Executable
from ncc_runtime.neff.program import Program
from ncc_runtime.report.collectives import REMOTE
from ncc_runtime.report.run import SCHEMA, Run, choice_text
from ncc_runtime.topology.routes import TRANSPORTS, Routes, Transport


@attrs.frozen
class CollectiveTraffic:
    """Bytes of all ranks together, and instructions that some rank performs."""

    bytes_by_transport: tuple[int, ...]  # by Transport code
    bytes_by_link: tuple[tuple[str, int], ...]  # of links that carry any
    cc_instructions: int
    descriptor_runs: int

    def of(self, transport: Transport) -> int:
        """Bytes over one transport."""
        return self.bytes_by_transport[transport.code]

    @property
    def busiest_link(self) -> tuple[str, int]:
        """The link that carries most, and how much; `-` if none carries any."""
        return max(self.bytes_by_link, key=lambda item: item[1], default=("-", 0))


def traffic_of(executable: Executable) -> tuple[CollectiveTraffic, ...]:
    """The traffic of every placeholder, in order; with the assumed counts where sizes vary."""
    executable, _ = assumed(executable)
    count, routes = len(executable.program.placeholders), executable.routes
    by_transport = np.zeros((count, len(TRANSPORTS)), np.int64)
    by_link = np.zeros((count, len(executable.topology.links)), np.int64)
    runs, steps = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for queue in executable.queues:
        if isinstance(queue, CcQueue):
            steps += _active_rows(queue, count)
        elif isinstance(queue, DmaQueue):
            runs += np.bincount(queue.placeholder, (queue.peer != IDLE).sum(axis=1), count).astype(
                int
            )
            for peers in (queue.peer, queue.second_peer):
                if peers is not None:
                    _add_writes(routes, queue, peers, by_transport, by_link)
    return tuple(
        CollectiveTraffic(
            tuple(by_transport[number].tolist()),
            tuple(
                (executable.topology.links.name(link), int(by_link[number, link]))
                for link in np.flatnonzero(by_link[number]).tolist()
            ),
            int(steps[number]),
            int(runs[number]),
        )
        for number in range(count)
    )


def _add_writes(
    routes: Routes,
    queue: DmaQueue,
    peers: np.ndarray,
    by_transport: np.ndarray,
    by_link: np.ndarray,
) -> None:
    """Add what a ring writes at `peers` to (placeholders, transports) and (placeholders, links)."""
    row, sender = np.nonzero(peers != IDLE)
    number, target = queue.placeholder[row], peers[row, sender]
    size = queue.bytes_of(row, sender)
    np.add.at(by_transport, (number, routes.transport(sender, target)), size)
    start, links = routes.link_runs(sender, target)
    hops = np.diff(start)
    np.add.at(by_link, (np.repeat(number, hops), links), np.repeat(size, hops))


def _active_rows(queue: CcQueue, count: int) -> np.ndarray:
    """Cells in which a rank waits or increments, by placeholder."""
    active = queue.sync.wait_sem != IDLE
    for post in queue.sync.posts:
        active = active | (post.rank != IDLE)
    cells = active.sum(axis=1)
    active_cells = np.zeros(count, np.int64)
    of_collective = queue.placeholder != IDLE
    np.add.at(active_cells, queue.placeholder[of_collective], cells[of_collective])
    return active_cells


class Change(enum.Enum):
    """A respect in which a collective differs; the value is the word of reports."""

    ALGORITHM = "algorithm"
    TRANSPORT = "transport"
    LINKS = "bytes per link"
    INSTRUCTIONS = "instructions"
    TIME = "time"


@attrs.frozen
class DiffSide:
    """Equal collectives on one of the two placements; the traffic of one run of one of them."""

    algorithm: str
    traffic: CollectiveTraffic
    mean_time_us: float  # over all runs of all of them


@attrs.frozen(eq=False)
class Compared:
    """Collectives that are equal to each other on both placements."""

    ids: tuple[int, ...]
    op: str
    runs: int  # of all of them together: more than there are ids where they stand in loops
    sides: tuple[DiffSide, DiffSide]

    @property
    def changes(self) -> tuple[Change, ...]:
        """In what the sides differ."""
        a, b = self.sides
        rows = [(side.traffic.cc_instructions, side.traffic.descriptor_runs) for side in self.sides]
        differs = {
            Change.ALGORITHM: a.algorithm != b.algorithm,
            Change.TRANSPORT: a.traffic.bytes_by_transport != b.traffic.bytes_by_transport,
            Change.LINKS: a.traffic.bytes_by_link != b.traffic.bytes_by_link,
            Change.INSTRUCTIONS: rows[0] != rows[1],
            Change.TIME: a.mean_time_us != b.mean_time_us,
        }
        return tuple(change for change, is_so in differs.items() if is_so)


@attrs.frozen(eq=False)
class Diff:
    """Two placements of one program side by side."""

    program: Program
    executables: tuple[Executable, Executable]
    times_us: tuple[float, float]
    healthy_us: tuple[float | None, float | None]  # where nothing is down or slow
    rows: tuple[Compared, ...]

    @property
    def is_empty(self) -> bool:
        """Whether nothing at all changed, the predicted time included."""
        return self.times_us[0] == self.times_us[1] and not any(row.changes for row in self.rows)


def compared(executables: tuple[Executable, Executable], runs: tuple[Run, Run]) -> Diff:
    """Compare two placements of one program, each of which has been run with a clock."""
    program = executables[0].program
    traffic = [traffic_of(executable) for executable in executables]
    alike: dict[object, list[int]] = {}
    for number, placeholder in enumerate(program.placeholders):
        names = tuple(executable.lowered[number].name for executable in executables)
        sent = (of_executable[number] for of_executable in traffic)
        key = (collective_key(program, placeholder), names, *sent)
        alike.setdefault(key, []).append(number)
    rows = []
    for ids in alike.values():
        count = sum(runs[0].collectives[number].runs or 0 for number in ids)
        sides = [
            DiffSide(executable.lowered[ids[0]].name, sent[ids[0]], _mean_time_us(run, ids))
            for executable, sent, run in zip(executables, traffic, runs, strict=True)
        ]
        op = program.placeholders[ids[0]].op.value
        rows.append(Compared(tuple(ids), op, count, (sides[0], sides[1])))
    times = (runs[0].time_us or 0.0, runs[1].time_us or 0.0)
    healthy = (runs[0].healthy_us, runs[1].healthy_us)
    return Diff(program, executables, times, healthy, tuple(rows))


def _mean_time_us(run: Run, ids: Sequence[int]) -> float:
    """Of one run of one of these collectives; 0 if none of them ran."""
    rows = [run.collectives[number] for number in ids]
    count = sum(row.runs or 0 for row in rows)
    return round(sum(row.time_us or 0.0 for row in rows) / max(1, count), 6)


def why_nothing(diff: Diff) -> str:
    """Why the two placements make no difference to the program."""
    a, b = (executable.placement for executable in diff.executables)
    if not diff.rows:
        return "the program has no collectives, and its engines run alike on both"
    columns = ((a.node, b.node), (a.chip, b.chip), (a.core, b.core))
    is_same = all(np.array_equal(of_a, of_b) for of_a, of_b in columns)
    names = {executable.topology.name for executable in diff.executables}
    if is_same and len(names) == 1:
        if a.topology.active_faults != b.topology.active_faults:
            return "every rank is on the same core, and what is down or slow makes no difference"
        policies = {executable.policy for executable in diff.executables}
        alike = ", and both policies choose the same" if len(policies) == 2 else ""
        return f"every rank is on the same core of the same machine{alike}"
    if is_same:
        return "ranks are on equal cores, and what the programs use is the same on both topologies"
    if np.array_equal(a.chip, b.chip):
        return "ranks are on other cores of the same chips, and all their routes are equally long"
    return "ranks are on other chips, but every group sits alike and uses the same links"


def as_json(diff: Diff) -> dict[str, Any]:
    """The object that `nccrt diff --json` prints; times in microseconds, sizes in bytes."""
    return {
        "schema": SCHEMA,
        "model": diff.program.name,
        "places": [
            {
                **executable.placement.as_json(),
                "policy": executable.policy,
                "deterministic": executable.is_deterministic,
                "time_us": time,
                "healthy_us": healthy,
            }
            for executable, time, healthy in _places(diff)
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


def _places(diff: Diff) -> Iterator[tuple[Executable, float, float | None]]:
    return zip(diff.executables, diff.times_us, diff.healthy_us, strict=True)


def _side(side: DiffSide) -> dict[str, Any]:
    return {
        "algorithm": side.algorithm,
        "bytes_by_transport": {transport.value: side.traffic.of(transport) for transport in REMOTE},
        "bytes_by_link": dict(side.traffic.bytes_by_link),
        "cc_instructions": side.traffic.cc_instructions,
        "descriptor_runs": side.traffic.descriptor_runs,
        "mean_time_us": side.mean_time_us,
    }


WIDTH = 150
LETTERS = "ab"

HEADINGS = (
    "ids",
    "op",
    "runs",
    "",
    "algorithm",
    *(f"{transport.value} B" for transport in REMOTE),
    "links",
    "busiest",
    "its B",
    "CC rows",
    "descriptor runs",
    "mean time us",
)
WORDS = ("ids", "op", "", "algorithm", "busiest")


def as_text(diff: Diff) -> str:
    """The places, what changed, and in how many collectives."""
    out = io.StringIO()
    console = Console(file=out, width=WIDTH, highlight=False, no_color=True, markup=False)
    console.print(f"{diff.program.name}: {diff.program.ranks} ranks")
    for letter, (executable, time, healthy) in zip(LETTERS, _places(diff), strict=True):
        choice = choice_text(executable.policy, executable.is_deterministic)
        where = f"{executable.placement.where}; {choice}"
        console.print(f"  {letter}  {where}: predicted time {time:.3f} us", soft_wrap=True)
        if healthy is not None:
            console.print(f"     healthy: {healthy:.3f} us, with nothing down or slow")
    changed = [row for row in diff.rows if row.changes]
    if diff.is_empty:
        console.print(f"nothing changes: {why_nothing(diff)}", soft_wrap=True)
    else:
        console.print(_counts(diff, changed), soft_wrap=True)
    if changed:
        console.print("bytes, links, CC rows and descriptor runs of one run of one collective")
        console.print(_table(changed))
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def _counts(diff: Diff, changed: list[Compared]) -> str:
    total = sum(len(row.ids) for row in diff.rows)
    if not changed:
        return f"none of {total} collectives changes; the engines take another time"
    counts: Counter[str] = Counter()
    for row in changed:
        counts.update({change.value: len(row.ids) for change in row.changes})
    what = ", ".join(f"{change} in {count}" for change, count in counts.items())
    return f"{sum(len(row.ids) for row in changed)} of {total} collectives change: {what}"


def _table(rows: list[Compared]) -> Table:
    table = Table(box=None, pad_edge=False)
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in WORDS else "right")
    for row in rows:
        ids = f"p{row.ids[0]}" + (f" and {len(row.ids) - 1} more" if len(row.ids) > 1 else "")
        for letter, side in zip(LETTERS, row.sides, strict=True):
            first = letter == LETTERS[0]
            common = (ids, row.op, str(row.runs)) if first else ("", "", "")
            table.add_row(*common, letter, *_cells(side))
    return table


def _cells(side: DiffSide) -> list[str]:
    traffic = side.traffic
    name, most = traffic.busiest_link
    return [
        side.algorithm,
        *(str(traffic.of(transport)) for transport in REMOTE),
        str(len(traffic.bytes_by_link)),
        name,
        str(most),
        str(traffic.cc_instructions),
        str(traffic.descriptor_runs),
        f"{side.mean_time_us:.3f}",
    ]
