"""Collectives as functions of their operands: each byte read once, each result written once.

A proved collective is a pure function. Every interval of a result is one expression over the
operands, with its order of reduction and its roundings, whatever the order in which descriptors
run. `NormalForm` holds these expressions (`bits/normal_forms.py` reads them from an executable);
`evaluate` computes them without descriptors, semaphores and channel buffers, block by block, so
that a block stays in the host's cache from its first operand to its last result.

Pieces that one expression makes of different ranks, as the chunks of a ring, form a class: one list
of steps, and a row of ranks for each piece. Small pieces of a class are stacked, since numpy's
calls would take longer than their work; large ones go block by block, over threads.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.execution.values.kernels import loops
from ncc_runtime.execution.values.kernels.compiled import loop, pointers
from ncc_runtime.execution.values.kernels.conversions import (
    byte_tables,
    narrowed,
    round_to,
    widened,
)
from ncc_runtime.execution.values.kernels.elementwise import FUNCTIONS
from ncc_runtime.execution.values.kernels.numbers import canonical_nans, is_narrow_float, wide_type
from ncc_runtime.execution.values.memory import run_of
from ncc_runtime.execution.values.transfers import reduce_parts
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction

BLOCK_BYTES = 512 * 1024
"""A block and what it is made of stay in a cache, and Python is called seldom (decision 159)."""

STACKED_BYTES = 16 * 1024
"""Pieces up to this size are gathered and computed together."""

STACK_BYTES = 4 << 20
"""Bytes that are read and written for the pieces that are computed together."""

_VIEW_BYTES = 150
"""Of a view that Python holds, about."""

TASK_BYTES = 16 << 20
"""Bytes read and written that are worth a task of their own."""


@attrs.frozen
class Step:
    """Parts joined from left to right, divided, rounded once, kept in a register.

    A part is the piece's leaf of that number, or, if negative, ~register; its own register only
    as the first part.
    """

    register: int
    parts: tuple[int, ...]
    divisor: int = 1


@attrs.frozen(eq=False)
class PieceClass:
    """Pieces of results of one size that are computed alike. Sizes and offsets are in elements.

    Piece i is made by `steps` of the elements [offset[i], offset[i] + size) of operand `operand` of
    ranks leaves[i]; it is written to result `operand` of target_rank[i], each at its target_offset.
    Without steps it is a copy of its only leaf, without leaves it is zeros.
    """

    steps: tuple[Step, ...]
    operand: int
    size: int
    group: np.ndarray  # (pieces,) which group of the collective it belongs to
    leaves: np.ndarray  # (pieces, leaves) int64, ranks
    offset: np.ndarray  # (pieces,) int64
    target_rank: np.ndarray  # (pieces, targets) int64
    target_offset: np.ndarray  # (pieces, targets) int64

    def __len__(self) -> int:
        return len(self.offset)

    @property
    def cost(self) -> int:
        """Elements read and written."""
        return self.size * (self.leaves.size + self.target_rank.size)

    def some(self, where: np.ndarray | slice) -> "PieceClass":
        """Some of the pieces."""
        columns = ("group", "leaves", "offset", "target_rank", "target_offset")
        return attrs.evolve(self, **{name: getattr(self, name)[where] for name in columns})


@attrs.frozen(eq=False)
class NormalForm:
    """What a collective computes.

    Where operands and results share memory, `is_blockwise` says that no piece reads what another
    one writes; otherwise operands are copied first.
    """

    dtype: np.dtype
    reduction: Reduction | None
    classes: tuple[PieceClass, ...]
    groups: tuple[tuple[int, ...], ...]  # ranks that depend on each other, by number
    is_blockwise: bool

    def of_groups(self, groups: Sequence[int]) -> "NormalForm":
        """The same for some of its groups."""
        classes = tuple(one.some(np.isin(one.group, groups)) for one in self.classes)
        return attrs.evolve(self, classes=tuple(one for one in classes if len(one)))

    def on_rows(self, read: Sequence[np.ndarray], written: Sequence[np.ndarray]) -> "NormalForm":
        """The same on arrays whose rows are not the ranks.

        By operand, read[k][r] is the row in which rank r's lies; by result, written[k][r] is the
        row where rank r's goes, -1 if it need not be written.
        """
        classes = []
        rows_in_all = 1 + max((int(rows.max(initial=0)) for rows in (*read, *written)), default=0)
        writer: np.ndarray = np.full((len(written), rows_in_all), -1)  # the group that writes a row
        for one in self.classes:
            rows = written[one.operand][one.target_rank]
            is_kept = rows >= 0
            count = is_kept.sum(axis=1)
            for targets in np.unique(count[count > 0]).tolist():
                where = count == targets
                kept, part = is_kept[where], one.some(where)
                part = attrs.evolve(
                    part,
                    leaves=read[one.operand][part.leaves],
                    target_rank=rows[where][kept].reshape(-1, targets),
                    target_offset=part.target_offset[kept].reshape(-1, targets),
                )
                writer[one.operand, part.target_rank] = part.group[:, None]
                classes.append(part)
        # groups whose operands are equal may read in one another's rows
        is_blockwise = self.is_blockwise
        for part in classes:
            writers = writer[part.operand, part.leaves]
            is_blockwise &= bool(((writers < 0) | (writers == part.group[:, None])).all())
        return attrs.evolve(self, classes=tuple(classes), is_blockwise=is_blockwise)


Work = Callable[[], object]


class Evaluation:
    """A normal form, ready to be computed on arrays again and again.

    `in_place`: operands lie where results do. Rows of the arrays are contiguous.
    """

    def __init__(self, form: NormalForm, threads: int, in_place: bool) -> None:
        self._copied: list[np.ndarray] | None = None  # rows of operands that are copied first
        self._elements = max(
            (int((one.offset + one.size).max()) for one in form.classes), default=0
        )
        if in_place and not form.is_blockwise:
            form, self._copied = _compact(form)
        self._arithmetic = PieceArithmetic.of(form.dtype, form.reduction, not in_place)
        self._stacked = [
            _Stacked(part, self._arithmetic)
            for one in form.classes
            if _is_stacked(one, form.dtype)
            for part in _stacks(one, form.dtype)
        ]
        blocks = [
            block
            for one in form.classes
            if not _is_stacked(one, form.dtype)
            for block in _blocks(one, form.dtype)
        ]
        cost = sum(block.cost for block in blocks) * form.dtype.itemsize
        parts = max(1, min(threads, cost // TASK_BYTES))
        self._parts = _divided(blocks, parts)
        in_all = sum(one.cost for one in form.classes) * form.dtype.itemsize
        self.work = in_all // max(1, len(self._stacked) + len(self._parts))  # bytes of a task
        self._threads = threads

    @property
    def scratch_bytes(self) -> int:
        """Memory that its tasks take beside operands and results, on all threads at once."""
        tasks = [one.scratch_bytes for one in self._stacked]
        tasks += [_part_bytes(part, self._arithmetic) for part in self._parts]
        itemsize = self._arithmetic.dtype.itemsize
        copied = sum(len(rows) for rows in self._copied or ()) * self._elements * itemsize
        return copied + sum(sorted(tasks)[-self._threads :])

    def tasks(self, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> list[Work]:
        """What is to be done, in any order, for arrays [ranks, elements]."""
        if self._copied is not None:
            return [functools.partial(self._perform_on_copies, operands, results)]
        return self._tasks(operands, results)

    def _perform_on_copies(
        self, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]
    ) -> None:
        """All of it, since copies of operands must be complete before a result is written."""
        assert self._copied is not None, "rows to be copied"
        copies = [operand[rows] for operand, rows in zip(operands, self._copied, strict=False)]
        for work in self._tasks(copies, results):
            work()

    def _tasks(self, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> list[Work]:
        work: list[Work] = [
            functools.partial(one.perform, operands, results) for one in self._stacked
        ]
        parts = (_Part(self._arithmetic, part, operands, results) for part in self._parts)
        return [*work, *(part.perform for part in parts)]


def _compact(form: NormalForm) -> tuple[NormalForm, list[np.ndarray]]:
    """A form that reads operands of which these rows alone are left."""
    count = 1 + max((one.operand for one in form.classes), default=-1)
    nothing: np.ndarray = np.zeros(0, np.int64)
    leaves = [
        [one.leaves.ravel() for one in form.classes if one.operand == k] for k in range(count)
    ]
    rows = [np.unique(np.concatenate((nothing, *some))) for some in leaves]
    classes = tuple(
        attrs.evolve(one, leaves=np.searchsorted(rows[one.operand], one.leaves))
        for one in form.classes
    )
    return attrs.evolve(form, classes=classes), rows


class _Part:
    """Blocks that one thread computes, of arrays [ranks, elements]."""

    def __init__(
        self,
        arithmetic: "PieceArithmetic",
        blocks: "Sequence[_Block]",
        operands: Sequence[np.ndarray],
        results: Sequence[np.ndarray],
    ) -> None:
        self._arithmetic, self._blocks = arithmetic, blocks
        self._operands, self._results = operands, results

    def perform(self) -> None:
        arithmetic = self._arithmetic
        with np.errstate(all="ignore"):
            for steps, leaves, registers, targets in self._bound:
                value = leaves[0]
                if steps and arithmetic.evaluate(steps, leaves, registers[-1]):
                    value = registers[-1]
                elif steps:
                    value = arithmetic.value(steps, leaves, list(registers))
                for target in targets:
                    if target is not value:
                        target[...] = value

    @functools.cached_property
    def _bound(self) -> "Sequence[tuple[Sequence[Step], _Arrays, _Arrays, _Arrays]]":
        """Of each block its steps, leaves, registers and targets as arrays."""
        dtype = self._arithmetic.dtype
        zero = np.zeros((), dtype)
        largest = max(block.end - block.start for block in self._blocks)
        count = max(block.registers for block in self._blocks)
        uses_targets = self._arithmetic.may_use_targets
        size = 0 if uses_targets and count <= 1 else largest
        registers = self._arithmetic.registers(count, (size,))
        bound = []
        for block in self._blocks:
            read, written = self._operands[block.operand], self._results[block.operand]
            start, end = block.start, block.end
            leaves = [read[rank, start:end] for rank in block.leaves] or [zero]
            if block.rows is not None:  # one call writes to all but the first
                far = block.targets[0][1]
                places = written[block.rows, start + far : end + far]
                targets = [places[0], places[1:]]
            else:
                targets = [written[rank, start + far : end + far] for rank, far in block.targets]
            own = [register[: end - start] for register in registers]
            if block.steps and uses_targets:
                # nothing reads a target before it is complete: it holds the result from the first
                own[block.steps[-1].register] = targets[0]
            bound.append((block.steps, leaves, own, targets))
        return bound


_Arrays = Sequence[np.ndarray]


@attrs.frozen(eq=False)
class _Block:
    """A part of a piece that is computed at once."""

    steps: tuple[Step, ...]
    registers: int
    operand: int
    leaves: tuple[int, ...]  # ranks
    targets: tuple[tuple[int, int], ...]  # ranks, and how far behind the operand's place
    start: int  # of the operand
    end: int
    rows: slice | None  # of all targets, if these are several, evenly spaced and equally far

    @property
    def cost(self) -> int:
        """Elements read and written."""
        return (self.end - self.start) * (len(self.leaves) + len(self.targets))


def _blocks(one: PieceClass, dtype: np.dtype) -> Iterator[_Block]:
    step = max(1, BLOCK_BYTES // max(4, dtype.itemsize))  # narrow floats are joined in float32
    registers = 1 + max((each.register for each in one.steps), default=-1)
    for piece in range(len(one)):
        first = int(one.offset[piece])
        leaves = tuple(one.leaves[piece].tolist())
        shifts = (one.target_offset[piece] - first).tolist()
        targets = tuple(zip(one.target_rank[piece].tolist(), shifts, strict=True))
        rows = run_of(one.target_rank[piece]) if len(set(shifts)) == 1 < len(targets) else None
        rows = rows if isinstance(rows, slice) else None
        for start in range(first, first + one.size, step):
            end = min(start + step, first + one.size)
            yield _Block(one.steps, registers, one.operand, leaves, targets, start, end, rows)


def _divided(blocks: list[_Block], parts: int) -> list[list[_Block]]:
    """Blocks in as many runs of about the same cost."""
    if not blocks:
        return []
    ends = np.cumsum([block.cost for block in blocks])
    number = np.minimum((ends - 1) * parts // int(ends[-1]), parts - 1)
    cuts = np.searchsorted(number, np.arange(parts + 1)).tolist()
    return [blocks[a:b] for a, b in itertools.pairwise(cuts) if a < b]


# ---- small pieces


def _is_stacked(one: PieceClass, dtype: np.dtype) -> bool:
    return len(one) > 1 and one.size * dtype.itemsize <= STACKED_BYTES


def _stacks(one: PieceClass, dtype: np.dtype) -> Iterator[PieceClass]:
    """The class in parts that stay in a cache, and take little memory beside."""
    per_piece = max(1, one.size * dtype.itemsize * (one.leaves.shape[1] + one.target_rank.shape[1]))
    at_once = max(1, STACK_BYTES // per_piece)
    for first in range(0, len(one), at_once):
        yield one.some(slice(first, first + at_once))


def _part_bytes(blocks: "Sequence[_Block]", arithmetic: "PieceArithmetic") -> int:
    """What `_Part` takes: registers, what is joined without them, and views of each block."""
    largest = max(block.end - block.start for block in blocks)
    registers = 2 + max(block.registers for block in blocks)
    views = sum(len(block.leaves) + len(block.targets) + registers for block in blocks)
    return registers * largest * max(4, arithmetic.dtype.itemsize) + _VIEW_BYTES * views


class _Stacked:
    """All pieces of a class at once, all leaves with one call."""

    def __init__(self, one: PieceClass, arithmetic: "PieceArithmetic") -> None:
        self._pieces, self._arithmetic = one, arithmetic
        self._registers = 1 + max((step.register for step in one.steps), default=-1)
        offsets = [one.offset, one.target_offset.ravel()]
        self._is_even = not any((offset % one.size).any() for offset in offsets)
        self._scale = one.size if self._is_even else 1
        # with indices row by row, numpy gathers row by row, and each leaf is contiguous
        self._from = np.ascontiguousarray(one.leaves.T), one.offset // self._scale
        self._to = one.target_rank.T, one.target_offset.T // self._scale
        # one run of pieces for all ranks, as an all-reduce has it: no index says where it goes
        first, count = int(one.target_offset[0, 0]), one.target_rank.shape[1]
        in_turn = first + np.arange(len(one))[:, None] * one.size
        is_run = (one.target_offset == in_turn).all()
        is_for_all = (one.target_rank == np.arange(count)).all()
        self._run = first if is_run and is_for_all else None

    @property
    def scratch_bytes(self) -> int:
        """Leaves, registers, and what is joined without them."""
        one, itemsize = self._pieces, self._arithmetic.dtype.itemsize
        arrays = one.leaves.shape[1] * itemsize + (3 + self._registers) * max(4, itemsize)
        return len(one) * one.size * arrays

    def perform(self, operands: Sequence[np.ndarray], results: Sequence[np.ndarray]) -> None:
        one = self._pieces
        result = results[one.operand]
        if not one.leaves.shape[1]:
            self._windows(result)[self._to] = np.zeros((), result.dtype)
            return
        leaves = self._windows(operands[one.operand])[self._from]
        value = self._arithmetic.of_leaves(one.steps, leaves)
        if self._run is not None and one.target_rank.shape[1] == len(result):
            result[:, self._run : self._run + value.size] = value.reshape(-1)
        else:
            self._windows(result)[self._to] = value

    def _windows(self, array: np.ndarray) -> np.ndarray:
        """Runs of a piece's size as [rank, place, element], a view."""
        size = self._pieces.size
        if self._is_even and array.shape[1] % size == 0:
            return array.reshape(len(array), -1, size, copy=False)
        # as_strided refuses some dtypes that are not numpy's own: integers carry them
        is_own = array.dtype.isbuiltin == 1
        words = array if is_own else array.view(np.dtype(f"u{array.dtype.itemsize}"))
        row, element = words.strides
        shape = (len(words), (words.shape[1] - size) // self._scale + 1, size)
        strides = (row, element * self._scale, element)
        runs = np.lib.stride_tricks.as_strided(words, shape, strides)
        return runs if is_own else runs.view(array.dtype)


# ---- arithmetic


_UFUNCS: dict[Reduction, np.ufunc] = {
    Reduction.ADD: np.add,
    Reduction.AVERAGE: np.add,
    Reduction.MULTIPLY: np.multiply,
    Reduction.AND: np.bitwise_and,
    Reduction.OR: np.bitwise_or,
}
_EXTREMES: dict[Reduction, np.ufunc] = {
    Reduction.MINIMUM: np.minimum,
    Reduction.MAXIMUM: np.maximum,
}
_OF_PREDICATES: dict[Reduction, np.ufunc] = {
    Reduction.ADD: np.bitwise_or,
    Reduction.MULTIPLY: np.bitwise_and,
}

_JOINS: dict[Reduction | None, int] = {
    Reduction.ADD: loops.ADD,
    Reduction.AVERAGE: loops.ADD,
    Reduction.MULTIPLY: loops.MULTIPLY,
    Reduction.MAXIMUM: loops.MAXIMUM,
    Reduction.MINIMUM: loops.MINIMUM,
}

_Join = Callable[[np.ndarray, np.ndarray, np.ndarray], object]
"""Joins a total and a part, and writes the result to an array, which may be the total's."""


def _join_of(dtype: np.dtype, reduction: Reduction) -> _Join | None:
    """What joins elements of a type that is computed in itself; None if nothing does in place.

    The bits are those of `reduce_parts`.
    """
    ufunc = _UFUNCS.get(reduction) or _EXTREMES[reduction]
    if dtype.kind == "b":
        ufunc = _OF_PREDICATES.get(reduction, ufunc)
    elif dtype.kind == "f" and reduction in _EXTREMES:
        function = FUNCTIONS[reduction.value]

        def join_extremes(total: np.ndarray, part: np.ndarray, out: np.ndarray) -> None:
            run = loop(f"{reduction.value}_{dtype.name}", total.size)
            if run is not None and part.flags.c_contiguous and out.flags.c_contiguous:
                if out is not total:
                    out[...] = total
                run(part, out, out.size)
            else:
                out[...] = function(total, part)

        return join_extremes
    elif dtype.kind == "c" and reduction not in (Reduction.ADD, Reduction.AVERAGE):
        return None
    return lambda total, part, out: ufunc(total, part, out=out)


@attrs.frozen(eq=False)
class PieceArithmetic:
    """How the steps of pieces are computed.

    Narrow types are computed in a wide one from the first operand to the result, and rounded where
    they are at the end of every step; integers and extremes need no rounding.
    """

    dtype: np.dtype
    wide: np.dtype
    reduction: Reduction | None
    join: _Join | None
    rounds: bool
    may_use_targets: bool  # as registers

    @classmethod
    def of(
        cls, dtype: np.dtype, reduction: Reduction | None, may_use_targets: bool
    ) -> "PieceArithmetic":
        wide = wide_type(dtype)
        join = None if reduction is None else _join_of(wide, reduction)
        rounds = is_narrow_float(dtype) and reduction not in _EXTREMES
        may_use_targets = may_use_targets and join is not None and dtype == wide
        return cls(dtype, wide, reduction, join, rounds, may_use_targets)

    def registers(self, count: int, shape: tuple[int, ...]) -> list[np.ndarray]:
        """Registers of steps, and what is needed beside them."""
        registers = [np.empty(shape, self.wide) for _ in range(count)]
        if self.dtype != self.wide:
            registers += [np.empty(shape, self.wide), np.empty(shape, self.dtype)]
        return registers

    def of_leaves(self, steps: Sequence[Step], leaves: np.ndarray) -> np.ndarray:
        """What the steps make of leaves, [leaves, …]; the first of them if there are none."""
        if not steps:
            first: np.ndarray = leaves[0]
            return first
        value = np.empty_like(leaves[0])
        if self.evaluate(steps, leaves, value):
            return value
        count = 1 + max(step.register for step in steps)
        with np.errstate(all="ignore"):
            return self.value(steps, leaves, self.registers(count, value.shape))

    def evaluate(
        self,
        steps: Sequence[Step],
        leaves: Sequence[np.ndarray] | np.ndarray,
        target: np.ndarray,
    ) -> bool:
        """Write what the steps make of leaves to a target; False if machine code does not do it."""
        if self.join is None or not is_narrow_float(self.dtype):
            return False
        size = leaves[0].size
        run = loop("evaluate", size * len(leaves))
        if run is None:
            return False
        kind, tables = loops.BYTE, byte_tables(DType.F8E5M2.numpy)
        if self.dtype.itemsize == 1:
            tables = byte_tables(self.dtype)
        else:
            kind = loops.FLOAT16 if self.dtype == np.float16 else loops.BFLOAT16
        numbers = [(step.register, step.divisor, len(step.parts), *step.parts) for step in steps]
        packed: np.ndarray = np.array(list(itertools.chain(*numbers)), np.int64)
        count = 1 + max(step.register for step in steps)
        registers = np.empty((count + 1, loops.TILE), np.float32)
        sources = pointers(leaves)
        run(
            *(kind, _JOINS[self.reduction], packed, len(steps), size),
            *(sources, sources, target, target, pointers(registers), count),
            *(tables.widened, tables.canonical, tables.rounded, tables.limits),
        )
        return True

    def value(
        self,
        steps: Sequence[Step],
        leaves: Sequence[np.ndarray] | np.ndarray,
        registers: list[np.ndarray],
    ) -> np.ndarray:
        """What the steps make of leaves; it may lie in a register."""
        if self.join is None:
            for step in steps:
                parts = [leaves[part] if part >= 0 else registers[~part] for part in step.parts]
                registers[step.register] = reduce_parts(parts, self.reduction, step.divisor)
            return registers[steps[-1].register]
        is_narrow = self.dtype != self.wide
        *_, part_register, result = registers if is_narrow else (None, None)
        for step in steps:
            total = so_far = registers[step.register]
            for number, part in enumerate(step.parts):
                value = leaves[part] if part >= 0 else registers[~part]
                if is_narrow and part >= 0:
                    value = widened(value, out=part_register if number else total)
                if number:
                    self.join(so_far, value, total)
                so_far = total if number else value
            if so_far is not total:
                total[...] = so_far
            if step.divisor != 1:
                np.divide(total, total.dtype.type(step.divisor), out=total)
            if self.rounds and step is not steps[-1]:
                round_to(total, self.dtype)
        if is_narrow:
            return narrowed(total, self.dtype, out=result)
        if self.dtype.kind in "fc":
            _make_nans_canonical(total)
        return total


def _make_nans_canonical(array: np.ndarray) -> None:
    """`canonical_nans` where the array is; one pass over what has none."""
    parts = array.view(array.real.dtype) if array.dtype.kind == "c" else array
    if np.isnan(np.minimum.reduce(parts, axis=None)):
        array[...] = canonical_nans(array)
