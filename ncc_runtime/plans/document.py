"""Plans as JSON of our own and back: the plans of a program's placeholders as they are.

The JSON is typed: the schema beside this file, `plan.schema.json`, is made of the classes here, and
other shapes are refused. A column by member is a list, or one number where all members are alike;
-1 is nobody.

`check_sound` finds whether a plan that somebody wrote names what there is: members, bytes, lanes,
transfers. Lowering presumes this of every plan. Whether a plan also has the right results, whether
it deadlocks or races, is proved of the lowered program.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any, Literal

import attrs
import msgspec
import numpy as np

from ncc_runtime.collectives.plan import (
    IDLE,
    LANES,
    CountEntries,
    Dependencies,
    Job,
    Location,
    Plan,
    Round,
    SecondTarget,
    Space,
    Transfer,
    divisor,
)
from ncc_runtime.errors import PlanError
from ncc_runtime.input_files import json_of
from ncc_runtime.neff.shared.reductions import Reduction

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


class CountText(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Entries of the mover's tables of counts, numbered through: rows, from which, to which."""

    rows: Column
    source: Column | None = None
    target: Column | None = None


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
    count: CountText | None = None


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
    row_bytes: _Count = 0
    entries: _Count = 0


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


def encoded(collectives: Sequence[CollectiveText]) -> bytes:
    """The bytes of a file; a line for each transfer."""
    file = msgspec.to_builtins(FileText("ncc-plan", 1, list(collectives)))
    return ("".join(_lines(_without_defaults(file), 0)) + "\n").encode()


_OPENED = ("collectives", "teams", "rounds")
"""Keys of lists that have a line for each item."""


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
    """The same without nulls and without fields that have their default value."""
    if isinstance(value, dict):
        defaults = {"tensor": 0, "lane": 0, "credit": 0, "divisor": 1, "row_bytes": 0, "entries": 0}
        return {
            key: _without_defaults(item)
            for key, item in value.items()
            if item is not None and not (key in defaults and item == defaults[key])
        }
    if isinstance(value, list) and value and isinstance(value[0], dict | list):
        return [_without_defaults(item) for item in value]
    return value


def decoded(data: bytes) -> FileText:
    """A file's content; PlanError with the place where it is none."""
    if len(data) > MOST_BYTES:
        raise PlanError(f"{len(data)} bytes, a plan has at most {MOST_BYTES}")
    try:
        return msgspec.json.decode(data, type=FileText)
    except msgspec.ValidationError as error:
        what = str(error)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # of keys, msgspec raises the latter
        what = _not_json(data, str(error))
    except RecursionError:
        what = "not JSON: nested too deeply"
    raise PlanError(f"{what[:1].lower()}{what[1:]}")


def _not_json(data: bytes, what: str) -> str:
    """Where a file is no JSON; msgspec knows the byte only."""
    try:
        json_of(data)
    except json.JSONDecodeError as error:
        return f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
    except ValueError as error:
        return f"not JSON: {error}"
    return what


MOST_SHOWN = 40
"""Characters of a value that a message shows."""


def difference(text: CollectiveText, job: Job) -> str:
    """The first field in which a file's collective differs from a job, in words; "" for none."""
    expected = _described(job, text.teams)
    for name in CollectiveText.__struct_fields__:
        ours, theirs = getattr(text, name), getattr(expected, name)
        if ours != theirs:
            return f"{name} is {_short(ours)} in the file, {_short(theirs)} in the program"
    return ""


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]}…"


def described(job: Job, teams: Sequence[tuple[Plan, np.ndarray]]) -> CollectiveText:
    """A placeholder with the plans that fill it and their groups."""
    texts = [
        TeamText(
            plan.algorithm,
            plan.members,
            [[_transfer(move) for move in one_round.transfers] for one_round in plan.rounds],
            plan.scratch_bytes,
            [list(map(int, group)) for group in groups],
        )
        for plan, groups in teams
    ]
    return _described(job, texts)


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


def _transfer(move: Transfer) -> TransferText:
    also, after = move.second_target, move.after
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


def _count(count: CountEntries) -> CountText:
    source, target = (
        None if column is None else _column(column) for column in (count.source, count.target)
    )
    return CountText(_column(count.rows), source, target)


def _piece(piece: Location) -> PieceText:
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
        Round(
            tuple(
                reading.transfer(move, f"round {number}, transfer {place}")
                for place, move in enumerate(moves)
            )
        )
        for number, moves in enumerate(team.rounds)
    )
    return Plan(team.algorithm, team.members, rounds, team.scratch_bytes)


