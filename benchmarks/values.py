"""What values take: whole commands from a program's text to its outputs, ours beside XLA's.

XLA runs the same partitioned HLO text on as many virtual CPU devices of one process: no placement,
no descriptors, no proofs. Ours are `nccc compile` and `nccrt run`, with all proofs and without the
clock. Each side goes from its first import to the outputs on disk, in processes of its own; they
alternate. Prints the medians of wall time and of processor time, the peak memory, and ours over
XLA's. Both must give the same values.

Run: python benchmarks/values.py [PROGRAM ...] [--repeat 5] [--threads 2]     # needs the extra jax
A program is an all-reduce as 8x16MiB (ranks x buffer of each), or an HLO file that has its inputs
beside it as .in.npz.
"""

import argparse
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import attrs
import numpy as np
from simulators import METER

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # the peer is the oracle of the tests

from tests.oracle import arrays  # noqa: E402
from tests.oracle.children import environment  # noqa: E402
from tests.oracle.xla import FLAGS  # noqa: E402

BIN = Path(sys.executable).parent

PROGRAMS = ("8x1MiB", "8x16MiB", "8x64MiB", "32x16MiB", "tests/data/hlo/mlp_train_dp2_tp4.hlo")

ALL_REDUCE = """HloModule all_reduce, replica_count={ranks}

add {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }}

ENTRY main {{
  x = f32[{elements}] parameter(0)
  ROOT y = f32[{elements}] all-reduce(x), replica_groups={{}}, to_apply=add
}}
"""

BY_XLA = (
    "import sys; from pathlib import Path; from tests.oracle.xla_server import run;"
    "run(Path(sys.argv[1]))"
)
"""The peer's whole job: what the oracle of the tests does with one folder."""


@attrs.frozen
class Used:
    """What commands took together."""

    wall_s: float
    processor_s: float
    peak_mib: float


def used(*commands: list[str], flags: str = "") -> Used:
    """Run commands one after the other, with XLA's flags for a peer; SystemExit if one fails."""
    wall_s = processor_s = peak_mib = 0.0
    for command in commands:
        start = time.perf_counter()
        metered = [sys.executable, "-I", "-S", "-c", METER, *command]
        done = subprocess.run(
            metered, capture_output=True, text=True, check=False, cwd=ROOT, env=environment(flags)
        )
        wall_s += time.perf_counter() - start
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        seconds, peak = map(float, done.stdout.splitlines()[-1].split())
        processor_s += seconds
        peak_mib = max(peak_mib, peak / 1024)
    return Used(wall_s, processor_s, peak_mib)


def program_in(name: str, folder: Path) -> list[np.ndarray]:
    """Write the HLO text of a program into a folder, as model.hlo; its inputs."""
    model = folder / "model.hlo"
    sizes = re.fullmatch(r"(\d+)x(\d+)([KM])iB", name)
    if not sizes:
        model.write_text((ROOT / name).read_text())
        with np.load((ROOT / name).with_suffix(".in.npz")) as file:
            return [file[f"arg{k}"] for k in range(len(file.files))]
    ranks, size_bytes = int(sizes[1]), int(sizes[2]) * {"K": 1 << 10, "M": 1 << 20}[sizes[3]]
    model.write_text(ALL_REDUCE.format(ranks=ranks, elements=size_bytes // 4))
    # small whole numbers: sums are the same in any order
    array = np.random.default_rng(0).integers(-9, 9, (ranks, size_bytes // 4))
    return [array.astype(np.float32)]


def compared(name: str, repeat: int, threads: int) -> str:
    """A line of the table."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        inputs = program_in(name, folder)
        arrays.save(folder / "in.npz", arrays.numbered("in", inputs))  # where XLA's side looks
        np.savez(folder / "arg.npz", **{f"arg{k}": array for k, array in enumerate(inputs)})
        neff, mine = folder / "m.neff", folder / "ours.npz"
        compile_it = [str(BIN / "nccc"), "compile", str(folder / "model.hlo"), "-o", str(neff)]
        run_it = [str(BIN / "nccrt"), "run", str(neff), "--no-clock", "--threads", str(threads)]
        run_it += ["--inputs", str(folder / "arg.npz"), "--outputs", str(mine)]
        peer = [sys.executable, "-c", BY_XLA, str(folder)]
        flags = FLAGS.replace("count=16", f"count={len(inputs[0])}")
        ours: list[Used] = []
        xla: list[Used] = []
        for _ in range(repeat):
            ours.append(used(compile_it, run_it))
            xla.append(used(peer, flags=flags))
        with np.load(mine) as outputs:
            for number, theirs in enumerate(arrays.load(folder / "out.npz").values()):
                np.testing.assert_allclose(outputs[f"out{number}"], theirs, rtol=1e-4, atol=1e-5)

    def median(runs: list[Used], field: str) -> float:
        return statistics.median(getattr(run, field) for run in runs)

    cells = [name]
    for field in ("wall_s", "processor_s", "peak_mib"):
        first, second = median(ours, field), median(xla, field)
        cells += [f"{first:.2f}", f"{second:.2f}", f"{first / second:.2f}"]
    return f"{cells[0]:<40}" + "".join(f"{cell:>10}" for cell in cells[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", default=PROGRAMS)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')} {platform.machine()}, Python {platform.python_version()}")
    heads = [one for name in ("wall s", "CPU s", "MiB") for one in (name, "XLA", "ratio")]
    print(f"{'':40}" + "".join(f"{head:>10}" for head in heads))
    for name in arguments.programs:
        print(compared(name, arguments.repeat, arguments.threads), flush=True)


if __name__ == "__main__":
    main()
