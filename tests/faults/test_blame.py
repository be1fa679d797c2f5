"""Who lost time by faults: the sums along chains of causes are exact."""

import itertools
import json
from collections.abc import Sequence
from pathlib import Path

import attrs
import numpy as np
import pytest
from jsonschema import Draft202012Validator

import ncc_compiler
import ncc_runtime
from ncc_runtime.execution.clock.clock import Clock, simulate
from ncc_runtime.execution.control_flow import PlannedDecisions
from ncc_runtime.execution.disturbance import (
    NOTHING,
    Disturbance,
    PartSpeed,
    QueueSpeed,
    TransferFault,
)
from ncc_runtime.execution.trace import NO_EVENT, Reason, Trace
from ncc_runtime.faults import blame as blaming
from ncc_runtime.faults.blame import NEVER, NOBODY, Blame, Disturbing, blame, blamed, leave_one_out
from ncc_runtime.faults.blame_report import as_json, lines
from ncc_runtime.faults.resolve import ResolvedFault, joined, resolved
from ncc_runtime.faults.text import parse
from ncc_runtime.faults.touched import Delays, OrderedTrace
from ncc_runtime.machine_model.parts import PartKind, Parts
from ncc_runtime.machine_model.timing import TimingModel
from tests.report.traces import Row, all_reduce, written


@attrs.frozen
class Fault:
    name: str
    disturbance: Disturbance = NOTHING


def slowed(text: str, core: str, percent: int, **place: object) -> tuple[Trace, Trace]:
    """The same queues on whole cores and with a core that was slow all the time."""
    neff = ncc_compiler.compile_text(text)
    slow = (f"{core}={percent}%",)
    whole = ncc_runtime.load(neff, "trn2", **place).executable
    disturbed = ncc_runtime.load(neff, "trn2", slow=slow, **place).executable
    same = attrs.evolve(disturbed, topology=whole.topology, routes=whole.routes)
    decisions = PlannedDecisions(same, {})
    return simulate(same, decisions), simulate(disturbed, decisions)


STEP = """sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY step { x = f32[256,256] parameter(0) w = f32[256,256] parameter(1)
 y = f32[256,256] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
 z = f32[256,256] all-reduce(y), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=sum
 u = f32[256,256] dot(z, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
 v = f32[256,256] tanh(u)
 r = f32[256,256] all-reduce(v), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=sum
 q = f32[256,256] add(r, x)
 ROOT t = f32[256,256] multiply(q, x) }
"""


def slow_core(rank: int) -> Fault:
    return Fault("slow", Disturbance(queues=tuple(QueueSpeed(q, rank, 5000) for q in range(5))))


def totals(found: Blame) -> int:
    """What the parts of the report say that the run takes more."""
    on_chain = sum(fault.on_chain_ps for fault in found.faults)
    return on_chain + found.others_ps - found.absorbed_ps


def by_hand(engine: int = 200, ready: int = 250, longer: int = 0, seen: int = 0) -> Trace:
    """Rank 1 triggers, its ring sends, rank 0's CC-core waits for that.

    `engine` is the end of rank 1's instruction, `ready` the earliest start of its CC-core, `longer`
    how much longer its transfer takes, `seen` how much later its completion is seen.
    """
    begin = max(engine + 50, ready)
    sent = begin + 650 + longer
    done = sent + 10 + seen
    rows: list[Row] = [
        ("GpSimd", 0, 1, 100, engine, NO_EVENT, Reason.NONE, 0),
        ("GpSimd", 0, 0, 100, 260, NO_EVENT, Reason.NONE, 0),
        ("cc0", 0, 1, begin, begin + 50, 0, Reason.SEMAPHORE, 0),
        ("cc0.dma0", 0, 1, begin + 90, sent, 2, Reason.SEMAPHORE, 0),
        ("cc0", 0, 0, 310, 360, 1, Reason.SEMAPHORE, 0),
        ("cc0", 1, 0, done, done + 90, 3, Reason.SEMAPHORE, 0),
        ("cc0", 2, 0, done + 90, done + 170, 5, Reason.QUEUE, 0),
    ]
    return written(all_reduce(), rows)


def queue_number(name: str) -> int:
    return [queue.name for queue in all_reduce().queues].index(name)


def slow_engine(rank: int) -> Fault:
    queues = (QueueSpeed(queue_number("GpSimd"), rank, 2500, 0, 501),)
    return Fault(f"rank {rank}", Disturbance(queues=queues))


