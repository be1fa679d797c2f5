"""Transfers that are in flight when a loop begins, against a simulation that moves messages."""

from collections.abc import Callable

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from tests.compiler.reading import complaints, messages
from tests.reference_runs import run_text

CHAIN = ((0, 1), (1, 2), (2, 3))
RING = (*CHAIN, (3, 0))
START = "(f32[2], u32[], token[])"
DONE = "(f32[2], token[])"
X = np.arange(8, dtype=np.float32).reshape(4, 2) + 1


def along(pairs: tuple[tuple[int, int], ...]) -> str:
    inner = ",".join(f"{{{source},{target}}}" for source, target in pairs)
    return f"frontend_attributes={{_xla_send_recv_source_target_pairs={{{inner}}}}}"


def moved(data: np.ndarray, pairs: tuple[tuple[int, int], ...]) -> np.ndarray:
    """What arrives: each rank's own message, zeros where none comes."""
    arrived = np.zeros_like(data)
    for source, target in pairs:
        arrived[target] = data[source]
    return arrived


def counted(state: str, rounds: int) -> str:
    """A condition: element 0 of the state is below so many."""
    return f"""below {{ p = {state} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant({rounds})
  ROOT c = pred[] compare(i, n), direction=LT
}}
"""


def next_round(state: str) -> str:
    return f"""step {{ p = {state} parameter(0)
  i = s32[] get-tuple-element(p), index=0
  one = s32[] constant(1)
  j = s32[] add(i, one)
"""


def agrees(text: str, expected: np.ndarray, *inputs: np.ndarray) -> None:
    """The reference and every level of the compiler give what the simulation says."""
    (found,) = run_text(text, *inputs)
    np.testing.assert_array_equal(found, expected)
    for level in (0, 1, 2):
        neff = ncc_compiler.compile_text(text, CompileOptions(level=level))
        model = ncc_runtime.load(neff, "trn2", nodes=2, placement="spread" if level else "linear")
        (found,) = model.run(list(inputs), checked=True).outputs
        np.testing.assert_array_equal(found, expected)


# every round receives what the round before has sent; the sends' contexts go around with the loop

SENT_AHEAD_STATE = f"(s32[], f32[2], {START})"


def sent_ahead(rounds: int, first: str = "channel_id=1", inner: str = "channel_id=1") -> str:
    pairs = along(CHAIN)
    return f"""HloModule m, num_partitions=4
{counted(SENT_AHEAD_STATE, rounds)}
{next_round(SENT_AHEAD_STATE)}
  sum = f32[2] get-tuple-element(p), index=1
  before = {START} get-tuple-element(p), index=2
  e = token[] send-done(before)
  r = {START} recv(e), {inner}, {pairs}
  d = {DONE} recv-done(r)
  v = f32[2] get-tuple-element(d), index=0
  t = token[] get-tuple-element(d), index=1
  total = f32[2] add(sum, v)
  s = {START} send(total, t), {inner}, {pairs}
  ROOT q = {SENT_AHEAD_STATE} tuple(j, total, s)
}}
ENTRY main {{
  x = f32[2] parameter(0)
  t = token[] after-all()
  s = {START} send(x, t), {first}, {pairs}
  k = s32[] constant(0)
  b = {SENT_AHEAD_STATE} tuple(k, x, s)
  o = {SENT_AHEAD_STATE} while(b), condition=below, body=step
  g = {START} get-tuple-element(o), index=2
  e = token[] send-done(g)
  r = {START} recv(e), {first}, {pairs}
  d = {DONE} recv-done(r)
  v = f32[2] get-tuple-element(d), index=0
  total = f32[2] get-tuple-element(o), index=1
  ten = f32[] constant(10)
  tens = f32[2] broadcast(ten), dimensions={{}}
  w = f32[2] multiply(v, tens)
  ROOT z = f32[2] add(w, total)
}}
"""


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_round_receives_what_the_round_before_has_sent(rounds: int) -> None:
    total, flying = X, X
    for _ in range(rounds):
        total = total + moved(flying, CHAIN)
        flying = total
    agrees(sent_ahead(rounds), moved(flying, CHAIN) * 10 + total, X)


# each round starts the recv of the next one, and sends before it waits


RECEIVED_AHEAD_STATE = f"(s32[], f32[2], ({START}, f32[2]))"


