"""How long the shortest commands take, as whole processes: what start-up costs.

Each command runs in a process of its own, in turn with the others, beside an empty Python and one
that imports numpy: less than that no command of ours can take. Prints medians of wall time and of
processor time. All is warm: bytecode, the parser's tables, methods of records and the clock's
machine code are there, as in every run on a machine but the first (benchmarks/first_run.py).

Run: python benchmarks/start_up.py [--runs 15]
"""

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

MODEL = Path(__file__).parents[1] / "ir_examples" / "distributed_mean.ir"
NCCC, NCCRT = (str(Path(sys.executable).with_name(name)) for name in ("nccc", "nccrt"))


def commands(neff: str) -> dict[str, list[str]]:
    """What is timed, by what it is called."""
    bench = [NCCRT, "bench", "all_reduce", "-b", "1MB", "-e", "1MB", "--topology", "trn2", "-r"]
    return {
        "python -c pass": [sys.executable, "-c", "pass"],
        "python -c 'import numpy'": [sys.executable, "-c", "import numpy"],
        "nccc --help": [NCCC, "--help"],
        "nccc compile, the smallest example": [NCCC, "compile", str(MODEL), "-o", neff],
        "nccrt --help": [NCCRT, "--help"],
        "nccrt run of it, with values": [NCCRT, "run", neff, "--topology", "trn2", "--seed", "0"],
        "nccrt run of it, for times": [NCCRT, "run", neff, "--topology", "trn2", "--no-values"],
        "nccrt bench, 2 ranks": [*bench, "2"],
        "nccrt bench, 64 ranks, ring": [*bench, "64", "--algorithm", "ring"],
    }


def timed(command: Sequence[str]) -> tuple[float, float]:
    """Seconds of a process, of the wall clock and of the processor."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=15)
    runs = parser.parse_args().runs
    with tempfile.TemporaryDirectory() as folder:
        every = commands(str(Path(folder) / "m.neff"))
        rows = [{name: timed(command) for name, command in every.items()} for _ in range(runs + 1)]
    print(f"Python {platform.python_version()}, {os.cpu_count()} processors; seconds: wall, CPU")
    for name in every:
        wall, busy = zip(*(row[name] for row in rows[1:]), strict=True)  # the first fills caches
        print(f"{name:<36}{statistics.median(wall):>7.3f}{statistics.median(busy):>7.3f}")


if __name__ == "__main__":
    main()
