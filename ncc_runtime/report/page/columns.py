"""Columns of whole numbers in a page: few bytes, and quickly read by the browser.

A column is stored as its zigzag-coded numbers, or differences, cut into planes of bytes: all lowest
bytes, then all second ones (the shuffle filter of HDF5). Small numbers leave the upper planes out,
and like bytes stand together, which gzip then makes small. Equal columns are stored once.

Columns lie in chunks, each compressed by itself, so that a page unpacks what it shows. What several
chunks need lies in the chunk SHARED.
"""

import base64
import gzip
import hashlib
from collections.abc import Mapping, Sequence

import attrs
import numpy as np

SHARED = "shared"
"""The chunk of columns that several others use."""


@attrs.frozen
class StoredColumn:
    """Where a column lies, and how it is coded."""

    chunk: str
    offset: int  # bytes, in the unpacked chunk
    count: int
    planes: int  # bytes of a number, 1 to 8
    is_delta: bool  # whether it holds differences, the first one from 0


def encoded(values: np.ndarray, *, is_delta: bool) -> tuple[bytes, int]:
    """Planes of bytes, and how many."""
    numbers = np.ascontiguousarray(values, np.int64)
    if is_delta:
        numbers = np.diff(numbers, prepend=np.int64(0))
    zigzag = ((numbers << 1) ^ (numbers >> 63)).view(np.uint64)
    planes = max(1, -(-int(zigzag.max(initial=0)).bit_length() // 8))
    as_bytes = zigzag.astype("<u8").view(np.uint8).reshape(-1, 8)
    return as_bytes[:, :planes].T.tobytes(), planes


def decoded(data: bytes, column: StoredColumn) -> np.ndarray:
    """The numbers of a column of an unpacked chunk, int64: what the page's script does."""
    end = column.offset + column.count * column.planes
    planes = np.frombuffer(data[column.offset : end], np.uint8).reshape(column.planes, -1)
    as_bytes = np.zeros((column.count, 8), np.uint8)
    as_bytes[:, : column.planes] = planes.T
    zigzag = as_bytes.view("<u8").ravel()
    numbers = (zigzag >> np.uint64(1)).astype(np.int64) ^ -(zigzag & np.uint64(1)).astype(np.int64)
    return np.cumsum(numbers) if column.is_delta else numbers


class ColumnStore:
    """Collects columns; `chunks` and `columns` are what the page holds of them."""

    def __init__(self) -> None:
        self._number: dict[tuple[bytes, bool, int], int] = {}  # by content
        self._data: list[tuple[bytes, int, int, bool]] = []  # bytes, count, planes, is_delta
        self._chunks: list[set[str]] = []  # that need each

    def add(self, chunk: str, values: np.ndarray, *, is_delta: bool = False) -> int:
        """The number of a column that a chunk needs."""
        data, planes = encoded(values, is_delta=is_delta)
        key = hashlib.sha256(data).digest(), is_delta, planes
        if key not in self._number:
            self._number[key] = len(self._data)
            self._data.append((data, len(values), planes, is_delta))
            self._chunks.append(set())
        number = self._number[key]
        self._chunks[number].add(chunk)
        return number

    def packed(self) -> tuple[tuple[StoredColumn, ...], Mapping[str, str]]:
        """Where every column lies, and the chunks: gzip in base64, by name."""
        parts: dict[str, list[bytes]] = {}
        length: dict[str, int] = {}
        columns = []
        for (data, count, planes, is_delta), users in zip(self._data, self._chunks, strict=True):
            chunk = next(iter(users)) if len(users) == 1 else SHARED
            columns.append(StoredColumn(chunk, length.get(chunk, 0), count, planes, is_delta))
            parts.setdefault(chunk, []).append(data)
            length[chunk] = length.get(chunk, 0) + len(data)
        return tuple(columns), {name: packed(b"".join(each)) for name, each in parts.items()}


def packed(data: bytes) -> str:
    """Compressed, as text; equal data gives equal text."""
    return base64.b64encode(gzip.compress(data, 6, mtime=0)).decode()


def unpacked(text: str) -> bytes:
    """What `packed` was given."""
    return gzip.decompress(base64.b64decode(text))


def columns_json(columns: Sequence[StoredColumn]) -> list[list[int | str]]:
    """As the page's script reads them."""
    return [[c.chunk, c.offset, c.count, c.planes, int(c.is_delta)] for c in columns]
