"""Reductions of more sources than one descriptor takes: joined from left to right, one by one."""

from collections.abc import Sequence

import attrs
import numpy as np

from ncc_runtime.collectives.extents import Scratch
from ncc_runtime.collectives.plan import Piece, Space, Transfer
from ncc_runtime.collectives.stages import Track

MOST_SOURCES = 16
"""Sources of one descriptor; assumed: AWS publishes no limit of its reducing descriptors."""


@attrs.frozen(eq=False)
class Join:
    """Pieces of every member's memory, joined into a piece of its own."""

    sources: Sequence[Piece]
    target: Piece
    size_bytes: np.ndarray  # (members,) int64
    home: np.ndarray  # (members,) int32, everybody at itself


def chained(
    join: Join, track: Track, scratch: Scratch, parts: int, turn: int = 0
) -> list[Transfer]:
    """Transfers that each wait for the one before; the last one divides and writes the target."""
    mine, sources = join.home, list(join.sources)
    moves = []
    while len(sources) > MOST_SOURCES:
        at = scratch.take(int(join.size_bytes.max(initial=0)))
        sum_so_far = Piece(Space.SCRATCH, np.full(len(join.size_bytes), at, np.int64))
        first = tuple(sources[:MOST_SOURCES])
        moves.append(track.transfer(mine, first, sum_so_far, join.size_bytes, turn))
        sources[:MOST_SOURCES] = [sum_so_far]
    last = track.transfer(mine, tuple(sources), join.target, join.size_bytes, turn)
    return [*moves, attrs.evolve(last, divisor=parts)]
