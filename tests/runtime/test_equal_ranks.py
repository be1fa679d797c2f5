"""What is equal on ranks is computed and stored once, with the bits of every rank's own work."""

from collections.abc import Sequence

import attrs
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.ir.text.printer import print_module
from ncc_runtime.execution.values import device_memory, devices, equal_ranks, normal_form
from ncc_runtime.execution.values.kernels import blockwise, folds, regions
from ncc_runtime.execution.values.kernels.numbers import canonical_nans
from ncc_runtime.execution.values.tape_values import TapeValues
from ncc_runtime.lowering.executable import EngineQueue
from ncc_runtime.neff.program import Region, RegionInstr
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.options import RunOptions
from ncc_runtime.ranked_array import RankedArray
from ncc_runtime.runtime import Model
from tests.draws_graphs import cases
from tests.draws_loops import inputs_of, looping_modules
from tests.draws_training import inputs as training_inputs
from tests.draws_training import training_steps
from tests.example_count import examples

QUICK = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])


@st.composite
def sizes(draw: st.DrawFn) -> dict[tuple[object, str], int]:
    """From which size on things are shared, cut, divided or not copied: all, as ever, or any."""
    return {
        (equal_ranks, "SMALL_BYTES"): draw(st.sampled_from([0, 0, 200, 1 << 16])),
        (devices, "SMALL_BYTES"): draw(st.sampled_from([0, 1 << 16])),
        (devices, "SPLIT_WORK"): draw(st.sampled_from([1, 1 << 20])),
        (device_memory, "BORROWED_BYTES"): draw(st.sampled_from([1, 1 << 16])),
        (blockwise, "BLOCK_BYTES"): draw(st.sampled_from([64, 1 << 19])),
        (normal_form, "STACKED_BYTES"): draw(st.sampled_from([0, 1 << 14])),
        (normal_form, "BLOCK_BYTES"): draw(st.sampled_from([64, 1 << 18])),
        (normal_form, "TASK_BYTES"): draw(st.sampled_from([1, 1 << 24])),
    }


@st.composite
def shared(draw: st.DrawFn, arrays: Sequence[np.ndarray]) -> list[RankedArray]:
    """Arrays [ranks, *shape] of which some ranks get another one's, and say so."""
    found = []
    nans = draw(st.booleans())
    for array in arrays:
        ranks = len(array)
        if nans and array.dtype.kind == "f":  # not the canonical one
            array = array.copy()
            array.reshape(-1)[:: draw(st.integers(1, 9))] = -np.nan
        how = draw(st.sampled_from(["each", "same", "some"]))
        if how == "same":
            found.append(RankedArray.same(array[0], ranks))
        elif how == "each":
            found.append(RankedArray.of_each(array))
        else:
            labels = draw(st.lists(st.integers(0, ranks - 1), min_size=ranks, max_size=ranks))
            found.append(RankedArray(array, np.array(labels)))
    return found


def assert_as_literal(
    model: Model, given_: Sequence[RankedArray], patched: dict[tuple[object, str], int]
) -> None:
    others = [RankedArray(np.roll(one.array, 1, 0), one.row_of) for one in given_]  # equal as these
    literal, of_others = (model.run(some, clock=False, checked=True) for some in (given_, others))
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), value in patched.items():
            patch.setattr(module, name, value)
        for threads, some, wanted in (
            (1, given_, literal),
            (2, given_, literal),
            (2, others, of_others),
            (2, given_, literal),
        ):
            run = model.run(some, clock=False, threads=threads)
            for mine, theirs in zip(run.outputs, wanted.outputs, strict=True):
                assert mine.tobytes() == theirs.tobytes()
            assert all(out.flags.writeable for out in run.outputs)


@QUICK
@given(data=st.data(), case=cases(), patched=sizes())
def test_a_program_has_the_bits_of_the_literal_interpreter(data, case, patched):
    model = ncc_runtime.load(ncc_compiler.compile_text(print_module(case.module)), "trn1")
    assert_as_literal(model, data.draw(shared(case.inputs)), patched)


