"""A transfer plan: what the members of a group move, round by round, as data.

A member reads its own memory, or the operand of a member on its chip, and writes at one peer (which
may be itself), or the same bytes at two. In a round every transfer reads the state left by earlier
rounds. A member may start a transfer when everything sent to it in earlier rounds has arrived, or
all of the transfer's strand, or just what the transfer says. Plans name members, 0..members-1;
ranks and addresses come later.

A strand is a part of a plan whose rounds wait for each other and for no other strand: it carries a
slice of every chunk, as a channel of NCCL does. A lane is one of the DMA rings of the stream.
"""

import enum

import attrs
import numpy as np

from ncc_runtime.neff.placeholder import Placeholder
from ncc_runtime.neff.shared.reductions import Reduction

IDLE = -1

LANES = 16
"""DMA rings a stream can use. Source: 16 queues per engine, AWS Neuron docs, nki-dma-overview."""


class Space(enum.Enum):
    """Which memory of a member an offset counts in."""

    OPERAND = "in"  # operands[tensor] of the placeholder
    RESULT = "out"  # results[tensor]
    SCRATCH = "scratch"  # the stream's channel buffer; `tensor` is not used


@attrs.frozen(eq=False)
class Location:
    """Where a transfer reads or writes, per member.

    A source may lie in the memory of another member, `owner`, on the same chip: then in its
    operand, which nobody writes until all that is computed from it is complete.
    """

    space: Space
    offset: np.ndarray  # (members,) int64, bytes
    tensor: int = 0
    owner: np.ndarray | None = None  # (members,) int32: whose operand a source is; None: its own


@attrs.frozen(eq=False)
class SecondTarget:
    """The second target of a transfer, in another member's memory: one read, two writes."""

    peer: np.ndarray  # (members,) int32, IDLE for none
    target: Location


@attrs.frozen(eq=False)
class Dependencies:
    """The transfers that a transfer waits for, instead of all that was sent before.

    Columns name transfers of earlier rounds by number, counted through the plan, IDLE for none.
    Transfers that a member makes into the same lane need no wait, for a ring runs in order. A
    member waits in the order of the plan: what a transfer waited for, its later ones need not.
    """

    arrived: tuple[np.ndarray, ...] = ()  # (members,) int32: that another member wrote here
    sent: tuple[np.ndarray, ...] = ()  # (members,) int32: that the member made itself


@attrs.frozen(eq=False)
class CountEntries:
    """The entries that say how many rows a transfer of a variable-size collective moves, and where.

    Columns name entries of the sender's tables of counts, which are numbered through, table after
    table; IDLE where it makes no transfer. Sizes are the most that there can be.
    """

    rows: np.ndarray  # (members,) int64: the entry that says how many
    source: np.ndarray | None = None  # the entry that says from which row of the operand on
    target: np.ndarray | None = None  # the entry that says to which row of the peer's result on


@attrs.frozen(eq=False)
class Transfer:
    """One transfer of every member; `peer` sends to each member at most once.

    One source is a copy, several are reduced left to right, none fills the target with zeros. The
    transfer that completes the reduction of its bytes has the `divisor` of the job.
    `credit` is how many earlier transfers of this plan and strand on the same channel the peer must
    have consumed before this one may be sent: 0 where the target is free from the start.
    """

    peer: np.ndarray  # (members,) int32: member written to, IDLE for none
    sources: tuple[Location, ...]
    target: Location
    size_bytes: np.ndarray  # (members,) int64
    second_target: SecondTarget | None = None  # the same bytes once more (one read, two writes)
    lane: int = 0  # DMA ring of the stream; a channel is (sender, receiver, lane)
    consumed: np.ndarray | None = None  # (members,) int32: whose slot is free once this has read
    credit: int = 0
    divisor: int = 1  # of the reduced sum, before it is rounded: completes an average
    strand: int | None = None  # waits for arrivals of this strand; None: for all
    after: Dependencies | None = None  # waits for these alone; None: as the strand says
    count: CountEntries | None = None  # of a variable-size collective


@attrs.frozen(eq=False)
class Round:
    """Transfers that do not depend on each other."""

    transfers: tuple[Transfer, ...]


@attrs.frozen
class Symmetry:
    """A symmetry of a group: its first members represent all, in blocks of as many.

    A plan made with it has offsets and sizes of the representatives only; peers are still of all
    members. With a rotation, members are numbered from a later block on. If the plan stays the
    same, that block is equivalent to the first (`symmetry.py`).
    """

    representatives: int
    rotation: int = 0  # how many blocks come last instead of first

    def over_all(self, column: np.ndarray, members: int) -> np.ndarray:
        """A column over representatives, repeated for all that they represent."""
        return np.tile(column, members // self.representatives)


@attrs.frozen(eq=False)
class Plan:
    """All rounds of one placeholder for groups of one size."""

    algorithm: str
    members: int
    rounds: tuple[Round, ...]
    scratch_bytes: int = 0
    symmetry: Symmetry | None = None  # None: columns are of all members
    has_equal_sizes: bool = False  # it is known that equivalent members move as many bytes

    @property
    def columns(self) -> int:
        """How many members have offsets and sizes, the first ones."""
        return self.members if self.symmetry is None else self.symmetry.representatives

    @property
    def transfers(self) -> int:
        """The number of transfers in all rounds."""
        return sum(len(one_round.transfers) for one_round in self.rounds)

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
    row_bytes: int = 0  # of a variable-size collective, of a row of dimension 0
    entries: int = 0  # in a table of ragged-all-to-all


@attrs.frozen
class Job:
    """A placeholder with the sizes of its buffers: the input of every algorithm."""

    placeholder: Placeholder
    buffers: Buffers
    symmetry: Symmetry | None = None  # for times only; algorithms may ignore it


def divisor(job: Job, members: int) -> int:
    """What the transfer divides by that completes the reduction of a chunk."""
    return members if job.placeholder.reduction is Reduction.AVERAGE else 1


def self_peers(members: int) -> np.ndarray:
    """The peer column of local transfers: every member itself, (members,) int32."""
    return np.arange(members, dtype=np.int32)


def columns_of(job: Job, members: int) -> int:
    """How many members have offsets and sizes: the first ones, where these represent all."""
    return members if job.symmetry is None else job.symmetry.representatives
