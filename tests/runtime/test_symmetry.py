"""An executable of one instance's ranks: what these ranks have in that of all, and their times."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_runtime.collectives import choose, plan_memory
from ncc_runtime.collectives.choose import ALGORITHMS
from ncc_runtime.errors import LoweringError
from ncc_runtime.execution.clock.instances import symmetric_instances
from ncc_runtime.execution.trace import Trace
from ncc_runtime.lowering.choices import chooser_of, groups_of, job_of
from ncc_runtime.lowering.executable import IDLE, DmaQueue, EngineQueue, Executable, Queue
from ncc_runtime.lowering.listing import list_executable
from ncc_runtime.lowering.lower import lower
from ncc_runtime.machine_model.parts import Parts
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.options import Policy, RunOptions
from ncc_runtime.placement import PlaceOptions, place_on
from ncc_runtime.report import summary
from ncc_runtime.report.timeline.write import write_timeline
from ncc_runtime.runtime import program_of
from tests.clock_runs import planned, timed
from tests.programs import collective_program

REDUCE, SCATTER, GATHER = (
    CollectiveOp.ALL_REDUCE,
    CollectiveOp.REDUCE_SCATTER,
    CollectiveOp.ALL_GATHER,
)


def both(program: Program, nodes: int, **forced: str) -> tuple[Executable, Executable]:
    """The executable of all ranks, and the folded one."""
    placement = place_on(PlaceOptions("trn2", nodes), program.ranks)
    given = {name.replace("_", "-"): value for name, value in forced.items()}
    return lower(program, placement, given), lower(program, placement, given, times_only=True)


def columns(queue: Queue, ranks: int) -> dict[str, np.ndarray]:
    """All columns of a queue that differ by rank, of the first ranks; whether there are addresses.

    What is there for its times only has no addresses.
    """
    sync = queue.sync
    found = {"wait_sem": sync.wait_sem, "wait_value": sync.wait_value}
    for number, post in enumerate(sync.posts):
        found |= {f"post{number}.rank": post.rank, f"post{number}.sem": post.sem}
    if isinstance(queue, DmaQueue):
        names = ("peer", "size_bytes", "source_rank", "second_peer")
        found |= {name: getattr(queue, name) for name in names}
        for name in ("sources", "target", "second_target"):
            if (addresses := getattr(queue, name)) is not None:
                found[name] = addresses != IDLE
    else:
        found |= {f"jump{row}": jump.shift for row, jump in queue.jumps.items()}
    there = {name: column for name, column in found.items() if column is not None}
    by_row = {name for name in there if name.startswith("jump")}
    return {
        name: column[:ranks] if name in by_row else column[:, :ranks]
        for name, column in there.items()
    }


def assert_alike(whole: Executable, folded: Executable) -> None:
    """The same queues, cell by cell, and the same times."""
    assert folded.representatives < folded.ranks == whole.representatives
    assert folded.semaphore_count == whole.semaphore_count
    assert folded.lowered == whole.lowered
    assert folded.hbm_bytes == whole.hbm_bytes
    for one, other in zip(whole.queues, folded.queues, strict=True):
        assert one.name == other.name
        if not isinstance(one, EngineQueue) and not isinstance(other, EngineQueue):
            for name in ("opcode", "placeholder", "round"):
                assert (getattr(one, name) == getattr(other, name)).all()
        expected, found = (
            columns(one, folded.representatives),
            columns(other, folded.representatives),
        )
        assert expected.keys() == found.keys()
        for name, column in expected.items():
            shapes = np.broadcast_arrays(column, found[name])
            assert (shapes[0] == shapes[1]).all(), f"{one.name} {name}"
    for rank in range(folded.representatives):
        assert whole.semaphore_names(rank) == folded.semaphore_names(rank)
    assert (
        events(timed(whole), folded.representatives)
        == events(timed(folded), folded.representatives)
    ).all()


@pytest.mark.parametrize("op", [REDUCE, SCATTER, GATHER, CollectiveOp.ALL_TO_ALL])
def test_times_do_not_depend_on_addresses(op: CollectiveOp):
    program = collective_program(op, 16, [4096 * 16], repeat=2)
    ran = []
    for name in ALGORITHMS[op]:
        try:
            whole, timed_only = both(program, 1, **{op.value: name})
        except LoweringError:  # of several instances
            continue
        assert whole.has_addresses
        assert not timed_only.has_addresses
        assert (events(timed(whole), 16) == events(timed(timed_only), 16)).all(), name
        ran.append(name)
    assert len(ran) > 1


def are_alike(executable: Executable) -> bool:
    """What the clock finds, which looks at the columns of all."""
    parts = Parts(
        executable.routes, TimingModel.from_topology(executable.topology), executable.ranks
    )
    return symmetric_instances(executable, parts, planned(executable)).count > 1


def events(trace: Trace, ranks: int) -> np.ndarray:
    """Events of the first ranks by queue and rank, in the order performed."""
    own = np.flatnonzero(trace.rank < ranks)
    order = own[np.lexsort((own, trace.rank[own], trace.queue[own]))]
    columns = (trace.queue, trace.row, trace.rank, trace.start_ps, trace.end_ps, trace.slowed_ps)
    return np.stack([column.astype(np.int64)[order] for column in columns])


FOLDING = [
    (op, name)
    for op in (REDUCE, SCATTER, GATHER)
    for name in ALGORITHMS[op]
    if name in ("ring", "rdh", "mesh") or name.startswith("hier.")
] + [(CollectiveOp.ALL_TO_ALL, name) for name in ("direct", "pairwise", "bruck")]


@pytest.mark.parametrize(("op", "name"), FOLDING)
@pytest.mark.parametrize(("nodes", "per_node"), [(2, 4), (4, 8), (3, 16)])
def test_ranks_of_one_instance_do_what_they_do_among_all(op, name, nodes, per_node):
    program = collective_program(op, nodes * per_node, [nodes * per_node * 4096])
    placed = {op.value.replace("-", "_"): name}
    if name.endswith("rdh") and nodes == 3:  # between instances, or everywhere
        with pytest.raises(LoweringError, match="which is no power of two"):
            both(program, nodes, **placed)
        return
    whole, folded = both(program, nodes, **placed)
    if op is GATHER and name == "mesh":  # its ranks do not receive in an order that turns with them
        assert not are_alike(whole)
        assert folded.representatives == folded.ranks
    else:
        assert are_alike(whole)
        assert_alike(whole, folded)


@pytest.mark.parametrize(("op", "name"), [(REDUCE, "hier.ring.rdh"), (REDUCE, "hier.mesh.ring")])
def test_large_buffers_in_slices_are_folded(op, name):
    for elements in (96 << 18, 1 << 24):  # the second is no multiple of three
        program = collective_program(op, 32, [elements])
        assert_alike(*both(program, 2, **{op.value.replace("-", "_"): name}))


GROUPS = {
    "inside": tuple(tuple(range(first, first + 4)) for first in range(0, 32, 4)),
    "across": tuple(tuple(range(first, 32, 8)) for first in range(8)),
    "pairs of instances": (tuple(range(16)), tuple(range(16, 32))),
    "half of each": (
        tuple(rank for rank in range(32) if rank % 8 < 4),
        tuple(rank for rank in range(32) if rank % 8 >= 4),
    ),
}


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("op", [REDUCE, SCATTER, GATHER])
def test_groups_that_are_alike_are_folded(groups, op):
    program = collective_program(op, 32, [4096 * 16], groups=groups, repeat=2)
    assert_alike(*both(program, 4))


TEXT = """
HloModule m, num_partitions=16
sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
body {
  s = (s32[], f32[65536], f32[65536]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one)
  x = f32[65536] get-tuple-element(s), index=1
  y = f32[65536] get-tuple-element(s), index=2
  u = f32[65536] all-reduce(x), channel_id=1, INSIDE
  v = f32[65536] all-reduce(y), channel_id=2, ACROSS
  w = f32[65536] add(u, v)
  ROOT t = (s32[], f32[65536], f32[65536]) tuple(j, w, v)
}
cond {
  s = (s32[], f32[65536], f32[65536]) parameter(0)
  i = s32[] get-tuple-element(s), index=0
  n = s32[] constant(3)
  ROOT p = pred[] compare(i, n), direction=LT
}
ENTRY main {
  x = f32[65536] parameter(0)
  z = s32[] constant(0)
  a = f32[65536] all-reduce(x), channel_id=3, ALL
  s = (s32[], f32[65536], f32[65536]) tuple(z, x, a)
  w = (s32[], f32[65536], f32[65536]) while(s), condition=cond, body=body
  ROOT y = f32[65536] get-tuple-element(w), index=1
}
"""


KINDS = {"INSIDE": "[4,4]<=[16]", "ACROSS": "[4,4]<=[4,4]T(1,0)", "ALL": "[1,16]<=[16]"}


@pytest.mark.parametrize("name", ["", "ring"])
def test_loops_with_collectives_of_many_kinds_are_folded(name):
    text = TEXT
    for word, groups in KINDS.items():
        said = f"replica_groups={groups}, use_global_device_ids=true, to_apply=sum"
        text = text.replace(word, said)
    program = program_of(ncc_compiler.compile_text(text))
    assert_alike(*both(program, 4, all_reduce=name) if name else both(program, 4))


HALVES = (
    tuple(rank for rank in range(32) if rank % 4 < 3),  # 16 elements in 24 chunks
    tuple(range(3, 32, 4)),
)

UNFOLDED = {
    "one of two instances": (tuple(range(8)), *((rank,) for rank in range(8, 16))),
    "across, unevenly": ((0, 8, 9), (1, 2, 10), (3,), *((rank,) for rank in (4, 5, 6, 7))),
    "not in order": (tuple(range(0, 16, 2)) + tuple(range(1, 16, 2)),),
}


@pytest.mark.parametrize("groups", UNFOLDED.values(), ids=UNFOLDED)
def test_groups_that_are_not_alike_are_filled_whole(groups):
    program = collective_program(CollectiveOp.PERMUTE, 16, [4096], pairs=((0, 9), (9, 1)))
    assert both(program, 2)[1].representatives == 16
    program = collective_program(REDUCE, 16, [4096], groups=groups)
    assert both(program, 2)[1].representatives == 16


@pytest.mark.parametrize("name", ["ring", "rdh", "hier.ring.mesh", "hier.rdh.ring", "tree"])
def test_uneven_shares_are_filled_whole(name):
    whole, folded = both(collective_program(REDUCE, 16, [4097]), 2, all_reduce=name)
    assert folded.representatives == folded.ranks
    assert timed(whole).time_ps == timed(folded).time_ps


@settings(max_examples=12)
@given(
    st.sampled_from((REDUCE, SCATTER, GATHER, CollectiveOp.ALL_TO_ALL)),
    st.integers(1, 9000),
    st.sampled_from(((2, 4), (3, 8), (4, 2), (2, 3))),
)
def test_buffers_of_any_size_take_the_algorithm_and_the_time_of_all(op, elements, where):
    nodes, ranks = where[0], where[0] * where[1]
    program = collective_program(op, ranks, [elements if op is REDUCE else elements * ranks])
    whole, folded = both(program, nodes)
    assert folded.lowered == whole.lowered
    assert timed(folded).time_ps == timed(whole).time_ps


def test_more_uneven_shares_than_are_planned_are_passed_over_unless_forced(monkeypatch):
    monkeypatch.setattr(choose, "MANY", 8)
    program = collective_program(REDUCE, 16, [4097])
    placement = place_on(PlaceOptions("trn2", 2), 16)
    job, groups = (make(program, program.placeholders[0]) for make in (job_of, groups_of))
    chooser = chooser_of(program, placement, {}, 8, policy=Policy.BEST)
    choice = chooser.best(job, chooser.candidates(job, groups))
    passed = [one.name for one in choice.candidates if "made only if it is forced" in one.reason]
    assert "rdh" in passed
    assert choice.chosen.name not in passed
    assert both(program, 2, all_reduce="rdh")[1].representatives == 16


def test_plans_that_the_host_cannot_hold_are_refused_before_they_are_lowered(monkeypatch):
    monkeypatch.setattr(plan_memory, "free_bytes", lambda: 1000)
    with pytest.raises(LoweringError, match="16 ranks, filled one by one, need"):
        both(collective_program(REDUCE, 16, [4097]), 2)


def test_what_the_host_cannot_hold_is_passed_over_where_something_else_fits(monkeypatch):
    program = collective_program(REDUCE, 16, [4097])
    (best,) = both(program, 2)[1].lowered
    monkeypatch.setattr(
        choose,
        "shortage",
        lambda teams, *_: "short" if teams[0][0].algorithm == best.name else "",
    )
    (other,) = both(program, 2)[1].lowered
    assert other.name != best.name


@pytest.mark.parametrize("op", [REDUCE, SCATTER, GATHER])
@pytest.mark.parametrize("elements", [64, 64 << 8, 64 << 16])
def test_the_choice_and_its_price_are_those_of_all(op, elements):
    program = collective_program(op, 64, [elements])
    placement = place_on(PlaceOptions("trn2", 4), 64)
    job, groups = (make(program, program.placeholders[0]) for make in (job_of, groups_of))
    whole, folded = (chooser_of(program, placement, {}, seen) for seen in (None, 16))
    every = whole.candidates(job, groups, price_all=True)
    prices = {one.name: one.price for one in every if not one.reason}
    bounded = folded.candidates(job, groups)
    for one in bounded:
        if not one.reason:
            assert 0 < one.least_ps <= prices[one.name].time_ps
    best = whole.best(job, whole.candidates(job, groups)).chosen
    choice = folded.best(job, bounded)
    assert choice.chosen.name == best.name
    for one in choice.candidates:
        if one.price is not None:
            assert one.price.time_ps == prices[one.name].time_ps


@pytest.mark.parametrize("name", ["ring", "hier.ring.mesh"])
def test_the_report_is_that_of_all_ranks(name, tmp_path):
    program = collective_program(REDUCE, 32, [32 * 4096], repeat=2)
    reports = []
    for times_only in (False, True):
        model = ncc_runtime.load(
            program, "trn2", nodes=4, algorithms={"all-reduce": name}, times_only=times_only
        )
        options = RunOptions(values=False, verify=False)
        run = model.run(options=options)
        write_timeline(str(tmp_path / "t.pftrace"), run.trace)
        report = summary.as_json(model.executable, run, options, 0.0)
        report["timeline"].pop("critical_path")  # names ranks that are alike
        reports.append(report)
    assert model.executable.representatives == 8
    whole, folded = reports
    for kind, parts in whole["timeline"]["utilisation"].items():
        if kind != "engines":  # busiest first: of equal ones those of the first instance
            share = [part["share"] for part in parts]
            found = [part["share"] for part in folded["timeline"]["utilisation"][kind]]
            share = share[::4]
            assert found[: len(share)] == share
    for report in reports:
        report["timeline"].pop("utilisation")
    assert whole == folded


def test_a_group_that_folds_is_priced_beside_one_that_does_not():
    program = collective_program(REDUCE, 32, [16], groups=HALVES)
    placement = place_on(PlaceOptions("trn2", 8, "spread"), 32)
    job, groups = (make(program, program.placeholders[0]) for make in (job_of, groups_of))
    whole, folded = (chooser_of(program, placement, {}, seen) for seen in (None, 4))
    every = whole.candidates(job, groups, price_all=True)
    prices = {one.name: one.price for one in every if not one.reason}
    found = folded.candidates(job, groups, price_all=True)
    for one in found:
        assert one.reason or one.price.time_ps == prices[one.name].time_ps
    lower(program, placement, {}, times_only=True)


@pytest.mark.parametrize(
    ("nodes", "why"), [(1, "transfers have no addresses"), (2, "8 of 16 ranks have columns")]
)
def test_what_is_filled_for_times_is_not_computed_proved_or_listed(nodes: int, why: str):
    program = collective_program(REDUCE, 16, [16 * 64])
    model = ncc_runtime.load(program, "trn2", nodes=nodes, times_only=True)
    for asked in ({"values": True, "verify": False}, {"values": False, "verify": True}):
        with pytest.raises(LoweringError, match=why):
            model.run(seed=0, **asked)
    with pytest.raises(LoweringError, match="load it without times_only"):
        _ = model.proofs
    with pytest.raises(LoweringError, match="load it without times_only"):
        list_executable(model.executable, 0)
