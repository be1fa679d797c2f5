"""A collective before it is placed: everything the program says of it, nothing of the wiring."""

import enum

import attrs

from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.groups import Groups
from ncc_runtime.neff.reductions import Reduction


class CollectiveOp(enum.Enum):
    """The collective operators of the instruction stream; the value is the XLA name."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    PERMUTE = "collective-permute"

    @property
    def reduces(self) -> bool:
        """Whether it combines values, and so needs a reduction."""
        return self in (CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE_SCATTER)


_INT64 = attrs.validators.optional(
    attrs.validators.and_(attrs.validators.ge(-(2**63)), attrs.validators.lt(2**63))
)


@attrs.frozen
class Placeholder:
    """One PTC2: a collective whose transfers are unknown until it is placed.

    operands[k] and results[k] are tensor ids of one member of a coalesced operator. Buffers are
    split into as many equal byte ranges (chunks) as the group has members: all-gather writes chunk
    j from group member j, reduce-scatter leaves chunk j at member j, all-to-all sends chunk j to
    member j. `groups` holds flattened rank ids and covers every rank once; for a permute it is
    empty and `pairs` holds (source, target), ranks that are no target receive zeros.
    """

    op: CollectiveOp
    dtype: DType
    operands: tuple[int, ...]
    results: tuple[int, ...]
    reduction: Reduction | None = None
    groups: Groups = ()
    pairs: tuple[tuple[int, int], ...] = ()
    stream: int = 0
    in_place: bool = False  # results[k] lies where operands[k] lies
    channel_id: int | None = attrs.field(default=None, validator=_INT64)
    name: str = ""  # of the graph node it was made from
