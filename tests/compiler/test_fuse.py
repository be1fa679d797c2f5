"""Fusion: which operations become one instruction, and that nothing else changes."""

import time
from pathlib import Path

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_compiler.driver import load_text
from ncc_compiler.ir.graph import Computation, Module, Node, NodeId
from ncc_compiler.ir.ops import OPS
from ncc_compiler.ir.text.printer import print_module
from ncc_compiler.ir.types import TupleType
from ncc_compiler.options import CompileOptions
from ncc_compiler.overlap import clusters, tiles
from ncc_compiler.overlap.analyses import ancestors_among
from ncc_compiler.overlap.clusters import clusters_of
from ncc_compiler.overlap.fuse import Fuse
from ncc_compiler.passes.inline_calls import InlineCalls
from ncc_compiler.passes.manager import run_passes
from ncc_compiler.passes.remove_dead_code import RemoveDeadCode
from ncc_compiler.passes.simplify import Simplify
from ncc_compiler.pipelines import pipeline
from tests import draws_folding_ops as folding
from tests import draws_local_ops as local
from tests.compiler.small_modules import SUM, assert_same_bits, entry_ops, load
from tests.draws_graphs import cases, random_array
from tests.draws_training import training_steps
from tests.example_count import examples
from tests.reference_runs import reference_outputs

FUSE = Fuse(enabled=1)
PROGRAMS = sorted((Path(__file__).parents[1] / "data" / "hlo").glob("*.hlo"))
CHAINS = st.sampled_from(
    (
        *(local.float_unary, local.float_binary, local.convert, local.broadcast, local.select),
        *(local.float_binary, local.iota, local.compare, folding.reduce),
    )
)
MAX = SUM.replace("%sum", "%max").replace("add(", "maximum(")


def fused(*lines: str, before: str = SUM + MAX) -> Module:
    """The entry of these lines, fused."""
    module = load(*lines, before=before)
    return run_passes(module, [Simplify(), FUSE], verify_each=True)


def fusions(module: Module, name: str | None = None) -> list[tuple[list[str], list[str]]]:
    """Of each fusion of a computation: the names of what it holds, and of its results."""
    body = module.computations[name or module.entry]
    found = []
    for node in body.nodes:
        if node.op == "fusion":
            inner = module.computations[node.callee("calls")]
            root = inner.nodes[inner.root]
            results = list(inner.operands_of(root)) if root.op == "tuple" else [root]
            rows = [row.name for row in inner.nodes if row.op not in ("parameter", "tuple")]
            found.append((rows, [result.name for result in results]))
    return found


def test_a_softmax_is_one_instruction():
    module = fused(
        "%x = f32[64,512] parameter(0)",
        "%low = f32[] constant(-inf)",
        "%zero = f32[] constant(0)",
        "%m = f32[64] reduce(%x, %low), dimensions={1}, to_apply=%max",
        "%mb = f32[64,512] broadcast(%m), dimensions={0}",
        "%d = f32[64,512] subtract(%x, %mb)",
        "%e = f32[64,512] exponential(%d)",
        "%s = f32[64] reduce(%e, %zero), dimensions={1}, to_apply=%sum",
        "%sb = f32[64,512] broadcast(%s), dimensions={0}",
        "%p = f32[64,512] divide(%e, %sb)",
    )
    text = print_module(module)
    assert text[text.index("%fused_p") :].rstrip() == (
        """\
%fused_p (x: f32[64,512]) -> f32[64,512] {
  %x = f32[64,512] parameter(0)
  %low = f32[] constant(-inf)
  %zero = f32[] constant(0)
  %m = f32[64] reduce(%x, %low), dimensions={1}, to_apply=%max
  %mb = f32[64,512] broadcast(%m), dimensions={0}
  %d = f32[64,512] subtract(%x, %mb)
  %e = f32[64,512] exponential(%d)
  %s = f32[64] reduce(%e, %zero), dimensions={1}, to_apply=%sum
  %sb = f32[64,512] broadcast(%s), dimensions={0}
  ROOT %p = f32[64,512] divide(%e, %sb)
}

ENTRY %main (x: f32[64,512]) -> f32[64,512] {
  %x = f32[64,512] parameter(0)
  ROOT %p_fusion = f32[64,512] fusion(%x), kind=kLoop, calls=%fused_p
}"""
    )


