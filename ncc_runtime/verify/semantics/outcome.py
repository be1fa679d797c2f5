"""What the transfers that fill one placeholder come to, and where that is not what was promised."""

from collections.abc import Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.verify.bindings import Binding, Members, Role
from ncc_runtime.verify.segments import RingRows
from ncc_runtime.verify.semantics.cells import Cells, cells_of
from ncc_runtime.verify.semantics.pieces import Cutter, Fault
from ncc_runtime.verify.semantics.promises import Promise, promises
from ncc_runtime.verify.semantics.replay import Memory, Replay, Step
from ncc_runtime.verify.semantics.results import Difference, differences

MOST_CELLS = 1 << 28
"""Of all ranks: 2 GiB of fingerprints."""

MOST_RUNS = 64
"""A run finds where cells have to be cut; what ever comes out of programs needs two at most."""


@attrs.frozen(eq=False)
class Filling:
    """A placeholder and what fills it: all that its results depend on."""

    placeholder: Placeholder
    members: Members
    bindings: tuple[Binding, ...]
    rings: tuple[RingRows, ...]
    steps: Sequence[Step]  # every row, after all that it waits for

    @property
    def ranks(self) -> int:
        """How many take part."""
        return self.members.count


@attrs.frozen(eq=False)
class Outcome:
    """What was looked at, and what is wrong with it."""

    transfers: int
    ranges: int  # cells of results that were compared
    faults: tuple[tuple[int, Fault], ...]  # with the ring, the first of each of its rows
    difference: Difference | None  # the first by rank, result and offset
    wrong_ranks: tuple[int, ...]
    is_settled: bool  # else cells would have to be cut further than there is memory


def outcome(filling: Filling, even: bool | None = None) -> Outcome:
    """Perform all steps on fingerprints and compare; `even` is for `cells_of`."""
    asked = tuple(promises(filling.placeholder, filling.ranks))
    cells = cells_of(_parts(filling, asked), filling.rings, even)
    for _ in range(MOST_RUNS):
        if len(cells) * filling.ranks > MOST_CELLS:
            break
        memory, replay = _run(filling, cells)
        if not replay.mixed:
            return _compared(filling, asked, memory, replay)
        cells = cells.cut(*map(np.concatenate, zip(*replay.mixed, strict=True)))
    return Outcome(_transfers(filling), 0, (), None, (), is_settled=False)


def _run(filling: Filling, cells: Cells) -> tuple[Memory, Replay]:
    unit_bytes = filling.placeholder.dtype.size_bytes
    memory = Memory.at_first(cells, filling.ranks, unit_bytes)
    cutter = Cutter(filling.placeholder, cells, filling.members, memory.powers)
    replay = Replay(cutter, filling.rings, memory)
    for step in filling.steps:
        replay.perform(step)
    return memory, replay


def _compared(
    filling: Filling, asked: Sequence[Promise], memory: Memory, replay: Replay
) -> Outcome:
    wrong = [found for promise in asked for found in differences(memory, promise, filling.bindings)]
    wrong.sort(key=lambda found: (found.rank, found.result.index, found.offset))
    return Outcome(
        transfers=_transfers(filling),
        ranges=_ranges(filling, asked, memory.cells),
        faults=tuple((ring, fault) for (ring, _), fault in sorted(replay.faults.items())),
        difference=wrong[0] if wrong else None,
        wrong_ranks=tuple(sorted({found.rank for found in wrong})),
        is_settled=True,
    )


def _ranges(filling: Filling, asked: Sequence[Promise], cells: Cells) -> int:
    """Cells of all results of all to whom something is promised."""
    found = 0
    for binding in filling.bindings:
        if binding.role is Role.RESULT:
            count = len(range(len(cells))[cells.within(binding)])
            own = asked if binding.members is None else [one.of(binding.members) for one in asked]
            found += count * sum(len(promise.ranks) for promise in own)
    return found


def _parts(filling: Filling, asked: Sequence[Promise]) -> Mapping[Binding, int]:
    """Into how many equal parts each binding is cut by what was promised of it."""
    parts = max((promise.giver.shape[1] for promise in asked), default=1)
    return {binding: parts if binding.role is Role.RESULT else 1 for binding in filling.bindings}


def _transfers(filling: Filling) -> int:
    return sum(int(np.count_nonzero(ring.peer != IDLE)) for ring in filling.rings)