def received_ahead(rounds: int, sent: str = "sum", between: str = "") -> str:
    pairs = along(RING)
    return f"""HloModule m, num_partitions=4
{counted(RECEIVED_AHEAD_STATE, rounds)}
{next_round(RECEIVED_AHEAD_STATE)}
  sum = f32[2] get-tuple-element(p), index=1
  both = ({START}, f32[2]) get-tuple-element(p), index=2
  begun = {START} get-tuple-element(both), index=0
  kept = f32[2] get-tuple-element(both), index=1
  after = token[] after-all()
  d = {DONE} recv-done(begun)
  v = f32[2] get-tuple-element(d), index=0
  s = {START} send({sent}, after), channel_id=7, {pairs}
  e = token[] send-done(s), channel_id=7
  twice = f32[2] add(v, v)
  total = f32[2] add(twice, sum)
  r = {START} recv(after), channel_id=3, {pairs}
  pair = ({START}, f32[2]) tuple(r, kept)
  ROOT q = {RECEIVED_AHEAD_STATE} tuple(j, total, pair)
}}
ENTRY main {{
  x = f32[2] parameter(0)
  t = token[] after-all()
  r = {START} recv(t), channel_id=5, {pairs}
  pair = ({START}, f32[2]) tuple(r, x)
  k = s32[] constant(0)
  b = {RECEIVED_AHEAD_STATE} tuple(k, x, pair)
  o = {RECEIVED_AHEAD_STATE} while(b), condition=below, body=step
  total = f32[2] get-tuple-element(o), index=1
  s = {START} send(total, t), channel_id=9, {pairs}
  e = token[] send-done(s), channel_id=9
  g = ({START}, f32[2]) get-tuple-element(o), index=2
  h = {START} get-tuple-element(g), index=0
  d = {DONE} recv-done(h)
  ROOT v = f32[2] get-tuple-element(d), index=0
}}
"""


@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_a_recv_may_start_a_round_before_its_send(rounds: int) -> None:
    total = X
    for _ in range(rounds):
        total = moved(total, RING) * 2 + total
    agrees(received_ahead(rounds), moved(total, RING), X)


# both sides are started before the loop and at the end of each round, as XLA's pipeliner writes it


def both_ahead(rounds: int, channels: tuple[int, int, int, int], backward: bool = False) -> str:
    """Forward along the chain, and back from its end on a second pipeline."""
    there = along(CHAIN).replace("={", '={_xla_send_recv_pipeline="0",', 1)
    back = along(((3, 0),)).replace("={", '={_xla_send_recv_pipeline="1",', 1)
    state = f"(s32[], {START}, {START}, {START}, {START})"
    first_send, first_recv, send, recv = channels

    def started(data: str, token: str, send: int, recv: int) -> str:
        return f"""
  rb = {START} recv({token}), channel_id={recv + 20}, {back}
  sb = {START} send({data}, {token}), channel_id={send + 20}, {back}, control-predecessors={{rb}}
  r = {START} recv({token}), channel_id={recv}, {there}, control-predecessors={{sb}}
  s = {START} send({data}, {token}), channel_id={send}, {there}, control-predecessors={{r}}"""

    def ended(of: str) -> str:
        return f"""
  g1 = {START} get-tuple-element({of}), index=1
  g2 = {START} get-tuple-element({of}), index=2
  g3 = {START} get-tuple-element({of}), index=3
  g4 = {START} get-tuple-element({of}), index=4
  d1 = {DONE} recv-done(g1)
  e2 = token[] send-done(g2)
  d3 = {DONE} recv-done(g3)
  e4 = token[] send-done(g4)
  v1 = f32[2] get-tuple-element(d1), index=0
  v3 = f32[2] get-tuple-element(d3), index=0
  v = f32[2] add(v1, v3)"""

    return f"""HloModule m, num_partitions=4
{counted(state, rounds)}
{next_round(state)}{ended("p")}
  w = f32[2] add(v, v)
  t = token[] after-all(){started("w", "t", send, recv)}
  ROOT q = {state} tuple(j, rb, sb, r, s)
}}
ENTRY main {{
  x = f32[2] parameter(0)
  t = token[] after-all(){started("x", "t", first_send, first_recv)}
  k = s32[] constant(0)
  b = {state} tuple(k, rb, sb, r, s)
  o = {state} while(b), condition=below, body=step{ended("o")}
  ROOT z = f32[2] copy(v)
}}
"""


@pytest.mark.parametrize("channels", [(1, 1, 1, 1), (1, 1, 2, 2), (1, 2, 3, 4)])
def test_both_sides_may_be_carried_over_rounds(channels: tuple[int, int, int, int]) -> None:
    flying = X
    for _ in range(3):
        flying = 2 * moved(flying, RING)
    agrees(both_ahead(3, channels), moved(flying, RING), X)


