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
from ncc_runtime.execution.values import devices, equal_ranks, normal_form
from ncc_runtime.execution.values.kernels import blockwise
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
        (devices, "BORROWED_BYTES"): draw(st.sampled_from([1, 1 << 16])),
        (blockwise, "BLOCK_BYTES"): draw(st.sampled_from([64, 1 << 19])),
        (normal_form, "STACKED_BYTES"): draw(st.sampled_from([0, 1 << 14])),
        (normal_form, "BLOCK_BYTES"): draw(st.sampled_from([64, 1 << 18])),
        (normal_form, "TASK_BYTES"): draw(st.sampled_from([1, 1 << 24])),
    }


@st.composite
def shared(draw: st.DrawFn, arrays: Sequence[np.ndarray]) -> list[RankedArray]:
    """Arrays [ranks, *shape] of which some ranks get another one's, and say so."""
    found = []
    for array in arrays:
        ranks = len(array)
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
    literal = model.run(given_, clock=False, checked=True)
    with pytest.MonkeyPatch.context() as patch:
        for (module, name), value in patched.items():
            patch.setattr(module, name, value)
        for threads in (1, 2, 2):
            run = model.run(given_, clock=False, threads=threads)
            for mine, theirs in zip(run.outputs, literal.outputs, strict=True):
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


def test_a_branch_that_a_representative_does_not_take_reads_memory_of_its_own() -> None:
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
