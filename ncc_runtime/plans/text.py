"""The JSON of plans, typed: its schema is made of these classes, and other shapes are refused.

`plan.schema.json` beside this file is that schema. A column by member is a list, or one number
where all members are alike; -1 is nobody.
"""

import json
from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

import msgspec

from ncc_runtime.errors import PlanError
from ncc_runtime.input_files import json_of

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
        plain = {"tensor": 0, "lane": 0, "credit": 0, "divisor": 1, "row_bytes": 0, "entries": 0}
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
        return msgspec.json.decode(data, type=FileText)
    except msgspec.ValidationError as error:
        what = _foreign(data) or str(error)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:  # of keys, msgspec raises the latter
        what = _not_json(data, str(error))
    except RecursionError:
        what = "not JSON: nested too deeply"
    raise PlanError(f"{what[:1].lower()}{what[1:]}")


class _ExecutionGpu(msgspec.Struct):
    threadblocks: list[dict[str, Any]]


class _ExecutionPlan(msgspec.Struct):
    """What tells an execution plan of MSCCL++. Source: microsoft/mscclpp, execution_plan.cc."""

    gpus: list[_ExecutionGpu]


def _foreign(data: bytes) -> str:
    """Says so where JSON is a plan of somebody else's that is known; "" if it is not."""
    try:
        msgspec.json.decode(data, type=_ExecutionPlan)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return (
        "an execution plan of MSCCL++, whose operations (put, signal, wait, ...) are no steps of "
        "thread blocks that send and receive, and are not read: write the algorithm as MSCCL XML, "
        "with msccl-tools, or start from a plan of ours (nccrt explain --save-plan FILE)"
    )


def _not_json(data: bytes, what: str) -> str:
    """Where a file is no JSON; msgspec knows the byte only."""
    try:
        json_of(data)
    except json.JSONDecodeError as error:
        return f"line {error.lineno}, column {error.colno}: not JSON: {error.msg}"
    except ValueError as error:
        return f"not JSON: {error}"
    return what
