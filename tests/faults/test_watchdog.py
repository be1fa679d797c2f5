"""Who reports a stall when; false alarms; what heartbeats and checksums find and cost."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from ncc_runtime.errors import InputError
from ncc_runtime.execution.clock.clock import Clock
from ncc_runtime.execution.control_flow import PlannedDecisions
from ncc_runtime.execution.disturbance import Disturbance, PartSpeed, QueueSpeed, TransferFault
from ncc_runtime.faults.flight_recorder import FlightRecord, flight_record
from ncc_runtime.faults.waits import stalled_run, wait_graph
from ncc_runtime.faults.watchdog import (
    PROXY_TIMEOUT_PS,
    Checksum,
    Heartbeat,
    NrtStatus,
    SumKind,
    Summing,
    detection,
    exec_timeout_ps,
    false_alarms,
    stall_report,
    status_reports,
    timeout_table,
)
from ncc_runtime.lowering.executable import DmaQueue
from ncc_runtime.machine_model.parts import PartKind, Parts
from ncc_runtime.machine_model.timing import TimingModel
from ncc_runtime.neff.placeholder import CollectiveOp
from tests.clock_runs import collective

SECOND = 10**12
SCHEMA = Path(__file__).parents[2] / "docs/schemas/stall.json"


def clock_of(algorithm: str = "ring", **place: object) -> Clock:
    executable = collective(CollectiveOp.ALL_REDUCE, algorithm, 8, 4096, **place)
    return Clock(executable, PlannedDecisions(executable, {}))


def record_of(clock: Clock, disturbance: Disturbance) -> FlightRecord:
    run = clock.run(disturbance)
    return flight_record(wait_graph(stalled_run(run.trace, run.stuck, run.held, run.halted)))


def ring_of(clock: Clock) -> int:
    return clock.run().trace.queues_of(DmaQueue)[0]


def lost_completion(clock: Clock) -> Disturbance:
    return Disturbance(transfers=(TransferFault(ring_of(clock), 3, 1, completions=0),))


def test_ranks_inside_a_collective_report_it_stuck_when_their_hosts_have_waited() -> None:
    clock = clock_of()
    record = record_of(clock, lost_completion(clock))
    reports = status_reports(record, 30 * SECOND, {2: SECOND})
    assert {one.status for one in reports} == {NrtStatus.EXEC_HW_ERR_COLLECTIVES}
    assert {one.at_ps for one in reports if one.rank != 2} == {30 * SECOND}
    noticed = detection(reports, fault_ps=20 * 10**6)
    assert noticed is not None
    assert noticed.first_after_ps == 30 * SECOND - 20 * 10**6
    assert detection((), 0) is None


def test_a_rank_that_is_stuck_outside_of_collectives_reports_a_timeout() -> None:
    clock = clock_of()
    queues = range(len(clock.executable.queues))
    dead = Disturbance(queues=tuple(QueueSpeed(queue, 5, 0, 0) for queue in queues))
    by_rank = {one.rank: one for one in status_reports(record_of(clock, dead), SECOND)}
    assert by_rank[5].status is NrtStatus.TIMEOUT
    assert by_rank[4].status is NrtStatus.EXEC_HW_ERR_COLLECTIVES


def test_the_thread_that_drives_transfers_between_instances_gives_up_first() -> None:
    clock = clock_of(nodes=2)
    executable = clock.executable
    model = TimingModel.from_topology(executable.topology)
    adapters = Parts(executable.routes, model, executable.ranks).span(PartKind.EFA)
    down = Disturbance(parts=tuple(PartSpeed(n, 0) for n in range(adapters.start, adapters.stop)))
    reports = status_reports(record_of(clock, down), 30 * SECOND)
    assert reports[0].status is NrtStatus.NETWORK_PROXY_FAILURE
    assert PROXY_TIMEOUT_PS < reports[0].at_ps < PROXY_TIMEOUT_PS + SECOND
    assert reports[-1].status is NrtStatus.EXEC_HW_ERR_COLLECTIVES
    before = status_reports(record_of(clock, down), SECOND)
    assert NrtStatus.NETWORK_PROXY_FAILURE not in {one.status for one in before}


def test_the_timeout_is_given_or_that_of_the_environment_or_30_seconds() -> None:
    assert exec_timeout_ps(environment={}) == 30 * SECOND
    assert exec_timeout_ps(environment={"NEURON_RT_EXEC_TIMEOUT": "600"}) == 600 * SECOND
    assert exec_timeout_ps(2.5, {"NEURON_RT_EXEC_TIMEOUT": "600"}) == 5 * SECOND // 2


@pytest.mark.parametrize("text", ["soon", "", "0", "-1", "nan", "inf", "1e30"])
def test_a_timeout_that_is_none_is_refused_by_the_name_it_was_given_by(text: str) -> None:
    with pytest.raises(InputError, match=r"^NEURON_RT_EXEC_TIMEOUT"):
        exec_timeout_ps(environment={"NEURON_RT_EXEC_TIMEOUT": text})


def test_a_timeout_of_nothing_is_refused_as_an_option() -> None:
    with pytest.raises(InputError, match="--exec-timeout is 0 s"):
        exec_timeout_ps(0)


@given(st.lists(st.integers(1, 1000), min_size=1), st.integers(0, 1000))
def test_false_alarms_are_the_steps_that_take_longer(times: list[int], timeout: int) -> None:
    assert false_alarms(times, timeout) == sum(time > timeout for time in times) / len(times)
    short, long = timeout_table(times, [timeout, timeout + 1])
    assert short.false_alarms >= long.false_alarms
    assert short.false_alarms <= short.at_most <= 1
    assert long.longest_detection_ps > short.longest_detection_ps


def test_no_false_alarm_among_a_hundred_steps_is_not_none_ever() -> None:
    (row,) = timeout_table([100] * 100, [200])
    assert row.false_alarms == 0
    assert 0.03 < row.at_most < 0.04
    with pytest.raises(InputError, match="at least one run"):
        false_alarms([], 1)


def test_heartbeats_cost_time_and_find_a_dead_rank_within_their_misses() -> None:
    clock = clock_of()
    beat = Heartbeat(10**6, misses=2)
    usual = clock.run().trace.time_ps
    slower = clock.run(beat.disturbance(clock.executable, 2 * usual)).trace.time_ps
    assert usual < slower < 1.5 * usual
    queues = range(len(clock.executable.queues))
    for fault_ps in (0, 999_999, 1_000_000, 12_345_678):
        dead = Disturbance(queues=tuple(QueueSpeed(queue, 3, 0, fault_ps) for queue in queues))
        (alarm,) = beat.alarms(clock.executable, dead, SECOND)
        assert (alarm.rank, alarm.by) == (3, 4)
        assert 10**6 < alarm.at_ps - fault_ps < 3 * 10**6
        assert beat.alarms(clock.executable, dead, alarm.at_ps - 1) == ()


@pytest.mark.parametrize(
    ("silent", "missed_ps"),
    [
        ([(0, 20)], None),  # beats are due at 10 and 20; the latter comes
        ([(0, 21)], 20),
        ([(10, 21)], 20),  # that of 10 is the first that is missing
        ([(11, 30)], None),
        ([(11, 31)], 30),
        ([(5, 12), (12, 25)], 20),  # two faults, one silence
        ([(5, 12), (15, 25), (35, 51)], 50),
        ([(0, 100), (5, 12)], 20),
    ],
)
def test_an_alarm_takes_so_many_missing_beats_in_a_row(
    silent: list[tuple[int, int]], missed_ps: int | None
) -> None:
    executable = clock_of().executable
    (ring,) = (at for at, queue in enumerate(executable.queues) if queue.name == "cc0")
    stops = tuple(QueueSpeed(ring, 2, 0, *span) for span in silent)
    alarms = Heartbeat(10, misses=2).alarms(executable, Disturbance(queues=stops), SECOND)
    assert len(alarms) == (missed_ps is not None)
    for alarm in alarms:
        way_ps = alarm.at_ps - (missed_ps or 0)
        assert 0 < way_ps < 10**7


def test_a_link_that_is_down_silences_the_beats_that_pass_it_and_a_late_rank_its_own() -> None:
    executable = clock_of().executable
    parts = executable.routes.links(3, 4)
    down = Disturbance(parts=(PartSpeed(parts[0], 0, 10**6),))
    alarms = Heartbeat(10**6).alarms(executable, down, SECOND)
    assert (3, 4) in {(alarm.rank, alarm.by) for alarm in alarms}
    assert all(parts[0] in executable.routes.links(alarm.rank, alarm.by) for alarm in alarms)
    late = Disturbance(late_start_ps={4: 4 * 10**6})
    (alarm,) = Heartbeat(10**6).alarms(executable, late, SECOND)
    assert (alarm.rank, alarm.by) == (4, 5)
    assert Heartbeat(10**6, misses=4).alarms(executable, late, SECOND) == ()


def test_heartbeats_that_leave_no_time_are_refused() -> None:
    executable = clock_of().executable
    with pytest.raises(InputError, match="take a longer period"):
        Heartbeat(1).disturbance(executable, 10)
    with pytest.raises(InputError, match="at least 1 miss"):
        Heartbeat(10**6, 0)
    with pytest.raises(InputError, match="8 ranks would beat 999,999 times each; more than"):
        Heartbeat(10**6).disturbance(executable, 10**12)


@pytest.mark.parametrize("by", Summing)
def test_checksums_make_every_transfer_longer(by: Summing) -> None:
    clock = clock_of()
    trace = clock.run().trace
    costs = Checksum(by).disturbance(trace)
    moved = np.isin(trace.queue, trace.queues_of(DmaQueue))
    assert 0 < len(costs.transfers) <= np.count_nonzero(moved)
    assert clock.run(costs).trace.time_ps > trace.time_ps


@given(st.binary(min_size=1, max_size=64), st.data())
def test_a_crc_finds_every_bit_that_flips(sent: bytes, data: st.DataObject) -> None:
    bit = data.draw(st.integers(0, 8 * len(sent) - 1))
    for kind in SumKind:
        assert Checksum(kind=kind).finds(sent, [bit])
    assert not Checksum().finds(sent, [bit, bit])


def test_two_flips_that_cancel_in_a_sum_of_words_are_found_by_a_crc() -> None:
    sent = bytes([1, 0, 0, 0, 0, 0, 0, 0])
    both = [0, 32]  # the first word loses what the second one gains
    assert not Checksum(kind=SumKind.ADD32).finds(sent, both)
    assert Checksum(kind=SumKind.CRC32).finds(sent, both)
    with pytest.raises(ValueError, match="8 bytes have no bit 64"):
        Checksum().finds(sent, [64])


def test_a_transfer_is_sent_again_without_the_flip_and_later() -> None:
    clock = clock_of()
    trace = clock.run().trace
    flip = TransferFault(ring_of(clock), 2, 0, flipped_bits=(7,))
    again = Checksum().sent_again(trace, flip)
    assert again.flipped_bits == ()
    slower = clock.run(Disturbance(transfers=(again,))).trace.time_ps
    assert slower >= trace.time_ps
    with pytest.raises(InputError, match="there is no transfer 999"):
        Checksum().sent_again(trace, TransferFault(ring_of(clock), 2, 999))


def test_the_report_of_a_stall_separates_what_ranks_know_from_what_all_of_them_show() -> None:
    clock = clock_of()
    record = record_of(clock, lost_completion(clock))
    text = record.as_text()
    own, everything = text.split("what all ranks together show\n")
    assert "what ranks know of themselves" in own
    assert "culprit" not in own
    assert "waits for cc0." in own
    assert "culprit: transfer 1 of cc0.dma0 of rank 3 (pc 1, " in everything
    assert "lost its completion" in everything
    assert "though it has been incremented that often" in everything


def test_the_report_as_json_is_what_its_schema_says() -> None:
    clock = clock_of()
    schema = json.loads(SCHEMA.read_text())
    Draft202012Validator.check_schema(schema)
    queues = range(len(clock.executable.queues))
    dead = Disturbance(queues=tuple(QueueSpeed(queue, 5, 0, 40 * 10**6) for queue in queues))
    for disturbance, fault_ps in ((lost_completion(clock), None), (dead, 40 * 10**6)):
        report = stall_report(clock.run(disturbance), SECOND, fault_ps=fault_ps)
        assert "NRT_EXEC_HW_ERR_COLLECTIVES (1200)" in report.as_text()
        assert ("noticed 999,960.000 us after the fault" in report.as_text()) is (
            report.noticed is not None
        )
        given = json.loads(json.dumps(report.as_json()))
        Draft202012Validator(schema).validate(given)
        assert [one["rank"] for one in given["ranks"]] == list(range(8))


def test_a_complete_run_has_no_report_of_a_stall() -> None:
    with pytest.raises(ValueError, match="nothing stalls"):
        stall_report(clock_of().run(), SECOND)
