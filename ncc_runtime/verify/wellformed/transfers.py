"""DMA transfers: descriptors, memory, completions, registers (exe-W9, 10, 17 to 19, 22 to 24).

A cell of a ring is a run of descriptors: sources in its rank's memory, or that of a rank on its
chip, one destination or two, an opcode that joins the sources, and posts that report completion.
What a cell says must be something that a DMA engine can perform, within memories that exist, and
its completion must be reported to whoever gets the bytes: the proof of races rests on that.
"""

import functools
from collections.abc import Iterator

import attrs
import numpy as np

from ncc_runtime.lowering.cc_isa import CcOpcode, DmaOpcode
from ncc_runtime.lowering.executable import IDLE, CcQueue, DmaQueue
from ncc_runtime.verify.proof import Breach, Cell
from ncc_runtime.verify.wellformed.rule import (
    Mask,
    RingSubject,
    Subject,
    at,
    rule_of_programs,
    rule_of_rings,
    search,
)

MOST_SOURCES = 16
"""Source: AWS Neuron SDK docs, work-with-neff-files.rst (`from_arr` of a compute descriptor)."""

_LEAST = {DmaOpcode.COPY: 1, DmaOpcode.REDUCE: 1, DmaOpcode.FILL: 0}
_MOST = {DmaOpcode.COPY: 1, DmaOpcode.REDUCE: MOST_SOURCES, DmaOpcode.FILL: 0}


# ---- opcodes and sources


@rule_of_rings("exe-W9")
def opcodes_fit_sources(subject: Subject, ring: RingSubject) -> Iterator[Breach]:
    """A copy has one source, a reduction some, a fill none; all of a row as many, without gaps."""
    queue = ring.queue
    least, most = (
        np.array([limits[one] for one in DmaOpcode], np.int8)[queue.opcode][:, None]
        for limits in (_LEAST, _MOST)
    )

    def wrong(
        active: np.ndarray, least: np.ndarray, most: np.ndarray, *sources: np.ndarray
    ) -> np.ndarray:
        count: np.ndarray = np.zeros((1, 1), np.int8)
        gap: np.ndarray = np.zeros((1, 1), bool)
        for before, source in enumerate(sources):
            is_there = source != IDLE
            gap = gap | (is_there & (count != before))
            count = count + is_there
        uneven = count != count.max(axis=1, keepdims=True)
        return active & (uneven | gap | (count < least) | (count > most))

    def fact(row: int, rank: int) -> str:
        there = np.flatnonzero(queue.sources[row, rank] != IDLE)
        gap = "" if (there == np.arange(len(there))).all() else " with a gap"
        count, widest = len(there), int((queue.sources[row] != IDLE).sum(axis=1).max())
        due = f"must be {least[row, 0]} to {most[row, 0]}"
        if least[row, 0] <= count <= most[row, 0] and not gap:
            due = f"others of its row have {widest}"
        return f"{_opcode(queue, row)} of {count} sources{gap}, {due}"

    wrong_cells = search(wrong, ring.active, least, most, *ring.sources)
    yield from subject.at_cells(ring.number, wrong_cells, fact)
    yield from subject.at_rows(
        ring.number,
        (queue.divisor < 1) | ((queue.divisor > 1) & (queue.opcode != DmaOpcode.REDUCE)),
        lambda row: f"{_opcode(queue, row)} divides by {queue.divisor[row]}",
    )


def _opcode(queue: DmaQueue, row: int) -> str:
    return DmaOpcode(int(queue.opcode[row])).name.lower()


# ---- completions


