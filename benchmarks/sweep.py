"""A sweep of 1,000 points of `bench`: one process beside two, wall and processor time.

The points are of four collectives, 25 sizes, 4 to 64 ranks of trn1 and trn2, drawn at random. Each
run is a command of its own with a file of results of its own, in turn; the rows must be equal. Wall
time says something on an idle machine only. Processor time, of all processes, says everywhere how
much two do beside the points: they can be at most twice as fast as one, divided by what they take
more.

    python benchmarks/sweep.py [--repeats N] [--points N]
"""

import argparse
import csv
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SWEEP = """[[grid]]
op = ["all_reduce", "all_gather", "reduce_scatter", "alltoall"]
ranks = [4, 8, 16, 32, 64]
size = { from = "1KB", to = "16GB", factor = 2 }
topology = ["trn1", "trn2"]
"""
COMMAND = [
    sys.executable,
    "-c",
    "import sys; from ncc_runtime.entry import main; sys.exit(main())",
    "sweep",
    "points.toml",
    "-q",
]


def measured(folder: Path, processes: int, name: str) -> tuple[float, float, list[list[str]]]:
    """Wall and processor seconds of a sweep, and its rows."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began_s = time.perf_counter()
    outputs = ["--out", f"{name}.jsonl", "--csv", f"{name}.csv"]
    subprocess.run(
        [*COMMAND, "-j", str(processes), *outputs],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    wall_s = time.perf_counter() - began_s
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu_s = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    with (folder / f"{name}.csv").open() as file:
        return wall_s, cpu_s, list(csv.reader(file))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--points", type=int, default=1000)
    options = parser.parse_args()
    wall: dict[int, list[float]] = {1: [], 2: []}
    cpu: dict[int, list[float]] = {1: [], 2: []}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder)
        sample = f"[sample]\npoints = {options.points}\n"
        (path / "points.toml").write_text(SWEEP + sample)
        tables = []
        for repeat in range(options.repeats):
            for processes in (1, 2):
                wall_s, cpu_s, rows = measured(path, processes, f"{processes}-{repeat}")
                wall[processes].append(wall_s)
                cpu[processes].append(cpu_s)
                tables.append(rows)
        assert all(rows == tables[0] for rows in tables), "rows differ"
    print(f"{len(tables[0]) - 1} points, median of {options.repeats}, equal rows")
    print("processes    wall s    processor s    ms of a processor for a point")
    for processes in (1, 2):
        wall_s, cpu_s = statistics.median(wall[processes]), statistics.median(cpu[processes])
        print(f"{processes:9}{wall_s:10.1f}{cpu_s:15.1f}{1e3 * cpu_s / (len(tables[0]) - 1):33.1f}")
    ratio = statistics.median(one / two for one, two in zip(wall[1], wall[2], strict=True))
    most = 2 * statistics.median(one / two for one, two in zip(cpu[1], cpu[2], strict=True))
    print(f"two are {ratio:.2f} times as fast as one; by their processor time {most:.2f} at most")


if __name__ == "__main__":
    main()
