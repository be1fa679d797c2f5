"""What collectives of several operands took, and would take one operand after the other.

`bucket` joins small collectives, and frameworks do; either way a placeholder has several operands
and starts once. One by one, each operand would start, by its cheapest algorithm, when the one
before it is complete: that is the sum of prices.
"""

from collections.abc import Hashable, Iterator, Mapping, Sequence

import attrs

from ncc_runtime.collectives.choose import Chooser
from ncc_runtime.lowering.bind import alike_as, chooser_of, groups_of, job_of
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.program import Program
from ncc_runtime.report.collectives import CollectiveRow

SHOWN = 5
"""Collectives that a text shows."""


@attrs.frozen
class Joined:
    """A collective of several operands; times in microseconds, of all its runs together."""

    row: CollectiveRow
    one_by_one_us: float

    @property
    def gain_us(self) -> float:
        return self.one_by_one_us - (self.row.time_us or 0.0)


def joined(executable: Executable, rows: Sequence[CollectiveRow]) -> tuple[Joined, ...]:
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
        found.append(Joined(row, price_ps * (row.runs or 0) / 1e6))
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
        key = one.stream, alike_as(self._program, one)
        if key not in self._known:
            job, groups = job_of(self._program, one), groups_of(self._program, one)
            choice = self._chooser.best(job, self._chooser.candidates(job, groups, price_all=True))
            assert choice.chosen.price is not None, "every candidate that runs was priced"
            self._known[key] = choice.chosen.price.time_ps
        return self._known[key]


def lines(found: Sequence[Joined]) -> Iterator[str]:
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


def by_id(found: Sequence[Joined]) -> Mapping[int, float]:
    """What each would take one by one, by placeholder."""
    return {one.row.id: one.one_by_one_us for one in found}
