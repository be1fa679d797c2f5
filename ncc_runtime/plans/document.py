"""Our own JSON of plans: the plans of a program's placeholders as they are, and back.

`plan.schema.json` beside this file describes it; it is made of the classes below. A column by
member is a list, or one number where all members are alike; -1 is nobody.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import attrs
import msgspec
import numpy as np

from ncc_runtime.collectives.plan import (
    IDLE,
    After,
    Copy,
    Job,
    Piece,
    Plan,
    Round,
    Space,
    Transfer,
)
from ncc_runtime.errors import PlanError
from ncc_runtime.neff.reductions import Reduction

MOST_BYTES = 1 << 28
MOST_MEMBERS = 1 << 16

Column = int | list[int]
_Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 62)]
_Members = Annotated[int, msgspec.Meta(ge=1, le=MOST_MEMBERS)]


class PieceText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where a transfer reads or writes: in operand (in) or result (out) `tensor`, or in scratch."""

    space: Literal["in", "out", "scratch"]
    offset: Column
    tensor: _Count = 0
    owner: Column | None = None


class AlsoText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A second member that the same bytes are written at."""

    peer: Column
    target: PieceText


class AfterText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a transfer waits for: numbers of transfers of earlier rounds, counted from 0."""

    arrived: list[Column] = []
    sent: list[Column] = []


class TransferText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One transfer of every member."""

    peer: Column
    target: PieceText
    bytes: Column
    sources: list[PieceText] = []
    also: AlsoText | None = None
    lane: _Count = 0
    consumed: Column | None = None
    credit: _Count = 0
    divisor: _Count = 1
    strand: _Count | None = None
    after: AfterText | None = None


class TeamText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A plan, and the groups of ranks that it is for; without, those of as many members."""

    algorithm: str
    members: _Members
    rounds: list[list[TransferText]]
    scratch_bytes: _Count = 0
    groups: list[list[_Count]] | None = None


class CollectiveText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is filled: an operator with the sizes of its buffers."""

    op: str
    element_bytes: _Count
    operand_elements: list[_Count]
    result_elements: list[_Count]
    teams: list[TeamText]
    in_place: bool = False
    average: bool = False
    root: _Count | None = None
    pairs: list[tuple[_Count, _Count]] = []


class FileText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A file."""

    format: Literal["ncc-plan"]
    version: Literal[1]
    collectives: list[CollectiveText]


def schema() -> dict[str, Any]:
    """The JSON Schema of a file."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "ncc-plan",
        **msgspec.json.schema(FileText),
    }


def is_same(text: CollectiveText, job: Job) -> bool:
    """Whether a file's collective has the operator and the sizes of a job."""
    return msgspec.structs.replace(text, teams=[]) == _described(job, [])


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
    )


def encoded(collectives: Sequence[CollectiveText]) -> bytes:
    """The bytes of a file; a line for each transfer."""
    whole = msgspec.to_builtins(FileText("ncc-plan", 1, list(collectives)))
    return ("".join(_lines(_without_defaults(whole), 0)) + "\n").encode()


_OPENED = ("collectives", "teams", "rounds")
"""What goes on several lines."""


def _lines(value: Any, depth: int) -> Iterator[str]:
    pad = " " * (depth + 1)
    if isinstance(value, dict) and any(key in value for key in _OPENED):
        yield "{\n"
        for number, (key, item) in enumerate(value.items()):
            yield f"{pad}{json.dumps(key)}: "
            if key in _OPENED:
                yield from _list_lines(item, depth + 1, is_rounds=key == "rounds")
            else:
                yield json.dumps(item)
            yield ",\n" if number < len(value) - 1 else "\n"
        yield " " * depth + "}"
        return
    yield json.dumps(value)


def _list_lines(items: list[Any], depth: int, *, is_rounds: bool) -> Iterator[str]:
    pad = " " * (depth + 1)
    yield "[\n"
    for number, item in enumerate(items):
        yield pad
        if is_rounds:
            inner = f",\n{pad} ".join(map(json.dumps, item))
            yield f"[{inner}]"
        else:
            yield from _lines(item, depth + 1)
        yield ",\n" if number < len(items) - 1 else "\n"
    yield " " * depth + "]"


def _without_defaults(value: Any) -> Any:
    """The same without what stands for nothing."""
    if isinstance(value, dict):
        plain = {"tensor": 0, "lane": 0, "credit": 0, "divisor": 1}
        return {
            key: _without_defaults(item)
            for key, item in value.items()
            if item is not None and not (key in plain and item == plain[key])
        }
    if isinstance(value, list) and value and isinstance(value[0], dict | list):
        return [_without_defaults(item) for item in value]
    return value


def decoded(data: bytes) -> FileText:
    """A file's content; PlanError with the place where it is none."""
    if len(data) > MOST_BYTES:
        raise PlanError(f"{len(data)} bytes, a plan has at most {MOST_BYTES}")
    try:
        json.loads(data)
        return msgspec.json.decode(data, type=FileText)
    except json.JSONDecodeError as error:
        raise PlanError(f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}") from None
    except (UnicodeDecodeError, RecursionError) as error:
        raise PlanError(f"not JSON: {error}") from None
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        what = str(error)
        raise PlanError(f"{what[:1].lower()}{what[1:]}") from None


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
    )


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
            also=None if move.also is None else Copy(column(move.also.peer), piece(move.also.target)),
            lane=move.lane,
            consumed=None if move.consumed is None else column(move.consumed),
            credit=move.credit,
            divisor=move.divisor,
            strand=move.strand,
            after=after,
        )

    def _column(self, cells: Column, dtype: type[np.integer], where: str) -> np.ndarray:
        limits = np.iinfo(dtype)
        lowest = IDLE if dtype is np.int32 else int(limits.min)  # offsets of who is idle are no matter
        if isinstance(cells, list) and len(cells) != self.members:
            raise PlanError(f"{where}: a column of {len(cells)} cells, there are {self.members} members")
        least, most = (cells, cells) if isinstance(cells, int) else (min(cells), max(cells))
        if least < lowest or most > limits.max:
            wrong = least if least < lowest else most
            raise PlanError(f"{where}: {wrong} in a column, must be {lowest} to {limits.max}")
        if isinstance(cells, int):
            return np.full(self.members, cells, dtype)
        return np.array(cells, dtype)