@rule_of_rings("exe-W10")
def completions_are_reported(subject: Subject, ring: RingSubject) -> Iterator[Breach | str]:
    """One post for each destination, on its rank, and one for the ring's own count of runs.

    The posts of a ring are, in order, for the first peer, for the own CC-core, for the second peer
    if there are second peers; a cell without a transfer posts nothing.
    """
    queue, posts = ring.queue, ring.queue.sync.posts
    second = queue.second_peer
    needed = 2 if second is None else 3
    if len(posts) < needed:
        yield f"queue {queue.name}: {len(posts)} posts a row, must be {needed} at least"
        return
    peer = queue.peer
    yield from subject.at_cells(
        ring.number,
        search(lambda active, peer: active != (peer != IDLE), ring.active, peer),
        lambda row, rank: (
            "waits for its tail without a peer"
            if at(peer, row, rank) == IDLE
            else f"has peer {at(peer, row, rank)}, and does not wait for its tail"
        ),
    )
    own = np.where(ring.active, subject.everybody, np.int32(IDLE))
    yield from _reported(subject, ring.number, peer, posts[0].rank)
    yield from _reported(subject, ring.number, own, posts[1].rank)
    _, sent = subject.streams[queue.stream].rings[queue.lane]
    sem = posts[1].sem
    yield from subject.at_cells(
        ring.number,
        search(lambda sem: (sem != IDLE) & (sem != sent), sem),
        lambda row, rank: f"counts its completion in semaphore {at(sem, row, rank)}, not {sent}",
    )
    if second is not None:
        # a second peer is another rank than the first: two writes of one row have no order
        yield from subject.at_cells(
            ring.number,
            search(
                lambda active, peer, second: (second != IDLE) & (~active | (second == peer)),
                ring.active,
                peer,
                second,
            ),
            lambda row, rank: (
                f"has a second peer, {at(second, row, rank)}, and no first"
                if at(peer, row, rank) == IDLE
                else f"writes twice at rank {at(second, row, rank)}"
            ),
        )
        yield from _reported(subject, ring.number, second, posts[2].rank)
    for post in posts[needed:]:
        wrong = search(lambda active, to: ~active & (to != IDLE), ring.active, post.rank)
        yield from subject.at_cells(ring.number, wrong, lambda *_: "posts without a transfer")


def _reported(
    subject: Subject, number: int, due: np.ndarray, reported: np.ndarray
) -> Iterator[Breach]:
    """A column of posts names the ranks that another one does."""
    if due is reported:
        return
    yield from subject.at_cells(
        number,
        search(lambda due, reported: due != reported, due, reported),
        lambda row, rank: (
            f"its completion is told to rank {at(reported, row, rank)}, not {at(due, row, rank)}"
        ),
    )


# ---- memory


@attrs.frozen(eq=False)
class AddressColumn:
    """A column of addresses, what a transfer does there, and which cells do it."""

    verb: str
    address: np.ndarray  # (n, ranks)
    active: np.ndarray  # (n, ranks or 1) bool
    may_lack: bool = False  # IDLE in an active cell: this source is not there

    def used(self, active: np.ndarray, address: np.ndarray) -> np.ndarray:
        """Which of some cells hold an address."""
        return active & (address != IDLE) if self.may_lack else active


def _addresses(ring: RingSubject) -> Iterator[AddressColumn]:
    (target, _), *second = ring.targets
    yield AddressColumn("writes", target, ring.active)
    for also, peer in second:
        yield AddressColumn("also writes", also, peer != IDLE)
    for column in ring.sources:
        yield AddressColumn("reads", column, ring.active, may_lack=True)


@rule_of_rings("exe-W17")
def addresses_lie_in_memory(subject: Subject, ring: RingSubject) -> Iterator[Breach]:
    """Of every transfer, all bytes that it reads and writes, and its size."""
    size = ring.queue.size_bytes
    yield from subject.at_cells(
        ring.number,
        search(lambda active, size: active & (size < 0), ring.active, size),
        lambda row, rank: f"moves {at(size, row, rank)} bytes",
    )
    for column in _addresses(ring):
        yield from _in_memory(subject, ring, column)


