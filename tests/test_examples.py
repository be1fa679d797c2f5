"""Every model of ir_examples compiles, runs on two topologies, and means what it says."""

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_compiler.diagnostics import Source
from ncc_compiler.ir.graph import Module
from ncc_compiler.ir.load import load_module
from ncc_compiler.ir.types import ArrayType
from ncc_compiler.options import CompileOptions
from ncc_runtime.options import LoadOptions
from ncc_runtime.placement import PlaceOptions
from ncc_runtime.report.collectives import joined
from ncc_runtime.report.overlap import all_reduces
from ncc_runtime.report.run import Run
from ncc_runtime.runtime import load_on, program_of
from ncc_runtime.topology.format.spec import example_names, preset_names
from ncc_runtime.topology.graph import Topology, build
from tests.draws_graphs import random_array
from tests.draws_topology import user_files
from tests.reference_runs import assert_close, reference_outputs

EXAMPLES = Path(__file__).parent.parent / "ir_examples"
NAMES = sorted(path.stem for path in EXAMPLES.glob("*.ir"))


def example(name: str) -> Module:
    path = EXAMPLES / f"{name}.ir"
    return load_module(Source(str(path), path.read_text()), None)


def inputs_of(module: Module) -> list[np.ndarray]:
    entry = module.entry_computation
    types = [entry.nodes[position].type for position in entry.parameters()]
    assert all(isinstance(type_, ArrayType) for type_ in types)
    return [random_array(type_, module.ranks, seed) for seed, type_ in enumerate(types)]


def compiled(name: str, level: int = 1) -> ncc_compiler.Neff:
    return ncc_compiler.compile_file(EXAMPLES / f"{name}.ir", CompileOptions(level=level))


LARGE = ("data_parallel_step", "many_gradients", "overlapped_gradients")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow if name == LARGE[0] else ()) for name in NAMES],
)
def test_an_example_computes_what_the_reference_says(name):
    module = example(name)
    inputs = inputs_of(module)
    expected = reference_outputs(module, inputs)
    for level, topology in ((1, "trn2.48xlarge"), (1, "trn1.32xlarge"), (2, "trn2.48xlarge")):
        run = ncc_runtime.load(compiled(name, level), topology=topology).run(inputs)
        assert len(run.outputs) == len(expected)
        for actual, wanted in zip(run.outputs, expected, strict=True):
            assert_close(actual, wanted)


def holds(topology: str, ranks: int) -> bool:
    """Whether the ranks fit, over as many instances as can be joined."""
    one = build(topology)
    return one.efa is not None or one.ranks_per_node >= ranks


EVERYWHERE = (*preset_names(), *example_names())


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in LARGE else ()) for name in NAMES]
)
def test_an_example_computes_the_same_on_every_topology_that_holds_it(name):
    module, neff = example(name), compiled(name)
    inputs = inputs_of(module)
    expected = reference_outputs(module, inputs)
    fitting = [topology for topology in EVERYWHERE if holds(topology, module.ranks)]
    assert len(fitting) > len(EVERYWHERE) // 2
    for number, topology in enumerate(fitting):
        placement = ("linear", "spread")[number % 2]
        model = ncc_runtime.load(neff, topology=topology, placement=placement)
        run = model.run(inputs, clock=False)
        for actual, wanted in zip(run.outputs, expected, strict=True):
            assert_close(actual, wanted)


CLUSTERS = (
    ("trn2-ultraserver", 2),
    ("trn3-gen1-ultraserver", 2),
    ("trn3-gen2-ultraserver", 2),
    ("dgx-h100", 4),
    ("tpu-v4-cube", 2),
)


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_an_example_computes_the_same_on_clusters_of_large_instances(name):
    module, neff = example(name), compiled(name)
    inputs = inputs_of(module)
    expected = reference_outputs(module, inputs)
    for topology, nodes in CLUSTERS:
        if module.ranks % nodes or module.ranks > build(topology, nodes).max_ranks:
            continue
        model = ncc_runtime.load(neff, topology=topology, nodes=nodes, placement="spread")
        for actual, wanted in zip(model.run(inputs).outputs, expected, strict=True):
            assert_close(actual, wanted)


