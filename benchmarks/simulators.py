"""How long a ring all-reduce takes another simulator, SimGrid's SMPI, and how long it takes ours.

Both on this machine in this run, with contention, for times only; seconds are those of the
processor, each in a process of its own, the least of --repeat. SMPI runs ring_for_smpi.c, one ring
of 2 (n - 1) messages a rank, on a cluster of n hosts with a link each; its seconds are those of the
whole command. Ours has four rings on as many cycles of trn2, so that it moves four times as many
messages. One line has it as it is, where of alike instances one is simulated, another with
one core slowed by 1 % in the first instance, so that every rank is. Ratios are SimGrid over ours.

Run: python benchmarks/simulators.py [--ranks 64 256 1024] [--size-bytes N] [--repeat 1]
SimGrid comes with apt-get install libsimgrid-dev (Debian, Ubuntu) or from https://simgrid.org.
"""

import argparse
import multiprocessing
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import attrs
from clock import Case, Measured, measure

SOURCE = Path(__file__).with_name("ring_for_smpi.c")

ABSENT = "SimGrid is not here, ours alone is timed: apt-get install libsimgrid-dev, or simgrid.org"

CLUSTER = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="c" prefix="n" suffix="" radical="0-{last}" speed="1Gf" bw="128GBps" lat="1us"/>
</platform>
"""
"""A host a rank, each with a link of the rate of one of trn2; the latency is a hop's."""

TIRED = """name = "tired"
base = "trn2.48xlarge"

[[core]]
node = 0
chip = 0
core = 0
dma_percent = 99
source = "assumed"
"""
"""No two instances are alike."""


METER = (
    "import resource, subprocess, sys; done = subprocess.run(sys.argv[1:]);"
    "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
    "print(used.ru_utime + used.ru_stime, used.ru_maxrss); sys.exit(done.returncode)"
)
"""Runs a command from a small process: a child's peak memory begins at that of its parent."""


@attrs.frozen
class Timed:
    """One simulator at one number of ranks."""

    name: str
    messages: int
    predicted_us: float
    clock_s: float  # SimGrid does not tell its parts: the same as whole_s
    whole_s: float
    peak_mib: float


def ours(name: str, case: Case, repeat: int) -> Timed:
    runs: list[Measured] = []
    for _ in range(repeat):
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            runs.append(pool.apply(measure, (case,)))
    best = min(runs, key=lambda one: one.clock_s)
    whole_s = min(one.fill_s + one.clock_s + one.report_s for one in runs)
    return Timed(
        name, best.messages, best.predicted_us, best.clock_s, whole_s, max(o.peak_mib for o in runs)
    )


def simgrid(ranks: int, size_bytes: int, repeat: int, folder: Path) -> Timed:
    """SMPI's run of the ring; SystemExit with what it printed if it fails."""
    program, cluster, hosts = folder / "ring", folder / "cluster.xml", folder / "hosts"
    subprocess.run(["smpicc", "-O2", str(SOURCE), "-o", str(program)], check=True)
    cluster.write_text(CLUSTER.format(last=ranks - 1))
    hosts.write_text("".join(f"n{rank}\n" for rank in range(ranks)))
    command = ["smpirun", "-no-privatize", "-np", str(ranks), "-platform", str(cluster)]
    command += ["-hostfile", str(hosts), "--cfg=smpi/simulate-computation:no"]
    command += ["--log=root.thres:error", str(program), str(size_bytes)]
    runs = [_used(command) for _ in range(repeat)]
    found = re.search(r"simulated ([\d.]+)", runs[0][0])
    if not found:
        raise SystemExit(f"{shlex.join(command)} printed no time:\n{runs[0][0]}")
    messages = 2 * (ranks - 1) * ranks
    seconds, peak_mib = min(one[1] for one in runs), max(one[2] for one in runs)
    return Timed("SimGrid SMPI", messages, float(found[1]) * 1e6, seconds, seconds, peak_mib)


def _used(command: list[str]) -> tuple[str, float, float]:
    """What a command prints, its seconds of the processor and its MiB at most."""
    metered = [sys.executable, "-I", "-S", "-c", METER, *command]
    done = subprocess.run(metered, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
    *printed, used = done.stdout.splitlines()
    seconds, peak = map(float, used.split())
    unit = 1 if sys.platform == "darwin" else 1024
    return "\n".join(printed), seconds, peak * unit / 2**20


def version() -> str | None:
    """SimGrid's, or None if it is not here."""
    if not (shutil.which("smpicc") and shutil.which("smpirun")):
        return None
    shown = subprocess.run(["smpirun", "-version"], capture_output=True, text=True, check=False)
    found = re.search(r"\d+\.[\d.]*\d", shown.stdout)
    return found[0] if found else "of an unknown version"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[64, 256, 1024])
    parser.add_argument("--size-bytes", type=int, default=1 << 20)
    parser.add_argument("--repeat", type=int, default=1)
    arguments = parser.parse_args()
    size_bytes, repeat = arguments.size_bytes, arguments.repeat
    peer = version()
    print(
        f"{time.strftime('%Y-%m-%d')} {platform.machine()}, ring all-reduce of {size_bytes:,} bytes"
    )
    print(f"SimGrid {peer}" if peer else ABSENT)
    print(
        f"{'ranks':>6} {'':22}{'messages':>12}{'time us':>12}{'clock s':>10}{'whole s':>10}"
        f"{'messages/s':>13}{'peak MiB':>10}"
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tired.toml").write_text(TIRED)
        for ranks in arguments.ranks:
            case = Case("", ranks=ranks, size_bytes=size_bytes, algorithm="ring")
            tired = attrs.evolve(case, topology=str(folder / "tired.toml"))
            mine = [ours("ours", case, repeat), ours("ours, every rank", tired, repeat)]
            for one in mine:
                print_line(ranks, one)
            if peer:
                theirs = simgrid(ranks, size_bytes, repeat, folder)
                print_line(ranks, theirs)
                for one in mine:
                    print_ratios(one, theirs)


def print_line(ranks: int, one: Timed) -> None:
    print(
        f"{ranks:6} {one.name:22}{one.messages:12,}{one.predicted_us:12,.1f}{one.clock_s:10.2f}"
        f"{one.whole_s:10.2f}{one.messages / one.clock_s:13,.0f}{one.peak_mib:10.0f}",
        flush=True,
    )


def print_ratios(one: Timed, theirs: Timed) -> None:
    """SimGrid's time over ours; above 1 we are faster."""
    rate, their_rate = one.messages / one.clock_s, theirs.messages / theirs.clock_s
    print(
        f"{'':6} SimGrid / {one.name}: clock {theirs.clock_s / one.clock_s:.1f}, whole"
        f" {theirs.whole_s / one.whole_s:.1f}, a message {rate / their_rate:.1f}, memory"
        f" {theirs.peak_mib / one.peak_mib:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    main()
