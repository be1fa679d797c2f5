"""Growing queues: what rows wait for and increment, and the programs of CC-cores."""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.columns import NOTHING, Column, Row
from ncc_runtime.lowering.executable import IDLE, CcQueue, Jump, Load, Post, Sync


@attrs.frozen(eq=False)
class Condition:
    """A wait of every rank on one of its own semaphores; IDLE where a rank does not wait."""

    sem: Row
    value: Row


@attrs.frozen(eq=False)
class Increment:
    """A semaphore increment of every rank; IDLE where a rank makes none."""

    rank: Row
    sem: Row = attrs.field()

    @sem.validator
    def _names_both(self, _: object, sem: Row) -> None:
        assert ((self.rank == IDLE) == (sem == IDLE)).all(), "an increment names half a target"


NO_WAIT = Condition(NOTHING, NOTHING)
NO_POST = Increment(NOTHING, NOTHING)


@attrs.frozen
class Place:
    """What a row belongs to."""

    placeholder: int
    round: int = IDLE


class Posts:
    """One increment of every row."""

    def __init__(self, ranks: int) -> None:
        self._rank, self._sem = Column(ranks, np.int32), Column(ranks, np.int32)

    def append(self, post: Increment) -> None:
        """The next row's."""
        self._rank.append(post.rank)
        self._sem.append(post.sem)

    def __len__(self) -> int:
        return len(self._sem)

    def put(self, at: int, post: Increment) -> None:
        """The increment of row `at`; rows before it that have none make none."""
        self._rank.put(at, post.rank)
        self._sem.put(at, post.sem)

    def padded(self, rows: int) -> Post:
        """`take`, with rows at the end that increment nothing until there are `rows`."""
        return Post(self._rank.padded(rows), self._sem.padded(rows))

    def take(self) -> Post:
        """All rows as arrays; they are forgotten."""
        return Post(self._rank.take(), self._sem.take())


class Waits:
    """One condition of every row."""

    def __init__(self, ranks: int) -> None:
        self._sem, self._value = Column(ranks, np.int32), Column(ranks, np.int32)

    def append(self, wait: Condition) -> None:
        """The next row's."""
        self._sem.append(wait.sem)
        self._value.append(wait.value)

    def take(self, posts: Sequence[Post]) -> Sync:
        """All rows as arrays, with their increments; they are forgotten."""
        return Sync(self._sem.take(), self._value.take(), tuple(posts))


class CcRows:
    """The program of one stream's CC-core on every rank."""

    def __init__(self, ranks: int) -> None:
        self._heads: list[tuple[CcOpcode, int, int, int, int]] = []
        self.jumps: dict[int, Jump] = {}
        self.loads: dict[int, Load] = {}
        self._waits, self._posts = Waits(ranks), Posts(ranks)

    def add(
        self,
        opcode: CcOpcode,
        place: Place,
        waits: Sequence[Condition],
        post: Increment | None = None,
        push: tuple[int, int] = (IDLE, IDLE),
    ) -> None:
        """One row that waits for all conditions: all but the last become WAIT rows before it.

        `push` is the ring and the run of descriptors that an ADVANCE pushes.
        """
        for wait in waits[:-1]:
            self._append((CcOpcode.WAIT, place.placeholder, place.round, IDLE, IDLE), wait, NO_POST)
        if opcode is not CcOpcode.WAIT or waits or post:
            head = (opcode, place.placeholder, place.round, *push)
            self._append(head, waits[-1] if waits else NO_WAIT, post or NO_POST)

    def load(self, place: Place, load: Load) -> None:
        """One row that reads a table of counts."""
        self.loads[len(self)] = load
        self.add(CcOpcode.LOAD, place, [])

    def __len__(self) -> int:
        return len(self._heads)

    def _append(
        self, head: tuple[CcOpcode, int, int, int, int], wait: Condition, post: Increment
    ) -> None:
        self._heads.append(head)
        self._waits.append(wait)
        self._posts.append(post)

    def queue(self, name: str, stream: int) -> CcQueue:
        """The finished program; the rows are forgotten."""
        heads = np.array(self._heads, np.int32).reshape(-1, 5)
        return CcQueue(
            name=name,
            stream=stream,
            opcode=heads[:, 0].astype(np.uint8),
            placeholder=heads[:, 1],
            round=heads[:, 2],
            ring=heads[:, 3],
            ring_row=heads[:, 4],
            sync=self._waits.take([self._posts.take()]),
            jumps=dict(self.jumps),
            loads=dict(self.loads),
        )
