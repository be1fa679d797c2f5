"""The order of elements in memory that a written type asks for; only `bitcast` sees it."""

import re

from ncc_compiler.syntax import tree

_WRITTEN = re.compile(r"\[([^\[\]]*)\]\s*\{\s*([\d,\s]*)")


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


def _numbers(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)]
