"""Ranks that may part at a block: what one increments there, the other must not wait for.

The predicate of a block is the same on the ranks of a group of a collective in it, and need not be
on others. A rank that waits for what grows in a block counts by its own way, so whoever makes the
increment must go the same way: collectives of the block tie the two, perhaps by way of others.
"""

from collections.abc import Iterator, Sequence

import numpy as np

from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Executable
from ncc_runtime.neff.isa import CASE, END, LOOP
from ncc_runtime.neff.program import BlockKind
from ncc_runtime.verify.counting.flow import Flow
from ncc_runtime.verify.counting.increments import Increments, awaited_counters
from ncc_runtime.verify.places import place_of


def relied_on_by_others(
    executable: Executable, increments: Sequence[Increments], flow: Flow
) -> Iterator[str]:
    """Increments in blocks that ranks wait for which may go another way; one of each queue."""
    waits: np.ndarray = np.zeros((executable.semaphore_count, executable.ranks), bool)
    for queue in executable.queues:
        if not isinstance(queue, DmaQueue):
            waits |= awaited_counters(queue, waits.shape)
    for block, description in enumerate(executable.program.blocks):
        if block in flow.twins:
            continue  # looked at with its first
        opens = LOOP if description.kind is BlockKind.LOOP else CASE
        first, last = flow.place(opens, block), flow.place(END, block)
        spans = {
            number: flow.between(number, first, last)
            for number in range(len(executable.queues))
            if flow.follows(number, block)
        }
        ways = _ways(executable, spans)
        for number, rows in spans.items():
            for row, source, counter in _elsewhere(increments[number], rows, waits.ravel(), ways):
                sem, rank = divmod(counter, executable.ranks)
                name = executable.semaphore_names(rank).get(sem, f"s{sem}")
                yield (
                    f"{place_of(executable, number, row, source)}: increments {name} of rank "
                    f"{rank}, which may go another way at k{block}; no collective of k{block} "
                    "ties the two"
                )


def _ways(executable: Executable, spans: dict[int, slice]) -> np.ndarray:
    """By rank, the first of those who go the same way, (ranks,)."""
    numbers: set[int] = set()
    for number, rows in spans.items():
        queue = executable.queues[number]
        if isinstance(queue, CcQueue):
            numbers.update(queue.placeholder[rows].tolist())
    placeholders = [executable.program.placeholders[one] for one in sorted(numbers - {IDLE})]
    ways = np.arange(executable.ranks)
    for group in {group for one in placeholders for group in one.groups or one.pairs}:
        met = np.unique(ways[list(group)])
        ways[np.isin(ways, met)] = met[0]
    return ways


def _elsewhere(
    one: Increments, rows: slice, waits: np.ndarray, ways: np.ndarray
) -> Iterator[tuple[int, int, int]]:
    """The first (row, rank, counter) of a queue whose increment ranks of another way wait for."""
    for cells in one.stretches(np.unique(one.kind[rows])):
        parted = waits[cells.counter] & (ways[cells.source] != ways[cells.counter % one.ranks])
        if parted.any():
            at = int(parted.argmax())
            row = rows.start + int((one.kind[rows] == cells.kind[at]).argmax())
            yield row, int(cells.source[at]), int(cells.counter[at])
            return
