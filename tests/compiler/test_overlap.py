"""What -O2 does for overlap: values stay, memory keeps within its bound, files are the same."""

from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_runtime
from ncc_compiler.codegen.leaves import leaves
from ncc_compiler.diagnostics import Source
from ncc_compiler.driver import compile_text
from ncc_compiler.ir.graph import Computation, Module
from ncc_compiler.ir.load import load_module
from ncc_compiler.options import CompileOptions
from ncc_compiler.overlap.analyses import LiveRanges, MemoryBudget, live_ranges_of, peak_bytes
from ncc_compiler.overlap.schedule import Schedule
from ncc_compiler.passes.manager import run_passes
from ncc_compiler.pipelines import pipeline
from tests.compiler.small_modules import assert_same_bits
from tests.draws_graphs import cases
from tests.draws_training import inputs, training_steps
from tests.example_count import examples
from tests.reference_runs import reference_outputs

OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "bucket.small_bytes": st.sampled_from(["0", "100", "100000000"]),
        "bucket.limit_bytes": st.sampled_from(["0", "300", "100000000"]),
        "schedule.limit_percent": st.sampled_from(["0", "100", "120", "1000"]),
        "schedule.early_all_gather_layers": st.sampled_from(["0", "1", "2"]),
        "schedule.late_reduce_scatter_layers": st.sampled_from(["0", "1", "2"]),
        "split-all-reduces.enabled": st.sampled_from(["0", "1"]),
        "take-apart.enabled": st.sampled_from(["0", "1"]),
    },
)


def loaded(text: str) -> Module:
    return load_module(Source("step.ir", text))


@settings(max_examples=examples(150))
@given(text=training_steps(), options=OPTIONS)
def test_a_training_step_keeps_every_bit(text, options):
    module = loaded(text)
    passes = pipeline(CompileOptions(level=2, pass_options=options))
    thorough = run_passes(module, passes, verify_each=True)
    given = inputs()
    assert_same_bits(reference_outputs(thorough, given), reference_outputs(module, given))


@settings(max_examples=examples(15))
@given(text=training_steps())
def test_a_placed_training_step_computes_the_same_at_every_level(text):
    outputs = [
        ncc_runtime.load(compile_text(text, CompileOptions(level=level)), topology="trn1")
        .run(inputs(), clock=False)
        .outputs
        for level in (0, 2)
    ]
    assert_same_bits(outputs[1], outputs[0])


@settings(max_examples=examples(20))
@given(text=training_steps())
def test_compiling_twice_gives_the_same_file(text):
    options = CompileOptions(level=2)
    assert compile_text(text, options).data == compile_text(text, options).data


_ENDS = ("constant", "parameter")


def lifetimes(body: Computation) -> LiveRanges:
    return live_ranges_of(body, [0] * len(body.nodes), (body.root,))


@settings(max_examples=examples(100))
@given(
    module=st.one_of(training_steps().map(loaded), cases().map(lambda case: case.module)),
    percent=st.sampled_from([100, 125, 200]),
)
def test_an_order_takes_at_most_the_memory_that_it_may(module, percent):
    passes = pipeline(CompileOptions(level=2))[:-1]
    module = run_passes(module, passes)
    body = module.entry_computation
    if any(node.op in ("while", "conditional") for node in body.nodes):
        return  # each stretch between them has its own bound
    ordered = Schedule(limit_percent=percent, free_bytes=0).run(module).entry_computation
    before, after = (peak_bytes(lifetimes(one), range(len(one.nodes))) for one in (body, ordered))
    ends = [body.nodes[body.root], *(one for one in body.nodes if one.op in _ENDS)]
    whole = before + sum(array.size_bytes for one in ends for array in leaves(one.type))
    assert (after - before) * 100 <= whole * (percent - 100)


@settings(max_examples=examples(100))
@given(
    module=st.one_of(training_steps().map(loaded), cases().map(lambda case: case.module)),
    more=st.integers(0, 4000),
    data=st.data(),
)
def test_a_node_has_room_where_the_rest_fits_behind_it_in_program_order(module, more, data):
    """By trying it: whatever went ahead before, and nodes whose operands are there."""
    body = module.entry_computation
    found, nodes = lifetimes(body), range(len(body.nodes))
    limit = peak_bytes(found, nodes) + more
    remainder, done = MemoryBudget(found, nodes, limit), list[int]()
    while len(done) < len(nodes):
        left = [one for one in nodes if one not in done]
        assert remainder.first == left[0]
        ready = [one for one in left if not set(body.nodes[one].operands) - set(done)]
        for one in ready:
            rest = [other for other in left if other != one]
            fits = peak_bytes(found, [*done, one, *rest]) <= limit
            assert remainder.has_room(one) == fits
        done.append(data.draw(st.sampled_from([one for one in ready if remainder.has_room(one)])))
        remainder.run(done[-1])
    assert peak_bytes(found, done) <= limit
