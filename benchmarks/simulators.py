"""How long a ring all-reduce takes other simulators, ASTRA-sim and SimGrid's SMPI, and ours.

All are whole processes on this machine in this run, start-up included, for times only: what
somebody who types the command waits for. Seconds are those of the processor, the median of
--repeat. SMPI runs ring_for_smpi.c, one ring of 2 (n - 1) messages a rank, on a cluster of n hosts
with a link each. ASTRA-sim runs one ring on n nodes of one ring of links, by its analytical
networks without and with contention. Ours is `nccrt bench --algorithm ring` on trn2, with as many
rings as it has cycles for, so up to four times the messages. One line has it as it is, where of
alike instances one is simulated, another with one core slowed by 1 % in the first instance, so that
every rank is. Ratios are the other simulator over ours; above 1 we are faster.

Run: python benchmarks/simulators.py [--ranks 64 256 1024 4096] [--most 1024] [--repeat 3]
SimGrid comes with apt-get install libsimgrid-dev (Debian, Ubuntu) or from https://simgrid.org;
ASTRA-sim from https://astra-sim.github.io, its binaries in PATH and the Python package of Chakra,
whose traces it reads, beside this one (make test-chakra installs it, mlc-chakra of PyPI).
"""

import argparse
import json
import os
import platform
import re
import shlex
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import attrs

SOURCE = Path(__file__).with_name("ring_for_smpi.c")
NCCRT = Path(sys.executable).with_name("nccrt")

ASTRA_SIM = {
    "ASTRA-sim": "AstraSim_Analytical_Congestion_Unaware",
    "ASTRA-sim, contention": "AstraSim_Analytical_Congestion_Aware",
}

CLUSTER = """<?xml version='1.0'?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
  <cluster id="c" prefix="n" suffix="" radical="0-{last}" speed="1Gf" bw="128GBps" lat="1us"/>
</platform>
"""
"""A host a rank, each with a link of the rate of one of trn2; the latency is a hop's."""

NETWORK = "topology: [ Ring ]\nnpus_count: [ {ranks} ]\nbandwidth: [ 128.0 ]\nlatency: [ 1000.0 ]\n"
"""The same for ASTRA-sim; GB/s and ns."""

SYSTEM = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 10,
    "active-chunks-per-dimension": 1,
    "preferred-dataset-splits": 1,
    **{
        f"{name}-implementation": ["ring"]
        for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    },
    "collective-optimization": "localBWAware",
    "local-mem-bw": 1600,
    "boost-mode": 0,
}

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
    """One simulator at one number of ranks, as a whole process."""

    name: str
    predicted_us: float | None  # None: it is not read
    seconds: float
    peak_mib: float


def measured(name: str, command: Sequence[str], repeat: int, predicted: str = "") -> Timed:
    """A command run several times; what it predicts stands behind a pattern, in microseconds."""
    runs = [_used(command) for _ in range(repeat)]
    found = re.search(predicted, runs[0][0]) if predicted else None
    if predicted and not found:
        raise SystemExit(f"{shlex.join(command)} printed no time:\n{runs[0][0]}")
    return Timed(
        name,
        float(found[1].replace(",", "")) if found else None,
        statistics.median(run[1] for run in runs),
        max(run[2] for run in runs),
    )


