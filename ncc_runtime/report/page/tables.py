"""Tables of a page: sorted by their headings, with names as data and never as HTML."""

import sys
from collections.abc import Iterable, Sequence
from html import escape

import attrs


@attrs.frozen
class TableColumn:
    """A column; `about` is its tooltip and belongs to its accessible description."""

    heading: str
    is_number: bool = False
    about: str = ""
    is_sorted: bool = True  # whether its heading is a button


@attrs.frozen
class TableCell:
    """What stands in a cell; `share` draws a line below it, whole for the largest of the column."""

    text: str
    value: float | None = None  # by which it is sorted, if it is a number
    share: float | None = None
    html: str = ""  # after the text, ours


LONGEST_WORD = 24

BELOW_ALL = -sys.float_info.max
"""By which a cell without a figure is sorted; scripts cannot read Python's `-inf`."""

TableRow = Sequence[TableCell | str]
"""The first cell heads the row."""


def number(value: float | None, digits: int = 1, *, share: float | None = None) -> TableCell:
    """A figure with groups of three digits; `-` where there is none."""
    if value is None:
        return TableCell("-", BELOW_ALL)
    return TableCell(f"{value:,.{digits}f}", float(value), share)


def table(
    name: str,
    caption: str,
    columns: Sequence[TableColumn],
    bodies: Sequence[Iterable[TableRow]],
) -> str:
    """A table whose headings sort its rows, in one body or in several of which one is shown."""
    head = "".join(_heading(column) for column in columns)
    parts = []
    for at, body in enumerate(bodies):
        rows = [
            [TableCell(cell) if isinstance(cell, str) else cell for cell in row] for row in body
        ]
        largest = [
            max((cell.share or 0.0 for cell in column), default=0.0)
            for column in zip(*rows, strict=True)
        ]
        lines = "".join(_row(columns, row, largest) for row in rows)
        parts.append(f"<tbody{' hidden' if at else ''}>{lines}</tbody>")
    # a region that scrolls is reached by keyboard, too
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(caption)}">'
        f'<table id="{name}"><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead>'
        f"{''.join(parts)}</table></div>"
    )


def _heading(column: TableColumn) -> str:
    kind = ' class="number"' if column.is_number else ""
    about = f' title="{escape(column.about)}"' if column.about else ""
    words = escape(column.heading)
    if not column.is_sorted:
        return f'<th scope="col"{kind}{about}>{words}</th>'
    return (
        f'<th scope="col"{kind} aria-sort="none"><button type="button"{about}>{words}</button></th>'
    )


def _row(columns: Sequence[TableColumn], row: Sequence[TableCell], largest: Sequence[float]) -> str:
    cells = []
    for at, (column, cell) in enumerate(zip(columns, row, strict=True)):
        kinds = ["number"] * column.is_number + ["bar"] * (cell.share is not None)
        # a name is not broken at its hyphens, unless it is as long as a sentence
        if not column.is_number and " " not in cell.text and len(cell.text) <= LONGEST_WORD:
            kinds.append("word")
        marks = f' class="{" ".join(kinds)}"' if kinds else ""
        if cell.value is not None:
            marks += (
                f' data-value="{cell.value:g}"'
                if abs(cell.value) < 1e6
                else f' data-value="{cell.value!r}"'
            )
        if cell.share is not None:
            share = max(0.0, cell.share) / largest[at] if largest[at] > 0 else 0.0
            marks += f' style="--share:{share:.4f}"'
        content = f"{escape(cell.text)}{cell.html}"
        cells.append(
            f'<th scope="row"{marks}>{content}</th>' if at == 0 else f"<td{marks}>{content}</td>"
        )
    return f"<tr>{''.join(cells)}</tr>"