@attrs.frozen
class _Reading:
    """Makes transfers whose columns have a cell for each member."""

    members: int

    def transfer(self, move: TransferText, where: str) -> Transfer:
        """A transfer; `where` is its place in the plan, for errors."""

        def column(cells: Column, dtype: type[np.integer] = np.int32) -> np.ndarray:
            return self._column(cells, dtype, where)

        def piece(text: PieceText) -> Location:
            owner = None if text.owner is None else column(text.owner)
            return Location(Space(text.space), column(text.offset, np.int64), text.tensor, owner)

        after = None
        if move.after is not None:
            after = Dependencies(
                tuple(map(column, move.after.arrived)), tuple(map(column, move.after.sent))
            )
        return Transfer(
            peer=column(move.peer),
            sources=tuple(map(piece, move.sources)),
            target=piece(move.target),
            size_bytes=column(move.bytes, np.int64),
            second_target=None
            if move.also is None
            else SecondTarget(column(move.also.peer), piece(move.also.target)),
            lane=move.lane,
            consumed=None if move.consumed is None else column(move.consumed),
            credit=move.credit,
            divisor=move.divisor,
            strand=move.strand,
            after=after,
            count=None if move.count is None else self._count(move.count, column),
        )

    def _count(self, text: CountText, column: Callable[..., np.ndarray]) -> CountEntries:
        source, target = (
            None if cells is None else column(cells, np.int64)
            for cells in (text.source, text.target)
        )
        return CountEntries(column(text.rows, np.int64), source, target)

    def _column(self, cells: Column, dtype: type[np.integer], where: str) -> np.ndarray:
        limits = np.iinfo(dtype)
        # int32 columns name members or none, int64 ones are offsets, which idle members ignore
        lowest = IDLE if dtype is np.int32 else int(limits.min)
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


MOST_SOURCES = 16
"""Of a descriptor. Source: AWS Neuron SDK docs, work-with-neff-files.rst (`from_arr`)."""

MOST_CREDIT = 1 << 30
MOST_SCRATCH = 1 << 46


def check_sound(plan: Plan, job: Job) -> None:
    """PlanError for the first transfer that names members, bytes or transfers there are not."""
    check = _PlanCheck(plan, job)
    number = 0
    if plan.scratch_bytes > MOST_SCRATCH:
        raise PlanError(f"scratch_bytes is {plan.scratch_bytes}, must be at most {MOST_SCRATCH}")
    for place, one_round in enumerate(plan.rounds):
        first = number
        for index, move in enumerate(one_round.transfers):
            for fault in check.faults(move, first):
                raise PlanError(f"round {place}, transfer {index}: {fault}")
            check.moves.append(move)
            number += 1


def check_reads(plan: Plan, groups: np.ndarray, chips: np.ndarray) -> None:
    """PlanError where a member would read the operand of one that is placed on another chip.

    `groups` are (groups, members) ranks, `chips` has the chip of each rank.
    """
    for place, one_round in enumerate(plan.rounds):
        for index, move in enumerate(one_round.transfers):
            for reader, other in _across(move, groups, chips):
                raise PlanError(
                    f"{plan.algorithm}: round {place}, transfer {index}: rank {reader} on chip "
                    f"{chips[reader]} would read the operand of rank {other} on chip "
                    f"{chips[other]}; a DMA reads memory of its own chip only: place these "
                    "ranks on one chip, or let the other write"
                )


def _across(move: Transfer, groups: np.ndarray, chips: np.ndarray) -> Iterator[tuple[int, int]]:
    """Ranks that would read an operand on another chip, and whose it is."""
    owners = [piece.owner for piece in move.sources if piece.owner is not None]
    if not owners:
        return
    active = move.peer != IDLE
    for owner in owners:
        readers, others = groups[:, active].ravel(), groups[:, owner[active]].ravel()
        for which in np.flatnonzero(chips[readers] != chips[others]).tolist():
            yield int(readers[which]), int(others[which])


