"""Reads a page back, as its script does, with code of its own."""

import base64
import gzip
import html.parser
import json
import re
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np


def chunk(page: str, name: str) -> bytes:
    """The unpacked bytes of a chunk."""
    found = re.search(rf'<script type="text/plain" id="chunk-{re.escape(name)}">([^<]*)<', page)
    assert found, name
    return gzip.decompress(base64.b64decode(found[1]))


def index_of(page: str) -> dict[str, Any]:
    return json.loads(chunk(page, "index"))


def column(page: str, index: dict[str, Any], number: int) -> list[int]:
    """The numbers of a column, one by one."""
    name, offset, count, planes, is_delta = index["columns"][number]
    data, numbers, total = chunk(page, name), [], 0
    for at in range(count):
        coded = sum(data[offset + plane * count + at] << (8 * plane) for plane in range(planes))
        value = -(coded // 2) - 1 if coded % 2 else coded // 2
        total += value
        numbers.append(total if is_delta else value)
    return numbers


@attrs.frozen
class ReadTrack:
    """A track with its columns by name, and times in picoseconds."""

    rank: int
    queue: dict[str, Any]
    number: int
    columns: dict[str, list[int]]
    start: list[int]
    end: list[int]


def tracks_of(page: str, side: int = 0) -> Iterator[ReadTrack]:
    """All tracks of one of the runs."""
    index = index_of(page)
    facts = index["sides"][side]
    for rank, queue, count, *numbers in facts["tracks"]:
        columns = {
            name: column(page, index, number)
            for name, number in zip(index["trackColumns"], numbers, strict=True)
            if number >= 0
        }
        start, end, before = [], [], 0
        for gap, duration in zip(columns["gap"], columns["duration"], strict=True):
            start.append(before + gap)
            before = before + gap + duration
            end.append(before)
        assert len(start) == count
        yield ReadTrack(rank, facts["queues"][queue], queue, columns, start, end)


class _Tables(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tables: dict[str, list[list[list[str]]]] = {}
        self.open: list[str] = []
        self.attributes: list[tuple[str, dict[str, str | None]]] = []
        self._name = ""

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        found = dict(attributes)
        self.attributes.append((tag, found))
        if tag == "table":
            self._name = found.get("id") or ""
            self.tables[self._name] = []
        elif tag == "tbody":
            self.tables[self._name].append([])
        elif tag == "tr" and self.tables.get(self._name):
            self.tables[self._name][-1].append([])
        elif tag in ("td", "th") and self.tables.get(self._name):
            self.tables[self._name][-1][-1].append("")
        if tag not in ("meta", "input", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if self.open and self.open[-1] == tag:
            self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th") and self.tables.get(self._name):
            self.tables[self._name][-1][-1][-1] += data


def tables_of(page: str) -> dict[str, list[list[list[str]]]]:
    """The cells of every table by its id: bodies, rows, cells."""
    reader = _Tables()
    reader.feed(page)
    return reader.tables


def elements_of(page: str) -> list[tuple[str, dict[str, str | None]]]:
    """Every element with its attributes."""
    reader = _Tables()
    reader.feed(page)
    return reader.attributes


def as_array(values: list[int]) -> np.ndarray:
    return np.array(values, np.int64)
