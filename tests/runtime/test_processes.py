"""Runs of several processes, here as threads: every rank has the bits of one process."""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_runtime.array_files import open_arrays, write_arrays
from ncc_runtime.errors import InputError
from ncc_runtime.host_memory import HostMemory
from ncc_runtime.inputs import bound_inputs
from ncc_runtime.launcher import launched
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.own_inputs import own_inputs
from ncc_runtime.processes import ALONE, Processes
from ncc_runtime.random_values import drawn, drawn_rows
from ncc_runtime.ranked_array import RankedArray
from ncc_runtime.runtime import Model
from ncc_runtime.sharded_arrays import INDEX, check_folder, open_sharded, write_sharded
from ncc_runtime.threads import Threads
from tests.thread_processes import among

ROOT = Path(__file__).parents[2]
PROGRAMS = {
    path.stem: path
    for folder in (ROOT / "tests/data/hlo", ROOT / "ir_examples")
    for path in sorted(folder.iterdir())
    if path.suffix in (".hlo", ".ir") and "pipeline" not in path.stem and "llama" not in path.stem
}


@functools.cache
def compiled(name: str) -> ncc_compiler.Neff:
    return ncc_compiler.compile_file(PROGRAMS[name])


def model_of(proved: Model, processes: Processes) -> Model:
    """The model of one of the processes."""
    model = ncc_runtime.load(proved.executable.program, "trn2")
    # until Python 3.12 cached properties have a lock, at which other threads would wait
    model.__dict__.update(proofs=proved.proofs, _pure=proved._pure)
    model.processes = processes
    return model


def bits_of(model: Model, count: int, **settings: Any) -> list[bytes]:
    """Of each output, what all ranks have, from so many processes."""

    def run(processes: Processes) -> list[bytes]:
        found = model_of(model, processes).run(seed=5, clock=False, threads=1, **settings)
        return [b"".join(row.tobytes() for row in one) for one in found.ranked_outputs]

    parts = among(count, run) if count > 1 else [run(ALONE)]
    return [b"".join(part) for part in zip(*parts, strict=True)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_outputs_have_the_bits_of_one_process(name):
    model = ncc_runtime.load(compiled(name), "trn2")
    counts = [count for count in (2, 3) if count <= model.executable.ranks]
    alone = bits_of(model, 1)
    assert all(bits_of(model, count) == alone for count in counts)


@pytest.mark.parametrize("settings", [{"verify": False}, {"checked": True}, {"shuffle_seed": 3}])
@pytest.mark.parametrize("name", ["moe_dispatch", "ragged_in_a_loop", "ring_attention"])
def test_rows_that_are_performed_one_by_one_give_the_same_bits(name, settings):
    model = ncc_runtime.load(compiled(name), "trn2")
    assert bits_of(model, 3, **settings) == bits_of(model, 1, **settings)


def test_processes_without_ranks_of_a_stage_run_again_with_the_same_bits():
    stages = [ncc_compiler.compile_file(ROOT / f"ir_examples/pipeline_stage{k}.ir") for k in (0, 1)]
    model = ncc_runtime.load([(stages[0], range(4)), (stages[1], range(4, 8))], "trn2")
    alone = bits_of(model, 1)

    def run_again(processes: Processes) -> list[bytes]:
        own = model_of(model, processes)
        for _ in range(2):  # calls are made for the second run
            found = own.run(seed=5, clock=False, threads=1).ranked_outputs
        return [b"".join(row.tobytes() for row in one) for one in found]

    for count in (2, 3):
        parts = among(count, run_again)
        assert [b"".join(part) for part in zip(*parts, strict=True)] == alone


def test_what_a_process_takes_is_told():
    text = (
        "HloModule m, replica_count=8\n"
        "ENTRY e { x = f32[1048576] parameter(0) ROOT y = f32[1048576] negate(x) }"
    )
    proved = ncc_runtime.load(ncc_compiler.compile_text(text))

    def memory(processes: Processes) -> HostMemory:
        return model_of(proved, processes).host_memory(clock=False)

    alone, *four = memory(ALONE), *among(4, memory)
    for one in four:
        assert one.processes == (one.needed,) * 4
        assert 4 * (one.inputs + one.outputs) == alone.inputs + alone.outputs
        assert "of each of 4 processes" in str(one)


def test_ranks_are_dealt_out_evenly_and_in_order():
    shares = [process(number, 3).shares(10) for number in range(3)]
    assert [(one.first, one.end) for one in shares] == [(0, 3), (3, 6), (6, 10)]
    assert shares[0].process_of.tolist() == [0] * 3 + [1] * 3 + [2] * 4


def process(number: int, count: int) -> Processes:
    processes = Processes()
    processes.number, processes.count = number, count
    return processes


def test_more_processes_than_ranks_are_refused():
    with pytest.raises(InputError, match=r"8 processes for 4 ranks: .* start at most 4"):
        process(0, 8).shares(4)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, (0, 1)),
        ({"OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4"}, (3, 4)),
        ({"PMI_RANK": "1", "PMI_SIZE": "2"}, (1, 2)),
        ({"PMIX_RANK": "1", "SLURM_STEP_NUM_TASKS": "8"}, (1, 8)),
        ({"SLURM_STEP_NUM_TASKS": "8"}, (0, 1)),
        ({"PMI_RANK": "x", "PMI_SIZE": "2"}, (0, 1)),
    ],
)
def test_launchers_say_how_many_they_have_started(monkeypatch, environment, expected):
    for one in ("OMPI_COMM_WORLD", "PMI", "PMIX"):
        monkeypatch.delenv(f"{one}_RANK", raising=False)
    for key, value in environment.items():
        monkeypatch.setenv(key, value)
    assert launched() == expected