@attrs.define(eq=False)
class _PlanCheck:
    """A plan, and those of its transfers that have been checked."""

    plan: Plan
    job: Job
    moves: list[Transfer] = attrs.field(factory=list)

    def faults(self, move: Transfer, first: int) -> Iterator[str]:
        """What is wrong with a transfer; `first` is the number of the first of its round."""
        yield from self._numbers(move)
        yield from self._peers(move)
        yield from self._bytes(move)
        yield from self._waits(move, first)
        yield from self._counts(move)

    def _numbers(self, move: Transfer) -> Iterator[str]:
        if move.lane >= LANES:
            yield f"lane {move.lane}, there are {LANES}"
        if len(move.sources) > MOST_SOURCES:
            yield f"{len(move.sources)} sources, a descriptor has at most {MOST_SOURCES}"
        if move.credit > MOST_CREDIT:
            yield f"credit {move.credit}, must be at most {MOST_CREDIT}"
        allowed = {1, divisor(self.job, self.plan.members)}
        if move.divisor not in allowed:
            yield f"divisor {move.divisor}, must be {' or '.join(map(str, sorted(allowed)))}"
        if move.divisor > 1 and not move.sources:
            yield "a divisor without sources"

    def _peers(self, move: Transfer) -> Iterator[str]:
        columns = [("peer", move.peer)]
        columns += [] if move.second_target is None else [("also.peer", move.second_target.peer)]
        for name, column in columns:
            yield from self._members(name, column)
            named = column[column != IDLE]
            if len(np.unique(named)) < len(named):
                twice = int(np.bincount(named).argmax())
                yield f"{name} names member {twice} twice: two senders of one transfer"
        if move.consumed is not None:
            yield from self._members("consumed", move.consumed)
            if ((move.consumed != IDLE) & (move.peer == IDLE)).any():
                yield "consumed where there is no peer"
        if move.second_target is not None:
            both = move.second_target.peer != IDLE
            if (move.peer[both] == IDLE).any() or (
                move.peer[both] == move.second_target.peer[both]
            ).any():
                yield "also.peer without a peer, or the same one"
        if move.target.owner is not None or (
            move.second_target and move.second_target.target.owner is not None
        ):
            yield "a target with an owner: a transfer writes at its peer"

    def _members(self, name: str, column: np.ndarray) -> Iterator[str]:
        most = int(column.max(initial=IDLE))
        if most >= self.plan.members:
            yield f"{name} {most}, there are {self.plan.members} members"

    def _bytes(self, move: Transfer) -> Iterator[str]:
        active = move.peer != IDLE
        element_bytes = self.job.buffers.element_bytes
        sizes = move.size_bytes[active]
        if (sizes < 0).any() or (sizes % max(1, element_bytes)).any():
            yield f"bytes that are no whole elements of {element_bytes}"
        pieces = [("source", piece, active) for piece in move.sources]
        pieces.append(("target", move.target, active))
        if move.second_target is not None:
            pieces.append(
                ("also.target", move.second_target.target, move.second_target.peer != IDLE)
            )
        for name, piece, where in pieces:
            yield from self._piece(name, piece, where, move.size_bytes)

    def _piece(
        self, name: str, piece: Location, where: np.ndarray, size: np.ndarray
    ) -> Iterator[str]:
        room = self._room(piece)
        if room is None:
            yield f"{name} in tensor {piece.tensor} of {piece.space.value}, which there is not"
            return
        if piece.owner is not None:
            yield from self._members(f"owner of a {name}", piece.owner)
            if piece.space is not Space.OPERAND or (piece.owner[where] == IDLE).any():
                yield f"{name} with an owner, which is for operands, of every member"
        if name != "source" and piece.space is Space.OPERAND:
            yield f"{name} in an operand, which nobody may write"
        start, size = piece.offset[where], size[where]
        outside = (start < 0) | (size > room) | (start > room - size)
        for member in np.flatnonzero(outside)[:1].tolist():
            first, count = int(start[member]), int(size[member])
            yield (
                f"{name} of {count} bytes at {first} of {piece.space.value}, which has {room} bytes"
            )
        if (start % max(1, self.job.buffers.element_bytes)).any():
            yield f"{name} begins inside of an element"

    def _room(self, piece: Location) -> int | None:
        buffers = self.job.buffers
        if piece.space is Space.SCRATCH:
            return self.plan.scratch_bytes
        is_operand = piece.space is Space.OPERAND
        elements = buffers.operand_elements if is_operand else buffers.result_elements
        if piece.tensor >= len(elements):
            return None
        return elements[piece.tensor] * buffers.element_bytes

    def _waits(self, move: Transfer, first: int) -> Iterator[str]:
        if move.after is None:
            return
        active = move.peer != IDLE
        for name, columns in (("arrived", move.after.arrived), ("sent", move.after.sent)):
            for column in columns:
                if int(column.max(initial=IDLE)) >= first:
                    yield f"after.{name} {int(column.max())} is no transfer of an earlier round"
                    return
                lacking = (
                    member
                    for member in np.flatnonzero(column != IDLE).tolist()
                    if not active[member] or not self._concerns(name, int(column[member]), member)
                )
                if (member := next(lacking, None)) is not None:
                    yield f"after.{name} {column[member]}, which member {member} has not"
                    return

    def _counts(self, move: Transfer) -> Iterator[str]:
        tables = len(self.job.placeholder.counts[:3])
        if move.count is None:
            return
        if not tables:
            yield "a count, which this operator has not"
            return
        most = self.job.buffers.entries * tables
        for name in ("rows", "source", "target"):
            column = getattr(move.count, name)
            if column is not None and (column.min() < IDLE or column.max() >= most):
                yield f"count.{name} {column.max()}, there are {most} entries"

    def _concerns(self, name: str, number: int, member: int) -> bool:
        """Whether a transfer arrives at a member, or is made by it."""
        move = self.moves[number]
        if name == "sent":
            return bool(move.peer[member] != IDLE)
        arrives = (move.peer == member).any()
        return bool(
            arrives
            or (move.second_target is not None and (move.second_target.peer == member).any())
        )
