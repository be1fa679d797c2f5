"""All-reduces that become reduce-scatters, and that must not; tokens that go, and that stay."""

import numpy as np
import pytest

from ncc_compiler.ir.graph import Module
from ncc_compiler.overlap.erase_tokens import EraseTokens
from ncc_compiler.overlap.split_all_reduces import SplitAllReduces
from ncc_compiler.passes.manager import run_passes
from tests.compiler.small_modules import SUM, assert_same_bits, load
from tests.reference_runs import reference_outputs

WHOLE, PART = "f32[8,4]", "f32[2,4]"
MEANING = "channel_id=1, replica_groups={{0,1,2,3}}, use_global_device_ids=true, to_apply=%sum"
SUMMED = f"%s = {WHOLE} all-reduce(%g), {MEANING}"
RANK = "%rank = u32[] partition-id()"
ZERO = "%zero = s32[] constant(0)"


def ops_after(module: Module, split: SplitAllReduces | None = None) -> list[str]:
    """The collectives after the pass, whose values are those of before."""
    after = run_passes(module, [split or SplitAllReduces()], verify_each=True)
    entry = module.entry_computation
    kinds = [entry.nodes[position].array for position in entry.parameters()]
    draw = np.random.default_rng(0)
    given = [
        np.broadcast_to(draw.integers(-4, 5, kind.shape), (module.ranks, *kind.shape))
        .astype(kind.dtype.numpy)
        .copy()
        for kind in kinds
    ]
    given[0] += np.arange(module.ranks, dtype=given[0].dtype).reshape(
        -1, *[1] * (given[0].ndim - 1)
    )
    assert_same_bits(reference_outputs(after, given), reference_outputs(module, given))
    nodes = after.entry_computation.nodes
    used = {operand for node in nodes for operand in node.operands}
    known = ("all-reduce", "reduce-scatter", "all-gather", "ncc.avg_reduce_scatter")
    return [node.op for k, node in enumerate(nodes) if node.op in known and k in used]


def own_rows(start: str, *before: str, source: str = "%s", summed: str = SUMMED) -> Module:
    sliced = f"%own = {PART} dynamic-slice({source}, {start}, %zero), dynamic_slice_sizes={{2,4}}"
    result = f"%new = {PART} negate(%own)"
    return load(f"%g = {WHOLE} parameter(0)", summed, ZERO, *before, sliced, result, before=SUM)


@pytest.mark.parametrize(
    "lines",
    [
        ["%r = s32[] convert(%rank)", "%two = s32[] constant(2)", "%at = s32[] multiply(%r, %two)"],
        [
            "%t = s32[4] constant({0, 2, 4, 6})",
            "%row = s32[1] dynamic-slice(%t, %rank), dynamic_slice_sizes={1}",
            "%at = s32[] reshape(%row)",
        ],
        [  # what jax makes of an index that could be negative
            "%r = s32[] convert(%rank)",
            "%two = s32[] constant(2)",
            "%m = s32[] multiply(%r, %two)",
            "%eight = s32[] constant(8)",
            "%up = s32[] add(%m, %eight)",
            "%low = pred[] compare(%m, %zero), direction=LT",
            "%at = s32[] select(%low, %up, %m)",
        ],
        [  # clamped to the last part
            "%r = s32[] convert(%rank)",
            "%t = s32[4] constant({0, 2, 4, 9})",
            "%row = s32[1] dynamic-slice(%t, %r), dynamic_slice_sizes={1}",
            "%at = s32[] reshape(%row)",
        ],
    ],
)
def test_a_sum_of_which_ranks_take_their_own_part_is_scattered(lines):
    assert ops_after(own_rows("%at", RANK, *lines)) == ["reduce-scatter"]


@pytest.mark.parametrize(
    "lines",
    [
        ["%at = s32[] constant(2)"],
        ["%r = s32[] convert(%rank)", "%at = s32[] negate(%r)"],
        [
            "%t = s32[4] constant({2, 0, 4, 6})",
            "%row = s32[1] dynamic-slice(%t, %rank), dynamic_slice_sizes={1}",
            "%at = s32[] reshape(%row)",
        ],
    ],
)
def test_a_sum_of_which_ranks_take_other_parts_stays(lines):
    assert ops_after(own_rows("%at", RANK, *lines)) == ["all-reduce"]


OWN = ("%r = s32[] convert(%rank)", "%at = s32[] add(%r, %r)")


def test_what_stands_between_is_computed_on_parts():
    between = f"%m = {WHOLE} multiply(%s, %g)"
    assert ops_after(own_rows("%at", RANK, *OWN, between, source="%m")) == ["reduce-scatter"]


def test_a_sum_of_two_sums_is_scattered_twice():
    other = f"%n = {WHOLE} negate(%g)", f"%u = {WHOLE} all-reduce(%n), {MEANING}"
    both = f"%m = {WHOLE} add(%s, %u)"
    module = own_rows("%at", RANK, *OWN, *other, both, source="%m")
    assert ops_after(module) == ["reduce-scatter", "reduce-scatter"]


def test_an_average_is_scattered_as_one():
    config = '{"channel_id":1,"replica_groups":[[0,1,2,3]],"use_global_device_ids":true}'
    target = f'custom_call_target="ncc.avg_all_reduce", backend_config={config}'
    summed = f"%s = {WHOLE} custom-call(%g), {target}"
    assert ops_after(own_rows("%at", RANK, *OWN, summed=summed)) == ["ncc.avg_reduce_scatter"]