def test_a_value_that_others_read_too_is_one_more_result():
    module = fused(
        "%x = f32[8,16] parameter(0)",
        "%w = f32[16,4] parameter(1)",
        "%zero = f32[] constant(0)",
        "%y = f32[8,16] tanh(%x)",
        "%s = f32[16] reduce(%y, %zero), dimensions={0}, to_apply=%sum",
        "%z = f32[8,4] dot(%y, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "%r = (f32[16], f32[8,4]) tuple(%s, %z)",
    )
    text = print_module(module)
    assert text[text.index("ENTRY") :].rstrip() == (
        """\
ENTRY %main (x: f32[8,16], w: f32[16,4]) -> (f32[16], f32[8,4]) {
  %x = f32[8,16] parameter(0)
  %w = f32[16,4] parameter(1)
  %s_fusion = (f32[8,16], f32[16]) fusion(%x), kind=kInput, calls=%fused_s
  %y = f32[8,16] get-tuple-element(%s_fusion), index=0
  %s = f32[16] get-tuple-element(%s_fusion), index=1
  %z = f32[8,4] dot(%y, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %r = (f32[16], f32[8,4]) tuple(%s, %z)
}"""
    )


def test_two_readers_of_one_large_value_become_one_instruction():
    module = fused(
        "%x = f32[8,16] parameter(0)",
        "%a = f32[8,16] parameter(1)",
        "%y = f32[8,16] tanh(%x)",
        "%p = f32[8,16] multiply(%y, %a)",
        "%q = f32[8,16] subtract(%y, %a)",
        "%r = (f32[8,16], f32[8,16]) tuple(%p, %q)",
    )
    assert fusions(module) == [(["y", "p", "q"], ["p", "q"])]


def test_a_scalar_that_many_read_is_computed_by_itself():
    module = fused(
        "%x = f32[8,16] parameter(0)",
        "%y = f32[8,16] parameter(1)",
        "%t = f32[] parameter(2)",
        "%s = f32[] sqrt(%t)",
        "%b = f32[8,16] broadcast(%s), dimensions={}",
        "%p = f32[8,16] multiply(%x, %b)",
        "%q = f32[8,16] multiply(%y, %b)",
        "%r = (f32[8,16], f32[8,16]) tuple(%p, %q)",
    )
    assert entry_ops(module) == [*["parameter"] * 3, "sqrt", "fusion", "fusion", "tuple"]
    assert fusions(module) == [(["b", "p"], ["p"]), (["b", "q"], ["q"])]


def test_an_array_of_one_value_is_a_scalar_inside():
    ones = ",".join(["2.5"] * 4)
    module = fused(
        "%x = f32[4] parameter(0)",
        f"%c = f32[4] constant({{{ones}}})",
        "%y = f32[4] multiply(%x, %c)",
        "%z = f32[4] add(%y, %x)",
    )
    assert fusions(module) == [(["c.scalar", "c", "y", "z"], ["z"])]


def test_a_single_operation_with_a_constant_stays_by_itself():
    module = fused(
        "%x = f32[] parameter(0)", "%c = f32[] constant(2)", "%y = f32[] multiply(%x, %c)"
    )
    assert entry_ops(module) == ["parameter", "constant", "multiply"]


def test_a_view_of_what_is_read_or_written_stays_outside():
    module = fused(
        "%x = f32[8,4] parameter(0)",
        "%v = f32[32] reshape(%x)",
        "%y = f32[32] tanh(%v)",
        "%w = f32[4,8] reshape(%y)",
        "%z = f32[4,8] negate(%w)",
        "%r = f32[32] reshape(%z)",
    )
    assert entry_ops(module) == ["parameter", "reshape", "fusion", "reshape"]
    assert fusions(module) == [(["y", "w", "z"], ["z"])]


