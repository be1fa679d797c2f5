"""Collectives of variable size on random tables, groups, places and types: values, bytes, times."""

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import IDLE, DmaQueue
from ncc_runtime.report.run import Run
from tests.counted_programs import OPS, Shape, buffers_of, counts_of, shapes, text_of

PLACES = [
    ("trn2", "linear"),
    ("trn2", "spread"),
    ("trn1", "linear"),
    ("trn2-ultraserver", "spread"),
    ("trn3-gen2-ultraserver", "spread"),
    ("dgx-h100", "linear"),
]


def meaning(
    op: str, shape: Shape, buffers: list[np.ndarray], tables: list[np.ndarray]
) -> np.ndarray:
    """By rank what is in the output, written with loops over pairs of members."""
    operand, result = buffers[0], buffers[1].copy()
    wide = [table.astype(np.int64) for table in tables]
    for group in shape.groups:
        for to, receiver in enumerate(group):
            if op == "ncc.reduce_scatter_v":
                rows = int(wide[0][receiver, 2, to])
                starts = [(one, int(wide[0][one, 1, to])) for one in group]
                parts = [operand[one, first : first + rows] for one, first in starts]
                result[receiver, :rows] = np.sum(parts, axis=0, dtype=np.float64)
                continue
            for place, sender in enumerate(group):
                for rows, first, target in sent(op, shape, wide, (sender, place, to)):
                    result[receiver, target : target + rows] = operand[sender, first : first + rows]
    return result


def sent(op: str, shape: Shape, tables: list[np.ndarray], who: tuple[int, int, int]):
    """(rows, from where, to where) of what one member sends another."""
    sender, place, to = who
    if op != "ragged-all-to-all":
        rows, first = tables[0][sender, :2, to].tolist()
        return [(rows, first, place * shape.slot)]
    entries = range(to * shape.updates, (to + 1) * shape.updates)
    return [
        (int(tables[1][sender, k]), tables[0][sender, k], tables[2][sender, k]) for k in entries
    ]


@pytest.mark.parametrize("op", OPS)
@settings(max_examples=8)
@given(
    shape=shapes(),
    place=st.sampled_from(PLACES),
    level=st.integers(0, 2),
    seed=st.integers(0, 1 << 20),
)
def test_values_are_numpys(
    op: str, shape: Shape, place: tuple[str, str], level: int, seed: int
) -> None:
    given = [*buffers_of(op, shape, seed), *counts_of(op, shape, seed)]
    options = ncc_compiler.CompileOptions(level=level)
    neff = ncc_compiler.compile_text(text_of(op, shape), options)
    model = ncc_runtime.load(neff, place[0], placement=place[1])
    run = model.run(given, checked=True, shuffle_seed=seed, verify=False, clock=False)
    np.testing.assert_array_equal(run.outputs[0], meaning(op, shape, given[:2], given[2:]))


def bytes_of(trace: Trace | None) -> int:
    """What the transfers of a trace move between ranks."""
    assert trace is not None
    total = 0
    for number, queue in enumerate(trace.executable.queues):
        if isinstance(queue, DmaQueue):
            own = trace.queue == number
            row, rank = trace.row[own], trace.rank[own]
            sizes = np.broadcast_to(queue.size_bytes, queue.peer.shape)[row, rank]
            peer = queue.peer[row, rank]
            total += int(sizes[(peer != IDLE) & (peer != rank)].sum())
    return total


def halved(op: str, tables: list[np.ndarray]) -> list[np.ndarray]:
    """The same tables with half of all rows."""
    found = [table.copy() for table in tables]
    counts = (found[1], found[3]) if op == "ragged-all-to-all" else (found[0][:, 0], found[0][:, 2])
    for one in counts:
        one //= 2
    return found


@pytest.mark.parametrize("op", OPS)
@settings(max_examples=3)
@given(seed=st.integers(0, 1 << 20), place=st.sampled_from(PLACES))
def test_half_of_the_rows_are_half_of_the_bytes(op: str, seed: int, place: tuple[str, str]) -> None:
    shape = Shape(groups=(tuple(range(4)), tuple(range(7, 3, -1))), operand_rows=9, updates=2)
    tables = counts_of(op, shape, seed)
    doubled = attrs.evolve(shape, operand_rows=18, slot=10)
    for table in tables:
        table *= 2
    neff = ncc_compiler.compile_text(text_of(op, doubled))
    model = ncc_runtime.load(neff, place[0], placement=place[1])
    buffers = buffers_of(op, doubled, seed)
    runs: list[Run] = [
        model.run([*buffers, *said], verify=False) for said in (tables, halved(op, tables))
    ]
    whole, half = (bytes_of(run.trace) for run in runs)
    assert whole == 2 * half
    counted = [sum(run.collectives[0].bytes_by_transport.values()) for run in runs]
    assert counted == [whole, half]
