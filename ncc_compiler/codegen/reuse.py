"""Which buffers become one: results lie where dead operands lay, new states where old ones did.

A copy, and an update of a slice, may write where their first operand lies, since elsewhere they
change nothing. So they do, where nobody reads the operand afterwards: then the copy is no
instruction at all, and the update writes its slice. All of it is settled for the steps of a region
(a body, a branch, the entry) once they are known, and for the buffers that belong to it: each run
of the region writes them anew before it reads them.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol

import attrs

from ncc_compiler.codegen.draft import (
    Costs,
    Draft,
    DraftBuffer,
    DraftTensor,
    Mark,
    Step,
    without_moved,
)
from ncc_runtime.neff.isa import CASE, END, LOOP
from ncc_runtime.neff.program import Block, BufferKind

_UPDATE = "dynamic-update-slice"
_IN_PLACE = frozenset({"copy", _UPDATE})


class Made(Protocol):
    """What is made so far."""

    buffers: list[DraftBuffer]
    tensors: list[DraftTensor]
    steps: list[Step]
    marks: list[Mark]
    blocks: list[Block]
    moved: dict[int, int]  # buffers whose contents are in another one from the start


def home_of(made: Made, tensor: int) -> int:
    """The buffer that a tensor lies in, after all moves so far."""
    buffer = made.tensors[tensor].buffer
    while buffer in made.moved:
        buffer = made.moved[buffer]
    return buffer


@attrs.frozen
class Region:
    """What a body, a branch or the entry has made: from the first of each to the last there is."""

    made: Made
    first_step: int
    first_mark: int
    first_buffer: int

    @classmethod
    def starting_here(cls, made: Made) -> "Region":
        return cls(made, len(made.steps), len(made.marks), len(made.buffers))

    def owns(self, buffer: int) -> bool:
        """Whether a buffer is written here before it is read, and of no use behind the end."""
        return buffer >= self.first_buffer and self.made.buffers[buffer].kind is BufferKind.INTERNAL

    def steps(self) -> Iterable[tuple[int, Step]]:
        return enumerate(self.made.steps[self.first_step :], self.first_step)

    def block_starts(self) -> Mapping[int, int]:
        """For the steps in blocks inside of the region, where the outermost block begins."""
        found: dict[int, int] = {}
        depth, since = 0, 0
        for mark in self.made.marks[self.first_mark :]:
            if mark.opcode in (LOOP, CASE):
                since = since if depth else mark.at
                depth += 1
            elif mark.opcode == END:
                depth -= 1
                if not depth:
                    found.update(dict.fromkeys(range(since, mark.at), since))
        return found

    def predicates(self) -> Mapping[int, int]:
        """The buffers that predicates of blocks lie in, and before which step the last is read."""
        return {
            home_of(self.made, self.made.blocks[mark.block].predicate): mark.at
            for mark in self.made.marks[self.first_mark :]
        }


class _Lives:
    """When the buffers of a region are touched, a block inside counting as one step."""

    def __init__(self, region: Region) -> None:
        self.made = region.made
        self.inside = region.block_starts()
        self.predicates = region.predicates()
        self.first: dict[int, int] = {}
        self.last_read: dict[int, int] = {}  # the step before which it has happened
        for index, step in region.steps():
            for tensor in (*step.results, *step.operands):
                self.first.setdefault(home_of(self.made, tensor), self.inside.get(index, index))
            for tensor in step.operands:
                self.last_read[home_of(self.made, tensor)] = index + 1
        for buffer, at in self.predicates.items():
            self.last_read[buffer] = max(self.last_read.get(buffer, 0), at)

    def is_last_reader(self, index: int, buffer: int) -> bool:
        """Whether a step may write where it reads the buffer for the last time."""
        step = self.made.steps[index]
        if index in self.inside or step.opcode not in _IN_PLACE:
            return False
        first, *others = (home_of(self.made, tensor) for tensor in step.operands)
        is_read_last = first == buffer and self.last_read[buffer] == index + 1
        return is_read_last and buffer not in others and buffer not in self.predicates


def write_in_place(region: Region, wanted: Iterable[int]) -> None:
    """Let steps write where they read; `wanted` are tensors that are read behind the end."""
    made, lives = region.made, _Lives(region)
    kept = {home_of(made, tensor) for tensor in wanted}
    for index, step in region.steps():
        if step.opcode not in _IN_PLACE:
            continue
        source, target = home_of(made, step.operands[0]), home_of(made, step.results[0])
        if source in kept or not (region.owns(source) and region.owns(target)):
            continue
        is_new = lives.first[target] == index and target not in lives.predicates
        if is_new and lives.is_last_reader(index, source):
            made.moved[target] = source
            lives.last_read[source] = lives.last_read.get(target, index + 1)
            if target in kept:
                kept.add(source)


def written_to(region: Region, pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Let the first of each pair of tensors lie where the second does, for which it is meant.

    That is safe where the old value is read no more when the new one begins. Gives the pairs that
    need a copy.
    """
    made, lives = region.made, _Lives(region)
    sources = Counter(home_of(made, source) for source, _ in pairs)
    copies = []
    for source, target in pairs:
        old, new = home_of(made, source), home_of(made, target)
        if old == new:
            continue
        if region.owns(old) and new not in sources and _is_free(lives, new, lives.first[old]):
            made.moved[old] = new
        else:
            copies.append((source, target))
    return copies


def _is_free(lives: _Lives, buffer: int, step: int) -> bool:
    """Whether a buffer is read no more when a step, or the block at its place, begins."""
    return lives.last_read.get(buffer, 0) <= step or lives.is_last_reader(step, buffer)


def settled(draft: Draft, moved: Mapping[int, int]) -> Draft:
    """The draft with all moves made, without copies that move nothing."""
    draft = without_moved(draft, moved)
    home = [tensor.buffer for tensor in draft.tensors]
    steps, places = [], [0]
    for step in draft.steps:
        stays = step.opcode in _IN_PLACE and home[step.operands[0]] == home[step.results[0]]
        if not stays:
            steps.append(step)
        elif step.opcode == _UPDATE:
            steps.append(attrs.evolve(step, costs=_costs_of_update(draft, step)))
        places.append(len(steps))
    marks = tuple(attrs.evolve(mark, at=places[mark.at]) for mark in draft.marks)
    return attrs.evolve(draft, steps=tuple(steps), marks=marks)


def _costs_of_update(draft: Draft, step: Step) -> Costs:
    """The slice is written, and read with its place; the rest stays where it is."""
    read = [draft.tensors[tensor].type for tensor in step.operands[1:]]
    size = read[0].size_bytes
    return Costs(0, read[0].elements, sum(one.size_bytes for one in read), size)
