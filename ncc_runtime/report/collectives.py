"""One row per collective of a run: what filled it, how long it took, how many bytes it sent.

`bucket` joins small collectives, and frameworks do; either way a placeholder has several operands
and starts once. For comparison, the time that the operands would take in sequence: each would
start, by its cheapest algorithm, when the one before it is complete, so it is the sum of prices.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from ncc_runtime.collectives.choose import Chooser
from ncc_runtime.errors import Notice
from ncc_runtime.execution.trace import Trace, Traffic
from ncc_runtime.lowering.choices import chooser_of, collective_key, groups_of, job_of
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import Origin, Program
from ncc_runtime.neff.stages import collective_origins, ranks_text
from ncc_runtime.topology.routes import Transport

if TYPE_CHECKING:
    from ncc_runtime.report.overlap import Cover

REMOTE = (Transport.INTRA_CHIP, Transport.NEURONLINK, Transport.EFA)


@attrs.frozen
class CollectiveRow:
    """One collective of a run. Times are in microseconds, None without a clock.

    - `id`, `name`, `op`: its number, its name in the program, what it does
    - `line`, `op_name`: the user's line and XLA's path of named scopes, "" if they are not known
    - `algorithm`: what filled it
    - `groups`, `group_size`, `first_group`: how many, ranks of the largest, ranks of the first
    - `pairs`, `operands`: of a permute, arrays that it has at once
    - `bytes`: of the larger side on one rank, as nccom-test counts a size
    - `runs`: how often it ran, more than once in a loop; times are of all runs together
    - `start_us`, `time_us`: when the first rank starts, until the last one ends
    - `exposed_us`: how much of that no engine covers with work
    - `bytes_by_transport`, `local_bytes`: moved by all ranks together
    - `sent_by_rank`: bytes from each rank to others
    """

    id: int
    name: str
    op: str
    line: str  # `model.py:12`
    op_name: str  # `jit(step)/layer_0/mlp/dot_general`
    algorithm: str
    groups: int  # of a permute 1: all ranks that take part
    group_size: int  # of the largest
    first_group: str  # its ranks, `0-7`, `0-56:8` in steps of 8
    pairs: int  # of a permute
    operands: int
    bytes: int
    runs: int | None
    start_us: float | None
    time_us: float | None
    exposed_us: float | None
    bytes_by_transport: dict[str, int]
    local_bytes: int
    sent_by_rank: tuple[int, ...] = attrs.field(repr=False)


def collective_rows(
    executable: Executable, traffic: tuple[Traffic, ...], trace: Trace | None
) -> tuple[CollectiveRow, ...]:
    """The rows, in the order of the program's placeholders."""
    from ncc_runtime.report.overlap import busy_cover

    busy = busy_cover(trace) if trace is not None and traffic else None
    origins = collective_origins(executable.program)
    return tuple(
        _row(
            executable,
            number,
            origins[number],
            moved,
            _Times() if trace is None or busy is None else _times(trace, busy, number),
        )
        for number, moved in enumerate(traffic)
    )


@attrs.frozen
class _Times:
    """Of one collective, in microseconds; nothing without a clock."""

    runs: int | None = None
    start_us: float | None = None
    time_us: float | None = None
    exposed_us: float | None = None


def _times(trace: Trace, busy: "Cover", number: int) -> _Times:
    """Its time is summed over its runs, each from the first rank's start to the last one's end."""
    rank, start, end = trace.spans(number)
    if not len(rank):
        return _Times(runs=0)
    run = np.arange(len(rank)) - np.searchsorted(rank, rank)  # spans are sorted by rank
    runs = int(run.max()) + 1
    first, last = np.full(runs, np.iinfo(np.int64).max), np.zeros(runs, np.int64)
    np.minimum.at(first, run, start)
    np.maximum.at(last, run, end)
    exposed: np.ndarray = np.zeros(trace.executable.representatives, np.int64)
    np.add.at(exposed, rank, end - start - busy.within_ps(rank, start, end))
    return _Times(
        runs, int(first.min()) / 1e6, int((last - first).sum()) / 1e6, int(exposed.max()) / 1e6
    )


def _row(
    executable: Executable, number: int, origin: Origin, moved: Traffic, times: _Times
) -> CollectiveRow:
    placeholder, filled = executable.program.placeholders[number], executable.lowered[number]
    tensors = executable.program.tensors
    sides = (placeholder.operands, placeholder.results)
    return CollectiveRow(
        id=number,
        name=placeholder.name,
        op=placeholder.op.value,
        line=origin.place,
        op_name=origin.op_name,
        algorithm=filled.name,
        groups=max(1, len(placeholder.groups)),
        first_group=_steps_text(groups_of(executable.program, placeholder)),
        pairs=len(placeholder.pairs),
        group_size=max(filled.group_sizes, default=0),
        operands=len(placeholder.operands),
        bytes=max(sum(tensors[tensor].size_bytes for tensor in side) for side in sides),
        runs=times.runs,
        start_us=times.start_us,
        time_us=times.time_us,
        exposed_us=times.exposed_us,
        bytes_by_transport={transport.value: moved.of(transport) for transport in REMOTE},
        local_bytes=moved.of(Transport.LOCAL),
        sent_by_rank=tuple(moved.sent_by_rank.tolist()),
    )


