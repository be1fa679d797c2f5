"""Collectives and transfers whose ranks lie in several processes.

Both are pieces: some runs of bytes in the memory of some ranks, the leaves, what is computed of
them, and runs where that goes, the targets. One process computes a piece, its owner. It gets the
leaves that it has not, computes as one process alone would, and sends the result to the processes
of the targets. So each byte crosses once to be read, and once for each process that gets it; and
the order of reduction, the roundings and the bits are those of one process.

Pieces are cut and performed in rounds. In a round all leaves are read before a target is written,
and what is sent in it fits a window. All processes make the same rounds and see all of their
pieces, so who sends what needs no message.
"""

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.values.normal_form import NormalForm, PieceArithmetic, Step
from ncc_runtime.execution.values.transfers import SizedTransfers
from ncc_runtime.processes import WINDOW_BYTES, Processes, Shares

ROUND_BYTES = WINDOW_BYTES * 2 // 3
"""Leaves and results of a round, in all processes: one could have to send all of it."""

PIECES_BYTES = 4 * ROUND_BYTES
"""What a round takes of the memory of a process, about: leaves, what is computed, and sent."""

_PLACE_BYTES = 40
"""What it takes to say where a leaf or a target lies, about: of small pieces more than of data."""

_LEAST_BYTES = 16 * 1024
"""Pieces are not cut smaller so that every process has one to compute."""

_SPREAD = 2654435761
"""2^32 over the golden ratio (Knuth's multiplicative hashing): neighbours get owners far apart."""


@attrs.frozen(eq=False)
class RankMemory:
    """Memory of the ranks of this process, and in which row of it each rank's lies."""

    bytes: np.ndarray  # [rows, bytes] uint8
    row_of: np.ndarray  # (ranks,); of ranks of other processes it says nothing

    def runs(self, size: int) -> np.ndarray:
        """Every run of so many bytes as [row, first byte, byte]; a view."""
        rows, length = self.bytes.shape
        shape = rows, length - size + 1, size
        return np.lib.stride_tricks.as_strided(self.bytes, shape, (self.bytes.strides[0], 1, 1))


@attrs.frozen(eq=False)
class MovedPieces:
    """Pieces of one size that are computed alike. Sizes and places are in bytes."""

    operand: RankMemory
    result: RankMemory
    size: int
    leaves: np.ndarray  # (pieces, leaves) int64, ranks
    leaf_start: np.ndarray  # (pieces, leaves) int64
    targets: np.ndarray  # (pieces, targets) int64, ranks; -1: none
    target_start: np.ndarray  # (pieces, targets) int64
    compute: Callable[[np.ndarray], np.ndarray]
    """From leaves, [leaves, pieces, size] uint8, to results, [pieces, size] uint8."""
    owner: np.ndarray = attrs.field(factory=lambda: np.zeros(0, np.int64))
    """The process that computes each, (pieces,); none before they are cut."""

    def read(self, piece: np.ndarray, leaf: np.ndarray) -> np.ndarray:
        """Leaves of this process, (n, size)."""
        rows = self.operand.row_of[self.leaves[piece, leaf]]
        found: np.ndarray = self.operand.runs(self.size)[rows, self.leaf_start[piece, leaf]]
        return found

    def write(self, piece: np.ndarray, values: np.ndarray, is_own: np.ndarray) -> None:
        """Write results, [pieces, size], to targets, where these are of this process."""
        runs = self.result.runs(self.size)
        for target in range(self.targets.shape[1]):
            some = is_own[piece, target]
            rows = self.result.row_of[self.targets[piece[some], target]]
            runs[rows, self.target_start[piece[some], target]] = (
                values if some.all() else values[some]
            )


def of_collective(
    form: NormalForm,
    operands: Sequence[RankMemory],
    results: Sequence[RankMemory],
    shares: Shares,
) -> Iterator[MovedPieces]:
    """What a collective computes, in memories that hold its operands and results alone."""
    arithmetic = PieceArithmetic.of(form.dtype, form.reduction, may_use_targets=False)
    itemsize = form.dtype.itemsize

    def computed(steps: Sequence[Step], leaves: np.ndarray) -> np.ndarray:
        if not len(leaves):
            return np.zeros(leaves.shape[1:], np.uint8)
        return arithmetic.of_leaves(steps, leaves.view(form.dtype)).view(np.uint8)

    for one in form.classes:
        pieces = MovedPieces(
            operand=operands[one.operand],
            result=results[one.operand],
            size=one.size * itemsize,
            leaves=one.leaves,
            leaf_start=np.broadcast_to(one.offset[:, None] * itemsize, one.leaves.shape),
            targets=one.target_rank,
            target_start=one.target_offset * itemsize,
            compute=functools.partial(computed, one.steps),
        )
        yield from _cut(shares, itemsize, pieces)


def of_transfers(one: SizedTransfers, memory: RankMemory, shares: Shares) -> Iterator[MovedPieces]:
    """What the transfers of one size in a row of a DMA ring move."""
    leaves, leaf_start, targets, target_start = one.places()
    pieces = MovedPieces(
        operand=memory,
        result=memory,
        size=one.size,
        leaves=leaves,
        leaf_start=leaf_start,
        targets=targets,
        target_start=target_start,
        compute=one.compute,
    )
    yield from _cut(shares, one.itemsize, pieces)


