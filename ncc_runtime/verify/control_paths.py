"""Paths of one rank's chains through loops and branches, and which of them suffice.

Control rows cut all chains into phases: phase i ends with control row i, the last one with nothing.
A path is a sequence of phases; all chains of a rank take the same one. There are as many paths as
trip counts and decisions. Few of them have to be looked at for races:

**Theorem: fewer blocks, less order.** Let path q be path p without some iterations and branches.
What happens before something on q does so on p. Proof: at the start of a phase every chain waits
for increments counted from there (docs/isa.md, "What a wait counts"): either the k-th that its
owner makes within this phase, or the k-th last before it. The former is the same row on p and q. Of
the latter, the owner's increments before this place on q are some of those on p, so the k-th last
of them comes on p not before the one on q. The rest follows by the owner's own order.

So a pair of accesses, x before y on a path, need be looked at only where everything between them is
passed over but the blocks that contain y and not x. If both are in a loop and y in a later
iteration than x, all iterations between are left out, so y is in the next one: two suffice. What
lies before x makes no difference at all, since knowledge of x begins with x. Nothing of a phase
waits for a later phase (`counters`), so nothing orders y before x.

What may follow a phase is then a line with side paths: the line goes on and passes over each block;
a side path enters it, and is within it a line itself, up to its end. At the end of a loop that
contains the first phase, the line goes back once: its side path is the next iteration, and behind
its `test` the line leaves the loop. A phase between `loop` and `test` comes again behind the body,
so there the side path goes on to the next `test`. A branch is not entered behind another branch of
the same occasion. All this is linear in the program, for each phase that a line starts behind.

A conditional that passes over all its branches is taken for possible, and so is a loop without
iterations, whatever their predicates are.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import attrs

from ncc_runtime.neff.isa import CASE, END, LOOP, TEST
from ncc_runtime.neff.program import Block, BlockKind
from ncc_runtime.neff.structure import Structure

NO_BLOCK = -1
NO_ROW = -1
"""In place of the control row before phase 0."""

Trail = tuple[str, ...]
"""Which blocks a path goes through, for people."""


class PathStart(NamedTuple):
    """A phase, and the control row that leads to it."""

    row: int
    phase: int


@attrs.frozen(eq=False)
class ControlPaths:
    """Where control flow may go on; without blocks there is one phase and one path."""

    blocks: Sequence[Block]
    structure: Structure
    first_block: int = 0  # the number of block 0 for people: in a run of several programs

    @property
    def phases(self) -> int:
        """One more than there are control rows."""
        return len(self.structure.rows) + 1

    def starts(self) -> Iterator[PathStart]:
        """Every phase, behind each control row that leads to it."""
        yield PathStart(NO_ROW, 0)
        for row in range(len(self.structure.rows)):
            yield PathStart(row, self.after(row))
            if self.decided_at(row) != NO_BLOCK:
                yield PathStart(row, self.behind(self.decided_at(row)))

    def after(self, row: int) -> int:
        """The phase behind a control row: into the block of a decision, back at a loop's end."""
        loop = self.closed_at(row)
        return row + 1 if loop == NO_BLOCK else self.structure.block_rows[loop].opens + 1

    def behind(self, block: int) -> int:
        """The phase behind a block that is left or passed over."""
        return self.structure.block_rows[block].ends + 1

    def decided_at(self, row: int) -> int:
        """The block that a `test` or `case` decides on, NO_BLOCK for other rows."""
        opcode, block = self.structure.rows[row]
        return block if opcode in (TEST, CASE) else NO_BLOCK

    def closed_at(self, row: int) -> int:
        """The loop that an `end` goes back in, NO_BLOCK for other rows."""
        opcode, block = self.structure.rows[row]
        is_loop = self.blocks[block].kind is BlockKind.LOOP
        return block if opcode == END and is_loop else NO_BLOCK

    def conditionals(self) -> Iterator[Sequence[int]]:
        """Branches of which one at most is taken on each occasion, as long as nobody decides anew.

        They follow one another, decide by one tensor and are different ones of equally many.
        """
        spans = self.structure.block_rows
        branches = (k for k, block in enumerate(self.blocks) if block.kind is BlockKind.CASE)
        group: list[int] = []
        open_groups: dict[int, list[int]] = {}  # by the control row that one's last branch ends at
        for block in sorted(branches, key=lambda one: spans[one].opens):
            row = self.blocks[block]
            group = open_groups.pop(spans[block].opens - 1, [])
            rows = [self.blocks[one] for one in group]
            if any(
                (one.predicate, one.of) != (row.predicate, row.of) or one.index == row.index
                for one in rows
            ):
                yield group
                group = []
            group.append(block)
            open_groups[spans[block].ends] = group
        yield from open_groups.values()

    def barred(self, start: PathStart, others: Mapping[int, frozenset[int]]) -> frozenset[int]:
        """Branches that a path from here does not enter: another of their conditional is taken.

        `others` names, by branch, the other branches of its conditional. One is known to be taken
        if the path starts in it, or right behind its `end`.
        """
        found: set[int] = set()
        for block, excluded in others.items():
            rows = self.structure.block_rows[block]
            starts_inside = rows.decides < start.phase <= rows.ends
            if starts_inside or start.row == rows.ends:
                found |= excluded
        return frozenset(found)

    def line(self, start: PathStart, barred: frozenset[int]) -> "Line":
        """What may follow a phase; `barred` branches are not entered on its occasion."""
        around = (
            (span.opens, span.ends)
            for block, span in zip(self.blocks, self.structure.block_rows, strict=True)
            if block.kind is BlockKind.LOOP and span.opens < start.phase <= span.ends
        )
        loop = min(around, default=(NO_ROW, NO_ROW))
        return Line(self, start, loop, start.phase, self.phases - 1, barred)

    # ---- in words

    def block_text(self, block: int) -> str:
        """A block: `the body of while.3 (k0)`."""
        row, number = self.blocks[block], self.first_block + block
        if row.kind is BlockKind.LOOP:
            return f"the body of {row.name} (k{number})"
        return f"branch {row.index} of {row.name} (k{number})"

    def start_text(self, start: PathStart) -> str:
        """The innermost block that a phase lies in."""
        around = ["the program"]
        for opcode, block in self.structure.rows[: start.phase]:
            if opcode in (TEST, END):
                around.pop()
            if opcode == LOOP:
                around.append(f"the condition of {self.blocks[block].name}")
            elif opcode != END:
                around.append(self.block_text(block))
        return around[-1]

    def path_text(self, start: PathStart, trail: Trail) -> str:
        """From where a path goes through which blocks."""
        text = self.start_text(start)
        if not trail:
            return f"straight through {text}"
        return f"from {text} {', '.join(trail)}, past all other blocks"


