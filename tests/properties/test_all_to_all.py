"""All-to-all by dimensions and in shifts: right, even on all links, near the bound of the links."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_runtime
from benchmarks.all_to_all import AS_FAST
from ncc_runtime.collectives.algorithms import all_to_all, all_to_all_torus
from ncc_runtime.collectives.bounds import Bound, bound_of, detours_ps
from ncc_runtime.collectives.choose import Chooser
from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
from ncc_runtime.collectives.plan import IDLE, Plan
from ncc_runtime.lowering.choices import groups_of, job_of
from ncc_runtime.lowering.executable import Executable
from ncc_runtime.machine_model.parts import PartKind
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.report.explain import as_json, as_text, explained
from tests.clock_runs import timed
from tests.draws_placed_groups import WORD, Case, layout_of, layouts
from tests.example_count import examples
from tests.plan_runs import Given, PlanRun, neighbour_reads, sent_bytes
from tests.programs import collective_program

ALL_TO_ALL = CollectiveOp.ALL_TO_ALL
MIB = 1 << 20
CUBE = [16 * plane + 4 * row + column for plane in range(4) for row in (0, 1) for column in (2, 3)]
GROUPS = {
    "trn1": (("trn1", 1, 1), 32, None, "linear"),
    "a row of trn2 backwards": (("trn2", 1, 2), 64, list(range(15, -1, -1)), "linear"),
    "a rank a chip of trn2": (("trn2", 1, 2), 16, None, "spread"),
    "two rows of trn2": (("trn2", 1, 2), 64, list(range(32)), "linear"),
    "a ring of inf2": (("inf2.48xlarge", 1, 1), 24, None, "linear"),
    "a box of trn2-ultraserver": (("trn2-ultraserver", 1, 2), 64, CUBE, "spread"),
}


@pytest.fixture
def as_trn3(tmp_path: Path) -> str:
    """A 4x4 torus of Trainium3 chips with as much link rate a chip as trn3 has."""
    path = tmp_path / "as_trn3.toml"
    path.write_text(AS_FAST)
    return str(path)


def gives_what_numpy_gives(case: Case, seed: int) -> None:
    members = case.layout.members
    operands = [
        np.random.default_rng(seed).integers(0, 2**31, (members, size)).astype(np.int32)
        for size in case.sizes
    ]
    rows = [list(row) for row in zip(*operands, strict=True)]
    results = PlanRun(case.plan(), Given(rows, case.results), seed).results()
    for tensor, operand in enumerate(operands):
        wanted = operand.reshape(members, members, -1).transpose(1, 0, 2).reshape(members, -1)
        np.testing.assert_array_equal([row[tensor] for row in results], wanted)


@pytest.mark.parametrize("slice_bytes", [4, all_to_all_torus.SLICE_BYTES])
@pytest.mark.parametrize("name", GROUPS)
def test_by_dimensions_everybody_gets_what_numpy_gives(
    name: str, slice_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(all_to_all_torus, "SLICE_BYTES", slice_bytes)
    machine, ranks, group, how = GROUPS[name]
    layout = layout_of(machine, ranks, group, how)
    sizes = (7 * layout.members, 3 * layout.members)
    gives_what_numpy_gives(Case(ALL_TO_ALL, "torus", layout, sizes), 1)


@settings(max_examples=examples(30))
@given(layout=layouts(), seed=st.integers(0, 99))
def test_in_shifts_everybody_gets_what_numpy_gives(layout: GroupLayout, seed: int) -> None:
    sizes = (2 * layout.members,)
    gives_what_numpy_gives(Case(ALL_TO_ALL, "direct", layout, sizes), seed)


@settings(max_examples=examples(60))
@given(layout=layouts(), rings=st.integers(1, 16))
def test_shifts_are_turns_of_the_group_of_which_each_is_issued_once(
    layout: GroupLayout, rings: int
) -> None:
    group = all_to_all.arrange(layout)
    peers = np.array([group.peers(number) for number in range(group.members)])
    everybody = np.arange(group.members)
    assert (np.sort(peers, axis=0) == everybody[:, None]).all()
    assert (np.sort(peers, axis=1) == everybody).all()
    assert (peers[0] == everybody).all()
    issued = list(group.in_rings(rings))
    assert sorted(number for number, _ in issued) == everybody.tolist()
    each = np.bincount([ring for _, ring in issued])
    assert each.max() - each.min() <= 1


def test_in_a_shift_of_a_torus_all_links_of_one_direction_carry_the_same() -> None:
    layout = layout_of(("trn2", 1, 2), 64)
    chip = np.array([seat.chip for seat in layout.seats])
    group = all_to_all.arrange(layout)
    for number in range(64):
        ways = {
            (int(there) // 4 - int(here) // 4) % 4 * 4 + (int(there) - int(here)) % 4
            for here, there in zip(chip, chip[group.peers(number)], strict=True)
        }
        assert len(ways) == 1


@pytest.mark.parametrize("name", ["trn1", "a rank a chip of trn2", "a box of trn2-ultraserver"])
def test_what_goes_by_dimensions_is_proved_and_right(name: str) -> None:
    (topology, _, lnc), ranks, group, how = GROUPS[name]
    groups = () if group is None else (tuple(group),)
    ranks = ranks if group is None else max(group) + 1
    members = ranks if group is None else len(group)
    program = collective_program(ALL_TO_ALL, ranks, [3 * members], groups=groups)
    model = ncc_runtime.load(
        program, topology, placement=how, lnc=lnc, algorithms={"all-to-all": "torus"}
    )
    operand = np.random.default_rng(2).standard_normal((ranks, 3 * members)).astype(np.float32)
    run = model.run([operand], checked=True)
    took = list(range(ranks)) if group is None else group
    chunks = operand[took].reshape(members, members, 3).transpose(1, 0, 2)
    np.testing.assert_array_equal(run.outputs[0][took], chunks.reshape(members, -1))


@pytest.mark.parametrize(
    ("machine", "ranks", "group", "why"),
    [
        (("trn3", 1, 2), 64, None, "its chips are on no torus"),
        (("trn2", 1, 2), 12, None, "its chips close no ring"),
        (("trn2", 1, 2), 4, None, "its members share a chip"),
        (("trn2", 2, 2), 128, None, "its members are on several instances"),
        (("trn2", 1, 2), 64, [0, 1, 4], "its chips hold different numbers of members"),
        (("inf2.24xlarge", 1, 1), 12, None, "its chips close no ring"),
    ],
)
def test_where_it_does_not_go_by_dimensions_it_is_said_why(
    machine: tuple[str, int, int], ranks: int, group: list[int] | None, why: str
) -> None:
    with pytest.raises(UnsuitedError, match=why):
        all_to_all_torus.arrange(layout_of(machine, ranks, group))


def peers_of(plan: Plan) -> set[int]:
    """How many others members send to."""
    away = sent_bytes(plan) > 0
    np.fill_diagonal(away, val=False)
    return set(away.sum(axis=1).tolist())


def test_a_member_has_as_many_peers_as_chips_along_the_dimensions() -> None:
    layout = layout_of(("trn2", 1, 2), 64)
    plan = Case(ALL_TO_ALL, "torus", layout, (64,)).plan()
    assert peers_of(plan) == {3 + 3}
    assert len(plan.rounds) == 2
    box = layout_of(("trn2-ultraserver", 1, 2), 64, CUBE, "spread")
    assert peers_of(Case(ALL_TO_ALL, "torus", box, (16,)).plan()) == {3 + 1 + 1}


@pytest.mark.parametrize(("name", "parts"), [("trn1", 1.5), ("a box of trn2-ultraserver", 1.75)])
def test_traffic_by_dimensions_equals_its_closed_form(name: str, parts: float) -> None:
    machine, ranks, group, how = GROUPS[name]
    layout = layout_of(machine, ranks, group, how)
    members, local = layout.members, layout.members // len(layout.by_chip())
    plan, size = Case(ALL_TO_ALL, "torus", layout, (4 * members,)).plan(), 4 * members * WORD
    sent = sent_bytes(plan)
    assert set((sent.sum(axis=1) - sent.diagonal()).tolist()) == {parts * size}
    assert set(neighbour_reads(plan).tolist()) == {size * (local - 1) // local}


def test_planes_begin_with_different_dimensions() -> None:
    layout = layout_of(("trn2", 1, 2), 64)
    plan = Case(ALL_TO_ALL, "torus", layout, (64,)).plan()
    chip = np.array([seat.chip for seat in layout.seats])
    rows = np.zeros(4, bool), np.zeros(4, bool)  # by plane, whether the first round leaves a row
    for move in plan.rounds[0].transfers:
        active = np.flatnonzero(move.peer != IDLE)
        leaves = chip[active] // 4 != chip[move.peer[active]] // 4
        rows[0][active[leaves] % 4] = True
        stays = ~leaves & (chip[active] != chip[move.peer[active]])
        rows[1][active[stays] % 4] = True
    assert (rows[0] ^ rows[1]).all()
    assert rows[0].sum() == 2


def filled(ranks: int, size: int, topology: str, algorithm: str, nodes: int = 1) -> Executable:
    program = collective_program(ALL_TO_ALL, ranks, [size // WORD])
    return ncc_runtime.load(
        program, topology, nodes=nodes, algorithms={"all-to-all": algorithm}, times_only=True
    ).executable


def clock_us(executable: Executable) -> float:
    _, start, end = timed(executable).spans(0)
    return int(end.max() - start.min()) / 1e6


def bound(executable: Executable) -> Bound:
    program, placement = executable.program, executable.placement
    (placeholder,) = program.placeholders
    parts = Chooser(placement, {}).parts
    return bound_of(parts, job_of(program, placeholder), groups_of(program, placeholder))


@pytest.mark.parametrize(
    ("ranks", "topology", "algorithm", "nodes"),
    [
        (32, "trn1", "direct", 1),
        (32, "trn1", "torus", 1),
        (64, "trn2", "direct", 1),
        (64, "trn2", "torus", 1),
        (60, "trn2", "direct", 1),
        (24, "inf2.48xlarge", "torus", 1),
        (64, "trn3", "direct", 1),
        (64, "trn1", "direct", 2),  # over EFA
    ],
)
def test_a_large_all_to_all_comes_near_its_bound(
    ranks: int, topology: str, algorithm: str, nodes: int
) -> None:
    executable = filled(ranks, 64 * ranks * (MIB // 64), topology, algorithm, nodes)
    least = bound(executable)
    assert least.decided_by == ("efa" if nodes > 1 else "neuronlink")
    share = least.time_ps / 1e6 / clock_us(executable)
    assert 0.85 < share <= 1


def test_links_of_a_torus_carry_each_byte_over_all_links_of_its_shortest_way() -> None:
    size = 64 * MIB
    (least,) = {bound(filled(64, size, "trn2", one)).links_ps for one in ("direct", "torus")}
    hops = 2 * (0 + 1 + 2 + 1) / 4  # of a mean pair of chips, along both dimensions
    assert least == pytest.approx(4 * size * hops / (4 * 128e9) * 1e12, rel=1e-6)


def test_the_slower_dimension_bounds_an_ultraserver() -> None:
    size = 256 * 1024
    least = bound(filled(256, size, "trn2-ultraserver", "direct"))
    assert least.links_ps == pytest.approx(4 * size * 1 / (2 * 64e9) * 1e12, rel=1e-6)


@pytest.mark.parametrize("size", [MIB, 64 * MIB])
def test_switches_beat_a_torus_of_the_same_link_rate(size: int, as_trn3: str) -> None:
    links = filled(64, size, as_trn3, "direct").placement.topology.links
    out = np.bincount(links.src, links.bandwidth_bytes_per_s, 16)
    assert set(out.tolist()) == {704e9}
    on_switches = clock_us(filled(64, size, "trn3", "direct"))
    on_torus = min(clock_us(filled(64, size, as_trn3, one)) for one in ("direct", "torus"))
    assert on_switches < on_torus


@pytest.mark.parametrize(
    ("ranks", "size", "topology", "chosen"),
    [
        (64, MIB // 4, "", "direct"),
        (64, 4 * MIB, "", "direct"),
        pytest.param(256, MIB // 16, "trn2-ultraserver", "torus", marks=pytest.mark.slow),
    ],
)
def test_what_is_chosen_is_what_the_clock_finds_faster(
    ranks: int, size: int, topology: str, chosen: str, as_trn3: str
) -> None:
    program = collective_program(ALL_TO_ALL, ranks, [size // WORD])
    free = ncc_runtime.load(program, topology or as_trn3, times_only=True, policy="best").executable
    assert [one.name for one in free.lowered] == [chosen]
    other = {"direct": "torus", "torus": "direct"}[chosen]
    assert clock_us(free) < clock_us(filled(ranks, size, topology or as_trn3, other))


@pytest.mark.parametrize(("nodes", "is_bound"), [(1, True), (2, False)])
def test_links_bound_no_bytes_that_may_go_round_over_the_network(
    nodes: int, is_bound: bool
) -> None:
    executable = filled(64, MIB, "trn2", "direct", nodes)
    program, parts = executable.program, Chooser(executable.placement, {}).parts
    (placeholder,) = program.placeholders
    job, groups = job_of(program, placeholder), groups_of(program, placeholder)
    assert (detours_ps(parts, job, groups, MIB) > 0) is is_bound


def test_explain_says_what_share_of_both_bounds_is_attained() -> None:
    program = collective_program(ALL_TO_ALL, 64, [MIB // WORD])
    executable = ncc_runtime.load(program, "trn2").executable
    explanation = explained(executable, {})
    (row,) = explanation.rows
    text, (data,) = as_text(explanation), as_json(explanation)["collectives"]
    links_us, price_us = data["bound"]["links_us"], data["time_us"]
    assert links_us == pytest.approx(16.384, abs=1e-3)
    assert data["attained_of_links"] == pytest.approx(links_us / price_us)
    share = f"{100 * links_us / price_us:.1f} %"
    assert f"  lower bound of links alone {links_us:.3f} us; attained {share}" in text
    assert row.bound.time_ps <= row.price.time_ps


def test_where_no_byte_passes_a_link_explain_says_so() -> None:
    program = collective_program(ALL_TO_ALL, 4, [64])
    explanation = explained(ncc_runtime.load(program, "trn2").executable, {})
    assert "no byte has to pass a link" in as_text(explanation)
    assert as_json(explanation)["collectives"][0]["bound"]["links_us"] == 0


@settings(max_examples=examples(15))
@given(layout=layouts(), blocks=st.integers(1, 4096))
def test_no_plan_asks_less_of_links_than_their_bound(layout: GroupLayout, blocks: int) -> None:
    members = layout.members
    program = collective_program(ALL_TO_ALL, members, (blocks * members,))
    job = job_of(program, program.placeholders[0])
    chooser = Chooser(layout.placement, {})
    group = tuple(range(min(members, chooser.parts.ranks)))
    links = chooser.parts.span(PartKind.LINK)
    least = detours_ps(chooser.parts, job, [group], blocks * members * WORD)
    for one in chooser.unpriced(job, [group]):
        if not one.reason and one.name in ("direct", "torus") and len(group) == members:
            price = chooser.with_price(job, one).price
            assert price is not None
            times = price.bytes_by_part[links] / chooser.parts.rates[links]
            assert least <= 1e12 * times.max(initial=0) + 1
