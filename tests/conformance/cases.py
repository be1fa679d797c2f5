"""Reads files of cases: programs, what goes in, and what must come out or be said."""

import json
import re
from pathlib import Path
from typing import Any

import attrs

HERE = Path(__file__).parent
CUT = re.compile(r"^// -----\n", re.MULTILINE)
KEYS = ("case", "ranks", "input", "output", "near", "refused")
KEY = re.compile(rf"// ({'|'.join(KEYS)}): (.*)")


@attrs.frozen
class Case:
    """One program with its values, as nested lists of numbers."""

    file: str
    name: str
    text: str
    ranks: int
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]
    near: float
    refused: str

    def __str__(self) -> str:
        return f"{self.file}: {self.name}"


def cases(folder: str) -> list[Case]:
    """All cases of a folder, file by file."""
    found: list[Case] = []
    for path in sorted((HERE / folder).iterdir()):
        found += [_case(path.stem, text) for text in CUT.split(path.read_text())]
    names = [str(case) for case in found]
    assert len(names) == len(set(names)), "two cases have one name"
    return found


def _case(file: str, text: str) -> Case:
    head, count = [], 0
    for line in text.splitlines(keepends=True):
        key = KEY.fullmatch(line.rstrip())
        if key is None:
            break
        head.append((key[1], key[2]))
        count += len(line)
    of = {key: [value for name, value in head if name == key] for key in KEYS}
    assert len(of["case"]) == 1, f"{file}: no name before {text[:60]!r}"
    assert bool(of["output"]) != bool(of["refused"]), f"{file}: {of['case'][0]}: expects nothing"
    return Case(
        file,
        of["case"][0],
        text[count:],
        int(*of["ranks"] or ["1"]),
        tuple(map(json.loads, of["input"])),
        tuple(map(json.loads, of["output"])),
        float(*of["near"] or ["0"]),
        "".join(of["refused"]),
    )