def _in_memory(subject: Subject, ring: RingSubject, column: AddressColumn) -> Iterator[Breach]:
    memory, size = np.int64(subject.executable.hbm_bytes), ring.queue.size_bytes

    def wrong(active: np.ndarray, address: np.ndarray, size: np.ndarray) -> Mask:
        if address.min() >= 0 and int(address.max()) + int(size.max()) <= memory:
            return False
        return column.used(active, address) & ((address < 0) | (address > memory - size))

    yield from subject.at_cells(
        ring.number,
        search(wrong, column.active, column.address, size),
        lambda row, rank: (
            f"{column.verb} {at(size, row, rank)} bytes at {at(column.address, row, rank):#x}, "
            f"memory ends at {memory:#x}"
        ),
    )


@rule_of_rings("exe-W18")
def elements_are_aligned(subject: Subject, ring: RingSubject) -> Iterator[Breach]:
    """Addresses and sizes are multiples of the element of the placeholder."""
    placeholders = subject.executable.program.placeholders
    widths = np.array([one.dtype.size_bytes for one in placeholders], np.int64)
    low = widths[ring.queue.placeholder][:, None] - 1  # bits that must not be set
    sizes = AddressColumn("moves bytes, in all", ring.queue.size_bytes, ring.active)
    for column in (sizes, *_addresses(ring)):
        yield from _aligned(subject, ring.number, column, low)


def _aligned(
    subject: Subject, number: int, column: AddressColumn, low: np.ndarray
) -> Iterator[Breach]:
    def wrong(active: np.ndarray, address: np.ndarray, low: np.ndarray) -> Mask:
        if not np.any(np.bitwise_or.reduce(address, axis=1, keepdims=True) & low):
            return False
        return column.used(active, address) & ((address & low) != 0)

    yield from subject.at_cells(
        number,
        search(wrong, column.active, column.address, low),
        lambda row, rank: (
            f"{column.verb} at {at(column.address, row, rank):#x}, "
            f"no multiple of its element, {int(low[row, 0]) + 1} bytes"
        ),
    )


@rule_of_rings("exe-W19")
def sources_are_on_the_chip(subject: Subject, ring: RingSubject) -> Iterator[Breach]:
    """A ring reads its own rank's memory, or that of a rank on the same chip."""
    for source, owner in zip(ring.sources, ring.owners, strict=False):
        yield from _near(subject, ring.number, source, owner)


def _near(subject: Subject, number: int, source: np.ndarray, owner: np.ndarray) -> Iterator[Breach]:
    chip = subject.executable.placement.chip

    def wrong(source: np.ndarray, owner: np.ndarray) -> np.ndarray:
        elsewhere = chip[np.where(owner == IDLE, subject.everybody, owner)] != chip[None, :]
        return elsewhere | ((source == IDLE) != (owner == IDLE))

    def fact(row: int, rank: int) -> str:
        other = at(owner, row, rank)
        if other == IDLE or at(source, row, rank) == IDLE:
            return f"reads at {at(source, row, rank)} in the memory of rank {other}"
        return f"reads the memory of rank {other} on chip {chip[other]}, it is on {chip[rank]}"

    yield from subject.at_cells(number, search(wrong, source, owner), fact)


@rule_of_rings("exe-W22")
def sources_and_targets_are_disjoint(subject: Subject, ring: RingSubject) -> Iterator[Breach]:
    """What a transfer reads it writes in place or not at all: its descriptors come one by one."""
    owners = ring.owners or [subject.everybody] * len(ring.sources)
    for source, owner in zip(ring.sources, owners, strict=True):
        for target, peer in ring.targets:
            yield from _overlaps(subject, ring, source, owner, target, peer)


