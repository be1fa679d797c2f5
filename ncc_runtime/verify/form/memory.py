"""Memory: capacity, channel buffers, addresses, alignment, and whose memory is read."""

from collections.abc import Iterator

import numpy as np

from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.neff.program import ALIGNMENT
from ncc_runtime.verify.form.columns import Wrong, at, search
from ncc_runtime.verify.form.rule import rule
from ncc_runtime.verify.form.subject import Access, Ring, Subject


@rule("exe-W16", is_of_all=True)
def memory_suffices(subject: Subject) -> Iterator[str]:
    """A rank has its cores' share of their stack; channel buffers lie apart, behind the program."""
    executable, topology = subject.executable, subject.executable.topology
    chip = topology.hbm.stacks * topology.hbm.stack_bytes
    capacity = chip * topology.lnc // topology.cores_per_chip
    if executable.hbm_bytes > capacity and not executable.ignores_memory:
        yield f"{executable.hbm_bytes} bytes of memory, a rank of {topology.name} has {capacity}"
    end = max(stage.program.hbm_bytes for stage in executable.stages)
    owner = "the program"
    if end > executable.hbm_bytes:
        yield f"the program takes {end} bytes of memory, a rank has {executable.hbm_bytes}"
    for facts in sorted(executable.streams, key=lambda facts: facts.scratch_address):
        name = f"the channel buffer of stream {facts.stream}"
        where = f"{name} at {facts.scratch_address:#x}, {facts.scratch_bytes} bytes"
        if facts.scratch_bytes < 0 or facts.scratch_address % ALIGNMENT:
            yield f"{where}: buffers begin at multiples of {ALIGNMENT}"
        if facts.scratch_bytes and facts.scratch_address < end:
            yield f"{where}: overlaps {owner}, which ends at {end:#x}"
        end, owner = max(end, facts.scratch_address + facts.scratch_bytes), name
        if end > executable.hbm_bytes:
            yield f"{where}: ends behind the memory, {executable.hbm_bytes:#x}"


@rule("exe-W17")
def addresses_lie_in_memory(subject: Subject) -> Iterator[str]:
    """Of every transfer, all bytes that it reads and writes, and its size."""
    for ring in subject.rings:
        size = ring.queue.size_bytes
        yield from _sizes(subject, ring, size)
        for access in ring.accesses:
            yield from _in_memory(subject, ring.number, access, size)


def _sizes(subject: Subject, ring: Ring, size: np.ndarray) -> Iterator[str]:
    yield from subject.at_cells(
        ring.number,
        search(lambda active, size: active & (size < 0), ring.active, size),
        lambda row, rank: f"moves {at(size, row, rank)} bytes",
    )


def _in_memory(subject: Subject, number: int, access: Access, size: np.ndarray) -> Iterator[str]:
    memory = np.int64(subject.executable.hbm_bytes)

    def wrong(active: np.ndarray, address: np.ndarray, size: np.ndarray) -> Wrong:
        if address.min() >= 0 and int(address.max()) + int(size.max()) <= memory:
            return False
        used = active & (address != IDLE) if access.may_lack else active
        return used & ((address < 0) | (address > memory - size))

    yield from subject.at_cells(
        number,
        search(wrong, access.active, access.address, size),
        lambda row, rank: (
            f"{access.verb} {at(size, row, rank)} bytes at {at(access.address, row, rank):#x}, "
            f"memory ends at {memory:#x}"
        ),
    )


@rule("exe-W18")
def elements_are_aligned(subject: Subject) -> Iterator[str]:
    """Addresses and sizes are multiples of the element of the placeholder."""
    placeholders = subject.executable.program.placeholders
    widths = np.array([one.dtype.size_bytes for one in placeholders], np.int64)
    for ring in subject.rings:
        low = widths[ring.queue.placeholder][:, None] - 1  # bits that must not be set
        sizes = Access("moves bytes, in all", ring.queue.size_bytes, ring.active)
        for access in (sizes, *ring.accesses):
            yield from _aligned(subject, ring.number, access, low)


def _aligned(subject: Subject, number: int, access: Access, low: np.ndarray) -> Iterator[str]:
    def wrong(active: np.ndarray, address: np.ndarray, low: np.ndarray) -> Wrong:
        if not np.any(np.bitwise_or.reduce(address, axis=1, keepdims=True) & low):
            return False
        used = active & (address != IDLE) if access.may_lack else active
        return used & ((address & low) != 0)

    yield from subject.at_cells(
        number,
        search(wrong, access.active, access.address, low),
        lambda row, rank: (
            f"{access.verb} at {int(at(access.address, row, rank)):#x}, "
            f"no multiple of its element, {int(low[row, 0]) + 1} bytes"
        ),
    )


@rule("exe-W19")
def sources_are_on_the_chip(subject: Subject) -> Iterator[str]:
    """A ring reads its own rank's memory, or that of a rank on the same chip."""
    for ring in subject.rings:
        for source, owner in zip(ring.sources, ring.owners, strict=False):
            yield from _near(subject, ring.number, source, owner)


def _near(subject: Subject, number: int, source: np.ndarray, owner: np.ndarray) -> Iterator[str]:
    chip = subject.executable.placement.chip

    def wrong(source: np.ndarray, owner: np.ndarray) -> np.ndarray:
        elsewhere = chip[np.where(owner == IDLE, subject.everybody, owner)] != chip[None, :]
        return elsewhere | ((source == IDLE) != (owner == IDLE))

    def fact(row: int, rank: int) -> str:
        other = int(at(owner, row, rank))
        if other == IDLE or at(source, row, rank) == IDLE:
            return f"reads at {at(source, row, rank)} in the memory of rank {other}"
        return f"reads the memory of rank {other} on chip {chip[other]}, it is on {chip[rank]}"

    yield from subject.at_cells(number, search(wrong, source, owner), fact)


RULES = (
    memory_suffices,
    addresses_lie_in_memory,
    elements_are_aligned,
    sources_are_on_the_chip,
)
