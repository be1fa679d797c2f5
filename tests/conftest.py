"""Options of the whole test suite."""

import networkx  # noqa: F401 - slow to import, which would count against a test's deadline
import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        default=False,
        help="rewrite the expected outputs in tests/golden; read the diff before you commit it",
    )
