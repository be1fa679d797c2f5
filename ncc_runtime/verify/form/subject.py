"""The executable as the rules of form see it: its queues by kind, and cells in words."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import attrs
import numpy as np

from ncc_runtime.lowering.executable import (
    IDLE,
    CcQueue,
    DmaQueue,
    EngineQueue,
    Executable,
    StreamFacts,
)
from ncc_runtime.neff.stages import participants
from ncc_runtime.verify.form.columns import essence
from ncc_runtime.verify.places import place_of
from ncc_runtime.verify.stage_parts import StagePart, parts_of


@attrs.frozen(eq=False)
class Access:
    """A column of addresses, what a transfer does there, and which cells do it."""

    verb: str
    address: np.ndarray  # (n, ranks)
    active: np.ndarray  # (n, ranks or 1) bool
    may_lack: bool = False  # IDLE in an active cell: this source is not there


@attrs.frozen(eq=False)
class Ring:
    """A DMA ring and its place among the queues."""

    number: int  # in Executable.queues
    queue: DmaQueue

    @property
    def active(self) -> np.ndarray:
        """Which cells hold a transfer, (n, ranks or 1)."""
        return essence(self.queue.sync.wait_sem) != IDLE

    @property
    def sources(self) -> Sequence[np.ndarray]:
        """The first source of every row, the second …; each (n, ranks)."""
        return list(np.moveaxis(self.queue.sources, -1, 0))

    @property
    def owners(self) -> Sequence[np.ndarray]:
        """In whose memory the first source of every row lies, the second …; none: the own."""
        owners = self.queue.source_rank
        return [] if owners is None else list(np.moveaxis(owners, -1, 0))

    @property
    def accesses(self) -> Iterator[Access]:
        """Every column of addresses."""
        queue = self.queue
        yield Access("writes", queue.target, self.active)
        if queue.second_target is not None and queue.second_peer is not None:
            yield Access("also writes", queue.second_target, queue.second_peer != IDLE)
        for column in self.sources:
            yield Access("reads", column, self.active, may_lack=True)


@attrs.frozen(eq=False)
class Subject:
    """What rules look at."""

    executable: Executable
    engines: tuple[tuple[int, EngineQueue], ...]
    programs: tuple[tuple[int, CcQueue], ...]
    rings: tuple[Ring, ...]
    everybody: np.ndarray  # (1, ranks) int32
    own: np.ndarray | None = None  # (1, ranks) bool, whose cells are looked at; None: everybody's
    label: str = ""  # of a stage

    @classmethod
    def of(cls, executable: Executable) -> "Subject":
        queues = tuple(enumerate(executable.queues))
        return cls(
            executable=executable,
            engines=tuple((k, one) for k, one in queues if isinstance(one, EngineQueue)),
            programs=tuple((k, one) for k, one in queues if isinstance(one, CcQueue)),
            rings=tuple(Ring(k, one) for k, one in queues if isinstance(one, DmaQueue)),
            everybody=np.arange(executable.ranks, dtype=np.int32)[None, :],
        )

    @cached_property
    def parts(self) -> tuple["Subject", ...]:
        """What rules look at of each stage by itself; a program alone is looked at as it is."""
        if len(self.executable.stages) == 1:
            return (self,)
        return tuple(map(self._of_part, parts_of(self.executable)))

    def _of_part(self, part: StagePart) -> "Subject":
        own = np.isin(self.everybody, part.ranks)
        return attrs.evolve(Subject.of(part.executable), own=own, label=part.label)

    @property
    def title(self) -> str:
        """What stands before the breaches of a stage."""
        return f"{self.label}: " if self.label else ""

    @property
    def first_rank(self) -> int:
        """The first rank that is looked at."""
        return 0 if self.own is None else int(self.own.argmax())

    def takes_part(self, placeholder: int) -> bool:
        """Whether those who are looked at take part in a collective."""
        ranks = participants(self.executable.program.placeholders[placeholder])
        return ranks is None or self.first_rank in ranks

    @property
    def streams(self) -> Mapping[int, StreamFacts]:
        """What is known of every stream, by its number."""
        return {facts.stream: facts for facts in self.executable.streams}

    def rings_of(self, stream: int) -> tuple[Ring, ...]:
        """The rings of a stream."""
        return tuple(ring for ring in self.rings if ring.queue.stream == stream)

    def done_sem(self, stream: int) -> int:
        """The semaphore that counts what a stream has completed; IDLE if nothing waits for it."""
        owners = [semaphore.owner for semaphore in self.executable.program.semaphores]
        owner = f"stream {stream}"
        return owners.index(owner) if owner in owners else IDLE

    def at_cells(
        self, queue: int, wrong: np.ndarray, fact: Callable[[int, int], str]
    ) -> Iterator[str]:
        """The first of the cells that are wrong, (n or 1, ranks or 1), and how many there are."""
        if self.own is not None:
            wrong = wrong & self.own
        if not wrong.any():
            return
        row, rank = (int(one) for one in np.unravel_index(int(wrong.argmax()), wrong.shape))
        rows = len(self.executable.queues[queue].sync.wait_sem)
        count = np.count_nonzero(np.broadcast_to(wrong, (rows, self.executable.ranks)))
        more = f"; {count} cells are like this" if count > 1 else ""
        yield f"{place_of(self.executable, queue, row, rank)}: {fact(row, rank)}{more}"

    def at_rows(self, queue: int, wrong: np.ndarray, fact: Callable[[int], str]) -> Iterator[str]:
        """The first of the rows that are wrong on every rank, (n,), and how many there are."""
        count = int(np.count_nonzero(wrong))
        if not count:
            return
        row = int(wrong.argmax())
        more = f"; {count} rows are like this" if count > 1 else ""
        yield f"{place_of(self.executable, queue, row, self.first_rank)}: {fact(row)}{more}"
