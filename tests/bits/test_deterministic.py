"""`--deterministic`: the same bits wherever a program runs, and what cannot be held is refused."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_compiler
from ncc_runtime import load
from ncc_runtime.bits.orders import divisor_of, orders
from ncc_runtime.cli import main
from ncc_runtime.collectives.choose import ALGORITHMS, shows_order
from ncc_runtime.errors import LoweringError, PlanError
from ncc_runtime.lowering.lower import lower
from ncc_runtime.neff.placeholder import CollectiveOp
from ncc_runtime.neff.program import Program
from ncc_runtime.neff.shared.dtypes import DType
from ncc_runtime.neff.shared.reductions import Reduction
from ncc_runtime.options import Policy
from ncc_runtime.placement import PlaceOptions, place_on
from ncc_runtime.runtime import Model
from ncc_runtime.topology import fault_names
from tests.programs import collective_program

PLACES = (
    PlaceOptions("trn1"),
    PlaceOptions("trn1", placement="spread"),
    PlaceOptions("trn1", nodes=2),
    PlaceOptions("inf2"),
    PlaceOptions("trn2"),
    PlaceOptions("trn2", faults=(fault_names.down("c0-c1"),)),
    PlaceOptions("trn2", nodes=2, placement="spread"),
    PlaceOptions("trn2", nodes=4),
)


def model_on(program: Program, place: PlaceOptions, policy: Policy = Policy.NEURON) -> Model:
    """Chosen by price alone, which is quick."""
    placement = place_on(place, program.ranks)
    return Model(lower(program, placement, {}, policy=policy, deterministic=True))


@st.composite
def reducing_programs(draw: st.DrawFn) -> Program:
    ranks = draw(st.sampled_from([4, 8, 12, 20, 24]))
    op = draw(st.sampled_from([CollectiveOp.ALL_REDUCE, CollectiveOp.REDUCE_SCATTER,
                               CollectiveOp.REDUCE]))  # fmt: skip
    count = draw(st.sampled_from([1, 2]))
    order, size = draw(st.permutations(range(ranks))), ranks // count
    sizes = draw(st.lists(st.integers(1, 90), min_size=1, max_size=2))
    return collective_program(
        op,
        ranks,
        [each * size for each in sizes] if op is CollectiveOp.REDUCE_SCATTER else sizes,
        groups=tuple(tuple(order[k * size : (k + 1) * size]) for k in range(count)),
        root=draw(st.integers(0, size - 1)),
        dtype=draw(st.sampled_from([DType.F32, DType.BF16, DType.F16, DType.F8E5M2])),
        reduction=draw(st.sampled_from([Reduction.ADD, Reduction.AVERAGE])),
    )


def check_same_everywhere(program: Program, places: tuple[PlaceOptions, ...]) -> None:
    found = set()
    for place in places:
        for policy in Policy:
            model = model_on(program, place, policy)
            outputs = model.run(seed=3, clock=False).outputs
            found.add(b"".join(output.tobytes() for output in outputs))
            (order,) = orders(model.executable).values()
            for one in order.results:
                wanted = order.sums.in_order(
                    len(one.group), divisor_of(program.placeholders[0], len(one.group))
                )
                assert set(one.expression.tolist()) == {wanted} or len(one.group) <= 2
    assert len(found) == 1


@settings(max_examples=4)
@given(reducing_programs(), st.lists(st.sampled_from(PLACES), min_size=3, max_size=3, unique=True))
def test_the_bits_are_the_same_on_every_place(program: Program, places: list[PlaceOptions]) -> None:
    check_same_everywhere(program, tuple(places))


@pytest.mark.slow
@settings(max_examples=30)
@given(reducing_programs())
def test_the_bits_of_many_programs_are_the_same_on_every_place(program: Program) -> None:
    check_same_everywhere(program, PLACES)


def test_without_it_places_differ() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 16, [1000])
    outputs = [load(program, on).run(seed=0, clock=False).outputs[0] for on in ("trn1", "trn2")]
    assert not np.array_equal(*outputs)


def test_what_is_not_rounded_is_free_to_choose() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 16, [1000], dtype=DType.S32)
    model = load(program, "trn2", deterministic=True)
    assert model.executable.lowered[0].name == load(program, "trn2").executable.lowered[0].name
    two = collective_program(CollectiveOp.ALL_REDUCE, 4, [100], groups=((0, 1), (2, 3)))
    assert not shows_order(two.placeholders[0])


@pytest.mark.parametrize("name", ["ring", "mesh", "tree", "hier.mesh.ring"])
def test_a_forced_algorithm_of_another_order_is_refused(name: str) -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 16, [100])
    with pytest.raises(LoweringError, match="in an order that depends on the place") as caught:
        load(program, "trn2", nodes=2, algorithms={"all-reduce": name}, deterministic=True)
    assert "single-step-mesh" in str(caught.value)


def test_algorithms_that_hold_the_order_can_be_forced() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 32, [100], dtype=DType.BF16)
    names = [name for name, each in ALGORITHMS[CollectiveOp.ALL_REDUCE].items() if each.is_in_order]
    found = set()
    for name in names:
        forced = {"all-reduce": name}
        if name == "direct":
            continue  # a chip has fewer ranks
        nodes = 2 if "hier." in name else 1
        model = load(program, "trn2", nodes=nodes, algorithms=forced, deterministic=True)
        found.add(model.run(seed=0, clock=False).outputs[0].tobytes())
    assert len(names) > 5
    assert len(found) == 1


def test_it_says_what_it_costs() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 16, [100_000])
    run = load(program, "trn2", deterministic=True).run(values=False)
    free = load(program, "trn2").run(values=False)
    assert run.free_us == free.time_us
    assert free.free_us is None
    assert "one order of reduction: " in str(run)
    assert "one order of reduction" not in str(free)
    assert run.as_dict()["deterministic"] is True
    assert load(program, "trn2", deterministic=True).run(seed=0).free_us == free.time_us


def test_many_ranks_are_timed_as_few() -> None:
    program = collective_program(CollectiveOp.ALL_REDUCE, 128, [1 << 18])
    model = load(program, "trn2", deterministic=True, times_only=True)
    run = model.run(values=False, verify=False)
    assert run.free_us is not None
    assert run.time_us is not None
    assert run.free_us < run.time_us < 4 * run.free_us


# ---- on the command line

MODEL = """
sum { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY e { x = f32[100] parameter(0)
 ROOT y = f32[100] all-reduce(x), replica_groups={{0,1,2,3,4,5,6,7}}, to_apply=sum }
"""


@pytest.fixture(scope="module")
def neff(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("bits") / "model.neff"
    ncc_compiler.compile_text(MODEL).save(path)
    return str(path)


def test_a_users_plan_of_another_order_is_refused(
    neff: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = str(tmp_path / "plan.json")
    for name, code in (("ring", 1), ("single-step-mesh", 0)):
        forced = ["--algorithm", f"all-reduce={name}", "--save-plan", plan]
        assert main(["explain", neff, "--on", "trn2", *forced]) == 0
        assert main(["run", neff, "--on", "trn2", "--plan", plan, "--deterministic"]) == code
        err = capsys.readouterr().err
        assert ("--deterministic holds ((((((r0+r1)+r2)+r3)+r4)+r5)+r6)+r7" in err) is bool(code)
    ring = ["--algorithm", "all-reduce=ring", "--save-plan", plan]
    assert main(["explain", neff, "--on", "trn2", *ring]) == 0
    with pytest.raises(PlanError, match="rank 0's result from byte 0 on is"):
        load(neff, "trn2", plans=[plan], deterministic=True)


def test_diff_says_which_choice_changes_the_bits(
    neff: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--on", "trn2,algorithm=all-reduce=ring", "--on", "trn2,deterministic"]
    assert main(["diff", neff, *places, "--bits", "--seed", "0", "--json"]) == 0
    bits = json.loads(capsys.readouterr().out)["bits"]
    (row,) = bits["collectives"]
    assert row["algorithms"][0] == "ring"
    assert row["differing_bytes"] > 0
    assert row["difference"] == bits["outputs"]["out0"]
    assert 0 < row["share_of_bound"] <= 1
    chunks = [chunk for chunk in row["chunks"] if chunk["differs"]]
    assert sum((c["end"] - c["start"]) * len(c["ranks"]) for c in chunks) == row["differing_bytes"]
    assert {chunk["sides"][0]["shape"] for chunk in chunks} == {"chain"}
    assert main(["diff", neff, *places, "--bits"]) == 0
    text = capsys.readouterr().out
    assert "bits: 1 of 1 collectives that reduce do it in another order" in text
    assert "on these operands" not in text


def test_diff_of_one_order_finds_no_difference(
    neff: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = ["--on", "trn1", "--on", "trn2,nodes=2", "--deterministic"]
    assert main(["diff", neff, *places, "--bits", "--seed", "7"]) == 0
    text = capsys.readouterr().out
    assert "p0  all-reduce f32 add: the same order on both" in text
    assert "out0: none of 800 elements differs" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--on", "trn2", "--on", "trn1", "--seed", "0"], "--inputs and --seed go with --bits"),
        (["--on", "trn2,algorithm=ring", "--on", "trn1"], "'ring' is not OP=NAME"),
        (
            ["--on", "trn2,algorithm=all-reduce=ring", "--on", "trn1", "--algorithm",
             "all-reduce=mesh"],
            "--on and --algorithm both name one for all-reduce",
        ),
        (["--on", "trn2,algorithm=all-reduce=none", "--on", "trn1"], "has no algorithm 'none'"),
        (["--on", "trn2", "--on", "trn1", "--bits", "--ignore-memory"], "--bits needs memory"),
    ],
)  # fmt: skip
def test_wrong_usage_of_diff_says_why(
    neff: str, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    assert main(["diff", neff, *arguments]) == 2
    assert said in capsys.readouterr().err


def test_bench_has_a_column_for_any_order(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "all_reduce", "-r", "8", "-b", "4KB", "--deterministic"]) == 0
    out = capsys.readouterr().out
    assert "any-order(us)" in out
    assert "policy neuron, one order of reduction" in out
    forced = ["--on", "trn2,algorithm=all-reduce=ring", "--show-algorithm"]
    assert main(["bench", "all_reduce", "-r", "8", "-b", "4KB", *forced]) == 0
    assert " ring" in capsys.readouterr().out
