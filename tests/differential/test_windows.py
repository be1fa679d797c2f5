"""Windows of every kind through the whole pipeline against the reference, which pads nothing."""

import attrs
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.ir.text.printer import print_module
from tests.draws_graphs import Case, cases
from tests.draws_local_ops import new_parameter
from tests.draws_windows import WINDOW_OPS
from tests.example_count import examples
from tests.reference_runs import assert_close, reference_outputs

thorough = settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])
window_cases = cases(most_ops=6, ops=st.sampled_from((new_parameter, *WINDOW_OPS)))


@thorough
@given(window_cases)
def test_an_op_with_a_window_computes_what_the_graph_means(case: Case) -> None:
    run = ncc_runtime.load(ncc_compiler.compile_text(print_module(case.module))).run(
        list(case.inputs)
    )
    expected = reference_outputs(case.module, case.inputs)
    for actual, wanted, tolerance in zip(run.outputs, expected, case.tolerances, strict=True):
        assert_close(actual, wanted, tolerance)


@settings(max_examples=examples(30), suppress_health_check=[HealthCheck.too_slow])
@given(window_cases)
def test_a_rank_alone_gets_the_bits_it_gets_among_others(case: Case) -> None:
    alone = attrs.evolve(case.module, replica_count=1, num_partitions=1)
    together = ncc_runtime.load(ncc_compiler.compile_text(print_module(case.module)))
    single = ncc_runtime.load(ncc_compiler.compile_text(print_module(alone)))
    last = case.module.ranks - 1
    many = together.run(list(case.inputs)).outputs
    one = single.run([array[last:] for array in case.inputs]).outputs
    assert [x[last].tobytes() for x in many] == [x[0].tobytes() for x in one]
