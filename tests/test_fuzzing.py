"""Mutated real modules: the compiler says what they mean or what is wrong with them, no third."""

import contextlib

import pytest
from hypothesis import HealthCheck, given, settings

from ncc_compiler.diagnostics import CompileError
from ncc_compiler.driver import compile_text
from ncc_compiler.options import CompileOptions
from tests.draws_mutations import mutated_modules
from tests.example_count import examples

SLOWNESS = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example]


def compiled(text: str, level: int) -> None:
    with contextlib.suppress(CompileError):
        compile_text(text, CompileOptions(level=level))


@given(mutated_modules())
@settings(max_examples=examples(60), suppress_health_check=SLOWNESS)
def test_a_mutated_module_gives_a_program_or_diagnostics(text: str) -> None:
    compiled(text, level=1)


@pytest.mark.slow
@given(mutated_modules())
@settings(max_examples=10_000, suppress_health_check=SLOWNESS)
def test_ten_thousand_mutated_modules_give_programs_or_diagnostics(text: str) -> None:
    compiled(text, level=2)
