"""Random loops and branches through the whole pipeline against the reference, bit for bit."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.ir.text.printer import print_module
from ncc_compiler.options import CompileOptions
from tests.draws_loops import inputs_of, looping_modules
from tests.example_count import examples
from tests.reference_runs import reference_outputs


@pytest.mark.parametrize("level", [0, 1, 2])
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(module=looping_modules(), shuffle=st.one_of(st.none(), st.integers(0, 9)))
def test_a_placed_program_goes_the_way_of_the_reference(level, module, shuffle):
    neff = ncc_compiler.compile_text(print_module(module), options=CompileOptions(level=level))
    given_array = inputs_of(module)
    run = ncc_runtime.load(neff).run([given_array], checked=True, shuffle_seed=shuffle)
    for found, expected in zip(run.outputs, reference_outputs(module, [given_array]), strict=True):
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize("level", [0, 1])
@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(module=looping_modules(), seed=st.integers(0, 9))
def test_a_tape_does_what_the_queues_do(level, module, seed):
    neff = ncc_compiler.compile_text(print_module(module), options=CompileOptions(level=level))
    given_array = inputs_of(module)
    model = ncc_runtime.load(neff)
    by_queues = model.run([given_array], shuffle_seed=seed)
    for _ in range(2):
        played = model.run([given_array])
        for found, expected in zip(played.outputs, by_queues.outputs, strict=True):
            assert found.tobytes() == expected.tobytes()
        for found, expected in zip(played.traffic, by_queues.traffic, strict=True):
            np.testing.assert_array_equal(found.sent, expected.sent)
        assert played.time_us == by_queues.time_us  # the clock reads the decisions of all queues
