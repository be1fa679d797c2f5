"""Files and functions stay short: the sizes of the style guide, measured."""

import ast
import statistics
from collections.abc import Iterator
from pathlib import Path

import attrs
import pytest

ROOT = Path(__file__).parents[1]
PACKAGES = ("ncc_compiler", "ncc_runtime")
TREES = (*PACKAGES, "tests", "benchmarks")

FILE_WALL, FILE_RULE, FILE_MEDIAN = 500, 300, 150
FUNCTION_WALL, FUNCTION_RULE, FUNCTION_MEDIAN = 50, 30, 10
MOST_PARAMETERS = 5
KEYWORDS_OF_THE_INTERFACE = {
    "ncc_runtime/runtime.py load"
}  # the public call spells out its options
MOST_LEVELS = 3
_BLOCKS = (ast.If, ast.For, ast.While, ast.With, ast.Try, ast.Match)


@attrs.frozen
class Function:
    """A function with the measures the style guide limits."""

    name: str  # file and function
    lines: int
    parameters: int
    levels: int


def files(*trees: str) -> list[Path]:
    return sorted(path for tree in trees for path in (ROOT / tree).rglob("*.py"))


def length(path: Path) -> int:
    return len(path.read_text().splitlines())


def functions(*trees: str) -> Iterator[Function]:
    for path in files(*trees):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield Function(
                    f"{path.relative_to(ROOT)} {node.name}",
                    (node.end_lineno or 0) - node.lineno + 1,
                    _parameters(node.args),
                    _levels(node),
                )


def _parameters(given: ast.arguments) -> int:
    names = [one.arg for one in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
    return sum(name not in ("self", "cls") for name in names)


def _levels(node: ast.AST) -> int:
    """Blocks inside blocks; an `elif` is no deeper than its `if`."""
    deepest = 0
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            continue
        is_elif = isinstance(node, ast.If) and node.orelse == [child] and isinstance(child, ast.If)
        own = isinstance(child, _BLOCKS) and not is_elif
        deepest = max(deepest, own + _levels(child))
    return deepest


@pytest.mark.parametrize("tree", TREES)
def test_no_file_passes_the_wall(tree: str) -> None:
    assert [f"{path}: {length(path)}" for path in files(tree) if length(path) > FILE_WALL] == []


@pytest.mark.parametrize("tree", PACKAGES)
def test_nine_files_of_ten_keep_to_the_rule(tree: str) -> None:
    lengths = [length(path) for path in files(tree)]
    assert statistics.quantiles(lengths, n=10)[-1] <= FILE_RULE
    assert statistics.median(lengths) <= FILE_MEDIAN


@pytest.mark.parametrize("tree", TREES)
def test_no_function_passes_the_wall(tree: str) -> None:
    assert [
        f"{one.name}: {one.lines}" for one in functions(tree) if one.lines > FUNCTION_WALL
    ] == []


@pytest.mark.parametrize("tree", PACKAGES)
def test_functions_keep_to_the_rule(tree: str) -> None:
    lines = [one.lines for one in functions(tree)]
    long = sum(size > FUNCTION_RULE for size in lines) / len(lines)
    assert long <= 0.05, f"{long:.1%} of functions have more than {FUNCTION_RULE} lines"
    assert statistics.median(lines) <= FUNCTION_MEDIAN


@pytest.mark.parametrize("tree", PACKAGES)
def test_functions_take_few_parameters(tree: str) -> None:
    many = {one.name for one in functions(tree) if one.parameters > MOST_PARAMETERS}
    assert many - KEYWORDS_OF_THE_INTERFACE == set()


@pytest.mark.parametrize("tree", PACKAGES)
def test_functions_are_not_nested_deeply(tree: str) -> None:
    assert [one.name for one in functions(tree) if one.levels > MOST_LEVELS] == []


def test_every_file_starts_with_a_docstring() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in files(*TREES)
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert silent == []


def test_the_measures_see_what_they_should() -> None:
    code = "def f(a, *, b):\n if a:\n  pass\n elif b:\n  for x in a:\n   with x:\n    pass\n"
    node = ast.parse(code).body[0]
    assert isinstance(node, ast.FunctionDef)
    assert (_parameters(node.args), _levels(node)) == (2, 3)
