"""Values under faults, played on drawn times: what comes of faults, and what must not."""

from typing import Any

import attrs
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_compiler
import ncc_runtime
from ncc_runtime.execution.disturbance import (
    NOTHING,
    Disturbance,
    MemoryFault,
    QueueSpeed,
    TransferFault,
)
from ncc_runtime.faults import outcome as outcomes
from ncc_runtime.faults.outcome import Effect, FaultOutcome, Laboratory, differences_of
from ncc_runtime.faults.play import DisagreementError, Playback
from ncc_runtime.faults.report import reported
from ncc_runtime.faults.text import parse
from ncc_runtime.faults.waits import CulpritKind
from ncc_runtime.inputs import bound_inputs
from ncc_runtime.lowering.executable import DmaQueue, Executable
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.ranked_array import RankedArray
from tests.clock_runs import collective, compiled
from tests.draws_clock import busy_texts, placed_collectives
from tests.example_count import examples
from tests.faults.flips import flipped_in_any_order
from tests.faults.random_times import RandomClock
from tests.small_executables import looped

SIZES = (0, 7, 100, 1025)
"""Elements: bits flip in all of them, and runs are short."""


def laboratory(executable: Executable, seed: int = 0, times: int | None = 0) -> Laboratory:
    """With inputs from a seed, on times that are drawn from another; None: those of the clock."""
    made = Laboratory(executable, lambda: bound_inputs(executable.program, {}, seed))
    if times is not None:
        drawn = RandomClock(executable, made.undisturbed.decisions, seed=times)
        made.clock = drawn  # type: ignore[assignment]
    return made


def transfers(executable: Executable) -> list[tuple[int, int, int]]:
    """(queue, rank, nth) of every transfer, of a program without loops."""
    return [
        (number, rank, nth)
        for number, queue in enumerate(executable.queues)
        if isinstance(queue, DmaQueue)
        for rank in range(executable.ranks)
        for nth in range(int((queue.peer[:, rank] >= 0).sum()))
    ]


def ring(ranks: int = 4) -> Executable:
    return collective(CollectiveOp.ALL_REDUCE, "ring", ranks, 16)


@settings(max_examples=examples(25))
@given(placed_collectives(SIZES), st.integers(0, 2**32 - 1))
def test_undisturbed_values_are_the_same_at_all_times(executable: Executable, seed: int) -> None:
    lab = laboratory(executable, times=seed)
    _, played = lab.played(NOTHING)
    assert not any((played.stuck, played.early, played.diverged))
    assert not differences_of(executable, played.outputs, lab.undisturbed.outputs)


@settings(max_examples=10)
@given(busy_texts(), st.sampled_from([0, None]))
def test_they_are_the_same_beside_compute(text: str, times: int | None) -> None:
    executable = compiled(text)
    lab = laboratory(executable, times=times)
    _, played = lab.played(NOTHING)
    assert not differences_of(executable, played.outputs, lab.undisturbed.outputs)


@pytest.mark.parametrize("times", [0, 1, 2, None])
def test_a_loop_is_played_as_often_as_it_runs(times: int | None) -> None:
    lab = laboratory(looped(), times=times)
    _, played = lab.played(NOTHING)
    assert not played.stuck
    assert not played.diverged
    assert not differences_of(lab.executable, played.outputs, lab.undisturbed.outputs)


def test_every_lost_completion_of_a_ring_is_harmless_or_a_stall() -> None:
    """And what is proved harmless is so when it is played."""
    executable = ring()
    lab = laboratory(executable)
    effects = set()
    for queue, rank, nth in transfers(executable):
        disturbance = Disturbance(transfers=(TransferFault(queue, rank, nth, completions=0),))
        found = lab.outcome(disturbance)
        _, played = lab.played(disturbance)
        assert found.is_proved
        assert (found.effect is Effect.STALL) == bool(played.stuck)
        if found.effect is Effect.HARMLESS:
            assert not differences_of(executable, played.outputs, lab.undisturbed.outputs)
        else:
            culprit, *others = lab.waits(found).culprits
            assert not others
            assert culprit.ranks == (rank,)
            assert (queue, rank, nth) in [one[:3] for one in map(attrs.astuple, culprit.transfers)]
        effects.add(found.effect)
        assert found.effect in (Effect.HARMLESS, Effect.STALL)
    assert Effect.STALL in effects