def test_a_rotary_embedding_and_its_gradient_are_one_instruction_each():
    module = fused(
        "%x = bf16[64,128] parameter(0)",
        "%c = bf16[64,64] parameter(1)",
        "%s = bf16[64,64] parameter(2)",
        "%a = bf16[64,64] slice(%x), slice={[0:64], [0:64]}",
        "%b = bf16[64,64] slice(%x), slice={[0:64], [64:128]}",
        "%ac = bf16[64,64] multiply(%a, %c)",
        "%bs = bf16[64,64] multiply(%b, %s)",
        "%l = bf16[64,64] subtract(%ac, %bs)",
        "%bc = bf16[64,64] multiply(%b, %c)",
        "%as = bf16[64,64] multiply(%a, %s)",
        "%h = bf16[64,64] add(%bc, %as)",
        "%y = bf16[64,128] concatenate(%l, %h), dimensions={1}",
    )
    assert entry_ops(module) == [*["parameter"] * 3, "fusion"]
    module = fused(
        "%l = bf16[64,64] parameter(0)",
        "%h = bf16[64,64] parameter(1)",
        "%zero = bf16[] constant(0)",
        "%a = bf16[64,128] pad(%l, %zero), padding=0_0x0_64",
        "%b = bf16[64,128] pad(%h, %zero), padding=0_0x64_0",
        "%y = bf16[64,128] add(%a, %b)",
    )
    assert entry_ops(module) == ["parameter", "parameter", "fusion"]


def test_what_a_collective_reads_waits_for_no_other_collective():
    module = fused(
        "%x = f32[64] parameter(0)",
        "%w = f32[64] parameter(1)",
        "%a = f32[64] all-reduce(%x), to_apply=%sum",
        "%y = f32[64] tanh(%w)",
        "%b = f32[64] all-reduce(%y), to_apply=%sum",
        "%z = f32[64] multiply(%y, %a)",
        "%q = f32[64] add(%z, %b)",
        "%r = (f32[64], f32[64]) tuple(%q, %y)",
    )
    assert fusions(module) == []


def test_a_factor_of_a_stored_value_waits_with_the_update_that_reads_it():
    module = fused(
        "%g = f32[64] parameter(0)",
        "%m = f32[64] parameter(1)",
        "%k = f32[] constant(0.9)",
        "%c = f32[64] broadcast(%k), dimensions={}",
        "%a = f32[64] all-reduce(%g), to_apply=%sum",
        "%d = f32[64] multiply(%m, %c)",
        "%n = f32[64] add(%d, %a)",
    )
    assert fusions(module) == [(["k", "c", "d", "n"], ["n"])]


def test_a_gradient_waits_for_no_other_layer():
    """A gradient and what its own layer goes on with are made by one, the next layer's are not."""
    module = fused(
        "%x = f32[64,64] parameter(0)",
        "%w = f32[64,64] parameter(1)",
        "%y = f32[64,64] tanh(%x)",
        "%a = f32[64,64] all-reduce(%y), to_apply=%sum",
        "%z = f32[64,64] multiply(%y, %w)",
        "%u = f32[64,64] sine(%z)",
        "%r = (f32[64,64], f32[64,64]) tuple(%a, %u)",
    )
    assert fusions(module) == [(["z", "u"], ["u"])]


def test_a_checkpoint_is_not_crossed():
    module = load(
        "%x = f32[64] parameter(0)",
        "%y = f32[64] tanh(%x)",
        "%k = f32[64] opt-barrier(%y)",
        "%z = f32[64] multiply(%k, %y)",
        "%w = f32[64] sine(%z)",
    )
    assert fusions(FUSE.run(module)) == [(["z", "w"], ["w"])]


def test_a_reduction_too_long_for_a_partition_is_read_twice():
    lines = (
        "%zero = f32[] constant(0)",
        "%q = f32[256,{0}] multiply(%x, %x)",
        "%s = f32[256] reduce(%q, %zero), dimensions={{1}}, to_apply=%sum",
        "%b = f32[256,{0}] broadcast(%s), dimensions={{0}}",
        "%y = f32[256,{0}] divide(%x, %b)",
    )
    for length, count in ((4096, 1), (65536, 2)):
        first = f"%x = f32[256,{length}] parameter(0)"
        module = fused(first, *(line.format(length) for line in lines))
        assert len(fusions(module)) == count


