"""Measured sweeps: nccom-test's JSON, CSV or printed table, or rows of ours.

nccom-test's results name neither operator nor machine. Where a sweep is compared, what a row does
not say fits any; where constants are fitted, options say it.
"""

import csv
import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import attrs

from ncc_runtime.calibration.rows import MeasuredRow, checked, rows_of
from ncc_runtime.errors import InputError, reason_of
from ncc_runtime.input_files import MOST_JSON_BYTES, FileRole, json_of, read_file, recognised
from ncc_runtime.report.bench import DTYPES, OPERATORS, Case, type_name
from ncc_runtime.topology.format.load import load_spec
from ncc_runtime.topology.graph import Topology

_KEY = re.compile(r"(?P<word>[a-z]+)(:(?P<statistic>\w+))?[( _]*(?P<unit>[a-z/]*)\)?")
_US = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
_TIMES = (None, "avg", "mean", "p50")  # which of several times counts


@attrs.frozen
class MeasuredPoint:
    """One size and its time; None: not said."""

    size_bytes: int
    time_us: float
    op: str | None = None
    dtype: str | None = None
    ranks: int | None = None
    nodes: int | None = None
    lnc: int | None = None
    instance: str | None = None
    group_size: int | None = None
    table: str | None = None
    pair: str = ""
    algorithm: str = ""
    origin: str = ""  # file and number, for errors

    def is_of(self, case: Case, topology: Topology | None) -> bool:
        """Whether nothing that it says differs from the case, or from where that is placed."""
        said = [
            (self.op and OPERATORS[self.op], case.operator),
            (self.dtype, type_name(case.dtype)),
            (self.ranks, case.ranks),
            (self.group_size, case.members),
        ]
        if topology is not None:
            said += [
                (self.nodes, topology.nodes),
                (self.lnc, topology.lnc),
                (self.instance, topology.instance or topology.name),
            ]
        return all(value in (None, own) for value, own in said)


def read_points(path: str) -> tuple[MeasuredPoint, ...]:
    """The points of a file; InputError says what is wrong, and where."""
    try:
        data = read_file(path, MOST_JSON_BYTES)
    except OSError as error:
        raise InputError(f"{path}: {reason_of(error)}") from error
    try:
        return _points_of(path, data)
    except InputError:
        if other := recognised(data, FileRole.ROWS):
            raise InputError(f"{path}: nothing measured, but {other}") from None
        raise


def _points_of(path: str, data: bytes) -> tuple[MeasuredPoint, ...]:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not a text in UTF-8") from error
    if not text.lstrip().startswith(("{", "[")):
        return _of_table(path, text.splitlines())
    try:
        document = json_of(text)
    except ValueError as error:
        raise InputError(f"{path}: not JSON: {str(error).lower()}") from error
    if isinstance(document, dict) and "rows" in document:
        return tuple(
            MeasuredPoint(
                row.size_bytes, row.time_us, row.op, row.dtype, row.ranks, row.nodes, row.lnc,
                row.instance, table=row.table, pair=row.pair, algorithm=row.algorithm,
                origin=row.origin,
            )
            for row in rows_of(path, document["rows"])
        )  # fmt: skip
    results = document.get("results") if isinstance(document, dict) else document
    if not isinstance(results, list) or not results:
        raise InputError(f'{path}: expected nccom-test\'s {{"results": [{{…}}, …]}}, or "rows"')
    shared = document if isinstance(document, dict) else {}
    return tuple(
        _point(f"{path}: result {number}", row, shared) for number, row in enumerate(results)
    )


def read_measured(
    path: str, unsaid: Mapping[str, object] = MappingProxyType({})
) -> tuple[MeasuredRow, ...]:
    """The points of a file as rows to fit constants to; InputError says what is wrong.

    `unsaid` has what a file does not say, by names of `MeasuredRow`; where it does say it, both
    agree. Points without a table are one, called like the file.
    """
    return tuple(_as_row(point, unsaid, Path(path).stem) for point in read_points(path))


def has_rows(path: str) -> bool:
    """Whether a JSON file has rows of collectives or results of nccom-test."""
    document = json_of(read_file(path, MOST_JSON_BYTES).decode("utf-8-sig"))
    return isinstance(document, dict) and not {"rows", "results"}.isdisjoint(document)


_NEEDED = {"instance": "--topology", "ranks": "-r", "op": "--op", "dtype": "-d"}
"""What a row has to say, and the options that say it for a file."""


