"""Programs under jax, in a child process: XLA's partitioned text and what every rank computed."""

import ast
from functools import cache
from pathlib import Path

import attrs
import numpy as np

from tests.oracle import arrays
from tests.oracle.children import run_module

PROGRAMS = Path(__file__).parent / "programs"
FLAGS = (
    "--xla_force_host_platform_device_count=8 --xla_allow_excess_precision=false "
    "--xla_dump_to={dump} --xla_dump_large_constants --xla_dump_hlo_pass_re=spmd-partitioning"
)


@attrs.frozen(eq=False)
class Run:
    """Arrays [ranks, *shape]; `exact` are the outputs of the same program in float64."""

    text: str
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]
    exact: tuple[np.ndarray, ...]


def names() -> list[tuple[str, str]]:
    """File and name of every program, without importing jax."""
    return [
        (path.stem, node.name)
        for path in sorted(PROGRAMS.glob("[a-z]*.py"))
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
        and any("program(" in ast.unparse(mark) for mark in node.decorator_list)
    ]


@cache
def _ran(file: str, base: Path) -> Path:
    """A folder with the arrays of a file's programs, as they run and exactly, and XLA's dump."""
    where = base / file
    for kind in ("own", "exact"):
        (where / kind).mkdir(parents=True)
        dump = where / f"{kind}-dump"
        out = str(where / kind)
        run_module("tests.oracle.run_programs", file, kind, out, flags=FLAGS.format(dump=dump))
    return where


def run(file: str, name: str, base: Path) -> Run:
    """A program's run; the file it is in runs once for each folder `base`."""
    where = _ran(file, base)
    (text,) = (where / "own-dump").glob(f"*.jit_{name}.*after_spmd-partitioning*.txt")
    own, exact = (arrays.load(where / kind / f"{name}.npz") for kind in ("own", "exact"))
    return Run(
        text.read_text(),
        tuple(arrays.values(own, "in")),
        tuple(arrays.values(own, "out")),
        tuple(arrays.values(exact, "out")),
    )
