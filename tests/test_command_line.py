"""What both commands do alike: wrong usage, versions, closed streams, directories for files."""

import gc
import json
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

import ncc_compiler.cli
import ncc_runtime.cli
from ncc_runtime.command_line import DONE, REFUSED, USAGE
from ncc_runtime.neff import container
from ncc_runtime.neff.placeholder import CollectiveOp
from tests.programs import collective_program

MAINS: dict[str, Callable[[list[str]], int]] = {
    "nccc": ncc_compiler.cli.main,
    "nccrt": ncc_runtime.cli.main,
}
MODULES = {"nccc": "ncc_compiler.cli", "nccrt": "ncc_runtime.cli"}
both = pytest.mark.parametrize("command", MAINS)


@pytest.fixture
def neff(tmp_path: Path) -> str:
    path = tmp_path / "model.neff"
    container.save(container.pack(collective_program(CollectiveOp.ALL_REDUCE, 4, [16])), path)
    return str(path)


def in_a_shell(command: str, arguments: str, streams: str) -> subprocess.CompletedProcess[str]:
    """A command in a process of its own, its streams as the shell says."""
    start = f"import sys; from {MODULES[command]} import main; sys.exit(main())"
    script = f'set -o pipefail; "$0" -c "$1" {arguments} {streams}'
    return subprocess.run(
        ["bash", "-c", script, sys.executable, start], capture_output=True, text=True, check=False
    )


