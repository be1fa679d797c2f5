"""The cross-device instruction set: CC-core programs and DMA descriptors of a placed program.

A CC-core runs its program in order; it moves no data, it waits, signals and advances DMA rings.
A DMA ring runs what its CC-core pushes, in order, each run of descriptors once the ring's tail has
been advanced past it. A run of descriptors is built for the most that it can move; where it names
length registers, those say how many rows it moves, and from which and to which row on.
"""

import enum


class CcOpcode(enum.IntEnum):
    """What a row of a CC-core program does after its wait."""

    WAIT = 0  # nothing more
    SIGNAL = 1  # increment a semaphore of another rank
    ADVANCE = 2  # increment the tail semaphore of one of its own DMA rings
    DONE = 3  # increment the engines' semaphore of this stream: the placeholder is complete
    TEST = 4  # leave a loop or go on; acknowledges on the stream's semaphore
    CASE = 5  # skip a branch or go on; acknowledges likewise
    END = 6  # back to the loop's first row
    LOAD = 7  # read a table of counts from memory into its length registers


class DmaOpcode(enum.IntEnum):
    """What a run of descriptors does."""

    COPY = 0  # one source
    REDUCE = 1  # sources joined left to right in float32 (integers wrap), rounded once
    FILL = 2  # no source: zeros


DESCRIPTOR_BYTES = 64 * 1024
"""Largest descriptor; a longer transfer is a run of them. Source: neuron-driver, DMA limits."""
