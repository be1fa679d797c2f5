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
