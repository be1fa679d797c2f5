"""Host memory of runs: what is told before, and what is used.

Each program in a process of its own, without the clock: compiled, loaded, proved, asked what its
values will take, run twice and its outputs written. Used is the growth of the resident set at its
height since the figure was told (getrusage). Prints both and their ratio. Then the same again under
a limit of the address space (`ulimit -v`) that leaves what was told and the memory that is only
reserved. Exit code 1 if more was used than told, or if what is told is more than 1.25 of what was
used and 72 MiB, of which 56 are told of every run, for libraries that small ones do not load.
On a busy machine two threads may never be at their heights together, so a program that used too
little runs up to three times, and the most counts.

Programs are those of ir_examples and tests/data/hlo, and some with large buffers, drawn here.

Run: python benchmarks/host_memory.py [PROGRAM ...] [--threads 2]
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

import attrs

from ncc_runtime.host_memory import BESIDE_BYTES

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

REDUCERS = """sum { a = TYPE[] parameter(0)  b = TYPE[] parameter(1)  ROOT c = TYPE[] add(a, b) }
more { a = TYPE[] parameter(0)  b = TYPE[] parameter(1)  ROOT c = pred[] compare(a, b), direction=GT }
"""  # noqa: E501

LARGE: Mapping[str, tuple[int, str, str]] = {
    "all-reduce": (
        8,
        "f32",
        "x = f32[16777216] parameter(0)\n"
        "ROOT y = f32[16777216] all-reduce(x), replica_groups={}, to_apply=sum",
    ),
    "all-reduce in place": (
        8,
        "f32",
        "x = f32[16777216] parameter(0)\n  a = f32[16777216] multiply(x, x)\n"
        "y = f32[16777216] all-reduce(a), replica_groups={}, to_apply=sum\n"
        "ROOT z = f32[16777216] negate(y)",
    ),
    "all-reduce bf16": (
        8,
        "bf16",
        "x = bf16[16777216] parameter(0)\n"
        "ROOT y = bf16[16777216] all-reduce(x), replica_groups={}, to_apply=sum",
    ),
    "all-to-all": (
        32,
        "f32",
        "x = f32[1048576] parameter(0)\n"
        "ROOT y = f32[1048576] all-to-all(x), replica_groups={}, dimensions={0}",
    ),
    "all-to-all in small pieces": (
        64,
        "f32",
        "x = f32[131072] parameter(0)\n"
        "ROOT y = f32[131072] all-to-all(x), replica_groups={}, dimensions={0}",
    ),
    "all-gather": (
        8,
        "f32",
        "x = f32[4194304] parameter(0)\n"
        "ROOT y = f32[33554432] all-gather(x), replica_groups={}, dimensions={0}",
    ),
    "products": (
        4,
        "f32",
        "x = f32[2048,2048] parameter(0)\n  w = f32[2048,2048] parameter(1)\n"
        "a = f32[2048,2048] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "b = f32[2048,2048] tanh(a)\n"
        "ROOT c = f32[2048,2048] dot(b, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    ),
    "products bf16": (
        4,
        "bf16",
        "x = bf16[2048,2048] parameter(0)\n  w = bf16[2048,2048] parameter(1)\n"
        "a = bf16[2048,2048] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}\n"
        "b = bf16[2048,2048] tanh(a)\n"
        "ROOT c = bf16[2048,2048] dot(b, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    ),
    "a sort": (
        4,
        "f32",
        "x = f32[2048,4096] parameter(0)\n"
        "ROOT y = f32[2048,4096] sort(x), dimensions={1}, to_apply=more",
    ),
    "a gather": (
        4,
        "f32",
        "x = f32[65536,256] parameter(0)\n  i = s32[65536] parameter(1)\n"
        "ROOT y = f32[65536,256] gather(x, i), offset_dims={1}, collapsed_slice_dims={0}, "
        "start_index_map={0}, index_vector_dim=1, slice_sizes={1,256}",
    ),
    "a scatter": (
        4,
        "f32",
        "x = f32[65536,256] parameter(0)\n  i = s32[65536] parameter(1)\n"
        "  u = f32[65536,256] parameter(2)\n"
        "ROOT y = f32[65536,256] scatter(x, i, u), update_window_dims={1}, "
        "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, "
        "to_apply=sum",
    ),
    "a scatter to few rows": (
        4,
        "f32",
        "x = f32[512,256] parameter(0)\n  i = s32[65536] parameter(1)\n"
        "  u = f32[65536,256] parameter(2)\n"
        "ROOT y = f32[512,256] scatter(x, i, u), update_window_dims={1}, "
        "inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, "
        "to_apply=sum",
    ),
    "a scatter to columns bf16": (
        4,
        "bf16",
        "x = bf16[256,65536] parameter(0)\n  i = s32[65536] parameter(1)\n"
        "  u = bf16[256,65536] parameter(2)\n"
        "ROOT y = bf16[256,65536] scatter(x, i, u), update_window_dims={0}, "
        "inserted_window_dims={1}, scatter_dims_to_operand_dims={1}, index_vector_dim=1, "
        "to_apply=sum",
    ),
    "a convolution": (
        4,
        "f32",
        "x = f32[16,128,128,16] parameter(0)\n  w = f32[3,3,16,32] parameter(1)\n"
        "ROOT y = f32[16,128,128,32] convolution(x, w), window={size=3x3 pad=1_1x1_1}, "
        "dim_labels=b01f_01io->b01f",
    ),
    "concatenation and transposition": (
        4,
        "f32",
        "x = f32[4096,2048] parameter(0)\n"
        "a = f32[8192,2048] concatenate(x, x), dimensions={0}\n"
        "ROOT b = f32[2048,8192] transpose(a), dimensions={1,0}",
    ),
    "folds of narrow numbers": (
        4,
        "bf16",
        "x = bf16[4096,8192] parameter(0)\n  z = bf16[] constant(0)\n"
        "ROOT y = bf16[8192] reduce(x, z), dimensions={0}, to_apply=sum",
    ),
    "equal on all ranks": (
        16,
        "f32",
        "x = f32[4194304] parameter(0), sharding={replicated}\n"
        "a = f32[4194304] multiply(x, x)\n"
        "ROOT y = f32[4194304] all-reduce(a), replica_groups={{0,1,2,3,4,5,6,7,8,9,10,11,12,13,"
        "14,15}}, channel_id=1, use_global_device_ids=true, to_apply=sum",
    ),
}
"""By name: ranks, type of elements, and what the entry computes."""


def text_of(name: str) -> str:
    """A program of LARGE as HLO text."""
    ranks, dtype, body = LARGE[name]
    count = "num_partitions" if "sharding" in body else "replica_count"
    return (
        f"HloModule m, {count}={ranks}\n{REDUCERS.replace('TYPE', dtype)}"
        f"ENTRY main_spmd {{\n{body}\n}}\n"
    )


@attrs.frozen
class Measured:
    """Bytes of one program."""

    told: int
    used: int
    reserved: int  # of addresses

    @property
    def is_kept(self) -> bool:
        """Whether it takes what is told, and not much less."""
        return self.used <= self.told <= 1.25 * self.used + BESIDE_BYTES + (16 << 20)


SORTED = ("a scatter", "a scatter to few rows")
"""What numpy has to sort, and machine code has not: told is what the one takes that takes more."""


def child(name: str, threads: int, most_addresses: int) -> None:
    """Measure one program in this process, and print it."""
    import ncc_compiler
    import ncc_runtime
    from ncc_runtime.array_files import write_arrays
    from ncc_runtime.execution.values.kernels import compiled

    if name in SORTED:
        compiled.ELEMENTS_IF_KEPT = compiled.ELEMENTS_IF_NOT = 1 << 62
    if name in LARGE:
        neff = ncc_compiler.compile_text(text_of(name))
    else:
        neff = ncc_compiler.compile_file(ROOT / name)
    model = ncc_runtime.load(neff)
    settings = {"clock": False, "threads": threads}
    memory = model.host_memory(**settings)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    status = Path("/proc/self/status").read_text()
    words = dict(line.split(":", 1) for line in status.splitlines())
    resident, addresses = (int(words[key].split()[0]) << 10 for key in ("VmRSS", "VmSize"))
    machine = next(iter(model._machines.values()))
    reserved = machine.arena.bytes.nbytes
    if most_addresses:  # what is there, what was told, and what is reserved and not taken
        limit = addresses + memory.needed + most_addresses
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    run = model.run(seed=0, **settings)
    del run
    run = model.run(seed=1, **settings)
    with tempfile.TemporaryDirectory() as folder:
        write_arrays(f"{folder}/out.npz", run.ranked_outputs)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    print(json.dumps(attrs.asdict(Measured(memory.needed, peak - resident, reserved))), memory)
    assert before << 10 >= resident - (8 << 20), "the height before is that of the model"


def measured(name: str, threads: int, most_addresses: int = 0) -> Measured:
    """A program in a process of its own; SystemExit if it ends otherwise."""
    command = [sys.executable, __file__, name, "--threads", str(threads), "--child"]
    command += ["--addresses", str(most_addresses)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stdout}{done.stderr}")
    text, _, rest = done.stdout.partition("}")
    print(rest.strip()) if "--verbose" in sys.argv else None
    return Measured(**json.loads(text + "}"))


def programs() -> list[str]:
    """Those of the examples and tests, then the large ones."""
    folders = ("ir_examples", "tests/data/hlo")
    paths = (path for folder in folders for path in sorted((ROOT / folder).iterdir()))
    files = [str(path.relative_to(ROOT)) for path in paths if path.suffix in (".ir", ".hlo")]
    without_values = "tests/data/hlo/llama_4l_64ranks.hlo"  # its text leaves out constants
    return [*(name for name in files if name != without_values), *LARGE]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", nargs="*")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--verbose", action="store_true", help="the parts of what is told")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--addresses", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        child(arguments.programs[0], arguments.threads, arguments.addresses)
        return 0
    print(f"{'':44}{'told MiB':>10}{'used MiB':>10}{'ratio':>8}")
    wrong = 0
    for name in arguments.programs or programs():
        one = measured(name, arguments.threads)
        for _ in range(2):
            if one.used <= one.told and not one.is_kept:
                one = max(one, measured(name, arguments.threads), key=lambda run: run.used)
        spare = one.reserved + (256 << 20)  # stacks and heaps of threads are addresses too
        measured(name, arguments.threads, spare)
        mark = "" if one.is_kept else "  not kept"
        wrong += not one.is_kept
        told, used = one.told / 2**20, one.used / 2**20
        print(f"{name:44}{told:10.1f}{used:10.1f}{told / used:8.2f}{mark}", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