@settings(max_examples=examples(25))
@given(placed_collectives(SIZES), st.integers(0, 2**32 - 1), st.data())
def test_what_is_proved_of_a_fault_is_what_is_played(
    executable: Executable, seed: int, data: st.DataObject
) -> None:
    lab = laboratory(executable, times=seed)
    rank = data.draw(st.integers(0, executable.ranks - 1))
    dies_ps = data.draw(st.integers(0, 2 * lab.clock.run(NOTHING).trace.time_ps))
    dead = [QueueSpeed(number, rank, 0, dies_ps) for number in range(len(executable.queues))]
    faults = [Disturbance(queues=tuple(dead))]
    if all_transfers := transfers(executable):
        where = data.draw(st.sampled_from(all_transfers))
        faults.append(Disturbance(transfers=(TransferFault(*where, completions=0),)))
    for disturbance in faults:
        found = lab.outcome(disturbance)
        timed, played = lab.played(disturbance)
        assert found.is_proved
        assert (found.effect is Effect.STALL) == bool(played.stuck or timed.halted)
        if found.effect is Effect.HARMLESS:
            assert not differences_of(executable, played.outputs, lab.undisturbed.outputs)


@settings(max_examples=examples(25))
@given(placed_collectives(SIZES), st.integers(0, 2**32 - 1), st.data())
def test_a_row_that_starts_too_early_is_seen_from_times_alone(
    executable: Executable, seed: int, data: st.DataObject
) -> None:
    where = st.sampled_from(transfers(executable) or [None])
    if (doubled := data.draw(where)) is None:
        return
    lab = laboratory(executable, times=seed)
    disturbance = Disturbance(transfers=(TransferFault(*doubled, completions=2),))
    timed, played = lab.played(disturbance)
    found = lab.outcome(disturbance)
    seen = outcomes._doubled(timed.trace, lab._edges, disturbance)
    assert seen is None or seen.is_early == bool(played.early)
    assert found.has_race or not played.has_race
    differs = differences_of(executable, played.outputs, lab.undisturbed.outputs)
    assert not differs or played.early
    assert (found.effect is Effect.WRONG) == bool(differs)


def test_a_completion_that_comes_twice_gives_wrong_values_at_some_times() -> None:
    executable = ring()
    effects = set()
    for seed in range(12):
        lab = laboratory(executable, times=seed)
        for where in transfers(executable)[:6]:
            found = lab.outcome(Disturbance(transfers=(TransferFault(*where, completions=2),)))
            effects.add(found.effect)
            if found.effect is Effect.WRONG:
                assert found.has_race
                assert not found.is_proved
    assert effects == {Effect.HARMLESS, Effect.WRONG}


# ---- flipped bits, beside runs that flip them in another way


@settings(max_examples=examples(25))
@given(placed_collectives(SIZES), st.data())
def test_a_flipped_bit_of_a_transfer_does_what_it_does_in_any_order(
    executable: Executable, data: st.DataObject
) -> None:
    """The oracle performs whole rows, as soon as they may start, and flips what they wrote."""
    if (where := data.draw(st.sampled_from(transfers(executable) or [None]))) is None:
        return
    bit = data.draw(st.integers(0, 8 * 64))
    lab = laboratory(executable, times=None)
    fault = TransferFault(*where, flipped_bits=(bit,))
    found = lab.outcome(Disturbance(transfers=(fault,)))
    expected = flipped_in_any_order(executable, fault, bound_inputs(executable.program, {}, 0))
    differences = differences_of(executable, expected, lab.undisturbed.outputs)
    assert found.differences == differences
    assert found.effect is (Effect.WRONG if differences else Effect.HARMLESS)


