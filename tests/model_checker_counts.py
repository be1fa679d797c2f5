"""How large counters grow in loops that run as often as their blocks say.

The checker runs each loop up to twice. What one more trip adds is the same each time, so the rest
is a multiplication.
"""

from collections import Counter
from collections.abc import Iterator

from ncc_runtime.lowering.executable import Executable
from ncc_runtime.neff.program import BlockKind
from tests.model_checker_rows import chains_of
from tests.model_checker_ways import ways

MOST = 2**31 - 1
"""A semaphore is a signed number of 32 bits."""


def overflows(executable: Executable) -> Iterator[str]:
    """Counters that grow too large in a loop of known trips."""
    for block, description in enumerate(executable.program.blocks):
        if description.kind is BlockKind.LOOP and description.trip_count is not None:
            once, by_trip = growth(executable, block)
            for counter, more in by_trip.items():
                total = once[counter] + more * (description.trip_count - 1)
                if total > MOST:
                    rank, sem = counter
                    yield f"k{block}: semaphore {sem} of rank {rank} counts to {total}"


def growth(executable: Executable, block: int) -> tuple[Counter, Counter]:
    """Increments by (rank, semaphore), with one trip of a loop; and what every further one adds."""
    made = []
    for trips in (1, 2):
        decisions = (True,) * trips + (False,)
        way = next(one for one in ways(executable.program) if one[block] == decisions)
        chains = chains_of(executable, [way] * executable.ranks)
        made.append(Counter(post for chain in chains for row in chain for post in row.posts))
    return made[0], made[1] - made[0]


def most_trips(executable: Executable, block: int) -> int:
    """How often a loop may run before a counter is too large."""
    once, by_trip = growth(executable, block)
    return min((MOST - once[counter]) // more + 1 for counter, more in by_trip.items())
