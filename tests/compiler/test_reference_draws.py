"""The drawn graphs themselves: they are valid programs, and the reference can run them."""

import numpy as np
from hypothesis import HealthCheck, given, settings

from ncc_compiler.diagnostics import Source
from ncc_compiler.ir.graph import Module
from ncc_compiler.ir.load import load_module
from ncc_compiler.ir.text.printer import print_module
from ncc_compiler.ir.types import ArrayType, TupleType
from ncc_compiler.reference.numbers import dtype_of
from tests.draws_graphs import cases
from tests.example_count import examples
from tests.reference_runs import reference_outputs

many = settings(max_examples=examples(100), suppress_health_check=[HealthCheck.too_slow])


def result_types(module: Module) -> list[ArrayType]:
    entry = module.entry_computation
    root = entry.nodes[entry.root].type
    types = root.elements if isinstance(root, TupleType) else (root,)
    return [type_ for type_ in types if isinstance(type_, ArrayType)]


@many
@given(cases())
def test_a_drawn_module_prints_verifies_and_reads_back_equal(case):
    assert load_module(Source("drawn.ir", print_module(case.module)), None) == case.module


@many
@given(cases())
def test_results_of_a_drawn_module_have_the_declared_types(case):
    outputs = reference_outputs(case.module, case.inputs)
    found = [ArrayType(dtype_of(output), output.shape[1:]) for output in outputs]
    assert found == result_types(case.module)


@many
@given(cases())
def test_a_drawn_module_stays_finite(case):
    outputs = reference_outputs(case.module, case.inputs)
    assert all(np.isfinite(output.astype(np.float64)).all() for output in outputs)
