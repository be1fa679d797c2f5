"""A table as lines of text."""

import itertools
import textwrap
from collections.abc import Container, Iterator, Sequence

_LEAST = 10
"""Columns that are wrapped stay at least so wide."""


def text_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], words: Container[int] = ()
) -> Iterator[str]:
    """A line of headings, then one a row; columns numbered in `words` to the left, others right."""
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = ["<" if number in words else ">" for number in range(len(headings))]
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    yield from (line.format(*cells).rstrip() for cells in lines)


def wrapped(
    headings: Sequence[str], rows: Sequence[Sequence[str]], columns: Sequence[int], width: int
) -> list[list[str]]:
    """The rows of a table so that no line is wider, if some columns may go on in the next line.

    Of these the widest give way first; a row becomes as many as its cells need.
    """
    widths = [max(map(len, column)) for column in zip(headings, *rows, strict=True)]
    spare = width - sum(widths) - 2 * (len(widths) - 1) + sum(widths[each] for each in columns)
    for place, each in enumerate(sorted(columns, key=widths.__getitem__)):
        # what narrower columns leave goes to the wider ones
        widths[each] = min(widths[each], max(_LEAST, spare // (len(columns) - place)))
        spare -= widths[each]
    made: list[list[str]] = []
    for row in rows:
        cells = [
            textwrap.wrap(cell, widths[number], break_on_hyphens=False)
            if number in columns
            else [cell]
            for number, cell in enumerate(row)
        ]
        made += map(list, itertools.zip_longest(*cells, fillvalue=""))
    return made
