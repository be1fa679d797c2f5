"""Slots of channel buffers, and what reductions make of them: whose rows they hold."""

from collections.abc import Iterator

import numpy as np

from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.verify.bindings import Role
from ncc_runtime.verify.segments import RingRows, Segment


def _is_own(ring: RingRows, row: int, member: int) -> bool:
    """Whether a reduction reads the own memory, and writes once."""
    if ring.second_peer is not None and ring.second_peer[row, member] != IDLE:
        return False
    if ring.source_rank is None:
        return True
    there = ring.sources[row, member] != IDLE
    return bool((ring.source_rank[row, member][there] == member).all())


class Slots:
    """What lies in the channel buffer and the result of every member."""

    def __init__(self, segment: Segment, result: np.ndarray, most: int) -> None:
        self._segment, self._most = segment, most
        self._result = result
        self._channels = [binding for binding in segment.bindings if binding.role is Role.CHANNEL]
        self._held: dict[int, dict[int, frozenset[int]]] = {}  # by member: address → whose rows
        self._done: set[int] = set()

    def arrive(self, member: int, address: int, source: int) -> str:
        """The rows of a member have come into a slot; what is wrong with that."""
        return self._put(member, address, frozenset({source}))

    def _put(self, member: int, address: int, whose: frozenset[int]) -> str:
        held = self._held.setdefault(member, {})
        inside = any(
            binding.start <= address and address + self._most <= binding.end
            for binding in self._channels
            if binding.members is None or member in binding.members
        )
        if not inside:
            return "writes outside of the channel buffer and the result"
        if self._most and any(abs(address - other) < self._most for other in held):
            return "writes over a slot that is to be joined"
        held[address] = whose
        return ""

    def join(self, ring: RingRows, row: int, member: int) -> str:
        """A reduction at a member; what is wrong with it."""
        sources = [one for one in ring.sources[row, member].tolist() if one != IDLE]
        held = self._held.setdefault(member, {})
        if int(ring.peer[row, member]) != member or not _is_own(ring, row, member):
            return "joins slots of another rank, or for one"
        unknown = [one for one in sources if one not in held]
        if unknown:
            return f"joins {unknown[0]:#x}, where the rows of nobody have come"
        whose: frozenset[int] = frozenset()
        for source in sources:
            part = held[source]
            if whose & part:
                return f"joins the rows of rank {self._rank(min(whose & part))} twice"
            whose |= part
        for source in sources:
            del held[source]
        target = int(ring.target[row, member])
        if target != int(self._result[member]):
            wrong_divisor = int(ring.divisor[row]) != 1
            return "divides too early" if wrong_divisor else self._put(member, target, whose)
        return self._finish(ring, row, (member, whose))

    def _finish(self, ring: RingRows, row: int, what: tuple[int, frozenset[int]]) -> str:
        member, whose = what
        placeholder: Placeholder = self._segment.placeholder
        group = next(group for group in placeholder.groups if member in group)
        missing = sorted(set(group) - whose)
        if missing:
            return f"joins without the rows of rank {self._rank(missing[0])}"
        divisor = len(group) if placeholder.reduction is Reduction.AVERAGE else 1
        if int(ring.divisor[row]) != divisor:
            return f"divides by {int(ring.divisor[row])}, must be {divisor}"
        if member in self._done:
            return "writes the result again"
        self._done.add(member)
        return ""

    def lacking(self) -> Iterator[str]:
        """Members whose result nobody has written."""
        for group in self._segment.placeholder.groups:
            for member in group:
                if member not in self._done:
                    yield f"nothing is written into the result of rank {self._rank(member)}"
                    return

    def _rank(self, member: int) -> int:
        return self._segment.members.rank(member)
