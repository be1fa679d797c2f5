"""Whether the host can hold what plans are lowered to, asked before they are."""

from collections.abc import Sequence

from ncc_runtime.errors import LoweringError
from ncc_runtime.free_memory import free_bytes
from ncc_runtime.lowering.moves import Team

CELL_BYTES = 250
"""Of the host, for each transfer of each member: its plan, its rows in queues, and its times.

Measured by benchmarks/clock.py with broadcasts, whose plans are the largest.
"""

CHANNEL_BYTES = 4
"""For each pair of ranks in each lane."""

MIB = 1 << 20


def check_room(teams: Sequence[Sequence[Team]], seen: int, ranks: int) -> None:
    """LoweringError if the plans of all placeholders would take more memory than is free.

    `seen` are the ranks that get columns; UnfoldedError if they do not stand for the others.
    """
    every = [team for its_teams in teams for team in its_teams]
    cells = sum(team.plan.transfers * team.seen(seen).size for team in every)
    lanes = max((len(team.plan.lanes) for team in every), default=0)
    need, free = cells * CELL_BYTES + lanes * seen * ranks * CHANNEL_BYTES, free_bytes()
    if free is not None and need > free:
        raise LoweringError(
            f"collectives of {seen} ranks, filled one by one, need about {need // MIB} MiB of host "
            f"memory and {free // MIB} are free; use smaller groups, or for times only buffers "
            "that divide evenly among instances that are alike"
        )
