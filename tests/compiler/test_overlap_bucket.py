"""Buckets: what is joined, what stays apart, and that no cycle ever comes of it."""

import pytest

from ncc_compiler.ir.graph import Module, Node
from ncc_compiler.ir.text.build import source_frame
from ncc_compiler.overlap.bucket import Bucket
from ncc_compiler.passes.manager import run_passes
from tests.compiler.small_modules import SUM, load

MEGABYTE = 1024 * 1024


def reduced(operand: str, kind: str, more: str = "") -> str:
    return f"{kind} all-reduce({operand}), to_apply=%sum{more}"


def joined(module: Module, bucket: Bucket | None = None) -> list[Node]:
    """The collectives after the pass."""
    module = run_passes(module, [bucket or Bucket()], verify_each=True)
    return [
        node for node in module.entry_computation.nodes if node.op in ("all-reduce", "all-gather")
    ]


def of_parameters(count: int, elements: int) -> Module:
    """All-reduces of as many parameters, with nothing else to do."""
    kind = f"f32[{elements}]"
    lines = [f"%p{k} = {kind} parameter({k})" for k in range(count)]
    lines += [f"%r{k} = {reduced(f'%p{k}', kind)}" for k in range(count)]
    kinds, names = ", ".join([kind] * count), ", ".join(f"%r{k}" for k in range(count))
    return load(*lines, f"%all = ({kinds}) tuple({names})", before=SUM)


