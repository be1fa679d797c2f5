"""Plans as JSON of our own and back: the plans of a program's placeholders as they are."""

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np

from ncc_runtime.collectives.plan import (
    IDLE,
    After,
    Copy,
    Count,
    Job,
    Piece,
    Plan,
    Round,
    Space,
    Transfer,
)
from ncc_runtime.errors import PlanError
from ncc_runtime.neff.reductions import Reduction
from ncc_runtime.plans.text import (
    AfterText,
    AlsoText,
    CollectiveText,
    Column,
    CountText,
    PieceText,
    TeamText,
    TransferText,
)

MOST_SHOWN = 40
"""Characters of a value that a message shows."""


def difference(text: CollectiveText, job: Job) -> str:
    """What of a file's collective is otherwise than of a job, "" if nothing is."""
    wanted = _described(job, text.teams)
    for name in CollectiveText.__struct_fields__:
        ours, theirs = getattr(text, name), getattr(wanted, name)
        if ours != theirs:
            return f"{name} is {_short(ours)} in the file, {_short(theirs)} in the program"
    return ""


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def described(job: Job, teams: Sequence[tuple[Plan, np.ndarray]]) -> CollectiveText:
    """A placeholder with the plans that fill it and their groups."""
    return _described(job, [_team(plan, groups) for plan, groups in teams])


def _described(job: Job, teams: list[TeamText]) -> CollectiveText:
    placeholder, buffers = job.placeholder, job.buffers
    return CollectiveText(
        op=placeholder.op.value,
        element_bytes=buffers.element_bytes,
        operand_elements=list(buffers.operand_elements),
        result_elements=list(buffers.result_elements),
        teams=teams,
        in_place=buffers.in_place,
        average=placeholder.reduction is Reduction.AVERAGE,
        root=placeholder.root,
        pairs=list(placeholder.pairs),
        row_bytes=buffers.row_bytes,
        entries=buffers.entries,
    )


def _team(plan: Plan, groups: np.ndarray) -> TeamText:
    rounds = [[_transfer(move) for move in one.transfers] for one in plan.rounds]
    named = [list(map(int, group)) for group in groups]
    return TeamText(plan.algorithm, plan.members, rounds, plan.scratch_bytes, named)


def _transfer(move: Transfer) -> TransferText:
    also, after = move.also, move.after
    return TransferText(
        peer=_column(move.peer),
        target=_piece(move.target),
        bytes=_column(move.size_bytes),
        sources=[_piece(piece) for piece in move.sources],
        also=None if also is None else AlsoText(_column(also.peer), _piece(also.target)),
        lane=move.lane,
        consumed=None if move.consumed is None else _column(move.consumed),
        credit=move.credit,
        divisor=move.divisor,
        strand=move.strand,
        after=None
        if after is None
        else AfterText([*map(_column, after.arrived)], [*map(_column, after.sent)]),
        count=None if move.count is None else _count(move.count),
    )


def _count(count: Count) -> CountText:
    source, target = (None if one is None else _column(one) for one in (count.source, count.target))
    return CountText(_column(count.rows), source, target)


def _piece(piece: Piece) -> PieceText:
    owner = None if piece.owner is None else _column(piece.owner)
    space: Any = piece.space.value
    return PieceText(space, _column(piece.offset), piece.tensor, owner)


def _column(column: np.ndarray) -> Column:
    cells: list[int] = column.tolist()
    return cells[0] if len(cells) > 1 and len(set(cells)) == 1 else cells


def plan_of(team: TeamText) -> Plan:
    """The plan of a team; PlanError where a column has not a cell for each member."""
    reading = _Reading(team.members)
    rounds = tuple(
        Round(tuple(reading.transfer(move, (number, place)) for place, move in enumerate(moves)))
        for number, moves in enumerate(team.rounds)
    )
    return Plan(team.algorithm, team.members, rounds, team.scratch_bytes)


@attrs.frozen
class _Reading:
    """Makes columns for so many members."""

    members: int

    def transfer(self, move: TransferText, place: tuple[int, int]) -> Transfer:
        """A transfer, at its place in a plan."""
        where = f"round {place[0]}, transfer {place[1]}"

        def column(cells: Column, dtype: type[np.integer] = np.int32) -> np.ndarray:
            return self._column(cells, dtype, where)

        def piece(text: PieceText) -> Piece:
            owner = None if text.owner is None else column(text.owner)
            return Piece(Space(text.space), column(text.offset, np.int64), text.tensor, owner)

        after = None
        if move.after is not None:
            both = (move.after.arrived, move.after.sent)
            after = After(*(tuple(map(column, one)) for one in both))
        return Transfer(
            peer=column(move.peer),
            sources=tuple(map(piece, move.sources)),
            target=piece(move.target),
            size_bytes=column(move.bytes, np.int64),
            also=None
            if move.also is None
            else Copy(column(move.also.peer), piece(move.also.target)),
            lane=move.lane,
            consumed=None if move.consumed is None else column(move.consumed),
            credit=move.credit,
            divisor=move.divisor,
            strand=move.strand,
            after=after,
            count=None if move.count is None else self._count(move.count, column),
        )

    def _count(self, text: CountText, column: Callable[..., np.ndarray]) -> Count:
        source, target = (
            None if one is None else column(one, np.int64) for one in (text.source, text.target)
        )
        return Count(column(text.rows, np.int64), source, target)

    def _column(self, cells: Column, dtype: type[np.integer], where: str) -> np.ndarray:
        limits = np.iinfo(dtype)
        lowest = (
            IDLE if dtype is np.int32 else int(limits.min)
        )  # offsets of who is idle are no matter
        if isinstance(cells, list) and len(cells) != self.members:
            raise PlanError(
                f"{where}: a column of {len(cells)} cells, there are {self.members} members"
            )
        least, most = (cells, cells) if isinstance(cells, int) else (min(cells), max(cells))
        if least < lowest or most > limits.max:
            wrong = least if least < lowest else most
            raise PlanError(f"{where}: {wrong} in a column, must be {lowest} to {limits.max}")
        if isinstance(cells, int):
            return np.full(self.members, cells, dtype)
        return np.array(cells, dtype)