def _as_row(point: MeasuredPoint, unsaid: Mapping[str, object], table: str) -> MeasuredRow:
    said = {"table": table, "nodes": 1, **unsaid}
    for name in ("table", "instance", "nodes", "lnc", "ranks", "op", "dtype"):
        own = getattr(point, name)
        if own is None:
            continue
        if name in unsaid and _same(name, own) != _same(name, unsaid[name]):
            raise InputError(
                f"{point.origin}: it is of {name} {own}, an option says {unsaid[name]}"
            )
        said[name] = own
    if missing := [f"{name} ({option})" for name, option in _NEEDED.items() if name not in said]:
        raise InputError(f"{point.origin}: it does not say its {', '.join(missing)}")
    if said["dtype"] not in DTYPES:
        known = ", ".join(DTYPES)
        raise InputError(f"{point.origin}: type {said['dtype']!r} is unknown; known: {known}")
    if point.group_size not in (None, said["ranks"]):
        raise InputError(
            f"{point.origin}: it is of groups of {point.group_size} of {said['ranks']} ranks; "
            "constants are fitted to groups of all ranks"
        )
    of_point: dict[str, Any] = {
        **said,
        "lnc": said.get("lnc"),
        "size_bytes": point.size_bytes,
        "time_us": point.time_us,
        "pair": point.pair,
        "algorithm": point.algorithm,
        "origin": point.origin,
    }
    return checked(MeasuredRow(**of_point))


def _same(name: str, value: object) -> object:
    """What two spellings of one operator, or an alias and its instance type, have in common."""
    if name == "op":
        return OPERATORS[str(value)]
    return load_spec(str(value)).name if name == "instance" else value


def _of_table(path: str, lines: Sequence[str]) -> tuple[MeasuredPoint, ...]:
    """CSV, or the printed table among other lines of a log."""
    plain = [line.lstrip("# ") for line in lines]  # some tools make comments of tables
    first = next((at for at, line in enumerate(plain) if line.lower().startswith("size")), None)
    if first is None:
        raise InputError(f"{path}: neither JSON nor a table with a column size(B)")
    is_csv = "," in plain[first]
    rows = csv.reader(plain[first:]) if is_csv else (line.split() for line in plain[first:])
    keys = next(iter(rows))
    points = []
    for number, cells in enumerate(rows, first + 2):
        is_row = bool(cells) and cells[0].strip()[:1].isdigit()
        if is_row and len(cells) != len(keys):
            fact = f"{len(cells)} columns, not {len(keys)}"
            raise InputError(f"{path}: line {number}: {fact} as its head has")
        if is_row:
            row = {key: _number_or_word(cell) for key, cell in zip(keys, cells, strict=True)}
            points.append(_point(f"{path}: line {number}", row, {}))
    if not points:
        raise InputError(f"{path}: the table has no rows")
    return tuple(points)


def _number_or_word(cell: str) -> object:
    cell = cell.strip()
    for kind in (int, float):
        try:
            return kind(cell)
        except ValueError:
            continue
    return cell


def _point(place: str, row: object, shared: Mapping[str, object]) -> MeasuredPoint:
    if not isinstance(row, dict):
        raise InputError(f"{place}: {row!r} is not an object")
    times: dict[str | None, float] = {}
    found: dict[str, object] = {}
    for key, value in row.items():
        match = _KEY.fullmatch(str(key).strip().lower())
        if match is None:
            continue
        if match["word"] == "time":
            unit = match["unit"] or "us"
            if unit not in _US:
                raise InputError(f"{place}: {key}: times are in {', '.join(_US)}")
            times[match["statistic"]] = _positive(place, key, value) * _US[unit]
        elif match["word"] == "size":
            if match["unit"] not in ("b", "bytes", ""):
                raise InputError(f"{place}: {key}: sizes are in bytes")
            found["size"] = size = _positive(place, key, value)
            if not size.is_integer():
                raise InputError(f"{place}: {key}: {value} is not a whole number")
        else:
            found.setdefault(match["word"], value)
    time = next((times[which] for which in _TIMES if which in times), None)
    if "size" not in found or time is None:
        missing = "time(us)" if "size" in found else "size(B)"
        raise InputError(f"{place}: {missing} is missing; there are {', '.join(map(str, row))}")
    op = found.get("op", shared.get("op"))
    if op is not None and not (isinstance(op, str) and op in OPERATORS):
        raise InputError(f"{place}: op {op!r} is unknown; known: {', '.join(OPERATORS)}")
    numbers: dict[str, Any] = {
        name: value
        for name in ("ranks", "nodes", "lnc", "group_size")
        if type(value := found.get(name, row.get(name, shared.get(name)))) is int
    }
    dtype = found.get("type", found.get("dtype", shared.get("dtype")))
    instance = next(
        (of[key] for of in (row, shared) for key in ("instance", "topology") if key in of), None
    )
    return MeasuredPoint(
        size_bytes=round(found["size"]),  # type: ignore[call-overload]
        time_us=time,
        op=op if isinstance(op, str) else None,
        dtype=dtype if isinstance(dtype, str) else None,
        instance=instance if isinstance(instance, str) else None,
        origin=place,
        **numbers,
    )


def _positive(place: str, key: str, value: object) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 1e-12 < value < 1e18:  # type: ignore[operator]
        raise InputError(f"{place}: {key} {value!r} is not a number above 0")
    return float(value)  # type: ignore[arg-type]


def median_us(points: Iterable[MeasuredPoint], size_bytes: int) -> float | None:
    """The median time in us of what was measured of a size; None if nothing was."""
    times = [point.time_us for point in points if point.size_bytes == size_bytes]
    return statistics.median(times) if times else None
