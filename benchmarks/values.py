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
import os
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
BIN = Path(sys.executable).parent

PROGRAMS = ("8x1MiB", "8x16MiB", "8x64MiB", "32x16MiB", "tests/data/hlo/mlp_train_dp2_tp4.hlo")

ALL_REDUCE = """HloModule all_reduce, replica_count={ranks}

add {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }}

ENTRY main {{
  x = f32[{elements}] parameter(0)
  ROOT y = f32[{elements}] all-reduce(x), replica_groups={{}}, to_apply=add
}}
"""

NOT_PARTITIONED_AGAIN = (
    "--xla_disable_hlo_passes=spmd-partitioning,sharding-propagation,shardy-xla,sharding-remover"
)


def run_by_xla(model: Path, given: Path, target: Path) -> None:
    """The peer's whole job, in this process; jax is imported here only."""
    text = model.read_text()
    world = [_header_number(text, key) for key in ("replica_count", "num_partitions")]
    ranks = world[0] * world[1]
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = (
        f"--xla_force_host_platform_device_count={ranks} {NOT_PARTITIONED_AGAIN}"
    )
    import jax
    from jax._src import compiler
    from jax.extend import backend
    from jax.sharding import Mesh, NamedSharding, PartitionSpec
    from jaxlib import _hlo, _jax, xla_client

    cpu = backend.get_backend("cpu")
    devices = cpu.devices()[:ranks]
    read = _hlo.hlo_module_from_text(text).as_serialized_hlo_module_proto()
    options = compiler.get_compile_options(
        num_replicas=world[0],
        num_partitions=world[1],
        device_assignment=np.arange(ranks).reshape(world),
    )
    program = cpu.compile_and_load(
        _jax.mlir.hlo_to_stablehlo(read), xla_client.DeviceList(tuple(devices)), options
    )
    everywhere = NamedSharding(Mesh(np.array(devices), ("rank",)), PartitionSpec())
    with np.load(given) as arrays:
        inputs = [
            jax.make_array_from_single_device_arrays(
                array.shape[1:],
                everywhere,
                [jax.device_put(part, device) for part, device in zip(array, devices, strict=True)],
            )
            for array in (arrays[f"arg{k}"] for k in range(len(arrays)))
        ]
    results = program.execute_sharded(inputs).disassemble_into_single_device_arrays()
    outputs = [np.stack([np.asarray(part) for part in result]) for result in results]
    np.savez(target, **{f"out{k}": output for k, output in enumerate(outputs)})


def _header_number(text: str, key: str) -> int:
    found = re.search(rf"\b{key}=(\d+)", text.partition("\n")[0])
    return int(found[1]) if found else 1


@attrs.frozen
class Used:
    """What commands took together."""

    wall_s: float
    processor_s: float
    peak_mib: float


def used(*commands: list[str]) -> Used:
    """Run commands one after the other; SystemExit with what one printed if it fails."""
    wall_s = processor_s = peak_mib = 0.0
    for command in commands:
        start = time.perf_counter()
        metered = [sys.executable, "-I", "-S", "-c", METER, *command]
        done = subprocess.run(metered, capture_output=True, text=True, check=False, cwd=ROOT)
        wall_s += time.perf_counter() - start
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        seconds, peak = map(float, done.stdout.splitlines()[-1].split())
        processor_s += seconds
        peak_mib = max(peak_mib, peak / 1024)
    return Used(wall_s, processor_s, peak_mib)


def program_in(name: str, folder: Path) -> tuple[Path, Path]:
    """The HLO text of a program and its inputs."""
    sizes = re.fullmatch(r"(\d+)x(\d+)([KM])iB", name)
    if not sizes:
        model = ROOT / name
        return model, model.with_suffix(".in.npz")
    ranks, size_bytes = int(sizes[1]), int(sizes[2]) * {"K": 1 << 10, "M": 1 << 20}[sizes[3]]
    model, given = folder / "all_reduce.hlo", folder / "in.npz"
    model.write_text(ALL_REDUCE.format(ranks=ranks, elements=size_bytes // 4))
    # small whole numbers: sums are the same in any order
    array = np.random.default_rng(0).integers(-9, 9, (ranks, size_bytes // 4))
    np.savez(given, arg0=array.astype(np.float32))
    return model, given


def compared(name: str, repeat: int, threads: int) -> str:
    """A line of the table."""
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        model, given = program_in(name, folder)
        neff, mine, theirs = folder / "m.neff", folder / "ours.npz", folder / "xla.npz"
        compile_it = [str(BIN / "nccc"), "compile", str(model), "-o", str(neff)]
        run_it = [str(BIN / "nccrt"), "run", str(neff), "--no-clock", "--threads", str(threads)]
        run_it += ["--inputs", str(given), "--outputs", str(mine)]
        peer = [sys.executable, __file__, "--by-xla", str(model), str(given), str(theirs)]
        ours: list[Used] = []
        xla: list[Used] = []
        for _ in range(repeat):
            ours.append(used(compile_it, run_it))
            xla.append(used(peer))
        _check_equal(mine, theirs)

    def median(runs: list[Used], field: str) -> float:
        return statistics.median(getattr(run, field) for run in runs)

    cells = [name]
    for field in ("wall_s", "processor_s", "peak_mib"):
        first, second = median(ours, field), median(xla, field)
        cells += [f"{first:.2f}", f"{second:.2f}", f"{first / second:.2f}"]
    return f"{cells[0]:<40}" + "".join(f"{cell:>10}" for cell in cells[1:])


def _check_equal(mine: Path, theirs: Path) -> None:
    with np.load(mine) as first, np.load(theirs) as second:
        for ours, peers in zip(first.values(), second.values(), strict=True):
            np.testing.assert_allclose(ours, peers, rtol=1e-4, atol=1e-5)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*", default=PROGRAMS)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--by-xla", nargs=3, type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.by_xla:
        run_by_xla(*arguments.by_xla)
        return
    print(f"{time.strftime('%Y-%m-%d')} {platform.machine()}, Python {platform.python_version()}")
    print(
        f"{'':40}{'wall s':>10}{'XLA':>10}{'ratio':>10}{'CPU s':>10}{'XLA':>10}{'ratio':>10}",
        end="",
    )
    print(f"{'MiB':>10}{'XLA':>10}{'ratio':>10}")
    for name in arguments.programs:
        print(compared(name, arguments.repeat, arguments.threads), flush=True)


if __name__ == "__main__":
    main()
