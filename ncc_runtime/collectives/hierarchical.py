"""Hierarchical algorithms: a stage inside every instance and one between them.

    all-reduce       reduce-scatter inside, all-reduce between, all-gather inside
    reduce-scatter   inside, then between
    all-gather       between, then inside: what the network carries is not yet copied

Of X instances with Y members each, those of one role inside form a team between instances, Y teams
of X. Each works on its Y-th part of the buffer. Large buffers go in slices, as a pipeline: while one
is between instances, the next is inside.

Source: AWS Neuron docs, internode-collective-comm.rst (order of stages, same-index ranks); nec.h
(intra and inter algorithms, three stages of the pipeline).
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.collectives import mesh, rdh, ring, stages
from ncc_runtime.collectives.extents import Extent, Scratch, alone, renumbered, sliced
from ncc_runtime.collectives.layout import Layout, Members, UnsuitedError
from ncc_runtime.collectives.plan import Job, Plan, Round, Space, divisor
from ncc_runtime.collectives.roles import Roles
from ncc_runtime.collectives.stages import Stage, StageKind, Strand, Track, Wiring

PIPELINE_SLICES = 3
"""Source: nec.h, NEC_HIER_CC_PIPELINE_STAGE_N."""

SLICED_BYTES = 2 * 64 * 1024
"""Least share of a member between instances that is cut into slices; assumed, as for rings."""

LANES = 16
"""DMA rings a stream can use. Source: 16 queues per engine, AWS Neuron docs, nki-dma-overview."""

KINDS: Mapping[str, StageKind] = MappingProxyType(
    {"ring": ring.STAGE, "mesh": mesh.STAGE, "rdh": rdh.STAGE}
)
"""What a stage can be, inside instances and between them."""


@attrs.frozen
class Hierarchy:
    """Orders inside every instance, alike in structure, and the structure between instances."""

    channels: tuple[tuple[Members, ...], ...]  # [channel][instance][role inside]
    inside: object  # forms of the stages
    between: object


def arrange(intra: str, inter: str, layout: Layout) -> Hierarchy:
    """UnsuitedError unless several instances hold as many members each, placed alike."""
    nodes = layout.by_node()
    if len(nodes) == 1:
        raise UnsuitedError("all its members are on one instance")
    if len({len(members) for members in nodes}) > 1:
        raise UnsuitedError("its instances hold different numbers of members")
    inside = [KINDS[intra].arrange(layout.within(members)) for members in nodes]
    if len({wiring.form for wiring in inside}) > 1:
        raise UnsuitedError("its members are not placed alike on every instance")
    orders = [
        [tuple(members[k] for k in order) for order in wiring.orders]
        for members, wiring in zip(nodes, inside, strict=True)
    ]
    first = [channels[0][0] for channels in orders]
    across = KINDS[inter].arrange(layout.within(first))
    channels = tuple(zip(*(orders[node] for node in across.orders[0]), strict=False))
    return Hierarchy(channels, inside[0].form, across.form)


def all_reduce(intra: str, inter: str, job: Job, hierarchy: Hierarchy) -> Plan:
    """Every member sends 2(X-1)/X of a Y-th of the buffer to other instances."""
    return _plan(intra, inter, job, hierarchy, _all_reduce)


def reduce_scatter(intra: str, inter: str, job: Job, hierarchy: Hierarchy) -> Plan:
    """Every member sends (X-1)/X of a Y-th of the operand to other instances."""
    return _plan(intra, inter, job, hierarchy, _reduce_scatter)


def all_gather(intra: str, inter: str, job: Job, hierarchy: Hierarchy) -> Plan:
    """Every member sends X-1 times its operand, or less often what it got, to other instances."""
    return _plan(intra, inter, job, hierarchy, _all_gather)
