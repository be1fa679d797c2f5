"""Without PyTorch/XLA the package says how to get it; `tests/torch` has what it does with it."""

import importlib.util
from pathlib import Path

import pytest

import ncc_compiler
from ncc_compiler.cli import main
from ncc_compiler.diagnostics import CompileError

INSTALL = "pip install 'neuron-ncc[torch]'"


@pytest.fixture
def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment without torch, whether it is installed or not."""
    found = importlib.util.find_spec

    def missing(name: str, package: str | None = None) -> object:
        return None if name.startswith("torch") else found(name, package)

    monkeypatch.setattr(importlib.util, "find_spec", missing)


@pytest.mark.usefixtures("nothing")
def test_a_module_takes_the_extra() -> None:
    with pytest.raises(CompileError) as error:
        ncc_compiler.from_torch(lambda x: x, 1)
    assert "programs of PyTorch take torch, which is not installed" in str(error.value)
    assert INSTALL in str(error.value)


def test_a_file_takes_the_extra(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "without.py").write_text(
        "def step():\n    raise ModuleNotFoundError('no torch', name='torch')\n"
    )
    assert main(["compile", f"{tmp_path}/without.py:step"]) == 1
    assert INSTALL in capsys.readouterr().err
