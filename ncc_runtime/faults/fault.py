"""One fault while a program runs, as users name it, before it is known what is there.

`str(fault)` is the form that every report prints and that `text.py` reads back.
"""

import enum
import math
from decimal import Decimal

import attrs

from ncc_runtime.execution.disturbance import FULL_SPEED
from ncc_runtime.faults.laws import Draws, Law
from ncc_runtime.machine_model.timing import PS_PER_S


class Kind(enum.Enum):
    """What goes wrong; the value is the name of its class, as in `nccrt faults --all`."""

    RANK_SLOW = "rank.slow"
    RANK_DEAD = "rank.dead"
    RANK_LATE = "rank.late"  # the host launches it late
    CORE_SLOW = "core.slow"
    CORE_DEAD = "core.dead"
    CHIP_DEAD = "chip.dead"
    LINK_DOWN = "link.down"
    LINK_SLOW = "link.slow"
    LINK_FLAPS = "link.flaps"
    ADAPTER_DOWN = "adapter.down"
    ADAPTER_SLOW = "adapter.slow"
    ADAPTER_FLAPS = "adapter.flaps"
    ADAPTER_LOSES = "adapter.loses"
    INSTANCE_MTU = "instance.mtu"
    DMA_STUCK = "dma.stuck"
    DMA_LOST = "dma.lost"
    DMA_LATE = "dma.late"
    DMA_DOUBLED = "dma.doubled"
    BIT_TRANSFER = "bit.transfer"
    BIT_MEMORY = "bit.memory"

    @property
    def is_of_data(self) -> bool:
        """Whether it changes data and no time."""
        return self in (Kind.BIT_TRANSFER, Kind.BIT_MEMORY)


ASSUMED = "assumed"
"""The source of a figure that has none."""

RETRANSMIT_PS = 100_000_000
"""From a packet's loss until EFA has it sent again: assumed, as SRD's timeout is not published."""

PACKET_BYTES = 8_928
"""What an EFA packet carries: assumed, the MTU that rdma-core's driver reports of adapters."""

HEADER_BYTES = 100
"""Headers of a packet on the wire, Ethernet, IP, UDP and SRD together: assumed."""

MOST_FLAPS = 10_000
"""A link that flaps without an end does so this often."""

MOST_STOPS = 1_000_000
"""What links and adapters of one fault may flap in all: some hundred MB, and seconds."""

MOST_PS = 10**15
"""The latest time and the longest delay of a fault: a thousand seconds."""


@attrs.frozen
class When:
    """From when on, and how long.

    Times count from the launch of the run. `run` is the number, from 1, of a run of `collective`,
    which begins as its first rank triggers it.
    """

    at_ps: int = 0
    run: int | None = None
    collective: str = ""
    for_ps: int | None = None  # None: for ever

    def __str__(self) -> str:
        if self.run is not None:
            return f"at run {self.run} of {self.collective}: "
        return f"at {time_text(self.at_ps)}: " if self.at_ps else ""


