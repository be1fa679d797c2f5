"""Sends and recvs: what they mean, what they become, and which of them are refused."""

import numpy as np
import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.ir.op_tables.control import TRANSFER_ROWS
from ncc_compiler.options import CompileOptions
from tests.compiler.reading import complaints, load, messages
from tests.reference_runs import run_text

PAIRS = "frontend_attributes={_xla_send_recv_source_target_pairs={{0,1},{1,2}}}"
KIND = "(f32[2], u32[], token[])"
EXCHANGE = f"""HloModule m, num_partitions=4
ENTRY main {{
  x = f32[2] parameter(0)
  t = token[] after-all()
  r = {KIND} recv(t), channel_id=1, {PAIRS}
  s = {KIND} send(y, t), channel_id=1, {PAIRS}, control-predecessors={{r}}
  y = f32[2] add(x, x)
  d = (f32[2], token[]) recv-done(r), channel_id=1, control-predecessors={{s}}
  e = token[] send-done(s), channel_id=1
  ROOT z = f32[2] get-tuple-element(d), index=0
}}
"""
VALUES = np.arange(8, dtype=np.float32).reshape(4, 2) + 1
MOVED = [[0, 0], [2, 4], [6, 8], [0, 0]]

STEP = f"""HloModule m, num_partitions=4
below {{ p = (s32[], {KIND}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  n = s32[] constant(2)
  ROOT c = pred[] compare(i, n), direction=LT
}}
step {{ p = (s32[], {KIND}) parameter(0)
  i = s32[] get-tuple-element(p), index=0
  k = s32[] constant(1)
  j = s32[] add(i, k)
  g = {KIND} get-tuple-element(p), index=1
  d = (f32[2], token[]) recv-done(g), channel_id=1
  v = f32[2] get-tuple-element(d), index=0
  t = token[] get-tuple-element(d), index=1
  w = f32[2] add(v, v)
  r = {KIND} recv(t), channel_id=1, {PAIRS}
  s = {KIND} send(w, t), channel_id=1, {PAIRS}
  e = token[] send-done(s), channel_id=1
  ROOT q = (s32[], {KIND}) tuple(j, r)
}}
ENTRY main {{
  x = f32[2] parameter(0)
  t = token[] after-all()
  r = {KIND} recv(t), channel_id=1, {PAIRS}
  s = {KIND} send(x, t), channel_id=1, {PAIRS}
  k = s32[] constant(0)
  b = (s32[], {KIND}) tuple(k, r)
  o = (s32[], {KIND}) while(b), condition=below, body=step
  g = {KIND} get-tuple-element(o), index=1
  d = (f32[2], token[]) recv-done(g), channel_id=1
  ROOT z = f32[2] get-tuple-element(d), index=0
}}
"""


def ran(text: str, level: int, *inputs: np.ndarray) -> list[np.ndarray]:
    neff = ncc_compiler.compile_text(text, CompileOptions(level=level))
    return list(ncc_runtime.load(neff).run(list(inputs), checked=True).outputs)


def test_what_is_sent_arrives_and_others_get_zeros() -> None:
    (found,) = run_text(EXCHANGE, VALUES)
    assert found.tolist() == MOVED


@pytest.mark.parametrize("level", [0, 1, 2])
def test_a_compiled_transfer_moves_the_same(level: int) -> None:
    (found,) = ran(EXCHANGE, level, VALUES)
    assert found.tolist() == MOVED


def test_a_transfer_is_one_permute() -> None:
    program = ncc_compiler.compile_text(EXCHANGE).program
    (placeholder,) = program.placeholders
    assert (placeholder.op.value, placeholder.channel_id) == ("collective-permute", 1)
    assert placeholder.pairs == ((0, 1), (1, 2))


@pytest.mark.parametrize("level", [0, 1, 2])
def test_what_a_loop_has_received_is_there_in_its_next_round(level: int) -> None:
    (expected,) = run_text(STEP, VALUES)
    (found,) = ran(STEP, level, VALUES)
    assert found.tolist() == expected.tolist() == [[0, 0]] * 4  # beyond the end of the chain


