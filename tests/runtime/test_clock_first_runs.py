"""The clock with and without machine code: the same times, a quick first run, one compiler."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ncc_runtime.errors import LoweringError
from ncc_runtime.execution.clock import clock, kernel, uncompiled
from ncc_runtime.execution.clock.clock import simulate
from ncc_runtime.execution.clock.tables import NONE, ClockState, empty
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.machine_code import MachineCode
from ncc_runtime.neff.placeholder import CollectiveOp
from tests.clock_runs import (
    collective,
    compiled,
    permute,
    planned,
    recorded,
    refuse_negative_indices,
)
from tests.runtime.test_clock_limits import factorised
from tests.small_executables import LOOPED

COLUMNS = ("queue", "row", "rank", "start_ps", "end_ps", "cause", "reason", "slowed_ps")


def traced(
    executable: Executable, monkeypatch: pytest.MonkeyPatch, steps: int, a_call: int = 1 << 21
) -> Trace:
    """A run whose first steps need no machine code."""
    monkeypatch.setattr(MachineCode, "is_loaded", False)
    steps_for = uncompiled.steps_for  # as if nobody knew how long the run is
    monkeypatch.setattr(uncompiled, "steps_for", lambda machine, _: steps_for(machine, 0))
    monkeypatch.setattr(uncompiled, "STEPS_IF_KEPT", steps)
    monkeypatch.setattr(uncompiled, "STEPS_IF_NOT", steps)
    monkeypatch.setattr(uncompiled._Performed, "steps", 0)
    monkeypatch.setattr(clock, "STEPS_A_CALL", a_call)
    return simulate(executable, planned(executable))


@pytest.fixture(autouse=True)
def no_index_is_negative(monkeypatch: pytest.MonkeyPatch) -> None:
    refuse_negative_indices(monkeypatch)


def programs() -> dict[str, Executable]:
    crossing = [(0, 5), (5, 0), (1, 4), (4, 1), (2, 7), (7, 2), (3, 6)]
    return {
        "loop": compiled(LOOPED.replace("constant(3)", "constant(40)")),
        "ring": collective(CollectiveOp.ALL_REDUCE, "ring", 8, 1 << 16),
        "all-to-all": collective(CollectiveOp.ALL_TO_ALL, "direct", 16, 1 << 12),
        "permute": permute(crossing, 1 << 20, 8, "trn1"),
        "two instances": collective(CollectiveOp.ALL_GATHER, "mesh", 8, 4096, nodes=2),
    }


PROGRAMS = programs()


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize(
    ("steps", "a_call"),
    [(10**9, 1 << 21), pytest.param(10**9, 7, marks=pytest.mark.slow), (100, 1 << 21)],
)
def test_the_times_without_machine_code_are_the_same_to_the_picosecond(
    name: str, steps: int, a_call: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_machine_code = traced(PROGRAMS[name], monkeypatch, 0)
    trace = traced(PROGRAMS[name], monkeypatch, steps, a_call)
    assert uncompiled._Performed.steps > 0
    for column in COLUMNS:
        assert (getattr(trace, column) == getattr(by_machine_code, column)).all(), column


def test_decisions_that_values_made_are_followed_without_machine_code_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    executable = compiled(LOOPED)
    tensors = [executable.program.tensors[number] for number in executable.program.inputs]
    inputs = [np.ones((executable.ranks, *each.shape), each.dtype.numpy) for each in tensors]
    decisions = recorded(executable, inputs)
    ends = []
    for steps in (0, 10**9):
        traced(executable, monkeypatch, steps)  # sets the number of steps
        monkeypatch.setattr(uncompiled._Performed, "steps", 0)
        ends.append(simulate(executable, decisions).end_ps)
    assert (ends[0] == ends[1]).all()


def test_a_run_too_long_to_count_is_refused_without_machine_code_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(LoweringError, match=r"the run takes more than [\d,]+ s"):
        traced(factorised(1 << 16, 20_000), monkeypatch, 10**9)


@pytest.mark.parametrize("is_compiled", [True, False])
def test_increments_that_move_to_the_front_are_copies(is_compiled: bool) -> None:
    tables = {
        name: empty(name, 8 if name == "increment" else 1) for name in ("semaphore", "increment")
    }
    tables["semaphore"][["room", "has_one", "sleeper"]] = 8, 1, NONE
    machine = {
        name: table.view(np.recarray) if is_compiled else uncompiled._as_records(name, table)
        for name, table in tables.items()
    }
    state = ClockState(**{**dict.fromkeys(ClockState._fields), **machine})  # type: ignore[arg-type]
    for time_ps in range(8):
        kernel.increment(state, 0, time_ps, time_ps, NONE)
    kernel.consume(state, 0, 4)
    for time_ps in range(8, 11):
        kernel.increment(state, 0, time_ps, time_ps, NONE)
    assert [int(one.seen) for one in state.increment][:7] == [*range(4, 11)]


# A machine on which nothing was compiled yet.

SMALL = "ENTRY m { p = f32[4] parameter(0) ROOT n = f32[4] negate(p) }"
MODEL = """
import sys, ncc_compiler, ncc_runtime
from ncc_runtime.progress import heard_by
from tests.listening import Heard
from ncc_runtime.execution.clock import machine_code, uncompiled
uncompiled.STEPS_IF_NOT = uncompiled.STEPS_IF_KEPT = {steps}
heard = Heard()
with heard_by(heard):
    run = ncc_runtime.load(ncc_compiler.compile_text(sys.argv[1])).run(values=False)
