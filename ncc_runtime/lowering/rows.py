"""Growing queues: what rows wait for and increment, and the programs of CC-cores."""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode
from ncc_runtime.lowering.columns import NOTHING, Column, PickedRows, Row
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

    def __len__(self) -> int:
        return len(self._sem)

    def extend(self, first: int, posts: Sequence[Increment], index: np.ndarray | None) -> None:
        """The increments of rows from `first` on; rows before it that have none make none.

        The index says which of the increments is that of each row; without, they come in order.
        """
        for column, rows in (
            (self._rank, [post.rank for post in posts]),
            (self._sem, [post.sem for post in posts]),
        ):
            column.pad(first)
            column.extend(PickedRows.of(rows) if index is None else PickedRows(rows, index))

    def padded(self, rows: int) -> Post:
        """All rows as arrays, which are forgotten; at the end some that increment nothing."""
        return Post(self._rank.padded(rows), self._sem.padded(rows))


class CcRows:
    """The program of one stream's CC-core on every rank."""

    def __init__(self, ranks: int) -> None:
        self._heads: list[tuple[CcOpcode, int, int, int, int]] = []
        self.jumps: dict[int, Jump] = {}
        self.loads: dict[int, Load] = {}
        self._ranks = ranks
        self._waits: list[Condition] = []
        self._posts: list[Increment] = []

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
        sems, values = Column(self._ranks, np.int32), Column(self._ranks, np.int32)
        sems.extend(PickedRows.of([wait.sem for wait in self._waits]))
        values.extend(PickedRows.of([wait.value for wait in self._waits]))
        posts = Posts(self._ranks)
        posts.extend(0, self._posts, None)
        post = posts.padded(len(self))
        self._heads.clear()
        self._waits.clear()
        self._posts.clear()
        return CcQueue(
            name=name,
            stream=stream,
            opcode=heads[:, 0].astype(np.uint8),
            placeholder=heads[:, 1],
            round=heads[:, 2],
            ring=heads[:, 3],
            ring_row=heads[:, 4],
            sync=Sync(sems.take(), values.take(), (post,)),
            jumps=dict(self.jumps),
            loads=dict(self.loads),
        )
