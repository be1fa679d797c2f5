"""Buffers cut into units: columns that agents move, unit by unit and place by place."""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.crews import Crew
from ncc_runtime.collectives.extents import Extent, sliced, whole_chunks
from ncc_runtime.collectives.plan import Job, Space


def by_place(crew: Crew, slices: Sequence[Sequence[Extent]]) -> list[Extent]:
    """Chunks of members, cut into slices: columns are (chip, slice) by place on the chip."""
    number = len(slices)
    member = crew.table[:, None, :].repeat(number, axis=1)  # (chips, slices, places)
    part = np.arange(number)[None, :, None]
    found = []
    for parts in zip(*slices, strict=True):
        offsets = np.stack([one.offsets[0] for one in parts])[part, member]
        sizes = np.stack([one.sizes[0] for one in parts])[part, member]
        found.append(
            attrs.evolve(parts[0], offsets=offsets.reshape(1, -1), sizes=sizes.reshape(1, -1))
        )
    return found


def within_chunks(
    extents: Sequence[Extent], chunks: Sequence[Extent], space: Space
) -> list[Extent]:
    """The same columns where every chunk is in a buffer of its own; `chunks` are whole ones."""
    return [
        extent.moved(space, extent.offsets - chunk.offsets)
        for extent, chunk in zip(extents, chunks, strict=True)
    ]


def by_strand(job: Job, strands: int, shape: tuple[int, int]) -> list[list[Extent]]:
    """Operands cut into strands, planes and units: by strand, columns are units by plane."""
    planes, units = shape
    width = job.buffers.element_bytes
    whole = whole_chunks(Space.OPERAND, job.buffers.operand_elements, strands, width)
    parts = sliced(whole, planes * units, width)
    found: list[list[Extent]] = [[] for _ in range(strands)]
    for tensor, extent in enumerate(whole):
        offsets = np.stack([part[tensor].offsets[0] for part in parts])  # (planes * units, strands)
        sizes = np.stack([part[tensor].sizes[0] for part in parts])
        for strand, extents in enumerate(found):
            at, size = (
                table[:, strand].reshape(planes, units).T.reshape(1, -1)
                for table in (offsets, sizes)
            )
            extents.append(Extent(extent.space, tensor, at, size))
    return found
