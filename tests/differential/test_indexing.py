"""Ops that move elements to places that are data: random dimension numbers, any rank its own."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.ir.printer import print_module
from tests import draws_local_ops as local
from tests.draws_graphs import cases
from tests.draws_indexing_ops import INDEXING_OPS
from tests.reference_runs import assert_close, reference_outputs

many = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


@pytest.mark.parametrize("op", INDEXING_OPS, ids=lambda op: op.__name__)
@many
@given(data=st.data())
def test_an_indexing_op_computes_what_the_graph_means(op, data):
    ops = st.sampled_from([op, local.new_parameter, op])
    case = data.draw(cases(4, ops))
    neff = ncc_compiler.compile_text(print_module(case.module))
    run = ncc_runtime.load(neff, topology="trn2.48xlarge").run(list(case.inputs))
    expected = reference_outputs(case.module, case.inputs)
    for actual, wanted, tolerance in zip(run.outputs, expected, case.tolerances, strict=True):
        assert_close(actual, wanted, tolerance)
