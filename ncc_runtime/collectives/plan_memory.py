"""Whether the host can hold the queues that plans are lowered to, checked before lowering."""

from collections.abc import Sequence

from ncc_runtime.collectives.plan import Plan
from ncc_runtime.errors import LoweringError
from ncc_runtime.host_limits import free_bytes

CELL_BYTES = 90
"""Host memory of each transfer of each member, whether it makes it or not; not too much.

Measured: `benchmarks/clock.py --ranks 1024 --all`, of which the peak is 91 bytes a message above
what a small run takes (2026-11-21, x86_64).
"""

CHANNEL_BYTES = 4
"""Host memory of each pair of ranks in each lane."""

MIB = 1 << 20


def check_room(plans: Sequence[tuple[Plan, int]], representatives: int, ranks: int) -> None:
    """LoweringError if the host has no memory for the queues of (plan, members)."""
    short = shortage(plans, representatives, ranks)
    if short:
        raise LoweringError(short)


def shortage(plans: Sequence[tuple[Plan, int]], representatives: int, ranks: int) -> str:
    """Why the host cannot hold the queues of (plan, members); "" if it can.

    The representatives are the ranks that get queues: all, or those of the first instance.
    """
    cells = sum(plan.transfers * members for plan, members in plans)
    lanes = max((len(plan.lanes) for plan, _ in plans), default=0)
    need = cells * CELL_BYTES + lanes * representatives * ranks * CHANNEL_BYTES
    free = free_bytes()
    if free is None or need <= free:
        return ""
    return (
        f"collectives of {representatives} ranks, filled one by one, need {need // MIB} MiB of "
        f"host memory or more and {free // MIB} are free; use smaller groups, or for times only "
        "buffers that divide evenly among instances that are alike"
    )