@given(
    st.sampled_from([DType.F32, DType.BF16, DType.S8, DType.PRED, DType.C64]),
    st.integers(1, 5),
    st.sampled_from([1, 7, 70_000, 131_072]),
    st.data(),
)
def test_rows_are_drawn_as_with_the_rest(dtype, rows, width, data):
    first = data.draw(st.integers(0, rows))
    end = data.draw(st.integers(first, rows))
    whole = drawn(dtype, (rows, width), 3, (1,), Threads(1))
    part = drawn_rows(dtype, (rows, width), (first, end), 3, (1,), Threads(1))
    assert part.tobytes() == whole[first:end].tobytes()


SHARDED = """HloModule m, num_partitions=8
ENTRY e_spmd {
  a = f32[4,6] parameter(0), sharding={devices=[2,4]<=[8]}
  b = f32[8,3] parameter(1), sharding={devices=[4,1,2]<=[8] last_tile_dim_replicate}
  c = f32[5] parameter(2), sharding={replicated}
  d = f32[2,2] parameter(3)
  s = f32[] parameter(4)
  ROOT r = (f32[4,6], f32[8,3], f32[5], f32[2,2], f32[]) tuple(a, b, c, d, s)
}"""


def own_parts(count: int, arrays: Mapping[int, Any], seed: int | None) -> list[list[np.ndarray]]:
    """By parameter, what each rank has, taken from the processes that hold it."""
    program = ncc_compiler.compile_text(SHARDED).program
    parts = [
        [*own_inputs(program, arrays, seed, None, 1, process(number, count).shares(8))]
        for number in range(count)
    ]
    return [[row for part in parts for row in part[number]] for number in range(5)]


@pytest.mark.parametrize("count", [1, 2, 3, 8])
def test_drawn_inputs_are_those_of_one_process(count):
    program = ncc_compiler.compile_text(SHARDED).program
    for one, parts in zip(bound_inputs(program, {}, 1), own_parts(count, {}, 1), strict=True):
        np.testing.assert_array_equal(one.whole(), parts)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
@pytest.mark.parametrize("count", [2, 3])
def test_inputs_of_a_file_are_those_of_one_process(tmp_path, suffix, count):
    generator = np.random.default_rng(0)
    shapes = [(8, 24), (32, 3), (5,), (8, 2, 2), (8,)]
    arrays = [generator.normal(size=shape).astype(np.float32) for shape in shapes]
    path = str(tmp_path / f"in{suffix}")
    write_arrays(path, arrays)
    program = ncc_compiler.compile_text(SHARDED).program
    expected = [one.whole() for one in bound_inputs(program, dict(enumerate(arrays)), None)]
    with open_arrays(path) as stored:
        found = own_parts(count, {k: stored[f"out{k}"] for k in range(5)}, None)
    for one, parts in zip(expected, found, strict=True):
        np.testing.assert_array_equal(one, parts)