def _cut(shares: Shares, itemsize: int, one: MovedPieces) -> Iterator[MovedPieces]:
    """The same in parts that go into a round, with owners among the processes of the leaves."""
    count, leaves = one.leaves.shape
    if not count or not one.size:
        return
    reached = min(one.targets.shape[1], shares.count)  # processes that may get a result
    most = max(1, ROUND_BYTES // ((leaves + reached) * itemsize))  # elements
    size = one.size // itemsize
    fair = -(-count * size // (2 * shares.count))
    width = min(size, max(1, most // (2 * shares.count)), max(_LEAST_BYTES // itemsize, fair))
    for cells, begin, extent in (
        (size // width, 0, width),
        (1 if size % width else 0, size - size % width, size % width),
    ):
        at_once = max(1, min(most // max(1, extent), ROUND_BYTES // _places_bytes(one)))
        for start in range(0, count * cells, at_once):
            number = np.arange(start, min(start + at_once, count * cells))
            piece, shift = number // cells, (begin + number % cells * extent) * itemsize
            if leaves:
                chosen = (number * _SPREAD % (1 << 32) * leaves) >> 32
                owner = shares.process_of[one.leaves[piece, chosen]]
            else:
                owner = shares.process_of[one.targets[piece, 0]]
            yield attrs.evolve(
                one,
                size=extent * itemsize,
                leaves=one.leaves[piece],
                leaf_start=one.leaf_start[piece] + shift[:, None],
                targets=one.targets[piece],
                target_start=one.target_start[piece] + shift[:, None],
                owner=owner,
            )


def _places_bytes(one: MovedPieces) -> int:
    """What it takes to say where one of the pieces comes from and goes."""
    return _PLACE_BYTES * (one.leaves.shape[1] + one.targets.shape[1])


def perform(every: Iterable[MovedPieces], shares: Shares, processes: Processes) -> None:
    """Perform pieces that do not depend on each other; all processes give the same."""
    together: list[MovedPieces] = []
    held = 0
    for one in every:
        crossing = one.size * (one.leaves.shape[1] + min(shares.count, one.targets.shape[1]))
        cost = len(one.owner) * max(crossing, _places_bytes(one))
        if together and held + cost > ROUND_BYTES:
            _round(together, shares, processes)
            together, held = [], 0
        together.append(one)
        held += cost
    if together:
        _round(together, shares, processes)


def _round(every: Sequence[MovedPieces], shares: Shares, processes: Processes) -> None:
    me, everybody = shares.number, range(shares.count)
    # to the owners of pieces
    post = _Post()
    sources = [shares.process_of[one.leaves] for one in every]
    for one, source in zip(every, sources, strict=True):
        owner = one.owner[:, None]
        post.note(source, owner)
        for other in everybody:
            if other == me:
                continue
            piece, leaf = np.nonzero((source == me) & (owner == other))
            if len(piece):
                post.send(other, one.read(piece, leaf))
            post.expect(other, int(((source == other) & (owner == me)).sum()) * one.size)
    post.exchange(processes)
    values = []
    for one, source in zip(every, sources, strict=True):
        own = np.flatnonzero(one.owner == me)
        leaves = np.empty((one.leaves.shape[1], len(own), one.size), np.uint8)
        for other in everybody:
            piece, leaf = np.nonzero(source[own] == other)
            if len(piece):
                leaves[leaf, piece] = (
                    one.read(own[piece], leaf)
                    if other == me
                    else post.take(other, len(piece), one.size)
                )
        values.append((own, one.compute(leaves) if len(own) else leaves[:0].reshape(0, one.size)))
    # to the processes of targets
    post = _Post()
    for one, (own, value) in zip(every, values, strict=True):
        goes_to = _processes_of(one.targets, shares)
        for other in everybody:
            is_there = (goes_to == other).any(axis=1)
            post.note(one.owner[is_there], other)
            if other == me:
                for sender in everybody:
                    if sender != me:
                        post.expect(
                            sender, int((is_there & (one.owner == sender)).sum()) * one.size
                        )
            elif is_there[own].any():
                post.send(other, value[is_there[own]])
    post.exchange(processes)
    for one, (own, value) in zip(every, values, strict=True):
        is_own = _processes_of(one.targets, shares) == me
        one.write(own, value, is_own)
        for other in everybody:
            if other != me:
                piece = np.flatnonzero(is_own.any(axis=1) & (one.owner == other))
                if len(piece):
                    one.write(piece, post.take(other, len(piece), one.size), is_own)


def _processes_of(ranks: np.ndarray, shares: Shares) -> np.ndarray:
    """The process of each rank, -1 where there is none."""
    return np.where(ranks < 0, -1, shares.process_of[ranks])


class _Post:
    """What is sent and received in one exchange, in the order of pieces."""

    def __init__(self) -> None:
        self._sent: dict[int, list[np.ndarray]] = {}
        self._received: dict[int, int] = {}
        self._taken: dict[int, int] = {}
        self._data: Mapping[int, np.ndarray] = {}
        self._crosses = False  # for any processes: then all take part

    def note(self, source: np.ndarray, target: np.ndarray | int) -> None:
        """Something goes from these processes to those."""
        self._crosses |= bool((source != target).any())

    def send(self, process: int, data: np.ndarray) -> None:
        self._sent.setdefault(process, []).append(data.reshape(-1))

    def expect(self, process: int, size: int) -> None:
        if size:
            self._received[process] = self._received.get(process, 0) + size

    def exchange(self, processes: Processes) -> None:
        if self._crosses:
            sent = {process: np.concatenate(parts) for process, parts in self._sent.items()}
            self._data = processes.exchange(sent, self._received)

    def take(self, process: int, count: int, size: int) -> np.ndarray:
        """The next of what a process has sent, (count, size)."""
        start = self._taken.get(process, 0)
        self._taken[process] = start + count * size
        return self._data[process][start : start + count * size].reshape(count, size)
