"""Rows of cells as lines whose cells stand below one another; the shape of every listing."""

from collections.abc import Iterable, Sequence

Cells = Sequence[str]
WIDEST = 40
"""Cells longer than this do not widen their column."""


def aligned(rows: Iterable[Cells]) -> list[str]:
    """Rows as indented lines whose cells stand below one another; the last cell is not padded."""
    table = [tuple(row) for row in rows]
    columns = max(map(len, table), default=0)
    widths = [
        max((len(row[k]) for row in table if k < len(row) - 1 and len(row[k]) <= WIDEST), default=0)
        for k in range(columns)
    ]
    cells = (
        [cell.ljust(width) for cell, width in zip(row, widths, strict=False) if width or cell]
        for row in table
    )
    return ["  " + "  ".join(row).rstrip() for row in cells]
