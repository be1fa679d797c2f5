"""Layers: what repeats among collectives is one, and it moves as one."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ncc_compiler.overlap.order_constraints import layers_of
from ncc_compiler.overlap.schedule import Schedule
from ncc_compiler.passes.manager import run_passes
from tests.compiler.small_modules import load

DIMS = "lhs_contracting_dims={1}, rhs_contracting_dims={0}"


def cut(kinds: str) -> str:
    return " ".join("".join(kinds[k] for k in layer) for layer in layers_of(kinds))


@pytest.mark.parametrize(
    "layers",
    [
        "a a a a",
        "ab ab ab",
        "e qkkqggd qkkqggd qkkqggd h",
        "qqqqud qqqqud qqqqud",
        "e abc abc abc d xy xy xy",
        "a b c",
        "a",
        "",
    ],
)
def test_a_layer_is_what_repeats(layers):
    assert cut(layers.replace(" ", "")) == layers


@given(kinds=st.text("abc", max_size=40))
def test_every_collective_is_in_one_layer_and_in_order(kinds):
    assert [k for layer in layers_of(kinds) for k in layer] == list(range(len(kinds)))


def test_a_stretch_of_more_than_64_is_no_layer():
    kinds = list(range(70)) * 2
    assert len(layers_of(kinds)) == 140
    kinds = list(range(64)) * 2
    assert len(layers_of(kinds)) == 2


@pytest.mark.parametrize(
    ("shift", "order"),
    [
        (0, "u0 d0 y0 z0 u1 d1 y1 z1 u2 d2 y2 z2"),
        (1, "u0 d0 y0 u1 d1 z0 y1 u2 d2 z1 y2 z2"),
        (2, "u0 d0 u1 d1 y0 u2 d2 z0 y1 z1 y2 z2"),
    ],
)
def test_both_gathers_of_a_layer_start_so_many_layers_early(shift, order):
    lines = ["%x = f32[8,8] parameter(0)"]
    for k in range(3):
        lines += [f"%v{k} = f32[2,16] parameter({2 * k + 1})"]
        lines += [f"%w{k} = f32[4,8] parameter({2 * k + 2})"]
    for k in range(3):
        lines.append(f"%u{k} = f32[8,16] all-gather(%v{k}), dimensions={{0}}")
        before = f"%z{k - 1}" if k else "%x"
        lines.append(f"%y{k} = f32[8,16] dot({before}, %u{k}), {DIMS}")
        lines.append(f"%d{k} = f32[16,8] all-gather(%w{k}), dimensions={{0}}")
        lines.append(f"%z{k} = f32[8,8] dot(%y{k}, %d{k}), {DIMS}")
    module = load(*lines, header="HloModule m, replica_count=4")
    schedule = Schedule(limit_percent=1000, early_all_gather_layers=shift)
    nodes = run_passes(module, [schedule], verify_each=True).entry_computation.nodes
    assert " ".join(node.name for node in nodes if node.op != "parameter") == order
