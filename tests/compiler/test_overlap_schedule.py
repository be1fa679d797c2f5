"""Orders: triggers early, waits late, streams by who waits, layers ahead as asked."""

from pathlib import Path

import pytest

from ncc_compiler.driver import compile_text
from ncc_compiler.ir.collectives import written_stream
from ncc_compiler.ir.graph import Module
from ncc_compiler.options import CompileOptions
from ncc_compiler.overlap.analyses import feeds_compute
from ncc_compiler.overlap.assign_streams import AssignStreams
from ncc_compiler.overlap.schedule import Schedule
from ncc_compiler.passes.manager import run_passes
from tests.compiler.small_modules import SUM, load

HLO = Path(__file__).parents[1] / "data" / "hlo"
DIMS = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
SIDE = "f32[8,8]"


def names(module: Module, schedule: Schedule | None = None) -> list[str]:
    """The entry in its order, without what takes no time."""
    module = run_passes(module, [schedule or Schedule(limit_percent=1000)], verify_each=True)
    nodes = module.entry_computation.nodes
    return [node.name for node in nodes if node.op not in ("parameter", "constant", "tuple")]


def sharded_layers(count: int) -> Module:
    """Products with weights that are gathered right before."""
    lines = [f"%x = {SIDE} parameter(0)"]
    lines += [f"%w{k} = f32[2,8] parameter({k + 1})" for k in range(count)]
    for k in range(count):
        lines.append(f"%g{k} = {SIDE} all-gather(%w{k}), dimensions={{0}}")
        before = f"%y{k - 1}" if k else "%x"
        lines.append(f"%y{k} = {SIDE} dot({before}, %g{k}), {DIMS}")
    return load(*lines, header="HloModule m, replica_count=4")


def scattered_layers(count: int) -> Module:
    """Products whose results are scattered, each product of the one before."""
    lines = [f"%x = {SIDE} parameter(0)"]
    for k in range(count):
        before = f"%y{k - 1}" if k else "%x"
        lines.append(f"%y{k} = {SIDE} dot({before}, %x), {DIMS}")
        lines.append(f"%s{k} = f32[2,8] reduce-scatter(%y{k}), dimensions={{0}}, to_apply=%sum")
    kinds, results = ", ".join(["f32[2,8]"] * count), ", ".join(f"%s{k}" for k in range(count))
    lines.append(f"%all = ({kinds}) tuple({results})")
    return load(*lines, header="HloModule m, replica_count=4", before=SUM)


def test_weights_are_gathered_as_early_as_memory_allows():
    assert names(sharded_layers(4)) == ["g0", "g1", "g2", "g3", "y0", "y1", "y2", "y3"]


def test_without_more_memory_gathers_go_ahead_where_less_is_live_than_later():
    """Three values are live with y1; as many with y0 and two gathers."""
    assert names(sharded_layers(4), Schedule(limit_percent=100, free_bytes=0)) == [
        *("g0", "g1", "y0", "y1", "g2", "y2", "g3", "y3")
    ]


def test_where_memory_is_short_nothing_goes_ahead_of_more_than_the_window():
    found = names(sharded_layers(8), Schedule(limit_percent=140, free_bytes=0, window=2))
    for place, name in enumerate(found):
        number = 2 * int(name[1:]) + (name[0] == "y")
        passed = [other for other in found[place + 1 :] if int(other[1:]) * 2 < number - 1]
        assert len(passed) < 2, name


@pytest.mark.parametrize(
    ("layers", "order"),
    [
        (0, "g0 y0 g1 y1 g2 y2 g3 y3"),
        (1, "g0 y0 g1 y1 g2 y2 g3 y3"),
        (2, "g0 g1 y0 g2 y1 g3 y2 y3"),
        (3, "g0 g1 g2 y0 g3 y1 y2 y3"),
    ],
)
def test_gathers_start_so_many_layers_early(layers, order):
    schedule = Schedule(limit_percent=1000, early_all_gather_layers=layers)
    assert " ".join(names(sharded_layers(4), schedule)) == order


