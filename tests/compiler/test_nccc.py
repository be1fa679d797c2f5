"""The command `nccc`: what it prints, writes and returns."""

import io
import json
import subprocess
import sys

import pytest

from ncc_compiler import driver
from ncc_compiler.cli import main
from ncc_runtime.command_line import OUR_FAULT, REFUSED
from ncc_runtime.neff.container import load
from tests.compiler.test_driver import MODEL

RUN = [sys.executable, "-c", "import sys; from ncc_compiler.cli import main; sys.exit(main())"]


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "m.ir"
    path.write_text(MODEL)
    return path


def wrong(model):
    model.write_text(MODEL.replace("f32[4] copy", "f32[5] copy").replace("%sum,", "%sam,"))
    return model


def test_compile_writes_beside_the_model_and_says_so(model, capsys):
    assert main(["compile", str(model)]) == 0
    assert load(model.with_suffix(".neff")).name == "tiny"
    assert capsys.readouterr().out.startswith(f"{model.with_suffix('.neff')}: 2 ranks, 1 ")


def test_compile_writes_where_it_is_told(model, tmp_path):
    assert main(["compile", str(model), "-o", str(tmp_path / "other.neff"), "-O0"]) == 0
    assert not model.with_suffix(".neff").exists()
    assert load(tmp_path / "other.neff").ranks == 2


def test_compile_reports_as_json(model, capsys):
    assert main(["compile", str(model), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == 1
    assert (report["ranks"], report["collectives"]) == (2, 1)


def test_print_program_writes_no_file(model, capsys):
    assert main(["compile", str(model), "--print", "program"]) == 0
    assert "queue GpSimd" in capsys.readouterr().out
    assert not model.with_suffix(".neff").exists()


@pytest.mark.parametrize(("shown", "copies"), [("graph", 1), ("graph-after=simplify", 0)])
def test_print_shows_the_graph_of_a_stage(model, capsys, shown, copies):
    assert main(["compile", str(model), "--print", shown]) == 0
    assert capsys.readouterr().out.count(" copy(") == copies


def test_a_printed_graph_compiles_to_the_same_program(model, tmp_path, capsys):
    main(["compile", str(model), "--print", "graph-after=remove-dead-code"])
    (tmp_path / "again.ir").write_text(capsys.readouterr().out)
    main(["compile", str(model)])
    main(["compile", str(tmp_path / "again.ir")])
    again = load(tmp_path / "again.neff")
    assert again.queues == load(model.with_suffix(".neff")).queues


def test_standard_input_is_a_model(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(MODEL.encode())))
    assert main(["compile", "-", "-o", str(tmp_path / "x.neff")]) == 0
    assert load(tmp_path / "x.neff").name == "tiny"


def test_list_prints_a_compiled_program(model, capsys):
    main(["compile", str(model)])
    capsys.readouterr()
    assert main(["list", str(model.with_suffix(".neff"))]) == 0
    assert "all-reduce" in capsys.readouterr().out


def test_check_says_what_is_right(model, capsys):
    assert main(["check", str(model)]) == 0
    assert capsys.readouterr().out == f"{model}: correct, 6 operations for 2 ranks\n"


def test_errors_carry_place_and_carets(model, capsys):
    assert main(["check", str(wrong(model))]) == 1
    streams = capsys.readouterr()
    assert streams.out == ""
    assert f"{model}:5:" in streams.err
    assert f"{model}:6:" in streams.err
    assert "^" in streams.err


def test_errors_are_one_json_object_if_asked(model, capsys):
    assert main(["compile", str(wrong(model)), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["schema"] == 1
    assert [error["line"] for error in report["errors"]] == [5, 6]
    assert set(report["errors"][0]) == {"code", "message", "file", "line", "column", "help"}


def test_nothing_is_written_for_a_wrong_model(model):
    main(["compile", str(wrong(model))])
    assert not model.with_suffix(".neff").exists()


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("missing.ir", None, "missing.ir: no such file or directory"),
        ("latin.ir", b"HloModule \xe9", "latin.ir: not UTF-8 text: byte 0xe9 at offset 10"),
    ],
)
def test_files_that_are_no_models_are_refused(tmp_path, capsys, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    assert main(["compile", str(tmp_path / name)]) == 1
    assert message in capsys.readouterr().err


def test_a_directory_is_refused(tmp_path, capsys):
    assert main(["compile", str(tmp_path)]) == 1
    error = capsys.readouterr().err
    assert error == f"error: {tmp_path}: is a directory; give the name of a file\n"


def test_a_place_that_cannot_be_written_is_refused(model, tmp_path, capsys):
    assert main(["compile", str(model), "-o", str(tmp_path / "no" / "x.neff")]) == 1
    assert "cannot be written" in capsys.readouterr().err


def test_a_file_that_is_no_neff_is_refused(model, capsys):
    assert main(["list", str(model)]) == 1
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["compile"],
        ["compile", "{}", "-O3"],
        ["compile", "{}", "--ranks", "0"],
        ["compile", "{}", "--print", "nonsense"],
        ["compile", "{}", "--print", "graph-after=nonsense"],
        ["compile", "{}", "--pass-option", "nonsense"],
        ["compile", "{}", "--pass-option", "nonsense=1"],
        ["compile", "{}", "--pass-option", "fold-constants.limit_bytes=many"],
        ["compile", "{}", "-o", "{}"],
        ["compile", "-"],
        ["nonsense"],
        [],
    ],
)
def test_wrong_usage_is_code_2(model, arguments, capsys):
    assert main([argument.format(model) for argument in arguments]) == 2
    assert capsys.readouterr().out == ""


def test_wrong_usage_is_json_if_asked(capsys):
    assert main(["compile", "--json"]) == 2
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert error["code"] == "usage"


def test_pass_options_reach_the_passes(tmp_path, capsys):
    (tmp_path / "m.ir").write_text(
        "ENTRY %m { %c = f32[] constant(1) ROOT %b = f32[8] broadcast(%c), dimensions={} }"
    )
    option = ["--pass-option", "fold-constants.limit_bytes=4"]
    main(["compile", str(tmp_path / "m.ir"), "--print", "graph-after=remove-dead-code", *option])
    assert "broadcast" in capsys.readouterr().out


@pytest.mark.parametrize("debug", [False, True])
def test_a_fault_of_ours_is_code_3_and_asks_for_a_report(model, monkeypatch, capsys, debug):
    def fail(*_):
        raise AssertionError("two\nlines")

    monkeypatch.setattr(driver, "generate", fail)
    monkeypatch.delenv("NCC_DEBUG", raising=False)
    if debug:
        monkeypatch.setenv("NCC_DEBUG", "1")
    assert main(["compile", str(model)]) == OUR_FAULT
    error = capsys.readouterr().err
    assert "report it" in error.splitlines()[-1]
    assert ("Traceback" in error) == debug
    assert debug or len(error.splitlines()) == 1


def test_a_reader_that_leaves_early_is_no_traceback(model):
    command = subprocess.Popen(
        [*RUN, "compile", str(model), "--print", "program"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    command.stdout.close()
    error = command.stderr.read()
    command.stderr.close()
    assert command.wait() == REFUSED
    assert error == b""
