"""The ways that one rank's chains may take through loops and branches, and which of them suffice.

Control rows cut all chains into stretches: stretch i ends with control row i, the last one with
nothing. A way is a sequence of stretches. All chains of a rank take the same way.

**Fewer blocks, less order.** Let way w' be way w without some iterations and branches. At the start
of a stretch every chain waits for increments counted from there (docs/isa.md, "What a wait
counts"): either the k-th that its owner makes within this stretch, or the k-th last before it. The
former is the same row in w and w'. Of the latter, the owner's increments before this place in w'
are some of those in w, so the k-th last of them comes in w not before the one in w'. It follows by
the owner's own order: what happens before something in w' does so in w.

So a pair of accesses, x before y on a way, need be looked at only where everything between them is
passed over but the blocks that contain y and not x. If both are in a loop and y in a later
iteration than x, all iterations between are left out, so y is in the next one: two suffice. What
lies before x makes no difference at all, since knowledge of x begins with x. Nothing of a stretch
waits for a later stretch (`counters`), so nothing orders y before x.

**The walk** from a stretch is then one line and its side ways: go on, passing over each block on
the line; on the side, enter it, and within it do the same, up to its end. At the end of a loop that
contains the stretch, the line goes back once: its side way is the next iteration, and behind its
`test` the line leaves the loop. A stretch between `loop` and `test` comes again behind the body, so
there the side way goes on to the next `test`. A branch is not entered behind another branch of the
same occasion. This is linear in the program for each stretch that the walk begins at, and it ends
where all chains know all of the first stretch: in what the compiler makes, at the next control row.

A conditional that passes over all its branches is taken for possible, and so is a loop without
iterations, whatever their predicates are.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Protocol

import attrs

from ncc_runtime.neff.isa import CASE, END, LOOP, TEST
from ncc_runtime.neff.program import Block, BlockKind
from ncc_runtime.neff.structure import Structure

START = -1
"""The place before the first stretch, where others have a control row; also: no block."""

Trail = tuple[str, ...]
"""Which blocks a way goes through, for people."""


@attrs.frozen
class Begin:
    """Where a walk begins: in a stretch, behind control row `row` or at the start."""

    row: int
    stretch: int


@attrs.frozen(eq=False)
class Ways:
    """Where control flow may go on; without blocks there is one stretch and one way."""

    blocks: Sequence[Block]
    structure: Structure
    first: int = 0  # what people call block 0: in a run of several programs, others have some too

    @property
    def stretches(self) -> int:
        """One more than there are control rows."""
        return len(self.structure.rows) + 1

    def begins(self) -> Iterator[Begin]:
        """Every stretch, behind each control row that leads to it."""
        yield Begin(START, 0)
        for row in range(len(self.structure.rows)):
            block = self.decided_at(row)
            if block == START:
                yield Begin(row, self.after(row))
            else:
                yield Begin(row, row + 1)
                yield Begin(row, self.behind(block))

    def after(self, row: int) -> int:
        """The stretch behind a `loop` or `end`."""
        loop = self.closed_at(row)
        return row + 1 if loop == START else self.structure.block_rows[loop].opens + 1

    def behind(self, block: int) -> int:
        """The stretch of who leaves a block or passes over it."""
        return self.structure.block_rows[block].ends + 1

    def decided_at(self, row: int) -> int:
        """The block that a `test` or `case` decides on, START for other rows."""
        opcode, block = self.structure.rows[row]
        return block if opcode in (TEST, CASE) else START

    def closed_at(self, row: int) -> int:
        """The loop that an `end` goes back in, START for other rows."""
        opcode, block = self.structure.rows[row]
        is_loop = self.blocks[block].kind is BlockKind.LOOP
        return block if opcode == END and is_loop else START

    def homes(self) -> Sequence[tuple[int, bool]]:
        """Of every stretch the innermost block, and whether it lies behind its `test` or `case`."""
        open_blocks = [(START, False)]
        found = [open_blocks[-1]]
        for opcode, block in self.structure.rows:
            if opcode in (TEST, END):
                open_blocks.pop()
            if opcode != END:
                open_blocks.append((block, opcode != LOOP))
            found.append(open_blocks[-1])
        return found

    def name(self, block: int) -> str:
        """A block as people know it."""
        row, number = self.blocks[block], self.first + block
        if row.kind is BlockKind.LOOP:
            return f"the body of {row.name} (k{number})"
        return f"branch {row.index} of {row.name} (k{number})"

    def place(self, begin: Begin) -> str:
        """Where a walk begins, for people."""
        block, is_body = self.homes()[begin.stretch]
        if block == START:
            return "the program"
        return self.name(block) if is_body else f"the condition of {self.blocks[block].name}"

    def others(self) -> Mapping[int, frozenset[int]]:
        """For every branch, the other branches of its conditional, as far as that is plain.

        They follow one another, decide by one tensor and are different ones of equally many.
        """
        spans = self.structure.block_rows
        ended = {spans[block].ends: block for block in range(len(self.blocks))}
        groups: dict[int, list[int]] = {}
        for block in sorted(range(len(self.blocks)), key=lambda one: spans[one].opens):
            before = groups.get(ended.get(spans[block].opens - 1, START), [])
            if self.blocks[block].kind is BlockKind.CASE:
                group = before if self._continues(before, block) else []
                group.append(block)
                groups[block] = group
        return {block: frozenset(group) - {block} for block, group in groups.items()}

    def _continues(self, group: Sequence[int], block: int) -> bool:
        row = self.blocks[block]
        rows = [self.blocks[one] for one in group]
        return bool(rows) and all(
            (one.predicate, one.of) == (row.predicate, row.of) and one.index != row.index
            for one in rows
        )

    def outside(self, blocks: frozenset[int], loop: int) -> frozenset[int]:
        """Those blocks that do not lie in a loop."""
        spans, around = self.structure.block_rows, self.structure.block_rows[loop]
        return frozenset(one for one in blocks if not around.opens < spans[one].opens < around.ends)


class Traveller(Protocol):
    """Who walks: performs stretches, comes back from side ways, knows where it need not go."""

    def enter(self, stretch: int, trail: Trail) -> bool:
        """Go through a stretch and the control row at its end; whether to go on behind it."""

    def wants(self, first: int, last: int) -> bool:
        """Whether there is anything to see in stretches first to last."""

    def mark(self) -> Callable[[], None]:
        """What brings it back here, as if it had gone no further."""


@attrs.frozen(eq=False, slots=False)
class Walk:
    """The line from a stretch to the end of the program, and its side ways."""

    ways: Ways
    begin: Begin
    traveller: Traveller

    def go(self, barred: frozenset[int]) -> None:
        """Go on behind the first stretch; `barred` branches are not entered on this occasion."""
        self._line(self.begin.stretch, self.ways.stretches - 1, barred, ())

    def _line(self, stretch: int, until: int, barred: frozenset[int], trail: Trail) -> None:
        while stretch != until and self.traveller.wants(*self._ahead(stretch)):
            block, loop = self.ways.decided_at(stretch), self.ways.closed_at(stretch)
            if block != START and block not in barred:
                self._side_way(block, barred, trail)
            if loop != START:
                barred = self.ways.outside(barred, loop)
                number = self.ways.first + loop
                trail = (*trail, f"back to the start of {self.ways.blocks[loop].name} (k{number})")
            stretch = self.ways.after(stretch) if block == START else self.ways.behind(block)
            if not self.traveller.enter(stretch, trail):
                return

    def _ahead(self, stretch: int) -> tuple[int, int]:
        """The stretches that the line or its side ways may still come to, and perhaps more."""
        first, last = self._outermost
        return (first if stretch <= last else stretch) + 1, self.ways.stretches - 1

    @cached_property
    def _outermost(self) -> tuple[int, int]:
        """Where the outermost loop around the beginning opens and ends; START, START for none."""
        around = (
            (span.opens, span.ends)
            for block, span in zip(self.ways.blocks, self.ways.structure.block_rows, strict=True)
            if block.kind is BlockKind.LOOP and span.opens < self.begin.stretch <= span.ends
        )
        return min(around, default=(START, START))

    def _side_way(self, block: int, barred: frozenset[int], trail: Trail) -> None:
        """Enter a block, up to its end; from a loop's condition, once more up to its `test`."""
        span = self.ways.structure.block_rows[block]
        again = span.opens < self.begin.stretch <= span.decides
        if not self.traveller.wants((span.opens if again else span.decides) + 1, span.ends):
            return
        come_back = self.traveller.mark()
        trail = (*trail, f"into {self.ways.name(block)}")
        if self.traveller.enter(span.decides + 1, trail):
            self._line(span.decides + 1, span.decides if again else span.ends, barred, trail)
        come_back()