def write_parts(folder: Path, array: np.ndarray, count: int) -> None:
    def write(processes: Processes) -> None:
        shares = processes.shares(len(array))
        own = np.arange(shares.first, shares.end)
        write_sharded(str(folder), [RankedArray.of_each(array[own])], [own], processes)

    if count == 1:
        write(ALONE)
    else:
        among(count, write)


@pytest.mark.parametrize("count", [1, 3])
@pytest.mark.parametrize("shape", [(4,), (4, 3, 2)])
def test_a_folder_holds_what_each_rank_has(tmp_path, count, shape):
    array = np.random.default_rng(1).normal(size=shape).astype(np.float32)
    write_parts(tmp_path / "out", array, 2)  # to be replaced
    write_parts(tmp_path / "out", array + 1, count)
    files = sorted(path.name for path in (tmp_path / "out").iterdir())
    names = [f"model-{k + 1:05}-of-{count:05}.safetensors" for k in range(count)]
    assert files == sorted([INDEX, *names])
    with open_sharded(str(tmp_path / "out")) as arrays:
        np.testing.assert_array_equal(arrays["out0"], array + 1)
        np.testing.assert_array_equal(arrays["out0"].rows(1, 3), array[1:3] + 1)


def test_the_safetensors_library_reads_a_shard(tmp_path):
    import safetensors.numpy

    write_parts(tmp_path / "out", np.arange(6, dtype=np.int16).reshape(2, 3), 1)
    tensors = safetensors.numpy.load_file(tmp_path / "out/model-00001-of-00001.safetensors")
    assert {name: one.tolist() for name, one in tensors.items()} == {
        "out0[0]": [0, 1, 2],
        "out0[1]": [3, 4, 5],
    }


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda folder: (folder / INDEX).unlink(), "has no index"),
        (lambda folder: (folder / INDEX).write_text("[]"), "has no weight_map"),
        (
            lambda folder: (folder / INDEX).write_text('{"weight_map": {"out0[0]": "../x"}}'),
            "no .safetensors file beside it",
        ),
        (
            lambda folder: (folder / INDEX).write_text(
                '{"weight_map": {"x": "model-00001-of-00001.safetensors"}}'
            ),
            "has no 'x'",
        ),
        (
            lambda folder: (folder / INDEX).write_text(
                '{"weight_map": {"out0[0]": "model-00001-of-00001.safetensors", '
                '"out0[2]": "model-00001-of-00001.safetensors"}}'
            ),
            r"no 'out0\[1\]' beside",
        ),
    ],
)
def test_a_folder_that_is_not_whole_is_refused(tmp_path, change, words):
    write_parts(tmp_path / "out", np.zeros((3, 2), np.float32), 1)
    change(tmp_path / "out")
    with pytest.raises(InputError, match=words), open_sharded(str(tmp_path / "out")):
        pass


def test_a_model_of_others_is_not_overwritten(tmp_path):
    folder = tmp_path / "model"
    write_parts(folder, np.zeros((3, 2), np.float32), 1)
    check_folder(str(folder))
    (folder / INDEX).write_text(
        '{"weight_map": {"embed.weight": "model-00001-of-00002.safetensors"}}'
    )
    with pytest.raises(InputError, match=r"holds 'embed.weight', .* name another folder"):
        check_folder(str(folder))


def test_outputs_of_a_run_are_inputs_by_number():
    text = (
        "HloModule m, replica_count=2\n"
        "ENTRY e { x = f32[3] parameter(0) ROOT y = f32[3] negate(x) }"
    )
    model = ncc_runtime.load(ncc_compiler.compile_text(text))
    first = model.run({"arg0": np.ones((2, 3), np.float32)}).outputs[0]
    np.testing.assert_array_equal(model.run({"out0": first}).outputs[0], np.ones((2, 3)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [({"faults": ["at 1us: link c0-c1 down"]}, "takes one process, and there are 2")],
)
def test_what_takes_one_process_is_refused(settings, words):
    model = ncc_runtime.load(compiled("argmax"), "trn2")
    model.processes = process(0, 2)
    with pytest.raises(InputError, match=words):
        model.run(seed=0, **settings)
    with pytest.raises(InputError, match="in one process"):
        next(model.run_steps(2, seed=0, feed={}))
