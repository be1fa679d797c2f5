"""What a step is to the model checker: what it waits for, touches and does."""

import enum

import attrs

from ncc_runtime.lowering.cc_isa import DmaOpcode

EVERYBODY = -1
"""The rank of an access that stands for entering or leaving a barrier, not for memory."""


@attrs.frozen
class Access:
    """A read or write of bytes [start, end) of a rank's memory."""

    rank: int
    start: int
    end: int
    writes: bool

    def conflicts(self, other: "Access") -> bool:
        """Whether the order of the two matters."""
        if self.rank != other.rank or not (self.writes or other.writes):
            return False
        return self.start < other.end and other.start < self.end


Bytes = tuple[int, int, int]
"""Rank, first byte, number of bytes."""


class Stage(enum.Enum):
    """How far a placeholder has come on a rank."""

    ASKED = "asked"  # an engine triggers it
    BEGUN = "begun"  # the CC-core has heard
    DONE = "done"


@attrs.frozen
class Visit:
    """One run of a placeholder on a rank."""

    placeholder: int
    occasion: int
    rank: int
    stage: Stage


@attrs.frozen
class Move:
    """A run of descriptors."""

    placeholder: int
    occasion: int
    opcode: DmaOpcode
    divisor: int
    sources: tuple[Bytes, ...]
    targets: tuple[Bytes, ...]


@attrs.frozen
class Compute:
    """An instruction of an engine."""

    what: tuple[object, ...]
    operands: tuple[Bytes, ...]
    results: tuple[Bytes, ...]


@attrs.define(eq=False)
class Row:
    """One atomic step."""

    rank: int
    queue: str
    pc: int
    wait: tuple[int, int, int] | None = None  # rank, semaphore, value
    posts: tuple[tuple[int, int], ...] = ()  # rank, semaphore
    accesses: tuple[Access, ...] = ()
    effect: Visit | Move | Compute | None = None
    after: list[tuple[int, int]] = attrs.field(factory=list)  # chain, its rows that must be done
    push: tuple[int, int] | None = None  # lane and row of the ring
    occasion: int = 0  # how often the placeholder has been triggered

    @property
    def place(self) -> str:
        return f"rank {self.rank}, {self.queue} {self.pc}"
