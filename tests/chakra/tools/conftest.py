"""MLCommons' own tools read and write here: the package mlc-chakra, run by `make test-chakra`."""

import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("chakra") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.chakra)
