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
    left = sorted(columns, key=widths.__getitem__)
    spare = width - sum(widths) - 2 * (len(widths) - 1) + sum(widths[each] for each in columns)
    cells = [[[cell] for cell in row] for row in rows]
    while left:
        each = left.pop()
        share = max(_LEAST, spare // (len(left) + 1), spare - sum(widths[other] for other in left))
        for row, of_row in zip(rows, cells, strict=True):
            of_row[each] = textwrap.wrap(row[each], share, break_on_hyphens=False)
        # lines end at words, so narrower columns may get more than their share
        lines = [headings[each], *(line for of_row in cells for line in of_row[each])]
        spare -= max(map(len, lines))
    return [list(line) for of_row in cells for line in itertools.zip_longest(*of_row, fillvalue="")]
