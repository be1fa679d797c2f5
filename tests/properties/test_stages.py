"""Random programs cut into stages at other addresses: the same bits, however the cut goes."""

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.ir.text.printer import print_module
from ncc_runtime.runtime import program_of
from tests.draws_graphs import Case, cases
from tests.draws_loops import inputs_of, looping_modules
from tests.example_count import examples
from tests.stage_programs import cut


@st.composite
def cuts(draw: st.DrawFn, ranks: int) -> list[list[int]]:
    """The ranks in two or three parts."""
    parts = draw(st.lists(st.integers(0, 2), min_size=ranks, max_size=ranks))
    found = [[rank for rank in range(ranks) if parts[rank] == part] for part in range(3)]
    return [part for part in found if part]


def assert_cut_computes_the_same(text: str, inputs: list[np.ndarray], parts: list[list[int]]):
    program = program_of(ncc_compiler.compile_text(text))
    whole = ncc_runtime.load(program).run(inputs).outputs
    given_parts = [array[part] for part in parts for array in inputs]
    found = ncc_runtime.load(cut(program, parts)).run(given_parts, checked=True).outputs
    wanted = [array[part] for part in parts for array in whole]
    assert [one.tobytes() for one in found] == [one.tobytes() for one in wanted]


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(case=cases(), data=st.data())
def test_a_graph_cut_into_stages_computes_the_same(case: Case, data: st.DataObject):
    parts = data.draw(cuts(case.module.ranks))
    assert_cut_computes_the_same(print_module(case.module), list(case.inputs), parts)


@settings(max_examples=examples(25), suppress_health_check=[HealthCheck.too_slow])
@given(module=looping_modules(), data=st.data())
def test_loops_and_branches_cut_into_stages_go_the_same_way(module, data: st.DataObject):
    parts = data.draw(cuts(module.ranks))
    assert_cut_computes_the_same(print_module(module), [inputs_of(module)], parts)