def test_data_in_a_tuple_is_moved_together() -> None:
    both = "((f32[2], s32[]), u32[], token[])"
    text = EXCHANGE.replace(KIND, both).replace("(f32[2], token[])", "((f32[2], s32[]), token[])")
    text = text.replace(
        "y = f32[2] add(x, x)", "k = s32[] constant(7)\n  y = (f32[2], s32[]) tuple(x, k)"
    )
    text = text.replace("ROOT z = f32[2]", "ROOT z = (f32[2], s32[])")
    expected = run_text(text, VALUES)
    for level in (0, 1):
        for one, other in zip(ran(text, level, VALUES), expected, strict=True):
            np.testing.assert_array_equal(one, other)
    assert expected[1].tolist() == [0, 7, 7, 0]


def test_a_tuple_of_one_array_stays_a_tuple() -> None:
    text = EXCHANGE.replace(KIND, "((f32[2]), u32[], token[])")
    text = text.replace("(f32[2], token[])", "((f32[2]), token[])")
    text = text.replace("y = f32[2] add(x, x)", "y = (f32[2]) tuple(x)")
    text = text.replace("ROOT z = f32[2]", "ROOT z = (f32[2])")
    (expected,) = run_text(text, VALUES)
    (found,) = ran(text, 0, VALUES)
    assert found.tolist() == expected.tolist() == [[0, 0], [1, 2], [3, 4], [0, 0]]


def test_pairs_may_stand_in_quotes() -> None:
    text = EXCHANGE.replace("={{0,1},{1,2}}}", '="{{0,1},{1,2}}",_xla_send_recv_pipeline="1"}')
    (found,) = run_text(text, VALUES)
    assert found.tolist() == MOVED


def test_without_a_header_pairs_tell_the_number_of_ranks() -> None:
    module = load(EXCHANGE.partition("\n")[2])
    assert (module.replica_count, module.num_partitions) == (1, 3)


def test_a_second_recv_takes_the_second_send() -> None:
    lines = EXCHANGE.splitlines()
    lines[-2] = "  v = f32[2] get-tuple-element(d), index=0"
    lines[-1:] = [
        f"  r2 = {KIND} recv(e), channel_id=1, {PAIRS}",
        f"  s2 = {KIND} send(v, e), channel_id=1, {PAIRS}",
        "  d2 = (f32[2], token[]) recv-done(r2), channel_id=1",
        "  ROOT z2 = f32[2] get-tuple-element(d2), index=0",
        "}",
    ]
    (found,) = run_text("\n".join(lines), VALUES)
    assert found.tolist() == [[0, 0], [0, 0], [2, 4], [0, 0]]


SENT = "(token[], u32[], token[])"
HOST = "channel_id=1, is_host_transfer=true"
RECV, SEND = f"channel_id=1, {PAIRS}", f"channel_id=1, {PAIRS}, control-predecessors={{r}}"
WRONG = [  # what is replaced, by what, the rule, and its place
    (RECV, HOST, "5:55 recv-C1"),
    (SEND, HOST, "6:58 send-C1"),
    (RECV, "channel_id=1", "5:32 recv-C2"),
    (SEND, "channel_id=1", "6:32 send-C2"),
    ("{{0,1},{1,2}}", "{{0,1},{0,2}}", "5:55 recv-C3"),
    ("{{0,1},{1,2}}", "{{0,1},{2,1}}", "5:55 recv-C4"),
    ("{{0,1},{1,2}}", "{{0,1},{1,4}}", "5:55 recv-C5"),
    ("{{0,1},{1,2}}", "{{0,1,2}}", "5:55 recv-C2"),
    (f"{KIND} recv", "((), u32[], token[]) recv", "5:28 recv-C6"),
    ("recv(t)", "recv(x)", "5:37 recv-C7"),
    ("send(y, t)", "send(y, x)", "6:40 send-C7"),
    (SEND, SEND.replace("{0,1},{1,2}", "{0,1},{2,3}"), "5:32 recv-C8"),
    (SEND, SEND.replace("{0,1},{1,2}", "{0,1},{2,3}"), "6:32 send-C8"),
    (f"{KIND} recv", "(f32[2], token[]) recv", "5:25 recv-C9"),
    ("add(x, x)", "add(x, z)", "5:32 recv-C10"),
    ("recv-done(r)", "recv-done(x)", "8:35 recv-done-C1"),
    ("send-done(s)", "send-done(x)", "9:25 send-done-C1"),
    ("recv-done(r)", "recv-done(s)", "8:35 recv-done-C2"),
    ("send-done(s)", "send-done(r)", "9:25 send-done-C2"),
    ("send-done(s), channel_id=1", "send-done(s), channel_id=2", "9:29 send-done-C2"),
]


