"""Where two placements of one program reduce in another order, and what it makes: `diff --bits`.

The bound is that of the textbook for each order; the two results are no farther apart than both
together. What it makes is attributed to the collective that makes it: its operands of a run on the
first placement go through the orders of both. The outputs of two runs say what all comes to.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from ncc_runtime.bits.differences import BitDifference, difference
from ncc_runtime.bits.orders import CollectiveOrder, ResultOrder, SumsOf, orders
from ncc_runtime.bits.sums import Roundings, Sums
from ncc_runtime.lowering.executable import CcQueue, Executable
from ncc_runtime.neff.placeholder import CollectiveOp, Placeholder
from ncc_runtime.neff.shared.reductions import Reduction

if TYPE_CHECKING:
    from ncc_runtime.execution.scheduler import RowBatch
    from ncc_runtime.execution.values.devices import Devices


@attrs.frozen
class ChunkOrders:
    """Bytes of a result that both sides reduce by one expression each, on some ranks."""

    ranks: tuple[int, ...]
    result: int
    start: int  # bytes
    end: int
    expressions: tuple[int, int]  # of sides a and b

    @property
    def differs(self) -> bool:
        """Whether the order shows in the bits."""
        return self.expressions[0] != self.expressions[1]

    @property
    def size_bytes(self) -> int:
        """On all of these ranks."""
        return (self.end - self.start) * len(self.ranks)


@attrs.frozen
class Pattern:
    """Expressions of one side that differ only in where members stand."""

    expression: int  # the first of them
    expressions: int
    size_bytes: int  # of the results of all ranks
    roundings: Roundings


@attrs.frozen(eq=False)
class ComparedOrders:
    """Collectives that both placements reduce alike to each other."""

    ids: tuple[int, ...]
    placeholder: Placeholder  # of the first
    algorithms: tuple[str, str]
    sums: Sums
    chunks: tuple[ChunkOrders, ...]
    difference: BitDifference | None = None  # on the operands of a run; None: not computed
    share: float | None = None  # of the bound that it reached, at most

    @property
    def differing(self) -> tuple[ChunkOrders, ...]:
        """The chunks whose orders differ."""
        return tuple(chunk for chunk in self.chunks if chunk.differs)

    @property
    def size_bytes(self) -> int:
        """Of the results of all ranks."""
        return sum(chunk.size_bytes for chunk in self.chunks)

    @property
    def bounds(self) -> tuple[float, float] | None:
        """Of sides a and b where they differ; None if they do not or there is none."""
        of_sides: list[float] = []
        for side in (0, 1):
            bounds = [self.sums.bound(chunk.expressions[side]) for chunk in self.differing]
            known = [bound for bound in bounds if bound is not None]
            if not known:
                return None
            of_sides.append(max(known))
        return of_sides[0], of_sides[1]

    def patterns(self, side: int) -> Sequence[Pattern]:
        """What a side's expressions look like, those of most bytes first; where they differ."""
        alike: dict[int, dict[int, int]] = {}  # by outline: expression → bytes
        for chunk in self.differing or self.chunks:
            number = chunk.expressions[side]
            of_outline = alike.setdefault(self.sums.outline(number), {})
            of_outline[number] = of_outline.get(number, 0) + chunk.size_bytes
        patterns = []
        for sizes in alike.values():
            first = next(iter(sizes))
            total = sum(sizes.values())
            patterns.append(Pattern(first, len(sizes), total, self.sums.roundings(first)))
        return sorted(patterns, key=lambda pattern: -pattern.size_bytes)


@attrs.frozen(eq=False)
class BitsDiff:
    """Two placements of one program: where they reduce in another order, and what it made."""

    collectives: tuple[ComparedOrders, ...]  # that reduce
    outputs: tuple[BitDifference, ...] | None = None  # of two runs; None: not computed

    @property
    def differing(self) -> tuple[ComparedOrders, ...]:
        """Those whose orders differ somewhere."""
        return tuple(each for each in self.collectives if each.differing)