LOOP = """
%going {
  %state = (s32[], f32[64], f32[64]) parameter(0)
  %k = s32[] get-tuple-element(%state), index=0
  %three = s32[] constant(3)
  ROOT %on = pred[] compare(%k, %three), direction=LT
}
%round {
  %state = (s32[], f32[64], f32[64]) parameter(0)
  %k = s32[] get-tuple-element(%state), index=0
  %x = f32[64] get-tuple-element(%state), index=1
  %y = f32[64] get-tuple-element(%state), index=2
  %one = s32[] constant(1)
  %next = s32[] add(%k, %one)
  %f = f32[] convert(%next)
  %fb = f32[64] broadcast(%f), dimensions={}
  %a = f32[64] multiply(%x, %fb)
  %new = f32[64] sine(%y)
  %newer = f32[64] add(%new, %a)
  ROOT %r = (s32[], f32[64], f32[64]) tuple(%next, %newer, %y)
}
"""


def test_a_counter_and_a_state_in_place_stay_as_they_are():
    """The new state is written where the old one lay, once that is read; it would be copied."""
    module = FUSE.run(
        load(
            "%zero = s32[] constant(0)",
            "%x = f32[64] parameter(0)",
            "%y = f32[64] parameter(1)",
            "%t = (s32[], f32[64], f32[64]) tuple(%zero, %x, %y)",
            "%w = (s32[], f32[64], f32[64]) while(%t), condition=%going, body=%round",
            before=LOOP,
        )
    )
    assert fusions(module, "round") == [
        (["f", "fb", "a"], ["a"]),
        (["new", "newer"], ["newer"]),
    ]


def test_an_update_in_place_comes_behind_all_that_read_the_array():
    module = fused(
        "%x = f32[64] parameter(0)",
        "%at = s32[] parameter(1)",
        "%u = f32[1] parameter(2)",
        "%y = f32[64] tanh(%x)",
        "%a = f32[64] sine(%y)",
        "%b = f32[64] cosine(%a)",
        "%z = f32[64] dynamic-update-slice(%y, %u, %at)",
        "%r = (f32[64], f32[64]) tuple(%b, %z)",
    )
    names = [node.name for node in module.entry_computation.nodes]
    assert fusions(module) == [(["y", "a", "b"], ["y", "b"])]
    assert names.index("b_fusion") < names.index("z")


def test_a_computation_with_fusions_has_been_through():
    module = fused("%x = f32[64] parameter(0)", "%y = f32[64] tanh(%x)", "%z = f32[64] sine(%y)")
    assert fusions(module)
    assert FUSE.run(module) == module
    assert Fuse(enabled=0).run(module) == module


def canonical(text: str, level: int = 1) -> Module:
    """The graph of a program before fusion."""
    passes = [one for one in pipeline(CompileOptions(level=level)) if not isinstance(one, Fuse)]
    return run_passes(load_text(text), passes)


def bodies(module: Module) -> list[Computation]:
    return [body for body in module.computations.values() if any(map(_is_fusion, body.nodes))]


def _is_fusion(node: Node) -> bool:
    return node.op == "fusion"


def collectives_before(body: Computation) -> dict[str, frozenset[str]]:
    """By name of a collective, those that it waits for."""
    chosen = [k for k, node in enumerate(body.nodes) if OPS[node.op].collective]
    names = [body.nodes[k].name for k in chosen]
    bits = ancestors_among(body, chosen)
    return {
        name: frozenset(other for n, other in enumerate(names) if bits[k] >> n & 1)
        for k, name in zip(chosen, names, strict=True)
    }


def check(before: Module, after: Module) -> None:
    """What must hold of every fusion, whatever was fused."""
    assert FUSE.run(after) == after
    assert load_text(print_module(after)) == load_text(print_module(load_text(print_module(after))))
    for name, body in before.computations.items():
        if name in after.computations:
            assert collectives_before(after.computations[name]) == collectives_before(body)
    for body in bodies(after):
        for node in body.nodes:
            if node.op == "fusion":
                inner = after.computations[node.callee("calls")]
                assert len([row for row in inner.nodes if row.op in _INSTRUCTIONS]) > 1
                read = {operand for row in inner.nodes for operand in row.operands}
                assert read | {inner.root} == set(range(len(inner.nodes)))


_COMPUTED = frozenset({"tanh", "add", "multiply", "maximum", "reduce", "select", "compare"})
_INSTRUCTIONS = frozenset(OPS) - {"parameter", "constant", "tuple", "reshape", "bitcast"}


