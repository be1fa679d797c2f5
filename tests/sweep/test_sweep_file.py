"""Files of sweeps: which points they say, mistakes with their places, the shipped schema."""

import itertools
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ncc_runtime.errors import InputError
from ncc_runtime.sweep import sweep_file
from ncc_runtime.sweep.points import PointReader, WordError
from ncc_runtime.sweep.sweep_file import KEYS, SweepFile
from tests.example_count import examples

COMMON = '[common]\nop = "all_reduce"\nranks = 8\n'
GRID = f"{COMMON}[[grid]]\n"


def shown(text: str, tmp_path: Path) -> list[dict[str, object]]:
    path = tmp_path / "sweep.toml"
    path.write_text(text)
    return [point.shown for point in SweepFile(path).points]


def test_the_shipped_schema_is_the_one_that_files_are_checked_by() -> None:
    shipped = Path(sweep_file.__file__).parent / "sweep.schema.json"
    assert shipped.read_text() == sweep_file.schema_text()


def test_a_grid_has_a_point_for_each_combination(tmp_path: Path) -> None:
    found = shown(f'{GRID}size = ["1KB", "1MB"]\ntopology = ["trn1", "trn2"]\n', tmp_path)
    common = {"op": "all_reduce", "ranks": 8}
    assert found == [
        {**common, "size": size, "topology": topology}
        for size, topology in itertools.product([1024, 1 << 20], ["trn1", "trn2"])
    ]


def test_sizes_go_by_factors_and_by_steps(tmp_path: Path) -> None:
    by_factor = shown(f'{GRID}size = {{ from = "1KB", to = "16KB", factor = 4 }}\n', tmp_path)
    assert [row["size"] for row in by_factor] == [1024, 4096, 16384]
    by_two = shown(f"{GRID}size = {{ from = 64, to = 256 }}\n", tmp_path)
    assert [row["size"] for row in by_two] == [64, 128, 256]
    by_step = shown(f"{GRID}size = {{ from = 64, to = 130, step = 32 }}\n", tmp_path)
    assert [row["size"] for row in by_step] == [64, 96, 128]


def test_an_empty_word_takes_one_away_and_several_words_stay_together(tmp_path: Path) -> None:
    text = f'{COMMON}dtype = "bf16"\n[[grid]]\nsize = 64\ndtype = ["", "fp16"]\n'
    assert [row.get("dtype") for row in shown(text, tmp_path)] == [None, "fp16"]
    text = f'{GRID}size = 64\nnodes = ["", 2]\nlnc = ""\npolicy = ["", "best"]\n'
    said = [(row.get("nodes"), row.get("lnc"), row.get("policy")) for row in shown(text, tmp_path)]
    assert said == [(n, None, policy) for n in (None, 2) for policy in (None, "best")]
    text = f'{GRID}size = 64\ndown = ["", "c0-c1", ["c0-c1", "c1-c2"]]\n'
    assert [row.get("down") for row in shown(text, tmp_path)] == [None, "c0-c1", "c0-c1; c1-c2"]


def test_points_stand_behind_the_grids_and_have_what_is_common(tmp_path: Path) -> None:
    text = f'{GRID}size = 64\n[[point]]\nsize = "1GB"\nranks = 16\n[[point]]\nsize = 32\n'
    found = [(row["op"], row["ranks"], row["size"]) for row in shown(text, tmp_path)]
    assert found == [("all_reduce", 8, 64), ("all_reduce", 16, 1 << 30), ("all_reduce", 8, 32)]


def test_what_is_excluded_has_all_the_words_of_a_row(tmp_path: Path) -> None:
    grid = f'{GRID}size = ["1KB", "2KB"]\nalgorithm = ["", "ring", "mesh"]\n'
    text = f'{grid}[[exclude]]\nsize = 1024\nalgorithm = ["ring", ""]\n[[exclude]]\nsize = "2KB"\n'
    found = [(row["size"], row.get("algorithm")) for row in shown(text, tmp_path)]
    assert found == [(1024, "mesh")]
    with pytest.raises(InputError, match=r"sweep.toml:\d+:\d+: exclude: no point is left"):
        shown(f"{grid}[[exclude]]\nranks = 8\n", tmp_path)


@settings(max_examples=examples(60))
@given(st.integers(1, 40), st.integers(0, 5), st.integers(1, 30))
def test_a_sample_is_of_the_points_that_are_not_excluded_each_once(
    tmp_path_factory: pytest.TempPathFactory, count: int, seed: int, sizes: int
) -> None:
    words = ", ".join(str(size) for size in range(1, sizes + 1))
    grid = f"{GRID}size = [{words}]\n[[grid]]\nsize = 64\nlnc = [1, 2]\n"
    text = f"{grid}[[exclude]]\nsize = [3, 4]\n"
    folder = tmp_path_factory.mktemp("sample")
    every = shown(text, folder) if sizes else []
    drawn = shown(f"{text}[sample]\npoints = {count}\nseed = {seed}\n", folder)
    assert len(drawn) == min(count, len(every))
    places = [every.index(point) for point in drawn]
    assert places == sorted(set(places))
    assert drawn == shown(f"{text}[sample]\npoints = {count}\nseed = {seed}\n", folder)