class BitsComparison:
    """Compares the orders of two executables of one program; `watch` a run to measure them."""

    def __init__(self, executables: tuple[Executable, Executable]) -> None:
        self._executables = executables
        self._program = executables[0].program
        sums_of = SumsOf()
        self._orders = [orders(executable, sums_of) for executable in executables]
        self._chunks: dict[int, tuple[ChunkOrders, ...]] = {}
        known: dict[tuple[int, int], tuple[ChunkOrders, ...]] = {}
        for number, first in self._orders[0].items():
            second = self._orders[1][number]
            key = id(first.results), id(second.results)  # equal placeholders share them
            if key not in known:
                known[key] = tuple(_chunks(first, second))
            self._chunks[number] = known[key]
        self._waiting: dict[tuple[int, int, int], dict[int, list[np.ndarray]]] = {}
        self._runs: dict[tuple[int, int], int] = {}  # by placeholder and rank
        self._found: dict[int, BitDifference] = {}
        self._shares: dict[int, float] = {}

    def watch(self, machine: "Devices", batches: "Sequence[RowBatch]") -> None:
        """Before a machine of the first executable performs rows: takes operands of collectives."""
        for batch in batches:
            queue = machine.executable.queues[batch.queue]
            if not isinstance(queue, CcQueue):
                continue
            number = int(queue.placeholder[batch.row])
            begins = not batch.row or int(queue.placeholder[batch.row - 1]) != number
            if number not in self._chunks or not begins or not self._is_measured(number):
                continue
            for rank in batch.ranks.tolist():
                self._take(machine, number, rank)

    def _is_measured(self, number: int) -> bool:
        """Of variable size the tables decide which rows are joined: these are not followed."""
        is_counted = self._program.placeholders[number].op.is_counted
        return not is_counted and any(chunk.differs for chunk in self._chunks[number])

    def _take(self, machine: "Devices", number: int, rank: int) -> None:
        """Keep a rank's operands; once its group has arrived, compare what the orders make."""
        placeholder = self._program.placeholders[number]
        groups = placeholder.groups
        at = next((k for k, group in enumerate(groups) if rank in group), None)
        if at is None:
            return
        run = self._runs.get((number, rank), 0)
        self._runs[number, rank] = run + 1
        program = machine.executable.stage_of(rank).program
        operands = []
        for tensor in program.placeholders[number].operands:
            size, address = program.tensors[tensor].size_bytes, program.address(tensor)
            row = machine.arena.row(rank, address, size).view(placeholder.dtype.numpy)
            operands.append(row.copy())
        arrived = self._waiting.setdefault((number, at, run), {})
        arrived[rank] = operands
        if len(arrived) == len(groups[at]):
            del self._waiting[number, at, run]
            self._compare(number, groups[at], [arrived[member] for member in groups[at]])

    def _compare(
        self, number: int, group: tuple[int, ...], operands: Sequence[Sequence[np.ndarray]]
    ) -> None:
        placeholder, sums = self._program.placeholders[number], self._orders[0][number].sums
        found = self._found.get(number, BitDifference(0))
        share = self._shares.get(number, 0.0)
        size = placeholder.dtype.size_bytes
        known: dict[tuple[int, ...], tuple[BitDifference, float]] = {}
        for chunk in self._chunks[number]:
            ranks = [rank for rank in chunk.ranks if rank in group]
            for rank in ranks:
                first = 0
                if placeholder.op is CollectiveOp.REDUCE_SCATTER:
                    elements = len(operands[0][chunk.result])
                    first = group.index(rank) * (elements // len(group))
                start, end = first + chunk.start // size, first + chunk.end // size
                key = chunk.result, start, end, *chunk.expressions
                if key not in known:
                    own = [each[chunk.result][start:end] for each in operands]
                    known[key] = measured(sums, chunk.expressions, own)
                found = found.joined(known[key][0])
                share = max(share, known[key][1])
        self._found[number], self._shares[number] = found, share

    def result(
        self, outputs: tuple[Sequence[np.ndarray], Sequence[np.ndarray]] | None = None
    ) -> BitsDiff:
        """All that was compared; with the outputs of two runs these too."""
        alike: dict[object, list[int]] = {}
        for number, chunks in self._chunks.items():
            placeholder = self._program.placeholders[number]
            names = tuple(each.lowered[number].name for each in self._executables)
            key = placeholder.op, placeholder.dtype, placeholder.reduction, names, chunks
            alike.setdefault(key, []).append(number)
        rows = []
        for ids in alike.values():
            found: BitDifference | None = None
            for number in ids:
                if number in self._found:
                    found = self._found[number].joined(found or BitDifference(0))
            a, b = (each.lowered[ids[0]].name for each in self._executables)
            rows.append(
                ComparedOrders(
                    tuple(ids),
                    self._program.placeholders[ids[0]],
                    (a, b),
                    self._orders[0][ids[0]].sums,
                    self._chunks[ids[0]],
                    found,
                    max((self._shares[n] for n in ids if n in self._shares), default=None),
                )
            )
        compared = None
        if outputs is not None:
            compared = tuple(difference(*pair) for pair in zip(*outputs, strict=True))
        return BitsDiff(tuple(rows), compared)


def measured(
    sums: Sums, expressions: tuple[int, int], operands: Sequence[np.ndarray]
) -> tuple[BitDifference, float]:
    """What two orders make of the operands of a group, and how much of the bound that is at most.

    The share is 0 where there is no bound or a result is not finite.
    """
    first, second = (sums.value(number, operands) for number in expressions)
    found = difference(first, second)
    bounds = [sums.bound(number) for number in expressions]
    if not found.differing or None in bounds:
        return found, 0.0
    arithmetic = sums.arithmetic
    wide = [_wide(array) for array in (first, second, *operands)]
    with np.errstate(all="ignore"):  # operands may be no numbers, infinite, or all zero
        apart, parts = np.abs(wide[0] - wide[1]), [np.abs(array) for array in wide[2:]]
        scale = np.prod(parts, axis=0)
        if arithmetic.reduction is not Reduction.MULTIPLY:
            divisor = len(operands) if arithmetic.reduction is Reduction.AVERAGE else 1
            scale = np.sum(parts, axis=0) / divisor
        most = sum(bound or 0.0 for bound in bounds) * scale
        most = most + sum(sums.least(number) for number in expressions)
        shares = apart / most
    return found, float(np.max(shares[np.isfinite(shares)], initial=0.0))


def _wide(array: np.ndarray) -> np.ndarray:
    """As float64; the parts of complex numbers one behind the other."""
    if array.dtype.kind == "c":
        array = np.ascontiguousarray(array).view(array.real.dtype)
    return array.astype(np.float64)


def _chunks(first: CollectiveOrder, second: CollectiveOrder) -> Iterator[ChunkOrders]:
    """Both orders, cut where either begins anew; ranks that have equal ones together."""
    alike: dict[tuple[int, int, int, int, int], list[int]] = {}
    others = {(one.rank, one.result): one for one in second.results}
    for one in first.results:
        other = others[one.rank, one.result]
        for key in _cut(one, other):
            alike.setdefault((one.result, *key), []).append(one.rank)
    for (result, start, end, *numbers), ranks in sorted(alike.items()):
        yield ChunkOrders(tuple(ranks), result, start, end, (numbers[0], numbers[1]))


def _cut(one: ResultOrder, other: ResultOrder) -> Iterator[tuple[int, int, int, int]]:
    """Start, end and both expressions of each interval; equal neighbours as one."""
    start = np.union1d(one.start, other.start)
    numbers = [
        each.expression[np.searchsorted(each.start, start, side="right") - 1]
        for each in (one, other)
    ]
    is_new = np.append(True, np.any([column[1:] != column[:-1] for column in numbers], axis=0))
    start = start[is_new]
    ends = np.append(start[1:], one.size_bytes)
    columns = (start, ends, *(column[is_new] for column in numbers))
    yield from zip(*(column.tolist() for column in columns), strict=True)


# ---- printed

SHOWN_PATTERNS = 3
"""Patterns of a side that the text shows; the JSON has every chunk."""


def as_text(diff: BitsDiff) -> str:
    """What differs, collective by collective, and what it made."""
    if not diff.collectives:
        return "bits: no collective reduces; no choice of a place or an algorithm changes any"
    total = sum(len(each.ids) for each in diff.collectives)
    count = sum(len(each.ids) for each in diff.differing)
    lines = [f"bits: {count} of {total} collectives that reduce do it in another order"]
    for each in diff.collectives:
        lines += _collective_lines(each)
    if diff.outputs is not None:
        lines.append("outputs of both runs")
        lines += (f"  out{n}: {found.text}" for n, found in enumerate(diff.outputs))
    return "\n".join(lines)


def _collective_lines(each: ComparedOrders) -> Iterator[str]:
    ids = f"p{each.ids[0]}" + (f" and {len(each.ids) - 1} more" if len(each.ids) > 1 else "")
    placeholder, arithmetic = each.placeholder, each.sums.arithmetic
    what = f"{ids}  {placeholder.op.value} {arithmetic.dtype.value} {arithmetic.reduction.value}"
    if arithmetic.is_exact:
        yield f"{what}: exact, every order gives the same bits"
        return
    if not each.differing:
        yield f"{what}: the same order on both"
        yield from _side_lines(each, 0, " ")
        return
    differing = sum(chunk.size_bytes for chunk in each.differing)
    ranks = {rank for chunk in each.differing for rank in chunk.ranks}
    where = f"{differing} of {each.size_bytes} B of results, on {len(ranks)} ranks"
    yield f"{what}: another order in {where}"
    for side, letter in enumerate("ab"):
        yield from _side_lines(each, side, letter)
    if each.bounds is not None:
        a, b = each.bounds
        yield (
            f"     bound on |a - b|: {a + b:.3g} · {_scale(each)} = {a:.3g} + {b:.3g}, "
            "if nothing overflows"
        )
    if each.difference is not None:
        share = "" if not each.share else f", {100 * each.share:.3g} % of the bound at most"
        yield f"     on these operands: {each.difference.text}{share}"


def _scale(each: ComparedOrders) -> str:
    """What a bound is over."""
    reduction = each.sums.arithmetic.reduction
    if reduction is Reduction.MULTIPLY:
        return "|product|"
    return "mean |x|" if reduction is Reduction.AVERAGE else "Σ|x|"


def _side_lines(each: ComparedOrders, side: int, letter: str) -> Iterator[str]:
    patterns = each.patterns(side)
    for pattern in patterns[:SHOWN_PATTERNS]:
        like = f", and {pattern.expressions - 1} like it" if pattern.expressions > 1 else ""
        text = each.sums.text(pattern.expression)
        yield (
            f"  {letter}  {each.algorithms[side]}: {text}{like}; {pattern.size_bytes} B, "
            f"{pattern.roundings.in_all} roundings"
        )
    if len(patterns) > SHOWN_PATTERNS:
        yield f"  {letter}  … and {len(patterns) - SHOWN_PATTERNS} patterns more"


def as_json(diff: BitsDiff) -> dict[str, Any]:
    """The object `bits` of `nccrt diff --bits --json`."""
    return {
        "differs": bool(diff.differing),
        "collectives": [_collective_json(each) for each in diff.collectives],
        "outputs": None
        if diff.outputs is None
        else {f"out{n}": found.as_json() for n, found in enumerate(diff.outputs)},
    }


def _collective_json(each: ComparedOrders) -> dict[str, Any]:
    arithmetic, bounds = each.sums.arithmetic, each.bounds
    return {
        "ids": list(each.ids),
        "op": each.placeholder.op.value,
        "dtype": arithmetic.dtype.value,
        "reduction": arithmetic.reduction.value,
        "exact": arithmetic.is_exact,
        "algorithms": list(each.algorithms),
        "result_bytes": each.size_bytes,
        "differing_bytes": sum(chunk.size_bytes for chunk in each.differing),
        "bounds": None if bounds is None else list(bounds),
        "difference": None if each.difference is None else each.difference.as_json(),
        "share_of_bound": each.share,
        "chunks": [
            {
                "ranks": list(chunk.ranks),
                "result": chunk.result,
                "start": chunk.start,
                "end": chunk.end,
                "differs": chunk.differs,
                "sides": [_side_json(each.sums, number) for number in chunk.expressions],
            }
            for chunk in each.chunks
        ],
    }


def _side_json(sums: Sums, number: int) -> Mapping[str, Any]:
    roundings = sums.roundings(number)
    return {
        "order": sums.text(number),
        "shape": sums.shape(number)[0].value,
        "roundings": roundings.in_all,
        "longest_accumulator": roundings.accumulator,
        "longest_element": roundings.element,
        "bound": sums.bound(number),
    }