@pytest.mark.parametrize(("part", "other", "wanted"), WRONG)
def test_a_broken_rule_is_told_at_its_place(part: str, other: str, wanted: str) -> None:
    assert EXCHANGE.count(part)
    assert wanted in complaints(EXCHANGE.replace(part, other))


def test_every_rule_of_transfers_is_broken_by_a_text() -> None:
    rules = {f"{op.name}-C{k + 1}" for op in TRANSFER_ROWS for k in range(len(op.rules))}
    broken = {wanted.split()[1] for _, _, wanted in WRONG}
    shared = {f"send-C{k}" for k in (3, 4, 5)}  # of recv too, by the same pairs
    elsewhere = {"send-C6", "recv-done-C3"}  # the latter by test_pipelined_transfers.py
    assert rules - broken - shared == elsewhere


def test_what_is_sent_is_made_of_arrays() -> None:
    text = EXCHANGE.replace("send(y, t)", "send(t, t)").replace(f"{KIND} send", f"{SENT} send")
    assert "6:33 send-C6" in complaints(text)


def test_sends_of_other_data_are_no_partner() -> None:
    text = EXCHANGE.replace("y = f32[2] add(x, x)", "y = f32[1] slice(x), slice={[0:1]}")
    text = text.replace(f"{KIND} send", "(f32[1], u32[], token[]) send")
    assert [line.split()[1] for line in complaints(text)] == ["recv-C8", "send-C8"]


def test_a_lonely_recv_is_told_what_to_look_for() -> None:
    lines = EXCHANGE.replace(", control-predecessors={s}", "").splitlines()
    told = messages("\n".join(lines[:5] + lines[6:8] + lines[9:]))
    assert "no send of %main goes with %r" in told
    assert "the same _xla_send_recv_source_target_pairs and type of data" in told


def test_sides_that_disagree_are_told_in_what() -> None:
    told = messages(EXCHANGE.replace(SEND, SEND.replace("{0,1},{1,2}", "{0,1},{2,3}")))
    assert "%s has other _xla_send_recv_source_target_pairs; both sides take the same" in told
    told = messages(
        EXCHANGE.replace("y = f32[2] add(x, x)", "y = f32[1] slice(x), slice={[0:1]}").replace(
            f"{KIND} send", "(f32[1], u32[], token[]) send"
        )
    )
    assert "%s has data of type f32[1], not f32[2]" in told


def test_a_done_of_nothing_that_has_started_is_refused() -> None:
    text = EXCHANGE.replace("recv-done(r)", "recv-done(made)")
    text = text.replace(
        "y = f32[2] add", f"u = u32[] constant(0)\n  made = {KIND} tuple(x, u, t)\n  y = f32[2] add"
    )
    assert "10:35 recv-done-C2" in complaints(text)
    assert "%d ends %made, which no recv has started" in messages(text)


def test_pairs_in_another_order_are_the_same_pairs() -> None:
    text = EXCHANGE.replace(SEND, SEND.replace("{{0,1},{1,2}}", "{{1,2},{0,1}}"))
    assert run_text(text, VALUES)[0].tolist() == MOVED


