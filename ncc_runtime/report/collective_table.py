"""The table of collectives that `nccrt run` prints: equal ones in one row, or each.

There may be many thousands of rows, and rich takes long to lay out each.
"""

import enum
from collections.abc import Callable, Hashable, Iterator, Sequence

import attrs

from ncc_runtime.neff.memory import size_text
from ncc_runtime.report.collectives import REMOTE, CollectiveRow
from ncc_runtime.report.row_texts import lines_text
from ncc_runtime.report.text_table import text_table
from ncc_runtime.topology.routes import Transport

MOST_FOLDED = 40
"""Rows of equal collectives of one line each; where there are more, lines are joined."""


class RowOrder(enum.Enum):
    """By what the rows of the table are sorted: the largest first, starts the earliest first."""

    PROGRAM = "program"
    EXPOSED = "exposed"
    TIME = "time"
    BYTES = "bytes"
    START = "start"


@attrs.frozen
class EqualCollectives:
    """Collectives of one op, size, group and algorithm, in the order of the program."""

    rows: tuple[CollectiveRow, ...]

    @property
    def first(self) -> CollectiveRow:
        return self.rows[0]

    @property
    def starts(self) -> list[float]:
        """In microseconds, of those that ran by a clock."""
        return [row.start_us for row in self.rows if row.start_us is not None]

    @property
    def time_us(self) -> float | None:
        """The sum, None without a clock."""
        return _sum([row.time_us for row in self.rows])

    @property
    def exposed_us(self) -> float | None:
        """The sum, None without a clock."""
        return _sum([row.exposed_us for row in self.rows])

    @property
    def lines(self) -> list[str]:
        """Lines of the user's code that are known, each once."""
        return list(dict.fromkeys(row.line for row in self.rows if row.line))

    def sent_bytes(self, transport: Transport) -> int:
        """Of all ranks."""
        return sum(row.bytes_by_transport[transport.value] for row in self.rows)


def _sum(times: Sequence[float | None]) -> float | None:
    known = [time for time in times if time is not None]
    return sum(known) if known else None


def _kind(row: CollectiveRow) -> tuple[Hashable, ...]:
    groups = row.groups, row.group_size, row.first_group, row.pairs
    return row.op, row.algorithm, *groups, row.bytes, row.operands


def _kind_and_line(row: CollectiveRow) -> tuple[Hashable, ...]:
    return *_kind(row), row.line


def folded(rows: Sequence[CollectiveRow]) -> list[EqualCollectives]:
    """Equal collectives together: those of one line, or of all where lines are many."""
    alike = _grouped(rows, _kind_and_line)
    return alike if len(alike) <= MOST_FOLDED else _grouped(rows, _kind)


def _grouped(
    rows: Sequence[CollectiveRow], key: Callable[[CollectiveRow], Hashable]
) -> list[EqualCollectives]:
    alike: dict[Hashable, list[CollectiveRow]] = {}
    for row in rows:
        alike.setdefault(key(row), []).append(row)
    return [EqualCollectives(tuple(group)) for group in alike.values()]


_SORT_KEYS: dict[RowOrder, Callable[[EqualCollectives], float]] = {
    RowOrder.PROGRAM: lambda each: each.first.id,
    RowOrder.EXPOSED: lambda each: -(each.exposed_us or 0.0),
    RowOrder.TIME: lambda each: -(each.time_us or 0.0),
    RowOrder.BYTES: lambda each: -each.first.bytes * len(each.rows),
    RowOrder.START: lambda each: min(each.starts, default=float("inf")),
}


def table_lines(
    rows: Sequence[CollectiveRow], order: RowOrder = RowOrder.PROGRAM, *, each: bool = False
) -> Iterator[str]:
    """A heading, then the table as lines."""
    headings, *cells = table_cells(rows, order, each=each)
    words = [number for number, heading in enumerate(headings) if heading in _WORDS]
    yield "collectives, times in us"
    yield from text_table(headings, cells, words)


def table_cells(
    rows: Sequence[CollectiveRow], order: RowOrder = RowOrder.PROGRAM, *, each: bool = False
) -> list[tuple[str, ...]]:
    """The headings of columns, and a row for equal collectives, of which there are some.

    With `each` a row for every one of them, with its first group and its path of named scopes.
    """
    alike = [EqualCollectives((row,)) for row in rows] if each else folded(rows)
    alike.sort(key=_SORT_KEYS[order])
    is_known = any(_where(group, each=each) for group in alike)
    ends = ("line",) if is_known else ()
    transports = [kind for kind in REMOTE if any(group.sent_bytes(kind) for group in alike)]
    latest = max(max([*group.starts, group.time_us or 0.0]) for group in alike)
    places = 3 if latest < 10_000 else 1 if latest < 100_000 else 0
    headings = (
        "id",
        "collective",
        "algorithm",
        "groups",
        "bytes",
        *("start", "time", "exposed"),
        *(_HEADINGS[transport] for transport in transports),
        *ends,
    )
    lines = [headings]
    for group in alike:
        times = (min(group.starts, default=None), group.time_us, group.exposed_us)
        lines.append(
            (
                f"p{group.first.id}",
                _name(group),
                group.first.algorithm,
                _groups(group.first, each=each),
                _size(group.first.bytes),
                *("-" if time is None else f"{time:.{places}f}" for time in times),
                *(_size(group.sent_bytes(transport)) for transport in transports),
                *(_where(group, each=each) for _ in ends),
            )
        )
    return lines


_LONGEST_NAME = 32
_WORDS = ("id", "collective", "algorithm", "line")
_HEADINGS = {
    Transport.INTRA_CHIP: "on chip",
    Transport.NEURONLINK: "links",
    Transport.EFA: "EFA",
}


def _name(group: EqualCollectives) -> str:
    """`22 x all-reduce`; of a single one its name, which mostly begins with the op.

    Of those in loops also how often they ran, all together.
    """
    first, runs = group.first, sum(row.runs or 0 for row in group.rows)
    loop = f" ({runs} runs)" if any((row.runs or 0) > 1 for row in group.rows) else ""
    if len(group.rows) > 1:
        return f"{len(group.rows)} x {first.op}{loop}"
    has_op = first.name.replace("_", "-").startswith(first.op)
    name = first.name if len(first.name) <= _LONGEST_NAME else f"{first.name[:_LONGEST_NAME]}…"
    return (name if has_op else f"{first.op} {name}".rstrip()) + loop


def _where(group: EqualCollectives, *, each: bool) -> str:
    words = (lines_text(group.lines), group.first.op_name if each else "")
    return "  ".join(word for word in words if word)


def _groups(row: CollectiveRow, *, each: bool) -> str:
    if row.pairs:
        return f"{row.pairs} pairs"
    first = f" ({row.first_group})" if each else ""
    return f"{row.groups} of {row.group_size}{first}"


def _size(size_bytes: int) -> str:
    """In three digits."""
    if not size_bytes:
        return "-"
    figure, unit = size_text(size_bytes).split()
    short = f"{float(figure):.0f}" if len(figure) > 4 else figure.removesuffix(".0")
    return f"{short} {unit}"
