"""Random graphs through the whole pipeline against the reference, which shares no code with it."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.ir.text.printer import print_module
from ncc_compiler.options import CompileOptions
from tests.draws_graphs import Case, cases
from tests.example_count import examples
from tests.reference_runs import assert_close, reference_outputs

PLACES = [
    {"topology": "trn2.48xlarge"},
    {"topology": "trn2.48xlarge", "placement": "spread"},
    {"topology": "trn1.32xlarge"},
    {"topology": "inf2.48xlarge"},
]
thorough = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])


def assert_runs_as_the_reference_says(case: Case, place: dict, options: CompileOptions) -> None:
    neff = ncc_compiler.compile_text(print_module(case.module), options=options)
    run = ncc_runtime.load(neff, **place).run(list(case.inputs))
    expected = reference_outputs(case.module, case.inputs)
    for actual, wanted, tolerance in zip(run.outputs, expected, case.tolerances, strict=True):
        assert_close(actual, wanted, tolerance)


@pytest.mark.parametrize("level", [0, 1, 2])
@thorough
@given(case=cases(), place=st.sampled_from(PLACES))
def test_a_placed_program_computes_what_the_graph_means(level, case, place):
    assert_runs_as_the_reference_says(case, place, CompileOptions(level=level))


@thorough
@given(cases().filter(lambda case: case.module.ranks % 2 == 0))
def test_a_program_extended_over_two_instances_computes_the_same(case):
    place = {"topology": "trn1.32xlarge", "nodes": 2}
    assert_runs_as_the_reference_says(case, place, CompileOptions())