@attrs.frozen
class Fault:
    """One fault. Fields that its kind does not use are None.

    - `place`: `3`, `0-7` or `*` for ranks, `c5.core0`, `c3`, `c0-c1`, `n0.efa3`, `n1`, or the name
      of a DMA ring or an array on `rank`; nothing where `byte` says where
    - `speed`: in ten-thousandths of the usual one
    - `draws`: how many times as long, or picoseconds late, drawn for each rank
    - `amount`: picoseconds late; bytes of an MTU; bytes a second
    - `nth`: which transfer of the ring, from 0
    - `element`, `bit`: of an array, an element and a bit of it; of a transfer, a bit of all it
      writes
    - `byte`: of all memory that the program uses on `rank`, whose `bit` it is, 0 to 7
    - `source`: of its figures
    """

    kind: Kind
    place: str
    when: When = When()
    rank: int | None = None
    speed: int | None = None
    draws: Draws | None = None
    amount: int | None = None
    flap_ps: tuple[int, int] | None = None  # down for so long, of every so long
    loss: float | None = None  # share of packets
    nth: int | None = None
    element: int | None = None
    byte: int | None = None
    bit: int | None = None
    source: str = attrs.field(default=ASSUMED, eq=False)

    def __str__(self) -> str:
        text = f"{self.when}{self._what()}"
        return text if self.when.for_ps is None else f"{text} for {time_text(self.when.for_ps)}"

    def _what(self) -> str:
        kind, place = self.kind, self.place
        subject, _, state = kind.value.partition(".")
        if kind in (Kind.DMA_LOST, Kind.DMA_LATE, Kind.DMA_DOUBLED):
            text = f"completion {self.nth} of {place} on rank {self.rank} {state}"
            return f"{text} by {self._how_much()}" if kind is Kind.DMA_LATE else text
        if kind is Kind.DMA_STUCK:
            return f"ring {place} on rank {self.rank} stuck"
        if kind is Kind.BIT_TRANSFER:
            return f"bit {self.bit} of transfer {self.nth} of {place} on rank {self.rank} flips"
        if kind is Kind.BIT_MEMORY:
            where = f"element {self.element} of {place}"
            where = where if self.byte is None else f"byte {self.byte}"
            return f"bit {self.bit} of {where} on rank {self.rank} flips"
        if kind is Kind.INSTANCE_MTU:
            return f"instance {place} has mtu {self.amount}"
        if kind is Kind.ADAPTER_LOSES:
            return f"adapter {place} loses {percent_text(self.loss or 0)}"
        text = f"{subject} {place} {state}"
        if self.flap_ps is not None:
            return f"{text} {time_text(self.flap_ps[0])} of every {time_text(self.flap_ps[1])}"
        if self.speed is not None:
            return f"{text} to {percent_text(self.speed / FULL_SPEED)}"
        if kind in (Kind.LINK_SLOW, Kind.ADAPTER_SLOW):
            return f"{text} to {rate_text(self.amount or 0)}"
        if self.draws is not None or self.amount is not None:
            return f"{text} by {self._how_much()}"
        return text

    def _how_much(self) -> str:
        if self.amount is not None:
            return time_text(self.amount)
        assert self.draws is not None, self.kind
        is_late = self.kind in (Kind.RANK_LATE, Kind.DMA_LATE)
        return draws_text(self.draws, is_time=is_late)


def draws_text(draws: Draws, *, is_time: bool) -> str:
    """`lognormal(1, 0.3)`, `exponential(20us)`."""

    def number(value: float) -> str:
        return time_text(round(value)) if is_time else plain_text(Decimal(repr(value)))

    floor = 0.0 if is_time else 1.0
    if draws.law is Law.EXPONENTIAL and draws.first == floor:
        return f"{draws.law}({number(draws.second)})"
    second = plain_text(Decimal(repr(draws.second)))
    if draws.law not in (Law.LOGNORMAL, Law.PARETO):
        second = number(draws.second)
    return f"{draws.law}({number(draws.first)}, {second})"


_UNITS = {"s": PS_PER_S, "ms": 10**9, "us": 10**6, "ns": 10**3, "ps": 1}


def time_text(time_ps: int) -> str:
    """`120us`, `1.5ms`: exact, in the largest unit of which it is at least one."""
    unit = next((word for word, ps in _UNITS.items() if time_ps >= ps), "us")
    whole, rest = divmod(time_ps, _UNITS[unit])
    digits = f"{rest:0{int(math.log10(_UNITS[unit]))}d}".rstrip("0") if rest else ""
    return f"{whole}.{digits}{unit}" if digits else f"{whole}{unit}"


def percent_text(share: float) -> str:
    """`50%`, `0.1%`: all digits that the share has."""
    return f"{plain_text(Decimal(repr(share)) * 100)}%"


def rate_text(bytes_per_s: int) -> str:
    """`64GB/s`: exact."""
    return f"{plain_text(Decimal(bytes_per_s) / 10**9)}GB/s"


def plain_text(number: Decimal) -> str:
    """All digits of a number, without an exponent."""
    digits = f"{number:f}"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits
