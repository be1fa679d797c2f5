"""Collectives of several operands, taken apart and joined again by when operands are ready."""

from pathlib import Path

import pytest

import ncc_compiler
from ncc_compiler.diagnostics import Source
from ncc_compiler.ir.graph import Node
from ncc_compiler.ir.load import load_module
from ncc_compiler.options import CompileOptions
from ncc_compiler.overlap.bucket import SplitVariadicCollectives
from ncc_compiler.passes.manager import run_passes
from ncc_compiler.pipelines import pipeline
from ncc_runtime.options import LoadOptions
from ncc_runtime.placement import PlaceOptions
from ncc_runtime.report.overlap import all_reduces
from ncc_runtime.report.run import Run
from ncc_runtime.runtime import load, load_on, program_of
from tests.compiler.small_modules import SUM
from tests.compiler.small_modules import load as small
from tests.draws_graphs import random_array
from tests.reference_runs import assert_close, reference_outputs

STEP = (Path(__file__).parents[1] / "data" / "hlo" / "mlp_train_dp8.hlo").read_text()
"""JAX's step of four layers, whose eight gradients XLA sums in one all-reduce at the end."""

PAIR = "%x = f32[4] parameter(0)", "%y = f32[2] parameter(1)"
BOTH = "%t = (f32[4], f32[2]) all-reduce(%x, %y), to_apply=%sum"


def apart(*lines: str, one: SplitVariadicCollectives | None = None) -> list[Node]:
    """The collectives after the pass."""
    module = run_passes(
        small(*lines, before=SUM), [one or SplitVariadicCollectives()], verify_each=True
    )
    nodes = module.entry_computation.nodes
    return [node for node in nodes if node.op.startswith(("all-", "reduce-"))]


def test_every_operand_gets_a_collective_of_its_own():
    assert [str(node.type) for node in apart(*PAIR, BOTH)] == ["f32[4]", "f32[2]"]


def test_collectives_stay_as_they_were_written_on_request():
    assert len(apart(*PAIR, BOTH, one=SplitVariadicCollectives(enabled=0))) == 1


def test_a_token_stays_with_its_collective():
    assert len(apart(*PAIR, f'{BOTH}, frontend_attributes={{has_token="1"}}')) == 1


def test_operands_of_several_element_types_stay_together():
    """They could not be joined again."""
    types = "%t = (f32[4,4], s32[4,2]) all-gather(%x, %y), dimensions={0}"
    types += ", channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true"
    lines = "%x = f32[1,4] parameter(0)", "%y = s32[1,2] parameter(1)"
    assert len(apart(*lines, types)) == 1


def test_halves_of_an_all_reduce_are_taken_apart():
    start = BOTH.replace("all-reduce(", "all-reduce-start(").replace("%t =", "%s =")
    done = "%t = (f32[4], f32[2]) all-reduce-done(%s)"
    module = small(*PAIR, start, done, before=SUM)
    options = CompileOptions(level=2, pass_options={"bucket.limit_bytes": "0"})
    found = run_passes(module, pipeline(options), verify_each=True).entry_computation.nodes
    assert sum(node.op == "all-reduce" for node in found) == 2


def test_a_joined_sum_of_which_ranks_use_their_parts_is_split():
    lines = (
        "%x = f32[8] parameter(0)",
        "%t = (f32[8], f32[8]) all-reduce(%x, %x), to_apply=%sum, replica_groups={{0,1,2,3}}, "
        "channel_id=1, use_global_device_ids=true",
        "%a = f32[8] get-tuple-element(%t), index=0",
        "%rank = u32[] partition-id()",
        "%two = u32[] constant(2)",
        "%first = u32[] multiply(%rank, %two)",
        "%own = f32[2] dynamic-slice(%a, %first), dynamic_slice_sizes={2}",
    )
    module = small(*lines, before=SUM)
    found = run_passes(module, pipeline(CompileOptions(level=2)), verify_each=True)
    assert [node.op for node in found.entry_computation.nodes if "reduce" in node.op] == [
        "reduce-scatter"
    ]


def step(level: int, place: PlaceOptions) -> Run:
    program = program_of(ncc_compiler.compile_text(STEP, CompileOptions(level=level)))
    return load_on(program, place, LoadOptions()).run(values=False, verify=False)


@pytest.mark.parametrize(
    ("place", "share", "time"),
    [
        (PlaceOptions("trn1.32xlarge"), 0.95, 0.9),
        (PlaceOptions("trn2.48xlarge"), 0.8, 0.85),
        (PlaceOptions("trn2.48xlarge", nodes=2, placement="spread"), 0.7, 0.95),
    ],
    ids=str,
)
def test_the_gradients_of_a_jax_program_are_summed_while_others_are_computed(place, share, time):
    joined, run = step(1, place), step(2, place)
    assert run.trace is not None
    found = all_reduces(run.trace)
    assert found is not None
    assert [row.operands for row in joined.collectives] == [8]
    assert [row.operands for row in run.collectives] == [2, 2, 2, 2]
    assert (found.together.share or 0) >= share
    assert (run.time_us or 0) <= time * (joined.time_us or 0)


@pytest.mark.parametrize("small_bytes", ["0", "1500", "262144"])
def test_values_of_a_jax_program_stay(small_bytes):
    text = STEP.replace("1024", "16").replace("512", "8")
    module = load_module(Source("step.hlo", text))
    options = CompileOptions(level=2, pass_options={"bucket.small_bytes": small_bytes})
    model = load(ncc_compiler.compile_text(text, options), topology="trn2.48xlarge")
    entry = module.entry_computation
    arrays = [entry.nodes[position].array for position in entry.parameters()]
    inputs = [random_array(array, module.ranks, seed) for seed, array in enumerate(arrays)]
    expected = reference_outputs(module, inputs)
    for mine, theirs in zip(model.run(inputs).outputs, expected, strict=True):
        assert_close(mine, theirs)