@pytest.mark.parametrize(
    ("layers", "order"),
    [
        (0, "y0 s0 y1 s1 y2 s2 y3 s3"),
        (1, "y0 y1 s0 y2 s1 y3 s2 s3"),
        (2, "y0 y1 y2 s0 y3 s1 s2 s3"),
    ],
)
def test_scatters_start_so_many_layers_late(layers, order):
    schedule = Schedule(limit_percent=1000, late_reduce_scatter_layers=layers)
    found = names(scattered_layers(4), schedule)
    assert " ".join(found) == order


def test_what_fills_a_wait_stands_between_a_trigger_and_its_reader():
    lines = [f"%x = {SIDE} parameter(0)", f"%s = {SIDE} all-reduce(%x), to_apply=%sum"]
    lines += [f"%t = {SIDE} negate(%s)", f"%u = {SIDE} all-reduce(%t), to_apply=%sum"]
    lines += [f"%free = {SIDE} dot(%x, %x), {DIMS}", f"%all = ({SIDE}, {SIDE}) tuple(%u, %free)"]
    module = load(*lines, header="HloModule m, replica_count=4", before=SUM)
    assert names(module) == ["s", "free", "t", "u"]


def two_updates() -> Module:
    """Gradients a and b, b there first; each update takes a step on another engine half way."""
    lines = [f"%x = {SIDE} parameter(0)", f"%late = {SIDE} dot(%x, %x), {DIMS}"]
    for name, gradient in (("a", "late"), ("b", "x")):
        lines += [f"%{name} = {SIDE} all-reduce(%{gradient}), to_apply=%sum"]
        lines += [f"%{name}1 = {SIDE} negate(%{name})", f"%{name}2 = {SIDE} tanh(%{name}1)"]
        lines += [f"%{name}3 = {SIDE} multiply(%{name}2, %{name}1)"]
    lines += [f"%all = ({SIDE}, {SIDE}) tuple(%a3, %b3)"]
    return load(*lines, header="HloModule m, replica_count=4", before=SUM)


def test_updates_come_in_the_order_in_which_their_collectives_started():
    found = names(two_updates())
    assert found == ["b", "late", "a", "b1", "b2", "b3", "a1", "a2", "a3"]


def test_an_update_does_not_wait_ahead_of_one_whose_collective_started_earlier():
    """While tanh runs elsewhere, the queue of b3 has time, but a may be long in coming."""
    found = names(two_updates())
    assert found.index("b3") < found.index("a1")


def test_of_an_update_first_comes_what_most_work_waits_for():
    lines = [f"%x = {SIDE} parameter(0)", f"%s = {SIDE} all-reduce(%x), to_apply=%sum"]
    lines += [f"%short = {SIDE} negate(%s)", f"%long = {SIDE} multiply(%s, %s)"]
    lines += [f"%root = {SIDE} tanh(%long)", f"%end = {SIDE} add(%short, %root)"]
    found = names(load(*lines, header="HloModule m, replica_count=4", before=SUM))
    assert found.index("long") < found.index("short")


def test_what_an_update_needs_comes_in_the_order_of_updates():
    lines = [f"%x = {SIDE} parameter(0)", f"%y = {SIDE} parameter(1)"]
    lines += [f"%late = {SIDE} dot(%x, %x), {DIMS}"]
    for name, gradient in (("a", "late"), ("b", "x")):
        lines += [f"%old_{name} = {SIDE} negate(%y)" if name == "a" else f"%old_b = {SIDE} abs(%y)"]
        lines += [f"%{name} = {SIDE} all-reduce(%{gradient}), to_apply=%sum"]
        lines += [f"%new_{name} = {SIDE} add(%{name}, %old_{name})"]
    lines += [f"%all = ({SIDE}, {SIDE}) tuple(%new_a, %new_b)"]
    found = names(load(*lines, header="HloModule m, replica_count=4", before=SUM))
    assert found.index("old_b") < found.index("old_a") < found.index("new_b")


