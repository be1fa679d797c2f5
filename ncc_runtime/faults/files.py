"""Files of faults: TOML, a `[[fault]]` each.

    [[fault]]
    what = "link c0-c1 down"
    at = "120us"
    for = "50us"
    source = "seen on our cluster in May"

`what` is the text of `--fault`, whole, or without its times, which then have keys of their own.
`faults.schema.json` beside this file is `schema()` as text; a test keeps them equal.
"""

import json
import os
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from ncc_runtime.errors import InputError, TopologyError
from ncc_runtime.faults.fault import ASSUMED, Fault
from ncc_runtime.faults.text import MOST_LETTERS, NAME, parse
from ncc_runtime.input_files import FileRole
from ncc_runtime.topology.format.schema import check
from ncc_runtime.topology.format.toml_file import TomlFile

MOST_FAULTS = 1_000
"""Of one file."""

_TIME = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)?\s?(ps|ns|us|ms|s)$"}


def schema() -> dict[str, Any]:
    """The JSON Schema of a file; each place has the phrase of its complaint as `description`."""
    line = {"type": "string", "pattern": r"^[^\x00-\x1f\x7f]*$", "maxLength": MOST_LETTERS}
    time = {**_TIME, "description": 'a time such as "50us"'}
    row = {
        "type": "object",
        "description": "a fault, with what it is",
        "properties": {
            "what": {**line, "description": 'a fault such as "link c0-c1 down"'},
            "at": time,
            "run": {
                "type": "integer",
                "minimum": 1,
                "maximum": 10**9,
                "description": "the number of a run of a collective, from 1 to 1,000,000,000",
            },
            "of": {
                "type": "string",
                "pattern": f"^{NAME}$",
                "maxLength": MOST_LETTERS,
                "description": 'a collective such as "all-reduce.1"',
            },
            "for": time,
            "until": time,
            "source": {
                **line,
                "minLength": 1,
                "description": "the source of its figures is a line of text, or left out: assumed",
            },
        },
        "required": ["what"],
        "dependentRequired": {"run": ["of"], "of": ["run"]},
        "additionalProperties": False,
    }
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "faults during a run of nccrt",
        "type": "object",
        "properties": {
            "fault": {
                "type": "array",
                "description": "a list of tables, each under [[fault]]",
                "items": row,
                "minItems": 1,
                "maxItems": MOST_FAULTS,
            }
        },
        "required": ["fault"],
        "additionalProperties": False,
    }


def schema_text() -> str:
    """The shipped file."""
    return json.dumps(schema(), indent=1, ensure_ascii=False) + "\n"


def read_faults(path: str | os.PathLike[str]) -> tuple[Fault, ...]:
    """The faults of a file; InputError with line and column for what is wrong."""
    origin = os.fspath(path)
    try:
        file = TomlFile.read(origin, Path(path), FileRole.FAULTS)
        document = file.tables()
        if not document:
            raise InputError(f"{origin}:1:1: no fault is in it; each is a table under [[fault]]")
        if isinstance(found := document.get("fault"), list) and len(found) > MOST_FAULTS:
            raise InputError(f"{origin}:1:1: {len(found):,} faults; the most is {MOST_FAULTS:,}")
        check(file, document, schema())
        rows = document["fault"]
        return tuple(_fault(file, number, row) for number, row in enumerate(rows))
    except TopologyError as error:
        raise InputError(str(error)) from error


def as_faults(given: object) -> list[Fault]:
    """The faults of a text, a `Fault`, the path of a file, or a sequence of these; InputError."""
    if isinstance(given, Fault):
        return [given]
    if isinstance(given, str):
        return [parse(given)]
    if isinstance(given, os.PathLike):
        return list(read_faults(given))
    if isinstance(given, Sequence):
        return [fault for each in given for fault in as_faults(each)]
    raise InputError(
        f"faults are texts such as 'rank 3 dead', Faults, or pathlib.Paths of files, not {given!r}"
    )


def _fault(file: TomlFile, number: int, row: dict[str, Any]) -> Fault:
    """A row, by the text that it stands for."""
    text = row["what"]
    if "run" in row:
        text += f" at run {row['run']} of {row['of']}"
    for key in ("at", "for", "until"):
        text += f" {key} {row[key]}" if key in row else ""
    try:
        return parse(text, row.get("source", ASSUMED))
    except InputError as error:
        raise file.error_at(("fault", number, "what"), "", str(error)) from error


def example_names() -> tuple[str, ...]:
    """The files that the package brings, sorted."""
    folder = resources.files("ncc_runtime.faults") / "examples"
    return tuple(sorted(file.name for file in folder.iterdir() if file.name.endswith(".toml")))
