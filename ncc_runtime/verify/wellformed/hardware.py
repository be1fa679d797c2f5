"""What the executable takes of the hardware, and that it has it (exe-W5 to exe-W8, exe-W16).

A rank's core, semaphores, CC-cores, DMA queues and memory. Limits are worked out here from the
figures of the topology and the driver, not taken from the lowering: it may have them wrong.
"""

from collections.abc import Iterator

import numpy as np

from ncc_runtime.neff.program import ALIGNMENT, MAX_SEMAPHORES, MAX_STREAMS
from ncc_runtime.verify.wellformed.rule import Subject, rule

SEMAPHORES_PER_CC_CORE = 256
"""Source: neuron-driver, v2 and v3 headers (256 semaphores per NeuronCore and per TOP_SP)."""


@rule("exe-W5", is_of_all=True)
def ranks_have_cores_of_their_own(subject: Subject) -> Iterator[str]:
    """The placement names instances, chips and cores that exist, each core once."""
    executable = subject.executable
    topology, place = executable.topology, executable.placement
    columns = (place.node, place.chip, place.core)
    if any(column.shape != (executable.ranks,) for column in columns):
        yield f"{executable.ranks} ranks, {place.ranks} places"
        return
    cores = topology.cores_per_chip // topology.lnc
    limits = (topology.nodes, topology.nodes * topology.chips_per_node, cores)
    for what, column, limit in zip(("node", "chip", "core"), columns, limits, strict=True):
        for rank in np.flatnonzero((column < 0) | (column >= limit))[:1].tolist():
            yield f"rank {rank} is on {what} {column[rank]}, there are {limit}"
    for rank in np.flatnonzero(place.chip // topology.chips_per_node != place.node)[:1].tolist():
        yield f"rank {rank} is on chip {place.chip[rank]}, which is not of node {place.node[rank]}"
    held = place.chip.astype(np.int64) * cores + place.core
    _, first, group = np.unique(held, return_index=True, return_inverse=True)
    for rank in np.flatnonzero(first[group] != np.arange(executable.ranks))[:1].tolist():
        where = f"chip {place.chip[rank]}, core {place.core[rank]}"
        yield f"ranks {first[group[rank]]} and {rank} are both on {where}"


@rule("exe-W6", is_of_all=True)
def semaphores_suffice(subject: Subject) -> Iterator[str]:
    """Engines share those of a core; all others are the CC-cores'."""
    executable, topology = subject.executable, subject.executable.topology
    own = max(len(stage.program.semaphores) for stage in executable.stages)
    if own > MAX_SEMAPHORES:
        yield f"the engines of a rank use {own} semaphores, a core has {MAX_SEMAPHORES}"
    cores = topology.cc_cores_per_core * topology.lnc
    others, limit = executable.semaphore_count - own, SEMAPHORES_PER_CC_CORE * cores
    if others > limit:
        yield (
            f"the streams of a rank use {others} semaphores, its {cores} CC-cores have {limit} "
            f"({SEMAPHORES_PER_CC_CORE} each)"
        )


@rule("exe-W7")
def streams_have_cc_cores(subject: Subject) -> Iterator[str]:
    """Each stream runs on a CC-core of its own."""
    topology = subject.executable.topology
    streams = sorted(queue.stream for _, queue in subject.programs)
    if streams and not 0 <= streams[0] <= streams[-1] < MAX_STREAMS:
        yield f"streams {streams}, they are numbered from 0 to {MAX_STREAMS - 1}"
    cores = topology.cc_cores_per_core * topology.lnc
    if len(streams) > cores:
        yield (
            f"{len(streams)} streams, a rank of {topology.name} at lnc {topology.lnc} has "
            f"{cores} CC-cores, one for each stream at most"
        )


@rule("exe-W8")
def rings_have_queues(subject: Subject) -> Iterator[str]:
    """Each DMA ring is a queue of one of the rank's DMA engines."""
    topology = subject.executable.topology
    engines = topology.dma.engines_per_core * topology.lnc
    queues = engines * topology.dma.rings_per_engine
    if len(subject.rings) > queues:
        yield (
            f"{len(subject.rings)} DMA rings, the {engines} DMA engines of a rank have {queues} "
            f"queues ({topology.dma.rings_per_engine} each)"
        )


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