def test_what_is_made_ahead_leaves_memory_for_updates():
    """Else they take it all, and the second collective waits for the updates of the first."""
    big = "f32[64,64]"
    lines = [f"%x = {big} parameter(0)", f"%y = {big} parameter(1)", "%k = f32[] parameter(2)"]
    lines += [f"%wide{k} = {big} broadcast(%k), dimensions={{}}" for k in range(6)]
    lines += [f"%g = {big} dot(%x, %x), {DIMS}", f"%s = {big} all-reduce(%g), to_apply=%sum"]
    lines += [f"%u0 = {big} multiply(%s, %s)", f"%v0 = {big} add(%u0, %s)"]
    for k in range(6):
        lines += [f"%u{k + 1} = {big} multiply(%v{k}, %wide{k})"]
        lines += [f"%v{k + 1} = {big} add(%u{k + 1}, %v{k})"]
    lines += [
        f"%other = {big} dot(%y, %y), {DIMS}",
        f"%t = {big} all-reduce(%other), to_apply=%sum",
    ]
    lines += [f"%last = {big} negate(%t)", f"%all = ({big}, {big}) tuple(%v6, %last)"]
    module = load(*lines, header="HloModule m, replica_count=4", before=SUM)
    found = names(module, Schedule(limit_percent=110, free_bytes=0))  # one array more
    assert max(map(found.index, ("s", "t"))) < found.index("u0")


def test_an_update_in_place_stays_behind_the_last_reader_of_the_old_value():
    """Else the whole array would be copied for one row."""
    lines = [f"%p = {SIDE} parameter(0)", "%row = f32[1,8] parameter(1)", f"%x = {SIDE} negate(%p)"]
    lines += ["%zero = s32[] constant(0)", f"%old = {SIDE} dot(%x, %x), {DIMS}"]
    lines += [f"%new = {SIDE} dynamic-update-slice(%x, %row, %zero, %zero)"]
    lines += [f"%s = {SIDE} all-reduce(%new), to_apply=%sum"]
    lines += [f"%all = ({SIDE}, {SIDE}) tuple(%s, %old)"]
    found = names(load(*lines, header="HloModule m, replica_count=4", before=SUM))
    assert found.index("old") < found.index("new")


def test_a_barrier_stays_between_the_collectives_of_its_stream():
    lines = [f"%x = {SIDE} parameter(0)", f"%n = {SIDE} dot(%x, %x), {DIMS}"]
    lines += [f"%a = {SIDE} all-reduce(%n), to_apply=%sum"]
    lines += [f'%met = {SIDE} custom-call(%x), custom_call_target="ncc.barrier"']
    lines += [f"%b = {SIDE} all-reduce(%x), to_apply=%sum", f"%o = {SIDE} add(%a, %b)"]
    lines += [f"%all = ({SIDE}, {SIDE}) tuple(%o, %met)"]
    found = names(load(*lines, header="HloModule m, replica_count=4", before=SUM))
    assert found.index("a") < found.index("met") < found.index("b")


LOOP = """%going { %s = (f32[8,8], f32[8,8]) parameter(0) ROOT %no = pred[] constant(false) }
%round {
  %s = (f32[8,8], f32[8,8]) parameter(0)
  %a = f32[8,8] get-tuple-element(%s), index=0
  %b = f32[8,8] get-tuple-element(%s), index=1
  %c = f32[8,8] dot(%a, %a), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  %d = f32[8,8] add(%b, %c)
  ROOT %t = (f32[8,8], f32[8,8]) tuple(%NEW, %d)
}
"""


@pytest.mark.parametrize(("new", "fed"), [("a", False), ("d", True)])
def test_what_a_later_iteration_multiplies_feeds_compute(new, fed):
    module = load(
        f"%x = {SIDE} parameter(0)",
        f"%s = ({SIDE}, {SIDE}) tuple(%x, %x)",
        f"%l = ({SIDE}, {SIDE}) while(%s), condition=%going, body=%round",
        before=LOOP.replace("NEW", new),
    )
    body = module.computations["round"]
    by_name = dict(
        zip((node.name for node in body.nodes), feeds_compute(module)["round"], strict=True)
    )
    assert by_name["a"]
    assert by_name["d"] == fed


def test_a_loop_in_a_loop_in_a_loop_is_searched_in_no_time():
    """Each level would be gone through twice for each time of the level around it."""
    before = "%going { %s = f32[] parameter(0) ROOT %no = pred[] constant(false) }\n"
    before += "%round0 { %s = f32[] parameter(0) ROOT %n = f32[] negate(%s) }\n"
    for k in range(60):
        loop = f"ROOT %l = f32[] while(%s), condition=%going, body=%round{k}"
        before += f"%round{k + 1} {{ %s = f32[] parameter(0) {loop} }}\n"
    last = "%l = f32[] while(%x), condition=%going, body=%round60"
    module = load("%x = f32[] parameter(0)", last, before=before)
    assert set(feeds_compute(module)) >= {"main", "round0", "round60"}


