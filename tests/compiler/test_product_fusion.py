"""Products that join the work beside them, and what must stay apart."""

import pytest

from ncc_compiler.ir.graph import Computation, Module
from ncc_compiler.ir.text.printer import print_computation
from ncc_compiler.overlap.fuse import Fuse
from ncc_compiler.overlap.products import FuseProducts
from ncc_compiler.passes.manager import run_passes
from tests.compiler.small_modules import SUM, load, with_same_bits

GIVEN = (
    "%x = f32[8,6] parameter(0)",
    "%w = f32[6,10] parameter(1)",
    "%b = f32[10] parameter(2)",
)
DOT = "%y = f32[8,10] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
BIAS = "%bias = f32[8,10] broadcast(%b), dimensions={1}"
CONSUMER = (BIAS, "%shifted = add(%y, %bias)", "%z = tanh(%shifted)")
PRODUCER = ("%u = tanh(%x)", "%v = negate(%u)")
SECOND = "%y = f32[8,10] dot(%v, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def fused(*lines: str, ranks: int = 1) -> Module:
    """The module after both passes, whose values are bit for bit those of before."""
    before = load(*lines, header=f"HloModule m, num_partitions={ranks}", before=SUM)
    return with_same_bits(before, [Fuse(), FuseProducts()])


def with_products(after: Module) -> list[Computation]:
    """The computations of fusions with a product."""
    return [
        after.computations[node.callee("calls")]
        for node in after.entry_computation.nodes
        if node.op == "fusion" and node.attributes["kind"] == "kOutput"
    ]


def test_what_reads_a_product_joins_it() -> None:
    after = fused(*GIVEN, DOT, *CONSUMER)
    (body,) = with_products(after)
    assert print_computation(body).splitlines() == [
        "%fused_z.1 (x: f32[8,6], w: f32[6,10], b: f32[10]) -> f32[8,10] {",
        "  %x = f32[8,6] parameter(0)",
        "  %w = f32[6,10] parameter(1)",
        "  %b = f32[10] parameter(2)",
        "  %y = f32[8,10] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "  %bias = f32[8,10] broadcast(%b), dimensions={1}",
        "  %shifted = f32[8,10] add(%y, %bias)",
        "  ROOT %z = f32[8,10] tanh(%shifted)",
        "}",
    ]
    ops = [node.op for node in after.entry_computation.nodes]
    assert ops == ["parameter", "parameter", "parameter", "fusion"]


def test_a_single_operation_joins_too() -> None:
    (body,) = with_products(fused(*GIVEN, DOT, "%z = tanh(%y)"))
    assert [node.op for node in body.nodes] == ["parameter", "parameter", "dot", "tanh"]


def test_what_only_a_product_reads_joins_it() -> None:
    (body,) = with_products(fused(*GIVEN, *PRODUCER, SECOND))
    ops = [node.op for node in body.nodes]
    assert ops == ["parameter", "parameter", "tanh", "negate", "dot"]


def test_both_sides_of_one_product() -> None:
    (body,) = with_products(fused(*GIVEN, *PRODUCER, SECOND, *CONSUMER))
    assert [node.op for node in body.nodes].count("dot") == 1
    assert len(body.nodes) == 3 + 2 + 1 + 3


def test_a_product_that_is_read_later_too_is_one_more_result() -> None:
    after = fused(*GIVEN, DOT, *CONSUMER, "%late = sine(%y)", "%both = tuple(%z, %late)")
    (body,) = with_products(after)
    assert str(body.nodes[body.root].type) == "(f32[8,10], f32[8,10])"
    names = [node.name for node in after.entry_computation.nodes if node.op == "get-tuple-element"]
    assert "y" in names


def test_results_of_a_consumer_keep_their_numbers() -> None:
    after = fused(
        *GIVEN,
        "%zero = f32[] constant(0)",
        DOT,
        *CONSUMER,
        "%sums = f32[10] reduce(%z, %zero), dimensions={0}, to_apply=%sum",
        "%late = f32[10,10] dot(%y, %z), lhs_contracting_dims={0}, rhs_contracting_dims={0}",
        "%all = tuple(%z, %sums, %late)",
    )
    (body,) = with_products(after)
    assert str(body.nodes[body.root].type) == "(f32[8,10], f32[10], f32[8,10])"


def test_two_products_never_join() -> None:
    after = fused(
        *GIVEN,
        DOT,
        "%other = f32[8,10] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "%z = multiply(%y, %other)",
    )
    (body,) = with_products(after)
    assert [node.op for node in body.nodes].count("dot") == 1


def test_a_product_of_few_rows_saves_little_and_stays() -> None:
    few = [
        "%x = f32[1,64] parameter(0)",
        "%w = f32[64,100] parameter(1)",
        "%y = f32[1,100] dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "%z = tanh(%y)",
    ]
    assert not with_products(fused(*few))
    assert with_products(fused(*(line.replace("[1,", "[64,") for line in few)))


@pytest.mark.parametrize(
    ("tokens", "features", "joins"),
    [(8192, 1024, True), (8192, 16384, False), (128, 16384, False)],
    ids=["weights that fit", "weights that do not", "too little to save"],
)
def test_a_norm_joins_where_weights_are_read_no_more_often(
    tokens: int, features: int, joins: bool
) -> None:
    """Of many tokens, weights that SBUF does not hold would be read again for each tile."""
    lines = [
        f"%x = bf16[{tokens},4096] parameter(0)",
        f"%w = bf16[4096,{features}] parameter(1)",
        "%zero = f32[] constant(0)",
        f"%wide = f32[{tokens},4096] convert(%x)",
        "%square = multiply(%wide, %wide)",
        f"%total = f32[{tokens}] reduce(%square, %zero), dimensions={{1}}, to_apply=%sum",
        "%scale = rsqrt(%total)",
        f"%scales = f32[{tokens},4096] broadcast(%scale), dimensions={{0}}",
        "%normal = multiply(%wide, %scales)",
        f"%small = bf16[{tokens},4096] convert(%normal)",
        f"%y = bf16[{tokens},{features}] dot(%small, %w), lhs_contracting_dims={{1}}, "
        "rhs_contracting_dims={0}",
    ]
    before = load(*lines, header="HloModule m, num_partitions=1", before=SUM)
    after = run_passes(before, [Fuse(), FuseProducts()], verify_each=True)
    assert bool(with_products(after)) is joins


def test_a_product_does_not_wait_for_a_collective() -> None:
    after = fused(
        *GIVEN,
        "%r = f32[10] all-reduce(%b), channel_id=1, replica_groups={{0,1}}, "
        "use_global_device_ids=true, to_apply=%sum",
        DOT,
        *(line.replace("%b)", "%r)") for line in CONSUMER),
        ranks=2,
    )
    assert not with_products(after)


def test_a_product_does_not_go_behind_another() -> None:
    after = fused(
        *GIVEN,
        DOT,
        "%v = tanh(%x)",
        "%next = f32[8,8] dot(%v, %x), lhs_contracting_dims={1}, rhs_contracting_dims={1}",
        "%z = tanh(%y)",
        "%both = tuple(%z, %next)",
    )
    bodies = with_products(after)
    assert all(node.name != "z" for body in bodies for node in body.nodes)


def test_a_graph_behind_the_pass_stays_as_it_is() -> None:
    after = fused(*GIVEN, *PRODUCER, SECOND, *CONSUMER)
    assert run_passes(after, [Fuse(), FuseProducts()], verify_each=True) == after