@both
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["walk"], "no such command 'walk' (see {} --help)"),
        (["list"], "missing argument '{}' (see {} list --help)"),
        (["list", "x", "--zzz"], "no such option '--zzz' (see {} list --help)"),
    ],
)
def test_wrong_usage_is_one_line_with_a_remedy(
    command: str, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MAINS[command](arguments) == USAGE
    argument = {"nccc": "MODEL.neff", "nccrt": "PROGRAM"}[command]
    names = [argument, command] if message.count("{}") == 2 else [command]
    assert capsys.readouterr() == ("", f"error: {message.format(*names)}\n")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("nccc", "got unexpected extra argument (y)"),
        ("nccrt", "invalid value for 'PROGRAM': 'x' names no ranks, as in a.neff@0-3 b.neff@4-7"),
    ],
)
def test_a_file_too_many_is_wrong_usage(
    command: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MAINS[command](["list", "x", "y"]) == USAGE
    assert capsys.readouterr().err == f"error: {message} (see {command} list --help)\n"


def test_our_own_usage_errors_are_one_line_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert MAINS["nccc"](["compile", "m.ir", "--pass-option", "x"]) == USAGE
    fact = "--pass-option x is not of the form PASS.OPTION=VALUE"
    assert capsys.readouterr().err == f"error: {fact} (see nccc compile --help)\n"


@pytest.mark.parametrize(
    ("option", "meant"),
    [("--seeed", "'--fault-seed', '--feed', '--seed'"), ("--placment", "'--placement', '--plan'")],
)
def test_likely_options_are_named(
    option: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MAINS["nccrt"](["run", "x", option, "1"]) == USAGE
    error = capsys.readouterr().err
    assert error == (
        f"error: no such option '{option}'; did you mean {meant}? (see nccrt run --help)\n"
    )


@pytest.mark.parametrize(
    ("words", "fact"),
    [
        (
            "--trip-count nosuch=3",
            "--trip-count goes with --no-values; else computed values decide",
        ),
        (
            "--on trn2.48xlarge,nodez=2",
            "'nodez=2' is none of nodes=N, placement=P, lnc=N, down=LINK, slow=NAME=50%, policy=P, "
            "algorithm=OP=NAME, deterministic",
        ),
        ("--on trn2,nodes=0", "nodes=0 is not a number from 1"),
        ("--placement foo", "placement 'foo' is not linear, spread or a file that exists"),
        ("--on trn2,placement=foo", "placement 'foo' is not linear, spread or a file that exists"),
        (
            "--algorithm all-to-all=nosuch",
            "all-to-all has no algorithm 'nosuch'; it has direct, pairwise, bruck, torus",
        ),
        (
            "--algorithm all-reduce=ring --algorithm all-reduce=mesh",
            "invalid value for '--algorithm': all-reduce is given twice: ring and mesh",
        ),
    ],
)
def test_words_that_name_nothing_or_come_twice_are_wrong_usage(
    words: str, fact: str, neff: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MAINS["nccrt"](["run", neff, *words.split()]) == USAGE
    assert capsys.readouterr().err == f"error: {fact} (see nccrt run --help)\n"


def test_an_operator_that_is_none_is_wrong_usage_with_those_there_are(
    neff: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MAINS["nccrt"](["explain", neff, "--algorithm", "nosuch=ring"]) == USAGE
    error = capsys.readouterr().err
    assert error.startswith("error: no collective 'nosuch'; there are all-reduce, ")
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ["diff", "{neff}", "--on", "trn2", "--on", "trn2,nodez=2"],
        ["diff", "{neff}", "--on", "trn2", "--on", "trn1", "--algorithm", "nosuch=ring"],
        ["bench", "all_reduce", "-r", "2", "--placement", "foo"],
        ["topology", "show", "trn2", "--placement", "foo"],
        ["list", "absent.neff", "--placement", "foo"],
    ],
)
def test_every_command_calls_such_words_wrong_usage(
    arguments: list[str], neff: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MAINS["nccrt"]([word.format(neff=neff) for word in arguments]) == USAGE
    assert capsys.readouterr().out == ""


def test_a_placement_file_that_holds_none_is_refused(
    neff: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place = tmp_path / "place.json"
    place.write_text("nothing")
    assert MAINS["nccrt"](["run", neff, "--placement", str(place)]) == REFUSED
    assert "not JSON" in capsys.readouterr().err


@both
def test_wrong_usage_as_json_says_the_same(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = {"nccc": "compile", "nccrt": "run"}[command]
    assert MAINS[command]([name, "--json"]) == USAGE
    (error,) = json.loads(capsys.readouterr().out)["errors"]
    assert error["code"] == "usage"
    assert error["message"].startswith("missing argument")
    assert f"see {command} {name} --help" in error["message"] + error.get("help", "")


@both
def test_a_bare_command_prints_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert MAINS[command]([]) == USAGE
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith(f"Usage: {command} [OPTIONS] COMMAND")


@both
def test_the_version_is_that_of_the_package(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert MAINS[command](["--version"]) == DONE
    assert capsys.readouterr().out == f"{command}, version {version('neuron-ncc')}\n"


@both
def test_the_search_for_garbage_is_as_it_was_after_a_command(command: str) -> None:
    before = gc.get_threshold()
    MAINS[command](["--version"])
    assert gc.get_threshold() == before


@both
@pytest.mark.parametrize("streams", [">&-", "<&- >&-", "<&- >&- 2>&-", "2>&-"])
def test_closed_streams_are_no_fault(command: str, streams: str, neff: str) -> None:
    done = in_a_shell(command, f"list '{neff}'", streams)
    assert (done.returncode, done.stderr) == (DONE, "")


@both
@pytest.mark.parametrize("arguments", ["list '{}'", "--help", "--version"])
def test_a_reader_that_has_left_is_no_fault(command: str, arguments: str, neff: str) -> None:
    done = in_a_shell(command, arguments.format(neff), "| true")
    assert done.returncode in (DONE, REFUSED)  # DONE if true reads before it leaves
    assert done.stderr == ""


@both
def test_who_leaves_the_error_stream_hears_no_more(command: str) -> None:
    done = in_a_shell(command, "list absent", "2>&1 >/dev/null | true")
    assert (done.returncode, done.stderr) == (REFUSED, "")


@both
def test_a_full_disk_behind_standard_output_is_one_line(command: str, neff: str) -> None:
    done = in_a_shell(command, f"list '{neff}'", ">/dev/full")
    assert done.returncode == REFUSED
    assert done.stderr == "error: <standard output>: no space left on device\n"


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("nccc", ["compile", "{folder}"]),
        ("nccc", ["compile", "."]),
        ("nccc", ["compile", ".."]),
        ("nccc", ["compile", "/"]),
        ("nccc", ["compile", ""]),
        ("nccc", ["compile", "{model}", "-o", "{folder}"]),
        ("nccc", ["check", "{folder}"]),
        ("nccc", ["list", "{folder}"]),
        ("nccrt", ["list", "{folder}"]),
        ("nccrt", ["run", "{folder}"]),
        ("nccrt", ["run", "{neff}", "--placement", "{folder}"]),
        ("nccrt", ["run", "{neff}", "--topology", "{folder}"]),
        ("nccrt", ["topology", "show", "{folder}"]),
    ],
)
def test_a_directory_for_a_file_is_refused_in_one_line(
    command: str,
    arguments: list[str],
    neff: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / "folder.toml"
    folder.mkdir()
    model = tmp_path / "m.ir"
    model.write_text("ENTRY %m { ROOT %x = f32[] parameter(0) }")
    given = [one.format(folder=folder, model=model, neff=neff) for one in arguments]
    assert MAINS[command](given) == REFUSED
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("error: ")
    assert streams.err.endswith(": is a directory; give the name of a file\n")
    assert streams.err.count("\n") == 1


@pytest.mark.parametrize("model", ["-", "m.ir"])
def test_nccc_writes_no_file_called_minus(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert MAINS["nccc"](["compile", model, "-o", "-"]) == USAGE
    assert "give the name of one" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
