"""The buffers of a placeholder, on every rank.

Mostly they lie alike on all ranks. Where the programs that take part have them at other addresses,
those of the second are counted from APART, those of the third from twice that, and so on: then an
address says whose layout it belongs to, and the layouts of all are proved together.
"""

import enum
from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, Executable, StreamFacts
from ncc_runtime.neff.stages import Stage
from ncc_runtime.verify.members import Members

APART = 1 << 48
"""Bytes between layouts: no memory has so many."""


class Role(enum.Enum):
    """What a buffer is to a placeholder."""

    OPERAND = "operand"
    RESULT = "result"
    CHANNEL = "channel buffer"


@attrs.frozen
class Home:
    """A buffer of the placeholder, at the same address on every rank that has it."""

    role: Role
    index: int  # which operand or result
    start: int
    size_bytes: int
    members: tuple[int, ...] | None = None  # whose, by number; None: everybody's

    @property
    def end(self) -> int:
        """First address behind it."""
        return self.start + self.size_bytes

    @property
    def rows(self) -> slice | list[int]:
        """Whose, as an index."""
        return slice(None) if self.members is None else list(self.members)


def homes_of(
    executable: Executable, number: int, facts: StreamFacts, members: Members
) -> tuple[Home, ...]:
    """Operands, results and channel buffer, one layout after the other."""
    layouts: dict[tuple[Home, ...], list[int]] = {}
    for stage in executable.stages:
        own = members.inside(stage.ranks)
        if (own != IDLE).any():
            layouts.setdefault(_layout(stage, number, facts), []).extend(own.tolist())
    if len(layouts) == 1:
        return next(iter(layouts))
    return tuple(
        attrs.evolve(home, start=home.start + place * APART, members=tuple(sorted(who)))
        for place, (homes, who) in enumerate(layouts.items())
        for home in homes
    )


def _layout(stage: Stage, number: int, facts: StreamFacts) -> tuple[Home, ...]:
    program, placeholder = stage.program, stage.program.placeholders[number]
    found = [
        Home(role, index, program.address(tensor), program.tensors[tensor].size_bytes)
        for role, tensors in (
            (Role.OPERAND, placeholder.operands),
            (Role.RESULT, placeholder.results),
        )
        for index, tensor in enumerate(tensors)
    ]
    found.append(Home(Role.CHANNEL, 0, facts.scratch_address, facts.scratch_bytes))
    return tuple(found)


def shifts_of(homes: Sequence[Home], members: Members) -> np.ndarray | None:
    """By number, what its addresses are counted from; None: all from 0."""
    if all(home.members is None for home in homes):
        return None
    found: np.ndarray = np.zeros(
        members.count if members.order is None else len(members.order), np.int64
    )
    for home in homes:
        found[home.rows] = home.start // APART * APART
    return found


def shifted(addresses: np.ndarray, owner: np.ndarray, shifts: np.ndarray | None) -> np.ndarray:
    """Addresses in the layouts of whose memory they are in; IDLE stays."""
    if shifts is None:
        return addresses
    return np.where(addresses == IDLE, IDLE, addresses + shifts[owner])


def own_address(address: int) -> int:
    """Where an address of any layout lies in the memory of its rank."""
    return address % APART if address > 0 else address


def home_of(homes: Sequence[Home], role: Role, index: int, member: int) -> Home:
    """Where a member has an operand or result."""
    return next(
        home
        for home in homes
        if home.role is role
        and home.index == index
        and (home.members is None or member in home.members)
    )


def extents_of(homes: Sequence[Home]) -> list[tuple[int, int]]:
    """Where homes begin and end, overlapping ones together, ascending."""
    found: list[tuple[int, int]] = []
    for home in sorted(homes, key=lambda home: home.start):
        if found and home.start < found[-1][1]:
            found[-1] = found[-1][0], max(found[-1][1], home.end)
        else:
            found.append((home.start, home.end))
    return found


@attrs.frozen(eq=False)
class Form:
    """Where the homes lie, overlapping ones together, and where a form of its own has them."""

    start: np.ndarray  # (extents,) ascending
    end: np.ndarray
    shift: np.ndarray  # (extents + 1,): added to addresses in it; the last to all others

    @classmethod
    def of(cls, homes: Sequence[Home]) -> "Form":
        """The form of a placeholder with these homes."""
        start, end = np.array(extents_of(homes), np.int64).T
        named = [int(np.searchsorted(start, home.start, side="right")) - 1 for home in homes]
        at, shift = 0, np.zeros(len(start) + 1, np.int64)
        for extent in dict.fromkeys(named):  # in the order of the homes, not of the addresses
            shift[extent] = at - start[extent]
            at += int(end[extent] - start[extent])
        shift[-1] = 1 << 62
        return cls(start, end, shift)

    def formed(self, addresses: np.ndarray) -> np.ndarray:
        """Addresses as if the homes lay one behind the other from 0."""
        extent = np.searchsorted(self.start, addresses, side="right") - 1
        outside = (extent < 0) | (addresses >= self.end[extent])
        moved = addresses + self.shift[np.where(outside, len(self.start), extent)]
        return np.where(addresses == IDLE, IDLE, moved)