@settings(max_examples=examples(25))
@given(placed_collectives(SIZES), st.data())
def test_a_bit_of_a_parameter_that_flips_before_the_launch_is_another_input(
    executable: Executable, data: st.DataObject
) -> None:
    program = executable.program
    sizes = [program.tensors[tensor].size_bytes for tensor in program.inputs]
    if not any(sizes):
        return
    number = data.draw(st.sampled_from([n for n, size in enumerate(sizes) if size]))
    byte = data.draw(st.integers(0, sizes[number] - 1))
    bit = data.draw(st.integers(0, 7))
    rank = data.draw(st.integers(0, executable.ranks - 1))
    lab = laboratory(executable, times=None)
    address = program.address(program.inputs[number]) + byte
    found = lab.outcome(Disturbance(memory=(MemoryFault(rank, address, bit, 0),)))
    inputs = [np.array(one) for one in bound_inputs(program, {}, 0)]
    inputs[number] = np.ascontiguousarray(inputs[number])
    flat = inputs[number].reshape(executable.ranks, -1).view(np.uint8)
    flat[rank, byte] ^= np.uint8(1 << bit)
    other = Laboratory(executable, lambda: map(RankedArray.of_each, inputs))
    differences = differences_of(executable, other.undisturbed.outputs, lab.undisturbed.outputs)
    assert found.differences == differences


def test_memory_that_flips_after_the_end_or_outside_the_program_changes_nothing() -> None:
    lab = laboratory(ring(), times=None)
    end_ps = lab.trace.time_ps
    for fault in (MemoryFault(0, 0, 0, end_ps + 1), MemoryFault(0, 1 << 50, 0, 0)):
        assert lab.outcome(Disturbance(memory=(fault,))).effect is Effect.HARMLESS


# ---- corrupted data that decides