def streams(*lines: str, before: str = SUM) -> dict[str, int | None]:
    module = load(*lines, header="HloModule m, replica_count=4", before=before)
    module = run_passes(module, [AssignStreams()], verify_each=True)
    nodes = module.entry_computation.nodes
    return {node.name: written_stream(node) for node in nodes if "all-reduce" in node.op}


WIDE = "f32[2048,2048]"  # whose collectives take longer than a start
TWO = (
    f"%x = {WIDE} parameter(0)",
    f"%s = {WIDE} all-reduce(%x), to_apply=%sum",
    f"%y = {WIDE} dot(%s, %x), {DIMS}",
    f"%g = {WIDE} all-reduce(%x), to_apply=%sum",
)


def test_a_gradient_goes_to_stream_1_beside_a_sum_that_compute_waits_for():
    assert streams(*TWO) == {"s": None, "g": 1}


def test_a_gradient_that_waits_for_all_sums_stays_on_their_stream():
    """It could not be under way beside any, and a stream of its own takes CC-cores."""
    last = f"%g = {WIDE} all-reduce(%y), to_apply=%sum"
    assert streams(*TWO[:3], last) == {"s": None, "g": None}


def test_a_collective_that_all_sums_wait_for_stays_on_their_stream():
    first = f"%w = {WIDE} all-gather(%part), dimensions={{0}}"
    lines = (
        "%part = f32[512,2048] parameter(0)",
        first,
        f"%s = {WIDE} all-reduce(%w), to_apply=%sum",
    )
    module = load(
        *lines,
        f"%y = {WIDE} dot(%s, %w), {DIMS}",
        header="HloModule m, replica_count=4",
        before=SUM,
    )
    nodes = run_passes(module, [AssignStreams()]).entry_computation.nodes
    assert [written_stream(node) for node in nodes] == [None] * 4


def test_without_two_kinds_all_stay_on_stream_0():
    assert streams(TWO[0], TWO[1]) == {"s": None}


def test_a_stream_that_is_written_stays():
    last = f'{TWO[3]}, frontend_attributes={{collective_type="x",stream_id="3"}}'
    assert streams(*TWO[:3], last) == {"s": None, "g": 3}


def test_other_attributes_for_the_compiler_stay():
    module = load(
        *TWO[:3],
        f'{TWO[3]}, frontend_attributes={{collective_type="x"}}',
        header="HloModule m, replica_count=4",
        before=SUM,
    )
    module = run_passes(module, [AssignStreams()])
    text = module.entry_computation.nodes[-1].attributes["frontend_attributes"]
    assert text.text == '{collective_type="x",stream_id="1"}'


def test_beside_a_barrier_no_collective_changes_its_stream():
    barrier = f'%met = {WIDE} custom-call(%g), custom_call_target="ncc.barrier"'
    assert streams(*TWO, barrier) == {"s": None, "g": None}


def test_overlap_costs_a_deep_model_a_tenth_of_its_memory_at_most():
    """Four layers of a training step, which takes 3.8 GB in program order."""
    text = (HLO / "llama_4l_64ranks.hlo").read_text()
    plain, overlapped = (
        compile_text(text, CompileOptions(level=level)).program.hbm_bytes for level in (1, 2)
    )
    assert overlapped <= 1.1 * plain


@pytest.mark.parametrize(
    ("percent", "free", "ahead"), [(100, 0, 1), (1000, 0, 3), (100, 1 << 20, 3)]
)
def test_memory_that_is_allowed_is_used_to_gather_ahead(percent, free, ahead):
    found = names(sharded_layers(4), Schedule(limit_percent=percent, free_bytes=free))
    gathers = [found.index(f"g{k}") for k in range(4)]
    before = found[: found.index("y0")]
    assert sum(name.startswith("g") for name in before) - 1 == ahead
    assert gathers == sorted(gathers)