def test_a_late_trigger_is_followed_to_the_end():
    found = blame(by_hand(), by_hand(engine=500, longer=10), [slow_engine(1)])
    assert found.lost_ps == 310 == totals(found)
    assert [found.faults[0].on_chain_ps, found.faults[0].most_ps] == [300, 300]
    assert found.others_ps == 10  # the transfer took so much longer, which the fault did not touch
    assert [step.added_ps for step in found.steps] == [(300,), (0,)]
    assert found.rank_late_ps.tolist() == [310, 310, 0, 0]
    losses = found.collectives
    assert losses.rank.tolist() == [0, 1]
    assert losses.late_ps.tolist() == [0, 300]
    assert losses.waited_ps.tolist() == [310, 0]
    assert losses.for_rank.tolist() == [1, 1]
    assert not losses.began_inside.any()


def test_slack_absorbs_and_is_counted():
    """What followed the late engine waited for something else until 450 anyway."""
    before, after = by_hand(ready=450), by_hand(engine=500, ready=450, longer=10)
    found = blame(before, after, [slow_engine(1)])
    assert found.lost_ps == 110 == totals(found)
    assert (found.faults[0].on_chain_ps, found.others_ps, found.absorbed_ps) == (300, 10, 200)
    assert [step.absorbed_ps for step in found.steps] == [0, 200]


def test_what_is_hidden_wholly_was_still_added():
    found = blame(by_hand(ready=600), by_hand(engine=500, ready=600), [slow_engine(1)])
    assert (found.lost_ps, found.steps) == (0, ())
    assert (found.faults[0].most_ps, found.faults[0].on_chain_ps) == (300, 0)


def test_a_late_completion_is_blamed_for_what_waits_for_it():
    fault = TransferFault(queue_number("cc0.dma0"), 1, 0, late_ps=5_000)
    faults = [slow_engine(0), Fault("late", Disturbance(transfers=(fault,)))]
    found = blame(by_hand(), by_hand(seen=5_000), faults)
    assert [fault.on_chain_ps for fault in found.faults] == [0, 5_000]
    assert found.lost_ps == 5_000 == totals(found)
    assert found.collectives.fault.tolist() == [1, NOBODY]


def test_two_faults_each_have_their_part_of_the_chain():
    fault = TransferFault(queue_number("cc0.dma0"), 1, 0, longer_ps=700)
    faults = [Fault("longer", Disturbance(transfers=(fault,))), slow_engine(1)]
    found = blame(by_hand(), by_hand(engine=500, longer=700), faults)
    assert [fault.on_chain_ps for fault in found.faults] == [700, 300]
    assert found.lost_ps == 1_000 == totals(found)
    assert found.collectives.fault.tolist()[0] == 0  # which added more


def test_leaving_one_out_runs_all_others():
    """One was hidden behind slack, and is not missed."""
    fault = TransferFault(queue_number("cc0.dma0"), 1, 0, longer_ps=300)
    faults = [Fault("longer", Disturbance(transfers=(fault,))), slow_engine(1)]
    found = blame(by_hand(ready=550), by_hand(engine=500, ready=550, longer=300), faults)
    played: list[list[str]] = []

    def timed(some: Sequence[Disturbing]) -> Trace:
        played.append([fault.name for fault in some])
        longer = 300 if some[0].name == "longer" else 0
        return by_hand(engine=200 if longer else 500, ready=550, longer=longer)

    left_out = leave_one_out(found, faults, timed)
    assert played == [["rank 1"], ["longer"]]
    assert [share.without_ps for share in left_out.faults] == [1380, 1680]
    assert (found.undisturbed_ps, found.time_ps) == (1380, 1680)
    text = "\n".join(lines(left_out))
    assert "run without it" in text
    alone = blame(by_hand(), by_hand(engine=500), [slow_engine(1)])
    assert leave_one_out(alone, [slow_engine(1)], timed).faults[0].without_ps == 1080


def test_what_two_faults_added_to_one_row_is_divided():
    found = blame(by_hand(), by_hand(engine=500), [slow_engine(1), slow_engine(1)])
    assert [fault.on_chain_ps for fault in found.faults] == [150, 150]


@pytest.mark.parametrize(("core", "rank"), [("c0.core0", 0), ("c0.core6", 3), ("c1.core6", 7)])
@pytest.mark.parametrize("percent", [90, 50, 1])
def test_parts_add_up_to_the_picosecond(core: str, rank: int, percent: int):
    before, after = slowed(STEP, core, percent)
    found = blame(before, after, [slow_core(rank)])
    assert found.lost_ps > 0
    assert totals(found) == found.lost_ps
    losses = found.collectives
    assert (losses.late_ps + losses.waited_ps + losses.longer_ps == losses.lost_ps).all()
    assert (losses.lost_ps == losses.complete_ps[1] - losses.complete_ps[0]).all()
    assert (losses.passed_ps <= np.maximum(0, losses.lost_ps)).all()
    first = losses.placeholder == 0
    assert (losses.for_rank[first & (losses.lost_ps > 0)] == rank).all()
    assert (losses.fault[losses.lost_ps > 0] == 0).all()


