"""Passes: all of them keep the values; how they are run and given options."""

from pathlib import Path

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_compiler.diagnostics import InternalError
from ncc_compiler.ir.graph import Module
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.options import CompileOptions
from ncc_compiler.overlap.schedule import Schedule
from ncc_compiler.passes.fold_constants import FoldConstants
from ncc_compiler.passes.manager import Pass, run_passes
from ncc_compiler.passes.remove_dead_code import RemoveDeadCode
from ncc_compiler.passes.simplify import Simplify
from ncc_compiler.pipelines import PIPELINES, pipeline
from ncc_runtime.neff.shared.dtypes import DType
from tests.compiler.small_modules import assert_same_bits, load
from tests.draws_graphs import cases
from tests.example_count import examples
from tests.reference_runs import reference_outputs

ALL_PASSES = {type(one): one for level in PIPELINES.values() for one in level}.values()


@settings(max_examples=examples(60))
@given(case=cases(most_ops=16), level=st.sampled_from([0, 1, 2]))
def test_every_pipeline_keeps_every_bit(case, level):
    passes = pipeline(CompileOptions(level=level))
    module = run_passes(case.module, passes, verify_each=True)
    assert_same_bits(
        reference_outputs(module, case.inputs), reference_outputs(case.module, case.inputs)
    )


@settings(max_examples=examples(60))
@given(case=cases(), one=st.sampled_from(list(ALL_PASSES)))
def test_every_pass_alone_keeps_every_bit(case, one):
    module = run_passes(case.module, [one], verify_each=True)
    assert_same_bits(
        reference_outputs(module, case.inputs), reference_outputs(case.module, case.inputs)
    )


@attrs.frozen
class Break(Pass):
    """A pass after which no type is right."""

    name = "break"

    def run(self, module: Module) -> Module:
        entry = module.entry_computation
        nodes = [attrs.evolve(node, type=ArrayType(DType.F32, (5,))) for node in entry.nodes]
        broken = attrs.evolve(entry, nodes=tuple(nodes))
        return attrs.evolve(module, computations={**module.computations, entry.name: broken})


@pytest.mark.parametrize("verify_each", [True, False])
def test_a_pass_that_breaks_the_graph_is_named(verify_each):
    module = load("%x = f32[2] parameter(0)", "%y = pred[2] compare(%x, %x), direction=EQ")
    with pytest.raises(InternalError, match="break"):
        run_passes(module, [Simplify(), Break()], verify_each=verify_each)


def test_every_pass_is_verified_if_asked():
    module = load("%x = f32[2] parameter(0)", "%y = pred[2] compare(%x, %x), direction=EQ")
    with pytest.raises(InternalError, match="pass 1, break, broke the graph"):
        run_passes(module, [Break(), Simplify()], verify_each=True)


def test_an_observer_sees_every_result():
    seen = []
    module = load("%x = f32[] parameter(0)", "%y = f32[] copy(%x)")
    run_passes(module, [Simplify(), RemoveDeadCode()], observe=lambda *what: seen.append(what[0]))
    assert seen == ["simplify", "remove-dead-code"]


def test_pass_options_reach_their_pass():
    options = CompileOptions(pass_options={"fold-constants.limit_bytes": "7"})
    (fold,) = [one for one in pipeline(options) if isinstance(one, FoldConstants)]
    assert fold.limit_bytes == 7


def test_options_go_by_the_names_that_aws_publishes_too():
    names = "NEURON_FSDP_NUM_LAYER_EARLY_AG_SHIFT", "NEURON_FSDP_NUM_LAYER_LATE_RS_SHIFT"
    *_, last = pipeline(CompileOptions(level=2, pass_options=dict(zip(names, "12", strict=True))))
    assert last == Schedule(early_all_gather_layers=1, late_reduce_scatter_layers=2)


@pytest.mark.parametrize("setting", [("nothing.at_all", "1"), ("fold-constants.limit_bytes", "x")])
def test_wrong_pass_options_are_refused(setting):
    with pytest.raises(ValueError, match=setting[0]):
        pipeline(CompileOptions(pass_options=dict([setting])))


def test_every_pass_and_option_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "ir.md").read_text()
    passes = {one.name: one for level in PIPELINES.values() for one in level}.values()
    options = {
        f"| {'none' if field.default is None else field.default} | `{one.name}.{field.name}` |"
        for one in passes
        for field in attrs.fields(type(one))
    }
    assert [row for row in sorted(options) if row not in text] == []
    assert [one.name for one in passes if f"`{one.name}`" not in text] == []
