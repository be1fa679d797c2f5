"""`--print-after-all` and `--time-passes`: files that compile again, rows, what is refused."""

import json
from pathlib import Path

import pytest

from ncc_compiler.cli import main
from ncc_compiler.options import CompileOptions
from ncc_compiler.pass_report import GENERATE
from ncc_compiler.pipelines import pipeline

MODEL = """
sum { a = f32[] parameter(0)  b = f32[] parameter(1)  ROOT c = f32[] add(a, b) }
ENTRY main {
  x = f32[64] parameter(0)
  y = f32[64] add(x, x)
  same = f32[64] add(x, x)
  unused = f32[64] multiply(y, same)
  z = f32[64] subtract(y, same)
  w = f32[64] copy(z)
  ROOT total = f32[64] all-reduce(w), replica_groups={{0,1}}, to_apply=sum
}
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "m.ir").write_text(MODEL)
    return tmp_path


def compiled(capsys: pytest.CaptureFixture[str], *words: str) -> dict:
    assert main(["compile", "m.ir", "-o", "m.neff", "--json", *words]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_every_stage_has_a_file_that_compiles_again(folder: Path, capsys, level: int) -> None:
    rows = compiled(capsys, f"-O{level}", "--print-after-all", "a/b")["passes"]
    names = ["load", *(each.name for each in pipeline(CompileOptions(level=level)))]
    assert [row["name"] for row in rows] == [*names, GENERATE]
    files = [f"{number:02}-{name}.hlo" for number, name in enumerate(names)]
    assert sorted(path.name for path in (folder / "a" / "b").iterdir()) == files
    for file in files:
        assert main(["compile", f"a/b/{file}", f"-O{level}", "-o", "again.neff"]) == 0
    before, *after = [row["nodes_after"] for row in rows]
    assert before == 10
    assert [row["nodes_before"] for row in rows] == [None, before, *after[:-1]]
    assert after[-1] is None


def test_of_unchanged_graphs_no_file_is_written_if_told(folder: Path, capsys) -> None:
    rows = compiled(capsys, "--print-after-all", "all")["passes"]
    changed = compiled(capsys, "--print-after-all", "changed", "--changed-only")["passes"]
    texts = [(folder / row["file"]).read_text() for row in rows[:-1]]
    news = [text != last for last, text in zip(["", *texts], texts, strict=False)]
    assert [row["file"] is not None for row in changed[:-1]] == news
    assert 1 < sum(news) < len(news)
    kept = [path.name for path in sorted((folder / "changed").iterdir())]
    assert kept == [Path(row["file"]).name for row in changed if row["file"]]


def test_what_is_compiled_does_not_depend_on_who_watches(folder: Path, capsys) -> None:
    compiled(capsys)
    plain = (folder / "m.neff").read_bytes()
    compiled(capsys, "--time-passes", "--print-after-all", "d")
    assert (folder / "m.neff").read_bytes() == plain


def test_times_are_a_table_behind_the_result(capsys) -> None:
    assert main(["compile", "m.ir", "-o", "m.neff", "--time-passes"]) == 0
    result, head, first, *_, last = capsys.readouterr().out.splitlines()
    assert result.startswith("m.neff: 2 ranks")
    assert head.split() == ["pass", "nodes", "before", "nodes", "after", "seconds", "%"]
    assert first.split()[:2] == ["load", "10"]
    assert last.startswith("in all ")
    assert main(["compile", "m.ir", "--print", "graph", "--time-passes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("HloModule")
    assert lines[-1].startswith("in all ")


def test_a_folder_that_holds_something_is_left_alone(folder: Path, capsys) -> None:
    (folder / "d").mkdir()
    (folder / "d" / "mine.txt").write_text("mine")
    assert main(["compile", "m.ir", "-o", "m.neff", "--print-after-all", "d"]) == 1
    said = "error: d: is not empty; give another folder, or empty this one\n"
    assert capsys.readouterr().err == said
    assert [path.name for path in (folder / "d").iterdir()] == ["mine.txt"]
    assert not (folder / "m.neff").exists()
    assert main(["compile", "m.ir", "-o", "m.neff", "--print-after-all", "m.ir"]) == 1
    assert "m.ir: is a file; give the name of a folder" in capsys.readouterr().err
    assert main(["compile", "m.ir", "-o", "m.neff", "--print-after-all", "m.ir/x"]) == 1
    assert "not a directory" in capsys.readouterr().err


def test_changed_only_alone_is_wrong_usage(capsys) -> None:
    assert main(["compile", "m.ir", "-o", "m.neff", "--changed-only"]) == 2
    assert "--changed-only goes with --print-after-all DIR" in capsys.readouterr().err


def test_a_model_that_is_refused_leaves_an_empty_folder_that_serves_again(
    folder: Path, capsys
) -> None:
    (folder / "m.ir").write_text(MODEL.replace("copy", "nosuch"))
    assert main(["compile", "m.ir", "-o", "m.neff", "--print-after-all", "d"]) == 1
    (folder / "m.ir").write_text(MODEL)
    assert main(["compile", "m.ir", "-o", "m.neff", "--print-after-all", "d"]) == 0
