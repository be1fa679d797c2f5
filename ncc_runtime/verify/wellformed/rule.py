"""What a rule is, and what rules look at: queues by kind, columns as whole arrays.

A column has a cell for every row of a queue and every rank, tens of millions in a large program.
Rules compare whole columns and name the first wrong cell. Two things keep that fast. Most columns
repeat along the ranks; `narrowed` they have one cell a row, which broadcasts where another column
varies. And `search` looks at blocks of rows whose temporary arrays stay in cache.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Literal

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
from ncc_runtime.verify.counters import narrowed
from ncc_runtime.verify.places import breach_at, place_of
from ncc_runtime.verify.proof import Breach
from ncc_runtime.verify.stage_parts import StagePart, parts_of

BLOCK_CELLS = 1 << 17
"""Cells that are compared at a time."""

Mask = np.ndarray | Literal[False]
"""Which cells of some rows are wrong; False: none."""


def at(column: np.ndarray, row: int, rank: int) -> int:
    """One cell of a column that may have size 1 along a dimension."""
    return int(column[row if len(column) > 1 else 0, rank if column.shape[1] > 1 else 0])


def search(test: Callable[..., Mask], *columns: np.ndarray) -> np.ndarray:
    """Which cells are wrong, (n or 1, ranks or 1); `test` sees the columns block by block."""
    narrow = [narrowed(column) for column in columns]
    shape = np.broadcast_shapes(*(column.shape for column in narrow))
    wrong: np.ndarray = np.zeros((1, 1), bool)
    step = max(1, BLOCK_CELLS // max(1, math.prod(shape[1:])))
    for first in range(0, shape[0], step):
        rows = slice(first, first + step)
        mask = test(*(column if len(column) == 1 else column[rows] for column in narrow))
        if mask is not False and mask.any():
            wrong = np.zeros(shape, bool) if wrong.shape != shape else wrong
            wrong[rows] = mask
    return wrong


@attrs.frozen(eq=False)
class RingSubject:
    """A DMA ring and its place among the queues."""

    number: int  # in Executable.queues
    queue: DmaQueue

    @property
    def active(self) -> np.ndarray:
        """Which cells hold a transfer, (n, ranks or 1): those that wait for the ring's tail."""
        return narrowed(self.queue.sync.wait_sem) != IDLE

    @property
    def sources(self) -> Sequence[np.ndarray]:
        """The first source of every row, the second …; each (n, ranks)."""
        return list(np.moveaxis(self.queue.sources, -1, 0))

    @property
    def owners(self) -> Sequence[np.ndarray]:
        """In whose memory each of `sources` lies; none: the rank's own."""
        owners = self.queue.source_rank
        return [] if owners is None else list(np.moveaxis(owners, -1, 0))

    @property
    def targets(self) -> Sequence[tuple[np.ndarray, np.ndarray]]:
        """The first destination of every row, and the second if any: address, and whose memory."""
        queue = self.queue
        if queue.second_target is None or queue.second_peer is None:
            return [(queue.target, queue.peer)]
        return [(queue.target, queue.peer), (queue.second_target, queue.second_peer)]


