"""Readers of what rows of a listing are made of: enumerations, attributes, placeholders."""

import enum
import json
import re
from collections.abc import Mapping
from typing import TypeVar

from ncc_runtime.neff.dtypes import DType
from ncc_runtime.neff.groups import Groups, parse_groups
from ncc_runtime.neff.listing_row import Row
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.program import AttributeValue, Block, BlockKind, RegionInstr, TensorId
from ncc_runtime.neff.reductions import Reduction

_GROUP = r"\{\d{1,19}(?:,\d{1,19})*\}"
_MEMBERS = re.compile(rf"\{{(?:{_GROUP}(?:,{_GROUP})*)?\}}", re.ASCII)
_ATTRIBUTE = re.compile(
    r'(?P<name>[\w-]+)=(?:(?P<plain>-?\d{1,20}|true|false|".*")|\[(?P<list>[\d,-]*)\])', re.ASCII
)

_TENSOR = re.compile(r"t(\d{1,20})", re.ASCII)

_Member = TypeVar("_Member", bound=enum.Enum)


def choice(row: Row, kind: type[_Member], what: str) -> _Member:
    """The next word as a member of an enumeration."""
    word = row.word(what)
    try:
        return kind(word)
    except ValueError as error:
        known = ", ".join(str(member.value) for member in kind)
        raise row.wrong(f"{word!r} is no {what}, known: {known}") from error


def attributes(row: Row) -> Mapping[str, AttributeValue]:
    """The rest of the row as `name=value` words."""
    found: dict[str, AttributeValue] = {}
    while not row.is_done():
        match = row.match(_ATTRIBUTE, "attribute=value")
        if match["name"] in found:
            raise row.wrong(f"attribute {match['name']} is given twice")
        found[match["name"]] = (
            json.loads(match["plain"])
            if match["list"] is None
            else tuple(int(number) for number in match["list"].split(",") if number)
        )
    return found


def region_instr(row: Row) -> RegionInstr:
    """One operation of a region, behind its value number."""
    opcode, dtype = row.word("opcode"), choice(row, DType, "dtype")
    operands = row.ids("v")
    constant = row.name("value") if row.peek().startswith('"') else None
    return RegionInstr(opcode, operands, dtype, attributes(row), constant)


def block(row: Row) -> Block:
    """A loop or a branch, behind its id."""
    kind, name = choice(row, BlockKind, "kind of block"), row.name("name")
    row.keyword("predicate")
    predicate = TensorId(int(row.match(_TENSOR, "tensor")[1]))
    index, of = 0, 1
    if row.accept("branch"):
        index = row.integer("branch")
        row.keyword("of")
        of = row.integer("number of branches")
    trip_count = row.integer("trip count") if row.accept("trips") else None
    return Block(kind, name, predicate, index, of, trip_count)


def placeholder(row: Row) -> Placeholder:
    """A placeholder, behind its id."""
    op = choice(row, CollectiveOp, "collective")
    reduces = any(row.peek() == reduction.value for reduction in Reduction)
    reduction = choice(row, Reduction, "reduction") if reduces else None
    dtype = choice(row, DType, "dtype")
    results = row.ids("t")
    row.keyword("=")
    operands = row.ids("t")
    groups = _members(row) if row.accept("groups") else ()
    pairs = _members(row) if row.accept("pairs") else ()
    root = row.integer("root") if row.accept("root") else None
    counts = row.ids("t") if row.accept("counts") else ()
    row.keyword("stream")
    return Placeholder(
        op=op,
        dtype=dtype,
        operands=operands,
        results=results,
        reduction=reduction,
        groups=groups,
        pairs=tuple((source, target) for source, target in pairs),
        root=root,
        stream=row.integer("stream"),
        in_place=row.accept("in-place"),
        channel_id=row.integer("channel") if row.accept("channel") else None,
        name=row.name("name"),
        counts=counts,
    )


def _members(row: Row) -> Groups:
    return parse_groups(row.match(_MEMBERS, "{{0,1},{2,3}}")[0]).expand()