@pytest.mark.parametrize("bit", range(32))
def test_a_trip_counter_that_flips_ends_in_an_outcome(bit: int) -> None:
    """Fewer trips, more, as good as endlessly many, or a stall: ranks go apart."""
    lab = laboratory(looped(), times=None)
    seen = set()
    for share in (3, 2):
        at_ps = lab.trace.time_ps // share
        for buffer in lab.executable.program.buffers:
            if buffer.size_bytes == 4:
                fault = MemoryFault(1, buffer.address + bit // 8, bit % 8, at_ps)
                seen.add(lab.outcome(Disturbance(memory=(fault,))).effect)
    assert seen


# ---- clock and values check each other


def test_a_row_that_the_clock_starts_too_early_is_a_disagreement() -> None:
    lab = laboratory(ring())
    timed = lab.clock.run(NOTHING)
    late = int(np.argmax(timed.trace.end_ps))
    start_ps, end_ps = timed.trace.start_ps.copy(), timed.trace.end_ps.copy()
    start_ps[late], end_ps[late] = 0, 1
    wrong = attrs.evolve(timed, trace=attrs.evolve(timed.trace, start_ps=start_ps, end_ps=end_ps))
    with pytest.raises(DisagreementError, match=r"the clock starts it at 0 ps"):
        playback(lab).run(wrong)


def test_a_queue_that_only_the_clock_takes_for_stuck_is_a_disagreement() -> None:
    lab = laboratory(ring())
    queue, rank, nth = transfers(lab.executable)[0]
    lost = Disturbance(transfers=(TransferFault(queue, rank, nth, completions=0),))
    timed = lab.clock.run(lost)
    assert timed.stuck
    with pytest.raises(DisagreementError, match="disagree on who is stuck"):
        playback(lab, lost).run(attrs.evolve(timed, stuck=timed.stuck[1:]))


def test_a_queue_that_the_values_would_let_go_on_is_a_disagreement() -> None:
    lab = laboratory(ring())
    lost = Disturbance(transfers=(TransferFault(*transfers(lab.executable)[0], completions=0),))
    timed = lab.clock.run(lost)
    assert timed.stuck
    with pytest.raises(DisagreementError, match="by values it can go on at pc"):
        playback(lab, NOTHING).run(timed)


def test_what_goes_wrong_with_one_transfer_is_joined_for_clock_and_values() -> None:
    lab = laboratory(ring(), times=None)
    where = transfers(lab.executable)[0]

    def outcome(**faults: Any) -> FaultOutcome:
        return lab.outcome(Disturbance(transfers=(TransferFault(*where, **faults),)))

    def together(*each: dict[str, Any]) -> FaultOutcome:
        return lab.outcome(
            Disturbance(transfers=tuple(TransferFault(*where, **one) for one in each))
        )

    both = together({"flipped_bits": (30,)}, {"flipped_bits": (3,)})
    assert both.differences == outcome(flipped_bits=(3, 30)).differences != ()
    twice = together({"flipped_bits": (30,)}, {"flipped_bits": (30,)})
    assert twice.effect is Effect.HARMLESS
    doubled = together({"completions": 2}, {"late_ps": 10**7}, {"flipped_bits": (3,)})
    assert doubled.has_race
    lost = together({"completions": 2}, {"completions": 0})
    assert lost.effect is Effect.STALL
    assert not lost.has_race


LOOP_WHILE_LARGE = """HloModule halves, replica_count=4
add { a = f32[] parameter(0)
 b = f32[] parameter(1)
 ROOT r = f32[] add(a, b) }
goes_on { s = (f32[], f32[8]) parameter(0)
 x = f32[] get-tuple-element(s), index=0
 one = f32[] constant(1)
 ROOT c = pred[] compare(x, one), direction=GT }
body { s = (f32[], f32[8]) parameter(0)
 x = f32[] get-tuple-element(s), index=0
 v = f32[8] get-tuple-element(s), index=1
 half = f32[] constant(0.5)
 y = f32[] multiply(x, half)
 r = f32[8] all-reduce(v), replica_groups={}, to_apply=add
 ROOT t = (f32[], f32[8]) tuple(y, r) }
ENTRY main { x = f32[] parameter(0)
 v = f32[8] parameter(1)
 s = (f32[], f32[8]) tuple(x, v)
 w = (f32[], f32[8]) while(s), condition=goes_on, body=body
 ROOT r = f32[8] get-tuple-element(w), index=1 }
"""


def test_a_rank_that_leaves_a_loop_sooner_is_the_culprit_and_no_rows_are_compared() -> None:
    model = ncc_runtime.load(ncc_compiler.compile_text(LOOP_WHILE_LARGE), "trn2")
    lab = model.laboratory([np.full(4, 16, np.float32), np.ones((4, 8), np.float32)])
    fault = parse("bit 23 of element 0 of arg0 on rank 0 flips")
    report = reported(lab, [fault], seed=0, timeout_ps=10**12)
    assert report.outcome.effect is Effect.STALL
    assert report.blame is None
    assert "control flow is another" in "\n".join(report.lines())
    assert report.stall is not None
    (culprit,) = report.stall.record.graph.culprits
    assert culprit.kind is CulpritKind.NEVER
    assert culprit.ranks == (0,)


def playback(lab: Laboratory, disturbance: Disturbance = NOTHING) -> Playback:
    devices = lab._loaded_devices()
    return Playback(devices, disturbance, lab.undisturbed.decisions, len(lab.trace))


# ---- differences


def test_differences_say_which_ranks_and_how_far() -> None:
    executable = ring()
    old = [np.ones((4, 16), np.float32)]
    new = [old[0].copy()]
    new[0][1, 3], new[0][3, 0], new[0][3, 1] = 1.5, np.nan, -1
    (found,) = differences_of(executable, new, old)
    assert found.ranks == (1, 3)
    assert (found.elements, found.of, found.nans) == (3, 64, 1)
    assert (found.largest, found.relative) == (2, 2)
    assert differences_of(executable, old, [old[0].copy()]) == ()