def _steps_text(groups: Sequence[Sequence[int]]) -> str:
    """The first group; equal steps as lists of CPUs are written, `first-last:step`."""
    ranks = groups[0] if groups else ()
    steps = set(np.diff(ranks).tolist())
    if len(ranks) > 2 and len(steps) == 1 and min(steps) > 1:
        return f"{ranks[0]}-{ranks[-1]}:{min(steps)}"
    text = ranks_text(ranks)
    return text if len(text) <= _LONGEST_GROUP else f"{text[: _LONGEST_GROUP - 1]}…"


_LONGEST_GROUP = 24

SHOWN = 5
"""Collectives that a text shows."""


@attrs.frozen
class JoinedCollective:
    """A collective of several operands; times in microseconds, of all its runs together."""

    row: CollectiveRow
    one_by_one_us: float  # the sum of the prices of its operands, each as a collective of its own

    @property
    def gain_us(self) -> float:
        return self.one_by_one_us - (self.row.time_us or 0.0)


def beyond_policy(executable: Executable) -> tuple[Notice, ...]:
    """One for each algorithm that the policy does not take, and without which nothing would run."""
    placeholders = executable.program.placeholders
    used: dict[tuple[str, str], list[str]] = {}
    for placeholder, lowered in zip(placeholders, executable.lowered, strict=True):
        if lowered.is_beyond_policy:
            used.setdefault((placeholder.op.value, lowered.name), []).append(placeholder.name)
    return tuple(
        Notice(
            "beyond-policy",
            f"{names[0]}{f' and {len(names) - 1} more' * (len(names) > 1)}: no algorithm of {op} "
            f"that --policy {executable.policy} takes can run here; {name} was taken, the best of "
            "all",
            "docs/collectives.md#choice",
        )
        for (op, name), names in used.items()
    )


def joined(executable: Executable, rows: Sequence[CollectiveRow]) -> tuple[JoinedCollective, ...]:
    """The collectives of several operands that ran, by a clock."""
    program = executable.program
    several = [row for row in rows if row.operands > 1 and row.runs]
    if not several:
        return ()
    prices = _Prices(
        program,
        chooser_of(
            program,
            executable.placement,
            {},
            policy=executable.policy,
            ignore_memory=executable.ignores_memory,
            deterministic=executable.is_deterministic,
        ),
    )
    compared = []
    for row in several:
        placeholder = program.placeholders[row.id]
        price_ps = sum(
            prices.time_ps(attrs.evolve(placeholder, operands=(operand,), results=(result,)))
            for operand, result in zip(placeholder.operands, placeholder.results, strict=True)
        )
        compared.append(JoinedCollective(row, price_ps * (row.runs or 0) / 1e6))
    return tuple(compared)


class _Prices:
    """Prices of collectives, each alone on the placement; equal ones are priced once."""

    def __init__(self, program: Program, chooser: Chooser) -> None:
        self._program, self._chooser = program, chooser
        self._known: dict[Hashable, int] = {}

    def time_ps(self, placeholder: Placeholder) -> int:
        key = placeholder.stream, collective_key(self._program, placeholder)
        if key not in self._known:
            job = job_of(self._program, placeholder)
            groups = groups_of(self._program, placeholder)
            choice = self._chooser.best(job, self._chooser.candidates(job, groups, price_all=True))
            assert choice.chosen.price is not None, "every candidate that runs was priced"
            self._known[key] = choice.chosen.price.time_ps
        return self._known[key]


def lines(collectives: Sequence[JoinedCollective]) -> Iterator[str]:
    """All together, then those that gain most."""
    if len(collectives) > 1:
        time_us = sum(collective.row.time_us or 0.0 for collective in collectives)
        apart_us = sum(collective.one_by_one_us for collective in collectives)
        operands = sum(collective.row.operands for collective in collectives)
        yield (
            f"joined: {len(collectives)} collectives of {operands} operands {time_us:.3f} us, "
            f"one by one about {apart_us:.3f} us"
        )
    first = sorted(collectives, key=lambda collective: collective.gain_us, reverse=True)[:SHOWN]
    for collective in sorted(first, key=lambda collective: collective.row.id):
        row = collective.row
        yield (
            f"{'  ' if len(collectives) > 1 else 'joined: '}p{row.id} {row.op} of "
            f"{row.operands} operands {row.time_us:.3f} us, one by one about "
            f"{collective.one_by_one_us:.3f} us"
        )


def by_id(collectives: Sequence[JoinedCollective]) -> Mapping[int, float]:
    """The time of the operands one by one, in microseconds, by placeholder."""
    return {collective.row.id: collective.one_by_one_us for collective in collectives}
