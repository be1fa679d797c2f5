"""Who takes part in a collective, and where its buffers lie in their memories.

Proofs of a collective number the ranks that take part, its *members*, from 0; messages name the
ranks.

A *binding* says where a buffer of the placeholder lies. Mostly buffers lie alike on all ranks.
Where the programs that take part have different *layouts*, addresses in the second are counted from
LAYOUT_BYTES, those in the third from twice that, and so on: then an address says which layout it
belongs to, and all layouts are proved together.
"""

import enum
from collections.abc import Sequence
from functools import cached_property

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, Executable, StreamFacts
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.stages import JointPlaceholder, participants

LAYOUT_BYTES = 1 << 48
"""Between the first addresses of layouts: no memory has so many bytes."""


@attrs.frozen(eq=False)
class Members:
    """The ranks that take part, ascending, by numbers from 0; all other ranks come behind them."""

    count: int
    order: np.ndarray | None = None  # (ranks,) by number; None: everybody takes part

    @classmethod
    def of(cls, placeholder: Placeholder, ranks: int) -> "Members":
        """Those of a collective among so many ranks."""
        own = participants(placeholder)
        if own is None or len(own) == ranks:
            return cls(ranks)
        others = np.setdiff1d(np.arange(ranks), own)
        return cls(len(own), np.concatenate((np.array(own, np.int64), others)))

    @property
    def index(self) -> slice | np.ndarray:
        """Their ranks: consecutive ones as a slice, which makes views."""
        if self.order is None:
            return slice(None)
        first, last = int(self.order[0]), int(self.order[self.count - 1])
        is_run = last - first + 1 == self.count
        return slice(first, last + 1) if is_run else self.order[: self.count]

    @cached_property
    def _number(self) -> np.ndarray:
        """By rank the number; IDLE is the last."""
        assert self.order is not None, "where everybody takes part, ranks are the numbers"
        number = np.full(len(self.order) + 1, IDLE)
        number[self.order] = np.arange(len(self.order))
        return number

    def numbered(self, ranks: np.ndarray) -> np.ndarray:
        """Ranks by their numbers; IDLE stays."""
        return ranks if self.order is None else np.asarray(self._number[ranks])

    def inside(self, ranks: np.ndarray) -> np.ndarray:
        """Ranks by their numbers, IDLE for those who do not take part."""
        if self.order is None:
            return ranks
        number = self.numbered(ranks)
        return np.where(number < self.count, number, IDLE)

    def rank(self, number: int) -> int:
        """The rank of a number."""
        if self.order is None or not 0 <= number < len(self.order):
            return number
        return int(self.order[number])

    def placeholder(self, placeholder: Placeholder) -> Placeholder:
        """A collective with the numbers of its members for their ranks."""
        if isinstance(placeholder, JointPlaceholder):
            placeholder = attrs.evolve(placeholder, ranks=())
        if self.order is None:
            return placeholder
        number = self._number.tolist()
        groups = tuple(tuple(number[rank] for rank in group) for group in placeholder.groups)
        pairs = tuple((number[source], number[target]) for source, target in placeholder.pairs)
        return attrs.evolve(placeholder, groups=groups, pairs=pairs)


class Role(enum.Enum):
    """What a buffer is to a placeholder."""

    OPERAND = "operand"
    RESULT = "result"
    CHANNEL = "channel buffer"


@attrs.frozen
class Binding:
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


def bindings_of(
    executable: Executable, number: int, facts: StreamFacts, members: Members
) -> tuple[Binding, ...]:
    """Operands, results and channel buffer, one layout after the other."""
    layouts: dict[tuple[Binding, ...], list[int]] = {}  # whose each is
    for stage in executable.stages:
        own = members.inside(stage.ranks)
        own = own[own != IDLE]
        if len(own):
            program, placeholder = stage.program, stage.program.placeholders[number]
            tensors = [(Role.OPERAND, *one) for one in enumerate(placeholder.operands)]
            tensors += [(Role.RESULT, *one) for one in enumerate(placeholder.results)]
            layout = (
                *(
                    Binding(role, index, program.address(one), program.tensors[one].size_bytes)
                    for role, index, one in tensors
                ),
                Binding(Role.CHANNEL, 0, facts.scratch_address, facts.scratch_bytes),
            )
            layouts.setdefault(layout, []).extend(own.tolist())
    if len(layouts) == 1:
        return next(iter(layouts))
    return tuple(
        attrs.evolve(one, start=one.start + place * LAYOUT_BYTES, members=tuple(sorted(whose)))
        for place, (layout, whose) in enumerate(layouts.items())
        for one in layout
    )


def shifts_of(bindings: Sequence[Binding], members: Members) -> np.ndarray | None:
    """By number, what its addresses are counted from; None: all from 0."""
    if all(binding.members is None for binding in bindings):
        return None
    numbers = members.count if members.order is None else len(members.order)
    shifts: np.ndarray = np.zeros(numbers, np.int64)
    for binding in bindings:
        shifts[binding.rows] = binding.start // LAYOUT_BYTES * LAYOUT_BYTES
    return shifts


def shifted(addresses: np.ndarray, owner: np.ndarray, shifts: np.ndarray | None) -> np.ndarray:
    """Addresses in the layouts of whose memory they are in; IDLE stays."""
    if shifts is None:
        return addresses
    return np.where(addresses == IDLE, IDLE, addresses + shifts[owner])


def own_address(address: int) -> int:
    """Where an address of any layout lies in the memory of its rank."""
    return address % LAYOUT_BYTES if address > 0 else address


def binding_of(bindings: Sequence[Binding], role: Role, index: int, member: int) -> Binding:
    """Where a member has an operand or result."""
    return next(
        binding
        for binding in bindings
        if binding.role is role
        and binding.index == index
        and (binding.members is None or member in binding.members)
    )


def extents_of(bindings: Sequence[Binding]) -> list[tuple[int, int]]:
    """Where bindings begin and end, overlapping ones together, ascending."""
    extents: list[tuple[int, int]] = []
    for binding in sorted(bindings, key=lambda binding: binding.start):
        if extents and binding.start < extents[-1][1]:
            extents[-1] = extents[-1][0], max(extents[-1][1], binding.end)
        else:
            extents.append((binding.start, binding.end))
    return extents


@attrs.frozen(eq=False)
class Relocation:
    """Moves addresses to where they were if the bindings lay one behind the other from 0.

    Placeholders that do the same to buffers elsewhere have the same addresses then.
    """

    start: np.ndarray  # (extents,) ascending, of the bindings, overlapping ones together
    end: np.ndarray
    shift: np.ndarray  # (extents + 1,): added to addresses in it; the last to all others

    @classmethod
    def of(cls, bindings: Sequence[Binding]) -> "Relocation":
        """That of a placeholder with these bindings, in their order."""
        start, end = np.array(extents_of(bindings), np.int64).T
        at, shift = 0, np.zeros(len(start) + 1, np.int64)
        starts = [binding.start for binding in bindings]
        extents = np.searchsorted(start, starts, side="right") - 1
        for extent in dict.fromkeys(extents.tolist()):
            shift[extent] = at - start[extent]
            at += int(end[extent] - start[extent])
        shift[-1] = 1 << 62
        return cls(start, end, shift)

    def relocated(self, addresses: np.ndarray) -> np.ndarray:
        """Addresses moved; IDLE stays."""
        extent = np.searchsorted(self.start, addresses, side="right") - 1
        outside = (extent < 0) | (addresses >= self.end[extent])
        moved = addresses + self.shift[np.where(outside, len(self.start), extent)]
        return np.where(addresses == IDLE, IDLE, moved)