def _overlaps(
    subject: Subject,
    ring: RingSubject,
    source: np.ndarray,
    owner: np.ndarray,
    target: np.ndarray,
    peer: np.ndarray,
) -> Iterator[Breach]:
    """Of one column of sources and one of targets, each with whose memory it is."""
    size = ring.queue.size_bytes

    def wrong(
        source: np.ndarray,
        owner: np.ndarray,
        target: np.ndarray,
        peer: np.ndarray,
        size: np.ndarray,
    ) -> Mask:
        is_near = owner == peer
        if not is_near.any():
            return False
        distance = np.abs(source - target)
        is_there = (source != IDLE) & (peer != IDLE)
        return is_near & is_there & (distance > 0) & (distance < size)

    yield from subject.at_cells(
        ring.number,
        search(wrong, source, owner, target, peer, size),
        lambda row, rank: (
            f"reads {at(size, row, rank)} bytes at {at(source, row, rank):#x} and writes them at "
            f"{at(target, row, rank):#x} of rank {at(peer, row, rank)}, which overlap"
        ),
    )


# ---- registers: how many rows a counted collective moves, and where


@rule_of_programs("exe-W23")
def loads_read_memory(subject: Subject, number: int, queue: CcQueue) -> Iterator[Breach]:
    """A LOAD, and no other row, reads a table, which lies in memory."""
    reads = np.zeros(len(queue.opcode), bool)
    reads[[row for row in queue.loads if 0 <= row < len(reads)]] = True
    yield from subject.at_rows(
        number,
        reads != (queue.opcode == CcOpcode.LOAD),
        lambda row: (
            "reads a table and is no load" if reads[row] else "is a load that reads nothing"
        ),
    )
    memory = subject.executable.hbm_bytes
    filled: dict[int, int] = {}  # by placeholder, the registers that its LOADs have filled
    for row, load in sorted(queue.loads.items()):
        number_of = int(queue.placeholder[row]) if 0 <= row < len(reads) else IDLE
        due = filled.get(number_of, 0)
        filled[number_of] = max(due, load.first + load.words)
        size = load.words * load.dtype.size_bytes
        first, last = int(load.address.min()), int(load.address.max())
        if first < 0 or last + size > memory or load.words < 0 or load.first < 0:
            text = (
                f"queue {queue.name}, pc {row}: loads {load.words} words at {first:#x} into "
                f"registers from {load.first} on, memory ends at {memory:#x}"
            )
            yield Breach("", text, (Cell(number, row, subject.first_rank),))
        elif load.first > due:  # the LOAD of register 0 has the tables checked, so it comes first
            text = (
                f"queue {queue.name}, pc {row}: loads registers from {load.first} on, where {due} "
                "are filled: there is a gap"
            )
            yield Breach("", text, (Cell(number, row, subject.first_rank),))


@rule_of_rings("exe-W24")
def registers_are_of_counted_collectives(subject: Subject, ring: RingSubject) -> Iterator[Breach]:
    """Only runs of counted collectives name registers, always the one that says how many rows.

    A LOAD of their stream fills what they name.
    """
    placeholders = subject.executable.program.placeholders
    is_counted = np.array([one.op.is_counted for one in placeholders], bool)
    counted = is_counted[ring.queue.placeholder][:, None] & ring.active
    registers, lacking = ring.queue.registers, "names no register that says how many rows it moves"
    if registers is None:
        yield from subject.at_cells(ring.number, counted, lambda *_: lacking)
        return
    how_many = registers.rows  # numbers of registers
    yield from subject.at_cells(
        ring.number,
        counted != (how_many != IDLE),
        lambda row, rank: (
            f"moves as many rows as register {at(how_many, row, rank)} says"
            if at(how_many, row, rank) != IDLE
            else lacking
        ),
    )
    own = [queue for _, queue in subject.programs if queue.stream == ring.queue.stream]
    loads = [load for queue in own for load in queue.loads.values()]
    known = max((load.first + load.words for load in loads), default=0)
    for column in registers.columns:
        yield from subject.at_cells(
            ring.number,
            (column < IDLE) | (column >= known) | ((column != IDLE) & ~counted),
            functools.partial(_unloaded, column, known),
        )


def _unloaded(column: np.ndarray, known: int, row: int, rank: int) -> str:
    return f"names register {at(column, row, rank)}, {known} are loaded"
