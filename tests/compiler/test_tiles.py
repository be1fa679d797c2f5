"""Tiles of clusters: roles of dimensions, what is held, and what does not fit."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncc_compiler.ir.graph import Computation, Module
from ncc_compiler.overlap.tiles import (
    TILE_BYTES,
    DimensionRole,
    Tiling,
    _reshape_runs,
    fits,
    tiling,
)
from ncc_runtime.neff.work.work import SBUF_BYTES
from tests.compiler.small_modules import SUM, load

MAXIMUM = SUM.replace("%sum", "%max").replace("add", "maximum")


def body(*lines: str) -> Computation:
    module: Module = load(*lines, before=SUM + MAXIMUM)
    return module.entry_computation


def members(computation: Computation) -> list[int]:
    """All that is neither given nor a scalar constant."""
    return [k for k, n in enumerate(computation.nodes) if n.op not in ("parameter", "constant")]


def tiles_of(*lines: str) -> tuple[Computation, Tiling]:
    computation = body(*lines)
    found = tiling(computation, members(computation))
    assert fits(computation, members(computation)) == found.fits
    return computation, found


def roles(computation: Computation, found: Tiling, name: str) -> list[DimensionRole]:
    """The roles of the dimensions of a node of the cluster."""
    at = next(k for k, node in enumerate(computation.nodes) if node.name == name)
    return [found.roles[each] for each in found.classes[at]]


def held(computation: Computation, found: Tiling) -> set[str]:
    return {computation.nodes[position].name for position in found.held}


def softmax(rows: int, keys: int, dtype: str = "f32") -> list[str]:
    big, row = f"{dtype}[{rows},{keys}]", f"{dtype}[{rows}]"
    return [
        f"%x = {big} parameter(0)",
        f"%zero = {dtype}[] constant(0)",
        f"%low = {dtype}[] constant(-inf)",
        f"%most = {row} reduce(%x, %low), dimensions={{1}}, to_apply=%max",
        f"%m = {big} broadcast(%most), dimensions={{0}}",
        f"%d = {big} subtract(%x, %m)",
        f"%e = {big} exponential(%d)",
        f"%s = {row} reduce(%e, %zero), dimensions={{1}}, to_apply=%sum",
        f"%t = {big} broadcast(%s), dimensions={{0}}",
        f"%p = {big} divide(%e, %t)",
    ]


def test_a_softmax_holds_a_row_of_its_scores_and_then_of_their_exponentials() -> None:
    computation, found = tiles_of(*softmax(4096, 2048))
    assert roles(computation, found, "p") == [DimensionRole.PARALLEL, DimensionRole.WHOLE]
    assert held(computation, found) == {"x", "e"}
    assert found.tile_bytes == 128 * 2048 * 4  # one at a time
    assert found.classes[9][0] == found.partitioned


@pytest.mark.parametrize(("keys", "expected"), [(2048, True), (20_000, True), (32_768, False)])
def test_rows_that_stay_whole_are_as_long_as_half_of_a_partition(keys: int, expected: bool) -> None:
    computation = body(*softmax(256, keys))
    assert fits(computation, members(computation)) is expected
    assert (128 * keys * 4 <= TILE_BYTES) is expected


def test_few_rows_are_not_counted_as_a_full_tile() -> None:
    computation = body(*softmax(8, 32_768))
    assert fits(computation, members(computation))


def test_elementwise_nodes_hold_nothing_however_long_the_rows_are() -> None:
    lines = ["%x = f32[4,1000000] parameter(0)", *(f"%y{k} = negate(%x)" for k in range(3))]
    _, found = tiles_of(*lines, "%z = f32[4000000] reshape(%y2)")
    assert (found.held, found.tile_bytes) == ((), 0)
    assert set(found.roles.values()) == {DimensionRole.PARALLEL}


def test_too_many_values_at_once_do_not_fit() -> None:
    inputs = [f"%x{k} = f32[8,1024] parameter({k})" for k in range(200)]
    sums = ["%s1 = add(%x0, %x1)", *(f"%s{k} = add(%s{k - 1}, %x{k})" for k in range(2, 200))]
    computation = body(*inputs, *sums)
    chain = members(computation)
    assert not fits(computation, chain)
    assert fits(computation, chain[:100])


def test_a_reduction_whose_result_only_leaves_is_accumulated() -> None:
    computation, found = tiles_of(
        "%x = f32[8192,4096] parameter(0)",
        "%zero = f32[] constant(0)",
        "%y = multiply(%x, %x)",
        "%bias = f32[4096] reduce(%y, %zero), dimensions={0}, to_apply=%sum",
        "%small = bf16[4096] convert(%bias)",
    )
    assert roles(computation, found, "y") == [DimensionRole.ACCUMULATED, DimensionRole.PARALLEL]
    assert (found.held, found.accumulated_bytes) == ((), 4)


NORM = [
    "%x = bf16[8192,4096] parameter(0)",
    "%zero = f32[] constant(0)",
    "%eps = f32[8192] parameter(1)",
    "%wide = f32[8192,4096] convert(%x)",
    "%square = multiply(%wide, %wide)",
    "%total = f32[8192] reduce(%square, %zero), dimensions={1}, to_apply=%sum",
    "%shifted = add(%total, %eps)",
    "%scale = rsqrt(%shifted)",
    "%scales = f32[8192,4096] broadcast(%scale), dimensions={0}",
    "%normal = multiply(%wide, %scales)",
]


def test_a_norm_and_the_gradient_of_its_weights_go_together() -> None:
    computation, found = tiles_of(
        *NORM,
        "%gains = f32[4096] reduce(%normal, %zero), dimensions={0}, to_apply=%sum",
    )
    assert roles(computation, found, "normal") == [DimensionRole.ACCUMULATED, DimensionRole.WHOLE]
    assert held(computation, found) == {"wide"}
    assert found.accumulated_bytes == 4096 * 4  # whole, since each tile of tokens adds to all
    assert found.fits


def product(tokens: int, features: int) -> list[str]:
    return [line.replace("8192", str(tokens)) for line in NORM] + [
        f"%small = bf16[{tokens},4096] convert(%normal)",
        f"%w = bf16[4096,{features}] parameter(2)",
        f"%y = bf16[{tokens},{features}] dot(%small, %w), lhs_contracting_dims={{1}}, "
        "rhs_contracting_dims={0}",
    ]


def test_a_norm_goes_into_a_product_whose_weights_are_read_no_more_often() -> None:
    for tokens, features, expected in (
        (128, 14336, True),
        (8192, 1024, True),
        (8192, 14336, False),
    ):
        computation = body(*product(tokens, features))
        assert fits(computation, members(computation)) is expected, (tokens, features)


def test_weights_that_every_tile_needs_are_resident() -> None:
    _, found = tiles_of(*product(8192, 1024))
    assert found.resident_bytes == 4096 * 1024 * 2
    assert found.tile_bytes + found.resident_bytes <= SBUF_BYTES


def test_consumers_of_a_product_need_no_more_than_the_product() -> None:
    _, found = tiles_of(
        "%x = bf16[8192,4096] parameter(0)",
        "%w = bf16[4096,14336] parameter(1)",
        "%b = bf16[14336] parameter(2)",
        "%y = dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}",
        "%bias = bf16[8192,14336] broadcast(%b), dimensions={1}",
        "%shifted = add(%y, %bias)",
        "%z = tanh(%shifted)",
    )
    assert (found.held, found.resident_bytes, found.tile_bytes) == ((), 0, 0)


def attention(heads: int, queries: int, keys: int, width: int) -> list[str]:
    scores, row = f"f32[{heads},{queries},{keys}]", f"f32[{heads},{queries}]"
    return [
        f"%q = bf16[{heads},{queries},{width}] parameter(0)",
        f"%k = bf16[{heads},{keys},{width}] parameter(1)",
        f"%v = bf16[{heads},{keys},{width}] parameter(2)",
        "%zero = f32[] constant(0)",
        "%low = f32[] constant(-inf)",
        f"%x = {scores} dot(%q, %k), lhs_batch_dims={{0}}, rhs_batch_dims={{0}}, "
        "lhs_contracting_dims={2}, rhs_contracting_dims={2}",
        f"%places = s32[{keys}] iota(), iota_dimension=0",
        f"%columns = s32[{heads},{queries},{keys}] broadcast(%places), dimensions={{2}}",
        f"%numbers = s32[{queries}] iota(), iota_dimension=0",
        f"%rows = s32[{heads},{queries},{keys}] broadcast(%numbers), dimensions={{1}}",
        "%seen = compare(%columns, %rows), direction=LE",
        f"%lows = {scores} broadcast(%low), dimensions={{}}",
        "%masked = select(%seen, %x, %lows)",
        f"%most = {row} reduce(%masked, %low), dimensions={{2}}, to_apply=%max",
        f"%m = {scores} broadcast(%most), dimensions={{0,1}}",
        "%d = subtract(%masked, %m)",
        "%e = exponential(%d)",
        f"%s = {row} reduce(%e, %zero), dimensions={{2}}, to_apply=%sum",
        f"%t = {scores} broadcast(%s), dimensions={{0,1}}",
        "%p = divide(%e, %t)",
        f"%small = bf16[{heads},{queries},{keys}] convert(%p)",
        "%o = dot(%small, %v), lhs_batch_dims={0}, rhs_batch_dims={0}, "
        "lhs_contracting_dims={2}, rhs_contracting_dims={1}",
    ]


def test_attention_holds_one_row_of_scores_a_partition_and_keys_and_values_of_a_head() -> None:
    computation, found = tiles_of(*attention(32, 8192, 8192, 128))
    assert roles(computation, found, "x") == [
        DimensionRole.PARALLEL,
        DimensionRole.PARALLEL,
        DimensionRole.WHOLE,
    ]
    assert held(computation, found) == {"masked", "e"}
    assert found.tile_bytes == 128 * 8192 * 4
    assert found.resident_bytes == 2 * 8192 * 128 * 2
    assert found.fits


@pytest.mark.parametrize(
    ("queries", "keys", "expected"),
    [(2048, 2048, True), (16_384, 16_384, True), (32_768, 32_768, False), (1, 131_072, True)],
)
def test_attention_fits_up_to_rows_that_are_too_long(
    queries: int, keys: int, expected: bool
) -> None:
    computation = body(*attention(8, queries, keys, 128))
    assert fits(computation, members(computation)) is expected


def test_an_array_that_is_read_along_two_dimensions_does_not_tie_them() -> None:
    _, found = tiles_of(
        "%at = s32[64] parameter(0)",
        "%rows = s32[64,64] broadcast(%at), dimensions={0}",
        "%columns = s32[64,64] broadcast(%at), dimensions={1}",
        "%seen = compare(%rows, %columns), direction=GE",
    )
    assert len(set(found.classes[3])) == 2


def test_what_is_concatenated_or_sliced_along_a_dimension_is_needed_whole() -> None:
    computation, found = tiles_of(
        "%x = f32[256,64] parameter(0)",
        "%left = f32[256,32] slice(%x), slice={[0:256], [0:32]}",
        "%right = f32[256,32] slice(%x), slice={[0:256], [32:64]}",
        "%y = f32[256,64] concatenate(%right, %left), dimensions={1}",
    )
    assert roles(computation, found, "y") == [DimensionRole.PARALLEL, DimensionRole.WHOLE]


factors = st.lists(st.integers(1, 4), min_size=0, max_size=5)


@given(factors, st.lists(st.integers(0, 5), max_size=4), st.lists(st.integers(0, 5), max_size=4))
def test_runs_of_a_reshape_have_equally_many_elements(
    sizes: list[int], cuts: list[int], others: list[int]
) -> None:
    shapes = [_merged(sizes, cut) for cut in (cuts, others)]
    runs = list(_reshape_runs(*shapes))
    for side in (0, 1):
        in_runs = [d for run in runs for d in run[side]]
        assert in_runs == [d for d, size in enumerate(shapes[side]) if size != 1]
    for olds, news in runs:
        assert math.prod(shapes[0][d] for d in olds) == math.prod(shapes[1][d] for d in news)


def _merged(sizes: list[int], cuts: list[int]) -> list[int]:
    """The sizes with runs multiplied, from cut to cut."""
    edges = sorted({0, len(sizes), *(cut for cut in cuts if cut < len(sizes))})
    return [math.prod(sizes[a:b]) for a, b in itertools.pairwise(edges)]
