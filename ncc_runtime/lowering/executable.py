"""The executable: for every rank and queue, instructions, descriptors and semaphores.

Queues are programs of all ranks at once: columns are [row, rank]. A column that does not vary along
a dimension may have size 1 there. IDLE (-1) in a cell means that this rank does nothing there.

Where only times are wanted, columns may be of the first instance's ranks alone, which stand for all
ranks; they still name ranks of other instances. Such an executable is symmetry-reduced.
"""

import enum
from collections.abc import Mapping
from functools import cached_property
from types import MappingProxyType

import attrs
import numpy as np

from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.cc_isa import DESCRIPTOR_BYTES
from ncc_runtime.lowering.channels import Channels
from ncc_runtime.neff.isa import Engine
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.stages import Stage, stages_of
from ncc_runtime.neff.table import InstrTable
from ncc_runtime.options import Policy
from ncc_runtime.placement import Placement
from ncc_runtime.topology.graph import Topology
from ncc_runtime.topology.routes import Routes

IDLE = -1


@attrs.frozen(eq=False)
class Post:
    """One semaphore increment of every row: on which rank, which semaphore."""

    rank: np.ndarray  # (n, ranks) int32, IDLE for none
    sem: np.ndarray  # (n, ranks) int32


@attrs.frozen(eq=False)
class Sync:
    """What a row waits for before it starts, and what it increments when it is complete."""

    wait_sem: np.ndarray  # (n, ranks or 1) int32, IDLE for none; a semaphore of that rank
    wait_value: np.ndarray  # (n, ranks or 1) int32 or int64
    posts: tuple[Post, ...]


class Decision(enum.Enum):
    """When a control row jumps."""

    TEST = "test"  # where the predicate does not hold
    CASE = "case"  # where the predicate selects another branch
    ALWAYS = "always"


@attrs.frozen(eq=False)
class Jump:
    """Where a row may jump to.

    A rank that jumps adds `shift` to every value it waits for from then on: values count as if
    each block ran once, and rows it skips or repeats make fewer or more increments.
    """

    target: int  # row
    block: int  # of Program.blocks
    decision: Decision
    shift: np.ndarray  # (ranks or 1, semaphores) int64


@attrs.frozen(eq=False)
class EngineQueue:
    """One compute engine: the program's own table, its placeholders patched into triggers."""

    name: str
    engine: Engine
    table: InstrTable
    sync: Sync
    jumps: Mapping[int, Jump]  # by row
    ranks: np.ndarray | None = None  # that run it; None: all


@attrs.frozen(eq=False)
class RegisterLoad:
    """What a LOAD reads: a table of whole numbers, into registers of the stream's CC-core."""

    address: np.ndarray  # (ranks or 1,) int64
    words: int
    dtype: DType
    first: int  # register that gets the first word


@attrs.frozen(eq=False)
class CcQueue:
    """A CC-core program: one per stream."""

    name: str
    stream: int
    opcode: np.ndarray  # (n,) uint8, CcOpcode
    placeholder: np.ndarray  # (n,) int32
    round: np.ndarray  # (n,) int32, of the plan; IDLE outside
    ring: np.ndarray  # (n,) int32, the lane of the DMA ring that an ADVANCE moves
    ring_row: np.ndarray  # (n,) int32, the run of descriptors that an ADVANCE pushes
    sync: Sync
    jumps: Mapping[int, Jump]  # by row
    ranks: np.ndarray | None = None  # that run it; None: all
    loads: Mapping[int, RegisterLoad] = MappingProxyType({})  # by row


