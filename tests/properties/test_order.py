"""Whole programs, compute and collectives on floats: bits and times do not hang on the order."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.ir.text.printer import print_module
from ncc_runtime.execution.values import devices
from tests.draws_graphs import Case, cases
from tests.example_count import examples


@pytest.fixture(scope="module", autouse=True)
def every_batch_is_split():
    """Batches are shared out over threads however small they are."""
    patch = pytest.MonkeyPatch()
    patch.setattr(devices, "SPLIT_WORK", 1)
    yield
    patch.undo()


@settings(max_examples=examples(40), suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), seed=st.integers(0, 99))
def test_threads_and_random_order_change_no_bit_of_a_program(case: Case, seed: int):
    neff = ncc_compiler.compile_text(print_module(case.module))
    model = ncc_runtime.load(neff, "trn1")
    plain = model.run(list(case.inputs))
    for settings_ in ({"threads": 8}, {"shuffle_seed": seed}, {"checked": True}):
        run = model.run(list(case.inputs), **settings_)
        assert run.time_us == plain.time_us
        for mine, theirs in zip(run.outputs, plain.outputs, strict=True):
            assert mine.tobytes() == theirs.tobytes()
