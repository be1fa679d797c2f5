"""Slow: processor time and memory of compiling large modules, on one core, after imports."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[1]
LLAMA = ROOT / "tests" / "data" / "hlo" / "llama_4l_64ranks.hlo"
BENCHMARK = ROOT / "benchmarks" / "front_end.py"
MEASURE = f"""
import json, sys
sys.path.insert(0, {str(BENCHMARK.parent)!r})
import front_end
text = open(sys.argv[1]).read() if len(sys.argv) > 1 else front_end.generated(20_000)
print(json.dumps(front_end.measured("ncc, program and file", text, 3)))
"""


def measured(*arguments: str) -> dict[str, float]:
    """Least seconds of three compilations, and peak MiB, of a process of its own."""
    command = [sys.executable, "-c", MEASURE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return json.loads(done.stdout)


def test_a_llama_step_of_2700_lines_compiles_in_half_a_second() -> None:
    assert measured(str(LLAMA))["seconds"] <= 0.5


def test_a_module_of_20000_operations_compiles_in_three_seconds_and_300_mib() -> None:
    found = measured()
    assert found["seconds"] <= 3
    assert found["peak_mib"] <= 300
