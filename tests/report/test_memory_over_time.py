"""Live memory over time, against a count buffer by buffer and byte range by byte range."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings

import ncc_compiler
import ncc_runtime
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import EngineQueue
from ncc_runtime.neff.program import BufferKind
from ncc_runtime.report import memory_over_time as subject
from ncc_runtime.report.memory_over_time import MemoryOverTime, memory_over_time
from ncc_runtime.report.run import memory_use
from tests.draws_training import training_steps
from tests.example_count import examples

DATA = Path(__file__).parents[1] / "data" / "hlo"
MODELS = ("mlp_train_dp2_tp4", "fsdp_scan_layers", "moe_all_to_all", "collective_zoo")


def traced(name: str) -> Trace:
    neff = ncc_compiler.compile_file(str(DATA / f"{name}.hlo"))
    trace = ncc_runtime.load(neff, "trn2").run(values=False, verify=False).trace
    assert trace is not None
    return trace


def accesses(trace: Trace, rank: int) -> list[tuple[int, int, int, bool, bool]]:
    """(buffer, start, end, reads, writes) of everything that a rank does, in order of time."""
    program = trace.executable.stage_of(rank).program
    found: dict[tuple[int, int, int], list[bool]] = {}

    def add(tensors, start: int, end: int, is_write: bool) -> None:
        for tensor in tensors:
            key = program.tensors[tensor].buffer, start, end
            found.setdefault(key, [False, False])[is_write] = True

    for event in np.flatnonzero(trace.rank == rank).tolist():
        queue = trace.executable.queues[trace.queue[event]]
        times = int(trace.start_ps[event]), int(trace.end_ps[event])
        if isinstance(queue, EngineQueue):
            row = queue.table[int(trace.row[event])]
            add(row.operands, *times, False)
            add(row.results, *times, True)
    for number, placeholder in enumerate(program.placeholders):
        for of, start, end in zip(*map(np.ndarray.tolist, trace.spans(number)), strict=True):
            if of == rank:
                add((*placeholder.operands, *placeholder.counts), start, end, False)
                add(placeholder.results, start, end, True)
    rows = [(*key, *flags) for key, flags in found.items()]
    return sorted(rows, key=lambda row: (row[0], row[1], row[2]))


def counted(trace: Trace, rank: int, time: int) -> int:
    """Bytes of temporaries and outputs that are live at a time, each address once."""
    program = trace.executable.stage_of(rank).program
    lives: dict[int, list[list[int]]] = {}
    for buffer, start, end, reads, writes in accesses(trace, rank):
        own = lives.setdefault(buffer, [])
        if not own or (writes and not reads):
            own.append([start, end])
        else:
            own[-1][1] = max(own[-1][1], end)
    live: set[int] = set()
    donated = program.donated()
    for buffer, ranges in lives.items():
        facts = program.buffers[buffer]
        if facts.kind is BufferKind.OUTPUT and buffer not in donated:
            ranges = [[ranges[0][0], trace.time_ps]]
        elif facts.kind is not BufferKind.INTERNAL:
            continue
        if any(start <= time < end for start, end in ranges):
            live |= set(range(facts.address, facts.end))
    return len(live)


@pytest.mark.parametrize("name", MODELS)
def test_live_bytes_are_those_of_a_count(name: str) -> None:
    trace = traced(name)
    memory = memory_over_time(trace, 0)
    chosen = np.linspace(0, len(memory.time_ps) - 1, 12).astype(int)
    for at in chosen.tolist():
        found = int(memory.temporaries[at] + memory.outputs[at])
        assert found == counted(trace, 0, int(memory.time_ps[at]))


def check(memory: MemoryOverTime, trace: Trace) -> None:
    use = memory_use(trace.executable)
    channels = use.channel_buffers or 0
    assert memory.peak_bytes + channels <= use.size_bytes
    assert (memory.temporaries >= 0).all()
    assert (memory.outputs >= 0).all()
    assert (np.diff(memory.outputs) >= 0).all()  # what is put out stays
    assert (np.diff(memory.time_ps) > 0).all()
    sizes = [buffer.size_bytes for buffer in memory.buffers]
    assert sizes == sorted(sizes, reverse=True)
    for buffer in memory.buffers:
        assert 0 <= buffer.start_ps <= buffer.end_ps <= trace.time_ps
        assert buffer.lives >= 1


@pytest.mark.parametrize("name", [*MODELS, "llama_4l_64ranks"])
def test_no_more_is_live_than_is_charged(name: str) -> None:
    trace = traced(name)
    check(memory_over_time(trace, 0), trace)


@given(text=training_steps())
@settings(max_examples=examples(25))
def test_no_more_is_live_than_is_charged_of_drawn_steps(text: str) -> None:
    trace = ncc_runtime.load(ncc_compiler.compile_text(text), "trn2").run(values=False).trace
    assert trace is not None
    check(memory_over_time(trace, 0), trace)


def test_a_buffer_in_a_loop_lives_once_each_time_it_is_written_anew() -> None:
    trace = traced("fsdp_scan_layers")
    memory = memory_over_time(trace, 0)
    assert max(buffer.lives for buffer in memory.buffers) > 1


def test_of_very_many_lives_each_buffer_has_one(monkeypatch: pytest.MonkeyPatch) -> None:
    trace = traced("fsdp_scan_layers")
    exact = memory_over_time(trace, 0)
    monkeypatch.setattr(subject, "MOST_LIVES", 10)
    coarse = memory_over_time(trace, 0)
    assert {buffer.lives for buffer in coarse.buffers} == {1}
    assert coarse.peak_bytes >= exact.peak_bytes
