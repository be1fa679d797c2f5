"""A table as lines of text."""

from collections.abc import Container, Iterator, Sequence


def text_table(
    headings: Sequence[str], rows: Sequence[Sequence[str]], words: Container[int] = ()
) -> Iterator[str]:
    """A line of headings, then one a row; columns numbered in `words` to the left, others right."""
    lines = [headings, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    sides = ["<" if number in words else ">" for number in range(len(headings))]
    line = "  ".join(f"{{:{side}{width}}}" for side, width in zip(sides, widths, strict=True))
    yield from (line.format(*cells).rstrip() for cells in lines)
