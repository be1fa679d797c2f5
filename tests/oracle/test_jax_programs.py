"""Programs written in JAX, partitioned by XLA: every rank computes what jax computes."""

from pathlib import Path

import pytest

import ncc_compiler
import ncc_runtime
from ncc_compiler.options import CompileOptions
from tests.oracle import runs
from tests.oracle.closeness import assert_as_exact

PLACES = (
    {"topology": "trn2.48xlarge"},
    {"topology": "trn1.32xlarge"},
    {"topology": "trn1.32xlarge", "nodes": 2},
)


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("programs")


@pytest.mark.parametrize(("file", "name"), runs.names())
def test_a_partitioned_program_computes_what_jax_computes(
    file: str, name: str, folder: Path
) -> None:
    ran = runs.run(file, name, folder)
    neff = ncc_compiler.compile_text(ran.text, name=name)
    for place in PLACES:
        outputs = ncc_runtime.load(neff, **place).run(list(ran.inputs)).outputs
        for ours, xla, exact in zip(outputs, ran.outputs, ran.exact, strict=True):
            assert_as_exact(ours, xla, exact)


@pytest.mark.parametrize("level", [0, 2])
@pytest.mark.parametrize(("file", "name"), runs.names())
def test_other_levels_compute_the_same(file: str, name: str, level: int, folder: Path) -> None:
    ran = runs.run(file, name, folder)
    neff = ncc_compiler.compile_text(ran.text, CompileOptions(level=level), name)
    outputs = ncc_runtime.load(neff, topology="trn2.48xlarge").run(list(ran.inputs)).outputs
    for ours, xla, exact in zip(outputs, ran.outputs, ran.exact, strict=True):
        assert_as_exact(ours, xla, exact)
