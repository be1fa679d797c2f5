"""Chains cut into stretches by control rows.

Engines hold all control rows; a stream's CC-core those of the blocks around its placeholders. A
placeholder belongs to the stretch of its trigger.
"""

from collections.abc import Iterator, Sequence

import attrs
import numpy as np

from ncc_runtime.lowering.executable import IDLE, EngineQueue, Executable
from ncc_runtime.neff.structure import Structure, structure_of
from ncc_runtime.verify.flow import Flow
from ncc_runtime.verify.local.chains import Items, Kind
from ncc_runtime.verify.local.paths import Ways
from ncc_runtime.verify.places import collective
from ncc_runtime.verify.stage_parts import StagePart


@attrs.frozen(eq=False)
class Stretches:
    """Where the items of each chain stand."""

    stretch: tuple[np.ndarray, ...]  # (items,) of each chain, ascending
    controls: tuple[np.ndarray, ...]  # (stretches,) of each chain: its item that ends one, or -1


def ways_of(part: StagePart) -> Ways | None:
    """The control flow of the queues; None where they do not agree on one."""
    program, queues = part.executable.program, part.executable.queues
    tables = {queue.engine: queue.table for queue in queues if isinstance(queue, EngineQueue)}
    structure = structure_of(attrs.evolve(program, queues={**program.queues, **tables}))
    return None if structure is None else Ways(program.blocks, structure, part.first_block)


def stretches_of(executable: Executable, chains: Sequence[Items], ways: Ways) -> Stretches:
    """Cut every chain."""
    triggered = _trigger_stretches(executable, chains, ways.structure)
    found = [
        _engine(items, ways) if items.engine is not None else _stream(items, ways, triggered)
        for items in chains
    ]
    return Stretches(*zip(*found, strict=True)) if found else Stretches((), ())


def _trigger_stretches(
    executable: Executable, chains: Sequence[Items], structure: Structure
) -> np.ndarray:
    """The stretch in which each placeholder is triggered; IDLE where it never is."""
    found: np.ndarray = np.full(len(executable.program.placeholders), IDLE, np.int64)
    for items in chains:
        if items.engine is not None:
            rows = np.flatnonzero(items.subject != IDLE)
            found[items.subject[rows]] = structure.phases(items.engine, rows)
    return found


def _engine(items: Items, ways: Ways) -> tuple[np.ndarray, np.ndarray]:
    assert items.engine is not None
    controls = np.append(ways.structure.pcs[items.engine], -1).astype(np.int64)
    return ways.structure.phases(items.engine, items.first), controls


def _stream(items: Items, ways: Ways, triggered: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    controls: np.ndarray = np.full(ways.stretches, -1, np.int64)
    is_control = items.kind == Kind.CONTROL
    decides = np.array([span.decides for span in ways.structure.block_rows], np.int64)
    stretch: np.ndarray = np.zeros(len(items), np.int64)
    stretch[~is_control] = triggered[items.subject[~is_control]]
    stretch[is_control] = decides[items.subject[is_control]]
    rows = np.flatnonzero(is_control)
    controls[stretch[rows]] = rows
    return stretch, controls


def misplaced(
    executable: Executable, chains: Sequence[Items], stretches: Stretches, flow: Flow
) -> Iterator[str]:
    """Placeholders that a CC-core does not come to exactly where they are triggered."""
    for items, stretch in zip(chains, stretches.stretch, strict=True):
        if items.engine is not None:
            continue
        marks = flow.marks[items.queue]
        before = [marks[:at][marks[:at] >= 0].max(initial=0) for at in stretch.tolist()]
        behind = [flow.limit(items.queue, at) for at in stretch.tolist()]
        elsewhere = (items.first < before) | (items.last >= behind) | (stretch == IDLE)
        late = np.append(False, np.diff(stretch) < 0)[: len(stretch)]
        wrong = (elsewhere | late) & (items.kind == Kind.PLACEHOLDER)
        for at in np.flatnonzero(wrong).tolist():
            what = collective(executable, int(items.subject[at]))
            place = f"queue {items.name}, pc {items.first[at]} ({what})"
            yield f"{place}: not between the control rows where it is triggered"