compiled = sum(phase.done for phase in heard.over if phase.task.startswith("compiling the clock"))
print(run.time_us, "numba" in sys.modules, machine_code.CODE.is_kept, compiled)
"""


def command(steps: int) -> list[str]:
    return [sys.executable, "-c", MODEL.format(steps=steps), SMALL]


def cold(folder: Path) -> dict[str, str]:
    """An environment whose cache is in a folder, and empty."""
    return {**os.environ, "XDG_CACHE_HOME": str(folder), "TMPDIR": str(folder)}


def test_a_small_first_run_compiles_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        command(200_000), env=cold(tmp_path), capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[1:] == ["False", "False", "0"]
    assert not list(tmp_path.rglob("kernel.o"))


@pytest.mark.slow
def test_processes_that_begin_together_compile_once(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen(command(0), env=cold(tmp_path), stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]
    outputs = [process.communicate()[0].split() for process in processes]
    assert {process.returncode for process in processes} == {0}
    assert len({time_us for time_us, *_ in outputs}) == 1
    assert {kept for _, _, kept, _ in outputs} == {"True"}
    assert sorted(int(compiled) > 0 for *_, compiled in outputs) == [False, False, False, True]
    assert all((used == "True") == (int(compiled) > 0) for _, used, _, compiled in outputs)


@pytest.mark.slow
def test_a_compiler_that_was_killed_is_in_nobodys_way(tmp_path: Path) -> None:
    first = subprocess.Popen(command(0), env=cold(tmp_path), stdout=subprocess.PIPE)
    while not list(tmp_path.rglob("compiling")):
        assert first.poll() is None
        time.sleep(0.05)
    first.kill()
    first.communicate()
    done = subprocess.run(command(0), env=cold(tmp_path), capture_output=True, text=True)
    assert done.stdout.split()[1:3] == ["True", "True"], done.stderr


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() == 0 and sys.platform != "linux", reason="root may write anywhere")
def test_without_a_folder_to_write_it_is_compiled_all_the_same(tmp_path: Path) -> None:
    nowhere = tmp_path / "file"
    nowhere.write_text("")
    environment = {**os.environ, "XDG_CACHE_HOME": str(nowhere), "TMPDIR": str(tmp_path)}
    (tmp_path / f"ncc-{os.getuid()}").write_text("")  # no folder of the user's own either
    done = subprocess.run(command(0), env=environment, capture_output=True, text=True)
    assert done.stdout.split()[1:3] == ["True", "False"], done.stderr
