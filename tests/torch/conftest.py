"""Here torch itself is the oracle: these tests need the extra `torch`, run by `make test-torch`."""

import importlib.util
from pathlib import Path

import pytest

if importlib.util.find_spec("torch_xla") is None:
    collect_ignore_glob = ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.torch)
