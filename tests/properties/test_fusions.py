"""Random parts of random programs fused: the same bits as the operations one by one."""

import random

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ncc_runtime
from ncc_compiler.codegen.generate import generate
from ncc_compiler.driver import load_text
from ncc_compiler.ir.graph import Module
from ncc_compiler.ir.text.printer import print_module
from ncc_compiler.ir.verify import verify
from ncc_compiler.options import CompileOptions
from ncc_compiler.passes.manager import run_passes
from ncc_compiler.pipelines import pipeline
from ncc_runtime.neff import container
from ncc_runtime.neff.check import check
from ncc_runtime.neff.listing import parse_program, print_program
from ncc_runtime.neff.program import Program
from tests import draws_folding_ops as folding
from tests import draws_local_ops as local
from tests.draws_graphs import COLLECTIVE_OPS, LOCAL_OPS, cases
from tests.example_count import examples
from tests.fused_modules import fused_module
from tests.reference_runs import assert_close, reference_outputs

LOCAL = st.sampled_from(LOCAL_OPS)
MIXED = st.one_of(LOCAL, LOCAL, LOCAL, st.sampled_from(COLLECTIVE_OPS))
CHAINS = st.sampled_from(
    (
        *(local.float_unary, local.float_binary, local.convert, local.broadcast, local.select),
        *(local.reshape, local.rank_number, local.compare, folding.reduce, folding.dot),
    )
)
programs = st.one_of(
    cases(most_ops=20, ops=MIXED, least_ops=6), cases(most_ops=24, ops=CHAINS, least_ops=10)
)

thorough = settings(max_examples=examples(60), suppress_health_check=[HealthCheck.too_slow])


def canonical(module: Module) -> Module:
    return run_passes(module, pipeline(CompileOptions(level=0)))


def fused(module: Module, seed: int, share: float) -> Module:
    """A fusion begins at this share of the nodes."""
    draw = random.Random(seed)
    return fused_module(module, lambda _: draw.random() < share)


@thorough
@given(case=programs, seed=st.integers(0, 99), share=st.sampled_from([0.0, 0.2, 0.6]))
def test_fused_operations_give_the_bits_of_the_operations_alone(case, seed, share):
    module = canonical(case.module)
    whole = fused(module, seed, share)
    assert verify(whole) == ()
    program = generate(whole)
    assert check(program) == ()
    alone, together = (
        ncc_runtime.load(each).run(list(case.inputs), checked=True).outputs
        for each in (generate(module), program)
    )
    for actual, expected in zip(together, alone, strict=True):
        assert actual.dtype == expected.dtype
        assert actual.tobytes() == expected.tobytes()


@thorough
@given(case=programs, seed=st.integers(0, 99))
def test_the_reference_gives_a_fusion_the_meaning_of_its_parts(case, seed):
    whole = fused(canonical(case.module), seed, 0.2)
    expected = reference_outputs(case.module, case.inputs)
    for actual, wanted, tolerance in zip(
        reference_outputs(whole, case.inputs), expected, case.tolerances, strict=True
    ):
        assert_close(actual, wanted, tolerance)


@thorough
@given(case=programs, seed=st.integers(0, 99))
def test_fusions_are_written_down_and_read_back(case, seed):
    whole = fused(canonical(case.module), seed, 0.2)
    again = load_text(print_module(whole))
    assert print_module(again) == print_module(whole)
    program: Program = generate(whole)
    assert parse_program(print_program(program)) == program
    assert container.unpack(container.pack(program), "fused.neff") == program


def test_large_values_of_many_ranks_are_fused_in_parts_with_the_same_bits():
    text = """HloModule m, num_partitions=8
      ENTRY e {
        x = f32[512,700] parameter(0)
        e = f32[512,700] exponential(x)
        t = f32[512,700] tanh(e)
        m = f32[512,700] multiply(e, t)
        p = u32[] partition-id()
        f = f32[] convert(p)
        b = f32[512,700] broadcast(f), dimensions={}
        ROOT r = f32[512,700] add(m, b)
      }"""
    module = canonical(load_text(text))
    x = np.random.default_rng(3).normal(size=(8, 512, 700)).astype(np.float32)
    alone, together = (
        ncc_runtime.load(generate(each)).run([x]).outputs[0]
        for each in (module, fused(module, 0, 0.0))
    )
    np.testing.assert_array_equal(alone.view(np.int32), together.view(np.int32))


def test_what_is_only_moved_keeps_the_bits_of_its_nans():
    text = """HloModule m
      ENTRY e {
        x = f32[2,3] parameter(0)
        p = pred[2,3] parameter(1)
        t = f32[3,2] transpose(x), dimensions={1,0}
        r = f32[2,3] reshape(t)
        s = f32[2,3] select(p, r, x)
        n = f32[2,3] negate(s)
        ROOT y = (f32[2,3], f32[2,3], f32[2,3]) tuple(r, n, s)
      }"""
    module = canonical(load_text(text))
    words = [[0x7FC00001, 0xFFC12345, 0x7F800001], [1, 0xFF923456, 0x80000000]]
    x = np.array([words], np.uint32).view(np.float32)
    chosen = np.array([[[True, False, True], [False, True, False]]])
    alone, together = (
        [array.tobytes() for array in ncc_runtime.load(generate(each)).run([x, chosen]).outputs]
        for each in (module, fused(module, 0, 0.0))
    )
    assert alone == together