def test_chains_are_those_that_walking_finds(monkeypatch: pytest.MonkeyPatch):
    """For every late event: the first late event, and what a fault added on the way there."""
    monkeypatch.setattr(blaming, "BLOCK", 37)
    before, after = slowed(STEP, "c0.core4", 50)
    delays = Delays(OrderedTrace(before), OrderedTrace(after))
    chains = blaming._Chains.of(delays)
    values = np.random.default_rng(3).integers(0, 1000, len(chains.events))
    roots, (sums,) = chains.followed(chains.parent, [values])
    for place in range(len(chains.events)):
        at, total = place, int(values[place])
        while chains.parent[at] != NO_EVENT:
            at = int(chains.parent[at])
            total += int(values[at])
        assert (roots[place], sums[place]) == (at, total)
    assert len(chains.events) > 100
    late = delays.end_ps > 0
    assert late.sum() == len(chains.events)
    parents = chains.parent[chains.parent != NO_EVENT]
    assert (parents < np.flatnonzero(chains.parent != NO_EVENT)).all()


def test_a_trace_on_disk_gives_the_same(monkeypatch: pytest.MonkeyPatch):
    """There events are numbered by queue, so causes do not stand before what they cause."""
    neff = ncc_compiler.compile_text(STEP)
    whole = ncc_runtime.load(neff, "trn2").executable
    slow = ncc_runtime.load(neff, "trn2", slow=("c0.core4=50%",)).executable
    same = attrs.evolve(slow, topology=whole.topology, routes=whole.routes)
    decisions = PlannedDecisions(same, {})
    found = [
        blame(
            simulate(same, decisions, in_memory=room),
            simulate(slow, decisions, in_memory=room),
            [slow_core(2)],
        )
        for room in (1 << 21, 100)
    ]
    first, second = ("\n".join(lines(each)) for each in found)
    assert first == second
    assert as_json(found[0])["collectives"] == as_json(found[1])["collectives"]


def test_the_same_run_twice_has_nobody_to_blame():
    before, _ = slowed(STEP, "c0.core0", 50)
    found = blame(before, before, [slow_core(0)])
    assert (found.lost_ps, found.steps, found.waits) == (0, (), ())
    assert found.faults[0].most_ps == 0
    assert "these faults cost no time" in next(lines(found))
    assert (found.collectives.fault == NOBODY).all()


def test_what_never_completes_is_said():
    whole = by_hand()
    columns = ("queue", "row", "rank", "start_ps", "end_ps", "cause", "reason", "slowed_ps")
    cut = {name: getattr(whole, name)[:5] for name in columns}
    found = blame(whole, attrs.evolve(whole, **cut), [Fault("lost")])
    assert not found.ends
    text = "\n".join(lines(found))
    assert "by these faults the run never ends" in text
    assert "never" in text.split("who waited")[1]
    losses = found.collectives
    assert (losses.complete_ps[1][losses.rank == 0] == NEVER).all()
    assert as_json(found)["lost_us"] is None


def test_equal_ranks_are_in_one_row():
    before, after = slowed(STEP, "c0.core2", 1)
    found = blame(before, after, [slow_core(1)])
    ranks = [wait.ranks for wait in found.waits if wait.placeholder == 0]
    assert sorted(itertools.chain.from_iterable(ranks)) == list(range(8))
    assert len(ranks) < 8


def allowed(schema: str, found: object) -> None:
    path = Path(__file__).parents[2] / "docs/schemas" / f"{schema}.json"
    Draft202012Validator(json.loads(path.read_text())).validate(json.loads(json.dumps(found)))


def test_json_is_what_its_schema_says():
    before, after = slowed(STEP, "c0.core2", 50)
    found = blame(before, after, [slow_core(1)])
    told = as_json(found)
    allowed("blame", told)
    allowed("blame", as_json(blame(before, before, [])))
    assert len(told["collectives"]) == 2
    assert [each["ranks"] for each in told["collectives"]] == [list(range(8))] * 2
    whole = by_hand()
    columns = ("queue", "row", "rank", "start_ps", "end_ps", "cause", "reason", "slowed_ps")
    cut = attrs.evolve(whole, **{name: getattr(whole, name)[:5] for name in columns})
    allowed("blame", as_json(blame(whole, cut, [Fault("lost"), Fault("dead")])))