def test_the_cap_of_25_mb_is_kept_by_default():
    found = joined(of_parameters(30, MEGABYTE // 4))
    assert [len(node.operands) for node in found] == [25, 5]


def test_the_cap_can_be_set():
    found = joined(of_parameters(5, 256), Bucket(limit_bytes=2048))
    assert [len(node.operands) for node in found] == [2, 2, 1]


def test_a_bucket_keeps_the_order_in_which_gradients_appear():
    (bucket,) = joined(of_parameters(4, 8))
    assert bucket.operands == (0, 1, 2, 3)


@pytest.mark.parametrize(("first", "second", "line"), [(4, 5, 4), (None, 5, 5), (None, None, None)])
def test_a_bucket_comes_from_the_first_line_that_is_known(first, second, line):
    lines = ["%x = f32[4] parameter(0)", "%y = f32[4] parameter(1)"]
    for name, operand, number in (("a", "x", first), ("b", "y", second)):
        place = f', metadata={{source_file="m.py" source_line={number}}}' if number else ""
        lines.append(f"%{name} = {reduced(f'%{operand}', 'f32[4]', place)}")
    module = load(*lines, "%t = (f32[4], f32[4]) tuple(%a, %b)", before=SUM)
    (bucket,) = joined(module)
    frame = source_frame(module, bucket)
    assert (frame and frame.line) == line


def test_sums_of_two_regions_that_mean_the_same_join():
    other = SUM.replace("%sum", "%other")
    lines = ["%x = f32[4] parameter(0)", "%y = f32[4] parameter(1)"]
    lines += [f"%a = {reduced('%x', 'f32[4]')}"]
    lines += [f"%b = {reduced('%y', 'f32[4]').replace('%sum', '%other')}"]
    module = load(*lines, "%t = (f32[4], f32[4]) tuple(%a, %b)", before=SUM + other)
    assert len(joined(module)) == 1


def test_gathers_of_weights_join():
    lines = ["%x = f32[4] parameter(0)", "%y = f32[2] parameter(1)"]
    lines += [
        "%a = f32[4,4] all-gather(%rx), dimensions={0}",
        "%b = f32[4,2] all-gather(%ry), dimensions={0}",
    ]
    lines[2:2] = ["%rx = f32[1,4] reshape(%x)", "%ry = f32[1,2] reshape(%y)"]
    header = "HloModule m, replica_count=4"
    module = load(*lines, "%t = (f32[4,4], f32[4,2]) tuple(%a, %b)", header=header)
    assert len(joined(module)) == 1


def test_what_depends_on_a_member_stays_apart():
    lines = ["%x = f32[4] parameter(0)", f"%a = {reduced('%x', 'f32[4]')}"]
    lines += ["%n = f32[4] negate(%a)", f"%b = {reduced('%n', 'f32[4]')}"]
    assert len(joined(load(*lines, "%t = (f32[4], f32[4]) tuple(%a, %b)", before=SUM))) == 2


def test_two_buckets_never_wait_for_each_other():
    """c needs a, and b needs d: {a, b} and {c, d} would be a circle."""
    pairs = ", replica_groups={{0,1},{2,3}}, channel_id=1, use_global_device_ids=true"
    lines = ["%x = f32[4] parameter(0)", "%y = f32[4] parameter(1)"]
    lines += [f"%a = {reduced('%x', 'f32[4]')}", "%na = f32[4] negate(%a)"]
    lines += [f"%d = {reduced('%y', 'f32[4]', pairs)}", "%nd = f32[4] negate(%d)"]
    lines += [f"%b = {reduced('%nd', 'f32[4]')}", f"%c = {reduced('%na', 'f32[4]', pairs)}"]
    module = load(*lines, "%t = (f32[4], f32[4]) tuple(%b, %c)", before=SUM)
    found = joined(module, Bucket(later_percent=1000))
    assert sorted(len(node.operands) for node in found) == [1, 1, 2]


def work_between(elements: int, before: int = 0, first: int = MEGABYTE) -> Module:
    """Two sums, of `first` bytes and of a megabyte, with products of so many elements between.

    Another one of `before` bytes comes before both.
    """
    side = f"f32[{elements},{elements}]"
    dims = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"
    kind = f"f32[{MEGABYTE // 4}]"
    head, early = f"f32[{before // 4}]", f"f32[{first // 4}]"
    lines = [f"%x = {kind} parameter(0)", f"%m = {side} parameter(1)"]
    lines += [f"%h = {head} parameter(2)", f"%p = {early} parameter(3)"]
    lines += [f"%z = {reduced('%h', head)}"] * bool(before)
    lines += [f"%a = {reduced('%p', early)}", f"%n = {side} dot(%m, %m), {dims}"]
    lines += ["%one = f32[1,1] slice(%n), slice={[0:1], [0:1]}", "%e = f32[] reshape(%one)"]
    lines += [f"%wide = {kind} broadcast(%e), dimensions={{}}", f"%y = {kind} add(%x, %wide)"]
    lines += [f"%b = {reduced('%y', kind)}"]
    return load(*lines, f"%t = ({early}, {kind}) tuple(%a, %b)", before=SUM)


@pytest.mark.parametrize(("elements", "collectives"), [(8, 2), (2048, 2)])
def test_sums_with_much_work_between_them_stay_apart(elements, collectives):
    assert len(joined(work_between(elements))) == collectives


def test_a_small_sum_waits_for_a_large_one_whatever_work_lies_between():
    assert len(joined(work_between(2048, first=4096))) == 1


def test_sums_that_wait_for_their_stream_anyway_are_joined():
    found = joined(work_between(1024, before=25 * MEGABYTE))
    assert [len(node.operands) for node in found] == [1, 2]
    assert len(joined(work_between(1024))) == 2


def test_small_bytes_joins_whatever_lies_between():
    assert (
        len(joined(work_between(2048), Bucket(small_bytes=25 * MEGABYTE, later_percent=1000))) == 1
    )


def test_nothing_joins_over_a_loop():
    going = """%going { %s = (f32[4]) parameter(0) ROOT %no = pred[] constant(false) }
%round { ROOT %s = (f32[4]) parameter(0) }
"""
    lines = ["%x = f32[4] parameter(0)", f"%a = {reduced('%x', 'f32[4]')}"]
    lines += ["%s = (f32[4]) tuple(%x)", "%l = (f32[4]) while(%s), condition=%going, body=%round"]
    lines += [
        "%y = f32[4] get-tuple-element(%l), index=0",
        f"%b = {reduced('%x', 'f32[4]', ', channel_id=2')}",
    ]
    lines[1] = lines[1] + ", channel_id=1"
    module = load(*lines, "%t = (f32[4], f32[4], f32[4]) tuple(%a, %b, %y)", before=SUM + going)
    assert len(joined(module)) == 2
