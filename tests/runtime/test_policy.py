"""Policies: algorithm, size and ranks say what may be chosen, never the state of the fabric."""

import json
from collections.abc import Mapping
from pathlib import Path

import attrs
import pytest

import ncc_runtime
from ncc_runtime.cli import main
from ncc_runtime.collectives import choose
from ncc_runtime.collectives.choose import ALGORITHMS, Candidate, Chooser
from ncc_runtime.collectives.layout import GroupLayout, UnsuitedError
from ncc_runtime.errors import InputError
from ncc_runtime.lowering.choices import groups_of, job_of
from ncc_runtime.neff import container
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.options import Policy
from ncc_runtime.placement import PlaceOptions, parse_on, place_on
from tests.programs import LINK_DOWN, collective_program

MB = 1 << 20
OPS = (CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE_SCATTER, CollectiveOp.ALL_GATHER)
UNPUBLISHED = {"tree", "double-tree", "torus", "pod", "synthesised"}
KANGARING_BYTES = 875_000  # a rank: AWS publishes 56 MB for 64

FABRICS = {
    "whole": (64, PlaceOptions("trn2")),
    "a link down": (64, PlaceOptions(LINK_DOWN)),
    "a slow link": (64, parse_on("trn2,slow=c0-c1=25%")),
    "a slow core": (64, parse_on("trn2,slow=c5.core0=50%")),
    "six ranks": (6, PlaceOptions("inf2")),
    "three chips": (3, PlaceOptions("trn2", placement="spread")),
    "an UltraServer": (256, PlaceOptions("trn2-ultraserver")),
    "two instances": (128, PlaceOptions("trn2", nodes=2)),
    "a user's cube": (64, PlaceOptions("tpu-v4-cube")),
}


def candidates(
    op: CollectiveOp,
    ranks: int,
    place: PlaceOptions,
    policy: Policy = Policy.NEURON,
    size_bytes: int = MB,
    forced: Mapping[str, str] | None = None,
) -> dict[str, Candidate]:
    """By name; `size_bytes` are of the larger side."""
    share = size_bytes // 4 // ranks
    program = collective_program(
        op, ranks, [share * (1 if op is CollectiveOp.ALL_GATHER else ranks)]
    )
    chooser = Chooser(place_on(place, ranks), forced or {}, policy=policy)
    job = job_of(program, program.placeholders[0])
    found = chooser.unpriced(job, groups_of(program, program.placeholders[0]))
    return {candidate.name: candidate for candidate in found}


@pytest.mark.parametrize("fabric", FABRICS)
@pytest.mark.parametrize("op", OPS)
def test_neuron_leaves_out_what_is_unpublished_on_any_fabric(op: CollectiveOp, fabric: str) -> None:
    ranks, place = FABRICS[fabric]
    found = candidates(op, ranks, place)
    left_out = {name for name, each in found.items() if each.is_left_out}
    chips_of_trn2 = {"kangaring"} if fabric not in ("six ranks", "a user's cube") else set()
    shares_chips = {"single-step-mesh"} if fabric not in ("three chips", "a user's cube") else set()
    assert left_out == (UNPUBLISHED | chips_of_trn2 | shares_chips) & set(found)
    assert found["synthesised"].reason == "unpublished; --policy best takes it too"
    assert not found["ring"].reason


def test_neuron_leaves_out_what_is_taken_in_other_cases_only() -> None:
    small, large = (
        candidates(CollectiveOp.ALL_REDUCE, 2, PlaceOptions("trn1"), size_bytes=mb * MB)
        for mb in (8, 16)
    )
    assert not small["direct"].is_left_out
    assert not small["single-step-mesh"].is_left_out
    assert (
        large["direct"].reason == "taken up to 8388608 B, as measured; --policy best takes it too"
    )
    several = candidates(CollectiveOp.ALL_REDUCE, 8, PlaceOptions("trn1"))
    repeats = "the members of a chip send the same bytes to other chips"
    assert several["single-step-mesh"].reason.startswith(repeats)
    assert not several["ring"].reason


@pytest.mark.parametrize("fabric", FABRICS)
def test_best_leaves_out_nothing(fabric: str) -> None:
    ranks, place = FABRICS[fabric]
    found = candidates(CollectiveOp.ALL_REDUCE, ranks, place, Policy.BEST)
    assert not any(each.is_left_out for each in found.values())
    assert not found["tree"].reason


def test_of_all_to_all_and_others_of_which_nothing_is_published_all_but_the_torus_may_run() -> None:
    for op in ALGORITHMS:
        left_out = {
            name
            for name, each in ALGORITHMS[op].items()
            if not each.is_published and not each.is_for_order
        }
        if op not in OPS:
            assert left_out == ({"torus"} if op is CollectiveOp.ALL_TO_ALL else set())


@pytest.mark.parametrize("on", ["trn2", "trn2,down=c0-c1", "trn2,slow=c5.core0=50%", "trn2,lnc=1"])
@pytest.mark.parametrize("ranks", [16, 64])
@pytest.mark.parametrize("op", OPS)
def test_kangaring_is_taken_from_the_published_size_on_whatever_the_fabrics_state(
    op: CollectiveOp, ranks: int, on: str
) -> None:
    least = KANGARING_BYTES * ranks
    below, above = (
        candidates(op, ranks, parse_on(on), size_bytes=size)["kangaring"]
        for size in (least - 4 * ranks, least + 4 * ranks)
    )
    assert below.is_left_out
    assert below.reason == (
        f"published from {least} B on for {ranks} ranks; --policy best takes it too"
    )
    assert not above.is_left_out


