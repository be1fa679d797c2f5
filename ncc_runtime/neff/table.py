"""Instructions of one engine queue as columns, with row views for people."""

from collections.abc import Iterable, Iterator, Sequence

import attrs
import numpy as np

NONE = -1


@attrs.frozen
class Instr:
    """One instruction, as a row: for building, printing and tests.

    It starts when `wait_sem` holds at least `wait_value`, and adds one to `post_sem` on completion.
    Results come before operands; both are tensor ids. NONE (-1) means none.
    """

    opcode: str
    results: tuple[int, ...] = ()
    operands: tuple[int, ...] = ()
    attribute: int = NONE  # row of Program.attributes
    placeholder: int = NONE  # row of Program.placeholders, for ptc2 only
    wait_sem: int = NONE
    wait_value: int = 0
    post_sem: int = NONE
    origin: int = NONE  # row of Program.origins
    flops: int = 0
    elements: int = 0  # result elements for elementwise work, operand elements for folds
    bytes_in: int = 0  # HBM bytes read
    bytes_out: int = 0  # HBM bytes written


_SCALARS = {
    "attribute": np.int32,
    "placeholder": np.int32,
    "wait_sem": np.int16,
    "wait_value": np.int32,
    "post_sem": np.int16,
    "origin": np.int32,
    "flops": np.int64,
    "elements": np.int64,
    "bytes_in": np.int64,
    "bytes_out": np.int64,
}

COLUMNS = {
    "opcode": np.uint16,
    "result_count": np.uint16,
    "start": np.int32,
    "tensors": np.int32,
    **_SCALARS,
}
"""The columns of a table and their element types."""


def _column(values: Sequence[int] | np.ndarray, dtype: type) -> np.ndarray:
    column: np.ndarray = np.array(values, dtype=dtype)
    column.setflags(write=False)
    return column


@attrs.frozen(eq=False)
class InstrTable:
    """Instructions of one queue as read-only columns; row r has tensors[start[r]:start[r + 1]]."""

    opcode_names: tuple[str, ...]  # names used in this table, sorted; opcode indexes it
    opcode: np.ndarray  # (n,)   uint16
    result_count: np.ndarray  # (n,)   uint16, how many of the row's tensors are results
    start: np.ndarray  # (n+1,) int32
    tensors: np.ndarray  # (m,)   int32, results then operands of every row
    attribute: np.ndarray  # (n,)   int32
    placeholder: np.ndarray  # (n,)   int32
    wait_sem: np.ndarray  # (n,)   int16
    wait_value: np.ndarray  # (n,)   int32
    post_sem: np.ndarray  # (n,)   int16
    origin: np.ndarray  # (n,)   int32
    flops: np.ndarray  # (n,)   int64
    elements: np.ndarray  # (n,)   int64
    bytes_in: np.ndarray  # (n,)   int64
    bytes_out: np.ndarray  # (n,)   int64

    @classmethod
    def from_rows(cls, rows: Iterable[Instr]) -> "InstrTable":
        rows = tuple(rows)
        names = tuple(sorted({row.opcode for row in rows}))
        code = {name: index for index, name in enumerate(names)}
        counts = [len(row.results) + len(row.operands) for row in rows]
        flat = [tensor for row in rows for tensor in (*row.results, *row.operands)]
        columns = {
            name: _column([getattr(row, name) for row in rows], dtype)
            for name, dtype in _SCALARS.items()
        }
        return cls(
            opcode_names=names,
            opcode=_column([code[row.opcode] for row in rows], np.uint16),
            result_count=_column([len(row.results) for row in rows], np.uint16),
            start=_column(np.concatenate(([0], np.cumsum(counts, dtype=np.int64))), np.int32),
            tensors=_column(flat, np.int32),
            **columns,
        )

    def names(self) -> list[str]:
        """The opcode of every row, by name."""
        return [self.opcode_names[code] for code in self.opcode.tolist()]

    def __len__(self) -> int:
        return len(self.opcode)

    def __getitem__(self, row: int) -> Instr:
        first, last = int(self.start[row]), int(self.start[row + 1])
        split = first + int(self.result_count[row])
        return Instr(
            opcode=self.opcode_names[int(self.opcode[row])],
            results=tuple(int(tensor) for tensor in self.tensors[first:split]),
            operands=tuple(int(tensor) for tensor in self.tensors[split:last]),
            **{name: int(getattr(self, name)[row]) for name in _SCALARS},
        )

    def __iter__(self) -> Iterator[Instr]:
        """Every row; much faster than indexing them one by one."""
        starts, tensors = self.start.tolist(), self.tensors.tolist()
        scalars = zip(*(getattr(self, name).tolist() for name in _SCALARS), strict=True)
        rows = zip(self.names(), self.result_count.tolist(), scalars, strict=True)
        for row, (opcode, results, values) in enumerate(rows):
            first, split, last = starts[row], starts[row] + results, starts[row + 1]
            yield Instr(
                opcode,
                tuple(tensors[first:split]),
                tuple(tensors[split:last]),
                **dict(zip(_SCALARS, values, strict=True)),
            )

    def __eq__(self, other: object) -> bool:
        return isinstance(other, InstrTable) and self._key() == other._key()

    def _key(self) -> tuple[object, ...]:
        """Equal for tables of equal rows; opcodes by name, as their numbers depend on the table."""
        columns = [self.result_count, self.start, self.tensors]
        columns += [getattr(self, name) for name in _SCALARS]
        return self.names(), [(column.dtype.str, column.tobytes()) for column in columns]

    __hash__ = None  # type: ignore[assignment]