@settings(max_examples=examples(150))
@given(case=cases(most_ops=30), level=st.sampled_from([1, 2]))
def test_fusion_keeps_every_bit_of_random_graphs(case, level):
    passes = [one for one in pipeline(CompileOptions(level=level)) if not isinstance(one, Fuse)]
    before = run_passes(case.module, passes)
    after = run_passes(before, [FUSE], verify_each=True)
    check(before, after)
    assert_same_bits(reference_outputs(after, case.inputs), reference_outputs(before, case.inputs))


@settings(max_examples=examples(60))
@given(text=training_steps())
def test_fusion_keeps_every_bit_of_random_steps(text):
    before = run_passes(load_text(text), [InlineCalls(), Simplify(), RemoveDeadCode()])
    after = run_passes(before, [FUSE], verify_each=True)
    check(before, after)
    inputs = [np.random.default_rng(k).integers(-3, 3, (4, 8, 8), np.int32) for k in range(2)]
    assert_same_bits(reference_outputs(after, inputs), reference_outputs(before, inputs))


@settings(max_examples=examples(60))
@given(
    case=cases(most_ops=40, least_ops=15, ops=CHAINS),
    most=st.integers(1, 6),
    many=st.sampled_from([1, 4]),
)
def test_clusters_that_do_not_fit_are_cut_and_keep_every_bit(case, most, many):
    """With an SBUF that holds so many operations, asked for from so many on seldom."""
    before = run_passes(case.module, [InlineCalls(), Simplify(), RemoveDeadCode()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "fits", lambda _, members: len(members) <= most)
        patch.setattr(clusters, "_MANY", many)
        after = run_passes(before, [FUSE], verify_each=True)
    for body in bodies(after):
        for node in body.nodes:
            if node.op == "fusion":
                rows = after.computations[node.callee("calls")].nodes
                assert sum(row.op in _COMPUTED for row in rows) <= most
    assert_same_bits(reference_outputs(after, case.inputs), reference_outputs(before, case.inputs))


@pytest.mark.parametrize(
    "path",
    [
        pytest.param(path, marks=pytest.mark.slow if path.stem == "mlp_train_dp8" else ())
        for path in PROGRAMS
    ],
    ids=lambda path: path.stem,
)
@pytest.mark.parametrize("level", [1, 2])
def test_fusion_keeps_every_bit_of_real_programs(path, level):
    before = canonical(path.read_text(), level)
    after = run_passes(before, [FUSE], verify_each=True)
    check(before, after)
    if before.ranks > 8:
        return  # too large for the reference
    entry = before.entry_computation
    kinds = [entry.nodes[position].array for position in entry.parameters()]
    inputs = [random_array(kind, before.ranks, seed) for seed, kind in enumerate(kinds)]
    if path.stem == "ragged_in_a_loop":  # its integers are sizes that fit together
        inputs = [array * 0 if array.dtype.kind == "i" else array for array in inputs]
    assert_same_bits(reference_outputs(after, inputs), reference_outputs(before, inputs))


def test_clusters_have_no_way_out_and_back_in():
    """Convex: what lies between two of a cluster is of the cluster."""
    module = canonical(next(p for p in PROGRAMS if p.stem == "llama_4l_64ranks").read_text())
    body = module.entry_computation
    found = clusters_of(module, body, 512)
    assert sum(len(cluster.nodes) for cluster in found.clusters) > 400
    for cluster in found.clusters:
        inside = set(cluster.nodes)
        behind: set[int] = set()  # outside, and reached from the cluster
        for position in range(min(inside), len(body.nodes)):
            operands = set(body.nodes[position].operands)
            if position not in inside and operands & (behind | set(cluster.results)):
                behind.add(position)
            assert position not in inside or not operands & behind


def chain(length: int) -> Module:
    """Short chains between products, whose values are read again at the end."""
    lines = ["%x = f32[16,16] parameter(0)", "%v0 = f32[16,16] tanh(%x)"]
    for k in range(1, length):
        other = max(0, k - 7)
        dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
        op = f"dot(%v{k - 1}, %v{other}), {dims}" if k % 10 == 0 else f"add(%v{k - 1}, %v{other})"
        lines.append(f"%v{k} = f32[16,16] {op}")
    return load(*lines)


def test_fusion_takes_linear_time():
    FUSE.run(chain(200))
    seconds = []
    for length in (2_000, 20_000):
        module = chain(length)
        start = time.process_time()
        after = FUSE.run(module)
        seconds.append(time.process_time() - start)
        assert len(fusions(after)) >= length // 10 - 2
    assert seconds[1] < 30 * seconds[0] + 0.1


def softmaxes(count: int) -> Module:
    """One softmax after the other."""
    lines = [
        "%x0 = f32[16,16] parameter(0)",
        "%zero = f32[] constant(0)",
        "%low = f32[] constant(-inf)",
    ]
    for k in range(count):
        lines += [
            f"%m{k} = f32[16] reduce(%x{k}, %low), dimensions={{1}}, to_apply=%max",
            f"%l{k} = f32[16,16] broadcast(%m{k}), dimensions={{0}}",
            f"%d{k} = f32[16,16] subtract(%x{k}, %l{k})",
            f"%e{k} = f32[16,16] exponential(%d{k})",
            f"%s{k} = f32[16] reduce(%e{k}, %zero), dimensions={{1}}, to_apply=%sum",
            f"%b{k} = f32[16,16] broadcast(%s{k}), dimensions={{0}}",
            f"%x{k + 1} = f32[16,16] divide(%e{k}, %b{k})",
        ]
    return load(*lines, before=SUM + MAX)


def test_whether_long_clusters_fit_is_asked_in_linear_time(monkeypatch):
    asked = []
    fits = tiles.fits
    monkeypatch.setattr(
        tiles, "fits", lambda body, members: asked.append(len(members)) or fits(body, members)
    )
    module = softmaxes(300)
    after = FUSE.run(module)
    assert len(fusions(after)) == len(module.entry_computation.nodes) // 512 + 1
    assert sum(asked) < 6 * len(module.entry_computation.nodes)


def test_a_cluster_in_the_place_of_its_first_node_is_cut_behind_that(monkeypatch):
    """It stands before the product, where %a does, which then is none of the part that fits."""
    monkeypatch.setattr(tiles, "fits", lambda _, members: len(members) <= 3)
    module = fused(
        "%x = f32[16,16] parameter(0)",
        "%zero = f32[] constant(0)",
        "%a = f32[16,16] tanh(%x)",
        "%d = f32[16,16] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "%b = f32[16,16] add(%a, %a)",
        "%r = f32[16] reduce(%b, %zero), dimensions={1}, to_apply=%sum",
        "%l = f32[16,16] broadcast(%r), dimensions={0}",
        "%c = f32[16,16] multiply(%l, %x)",
        "%all = (f32[16,16], f32[16,16], f32[16,16]) tuple(%c, %a, %d)",
    )
    assert fusions(module) == [(["a", "b"], ["a", "b"]), (["zero", "r", "l", "c"], ["c"])]


def test_a_dead_result_goes_with_what_only_it_needed():
    module = fused(
        "%x = f32[8,16] parameter(0)",
        "%a = f32[8,16] parameter(1)",
        "%b = f32[8,16] negate(%a)",
        "%u = f32[8,16] all-reduce(%b), to_apply=%sum",
        "%y = f32[8,16] tanh(%x)",
        "%p = f32[8,16] multiply(%y, %a)",
        "%q = f32[8,16] subtract(%y, %x)",
        "%s = f32[8,16] sine(%y)",
        "%r = (f32[8,16], f32[8,16], f32[8,16]) tuple(%p, %q, %s)",
    )
    assert fusions(module) == [(["y", "p", "q", "s"], ["p", "q", "s"])]
    for kept in (["p", "s"], ["q"], ["p", "q", "s"]):
        entry = module.entry_computation
        names = [node.name for node in entry.nodes]
        parts = tuple(NodeId(names.index(name)) for name in kept)
        kind = TupleType(tuple(entry.nodes[part].type for part in parts))
        root = attrs.evolve(entry.nodes[entry.root], type=kind, operands=parts)
        body = attrs.evolve(entry, nodes=(*entry.nodes[:-1], root))
        other = attrs.evolve(module, computations={**module.computations, "main": body})
        pruned = run_passes(other, [RemoveDeadCode()], verify_each=True)
        assert fusions(pruned) == [(["y", *kept], kept)]
        (fusion,) = [node for node in pruned.entry_computation.nodes if node.op == "fusion"]
        assert len(fusion.operands) == 1 + ("p" in kept)