def test_a_sum_that_is_needed_whole_stays():
    lines = [f"%g = {WHOLE} parameter(0)", SUMMED, ZERO, RANK, *OWN]
    lines += [f"%own = {PART} dynamic-slice(%s, %at, %zero), dynamic_slice_sizes={{2,4}}"]
    lines += [f"%w = {WHOLE} reverse(%s), dimensions={{0}}"]
    module = load(*lines, f"%all = ({PART}, {WHOLE}) tuple(%own, %w)", before=SUM)
    assert ops_after(module) == ["all-reduce"]


def test_all_reduces_stay_whole_if_asked():
    module = own_rows("%at", RANK, *OWN)
    assert ops_after(module, SplitAllReduces(enabled=0)) == ["all-reduce"]


def update(sharding: str, elements: int = 1024 * 1024, rows: int = 4) -> Module:
    """A weight minus a sum, twice, on every rank."""
    kind = f"f32[{rows},{elements // rows}]"
    lines = [f"%g = {kind} parameter(0)", f"%w = {kind} parameter(1){sharding}"]
    lines += [f"%s = {kind} all-reduce(%g), {MEANING}", "%c = f32[] constant(0.5)"]
    lines += [
        f"%rate = {kind} broadcast(%c), dimensions={{}}",
        f"%step = {kind} multiply(%s, %rate)",
    ]
    lines += [f"%new = {kind} subtract(%w, %step)", f"%newer = {kind} subtract(%new, %step)"]
    return load(*lines, f"%out = ({kind}) tuple(%newer)", before=SUM)


REPLICATED = ", sharding={replicated}"
TRUSTING = SplitAllReduces(trust_shardings=1)


def test_an_update_of_a_replicated_weight_is_divided_where_that_is_trusted():
    assert ops_after(update(REPLICATED), TRUSTING) == ["reduce-scatter", "all-gather"]


@pytest.mark.parametrize(
    ("sharding", "split", "size"),
    [
        (REPLICATED, SplitAllReduces(), 1024 * 1024),
        (", sharding={devices=[4,1]<=[4]}", TRUSTING, 1024 * 1024),
        (REPLICATED, TRUSTING, 64),
    ],
)
def test_an_update_stays_whole_where_ranks_may_differ_or_it_is_small(sharding, split, size):
    assert ops_after(update(sharding, size), split) == ["all-reduce"]


def test_a_sum_stays_whole_that_one_operation_reads():
    """Its parts would save less than the gather behind them takes."""
    kind = "f32[1048576]"
    lines = [f"%g = {kind} parameter(0)", f"%s = {kind} all-reduce(%g), {MEANING}"]
    module = load(*lines, f"%n = {kind} negate(%s)", before=SUM)
    assert ops_after(module) == ["all-reduce"]


def test_a_weight_that_was_gathered_is_the_same_everywhere():
    kind = "f32[1048576]"
    lines = [f"%g = {kind} parameter(0)", "%w = f32[262144] parameter(1)"]
    gathered = MEANING.replace(", to_apply=%sum", ", dimensions={0}")
    lines += [f"%all = {kind} all-gather(%w), {gathered}", f"%s = {kind} all-reduce(%g), {MEANING}"]
    lines += [f"%a = {kind} subtract(%all, %s)", f"%b = {kind} multiply(%a, %s)"]
    lines += [f"%c = {kind} maximum(%b, %s)"]
    module = load(*lines, f"%out = ({kind}) tuple(%c)", before=SUM)
    assert ops_after(module) == ["all-gather", "reduce-scatter", "all-gather"]


TOKEN = 'frontend_attributes={has_token="1"}'
CHAIN = (
    "%x = f32[4] parameter(0)",
    "%t = f32[] constant(0)",
    f"%a = (f32[4], f32[]) all-reduce(%x, %t), to_apply=%sum, {TOKEN}",
    "%a0 = f32[4] get-tuple-element(%a), index=0",
    "%a1 = f32[] get-tuple-element(%a), index=1",
    f"%b = (f32[4], f32[]) all-reduce(%a0, %a1), to_apply=%sum, {TOKEN}",
    "%b0 = f32[4] get-tuple-element(%b), index=0",
    "%b1 = f32[] get-tuple-element(%b), index=1",
)


def operand_counts(*lines: str) -> list[int]:
    module = load(*lines, header="HloModule m, replica_count=4", before=SUM)
    after = run_passes(module, [EraseTokens()], verify_each=True)
    given = [np.arange(16, dtype=np.float32).reshape(4, 4)]
    assert_same_bits(reference_outputs(after, given), reference_outputs(module, given))
    nodes = after.entry_computation.nodes
    return [len(node.operands) for node in nodes if node.op == "all-reduce"]


def test_tokens_that_nobody_reads_go():
    assert operand_counts(*CHAIN, "%r = f32[4] negate(%b0)") == [1, 1]


def test_a_token_that_is_a_result_stays_and_so_do_those_before_it():
    assert operand_counts(*CHAIN, "%r = (f32[4], f32[]) tuple(%b0, %b1)") == [2, 2]


def test_a_token_that_something_else_reads_stays():
    assert operand_counts(
        *CHAIN, "%wide = f32[4] broadcast(%a1), dimensions={}", "%r = f32[4] add(%wide, %b0)"
    ) == [2, 1]


def test_two_operands_without_the_mark_are_no_token():
    lines = [line.replace(f", {TOKEN}", "") for line in CHAIN]
    assert operand_counts(*lines, "%r = f32[4] negate(%b0)") == [2, 2]


def test_an_array_is_no_token():
    lines = ["%x = f32[4] parameter(0)"]
    lines += [f"%a = (f32[4], f32[4]) all-reduce(%x, %x), to_apply=%sum, {TOKEN}"]
    assert operand_counts(*lines, "%r = f32[4] get-tuple-element(%a), index=0") == [2]
