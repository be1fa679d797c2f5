"""Golden cases: the first lines of a case say how to run it, `.expect` says what comes out.

`# RUN: nccc check %s` runs a command in this process; `%s` is the case, `%d` its folder, `%t` a
fresh path for files it writes. Several RUN lines run in order. Case paths are replaced by
`golden/…`, times of the host by `…`.
"""

import importlib
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"
COMMANDS = {"nccc": "ncc_compiler.cli", "nccrt": "ncc_runtime.cli"}
HOST_TIME = re.compile(r'\d+\.\d{3}(?= s\b)|(?<="seconds": )[\d.e-]+')
CASES = sorted(
    path for pattern in ("*.ir", "*.hlo") for path in GOLDEN.rglob(pattern) if path.is_file()
)


def run_lines(case: Path) -> list[str]:
    lines = case.read_text(encoding="utf-8").splitlines()
    commands = [line.split("RUN:", 1)[1] for line in lines if line.startswith("# RUN:")]
    assert commands, f"{case} has no line '# RUN: …'"
    return commands


def main_of(tool: str) -> Callable[[list[str]], int]:
    main: Callable[[list[str]], int] = importlib.import_module(COMMANDS[tool]).main
    return main


@pytest.mark.parametrize("case", CASES, ids=lambda path: str(path.relative_to(GOLDEN)))
def test_command_prints_what_is_expected(
    case: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    actual = ""
    for line in run_lines(case):
        written = line.replace("%s", str(case)).replace("%d", str(case.parent))
        written = written.replace("%t", str(tmp_path / "out"))
        tool, *arguments = shlex.split(written)
        code = main_of(tool)(arguments)
        streams = capsys.readouterr()
        actual += f"--- exit {code}\n{streams.out}{streams.err}"
    actual = actual.replace(str(GOLDEN), "golden").replace(str(tmp_path), "tmp")
    actual = HOST_TIME.sub("…", actual)
    expect = case.with_suffix(".expect")
    if request.config.getoption("--update-golden"):
        expect.write_text(actual, encoding="utf-8")
    assert expect.exists(), f"run with --update-golden to write {expect.name}"
    assert actual == expect.read_text(encoding="utf-8"), "--update-golden if this should change"


def test_every_expectation_has_its_case() -> None:
    cases = {case.with_suffix(".expect") for case in CASES}
    assert set(GOLDEN.rglob("*.expect")) <= cases