def test_two_messages_in_flight_arrive_in_their_order() -> None:
    state = "(s32[], token[], token[])"
    pairs = along(RING)
    text = f"""HloModule m, num_partitions=4
{counted(state, 3)}
{next_round(state)}
  before = token[] get-tuple-element(p), index=1
  other = token[] get-tuple-element(p), index=2
  r = {START} recv(before), channel_id=1, {pairs}
  d = {DONE} recv-done(r)
  v = f32[2] get-tuple-element(d), index=0
  w = f32[2] add(v, v)
  s = {START} send(w, before), channel_id=1, {pairs}
  e = token[] send-done(s)
  ROOT q = {state} tuple(j, e, other)
}}
ENTRY main {{
  x = f32[2] parameter(0)
  y = f32[2] negate(x)
  t = token[] after-all()
  s = {START} send(x, t), channel_id=1, {pairs}
  e = token[] send-done(s)
  s2 = {START} send(y, e), channel_id=1, {pairs}
  e2 = token[] send-done(s2)
  k = s32[] constant(0)
  b = {state} tuple(k, e2, t)
  o = {state} while(b), condition=below, body=step
  u = token[] get-tuple-element(o), index=1
  r = {START} recv(u), channel_id=1, {pairs}
  d = {DONE} recv-done(r)
  r2 = {START} recv(u), channel_id=1, {pairs}
  d2 = {DONE} recv-done(r2)
  v = f32[2] get-tuple-element(d), index=0
  v2 = f32[2] get-tuple-element(d2), index=0
  ten = f32[] constant(10)
  tens = f32[2] broadcast(ten), dimensions={{}}
  w = f32[2] multiply(v2, tens)
  ROOT z = f32[2] add(v, w)
}}
"""
    queue = [X, -X]
    for _ in range(3):
        queue.append(2 * moved(queue.pop(0), RING))
    agrees(text, moved(queue[0], RING) + 10 * moved(queue[1], RING), X)


def test_a_pipeline_may_stand_in_a_round_of_another_loop() -> None:
    lines = sent_ahead(2).splitlines()
    at = lines.index("ENTRY main {")
    inner = [
        line.replace("x = f32[2] parameter(0)", "x = f32[2] get-tuple-element(p), index=1")
        for line in lines[at + 1 :]
    ]
    inner[inner.index("  ROOT z = f32[2] add(w, total)")] = "  z = f32[2] add(w, total)"
    state = "(s32[], f32[2])"
    outer = [
        counted(state, 2).replace("below", "outer.below"),
        next_round(state).replace("step", "outer.step"),
        *inner[:-1],
        f"  ROOT q = {state} tuple(j, z)",
        "}",
        "ENTRY main {",
        "  x = f32[2] parameter(0)",
        "  k = s32[] constant(0)",
        f"  b = {state} tuple(k, x)",
        f"  o = {state} while(b), condition=outer.below, body=outer.step",
        "  ROOT z = f32[2] get-tuple-element(o), index=1",
        "}",
    ]
    value = X
    for _ in range(2):
        total, flying = value, value
        for _ in range(2):
            total = total + moved(flying, CHAIN)
            flying = total
        value = moved(flying, CHAIN) * 10 + total
    agrees("\n".join([*lines[:at], *outer]), value, X)


def test_a_transfer_of_the_loop_alone_passes_by_one_that_waits_for_nobody() -> None:
    """A send before the loop that the loop does not depend on belongs to the recv behind it."""
    state = "(s32[], f32[2])"
    pairs = along(RING)
    text = f"""HloModule m, num_partitions=4
{counted(state, 3)}
{next_round(state)}
  v = f32[2] get-tuple-element(p), index=1
  t = token[] after-all()
  s = {START} send(v, t), channel_id=1, {pairs}
  r = {START} recv(t), channel_id=2, {pairs}
  d = {DONE} recv-done(r), channel_id=2
  e = token[] send-done(s), channel_id=1
  w = f32[2] get-tuple-element(d), index=0
  ROOT q = {state} tuple(j, w)
}}
ENTRY main {{
  x = f32[2] parameter(0)
  y = f32[2] negate(x)
  t = token[] after-all()
  s = {START} send(y, t), channel_id=1, {pairs}
  k = s32[] constant(0)
  b = {state} tuple(k, x)
  o = {state} while(b), condition=below, body=step
  r = {START} recv(t), channel_id=2, {pairs}
  d = {DONE} recv-done(r)
  v = f32[2] get-tuple-element(d), index=0
  w = f32[2] get-tuple-element(o), index=1
  ROOT z = f32[2] add(v, w)
}}
"""
    looped = X
    for _ in range(3):
        looped = moved(looped, RING)
    agrees(text, moved(-X, RING) + looped, X)


STARTS: list[tuple[str, str, Callable[[np.ndarray], np.ndarray]]] = [
    (
        "collective-permute-start({}), channel_id=1, source_target_pairs={{{{0,1}},{{1,2}}}}",
        "(f32[2], f32[2], u32[], u32[])",
        lambda data: moved(data, ((0, 1), (1, 2))),
    ),
    (
        "async-start({}), calls=halved",
        "((f32[2]), f32[2], s32[])",
        lambda data: data / 2 + moved(data, RING),
    ),
]


