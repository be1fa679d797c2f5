"""Control flow of a program, read without trust: where its blocks open, decide and end.

Every queue holds the same control rows in the same order, so these cut all queues into phases that
belong together: phase i of each queue comes before its control row i, and that row ends it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from ncc_runtime.neff.isa import CASE, END, ENGINES, LOOP, TEST, Engine
from ncc_runtime.neff.program import AttributeValue, BlockKind, Program
from ncc_runtime.neff.table import NONE, InstrTable

CONTROL = (LOOP, TEST, CASE, END)
BLOCK_ROWS: Mapping[BlockKind, tuple[str, ...]] = {
    BlockKind.LOOP: (LOOP, TEST, END),
    BlockKind.CASE: (CASE, END),
}
"""The rows of a block, in their order."""


@attrs.frozen
class ControlRow:
    """A `loop`, `test`, `case` or `end`; block is NONE where the row names none."""

    pc: int
    opcode: str
    block: int

    def __str__(self) -> str:
        return f"{self.opcode} k{self.block}"


def control_rows(program: Program, table: InstrTable) -> tuple[ControlRow, ...]:
    """The control rows of a queue."""
    codes = [code for code, name in enumerate(table.opcode_names) if name in CONTROL]
    pcs = np.flatnonzero(np.isin(table.opcode, codes)).tolist() if codes else []
    return tuple(
        ControlRow(
            pc,
            table.opcode_names[table.opcode[pc]],
            NONE if attribute == NONE else _block(program.attributes[attribute]),
        )
        for pc, attribute in zip(pcs, table.attribute[pcs].tolist(), strict=True)
    )


def _block(attributes: Mapping[str, AttributeValue]) -> int:
    value = attributes.get("block")
    return value if type(value) is int else NONE


def names_block(attributes: Mapping[str, AttributeValue]) -> int:
    """The block that these attributes name, if they have no other entry; else NONE."""
    return _block(attributes) if len(attributes) == 1 else NONE


def nesting_breaches(rows: Iterable[ControlRow]) -> Iterator[tuple[ControlRow, str]]:
    """Rows that stand where a well-nested program has no such row, and why."""
    open_rows: list[ControlRow] = []  # of each open block the latest row
    for row in rows:
        if row.opcode in (LOOP, CASE):
            open_rows.append(row)
            continue
        preceding = (LOOP,) if row.opcode == TEST else (TEST, CASE)
        latest = open_rows[-1] if open_rows else None
        if latest is None or latest.block != row.block or latest.opcode not in preceding:
            yield row, f"{row} behind {latest or 'no open block'}"
        elif row.opcode == TEST:
            open_rows[-1] = row
        else:
            open_rows.pop()
    yield from ((row, f"{row} without its end") for row in open_rows)


@attrs.frozen
class BlockRows:
    """Control rows of a block: indices of Structure.rows. A case opens and decides in one row."""

    opens: int
    decides: int
    ends: int


@attrs.frozen(eq=False)
class Structure:
    """Control rows that all queues share."""

    rows: tuple[tuple[str, int], ...]  # opcode and block
    pcs: Mapping[Engine, np.ndarray]  # of those rows in each queue
    block_rows: tuple[BlockRows, ...]  # by block

    def phases(self, engine: Engine, pcs: np.ndarray | Sequence[int]) -> np.ndarray:
        """The phase that each of a queue's rows belongs to."""
        return np.searchsorted(self.pcs[engine], pcs)

    def ends(self, engine: Engine, length: int) -> np.ndarray:
        """How many rows a queue has up to the end of each phase, its control row included."""
        return np.append(self.pcs[engine] + 1, length)


def structure_of(program: Program) -> Structure | None:
    """The structure of a program that breaks no rule about its control rows, else None."""
    queues = {engine: control_rows(program, program.queues[engine]) for engine in ENGINES}
    texts = {tuple((row.opcode, row.block) for row in rows) for rows in queues.values()}
    first = queues[ENGINES[0]]
    if len(texts) > 1 or any(True for _ in nesting_breaches(first)):
        return None
    places: dict[tuple[str, int], int] = {}
    for place, row in enumerate(first):
        places[row.opcode, row.block] = place
    every_row = {
        (opcode, number)
        for number, block in enumerate(program.blocks)
        for opcode in BLOCK_ROWS[block.kind]
    }
    if len(places) != len(first) or places.keys() != every_row:
        return None
    opens_decides_ends = {BlockKind.LOOP: (LOOP, TEST, END), BlockKind.CASE: (CASE, CASE, END)}
    block_rows = (
        BlockRows(*(places[opcode, number] for opcode in opens_decides_ends[block.kind]))
        for number, block in enumerate(program.blocks)
    )
    pcs = {engine: np.array([row.pc for row in rows], np.int64) for engine, rows in queues.items()}
    return Structure(tuple(places), pcs, tuple(block_rows))


def triggers_by_phase(program: Program, structure: Structure) -> Iterator[tuple[int, int]]:
    """(phase, stream) of every trigger; in no order within a phase."""
    for engine in ENGINES:
        column = program.queues[engine].placeholder
        pcs = np.flatnonzero(column != NONE)
        phases = structure.phases(engine, pcs)
        for phase, number in zip(phases.tolist(), column[pcs].tolist(), strict=True):
            yield phase, program.placeholders[number].stream


def acknowledgements(program: Program, structure: Structure) -> Iterator[tuple[int, int]]:
    """(phase, stream) of every acknowledgement; it belongs to the phase that its row ends.

    A stream whose placeholders stand in a block, at any depth, reads the block's predicate too; it
    counts one on its semaphore when it has.
    """
    streams: dict[int, list[int]] = {}
    for phase, stream in triggers_by_phase(program, structure):
        streams.setdefault(stream, []).append(phase)
    ordered = {stream: np.sort(phases) for stream, phases in streams.items()}
    for rows in structure.block_rows:
        for stream, phases in sorted(ordered.items()):
            first = int(np.searchsorted(phases, rows.opens, side="right"))
            if first < len(phases) and phases[first] <= rows.ends:
                yield rows.decides, stream


def stream_counts(program: Program, structure: Structure) -> Mapping[int, np.ndarray]:
    """The value of each stream's semaphore at the end of every phase, with every block run once."""
    counts_of: dict[int, np.ndarray] = {}
    events = (triggers_by_phase(program, structure), acknowledgements(program, structure))
    for phase, stream in (event for kind in events for event in kind):
        if stream not in counts_of:
            counts_of[stream] = np.zeros(len(structure.rows) + 1, np.int64)
        counts_of[stream][phase] += 1
    return {stream: np.cumsum(counts) for stream, counts in counts_of.items()}
