"""Plans that read a neighbour's operand and write twice: executed, they do what they say."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_compiler
from ncc_runtime.collectives.plan import (
    Location,
    Plan,
    Round,
    SecondTarget,
    Space,
    Transfer,
    self_peers,
)
from ncc_runtime.errors import LoweringError
from ncc_runtime.lowering.executable import IDLE, DmaQueue
from ncc_runtime.lowering.listing import list_executable
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.placement import PlaceOptions
from ncc_runtime.runtime import Model, program_of
from tests.example_count import examples
from tests.plans import WORD, four_on_a_chip, meaning, plans, with_plan
from tests.programs import collective_program

WORDS = 12
EIGHT_A_CHIP = PlaceOptions("trn2.48xlarge", lnc=1)

SUMMED_AGAIN_AND_AGAIN = """
sum { a = s32[] parameter(0)  b = s32[] parameter(1)  ROOT c = s32[] add(a, b) }
more {
  p = (s32[], s32[16], s32[16]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  trips = s32[] constant(3)
  ROOT less = pred[] compare(i, trips), direction=LT
}
body {
  p = (s32[], s32[16], s32[16]) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  x = s32[16] get-tuple-element(p), index=1
  y = s32[16] get-tuple-element(p), index=2
  one = s32[] constant(1)
  next = s32[] add(i, one)
  total = s32[16] all-reduce(x), replica_groups={{0,1,2,3}}, to_apply=sum
  scaled = s32[16] multiply(total, y)
  changed = s32[16] add(scaled, x)
  ROOT r = (s32[], s32[16], s32[16]) tuple(next, changed, y)
}
ENTRY main {
  x = s32[16] parameter(0)
  y = s32[16] parameter(1)
  zero = s32[] constant(0)
  start = (s32[], s32[16], s32[16]) tuple(zero, x, y)
  end = (s32[], s32[16], s32[16]) while(start), condition=more, body=body
  ROOT out = s32[16] get-tuple-element(end), index=1
}
"""


def random_words(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(-(2**31), 2**31, shape).astype(np.int32)


def quarters(ranks: int = 4, words: int = 16, on: PlaceOptions | None = None) -> Model:
    program = collective_program(CollectiveOp.ALL_REDUCE, ranks, [words], dtype=DType.S32)
    return with_plan(program, four_on_a_chip(words), np.arange(ranks).reshape(-1, 4), on)


def with_the_next(words: int) -> Plan:
    """Each of four members adds the operand of the next one to its own, and sends nothing."""
    at = np.zeros(4, np.int64)
    sources = (
        Location(Space.OPERAND, at),
        Location(Space.OPERAND, at, owner=np.roll(self_peers(4), -1)),
    )
    size = np.full(4, words * WORD, np.int64)
    move = Transfer(self_peers(4), sources, Location(Space.RESULT, at), size)
    return Plan("with the next", 4, (Round((move,)),))


def one_slot_at_two(steps: int) -> Plan:
    """Member 0 writes word after word into one slot of members 1 and 2, as they hand it back."""
    slot = Location(Space.SCRATCH, np.zeros(3, np.int64))
    size = np.full(3, WORD, np.int64)
    to_one, to_two, at_home, from_first = (
        np.array(peers, np.int32) for peers in ((1, -1, -1), (2, -1, -1), (-1, 1, 2), (-1, 0, 0))
    )
    rounds = []
    for step in range(steps):
        at = np.full(3, step * WORD, np.int64)
        word = Location(Space.OPERAND, at)
        both = SecondTarget(to_two, slot)
        sent = Transfer(to_one, (word,), slot, size, second_target=both, credit=step)
        kept = Transfer(at_home, (slot,), Location(Space.RESULT, at), size, consumed=from_first)
        rounds += [Round((sent,)), Round((kept,))]
    return Plan("one slot", 3, tuple(rounds), scratch_bytes=WORD)


PLANS = (four_on_a_chip(16), with_the_next(16))


@functools.cache
def looped(plan: int) -> Model:
    program = program_of(ncc_compiler.compile_text(SUMMED_AGAIN_AND_AGAIN))
    return with_plan(program, PLANS[plan], np.arange(4).reshape(1, 4))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Model, Plan, np.ndarray]:
    """A model with a random plan on groups of two chips, the plan, and the groups."""
    members = draw(st.integers(1, 8))
    groups = np.array(
        [draw(st.permutations(range(first, first + 8)))[:members] for first in (0, 8)]
    )
    plan = draw(plans(members, WORDS))
    program = collective_program(
        CollectiveOp.ALL_REDUCE,
        16,
        [WORDS],
        groups=tuple(map(tuple, groups.tolist())),
        dtype=DType.S32,
        repeat=draw(st.integers(1, 2)),
    )
    return with_plan(program, plan, groups, EIGHT_A_CHIP), plan, groups


def holds_but_for_its_meaning(model: Model) -> bool:
    """Whether all is proved of a plan that need not do what its collective promises."""
    return {proof.name for proof in model.proofs if not proof.holds} <= {"semantics"}


@settings(max_examples=examples(50))
@given(case=cases(), seed=st.integers(0, 99))
def test_a_random_plan_does_what_it_says_in_any_order(
    case: tuple[Model, Plan, np.ndarray], seed: int
) -> None:
    model, plan, groups = case
    inputs = [random_words(seed + k, 16, WORDS) for k in range(len(model.executable.lowered))]
    assert holds_but_for_its_meaning(model)
    plain = model.run(inputs, verify=False)
    shuffled = model.run(inputs, shuffle_seed=seed, verify=False)
    for run in (plain, shuffled, model.run(inputs, threads=4, verify=False)):
        assert run.time_us == plain.time_us
        for operand, result in zip(inputs, run.outputs, strict=True):
            for ranks in groups:
                np.testing.assert_array_equal(result[ranks], meaning(plan, operand[ranks]))


@settings(max_examples=examples(60))
@given(case=cases())
def test_each_semaphore_of_a_random_plan_has_one_queue(
    case: tuple[Model, Plan, np.ndarray],
) -> None:
    writers: dict[tuple[int, int], set[tuple[int, int]]] = {}
    for number, queue in enumerate(case[0].executable.queues):
        for post in queue.sync.posts:
            for row, sender in zip(*np.nonzero(post.rank != IDLE), strict=True):
                key = (int(post.rank[row, sender]), int(post.sem[row, sender]))
                writers.setdefault(key, set()).add((int(sender), number))
    assert all(len(queues) == 1 for queues in writers.values())


@settings(max_examples=examples(20))
@given(plan=st.integers(0, 1), seed=st.integers(0, 999))
def test_in_a_loop_an_operand_is_read_when_written_and_kept_until_read(
    plan: int, seed: int
) -> None:
    model = looped(plan)
    x, y = random_words(seed, 4, 16), random_words(seed + 1, 4, 16)
    assert holds_but_for_its_meaning(model)
    run = model.run([x, y], shuffle_seed=seed, checked=True, verify=False)
    for _ in range(3):
        x = meaning(PLANS[plan], x) * y + x
    np.testing.assert_array_equal(run.outputs[0], x)


@settings(max_examples=examples(20))
@given(seed=st.integers(0, 999))
def test_a_slot_at_two_peers_is_used_again_when_both_have_read_it(seed: int) -> None:
    plan = one_slot_at_two(5)
    program = collective_program(CollectiveOp.ALL_REDUCE, 3, [5], dtype=DType.S32, repeat=2)
    model = with_plan(program, plan, np.arange(3).reshape(1, 3))
    operands = [random_words(seed, 3, 5), random_words(seed + 1, 3, 5)]
    assert holds_but_for_its_meaning(model)
    run = model.run(operands, shuffle_seed=seed, verify=False)
    for operand, result in zip(operands, run.outputs, strict=True):
        np.testing.assert_array_equal(result, meaning(plan, operand))


@pytest.mark.parametrize("words", [16, 4 * 5000])
def test_checked_mode_and_large_transfers_agree_with_the_sum(words: int) -> None:
    operand = random_words(7, 4, words)
    run = quarters(words=words).run([operand], checked=True)
    wanted = np.broadcast_to(operand.sum(axis=0, dtype=np.int32), operand.shape)
    np.testing.assert_array_equal(run.outputs[0], wanted)


def test_bytes_count_where_they_leave_read_or_written_once_or_twice() -> None:
    (row,) = quarters().run(seed=1).collectives
    # a member's quarters are read by three others; it writes three quarters, and one at home
    assert row.sent_by_rank == (6 * 4 * WORD,) * 4
    assert row.bytes_by_transport["intra_chip"] == 4 * 6 * 4 * WORD
    assert row.local_bytes == 4 * 4 * WORD


def test_a_listing_shows_owners_of_sources_and_both_targets() -> None:
    text = list_executable(quarters().executable, 1, "cc0.dma0")
    first, second = text.splitlines()[-2:]
    assert "0x50, 0x50@2 = 0x10 + 0x10@2 + 0x10@3 + 0x10@0 " in first
    assert "local c0, also intra_chip c0" in first
    assert "0x50@3, 0x50@0 = 0x50 " in second


def test_a_run_that_writes_twice_passes_its_engines_twice() -> None:
    size, link, channel = (1 << 20) * WORD, 128e9, 8 * 23e9  # bytes, and bytes a second of trn2

    def time_us(peer: int, also: int | None) -> float:
        return _one_write(peer, also).run(values=False, verify=False).time_us

    assert time_us(1, None) < time_us(4, None)  # on the chip, and to the next
    longer_us = size * (2 / channel - 1 / link) * 1e6
    # the handshakes differ
    assert time_us(1, 4) == pytest.approx(time_us(4, None) + longer_us, abs=0.5)
    assert time_us(4, 1) == pytest.approx(time_us(4, None) + longer_us, abs=0.5)


def _one_write(peer: int, also: int | None) -> Model:
    """Rank 0 of eight sends 4 MiB to one rank or to two."""
    words = 1 << 20
    nowhere = np.zeros(8, np.int64)

    def only(rank: int) -> np.ndarray:
        return np.array([rank, *[IDLE] * 7], np.int32)

    result = Location(Space.RESULT, nowhere)
    move = Transfer(
        only(peer),
        (Location(Space.OPERAND, nowhere),),
        result,
        np.full(8, words * WORD, np.int64),
        second_target=None if also is None else SecondTarget(only(also), result),
    )
    program = collective_program(CollectiveOp.ALL_REDUCE, 8, [words], dtype=DType.S32)
    return with_plan(program, Plan("one", 8, (Round((move,)),)), np.arange(8).reshape(1, 8))


def test_an_operand_of_another_chip_cannot_be_read() -> None:
    with pytest.raises(LoweringError) as caught:
        quarters(on=PlaceOptions("trn2.48xlarge", placement="spread"))
    assert str(caught.value) == (
        "collective 0, round 0: rank 0 on chip 0 would read the operand of rank 1 on chip 1; "
        "a DMA reads memory of its own chip only, others must write"
    )


def test_only_operands_are_read_in_anothers_memory() -> None:
    other = self_peers(4)[::-1].copy()
    nowhere = np.zeros(4, np.int64)
    move = Transfer(
        self_peers(4),
        (Location(Space.RESULT, nowhere, owner=other),),
        Location(Space.RESULT, nowhere),
        np.full(4, WORD, np.int64),
    )
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [4], dtype=DType.S32)
    with pytest.raises(AssertionError, match="only operands"):
        with_plan(program, Plan("wrong", 4, (Round((move,)),)), np.arange(4).reshape(1, 4))


def test_rings_without_neighbours_or_copies_hold_no_columns_for_them() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [16], dtype=DType.S32)
    moved = Transfer(
        self_peers(4),
        (Location(Space.OPERAND, np.zeros(4, np.int64)),),
        Location(Space.RESULT, np.zeros(4, np.int64)),
        np.full(4, 64, np.int64),
    )
    model = with_plan(program, Plan("copy", 4, (Round((moved,)),)), np.arange(4).reshape(1, 4))
    (ring,) = (queue for queue in model.executable.queues if isinstance(queue, DmaQueue))
    assert (ring.source_rank, ring.second_peer, ring.second_target) == (None, None, None)
