"""What a run is bound by, what could be gained, and what was tried beside it."""

from pathlib import Path

import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from ncc_runtime.errors import InputError
from ncc_runtime.machine_model.parts import PartKind
from ncc_runtime.options import RunOptions
from ncc_runtime.report.findings import Breakdown, bounds, breakdown, findings, time_text, verdict
from ncc_runtime.report.performance import Performance
from ncc_runtime.runtime import Model

DATA = Path(__file__).parents[1] / "data" / "hlo"
EXAMPLES = Path(__file__).parents[2] / "ir_examples"
MODELS = ("mlp_train_dp2_tp4", "moe_all_to_all", "fsdp_scan_layers", "ring_attention")

SUM = """
add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }
ENTRY step {
  x = f32[65536] parameter(0)
  y = f32[65536] all-reduce(x), replica_groups={{0,1,2,3},{4,5,6,7}}, to_apply=add
  ROOT z = f32[65536] multiply(y, y)
}
"""


def loaded(name: str, **place: object) -> Model:
    if name in MODELS:
        neff = ncc_compiler.compile_file(str(DATA / f"{name}.hlo"))
    else:
        neff = ncc_compiler.compile_text(name, CompileOptions(ranks=8))
    return ncc_runtime.load(neff, "trn2", **place)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", MODELS)
def test_the_parts_of_a_rank_s_time_add_up(name: str) -> None:
    run = loaded(name).run(values=False, verify=False)
    assert run.trace is not None
    parts = breakdown(Performance(run.trace))
    assert min(parts.compute_us, parts.hidden_us, parts.exposed_us, parts.idle_us) >= 0
    assert parts.time_us == pytest.approx(run.time_us)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (Breakdown(1, 1, 7, 1), "Bound by communication: a rank on average computes for 20%"),
        (Breakdown(6, 1, 2, 1), "Bound by compute"),
        (Breakdown(1, 0, 2, 7), "Bound by latency"),
        (Breakdown(3, 1, 3, 3), "Bound by no one thing"),
        (Breakdown(0, 0, 0, 0), "The run takes no time"),
    ],
)
def test_the_largest_part_is_what_binds(parts: Breakdown, words: str) -> None:
    assert verdict(parts).startswith(words)


@pytest.mark.parametrize("name", MODELS)
def test_no_collective_is_faster_than_its_bound(name: str) -> None:
    run = loaded(name).run(values=False, verify=False)
    limits = bounds(run.executable)
    assert len(limits) == len(run.collectives) > 0
    for row in run.collectives:
        assert row.time_us is not None
        assert limits[row.id].time_ps * (row.runs or 0) / 1e6 <= row.time_us


@pytest.mark.parametrize("name", MODELS)
def test_no_gain_is_more_than_the_run(name: str) -> None:
    run = loaded(name).run(values=False, verify=False)
    assert run.trace is not None and run.time_us is not None  # noqa: PT018
    spent = Performance(run.trace)
    found = findings(run, spent, bounds(run.executable), run.rates())
    gains = [each.gain_us for each in found]
    assert gains == sorted(gains, reverse=True)
    assert all(0 < gain <= run.time_us for gain in gains)


def test_what_is_down_is_a_finding_of_exactly_its_cost() -> None:
    run = loaded(SUM, placement="spread", slow=["c0-c1=10%"]).run(values=False, verify=False)
    assert run.trace is not None and run.time_us is not None  # noqa: PT018
    spent = Performance(run.trace)
    found = findings(run, spent, bounds(run.executable), run.rates())
    (broken,) = [each for each in found if each.what == "Something is down or slow"]
    assert run.healthy_us is not None
    assert broken.gain_us == pytest.approx(run.time_us - run.healthy_us)


def test_the_busiest_part_may_be_of_any_kind() -> None:
    neff = ncc_compiler.compile_file(str(EXAMPLES / "data_parallel_step.ir"))
    run = ncc_runtime.load(neff, "trn2").run(values=False, verify=False)
    assert run.trace is not None
    spent = Performance(run.trace)
    found = findings(run, spent, bounds(run.executable), run.rates())
    (sharing,) = [each.what for each in found if "wait for others" in each.what]
    every = [part for parts in spent.use.parts.values() for part in parts]
    busiest = max(every, key=lambda part: part.share)
    assert busiest not in spent.use.parts[PartKind.LINK]
    assert sharing.endswith(f"; busiest is {busiest.name}, {busiest.share:.0%}")


def test_nothing_is_found_in_a_run_that_takes_no_time() -> None:
    run = loaded("ENTRY e { x = f32[4] parameter(0) ROOT y = () tuple() }").run(values=False)
    assert run.trace is not None
    assert run.time_us == 0
    assert findings(run, Performance(run.trace), bounds(run.executable), run.rates()) == []


def test_alternatives_take_what_they_take_when_they_are_run() -> None:
    run = loaded(SUM).run(values=False, verify=False, alternatives="all")
    for other in run.alternatives:
        settings = dict(word.split("=") for word in other.words.split(","))
        again = loaded(SUM, **settings).run(values=False, verify=False)
        assert again.time_us == other.time_us
    assert [other.words for other in run.alternatives] == [
        *("policy=best", "placement=spread", "placement=spread,policy=best"),
    ]
    few = loaded(SUM).run(values=False, verify=False, alternatives="placement")
    assert few.alternatives == run.alternatives[1:2]


def test_alternatives_are_the_same_with_values() -> None:
    model = loaded("mlp_train_dp2_tp4")
    timed = model.run(values=False, alternatives="placement")
    computed = model.run(seed=0, alternatives="placement")
    assert computed.alternatives == timed.alternatives != ()
    assert model.run(values=False).alternatives == ()


def test_a_place_where_ranks_lie_alike_is_no_alternative() -> None:
    one = ncc_compiler.compile_text("ENTRY e { x = f32[2] parameter(0) ROOT y = f32[2] add(x, x) }")
    run = ncc_runtime.load(one, "trn2").run(values=False, alternatives="placement")
    assert run.alternatives == ()


def test_unknown_alternatives_are_refused() -> None:
    with pytest.raises(InputError, match="there are none, placement, all"):
        RunOptions(alternatives="some")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("time_us", "text"),
    [
        (0.0, "0.0 us"),
        (999.94, "999.9 us"),
        (8808.8, "8.81 ms"),
        (-8808.8, "-8.81 ms"),
        (249_100.0, "249.1 ms"),
        (4_260_000.0, "4.26 s"),
        (1_234_500_000.0, "1,234.5 s"),
    ],
)
def test_times_have_the_unit_that_fits_them(time_us: float, text: str) -> None:
    assert time_text(time_us) == text
