"""Growing columns of CC-core programs and DMA rings, turned into arrays at the end."""

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode, DmaOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue, Jump, Post, Sync

Column = np.ndarray  # (ranks,) int32 or int64


@attrs.frozen(eq=False)
class Condition:
    """A wait of every rank on one of its own semaphores; IDLE where a rank does not wait."""

    sem: Column
    value: Column


@attrs.frozen(eq=False)
class Increment:
    """A semaphore increment of every rank; IDLE where a rank makes none."""

    rank: Column
    sem: Column


@attrs.frozen
class Place:
    """What a row belongs to."""

    placeholder: int
    round: int = IDLE


class CcRows:
    """The program of one stream's CC-core on every rank."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._idle: np.ndarray = np.full(ranks, IDLE, np.int32)
        self._heads: list[tuple[CcOpcode, int, int, int, int]] = []
        self.jumps: dict[int, Jump] = {}
        self._waits: list[Condition] = []
        self._posts: list[Increment] = []

    def add(
        self,
        opcode: CcOpcode,
        place: Place,
        waits: list[Condition],
        post: Increment | None = None,
        push: tuple[int, int] = (IDLE, IDLE),
    ) -> None:
        """One row that waits for all conditions: all but the last become WAIT rows before it.

        `push` is the ring and the run of descriptors that an ADVANCE pushes.
        """
        for wait in waits[:-1]:
            self._append((CcOpcode.WAIT, place.placeholder, place.round, IDLE, IDLE), wait, None)
        if opcode is not CcOpcode.WAIT or waits or post:
            head = (opcode, place.placeholder, place.round, *push)
            self._append(head, waits[-1] if waits else None, post)

    def __len__(self) -> int:
        return len(self._heads)

    def _append(
        self,
        head: tuple[CcOpcode, int, int, int, int],
        wait: Condition | None,
        post: Increment | None,
    ) -> None:
        self._heads.append(head)
        self._waits.append(wait or Condition(self._idle, self._idle))
        self._posts.append(_check(post or Increment(self._idle, self._idle)))

    def queue(self, name: str, stream: int) -> CcQueue:
        heads = np.array(self._heads, np.int32).reshape(-1, 5)
        return CcQueue(
            name=name,
            stream=stream,
            opcode=heads[:, 0].astype(np.uint8),
            placeholder=heads[:, 1],
            round=heads[:, 2],
            ring=heads[:, 3],
            ring_row=heads[:, 4],
            sync=_sync(self._waits, [self._posts], self._ranks),
            jumps=dict(self.jumps),
        )


@attrs.frozen(eq=False)
class Descriptor:
    """A run of descriptors of every rank, and what its completion increments."""

    opcode: DmaOpcode
    place: Place
    peer: Column
    sources: tuple[Column, ...]
    target: Column
    size_bytes: Column
    wait: Condition
    posts: tuple[Increment, ...]


class DmaRows:
    """One DMA ring on every rank."""

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._rows: list[Descriptor] = []
        self.filled: np.ndarray = np.zeros(ranks, np.int64)  # runs in the ring so far, per rank

    def add(self, descriptor: Descriptor) -> None:
        for post in descriptor.posts:
            _check(post)
        self._rows.append(descriptor)

    def __len__(self) -> int:
        return len(self._rows)

    def queue(self, name: str, stream: int, lane: int) -> DmaQueue:
        rows = self._rows
        width = max((len(row.sources) for row in rows), default=0)
        idle: np.ndarray = np.full(self._ranks, IDLE, np.int64)
        sources = [(*row.sources, *([idle] * (width - len(row.sources)))) for row in rows]
        kinds = max((len(row.posts) for row in rows), default=0)
        none = Increment(idle, idle)
        posts = [
            [row.posts[kind] if kind < len(row.posts) else none for row in rows]
            for kind in range(kinds)
        ]
        return DmaQueue(
            name=name,
            stream=stream,
            lane=lane,
            opcode=np.array([row.opcode for row in rows], np.uint8),
            placeholder=np.array([row.place.placeholder for row in rows], np.int32),
            round=np.array([row.place.round for row in rows], np.int32),
            peer=_stack([row.peer for row in rows], np.int32, self._ranks),
            sources=np.array(sources, np.int64)
            .reshape(len(rows), width, self._ranks)
            .transpose(0, 2, 1),
            target=_stack([row.target for row in rows], np.int64, self._ranks),
            size_bytes=_stack([row.size_bytes for row in rows], np.int64, self._ranks),
            sync=_sync([row.wait for row in rows], posts, self._ranks),
        )


def _stack(columns: list[Column], dtype: type, ranks: int) -> np.ndarray:
    stacked: np.ndarray = np.array(columns, dtype).reshape(-1, ranks)
    stacked.setflags(write=False)
    return stacked


def _check(post: Increment) -> Increment:
    assert ((post.rank == IDLE) == (post.sem == IDLE)).all(), "an increment names half a target"
    return post


def _sync(waits: list[Condition], posts: list[list[Increment]], ranks: int) -> Sync:
    return Sync(
        wait_sem=_stack([wait.sem for wait in waits], np.int32, ranks),
        wait_value=_stack([wait.value for wait in waits], np.int64, ranks),
        posts=tuple(
            Post(
                _stack([post.rank for post in kind], np.int32, ranks),
                _stack([post.sem for post in kind], np.int32, ranks),
            )
            for kind in posts
        ),
    )
