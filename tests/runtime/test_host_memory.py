"""What a run takes of the host's memory is told before it, kept to, and not told too high."""

import json
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime import host_memory
from ncc_runtime.cli import main
from ncc_runtime.errors import InputError
from ncc_runtime.execution.values import devices, host_bytes
from ncc_runtime.execution.values.devices import Devices
from ncc_runtime.execution.values.kernels import blockwise, compiled, products
from ncc_runtime.host_memory import BESIDE_BYTES
from tests.kernel_ways import WAYS, compute_by

ROOT = Path(__file__).parents[2]

REDUCERS = """sum { a = T[] parameter(0)  b = T[] parameter(1)  ROOT c = T[] add(a, b) }
most { a = T[] parameter(0)  b = T[] parameter(1)  ROOT c = T[] maximum(a, b) }
more { a = T[] parameter(0)  b = T[] parameter(1)  ROOT c = pred[] compare(a, b), direction=GT }
more_of { a = T[] parameter(0)  b = T[] parameter(1)  i = s32[] parameter(2)  j = s32[] parameter(3)
  ROOT c = pred[] compare(a, b), direction=GT }
best {
  v = T[] parameter(0)
  i = s32[] parameter(1)
  w = T[] parameter(2)
  j = s32[] parameter(3)
  f = pred[] compare(v, w), direction=GE
  x = T[] select(f, v, w)
  k = s32[] select(f, i, j)
  ROOT r = (T[], s32[]) tuple(x, k)
}
"""

X = "  x = T[256,512] parameter(0)\n"
KERNELS = {
    "sort": X + "  ROOT y = T[256,512] sort(x), dimensions={1}, to_apply=more",
    "sort of pairs": X + "  i = s32[256,512] parameter(1)\n  ROOT y = (T[256,512], s32[256,512]) "
    "sort(x, i), dimensions={1}, is_stable=true, to_apply=more_of",
    "topk": X + "  ROOT y = (T[256,64], s32[256,64]) topk(x), k=64, largest=true",
    "fold of rows": X + "  z = T[] constant(0)\n"
    "  ROOT y = T[256] reduce(x, z), dimensions={1}, to_apply=sum",
    "fold of columns": X + "  z = T[] constant(0)\n"
    "  ROOT y = T[512] reduce(x, z), dimensions={0}, to_apply=most",
    "argmax": X + "  i = s32[256,512] iota(), iota_dimension=1\n  z = T[] constant(0)\n"
    "  k = s32[] constant(0)\n"
    "  ROOT y = (T[256], s32[256]) reduce(x, i, z, k), dimensions={1}, to_apply=best",
    "concatenate": X + "  ROOT y = T[512,512] concatenate(x, x), dimensions={0}",
    "pad": X + "  z = T[] constant(0)\n  ROOT y = T[256,1024] pad(x, z), padding=0_0x0_512",
    "gather of rows": X + "  i = s32[256] parameter(1)\n  ROOT y = T[256,512] gather(x, i), "
    "offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, "
    "slice_sizes={1,512}",
    "gather of elements": X + "  i = s32[65536,2] parameter(1)\n  ROOT y = T[65536] gather(x, i), "
    "offset_dims={}, collapsed_slice_dims={0,1}, start_index_map={0,1}, index_vector_dim=1, "
    "slice_sizes={1,1}",
    "scatter of rows": X + "  i = s32[256] parameter(1)\n  u = T[256,512] parameter(2)\n"
    "  ROOT y = T[256,512] scatter(x, i, u), update_window_dims={1}, inserted_window_dims={0}, "
    "scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum",
    "scatter of a wide row": "  x = T[8,65536] parameter(0)\n  i = s32[1] parameter(1)\n"
    "  u = T[1,65536] parameter(2)\n  ROOT y = T[8,65536] scatter(x, i, u), "
    "update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, "
    "index_vector_dim=1, to_apply=sum",
    "scatter of a window": "  x = T[131072] parameter(0)\n  i = s32[1] parameter(1)\n"
    "  u = T[100000] parameter(2)\n  ROOT y = T[131072] scatter(x, i, u), "
    "update_window_dims={0}, inserted_window_dims={}, scatter_dims_to_operand_dims={0}, "
    "index_vector_dim=0, to_apply=sum",
    "scatter of elements": X + "  i = s32[65536,2] parameter(1)\n  u = T[65536] parameter(2)\n"
    "  ROOT y = T[256,512] scatter(x, i, u), update_window_dims={}, inserted_window_dims={0,1}, "
    "scatter_dims_to_operand_dims={0,1}, index_vector_dim=1, to_apply=sum",
    "dynamic-slice": X + "  i = s32[] parameter(1)\n  z = s32[] constant(0)\n"
    "  ROOT y = T[128,512] dynamic-slice(x, i, z), dynamic_slice_sizes={128,512}",
    "dynamic-update-slice": X + "  u = T[128,512] parameter(1)\n  i = s32[] parameter(2)\n"
    "  z = s32[] constant(0)\n  ROOT y = T[256,512] dynamic-update-slice(x, u, i, z)",
    "windows": X + "  z = T[] constant(0)\n  ROOT y = T[256,512] reduce-window(x, z), "
    "window={size=3x3 pad=1_1x1_1}, to_apply=sum",
    "sums of all before": X + "  z = T[] constant(0)\n  ROOT y = T[256,512] reduce-window(x, z), "
    "window={size=1x512 pad=0_0x511_0}, to_apply=sum",
    "convolution": "  x = T[4,64,64,16] parameter(0)\n  w = T[3,3,16,32] parameter(1)\n"
    "  ROOT y = T[4,64,64,32] convolution(x, w), window={size=3x3 pad=1_1x1_1}, "
    "dim_labels=b01f_01io->b01f",
    "product": "  x = T[512,512] parameter(0)\n  ROOT y = T[512,512] dot(x, x), "
    "lhs_contracting_dims={1}, rhs_contracting_dims={0}",
    "elementwise": X + "  y = T[256,512] add(x, x)\n  ROOT z = T[256,512] multiply(y, x)",
    "transpose": X + "  ROOT y = T[512,256] transpose(x), dimensions={1,0}",
}
"""Programs of one kernel; T is the type of elements."""


