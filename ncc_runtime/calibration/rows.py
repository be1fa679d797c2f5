"""Measured rows: one collective on one instance type, its size and the time it took.

A file of ours is one JSON object with `rows`, each with the keys of `MeasuredRow`; other keys are
remarks. What else is read is in `measured_files.py`. Sizes are nccom-test's: of the buffer of an
all-reduce, of the larger side otherwise.
"""

from collections.abc import Mapping

import attrs

from ncc_runtime.errors import InputError
from ncc_runtime.report.bench import DTYPES, OPERATORS

OTHER_DIE = "cross die"
"""How `pair` begins for two ranks on different dies of a chip; others are side by side."""


@attrs.frozen
class MeasuredRow:
    """One measurement."""

    table: str  # rows that were measured together
    instance: str
    nodes: int
    lnc: int | None  # None: the generation's default
    ranks: int
    op: str
    dtype: str
    size_bytes: int
    time_us: float
    pair: str = ""  # where the two ranks of a sendrecv are, in words
    algorithm: str = ""  # by which it is predicted; "": what is chosen
    origin: str = attrs.field(default="", eq=False)  # file and number, for errors

    @property
    def is_across_dies(self) -> bool:
        return self.pair.startswith(OTHER_DIE)


def rows_of(path: str, rows: object) -> tuple[MeasuredRow, ...]:
    """The rows of a file's document; InputError says which is wrong, and in what."""
    if not isinstance(rows, list) or not rows:
        raise InputError(f'{path}: expected {{"rows": [{{…}}, …]}} with at least one row')
    return tuple(_row(f"{path}: row {number}", row) for number, row in enumerate(rows))


def _row(place: str, row: object) -> MeasuredRow:
    if not isinstance(row, dict):
        raise InputError(f"{place}: {row!r} is not an object")
    op, dtype = word_of(place, row, "op"), word_of(place, row, "dtype")
    for key, word, known in (("op", op, OPERATORS), ("dtype", dtype, DTYPES)):
        if word not in known:
            raise InputError(f"{place}: {key} {word!r} is unknown; known: {', '.join(known)}")
    return checked(
        MeasuredRow(
            table=word_of(place, row, "table"),
            instance=word_of(place, row, "instance"),
            nodes=count_of(place, row, "nodes") if "nodes" in row else 1,
            lnc=count_of(place, row, "lnc") if row.get("lnc") is not None else None,
            ranks=count_of(place, row, "ranks"),
            op=op,
            dtype=dtype,
            size_bytes=count_of(place, row, "size_bytes"),
            time_us=time_of(place, row),
            pair=word_of(place, row, "pair") if "pair" in row else "",
            algorithm=word_of(place, row, "algorithm") if "algorithm" in row else "",
            origin=place,
        )
    )


def checked(row: MeasuredRow) -> MeasuredRow:
    """The row; InputError if its ranks or bytes do not make a collective."""
    if row.size_bytes < 1 or row.nodes < 1:
        raise InputError(f"{row.origin}: {row.size_bytes} bytes on {row.nodes} instances")
    if row.ranks < 2:
        raise InputError(f"{row.origin}: a collective has at least 2 ranks, not {row.ranks}")
    if OPERATORS[row.op].is_exchange and row.ranks != 2:
        raise InputError(f"{row.origin}: a sendrecv is between 2 ranks, not {row.ranks}")
    if row.is_across_dies and row.ranks != 2:
        raise InputError(f"{row.origin}: pair {row.pair!r} says where 2 ranks are, not {row.ranks}")
    return row


def _value(place: str, row: Mapping[str, object], key: str) -> object:
    if key not in row:
        raise InputError(f"{place}: {key} is missing")
    return row[key]


def word_of(place: str, row: Mapping[str, object], key: str) -> str:
    """A word of a row; InputError if it is none."""
    word = _value(place, row, key)
    if not isinstance(word, str) or not word or not word.isprintable():
        raise InputError(f"{place}: {key} {word!r} is not a word")
    return word


def count_of(place: str, row: Mapping[str, object], key: str) -> int:
    """A whole number from 1 of a row; InputError if it is none."""
    value = _value(place, row, key)
    if type(value) is not int or not 1 <= value <= 1 << 50:
        raise InputError(f"{place}: {key} {value!r} is not a whole number from 1")
    return value


def time_of(place: str, row: Mapping[str, object]) -> float:
    """The measured time of a row in microseconds; InputError if it is none."""
    value = _value(place, row, "time_us")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 1e-6 <= value < 1e12:
        raise InputError(f"{place}: time_us {value!r} is not a time from a picosecond")
    return float(value)