def _used(command: Sequence[str]) -> tuple[str, float, float]:
    """What a command prints, its seconds of the processor and its MiB at most."""
    metered = [sys.executable, "-I", "-S", "-c", METER, *command]
    done = subprocess.run(metered, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{shlex.join(command)} failed:\n{done.stdout}{done.stderr}")
    *printed, used = done.stdout.splitlines()
    seconds, peak = map(float, used.split())
    unit = 1 if sys.platform == "darwin" else 1024
    return "\n".join(printed), seconds, peak * unit / 2**20


def ours(ranks: int, size_bytes: int, repeat: int, folder: Path) -> Iterator[Timed]:
    """With alike instances, and with every rank."""
    tired = folder / "tired.toml"
    tired.write_text(TIRED)
    command = [str(NCCRT), "bench", "all_reduce", "-q", "-r", str(ranks), "-b", str(size_bytes)]
    command += ["-e", str(size_bytes), "--algorithm", "ring", "--topology"]
    time_us = rf"(?m)^ *{size_bytes} +\d+ +\w+ +([\d.,]+)"
    _used([*command, "trn2"])  # may compile the clock, once on a machine
    yield measured("ours", [*command, "trn2"], repeat, time_us)
    yield measured("ours, every rank", [*command, str(tired)], repeat, time_us)


def simgrid(ranks: int, size_bytes: int, repeat: int, folder: Path) -> Iterator[Timed]:
    """SMPI's run of the ring, if it is here."""
    if not (shutil.which("smpicc") and shutil.which("smpirun")):
        return
    program, cluster, hosts = folder / "ring", folder / "cluster.xml", folder / "hosts"
    subprocess.run(["smpicc", "-O2", str(SOURCE), "-o", str(program)], check=True)
    cluster.write_text(CLUSTER.format(last=ranks - 1))
    hosts.write_text("".join(f"n{rank}\n" for rank in range(ranks)))
    command = ["smpirun", "-no-privatize", "-np", str(ranks), "-platform", str(cluster)]
    command += ["-hostfile", str(hosts), "--cfg=smpi/simulate-computation:no"]
    command += ["--log=root.thres:error", str(program), str(size_bytes)]
    timed = measured("SimGrid SMPI", command, repeat, r"simulated ([\d.]+)")
    assert timed.predicted_us is not None, "it was asked for"
    yield attrs.evolve(timed, predicted_us=timed.predicted_us * 1e6)


def astra_sim(ranks: int, size_bytes: int, repeat: int, folder: Path) -> Iterator[Timed]:
    """ASTRA-sim's analytical networks, those that are here; each rank has a trace of one node."""
    binaries = {name: shutil.which(binary) for name, binary in ASTRA_SIM.items()}
    if not any(binaries.values()):
        return
    try:
        from chakra.schema.protobuf import et_def_pb2 as chakra
        from google.protobuf.internal.encoder import _VarintBytes as varint
    except ImportError:
        print("ASTRA-sim is here, but Chakra's Python package, which makes its traces, is not")
        return

    def message(content: bytes) -> bytes:
        return bytes(varint(len(content))) + content

    node = chakra.Node(id=1, name="all_reduce", type=chakra.COMM_COLL_NODE)
    node.attr.append(chakra.AttributeProto(name="is_cpu_op", bool_val=False))
    node.attr.append(chakra.AttributeProto(name="comm_type", int64_val=chakra.ALL_REDUCE))
    node.attr.append(chakra.AttributeProto(name="comm_size", int64_val=size_bytes))
    head = chakra.GlobalMetadata(version="0.0.4").SerializeToString()
    trace = message(head) + message(node.SerializeToString())
    for rank in range(ranks):
        (folder / f"ring.{rank}.et").write_bytes(trace)
    (folder / "system.json").write_text(json.dumps(SYSTEM))
    (folder / "network.yml").write_text(NETWORK.format(ranks=ranks))
    (folder / "memory.json").write_text('{"memory-type": "NO_MEMORY_EXPANSION"}')
    for name, binary in binaries.items():
        if binary is not None:
            yield measured(
                name,
                [
                    binary,
                    f"--workload-configuration={folder / 'ring'}",
                    f"--system-configuration={folder / 'system.json'}",
                    f"--network-configuration={folder / 'network.yml'}",
                    f"--remote-memory-configuration={folder / 'memory.json'}",
                ],
                repeat,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, nargs="*", default=[64, 256, 1024, 4096])
    parser.add_argument("--most", type=int, default=1024, help="ranks of other simulators")
    parser.add_argument("--size-bytes", type=int, default=1 << 20)
    parser.add_argument("--repeat", type=int, default=3)
    arguments = parser.parse_args()
    print(
        f"{time.strftime('%Y-%m-%d')} {platform.machine()}, {os.cpu_count()} processors, ring "
        f"all-reduce of {arguments.size_bytes:,} bytes; whole processes, seconds of the processor"
    )
    print(f"{'ranks':>6} {'':22}{'time us':>12}{'seconds':>10}{'peak MiB':>10}")
    with tempfile.TemporaryDirectory() as name:
        for ranks in arguments.ranks:
            what = ranks, arguments.size_bytes, arguments.repeat, Path(name)
            mine = [*ours(*what)]
            others = [*astra_sim(*what), *simgrid(*what)] if ranks <= arguments.most else []
            for one in (*mine, *others):
                predicted = "" if one.predicted_us is None else f"{one.predicted_us:,.1f}"
                line = f"{ranks:6} {one.name:22}{predicted:>12}{one.seconds:10.2f}"
                print(f"{line}{one.peak_mib:10.0f}", flush=True)
            for other in others:
                for one in mine:
                    time_ratio, memory_ratio = (
                        other.seconds / one.seconds,
                        other.peak_mib / one.peak_mib,
                    )
                    print(
                        f"{'':6} {other.name} / {one.name}: {time_ratio:.2f}, memory "
                        f"{memory_ratio:.2f}"
                    )


if __name__ == "__main__":
    main()