def forget_thread_memory() -> None:
    """What a thread keeps from one kernel to the next is counted as if each were the first."""
    for memory in (*products._WIDENED, products._SUMS, products._PATCHES, products._OTHER_SUMS):
        memory.__dict__.pop("memory", None)
    blockwise._SCRATCH.__dict__.pop("memory", None)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "s8", "f64"])
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("way", WAYS)
def test_a_kernel_takes_what_is_told_of_it(way, name, dtype, monkeypatch: pytest.MonkeyPatch):
    """By the arrays that numpy makes: no more, and not less than a third of it."""
    compute_by(way, monkeypatch)
    text = f"HloModule m, replica_count=4\n{REDUCERS}ENTRY main {{\n{KERNELS[name]}\n}}\n"
    options = ncc_compiler.CompileOptions(level=0)
    neff = ncc_compiler.compile_text(text.replace("T[", f"{dtype}["), options)
    plain = Devices._begin_compute
    taken = []

    def measured(self, one, **words):
        forget_thread_memory()
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        plain(self, one, **words)()
        _, peak = tracemalloc.get_traced_memory()
        freed, held = host_bytes._scratch_of(one, keeps=False)
        taken.append((one.call.opcode, peak - before, freed + held.all, one.plan is not None))
        return lambda: None

    monkeypatch.setattr(devices, "PART_BYTES", 1 << 60)
    monkeypatch.setattr(Devices, "_begin_compute", measured)
    ncc_runtime.load(neff).run(seed=0, clock=False, threads=1)  # whatever is made once
    taken.clear()
    tracemalloc.start()
    try:
        ncc_runtime.load(neff).run(seed=0, clock=False, threads=1)
    finally:
        tracemalloc.stop()
    few = 128 << 10  # objects of Python, scalars
    assert taken
    for opcode, used, told, is_in_blocks in taken:
        assert used <= told + few, opcode
        if opcode == "scatter" and way == "machine code":
            continue  # numpy, which may have to do it, takes more
        unused = 4 * blockwise.BLOCK_BYTES if is_in_blocks else 2 << 20
        assert told <= 3 * used + unused, opcode


REPLICATED = """HloModule m, num_partitions=8
sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
ENTRY main_spmd {
  x = f32[1048576] parameter(0), sharding={replicated}
  y = f32[1048576] multiply(x, x)
  z = f32[1048576] all-reduce(y), replica_groups={{0,1,2,3,4,5,6,7}}, channel_id=1, use_global_device_ids=true, to_apply=sum
  ROOT w = f32[1048576] negate(z)
}
"""  # noqa: E501
APART = REPLICATED.replace(", sharding={replicated}", "")
MOSTLY_EQUAL = """HloModule m, num_partitions=64
ENTRY main_spmd {
  x = f32[33554432] parameter(0), sharding={replicated}
  a = f32[33554432] multiply(x, x)
  s = f32[1] slice(a), slice={[0:1]}
  p = u32[] partition-id()
  i = f32[] convert(p)
  e = f32[1] broadcast(i), dimensions={}
  ROOT y = f32[1] add(s, e)
}
"""

MIB = 1 << 20


def test_arrays_that_are_equal_on_ranks_count_once():
    once, each = (
        ncc_runtime.load(ncc_compiler.compile_text(text)).host_memory()
        for text in (REPLICATED, APART)
    )
    assert (once.inputs, once.outputs) == (4 * MIB, 4 * MIB)
    assert (each.inputs, each.outputs) == (32 * MIB, 4 * MIB)  # all ranks get the same sum
    assert once.ranks <= 6 * MIB < 32 * MIB <= each.ranks