def test_a_sample_of_a_grid_beyond_all_memory_is_drawn_at_once(tmp_path: Path) -> None:
    words = ", ".join(str(size) for size in range(1, 10_001))
    text = f"{GRID}size = [{words}]\nfault_seed = [{words}]\nnodes = [{words}]\n"
    with pytest.raises(InputError, match="1,000,000,000,000 points; at most 100,000"):
        shown(text, tmp_path)
    found = shown(f"{text}[sample]\npoints = 3\n", tmp_path)
    assert len({(row["size"], row["nodes"]) for row in found}) == 3


def test_what_is_common_is_for_whom_it_suits(tmp_path: Path) -> None:
    text = f'{COMMON}size = 64\nnodes = 2\n[[point]]\n[[point]]\nprogram = "a.neff"\n'
    bench, program = shown(text, tmp_path)
    assert bench == {"op": "all_reduce", "ranks": 8, "size": 64, "nodes": 2}
    assert program == {"nodes": 2, "program": "a.neff"}


MISTAKES = {
    '[[grid]]\nprogram = "a.neff"\nranks = 8\n': (
        3,
        9,
        "ranks: a word that program has no use",
    ),
    '[[point]]\nop = "a"\ntrip_counts = { a = 1 }\n': (3, 15, "a word that op has no use for"),
    "": (1, 1, "no point is in it: give [[grid]] or [[point]]"),
    COMMON: (1, 1, "no point is in it"),
    "[common\n": (1, 8, "not TOML"),
    f"{COMMON}[grid]\nsize = 64\n": (4, 2, "is not a list of tables, each under [[grid]]"),
    f"{COMMON}[[grids]]\nsize = 64\n": (4, 3, "grids: unknown key; did you mean grid"),
    f"{GRID}size = 64\ntopolgy = 'trn1'\n": (6, 11, "unknown key; did you mean topology"),
    f"{GRID}size = []\n": (5, 8, "[] is not a size such as"),
    f"{GRID}size = 64\nnodes = ['x']\n": (6, 9, "['x'] is not a number of instances, from 1"),
    f"{GRID}size = 64\nnodes = 0\n": (6, 9, "0 is not a number of instances, from 1"),
    f"{GRID}size = ['1KB', '1QB']\n": (5, 16, "'1QB' is not a size such as"),
    f"{GRID}size = {{ from = 4 }}\n": (5, 8, "is not a size such as"),
    f"{GRID}size = {{ from = 4, to = '1QB' }}\n": (5, 25, "'1QB' is not a size"),
    f"{GRID}size = {{ from = 4, to = 2 }}\n": (5, 8, "sizes go from 4 to 2 bytes"),
    f"{GRID}size = {{ from = 4, to = 8, factor = 2, step = 2 }}\n": (5, 8, "a factor or by steps"),
    f"{GRID}size = {{ from = 1, to = 99999, step = 1 }}\n": (5, 8, "more than 10,000"),
    f"{COMMON}[[point]]\nsize = [64]\n": (5, 8, "[64] is not a size such as"),
    f"{GRID}size = 64\n[sample]\nseed = 1\n": (6, 2, "sample.points: missing"),
    f"{GRID}size = 64\n[[exclude]]\n": (6, 3, "is not a table"),
    f"{GRID}size = 64\npolicy = 'fastest'\n": (6, 10, "is not neuron or best"),
    f"{GRID}size = 64\n[[fault]]\nwhat = 'rank 3 dead'\n": (6, 3, "fault: unknown key"),
}


@pytest.mark.parametrize("text", MISTAKES)
def test_a_mistake_is_told_with_its_place(text: str, tmp_path: Path) -> None:
    line, column, reason = MISTAKES[text]
    with pytest.raises(InputError) as caught:
        shown(text, tmp_path)
    message = str(caught.value)
    assert message.startswith(f"{tmp_path}/sweep.toml:{line}:{column}: "), message
    assert reason in message


def test_a_word_that_cannot_be_read_is_told_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text(f'{GRID}size = 64\ntopology = ["trn1", "trn9"]\n')
    file = SweepFile(path)
    with pytest.raises(WordError) as caught:
        PointReader().point(file.points[1].words)
    message = str(file.error(file.points[1], caught.value))
    assert message.startswith(f"{path}:6:21: topology: topology 'trn9' is unknown")


def test_a_key_that_is_missing_is_told_at_its_row(tmp_path: Path) -> None:
    path = tmp_path / "sweep.toml"
    path.write_text("[[grid]]\nranks = 8\nsize = 64\n")
    file = SweepFile(path)
    with pytest.raises(WordError) as caught:
        PointReader().point(file.points[0].words)
    message = str(file.error(file.points[0], caught.value))
    assert message.startswith(f"{path}:1:3: give one of op, program, model")


def test_every_key_is_one_that_points_or_models_read() -> None:
    folder = Path(sweep_file.__file__).parent
    code = "".join((folder / name).read_text() for name in ("points.py", "models.py", "sweep.py"))
    assert [key for key in KEYS if f'"{key}"' not in code] == []
