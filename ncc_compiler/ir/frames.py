"""Source locations: the tables before the computations, and the `metadata` that points there."""

import re
from collections.abc import Mapping, Sequence

from ncc_compiler.ir.graph import Module, Node, Raw, SourceFrame
from ncc_compiler.ir.reading import Reading
from ncc_compiler.syntax import tree

_QUOTED = re.compile(r'(\d+)\s+"(.*)"')
_FIELDS = re.compile(r"(\d+)\s+\{(\s*(?:\w+=\d+\s*)*)\}")
_FIELD = re.compile(r"(\w+)=(\d+)")
_ESCAPE = re.compile(r"\\(.)")
_FRAME_ID = re.compile(r"\bstack_frame_id=(\d{1,9})")
_FILE = re.compile(r'\bsource_file="((?:[^"\\]|\\.)*)"')
_LINE = re.compile(r"\bsource_line=(\d{1,9})")

Row = Mapping[str, int]


def read_frames(tables: Sequence[tree.Table], reading: Reading) -> Mapping[int, SourceFrame]:
    """Frames by id. XLA prints a parent's id plus one, so that 1 says: outermost."""
    files = _texts(tables, "FileNames")
    functions = _texts(tables, "FunctionNames")
    locations = {number: row for number, row, _ in _rows(tables, "FileLocations", reading)}
    frames: dict[int, SourceFrame] = {}
    for number, row, written in _rows(tables, "StackFrames", reading):
        location = locations.get(row.get("file_location_id", 0))
        if location is None or location.get("file_name_id", 0) not in files:
            fact = f"stack frame {number} has no location with a file"
            reading.complain("frames-C1", fact, (written.start, written.end))
            continue
        frames[number] = SourceFrame(
            file=files[location["file_name_id"]],
            function=functions.get(location.get("function_name_id", 0), ""),
            line=location.get("line", 0),
            column=location.get("column", 0),
            parent=max(0, row.get("parent_frame_id", 0) - 1),
        )
    return frames


def _rows(
    tables: Sequence[tree.Table], name: str, reading: Reading
) -> list[tuple[int, Row, tree.Word]]:
    """Number, fields and place of each row of a table."""
    found: list[tuple[int, Row, tree.Word]] = []
    for table in tables:
        for row in table.rows if table.name.text == name else ():
            match = _FIELDS.fullmatch(row.text)
            if match is None:
                fact = f"{row.text[:40]!r} is no row of {name}, such as 1 {{line=3 column=5}}"
                reading.complain("frames-C2", fact, (row.start, row.end))
            else:
                fields = {key: int(value[:18]) for key, value in _FIELD.findall(match[2])}
                found.append((int(match[1][:18]), fields, row))
    return found


def _texts(tables: Sequence[tree.Table], name: str) -> dict[int, str]:
    return {
        int(match[1][:18]): _ESCAPE.sub(r"\1", match[2])
        for table in tables
        if table.name.text == name
        for row in table.rows
        if (match := _QUOTED.fullmatch(row.text))
    }


def source_frame(module: Module, node: Node) -> SourceFrame | None:
    """The line of the user's code that a node comes from, by either form of metadata."""
    metadata = node.attributes.get("metadata")
    if not isinstance(metadata, Raw):
        return None
    if (match := _FRAME_ID.search(metadata.text)) and int(match[1]) in module.frames:
        return module.frames[int(match[1])]
    file, line = _FILE.search(metadata.text), _LINE.search(metadata.text)
    if file is None:
        return None
    return SourceFrame(_ESCAPE.sub(r"\1", file[1]), "", int(line[1]) if line else 0, 0)
