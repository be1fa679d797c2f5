"""FILE.py:FUNCTION on the command line: what is imported, printed and refused, without JAX.

What is compiled of it is tested in tests/oracle/test_python_files.py.
"""

import importlib.util
import json
import os
import sys

import pytest

from ncc_compiler.cli import main
from ncc_compiler.frontends import python_file

PROGRAM = """
import os
import sys

import beside

print("printed", sys.argv)
os.system("echo by a child")


def step():
    print(beside.WORD)
    return 3


def takes(x, y=1):
    return x


def fails():
    return 1 / 0


def leaves():
    sys.exit(3)


def nothing():
    return ()


def several():
    return [step, step]


def array():
    return (step, {"x": 1})


value = (1, 2, 3, 4)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "beside.py").write_text('WORD = "of the function"\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    for name in ("XLA_FLAGS", "JAX_PLATFORMS"):
        monkeypatch.setenv(name, "")  # so that it is put back
        monkeypatch.delenv(name)
    yield tmp_path
    for name in ("train", "beside"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("model", "told"),
    [
        ("train.py", "train.py: which function says what to compile?"),
        ("train.py:", "write train.py:FUNCTION, which returns (fn, args)"),
        ("nowhere.py:f", "nowhere.py: no such file or directory"),
        ("train.py:stop", "train.py has no function stop\n  help: it has array, fails, leaves"),
        ("train.py:takes", "train.py: takes takes x, and is called without arguments"),
        ("train.py:fails", "train.py failed: ZeroDivisionError: division by zero (FOLDER"),
        ("train.py:leaves", "train.py ended the process, by sys.exit(3)"),
        ("train.py:nothing", "train.py: nothing gives (), which is no function"),
        ("train.py:array", "train.py: array gives (function, dict), which is no function"),
        ("train.py:value", "train.py: value gives (int, int, int, int), which is no function"),
    ],
)
@pytest.mark.parametrize("command", ["check", "compile"])
def test_what_cannot_be_compiled_is_one_message(command, model, told, folder, capfd):
    assert main([command, model]) == 1
    captured = capfd.readouterr()
    assert captured.out == ""
    assert told.replace("FOLDER", str(folder)) in captured.err
    assert "Traceback" not in captured.err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (["train.py:takes"], 1, "if it takes its mesh, --mesh data=2,model=4 gives it one"),
        (["train.py:step", "--mesh", "data=2"], 1, "step takes nothing, and is called with a mesh"),
        (["train.py:value", "--mesh", "data=2"], 1, "value is no function, which a mesh could be"),
        (["train.py:takes", "--mesh", "data:2"], 2, "'data:2' is no mesh such as data=2,model=4"),
        (["train.py:takes", "--mesh", "a=2,a=4"], 2, "axis a is given twice"),
        (["train.py:takes", "--mesh", "a=0"], 2, "'a=0' is no mesh"),
        (["train.py:takes", "--mesh", "a=9999,b=9999"], 2, "has more than 65,536 devices"),
        (["train.py:takes", "--mesh", "a=2", "--ranks", "4"], 2, "the mesh is of 2 ranks, not 4"),
        (["step.hlo", "--mesh", "a=2"], 2, "--mesh and --stage are for FILE.py:FUNCTION"),
        (["step.hlo", "--stage", "0"], 2, "--mesh and --stage are for FILE.py:FUNCTION"),
        (["train.py:step", "--stage", "1"], 1, "step gives no list of stages"),
        (["train.py:several", "--stage", "2"], 1, "several gives 2 stages, from 0; there is no st"),
    ],
)
def test_meshes_and_stages_are_for_functions_that_have_them(arguments, code, told, folder, capfd):
    assert main(["compile", *arguments]) == code
    assert told in capfd.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("def f(:", "SyntaxError: invalid syntax (broken.py, line 1)"),
        ("import nosuch", "ModuleNotFoundError: No module named 'nosuch' (FOLDER/broken.py:1)"),
        ("raise SystemExit", "broken.py ended the process, by sys.exit(None)"),
        ("raise ValueError('needs 128 devices')", "help: --ranks N gives the file N virtual dev"),
    ],
)
def test_a_file_that_cannot_be_imported_is_one_message(text, told, folder, capfd):
    (folder / "broken.py").write_text(text)
    assert main(["check", "broken.py:f"]) == 1
    assert told.replace("FOLDER", str(folder)) in capfd.readouterr().err


def test_without_jax_the_extra_is_named(folder, monkeypatch, capfd):
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    assert main(["check", "train.py:step"]) == 1
    assert "pip install 'neuron-ncc[jax]'" in capfd.readouterr().err


def test_what_the_file_prints_is_no_json(folder, capfd):
    assert main(["check", "train.py:fails", "--json"]) == 1
    captured = capfd.readouterr()
    (error,) = json.loads(captured.out)["errors"]
    assert error["code"] == "input-C4"
    assert "printed ['train.py']\nby a child\n" in captured.err


def test_a_traceback_is_shown_to_whoever_asks(folder, monkeypatch, capfd):
    monkeypatch.setenv("NCC_DEBUG", "1")
    assert main(["check", "train.py:fails"]) == 1
    assert "return 1 / 0" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("flags", "ranks", "expected"),
    [
        (None, None, "--xla_force_host_platform_device_count=64"),
        (None, 8, "--xla_force_host_platform_device_count=8"),
        ("--a", 8, "--a --xla_force_host_platform_device_count=8"),
        (
            "--xla_force_host_platform_device_count=16",
            8,
            "--xla_force_host_platform_device_count=16",
        ),
    ],
)
def test_the_file_sees_virtual_devices(flags, ranks, expected, folder, monkeypatch):
    if flags is not None:
        monkeypatch.setenv("XLA_FLAGS", flags)
    argv, path = sys.argv, sys.stdout
    python_file.found("train.py", "step", ranks)()
    assert os.environ["XLA_FLAGS"] == expected
    assert os.environ["JAX_PLATFORMS"] == "cpu"
    assert (sys.argv, sys.stdout) == (argv, path)


def test_a_file_may_be_called_as_a_module_that_is_imported(folder, capfd):
    (folder / "json.py").write_text("def f():\n    return 1 / 0\n")
    assert main(["check", "json.py:f", "--json"]) == 1
    assert "division by zero" in json.loads(capfd.readouterr().out)["errors"][0]["message"]
