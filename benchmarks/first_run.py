"""What the first command on a machine takes, when nothing has been compiled there yet.

Runs `nccrt run` of a small program, and of one that has more steps than the clock performs without
machine code, each in a process of its own: with an empty cache, a second time with what the first
one left there, and with an empty cache where Python finds no bytecode either. Prints wall and
processor time, least of several. Then what a step of the clock takes without machine code.

Run: python benchmarks/first_run.py [--runs 3]
"""

import argparse
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import ncc_compiler
import ncc_runtime
from ncc_runtime.execution.clock import uncompiled
from ncc_runtime.execution.clock.clock import simulate
from ncc_runtime.execution.control_flow import PlannedDecisions

ROOT = Path(__file__).parents[1]
NCCRT = Path(sys.executable).with_name("nccrt")
SMALL = ROOT / "tests" / "data" / "hlo" / "mlp_train_dp2_tp4.hlo"
LARGE = ROOT / "tests" / "data" / "hlo" / "llama_4l_64ranks.hlo"


def whole(neff: Path, cache: str, bytecode: str | None) -> tuple[float, float]:
    """Seconds of one command, of the wall clock and of the processor."""
    environment = {**os.environ, "XDG_CACHE_HOME": cache}
    if bytecode is not None:
        environment["PYTHONPYCACHEPREFIX"] = bytecode
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(
        [str(NCCRT), "run", str(neff), "--no-values", "--no-verify"],
        env=environment,
        check=True,
        capture_output=True,
    )
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def first_and_second(neff: Path, *, has_bytecode: bool) -> tuple[tuple[float, float], ...]:
    with tempfile.TemporaryDirectory() as cache, tempfile.TemporaryDirectory() as bytecode:
        found = whole(neff, cache, None if has_bytecode else bytecode)
        return found, whole(neff, cache, None)


def step_us(neff: Path) -> float:
    """Microseconds of a step of the clock without machine code, all that is done once with it."""
    uncompiled.STEPS_IF_KEPT = uncompiled.STEPS_IF_NOT = 1 << 62
    executable = ncc_runtime.load(str(neff)).executable
    simulate(executable, PlannedDecisions(executable, {}))
    before, start = uncompiled._Performed.steps, time.process_time()
    simulate(executable, PlannedDecisions(executable, {}))
    seconds = time.process_time() - start
    return 1e6 * seconds / (uncompiled._Performed.steps - before)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    runs = parser.parse_args().runs
    print(f"Python {platform.python_version()}, {os.cpu_count()} processors; seconds: wall, CPU")
    with tempfile.TemporaryDirectory() as folder:
        for model in (SMALL, LARGE):
            neff = Path(folder) / f"{model.stem}.neff"
            ncc_compiler.compile_file(model).save(neff)
            times = [first_and_second(neff, has_bytecode=True) for _ in range(runs)]
            bare = [first_and_second(neff, has_bytecode=False)[0] for _ in range(runs)]
            for name, column in (
                ("empty cache", [first for first, _ in times]),
                ("again", [second for _, second in times]),
                ("empty cache, no bytecode", bare),
            ):
                wall, busy = (min(figures) for figures in zip(*column, strict=True))
                print(f"{model.stem:<20} {name:<26} {wall:6.2f} {busy:6.2f}")
        small = Path(folder) / f"{SMALL.stem}.neff"
        print(f"a step without machine code: {step_us(small):.1f} us")


if __name__ == "__main__":
    main()
