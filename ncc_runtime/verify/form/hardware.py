"""What the executable takes of a rank's hardware: its core, semaphores, CC-cores, DMA queues."""

from collections.abc import Iterator

import numpy as np

from ncc_runtime.neff.program import MAX_SEMAPHORES, MAX_STREAMS
from ncc_runtime.verify.form.rule import rule
from ncc_runtime.verify.form.subject import Subject

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


AMOUNTS = (semaphores_suffice, streams_have_cc_cores, rings_have_queues)