def test_kangaring_has_no_least_size_on_trn1_where_none_is_published() -> None:
    found = candidates(CollectiveOp.ALL_REDUCE, 32, PlaceOptions("trn1"), size_bytes=4096)
    assert not found["kangaring"].reason


def test_what_is_forced_is_taken_under_any_policy() -> None:
    for name in ("tree", "kangaring"):
        found = candidates(
            CollectiveOp.ALL_REDUCE, 64, PlaceOptions("trn2"), forced={"all-reduce": name}
        )
        assert not found[name].reason
        assert found["double-tree"].is_left_out


def test_a_damaged_machine_takes_unpublished_algorithms_under_best_alone() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 64, [16 * MB])
    names = {}
    for policy in Policy:
        model = ncc_runtime.load(program, LINK_DOWN, policy=policy, times_only=True)
        (names[policy],) = (collective.name for collective in model.executable.lowered)
        assert model.executable.policy is policy
    assert names[Policy.BEST] in UNPUBLISHED
    assert names[Policy.NEURON] not in UNPUBLISHED


def unsuited(_: GroupLayout) -> None:
    raise UnsuitedError("not today")


def test_where_nothing_published_runs_the_best_of_all_is_taken_and_a_warning_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    every = {
        name: attrs.evolve(each, arrange=unsuited) if each.is_published else each
        for name, each in ALGORITHMS[CollectiveOp.ALL_REDUCE].items()
    }
    changed = {**ALGORITHMS, CollectiveOp.ALL_REDUCE: every}
    monkeypatch.setattr(choose, "ALGORITHMS", changed)
    program = collective_program(CollectiveOp.ALL_REDUCE, 64, [1024], repeat=2)
    model = ncc_runtime.load(program, "trn2")
    best = ncc_runtime.load(program, "trn2", policy="best")
    names = [collective.name for collective in model.executable.lowered]
    assert names == [collective.name for collective in best.executable.lowered]
    assert best.warnings == ()
    (notice,) = model.warnings
    assert notice.code == "beyond-policy"
    assert "no algorithm of all-reduce that --policy neuron takes can run here" in str(notice)
    assert f"; {names[0]} was taken, the best of all" in str(notice)
    assert "no algorithm that the policy takes can run: the best of all" in str(model.explain())

    neff = tmp_path / "m.neff"
    neff.write_bytes(container.pack(program))
    assert main(["run", str(neff), "--no-values", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [warning["code"] for warning in said["warnings"]] == ["beyond-policy"]
    assert main(["run", str(neff), "--no-values", "--policy", "best", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["warnings"] == []


@pytest.mark.slow
def test_a_ring_over_65536_ranks_is_found_under_either_policy() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 65_536, [65_536 * 64])
    for policy in Policy:
        model = ncc_runtime.load(program, "trn2", nodes=1024, times_only=True, policy=policy)
        assert model.executable.lowered[0].name.startswith("hier.")
    forced = {"all-reduce": "ring"}
    model = ncc_runtime.load(program, "trn2", nodes=1024, times_only=True, algorithms=forced)
    assert model.executable.lowered[0].name == "ring"


def test_an_unknown_policy_is_refused_with_those_that_are() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 4, [64])
    with pytest.raises(InputError, match=r"no policy 'fast'; there are neuron, best"):
        ncc_runtime.load(program, "trn2", policy="fast")


@pytest.fixture
def neff(tmp_path: Path) -> str:
    path = tmp_path / "model.neff"
    path.write_bytes(container.pack(collective_program(CollectiveOp.ALL_REDUCE, 4, [64])))
    return str(path)


@pytest.mark.parametrize(
    ("words", "policies"),
    [
        ("--on trn2 --on trn2", ["neuron", "neuron"]),
        ("--on trn2 --on trn2,policy=best", ["neuron", "best"]),
        ("--on trn2 --on trn2,nodes=1 --policy best", ["best", "best"]),
    ],
)
def test_each_side_of_a_diff_may_have_its_policy(
    neff: str, words: str, policies: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["diff", neff, *words.split(), "--json"]) == 0
    places = json.loads(capsys.readouterr().out)["places"]
    assert [place["policy"] for place in places] == policies
    assert main(["diff", neff, *words.split()]) == 0
    is_said = "and both policies choose the same" in capsys.readouterr().out
    assert is_said is (policies == ["neuron", "best"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--on trn2,policy=fast", "--on: no policy 'fast'; there are neuron, best"),
        ("--policy fast", "'fast' is not one of 'neuron', 'best'"),
        ("--on trn2,policy=best --policy neuron", "the policy is given twice: best and neuron"),
        ("--on trn2,policy=best,policy=best", "the policy is given twice: best and best"),
        ("--on policy=best", "does not begin with a topology"),
        ("--on trn2,polcy=best", "'polcy=best' is none of nodes=N"),
    ],
)
def test_policies_that_say_nothing_or_twice_the_same_are_wrong_usage(
    neff: str, words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", neff, *words.split()]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run --no-values", "explain", "verify"])
def test_headings_name_the_policy(
    neff: str, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for policy in Policy:
        verb, *words = command.split()
        assert main([verb, neff, *words, "--on", f"trn2,policy={policy}"]) == 0
        first = capsys.readouterr().out.splitlines()[0]
        assert first.endswith(f": 4 ranks on 1 x trn2.48xlarge, lnc 2, linear; policy {policy}")
