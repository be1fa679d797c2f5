"""Witnesses of races inside a segment: both rows, what they touch, and the wait that is missing."""

from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, Executable
from ncc_runtime.verify.homes import Role, own_address
from ncc_runtime.verify.places import place_of
from ncc_runtime.verify.races.accesses import pieces, whole
from ncc_runtime.verify.races.steps import CC, Fault, Steps
from ncc_runtime.verify.segment_rows import CcRows, RingRows
from ncc_runtime.verify.segments import Segment


@attrs.frozen
class Claim:
    """One row of Claims, as numbers."""

    rank: int
    chain: int
    row: int
    of_rank: int
    of_chain: int
    of_row: int


@attrs.frozen
class _Touch:
    """A piece of memory that a ring row reads or writes."""

    memory: int
    start: int
    end: int
    writes: bool


@attrs.frozen(eq=False)
class Witness:
    """Tells what is wrong in one segment of an executable."""

    executable: Executable
    segment: Segment
    steps: Steps | None = None

    def of_claim(self, claim: Claim) -> str:
        """Several lines on a claim that does not hold."""
        if claim.of_chain != CC and claim.chain != CC:
            lines = self._race(claim)
        elif claim.of_chain != CC:
            lines = self._left(claim)
        elif claim.chain != CC:
            lines = self._not_entered(claim)
        else:
            lines = self._barrier(claim)
        return "\n".join([*lines, f"  {self._missing(claim)}"])

    def of_fault(self, fault: Fault) -> str:
        """A wait that the segment itself does not satisfy."""
        sem, value = self._awaited(fault.rank, fault.row)
        where = self._place(CC, fault.row, fault.rank)
        named = self._name(fault.rank, sem)
        if fault.joined:
            return (
                f"{where} waits for {named} >= {value}, which several queues increment\n"
                "  no count of it is one event, so it orders nothing"
            )
        return (
            f"{where} waits for {named} >= {value}, an increment that only a later collective "
            "could make\n  rows of a placeholder may wait for its own increments and earlier ones"
        )

    def of_standstill(self, at: tuple[int, int]) -> str:
        """The rank whose CC-core stands at a row, where nothing can go on."""
        row, rank = at
        sem, value = self._awaited(rank, row)
        return (
            f"{self._place(CC, row, rank)} waits for {self._name(rank, sem)} >= {value}, which "
            "never comes\n  rows behind a standstill have no order"
        )

    def of_pushes(self) -> str:
        """Rings whose rows are not pushed one after the other."""
        return (
            f"{self._place(CC, 0, 0)}: its ring rows are not pushed once each, in their order\n"
            "  what a ring performs when is then unknown"
        )

    def _race(self, claim: Claim) -> Iterator[str]:
        first, second = self._clash(claim)
        does = "written twice" if first.writes and second.writes else "read and written"
        start, end = max(first.start, second.start), min(first.end, second.end)
        bytes_at = self._bytes(attrs.evolve(second, start=start, end=end))
        yield f"race: {bytes_at} are {does} in no order"
        yield f"  {self._deed(claim.of_chain, claim.of_row, claim.of_rank, first)}"
        yield f"  {self._deed(claim.chain, claim.row, claim.rank, second)}"

    def _left(self, claim: Claim) -> Iterator[str]:
        touch = self._last_touch(claim.of_chain, claim.of_row, claim.of_rank, claim.rank)
        place = self._place(CC, claim.row, claim.rank)
        yield f"race: {place} reports completion while its memory is still in use"
        yield f"  {self._deed(claim.of_chain, claim.of_row, claim.of_rank, touch)}"

    def _not_entered(self, claim: Claim) -> Iterator[str]:
        touch = self._last_touch(claim.chain, claim.row, claim.rank, claim.of_rank)
        yield (
            f"race: the memory of rank {self._rank(claim.of_rank)} is used before that rank has "
            "come to the collective"
        )
        yield f"  {self._deed(claim.chain, claim.row, claim.rank, touch)}"
        yield f"  {self._place(CC, 0, claim.of_rank)}: waits for its trigger"

    def _barrier(self, claim: Claim) -> Iterator[str]:
        place, other = self._place(CC, claim.row, claim.rank), self._rank(claim.of_rank)
        yield f"{place} leaves the barrier before rank {other} has come to it"

    def _missing(self, claim: Claim) -> str:
        """Which wait would have told the second of the first."""
        row = claim.row
        if claim.chain != CC and self.steps is not None:
            row = int(self.steps.pushing(claim.chain - 1)[claim.row])
        place = self._place(CC, row, claim.rank)
        for sem, value in self._told(claim):
            if not self._waits(claim.rank, row, sem, value):
                named = self._name(claim.rank, sem)
                return f"missing: {place} does not wait for {named} >= {value}"
        event = f"the trigger of rank {self._rank(claim.of_rank)}"
        if claim.of_chain != CC:
            event = f"the end of {self._place(claim.of_chain, claim.of_row, claim.of_rank)}"
        return f"missing: nothing that {place} has waited for follows from {event}"

    def _told(self, claim: Claim) -> Iterator[tuple[int, int]]:
        """Semaphores of the second's rank by which the first tells it, and their values."""
        rows = self._rows(claim.of_chain)
        span = range(len(rows)) if claim.of_chain == CC else (claim.of_row,)
        for post in rows.posts:
            for row in span:
                if post.rank[row, claim.of_rank] == claim.rank:
                    sem = int(post.sem[row, claim.of_rank])
                    yield sem, self._counted(rows, row, claim, sem)

    def _waits(self, rank: int, last: int, sem: int, value: int) -> bool:
        """Whether a rank's CC-core waits for that by row `last` of the segment."""
        awaited = (self._awaited(rank, row) for row in range(last + 1))
        return any(one == sem and reached >= value for one, reached in awaited)

    def _counted(self, rows: CcRows | RingRows, row: int, claim: Claim, sem: int) -> int:
        """What the semaphore of the second's rank has come to with this row of the first."""
        queue, last, poster = self.segment.place(rows, row, claim.of_rank)
        done, waiting = slice(last + 1), self._rank(claim.rank)
        return sum(
            int(
                np.count_nonzero(
                    (post.rank[done, poster] == waiting) & (post.sem[done, poster] == sem)
                )
            )
            for post in self.executable.queues[queue].sync.posts
        )

    def _awaited(self, rank: int, row: int) -> tuple[int, int]:
        queue, at, rank = self.segment.place(self.segment.cc, row, rank)
        sync = self.executable.queues[queue].sync
        sem, value = sync.wait_sem[at], sync.wait_value[at]
        return int(sem[rank % len(sem)]), int(value[rank % len(value)])

    def _rows(self, chain: int) -> CcRows | RingRows:
        return self.segment.cc if chain == CC else self.segment.rings[chain - 1]

    def _place(self, chain: int, row: int, rank: int) -> str:
        return place_of(self.executable, *self.segment.place(self._rows(chain), row, rank))

    def _rank(self, member: int) -> int:
        return self.segment.members.rank(member)

    def _name(self, member: int, sem: int) -> str:
        names = self.executable.semaphore_names(self._rank(member))
        return names.get(sem, f"semaphore {sem}")

    def _deed(self, chain: int, row: int, rank: int, touch: _Touch) -> str:
        rows = self._rows(chain)
        verb = "writes" if touch.writes else "reads"
        where = self._place(chain, row, rank)
        return f"{where}, round {int(rows.round[row])}: {verb} {self._bytes(touch)}"

    def _bytes(self, touch: _Touch) -> str:
        roles = (Role.RESULT, Role.OPERAND) if touch.writes else (Role.OPERAND, Role.RESULT)
        rank = self._rank(touch.memory)
        for role in (*roles, Role.CHANNEL):
            for home in self.segment.homes:
                if home.role is role and home.start <= touch.start < home.end:
                    name = role.value if role is Role.CHANNEL else f"{role.value} {home.index}"
                    start, end = touch.start - home.start, touch.end - home.start
                    return f"{name} {start:#x}..{end:#x} of rank {rank}"
        start = own_address(touch.start)
        return f"addresses {start:#x}..{start + touch.end - touch.start:#x} of rank {rank}"

    def _touches(self, chain: int, row: int, rank: int) -> list[_Touch]:
        ring = self.segment.rings[chain - 1]
        size = int(ring.size_bytes[row, rank])
        cell = pieces(ring, np.array([row]), np.array([rank]))
        found = []
        for memory, start, writes in cell:
            end = start + size
            if ring.registers is not None:
                register = ring.registers.target if writes else ring.registers.source
                floats = register[row : row + 1, rank] != IDLE
                start, end = whole(self.segment, start, end, floats)
            if start[0] != IDLE:
                found.append(_Touch(int(memory[0]), int(start[0]), int(end[0]), writes))
        return found

    def _last_touch(self, chain: int, row: int, rank: int, memory: int) -> _Touch:
        return [one for one in self._touches(chain, row, rank) if one.memory == memory][-1]

    def _clash(self, claim: Claim) -> tuple[_Touch, _Touch]:
        """What two rows touch that overlaps, one of them writing."""
        return next(
            (first, second)
            for first in self._touches(claim.of_chain, claim.of_row, claim.of_rank)
            for second in self._touches(claim.chain, claim.row, claim.rank)
            if first.memory == second.memory
            and max(first.start, second.start) < min(first.end, second.end)
            and (first.writes or second.writes)
        )
