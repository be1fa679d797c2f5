"""What tables of counts must say so that they fit each other and the buffers.

A rank's own numbers are checked when they are known; those of a group when all of its are.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

import attrs
import numpy as np

from ncc_runtime.errors import CountsError
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import Program

_Text: TypeAlias = Callable[[tuple[int, int, int]], str]
"""How a fault reads at (rank, member, update); {peer} stands for the member's rank."""


@attrs.frozen(eq=False)
class Said:
    """What the tables of some ranks say, (ranks, members, updates) int64; rows of dimension 0."""

    rows: np.ndarray  # that go to each member
    source: np.ndarray  # from which row of the operand on
    received: np.ndarray  # that come from each member
    target: np.ndarray | None  # to which row of the member's result on; None: to a slot


@attrs.frozen
class Table:
    """A counted collective: what its numbers count, and what they may be."""

    name: str
    op: CollectiveOp
    operand_rows: int
    result_rows: int
    most: int  # rows of one transfer

    @classmethod
    def of(cls, program: Program, placeholder: Placeholder) -> "Table":
        """The facts of a placeholder; its groups are of one size."""
        shapes = [
            program.tensors[tensor].shape
            for tensor in (placeholder.operands[0], placeholder.results[0])
        ]
        operand, result = (shape[0] for shape in shapes)
        is_cut = placeholder.op in (CollectiveOp.ALL_GATHER_V, CollectiveOp.ALL_TO_ALL_V)
        slot = result // len(placeholder.groups[0]) if is_cut else result
        name = f"{placeholder.name or 'a collective'} ({placeholder.op.value})"
        return cls(name, placeholder.op, operand, result, slot)

    def said(self, tables: Sequence[np.ndarray], members: int) -> Said:
        """What tables say, each [ranks, *shape]."""
        wide = [table.astype(np.int64) for table in tables]
        if self.op is CollectiveOp.RAGGED_ALL_TO_ALL:
            source, rows, target, received = (
                table.reshape(len(table), members, -1) for table in wide
            )
            return Said(rows, source, received, target)
        rows, source, received = (wide[0][:, row, :, None] for row in range(3))
        return Said(rows, source, received, None)

    def check_own(self, said: Said, ranks: np.ndarray, groups: np.ndarray) -> None:
        """CountsError for the first number that fits no buffer; `groups` are those of the ranks."""
        for wrong, text in self._own_faults(said):
            if wrong.any():
                rank, member, update = np.unravel_index(int(wrong.argmax()), wrong.shape)
                at = int(rank), int(member), int(update)
                peer = int(groups[rank, member])
                said_text = text(at).format(peer=peer)
                raise CountsError(f"{self.name}: rank {int(ranks[rank])} {said_text}")

    def _own_faults(self, said: Said) -> Iterator[tuple[np.ndarray, _Text]]:
        rows, source, target = said.rows, said.source, said.target
        yield (
            (rows < 0) | (rows > self.most),
            lambda at: (
                f"sends {rows[at]} rows to rank {{peer}}; a transfer moves 0 to {self.most}, "
                f"as many as {self._where} has"
            ),
        )
        yield (
            (rows > 0) & ((source < 0) | (source > self.operand_rows - rows)),
            lambda at: (
                f"sends rows {source[at]}..{source[at] + rows[at]} to rank {{peer}}, its operand "
                f"has {self.operand_rows}: correct the offset or the count"
            ),
        )
        if target is not None:
            yield (
                (rows > 0) & ((target < 0) | (target > self.result_rows - rows)),
                lambda at: (
                    f"writes rows {target[at]}..{target[at] + rows[at]} at rank {{peer}}, whose "
                    f"output has {self.result_rows}: correct the offset or the count"
                ),
            )
        if self.op is CollectiveOp.ALL_GATHER_V:
            yield (
                (rows != rows[:, :1]) | (source != source[:, :1]),
                lambda at: (
                    f"sends rows {source[at]}..{source[at] + rows[at]} to rank {{peer}} and others "
                    "elsewhere: an all-gather sends everybody the same rows"
                ),
            )

    @property
    def _where(self) -> str:
        return "the output" if self.op is CollectiveOp.RAGGED_ALL_TO_ALL else "a slot"

    def check_group(self, said: Said, group: Sequence[int]) -> None:
        """CountsError for the first numbers of a group that do not fit each other."""
        rows, received = said.rows, said.received.swapaxes(0, 1)
        if self.op is CollectiveOp.REDUCE_SCATTER_V:
            self._check_joined(rows, group)
        wrong = rows != received
        if wrong.any():
            at = tuple(int(one) for one in np.argwhere(wrong)[0])
            raise CountsError(
                f"{self.name}: rank {group[at[0]]} sends {rows[at]} rows to rank {group[at[1]]}, "
                f"which expects {received[at]}: what is sent and what is received must be equal"
            )
        if said.target is not None:
            self._check_disjoint(said.target, rows, group)

    def _check_joined(self, rows: np.ndarray, group: Sequence[int]) -> None:
        wrong = rows != rows[:1]
        if wrong.any():
            source, member, _ = (int(one) for one in np.argwhere(wrong)[0])
            raise CountsError(
                f"{self.name}: rank {group[source]} has {rows[source, member, 0]} rows for rank "
                f"{group[member]}, rank {group[0]} has {rows[0, member, 0]}: chunks that are "
                "joined have equally many rows"
            )

    def _check_disjoint(self, target: np.ndarray, rows: np.ndarray, group: Sequence[int]) -> None:
        """No two transfers write one row of a member."""
        for member, to in enumerate(group):
            start, count = target[:, member].ravel(), rows[:, member].ravel()
            there = np.flatnonzero(count > 0)
            there = there[np.argsort(start[there], kind="stable")]
            ends = start[there] + count[there]
            meets = np.flatnonzero(ends[:-1] > start[there][1:])
            if len(meets):
                updates = target.shape[2]
                first, second = (int(one) for one in there[meets[0] : meets[0] + 2])
                raise CountsError(
                    f"{self.name}: rows {start[first]}..{start[first] + count[first]} from rank "
                    f"{group[first // updates]} and rows "
                    f"{start[second]}..{start[second] + count[second]} from rank "
                    f"{group[second // updates]} overlap at rank {to}: correct the output offsets"
                )
