"""One row per collective of a run: what filled it, how long it took, how many bytes it sent.

`bucket` joins small collectives, and frameworks do; either way a placeholder has several operands
and starts once. For comparison, the time that the operands would take in sequence: each would
start, by its cheapest algorithm, when the one before it is complete, so it is the sum of prices.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.choose import Chooser
from ncc_runtime.execution.trace import Trace, Traffic
from ncc_runtime.lowering.choices import chooser_of, collective_key, groups_of, job_of
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import Program
from ncc_runtime.report.overlap import Cover, busy_cover
from ncc_runtime.topology.routes import Transport

REMOTE = (Transport.INTRA_CHIP, Transport.NEURONLINK, Transport.EFA)


@attrs.frozen
class CollectiveRow:
    """Times in microseconds, None without a clock; bytes are of all ranks together."""

    id: int
    name: str
    op: str
    algorithm: str
    group_size: int
    operands: int
    bytes: int  # of the larger side on one rank, as nccom-test counts size
    runs: int | None  # more than one in a loop; times are of all runs together
    start_us: float | None
    time_us: float | None
    exposed_us: float | None
    bytes_by_transport: dict[str, int]
    local_bytes: int
    sent_by_rank: tuple[int, ...] = attrs.field(repr=False)  # bytes from each rank to others


def collective_rows(
    executable: Executable, traffic: tuple[Traffic, ...], trace: Trace | None
) -> tuple[CollectiveRow, ...]:
    """The rows, in the order of the program's placeholders."""
    busy = busy_cover(trace) if trace is not None and traffic else None
    return tuple(
        _row(
            executable,
            number,
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


def _times(trace: Trace, busy: Cover, number: int) -> _Times:
    """The span from its first start to its last end is counted run by run, over all ranks."""
    rank, start, end = trace.spans(number)
    if not len(rank):
        return _Times(runs=0)
    run = np.arange(len(rank)) - np.searchsorted(rank, rank)  # which run of its rank
    runs = int(run.max()) + 1
    first, last = np.full(runs, np.iinfo(np.int64).max), np.zeros(runs, np.int64)
    np.minimum.at(first, run, start)
    np.maximum.at(last, run, end)
    exposed: np.ndarray = np.zeros(trace.executable.representatives, np.int64)
    np.add.at(exposed, rank, end - start - busy.within_ps(rank, start, end))
    return _Times(
        runs, int(first.min()) / 1e6, int((last - first).sum()) / 1e6, int(exposed.max()) / 1e6
    )


def _row(executable: Executable, number: int, moved: Traffic, times: _Times) -> CollectiveRow:
    placeholder, filled = executable.program.placeholders[number], executable.lowered[number]
    tensors = executable.program.tensors
    sides = (placeholder.operands, placeholder.results)
    return CollectiveRow(
        id=number,
        name=placeholder.name,
        op=placeholder.op.value,
        algorithm=filled.name,
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


SHOWN = 5
"""Collectives that a text shows."""


@attrs.frozen
class JoinedCollective:
    """A collective of several operands; times in microseconds, of all its runs together."""

    row: CollectiveRow
    one_by_one_us: float

    @property
    def gain_us(self) -> float:
        return self.one_by_one_us - (self.row.time_us or 0.0)


def joined(executable: Executable, rows: Sequence[CollectiveRow]) -> tuple[JoinedCollective, ...]:
    """Those of several operands that ran, by a clock."""
    program = executable.program
    wanted = [row for row in rows if row.operands > 1 and row.runs]
    if not wanted:
        return ()
    prices = _Prices(
        program,
        chooser_of(program, executable.placement, {}, ignore_memory=executable.ignores_memory),
    )
    found = []
    for row in wanted:
        price_ps = sum(map(prices.time_ps, _parts(program.placeholders[row.id])))
        found.append(JoinedCollective(row, price_ps * (row.runs or 0) / 1e6))
    return tuple(found)


def _parts(placeholder: Placeholder) -> Iterator[Placeholder]:
    """A collective for each operand."""
    for operand, result in zip(placeholder.operands, placeholder.results, strict=True):
        yield attrs.evolve(placeholder, operands=(operand,), results=(result,))


class _Prices:
    """Of collectives that are alone on their placement; alike ones are priced once."""

    def __init__(self, program: Program, chooser: Chooser) -> None:
        self._program, self._chooser = program, chooser
        self._known: dict[Hashable, int] = {}

    def time_ps(self, one: Placeholder) -> int:
        key = one.stream, collective_key(self._program, one)
        if key not in self._known:
            job, groups = job_of(self._program, one), groups_of(self._program, one)
            choice = self._chooser.best(job, self._chooser.candidates(job, groups, price_all=True))
            assert choice.chosen.price is not None, "every candidate that runs was priced"
            self._known[key] = choice.chosen.price.time_ps
        return self._known[key]


def lines(found: Sequence[JoinedCollective]) -> Iterator[str]:
    """All together, then those that gain most."""
    if len(found) > 1:
        took = sum(one.row.time_us or 0.0 for one in found)
        apart = sum(one.one_by_one_us for one in found)
        operands = sum(one.row.operands for one in found)
        yield (
            f"joined: {len(found)} collectives of {operands} operands {took:.3f} us, "
            f"one by one about {apart:.3f} us"
        )
    first = sorted(found, key=lambda one: one.gain_us, reverse=True)[:SHOWN]
    for one in sorted(first, key=lambda one: one.row.id):
        yield (
            f"{'  ' if len(found) > 1 else 'joined: '}p{one.row.id} {one.row.op} of "
            f"{one.row.operands} operands {one.row.time_us:.3f} us, one by one about "
            f"{one.one_by_one_us:.3f} us"
        )


def by_id(found: Sequence[JoinedCollective]) -> Mapping[int, float]:
    """What each would take one by one, by placeholder."""
    return {one.row.id: one.one_by_one_us for one in found}