@pytest.mark.parametrize("level", [0, 1, 2])
def test_sides_of_other_channels_meet_in_their_order(level: int) -> None:
    """Two messages of one kind whose sends and recvs have four channels."""
    text = f"""HloModule m, num_partitions=4
ENTRY main {{
  x = f32[2] parameter(0)
  y = f32[2] negate(x)
  t = token[] after-all()
  s = {KIND} send(x, t), channel_id=1, {PAIRS}
  r = {KIND} recv(t), channel_id=2, {PAIRS}
  d = (f32[2], token[]) recv-done(r), channel_id=2
  e = token[] send-done(s), channel_id=1
  s2 = {KIND} send(y, e), channel_id=3, {PAIRS}
  r2 = {KIND} recv(e), channel_id=4, {PAIRS}
  d2 = (f32[2], token[]) recv-done(r2), channel_id=4
  v = f32[2] get-tuple-element(d), index=0
  v2 = f32[2] get-tuple-element(d2), index=0
  ROOT z = (f32[2], f32[2]) tuple(v, v2)
}}
"""
    arrived = np.array([[0, 0], [1, 2], [3, 4], [0, 0]], np.float32)
    for found in (run_text(text, VALUES), ran(text, level, VALUES)):
        assert [one.tolist() for one in found] == [arrived.tolist(), (-arrived).tolist()]


def test_sides_of_other_pipelines_keep_apart() -> None:
    """Two messages of one kind, received in the other order, each on a pipeline of its own."""
    first, second = (PAIRS.replace("={", f'={{_xla_send_recv_pipeline="{k}",', 1) for k in (0, 1))
    text = f"""HloModule m, num_partitions=4
ENTRY main {{
  x = f32[2] parameter(0)
  y = f32[2] negate(x)
  t = token[] after-all()
  s = {KIND} send(x, t), channel_id=1, {first}
  s2 = {KIND} send(y, t), channel_id=3, {second}
  r2 = {KIND} recv(t), channel_id=4, {second}
  r = {KIND} recv(t), channel_id=2, {first}
  d = (f32[2], token[]) recv-done(r), channel_id=2
  ROOT v = f32[2] get-tuple-element(d), index=0
}}
"""
    lonely = text.replace("r2 = ", "u2 = ").splitlines()
    assert run_text(text, VALUES)[0].tolist() == [[0, 0], [1, 2], [3, 4], [0, 0]]
    del lonely[7]
    assert [line.split()[1] for line in complaints("\n".join(lonely))] == ["send-C8"]


@pytest.mark.parametrize("channel", ["", ", channel_id=0", ", channel_id=-7"])
@pytest.mark.parametrize("level", [0, 2])
def test_without_a_channel_above_zero_pairs_name_replicas(channel: str, level: int) -> None:
    pairs = PAIRS.replace("{{0,1},{1,2}}", "{{0,1}}")
    text = EXCHANGE.replace("num_partitions=4", "replica_count=2, num_partitions=2")
    text = text.replace(PAIRS, pairs).replace(", channel_id=1", channel)
    expected = [[0, 0], [0, 0], [2, 4], [6, 8]]  # of both partitions of replica 0 to replica 1
    assert run_text(text, VALUES)[0].tolist() == expected
    assert ran(text, level, VALUES)[0].tolist() == expected
    partitions = text.replace(channel, ", channel_id=1") if channel else ""
    if partitions:
        assert run_text(partitions, VALUES)[0].tolist() == [[0, 0], [2, 4], [0, 0], [10, 12]]


def test_a_side_with_a_channel_does_not_meet_one_without() -> None:
    text = EXCHANGE.replace("num_partitions=4", "replica_count=4, num_partitions=4")
    text = text.replace("send(y, t), channel_id=1", "send(y, t), channel_id=0")
    text = text.replace("send-done(s), channel_id=1", "send-done(s)")
    assert [line.split()[1] for line in complaints(text)] == ["recv-C8", "send-C8"]
