"""How much communication hides behind compute, and how much could."""

import numpy as np
import pytest

from ncc_runtime.execution.trace import NO_EVENT, Reason, Trace
from ncc_runtime.report.overlap import AllReduces, Cover, Hideable, all_reduces, overlap
from ncc_runtime.report.row_texts import row_texts
from tests.report.traces import all_reduce, placed, simple, written

SUM = "sum { a = f32[] parameter(0)\n b = f32[] parameter(1)\n ROOT c = f32[] add(a, b) }\n"

BESIDE = f"""{SUM}
ENTRY e {{
  x = f32[64,64] parameter(0)
  before = f32[64,64] negate(x)
  s = f32[64,64] all-reduce(before), replica_groups={{{{0,1}}}}, to_apply=sum
  beside = f32[64,64] dot(x, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  after = f32[64,64] exponential(s)
  ROOT t = (f32[64,64], f32[64,64]) tuple(after, beside)
}}
"""


@pytest.mark.parametrize("seed", range(10))
def test_what_stretches_cover_is_what_a_bitmap_says(seed: int):
    generator = np.random.default_rng(seed)
    first, second = np.zeros((2, 3, 100), bool)
    covers = []
    for bitmap in (first, second):
        rank, start = generator.integers(0, 3, 12), generator.integers(0, 90, 12)
        end = start + generator.integers(0, 11, 12)
        for one, low, high in zip(rank, start, end, strict=True):
            bitmap[one, low:high] = True
        covers.append(Cover.of(3, 100, rank, start, end))
    a, b = covers
    assert a.by_rank_ps().tolist() == first.sum(axis=1).tolist()
    assert a.shared_by_rank_ps(b).tolist() == (first & second).sum(axis=1).tolist()
    within = a.within_ps(np.arange(3), np.full(3, 20), np.full(3, 77))
    assert within.tolist() == first[:, 20:77].sum(axis=1).tolist()


def test_nothing_covers_nothing():
    nothing = np.zeros(0, np.int64)
    cover = Cover.of(2, 10, nothing, nothing, nothing)
    assert cover.by_rank_ps().tolist() == [0, 0]
    assert cover.shared_by_rank_ps(cover).tolist() == [0, 0]


def found_in(trace: Trace) -> AllReduces:
    found = all_reduces(trace)
    assert found is not None
    return found


def by_hand(beside: tuple[int, int]) -> Trace:
    """On both ranks the all-reduce goes from 200 to 1200, and a dot over `beside`."""
    executable = placed(BESIDE)
    names = {queue.name: number for number, queue in enumerate(executable.queues)}
    found = {}
    for queue, number in names.items():
        for row, text in enumerate(row_texts(executable, number).name):
            found[text.split(" f32")[0]] = queue, row
    none = (NO_EVENT, Reason.NONE, 0)
    last = len(executable.queues[names["cc0"]].opcode) - 1
    rows = []
    for rank in (0, 1):
        rows += [
            (*found["negate before"], rank, 0, 100, *none),
            (*found["trigger p0 s"], rank, 100, 150, *none),
            ("cc0", 0, rank, 200, 210, *none),
            (*found["dot beside"], rank, *beside, *none),
            ("cc0", last, rank, 1190, 1200, *none),
            (*found["exponential after"], rank, 1200, 1300, *none),
        ]
    return written(executable, rows)


@pytest.mark.parametrize(
    ("beside", "exposed"),
    [((300, 700), 600), ((100, 300), 900), ((1100, 1250), 900), ((0, 1300), 0)],
)
def test_a_collective_is_exposed_where_no_engine_works(beside: tuple[int, int], exposed: int):
    found = overlap(by_hand(beside))
    assert found.collective_ps == 2 * 1000
    assert found.exposed_ps == 2 * exposed
    assert found.most_exposed_ps == exposed
    assert found.hidden_share == pytest.approx(1 - exposed / 1000)


def test_compute_is_counted_once_where_engines_work_side_by_side():
    assert overlap(by_hand((0, 150))).compute_ps == 2 * (150 + 100)


def test_compute_that_a_collective_needs_or_that_needs_it_cannot_hide_it():
    found = found_in(by_hand((300, 700))).together
    assert found.all_reduce_ps == 1000
    assert found.independent_ps == 400  # the dot: neither what comes before nor what comes after
    assert found.hidden_ps == 400
    assert found.share == 1.0


