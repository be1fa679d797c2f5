"""Whether the host can hold what plans are lowered to, asked before they are."""

from collections.abc import Sequence

from ncc_runtime.collectives.plan import Plan
from ncc_runtime.errors import LoweringError
from ncc_runtime.free_memory import free_bytes

CELL_BYTES = 90
"""Of the host, for each transfer of each member, whether it makes it or not; no more than it takes.

Measured: `benchmarks/clock.py --ranks 1024 --all`, of which the peak is 91 bytes a message above
what a small run takes (2026-11-21, x86_64).
"""

CHANNEL_BYTES = 4
"""For each pair of ranks in each lane."""

MIB = 1 << 20


def check_room(teams: Sequence[tuple[Plan, int]], seen: int, ranks: int) -> None:
    """LoweringError if the host has no room for them."""
    short = shortage(teams, seen, ranks)
    if short:
        raise LoweringError(short)


def shortage(teams: Sequence[tuple[Plan, int]], seen: int, ranks: int) -> str:
    """What is short if plans with so many members that are seen take more memory than is free; "".

    `seen` are the ranks that get columns.
    """
    cells = sum(plan.transfers * members for plan, members in teams)
    lanes = max((len(plan.lanes) for plan, _ in teams), default=0)
    need, free = cells * CELL_BYTES + lanes * seen * ranks * CHANNEL_BYTES, free_bytes()
    if free is None or need <= free:
        return ""
    return (
        f"collectives of {seen} ranks, filled one by one, need {need // MIB} MiB of host "
        f"memory or more and {free // MIB} are free; use smaller groups, or for times only "
        "buffers that divide evenly among instances that are alike"
    )
