"""Points of sweeps: one key for each, however it is said, and another for any other point."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ncc_compiler
from ncc_compiler.options import CompileOptions
from ncc_runtime.report.bench import OPERATORS
from ncc_runtime.sweep import points
from ncc_runtime.sweep.points import PointReader, WordError
from tests.draws_sweeps import bench_words, spelt_otherwise
from tests.example_count import examples

BENCH: dict[str, Any] = {"op": "all_reduce", "ranks": 8, "size": 4096}
PROGRAM = "ENTRY m { x = f32[64] parameter(0) ROOT s = f32[64] all-reduce(x), to_apply=add }"
SUM = "add { a = f32[] parameter(0) b = f32[] parameter(1) ROOT c = f32[] add(a, b) }\n"


def key(**words: Any) -> str:
    return PointReader().point({**BENCH, **words}).key


@settings(max_examples=examples(100))
@given(st.data())
def test_a_point_has_one_key_however_it_is_said(data: st.DataObject) -> None:
    words = data.draw(bench_words())
    other = data.draw(spelt_otherwise(words))
    assert PointReader().point(words).key == PointReader().point(other).key


@settings(max_examples=examples(100))
@given(bench_words(), bench_words())
def test_points_that_differ_have_different_keys(first: Any, second: Any) -> None:
    reader = PointReader()
    one, other = reader.point(first), reader.point(second)
    assert (one.key == other.key) is (one._content() == other._content())


OTHERS: list[dict[str, Any]] = [
    {"op": "all_gather"},
    {"ranks": 16},
    {"size": 8192},
    {"dtype": "bf16"},
    {"topology": "trn1"},
    {"nodes": 2},
    {"placement": "spread"},
    {"lnc": 1},
    {"down": ["c0-c1"]},
    {"down": ["c0>c1"]},
    {"slow": ["c0-c1=50%"]},
    {"slow": ["c0-c1=40%"]},
    {"algorithm": ["ring"]},
    {"policy": "best"},
    {"deterministic": True},
    {"strict": True},
    {"ignore_memory": True},
    {"fault": ["rank 3 dead"]},
    {"fault": ["rank 3 dead", "rank 4 dead"]},
    {"fault": ["rank 3 dead"], "fault_seed": 1},
]


def test_whatever_changes_a_result_changes_the_key() -> None:
    keys = [key(), *(key(**other) for other in OTHERS)]
    assert len(set(keys)) == len(keys)


def test_a_seed_without_faults_and_an_algorithm_of_another_operator_change_nothing() -> None:
    assert key(fault_seed=7) == key() == key(algorithm=["all-gather=ring"])


def test_an_algorithm_of_a_bench_needs_no_operator() -> None:
    spellings = (["ring"], ["all-reduce=ring"], ["all_reduce=ring"], ["allr=ring"])
    assert len({key(algorithm=spelling) for spelling in spellings}) == 1


def test_another_version_of_the_package_has_other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    before = key()
    monkeypatch.setattr(points, "package_digest", lambda _: "of another")
    assert key() != before


def test_files_count_by_what_they_hold_and_not_by_their_names(tmp_path: Path) -> None:
    text = 'name = "mine"\nbase = "trn2.48xlarge"\n'
    first, second, other = (tmp_path / name for name in ("a.toml", "b.toml", "c.toml"))
    first.write_text(text)
    second.write_text(text)
    other.write_text(f"{text}# changed\n")
    keys = [key(topology=str(path)) for path in (first, second, other)]
    assert keys[0] == keys[1] != keys[2]
    rows = '{"ranks": [[0,0,0],[0,1,0],[0,2,0],[0,3,0],[0,4,0],[0,5,0],[0,6,0],[0,7,0]]}'
    (tmp_path / "p.json").write_text(rows)
    (tmp_path / "q.json").write_text(rows.replace(",", ", "))
    placed = [key(placement=str(tmp_path / name)) for name in ("p.json", "q.json")]
    assert placed[0] == placed[1] != key()
    (tmp_path / "faults.toml").write_text('[[fault]]\nwhat = "rank 3 dead"\nsource = "seen"\n')
    assert key(faults=str(tmp_path / "faults.toml")) == key(fault=["rank 3 dead"])


def test_a_point_holds_all_that_it_needs_of_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\nbase = "trn2.48xlarge"\n')
    point = PointReader().point({**BENCH, "topology": str(path)})
    path.unlink()
    from ncc_runtime.sweep.results import Status, result_of

    result = result_of(point, {})
    assert result.status is Status.DONE
    assert result.time_us == result_of(PointReader().point(BENCH), {}).time_us


def test_programs_are_their_bytes_and_the_ranks_that_run_them(tmp_path: Path) -> None:
    for name, ranks in (("a", 8), ("b", 8), ("c", 4)):
        neff = ncc_compiler.compile_text(SUM + PROGRAM, CompileOptions(ranks=ranks))
        neff.save(tmp_path / f"{name}.neff")
    reader = PointReader()
    a, b, c, parts = (
        reader.point({"program": words})
        for words in (
            str(tmp_path / "a.neff"),
            str(tmp_path / "b.neff"),
            str(tmp_path / "c.neff"),
            [f"{tmp_path}/a.neff@0-3", f"{tmp_path}/b.neff@4-7"],
        )
    )
    assert (a.ranks, c.ranks, parts.ranks) == (8, 4, 8)
    assert a.key == b.key
    assert len({a.key, c.key, parts.key}) == 3
    assert len(reader.programs) == 2


@pytest.mark.parametrize(
    ("words", "about", "reason"),
    [
        ({"op": "sum"}, "op", f"no operator 'sum'; there are {', '.join(OPERATORS)}"),
        ({"program": "a.neff"}, "program", "give one of op, program, model, not op and program"),
        ({"size": "4QB"}, "size", "'4QB' is not a size"),
        ({"dtype": "f32"}, "dtype", "no type 'f32'"),
        ({"topology": "trn9"}, "topology", "topology 'trn9' is unknown"),
        ({"on": "trn2", "nodes": 2}, "on", "on and nodes say the same thing"),
        ({"on": "trn2,nodes=x"}, "on", "nodes=x is not a number"),
        ({"on": "trn2,policy=best", "policy": "best"}, "policy", "the policy is given twice"),
        ({"placement": "spred"}, "placement", "did you mean spread"),
        ({"down": ["c0"]}, "down", "c0 is neither a link"),
        ({"algorithm": ["rign"]}, "algorithm", "rign"),
        ({"algorithm": ["ring", "rdh"]}, "algorithm", "given twice: ring and rdh"),
        ({"fault": ["rank 3 daed"]}, "fault", "did you mean dead"),
        ({"faults": "none.toml"}, "faults", "none.toml: no such file"),
        ({"plan": ["none.xml"]}, "plan", "none.xml: no such file"),
    ],
)
def test_a_word_that_cannot_be_read_is_named(
    words: dict[str, Any], about: str, reason: str
) -> None:
    with pytest.raises(WordError) as caught:
        PointReader().point({**BENCH, **words})
    assert caught.value.key == about
    assert reason in str(caught.value)


def test_a_point_that_does_not_fit_is_a_point() -> None:
    point = PointReader().point({**BENCH, "ranks": 4096, "topology": "trn2.3xlarge"})
    assert point.place.nodes is None
