"""Options of the whole test suite."""

import math

import hypothesis
import pytest

from ncc_runtime import progress_bar

# A deadline would make a verdict depend on how busy the machine is, and a random choice of examples
# on luck: the suite tries the same examples each time, `make test-random` new ones.
hypothesis.settings.register_profile("ncc", deadline=None, derandomize=True)
hypothesis.settings.register_profile("random", deadline=None, print_blob=True)
hypothesis.settings.load_profile("ncc")

# On a busy machine, lines of progress would come between the lines that tests expect.
progress_bar.FIRST_LINE_S = math.inf


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden",
        action="store_true",
        default=False,
        help="rewrite the expected outputs in tests/golden; read the diff before you commit it",
    )
