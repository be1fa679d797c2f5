"""Stages of a model on one rank each: microbatches pass through by permutes, sends and recvs.

Rank r holds stage r, which scales by its weight; what leaves the last stage is each microbatch
times all weights. Rounds of the loop before and after hold what nobody uses.
"""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from tests.reference_runs import run_text

STAGES, BATCHES = 4, 5
CHAIN = "{{0,1},{1,2},{2,3}}"
PAIRS = f"frontend_attributes={{_xla_send_recv_source_target_pairs={CHAIN}}}"
START, DONE = "(f32[2], u32[], token[])", "(f32[2], token[])"

STEP = """
  x = f32[5,2] get-tuple-element(p), index=1
  w = f32[2] get-tuple-element(p), index=2
  outs = f32[5,2] get-tuple-element(p), index=3
  zero = s32[] constant(0)
  one = s32[] constant(1)
  j = s32[] add(i, one)
  batch = f32[1,2] dynamic-slice(x, i, zero), dynamic_slice_sizes={1,2}
  fed = f32[2] reshape(batch)
  rank = u32[] partition-id()
  none = u32[] constant(0)
  first = pred[] compare(rank, none), direction=EQ
  feeds = pred[2] broadcast(first), dimensions={}
  mine = f32[2] select(feeds, fed, got)
  out = f32[2] multiply(mine, w)
  row = f32[1,2] reshape(out)
  last = s32[] constant(3)
  at = s32[] subtract(i, last)
  kept = f32[5,2] dynamic-update-slice(outs, row, at, zero)"""


def program(carried: str, take: str, give: str, begin: str = "", *, ends: bool = True) -> str:
    """A loop whose state ends with what a round passes on: `got` of `before`, `passed` of DATA.

    What the last round has started is ended behind the loop, if it `ends`.
    """
    begin = begin or give
    state = f"(s32[], f32[5,2], f32[2], f32[5,2], {carried})"
    return f"""HloModule pipeline, num_partitions=4
below {{ p = {state} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant({BATCHES + STAGES - 1})
  ROOT c = pred[] compare(i, n), direction=LT
}}
step {{ p = {state} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  t = token[] after-all()
  before = {carried} get-tuple-element(p), index=4
{take}
{STEP}
{give.replace("DATA", "out")}
  ROOT q = {state} tuple(j, x, w, kept, passed)
}}
ENTRY main {{
  x = f32[5,2] parameter(0)
  w = f32[2] parameter(1)
  t = token[] after-all()
  zero = f32[] constant(0)
  i = s32[] constant(0)
  outs = f32[5,2] broadcast(zero), dimensions={{}}
  nothing = f32[2] broadcast(zero), dimensions={{}}
{begin.replace("DATA", "nothing")}
  b = {state} tuple(i, x, w, outs, passed)
  o = {state} while(b), condition=below, body=step
  behind = {carried} get-tuple-element(o), index=4
{take.replace("before", "behind") if ends else ""}
  ROOT z = f32[5,2] get-tuple-element(o), index=3
}}
"""


PERMUTE_START = f"""  passed = (f32[2], f32[2], u32[], u32[]) collective-permute-start(DATA),
    channel_id=1, source_target_pairs={CHAIN}"""
PROGRAMS = {
    "a permute in every round": program(
        "f32[2]",
        "  got = f32[2] copy(before)",
        f"""  passed = f32[2] collective-permute(DATA),
    channel_id=1, source_target_pairs={CHAIN}""",
        "  passed = f32[2] copy(DATA)",
        ends=False,
    ),
    "a permute started in the round before": program(
        "(f32[2], f32[2], u32[], u32[])",
        "  got = f32[2] collective-permute-done(before)",
        PERMUTE_START,
    ),
    "a send and a recv of two channels in every round": program(
        "f32[2]",
        f"""  s = {START} send(before, t), channel_id=1, {PAIRS}
  r = {START} recv(t), channel_id=2, {PAIRS}
  d = {DONE} recv-done(r), channel_id=2
  e = token[] send-done(s), channel_id=1
  got = f32[2] get-tuple-element(d), index=0""",
        "  passed = f32[2] copy(DATA)",
        ends=False,
    ),
    "both started in the round before": program(
        f"({START}, {START})",
        f"""  begun = {START} get-tuple-element(before), index=0
  sent = {START} get-tuple-element(before), index=1
  d = {DONE} recv-done(begun)
  e = token[] send-done(sent)
  got = f32[2] get-tuple-element(d), index=0""",
        f"""  r = {START} recv(t), channel_id=1, {PAIRS}
  s = {START} send(DATA, t), channel_id=1, {PAIRS}, control-predecessors={{r}}
  passed = ({START}, {START}) tuple(r, s)""",
    ),
    "the send started in the round before": program(
        START,
        f"""  e = token[] send-done(before)
  r = {START} recv(e), channel_id=1, {PAIRS}
  d = {DONE} recv-done(r)
  got = f32[2] get-tuple-element(d), index=0""",
        f"  passed = {START} send(DATA, t), channel_id=1, {PAIRS}",
    ),
}


@pytest.mark.parametrize("how", PROGRAMS)
def test_microbatches_pass_through_all_stages(how: str) -> None:
    x = np.arange(STAGES * BATCHES * 2, dtype=np.float32).reshape(STAGES, BATCHES, 2) + 1
    weights = np.array([[2, 3], [5, 7], [-1, 4], [3, 1]], np.float32)
    expected = x[0] * weights.prod(axis=0)
    (meant,) = run_text(PROGRAMS[how], x, weights)
    np.testing.assert_array_equal(meant[STAGES - 1], expected)
    for level, placement in ((0, "linear"), (1, "linear"), (2, "spread")):
        neff = ncc_compiler.compile_text(PROGRAMS[how], CompileOptions(level=level))
        model = ncc_runtime.load(neff, "trn2", nodes=2, placement=placement)
        (found,) = model.run([x, weights], checked=True).outputs
        np.testing.assert_array_equal(found, meant)