@pytest.mark.slow
@given(name=st.sampled_from(NAMES), text=user_files())
@settings(max_examples=100, suppress_health_check=[HealthCheck.too_slow])
def test_an_example_computes_the_same_on_a_drawn_fabric(name, text):
    module, neff = example(name), compiled(name)
    inputs = inputs_of(module)
    expected = reference_outputs(module, inputs)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "mine.toml"
        file.write_text(text)
        nodes = next(n for n in range(1, module.ranks + 1) if fits(build(str(file)), module, n))
        model = ncc_runtime.load(neff, topology=str(file), nodes=nodes)
        for actual, wanted in zip(model.run(inputs).outputs, expected, strict=True):
            assert_close(actual, wanted)


def fits(one: Topology, module: Module, nodes: int) -> bool:
    """Whether so many instances hold equal shares of the ranks."""
    return module.ranks % nodes == 0 and one.ranks_per_node * nodes >= module.ranks


def times(name: str, level: int, topology: str) -> Run:
    return ncc_runtime.load(compiled(name, level), topology=topology).run(values=False)


@pytest.mark.parametrize("topology", ["trn2.48xlarge", "trn1.32xlarge"])
def test_overlap_makes_the_data_parallel_example_faster(topology):
    run = times("data_parallel_step", 2, topology)
    assert (run.time_us or 0) < (times("data_parallel_step", 1, topology).time_us or 0)


@pytest.mark.parametrize("topology", ["trn2.48xlarge", "trn1.32xlarge"])
@pytest.mark.parametrize("name", ["moe_capacity", "moe_dispatch", "sequence_to_heads"])
def test_overlap_slows_no_example_whose_collectives_wait_for_each_other(name, topology):
    one, two = (times(name, level, topology).time_us or 0 for level in (1, 2))
    assert 0 < two <= one


@pytest.mark.parametrize(
    "place",
    [
        PlaceOptions("trn1.32xlarge"),
        PlaceOptions("trn1.32xlarge", nodes=2),
        PlaceOptions("trn2.48xlarge"),
        PlaceOptions("trn2.48xlarge", nodes=2),
        PlaceOptions("trn2.48xlarge", nodes=8),
        PlaceOptions("trn2.3xlarge", lnc=1),
        PlaceOptions("inf2.48xlarge"),
    ],
    ids=str,
)
def test_the_data_parallel_example_hides_four_fifths_of_what_can_be(place):
    program = program_of(compiled("data_parallel_step", 2))
    trace = load_on(program, place, LoadOptions()).run(values=False, verify=False).trace
    assert trace is not None
    found = all_reduces(trace)
    assert found is not None
    assert len(found.each) == 2
    assert min(found.together.share or 0, *(one.share or 0 for one in found.each.values())) >= 0.8


def test_buckets_make_few_collectives_of_many_in_less_than_half_the_time():
    many, few = (times("many_gradients", level, "trn2.48xlarge") for level in (1, 2))
    assert len(many.collectives) == 200
    assert len(few.collectives) <= 10
    assert 2 * (few.time_us or 0) < (many.time_us or 0)


def test_a_bucket_is_reported_with_the_time_that_its_operands_take_one_by_one():
    many, few = (compiled("many_gradients", level) for level in (1, 2))
    model = ncc_runtime.load(few, topology="trn2.48xlarge")
    run = model.run(values=False, verify=False)
    found = joined(model.executable, run.collectives)
    apart = ncc_runtime.load(many, topology="trn2.48xlarge").run(values=False, verify=False)
    took = sum(row.time_us or 0 for row in apart.collectives)
    assert [one.row for one in found] == list(run.collectives)
    assert sum(one.row.operands for one in found) == len(apart.collectives)
    assert sum(one.one_by_one_us for one in found) == pytest.approx(took, rel=0.05)


def test_the_32_rank_example_runs_over_two_instances_of_trn1():
    module = example("tp8_dp4_step")
    inputs = inputs_of(module)
    neff = ncc_compiler.compile_file(str(EXAMPLES / "tp8_dp4_step.ir"))
    run = ncc_runtime.load(neff, topology="trn1.32xlarge", nodes=2).run(inputs)
    for actual, wanted in zip(run.outputs, reference_outputs(module, inputs), strict=True):
        assert_close(actual, wanted)


