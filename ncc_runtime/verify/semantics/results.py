"""What the transfers of a segment come to, compared with what its results must hold.

It knows a placeholder, its buffers, ring rows and an order, and no executable.
"""

from collections.abc import Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE
from ncc_runtime.order import Batch
from ncc_runtime.verify.bindings import Binding, Role
from ncc_runtime.verify.conflicts import CC
from ncc_runtime.verify.segments import Segment
from ncc_runtime.verify.semantics.cells import MemoryCells, cells_of
from ncc_runtime.verify.semantics.fingerprints import factor
from ncc_runtime.verify.semantics.replay import WrongTransfer, Memory, Replay
from ncc_runtime.verify.semantics.spec import ResultSpec, specs_of

MOST_CELLS = 1 << 28
"""Of all ranks: 2 GiB of fingerprints."""

MOST_RUNS = 64
"""A run shows where cells have to be cut; what ever comes out of programs needs two at most."""

BLOCK_CELLS = 1 << 20
"""Cells that are compared together."""


@attrs.frozen(eq=False)
class Difference:
    """Bytes of a rank's result that do not hold what its spec says."""

    spec: ResultSpec
    member: int  # place of the rank in ResultSpec.ranks
    result: Binding
    offset: int  # of the first wrong byte in the result
    size_bytes: int  # as far as all is wrong, within one part

    @property
    def rank(self) -> int:
        """Whose result it is."""
        return int(self.spec.ranks[self.member])


@attrs.frozen(eq=False)
class Outcome:
    """What was looked at, and what is wrong with it."""

    transfers: int
    ranges: int  # cells of results that were compared
    faults: tuple[WrongTransfer, ...]  # the first of each row
    difference: Difference | None  # the first by rank, result and offset
    wrong_ranks: tuple[int, ...]
    is_settled: bool  # else cells would have to be cut further than there is memory


def outcome_of(segment: Segment, batches: Sequence[Batch], even: bool | None = None) -> Outcome:
    """Perform all rows on fingerprints and compare; `even` is for `cells_of`."""
    transfers = sum(int(np.count_nonzero(ring.peer != IDLE)) for ring in segment.rings)
    specs = tuple(specs_of(segment.placeholder, segment.ranks))
    cells = cells_of(_parts(segment.bindings, specs), segment.rings, even)
    for _ in range(MOST_RUNS):
        if len(cells) * segment.ranks > MOST_CELLS:
            break
        memory, replay = _run(segment, batches, cells)
        if not replay.mixed:
            wrong = [one for spec in specs for one in differences(memory, spec, segment.bindings)]
            wrong.sort(key=lambda one: (one.rank, one.result.index, one.offset))
            return Outcome(
                transfers=transfers,
                ranges=_ranges(segment.bindings, specs, cells),
                faults=tuple(fault for _, fault in sorted(replay.faults.items())),
                difference=wrong[0] if wrong else None,
                wrong_ranks=tuple(sorted({one.rank for one in wrong})),
                is_settled=True,
            )
        cells = cells.cut(*map(np.concatenate, zip(*replay.mixed, strict=True)))
    return Outcome(transfers, 0, (), None, (), is_settled=False)


def _run(segment: Segment, batches: Sequence[Batch], cells: MemoryCells) -> tuple[Memory, Replay]:
    memory = Memory.at_first(cells, segment.ranks, segment.placeholder.dtype.size_bytes)
    replay = Replay(segment, memory)
    for queue, row, ranks in batches:
        if queue != CC:
            replay.perform(queue - 1, row, ranks)
    return memory, replay


def _parts(bindings: Sequence[Binding], specs: Sequence[ResultSpec]) -> Mapping[Binding, int]:
    """Into how many equal parts each binding is cut by its spec."""
    parts = max((spec.parts for spec in specs), default=1)
    return {binding: parts if binding.role is Role.RESULT else 1 for binding in bindings}


def _ranges(bindings: Sequence[Binding], specs: Sequence[ResultSpec], cells: MemoryCells) -> int:
    """Cells of all results that a spec says something of."""
    count = 0
    for binding in bindings:
        if binding.role is Role.RESULT:
            own = specs if binding.members is None else [one.of(binding.members) for one in specs]
            within = len(range(len(cells))[cells.within(binding)])
            count += within * sum(len(spec.ranks) for spec in own)
    return count


def differences(
    memory: Memory, spec: ResultSpec, bindings: Sequence[Binding]
) -> Iterator[Difference]:
    """The first wrong bytes of every rank and result."""
    for result in bindings:
        if result.role is not Role.RESULT or not result.size_bytes:
            continue
        own = spec if result.members is None else spec.of(result.members)
        operands = [
            one for one in bindings if one.role is Role.OPERAND and one.index == result.index
        ]
        cells = memory.cells.within(result)
        starts = memory.cells.offset[cells] - memory.cells.offset[cells.start]
        part, inside = np.divmod(starts, result.size_bytes // own.parts)
        first_elements = _first_elements(memory, own, operands)
        step = max(1, BLOCK_CELLS // max(1, len(memory.cells)))
        for first in range(0, len(own.ranks), step):
            some = slice(first, first + step)
            source = own.source if len(own.source) == 1 else own.source[some]
            of_part = own.source_part if len(own.source_part) == 1 else own.source_part[some]
            of_part = np.broadcast_to(of_part, (len(of_part), own.parts))
            offset = inside + of_part[:, part] * (operands[0].size_bytes // own.operand_parts)
            expected = first_elements[source][:, part]
            expected = expected * memory.powers(offset // memory.element_bytes)
            wrong = memory.of_ranks[own.ranks[some], cells] != expected
            for member in np.flatnonzero(wrong.any(axis=1)).tolist():
                at = int(wrong[member].argmax())
                ends = ~wrong[member] | (part != part[at])
                ends[:at] = False
                edges = np.append(starts, result.size_bytes).tolist()
                end = edges[int(ends.argmax())] if ends.any() else result.size_bytes
                yield Difference(own, first + member, result, edges[at], end - edges[at])


def _first_elements(memory: Memory, spec: ResultSpec, operands: Sequence[Binding]) -> np.ndarray:
    """The fingerprint of every rank's first element of an operand, then that of ZEROS, of REDUCED.

    Either stands for a negative rank, which counts from the end.
    """
    of_ranks: np.ndarray = np.zeros(len(memory.symbols), np.uint64)
    for binding in operands:
        extent, offset = memory.cells.extents.offset(binding)
        power = memory.powers(np.array([offset // memory.element_bytes]))
        of_ranks[binding.rows] = memory.symbols[binding.rows, extent] * power
    reduced = of_ranks[list(spec.group)].sum(dtype=np.uint64, keepdims=True)
    return np.concatenate((of_ranks, np.zeros(1, np.uint64), reduced * factor(spec.divisor)))
