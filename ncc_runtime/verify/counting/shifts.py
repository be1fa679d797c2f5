"""Jumps: each shifts waited values by what the rows that it repeats or skips increment.

Values count as if every block ran once, so inner blocks count once, too. A shift matters for the
counters that its queue waits for; of others it may say anything.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from ncc_runtime.lowering.executable import Decision, DmaQueue, Executable, Jump
from ncc_runtime.neff.isa import CASE, END, LOOP, TEST
from ncc_runtime.neff.program import BlockKind
from ncc_runtime.verify.counting.flow import Flow
from ncc_runtime.verify.counting.increments import Increments, awaited_counters
from ncc_runtime.verify.places import place_of


def wrong_shifts(
    executable: Executable, increments: Sequence[Increments], flow: Flow
) -> Iterator[str]:
    """Every jump of every queue, and blocks that a queue should follow."""
    checking = _Checking(executable, increments, flow)
    waits = {
        number: awaited_counters(queue, (executable.semaphore_count, executable.ranks))
        for number, queue in enumerate(executable.queues)
        if not isinstance(queue, DmaQueue)
    }
    for block, description in enumerate(executable.program.blocks):
        if block in flow.twins:
            continue  # looked at with its first
        is_loop = description.kind is BlockKind.LOOP
        repeated = checking.made(block, LOOP if is_loop else CASE)
        skipped = checking.made(block, TEST if is_loop else CASE)
        for number, mask in waits.items():
            if not flow.follows(number, block):
                yield from checking.unfollowed(number, block, np.where(mask, repeated, 0))
                continue
            for row, jump in checking.jumps(number, block):
                back = jump.decision is Decision.ALWAYS
                due = np.where(mask, repeated if back else -skipped, 0)
                yield from checking.wrong(number, (row, jump), due, mask)


class _Checking:
    def __init__(
        self, executable: Executable, increments: Sequence[Increments], flow: Flow
    ) -> None:
        self._executable = executable
        self._increments = increments
        self._flow = flow
        self._shape = executable.semaphore_count, executable.ranks
        self._jumps: dict[tuple[int, int], list[tuple[int, Jump]]] = {}  # by queue and block
        for number, queue in enumerate(executable.queues):
            if not isinstance(queue, DmaQueue):
                for row, jump in queue.jumps.items():
                    block = flow.twins.get(jump.block, jump.block)
                    self._jumps.setdefault((number, block), []).append((row, jump))

    def made(self, block: int, opens: str) -> np.ndarray:
        """Increments of all queues behind an event of a block, up to its end."""
        first, last = self._flow.place(opens, block), self._flow.place(END, block)
        total: np.ndarray = np.zeros(self._shape[0] * self._shape[1], np.int64)
        for number, one in enumerate(self._increments):
            if self._flow.follows(number, block):
                one.add(total, self._flow.between(number, first, last))
        return total.reshape(self._shape)

    def jumps(self, number: int, block: int) -> Sequence[tuple[int, Jump]]:
        """The jumps of a block in a queue."""
        return self._jumps.get((number, block), ())

    def unfollowed(self, number: int, block: int, made: np.ndarray) -> Iterator[str]:
        """A counter that grows in a block whose trips the waiting queue does not know."""
        for sem, rank in np.argwhere(made)[:1].tolist():
            queue = self._executable.queues[number]
            yield (
                f"rank {rank}, queue {queue.name}: waits for {self._name(rank, sem)}, which grows "
                f"in k{block}; the queue does not follow k{block}"
            )

    def wrong(
        self, number: int, at: tuple[int, Jump], due: np.ndarray, mask: np.ndarray
    ) -> Iterator[str]:
        """The first counter of a jump that is shifted by something else."""
        row, jump = at
        stated: np.ndarray = np.zeros(self._shape, np.int64)
        width = min(self._shape[0], jump.shift.shape[1])
        stated[:width] = jump.shift[:, :width].T
        for sem, rank in np.argwhere(mask & (stated != due))[:1].tolist():
            what = "repeats" if jump.decision is Decision.ALWAYS else "skips"
            yield (
                f"{place_of(self._executable, number, row, rank)}: shifts waits for "
                f"{self._name(rank, sem)} by {stated[sem, rank]}, the rows that it {what} "
                f"increment it {abs(due[sem, rank])} times"
            )

    def _name(self, rank: int, sem: int) -> str:
        return self._executable.semaphore_names(rank).get(sem, f"s{sem}")
