"""The order of elements in memory that a written type asks for; only `bitcast` depends on it."""

import re
from collections.abc import Sequence

import attrs

from ncc_compiler.syntax import tree
from ncc_runtime.neff.dtypes import DType

_SIZES = r"\s*(?:\d{1,19}\s*(?:,\s*\d{1,19}\s*)*)?"
_ARRAY = re.compile(rf"([a-z][a-z0-9]*)\[({_SIZES})\]\s*(\{{.*\}})?", re.DOTALL)
_TILES = re.compile(r"T(?:\s*\((?:[\d*,\s]*)\))+")
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_ORDER = re.compile(r"\s*(?:\d{1,9}\s*(?:,\s*\d{1,9}\s*)*)?")
_TILE = r"\(\s*(?:(?:\*|0*[1-9]\d{0,17})\s*(?:,\s*(?:\*|0*[1-9]\d{0,17})\s*)*)?\)"
_LEVEL = r"[DCSH][+~]*"
_NAME = "|".join(dtype.value for dtype in DType if dtype.is_integer and not dtype.is_signed)
_NUMBER = r"\(\s*\d{1,18}\s*\)"
_CUT = r"\(\s*\d{1,18}\s*:\s*\d{1,18}\s*(?:,\s*\d{1,18}\s*)*\)"
_REST = re.compile(
    rf"\s*(?:D\(\s*(?:{_LEVEL}\s*(?:,\s*{_LEVEL}\s*)*)?\)\s*)?"
    rf"(?:T(?:\s*{_TILE})+\s*)?"
    rf"(?:L{_NUMBER}\s*)?"
    rf"(?:\#\((?:{_NAME})\)\s*)?(?:\*\((?:{_NAME})\)\s*)?"
    rf"(?:E{_NUMBER}\s*)?(?:S{_NUMBER}\s*)?"
    rf"(?:SC(?:{_CUT})+\s*)?(?:M{_NUMBER}\s*)?"
)
"""Levels, tiles, padding, types of indices and pointers, bits, memory space, cuts, prefix: all of
them optional, in this order."""


def layout_fault(text: str, rank: int) -> str:
    """What is wrong with `{1,0:T(8,128)E(4)}` behind an array of this rank, if anything is."""
    order, colon, rest = _COMMENT.sub("", text).strip()[1:-1].partition(":")
    if not _ORDER.fullmatch(order):
        return f"the layout {text[:40]} does not begin with a list of dimensions"
    dimensions = _numbers(order)
    if sorted(dimensions) != list(range(rank)):
        return f"the layout {text[:40]} does not name each of {rank} dimensions once"
    if not _REST.fullmatch(rest):
        return f"{colon + rest[:40]!r} of the layout is not of the form :T(8,128)(2,1)E(4)S(1)"
    return ""


@attrs.frozen
class Memory:
    """How a written type lays out an array; the sizes are those of the dimensions in this order."""

    element: str
    order: tuple[int, ...]  # of dimensions, the outermost first
    sizes: tuple[int, ...]
    tiles: str


def memory_of(kind: tree.TypeText) -> Memory | None:
    """The layout that a type says, row by row if it says none; None of what is no array."""
    match = isinstance(kind, tree.ArrayText) and _ARRAY.fullmatch(_COMMENT.sub("", kind.text))
    if not match:
        return None
    sizes, layout = _numbers(match[2]), match[3] or ""
    order = tuple(range(len(sizes)))
    if layout:
        if layout_fault(layout, len(sizes)):
            return None
        order = tuple(reversed(_numbers(layout[1:-1].partition(":")[0])))
    tiles = _TILES.search(layout)
    ordered = tuple(sizes[dimension] for dimension in order)
    return Memory(match[1], order, ordered, "".join(tiles[0].split()) if tiles else "")


def is_row_by_row(text: tree.TypeText) -> bool:
    """Whether the last dimension is the innermost one; dimensions of size 1 may stand anywhere."""
    if isinstance(text, tree.TupleText):
        return all(is_row_by_row(element) for element in text.elements)
    memory = memory_of(text)
    if memory is None:  # what is no type is refused as such
        return True
    ordered = zip(memory.order, memory.sizes, strict=True)
    kept = [dimension for dimension, size in ordered if size != 1]
    return kept == sorted(kept)


def _numbers(text: str) -> Sequence[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
