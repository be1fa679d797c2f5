"""Help is immediate: what is slow to import is imported by who needs it."""

import subprocess
import sys

import pytest

HEAVY = ("lark", "msgspec", "ml_dtypes", "networkx", "numpy", "rich", "scipy")
BUDGET_S = 0.2
RUNS = 5

_PROBE = """
import sys, time
start = time.perf_counter()
from {module} import main
try:
    code = main({arguments})
except SystemExit as stop:
    code = stop.code
spent = time.perf_counter() - start
loaded = [name for name in {heavy} if name in sys.modules]
print("PROBE", code or 0, " ".join(loaded) or "-", spent)
"""


def probe(module: str, arguments: list[str]) -> tuple[int, str, float]:
    """Exit code, heavy modules loaded, and seconds of a command run in a fresh interpreter."""
    code = _PROBE.format(module=module, arguments=arguments, heavy=HEAVY)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    _, status, *loaded, spent = done.stdout.strip().splitlines()[-1].split()
    return int(status), " ".join(loaded), float(spent)


@pytest.mark.parametrize("module", ["ncc_compiler.cli", "ncc_runtime.cli"])
@pytest.mark.parametrize("arguments", [["--help"], ["list", "--help"], ["--version"], ["walk"]])
def test_help_loads_nothing_heavy(module: str, arguments: list[str]) -> None:
    status, loaded, _ = probe(module, arguments)
    assert (status, loaded) == (2 if arguments == ["walk"] else 0, "-")


@pytest.mark.parametrize("module", ["ncc_compiler.cli", "ncc_runtime.cli"])
@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_help_is_fast(module: str, argument: str) -> None:
    """The best of several runs: other load on the machine only ever adds time."""
    assert min(probe(module, [argument])[2] for _ in range(RUNS)) < BUDGET_S


@pytest.mark.parametrize("module", ["ncc_compiler", "ncc_runtime"])
def test_the_packages_import_at_once(module: str) -> None:
    code = f"import sys, {module}; print([name for name in {HEAVY} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