def test_a_link_that_is_down_for_a_time_is_blamed_for_transfers_over_it():
    """Beside a fault elsewhere that is hidden, by the clock."""
    neff = ncc_compiler.compile_text(STEP)
    executable = ncc_runtime.load(neff, "trn2", placement="spread").executable
    clock = Clock(executable, PlannedDecisions(executable, {}))
    whole = clock.run().trace
    parts = Parts(
        executable.routes, TimingModel.from_topology(executable.topology), executable.ranks
    )
    moved = np.zeros(parts.count, np.int64)
    for part in range(parts.span(PartKind.LINK).stop):
        speed = PartSpeed(part, 0, whole.time_ps // 3, whole.time_ps)
        trace = clock.run(Disturbance(parts=(speed,))).trace
        moved[part] = trace.time_ps
    used = np.flatnonzero(moved > whole.time_ps)
    assert len(used)
    for part in used[:6].tolist():
        down = Disturbance(parts=(PartSpeed(part, 0, whole.time_ps // 3, whole.time_ps),))
        late = Disturbance(late_start_ps={0: 1})
        found = blame(
            whole,
            clock.run(Disturbance(parts=down.parts)).trace,
            [Fault("launch", late), Fault("link", down)],
        )
        assert found.lost_ps == moved[part] - whole.time_ps == totals(found)
        assert found.faults[1].on_chain_ps > 0.9 * found.lost_ps
        assert found.faults[0].most_ps == 0


def blamed_of(clock: Clock, faults: Sequence[ResolvedFault]) -> Blame:
    """What faults cost, in runs without and with all of them."""
    runs = (clock.run(disturbance).trace for disturbance in (Disturbance(), joined(faults)))
    return blamed(clock, *runs, faults)


def test_faults_as_text_are_blamed_and_left_out():
    executable = ncc_runtime.load(ncc_compiler.compile_text(STEP), "trn2").executable
    clock = Clock(executable, PlannedDecisions(executable, {}))
    faults = resolved(clock, [parse("rank 3 late by 40us"), parse("rank 6 slow to 50%")])
    found = blamed_of(clock, faults)
    assert [share.name for share in found.faults] == [str(fault.fault) for fault in faults]
    assert totals(found) == found.lost_ps > 30_000_000
    for share, fault in zip(found.faults, reversed(faults), strict=True):
        assert share.without_ps == clock.run(fault.disturbance).trace.time_ps


def test_a_rank_that_stands_still_and_then_is_slow_owes_nothing_to_others():
    """One fault puts the first row off, another makes it longer: each has all of its own."""
    executable = ncc_runtime.load(ncc_compiler.compile_text(STEP), "trn2").executable
    clock = Clock(executable, PlannedDecisions(executable, {}))
    still, slow = parse("at 20us: rank 3 dead for 10us"), parse("rank 3 slow to 10%")
    together = blamed_of(clock, resolved(clock, [still, slow]))
    assert totals(together) == together.lost_ps
    assert together.others_ps == 0
    for share, fault in zip(together.faults, [still, slow], strict=True):
        assert share.on_chain_ps == blamed_of(clock, resolved(clock, [fault])).faults[0].on_chain_ps


LOOP = """sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
cond { s = (s32[], f32[64]) parameter(0) i = s32[] get-tuple-element(s), index=0
 n = s32[] constant(4) ROOT c = pred[] compare(i, n), direction=LT }
body { s = (s32[], f32[64]) parameter(0) i = s32[] get-tuple-element(s), index=0
 x = f32[64] get-tuple-element(s), index=1 one = s32[] constant(1) j = s32[] add(i, one)
 y = f32[64] all-reduce(x), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=sum
 ROOT r = (s32[], f32[64]) tuple(j, y) }
ENTRY loop { x = f32[64] parameter(0) zero = s32[] constant(0)
 s = (s32[], f32[64]) tuple(zero, x)
 w = (s32[], f32[64]) while(s), condition=cond, body=body
 ROOT r = f32[64] get-tuple-element(w), index=1 }
"""


def test_runs_are_counted_as_faults_count_them():
    """What `at run 3` hits is in the row of run 3."""
    executable = ncc_runtime.load(ncc_compiler.compile_text(LOOP), "trn2").executable
    clock = Clock(executable, PlannedDecisions(executable, {}))
    found = blamed_of(clock, resolved(clock, [parse("at run 3 of p0: link c0-c1 down for 30us")]))
    first = next(line for line in lines(found) if line.startswith("p0 "))
    assert "run 3 " in first
    told = as_json(found)
    assert told["waits"][0]["runs"] == [3]
    assert [each["run"] for each in told["collectives"]] == [1, 2, 3, 4]
    lost = [max(each["lost_us"]) > 0 for each in told["collectives"]]
    assert lost == [False, False, True, True]
