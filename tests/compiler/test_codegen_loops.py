"""Control flow in generated programs: every order of the queues takes the same ways."""

from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_compiler.codegen.generate import generate
from ncc_compiler.codegen.lower import lower
from ncc_compiler.ir.graph import Module
from ncc_compiler.options import CompileOptions
from ncc_compiler.passes.manager import run_passes
from ncc_compiler.pipelines import pipeline
from ncc_runtime.neff.check import check
from tests.compiler.queue_machine import QueueMachine, any_order, late, names_from_draft
from tests.compiler.test_codegen import queue_names
from tests.draws_loops import looping_modules
from tests.example_count import examples

LEVELS = st.sampled_from([0, 1, 2])


def canonical(module: Module, level: int) -> Module:
    return run_passes(module, pipeline(CompileOptions(level=level)), verify_each=True)


@settings(max_examples=examples(60))
@given(module=looping_modules(), level=LEVELS)
def test_programs_with_loops_keep_the_contract(module, level):
    assert check(generate(canonical(module, level))) == ()


@settings(max_examples=examples(60))
@given(module=looping_modules(), level=LEVELS)
def test_every_order_of_the_queues_goes_the_same_way(module, level):
    module = canonical(module, level)
    program, expected = generate(module), names_from_draft(lower(module))
    orders = [late(name) for name in queue_names(program)] + [any_order(k) for k in range(3)]
    assert all(QueueMachine(program, order).run() == expected for order in orders)
