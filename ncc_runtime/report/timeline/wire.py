"""Protocol buffer messages as columns: many alike are encoded by a few array operations.

A column of encoded fields is a matrix of bytes with a mask of those that count, so that rows may
be of different lengths. Source: protobuf.dev, Encoding.
"""

from collections.abc import Sequence

import attrs
import numpy as np

_VARINT, _FIXED64, _LENGTH = 0, 1, 2


@attrs.frozen(eq=False)
class Rows:
    """Encoded bytes, a row for each message."""

    data: np.ndarray  # (n, width) uint8
    counts: np.ndarray  # (n, width) bool: belongs to the row

    @property
    def lengths(self) -> np.ndarray:
        """Bytes of every row, (n,) int64."""
        return np.asarray(self.counts.sum(axis=1, dtype=np.int64))

    def flat(self) -> bytes:
        """All rows, one after another."""
        return self.data[self.counts].tobytes()

    def where(self, given: np.ndarray | None) -> "Rows":
        """The same, empty where nothing is given."""
        return self if given is None else Rows(self.data, self.counts & given[:, None])


def joined(parts: Sequence[Rows]) -> Rows:
    """Fields of the same messages, one behind another."""
    return Rows(
        np.concatenate([part.data for part in parts], axis=1),
        np.concatenate([part.counts for part in parts], axis=1),
    )


def constant(data: bytes, count: int) -> Rows:
    """The same bytes in every row."""
    row = np.frombuffer(data, np.uint8)
    return Rows(np.broadcast_to(row, (count, len(row))), np.ones((count, len(row)), bool))


def varint(field: int, values: np.ndarray) -> Rows:
    """A field of whole numbers, int64 as protobuf's int64 and uint64 have them."""
    bare = _varints(values)
    return joined([_tag(field, _VARINT, len(values)), bare])


def fixed64(field: int, values: np.ndarray) -> Rows:
    """A field of 8 bytes: float64 as double, int64 as fixed64."""
    data = np.ascontiguousarray(values).astype(values.dtype.newbyteorder("<"))
    bare = data.view(np.uint8).reshape(-1, 8)
    return joined([_tag(field, _FIXED64, len(values)), Rows(bare, np.ones(bare.shape, bool))])


def message(field: int, rows: Rows) -> Rows:
    """A field that is a message."""
    count = len(rows.data)
    return joined([_tag(field, _LENGTH, count), _varints(rows.lengths), rows])


def _tag(field: int, kind: int, count: int) -> Rows:
    key, data = field << 3 | kind, bytearray()
    while key > 0x7F:
        data.append(key & 0x7F | 0x80)
        key >>= 7
    return constant(bytes([*data, key]), count)


def _varints(values: np.ndarray) -> Rows:
    """Seven bits a byte, lowest first; all but the last have the top bit set."""
    left = values.astype(np.int64).view(np.uint64)
    widest = int(left.max(initial=0))
    columns, counts = [], []
    for at in range(max(1, -(-widest.bit_length() // 7))):
        rest = left >> np.uint64(7)
        columns.append((left & np.uint64(0x7F)) | ((rest > 0).astype(np.uint64) << np.uint64(7)))
        counts.append(left > 0 if at else np.ones(len(left), bool))
        left = rest
    return Rows(np.stack(columns, axis=1).astype(np.uint8), np.stack(counts, axis=1))
