"""What values take, beside JAX's virtual CPU devices and a loop written by hand with numpy.

Runs again and again in one process, the three sides in turn: `Model.run` of one collective that is
compiled, placed and proved, without the clock; the same of a function that JAX has compiled, on
arrays that lie on its devices; and a loop over blocks that stay in cache, into an array that is
there. Prints the medians in microseconds, and ours over each of theirs. All must agree.

With `--whole`, whole commands instead, each from its first import to the outputs on disk, in
processes of its own: `nccc compile` and `nccrt run`, with all proofs and without the clock, beside
XLA running the same partitioned HLO text. Prints the medians of wall time and of processor time,
the peak memory, and ours over XLA's.

Run: python benchmarks/values.py [PROGRAM ...] [--repeat 9] [--threads 2]     # needs the extra jax
A program is a collective on the buffer of each rank, as 8x16MiB (ranks x the larger side); with
--whole an all-reduce, or an HLO file that has its inputs beside it as .in.npz.
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
from collections.abc import Callable
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

WHOLE = ("8x1MiB", "8x16MiB", "8x64MiB", "32x16MiB", "tests/data/hlo/mlp_train_dp2_tp4.hlo")
STEADY = ("8x4KiB", "8x1MiB", "8x16MiB", "8x64MiB", "32x4KiB", "32x16MiB")
OPERATORS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")

COLLECTIVE = """HloModule m, replica_count={ranks}

add {{ a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }}

