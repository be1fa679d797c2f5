"""Transposes beside products go into their dimension numbers."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_compiler.passes.fold_transposes import FoldTransposes
from ncc_compiler.passes.manager import run_passes
from ncc_compiler.passes.remove_dead_code import RemoveDeadCode
from ncc_compiler.passes.simplify import Simplify
from tests.compiler.small_modules import SUM, assert_same_bits, entry_node, entry_ops, load
from tests.example_count import examples
from tests.reference_runs import reference_outputs

PASSES = [FoldTransposes(), Simplify(), RemoveDeadCode()]


def folded(*lines, before=SUM):
    return run_passes(load(*lines, before=before), PASSES, verify_each=True)


def test_a_transposed_product_is_that_of_its_operands_in_turn():
    module = folded(
        "%a = f32[8,16] parameter(0)",
        "%b = f32[16,4] parameter(1)",
        "%d = f32[8,4] dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "%t = f32[4,8] transpose(%d), dimensions={1,0}",
    )
    assert entry_ops(module) == ["parameter", "parameter", "dot"]
    dot = entry_node(module, "dot")
    assert dot.operands == (1, 0)
    assert dot.integers("lhs_contracting_dims") == (0,)
    assert dot.integers("rhs_contracting_dims") == (1,)


def test_a_gradient_is_summed_over_ranks_and_scaled_in_its_final_order():
    module = folded(
        "%a = bf16[8,16] parameter(0)",
        "%b = bf16[16,4] parameter(1)",
        "%d = bf16[8,4] dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "%f = f32[8,4] convert(%d)",
        "%s = f32[8,4] all-reduce(%f), to_apply=%sum",
        "%r = f32[] parameter(2)",
        "%c = f32[8,4] broadcast(%r), dimensions={}",
        "%m = f32[8,4] multiply(%s, %c)",
        "%t = f32[4,8] transpose(%m), dimensions={1,0}",
    )
    assert "transpose" not in entry_ops(module)
    assert entry_node(module, "all-reduce").array.shape == (4, 8)


def test_scores_of_attention_are_turned_by_their_smaller_operand():
    """einsum("bnkgd,bskd->bkgns") as JAX writes it: a dot of k and q, transposed."""
    dims = "lhs_batch_dims={0,2}, rhs_batch_dims={0,2}, lhs_contracting_dims={3}"
    module = folded(
        "%k = f32[2,64,3,5] parameter(0)",
        "%q = f32[2,32,3,4,5] parameter(1)",
        f"%d = f32[2,3,64,32,4] dot(%k, %q), {dims}, rhs_contracting_dims={{4}}",
        "%t = f32[2,3,4,32,64] transpose(%d), dimensions={0,1,4,3,2}",
    )
    assert entry_ops(module) == ["parameter", "parameter", "transpose", "dot"]
    assert entry_node(module, "transpose").array.shape == (2, 4, 3, 32, 5)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("%t = f32[4,2,8] transpose(%d), dimensions={2,0,1}", "batch dimensions come first"),
        ("%t = (f32[2,8,4], f32[2,4,8]) tuple(%d, %u)", "the product itself is a result"),
    ],
)
def test_what_no_product_gives_stays_a_transpose(line, reason):
    module = folded(
        "%a = f32[2,8,16] parameter(0)",
        "%b = f32[2,16,4] parameter(1)",
        "%d = f32[2,8,4] dot(%a, %b), lhs_batch_dims={0}, rhs_batch_dims={0}, "
        "lhs_contracting_dims={2}, rhs_contracting_dims={1}",
        "%u = f32[2,4,8] transpose(%d), dimensions={0,2,1}",
        line,
    )
    assert entry_ops(module).count("transpose") == 1, reason


def test_an_operand_is_read_as_it_lies():
    module = folded(
        "%a = f32[16,2,8] parameter(0)",
        "%b = f32[4,16,2] parameter(1)",
        "%s = f32[2,8,16] transpose(%a), dimensions={1,2,0}",
        "%t = f32[2,16,4] transpose(%b), dimensions={2,1,0}",
        "%d = f32[2,8,4] dot(%s, %t), lhs_batch_dims={0}, rhs_batch_dims={0}, "
        "lhs_contracting_dims={2}, rhs_contracting_dims={1}",
    )
    assert entry_ops(module) == ["parameter", "parameter", "dot"]
    dot = entry_node(module, "dot")
    assert dot.integers("lhs_batch_dims") == (1,)
    assert dot.integers("rhs_contracting_dims") == (1,)


@st.composite
def products(draw):
    """A product of transposes, transposed."""
    batch, contracted, left, right = (draw(st.integers(0, 2)) for _ in range(4))
    sizes = {
        name: draw(st.integers(1, 4))
        for name in (
            *(f"b{k}" for k in range(batch)),
            *(f"c{k}" for k in range(contracted)),
            *(f"l{k}" for k in range(left)),
            *(f"r{k}" for k in range(right)),
        )
    }

    def kind(names):
        return f"s32[{','.join(str(sizes[name]) for name in names)}]"

    def places(names, letter, whole):
        chosen = [name for name in whole if name[0] == letter]
        return ",".join(str(names.index(name)) for name in chosen)

    lines, operands = [], []
    order = sorted(sizes)
    batches = draw(st.permutations([name for name in order if name[0] == "b"]))
    for number, letter in enumerate("lr"):
        stored = draw(st.permutations([name for name in order if name[0] in ("b", "c", letter)]))
        names = draw(st.permutations(stored))
        dims = ",".join(str(stored.index(name)) for name in names)
        lines.append(f"%p{number} = {kind(stored)} parameter({number})")
        lines.append(f"%x{number} = {kind(names)} transpose(%p{number}), dimensions={{{dims}}}")
        operands.append(names)
    result = [*batches, *(n for k, c in enumerate("lr") for n in operands[k] if n[0] == c)]
    attributes = ", ".join(
        f"{side}_{role}_dims={{{places(operands[k], letter, whole)}}}"
        for k, side in enumerate(("lhs", "rhs"))
        for role, letter, whole in (("batch", "b", batches), ("contracting", "c", order))
    )
    lines.append(f"%d = {kind(result)} dot(%x0, %x1), {attributes}")
    last = draw(st.permutations(result))
    dims = ",".join(str(result.index(name)) for name in last)
    lines.append(f"%n = {kind(result)} negate(%d)")
    lines.append(f"%t = {kind(last)} transpose(%n), dimensions={{{dims}}}")
    return lines


@settings(max_examples=examples(200))
@given(lines=products())
def test_folding_keeps_every_value(lines):
    module = load(*lines)
    after = run_passes(module, PASSES, verify_each=True)
    inputs = []
    for position in module.entry_computation.parameters():
        shape = module.entry_computation.nodes[position].array.shape
        values = np.arange(4 * math.prod(shape), dtype=np.int32) * 7 % 23 - 11
        inputs.append(values.reshape(4, *shape))
    assert_same_bits(reference_outputs(after, inputs), reference_outputs(module, inputs))
