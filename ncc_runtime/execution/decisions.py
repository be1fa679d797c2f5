"""Where control flow goes: by the predicates in memory, or by trip counts when there are no values.

A predicate that guards a collective must be the same on every rank of its groups: ranks that part
would wait for each other for ever, so the first difference stops the run.
"""

from collections import defaultdict
from collections.abc import Container, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ncc_runtime.errors import ControlError
from ncc_runtime.execution.scheduler import Batch, Decide
from ncc_runtime.lowering.executable import CcQueue, Decision, Executable, Jump
from ncc_runtime.lowering.structure import contained
from ncc_runtime.neff.program import Block, BlockKind
from ncc_runtime.neff.stages import twins_of

if TYPE_CHECKING:  # slow to import, and only values need it
    from ncc_runtime.execution.values.machine import Machine


class ValueDecisions:
    """Reads each rank's predicate when its queue comes to it."""

    def __init__(self, executable: Executable, machine: "Machine") -> None:
        self._executable = executable
        self._machine = machine
        self._guards: dict[tuple[int, int], _Guard] = {}

    def __call__(self, batch: Batch, jump: Jump) -> np.ndarray:
        block = self._executable.program.blocks[jump.block]
        value = self._machine.predicate(block.predicate, batch.ranks)
        enters = selected(block, value)
        queue = self._executable.queues[batch.queue]
        if isinstance(queue, CcQueue):
            alike = twins_of(self._executable.program)
            key = (queue.stream, alike.get(jump.block, jump.block))
            if key not in self._guards:
                self._guards[key] = _Guard(self._executable, key[1])
            self._guards[key].compare(batch.ranks, value)
        return enters


def selected(block: Block, value: np.ndarray) -> np.ndarray:
    """Whether a predicate enters a block's rows, per rank; pred[] or s32[] values."""
    if block.kind is BlockKind.LOOP:
        return value.astype(bool)
    if value.dtype == np.bool_:
        return np.where(value, 0, 1) == block.index
    inside = (value >= 0) & (value < block.of)
    return np.where(inside, value, block.of - 1) == block.index


class _Guard:
    """The predicates of one block, in the order each rank comes to them."""

    def __init__(self, executable: Executable, block: int) -> None:
        self._name = executable.program.blocks[block].name
        self._seen: np.ndarray = np.zeros(executable.ranks, np.int64)  # how often, per rank
        self._values: list[dict[int, set[int]]] = []  # by occasion: value to ranks
        self._partners: dict[int, set[int]] = {}
        for number in _guarded(executable, block):
            placeholder = executable.program.placeholders[number]
            for group in placeholder.groups or placeholder.pairs:
                for rank in group:
                    self._partners.setdefault(rank, set()).update(group)

    def compare(self, ranks: np.ndarray, values: np.ndarray) -> None:
        """Note what ranks read; ControlError if a rank and a partner have read different values."""
        for occasion in np.unique(self._seen[ranks]).tolist():
            there = self._seen[ranks] == occasion
            while len(self._values) <= occasion:
                self._values.append({})
            known = self._values[occasion]
            for value in np.unique(values[there]).tolist():
                alike = ranks[there][values[there] == value]
                known.setdefault(int(value), set()).update(alike.tolist())
            if len(known) > 1:
                self._check(known, occasion)
        self._seen[ranks] += 1

    def _check(self, known: Mapping[int, set[int]], occasion: int) -> None:
        rank_values = {rank: value for value, ranks in known.items() for rank in ranks}
        for rank, value in sorted(rank_values.items()):
            for partner in sorted(self._partners.get(rank, ())):
                if rank_values.get(partner, value) != value:
                    raise ControlError(
                        f"{self._name}, occasion {occasion}: its predicate guards a collective "
                        f"and is {value} on rank {rank} and {rank_values[partner]} on rank "
                        f"{partner} of the same group; make it the same, by an all-reduce say"
                    )


def _guarded(executable: Executable, block: int) -> Iterator[int]:
    """The collectives in a block, or in what other stages have in its place."""
    twins = twins_of(executable.program)
    for stage in executable.stages:
        for other, numbers in contained(stage.program).items():
            if twins.get(other, other) == block:
                yield from numbers


class RecordedDecisions:
    """Decides as another does, and keeps what was decided."""

    def __init__(self, ranks: int, decide: Decide) -> None:
        self._decide = decide
        self._ranks = ranks
        self._taken: dict[tuple[int, int], list[tuple[np.ndarray, np.ndarray]]] = defaultdict(list)

    def __call__(self, batch: Batch, jump: Jump) -> np.ndarray:
        enters = self._decide(batch, jump)
        self._taken[batch.queue, batch.row].append((batch.ranks, enters))
        return enters

    def taken(self, queue: int, row: int) -> Sequence[np.ndarray]:
        """What was decided there, per rank in order, bool."""
        nothing = np.zeros(0, np.int64), np.zeros(0, bool)
        columns = zip(nothing, *self._taken.get((queue, row), ()), strict=True)
        rank, goes_on = (np.concatenate(column) for column in columns)
        order = np.argsort(rank, kind="stable")
        edges = np.searchsorted(rank[order], np.arange(1, self._ranks))
        return np.split(goes_on[order], edges)


ALWAYS_ON = 2**62
"""So many trips never end."""


class PlannedDecisions:
    """Counts trips without values: those the user names, else those the compiler knows.

    Blocks of `others` are decided by somebody else, and never asked for.
    """

    def __init__(
        self,
        executable: Executable,
        trip_counts: Mapping[str, int],
        others: Container[int] = (),
    ) -> None:
        blocks = self._blocks = executable.program.blocks
        check_names(blocks, trip_counts)
        missing = [
            blocks[number].name for number in undecided(blocks, trip_counts) if number not in others
        ]
        if missing:
            raise ControlError(f"nothing says where {', '.join(dict.fromkeys(missing))} goes")
        self._trips = [trip_counts.get(one.name, one.trip_count or 0) for one in blocks]

    def trips(self, jump: Jump) -> int:
        """Of a loop, its trips; of a branch, whether it is taken: always or never."""
        trips, block = self._trips[jump.block], self._blocks[jump.block]
        if jump.decision is Decision.CASE:
            return ALWAYS_ON if min(trips, block.of - 1) == block.index else 0
        return trips


def check_names(blocks: Sequence[Block], trip_counts: Mapping[str, int]) -> None:
    """ControlError if the user names a loop that is not there."""
    names = {block.name for block in blocks}
    for name in sorted(set(trip_counts) - names):
        known = ", ".join(sorted(names)) or "none"
        raise ControlError(f"no loop or conditional is called {name!r}; there are: {known}")


def undecided(blocks: Sequence[Block], trip_counts: Mapping[str, int]) -> list[int]:
    """The blocks of which neither the compiler nor the user says where they go."""
    return [
        number
        for number, block in enumerate(blocks)
        if block.trip_count is None and block.name not in trip_counts
    ]


Decisions = RecordedDecisions | PlannedDecisions
"""How control flow has gone, or will go, for the clock."""
