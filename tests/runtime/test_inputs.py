"""Arrays given to a run: by number and name, rank by rank or whole, and of every type."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ncc_runtime
from ncc_compiler.driver import compile_file, compile_text
from ncc_runtime.cli import main
from ncc_runtime.errors import InputError
from ncc_runtime.runtime import Model

STEP = """HloModule step, num_partitions=4
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT s = f32[] add(a, b) }
ENTRY %step_spmd {
  %x = f32[2,3] parameter(0), sharding={devices=[2,1,2]<=[4] last_tile_dim_replicate}, metadata={op_name="x"}
  %w = f32[3,2] parameter(1), sharding={devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}, metadata={op_name="p[\\'w\\']"}
  %b = f32[2] parameter(2), sharding={devices=[2,2]<=[2,2]T(1,0) last_tile_dim_replicate}, metadata={op_name="p[\\'b\\']"}
  %y = f32[2,2] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %c = f32[2,2] broadcast(%b), dimensions={1}
  ROOT %z = f32[2,2] add(%y, %c)
}
"""  # noqa: E501 - lines as XLA prints them


@pytest.fixture(scope="module")
def step() -> Model:
    return ncc_runtime.load(compile_text(STEP))


def given() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    shapes = {"x": (4, 3), "p['w']": (3, 4), "p['b']": (4,)}
    return {name: random.integers(-9, 9, shape).astype("f4") for name, shape in shapes.items()}


def identity(dtype: str, ranks: int = 2) -> Model:
    header = f"HloModule m, num_partitions={ranks}\n"
    text = f"{header}ENTRY m {{ p = {dtype}[3] parameter(0) ROOT c = {dtype}[3] copy(p) }}"
    return ncc_runtime.load(compile_text(text))


def test_whole_arrays_are_cut_by_their_shardings(step: Model) -> None:
    arrays = given()
    whole = arrays["x"] @ arrays["p['w']"] + arrays["p['b']"]
    (out,) = step.run(arrays).outputs
    for rank in range(4):
        row, column = divmod(rank, 2)
        part = whole[2 * row : 2 * row + 2, 2 * column : 2 * column + 2]
        np.testing.assert_array_equal(out[rank], part)


def test_arrays_rank_by_rank_and_alike_go_beside_whole_ones(step: Model) -> None:
    arrays = given()
    (expected,) = step.run(arrays).outputs
    own = np.stack([arrays["x"][2 * (rank // 2) :][:2] for rank in range(4)])
    (out,) = step.run({"x": own, 1: arrays["p['w']"], "arr_2": arrays["p['b']"]}).outputs
    np.testing.assert_array_equal(out, expected)
    (out,) = step.run([own, arrays["p['w']"][:, :2], arrays["p['b']"]]).outputs
    np.testing.assert_array_equal(out[::2], expected[::2])


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_files_take_names(tmp_path: Path, suffix: str) -> None:
    neff, path = tmp_path / "m.neff", tmp_path / f"in{suffix}"
    compile_text(STEP).save(neff)
    if suffix == ".npz":
        np.savez(path, **given())
    else:
        pytest.importorskip("safetensors.numpy").save_file(given(), path)
    out = str(tmp_path / "out.npz")
    assert main(["run", str(neff), "--inputs", str(path), "--outputs", out]) == 0
    with np.load(out) as file:
        (expected,) = ncc_runtime.load(compile_text(STEP)).run(given()).outputs
        np.testing.assert_array_equal(file["out0"], expected)


def test_joined_programs_cut_for_their_own_ranks() -> None:
    compiled = compile_text(STEP)
    model = ncc_runtime.load([(compiled, [0, 3]), (compiled, [1, 2])])
    arrays = list(given().values())
    (expected,) = ncc_runtime.load(compiled).run(arrays).outputs
    one, two = model.run([*arrays, *arrays]).outputs
    np.testing.assert_array_equal(one, expected[[0, 3]])
    np.testing.assert_array_equal(two, expected[[1, 2]])


X, W, B = (np.zeros(shape, "f4") for shape in ((4, 3), (3, 4), (4,)))
DROPS = "jax.jit drops arguments that the function does not use (keep_unused=True keeps them)"
THREE = "the program's 3 parameters are arg0 x f32[2,3], arg1 p['w'] f32[3,2], arg2 p['b'] f32[2]"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (
            {"x": X, "p['w']": W, "c": B},
            f"no parameter takes 'c' float32[4]; {THREE}; arg2 p['b'] f32[2] is not given",
        ),
        (
            {"x": X, "p['w']": W, "c": B, "d": B},
            f"no parameter takes 'c' float32[4], 'd' float32[4]; {THREE}; "
            f"arg2 p['b'] f32[2] is not given; {DROPS}",
        ),
        (
            [X, np.zeros(7, "f4"), W, B],
            f"no parameter takes 'arg3' float32[4]; {THREE}; the others fit in order if "
            f"arg1 float32[7] is left out; {DROPS}",
        ),
        (
            {"arr_0": X, "arr_1": W, "arr_2": X, "arr_3": B},
            f"no parameter takes 'arr_3' float32[4]; {THREE}; the others fit in order if "
            f"arg2 float32[4, 3] is left out; {DROPS}",
        ),
        (
            [X, B],
            "missing inputs: arg2 p['b'] f32[2]; give them, or a seed that fills what is missing; "
            "those given fit in order if arg1 p['w'] f32[3,2] is missing",
        ),
        (
            [X, W],
            "missing inputs: arg2 p['b'] f32[2]; give them, or a seed that fills what is missing",
        ),
        ({"x": X, 0: X}, "arg0 is there twice, as 'x' and as '0'"),
        ({-1: X}, f"no parameter takes 'arg-1' float32[4, 3]; {THREE}; arg0 x f32[2,3], "
         f"arg1 p['w'] f32[3,2], arg2 p['b'] f32[2] are not given"),
        (
            [X[:3], W, B],
            "arg0 x has shape [3, 3]; the program takes [4, 2, 3], or [2, 3] for the same value on "
            "every rank, or [4, 3] for the whole, which its sharding cuts",
        ),
        ([X.astype("i4"), W, B], "arg0 x is int32; the program takes f32"),
        (
            [X.astype("f2").view("V2"), W, B],
            "arg0 x is |V2, as numpy stores what it lacks (bfloat16, fp8, int4); "
            "the program takes f32",
        ),
    ],
)  # fmt: skip
def test_what_is_wrong_with_inputs_is_named(step: Model, inputs, message: str) -> None:
    with pytest.raises(InputError) as caught:
        step.run(inputs)
    assert str(caught.value) == message


@pytest.mark.parametrize("name", ["arg" + "9" * 5000, "y" * 100_000, "arg²", "arg-0", "arg1e3", ""])
def test_names_of_any_kind_are_refused_in_few_words(step: Model, name: str) -> None:
    with pytest.raises(InputError, match="no parameter takes") as caught:
        step.run({name: X})
    assert len(str(caught.value)) < 500


def test_a_name_that_is_another_ones_number_is_refused() -> None:
    text = """ENTRY m {
  p = f32[] parameter(0), metadata={op_name="arg1"}
  q = f32[] parameter(1), metadata={op_name="twice"}
  r = f32[] parameter(2), metadata={op_name="twice"}
  s = f32[] subtract(p, q)
  ROOT t = f32[] subtract(s, r)
}"""
    model = ncc_runtime.load(compile_text(text))
    with pytest.raises(InputError, match="'arg1' is the name of parameter 0 and the number of"):
        model.run({"arg1": 1.0}, seed=0)
    with pytest.raises(InputError, match="'twice' is the name of arg1 and arg2; give them by"):
        model.run({"twice": np.float32(1)}, seed=0)
    run = model.run({f"arr_{k}": np.float32(k) for k in range(3)})
    assert run.outputs[0] == -3


@pytest.mark.parametrize(
    ("dtype", "ml"),
    [
        ("bf16", ml_dtypes.bfloat16),
        ("f8e4m3fn", ml_dtypes.float8_e4m3fn),
        ("f8e5m2", ml_dtypes.float8_e5m2),
        ("f8e8m0fnu", ml_dtypes.float8_e8m0fnu),
        ("s4", ml_dtypes.int4),
        ("u4", ml_dtypes.uint4),
        ("s2", ml_dtypes.int2),
    ],
)
def test_types_that_numpy_lacks_come_through_a_file(tmp_path: Path, dtype: str, ml: type) -> None:
    array = np.array([0, 1, 2 if dtype == "f8e8m0fnu" else -1]).astype("f4").astype(ml)
    np.savez(tmp_path / "in.npz", arg0=array)
    model = identity(dtype)
    from ncc_runtime.array_files import open_arrays

    with open_arrays(str(tmp_path / "in.npz")) as arrays:
        (out,) = model.run(arrays).outputs
    assert out.tobytes() == array.tobytes() * 2
    (out,) = model.run([array]).outputs
    assert out.tobytes() == array.tobytes() * 2


@pytest.mark.parametrize(
    ("dtype", "array"),
    [
        ("f16", np.zeros(3, "V2")),  # numpy has a name for what it lacks not
        ("s16", np.zeros(3, "V2")),
        ("u8", np.zeros(3, "V1")),
        ("bf16", np.zeros(3, "V1")),
        ("f8e4m3fn", np.zeros(3, "V2")),
        ("u4", np.zeros(3, np.int16)),
        ("u4", np.zeros(3, bool)),
        ("f32", np.zeros(3, [("a", "f4")])),
    ],
)
def test_bytes_of_another_type_are_refused(dtype: str, array: np.ndarray) -> None:
    with pytest.raises(InputError, match=rf"arg0 is .*; the program takes {dtype}"):
        identity(dtype).run([array])


@pytest.mark.parametrize(
    ("dtype", "least", "most"), [("s4", -8, 7), ("u4", 0, 15), ("s2", -2, 1), ("u2", 0, 3)]
)
def test_bytes_are_narrow_integers_if_they_fit(dtype: str, least: int, most: int) -> None:
    model = identity(dtype)
    for kind in (np.int8, np.uint8):
        low = max(least, int(np.iinfo(kind).min))
        array = np.array([low, 0, most], kind)
        (out,) = model.run([array]).outputs
        np.testing.assert_array_equal(out.astype(int), np.tile(array.astype(int), (2, 1)))
        for wrong in {low - 1, most + 1, 127} - {-1}:
            message = f"arg0 holds {wrong}; {dtype} goes from {least} to {most}"
            with pytest.raises(InputError, match=message):
                model.run([np.array([0, wrong, 0], kind)])
    with pytest.raises(InputError, match=f"arg0 holds 56; {dtype} goes from 0 to"):
        model.run([np.ones(3, ml_dtypes.float8_e4m3fn).view("V1")])


def test_integers_of_either_byte_order_are_taken() -> None:
    (out,) = identity("s32").run([np.array([1, 2, 3], ">i4")]).outputs
    np.testing.assert_array_equal(out, [[1, 2, 3]] * 2)


def test_nothing_is_loaded_of_a_file_that_does_not_fit(tmp_path: Path, monkeypatch) -> None:
    """A name, a shape, a type or a budget is enough to refuse it."""
    monkeypatch.setattr("ncc_runtime.array_files.StoredArray.__array__", None)
    neff = tmp_path / "m.neff"
    compile_text(STEP).save(neff)
    for arrays, memory in (
        ({**given(), "y": X}, "1GB"),
        ({**given(), "x": X[1:]}, "1GB"),
        ({**given(), "x": X.astype("i4")}, "1GB"),
        (given(), "1KB"),
    ):
        np.savez(tmp_path / "in.npz", **arrays)
        words = ["run", str(neff), "--inputs", str(tmp_path / "in.npz"), "--memory", memory]
        assert main(words) == 1


def test_a_dump_of_jax_takes_its_own_whole_arrays_by_name() -> None:
    """The shards of a real training step, put together again, give what the shards give."""
    folder = Path(__file__).parents[1] / "data" / "hlo"
    model = ncc_runtime.load(compile_file(folder / "mlp_train_dp2_tp4.hlo"))
    with np.load(folder / "mlp_train_dp2_tp4.in.npz") as file:
        shards = {int(name.removeprefix("arg")): file[name] for name in file.files}
    whole = {  # dp 2 x tp 4, rank = 4 * dp + tp
        "w1": np.concatenate(list(shards[0][:4]), axis=1),
        "w2": np.concatenate(list(shards[1][:4]), axis=0),
        "x": np.concatenate(list(shards[2][::4]), axis=0),
        "y": np.concatenate(list(shards[3][::4]), axis=0),
    }
    expected = model.run(shards).outputs
    for found, wanted in zip(model.run(whole).outputs, expected, strict=True):
        np.testing.assert_array_equal(found, wanted)
