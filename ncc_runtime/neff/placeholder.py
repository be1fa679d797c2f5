"""A collective before it is placed: what the program says of it, nothing of the wiring."""

import enum

import attrs

from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.groups import Groups
from ncc_runtime.neff.shared.reductions import Reduction


class CollectiveOp(enum.Enum):
    """The collective operators of the instruction stream; the value is the name in the graph."""

    ALL_REDUCE = "all-reduce"
    ALL_GATHER = "all-gather"
    REDUCE_SCATTER = "reduce-scatter"
    ALL_TO_ALL = "all-to-all"
    PERMUTE = "collective-permute"
    BROADCAST = "collective-broadcast"
    REDUCE = "ncc.reduce"
    GATHER = "ncc.gather"
    SCATTER = "ncc.scatter"
    BARRIER = "ncc.barrier"
    RAGGED_ALL_TO_ALL = "ragged-all-to-all"
    ALL_GATHER_V = "ncc.all_gather_v"
    REDUCE_SCATTER_V = "ncc.reduce_scatter_v"
    ALL_TO_ALL_V = "ncc.all_to_all_v"

    @property
    def reduces(self) -> bool:
        """Whether it combines values, and so needs a reduction."""
        return self in (
            CollectiveOp.ALL_REDUCE,
            CollectiveOp.REDUCE_SCATTER,
            CollectiveOp.REDUCE,
            CollectiveOp.REDUCE_SCATTER_V,
        )

    @property
    def is_counted(self) -> bool:
        """Whether it is of variable size: tensors say, when it runs, how many rows it moves."""
        return self in (
            CollectiveOp.RAGGED_ALL_TO_ALL,
            CollectiveOp.ALL_GATHER_V,
            CollectiveOp.REDUCE_SCATTER_V,
            CollectiveOp.ALL_TO_ALL_V,
        )

    @property
    def is_rooted(self) -> bool:
        """Whether one member of each group sends all, or receives all."""
        return self in (
            CollectiveOp.BROADCAST,
            CollectiveOp.REDUCE,
            CollectiveOp.GATHER,
            CollectiveOp.SCATTER,
        )

    @property
    def takes_groups_of_any_sizes(self) -> bool:
        """Whether the sizes of its buffers do not depend on the size of the group."""
        return self in (
            CollectiveOp.ALL_REDUCE,
            CollectiveOp.BROADCAST,
            CollectiveOp.REDUCE,
            CollectiveOp.BARRIER,
        )


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

    Rooted operators have a `root`, its place in each group. It gives its operand to all
    (broadcast) or chunk j of it to member j (scatter), or gets the reduction or all operands
    (gather) in its result; then the results of the others are zeros. The groups of a broadcast
    need not cover the ranks; ranks in none receive zeros. A barrier has no tensors.

    Operators of variable size have `counts`: tensors that say, when it runs, how many rows of
    dimension 0 go from where to where. ragged-all-to-all has four, the offsets in the operand, the
    rows sent, the offsets in the target's result and the rows received, with equally many entries
    for each member of the group. The others have one, [3, members]: rows sent to each member, their
    offsets in the operand, rows received from each. There a result is split into one slot a member,
    except that reduce-scatter's is one slot. What is not received stays in the result as it was.
    """

    op: CollectiveOp
    dtype: DType
    operands: tuple[int, ...]
    results: tuple[int, ...]
    reduction: Reduction | None = None
    groups: Groups = ()
    pairs: tuple[tuple[int, int], ...] = ()
    root: int | None = None
    stream: int = 0
    in_place: bool = False  # results[k] lies where operands[k] lies
    counts: tuple[int, ...] = ()  # of a counted operator
    channel_id: int | None = attrs.field(default=None, validator=_INT64)
    name: str = ""  # of the graph node it was made from


def even_share(most: int, entries: int, row_bytes: int) -> int:
    """Assumed bytes of a transfer of variable size, where counts are not known.

    Whole rows, as if the transfers of all entries of a rank's tables moved what one could.
    """
    return -(-most // max(1, entries * row_bytes)) * row_bytes