ENTRY main {{
  x = f32[{operand}] parameter(0)
  ROOT y = f32[{result}] {operator}(x), replica_groups={{}}{attributes}
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


SIZES = re.compile(r"(\d+)x(\d+)([KM])iB")


def sizes_of(name: str) -> tuple[int, int]:
    """Ranks, and float32 elements of the larger side of a rank."""
    sizes = SIZES.fullmatch(name)
    if not sizes:
        raise SystemExit(f"{name}: ranks x buffer, as 8x16MiB")
    return int(sizes[1]), int(sizes[2]) * {"K": 1 << 10, "M": 1 << 20}[sizes[3]] // 4


def text_of(operator: str, ranks: int, elements: int) -> str:
    """One collective; `elements` are those of the larger side."""
    attributes = ", to_apply=add" if "reduce" in operator else ""
    if operator != "all-reduce":
        attributes += ", dimensions={0}"
    return COLLECTIVE.format(
        ranks=ranks,
        operator=operator,
        attributes=attributes,
        operand=elements // ranks if operator == "all-gather" else elements,
        result=elements // ranks if operator == "reduce-scatter" else elements,
    )


# ---- again and again in one process


BLOCK = 1 << 15
"""Elements that stay in a core's cache: 128 KiB."""


def loop(operator: str, x: np.ndarray, out: np.ndarray) -> None:
    """What a collective computes, (ranks, elements), as one would write it for speed."""
    ranks = len(x)
    if operator == "all-gather":
        for rank in range(ranks):
            out[rank].reshape(ranks, -1)[:] = x
    elif operator == "all-to-all":
        parts = x.reshape(ranks, ranks, -1)
        for rank in range(ranks):
            out[rank].reshape(ranks, -1)[:] = parts[:, rank]
    elif operator == "reduce-scatter":
        size = out.shape[1]
        for rank in range(ranks):
            for start in range(0, size, BLOCK):
                own = out[rank, start : start + BLOCK]
                part = slice(rank * size + start, rank * size + start + len(own))
                own[:] = x[0, part]
                for other in range(1, ranks):
                    own += x[other, part]
    else:
        for start in range(0, x.shape[1], BLOCK):
            part = slice(start, start + BLOCK)
            total = x[0, part].copy()
            for rank in range(1, ranks):
                total += x[rank, part]
            for rank in range(ranks):
                out[rank, part] = total


def by_jax(operator: str, x: np.ndarray) -> Callable[[], object]:
    """The same by JAX, on arrays that lie on its devices; a call waits for the result."""
    import jax
    from jax.sharding import Mesh, NamedSharding
    from jax.sharding import PartitionSpec as P

    mesh = Mesh(np.array(jax.devices()[: len(x)]), ("d",))
    body = {
        "all-reduce": lambda a: jax.lax.psum(a, "d"),
        "all-gather": lambda a: jax.lax.all_gather(a, "d", axis=1, tiled=True),
        "reduce-scatter": lambda a: jax.lax.psum_scatter(a, "d", scatter_dimension=1, tiled=True),
        "all-to-all": lambda a: jax.lax.all_to_all(a, "d", 1, 1, tiled=True),
    }[operator]
    rows = P("d", None)
    function = jax.jit(jax.shard_map(body, mesh=mesh, in_specs=rows, out_specs=rows))
    on_devices = jax.device_put(x, NamedSharding(mesh, rows))
    return lambda: function(on_devices).block_until_ready()


def steady(operator: str, name: str, repeat: int, threads: int, algorithm: str | None) -> str:
    """A line of the table."""
    import ncc_compiler
    import ncc_runtime

    ranks, elements = sizes_of(name)
    algorithms = {operator: algorithm} if algorithm else {}
    neff = ncc_compiler.compile_text(text_of(operator, ranks, elements))
    model = ncc_runtime.load(neff, "trn2", algorithms=algorithms)
    (tensor,) = model.executable.program.inputs
    shape = (ranks, *model.executable.program.tensors[tensor].shape)
    x = np.random.default_rng(0).integers(-9, 9, shape).astype(np.float32)
    out = model.run(x, clock=False, threads=threads).outputs[0].copy()
    wanted = np.asarray(by_jax(operator, x)())
    np.testing.assert_array_equal(out, wanted.reshape(out.shape))
    sides: dict[str, Callable[[], object]] = {
        "ours": lambda: model.run(x, clock=False, threads=threads).outputs[0],
        "JAX": by_jax(operator, x),
        "loop": lambda: loop(operator, x, out),
    }
    taken: dict[str, list[float]] = {side: [] for side in sides}
    started = time.perf_counter()
    while len(taken["loop"]) <= repeat or time.perf_counter() < started + 1:
        for side, run in sides.items():
            start = time.perf_counter()
            run()
            taken[side].append(time.perf_counter() - start)
    np.testing.assert_array_equal(out, wanted.reshape(out.shape))
    median_us = {side: statistics.median(times[1:]) * 1e6 for side, times in taken.items()}
    cells = [f"{median_us[side]:.0f}" for side in sides]
    cells += [f"{median_us['ours'] / median_us[side]:.2f}" for side in ("JAX", "loop")]
    algorithm = model.executable.lowered[0].name
    return f"{name:<12}{operator:<18}{algorithm:<14}" + "".join(f"{cell:>12}" for cell in cells)


# ---- whole commands


def program_in(name: str, folder: Path) -> list[np.ndarray]:
    """Write the HLO text of a program into a folder, as model.hlo; its inputs."""
    model = folder / "model.hlo"
    if not SIZES.fullmatch(name):
        model.write_text((ROOT / name).read_text())
        with np.load((ROOT / name).with_suffix(".in.npz")) as file:
            return [file[f"arg{k}"] for k in range(len(file.files))]
    ranks, elements = sizes_of(name)
    model.write_text(text_of("all-reduce", ranks, elements))
    # small whole numbers: sums are the same in any order
    array = np.random.default_rng(0).integers(-9, 9, (ranks, elements))
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
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--operators", nargs="+", default=OPERATORS, choices=OPERATORS)
    parser.add_argument("--algorithm", help="forced, such as ring")
    parser.add_argument("--whole", action="store_true", help="whole commands")
    arguments = parser.parse_args()
    print(f"{time.strftime('%Y-%m-%d')} {platform.machine()}, Python {platform.python_version()}")
    if arguments.whole:
        heads = [one for name in ("wall s", "CPU s", "MiB") for one in (name, "XLA", "ratio")]
        print(f"{'':40}" + "".join(f"{head:>10}" for head in heads))
        for name in arguments.programs or WHOLE:
            print(compared(name, arguments.repeat, arguments.threads), flush=True)
        return
    programs = arguments.programs or STEADY
    most = max(sizes_of(name)[0] for name in programs)
    os.environ["JAX_PLATFORMS"] = "cpu"
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={most}"
    heads = ("ours us", "JAX us", "loop us", "over JAX", "over loop")
    print(f"{'':44}" + "".join(f"{head:>12}" for head in heads))
    for name in programs:
        for operator in arguments.operators:
            line = steady(operator, name, arguments.repeat, arguments.threads, arguments.algorithm)
            print(line, flush=True)


if __name__ == "__main__":
    main()
