"""The oracle is XLA: these tests need the extra `jax`, and run by `make test-oracle`."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.oracle.xla import Xla

if importlib.util.find_spec("jax") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.oracle)


@pytest.fixture(scope="session")
def xla() -> Iterator[Xla]:
    running = Xla()
    yield running
    running.close()
