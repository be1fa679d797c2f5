"""The memory of all ranks: one arena [ranks, bytes], and typed views of it.

Ranks' copies of one buffer lie in one array, so a row that all ranks perform is one numpy call.
"""

import math
import mmap

import numpy as np

from ncc_runtime.errors import InputError
from ncc_runtime.neff.program import ALIGNMENT

PAGE, HUGE_PAGE = 4096, 2 << 20
"""Bytes that the system gives at a time, and what it gives of large arrays on most machines."""

LARGE_BYTES = 4 << 20
"""From here on an arena lies in huge pages, as numpy's own arrays do."""


class Arena:
    """The HBM of the ranks of this process, as far as the program uses it."""

    def __init__(self, ranks: int, hbm_bytes: int, first: int = 0) -> None:
        """`first` is the number of the rank in row 0."""
        self.first = first
        stride = max(ALIGNMENT, -(-hbm_bytes // ALIGNMENT) * ALIGNMENT)
        try:
            self.bytes = _zeros(ranks * stride).reshape(ranks, stride)
        except (OSError, MemoryError) as error:
            raise InputError(
                f"the memory of {ranks} ranks takes {ranks * stride} bytes of addresses, and the "
                "system refuses them (`ulimit -v` says how many it gives); --no-values predicts "
                "the time without them"
            ) from error

    @property
    def ranks(self) -> int:
        """Number of ranks that it has rows for."""
        return int(self.bytes.shape[0])

    def tensor(self, dtype: np.dtype, shape: tuple[int, ...], address: int) -> np.ndarray:
        """A tensor of every rank as a view [ranks, *shape]."""
        size = math.prod(shape) * dtype.itemsize
        columns = self.bytes[:, address : address + size]
        return _typed(columns, dtype).reshape(self.ranks, *shape, copy=False)

    def row(self, rank: int, address: int, size: int) -> np.ndarray:
        """`size` bytes of one rank, as a view."""
        row: np.ndarray = self.bytes[rank - self.first, address : address + size]
        return row

    def windows(self, dtype: np.dtype, elements: int) -> np.ndarray:
        """Every run of `elements` elements as [rank, element offset, element]; a view.

        Indexing it with (ranks, offsets) gathers or scatters one run a rank in one call.
        """
        # as_strided refuses some dtypes that are not numpy's own: integers of the size carry them
        carrier = dtype if dtype.isbuiltin == 1 else np.dtype(f"u{dtype.itemsize}")
        words = _typed(self.bytes, carrier)
        count = words.shape[1] - elements + 1
        runs = np.lib.stride_tricks.as_strided(
            words,
            shape=(self.ranks, count, elements),
            strides=(words.strides[0], dtype.itemsize, dtype.itemsize),
        )
        return runs.view(dtype)


def _zeros(size: int) -> np.ndarray:
    """Zeros that take memory where they are written, also where there is not as much as of them."""
    if size < LARGE_BYTES or not hasattr(mmap, "MADV_HUGEPAGE"):
        return np.zeros(size, np.uint8)
    no_reserve = 0x4000  # MAP_NORESERVE, which Python's module does not name before 3.13
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    memory = mmap.mmap(-1, size, flags=flags)
    memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, np.uint8)


def run_of(rows: np.ndarray) -> slice | np.ndarray:
    """Rows as a slice where they are evenly spaced, so that they make a view."""
    first = int(rows[0]) if len(rows) else 0
    if len(rows) <= 1:
        return slice(first, first + len(rows))
    step = int(rows[1]) - first
    if step <= 0 or (np.diff(rows) != step).any():
        return rows
    return slice(first, int(rows[-1]) + 1, step)


def touched_bytes(starts: np.ndarray, sizes: np.ndarray, in_all: int) -> int:
    """Memory that an arena of so many bytes takes if these parts of it are written."""
    if not len(starts):
        return 0
    page = HUGE_PAGE if in_all >= LARGE_BYTES else PAGE
    first, last = starts // page, -(-(starts + sizes) // page)
    order = np.argsort(first, kind="stable")
    first, last = first[order], np.maximum.accumulate(last[order])
    before = np.concatenate([[0], last[:-1]])  # how far the parts before have come
    return min(in_all, int(np.maximum(last - np.maximum(first, before), 0).sum()) * page)


def _typed(columns: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Bytes [ranks, n] as elements [ranks, n // itemsize], without a copy."""
    if columns.shape[1] == 0:
        return np.empty((columns.shape[0], 0), dtype)
    return columns.view(dtype)