@QUICK
@given(data=st.data(), module=looping_modules(), patched=sizes())
def test_loops_and_branches_have_the_bits_of_the_literal_interpreter(data, module, patched):
    model = ncc_runtime.load(ncc_compiler.compile_text(print_module(module)))
    assert_as_literal(model, data.draw(shared([inputs_of(module)])), patched)


@QUICK
@given(data=st.data(), text=training_steps(), patched=sizes(), level=st.integers(0, 2))
def test_training_steps_have_the_bits_of_the_literal_interpreter(data, text, patched, level):
    options = ncc_compiler.CompileOptions(level=level)
    model = ncc_runtime.load(ncc_compiler.compile_text(text, options))
    assert_as_literal(model, data.draw(shared(training_inputs())), patched)


BRANCHES = """HloModule m, replica_count=1, num_partitions=2
one {
  p = (f32[64], f32[64]) parameter(0)
  y = f32[64] get-tuple-element(p), index=1
  t = f32[64] cosine(y)
  u = f32[64] sine(t)
  ROOT r = f32[64] add(t, u)
}
two {
  p = (f32[64], f32[64]) parameter(0)
  a = f32[64] get-tuple-element(p), index=0
  y = f32[64] get-tuple-element(p), index=1
  ROOT r = f32[64] subtract(a, y)
}
ENTRY main {
  x = f32[64] parameter(0)
  y = f32[64] parameter(1)
  which = pred[] parameter(2)
  a = f32[64] tanh(x)
  b = (f32[64], f32[64]) tuple(a, y)
  ROOT c = f32[64] conditional(which, b, b), true_computation=one, false_computation=two
}
"""


def test_a_branch_that_the_performer_does_not_take_reads_memory_of_its_own() -> None:
    """The first branch writes over `a`, which the second reads; no rank takes both."""
    program = ncc_compiler.compile_text(BRANCHES, ncc_compiler.CompileOptions(level=0)).program
    number = {buffer.name: k for k, buffer in enumerate(program.buffers)}
    buffers = list(program.buffers)
    buffers[number["t"]] = attrs.evolve(buffers[number["t"]], address=buffers[number["a"]].address)
    model = ncc_runtime.load(attrs.evolve(program, buffers=tuple(buffers)))
    x, y = np.arange(64, dtype=np.float32), np.ones(64, np.float32)
    which = np.array([True, False])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(equal_ranks, "SMALL_BYTES", 0)
        (found,) = model.run(x, y, which, clock=False).outputs
        (same,) = model.run(x, y, np.array([False, False]), clock=False).outputs
    np.testing.assert_array_equal(same, np.tanh([x, x]) - y)
    np.testing.assert_array_equal(found[1], same[1])


MESH = """HloModule step, replica_count=1, num_partitions=8,
  input_output_alias={ {1}: (1, {}, may-alias) }
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
ENTRY main {
  x = f32[64,32] parameter(0)
  w = f32[32,64] parameter(1)
  zero = f32[] constant(0)
  xx = f32[64,32] multiply(x, x)
  sums = f32[64] reduce(xx, zero), dimensions={1}, to_apply=add
  scale = f32[64] rsqrt(sums)
  wide = f32[64,32] broadcast(scale), dimensions={0}
  h = f32[64,32] multiply(x, wide)
  y = f32[64,64] dot(h, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  back = f32[64,32] dot(y, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}
  whole = f32[64,32] all-reduce(back), replica_groups={{0,1,2,3},{4,5,6,7}}, channel_id=1,
    use_global_device_ids=true, to_apply=add
  sum = f32[64,32] add(x, whole)
  g = f32[32,64] dot(h, y), lhs_contracting_dims={0}, rhs_contracting_dims={0}
  all = f32[32,64] all-reduce(g), replica_groups={{0,4},{1,5},{2,6},{3,7}}, channel_id=2,
    use_global_device_ids=true, to_apply=add
  new = f32[32,64] subtract(w, all)
  ROOT t = (f32[64,32], f32[32,64]) tuple(sum, new)
}
"""
"""A step on 2 (data) by 4 (model) ranks: x is the same along the model axis, w along data."""