def test_arrays_of_the_caller_are_not_counted_and_what_is_made_of_them_is():
    model = ncc_runtime.load(ncc_compiler.compile_text(APART))
    own = np.zeros((8, 1 << 20), np.float32)
    assert model.host_memory([own]).inputs == 0
    assert model.host_memory([own[0]]).inputs == 0
    # float64 is rounded: the new array, and the other one while it is made
    assert model.host_memory([own.astype(np.float64)]).inputs == (32 + 64) * MIB


def test_a_run_takes_what_it_was_told_and_is_refused_with_less():
    model = ncc_runtime.load(ncc_compiler.compile_text(APART))
    told = model.host_memory(memory_bytes=1 << 40)
    run = model.run(seed=0, clock=False, memory_bytes=told.needed)
    assert run.host_memory is not None
    assert run.host_memory.needed == told.needed == run.host_memory.budget
    fresh = ncc_runtime.load(ncc_compiler.compile_text(APART))
    words = f"need {told.needed} bytes of host memory and the budget is {told.needed - 1}"
    with pytest.raises(InputError, match=words):
        fresh.run(seed=0, clock=False, memory_bytes=told.needed - 1)


def test_nothing_is_loaded_before_memory_is_refused():
    """An array of a file would be loaded by `numpy.asarray`."""
    from ncc_runtime.array_files import StoredArray

    def load() -> np.ndarray:
        raise AssertionError("it was loaded")

    stored = StoredArray((8, 1 << 20), np.dtype(np.float32), load)
    model = ncc_runtime.load(ncc_compiler.compile_text(APART))
    with pytest.raises(InputError, match="--no-values"):
        model.run([stored], memory_bytes=1 << 20)


def test_more_memory_may_be_reserved_than_the_host_has():
    """64 ranks of 256 MiB, of which they share most and write a few pages besides."""
    options = ncc_compiler.CompileOptions(level=0)
    model = ncc_runtime.load(ncc_compiler.compile_text(MOSTLY_EQUAL, options), "trn2")
    told = model.host_memory()
    assert told.needed < 1 << 30 < 1 << 34 <= model.executable.ranks * model.executable.hbm_bytes
    run = model.run(seed=0, clock=False)
    np.testing.assert_allclose(np.diff(run.outputs[0][:, 0]), 1, rtol=1e-5)


def test_steps_are_told_what_they_take_once_ranks_are_no_longer_equal():
    text = """HloModule m, num_partitions=8
ENTRY main_spmd {
  x = f32[1048576] parameter(0), sharding={replicated}
  p = u32[] partition-id()
  i = f32[] convert(p)
  s = f32[1048576] broadcast(i), dimensions={}
  ROOT y = f32[1048576] add(x, s)
}
"""
    model = ncc_runtime.load(ncc_compiler.compile_text(text))
    runs = model.run_steps(3, feed={"out0": "arg0"}, seed=0, clock=False)
    told = [run.host_memory for run in runs]
    assert all(one is not None and one.ranks >= 2 * 8 * 4 * MIB for one in told)
    assert model.host_memory().ranks < 2 * 8 * 4 * MIB  # of one run


def test_addresses_that_the_system_refuses_are_one_message(tmp_path: Path):
    """What is reserved counts under `ulimit -v`, whether it is written or not."""
    neff = tmp_path / "m.neff"
    options = ncc_compiler.CompileOptions(level=0)
    ncc_compiler.compile_text(MOSTLY_EQUAL, options).save(neff)
    nccrt = Path(sys.executable).with_name("nccrt")
    script = f"ulimit -v {4 << 20}; exec {nccrt} run {neff} --no-clock"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("error: ")]
    assert "bytes of addresses, and the system refuses them" in line


def test_the_command_says_it_as_json_and_in_text_where_it_is_much(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    neff = str(tmp_path / "m.neff")
    ncc_compiler.compile_text(APART).save(neff)
    command = ["run", neff, "--no-clock", "--threads", "1"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["host_memory"]
    parts = ("ranks", "inputs", "outputs", "scratch")
    assert found["needed"] == sum(found[part] for part in parts)
    assert found["scratch"] >= BESIDE_BYTES
    assert found["needed"] < found["budget"]
    assert main(command) == 0
    assert "host memory" not in capsys.readouterr().out
    monkeypatch.setattr(host_memory, "SHOWN_BYTES", 64 * MIB)
    assert main(command) == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first.startswith("host memory ")
    assert "inputs 32.0 MiB, outputs 4.0 MiB" in first
    assert main(["run", neff, "--no-values", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["host_memory"] is None


@pytest.mark.slow
@pytest.mark.parametrize("threads", [1, 2])
def test_every_program_takes_what_is_told_and_not_much_less(threads):
    """Of the resident set, and under a limit of the address space; exit code 1 if one does not."""
    compiled.CODE.addresses()  # to compile it takes memory that is not told, once on a machine
    command = [sys.executable, str(ROOT / "benchmarks/host_memory.py"), "--threads", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(done.stdout.splitlines()) > 30
