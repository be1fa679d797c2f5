"""Results as HTML for notebooks: escaped, without scripts, in the colours of the page.

Only a picture brings colours of its own, on white, so that light and dark pages show it alike. It
is an image and no part of the page, which its style sheet would otherwise restyle.
"""

import base64
from collections.abc import Iterable, Sequence
from html import escape

MOST_ROWS = 50
"""Rows of a table that a notebook shows."""


def block(*parts: str) -> str:
    """Parts that are HTML already, one below the other."""
    return f"<div>{''.join(part for part in parts if part)}</div>"


def line(text: str) -> str:
    """A paragraph; ends of lines are kept."""
    return f'<p style="white-space: pre-line">{escape(text)}</p>'


def preformatted(text: str) -> str:
    """A text with columns; long lines scroll."""
    return f'<pre style="overflow-x: auto; white-space: pre">{escape(text)}</pre>'


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table without rows is nothing; cells that are None stay empty, numbers stand right."""
    every = list(rows)
    if not every:
        return ""
    left_out = len(every) - MOST_ROWS
    more = f", the first {MOST_ROWS} of {len(every)}" if left_out > 0 else ""
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in every[:MOST_ROWS])
    title = f"<caption>{escape(caption + more)}</caption>"
    return f"<table>{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    if value is None:
        return "<td></td>"
    if isinstance(value, float):
        return f'<td style="text-align: right">{value:.3f}</td>'
    if isinstance(value, int):
        return f'<td style="text-align: right">{value}</td>'
    return f'<td style="text-align: left">{escape(str(value))}</td>'


def image(svg: str, description: str) -> str:
    """A picture; `description` is what is read aloud in its place."""
    data = base64.b64encode(svg.encode()).decode()
    return (
        f'<img alt="{escape(description)}" style="background: white; max-width: 100%" '
        f'src="data:image/svg+xml;base64,{data}">'
    )
