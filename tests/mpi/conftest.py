"""Runs that a launcher of MPI starts: `make test-mpi` installs it, and the extra `mpi`."""

import importlib.util
import shutil
from pathlib import Path

import pytest

if importlib.util.find_spec("mpi4py") is None or shutil.which("mpirun") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.mpi)
