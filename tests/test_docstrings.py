"""Every file of code says in its first line what it is."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
TREES = ("ncc_compiler", "ncc_runtime", "tests", "benchmarks")


def test_every_file_starts_with_a_docstring() -> None:
    paths = sorted(path for tree in TREES for path in (ROOT / tree).rglob("*.py"))
    assert len(paths) > 100
    silent = [
        str(path.relative_to(ROOT))
        for path in paths
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []
