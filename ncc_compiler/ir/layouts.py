"""The order of elements in memory that a written type asks for; only `bitcast` sees it."""

import re
from collections.abc import Sequence

from ncc_compiler.syntax import tree
from ncc_runtime.neff.dtypes import DType

_WRITTEN = re.compile(r"\[([^\[\]]*)\]\s*\{\s*([\d,\s]*)")
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


def is_row_by_row(text: tree.TypeText) -> bool:
    """Whether the last dimension is the innermost one; dimensions of size 1 may stand anywhere."""
    if isinstance(text, tree.TupleText):
        return all(is_row_by_row(element) for element in text.elements)
    written = _WRITTEN.search(text.text)
    if written is None:
        return True
    sizes, inner_first = (_numbers(part) for part in written.groups())
    kept = [k for k in inner_first if k < len(sizes) and sizes[k] != 1]
    return kept == sorted(kept, reverse=True)


def _numbers(text: str) -> Sequence[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