@attrs.frozen(eq=False)
class Registers:
    """Which length registers of its CC-core a run of descriptors uses; IDLE for none.

    What they hold counts rows of the operand of the placeholder.
    """

    rows: np.ndarray  # (n, ranks) int32: how many it moves
    source: np.ndarray  # (n, ranks) int32: added to the addresses of its sources
    target: np.ndarray  # (n, ranks) int32: added to the address of its target

    @property
    def columns(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All of them."""
        return self.rows, self.source, self.target


@attrs.frozen(eq=False)
class DmaQueue:
    """A DMA ring: runs of descriptors, sent by the rank of the column to `peer`.

    The ring performs what its CC-core pushes, in that order: in a loop a row runs many times.
    Waited values are those of rows that run once.
    """

    name: str
    stream: int
    lane: int
    opcode: np.ndarray  # (n,) uint8, DmaOpcode
    placeholder: np.ndarray  # (n,) int32
    round: np.ndarray  # (n,) int32
    divisor: np.ndarray  # (n,) int32, of what is joined, before it is rounded
    peer: np.ndarray  # (n, ranks) int32, IDLE: no transfer in this cell
    sources: np.ndarray  # (n, ranks, k) int64, addresses, IDLE beyond the count
    target: np.ndarray  # (n, ranks) int64, address in the peer's memory
    size_bytes: np.ndarray  # (n, ranks) int32, or int64 if some need it
    sync: Sync  # posts: arrival at `peer`, completion, arrival at `second_peer` if any, others
    source_rank: np.ndarray | None = None  # (n, ranks, k) int32, in whose memory; None: its rank's
    second_peer: np.ndarray | None = None  # (n, ranks) int32, who gets the same bytes; IDLE: nobody
    second_target: np.ndarray | None = None  # (n, ranks) int64, address in that peer's memory
    registers: Registers | None = None  # None: every run moves its size
    ranks: np.ndarray | None = None  # that run it; None: all

    def bytes_of(self, row: np.ndarray, rank: np.ndarray) -> np.ndarray:
        """What the transfers of rows move that ranks send, int64; at most, where sizes vary."""
        sizes = np.broadcast_to(self.size_bytes, self.peer.shape)  # a column, where all have one
        return np.asarray(sizes[row, rank], np.int64)


def descriptors(size_bytes: np.ndarray) -> np.ndarray:
    """How many descriptors runs of these sizes have; a signal without data is one."""
    return -(-np.maximum(size_bytes, 1) // DESCRIPTOR_BYTES)


Queue = EngineQueue | CcQueue | DmaQueue
"""Of one stage; the cells of ranks that run another one are idle."""


def is_run_by(queue: Queue, rank: int) -> bool:
    """Whether that rank runs a queue."""
    return queue.ranks is None or rank in queue.ranks


@attrs.frozen
class LoweredCollective:
    """How a placeholder was filled; one entry per group size, in the order sizes appear."""

    algorithms: tuple[str, ...]
    group_sizes: tuple[int, ...]
    is_beyond_policy: bool = False  # as nothing that the policy takes can run

    @property
    def name(self) -> str:
        """The algorithms, each once, as reports and listings print them."""
        return "+".join(dict.fromkeys(self.algorithms))


@attrs.frozen(eq=False)
class StreamFacts:
    """The semaphores and memory of one stream, for listings and checks."""

    stream: int
    trigger_sem: int
    rings: dict[int, tuple[int, int]]  # lane → (tail semaphore, completion semaphore)
    channels: Channels
    scratch_address: int
    scratch_bytes: int


@attrs.frozen(eq=False, repr=False)
class Executable:
    """A program on its placement: every queue of every rank, ready to be proved and run."""

    program: Program
    topology: Topology
    placement: Placement
    routes: Routes
    queues: tuple[Queue, ...]
    lowered: tuple[LoweredCollective, ...]  # per placeholder
    streams: tuple[StreamFacts, ...]
    semaphore_count: int  # ids 0..count-1 on every rank; the program's own come first
    hbm_bytes: int  # of one rank: the program's memory and the channel buffers
    representatives: int  # ranks 0..representatives-1 have columns: all, or those of one instance
    has_addresses: bool = True  # of what transfers read and write; without, it can be timed only
    ignores_memory: bool = False  # it takes more memory than a rank has; timed all the same
    policy: Policy = Policy.NEURON  # by which algorithms were chosen, where none was forced
    is_deterministic: bool = False  # collectives reduce in the order of their groups

    def __repr__(self) -> str:
        return f"<Executable: {self.program.name}, {len(self.queues)} queues, {self.placement}>"

    @property
    def ranks(self) -> int:
        """Number of ranks."""
        return self.program.ranks

    def check_is_whole(self) -> None:
        """LoweringError if some ranks have no columns of their own, or transfers no addresses."""
        if self.representatives < self.ranks or not self.has_addresses:
            what = "transfers have no addresses"
            if self.representatives < self.ranks:
                what = (
                    f"{self.representatives} of {self.ranks} ranks have columns, they stand for all"
                )
            raise LoweringError(
                f"{self.program.name} was filled for its times only: {what}; "
                "load it without times_only"
            )

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The programs that run together, and their ranks; mostly one that all ranks run."""
        return stages_of(self.program)

    def stage_of(self, rank: int) -> Stage:
        """The stage that a rank runs."""
        return next(stage for stage in self.stages if rank in stage.ranks)

    def semaphore_names(self, rank: int) -> dict[int, str]:
        """What each semaphore of a rank counts, for people."""
        of_program = self.stage_of(rank).program.semaphores
        names = {index: sem.name for index, sem in enumerate(of_program)}
        for facts in self.streams:
            names[facts.trigger_sem] = f"trigger{facts.stream}"
            for lane, (tail, sent) in facts.rings.items():
                names[tail] = f"cc{facts.stream}.tail{lane}"
                names[sent] = f"cc{facts.stream}.sent{lane}"
            names |= {sem: f"cc{facts.stream}.{what}" for sem, what in facts.channels.names(rank)}
        return names
