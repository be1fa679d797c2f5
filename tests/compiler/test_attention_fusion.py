"""Attention that becomes one instruction forward and one backward, and what must stay apart."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncc_compiler.codegen.leaves import leaves
from ncc_compiler.ir.graph import Computation, Module
from ncc_compiler.ir.text.printer import print_computation
from ncc_compiler.overlap.attention import FuseAttention
from ncc_compiler.overlap.tiles import fits
from ncc_compiler.passes.manager import run_passes
from tests.compiler.small_modules import SUM, load, with_same_bits

REGIONS = SUM + SUM.replace("%sum", "%max").replace("add", "maximum")
HEADS, QUERIES, KEYS, WIDTH = 2, 12, 16, 3
SCORES = "f32[2,12,16]"

GIVEN = (
    "%q = f32[2,12,3] parameter(0)",
    "%k = f32[2,16,3] parameter(1)",
    "%v = f32[2,16,3] parameter(2)",
    "%zero = f32[] constant(0)",
    "%low = f32[] constant(-inf)",
)
PRODUCT = (
    f"%x = {SCORES} dot(%q, %k), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, "
    "lhs_contracting_dims={2}, rhs_contracting_dims={2}",
)
SOFTMAX = (
    "%most = f32[2,12] reduce(%y, %low), dimensions={2}, to_apply=%max",
    f"%m = {SCORES} broadcast(%most), dimensions={{0,1}}",
    "%d = subtract(%y, %m)",
    "%e = exponential(%d)",
    "%s = f32[2,12] reduce(%e, %zero), dimensions={2}, to_apply=%sum",
    f"%t = {SCORES} broadcast(%s), dimensions={{0,1}}",
    "%p = divide(%e, %t)",
)
RESULT = (
    "%o = f32[2,12,3] dot(%p, %v), lhs_batch_dims={0}, rhs_batch_dims={0}, "
    "lhs_contracting_dims={2}, rhs_contracting_dims={1}",
)
CAUSAL = (
    "%place = s32[16] iota(), iota_dimension=0",
    "%column = s32[2,12,16] broadcast(%place), dimensions={2}",
    "%number = s32[12] iota(), iota_dimension=0",
    "%row = s32[2,12,16] broadcast(%number), dimensions={1}",
    "%seen = compare(%column, %row), direction=LE",
    f"%lows = {SCORES} broadcast(%low), dimensions={{}}",
    "%y = select(%seen, %x, %lows)",
)
PLAIN = ("%y = negate(%x)",)
BACKWARD = (
    "%g = f32[2,12,3] parameter(3)",
    f"%gp = {SCORES} dot(%g, %v), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, "
    "lhs_contracting_dims={2}, rhs_contracting_dims={2}",
    "%gv = f32[2,16,3] dot(%p, %g), lhs_batch_dims={0}, rhs_batch_dims={0}, "
    "lhs_contracting_dims={1}, rhs_contracting_dims={1}",
    "%pgp = multiply(%p, %gp)",
    "%sums = f32[2,12] reduce(%pgp, %zero), dimensions={2}, to_apply=%sum",
    f"%spread = {SCORES} broadcast(%sums), dimensions={{0,1}}",
    "%less = subtract(%gp, %spread)",
    "%gs = multiply(%p, %less)",
    "%gx = negate(%gs)",
    "%gq = f32[2,12,3] dot(%gx, %k), lhs_batch_dims={0}, rhs_batch_dims={0}, "
    "lhs_contracting_dims={2}, rhs_contracting_dims={1}",
    "%gk = f32[2,16,3] dot(%gx, %q), lhs_batch_dims={0}, rhs_batch_dims={0}, "
    "lhs_contracting_dims={1}, rhs_contracting_dims={1}",
    "%all = tuple(%o, %gq, %gk, %gv)",
)


def module(*lines: str) -> Module:
    return load(*lines, header="HloModule m, num_partitions=1", before=REGIONS)


def fused(before: Module) -> Module:
    """The module after the pass, whose values are bit for bit those of before."""
    return with_same_bits(before, [FuseAttention(enabled=1)])


def fusions(after: Module) -> list[Computation]:
    """The computations of the fusions of the entry, in order."""
    return [
        after.computations[node.callee("calls")]
        for node in after.entry_computation.nodes
        if node.op == "fusion"
    ]


def products(computation: Computation) -> int:
    return sum(node.op == "dot" for node in computation.nodes)


def has_scores(body: Computation) -> bool:
    """Whether any array of this computation has an element for each query and key."""
    return any(
        array.elements == HEADS * QUERIES * KEYS
        for node in body.nodes
        for array in leaves(node.type)
    )


@pytest.mark.parametrize("mask", [PLAIN, CAUSAL], ids=["plain", "causal"])
def test_a_softmax_between_two_products_becomes_one_instruction(mask: tuple[str, ...]) -> None:
    after = fused(module(*GIVEN, *PRODUCT, *mask, *SOFTMAX, *RESULT))
    (body,) = fusions(after)
    assert products(body) == 2
    nodes = after.entry_computation.nodes
    left = {node.op for node in nodes}
    assert left <= {"parameter", "constant", "iota", "fusion"}
    (call,) = [node for node in nodes if node.op == "fusion"]
    assert call.attributes["kind"] == "kCustom"


def test_a_mask_made_of_positions_is_made_again_rather_than_read() -> None:
    (body,) = fusions(fused(module(*GIVEN, *PRODUCT, *CAUSAL, *SOFTMAX, *RESULT)))
    assert [str(body.nodes[p].type) for p in body.parameters()] == [
        "f32[2,12,3]",
        "f32[2,16,3]",
        "f32[2,16,3]",
    ]


@pytest.mark.parametrize("mask", [PLAIN, CAUSAL], ids=["plain", "causal"])
def test_the_gradient_computes_probabilities_again(mask: tuple[str, ...]) -> None:
    lines = (*GIVEN, *PRODUCT, *mask, *SOFTMAX, *RESULT, *BACKWARD)
    if mask is CAUSAL:
        lines = tuple(line.replace("negate(%gs)", "select(%seen, %gs, %lows)") for line in lines)
    after = fused(module(*lines))
    forward, backward = fusions(after)
    assert (products(forward), products(backward)) == (2, 5)
    assert not has_scores(after.entry_computation)
    (given_by_forward, _) = [node for node in after.entry_computation.nodes if node.op == "fusion"]
    assert str(given_by_forward.type) == "(f32[2,12], f32[2,12], f32[2,12,3])"  # maxima, sums
    reduced = [node.name for node in backward.nodes if node.op == "reduce"]
    assert reduced == ["sums"]


def test_the_golden_forward_fusion() -> None:
    (body,) = fusions(fused(module(*GIVEN, *PRODUCT, *PLAIN, *SOFTMAX, *RESULT)))
    assert print_computation(body).splitlines() == [
        "%fused_o (q: f32[2,12,3], k: f32[2,16,3], v: f32[2,16,3]) -> f32[2,12,3] {",
        "  %q = f32[2,12,3] parameter(0)",
        "  %k = f32[2,16,3] parameter(1)",
        "  %v = f32[2,16,3] parameter(2)",
        "  %zero = f32[] constant(0)",
        "  %low = f32[] constant(-inf)",
        "  %x = f32[2,12,16] dot(%q, %k), lhs_batch_dims={0}, rhs_batch_dims={0}, "
        "lhs_contracting_dims={2}, rhs_contracting_dims={2}",
        "  %y = f32[2,12,16] negate(%x)",
        "  %most = f32[2,12] reduce(%y, %low), dimensions={2}, to_apply=%max",
        "  %m = f32[2,12,16] broadcast(%most), dimensions={0,1}",
        "  %d = f32[2,12,16] subtract(%y, %m)",
        "  %e = f32[2,12,16] exponential(%d)",
        "  %s = f32[2,12] reduce(%e, %zero), dimensions={2}, to_apply=%sum",
        "  %t = f32[2,12,16] broadcast(%s), dimensions={0,1}",
        "  %p = f32[2,12,16] divide(%e, %t)",
        "  ROOT %o = f32[2,12,3] dot(%p, %v), lhs_batch_dims={0}, rhs_batch_dims={0}, "
        "lhs_contracting_dims={2}, rhs_contracting_dims={1}",
        "}",
    ]


def test_two_products_without_a_softmax_stay_apart() -> None:
    after = fused(module(*GIVEN[:3], *PRODUCT, "%p = tanh(%x)", *RESULT))
    assert not fusions(after)


def test_an_exponential_whose_sum_is_of_other_dimensions_is_none() -> None:
    lines = [
        *GIVEN,
        *PRODUCT,
        "%p = exponential(%x)",
        "%s = f32[2,16] reduce(%p, %zero), dimensions={1}, to_apply=%sum",
        *RESULT,
        "%all = tuple(%o, %s)",
    ]
    assert not fusions(fused(module(*lines)))


def test_probabilities_that_are_returned_are_one_more_result() -> None:
    after = fused(module(*GIVEN, *PRODUCT, *PLAIN, *SOFTMAX, *RESULT, "%all = tuple(%o, %p)"))
    (body,) = fusions(after)
    assert str(body.nodes[body.root].type) == f"({SCORES}, f32[2,12,3])"


def test_values_that_are_made_of_the_scores_leave_the_pattern_as_it_is() -> None:
    """The cluster would wait for itself."""
    after = fused(
        module(
            *GIVEN,
            *PRODUCT,
            *PLAIN,
            *SOFTMAX,
            "%parts = f32[2,12] sort(%most), dimensions={1}, to_apply={ a = f32[] parameter(0) "
            "b = f32[] parameter(1) ROOT l = pred[] compare(a, b), direction=LT }",
            "%first = f32[2,1] slice(%parts), slice={[0:2], [0:1]}",
            "%flat = f32[2] reshape(%first)",
            "%spread = f32[2,16,3] broadcast(%flat), dimensions={0}",
            "%w = add(%v, %spread)",
            *(line.replace("%v", "%w") for line in RESULT),
        )
    )
    assert not fusions(after)


def test_nothing_goes_across_an_optimization_barrier() -> None:
    after = fused(
        module(
            *GIVEN,
            *PRODUCT,
            "%y = opt-barrier(%x)",
            *SOFTMAX,
            *RESULT,
        )
    )
    assert not fusions(after)


def test_what_a_checkpoint_computes_again_is_fused_with_the_gradient() -> None:
    again = [line.replace("%", "%again_") for line in (*PRODUCT, *PLAIN, *SOFTMAX)]
    again = [line.replace("%again_sum", "%sum").replace("%again_max", "%max") for line in again]
    inputs = ("zero", "low")
    behind = ("q", "k", "v", "p")
    backward = list(BACKWARD)
    for name in (*inputs, *behind):
        again = [line.replace(f"%again_{name})", f"%{name})") for line in again]
        again = [line.replace(f"%again_{name},", f"%{name},") for line in again]
    for name in behind[:3]:
        again = [line.replace(f"%{name},", f"%late_{name},") for line in again]
        again = [line.replace(f"%{name})", f"%late_{name})") for line in again]
        backward = [line.replace(f"%{name})", f"%late_{name})") for line in backward]
    backward = [line.replace("(%p,", "(%again_p,") for line in backward]
    kept = [
        f"%late_{name} = f32[2,{size},3] get-tuple-element(%kept), index={k}"
        for k, (name, size) in enumerate((("q", 12), ("k", 16), ("v", 16)))
    ]
    after = fused(
        module(
            *GIVEN,
            *PRODUCT,
            *PLAIN,
            *SOFTMAX,
            *RESULT,
            "%held = tuple(%q, %k, %v)",
            "%kept = opt-barrier(%held)",
            *kept,
            *again,
            *backward,
        )
    )
    assert [products(body) for body in fusions(after)] == [2, 5]
    assert not has_scores(after.entry_computation)
    assert all(".again" not in node.name for body in fusions(after) for node in body.nodes)


def test_a_single_query_saves_nothing_and_stays() -> None:
    lines = (*GIVEN, *PRODUCT, *PLAIN, *SOFTMAX, *RESULT)
    assert not fusions(fused(module(*(line.replace("12", "1") for line in lines))))


def test_rows_that_do_not_fit_stay() -> None:
    text = (*GIVEN, *PRODUCT, *PLAIN, *SOFTMAX, *RESULT)
    long = [line.replace("16", "40000").replace("12", "256") for line in text]
    before = module(*long)
    assert run_passes(before, [FuseAttention(enabled=1)], verify_each=True) == before
    entry = before.entry_computation
    assert not fits(entry, [k for k, n in enumerate(entry.nodes) if n.op != "parameter"])


def test_attention_in_the_body_of_a_loop() -> None:
    lines = (*GIVEN[1:], *PRODUCT, *PLAIN, *SOFTMAX, *RESULT)
    inner = [line.replace("parameter(1)", "constant(0.5)") for line in lines]
    inner = [line.replace("parameter(2)", "constant(0.25)") for line in inner]
    body = "\n".join(
        [
            "%body { %state = (s32[], f32[2,12,3]) parameter(0)",
            "%i = s32[] get-tuple-element(%state), index=0",
            "%q = f32[2,12,3] get-tuple-element(%state), index=1",
            *inner,
            "%one = s32[] constant(1)",
            "%next = add(%i, %one)",
            "ROOT %out = tuple(%next, %o) }",
            "%cond { %was = (s32[], f32[2,12,3]) parameter(0)",
            "%at = s32[] get-tuple-element(%was), index=0",
            "%end = s32[] constant(3)",
            "ROOT %more = compare(%at, %end), direction=LT }\n",
        ]
    )
    before = load(
        "%q0 = f32[2,12,3] parameter(0)",
        "%start = s32[] constant(0)",
        "%first = tuple(%start, %q0)",
        "%last = (s32[], f32[2,12,3]) while(%first), condition=%cond, body=%body",
        "%result = f32[2,12,3] get-tuple-element(%last), index=1",
        header="HloModule m, num_partitions=1",
        before=REGIONS + body,
    )
    after = fused(before)
    assert [node.op for node in after.computations["body"].nodes].count("fusion") == 1


# What frameworks print: layouts between, operands in either order, types

PERMUTATIONS = list(itertools.permutations(range(3)))


@given(
    st.sampled_from(PERMUTATIONS),
    st.sampled_from(PERMUTATIONS),
    st.booleans(),
    st.booleans(),
    st.booleans(),
)
def test_layouts_orders_and_types_do_not_matter(
    keys: tuple[int, ...], scores: tuple[int, ...], swapped: bool, narrow: bool, gradient: bool
) -> None:
    shape = (HEADS, KEYS, WIDTH)
    moved = tuple(shape[d] for d in keys)
    place = [keys.index(d) for d in range(3)]  # of batch, keys and width
    sizes = (HEADS, QUERIES, KEYS) if not swapped else (HEADS, KEYS, QUERIES)
    seen = tuple(sizes[d] for d in scores)
    back = [scores.index(d) for d in ((0, 1, 2) if not swapped else (0, 2, 1))]
    left = "lhs_batch_dims={0}, lhs_contracting_dims={2}"
    right = f"rhs_batch_dims={{{place[0]}}}, rhs_contracting_dims={{{place[2]}}}"
    operands = "%q, %moved"
    if swapped:
        operands = "%moved, %q"
        left, right = (
            f"lhs_batch_dims={{{place[0]}}}, lhs_contracting_dims={{{place[2]}}}",
            "rhs_batch_dims={0}, rhs_contracting_dims={2}",
        )
    kind = ",".join(map(str, sizes))
    lines = [
        *GIVEN,
        f"%moved = f32[{','.join(map(str, moved))}] transpose(%k), "
        f"dimensions={{{','.join(map(str, keys))}}}",
        f"%made = f32[{kind}] dot({operands}), {left}, {right}",
        f"%turned = f32[{','.join(map(str, seen))}] transpose(%made), "
        f"dimensions={{{','.join(map(str, scores))}}}",
        f"%x = {SCORES} transpose(%turned), dimensions={{{','.join(map(str, back))}}}",
        *PLAIN,
        *SOFTMAX,
    ]
    if narrow:
        lines[-1] = lines[-1].replace("%p", "%wide")
        lines += ["%short = bf16[2,12,16] convert(%wide)", f"%p = {SCORES} convert(%short)"]
    after = fused(module(*lines, *RESULT, *(BACKWARD if gradient else ())))
    assert [products(body) for body in fusions(after)] == ([2, 5] if gradient else [2])
    assert not has_scores(after.entry_computation)


def test_a_module_that_has_fusions_stays_as_it_is() -> None:
    once = fused(module(*GIVEN, *PRODUCT, *PLAIN, *SOFTMAX, *RESULT, *BACKWARD))
    assert run_passes(once, [FuseAttention(enabled=1)], verify_each=True) == once