DATA, MODEL = np.repeat([0, 1], 4), np.tile(np.arange(4), 2)


def on_a_mesh() -> tuple[Model, list[RankedArray]]:
    neff = ncc_compiler.compile_text(MESH, ncc_compiler.CompileOptions(level=0))
    draw = np.random.default_rng(0)
    x, w = (draw.standard_normal(shape, np.float32) for shape in ((2, 64, 32), (4, 32, 64)))
    return ncc_runtime.load(neff), [RankedArray(x, DATA), RankedArray(w, MODEL)]


@pytest.fixture
def nothing_is_small(monkeypatch):
    monkeypatch.setattr(equal_ranks, "SMALL_BYTES", 0)


def test_norms_are_computed_once_along_the_model_axis_and_updates_once_along_data(
    nothing_is_small,
) -> None:
    model, arrays = on_a_mesh()
    executable = model.executable
    tape = model._tape(RunOptions())
    assert tape is not None
    forms = {number: one.form for number, one in model._pure.items()}
    found = equal_ranks.equal_ranks(TapeValues(tape, forms), [one.row_of for one in arrays])
    performers: dict[str, set[tuple[int, ...]]] = {}
    for key, row in found.rows.items():
        if isinstance(key, tuple):
            queue = executable.queues[key[0]]
            assert isinstance(queue, EngineQueue)
            tensor = queue.table[key[1]].results[0]
        else:
            tensor = executable.program.placeholders[key].results[0]
        name = executable.program.tensors[tensor].name
        performers.setdefault(name, set()).add(tuple(np.unique(row.performed).tolist()))
    along_model, along_data, apart = {(0, 4)}, {(0, 1, 2, 3)}, {tuple(range(8))}
    for name in ("xx", "sums", "scale", "wide", "h", "whole", "sum"):
        assert performers[name] == along_model, name
    for name in ("y", "back", "g"):
        assert performers[name] == apart, name
    for name in ("all", "new"):
        assert performers[name] == along_data, name


def test_memory_holds_what_is_equal_once(nothing_is_small) -> None:
    model, arrays = on_a_mesh()
    run = model.run(arrays, clock=False)
    (machine,) = model._machines.values()
    program = model.executable.program
    buffers = {buffer.name: buffer for buffer in program.buffers}

    def rows_of(name: str) -> list[int]:
        buffer = buffers[name]
        memory = machine.arena.bytes[:, buffer.address : buffer.end]
        return np.flatnonzero(memory.any(axis=1)).tolist()

    assert rows_of("h") == rows_of("x") == [0, 4]
    assert rows_of("w") == [0, 1, 2, 3]
    assert rows_of("y") == [*range(8)]
    assert [len(out.array) for out in run.ranked_outputs] == [2, 4]
    assert [out.shape for out in run.outputs] == [(8, 64, 32), (8, 32, 64)]


def test_a_state_that_is_fed_back_stays_equal_where_it_is(nothing_is_small) -> None:
    model, arrays = on_a_mesh()
    by_hand, w = [], arrays[1].whole()
    for _ in range(3):
        run = model.run([arrays[0].whole(), w], clock=False, checked=True)
        by_hand.append([out.tobytes() for out in run.outputs])
        w = run.outputs[1]
    for threads in (1, 2):
        runs = model.run_steps(3, arrays, clock=False, threads=threads)
        for run, wanted in zip(runs, by_hand, strict=True):
            assert [out.tobytes() for out in run.outputs] == wanted
            assert [len(out.array) for out in run.ranked_outputs] == [2, 4]


def test_outputs_are_the_callers_own(nothing_is_small) -> None:
    model, arrays = on_a_mesh()
    first = model.run(arrays, clock=False)
    wanted = [out.copy() for out in first.outputs]
    for out in first.outputs:
        out[...] = 0
    again = model.run(arrays, clock=False)
    for out, one in zip(again.outputs, wanted, strict=True):
        np.testing.assert_array_equal(out, one)
    assert not any(out.any() for out in first.outputs)