@attrs.frozen(eq=False)
class Subject:
    """What rules look at: an executable, or one stage of it."""

    executable: Executable
    engines: tuple[tuple[int, EngineQueue], ...]  # with their places in Executable.queues
    programs: tuple[tuple[int, CcQueue], ...]
    rings: tuple[RingSubject, ...]
    everybody: np.ndarray  # (1, ranks) int32
    part: StagePart | None = None  # whose cells alone are looked at; None: everybody's

    @classmethod
    def of(cls, executable: Executable, part: StagePart | None = None) -> "Subject":
        """All of an executable, or what its `part` says."""
        queues = tuple(enumerate(executable.queues))
        return cls(
            executable=executable,
            engines=tuple((k, one) for k, one in queues if isinstance(one, EngineQueue)),
            programs=tuple((k, one) for k, one in queues if isinstance(one, CcQueue)),
            rings=tuple(RingSubject(k, one) for k, one in queues if isinstance(one, DmaQueue)),
            everybody=np.arange(executable.ranks, dtype=np.int32)[None, :],
            part=part,
        )

    @cached_property
    def stages(self) -> tuple["Subject", ...]:
        """Each stage by itself; a program alone is looked at as it is."""
        if len(self.executable.stages) == 1:
            return (self,)
        return tuple(Subject.of(part.executable, part) for part in parts_of(self.executable))

    @property
    def label(self) -> str:
        """Of a stage; "" for a whole executable."""
        return self.part.label if self.part else ""

    @property
    def first_rank(self) -> int:
        """The first rank that is looked at."""
        return int(self.part.ranks[0]) if self.part else 0

    def takes_part(self, placeholder: int) -> bool:
        """Whether those who are looked at take part in a collective; they do all or none (W1)."""
        ranks = participants(self.executable.program.placeholders[placeholder])
        return ranks is None or self.first_rank in ranks

    @property
    def streams(self) -> Mapping[int, StreamFacts]:
        """What is known of every stream, by its number."""
        return {facts.stream: facts for facts in self.executable.streams}

    def rings_of(self, stream: int) -> tuple[RingSubject, ...]:
        """The rings of a stream."""
        return tuple(ring for ring in self.rings if ring.queue.stream == stream)

    def at_cells(
        self, queue: int, wrong: np.ndarray, fact: Callable[[int, int], str]
    ) -> Iterator[Breach]:
        """The first of the cells that are wrong, (n or 1, ranks or 1), and how many there are."""
        if self.part is not None:
            wrong = wrong & np.isin(self.everybody, self.part.ranks)
        if not wrong.any():
            return
        row, rank = (int(one) for one in np.unravel_index(int(wrong.argmax()), wrong.shape))
        rows = len(self.executable.queues[queue].sync.wait_sem)
        count = np.count_nonzero(np.broadcast_to(wrong, (rows, self.executable.ranks)))
        more = f"; {count} cells are like this" if count > 1 else ""
        yield self.at_cell(queue, row, rank, f"{fact(row, rank)}{more}")

    def at_rows(
        self, queue: int, wrong: np.ndarray, fact: Callable[[int], str]
    ) -> Iterator[Breach]:
        """The first of the rows that are wrong on every rank, (n,), and how many there are."""
        if not wrong.any():
            return
        row, count = int(wrong.argmax()), np.count_nonzero(wrong)
        more = f"; {count} rows are like this" if count > 1 else ""
        yield self.at_cell(queue, row, self.first_rank, f"{fact(row)}{more}")

    def at_cell(self, queue: int, row: int, rank: int, fact: str) -> Breach:
        """What is wrong in one cell; the rule puts its id before it."""
        place = place_of(self.executable, queue, row, rank)
        return breach_at(self.executable, "", f"{place}: {fact}", (queue, row, rank))


Find = Callable[[Subject], Iterator[Breach | str]]
"""Yields what breaks a rule: a record, or words where no single row is to blame."""


@attrs.frozen
class FormRule:
    """A numbered rule; the id is the same in messages, docs/proofs.md and tests."""

    id: str
    find: Find
    is_of_all: bool  # asked of all stages together, else of each by itself

    def breaches(self, subject: Subject) -> Iterator[Breach]:
        """Every breach, queue by queue, each with the rule's id before it."""
        for one in (subject,) if self.is_of_all else subject.stages:
            title = f"{self.id} {one.part.title}" if one.part else f"{self.id} "
            for fault in self.find(one):
                breach = fault if isinstance(fault, Breach) else Breach("", fault)
                # a part numbers its own queues, a breach those of the executable
                cells = tuple(
                    attrs.evolve(cell, queue=one.part.queues[cell.queue]) if one.part else cell
                    for cell in breach.cells
                )
                yield attrs.evolve(breach, rule=self.id, text=f"{title}{breach}", cells=cells)


def rule(identifier: str, *, is_of_all: bool = False) -> Callable[[Find], FormRule]:
    """Turn a function into the rule of that id."""
    return lambda find: FormRule(identifier, find, is_of_all)


def rule_of_programs(
    identifier: str,
) -> Callable[[Callable[[Subject, int, CcQueue], Iterator[Breach | str]]], FormRule]:
    """Turn a function that looks at one CC-core program, with its number, into a rule."""
    return lambda find: FormRule(
        identifier,
        lambda subject: (
            fault for number, queue in subject.programs for fault in find(subject, number, queue)
        ),
        is_of_all=False,
    )


def rule_of_rings(
    identifier: str,
) -> Callable[[Callable[[Subject, RingSubject], Iterator[Breach | str]]], FormRule]:
    """Turn a function that looks at one DMA ring into a rule."""
    return lambda find: FormRule(
        identifier,
        lambda subject: (fault for ring in subject.rings for fault in find(subject, ring)),
        is_of_all=False,
    )
