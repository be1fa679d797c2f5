"""Outputs, traffic and decisions are those of one process, on every program of the tests."""

import functools
import json
import sys
from pathlib import Path

import pytest

from benchmarks.processes import text_of
from tests.mpi.launch import ROOT, mpirun

FOLDERS = (ROOT / "tests/data/hlo", ROOT / "ir_examples")
PIPELINE = "ir_examples/pipeline_stage0.ir+ir_examples/pipeline_stage1.ir"
FILES = [
    *(
        str(path.relative_to(ROOT))
        for folder in FOLDERS
        for path in sorted(folder.iterdir())
        # of the large model constants have no values; stages need one another
        if path.suffix in (".hlo", ".ir") and not path.stem.startswith(("llama", "pipeline"))
    ),
    PIPELINE,
]
FEW = (
    "tests/data/hlo/ragged_in_a_loop.hlo",
    "ir_examples/argmax.ir",
    "ir_examples/moe_dispatch.ir",
    "ir_examples/ring_attention.ir",
    PIPELINE,
)
ALL_WAYS, MAIN_WAYS = "proved,literal,checked,shuffled", "proved,literal"


@functools.cache
def digests(count: int, ways: str, files: tuple[str, ...], host_processes: int = 0) -> dict:
    """By file and way."""
    words = [sys.executable, "-m", "tests.mpi.digests", ways, *files]
    environment = {"NCC_MPI_HOST_PROCESSES": str(host_processes)} if host_processes else {}
    done = mpirun(count, *words, environment=environment, seconds=900)
    assert done.returncode == 0, done.stderr
    found: dict[str, str] = json.loads(done.stdout)
    return found


def alone(ways: str, files: tuple[str, ...]) -> dict[str, str]:
    found = digests(1, ALL_WAYS if files == tuple(FILES) else ways, files)
    return {key: one for key, one in found.items() if key.split()[-1] in ways.split(",")}


@pytest.mark.parametrize(("count", "ways"), [(2, ALL_WAYS), (4, MAIN_WAYS)])
def test_every_program_has_the_bits_of_one_process(count, ways):
    assert digests(count, ways, tuple(FILES)) == alone(ways, tuple(FILES))


def test_checked_and_shuffled_runs_have_them_too():
    """In few programs: four processes of two processors wait for each other at every row."""
    assert digests(4, ALL_WAYS, FEW) == digests(1, ALL_WAYS, FEW)


@pytest.mark.parametrize("host_processes", [1, 2])
def test_messages_between_hosts_give_the_same_bits(host_processes):
    found = digests(4, MAIN_WAYS, tuple(FILES), host_processes)
    assert found == alone(MAIN_WAYS, tuple(FILES))


@pytest.fixture(scope="module")
def sixty_four(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, ...]:
    path: Path = tmp_path_factory.mktemp("programs") / "step.hlo"
    path.write_text(text_of(2, size=64))
    return (str(path),)


@pytest.mark.parametrize(("count", "host_processes"), [(2, 0), (4, 0), (4, 1), (4, 2)])
def test_sixty_four_ranks_have_the_bits_of_one_process(sixty_four, count, host_processes):
    found = digests(count, MAIN_WAYS, sixty_four, host_processes)
    assert found == alone(MAIN_WAYS, sixty_four)
