"""A transfer plan: what the members of a group move, round by round, as data.

A member reads only its own memory and writes at one peer (or at home). In a round every transfer
reads the state left by earlier rounds; a member may start a round when everything sent to it in
earlier rounds has arrived. Plans name members, 0..members-1; ranks and addresses come later.
"""

import enum

import attrs
import numpy as np

from ncc_runtime.neff.placeholder import Placeholder

IDLE = -1


class Space(enum.Enum):
    """Which memory of a member an offset counts in."""

    OPERAND = "in"  # operands[tensor] of the placeholder
    RESULT = "out"  # results[tensor]
    SCRATCH = "scratch"  # the stream's channel buffer; `tensor` is not used


@attrs.frozen(eq=False)
class Piece:
    """Where a transfer reads or writes, per member."""

    space: Space
    offset: np.ndarray  # (members,) int64, bytes
    tensor: int = 0


@attrs.frozen(eq=False)
class Transfer:
    """One transfer of every member; `peer` sends to each member at most once.

    One source is a copy, several are reduced left to right, none fills the target with zeros.
    `credit` is how many earlier transfers of this plan on the same channel the peer must have
    consumed before this one may be sent: 0 where the target is free from the start.
    """

    peer: np.ndarray  # (members,) int32: member written to, IDLE for none
    sources: tuple[Piece, ...]
    target: Piece
    size_bytes: np.ndarray  # (members,) int64
    lane: int = 0  # DMA ring of the stream; a channel is (sender, receiver, lane)
    consumed: np.ndarray | None = None  # (members,) int32: whose slot is free once this has read
    credit: int = 0


@attrs.frozen(eq=False)
class Round:
    """Transfers that do not depend on each other."""

    transfers: tuple[Transfer, ...]


@attrs.frozen(eq=False)
class Plan:
    """All rounds of one placeholder for groups of one size."""

    algorithm: str
    members: int
    rounds: tuple[Round, ...]
    scratch_bytes: int = 0

    @property
    def lanes(self) -> frozenset[int]:
        """Every lane a transfer uses."""
        return frozenset(move.lane for one_round in self.rounds for move in one_round.transfers)


@attrs.frozen
class Buffers:
    """What an algorithm may know of a placeholder: sizes, never addresses or wiring."""

    element_bytes: int
    operand_elements: tuple[int, ...]
    result_elements: tuple[int, ...]
    in_place: bool = False


@attrs.frozen
class Job:
    """A placeholder with the sizes of its buffers: the input of every algorithm."""

    placeholder: Placeholder
    buffers: Buffers


def chunk_edges(elements: int, chunks: int, element_bytes: int) -> np.ndarray:
    """Byte offsets (chunks + 1,) that cut elements into chunks of whole elements.

    The first `elements % chunks` chunks hold one element more than the rest.
    """
    base, extra = divmod(elements, chunks)
    sizes = np.full(chunks, base, np.int64)
    sizes[:extra] += 1
    edges = np.zeros(chunks + 1, np.int64)
    np.cumsum(sizes, out=edges[1:])
    return edges * element_bytes


def home(members: int) -> np.ndarray:
    """The peer column of a transfer that every member makes to itself."""
    return np.arange(members, dtype=np.int32)
