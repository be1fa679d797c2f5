"""`nccc compile` and `nccrt run` with execution traces, as they are typed."""

import json
from pathlib import Path
from typing import Any

import pytest

from ncc_compiler import cli as nccc
from ncc_runtime import cli as nccrt
from ncc_runtime.command_line import DONE, REFUSED, USAGE
from tests.chakra import messages
from tests.chakra.messages import ALL_REDUCE, coll, comp

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with traces: of ranks that do the same, and of others."""
    messages.write(tmp_path / "alike", [[comp(1, us=9), coll(2, ALL_REDUCE, 64, 1)]] * 4)
    ranks = [[comp(1, us=9 + rank // 2), coll(2, ALL_REDUCE, 64, 1)] for rank in range(4)]
    messages.write(tmp_path / "unlike", ranks)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def ran(words: str, capsys: pytest.CaptureFixture[str], expected: int = DONE) -> str:
    """What a command prints, on either stream."""
    command, *rest = words.split()
    code = {"nccc": nccc.main, "nccrt": nccrt.main}[command](rest)
    out, err = capsys.readouterr()
    assert code == expected, out + err
    return out if expected == DONE else err


def test_ranks_alike_have_a_file_beside_the_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ran("nccc compile alike", capsys)
    assert said.startswith("alike.neff: ranks 0-3 of 4, 3 instructions, 1 collectives; HBM a rank:")
    assert said.endswith("to run: nccrt run alike.neff --no-values\n")
    assert "predicted time" in ran("nccrt run alike.neff -q --no-values", capsys)


def test_ranks_that_differ_have_a_file_for_each_program_and_a_line_that_runs_them(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ran("nccc compile unlike -o out.neff", capsys)
    assert sorted(path.name for path in folder.glob("*.neff")) == ["out.0-1.neff", "out.2-3.neff"]
    line = said.splitlines()[-1].removeprefix("to run: ")
    assert line == "nccrt run out.0-1.neff@0-1 out.2-3.neff@2-3 --no-values"
    assert "predicted time" in ran(f"{line} -q", capsys)


def test_many_scattered_ranks_make_a_short_name(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = [[comp(1, us=9 + rank % 2), coll(2, ALL_REDUCE, 64, 1)] for rank in range(24)]
    messages.write(folder / "many", ranks)
    ran("nccc compile many", capsys)
    assert sorted(path.name for path in folder.glob("many*.neff")) == [
        "many.p0.neff",
        "many.p1.neff",
    ]


@pytest.mark.parametrize(
    ("model", "file"),
    [
        ("alike", "alike.neff"),
        ("alike/", "alike.neff"),
        ("alike/trace", "alike/trace.neff"),
        ("alike/trace.2.et", "alike/trace.neff"),
        ("alike/trace.%d.et", "alike/trace.neff"),
    ],
)
def test_a_file_is_written_beside_what_was_named(
    model: str, file: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran(f"nccc compile {model}", capsys)
    assert (folder / file).is_file()


def test_the_graph_of_a_trace_is_a_model_that_can_be_compiled(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = ran("nccc compile alike --print graph", capsys)
    assert not list(folder.glob("*.neff"))
    (folder / "graph.hlo").write_text(graph)
    ran("nccc compile graph.hlo -o one.neff", capsys)
    ran("nccc compile alike -o other.neff", capsys)
    times = {ran(f"nccrt run {name}.neff -q --no-values", capsys) for name in ("one", "other")}
    assert len({line for text in times for line in text.splitlines() if "predicted" in line}) == 1


def test_json_has_each_program(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found: Any = json.loads(ran("nccc compile unlike --json", capsys))
    assert [row["rank_list"] for row in found["programs"]] == ["0-1", "2-3"]
    assert [row["neff"] for row in found["programs"]] == ["unlike.0-1.neff", "unlike.2-3.neff"]


def test_groups_and_durations_are_options(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [comp(1, us=900, num_ops=1000), coll(2, ALL_REDUCE, 64, 1, pg_name="both")]
    messages.write(folder / "named", [nodes] * 2)
    said = ran("nccc compile named", capsys, REFUSED)
    assert "process group 'both'; known are none" in said
    assert "--comm-groups FILE.json" in said
    (folder / "groups.json").write_text('{"both": [0, 1]}')
    for words, longer in (("", True), (" --no-durations", False)):
        ran(f"nccc compile named --comm-groups groups.json -o named.neff{words}", capsys)
        said = ran("nccrt run named.neff --no-values --json", capsys)
        assert (json.loads(said)["time_us"] > 900) is longer


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("nccc compile alike --ranks 4", "leave out --ranks"),
        ("nccc compile alike --time-passes", "--time-passes"),
        ("nccc compile alike -o out.bin", "ends in .neff"),
        ("nccc check alike", "nccc compile checks it"),
        (f"nccc compile {ROOT}/ir_examples/argmax.ir --no-durations", "go with an execution trace"),
        ("nccrt run x.neff --chakra-times run", "--chakra-times goes with --chakra DIR"),
        ("nccrt run x.neff --no-clock --chakra out", "--chakra needs the clock"),
    ],
)
def test_wrong_usage_says_what_would_be_right(
    words: str, says: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in ran(words, capsys, USAGE)


def test_a_folder_that_is_no_trace_is_a_folder(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "empty").mkdir()
    assert "is a directory" in ran("nccc compile empty", capsys, REFUSED)
    said = ran("nccc compile nowhere --comm-groups g.json", capsys, REFUSED)
    assert "nowhere: no such file" in said


def test_a_run_is_refused_a_full_folder_before_it_begins(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ran("nccc compile alike", capsys)
    said = ran("nccrt run alike.neff --no-values --chakra alike", capsys, REFUSED)
    assert "alike: is not empty" in said
