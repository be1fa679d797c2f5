"""Memory and time of a 64-rank step in 1, 2 and 4 processes of one host.

The step is that of a model of matrices, eight ranks to a tensor-parallel group and eight to a
data-parallel one, whose weights are different on every rank, so that no rank's memory stands for
another's: about 2.3 GiB. Each run is `nccrt run --outputs FOLDER/` under `mpirun`, with one thread
a process. Prints for each number of processes the resident memory at the height of each process
(getrusage), its share, and times. The share is what a process holds before it has values (imports,
the program, proofs), and its part of the values that one process takes. Exit code 1 if a process
takes more than 1.2 of its share, or if outputs differ.

Then the same under a limit of each process's address space (`ulimit -v`) that is too small for all
values and large enough for a quarter: one process must refuse it, four must run.

Takes about two minutes on two cores, and 5 GiB of a disk.

Run: python benchmarks/processes.py [--layers 4] [--processes 1,2,4]
"""

import argparse
import hashlib
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

RANKS, ROWS = 64, 32

MOST = 1.2
"""Of its share."""


def text_of(layers: int, size: int = 1024) -> str:
    """The step as HLO text: forward, gradients and updated weights of each layer."""
    tensor = ",".join(f"{{{','.join(str(8 * k + i) for i in range(8))}}}" for k in range(8))
    data = ",".join(f"{{{','.join(str(k + 8 * i) for i in range(8))}}}" for k in range(8))
    x, w = f"f32[{ROWS},{size}]", f"f32[{size},{size}]"
    groups = "use_global_device_ids=true, to_apply=sum"
    lines = [f"x0 = {x} parameter(0)", "rate = f32[] constant(0.001)"]
    lines.append(f"rates = {w} broadcast(rate), dimensions={{}}")
    for k in range(layers):
        lines += [
            f"w{k} = {w} parameter({k + 1})",
            f"p{k} = {x} dot(x{k}, w{k}), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}",
            f"y{k} = {x} all-reduce(p{k}), channel_id={2 * k + 1}, replica_groups={{{tensor}}}, "
            f"{groups}",
            f"x{k + 1} = {x} tanh(y{k})",
            f"g{k} = {w} dot(x{k}, x{k + 1}), lhs_contracting_dims={{0}}, "
            "rhs_contracting_dims={0}",
            f"s{k} = {w} all-reduce(g{k}), channel_id={2 * k + 2}, replica_groups={{{data}}}, "
            f"{groups}",
            f"d{k} = {w} multiply(s{k}, rates)",
            f"n{k} = {w} subtract(w{k}, d{k})",
        ]
    results = ", ".join(f"n{k}" for k in range(layers))
    lines.append(f"ROOT r = ({', '.join([w] * layers)}) tuple({results})")
    reducer = "sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }"
    body = "\n  ".join(lines)
    return f"HloModule step, num_partitions={RANKS}\n{reducer}\nENTRY main {{\n  {body}\n}}\n"


def child(neff: str, folder: str, limit: int) -> int:
    """One process of a run: the command, and what it took, on standard error."""
    if limit:
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    from ncc_runtime import processes
    from ncc_runtime.cli import main
    from ncc_runtime.execution.values.device_memory import DeviceMemory

    base = addresses = 0
    load = DeviceMemory.load

    def noting(self: DeviceMemory, *arguments: object, **settings: object) -> None:
        nonlocal base, addresses
        base = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        load(self, *arguments, **settings)  # type: ignore[arg-type]

    DeviceMemory.load = noting  # type: ignore[method-assign]
    place = ["--topology", "trn2", "--seed", "0", "--threads", "1", "--no-clock", "-q", "--json"]
    code = main(["run", neff, *place, "--outputs", f"{folder}/"])
    if code:
        return code
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    addresses = int(status["VmPeak"].split()[0]) << 10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    every = processes.started().gather((base, peak, addresses))
    if processes.started().number == 0:
        print("took", json.dumps(every), file=sys.stderr)
    return 0


def launch(
    count: int, neff: Path, folder: Path, limit: int = 0
) -> tuple[subprocess.CompletedProcess[str], float]:
    """A run in so many processes, and seconds."""
    environment = {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }
    words = [sys.executable, __file__, "--child", str(neff), str(folder), "--limit", str(limit)]
    if count > 1:
        words = ["mpirun", "--oversubscribe", "-n", str(count), *words]
    started = time.monotonic()
    done = subprocess.run(words, capture_output=True, text=True, env=environment, check=False)
    return done, time.monotonic() - started


def took(done: subprocess.CompletedProcess[str]) -> Sequence[tuple[int, int, int]]:
    """Of each process: bytes before it had values, at the height, and of addresses."""
    lines = [line for line in done.stderr.splitlines() if line.startswith("took ")]
    if done.returncode or not lines:
        sys.exit(f"exit code {done.returncode}: {done.stdout}{done.stderr}")
    return [tuple(one) for one in json.loads(lines[0].removeprefix("took "))]


def digest(folder: Path) -> str:
    """Of all outputs, as one process would read them."""
    from ncc_runtime.sharded_arrays import open_sharded

    found = hashlib.sha256()
    with open_sharded(str(folder)) as arrays:
        for name in sorted(arrays):
            for rank in range(RANKS):
                found.update(arrays[name].rows(rank, rank + 1).tobytes())
    return found.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--processes", default="1,2,4")
    parser.add_argument("--child", nargs=2)
    parser.add_argument("--limit", type=int, default=0)
    words = parser.parse_args()
    if words.child:
        return child(*words.child, words.limit)
    import ncc_compiler

    mib = 1 << 20
    is_kept = True
    with tempfile.TemporaryDirectory() as place:
        neff = Path(place) / "step.neff"
        neff.write_bytes(ncc_compiler.compile_text(text_of(words.layers)).data)
        outputs, values, addresses = set(), 0, {}
        print("processes  seconds  MiB at the height, of each  share  of it")
        for count in map(int, words.processes.split(",")):
            folder = Path(place) / "outputs"
            done, seconds = launch(count, neff, folder)
            every = took(done)
            outputs.add(digest(folder))
            base, peak = (max(one[k] for one in every) for k in (0, 1))
            addresses[count] = max(one[2] for one in every)
            if count == 1:
                values = peak - base
            share = base + values // count
            heights = " ".join(str(one[1] // mib) for one in every)
            print(f"{count:9}  {seconds:7.1f}  {heights:26}  {share // mib:5}  {peak / share:.2f}")
            is_kept &= peak <= MOST * share
        print(f"outputs {'are the same' if len(outputs) == 1 else 'differ'}")
        if 1 in addresses and 4 in addresses:
            limit = (addresses[1] + addresses[4]) // 2
            print(f"with ulimit -v {limit >> 10}, {limit // mib} MiB:")
            refused, _ = launch(1, neff, Path(place) / "refused", limit)
            words_of_it = json.loads(refused.stdout)["errors"][0]["message"]
            print(f"  1 process: exit code {refused.returncode}, {words_of_it}")
            done, seconds = launch(4, neff, folder, limit)
            took(done)
            outputs.add(digest(folder))
            print(f"  4 processes: exit code {done.returncode}, {seconds:.1f} s")
            is_kept &= refused.returncode == 1
    return 0 if is_kept and len(outputs) == 1 else 1


if __name__ == "__main__":
    sys.exit(main())
