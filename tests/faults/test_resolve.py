"""Faults on an executable: names that are there, names that are not, draws that stay."""

import random

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_runtime.errors import InputError
from ncc_runtime.execution.clock.clock import Clock
from ncc_runtime.execution.control_flow import PlannedDecisions
from ncc_runtime.execution.disturbance import FULL_SPEED, Disturbance
from ncc_runtime.faults.resolve import joined, resolved
from ncc_runtime.faults.text import parse
from ncc_runtime.lowering.executable import DmaQueue
from ncc_runtime.runtime import program_of
from tests.faults.test_text import drawn_fault
from tests.stage_programs import cut

TEXT = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY main {
  x = f32[64,64] parameter(0)
  y = f32[64,64] dot(x, x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  r = f32[64,64] all-reduce(y), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=add
  z = f32[64,64] dot(r, r), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT s = f32[64,64] all-reduce(z), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=add
}
"""


@pytest.fixture(scope="module")
def clock() -> Clock:
    """Eight ranks on two instances."""
    model = ncc_runtime.load(ncc_compiler.compile_text(TEXT), "trn2", nodes=2)
    return Clock(model.executable, PlannedDecisions(model.executable, {}))


def disturbance_of(clock: Clock, *texts: str, seed: int = 0) -> Disturbance:
    return joined(resolved(clock, [parse(text) for text in texts], seed))


def time_of(clock: Clock, *texts: str) -> int:
    run = clock.run(disturbance_of(clock, *texts))
    assert not run.stuck
    return run.trace.time_ps


@pytest.mark.parametrize(
    "text",
    [
        "rank 3 slow to 1%",  # a little slower, it meets others' transfers less and gains 22 ns
        "core c0.core2 slow to 1%",
        "rank 3 late by 30us",
        "link c0-c1 slow to 1%",
        "at 20us: link c0-c1 down for 50us",
        "adapter n0.efa0 slow to 10%",
        "adapter * slow to 10%",
        "adapter * loses 50%",
        "instance n1 has mtu 256",
        "at 20us: ring cc0.dma0 on rank 3 stuck for 40us",
        "completion 0 of cc0.dma0 on rank 3 late by 40us",
        "at run 1 of p1: rank 3 dead for 40us",
    ],
)
def test_what_is_disturbed_takes_at_least_as_long(clock: Clock, text: str) -> None:
    undisturbed_ps = clock.run().trace.time_ps
    assert time_of(clock, text) >= undisturbed_ps
    if "link" not in text:  # of which the placement may use none
        assert time_of(clock, text) > undisturbed_ps


@pytest.mark.parametrize(
    "text", ["rank 3 dead", "at 1us: core c0.core2 dead", "completion 0 of cc0.dma0 on rank 3 lost"]
)
def test_what_is_dead_or_lost_stalls_the_others(clock: Clock, text: str) -> None:
    assert clock.run(disturbance_of(clock, text)).stuck


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("rank 8 dead", "no rank 8; there is rank 0 to 7"),
        ("rank 5-9 slow to 50%", "no rank 9"),
        ("core c99.core0 dead", "no core c99.core0; there is c0 to c31"),
        ("core c9.core0 dead", "no rank of the program is there"),
        ("chip c32 dead", "no chip c32"),
        ("link c0-c16 down", "c0-c16"),
        ("link c0.Q down", "c0.Q"),
        ("link c0-c1 slow to 999GB/s", "it has 64 GB/s|slower"),
        ("adapter n2.efa0 down", "no n2.efa0; there is n0 to n1"),
        ("adapter n0.efa99 down", "no n0.efa99"),
        ("instance n2 has mtu 1500", "no n2"),
        ("ring cc7.dma0 on rank 0 stuck", "no DMA ring cc7.dma0 on rank 0; there is cc0.dma0"),
        ("ring cc0.dma0 on rank 8 stuck", "no rank 8"),
        ("completion 9999 of cc0.dma0 on rank 3 lost", "transfers, from 0"),
        ("bit 999999999 of transfer 0 of cc0.dma0 on rank 3 flips", "bits, from 0"),
        ("bit 0 of element 0 of nothing on rank 3 flips", "no array nothing; there is .*arg0"),
        ("bit 32 of element 0 of arg0 on rank 3 flips", "4096 elements of 32 bits"),
        ("bit 0 of element 4096 of arg0 on rank 3 flips", "4096 elements of 32 bits"),
        ("bit 8 of byte 0 on rank 3 flips", "the program uses [0-9]+ bytes of 8 bits"),
        ("bit 0 of byte 99999999 on rank 3 flips", "the program uses [0-9]+ bytes of 8 bits"),
        ("bit 0 of byte 0 on rank 8 flips", "no rank 8"),
        ("at run 1 of all-reduce.9: rank 3 dead", "no collective all-reduce.9; there is p0"),
        ("at run 2 of p0: rank 3 dead", "runs 1 time"),
        ("link c0-c1 flaps 1us of every 2us for 100s", "the most is 10,000"),
    ],
)
def test_names_that_are_not_there_are_refused(clock: Clock, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        disturbance_of(clock, text)


def test_a_run_that_faults_before_it_keep_from_beginning_is_named_so(clock: Clock) -> None:
    with pytest.raises(InputError, match=r"p1 .* runs 0 times, under the faults"):
        disturbance_of(clock, "rank * dead", "at run 1 of p1: rank 3 dead")


def test_what_flaps_without_an_end_does_so_until_the_run_ends(clock: Clock) -> None:
    text = "at 20us: adapter n0.efa0 flaps 900ns of every 1us"
    endless = disturbance_of(clock, text)
    until_end = disturbance_of(clock, f"{text} for 3000us")
    runs = [clock.run(disturbance).trace for disturbance in (endless, until_end)]
    assert runs[0].time_ps == runs[1].time_ps > clock.run().trace.time_ps
    assert max(part.end_ps for part in endless.parts) >= runs[0].time_ps
    assert len(endless.parts) * 8 < len(until_end.parts)


@pytest.mark.parametrize(
    "texts",
    [
        ("adapter * loses 50% for 76us",),
        ("at 76us: adapter * loses 50%",),
        ("rank 3 late by 200us", "at 250us: adapter * loses 50% for 50us"),
    ],
)
def test_packets_are_lost_by_transfers_that_start_in_the_time_of_the_loss(
    clock: Clock, texts: tuple[str, ...]
) -> None:
    """As they start in the disturbed run; the last of these times is behind the undisturbed one."""
    *_, loss = resolved(clock, [parse(text) for text in texts])
    hit = {(one.queue, one.rank, one.nth) for one in loss.disturbance.transfers}
    trace = clock.run(disturbance_of(clock, *texts)).trace
    begin_ps = loss.fault.when.at_ps
    end_ps = begin_ps + (loss.fault.when.for_ps or 10**15)
    started = set()
    for number in trace.queues_of(DmaQueue):
        for rank in range(clock.executable.ranks):
            mine = (trace.queue == number) & (trace.rank == rank)
            for nth, start_ps in enumerate(trace.start_ps[mine].tolist()):
                if begin_ps <= start_ps < end_ps:
                    started.add((number, rank, nth))
    assert hit
    assert hit <= started


def test_one_fault_more_changes_no_draw(clock: Clock) -> None:
    drawn = "rank * slow by lognormal(1, 0.3)"
    first = disturbance_of(clock, drawn, seed=5)
    second = disturbance_of(clock, drawn, "rank * late by exponential(20us)", seed=5)
    assert first.queues == second.queues
    assert first.queues != disturbance_of(clock, drawn, seed=6).queues
    speeds = np.array([each.speed for each in first.queues])
    assert (speeds <= FULL_SPEED).all()
    assert len({each.speed for each in first.queues if each.rank}) > 1


def test_what_begins_with_a_run_counts_the_faults_before_it(clock: Clock) -> None:
    late = "rank 0 late by 1ms"
    at_run = "at run 1 of p1: link c0-c1 down for 50us"
    (alone,) = {part.start_ps for part in disturbance_of(clock, at_run).parts}
    (behind,) = {part.start_ps for part in disturbance_of(clock, late, at_run).parts}
    assert behind > alone


def test_drawn_faults_are_resolved_or_refused(clock: Clock) -> None:
    draw = random.Random(3)
    known = 0
    for _ in range(150):
        try:
            fault = drawn_fault(draw)
            if fault.flap_ps is None:  # thousands of times, which take their time
                joined(resolved(clock, [fault], 1))
        except InputError:
            continue
        known += 1
    assert known > 40


def test_a_rank_has_the_arrays_of_its_own_stage() -> None:
    """Both stages have an x; arg0 is that of the first one's ranks, arg1 that of the second's."""
    program = program_of(ncc_compiler.compile_text(TEXT))
    first, second = cut(program, [range(4), range(4, 8)])
    executable = ncc_runtime.load([first, second], "trn2").executable
    clock = Clock(executable, PlannedDecisions(executable, {}))

    def address(place: str, rank: int) -> int:
        (flip,) = disturbance_of(
            clock, f"bit 0 of element 0 of {place} on rank {rank} flips"
        ).memory
        return flip.address

    x = program.address(program.inputs[0])
    assert address("arg0", 3) == address("x", 3) == x
    assert address("arg1", 6) == address("x", 6) == second[0].address(program.inputs[0]) > x
    for place, rank in (("arg0", 6), ("arg1", 3)):
        with pytest.raises(InputError, match=f"no array {place} on rank {rank}; there is"):
            address(place, rank)