def test_the_example_of_argmax_finds_numpys_argmax():
    module = example("argmax")
    [logits] = inputs_of(module)
    whole = np.concatenate(list(logits), axis=1)
    largest, index = reference_outputs(module, [logits])
    np.testing.assert_array_equal(largest[5], whole.max(axis=1))
    np.testing.assert_array_equal(index[5], whole.argmax(axis=1))


def test_the_example_of_softmax_sums_to_one_over_all_classes():
    module = example("sharded_softmax")
    [logits] = inputs_of(module)
    [probabilities] = reference_outputs(module, [logits])
    np.testing.assert_allclose(probabilities.sum(axis=(0, 2)), np.ones(16), rtol=1e-5)


def test_the_example_of_attention_by_heads_equals_attention_on_one_rank():
    module = example("sequence_to_heads")
    [qkv] = inputs_of(module)
    [out] = reference_outputs(module, [qkv])
    q, k, v = (np.concatenate(list(qkv[:, part])).astype(np.float64) for part in range(3))
    scores = np.einsum("qhd,khd->hqk", q, k) / 4
    weights = np.exp(scores - scores.max(axis=2, keepdims=True))
    weights /= weights.sum(axis=2, keepdims=True)
    whole = np.einsum("hqk,khd->qhd", weights, v)
    assert_close(out.reshape(32, 8, 16), whole.astype(np.float32))


def test_the_ring_example_equals_linear_attention_on_one_rank():
    module = example("ring_attention")
    q, k, v = inputs_of(module)
    [out] = reference_outputs(module, [q, k, v])
    whole = (q.reshape(32, 16) @ k.reshape(32, 16).T) @ v.reshape(32, 16)
    assert_close(out.reshape(32, 16), whole)


def test_the_example_of_zero2_updates_weights_as_one_device_would():
    module = example("zero2_step")
    w1, w2, m1, m2, x, target = (array.astype(np.float64) for array in inputs_of(module))
    w1, w2 = w1[0], w2[0]  # the same on all ranks
    whole = [np.tile(w, (8, 1, 1)) for w in (w1, w2)]
    inputs = [array.astype(np.float32) for array in (*whole, m1, m2, x, target)]
    rows, wanted = x.reshape(128, 32), target.reshape(128, 32)
    hidden = np.tanh(rows @ w1)
    dy = (hidden @ w2 - wanted) * 2 / wanted.size
    gradients = rows.T @ ((dy @ w2.T) * (1 - hidden**2)), hidden.T @ dy
    moments = [0.9 * np.concatenate(list(m)) + g for m, g in zip((m1, m2), gradients, strict=True)]
    updated = [w - 0.1 * m for w, m in zip((w1, w2), moments, strict=True)]
    for level in (1, 2):
        run = ncc_runtime.load(compiled("zero2_step", level)).run(inputs)
        for found, weight in zip(run.outputs[:2], updated, strict=True):
            np.testing.assert_allclose(found, np.tile(weight, (8, 1, 1)), rtol=1e-4, atol=1e-5)
        for found, moment in zip(run.outputs[2:], moments, strict=True):
            np.testing.assert_allclose(np.concatenate(list(found)), moment, rtol=1e-4, atol=1e-5)


def test_the_example_with_a_capacity_drops_and_counts_the_tokens_beyond_it():
    tokens, scores, weights = inputs_of(example("moe_capacity"))
    scores[1, :, 2] += 100  # on rank 1 all want the same expert
    wanted, dropped = np.zeros_like(tokens), 0
    for rank in range(4):
        taken = [0] * 4
        for token in range(16):
            expert = int(scores[rank, token].argmax())
            if taken[expert] < 5:
                wanted[rank, token] = tokens[rank, token] @ weights[expert]
            else:
                dropped += 1
            taken[expert] += 1
    run = ncc_runtime.load(compiled("moe_capacity")).run([tokens, scores, weights])
    np.testing.assert_allclose(run.outputs[0], wanted, rtol=1e-4, atol=1e-5)
    assert dropped >= 11
    assert run.outputs[1].tolist() == [dropped] * 4