def test_what_could_be_hidden_is_bounded_by_what_is_there_to_compute():
    found = found_in(by_hand((1200, 1250))).together
    assert (found.most_ps, found.hidden_ps, found.share) == (50, 0, 0.0)


def test_without_compute_nothing_could_be_hidden():
    found = found_in(simple(all_reduce())).together
    assert (found.most_ps, found.share) == (0, None)


def test_a_buffer_that_is_used_again_is_no_dependence():
    """A chain through the all-reduce; what runs beside it may reuse the memory of what is dead."""
    text = f"""{SUM}
ENTRY e {{
  x = f32[256] parameter(0)
  a = f32[256] negate(x)
  s = f32[256] all-reduce(a), replica_groups={{{{0,1}}}}, to_apply=sum
  b = f32[256] exponential(x)
  c = f32[256] negate(b)
  d = f32[256] exponential(c)
  ROOT t = (f32[256], f32[256]) tuple(s, d)
}}
"""
    trace = simple(placed(text, level=0))
    found = found_in(trace).together
    own = [
        event
        for event in range(len(trace))
        if row_texts(trace.executable, int(trace.queue[event])).name[trace.row[event]].split()[-2:]
        in (["b", "f32[256]"], ["c", "f32[256]"], ["d", "f32[256]"])
    ]
    of_rank_0 = [event for event in own if trace.rank[event] == 0]
    assert len(of_rank_0) == 3
    took = sum(int(trace.end_ps[event] - trace.start_ps[event]) for event in of_rank_0)
    assert found.independent_ps == took


TWO = f"""{SUM}
ENTRY e {{
  x = f32[64,64] parameter(0)
  one = f32[64,64] all-reduce(x), replica_groups={{{{0,1}}}}, to_apply=sum
  two = f32[64,64] all-reduce(one), replica_groups={{{{0,1}}}}, to_apply=sum
  beside = f32[64,64] dot(x, x), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  between = f32[64,64] negate(one)
  ROOT t = (f32[64,64], f32[64,64], f32[64,64]) tuple(two, between, beside)
}}
"""


def two_by_hand(beside: tuple[int, int]) -> AllReduces:
    """On both ranks all-reduces to 100 and to 1100, a dot, and at the end a negation."""
    executable = placed(TWO)
    names = {queue.name: number for number, queue in enumerate(executable.queues)}
    texts = {
        text.split(" f32")[0]: (queue, row)
        for queue, number in names.items()
        for row, text in enumerate(row_texts(executable, number).name)
    }
    none = (NO_EVENT, Reason.NONE, 0)
    cc = executable.queues[names["cc0"]]
    first = [int(np.flatnonzero(cc.placeholder == number)[0]) for number in (0, 1)]
    last = [int(np.flatnonzero(cc.placeholder == number)[-1]) for number in (0, 1)]
    rows = []
    for rank in (0, 1):
        rows += [
            ("cc0", first[0], rank, 0, 10, *none),
            ("cc0", last[0], rank, 90, 100, *none),
            (*texts["dot beside"], rank, *beside, *none),
            ("cc0", first[1], rank, 100, 110, *none),
            ("cc0", last[1], rank, 1090, 1100, *none),
            (*texts["negate between"], rank, 1100, 1150, *none),
        ]
    return found_in(written(executable, rows))


def test_an_all_reduce_can_hide_behind_no_more_than_is_independent_of_it():
    found = two_by_hand((200, 600))
    assert found.each == {
        0: Hideable(all_reduce_ps=100, independent_ps=400, hidden_ps=0, most_ps=100),
        1: Hideable(all_reduce_ps=1000, independent_ps=450, hidden_ps=400, most_ps=450),
    }


def test_all_together_can_hide_no_more_than_there_is_compute_beside_some():
    found = two_by_hand((200, 600)).together
    assert found == Hideable(all_reduce_ps=1100, independent_ps=450, hidden_ps=400, most_ps=450)


def test_all_together_can_hide_no_more_than_each_can():
    found = two_by_hand((0, 1100)).together
    assert (found.most_ps, found.hidden_ps, found.share) == (1100, 1100, 1.0)