class PhaseStep(NamedTuple):
    """One step of a line."""

    phase: int  # that it goes on to
    trail: Trail
    ahead: range  # phases that it, later steps and their side paths may come to, and perhaps more
    side: "Line | None"  # before this step, another path may go into the block that it passes over


@attrs.frozen(eq=False)
class Line:
    """A path that passes over every block, up to the control row at the end of phase `until`."""

    paths: ControlPaths
    start: PathStart
    loop: tuple[int, int]  # where the outermost loop around the start opens and ends
    phase: int  # where it goes on
    until: int
    barred: frozenset[int]
    trail: Trail = ()
    block: int = NO_BLOCK  # of a side path, that it enters: then it is yet to come to its `phase`

    @property
    def inside(self) -> range:
        """The phases that a side path may come to."""
        span = self.paths.structure.block_rows[self.block]
        first = span.opens if self.until == span.decides else span.decides
        return range(first + 1, span.ends + 1)

    def __iter__(self) -> Iterator[PhaseStep]:
        paths, phase, barred, trail = self.paths, self.phase, self.barred, self.trail
        if self.block != NO_BLOCK:
            yield PhaseStep(phase, trail, self.inside, None)
        while phase != self.until:
            opens, ends = self.loop
            ahead = range((opens if phase <= ends else phase) + 1, paths.phases)
            block, loop = paths.decided_at(phase), paths.closed_at(phase)
            side = None
            if block != NO_BLOCK and block not in barred:
                side = self._into(block, barred, trail)
            if loop != NO_BLOCK:  # back to another occasion of all branches in it
                spans, around = paths.structure.block_rows, paths.structure.block_rows[loop]
                barred = frozenset(
                    one for one in barred if not around.opens < spans[one].opens < around.ends
                )
                name = f"{paths.blocks[loop].name} (k{paths.first_block + loop})"
                trail = (*trail, f"back to the start of {name}")
            phase = paths.after(phase) if block == NO_BLOCK else paths.behind(block)
            yield PhaseStep(phase, trail, ahead, side)

    def _into(self, block: int, barred: frozenset[int], trail: Trail) -> "Line":
        """Enter a block, up to its end; from a loop's condition, once more up to its `test`."""
        span = self.paths.structure.block_rows[block]
        comes_again = span.opens < self.start.phase <= span.decides
        return attrs.evolve(
            self,
            phase=span.decides + 1,
            until=span.decides if comes_again else span.ends,
            barred=barred,
            trail=(*trail, f"into {self.paths.block_text(block)}"),
            block=block,
        )
