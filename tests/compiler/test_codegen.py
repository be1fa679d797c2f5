"""Code generation as a whole: every order of the queues gives the same values."""

from collections.abc import Iterator

import attrs
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_compiler.codegen.generate import generate
from ncc_compiler.codegen.lower import lower
from ncc_compiler.ir.graph import Module
from ncc_compiler.options import CompileOptions
from ncc_compiler.passes.manager import run_passes
from ncc_compiler.pipelines import pipeline
from ncc_runtime.neff.check import check
from ncc_runtime.neff.isa import ENGINES
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.table import NONE, InstrTable
from tests.compiler.queue_machine import (
    QueueMachine,
    StuckError,
    any_order,
    late,
    names_from_draft,
)
from tests.draws_graphs import cases
from tests.draws_queues import busy_modules
from tests.example_count import examples

LEVELS = st.sampled_from([0, 1, 2])


def canonical(module: Module, level: int) -> Module:
    return run_passes(module, pipeline(CompileOptions(level=level)), verify_each=True)


def queue_names(program: Program) -> list[str]:
    streams = {f"stream {placeholder.stream}" for placeholder in program.placeholders}
    return [*(engine.value for engine in ENGINES), *sorted(streams)]


def results_of_many_orders(program: Program) -> Iterator[list[int] | None]:
    """Names of the outputs, or None where the queues got stuck."""
    orders = [late(name) for name in queue_names(program)] + [any_order(k) for k in range(4)]
    for order in orders:
        try:
            yield QueueMachine(program, order).run()
        except StuckError:
            yield None


@settings(max_examples=examples(40))
@given(case=cases(most_ops=20), level=LEVELS)
def test_generated_programs_keep_the_contract(case, level):
    assert check(generate(canonical(case.module, level))) == ()


@settings(max_examples=examples(25))
@given(case=cases(most_ops=20), level=LEVELS)
def test_every_order_of_the_queues_computes_the_same(case, level):
    module = canonical(case.module, level)
    expected = names_from_draft(lower(module))
    assert all(found == expected for found in results_of_many_orders(generate(module)))


@settings(max_examples=examples(150))
@given(module=busy_modules())
def test_every_order_of_busy_queues_computes_the_same(module):
    program, expected = generate(module), names_from_draft(lower(module))
    assert check(program) == ()
    assert all(found == expected for found in results_of_many_orders(program))


def without_wait(program: Program, engine, pc: int) -> Program:
    rows = list(program.queues[engine])
    rows[pc] = attrs.evolve(rows[pc], wait_sem=NONE, wait_value=0)
    return attrs.evolve(program, queues={**program.queues, engine: InstrTable.from_rows(rows)})


@settings(max_examples=examples(50))
@given(module=busy_modules(most_ops=15))
def test_no_wait_can_be_left_out(module):
    program = generate(canonical(module, 1))
    expected = names_from_draft(lower(canonical(module, 1)))
    for engine in ENGINES:
        for pc, row in enumerate(program.queues[engine]):
            if row.wait_sem != NONE:
                mutant = without_wait(program, engine, pc)
                assert any(found != expected for found in results_of_many_orders(mutant))