def test_a_scalar_that_ranks_share_is_read_anew_in_every_run(nothing_is_small) -> None:
    text = """HloModule m, replica_count=3
add { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
ENTRY main {
  x = f32[6] parameter(0)
  y = f32[6] parameter(1)
  zero = f32[] constant(0)
  sum = f32[] reduce(x, zero), dimensions={0}, to_apply=add
  wide = f32[6] broadcast(sum), dimensions={}
  ROOT z = f32[6] add(wide, y)
}"""
    model = ncc_runtime.load(ncc_compiler.compile_text(text, ncc_compiler.CompileOptions(level=0)))
    y = np.arange(18, dtype=np.float32).reshape(3, 6)
    for number in range(4):
        x = np.full(6, number, np.float32)
        (found,) = model.run(x, y, clock=False).outputs
        np.testing.assert_array_equal(found, y + 6 * number)


def test_one_array_for_all_ranks_is_not_compared_but_known() -> None:
    array = np.arange(6.0).reshape(2, 3)
    assert RankedArray.of_each(np.broadcast_to(array, (4, 2, 3))).row_of.tolist() == [0] * 4
    assert RankedArray.of_each(np.stack([array] * 4)).row_of.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("op", "dtype"),
    [
        (op, dtype)
        for op in ("maximum", "minimum", "add", "multiply")
        for dtype in (DType.F32, DType.F64, DType.S32, DType.U8)
        if not (op in folds.SUMS and dtype.is_float)  # which go by numpy's order, not in pairs
    ],
)
def test_folds_by_numpys_loops_have_the_bits_of_folds_in_pairs(op: str, dtype: DType) -> None:
    draw = np.random.default_rng(0)
    region = Region("r", (dtype, dtype), (RegionInstr(op, (0, 1), dtype),), (2,))
    join = folds.fold_of_rows(op, dtype.numpy)
    assert join is not None
    some = [0.0, -0.0, 1, -1, np.inf, -np.inf, np.nan, 2] if dtype.is_float else [0, 1, 2, 3]
    for size in (1, 2, 3, 7, 40):
        rows = draw.choice(np.array(some, dtype.numpy), (200, size))
        start = draw.choice(np.array(some, dtype.numpy), 200)
        pairs = folds._by_region(region, [rows[..., None]])
        with np.errstate(all="ignore"):
            (wanted,) = regions.evaluate(region, [start, *(pair[:, 0] for pair in pairs)])
            assert canonical_nans(join(start, rows)).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("op", folds.SUMS)
@pytest.mark.parametrize("dtype", [DType.F32, DType.F64])
@pytest.mark.parametrize("part", [64, 1 << 17])
def test_sums_over_any_dimensions_have_the_bits_of_sums_over_the_last(
    op: str, dtype: DType, part: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of numpy over contiguous rows."""
    monkeypatch.setattr(folds, "PART_ELEMENTS", part)
    draw = np.random.default_rng(0)
    region = Region("r", (dtype, dtype), (RegionInstr(op, (0, 1), dtype),), (2,))
    ufunc = folds.SUMS[op]
    start = draw.standard_normal(2).astype(dtype.numpy)
    for size in (*range(1, 20), 127, 128, 129, 255, 256, 257, 1000, 1031):
        array = draw.standard_normal((2, 3, size, 5)).astype(dtype.numpy)
        array[:, 0] = -0.0
        rows = np.ascontiguousarray(np.moveaxis(array, 2, 3))
        wanted = canonical_nans(ufunc(start.reshape(2, 1, 1), ufunc.reduce(rows, axis=3)))
        for given_, axis in ((rows, 2), (array, 1)):
            (found,) = folds.fold(region, [given_], [start], (axis,))
            assert found.tobytes() == wanted.tobytes(), size