@pytest.mark.parametrize(("start", "kind", "meaning"), STARTS)
def test_what_has_started_in_a_round_may_end_in_the_next_one(
    start: str, kind: str, meaning: Callable[[np.ndarray], np.ndarray]
) -> None:
    done = start.partition("-start")[0] + "-done"
    state = f"(s32[], {kind})"
    text = f"""HloModule m, num_partitions=4
halved {{ a = f32[2] parameter(0)
  c = f32[] constant(0.5)
  h = f32[2] broadcast(c), dimensions={{}}
  b = f32[2] multiply(a, h)
  m = f32[2] collective-permute(a),
    source_target_pairs={{{{0,1}},{{1,2}},{{2,3}},{{3,0}}}}, channel_id=3
  ROOT s = f32[2] add(b, m)
}}
{counted(state, 3)}
{next_round(state)}
  g = {kind} get-tuple-element(p), index=1
  v = f32[2] {done}(g)
  w = f32[2] add(v, v)
  s = {kind} {start.format("w")}
  ROOT q = {state} tuple(j, s)
}}
ENTRY main {{
  x = f32[2] parameter(0)
  s = {kind} {start.format("x")}
  k = s32[] constant(0)
  b = {state} tuple(k, s)
  o = {state} while(b), condition=below, body=step
  g = {kind} get-tuple-element(o), index=1
  ROOT v = f32[2] {done}(g)
}}
"""
    flying = X
    for _ in range(3):
        flying = 2 * meaning(flying)
    agrees(text, meaning(flying), X)


LAST = f"""
  r = {START} recv(e), channel_id=1, {along(CHAIN)}
  d = {DONE} recv-done(r)
  v = f32[2] get-tuple-element(d), index=0
  total = f32[2] get-tuple-element(o)"""


def test_sides_of_a_pipeline_may_have_channels_of_their_own() -> None:
    text = sent_ahead(1, "channel_id=4", "channel_id=5")
    text = text.replace("recv(e), channel_id=4", "recv(e), channel_id=6")
    total = X + moved(X, CHAIN)
    agrees(text, moved(total, CHAIN) * 10 + total, X)


def test_a_message_that_nobody_receives_behind_the_loop_is_told_where_it_starts() -> None:
    text = sent_ahead(2)
    assert LAST in text
    text = text.replace(LAST, "\n  v = f32[2] copy(x)\n  total = f32[2] get-tuple-element(o)")
    assert complaints(text) == ["27:32 send-C8"]


def test_a_round_must_end_with_as_much_in_flight_as_it_began_with() -> None:
    send = f"s = {START} send(total, t), channel_id=1, {along(CHAIN)}\n  ROOT"
    text = sent_ahead(2)
    assert send in text
    told = messages(text.replace(send, f"s = {START} opt-barrier(before)\n  ROOT"))
    assert "a round of %step begins with a send that waits for its recv" in told


def test_what_is_sent_must_not_be_made_of_what_it_meets() -> None:
    told = messages(received_ahead(2, sent="v"))
    assert "is computed from what it receives" in told


def test_a_round_must_not_hand_on_what_it_has_met() -> None:
    text = received_ahead(2)
    part = (
        f"r = {START} recv(after), channel_id=3, {along(RING)}\n  pair = ({START}, f32[2]) tuple(r"
    )
    assert part in text
    told = complaints(text.replace(part, f"pair = ({START}, f32[2]) tuple(begun"))
    assert [line.split()[1] for line in told] == ["send-C8"]


SENT_LATER = "recv-done-C3"


def test_a_recv_that_starts_ahead_ends_where_its_send_is() -> None:
    text = received_ahead(2).replace(
        "d = (f32[2], token[]) recv-done(begun)", f"d = {DONE} call(begun), to_apply=ended"
    )
    ended = f"ended {{ a = {START} parameter(0)\n  ROOT d = {DONE} recv-done(a)\n}}\n"
    text = text.replace("below {", ended + "below {")
    assert complaints(text) == [f"3:30 {SENT_LATER}"]
    told = messages(text)
    assert "%d waits for %r, whose data is not sent before it" in told
    assert "the send of each round stands in the computation of the recv-done" in told


@pytest.mark.parametrize("rounds", [1, 2])
def test_rounds_that_do_not_wait_for_what_they_receive(rounds: int) -> None:
    done = "d = (f32[2], token[]) recv-done(begun)\n  v = f32[2] get-tuple-element(d), index=0"
    text = received_ahead(rounds)
    assert done in text
    agrees(text.replace(done, "v = f32[2] copy(sum)"), moved(3**rounds * X, RING), X)
