"""What goes wrong during a run, resolved to queues, ranks, parts and times of one executable.

`ncc_runtime/faults` makes it of faults as users name them; the clock plays what changes times, the
values what changes data. Times count from the launch of the run, as in traces, in picoseconds.
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import attrs

FULL_SPEED = 10_000
"""Speeds are counted in ten-thousandths of what is usual on that core or part."""

ALWAYS_PS = 2**62
"""The end of what never ends."""


@attrs.frozen
class PartSpeed:
    """A part of the machine (`machine_model/parts.py`) has another rate for some time.

    Where several hold at a time, the rate is the usual one times all of their speeds.
    """

    part: int
    speed: int  # 0: nothing passes; what is under way stays where it is, and goes on afterwards
    start_ps: int = 0
    end_ps: int = ALWAYS_PS


@attrs.frozen
class QueueSpeed:
    """A queue of one rank runs at another speed for some time.

    An engine does its work at that speed. A CC-core or DMA ring stands still at 0, and runs as
    usual at any other. What is under way when the speed falls to 0 goes on when it rises again.
    """

    queue: int  # position in Executable.queues
    rank: int
    speed: int
    start_ps: int = 0
    end_ps: int = ALWAYS_PS


@attrs.frozen
class TransferFault:
    """The n-th transfer that a DMA ring of one rank performs, from 0, goes wrong."""

    queue: int
    rank: int
    nth: int
    completions: int = 1  # how often it makes its increments: 0 lost, 2 doubled
    longer_ps: int = 0  # until its last byte has arrived, as when packets are sent again
    late_ps: int = 0  # from then until its increments are seen, on top of what is usual
    flipped_bits: tuple[int, ...] = ()  # of what it writes, counted from bit 0 of its first byte


def joined_transfers(faults: Iterable[TransferFault]) -> dict[tuple[int, int, int], TransferFault]:
    """All that goes wrong with each transfer, by queue, rank and number.

    One of two faults that loses the completion loses it, times add up, a bit that flips twice is
    as it was.
    """
    joined: dict[tuple[int, int, int], TransferFault] = {}
    for fault in faults:
        key = fault.queue, fault.rank, fault.nth
        before = joined.get(key, TransferFault(*key))
        joined[key] = TransferFault(
            *key,
            completions=min(2, before.completions * fault.completions),
            longer_ps=before.longer_ps + fault.longer_ps,
            late_ps=before.late_ps + fault.late_ps,
            flipped_bits=tuple(sorted({*before.flipped_bits} ^ {*fault.flipped_bits})),
        )
    return joined


@attrs.frozen
class MemoryFault:
    """A bit of a rank's memory flips at a time."""

    rank: int
    address: int  # byte, as in the executable's addresses
    bit: int  # 0 to 7
    at_ps: int


@attrs.frozen(eq=False)
class Disturbance:
    """All that goes wrong in one run."""

    parts: tuple[PartSpeed, ...] = ()
    queues: tuple[QueueSpeed, ...] = ()
    transfers: tuple[TransferFault, ...] = ()
    memory: tuple[MemoryFault, ...] = ()
    late_start_ps: Mapping[int, int] = MappingProxyType({})  # by rank, after all others


NOTHING = Disturbance()
"""An undisturbed run."""
